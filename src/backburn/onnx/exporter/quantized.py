"""Quantized tensors in ONNX: integers, steps and zero points, which ``DequantizeLinear`` converts to floats.

A quantized value has the names of its parts. Activations are rounded by ``QuantizeLinear``, whose quotients are
float32: near the middle of two integers it may round to the other one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.dtypes import DType, QuantizedDType, float32, float64
from backburn.base.errors import Unsupported
from backburn.onnx.exporter.mappings import NUMBERS, mapping
from backburn.onnx.exporter.recorder import Recorder, Value
from backburn.ops.bodies.quantized import block_lengths, broadcast_steps, extremes, steps_for


def stored_type(dtype: Any) -> int:
    """The data type of the stored values; opset 23 has no 2-bit type."""
    return NUMBERS["int4" if dtype.bits < 8 else dtype.storage.name]


def unpacked(array: NDArray[Any], dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """The stored values of a quantized tensor, one in each element."""
    if not dtype.is_packed:
        return array
    each = 8 // dtype.bits
    shifts = np.arange(each, dtype=np.uint8) * dtype.bits
    flat = (array[..., None] >> shifts & (2**dtype.bits - 1)).reshape(*array.shape[:-1], -1)
    values = flat[..., : (shape or (1,))[-1]].astype(np.int8).reshape(shape)
    sign = 1 << (dtype.bits - 1)
    return (values ^ sign) - sign


def _places(dtype: QuantizedDType, shape: tuple[int, ...]) -> dict[str, Any]:
    """The attributes that define which values share a step."""
    if dtype.axis is not None:
        return {"axis": dtype.axis}
    if not dtype.block_shape:
        return {}
    if len(dtype.block_shape) > 1:
        raise Unsupported(f"export: {dtype} has blocks of {len(dtype.block_shape)} axes, and ONNX has blocks of one")
    return {"axis": len(shape) - 1, "block_size": block_lengths(dtype, shape)[0]}


@mapping("dequantize")
def _dequantize(w: Recorder, x: Value, /, dtype: DType) -> Any:
    values, scale, zero = x.parts
    scheme: Any = x.dtype
    if scheme.scale is not float32:
        scale = w.node("Cast", scale, to=NUMBERS["float32"])
    found = w.node("DequantizeLinear", values, scale, zero, **_places(scheme, x.shape))
    return found if dtype is float32 else w.node("Cast", found, to=NUMBERS[dtype.name])


@mapping("quantize")
def _quantize(w: Recorder, x: Value, /, dtype: QuantizedDType) -> Any:
    low, high = extremes(w, x, dtype)
    return _rounded(w, x, low, high, dtype)


@mapping("quantize_between")
def _quantize_between(w: Recorder, x: Value, low: Value, high: Value, /, dtype: QuantizedDType) -> Any:
    ends = w.minimum(w.astype(low, float64), 0.0), w.maximum(w.astype(high, float64), 0.0)
    return _rounded(w, x, *ends, dtype)


def _rounded(w: Recorder, x: Value, low: Value, high: Value, dtype: QuantizedDType) -> Value:
    """A value quantized with steps for a range, with its parts."""
    scale, zero = steps_for(w, low, high, dtype)
    scale = w.astype(scale, float32)
    if not dtype.has_zero:  # the least integer is not used
        least = broadcast_steps(w, w.mul(scale, float(dtype.limits[0])), x.shape, dtype)
        x = w.maximum(w.astype(x, float32), least)
    number = stored_type(dtype)
    values = w.node("QuantizeLinear", w.astype(x, float32), scale, zero, output_dtype=number, **_places(dtype, x.shape))
    return Value(values, x.primitive, dtype, True, (values, scale, zero))


@mapping("quantized_linear")
def _quantized_linear(w: Recorder, x: Value, weight: Value, bias: Any, /) -> Any:
    wide = float64 if x.dtype is float64 else float32
    added = None if bias is None else w.astype(bias, wide)
    return w.astype(w.linear(w.astype(x, wide), w.dequantize(weight, wide), added), x.dtype)


@mapping("quantized_matmul")
def _quantized_matmul(w: Recorder, x: Value, y: Value, /, dtype: DType, transposed: bool) -> Any:
    rows, columns = w.dequantize(x, dtype), w.dequantize(y, dtype)
    return w.linear(rows, columns) if transposed else w.matmul(rows, columns)
