"""NumPy: products with quantized operands. Weights are dequantized a few rows at a time, into one small buffer."""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any

import numpy as np

from backburn.base.dtypes import DType, QuantizedDType, float32, float64, uint8
from backburn.ops.bodies.quantized import block_lengths
from backburn.ops.bodies.quantized_moves import permute_dims
from backburn.ops.quantized_products import (
    depth,
    is_integral,
    linear_backward_shape,
    linear_shape,
    product,
    product_shape,
    row_blocks,
)
from backburn.ops.table import OPERATIONS
from backburn_numpy import blas, compiled
from backburn_numpy.blocks import WORTH
from backburn_numpy.half_precision import cast_like, upcast_half
from backburn_numpy.memory import contiguous, empty
from backburn_numpy.ops.quantization import QuantizedArray, dequantize, row_steps, stored, unpack
from backburn_numpy.threads import available, parallel_for

Array = Any

#: The compiled kernel's codes for the dtypes of values, scales and zero points.
_KINDS = {"int8": 0, "uint8": 1, "float32": 3, "float16": 4, "bfloat16": 5}
PACKED = 2

#: Elements of a weight dequantized at a time by each thread, which fit in the L2 cache,
EXPANDED = 1 << 17
#: and the most rows of ``x`` for which the kernel dequantizes on the fly instead.
FEW_ROWS = 16

#: Multiplications per row of ``x`` that a thread takes at a time.
SHARE = 1 << 18

#: The factor by which int32 holds sums of more products than float32.
DEEPER = 1 << 7


@lru_cache(16)
def _kind(dtype: np.dtype[Any]) -> int | None:
    """The code of a dtype; NumPy takes as long for its name as for a product of some thousand values."""
    return _KINDS.get(dtype.name)


def quantized_linear(k: Any, x: Array, weight: QuantizedArray, bias: Array | None = None, /) -> Array:
    shape = linear_shape(x.shape, weight.shape, None if bias is None else bias.shape)
    out = _product(k, x, weight, True)
    if bias is not None:
        out += upcast_half(bias)
    return cast_like(out.reshape(shape), x)


def quantized_linear_backward(k: Any, grad: Array, weight: QuantizedArray, /) -> Array:
    shape = linear_backward_shape(grad.shape, weight.shape)
    return cast_like(_product(k, grad, weight, False).reshape(shape), grad)


def _product(k: Any, x: Array, weight: QuantizedArray, transpose_weight: bool) -> Array:
    """The rows of ``x`` times a weight or its transpose; 16-bit floats as float32."""
    rows = upcast_half(x).reshape(math.prod(x.shape[:-1]), x.shape[-1])
    out = empty((len(rows), weight.shape[0 if transpose_weight else 1]), rows.dtype)
    weight, transpose_weight = _contiguous_weight(k, weight, transpose_weight)
    if not rows.size or not out.size:
        out.fill(0)
        return out
    if not (transpose_weight and _run_kernel(out, rows, weight)):
        _multiply_blocks(out, rows, weight, transpose_weight)
    if not np.isfinite(out).all():
        out[...] = _dequantized_product(k, rows, weight, transpose_weight)
    return out


def _contiguous_weight(k: Any, weight: QuantizedArray, transpose_weight: bool) -> tuple[QuantizedArray, bool]:
    """A transposed view as the C-contiguous weight underneath; otherwise, the arguments."""
    values: Array = weight.values
    if weight.dtype.is_packed or values.flags.c_contiguous or not values.T.flags.c_contiguous:
        return weight, transpose_weight
    underneath: Any = permute_dims(k, weight, (1, 0))
    return underneath, not transpose_weight


