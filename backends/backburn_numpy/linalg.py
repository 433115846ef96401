"""NumPy: products of matrices and vectors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = Any


def matmul(x: Array, y: Array, /) -> Array:
    if y.ndim == 2 and x.ndim > 2:
        # One large product is faster than a stack of small ones.
        return _product(_rows(x), y).reshape(*x.shape[:-1], y.shape[1])
    return _product(x, y)


def linear(x: Array, weight: Array, bias: Array | None = None, /) -> Array:
    rows = x if x.ndim == 2 else _rows(x)
    if x.dtype.itemsize == 2:
        product = np.matmul(rows.astype(np.float32), weight.astype(np.float32))
    else:
        product = np.matmul(rows, weight)
    if bias is not None:
        np.add(product, bias, out=product)
    if x.dtype.itemsize == 2:
        product = product.astype(x.dtype)
    return product if x.ndim == 2 else product.reshape(*x.shape[:-1], weight.shape[1])


def _product(x: Array, y: Array) -> Array:
    """NumPy's product, through float32 for 16-bit floats."""
    if x.dtype.itemsize == 2 and x.dtype.kind not in "iu":
        return np.matmul(x.astype(np.float32), y.astype(np.float32), out=...).astype(x.dtype)
    return np.matmul(x, y, out=...)


def _rows(x: Array) -> Array:
    """``x`` as a matrix whose rows are its last axis."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
