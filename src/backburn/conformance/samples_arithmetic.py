"""Samples: arithmetic."""

from __future__ import annotations

import numpy as np

from backburn.conformance.samples import case, integers, real, samples

BROADCASTS = (
    case(real(2, 3), real(2, 3, seed=1)),
    case(real(2, 3), real(3, seed=1)),
    case(real(2, 1, 3), real(4, 1, seed=1)),
    case(real(3), 1.5),
    case(-0.5, real(3)),
    case(real(), real(2, seed=1)),
    case(real(0, 3), real(1, 3, seed=1)),
    case(integers(2, 3), integers(3, seed=1)),
    case(integers(3), 2),
)

samples("add", np.add, *BROADCASTS)
samples("sub", np.subtract, *BROADCASTS)
samples("mul", np.multiply, *BROADCASTS)
