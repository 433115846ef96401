"""Samples: sorting."""

from __future__ import annotations

import math

import numpy as np

from backburn.conformance.samples.table import INF, NAN, Array, booleans, case, integers, real, samples

TIES = np.array([[2.0, 1.0, 2.0, 0.0, 1.0], [0.0, 0.0, -1.0, 0.0, -1.0]])
SPECIAL = np.array([[1.0, NAN, -INF, 3.0, NAN], [INF, 0.0, INF, -INF, 1.0]])
LEAST = np.array([5, -128, 127, 0, -128], np.int8)  # the smallest integer has no negation


def order(x: Array, axis: int, descending: bool = False) -> Array:
    """The stable order with NaN last, from keys that sort ascending."""
    if descending and x.dtype.kind == "f":
        return np.argsort(-x, axis=axis, kind="stable")
    return np.argsort(~x if descending else x, axis=axis, kind="stable")


def both(x: Array, axis: int, descending: bool = False) -> tuple[Array, Array]:
    """Sorted values and their indices."""
    indices = order(x, axis, descending)
    return np.take_along_axis(x, indices, axis), indices


ALONG = (
    case(real(2, 3), axis=0),
    case(real(2, 5), axis=1),
    case(real(2, 5), axis=1, descending=True),
    case(real(2, 4, 2), axis=1),
    case(real(1), axis=0),
    case(real(0, 2), axis=0),
    case(real(2, 0), axis=0, descending=True),
    case(integers(2, 5), axis=1),
    case(LEAST, axis=0),
    case(LEAST, axis=0, descending=True),
    case(np.array([3, 0, 255, 3], np.uint8), axis=0, descending=True),
    case(SPECIAL, axis=1, smooth=0),
    case(SPECIAL, axis=1, descending=True, smooth=0),
    case(TIES, axis=1, smooth=0),
    case(TIES, axis=1, descending=True, smooth=0),
)
TRUTHS = (case(booleans(5), axis=0), case(booleans(2, 3), axis=1, descending=True))
#: Neighbours in 64 bits that are equal in 32 bits, and integers that are equal in float64.
NEAR = (case(np.array([1 + 2.0**-40, 1.0]), axis=0), case(np.array([2**53 + 1, 2**53, -(2**40)]), axis=0))
samples("argsort", order, *ALONG, *TRUTHS, *NEAR)
samples("sort", lambda *a, **b: both(*a, **b)[0], *ALONG, *TRUTHS)
samples("sort_with_indices", both, *ALONG, *TRUTHS)


def topk(x: Array, count: int, axis: int, largest: bool = True) -> tuple[Array, Array]:
    """The first elements in sorted order."""
    first = np.arange(count)
    values, indices = both(x, axis, largest)
    return np.take(values, first, axis), np.take(indices, first, axis)


samples(
    "topk",
    topk,
    case(real(2, 5), count=2, axis=1),
    case(real(5, 2), count=3, axis=0, largest=False),
    case(real(2, 4, 2), count=4, axis=1),
    case(real(3), count=0, axis=0),
    case(real(0, 3), count=1, axis=1),
    case(integers(2, 6), count=3, axis=1),
    case(LEAST, count=3, axis=0, largest=False),
    case(np.array([3, 0, 255, 3], np.uint8), count=3, axis=0),
    case(SPECIAL, count=4, axis=1, smooth=0),
    case(SPECIAL, count=4, axis=1, largest=False, smooth=0),
    case(TIES, count=2, axis=1, smooth=0, gradients=(np.array([[1.0, 0, 1, 0, 0], [1, 1, 0, 0, 0]]),)),
    case(TIES, count=2, axis=1, largest=False, smooth=0, gradients=(np.array([[0, 1.0, 0, 1, 0], [0, 0, 1, 0, 1]]),)),
)


def kthvalue(x: Array, nth: int, axis: int, keepdims: bool = False) -> tuple[Array, Array]:
    """The ``nth`` element in sorted order."""
    place = np.array([nth - 1]) if keepdims else np.array(nth - 1)
    return tuple(np.take(r, place, axis) for r in both(x, axis))  # type: ignore[return-value]


samples(
    "kthvalue",
    kthvalue,
    case(real(5), nth=1, axis=0),
    case(real(2, 5), nth=4, axis=1, keepdims=True),
    case(real(4, 3), nth=2, axis=0),
    case(real(0, 3), nth=3, axis=1),
    case(integers(2, 5), nth=3, axis=1),
    case(SPECIAL, nth=4, axis=1, smooth=0),
    case(TIES, nth=4, axis=1, smooth=0, gradients=(np.array([[1.0, 0, 0, 0, 0], [0, 1, 0, 0, 0]]),)),
)


def searchsorted(x: Array, values: Array, right: bool = False) -> Array:
    """Row by row."""
    side = "right" if right else "left"
    if x.ndim == 1:
        return np.asarray(np.searchsorted(x, values, side=side), np.int64)  # type: ignore[call-overload]
    rows = [np.searchsorted(a, v, side=side) for a, v in zip(_rows(x), _rows(values), strict=True)]  # type: ignore[call-overload]
    return np.reshape(np.array(rows, np.int64), values.shape)


def _rows(x: Array) -> Array:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


RISING = np.array([-1.0, 0.5, 0.5, 2.0, INF, NAN])
samples(
    "searchsorted",
    searchsorted,
    case(np.sort(real(5)), real(2, 3, seed=1)),
    case(RISING, np.array([0.5, -2.0, 2.0, 3.0, NAN, INF, -INF])),
    case(RISING, np.array([0.5, -2.0, 2.0, 3.0, NAN, INF, -INF]), right=True),
    case(RISING, np.array(0.5), right=True),
    case(real(0), real(3)),
    case(real(4), real(0)),
    case(np.sort(integers(7)), integers(2, 3)),
    case(np.sort(integers(7)), integers(2, 3), right=True),
    case(np.sort(real(2, 3, 5), axis=-1), real(2, 3, 4, seed=1)),
    case(np.sort(real(2, 5), axis=-1), real(2, 0)),
    case(np.array([[1.0, 1.0, NAN], [0.0, NAN, NAN]]), np.array([[1.0, NAN], [NAN, 0.0]])),
    case(np.array([[1.0, 1.0, NAN], [0.0, NAN, NAN]]), np.array([[1.0, NAN], [NAN, 0.0]]), right=True),
    case(np.sort(integers(2, 4), axis=-1), integers(2, 3, seed=1), right=True),
    case(np.array([1.0, 1 + 2.0**-40]), np.array([1.0, 1 + 2.0**-41, 1 + 2.0**-40]), right=True),
)
