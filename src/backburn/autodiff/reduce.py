"""Gradient rules: reductions and scans."""

from __future__ import annotations

from typing import Any

from backburn.autodiff.rules import gradient


def kept(shape: tuple[int, ...], axis: tuple[int, ...]) -> tuple[int, ...]:
    """``shape`` with the reduced axes kept at length 1."""
    return tuple(1 if i in axis else n for i, n in enumerate(shape))


def spread(k: Any, g: Any, x_shape: tuple[int, ...], axis: tuple[int, ...]) -> Any:
    """The gradient of a reduction, repeated over what was reduced."""
    return k.broadcast_to(k.reshape(g, kept(x_shape, axis)), x_shape)


gradient("sum", x=spread)
