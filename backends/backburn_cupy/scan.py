"""CuPy: cumulative sums and products. 16-bit floats are computed in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy

from backburn_cupy.create import converted
from backburn_cupy.reduce import widened

Array = Any


def _running(function: Callable[..., Array], x: Array, axis: int, reverse: bool) -> Array:
    if not x.size:
        return x
    wide = widened(x)
    result = function(cupy.flip(wide, axis) if reverse else wide, axis, wide.dtype)
    return converted(cupy.flip(result, axis) if reverse else result, x.dtype)


def cumsum(k: Any, x: Array, /, axis: int, reverse: bool = False) -> Array:
    return _running(cupy.cumsum, x, axis, reverse)


def cumprod(k: Any, x: Array, /, axis: int, reverse: bool = False) -> Array:
    return _running(cupy.cumprod, x, axis, reverse)
