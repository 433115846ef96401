"""Gradient rules: operations on the shape.

Moving elements back is the gradient of moving them. ``tile``, ``repeat`` and ``diagonal`` have no rules: their bodies
are recorded.
"""

from __future__ import annotations

from typing import Any

from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import linear, tangent
from backburn.backend.shape import padding
from backburn.backend.views import part

Shape = tuple[int, ...]


def inverse(axes: Shape) -> Shape:
    """The order that undoes the order ``axes``."""
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


def pieces(k: Any, g: Any, axis: int, lengths: list[int]) -> list[Any]:
    """``g`` cut along ``axis``."""
    result, start = [], 0
    for n in lengths:
        result.append(part(k, g, axis, start, start + n))
        start += n
    return result


def unstacked(k: Any, g: Any, tensors_shape: list[Shape], axis: int) -> list[Any]:
    """``g`` cut along ``axis``, which is dropped."""
    return [k.reshape(x, s) for x, s in zip(pieces(k, g, axis, [1] * g.shape[axis]), tensors_shape, strict=True)]


def unpadded(k: Any, g: Any, x_shape: Shape, widths: tuple[tuple[int, int], ...], mode: str) -> Any:
    """The gradient of ``pad``: what was padded with elements of ``x`` is added to these."""
    if mode == "constant":
        return k.slice(g, tuple(slice(b, b + n, 1) for n, (b, _) in zip(x_shape, widths, strict=True)))
    for axis, (n, (before, after)) in reversed(tuple(enumerate(zip(x_shape, widths, strict=True)))):
        if before or after:
            g = k.take_backward(g, padding(k, n, before, after, mode), n, axis)
    return g


gradient("reshape", x=lambda k, g, x_shape: k.reshape(g, x_shape))
gradient("broadcast_to", x=lambda g: g)  # the engine sums over what was broadcast
gradient("permute_dims", x=lambda k, g, axes: k.permute_dims(g, inverse(axes)))
gradient("concat", tensors=lambda k, g, tensors_shape, axis: pieces(k, g, axis, [s[axis] for s in tensors_shape]))
gradient("stack", tensors=unstacked)
gradient("flip", x=lambda k, g, axis: k.flip(g, axis))
gradient("roll", x=lambda k, g, shift, axis: k.roll(g, tuple(-s for s in shift), axis))
gradient("pad", x=unpadded)
gradient(
    "sliding_window",
    x=lambda k, g, x_shape, stride, axis, dilation: k.overlap_add(
        g, tuple(x_shape[a] for a in axis), stride, axis, dilation
    ),
)
gradient(
    "overlap_add",
    x=lambda k, g, x_shape, stride, axis, dilation: k.sliding_window(
        g, x_shape[len(x_shape) - len(axis) :], stride, axis, dilation
    ),
)

linear("reshape", "broadcast_to", "permute_dims", "concat", "stack", "flip", "roll", "sliding_window", "overlap_add")
tangent("pad", x=lambda k, t, widths, mode: k.pad(t, widths, mode, 0.0))
