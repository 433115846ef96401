"""Batching rules: quantization; each example has its own steps, like a channel."""

from __future__ import annotations

import math
from typing import Any

from backburn.base.dtypes import QuantizedDType
from backburn.batching.rules import batching, front, moved
from backburn.ops.bodies.quantized import scale_shape


def fake_quantize(level: Any, x: Any, *, dtype: QuantizedDType) -> Any:
    """Each example, or each channel of each example, becomes a channel."""
    lines, scheme, restored = as_channels(level, x, dtype)
    return restored(level.inner_backend.fake_quantize(lines, scheme))


def fake_quantize_between(level: Any, x: Any, low: Any, high: Any, *, dtype: QuantizedDType) -> Any:
    """The ends of the range have the shape of the steps."""
    k = level.inner_backend
    lines, scheme, restored = as_channels(level, x, dtype)
    ends = (front(level, end) for end in (low, high))
    if not dtype.block_shape:
        ends = (k.reshape(end, (math.prod(end.shape),)) for end in ends)
    return restored(k.fake_quantize_between(lines, *ends, scheme))


def as_channels(level: Any, x: Any, dtype: QuantizedDType) -> tuple[Any, QuantizedDType, Any]:
    """All examples, with the values that share a step in one channel; the scheme; and the inverse of the rearrangement.

    Blocks lie along the last axes, and need no change.
    """
    scale_shape(x.shape, dtype)  # a block fits an example, not several
    k, value = level.inner_backend, front(level, x)
    if dtype.block_shape:
        return value, dtype, lambda y: y
    scheme = QuantizedDType(dtype.storage, dtype.scale, dtype.mode, "channel", axis=0)
    axis = dtype.axis
    if axis is None:
        return value, scheme, lambda y: y
    apart = moved(k, value, axis + 1, 1)
    channels, *rest = apart.shape[1:]
    lines = k.reshape(apart, (level.size * channels, *rest))
    return lines, scheme, lambda y: moved(k, k.reshape(y, apart.shape), 1, axis + 1)


batching("fake_quantize", fake_quantize)
batching("fake_quantize_between", fake_quantize_between)
