"""NumPy: quantized arrays."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.dtypes import DType, QuantizedDType, float32, qint8, uint8
from backburn.ops.bodies import float8
from backburn.ops.bodies.quantized import (
    LARGEST,
    Quantized,
    block_lengths,
    empty_range_error,
    infinite_values_error,
    no_scale_error,
    scale_shape,
    steps_for,
)  # fmt: skip
from backburn_numpy import compiled
from backburn_numpy.half_precision import upcast_half
from backburn_numpy.memory import contiguous, empty

Array = Any
Shape = tuple[int, ...]


class QuantizedArray(Quantized[NDArray[Any]]):
    """Arrays of integers, their scales and zero points."""

    @property
    def nbytes(self) -> int:
        """The bytes of values, scales and zero points together."""
        return self.values.nbytes + self.scale.nbytes + (0 if self.zero is None else self.zero.nbytes)


#: Elements rounded at a time, in float64, so that no temporary is as large as the tensor.
BLOCK = 1 << 14


def quantize(k: Any, x: Array, /, dtype: QuantizedDType = qint8) -> QuantizedArray:
    steps = scale_shape(x.shape, dtype)
    return _run_kernel(x, (), dtype, steps) or _quantized(k, x, *_extremes(x, dtype, steps), dtype)


def quantize_between(k: Any, x: Array, low: Array, high: Array, /, dtype: QuantizedDType = qint8) -> QuantizedArray:
    found = _run_kernel(x, (low, high), dtype, scale_shape(x.shape, dtype))
    if found is not None:
        return found
    if x.size and not (np.isfinite(np.min(x)) and np.isfinite(np.max(x))):
        raise infinite_values_error(x.shape, dtype)
    if np.any(low > high):
        raise empty_range_error(x.shape, dtype)
    least = np.minimum(np.asarray(low, np.float64), 0.0, out=...)
    most = np.maximum(np.asarray(high, np.float64), 0.0, out=...)
    reaches = (least < 0) | (most > 0)
    if not np.all(reaches):  # a range of only 0 also has a scale, but holds only 0
        x = np.where(repeat_steps(np.asarray(reaches), x.shape, dtype), x, x.dtype.type(0))
    return _quantized(k, x, least, most, dtype)


def _run_kernel(x: Array, ends: tuple[Array, ...], dtype: QuantizedDType, steps: Shape) -> QuantizedArray | None:
    """``x`` quantized by the compiled kernel, for the ranges between ``ends`` or for its own.

    None if the kernel does not take these operands, or refuses their values: then NumPy tells why.
    """
    kernel = compiled.kernel("quantize")
    if kernel is None or not x.size or dtype.is_float or dtype.scale is not float32 or dtype.mode == "full":
        return None
    if dtype.axis or len(dtype.block_shape) > 1:
        return None
    operands = [contiguous(upcast_half(a)) for a in (x, *ends)]
    if operands[0].dtype != compiled.FLOAT32:
        return None
    if dtype.granularity == "tensor":
        lines, width = 1, x.size
    else:
        lines = x.shape[0] if dtype.axis == 0 else x.size // x.shape[-1]
        width = x.size // lines
    stored = np.dtype(np.uint8 if dtype.storage is uint8 else np.int8)
    values, scale, refused = empty(x.shape, stored), np.empty(steps, np.float32), np.zeros((), np.int32)
    zero = np.empty(steps, stored) if dtype.has_zero else None
    at = compiled.addresses(values, scale, zero, refused, *(operands if ends else (*operands, None, None)))
    kernel(*at, *dtype.limits, zero is None, lines, width, *(dtype.block_shape or (width,)))
    if refused:
        return None
    return QuantizedArray(pack(values, dtype.bits) if dtype.is_packed else values, scale, dtype, zero, x.shape)


def _quantized(k: Any, x: Array, low: Array, high: Array, dtype: QuantizedDType) -> QuantizedArray:
    """``x`` quantized over a float64 range that includes 0."""
    scale, zero = steps_for(k, low, high, dtype)
    if not np.isfinite(scale).all():
        raise no_scale_error(float(np.maximum(-low, high).max()), x.shape, dtype)
    # Rows of one channel, or rows of blocks; with a single scale, rows may end anywhere.
    moved = x if dtype.axis is None else np.moveaxis(x, dtype.axis, 0)
    if not x.size:
        parts = []
    elif dtype.granularity == "tensor":
        rows = moved.reshape(1, -1)
        if rows.size > BLOCK:
            whole = rows.size // BLOCK * BLOCK
            parts = [rows[:, :whole].reshape(-1, BLOCK), rows[:, whole:]]
        else:
            parts = [rows]
    else:
        parts = [moved.reshape(scale.shape[0], -1) if dtype.axis is not None else moved.reshape(-1, x.shape[-1])]
    stored = np.empty(x.size, np.uint8 if dtype.is_float or dtype.storage.name == "uint8" else np.int8)
    start = 0
    for part in parts:
        _round(part, scale, zero, dtype, x.shape, stored[start : start + part.size].reshape(part.shape))
        start += part.size
    values = stored.reshape(moved.shape)
    if dtype.axis is not None:
        values = np.ascontiguousarray(np.moveaxis(values, 0, dtype.axis))
    return QuantizedArray(pack(values, dtype.bits) if dtype.is_packed else values, scale, dtype, zero, x.shape)


def _extremes(x: Array, dtype: QuantizedDType, steps: Shape) -> tuple[Array, Array]:
    """The smallest and largest value of each scale, at most and at least 0, in float64."""
    found = []
    for ufunc in (np.minimum, np.maximum):
        if not x.size:
            result = np.zeros(steps, x.dtype)
        elif dtype.block_shape:
            result = x
            for axis, size in enumerate(reversed(block_lengths(dtype, x.shape)), 1):
                result = ufunc.reduceat(result, np.arange(0, x.shape[-axis], size), -axis)
        else:
            result = ufunc.reduce(x, tuple(a for a in range(x.ndim) if a != dtype.axis), initial=0)
        found.append(ufunc(np.asarray(result, np.float64), 0.0, out=...))
    return found[0], found[1]


def _round(x: Array, scale: Array, zero: Array | None, dtype: QuantizedDType, shape: Shape, out: Array) -> None:
    """The stored values of a matrix with one scale per row, or of the rows of a block-quantized tensor of ``shape``."""
    least, most = dtype.limits
    height = max(1, BLOCK // max(1, x.shape[1]))
    for start in range(0, x.shape[0], height):
        part = x[start : start + height].astype(np.float64)
        np.divide(part, _steps(scale, dtype, shape, start, part), out=part)
        if dtype.is_float:
            codes = np.searchsorted(_tables(dtype.storage.name)[0], np.abs(part))
            out[start : start + height] = codes + 128 * (part < 0)
            continue
        np.rint(part, out=part)
        if zero is not None:
            np.add(part, _steps(zero, dtype, shape, start, part), out=part)
        out[start : start + height] = np.clip(part, least, most, out=part)


def _steps(steps: Array, dtype: QuantizedDType, shape: Shape, start: int, part: Array) -> Array:
    """The scales of the rows of ``part``, which starts at row ``start``."""
    if dtype.granularity == "tensor":
        return steps
    if dtype.axis is not None:
        return steps[start : start + len(part), None].astype(np.float64)
    rows = row_steps(steps, dtype, shape, slice(start, start + len(part))).astype(np.float64)
    return np.repeat(rows, block_lengths(dtype, shape)[-1], -1)[:, : shape[-1]]


def row_steps(steps: Array, dtype: QuantizedDType, shape: Shape, rows: slice) -> Array:
    """The scales of the blocks in some rows of a tensor, its lines along the last axis."""
    sizes = block_lengths(dtype, shape)[:-1]
    if not sizes:
        return steps.reshape(-1, steps.shape[-1])[rows]
    at = list(np.unravel_index(np.arange(rows.start, rows.stop), shape[:-1]))
    for axis, size in enumerate(reversed(sizes), 1):
        at[-axis] = at[-axis] // size
    return steps[tuple(at)]


def dequantize(x: Quantized[Any], /, dtype: DType = float32) -> Array:
    wide = np.dtype(np.float32 if dtype is float32 else np.float64)
    values = stored(x.values, x.shape, x.dtype)
    if x.zero is not None:
        values = np.subtract(values, repeat_steps(x.zero, x.shape, x.dtype), dtype=np.int16, out=...)
    scale = repeat_steps(x.scale, x.shape, x.dtype).astype(wide, copy=False)
    product = np.multiply(values, scale, dtype=wide, out=...)
    if dtype.name in LARGEST and x.scale.size and _may_exceed(x, LARGEST[dtype.name]):
        np.clip(product, -LARGEST[dtype.name], LARGEST[dtype.name], out=product)
    return product.astype(dtype.dtype, copy=False)


def _may_exceed(x: Quantized[Any], largest: float) -> bool:
    """Whether a dequantized value may exceed ``largest``."""
    least, most = x.dtype.limits
    return float(np.max(np.abs(x.scale) if x.dtype.mode == "full" else x.scale)) * (most - least) > largest


@cache
def _tables(name: str) -> tuple[Array, Array]:
    """The rounding thresholds of 8-bit floats, and the value of each byte."""
    numbers = np.zeros(128, np.float32)
    known = float8.magnitudes(name)
    numbers[: len(known)] = known
    return np.array(float8.thresholds(name)), np.concatenate([numbers, -numbers])


def stored(values: Array, shape: Shape, dtype: QuantizedDType) -> Array:
    """The stored numbers: unpacked, and 8-bit floats decoded."""
    if dtype.is_float:
        return _tables(dtype.storage.name)[1][values]
    return unpack(values, shape, dtype.bits) if dtype.is_packed else values


def repeat_steps(steps: Array, shape: Shape, dtype: QuantizedDType) -> Array:
    """Scales or zero points, to broadcast to ``shape``."""
    if dtype.axis is not None:
        return steps.reshape([n if a == dtype.axis else 1 for a, n in enumerate(shape)])
    if not dtype.block_shape:
        return steps
    for axis, size in enumerate(block_lengths(dtype, shape), -len(dtype.block_shape)):
        steps = np.repeat(steps, size, axis)
    return steps[tuple(map(slice, shape))]


def pack(values: Array, bits: int) -> Array:
    """Integers of 4 or 2 bits, neighbours along the last axis in one byte."""
    values, each = np.atleast_1d(values), 8 // bits
    packed = values[..., ::each].view(np.uint8) & (2**bits - 1)
    for i in range(1, each):
        part = values[..., i::each].view(np.uint8)
        if i < each - 1:  # the sign fills the bits above
            part = part & (2**bits - 1)
        packed[..., : part.shape[-1]] |= part << (i * bits)
    return packed


def unpack(values: Array, shape: Shape, bits: int) -> Array:
    """The int8 array of ``shape`` that :func:`pack` packed."""
    each = 8 // bits
    result = np.empty((*values.shape, each), np.int8)
    signed = values.view(np.int8)
    for i in range(each):
        top = np.left_shift(signed, 8 - bits * (i + 1)) if i < each - 1 else signed
        np.right_shift(top, 8 - bits, out=result[..., i])
    flat = result.reshape(*values.shape[:-1], each * values.shape[-1])
    return flat[..., : shape[-1]] if shape else flat[..., 0].reshape(())


def quantized_from_parts(
    values: Array, scale: Array, zero: Array | None, /, dtype: QuantizedDType, shape: Shape
) -> QuantizedArray:
    """The quantized array of copies of these parts."""
    return QuantizedArray(values.copy(), scale.copy(), dtype, None if zero is None else zero.copy(), shape)
