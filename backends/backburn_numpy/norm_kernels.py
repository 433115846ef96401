"""NumPy: rows standardized to mean 0 and variance 1, or to mean square 1, and their gradients.

The means of all rows of a thread's part are computed at once; then each block is centred, twice, since rows far from 0
lose the digits that the mean has beyond its dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from backburn_numpy import compiled
from backburn_numpy.blocks import WORTH, run_rows, scratch
from backburn_numpy.compiled import FLOAT32
from backburn_numpy.half_precision import upcast_half
from backburn_numpy.memory import contiguous, empty
from backburn_numpy.row_kernels import dot_keepdims, for_blocks, sum_keepdims, sum_parts, weighted_sum
from backburn_numpy.threads import parallel_for

Array = Any

#: The gradient for a scale is summed in float32 over blocks of rows, and in float64 over these: so it depends on the
#: shape alone, and errors do not grow with the number of rows. A block has at most so many rows; there are at least so
#: many blocks, unless they would be small.
MOST_ROWS, FEWEST_BLOCKS, SMALL = 64, 16, 1 << 13


#: Shorter rows are computed in float64: little may be left of a gradient when its mean and its slope are subtracted.
FEW = 16


def wide(x: Array, length: int) -> Array:
    """``x`` in the dtype in which sets of so many elements are standardized; None stays None."""
    return x.astype(np.float64, copy=False) if x is not None and length < FEW else upcast_half(x)


class _Rows:
    """The rows of ``lines``, and their means."""

    def __init__(self, lines: Array, eps: float, centred: bool) -> None:
        self.lines, self.eps = lines, eps
        self.mean = sum_keepdims(lines) / lines.shape[1] if centred else None

    def block(self, rows: slice) -> tuple[Array, Array]:
        """A block of the rows, centred, and the factors to multiply by."""
        x = self.lines[rows]
        if self.mean is not None:
            x = np.subtract(x, self.mean[rows], out=scratch(x))
            np.subtract(x, sum_keepdims(x) / x.shape[1], out=x)
        square = dot_keepdims(x, x)
        square /= x.shape[1]
        return x, _factor(square, self.eps)


def _factor(square: Array, eps: float) -> Array:
    """``1 / sqrt(square + eps)``, in place."""
    square += eps
    np.sqrt(square, out=square)
    return np.reciprocal(square, out=square)


def standardize(out: Array, x: Array, scale: Array | None, bias: Array | None, eps: float, centred: bool) -> None:
    """Fill ``out`` with the standardized rows of ``x``, times ``scale``, plus ``bias``."""
    if run_rows("standardize", (out, x), *x.shape, scale, bias, eps, centred):
        return
    lines, scale, bias = (wide(a, x.shape[1]) for a in (x, scale, bias))

    def begin(part: slice) -> Callable[[slice], None]:
        standard, target = _Rows(lines[part], eps, centred), out[part]

        def work(rows: slice) -> None:
            values, factor = standard.block(rows)
            normal = np.multiply(values, factor, out=target[rows] if out.dtype == values.dtype else scratch(values, 1))
            affine(normal, scale, bias)
            if out.dtype != normal.dtype:
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
    count, length = x.shape
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
    grad, lines, scale = (wide(a, length) for a in (grad, x, scale))

    def begin(part: slice) -> Callable[[slice], None]:
        standard, target, grads = _Rows(lines[part], eps, centred), out[part], grad[part]
        total = grad_scale[part.start] = np.zeros(length)
        shifts = dot_keepdims(grads, scale) / -length if centred else None

        def work(rows: slice) -> None:
            values, factor = standard.block(rows)
            g = grads[rows]
            result = np.multiply(g, values, out=target[rows] if out.dtype == values.dtype else scratch(values, 1))
            np.add(total, weighted_sum(factor, result), out=total)
            slope = dot_keepdims(result, scale)
            slope *= factor * factor / -length
            np.multiply(g, scale, out=result)
            np.add(result, np.multiply(values, slope, out=values if centred else scratch(values)), out=result)
            if shifts is not None:
                np.add(result, shifts[rows], out=result)
            np.multiply(result, factor, out=result)
            if out.dtype != result.dtype:
                target[rows] = result

        return work

    for_blocks(begin, x)
    return sum_parts(grad_scale)
