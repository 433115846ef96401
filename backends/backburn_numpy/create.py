"""NumPy: making arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn.base.dtypes import DType
from backburn_numpy.quantize import QuantizedArray, dequantize

Array = Any


def from_numpy(array: Any) -> Array:
    return np.array(array, copy=True, order="C")


def to_numpy(x: Array, /) -> Array:
    return dequantize(x) if x.__class__ is QuantizedArray else x.copy()


def full(shape: tuple[int, ...], value: float, dtype: DType) -> Array:
    return np.full(shape, value, dtype.dtype)


def ones(shape: tuple[int, ...], dtype: DType) -> Array:
    return np.ones(shape, dtype.dtype)
