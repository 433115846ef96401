"""NumPy: making arrays, and changing their dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn.backend.create import arange_length
from backburn.base.dtypes import DType, as_dtype
from backburn_numpy.quantize import QuantizedArray, dequantize

Array = Any
Shape = tuple[int, ...]


def from_numpy(array: Any) -> Array:
    host = as_dtype(array.dtype).dtype  # refuses what has no dtype here, and is in the machine's byte order
    return np.array(array, dtype=host, copy=True, order="C")


def to_numpy(x: Array, /) -> Array:
    return dequantize(x) if x.__class__ is QuantizedArray else x.copy()


def cast(x: Array, /, dtype: DType) -> Array:
    return x.astype(dtype.dtype, copy=False)


def full(shape: Shape, value: float, dtype: DType) -> Array:
    return np.full(shape, value, dtype.dtype)


def zeros(shape: Shape, dtype: DType) -> Array:
    return np.zeros(shape, dtype.dtype)


def ones(shape: Shape, dtype: DType) -> Array:
    return np.ones(shape, dtype.dtype)


def empty(shape: Shape, dtype: DType) -> Array:
    return np.empty(shape, dtype.dtype)


def arange(start: float, stop: float, step: float, dtype: DType) -> Array:
    if dtype.kind == "int":
        return np.arange(*(int(n) for n in (start, stop, step)), dtype=dtype.dtype)
    places = np.arange(arange_length(start, stop, step), dtype=np.float64)
    return (places * step + start).astype(dtype.dtype, copy=False)


def eye(n: int, m: int, offset: int, dtype: DType) -> Array:
    return np.eye(n, m, offset, dtype.dtype)


def linspace(start: float, stop: float, num: int, endpoint: bool, dtype: DType) -> Array:
    return np.linspace(start, stop, num, endpoint, dtype=dtype.dtype)
