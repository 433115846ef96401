"""NumPy: array creation and dtype conversion."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn.base.dtypes import DType, as_dtype, bfloat16, nearest
from backburn.ops.bodies.quantized import Quantized
from backburn.ops.creation import arange_length
from backburn_numpy import tuning
from backburn_numpy.elementwise.half_precision import convert
from backburn_numpy.implements import implements
from backburn_numpy.ops.quantization import dequantize
from backburn_numpy.runtime import memory
from backburn_numpy.runtime.quiet import quietly

Array = Any
Shape = tuple[int, ...]


@implements("from_numpy")
def from_numpy(array: Any) -> Array:
    host = as_dtype(array.dtype).dtype  # raises for unknown dtypes; in native byte order
    if array.nbytes < tuning.MIN_POOLED_BYTES:
        return np.array(array, dtype=host, copy=True, order="C")
    result = memory.empty(array.shape, host)
    np.copyto(result, array, casting="equiv")
    return result


@implements("to_numpy")
def to_numpy(x: Array, /) -> Array:
    return dequantize(x) if isinstance(x, Quantized) else x.copy()


@implements("astype")
def astype(x: Array, /, dtype: DType) -> Array:
    host = dtype.dtype
    if dtype is bfloat16 and (x.itemsize > 4 or x.dtype.kind in "iu"):
        return nearest(x, host)
    if (x.itemsize == 2 or host.itemsize == 2) and x.flags.c_contiguous:
        return convert(x, host)
    if x.nbytes < tuning.MIN_POOLED_BYTES or x.dtype == host or not x.flags.c_contiguous:
        return x.astype(host, copy=False)
    result = memory.empty(x.shape, host)
    np.copyto(result, x, casting="unsafe")
    return result


@implements("full")
def full(shape: Shape, value: float, dtype: DType) -> Array:
    result = memory.empty(shape, dtype.dtype)
    result.fill(nearest(np.asarray(value), dtype.dtype) if dtype is bfloat16 else value)
    return result


@implements("empty")
def empty(shape: Shape, dtype: DType) -> Array:
    return memory.empty(shape, dtype.dtype)


@implements("arange")
def arange(start: float, stop: float, step: float, dtype: DType) -> Array:
    if dtype.kind == "int":
        return np.arange(int(start), int(stop), int(step), dtype=dtype.dtype)
    places = np.arange(arange_length(start, stop, step), dtype=np.float64)
    return nearest(places * step + start, dtype.dtype)


@implements("eye")
def eye(n: int, m: int, offset: int, dtype: DType) -> Array:
    return np.eye(n, m, offset, dtype.dtype)


@implements("linspace")
@quietly
def linspace(start: float, stop: float, num: int, endpoint: bool, dtype: DType) -> Array:
    with np.errstate(all="ignore"):  # NumPy's own Python code, whose warnings we do not filter
        if dtype is bfloat16:
            return nearest(np.linspace(start, stop, num, endpoint), dtype.dtype)
        return np.linspace(start, stop, num, endpoint, dtype=dtype.dtype)
