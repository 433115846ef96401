"""The plainest quantized primitive: an int primitive and its steps.

A backend may have its own quantized primitive; otherwise it uses :class:`Quantized`, for which the default bodies of
``quantize`` and ``dequantize`` are written. All functions are written with the operations of a backend ``k``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from backburn.base.dtypes import DType, QuantizedDType, float32, float64, int8, int16, uint8
from backburn.base.errors import ArgumentError, AxisError, NumericalInstabilityError, ShapeError
from backburn.ops.bodies import float8
from backburn.ops.bodies.reductions import all_axes, all_true
from backburn.ops.bodies.slicing import full_slices, index_axis

P = TypeVar("P")
Shape = tuple[int, ...]

#: For each scale dtype, the relative spacing of its numbers, and its smallest positive number.
SPACING = {"float32": (2.0**-23, 2.0**-149), "float16": (2.0**-10, 2.0**-24), "bfloat16": (2.0**-7, 2.0**-133)}

#: The largest finite numbers of the float dtypes that a multiple of a step may exceed.
LARGEST = {"float16": 65504.0, "bfloat16": (2 - 2.0**-7) * 2.0**127, "float32": (2 - 2.0**-23) * 2.0**127}


@dataclass(frozen=True, eq=False)
class Quantized(Generic[P]):
    """Integers, with their steps and zero points, scheme, and shape.

    ``values`` has the shape of the tensor; packed values lie several to a byte along the last axis, the first in the
    lowest bits. ``scale`` is 0-d, has one step for each channel, or has the tensor's rank, with the number of blocks
    along each axis for its length. ``zero`` has the shape of ``scale``, or is None if the scheme has none.
    """

    values: P
    scale: P
    dtype: QuantizedDType
    zero: P | None
    shape: Shape


def block_shape(dtype: QuantizedDType, rank: int) -> Shape:
    """The lengths of a block along all of ``rank`` axes: 1 along the axes for which it has none."""
    return (1,) * (rank - len(dtype.block_shape)) + dtype.block_shape


def block_lengths(dtype: QuantizedDType, shape: Shape) -> Shape:
    """The lengths of a block along its axes, at most the tensor's lengths."""
    lengths = dtype.block_shape
    return tuple(min(size, max(1, n)) for size, n in zip(lengths, shape[len(shape) - len(lengths) :], strict=True))


