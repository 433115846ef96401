"""Gradient rules: arithmetic."""

from __future__ import annotations

from typing import Any

from backburn.autodiff.rules import gradient, one_pass
from backburn.autodiff.tangents import elementwise
from backburn.backend.scalars import is_scalar


def zero_for_x(k: Any, x_shape: tuple[int, ...], x_dtype: Any) -> Any:
    """The gradient of ``x`` in an operation that does not change with it almost everywhere."""
    return k.zeros(x_shape, x_dtype)


def zero_for_y(k: Any, y_shape: tuple[int, ...], y_dtype: Any) -> Any:
    """The gradient of ``y`` in an operation that does not change with it almost everywhere."""
    return k.zeros(y_shape, y_dtype)


gradient("add", x=lambda g: g, y=lambda g: g)
gradient("sub", x=lambda g: g, y=lambda k, g: k.neg(g))
gradient("mul", x=lambda k, g, y: k.mul(g, y), y=lambda k, g, x: k.mul(g, x))
gradient("div", x=lambda k, g, y: k.div(g, y), y=lambda k, g, out, y: k.neg(k.mul(k.div(g, y), out)))
gradient("floor_divide", x=zero_for_x, y=zero_for_y)
gradient("remainder", x=lambda g: g, y=lambda k, g, x, y: k.neg(k.mul(g, k.floor_divide(x, y))))
gradient("fmod", x=lambda g: g, y=lambda k, g, x, y, out: k.neg(k.mul(g, k.round(k.div(k.sub(x, out), y)))))
gradient("neg", x=lambda k, g: k.neg(g))
gradient("abs", x=lambda k, g, x: k.mul(g, k.sign(x)))
gradient("sign", x=zero_for_x)
gradient("square", x=lambda k, g, x: k.mul(g, k.mul(x, 2.0)))
gradient("reciprocal", x=lambda k, g, out: k.neg(k.mul(g, k.square(out))))


# ---- the larger, the smaller, and between bounds ----


def to_winner(k: Any, g: Any, loses: Any, ties: Any) -> Any:
    """``g`` for the operand that won, half of it where both are equal, 0 for the one that lost."""
    return k.where(loses, 0.0, k.where(ties, k.mul(g, 0.5), g))


gradient(
    "maximum",
    x=lambda k, g, x, y: to_winner(k, g, k.less(x, y), k.equal(x, y)),
    y=lambda k, g, x, y: to_winner(k, g, k.less(y, x), k.equal(x, y)),
)
gradient(
    "minimum",
    x=lambda k, g, x, y: to_winner(k, g, k.less(y, x), k.equal(x, y)),
    y=lambda k, g, x, y: to_winner(k, g, k.less(x, y), k.equal(x, y)),
)


def clamp_x(k: Any, g: Any, x: Any, min: Any, max: Any) -> Any:
    """The gradient of what is clamped: ``g`` from bound to bound, the bounds included."""
    if min is not None:
        g = k.where(k.less(x, min), 0.0, g)
    return g if max is None else k.where(k.less(max, x), 0.0, g)


def clamp_min(k: Any, g: Any, x: Any, min: Any, max: Any) -> Any:
    """The gradient of the lower bound: ``g`` where it was taken and the upper one did not replace it."""
    if max is not None:
        g = k.where(k.less(max, min), 0.0, g)
    return k.where(k.less(x, min), g, 0.0)


def clamp_max(k: Any, g: Any, x: Any, min: Any, max: Any) -> Any:
    """The gradient of the upper bound: ``g`` where it was taken."""
    above = x if min is None else k.maximum(x, min)
    return k.where(k.less(max, above), g, 0.0)


gradient("clamp", x=clamp_x, min=clamp_min, max=clamp_max)

# ---- between two values ----


def lerp_x(k: Any, g: Any, weight: Any) -> Any:
    """The gradient of the start: what the weight leaves."""
    return k.mul(g, 1.0 - weight if is_scalar(weight) else k.sub(1.0, weight))


gradient(
    "lerp",
    x=lerp_x,
    y=lambda k, g, weight: k.mul(g, weight),
    weight=lambda k, g, x, y: k.mul(g, k.sub(y, x)),
)

elementwise("add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "neg", "abs", "sign", "square")
elementwise("reciprocal", "maximum", "minimum", "clamp", "lerp")
one_pass("div", "abs", "reciprocal", "maximum", "minimum", "clamp")
