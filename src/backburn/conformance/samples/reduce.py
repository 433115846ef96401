"""Samples: reductions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backburn.conformance.samples.table import INF, NAN, Array, booleans, case, integers, positive, real, samples

AXES = (
    case(real(2, 3), axis=(0,)),
    case(real(2, 3), axis=(1,), keepdims=True),
    case(real(2, 3, 2), axis=(0, 2)),
    case(real(2, 3), axis=(0, 1)),
    case(real(2, 3), axis=()),
    case(real(), axis=()),
    case(real(2, 0), axis=(0,)),
    case(real(3, 5), axis=(1,), note="odd length"),
)
INTS = (
    case(integers(2, 3), axis=(1,)),
    case(integers(2, 3).astype(np.int8), axis=(0, 1), keepdims=True),
    case(integers(4, low=0, high=9).astype(np.uint8), axis=(0,)),
)
#: Integers that neither float64 nor 32 bits can hold.
WIDE = np.array([2**53, 2**53 + 1, -(2**53) - 3, 2**40 + 2**31 - 1, 2**31])
#: Twice the largest integer but one wraps around, in every dtype that the samples are converted to.
WRAPS = np.array([[2**63 - 2, 2**63 - 2, 5], [3, 2**63 - 2, 2**63 - 2]])
#: Neighbours in 64 bits that are equal in 32 bits.
NEAR = np.array([1 + 2.0**-41, 1.0, 1 + 2.0**-40])
TIES = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, -1.0]])
SPECIAL = np.array([[1.0, NAN, 3.0], [-INF, 0.0, INF], [-INF, -INF, -INF], [1.0, 2.0, 3.0]])
MANY = np.full((3, 5000), 0.1)  # more than sequential 16-bit sums can add up


def like(function: Any) -> Any:
    """A NumPy reduction that keeps the dtype of integers."""
    return lambda x, axis, keepdims=False: function(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


def total(x: Array, axis: Any, keepdims: bool = False) -> Array:
    """A pairwise sum along any axes, since NumPy adds rows sequentially, which loses digits if there are many."""
    kept = [a for a in range(x.ndim) if a not in axis]
    rows = np.ascontiguousarray(x.transpose(*kept, *axis)).reshape(*(x.shape[a] for a in kept), -1 if x.size else 0)
    result = np.asarray(rows.sum(axis=-1, dtype=x.dtype))
    return result.reshape([1 if a in axis else n for a, n in enumerate(x.shape)]) if keepdims else result


samples(
    "sum",
    total,
    *AXES,
    *INTS,
    case(real(0, 3), axis=(0,)),
    case(np.array([100, 100], np.int8), axis=(0,), note="wraps"),
    case(SPECIAL, axis=(1,), smooth=0),
    case(MANY, axis=(1,), smooth=1),
    case(MANY.T[:500].copy(), axis=(0,), smooth=1),
    case(WIDE, axis=(0,), note="exact beyond float64"),
    case(WRAPS, axis=(1,), keepdims=True, note="wraps"),
)
samples(
    "prod",
    like(np.prod),
    *AXES,
    *INTS,
    case(real(0, 3), axis=(0,)),
    case(np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 5.0], [0.0, 0.0, 0.0]]), axis=(1,), note="one, two and three zeros"),
    case(np.array([[0.0, 2.0], [0.5, 0.0]]), axis=(0, 1), keepdims=True),
    case(np.linspace(0.99, 1.012, 1000), axis=(0,), smooth=1),
    case(SPECIAL, axis=(1,), smooth=0),
    case(WIDE[1:], axis=(0,), note="wraps, exactly"),
    case(WRAPS, axis=(1,), keepdims=True, note="wraps"),
)


def prod_of_others(x: Any, axis: Any) -> Any:
    """The reference of ``prod_of_others``."""
    found = np.empty(x.shape, x.dtype)
    for place in np.ndindex(x.shape):
        rest = np.array(x)
        rest[place] = 1
        line = tuple(slice(None) if a in axis else n for a, n in enumerate(place))
        found[place] = np.prod(rest[line])
    return found


samples(
    "prod_of_others",
    prod_of_others,
    *(case(real(*shape), axis=axis) for shape, axis in (((2, 3), (0,)), ((3, 4), (1,)), ((2, 3, 2), (0, 2)))),
    *(case(real(*shape), axis=axis) for shape, axis in (((2, 3), ()), ((), ()), ((2, 0), (0,)), ((2, 0), (1,)))),
    case(np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 5.0], [0.0, 0.0, 0.0]]), axis=(1,), note="one, two and three zeros"),
    case(np.array([[1e-25, 1e-25, 1.0], [2.0, 0.5, 3.0]]), axis=(1,), smooth=0, note="a product that underflows"),
    case(np.array([[2.0, INF, 3.0], [2.0, NAN, 3.0], [1.0, 2.0, 3.0]]), axis=(1,), smooth=0),
)
samples(
    "count_nonzero",
    lambda x, axis, keepdims=False: np.sum(x != 0, axis=axis, keepdims=keepdims, dtype=np.int64),
    *AXES,
    *INTS,
    case(np.array([[0.0, NAN, -0.0], [INF, 1e-7, 0.0]]), axis=(1,)),
    case(booleans(3, 3), axis=(0,)),
    case(booleans(), axis=()),
    case(real(0, 3), axis=(0,)),
    case(np.array([1e-300, 0.0, -1e-300]), axis=(0,), note="numbers that only 64 bits have"),
)
samples(
    "max",
    np.max,
    *AXES,
    *INTS,
    case(SPECIAL, axis=(1,), smooth=0),
    case(TIES, axis=(1,), smooth=0, gradients=(np.array([[0, 0.5, 0.5], [0.5, 0.5, 0]]),)),
    case(np.full((2, 3), 7.0), axis=(0, 1), keepdims=True, smooth=0, gradients=(np.full((2, 3), 1 / 6),)),
    case(WIDE, axis=(0,)),
)
samples(
    "min",
    np.min,
    *AXES,
    *INTS,
    case(SPECIAL, axis=(1,), smooth=0),
    case(-TIES, axis=(1,), smooth=0, gradients=(np.array([[0, 0.5, 0.5], [0.5, 0.5, 0]]),)),
    case(np.full((2, 3), 7.0), axis=(0, 1), keepdims=True, smooth=0, gradients=(np.full((2, 3), 1 / 6),)),
    case(WIDE, axis=(0,)),
)


def max_abs(x: Array, axis: tuple[int, ...], keepdims: bool = False) -> Array:
    """The reference of ``max_abs``, computed with Python's integers."""
    if x.dtype.kind != "i":
        return np.asarray(np.max(np.abs(x), axis=axis, keepdims=keepdims, initial=0))
    largest = np.max(np.abs(x.astype(object)), axis=axis, keepdims=keepdims, initial=0)
    return np.asarray(np.minimum(largest, np.iinfo(x.dtype).max)).astype(x.dtype)


