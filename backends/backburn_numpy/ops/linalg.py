"""NumPy: matrix and vector products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backburn.base.errors import ShapeError
from backburn_numpy import tuning
from backburn_numpy.elementwise.blocks import RowBuffer
from backburn_numpy.elementwise.half_precision import cast_like, is_half, upcast_half
from backburn_numpy.implements import implements
from backburn_numpy.ops.reduce import sum
from backburn_numpy.runtime import gemm
from backburn_numpy.runtime.gemm import Epilogue
from backburn_numpy.runtime.memory import empty

Array = Any


@implements("matmul")
def matmul(x: Array, y: Array, /) -> Array:
    if y.ndim == 2 and x.ndim > 2:
        # One large product is faster than a stack of small ones.
        return _product(_rows(x), y).reshape(*x.shape[:-1], y.shape[1])
    return _product(x, y)


def matmul_then(epilogue: Epilogue, x: Array, y: Array, /) -> Array:
    """:func:`matmul` with a matrix, and its epilogue."""
    product = gemm.multiply(_rows(x), y, epilogue=epilogue) if y.ndim == 2 and x.ndim > 1 else None
    return epilogue(matmul(x, y)) if product is None else product.reshape(*x.shape[:-1], y.shape[1])


@implements("linear")
def linear(x: Array, weight: Array, bias: Array | None = None, /) -> Array:
    return linear_then(None, x, weight, bias)


def linear_then(epilogue: Epilogue | None, x: Array, weight: Array, bias: Array | None = None, /) -> Array:
    """:func:`linear`, and its epilogue."""
    if weight.ndim != 2:
        raise ShapeError(f"the weight must have two axes, (outputs, inputs), not {weight.ndim}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(f"the bias must have the shape {list(weight.shape[:1])}, not {list(bias.shape)}")
    rows = x if x.ndim == 2 else _rows(x)
    product = affine(rows, weight.T, bias, epilogue)
    return product if x.ndim == 2 else product.reshape(*x.shape[:-1], weight.shape[0])


def affine(x: Array, y: Array, bias: Array | None, epilogue: Epilogue | None = None) -> Array:
    """``x @ y + bias`` for matrices, and its epilogue."""
    half, wide, wide_y, wide_bias = x.itemsize == 2 and is_half(x), x, y, bias
    if half:
        wide, wide_y, wide_bias = upcast_half(x), upcast_half(y), upcast_half(bias)
    product: Any = gemm.multiply(wide, wide_y, wide_bias, epilogue=epilogue)
    if product is None:
        if epilogue is not None:
            return epilogue(affine(x, y, bias))
        product = gemm.multiply_small_m(wide, wide_y)
        if product is None:
            if are_few(x.shape, y.T):
                return _few_rows(x, y.T, bias)
            product = _multiply(wide, wide_y)
        if wide_bias is not None:
            np.add(product, wide_bias, out=product)
    return cast_like(product, x) if half else product


def are_few(shape: tuple[int, ...], weight: Array) -> bool:
    """Whether rows of this shape are so few that :func:`times` is faster by the product's transpose."""
    return (
        2 <= shape[0] <= min(tuning.MAX_ROWS_BY_TRANSPOSE, shape[1] >> 2)
        and shape[0] * weight.size >= tuning.MIN_PRODUCTS_BY_TRANSPOSE
    )


def times(x: Array, weight: Array, out: Array) -> None:
    """``out[...] = x @ weight.T`` for matrices; ``out`` is contiguous."""
    if gemm.multiply(x, weight.T, out=out) is None:
        if are_few(x.shape, weight):
            np.copyto(out, np.matmul(weight, x.T).T)
        else:
            np.matmul(x, weight.T, out=out)


def multiply_into(x: Array, y: Array, out: Array) -> None:
    """``out[...] = x @ y`` for matrices; ``out`` is contiguous."""
    if gemm.multiply(x, y, out=out) is None:
        np.matmul(x, y, out=out)


def _few_rows(x: Array, weight: Array, bias: Array | None) -> Array:
    """:func:`affine` by the transposed product, which the sum with the bias transposes back."""
    wide = upcast_half(x)
    product, out = np.matmul(upcast_half(weight), wide.T).T, empty((len(x), len(weight)), wide.dtype)
    if bias is None:
        np.copyto(out, product)
    else:
        np.add(product, upcast_half(bias), out=out)
    return cast_like(out, x)


@implements("linear_weight_backward")
def linear_weight_backward(grad: Array, x: Array, /) -> tuple[Array, Array]:
    rows, grads = (upcast_half(t if t.ndim == 2 else _rows(t)) for t in (x, grad))
    return cast_like(_multiply(grads.T, rows), x), cast_like(sum(grads, (0,)), x)


def _product(x: Array, y: Array) -> Array:
    """NumPy's product, through float32 for 16-bit floats."""
    if x.itemsize == 2 and is_half(x):
        return cast_like(_multiply(upcast_half(x), upcast_half(y)), x)
    return _multiply(x, y)


def _multiply(x: Array, y: Array) -> Array:
    """NumPy's product; a large matrix product uses recycled memory, and an outer product is element-wise."""
    if x.shape[-1:] == (1,) and y.ndim > 1 and y.shape[-2] == 1 and y.shape[-1] >= tuning.MIN_OUTER_ROW and x.ndim > 1:
        lead = x.shape[:-1] if y.ndim == 2 else np.broadcast_shapes(x.shape[:-1], (*y.shape[:-2], 1))
        shape = (*lead, y.shape[-1])
        out = empty(shape, x.dtype)
        if out.nbytes < tuning.MIN_POOLED_BYTES:
            return np.multiply(x, y, out=out)
        with RowBuffer(shape[-1]):
            return np.multiply(x, y, out=out)
    if x.ndim > 1 and y.ndim > 1 and (found := gemm.multiply(x, y)) is not None:
        return found
    if x.ndim < 2 or y.ndim < 2 or x.shape[-1] != y.shape[-2]:
        return np.matmul(x, y, out=...)
    if x.size * y.size * x.itemsize < tuning.MIN_POOLED_BYTES * x.shape[-1] ** 2:  # the bytes of the result, at most
        return np.matmul(x, y, out=...)
    shape = (x.shape[-2], y.shape[-1])
    if x.ndim > 2 or y.ndim > 2:
        shape = (*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), *shape)
    return np.matmul(x, y, out=empty(shape, x.dtype))


def _rows(x: Array) -> Array:
    """``x`` as a matrix whose rows are its last axis."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
