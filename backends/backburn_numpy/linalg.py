"""NumPy: matrix and vector products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backburn.base.errors import ShapeError
from backburn_numpy.blocks import Lines
from backburn_numpy.halves import is_half, narrowed, widened
from backburn_numpy.memory import THRESHOLD, empty
from backburn_numpy.reduce import sum

Array = Any

#: Rows of so many elements are multiplied by a column two to four times as fast elementwise as by a matrix product.
OUTER = 8


def matmul(x: Array, y: Array, /) -> Array:
    if y.ndim == 2 and x.ndim > 2:
        # One large product is faster than a stack of small ones.
        return _product(_rows(x), y).reshape(*x.shape[:-1], y.shape[1])
    return _product(x, y)


def linear(x: Array, weight: Array, bias: Array | None = None, /) -> Array:
    if weight.ndim != 2:
        raise ShapeError(f"the weight must have two axes, (inputs, outputs), not {weight.ndim}")
    if bias is not None and bias.shape != weight.shape[1:]:
        raise ShapeError(f"the bias must have the shape {list(weight.shape[1:])}, not {list(bias.shape)}")
    rows = x if x.ndim == 2 else _rows(x)
    product = _multiply(widened(rows), widened(weight))
    if bias is not None:
        np.add(product, widened(bias), out=product)
    product = narrowed(product, x)
    return product if x.ndim == 2 else product.reshape(*x.shape[:-1], weight.shape[1])


def linear_weight_backward(grad: Array, x: Array, /) -> tuple[Array, Array]:
    rows, grads = (widened(t if t.ndim == 2 else _rows(t)) for t in (x, grad))
    return narrowed(_multiply(rows.T, grads), x), narrowed(sum(grads, (0,)), x)


def _product(x: Array, y: Array) -> Array:
    """NumPy's product, through float32 for 16-bit floats."""
    return narrowed(_multiply(widened(x), widened(y)), x) if is_half(x) else _multiply(x, y)


def _multiply(x: Array, y: Array) -> Array:
    """NumPy's product; a large matrix product uses recycled memory, and one of columns and rows is elementwise."""
    if x.shape[-1:] == (1,) and y.ndim > 1 and y.shape[-2] == 1 and y.shape[-1] >= OUTER and x.ndim > 1:
        lead = x.shape[:-1] if y.ndim == 2 else np.broadcast_shapes(x.shape[:-1], (*y.shape[:-2], 1))
        shape = (*lead, y.shape[-1])
        out = empty(shape, x.dtype)
        if out.nbytes < THRESHOLD:
            return np.multiply(x, y, out=out)
        with Lines(shape[-1]):
            return np.multiply(x, y, out=out)
    if x.size * y.size < THRESHOLD or x.ndim < 2 or y.ndim < 2 or x.shape[-1] != y.shape[-2]:
        return np.matmul(x, y, out=...)
    shape = (x.shape[-2], y.shape[-1])
    if x.ndim > 2 or y.ndim > 2:
        shape = (*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), *shape)
    return np.matmul(x, y, out=empty(shape, x.dtype))


def _rows(x: Array) -> Array:
    """``x`` as a matrix whose rows are its last axis."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