samples(
    "max_abs",
    max_abs,
    *AXES,
    *INTS,
    *(case(np.array([[np.iinfo(d).min, 1], [-3, 2]], d), axis=(1,)) for d in (np.int8, np.int32, np.int64)),
    case(real(2, 0, 3), axis=(1,)),
    case(np.zeros((0, 2), np.int8), axis=(0,), keepdims=True),
    case(SPECIAL, axis=(1,), smooth=0),
    case(
        np.array([[1.0, -3.0, 3.0], [0.0, 0.0, 0.0]]),
        axis=(1,),
        smooth=0,
        gradients=(np.array([[0, -0.5, 0.5], [0, 0, 0]]),),
    ),
    case(WIDE, axis=(0,)),
)

ONE_AXIS = (
    case(real(2, 3), axis=0),
    case(real(2, 3), axis=1, keepdims=True),
    case(real(2, 0), axis=0),
    case(real(1), axis=0),
    case(real(2, 4, 2), axis=1),
    case(integers(2, 5), axis=1),
    case(integers(6, low=0, high=4).astype(np.uint8), axis=0),
)
FIRST = (
    case(SPECIAL, axis=1, smooth=0, note="NaN counts as the extreme"),
    case(np.array([NAN, 1.0, NAN]), axis=0, smooth=0),
)
EXACT = (case(NEAR, axis=0, smooth=0), case(WIDE, axis=0), case(-WIDE, axis=0))
samples("argmax", np.argmax, *ONE_AXIS, *FIRST, case(TIES, axis=1), *EXACT)
samples("argmin", np.argmin, *ONE_AXIS, *FIRST, case(-TIES, axis=1), *EXACT)


