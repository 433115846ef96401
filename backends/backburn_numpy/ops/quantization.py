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
    scale_shape,
)  # fmt: skip
from backburn.ops.primitives import between
from backburn.ops.table import OPERATIONS
from backburn_numpy import compiled
from backburn_numpy.elementwise.half_precision import upcast_half
from backburn_numpy.implements import implements
from backburn_numpy.runtime.memory import contiguous, empty

Array = Any
Shape = tuple[int, ...]


class QuantizedArray(Quantized[NDArray[Any]]):
    """Arrays of integers, their scales and zero points."""

    @property
    def nbytes(self) -> int:
        """The bytes of values, scales and zero points together."""
        return self.values.nbytes + self.scale.nbytes + (0 if self.zero is None else self.zero.nbytes)


@implements("quantize", takes_backend=True)
def quantize(k: Any, x: Array, /, dtype: QuantizedDType = qint8) -> QuantizedArray:
    found = _run_kernel(x, (), dtype, scale_shape(x.shape, dtype))
    return _own(OPERATIONS["quantize"].body(k, x, dtype)) if found is None else found


@implements("quantize_between", takes_backend=True)
def quantize_between(k: Any, x: Array, low: Array, high: Array, /, dtype: QuantizedDType = qint8) -> QuantizedArray:
    between(x.shape, low.shape, high.shape, dtype=dtype)
    found = _run_kernel(x, (low, high), dtype, scale_shape(x.shape, dtype))
    return _own(OPERATIONS["quantize_between"].body(k, x, low, high, dtype)) if found is None else found


def _own(x: Quantized[Any]) -> QuantizedArray:
    """The quantized primitive of a body as this backend's."""
    return QuantizedArray(x.values, x.scale, x.dtype, x.zero, x.shape)


def _run_kernel(x: Array, ends: tuple[Array, ...], dtype: QuantizedDType, steps: Shape) -> QuantizedArray | None:
    """``x`` quantized by the compiled kernel, for the ranges between ``ends`` or for its own.

    None if the kernel does not take these operands, or refuses their values: then the body tells why.
    """
    kernel = compiled.kernel("quantize")
    if kernel is None or not x.size or dtype.is_float or dtype.scale is not float32 or dtype.mode == "full":
        return None
    if dtype.axis or len(dtype.block_shape) > 1:
        return None
    operands = [contiguous(upcast_half(a)) for a in (x, *ends)]
    if any(a.dtype != compiled.FLOAT32 for a in operands):
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


def row_steps(steps: Array, dtype: QuantizedDType, shape: Shape, rows: slice) -> Array:
    """The scales of the blocks in some rows of a tensor, which are its lines along the last axis."""
    sizes = block_lengths(dtype, shape)[:-1]
    if not sizes:
        return steps.reshape(-1, steps.shape[-1])[rows]
    at = list(np.unravel_index(np.arange(rows.start, rows.stop), shape[:-1]))
    for axis, size in enumerate(reversed(sizes), 1):
        at[-axis] = at[-axis] // size
    return steps[tuple(at)]


@implements("dequantize")
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
def _float8_numbers(name: str) -> Array:
    """The value of each byte as an 8-bit float."""
    numbers = np.zeros(128, np.float32)
    known = float8.magnitudes(name)
    numbers[: len(known)] = known
    return np.concatenate([numbers, -numbers])


def stored(values: Array, shape: Shape, dtype: QuantizedDType) -> Array:
    """The stored numbers: unpacked, and 8-bit floats decoded."""
    if dtype.is_float:
        return _float8_numbers(dtype.storage.name)[values]
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
