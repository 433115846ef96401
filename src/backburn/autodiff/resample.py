"""Gradient rules: resizing, sampling at arbitrary positions. The bodies of the other operations are recorded."""

from __future__ import annotations

from typing import Any

from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import linear, through_body

Shape = tuple[int, ...]

gradient(
    "interpolate",
    x=lambda k, g, x_shape, mode, align_corners: k.interpolate_backward(g, x_shape[2:], mode, align_corners),
)
gradient(
    "interpolate_backward",
    grad=lambda k, g, grad_shape, mode, align_corners: k.interpolate(g, grad_shape[2:], mode, align_corners),
)
linear("interpolate", "interpolate_backward")


def of_positions(k: Any, g: Any, x: Any, positions: Any, mode: str, padding: str, slopes: Shape) -> Any:
    """How much all channels together change along each axis; twice along one they do not."""
    shape = positions.shape
    if mode == "nearest":
        return k.zeros(shape, k.dtype(positions))
    still = k.zeros((shape[0], shape[2]), k.dtype(positions))
    along = [
        still
        if axis in slopes
        else k.sum(k.mul(g, k.sample(x, positions, mode, padding, (*slopes, axis))), (1,), False)
        for axis in range(shape[1])
    ]
    return k.stack(along, 1)


gradient(
    "sample",
    x=lambda k, g, x_shape, positions, mode, padding, slopes: k.sample_backward(
        g, positions, x_shape[2:], mode, padding, slopes
    ),
    positions=of_positions,
)
gradient(
    "sample_backward",
    grad=lambda k, g, positions, mode, padding, slopes: k.sample(g, positions, mode, padding, slopes),
    positions=lambda k, g, grad, positions, mode, padding, slopes: of_positions(
        k, grad, g, positions, mode, padding, slopes
    ),
)
through_body("sample", "sample_backward")