def with_indices(find: Any) -> Any:
    """The elements and indices that ``find`` (argmax or argmin) chooses."""

    def reference(x: Array, axis: int, keepdims: bool = False) -> tuple[Array, Array]:
        index = find(x, axis=axis, keepdims=True)
        values = np.take_along_axis(x, index, axis)
        return (values, index) if keepdims else (values.squeeze(axis), index.squeeze(axis))

    return reference


TO_FIRST = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
samples(
    "max_with_indices",
    with_indices(np.argmax),
    *ONE_AXIS,
    *FIRST,
    case(TIES, axis=1, smooth=0, gradients=(TO_FIRST,)),
    *EXACT,
)
samples(
    "min_with_indices",
    with_indices(np.argmin),
    *ONE_AXIS,
    *FIRST,
    case(-TIES, axis=1, smooth=0, gradients=(TO_FIRST,)),
    *EXACT,
)

TRUTHS = (
    case(booleans(2, 3), axis=(0,)),
    case(booleans(2, 3, seed=1), axis=(1,), keepdims=True),
    case(np.array([[True, True], [False, False]]), axis=(1,)),
    case(booleans(2, 3, 2), axis=(0, 2)),
    case(booleans(2, 3), axis=()),
    case(booleans(), axis=()),
    case(np.zeros((0, 2), bool), axis=(0,)),
    case(np.zeros((0, 2), bool), axis=(1,)),
)
samples("any", np.any, *TRUTHS)
samples("all", np.all, *TRUTHS)


def mean(x: Array, axis: Any, keepdims: bool = False) -> Array:
    """The sum divided by the number of elements."""
    return total(x, axis, keepdims) / np.float64(math.prod(x.shape[a] for a in axis))


samples(
    "mean",
    mean,
    *AXES,
    case(real(0, 3), axis=(0,), smooth=0),
    case(SPECIAL, axis=(1,), smooth=0),
    case(MANY, axis=(1,), smooth=1),
    case(np.full((4000,), 60.0), axis=(0,), smooth=1, note="the sum overflows 16 bits"),
)