def _multiply_blocks(out: Array, rows: Array, weight: QuantizedArray, transpose_weight: bool) -> None:
    """Fill ``out`` with the product, a few rows of the weight at a time."""
    if not transpose_weight:
        out.fill(0)
    has_scale = not (weight.dtype.granularity == "tensor" or weight.dtype.axis == (0 if transpose_weight else 1))
    dequantized = _DequantizedRows(weight, rows.dtype, has_scale)
    for block in row_blocks(weight.shape, weight.dtype):
        part = dequantized.rows(block)
        if transpose_weight:
            np.matmul(rows, part.T, out=out[:, block])
        else:
            out += np.matmul(rows[:, block], part)
    if not has_scale:
        out *= weight.scale.astype(out.dtype)


def _run_kernel(out: Array, x: Array, weight: QuantizedArray) -> bool:
    """Fill ``out`` with ``x @ weight.T`` by the compiled kernel; False if it does not take these operands."""
    scheme, (outputs, inputs) = weight.dtype, weight.shape
    few = len(x) <= FEW_ROWS  # the kernel multiplies them itself, without the library's product
    kernel, sgemm = compiled.kernel("parallel_q_linear" if few else "q_linear"), None if few else blas.sgemm_address()
    parts = weight.values, weight.scale, weight.scale if weight.zero is None else weight.zero
    kinds = [PACKED if scheme.is_packed and p is weight.values else _kind(p.dtype) for p in parts]
    if kernel is None or (sgemm is None and not few) or None in kinds or x.dtype != np.float32:
        return False
    block = block_lengths(scheme, weight.shape)[-1] if scheme.block_shape else inputs
    if scheme.is_float or scheme.bits == 2 or scheme.axis not in (None, 0) or len(scheme.block_shape) > 1:
        return False
    if scheme.is_packed and block % 2 and block < inputs:
        return False
    if not out.size or not inputs:
        return False
    if scheme.is_packed:  # the kernel takes the low halves of a row's bytes first
        x = np.concatenate([x[:, ::2], x[:, 1::2], np.zeros((len(x), inputs % 2), x.dtype)], 1)
    operands = x, weight.values, weight.scale, weight.zero
    whole = [out, *map(contiguous, operands)]
    steps = 0 if scheme.granularity == "tensor" else -(-inputs // block)
    at = compiled.addresses(*whole)
    if few:
        portion = max(1, SHARE // (inputs * max(1, len(x) // 2)))
        kernel(*at, *kinds, len(x), outputs, inputs, block, steps, portion, available())
        return True
    held = max(1, EXPANDED // x.shape[1])

    def part(first: int, last: int) -> None:
        buffer = empty((held, x.shape[1]), x.dtype)
        sizes = held, len(x), outputs, inputs, block, steps, first, last
        kernel(*at, compiled.address(buffer), sgemm, *kinds, *sizes)

    with blas.single_in_kernels():
        parallel_for(part, outputs, max(2, WORTH // (inputs * max(1, len(x) // 8))))
    return True


def quantized_matmul(
    k: Any, x: QuantizedArray, y: QuantizedArray, /, dtype: DType = float32, transposed: bool = False
) -> Array:
    rows, columns = product_shape(x.shape, y.shape, transposed=transposed)
    if not rows or not columns or not x.shape[1]:
        return np.zeros((rows, columns), dtype.dtype)
    found = _integer_product(x, y, transposed) if dtype is float32 and is_integral(x, y, transposed) else None
    found = product(k, x, y, dtype, transposed) if found is None else found
    if np.isfinite(found).all():
        return found
    wide = dequantize(x, float64 if dtype is float64 else float32)  # as sums that overflow may be of finite terms
    return _dequantized_product(k, wide, y, transposed).astype(dtype.dtype, copy=False)


def _integer_product(x: QuantizedArray, y: QuantizedArray, transpose_weight: bool) -> Array | None:
    """The product of 8-bit integers by the compiled kernel, in float32; None if it does not take these operands."""
    kernel = compiled.kernel("q_matmul")
    inputs, is_packed = x.shape[1], x.dtype.is_packed or y.dtype.is_packed
    if kernel is None or is_packed or inputs > DEEPER * depth(x.dtype, y.dtype):
        return None
    rows, columns = x.shape[0], y.shape[0 if transpose_weight else 1]
    out = empty((rows, columns), compiled.FLOAT32)
    operands, kinds = [out], []
    for q, values in ((x, x.values), (y, y.values if transpose_weight else y.values.T)):
        zero = None if q.zero is None else np.ascontiguousarray(q.zero, np.int32)
        operands += [np.ascontiguousarray(values), np.ascontiguousarray(q.scale, np.float32), zero]
        kinds += [q.dtype.storage is uint8, q.dtype.axis is not None]
    portion = 4 * max(1, SHARE // (inputs * max(4, rows)))
    kernel(*compiled.addresses(*operands), *kinds, rows, columns, inputs, portion, available())
    return out


def _dequantized_product(k: Any, x: Array, weight: QuantizedArray, transpose_weight: bool) -> Array:
    """The product with the dequantized weight, for sums of stored values that overflow before scaling."""
    return OPERATIONS["quantized_linear" if transpose_weight else "quantized_linear_backward"].body(k, x, weight)


class _DequantizedRows:
    """Rows of a matrix as floats without their zero points, with ``has_scale`` multiplied by their scales.

    All rows share one buffer.
    """

    def __init__(self, q: QuantizedArray, dtype: Any, has_scale: bool) -> None:
        self.q, self.dtype, self.has_scale = q, dtype, has_scale
        self.buffer: Array = None

    def rows(self, rows: slice) -> Array:
        """The rows, in the buffer, valid until the next call."""
        q, values = self.q, self.q.values[rows]
        width = 8 // q.dtype.bits * values.shape[1]
        if self.buffer is None:
            self.buffer = np.empty((len(values), width), self.dtype)
        out = self.buffer[: len(values)]
        if q.dtype.is_packed and self.dtype == np.float32 and values.flags.c_contiguous:
            two = q.dtype.bits == 4 and values.shape[1] % 2 == 0  # bytes at a time
            numbers = _unpacked_table(q.dtype.bits, two)
            np.take(numbers, values.view(np.uint16) if two else values, out=out.view(numbers.dtype), mode="clip")
        else:
            out[:, : q.shape[1]] = stored(values, (len(values), q.shape[1]), q.dtype)
        part: Array = out[:, : q.shape[1]]
        for steps, ufunc in ((q.zero, np.subtract), (q.scale, np.multiply)):
            if steps is not None and (ufunc is np.subtract or self.has_scale):
                _apply_steps(ufunc, part, self.steps(steps, rows), q.dtype)
        return part

    def steps(self, steps: Array, rows: slice) -> Array:
        """The scales or zero points of some rows, with two axes unless there is just one."""
        if self.q.dtype.axis == 1 or self.q.dtype.granularity == "tensor":
            return steps.astype(self.dtype)
        if self.q.dtype.block_shape:
            return row_steps(steps, self.q.dtype, self.q.shape, rows).astype(self.dtype)
        return steps[rows, None].astype(self.dtype)


def _apply_steps(ufunc: Any, part: Array, steps: Array, dtype: QuantizedDType) -> None:
    """Apply the scales of its elements to ``part`` in place, by a broadcast over blocks if these are whole."""
    if not dtype.block_shape:
        ufunc(part, steps, out=part)
        return
    block = block_lengths(dtype, part.shape)[-1]
    if part.shape[1] % block == 0 and part.flags.c_contiguous:
        blocks = part.reshape(*steps.shape, block)
        ufunc(blocks, steps[..., None], out=blocks)
    else:
        ufunc(part, np.repeat(steps, block, -1)[:, : part.shape[1]], out=part)


@cache
def _unpacked_table(bits: int, two: bool) -> Array:
    """The values in each byte, or each two, as two or four float32 numbers viewed as one complex number."""
    codes = np.arange(1 << 16, dtype=np.uint16).view(np.uint8) if two else np.arange(256, dtype=np.uint8)
    numbers = unpack(codes, (len(codes) * 8 // bits,), bits).astype(np.float32)
    return numbers.view(np.complex128 if two or bits == 2 else np.complex64)
