"""NumPy: row operations shared by softmax, normalizations and losses."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from backburn_numpy.blocks import WORTH, RowBuffer, block_rows, scratch
from backburn_numpy.memory import aligned
from backburn_numpy.threads import parallel_for

Array = Any

#: Sums of exponentials between these need no shift: neither they nor their largest terms come near the limits of
#: float32, and underflowed terms are smaller than the largest by 27 orders of magnitude.
SMALL, LARGE = 1e-10, 1e10

#: For longer rows and larger matrices, BLAS starts its own threads, which would compete with ours.
LONG, MANY = 10_000, 3 << 16

#: Rows whose weighted sum is in their dtype.
ROWS = 64


def for_blocks(begin: Callable[[slice], Callable[[slice], None]], lines: Array, worth: int = WORTH) -> None:
    """Process the rows of ``lines``, in several threads from ``worth`` elements on.

    ``begin(part)`` is called for each thread's part, and the function it returns for each block, relative to the part.
    Work done on a whole part takes few, long NumPy calls, and so waits least for the GIL.
    """
    count, width = lines.shape
    step = block_rows(count, width)

    def part(start: int, stop: int) -> None:
        with RowBuffer(width):
            work = begin(slice(start, stop))
            for first in range(0, stop - start, step):
                work(slice(first, min(first + step, stop - start)))

    parallel_for(part, count, max(1, worth // max(width, 1)))


@lru_cache(8)
def _ones(length: int, dtype: np.dtype[Any]) -> Array:
    result = aligned(length * dtype.itemsize).view(dtype)
    result[...] = 1
    return result


def sum_keepdims(x: Array, axis: int = -1) -> Array:
    """The sums over an axis, with ``keepdims``; over the last axis as products with ones, which are faster.

    With a stride of 0 NumPy's product would add term by term, accumulating rounding errors, and so does its sum over
    another axis, which is of doubles therefore.
    """
    if axis != -1:
        return np.add.reduce(x, axis=axis, dtype=np.float64, keepdims=True).astype(x.dtype)
    if x.shape[-1] > LONG or not x.strides[-1]:
        return np.add.reduce(x, axis=axis, keepdims=True)
    return dot_keepdims(x, _ones(x.shape[-1], x.dtype))


def dot_keepdims(x: Array, y: Array, axis: int = -1) -> Array:
    """The sums of ``x * y`` over an axis, with ``keepdims``."""
    if axis != -1 or x.shape[-1] > LONG or not x.strides[-1]:
        products = np.multiply(x, y, out=scratch(x, 2))
        return sum_keepdims(products, axis) if axis != -1 else np.add.reduce(products, axis=axis, keepdims=True)
    return np.vecdot(x, y, keepdims=True)  # type: ignore[call-overload]


def weighted_sum(weights: Array, x: Array) -> Array:
    """The sum of the rows of ``x``, weighted by the column ``weights``: of blocks of rows, and in float64 of these."""
    cut = len(x) // ROWS * ROWS
    blocks = weights[:cut].reshape(-1, ROWS), x[:cut].reshape(-1, ROWS, x.shape[1])
    sums = np.vecmat(*blocks) if ROWS * x.shape[1] <= MANY else np.einsum("bi,bij->bj", *blocks)
    return np.add.reduce(sums, axis=0, dtype=np.float64) + np.einsum("i,ij->j", weights[cut:, 0], x[cut:])


def sum_parts(parts: dict[int, Array]) -> Array:
    """The sum of the threads' results, by the first row of each: in row order, so that it is reproducible."""
    return np.add.reduce([parts[start] for start in sorted(parts)], axis=0)


def exp_and_sum(x: Array, out: Array, axis: int = -1, finite: bool = False) -> tuple[Array, Array | None]:
    """Fill ``out`` with the exponentials of ``x``; return their sums over ``axis``, and the shifts subtracted before.

    Mostly no shift is needed, and it is None; otherwise it is the maximum, so that no exponential overflows, with 0 in
    place of infinities if it must be ``finite``.
    """
    np.exp(x, out=out)
    total = sum_keepdims(out, axis)
    if total.size == 0 or (total.min() > SMALL and total.max() < LARGE):
        return total, None
    top = np.maximum.reduce(x, axis=axis, keepdims=True)
    if finite:
        top[np.isinf(top)] = 0
    np.subtract(x, top, out=out)
    np.exp(out, out=out)
    return sum_keepdims(out, axis), top
