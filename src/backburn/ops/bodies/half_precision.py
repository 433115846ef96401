"""Computations on 16-bit floats in float32, and on float32 in float64 where many roundings would add up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backburn.base.dtypes import float32, float64
from backburn.ops.bodies.scalars import is_scalar


def upcast_half(k: Any, x: Any) -> Any:
    """``x`` itself, or a 16-bit float in float32."""
    dtype = k.dtype(x)
    return k.astype(x, float32) if dtype.is_floating and dtype.bits < 32 else x


def in_float32(k: Any, slope: Callable[..., Any], g: Any, *operands: Any) -> Any:
    """``slope(k, g, *operands)``; for 16-bit floats in float32, where no intermediate overflows or underflows."""
    dtype = k.dtype(g)
    if dtype.bits >= 32:
        return slope(k, g, *operands)
    return k.astype(slope(k, *(x if is_scalar(x) else upcast_half(k, x) for x in (g, *operands))), dtype)


def in_float64(k: Any, slope: Callable[..., Any], g: Any, *operands: Any) -> Any:
    """``slope(k, g, *operands)``, of float32 in float64; of other dtypes, or without float64, as :func:`in_float32`."""
    dtype = k.dtype(g)
    if dtype is not float32 or not k.capabilities.supports(float64):
        return in_float32(k, slope, g, *operands)
    return k.astype(slope(k, *(x if is_scalar(x) else k.astype(x, float64) for x in (g, *operands))), dtype)
