"""NumPy: the quantized kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.dtypes import DType, QuantizedDType, float32, qint8
from backburn.base.errors import NumericalInstabilityError

Array = Any


@dataclass(frozen=True, eq=False, slots=True)
class QuantizedArray:
    """Integers, and the step that one of them stands for."""

    values: NDArray[np.int8]
    scale: NDArray[np.float32]
    dtype: QuantizedDType

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values."""
        return self.values.shape


def quantize(x: Array, /, dtype: QuantizedDType = qint8) -> QuantizedArray:
    limit = 2 ** (dtype.storage.bits - 1) - 1
    largest = np.max(np.abs(x), initial=0.0)
    if not np.isfinite(largest):
        raise NumericalInstabilityError("quantize: NaN and infinite values have no place on the scale")
    # The stored scale divides, so that its own rounding is part of the scheme and not of the error; a scale that
    # underflows (all zeros, or denormals) becomes one step of zero error for zeros.
    scale = np.asarray(largest, np.float64) / limit
    stored = np.asarray(scale, dtype.scale.dtype)
    if stored == 0:
        stored = np.asarray(np.finfo(dtype.scale.dtype).tiny if largest else 1.0, dtype.scale.dtype)
    steps = np.rint(x.astype(np.float64) / stored.astype(np.float64))
    return QuantizedArray(np.clip(steps, -limit, limit).astype(dtype.storage.dtype), stored, dtype)


def dequantize(x: QuantizedArray, /, dtype: DType = float32) -> Array:
    return np.multiply(x.values, x.scale, dtype=np.float64).astype(dtype.dtype)
