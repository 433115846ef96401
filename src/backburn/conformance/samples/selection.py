"""Samples: choosing between values."""

from __future__ import annotations

import numpy as np

from backburn.conformance.samples.table import Array, booleans, case, integers, real, samples


def masked_select(x: Array, mask: Array) -> Array:
    """The selected elements, after broadcasting."""
    x, mask = np.broadcast_arrays(x, mask)
    return x[mask]


EXTREME = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, 5e-324])
MATRICES = (
    case(real(3, 3)),
    case(real(2, 4), offset=1),
    case(real(4, 2), offset=-1),
    case(real(2, 3, 3), offset=-2),
    case(real(2, 2), offset=5),
    case(real(2, 2), offset=-5),
    case(real(0, 3)),
    case(integers(3, 3), offset=1),
    case(booleans(3, 3)),
)

samples(
    "where",
    np.where,
    case(booleans(2, 3), real(2, 3), real(2, 3, seed=1)),
    case(booleans(2, 1), real(3), real(2, 3, seed=1)),
    case(booleans(2, 3), real(), real(3, seed=1)),
    case(booleans(3), real(2, 3), real(2, 1, seed=1)),
    case(booleans(2, 3), real(2, 3), 0.0),
    case(booleans(2, 3), 1.5, real(2, 3)),
    case(booleans(), real(), real(seed=1)),
    case(booleans(0, 3), real(0, 3), real(3, seed=1)),
    case(booleans(2, 3), integers(2, 3), integers(3, seed=1)),
    case(booleans(3), integers(3), -1),
    case(booleans(2, 3), booleans(2, 3, seed=1), booleans(3, seed=2)),
    case(booleans(3), True, booleans(3, seed=1)),
    case(booleans(6), EXTREME, 0.0, smooth=0),
    case(booleans(6), -0.0, EXTREME, smooth=0),
    case(booleans(72, 64), real(72, 64), real(72, 64, seed=1), smooth=1, note="large, for which algorithms may differ"),
    case(booleans(72, 64), real(64), real(72, 1, seed=1), smooth=0),
    case(booleans(64), real(72, 64), real(64, seed=1), smooth=0),
    case(booleans(72, 64), real(72, 64), 0.0, smooth=0),
    case(booleans(72, 64), 0.0, real(72, 64), smooth=0),
    case(booleans(72, 64), np.tile(EXTREME, 768).reshape(72, 64), 0.0, smooth=0),
    case(booleans(72, 64), -0.0, np.tile(EXTREME, 768).reshape(72, 64), smooth=0),
    case(booleans(72, 64), integers(72, 64), -1),
    case(booleans(72, 64), booleans(72, 64, seed=1), True),
    case(np.array([True, False]), np.array([2**53 + 1, 0]), np.array([0, -(2**53) - 1])),
)
samples(
    "masked_fill",
    lambda x, mask, value: np.where(mask, value, x),
    case(real(2, 3), booleans(2, 3), -1.5),
    case(real(2, 3), booleans(3), real(seed=1)),
    case(real(2, 1), booleans(3), real(2, 3, seed=1)),
    case(real(), booleans(), 2.0),
    case(real(0, 2), booleans(2), 0.0),
    case(integers(2, 3), booleans(2, 3), 7),
    case(booleans(2, 3), booleans(2, 3, seed=1), True),
)
samples(
    "masked_select",
    masked_select,
    case(real(2, 3), booleans(2, 3)),
    case(real(2, 3), booleans(3)),
    case(real(3), booleans(2, 3)),
    case(real(2), np.array([False, False])),
    case(real(), np.array(True)),
    case(real(0, 2), booleans(0, 2)),
    case(integers(2, 3), booleans(2, 3)),
    case(booleans(4), booleans(4, seed=1)),
)
samples("triu", lambda x, offset=0: np.triu(x, offset), *MATRICES)
samples("tril", lambda x, offset=0: np.tril(x, offset), *MATRICES)
