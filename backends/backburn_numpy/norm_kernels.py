"""NumPy: rows standardized to mean 0 and variance 1, or to mean square 1, and their gradients.

The moments of all rows of a thread's part are computed at once, each in one NumPy call, unless a row is so far from 0
that its variance would suffer from cancellation; then each block is centred first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from backburn_numpy import compiled
from backburn_numpy.blocks import WORTH, run_rows, scratch
from backburn_numpy.compiled import FLOAT32
from backburn_numpy.half_precision import is_half, upcast_half
from backburn_numpy.memory import contiguous, empty
from backburn_numpy.row_kernels import dot_keepdims, for_blocks, moments, sum_parts, weighted_sum
from backburn_numpy.threads import parallel_for

Array = Any

#: The gradient for a scale is summed in float32 over blocks of rows, and in float64 over these: so it depends on the shape
#: alone, and errors do not grow with the number of rows. A block has at most so many rows; blocks of more elements than
#: are small are at least so many.
MOST_ROWS, FEWEST_BLOCKS, SMALL = 64, 16, 1 << 13


class _RowMoments:
    """The rows of ``lines``, and their moments."""

    def __init__(self, lines: Array, eps: float, centred: bool) -> None:
        self.lines, self.eps = upcast_half(lines), eps
        self.mean = self.factor = None
        if centred:
            self.mean, square = moments(self.lines)
        else:
            square = dot_keepdims(self.lines, self.lines)
            square /= lines.shape[1]
        if square is not None:
            self.factor = _factor(square, eps)

    def block(self, rows: slice) -> tuple[Array, Array | None, Array]:
        """A block of the rows, the means still to be subtracted (or None), and the factors to multiply by."""
        x = self.lines[rows]
        mean = None if self.mean is None else self.mean[rows]
        if mean is None or self.factor is not None:
            return x, mean, self.factor[rows]  # type: ignore[index]
        x = np.subtract(x, mean, out=scratch(x))
        square = dot_keepdims(x, x)
        square /= x.shape[1]
        return x, None, _factor(square, self.eps)


def _factor(square: Array, eps: float) -> Array:
    """``1 / sqrt(square + eps)``, in place."""
    square += eps
    np.sqrt(square, out=square)
    return np.reciprocal(square, out=square)


def standardize(out: Array, x: Array, scale: Array | None, bias: Array | None, eps: float, centred: bool) -> None:
    """Fill ``out`` with the standardized rows of ``x``, times ``scale``, plus ``bias``."""
    if run_rows("standardize", (out, x), *x.shape, scale, bias, eps, centred):
        return
    half = is_half(x)

    def begin(part: slice) -> Callable[[slice], None]:
        standard, target = _RowMoments(x[part], eps, centred), out[part]

        def work(rows: slice) -> None:
            values, mean, factor = standard.block(rows)
            normal = np.multiply(values, factor, out=scratch(values, 1) if half else target[rows])
            if mean is not None:
                np.subtract(normal, mean * factor, out=normal)
            affine(normal, scale, bias)
            if half:
                target[rows] = normal

        return work

    for_blocks(begin, x)


def affine(x: Array, scale: Array | None, bias: Array | None) -> None:
    """Replace ``x`` by ``x * scale + bias`` in place; either may be None."""
    if scale is not None:
        np.multiply(x, scale, out=x)
    if bias is not None:
        np.add(x, bias, out=x)


def standardize_backward(out: Array, grad: Array, x: Array, scale: Array, eps: float, centred: bool) -> Array:
    """Fill ``out`` with the gradient for the rows ``x``; return that for ``scale``.

    With the factor ``f`` of each row and ``n = (x - mean) f`` these are the sum of ``grad n`` over the rows, and
    ``f (grad scale - n mean(grad scale n) - mean(grad scale))``, without the last term unless ``centred``.
    """
    half, (count, length) = is_half(x), x.shape
    fast = compiled.serving("standardize_backward", x)
    if fast is not None:
        block = min(MOST_ROWS, max(-(-count // FEWEST_BLOCKS), SMALL // length))
        sums = empty((-(-count // block), length), FLOAT32)
        arrays = [contiguous(a) for a in (grad, x, scale)]
        at = compiled.addresses(out, sums, *arrays)
        sizes = eps, centred, block, count, length
        parallel_for(lambda first, last: fast(*at, *sizes, first, last), len(sums), max(1, WORTH // (block * length)))
        return sums[0] if len(sums) == 1 else np.add.reduce(sums, axis=0, dtype=np.float64)
    grad_scale: dict[int, Array] = {}

    def begin(part: slice) -> Callable[[slice], None]:
        standard, target, grads = _RowMoments(x[part], eps, centred), out[part], upcast_half(grad[part])
        total = grad_scale[part.start] = np.zeros(length, scale.dtype)
        shifts = dot_keepdims(grads, scale) / -length if centred else None

        def work(rows: slice) -> None:
            values, mean, factor = standard.block(rows)
            g = grads[rows]
            result = np.multiply(g, values, out=scratch(values, 1) if half else target[rows])
            slope = dot_keepdims(result, scale)
            slope /= -length
            weights = weighted_sum(factor, result)
            shift = None if shifts is None else shifts[rows]
            if mean is not None:
                weights -= weighted_sum(mean * factor, g)
                slope -= mean * shift
            np.add(total, weights, out=total)
            slope *= factor * factor
            np.multiply(g, scale, out=result)
            np.add(result, np.multiply(values, slope, out=scratch(values)), out=result)
            if shift is not None:
                np.add(result, shift if mean is None else shift - mean * slope, out=result)
            np.multiply(result, factor, out=result)
            if half:
                target[rows] = result

        return work

    for_blocks(begin, x)
    return sum_parts(grad_scale)
