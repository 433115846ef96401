"""Shape rules of the operations that move elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backburn.backend.shapes import Shape, check_axes, check_axis
from backburn.base.errors import ArgumentError, AxisError, ShapeError

Axes = tuple[int, ...]
Widths = tuple[tuple[int, int], ...]


def permuted(x: Shape, *, axes: Axes, **_: Any) -> Shape:
    """The shape with its axes in the order ``axes``."""
    if sorted(axes) != list(range(len(x))):
        raise AxisError(f"{list(axes)} is not an order of the {len(x)} axes from 0 to {len(x) - 1}")
    return tuple(x[a] for a in axes)


def joined(tensors: Sequence[Shape], *, axis: int, **_: Any) -> Shape:
    """The shape of tensors laid one after the other along ``axis``."""
    if not tensors:
        raise ShapeError("there is no tensor to join")
    first = tensors[0]
    axis = check_axis(axis, len(first))
    for shape in tensors[1:]:
        if len(shape) != len(first):
            raise ShapeError(f"the tensors have {len(first)} and {len(shape)} dimensions")
        for other, (n, m) in enumerate(zip(first, shape, strict=True)):
            if n != m and other != axis:
                raise ShapeError(f"the tensors differ in axis {other}, along which they are not joined: {n} and {m}")
    return (*first[:axis], sum(s[axis] for s in tensors), *first[axis + 1 :])


def stacked(tensors: Sequence[Shape], *, axis: int, **_: Any) -> Shape:
    """The shape of tensors of one shape under a new axis."""
    if not tensors:
        raise ShapeError("there is no tensor to stack")
    first = tensors[0]
    for shape in tensors[1:]:
        if shape != first:
            raise ShapeError(f"the tensors have the shapes {list(first)} and {list(shape)}")
    axis = check_axis(axis, len(first) + 1)
    return (*first[:axis], len(tensors), *first[axis:])


def flipped(x: Shape, *, axis: Axes, **_: Any) -> Shape:
    """The same shape, with ``axis`` checked."""
    check_axes(axis, len(x))
    return x


def rolled(x: Shape, *, shift: Axes, axis: Axes, **_: Any) -> Shape:
    """The same shape, with ``axis`` checked."""
    if len(shift) != len(axis):
        raise ArgumentError(f"there are {len(shift)} shifts for {len(axis)} axes")
    check_axes(axis, len(x))
    return x


def tiled(x: Shape, *, repeats: Axes, **_: Any) -> Shape:
    """Each length times its repeats."""
    if len(repeats) != len(x) or any(r < 0 for r in repeats):
        raise ArgumentError(f"one number of repeats, 0 or more, for each of {len(x)} axes: {list(repeats)}")
    return tuple(n * r for n, r in zip(x, repeats, strict=True))


def repeated(x: Shape, *, repeats: int, axis: int, **_: Any) -> Shape:
    """The length of ``axis`` times ``repeats``."""
    axis = check_axis(axis, len(x))
    if repeats < 0:
        raise ArgumentError(f"repeats must be 0 or more, not {repeats}")
    return (*x[:axis], x[axis] * repeats, *x[axis + 1 :])


def padded(x: Shape, *, widths: Widths, mode: str = "constant", **_: Any) -> Shape:
    """The shape with ``widths`` before and after each axis."""
    if len(widths) != len(x) or any(w < 0 for pair in widths for w in pair):
        raise ArgumentError(f"one pair of widths, 0 or more, for each of {len(x)} axes: {list(widths)}")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise ArgumentError(f"the mode is 'constant', 'reflect', 'edge' or 'wrap', not {mode!r}")
    for axis, (n, pair) in enumerate(zip(x, widths, strict=True)):
        if n == 0 and mode != "constant" and any(pair):
            raise ShapeError(f"axis {axis} has no element to pad with in mode {mode!r}")
    return tuple(before + n + after for n, (before, after) in zip(x, widths, strict=True))


def windows(x: Shape, *, size: Axes, stride: Axes, axis: Axes, dilation: Axes, **_: Any) -> Shape:
    """How many windows there are along each of ``axis``, and, as new last axes, the window."""
    check_axes(axis, len(x))
    if not len(size) == len(stride) == len(dilation) == len(axis):
        raise ArgumentError(f"one size, stride and dilation for each of the axes {list(axis)}")
    result = list(x)
    for a, width, step, spacing in zip(axis, size, stride, dilation, strict=True):
        if min(width, step, spacing) < 1:
            raise ArgumentError(f"size, stride and dilation are 1 or more, not {width}, {step} and {spacing}")
        reach = spacing * (width - 1) + 1
        if reach > x[a]:
            raise ShapeError(f"a window that reaches over {reach} elements does not fit into axis {a} of {x[a]}")
        result[a] = (x[a] - reach) // step + 1
    return (*result, *size)


def overlapped(x: Shape, *, length: Axes, stride: Axes, axis: Axes, dilation: Axes, **_: Any) -> Shape:
    """The shape from which :func:`windows` makes that of ``x``, with ``length`` along ``axis``."""
    rank = len(x) - len(axis)
    result = list(x[:rank])
    for a, n in zip(axis, length, strict=True):
        result[a] = n
    size = x[rank:]
    if rank < 0 or windows(tuple(result), size=size, stride=stride, axis=axis, dilation=dilation) != x:
        raise ShapeError(f"{list(x)} is not the shape of the windows of {list(result)} along the axes {list(axis)}")
    return tuple(result)


def diagonal(x: Shape, *, offset: int, axis1: int, axis2: int, **_: Any) -> Shape:
    """The shape without the two axes, and the length of the diagonal as a new last axis."""
    first, second = check_axis(axis1, len(x)), check_axis(axis2, len(x))
    if first == second:
        raise AxisError(f"a diagonal lies in two different axes, not twice in axis {first}")
    n, m = x[first], x[second]
    rest = tuple(length for a, length in enumerate(x) if a not in (first, second))
    return (*rest, max(0, min(n, m - offset) if offset >= 0 else min(n + offset, m)))
