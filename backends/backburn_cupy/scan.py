"""CuPy: cumulative sums and products: of float32 in float64, of 16-bit floats in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from backburn_cupy.creation import cast
from backburn_cupy.reduce import upcast_half

Array = Any


def _cumulative(function: Callable[..., Array]) -> Callable[..., Array]:
    def operation(k: Any, x: Array, /, axis: int, reverse: bool = False) -> Array:
        if not x.size:
            return x
        wide = upcast_half(x)
        dtype = np.dtype(np.float64) if x.dtype == np.float32 else wide.dtype
        result = function(cupy.flip(wide, axis) if reverse else wide, axis, dtype)
        return cast(cupy.flip(result, axis) if reverse else result, x.dtype)

    return operation


cumulative_sum, cumulative_prod = _cumulative(cupy.cumsum), _cumulative(cupy.cumprod)