def var(x: Array, axis: Any, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The variance, whose divisor is never below 0."""
    squares = total((x - mean(x, axis, True)) ** 2, axis, keepdims)
    return squares / np.float64(max(math.prod(x.shape[a] for a in axis) - correction, 0.0))


SPREAD = (
    case(real(2, 3), axis=(0,)),
    case(real(2, 3), axis=(1,), keepdims=True, correction=1.0),
    case(real(2, 3, 2), axis=(0, 2), correction=0.5),
    case(real(2, 3), axis=(0, 1)),
    case(real(2, 3) + 1000.0, axis=(1,), note="far from 0"),
    case(real(0, 3), axis=(0,), smooth=0),
    case(real(2, 0), axis=(0,)),
    case(real(2, 3), axis=(0,), correction=2.0, smooth=0, note="no degree of freedom"),
    case(SPECIAL, axis=(1,), smooth=0),
    case(real(2, 3), axis=(0,), correction=3.0, smooth=0, note="less than none"),
)
samples(
    "var",
    var,
    *SPREAD,
    case(real(), axis=()),
    case(np.full((2, 3), 0.7), axis=(1,), smooth=0, gradients=(np.zeros((2, 3)),), note="no deviation"),
)
samples(
    "std",
    lambda x, axis, correction=0.0, keepdims=False: np.sqrt(var(x, axis, correction, keepdims)),
    *SPREAD,
    case(real(), axis=(), smooth=0, gradients=(np.zeros(()),)),
    case(np.full((2, 3), 0.5), axis=(1,), smooth=0, gradients=(np.zeros((2, 3)),), note="no deviation"),
    gradient_tolerance=10,
    because="the derivatives far from 0 are differences of large numbers",
)

SORTED = (
    case(real(5), axis=(0,)),
    case(real(4, 3), axis=(0,)),
    case(real(2, 5), axis=(1,), keepdims=True),
    case(real(2, 3, 2), axis=(0, 2)),
    case(real(2, 3), axis=(0, 1), keepdims=True),
    case(real(2, 3), axis=()),
    case(real(), axis=()),
    case(real(2, 0), axis=(0,)),
    case(real(1), axis=(0,)),
    case(SPECIAL, axis=(1,), smooth=0),
    case(np.array([-INF, -INF, 1.0, INF, INF]), axis=(0,), smooth=0),
)
samples("median", lambda x, axis, keepdims=False: quantile(x, 0.5, axis, keepdims), *SORTED)


def quantile(x: Array, q: Any, axis: Any, keepdims: bool = False) -> Array:
    """Linear interpolation between sorted neighbours; infinities do not interpolate to NaN."""
    others = tuple(a for a in range(x.ndim) if a not in axis)
    line = np.sort(x.transpose(*others, *axis).reshape(*(x.shape[a] for a in others), -1 if x.size else 2), axis=-1)
    rows = []
    for one in q if isinstance(q, tuple) else (q,):
        place = one * (line.shape[-1] - 1)
        low, high = line[..., math.floor(place)], line[..., math.ceil(place)]
        with np.errstate(invalid="ignore"):
            row = np.where(low == high, low, low + (high - low) * (place % 1))
        row = np.where(np.isinf(low) & (low != high), low, row)
        row = np.where(np.isinf(high) & (place % 1 == 0), low, row)
        row = np.where(np.isnan(line[..., -1]), np.nan, row)
        rows.append(np.expand_dims(row, axis) if keepdims else row)
    return np.reshape(rows, (len(q), *np.shape(rows)[1:])) if isinstance(q, tuple) else rows[0]


samples(
    "quantile",
    quantile,
    *(case(*c.operands, q=0.3, smooth=c.smooth, **c.attributes) for c in SORTED if c.smooth),
    case(real(5), q=0.0, axis=(0,)),
    case(real(5), q=1.0, axis=(0,)),
    case(real(2, 5), q=(0.1, 0.5, 0.75), axis=(1,)),
    case(real(3, 2), q=(0.9,), axis=(0, 1), keepdims=True),
    case(real(3), q=(), axis=(0,)),
    case(np.array([1.0, NAN, 2.0]), q=0.0, axis=(0,), smooth=0),
)


def vector_norm(x: Array, axis: Any, ord: float = 2.0, keepdims: bool = False) -> Array:
    """By the formula, in the range of float64."""
    size: Array = np.abs(x)
    if ord in (INF, -INF):
        return (size.max if ord > 0 else size.min)(axis=axis, keepdims=keepdims)
    if ord == 0:
        return (size != 0).sum(axis=axis, keepdims=keepdims, dtype=np.float64)
    return (size**ord).sum(axis=axis, keepdims=keepdims) ** (1 / ord)


HUGE, TINY = 1e30, 1e-30  # squares overflow and vanish in 32 bits
samples(
    "vector_norm",
    vector_norm,
    *AXES,
    case(real(0, 3), axis=(0,), smooth=1),
    case(real(2, 3), axis=(1,), ord=1.0),
    case(real(0, 3), axis=(0,), ord=1.0),
    case(real(2, 3), axis=(1,), ord=3.0),
    case(positive(2, 3), axis=(0,), ord=2.5, keepdims=True),
    case(real(2, 3), axis=(0, 1), ord=0.5),
    case(real(2, 3), axis=(1,), ord=-1.5),
    case(real(2, 3), axis=(1,), ord=INF),
    case(real(2, 3), axis=(1,), ord=-INF),
    case(np.array([[0.0, 2.0], [0.0, 0.0]]), axis=(1,), ord=0.0),
    case(np.zeros((2, 3)), axis=(1,), smooth=0, gradients=(np.zeros((2, 3)),)),
    case(np.zeros((2, 3)), axis=(1,), ord=1.0, smooth=0, gradients=(np.zeros((2, 3)),)),
    case(np.zeros((2, 3)), axis=(1,), ord=3.0, smooth=0, gradients=(np.zeros((2, 3)),)),
    case(np.zeros((2, 3)), axis=(1,), ord=INF, smooth=0, gradients=(np.zeros((2, 3)),)),
    case(np.array([3.0, 0.0, 4.0]), axis=(0,), gradients=(np.array([0.6, 0.0, 0.8]),), note="one element is 0"),
    case(np.array([3.0, 0.0, 4.0]), axis=(0,), ord=4.0),
    case(np.array([3.0, 0.0, 4.0]), axis=(0,), ord=0.5, smooth=0),
    case(np.array([3.0, 0.0, 4.0]), axis=(0,), ord=-1.0, smooth=0),
    case(np.array([3.0, -3.0, 1.0]), axis=(0,), ord=INF, smooth=0, gradients=(np.array([0.5, -0.5, 0.0]),)),
    case(np.array([3.0, -1.0, 1.0]), axis=(0,), ord=-INF, smooth=0, gradients=(np.array([0.0, -0.5, 0.5]),)),
    case(np.array([[HUGE, HUGE], [TINY, -TINY]]), axis=(1,), smooth=0, note="squares out of range"),
    case(np.array([[HUGE, HUGE], [TINY, -TINY]]), axis=(1,), ord=3.0, smooth=0),
    case(np.array([[HUGE, HUGE], [TINY, -TINY]]), axis=(1,), ord=-2.0, smooth=0),
    case(np.array([300.0, 400.0]), axis=(0,), note="squares out of range in 16 bits"),
    case(SPECIAL, axis=(1,), smooth=0),
    case(SPECIAL, axis=(1,), ord=3.0, smooth=0),
    case(SPECIAL, axis=(1,), ord=-1.0, smooth=0),
    case(np.array([[HUGE, TINY], [TINY, 1.0]]), axis=(1,), smooth=0, note="quotients out of range"),
)


def logsumexp(x: Array, axis: Any, keepdims: bool = False) -> Array:
    """With the largest element factored out; -inf for no elements."""
    top = np.max(x, axis=axis, keepdims=True, initial=-INF)
    top = np.where(np.isinf(top), 0.0, top)
    result = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return result if keepdims else result.squeeze(axis)


samples(
    "logsumexp",
    logsumexp,
    *AXES,
    case(real(0, 3), axis=(0,), smooth=0),
    case(np.array([1000.0, 1001.0, 990.0]), axis=(0,)),
    case(np.array([-3000.0, -3001.0]), axis=(0,)),
    case(SPECIAL, axis=(1,), smooth=0),
    case(
        np.array([[-INF, 0.0, 0.0], [-INF, -INF, -INF]]),
        axis=(1,),
        smooth=0,
        gradients=(np.array([[0.0, 0.5, 0.5], [0.0, 0.0, 0.0]]),),
    ),
    case(np.zeros((70000,)), axis=(0,), smooth=1, note="more terms than 16 bits can count"),
    case(np.array([1000.0, -1000.0, 0.0]), axis=(0,), note="further apart than exponentials reach"),
)
