"""NumPy: products with quantized operands."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn.backend.quantized_products import depth, is_integral, linear_shape, product_shape, row_blocks
from backburn.base.dtypes import DType, float32, float64
from backburn_numpy.blocks import wide
from backburn_numpy.memory import empty
from backburn_numpy.quantize import QuantizedArray, dequantize, stored

Array = Any


def q_linear(x: Array, weight: QuantizedArray, bias: Array | None = None, /, transposed: bool = False) -> Array:
    shape = linear_shape(x.shape, weight.shape, None if bias is None else bias.shape, transposed=transposed)
    rows = wide(x).reshape(-1, x.shape[-1]) if x.size else np.zeros((int(np.prod(x.shape[:-1])), x.shape[-1]), x.dtype)
    out = empty((len(rows), shape[-1]), rows.dtype)
    if not transposed:
        out.fill(0)
    for block in row_blocks(weight.shape):
        part = _rows(weight, block, rows.dtype, _has_steps(weight, transposed))
        if transposed:
            np.matmul(rows, part.T, out=out[:, block])
        else:
            out += np.matmul(rows[:, block], part)
    if not _has_steps(weight, transposed):
        out *= weight.scale.astype(out.dtype)
    if bias is not None:
        out += wide(bias)
    return out.reshape(shape).astype(x.dtype, copy=False)


def q_matmul(
    x: QuantizedArray, y: QuantizedArray, /, dtype: DType = float32, transposed: bool = False
) -> Array:
    rows, columns = product_shape(x.shape, y.shape, transposed=transposed)
    if not rows or not columns or not x.shape[1]:
        return np.zeros((rows, columns), dtype.dtype)
    if not is_integral(x, y, transposed):
        wide_dtype = float64 if dtype is float64 else float32
        product = q_linear(dequantize(x, wide_dtype), y, None, transposed)
        return product.astype(dtype.dtype, copy=False)
    most = depth(x.dtype, y.dtype)
    left = _rows(x, slice(0, rows), np.dtype(np.float32), False)
    total = np.zeros((rows, columns), np.float64 if x.shape[1] > most or dtype is float64 else np.float32)
    for block in row_blocks(y.shape):
        right = _rows(y, block, np.dtype(np.float32), False)
        into, these = (total[:, block], left) if transposed else (total, left[:, block])
        right = right.T if transposed else right
        for start in range(0, len(right), most):
            into += np.matmul(these[:, start : start + most], right[start : start + most])
    for q, shape in ((x, (rows, 1)), (y, (1, columns))):
        total *= q.scale.astype(total.dtype).reshape(shape if q.dtype.axis is not None else ())
    return total.astype(dtype.dtype, copy=False)


def _has_steps(weight: QuantizedArray, transposed: bool) -> bool:
    """Whether the steps must multiply the weight; else they multiply the product, which is smaller."""
    return not (weight.dtype.granularity == "tensor" or weight.dtype.axis == (0 if transposed else 1))


def _rows(weight: QuantizedArray, rows: slice, dtype: Any, with_steps: bool) -> Array:
    """Rows of a weight as floats: the multiples of their steps, or times the steps."""
    values, width = weight.values[rows], weight.shape[1]
    part = stored(values, (len(values), width), weight.dtype).astype(dtype)
    if weight.zero is not None:
        part -= _spread(weight, weight.zero, rows).astype(dtype)
    if with_steps:
        part_steps = _spread(weight, weight.scale, rows).astype(dtype)
        part *= part_steps
    return part


def _spread(weight: QuantizedArray, steps: Array, rows: slice) -> Array:
    """The steps of some rows, such that they broadcast to these."""
    if weight.dtype.block is not None:
        return np.repeat(steps[rows], weight.dtype.block, -1)[:, : weight.shape[1]]
    if weight.dtype.axis == 0:
        return steps[rows, None]
    return steps
