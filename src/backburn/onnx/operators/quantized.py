"""Quantized operators, which compute on integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn.base.errors import ShapeError, Unsupported
from backburn.onnx.dtypes import BY_VALUE, NAMES, NARROW, held, named
from backburn.onnx.operators.convolution import conv_integer
from backburn.onnx.operators.products import matmul_integer
from backburn.onnx.registry import operator
from backburn.tensor import arithmetic, creation, elementwise, rearrange
from backburn.tensor import shape as shapes
from backburn.tensor.classes import Tensor


def _along(x: Any, part: Any, axis: int, block: int) -> Any:
    """A scale or a zero point in a shape that broadcasts to a tensor."""
    if part is None or part.ndim == 0 or part.shape == (1,):
        return part
    axis = axis + x.ndim if axis < 0 else axis
    if block:
        if part.ndim != x.ndim:
            raise ShapeError(f"a scale of shape {list(part.shape)} does not fit blocks of a tensor {list(x.shape)}")
        repeated = rearrange.repeat(part, block, axis=axis)
        return repeated[tuple(slice(n) for n in x.shape)]
    if part.ndim != 1:
        return part
    return shapes.reshape(part, [-1 if i == axis else 1 for i in range(x.ndim)])


def _saturated(x: Any, least: int, greatest: int, kind: str) -> Any:
    return creation.astype(arithmetic.clip(x, least, greatest), kind)


def _bounds(number: int) -> tuple[str, int, int]:
    """The dtype that holds a quantized data type, and its least and greatest value."""
    name = NAMES.get(number, "")
    if name in NARROW:
        return NARROW[name]
    kind = held(number)
    if kind is None or kind.kind != "int" or name in BY_VALUE:
        raise Unsupported(f"quantizing to {named(number)} is not supported")
    limits = np.iinfo(kind.name)
    return kind.name, int(limits.min), int(limits.max)


_NUMBERS = {name: number for number, name in NAMES.items()}


@operator("QuantizeLinear", since=10)
def quantize_linear(
    x: Tensor, scale: Tensor, zero: Tensor | None = None, /,
    *, axis: int = 1, block_size: int = 0, output_dtype: int = 0, precision: int = 0, saturate: int = 1,
) -> Any:  # fmt: skip
    """Numbers divided by a scale, rounded to nearest even, plus a zero point."""
    number = output_dtype or (2 if zero is None else _NUMBERS[zero.dtype.name])
    kind, least, greatest = _bounds(number)
    wide = creation.astype(x, held(precision)) if precision else x
    steps = creation.astype(_along(x, scale, axis, block_size), wide.dtype if wide.dtype.is_floating else "float32")
    rounded: Any = elementwise.round(arithmetic.divide(wide, steps))
    if zero is not None:
        moved = _along(x, zero, axis, block_size)
        rounded = arithmetic.add(rounded, creation.astype(moved, rounded.dtype))
    return _saturated(rounded, least, greatest, kind)


@operator("DequantizeLinear", since=10)
def dequantize_linear(
    x: Tensor, scale: Tensor, zero: Tensor | None = None, /,
    *, axis: int = 1, block_size: int = 0, output_dtype: int = 0,
) -> Any:  # fmt: skip
    """Integers minus their zero point, times a scale."""
    kind = held(output_dtype) if output_dtype else scale.dtype
    steps = _along(x, scale, axis, block_size)
    if x.dtype.kind == "int":
        whole: Any = creation.astype(x, "int32" if x.dtype.bits < 32 else x.dtype)
        if zero is not None:
            whole = arithmetic.subtract(whole, creation.astype(_along(x, zero, axis, block_size), whole.dtype))
        exact = creation.astype(whole, "float32" if scale.dtype.bits <= 32 else scale.dtype)
    else:
        exact = x
    result = arithmetic.multiply(exact, creation.astype(steps, exact.dtype))
    return creation.astype(result, kind)


def _requantized(total: Any, factor: Any, zero: Any) -> Any:
    """32-bit sums times a factor, rounded to the dtype of a zero point."""
    kind, least, greatest = _bounds(_NUMBERS[zero.dtype.name])
    scaled: Any = elementwise.round(arithmetic.multiply(creation.astype(total, "float32"), factor))
    return _saturated(arithmetic.add(scaled, creation.astype(zero, "float32")), least, greatest, kind)


def _factor(x: Any, y: Any, z: Any) -> Any:
    single = [creation.astype(part, "float32") for part in (x, y, z)]
    return arithmetic.divide(arithmetic.multiply(single[0], single[1]), single[2])


@operator("QLinearMatMul")
def qlinear_matmul(
    x: Tensor, x_scale: Tensor, x_zero: Tensor, y: Tensor, y_scale: Tensor, y_zero: Tensor, scale: Tensor,
    zero: Tensor, /,
) -> Any:  # fmt: skip
    """The product of quantized matrices, quantized."""
    return _requantized(matmul_integer(x, y, x_zero, y_zero), _factor(x_scale, y_scale, scale), zero)


@operator("QLinearConv")
def qlinear_conv(
    x: Tensor, x_scale: Tensor, x_zero: Tensor, weight: Tensor, weight_scale: Tensor, weight_zero: Tensor,
    scale: Tensor, zero: Tensor, bias: Tensor | None = None, /,
    *, auto_pad: str = "NOTSET", dilations: Any = None, group: int = 1, kernel_shape: Any = None, pads: Any = None,
    strides: Any = None, run: Any,
) -> Any:  # fmt: skip
    """The convolution of quantized tensors, quantized."""
    total: Any = conv_integer(
        x, weight, x_zero, weight_zero, auto_pad=auto_pad, dilations=dilations, group=group,
        kernel_shape=kernel_shape, pads=pads, strides=strides, run=run,
    )  # fmt: skip
    if bias is not None:
        total = arithmetic.add(total, shapes.reshape(bias, (1, -1, *(1 for _ in x.shape[2:]))))
    return _requantized(total, _along(total, _factor(x_scale, weight_scale, scale), 1, 0), zero)
