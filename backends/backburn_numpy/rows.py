"""NumPy: what softmax, normalizations and losses compute over the rows of a block."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from backburn_numpy.blocks import WORTH, Lines, block_rows, scratch
from backburn_numpy.memory import aligned
from backburn_numpy.threads import for_parts

Array = Any

#: Sums of exponentials between these are exact enough as they are: neither they nor the largest terms come near an end
#: of the range of float32, and what is lost is smaller than the largest term by 27 orders of magnitude.
SMALL, LARGE = 1e-10, 1e10

#: From longer rows, and larger matrices, the products' own threads begin to work, and would get in the way of ours.
LONG, MANY = 10_000, 3 << 16


def for_blocks(begin: Callable[[slice], Callable[[slice], None]], lines: Array, worth: int = WORTH) -> None:
    """Cover the rows of ``lines``, in several threads from ``worth`` elements on.

    ``begin(part)`` is called for the part of each thread, what it returns for the blocks of the part, counted from its
    start. A thread that makes few and long calls of NumPy waits for the others' Python least.
    """
    count, width = lines.shape
    step = block_rows(count, width)

    def part(start: int, stop: int) -> None:
        with Lines(width):
            work = begin(slice(start, stop))
            for first in range(0, stop - start, step):
                work(slice(first, min(first + step, stop - start)))

    for_parts(part, count, max(1, worth // max(width, 1)))


@lru_cache(8)
def _ones(length: int, dtype: np.dtype[Any]) -> Array:
    result = aligned(length * dtype.itemsize).view(dtype)
    result[...] = 1
    return result


def sums(x: Array, axis: int = -1) -> Array:
    """The sums over an axis, which is kept; over the last as products with ones, at which the processor is faster.

    Where the stride is 0, NumPy would add up one term after the other, and rounding with them.
    """
    if axis != -1 or x.shape[-1] > LONG or not x.strides[-1]:
        return np.add.reduce(x, axis=axis, keepdims=True)
    return products(x, _ones(x.shape[-1], x.dtype))


def products(x: Array, y: Array, axis: int = -1) -> Array:
    """The sums of ``x * y`` over an axis, which is kept."""
    if axis != -1 or x.shape[-1] > LONG or not x.strides[-1]:
        return np.add.reduce(np.multiply(x, y, out=scratch(x, 2)), axis=axis, keepdims=True)
    return np.vecdot(x, y, keepdims=True)  # type: ignore[call-overload]


def weighted(weights: Array, x: Array) -> Array:
    """The sum of the rows of ``x``, each times its one of ``weights``, a column."""
    if x.size > MANY:
        return np.einsum("i,ij->j", weights[:, 0], x)
    return np.vecmat(weights[:, 0], x)


def moments(x: Array) -> tuple[Array, Array | None]:
    """Means and variances of the rows, kept; no variances if one would be lost in a difference of large numbers."""
    variance, mean = products(x, x), sums(x)
    variance /= x.shape[1]
    mean /= x.shape[1]
    square = mean * mean
    variance -= square
    # NaN and infinity fail the comparison as well.
    return mean, variance if (4 * variance >= square).all() else None


def powers(x: Array, out: Array, axis: int = -1, finite: bool = False) -> tuple[Array, Array | None]:
    """Fill ``out`` with the exponentials of the lines of ``x``; their sums, and what was subtracted from the lines.

    From most lines nothing has to be (then it is None), from others their largest elements, so that no power overflows;
    0 in place of infinities where it must be ``finite``.
    """
    np.exp(x, out=out)
    total = sums(out, axis)
    if total.size == 0 or (total.min() > SMALL and total.max() < LARGE):
        return total, None
    top = np.maximum.reduce(x, axis=axis, keepdims=True)
    if finite:
        top[np.isinf(top)] = 0
    np.subtract(x, top, out=out)
    np.exp(out, out=out)
    return sums(out, axis), top
