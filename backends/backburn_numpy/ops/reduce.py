"""NumPy: reductions.

``out=...`` (the Ellipsis) makes a reduction return 0-d results as arrays instead of scalars.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from backburn.ops.bodies.shapes import check_not_negative
from backburn.ops.reduce import count, merge_axes, quantile_positions, result_shape
from backburn.ops.table import OPERATIONS
from backburn_numpy import compiled, tuning
from backburn_numpy.compiled import FLOAT32, FLOAT64
from backburn_numpy.elementwise.blocks import run_columns, run_rows
from backburn_numpy.elementwise.half_precision import cast_like, in_float32, is_half, upcast_half
from backburn_numpy.implements import implements
from backburn_numpy.ops.elementwise import divide, square
from backburn_numpy.rows import reductions as kernels
from backburn_numpy.runtime.memory import contiguous, empty

Array = Any
Axes = tuple[int, ...]
INT64 = np.dtype(np.int64)
TINY = {np.dtype(t): np.finfo(t).tiny for t in (np.float32, np.float64)}


def _in_float32(
    operation: Callable[..., Array], kernel: str, join: Callable[[Array], Any], x: Array, axis: Axes, keepdims: bool
) -> Array:
    """A reduction of 16-bit floats, in float32; by a kernel if there is one for the axes."""
    found = kernels.reduce_half(x, axis, kernel, join)
    return (
        operation(upcast_half(x), axis, keepdims) if found is None else found.reshape(result_shape(x, axis, keepdims))
    )


def _reduction(
    ufunc: np.ufunc, name: str, long: float = tuning.MIN_SHORT_ROWS, least: int = tuning.MIN_ELEMENTS_FOR_SHORT_ROWS
) -> Callable[..., Array]:
    """The reduction by a ufunc, by kernels for ``long`` columns of a matrix, and for ``least`` elements and more."""

    def operation(x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
        if is_half(x):
            return cast_like(_in_float32(operation, f"{name}_rows", ufunc.reduce, x, axis, keepdims), x)
        is_long = x.ndim > 1 and axis == (0,) and len(x) >= long
        if (is_long or x.size >= least) and (found := _run_kernel(x, axis, name, ufunc.reduce)) is not None:
            return found.reshape(result_shape(x, axis, keepdims))
        if x.size >= least and name == "sum" and not _are_pairs(x, axis):
            if x.dtype == FLOAT32:
                return np.add.reduce(x, axis=axis, dtype=FLOAT64, keepdims=keepdims, out=...).astype(FLOAT32)
            if x.dtype.kind == "c":
                return _sum_parts(x, axis, keepdims)
        return ufunc.reduce(x, axis=axis, dtype=x.dtype, keepdims=keepdims, out=...)

    operation.__name__ = name
    return operation


def _sum_parts(x: Array, axis: Axes, keepdims: bool) -> Array:
    """The sum of complex numbers: of their real parts and of their imaginary parts, each pairwise."""
    parts = contiguous(x).view(x.real.dtype).reshape(*x.shape, 2)
    return np.ascontiguousarray(sum(parts, axis, keepdims)).view(x.dtype)[..., 0]


def _are_pairs(x: Array, axis: Axes) -> bool:
    """Whether NumPy sums over ``axis`` pairwise, not sequentially."""
    return x.flags.c_contiguous and axis == tuple(range(x.ndim - len(axis), x.ndim))


def _run_kernel(x: Array, axis: Axes, name: str, join: Callable[[Array], Any]) -> Array | None:
    """The result of a kernel for the axes; None if there is none."""
    if name == "sum":
        return kernels.sum_all(x, axis)
    found = kernels.reduce_matrices(x, axis, name)
    return kernels.reduce_rows(x, axis, f"{name}_rows", join) if found is None else found


sum = implements("sum")(_reduction(np.add, "sum"))
max = implements("max")(_reduction(np.maximum, "max"))
min = implements("min")(_reduction(np.minimum, "min"))
prod = implements("prod")(_reduction(np.multiply, "prod", math.inf, tuning.MIN_ELEMENTS_FOR_REDUCTION))


@implements("prod_of_others", takes_backend=True)
def prod_of_others(k: Any, x: Array, /, axis: Axes) -> Array:
    for a in axis:
        check_not_negative("prod_of_others", a)
    wide = upcast_half(x)
    found = _prod_of_others_by_kernel(wide, axis)
    products = prod(wide, axis, True) if found is None else found[1]
    size = np.absolute(products)
    if not ((size >= TINY[size.dtype]).all() and (size < math.inf).all()):  # one is NaN or not a normal number
        return OPERATIONS["prod_of_others"].body(k, x, axis)
    return cast_like(divide(products, wide) if found is None else found[0], x)


def _prod_of_others_by_kernel(x: Array, axis: Axes) -> tuple[Array, Array] | None:
    """The products of all other elements, and the products of those that are not 0; None if no kernel takes them."""
    if not x.size or not axis or axis != tuple(range(axis[0], axis[-1] + 1)):
        return None
    number, inner = math.prod(x.shape[: axis[0]]), math.prod(x.shape[axis[-1] + 1 :])
    arrays = empty(x.shape, x.dtype), x, np.empty((number, inner))
    if inner == 1:
        served = run_rows("prod_of_others", arrays, number, count(x, axis))
    else:
        served = run_columns("prod_of_others", arrays, (number, count(x, axis), inner), 1)
    return (arrays[0], arrays[2]) if served else None


@implements("count_nonzero")
def count_nonzero(x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    return np.asarray(np.count_nonzero(x, axis=axis, keepdims=keepdims), INT64)


@implements("argmax")
def argmax(x: Array, /, axis: int, keepdims: bool = False) -> Array:
    return np.asarray(upcast_half(x).argmax(axis, keepdims=keepdims), INT64)


@implements("argmin")
def argmin(x: Array, /, axis: int, keepdims: bool = False) -> Array:
    return np.asarray(upcast_half(x).argmin(axis, keepdims=keepdims), INT64)


@implements("any")
def any(x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    return np.logical_or.reduce(x, axis=axis, keepdims=keepdims, out=...)


@implements("all")
def all(x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    return np.logical_and.reduce(x, axis=axis, keepdims=keepdims, out=...)


@implements("mean")
def mean(x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    total = _in_float32(sum, "sum_rows", np.add.reduce, x, axis, keepdims) if is_half(x) else sum(x, axis, keepdims)
    number = count(x, axis)
    if not total.ndim and number and total.dtype.kind == "f":  # the quotient of doubles rounds correctly to float32
        total = np.array(total.item() / number, total.dtype)
    else:
        total /= number
    return cast_like(total, x)


@implements("var")
def var(x: Array, /, axis: Axes, correction: float = 0.0, keepdims: bool = False) -> Array:
    wide = upcast_half(x)
    total = kernels.squared_deviations(wide, axis) if x.size >= tuning.MIN_ELEMENTS_FOR_REDUCTION else None
    if total is not None:
        total = total.reshape(result_shape(x, axis, keepdims))
    else:
        squares = np.subtract(wide, mean(wide, axis, True), out=...)
        squares *= squares
        total = np.add.reduce(squares, axis=axis, dtype=FLOAT64, keepdims=keepdims, out=...)
    freedom = count(x, axis) - correction
    total /= freedom if freedom > 0 else 0.0
    return cast_like(total, x)


@implements("quantile")
def quantile(x: Array, /, q: float | tuple[float, ...], axis: Axes, keepdims: bool = False) -> Array:
    line = merge_axes(_ShapeOps, upcast_half(x), axis)
    length = line.shape[-1]
    positions = quantile_positions(q, length)
    above = [below + 1 for below, part in positions if part]
    # NaN sorts last, so the last element is NaN if any is.
    line = np.partition(line, sorted({length - 1, *above, *(below for below, _ in positions)}), axis=-1)
    result = np.empty((len(positions), *line.shape[:-1]), line.dtype)
    for i, (below, part) in enumerate(positions):
        result[i] = _interpolate(line[..., below], line[..., below + 1], part) if part else line[..., below]
    result[:, np.isnan(line[..., -1])] = math.nan
    shape = result_shape(x, axis, keepdims)
    return cast_like(result, x).reshape((len(q), *shape) if isinstance(q, tuple) else shape)


def _interpolate(below: Array, above: Array, part: float) -> Array:
    weighted = below * (1.0 - part) + above * part
    if part == 0.5:
        return weighted
    gap = above - below
    near = below + gap * part if part < 0.5 else above - gap * (1.0 - part)
    return np.where(np.isfinite(gap), near, weighted)


class _ShapeOps:
    """The operations that :func:`merge_axes` needs."""

    permute_dims = staticmethod(np.transpose)
    reshape = staticmethod(np.reshape)


#: Sums of squares above this have not suffered from underflow.
LEAST = {np.dtype(t): float(np.finfo(t).tiny / np.finfo(t).eps) for t in (np.float32, np.float64)}


def _norm(x: Array) -> Any:
    """The norm of a vector."""
    return np.sqrt(np.add.reduce(np.square(x)))


@implements("vector_norm", takes_backend=True)
def vector_norm(k: Any, x: Array, /, axis: Axes, ord: float = 2.0, keepdims: bool = False) -> Array:
    if ord == 2 and x.dtype.kind == "f":
        if (
            x.size >= tuning.MIN_ELEMENTS_FOR_REDUCTION
            and (found := kernels.reduce_rows(x, axis, "norm_rows", _norm)) is not None
        ):
            return found.reshape(result_shape(x, axis, keepdims))
        wide = upcast_half(x)
        total = sum(square(wide), axis, keepdims)
        # Without overflow or underflow of the squares, no scaling is needed.
        if total.size == 1:
            least = most = total.item()
        else:
            least, most = (f.reduce(total, None, initial=1.0) for f in (np.minimum, np.maximum))
        if least > LEAST[total.dtype] and most < math.inf:
            return cast_like(np.sqrt(total, out=total), x)
    return OPERATIONS["vector_norm"].body(k, x, axis, ord, keepdims)


@implements("logsumexp", takes_backend=True)
def logsumexp(k: Any, x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    if is_half(x):
        return in_float32(logsumexp, k, x, axis, keepdims)
    are_neighbours = x.size and axis and axis == tuple(range(axis[0], axis[-1] + 1))
    if not are_neighbours or not x.flags.c_contiguous or compiled.serving("logsumexp", x) is None:
        return OPERATIONS["logsumexp"].body(k, x, axis, keepdims)
    stack = x.reshape(math.prod(x.shape[: axis[0]]), -1, math.prod(x.shape[axis[-1] + 1 :]))
    number, length, inner = stack.shape
    out = np.empty(number * inner, x.dtype)
    if inner == 1:
        run_rows("logsumexp", (stack, out), number, length)
    else:
        run_columns("logsumexp", (out, stack), stack.shape, 1)
    return out.reshape(result_shape(x, axis, keepdims))
