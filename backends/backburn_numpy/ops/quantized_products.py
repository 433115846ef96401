"""NumPy: products with quantized operands. Weights are dequantized a few rows at a time, into one small buffer."""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any, NamedTuple

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
from backburn_numpy import compiled, tuning
from backburn_numpy.elementwise.half_precision import cast_like, upcast_half
from backburn_numpy.implements import implements
from backburn_numpy.ops.linalg import matmul as multiply
from backburn_numpy.ops.quantization import QuantizedArray, dequantize, row_steps, stored, unpack
from backburn_numpy.runtime import blas
from backburn_numpy.runtime.memory import contiguous, empty
from backburn_numpy.runtime.threads import available, parallel_for

Array = Any
Shape = tuple[int, ...]

#: The compiled kernel's codes for the dtypes of values, scales and zero points.
_KINDS = {"int8": 0, "uint8": 1, "float32": 3, "float16": 4, "bfloat16": 5}
PACKED = 2

#: 4-bit values that the kernel reads together.
GROUP = 128


#: How many times as many products int32 sums exactly as float32.
DEEPER = 1 << 7


@implements("quantized_linear", takes_backend=True)
def quantized_linear(k: Any, x: Array, weight: QuantizedArray, bias: Array | None = None, /) -> Array:
    shape = linear_shape(x.shape, weight.shape, None if bias is None else bias.shape)
    out = _product(k, x, weight, True)
    if bias is not None:
        out += upcast_half(bias)
    return cast_like(out.reshape(shape), x)


@implements("quantized_linear_backward", takes_backend=True)
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
    is_finite = _few_rows(out, rows, weight) if transpose_weight and len(rows) <= tuning.MAX_ROWS_BY_READING else None
    if is_finite is None:
        run = _run_kernel if transpose_weight else _multiply_expanded
        if not run(out, rows, weight):
            _multiply_blocks(out, rows, weight, transpose_weight)
        is_finite = bool(np.isfinite(out).all())
    if not is_finite:
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


class _Layout(NamedTuple):
    """The layout of a weight for compiled kernels: the kinds of its values, scales and zero points, and its blocks."""

    kinds: tuple[int, int, int]
    block: int
    steps: int
    #: Whether the kernel for few rows takes the blocks.
    is_for_few: bool


