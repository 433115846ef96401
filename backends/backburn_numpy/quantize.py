"""NumPy: the quantized kind."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.backend.quantized import Quantized
from backburn.base.dtypes import DType, QuantizedDType, float32, qint8
from backburn.base.errors import NumericalInstabilityError

Array = Any


class QuantizedArray(Quantized[NDArray[Any]]):
    """Integers, and the step that one of them stands for, as arrays."""

    @property
    def nbytes(self) -> int:
        """The bytes of values and scale together."""
        return self.values.nbytes + self.scale.nbytes

    def over(self, values: NDArray[np.int8]) -> QuantizedArray:
        """Other values with the same step."""
        return QuantizedArray(values, self.scale, self.dtype)

    def reshape(self, shape: tuple[int, ...]) -> QuantizedArray:
        """The same values in row-major order under another shape."""
        return self.over(self.values.reshape(shape))

    def transpose(self, axes: tuple[int, ...]) -> QuantizedArray:
        """The same values with their axes in another order."""
        return self.over(self.values.transpose(axes))


#: Elements that are rounded at a time, in float64, so that no temporary is as large as the tensor.
BLOCK = 1 << 14


def quantize(x: Array, /, dtype: QuantizedDType = qint8) -> QuantizedArray:
    limit = 2 ** (dtype.storage.bits - 1) - 1
    scale = _scale(max(float(np.max(x, initial=0)), -float(np.min(x, initial=0))), limit, dtype)
    source, values = x.reshape(-1), np.empty(x.size, dtype.storage.dtype)
    for start in range(0, x.size, BLOCK):
        steps = source[start : start + BLOCK].astype(np.float64)
        np.divide(steps, scale, out=steps)
        np.rint(steps, out=steps)
        values[start : start + BLOCK] = np.clip(steps, -limit, limit, out=steps)
    return QuantizedArray(values.reshape(x.shape), scale, dtype)


def _scale(largest: float, limit: int, dtype: QuantizedDType) -> Array:
    """The step for magnitudes up to ``largest``, such that none is more than half a step from a multiple.

    Elements are divided by the scale as it is stored, so that its rounding is part of the scheme and not of the error.
    A denormal scale can be rounded down so far that ``limit`` steps fall short: the next larger one is taken then.
    """
    if not largest <= limit * float(np.finfo(dtype.scale.dtype).max):
        raise NumericalInstabilityError(
            f"quantize: magnitudes up to {largest} have no place on a {dtype.scale} scale of {limit} steps; "
            "values must be finite"
        )
    scale = np.asarray(largest / limit if largest else 1.0, dtype.scale.dtype)
    if largest > (limit + 0.5) * float(scale):
        scale = np.nextafter(scale, np.asarray(np.inf, scale.dtype), out=...)
    return scale


def dequantize(x: Quantized[Any], /, dtype: DType = float32) -> Array:
    wide = np.float32 if dtype is float32 else np.float64
    return np.multiply(x.values, x.scale, dtype=wide, out=...).astype(dtype.dtype, copy=False)
