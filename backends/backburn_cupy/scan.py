"""CuPy: cumulative sums and products: of 32-bit parts in 64 bits, of 16-bit floats in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from backburn_cupy.creation import cast
from backburn_cupy.reduce import upcast_half

Array = Any

#: The wider dtypes that sums and products are kept in.
_WIDE = {"f": np.float64, "F": np.complex128}


def _cumulative(function: Callable[..., Array]) -> Callable[..., Array]:
    def operation(k: Any, x: Array, /, axis: int, reverse: bool = False) -> Array:
        if not x.size:
            return x
        wide = upcast_half(x)
        dtype = np.dtype(_WIDE.get(x.dtype.char, wide.dtype))
        result = function(cupy.flip(wide, axis) if reverse else wide, axis, dtype)
        return cast(cupy.flip(result, axis) if reverse else result, x.dtype)

    return operation


cumulative_sum, cumulative_prod = _cumulative(cupy.cumsum), _cumulative(cupy.cumprod)
