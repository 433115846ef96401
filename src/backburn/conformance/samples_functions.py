"""Samples: functions of each element."""

from __future__ import annotations

import numpy as np

from backburn.conformance.samples import case, real, samples

samples("tanh", np.tanh, case(real(2, 3)), case(real()), case(real(0)))
