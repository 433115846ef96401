"""Samples: sets."""

from __future__ import annotations

import numpy as np

from backburn.conformance.samples.table import INF, NAN, Array, booleans, case, integers, real, samples


def unique_all(x: Array) -> tuple[Array, Array, Array, Array]:
    """NumPy's result, in which every NaN is a separate value."""
    return np.unique(x, return_index=True, return_inverse=True, return_counts=True, equal_nan=False)


REPEATED = np.array([[2.0, 1.0, 2.0], [1.0, -1.0, 2.0]])
FIRST = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
samples(
    "unique_all",
    unique_all,
    case(real(5)),
    case(real(2, 3)),
    case(np.array(2.0)),
    case(real(0)),
    case(real(2, 0)),
    case(REPEATED, smooth=0, gradients=(FIRST,)),
    case(np.array([NAN, 1.0, NAN, INF, -INF, INF]), smooth=0),
    case(np.array([0.0, -0.0, 1.0]), smooth=0),
    case(integers(8, low=-2, high=3)),
    case(integers(3, 4, low=0, high=3)),
    case(np.array([255, 0, 255, 3], np.uint8)),
    case(booleans(5)),
)
samples(
    "isin",
    np.isin,
    case(REPEATED, np.array([2.0, 5.0])),
    case(REPEATED, np.array([[1.0], [-1.0]])),
    case(np.array(1.0), np.array(1.0)),
    case(REPEATED, real(0)),
    case(real(0), REPEATED),
    case(np.array([NAN, 1.0, INF, -INF, 0.0]), np.array([NAN, INF, -0.0])),
    case(integers(2, 5), integers(3, seed=1)),
    case(np.array([255, 0, 7], np.uint8), np.array([7, 255], np.uint8)),
    case(np.array([1.0, 1 + 2.0**-40]), np.array([1.0, 2.0])),
    case(np.array([2**53 + 1, 2**40]), np.array([2**53])),
)
