"""Samples: reductions and scans."""

from __future__ import annotations

import numpy as np

from backburn.conformance.samples import case, integers, real, samples

AXES = (
    case(real(2, 3), axis=(0,)),
    case(real(2, 3), axis=(1,), keepdims=True),
    case(real(2, 3, 2), axis=(0, 2)),
    case(real(2, 3), axis=(0, 1)),
    case(real(2, 3), axis=()),
    case(real(), axis=()),
)

samples("sum", np.sum, *AXES, case(real(0, 3), axis=(0,)), case(integers(2, 3), axis=(1,)))
