"""Gradient rules: convolutions, which are each other's gradients.

Where windows leave a remainder at the end of an axis, the transposed convolution is told by ``output_padding``.
"""

from __future__ import annotations

from typing import Any

from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import linear, tangent
from backburn.backend.conv import Pairs, reach_of

Shape = tuple[int, ...]


def remainder(places: Shape, size: Shape, stride: Shape, padding: Pairs, dilation: Shape) -> Shape:
    """How many padded places at the end of each axis no window reaches."""
    return tuple(
        (n + before + after - reach_of(width, spacing)) % step
        for n, width, step, (before, after), spacing in zip(places, size, stride, padding, dilation, strict=True)
    )


def of_bias(k: Any, g: Any) -> Any:
    """The sum over examples and places."""
    return k.sum(g, (0, *range(2, len(g.shape))), False)


def conv_x(
    k: Any, g: Any, x_shape: Shape, weight: Any, stride: Shape, padding: Pairs, dilation: Shape, groups: int
) -> Any:
    """Each window's gradient, laid where the window was."""
    if 0 in x_shape[2:]:  # windows of the padding alone
        return k.zeros(x_shape, k.dtype(g))
    rest = remainder(x_shape[2:], weight.shape[2:], stride, padding, dilation)
    return k.conv_transpose(g, weight, None, stride, padding, rest, dilation, groups)


gradient(
    "conv",
    x=conv_x,
    weight=lambda k, g, x, weight_shape, stride, padding, dilation, groups: k.conv_weight_backward(
        x, g, weight_shape[2:], stride, padding, dilation, groups
    ),
    bias=of_bias,
)
gradient(
    "conv_transpose",
    x=lambda k, g, weight, stride, padding, dilation, groups: k.conv(
        g, weight, None, stride, padding, dilation, groups
    ),
    weight=lambda k, g, x, weight_shape, stride, padding, dilation, groups: k.conv_weight_backward(
        g, x, weight_shape[2:], stride, padding, dilation, groups
    ),
    bias=of_bias,
)
gradient(
    "conv_weight_backward",
    x=lambda k, g, x_shape, grad, stride, padding, dilation, groups: conv_x(
        k, grad, x_shape, g, stride, padding, dilation, groups
    ),
    grad=lambda k, g, x, stride, padding, dilation, groups: k.conv(x, g, None, stride, padding, dilation, groups),
)

linear("conv", "conv_transpose", groups=("x", "weight"))
linear("conv_weight_backward", groups=("x", "grad"))
for _name in ("conv", "conv_transpose"):
    tangent(_name, bias=lambda k, t, x: k.reshape(t, (*t.shape, *[1] * (len(x.shape) - 2))))