@lru_cache(64)
def _layout(scheme: QuantizedDType, shape: Shape, dtypes: tuple[np.dtype[Any], ...]) -> _Layout | None:
    """The layout of a weight whose parts have these dtypes; None if the kernels do not take it."""
    kinds = [_KINDS.get(dtype.name) for dtype in dtypes]  # NumPy is slow to compute a name
    if scheme.is_packed:
        kinds[0] = PACKED
    inputs = shape[1]
    if scheme.is_float or scheme.bits == 2 or scheme.axis not in (None, 0) or len(scheme.block_shape) > 1:
        return None
    block = block_lengths(scheme, shape)[-1] if scheme.block_shape else inputs
    if None in kinds or not inputs or (scheme.is_packed and block % 2 and block < inputs):
        return None
    whole = block >= inputs
    if scheme.is_packed:
        is_for_few = whole or (block % 8 == 0 and (GROUP % block == 0 or block % GROUP == 0))
        block = -(-block // GROUP) * GROUP if whole else block
    else:
        is_for_few = whole or block % 16 == 0
    values, scale, zero = (kind or 0 for kind in kinds)
    return _Layout(
        (values, scale, zero), block, 0 if scheme.granularity == "tensor" else -(-inputs // block), is_for_few
    )


def _layout_of(weight: QuantizedArray) -> _Layout | None:
    zero = weight.scale if weight.zero is None else weight.zero
    return _layout(weight.dtype, weight.shape, (weight.values.dtype, weight.scale.dtype, zero.dtype))


def _few_rows(out: Array, x: Array, weight: QuantizedArray) -> bool | None:
    """Fill ``out`` with ``x @ weight.T`` by the kernel that multiplies values as it reads them.

    Returns whether all results are finite; None if the kernel does not take these operands.
    """
    kernel, layout = compiled.kernel("q_gemm_small_m"), _layout_of(weight)
    if kernel is None or layout is None or not layout.is_for_few or x.dtype != compiled.FLOAT32:
        return None
    outputs, inputs = weight.shape
    parts = [contiguous(part) for part in (x, weight.values, weight.scale, weight.zero)]
    room = empty((len(x), -(-inputs // GROUP) * GROUP), x.dtype) if layout.kinds[0] == PACKED else None
    unfinished = np.zeros(1, np.intc)
    kernel(
        *compiled.addresses(out, *parts, room, unfinished), *layout.kinds, len(x), outputs, inputs, layout.block,
        layout.steps, max(1, tuning.PRODUCTS_PER_TASK // (inputs * max(1, len(x) // 2))), available(),
    )  # fmt: skip
    return not unfinished[0]


def _run_kernel(out: Array, x: Array, weight: QuantizedArray) -> bool:
    """Fill ``out`` with ``x @ weight.T`` by the kernel that expands rows; False if it does not take these operands."""
    kernel, sgemm, layout = compiled.kernel("q_linear"), blas.sgemm_address(), _layout_of(weight)
    if kernel is None or sgemm is None or layout is None or x.dtype != np.float32:
        return False
    outputs, inputs = weight.shape
    if layout.kinds[0] == PACKED:  # the kernel takes the low halves of a row's bytes first
        x = np.concatenate([x[:, ::2], x[:, 1::2], np.zeros((len(x), inputs % 2), x.dtype)], 1)
    whole = [out, *map(contiguous, (x, weight.values, weight.scale, weight.zero))]
    at = compiled.addresses(*whole)
    held = max(1, tuning.EXPANDED_BY_THREAD // x.shape[1])

    def part(first: int, last: int) -> None:
        buffer = empty((held, x.shape[1]), x.dtype)
        sizes = held, len(x), outputs, inputs, layout.block, layout.steps, first, last
        kernel(*at, compiled.address(buffer), sgemm, *layout.kinds, *sizes)

    with blas.single_in_kernels():
        parallel_for(part, outputs, max(2, tuning.MIN_WORK_FOR_SECOND_THREAD // (inputs * max(1, len(x) // 8))))
    return True


def _multiply_expanded(out: Array, x: Array, weight: QuantizedArray) -> bool:
    """Fill ``out`` with ``x @ weight`` by expanding a few rows at a time; False if no kernel takes these."""
    kernel, layout = compiled.kernel("q_expand"), _layout_of(weight)
    if kernel is None or layout is None or x.dtype != compiled.FLOAT32:
        return False
    outputs, inputs = weight.shape
    width = inputs + inputs % 2 if layout.kinds[0] == PACKED else inputs
    parts = [contiguous(part) for part in (weight.values, weight.scale, weight.zero)]
    at = compiled.addresses(*parts)
    held = min(outputs, max(1, tuning.EXPANDED_AT_A_TIME // width))
    buffer = empty((held, width), x.dtype)
    total: Array = None
    for first in range(0, outputs, held):
        count = min(held, outputs - first)
        sizes = first, count, inputs, layout.block, layout.steps, max(1, tuning.ELEMENTS_PER_TASK // width), available()
        kernel(compiled.address(buffer), *at, *layout.kinds, *sizes)
        part = multiply(x[:, first : first + count], buffer[:count])
        total = part if total is None else np.add(total, part, out=total)
    if layout.kinds[0] == PACKED:  # the kernel gives the low halves of a row's bytes first
        out[:, ::2], out[:, 1::2] = total[:, : width // 2], total[:, width // 2 : width // 2 + inputs // 2]
    else:
        np.copyto(out, total)
    return True


@implements("quantized_matmul", takes_backend=True)
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
    wide = dequantize(x, float64 if dtype is float64 else float32)  # since sums of finite terms may overflow
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
    portion = 4 * max(1, tuning.PRODUCTS_PER_TASK // (inputs * max(4, rows)))
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
    """Apply scales or zero points to ``part`` in place, by a broadcast over blocks if all are whole."""
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
