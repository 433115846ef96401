"""Gradient rules: pooling. The adaptive forms have none: their bodies are recorded."""

from __future__ import annotations

import math
from typing import Any

from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import linear, tangent

Shape = tuple[int, ...]


def max_pool_gradient(k: Any, g: Any, x_shape: Shape, out: Any) -> Any:
    """Each gradient to the element that was chosen."""
    g, indices = g[0], out[1]
    if g is None:
        return None
    flat = (*g.shape[:2], math.prod(g.shape[2:]))
    lines = (*x_shape[:2], math.prod(x_shape[2:]))
    return k.reshape(k.gather_backward(k.reshape(g, flat), k.reshape(indices, flat), lines, 2), x_shape)


gradient("max_pool", x=max_pool_gradient)
gradient(
    "avg_pool",
    x=lambda k, g, x_shape, size, stride, padding, ceil_mode, count_include_pad: k.avg_pool_backward(
        g, x_shape[2:], size, stride, padding, ceil_mode, count_include_pad
    ),
)
gradient(
    "avg_pool_backward",
    grad=lambda k, g, size, stride, padding, ceil_mode, count_include_pad: k.avg_pool(
        g, size, stride, padding, ceil_mode, count_include_pad
    ),
)


def max_pool_tangent(k: Any, t: Any, out: Any) -> Any:
    """The tangent of each element that was chosen."""
    values, indices = out
    lines = k.reshape(t, (*t.shape[:2], math.prod(t.shape[2:])))
    flat = k.reshape(indices, (*indices.shape[:2], math.prod(indices.shape[2:])))
    return k.reshape(k.gather(lines, flat, 2), values.shape), None


tangent("max_pool", x=max_pool_tangent)
linear("avg_pool", "avg_pool_backward")
