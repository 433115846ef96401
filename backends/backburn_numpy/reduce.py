"""NumPy: reductions.

``out=...`` (the Ellipsis) makes a reduction return 0-d results as arrays instead of scalars.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from backburn.backend.reduce import count, one_axis, quantile_positions, result_shape
from backburn_numpy import reductions
from backburn_numpy.arithmetic import square
from backburn_numpy.derived import derived
from backburn_numpy.halves import is_half, narrowed, widened
from backburn_numpy.ufuncs import binary

Array = Any
Axes = tuple[int, ...]
INT64 = np.dtype(np.int64)
TINY = {np.dtype(t): np.finfo(t).tiny for t in (np.float32, np.float64)}

divide = binary(np.divide)


def sum(x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    if is_half(x):
        return narrowed(_in_float32(sum, "sum_rows", np.add.reduce, x, axis, keepdims), x)
    is_long = x.ndim > 1 and axis == (0,) and len(x) >= reductions.ROWS
    if (is_long or x.size >= reductions.SMALL) and (total := reductions.total(x, axis)) is not None:
        return total.reshape(result_shape(x, axis, keepdims))
    return np.add.reduce(x, axis=axis, dtype=x.dtype, keepdims=keepdims, out=...)


def _in_float32(
    operation: Callable[..., Array], kernel: str, join: Callable[[Array], Any], x: Array, axis: Axes, keepdims: bool
) -> Array:
    """A reduction of 16-bit floats, in float32; by a kernel if there is one for the axes."""
    found = reductions.of_halves(x, axis, kernel, join)
    return operation(widened(x), axis, keepdims) if found is None else found.reshape(result_shape(x, axis, keepdims))


def prod(x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    if is_half(x):
        return narrowed(_in_float32(prod, "prod_rows", np.multiply.reduce, x, axis, keepdims), x)
    if x.size >= reductions.LARGE and (found := _by_kernel(x, axis, "prod", np.multiply.reduce)) is not None:
        return found.reshape(result_shape(x, axis, keepdims))
    return np.multiply.reduce(x, axis=axis, dtype=x.dtype, keepdims=keepdims, out=...)


def prod_of_others(x: Array, /, axis: Axes) -> Array:
    wide = widened(x)
    whole = prod(wide, axis, True)
    size = np.absolute(whole)
    if (size >= TINY[wide.dtype]).all() and (size < math.inf).all():
        return narrowed(divide(whole, wide), x)
    return derived("prod_of_others", x, axis)  # one is 0, or their product is NaN or not a normal number


def count_nonzero(x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    return np.asarray(np.count_nonzero(x, axis=axis, keepdims=keepdims), INT64)


def max(x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    if is_half(x):
        return narrowed(_in_float32(max, "max_rows", np.maximum.reduce, x, axis, keepdims), x)
    is_long = x.ndim > 1 and axis == (0,) and len(x) >= reductions.ROWS
    if (is_long or x.size >= reductions.SMALL) and (top := _by_kernel(x, axis, "max", np.maximum.reduce)) is not None:
        return top.reshape(result_shape(x, axis, keepdims))
    return np.maximum.reduce(x, axis=axis, keepdims=keepdims, out=...)


def min(x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    if is_half(x):
        return narrowed(_in_float32(min, "min_rows", np.minimum.reduce, x, axis, keepdims), x)
    is_long = x.ndim > 1 and axis == (0,) and len(x) >= reductions.ROWS
    if (is_long or x.size >= reductions.SMALL) and (low := _by_kernel(x, axis, "min", np.minimum.reduce)) is not None:
        return low.reshape(result_shape(x, axis, keepdims))
    return np.minimum.reduce(x, axis=axis, keepdims=keepdims, out=...)


def _by_kernel(x: Array, axis: Axes, name: str, join: Callable[[Array], Any]) -> Array | None:
    """By a kernel for the axes, if there is one."""
    found = reductions.of_many(x, axis, name)
    return reductions.by_rows(x, axis, f"{name}_rows", join) if found is None else found


def max_abs(x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    if is_half(x):
        return narrowed(max_abs(widened(x), axis, keepdims), x)
    largest = np.maximum.reduce(x, axis=axis, keepdims=keepdims, out=...)
    if x.dtype.kind == "u":
        return largest
    smallest = np.minimum.reduce(x, axis=axis, keepdims=keepdims, out=...)
    if x.dtype.kind == "i":  # there is no absolute value of the smallest integer
        np.maximum(smallest, -np.iinfo(x.dtype).max, out=smallest)
    return np.maximum(np.abs(largest, out=largest), np.abs(smallest, out=smallest), out=largest)


def argmax(x: Array, /, axis: int, keepdims: bool = False) -> Array:
    return np.asarray(widened(x).argmax(axis, keepdims=keepdims), INT64)


def argmin(x: Array, /, axis: int, keepdims: bool = False) -> Array:
    return np.asarray(widened(x).argmin(axis, keepdims=keepdims), INT64)


def any(x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    return np.logical_or.reduce(x, axis=axis, keepdims=keepdims, out=...)


def all(x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    return np.logical_and.reduce(x, axis=axis, keepdims=keepdims, out=...)


def mean(x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    total = _in_float32(sum, "sum_rows", np.add.reduce, x, axis, keepdims) if is_half(x) else sum(x, axis, keepdims)
    number = count(x, axis)
    if not total.ndim and number and total.dtype.kind == "f":  # rounded to float32, the quotient of doubles is exact
        total = np.array(total.item() / number, total.dtype)
    else:
        total /= number
    return narrowed(total, x)


def var(x: Array, /, axis: Axes, correction: float = 0.0, keepdims: bool = False) -> Array:
    wide = widened(x)
    total = reductions.squared_deviations(wide, axis) if x.size >= reductions.LARGE else None
    if total is not None:
        total = total.reshape(result_shape(x, axis, keepdims))
    else:
        squares = np.subtract(wide, mean(wide, axis, True), out=...)
        squares *= squares
        total = np.add.reduce(squares, axis=axis, keepdims=keepdims, out=...)
    freedom = count(x, axis) - correction
    total /= freedom if freedom > 0 else 0.0
    return narrowed(total, x)


def quantile(x: Array, /, q: float | tuple[float, ...], axis: Axes, keepdims: bool = False) -> Array:
    line = one_axis(_Moves, widened(x), axis)
    length = line.shape[-1]
    positions = quantile_positions(q, length)
    above = [below + 1 for below, part in positions if part]
    # NaN sorts last, so the last element is NaN if any is.
    line = np.partition(line, sorted({length - 1, *above, *(below for below, _ in positions)}), axis=-1)
    result = np.empty((len(positions), *line.shape[:-1]), line.dtype)
    for i, (below, part) in enumerate(positions):
        result[i] = _between(line[..., below], line[..., below + 1], part) if part else line[..., below]
    result[:, np.isnan(line[..., -1])] = math.nan
    shape = result_shape(x, axis, keepdims)
    return narrowed(result, x).reshape((len(q), *shape) if isinstance(q, tuple) else shape)


def _between(below: Array, above: Array, part: float) -> Array:
    weighted = below * (1.0 - part) + above * part
    if part == 0.5:
        return weighted
    gap = above - below
    near = below + gap * part if part < 0.5 else above - gap * (1.0 - part)
    return np.where(np.isfinite(gap), near, weighted)


class _Moves:
    """The operations that :func:`one_axis` needs."""

    permute_dims = staticmethod(np.transpose)
    reshape = staticmethod(np.reshape)


#: Sums of squares above this have not suffered from underflow.
LEAST = {np.dtype(t): float(np.finfo(t).tiny / np.finfo(t).eps) for t in (np.float32, np.float64)}


def _norm(x: Array) -> Any:
    """The norm of a vector."""
    return np.sqrt(np.add.reduce(np.square(x)))


def norm(x: Array, /, axis: Axes, ord: float = 2.0, keepdims: bool = False) -> Array:
    if ord == 2 and x.dtype.kind == "f":
        if x.size >= reductions.LARGE and (found := reductions.by_rows(x, axis, "norm_rows", _norm)) is not None:
            return found.reshape(result_shape(x, axis, keepdims))
        wide = widened(x)
        total = sum(square(wide), axis, keepdims)
        # Without overflow or underflow of the squares, no scaling is needed.
        if total.size == 1:
            least = most = total.item()
        else:
            least, most = (f.reduce(total, None, initial=1.0) for f in (np.minimum, np.maximum))
        if least > LEAST[total.dtype] and most < math.inf:
            return narrowed(np.sqrt(total, out=total), x)
    return derived("norm", x, axis, ord, keepdims)


def logsumexp(x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    if count(x, axis) == 0:
        return np.full(result_shape(x, axis, keepdims), -math.inf, x.dtype)
    wide = widened(x)
    if x.size >= reductions.LARGE and (result := reductions.logsumexp(wide, axis)) is not None:
        return narrowed(result.reshape(result_shape(x, axis, keepdims)), x)
    top = np.maximum.reduce(wide, axis=axis, keepdims=True, out=...)
    top[np.isinf(top)] = 0.0
    terms = np.subtract(wide, top, out=...)
    total = np.add.reduce(np.exp(terms, out=terms), axis=axis, keepdims=True, out=...)
    np.add(np.log(total, out=total), top, out=total)
    return narrowed(total.reshape(result_shape(x, axis, keepdims)), x)
