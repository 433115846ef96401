"""Samples: comparisons, logic and bits."""

from __future__ import annotations

import numpy as np

from backburn.conformance.samples import booleans, case, samples

samples("logical_not", np.logical_not, case(booleans(2, 3)))
