"""CuPy: selection by conditions and masks."""

from __future__ import annotations

from typing import Any

import cupy

from backburn_cupy.creation import NUMBERS, check_scalar

Array = Any

# CuPy's own converts bfloat16 to float32.
_where = cupy.ElementwiseKernel("bool condition, T x, T y", "T z", "z = condition ? x : y;", "backburn_where")


def where(k: Any, condition: Array, x: Array, y: Array, /) -> Array:
    if x.__class__ in NUMBERS:
        return _where(condition, check_scalar(x, y.dtype), y)
    return _where(condition, x, check_scalar(y, x.dtype) if y.__class__ in NUMBERS else y)


def masked_select(k: Any, x: Array, mask: Array, /) -> Array:
    if x.shape != mask.shape:
        x, mask = cupy.broadcast_arrays(x, mask)
    return x[mask]