def scale_shape(shape: Shape, dtype: QuantizedDType) -> Shape:
    """The shape of the steps of a tensor. Raises if the scheme does not fit the shape."""
    if dtype.granularity == "tensor":
        return ()
    if dtype.axis is not None:
        if not 0 <= dtype.axis < len(shape):
            raise AxisError(f"the scheme {dtype} does not fit the shape {list(shape)}: there is no axis {dtype.axis}")
        return (shape[dtype.axis],)
    if len(dtype.block_shape) > len(shape):
        axes = "the last axis" if len(dtype.block_shape) == 1 else f"the last {len(dtype.block_shape)} axes"
        raise ShapeError(f"the scheme {dtype} does not fit the shape {list(shape)}: its blocks lie along {axes}")
    return tuple(-(-n // size) for n, size in zip(shape, block_shape(dtype, len(shape)), strict=True))


def infinite_values_error(shape: Shape, dtype: QuantizedDType) -> NumericalInstabilityError:
    """The error for values in a given range that are NaN or infinite."""
    return NumericalInstabilityError(
        f"quantize: values must be finite for {dtype}, and some in the shape {list(shape)} are not"
    )


def empty_range_error(shape: Shape, dtype: QuantizedDType) -> ArgumentError:
    """The error for a range whose low end is above its high end."""
    return ArgumentError(
        f"quantize: the low end of a range lies above its high end, for {dtype} and the shape {list(shape)}"
    )


def no_scale_error(largest: float, shape: Shape, dtype: QuantizedDType) -> NumericalInstabilityError:
    """The error for values that no step of the scheme can represent."""
    return NumericalInstabilityError(
        f"quantize: magnitudes up to {largest} in the shape {list(shape)} have no place on the {dtype.scale} scale of "
        f"{dtype}; values must be finite"
    )


# ---- steps ----


def broadcast_steps(k: Any, steps: Any, shape: Shape, dtype: QuantizedDType) -> Any:
    """Steps or zero points in a shape that broadcasts to ``shape``."""
    if dtype.axis is not None:
        return k.reshape(steps, tuple(n if a == dtype.axis else 1 for a, n in enumerate(shape)))
    if not dtype.block_shape:
        return steps
    each = _split_blocks(tuple(steps.shape), (1,) * len(dtype.block_shape))
    sizes = block_lengths(dtype, shape)
    wide = k.broadcast_to(k.reshape(steps, each), _split_blocks(tuple(steps.shape), sizes))
    wide = k.reshape(wide, _whole_blocks(tuple(steps.shape), sizes))
    return k.slice(wide, full_slices(*shape))


def _split_blocks(counts: Shape, sizes: Shape) -> Shape:
    """A shape with two axes for each axis of a block: the number of blocks and the position in a block."""
    lead = len(counts) - len(sizes)
    return (*counts[:lead], *(n for pair in zip(counts[lead:], sizes, strict=True) for n in pair))


def _whole_blocks(counts: Shape, sizes: Shape) -> Shape:
    """The shape of ``counts`` whole blocks of ``sizes``."""
    lead = len(counts) - len(sizes)
    return (*counts[:lead], *(count * size for count, size in zip(counts[lead:], sizes, strict=True)))


def extremes(k: Any, x: Any, dtype: QuantizedDType) -> tuple[Any, Any]:
    """The smallest and largest of the values that share each step, and 0."""
    shape, steps = x.shape, scale_shape(x.shape, dtype)
    if not math.prod(shape):
        return k.zeros(steps, float64), k.zeros(steps, float64)
    x = k.astype(x, float64)
    axes = tuple(a for a in range(len(shape)) if a != dtype.axis)
    if dtype.block_shape:
        sizes = block_lengths(dtype, shape)
        for axis, length in enumerate(_whole_blocks(steps, sizes)):
            if length > shape[axis]:
                missing = (*x.shape[:axis], length - shape[axis], *x.shape[axis + 1 :])
                x = k.concat([x, k.zeros(missing, float64)], axis)
        x = k.reshape(x, _split_blocks(steps, sizes))
        axes = tuple(range(len(shape) - len(sizes) + 1, len(shape) + len(sizes), 2))
    return k.minimum(k.min(x, axes), 0.0), k.maximum(k.max(x, axes), 0.0)


def steps_for(k: Any, low: Any, high: Any, dtype: QuantizedDType) -> tuple[Any, Any]:
    """Steps in their stored dtype, and zero points, for float64 ranges from ``low`` to ``high`` that contain 0.

    Elements are divided by the step as stored, so that its rounding belongs to the scheme rather than to the error. A
    step that was rounded down so far that the last integer is more than half a step off is replaced by the next larger
    one. An affine step is always rounded up: then ``(high - low) / step`` is at most the number of steps, and rounding
    the zero point moves neither end by more than half a step. (Jacob et al. (2018), *Quantization and Training of
    Neural Networks for Efficient Integer-Arithmetic-Only Inference*, CVPR, section 2.1.)
    """
    least, most = dtype.limits
    if dtype.has_zero:
        reach, count, more = k.sub(high, low), float(most - least), 0.0
    else:
        reach, count, more = k.maximum(k.mul(low, most / least), high), float(most), -0.5 * most / least
    scale = k.astype(k.where(k.equal(reach, 0.0), 1.0, k.div(reach, count)), dtype.scale)
    step = k.astype(scale, float64)
    relative, smallest = SPACING[dtype.scale.name]
    larger = k.astype(k.add(step, k.maximum(k.mul(step, relative), smallest)), dtype.scale)
    scale = k.where(k.less(k.mul(step, count + more), reach), larger, scale)
    if not dtype.has_zero:
        return scale, None
    zero = k.round(k.sub(float(least), k.div(low, k.astype(scale, float64))))
    # Zero points that are not finite become 0: the steps are not finite, either, and raise.
    zero = k.where(k.isfinite(zero), k.clip(zero, float(least), float(most)), 0.0)
    return scale, k.astype(zero, uint8 if dtype.storage is uint8 else int8)


# ---- to and from quantized ----


def quantize(k: Any, x: Any, low: Any, high: Any, dtype: QuantizedDType) -> Quantized[Any]:
    """``x`` with steps for a float64 range that contains 0; the steps are read on the host, to refuse invalid ones."""
    shape = tuple(x.shape)
    scale, zero = steps_for(k, low, high, dtype)
    if not all_true(k, k.isfinite(scale)):
        reach = k.maximum(k.neg(low), high)
        raise no_scale_error(float(k.to_numpy(k.max(reach, all_axes(reach)))), shape, dtype)
    steps = k.div(k.astype(x, float64), broadcast_steps(k, k.astype(scale, float64), shape, dtype))
    if dtype.is_float:
        return Quantized(float8.encode(k, steps, dtype.storage.name), scale, dtype, None, shape)
    steps = k.round(steps)
    if zero is not None:
        steps = k.add(steps, broadcast_steps(k, k.astype(zero, float64), shape, dtype))
    least, most = dtype.limits
    stored = k.astype(k.clip(steps, float(least), float(most)), uint8 if dtype.storage is uint8 else int8)
    return Quantized(pack(k, stored, dtype.bits) if dtype.is_packed else stored, scale, dtype, zero, shape)


def integers(k: Any, x: Quantized[Any]) -> Any:
    """The stored values of ``x``, unpacked: int8 or uint8 of its shape; 8-bit floats as bytes."""
    return unpack(k, x.values, x.shape, x.dtype.bits) if x.dtype.is_packed else x.values


def subtract_zero(k: Any, x: Quantized[Any]) -> Any:
    """The stored values minus their zero points: the multiples of the step, in int16."""
    values = k.astype(integers(k, x), int16)
    return values if x.zero is None else k.sub(values, broadcast_steps(k, k.astype(x.zero, int16), x.shape, x.dtype))


def dequantize(k: Any, x: Quantized[Any], dtype: DType) -> Any:
    """The stored values times their steps, rounded once and clamped to the finite numbers of ``dtype``."""
    wide = float32 if dtype is float32 else float64
    stored = (
        float8.decode(k, x.values, x.dtype.storage.name, wide)
        if x.dtype.is_float
        else k.astype(subtract_zero(k, x), wide)
    )
    product = k.mul(stored, broadcast_steps(k, k.astype(x.scale, wide), x.shape, x.dtype))
    if dtype.name in LARGEST:
        product = k.clip(product, -LARGEST[dtype.name], LARGEST[dtype.name])
    return k.astype(product, dtype)


# ---- several to a byte ----


def pack(k: Any, values: Any, bits: int) -> Any:
    """Integers of 4 or 2 bits as bytes that hold neighbours along the last axis; a 0-d tensor as one byte."""
    shape, each = values.shape or (1,), 8 // bits
    values = k.bitwise_and(k.astype(k.reshape(values, shape), uint8), 2**bits - 1)
    count = -(-shape[-1] // each)
    if missing := count * each - shape[-1]:
        values = k.concat([values, k.zeros((*shape[:-1], missing), uint8)], len(shape) - 1)
    neighbours = k.reshape(values, (*shape[:-1], count, each))
    packed, *others = (index_axis(k, neighbours, len(shape), i) for i in range(each))
    for i, other in enumerate(others, 1):
        packed = k.bitwise_or(packed, k.bitwise_left_shift(other, i * bits))
    return packed


def unpack(k: Any, values: Any, shape: Shape, bits: int) -> Any:
    """The int8 tensor of ``shape`` that :func:`pack` packed."""
    each, lengths, sign = 8 // bits, shape or (1,), 1 << (bits - 1)
    shifted = [values, *(k.bitwise_right_shift(values, i * bits) for i in range(1, each))]
    parts = [*(k.bitwise_and(part, 2**bits - 1) for part in shifted[:-1]), shifted[-1]]
    flat = k.reshape(k.stack(parts, len(values.shape)), (*values.shape[:-1], each * values.shape[-1]))
    flat = k.slice(flat, full_slices(*lengths))
    return k.sub(k.bitwise_xor(k.astype(k.reshape(flat, shape), int8), sign), sign)
