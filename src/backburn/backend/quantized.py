"""The quantized kind in its plainest form: an int primitive, and the step that one of its integers stands for.

A backend may have a quantized primitive of its own; one that has not takes :class:`Quantized`, for which the default
bodies of ``quantize`` and ``dequantize`` are written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from backburn.base.dtypes import DType, QuantizedDType, float32, float64
from backburn.base.errors import NumericalInstabilityError

P = TypeVar("P")


@dataclass(frozen=True, eq=False)
class Quantized(Generic[P]):
    """Integers, the step that one of them stands for (0-d), and the scheme by which they were made."""

    values: P
    scale: P
    dtype: QuantizedDType

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values."""
        shape: tuple[int, ...] = self.values.shape  # type: ignore[attr-defined]
        return shape


def move(operation: Callable[[Any], Any], x: Any) -> Any:
    """``operation``, which moves elements and changes none, on a primitive or on the integers of a quantized one."""
    return replace(x, values=operation(x.values)) if isinstance(x, Quantized) else operation(x)


def quantize(k: Any, x: Any, dtype: QuantizedDType) -> Quantized[Any]:
    """``x`` over the operations of ``k``; the host reads the largest magnitude, to refuse what has no place.

    Elements are divided by the scale as it is stored, so that its rounding is part of the scheme and not of the error.
    """
    limit = 2 ** (dtype.storage.bits - 1) - 1
    largest = float(k.to_numpy(k.max_abs(x, tuple(range(len(x.shape)))))) if math.prod(x.shape) else 0.0
    scale = k.cast(k.full((), largest / limit if largest else 1.0, float64), dtype.scale)
    step = float(k.to_numpy(scale))
    if not math.isfinite(step):
        raise NumericalInstabilityError(
            f"quantize: magnitudes up to {largest} have no place on a {dtype.scale} scale of {limit} steps; "
            "values must be finite"
        )
    if largest > (limit + 0.5) * step:  # a denormal scale was rounded down so far that its steps fall short
        scale = k.nextafter(scale, math.inf)
    steps = k.round(k.div(k.cast(x, float64), k.cast(scale, float64)))
    return Quantized(k.cast(k.clamp(steps, -float(limit), float(limit)), dtype.storage), scale, dtype)


def dequantize(k: Any, x: Quantized[Any], dtype: DType) -> Any:
    """The integers times the step, rounded once."""
    wide = float32 if dtype is float32 else float64
    return k.cast(k.mul(k.cast(x.values, wide), k.cast(x.scale, wide)), dtype)
