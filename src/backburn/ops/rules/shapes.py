"""Shape rules: the shape of an operation's result, or the error for operands that do not fit.

A rule is called with the operands' shapes (None for a Python scalar or an absent operand, a list of shapes for a
sequence of tensors) and the attributes. The same rules explain failed calls to users, drive the shape-only backend and
are checked by the conformance suite.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from backburn.base.errors import ArgumentError, AxisError, ShapeError

Shape = tuple[int, ...]
Axes = tuple[int, ...]
Widths = tuple[tuple[int, int], ...]


def broadcast(*shapes: Shape | None, trailing: int = 0, **_: Any) -> Shape:
    """NumPy's broadcasting; the error names the axis and the two lengths.

    ``trailing`` is the number of axes removed from the shapes, for the axis in the error.
    """
    result: list[int] = []
    rank = max((len(s) for s in shapes if s is not None), default=0)
    for axis in range(-rank, 0):
        length = 1
        for shape in shapes:
            if shape is None or len(shape) < -axis or shape[axis] in (1, length):
                continue
            if length != 1:
                raise ShapeError(f"cannot broadcast: axis {axis - trailing} is {length} and {shape[axis]}")
            length = shape[axis]
        result.append(length)
    return tuple(result)


def unchanged(shape: Shape, *_: Any, **__: Any) -> Shape:
    """The first operand's shape."""
    return shape


def check_axis(axis: int, rank: int) -> int:
    """``axis`` as a number from 0 to ``rank - 1``; :class:`AxisError` when there is no such axis."""
    if axis.__class__ is not int:
        try:
            if axis.__class__ is bool:
                raise TypeError
            axis = operator.index(axis)
        except TypeError:
            raise AxisError(f"an axis is an integer, not {axis!r}") from None
    if not -rank <= axis < rank:
        raise AxisError(f"axis {axis} is out of range for {rank} dimension{'s' if rank != 1 else ''}")
    return axis % rank


def check_axes(axes: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """``axes`` as a sorted tuple of distinct numbers; None means all."""
    if axes is None:
        return tuple(range(rank))
    if type(axes) is int:
        return (check_axis(axes, rank),)
    given = axes if isinstance(axes, (tuple, Sequence)) else (axes,)
    result = tuple(sorted([check_axis(a, rank) for a in given]))
    if len(set(result)) != len(result):
        raise AxisError(f"axis {axes} names the same axis twice")
    return result


def reduced(shape: Shape, *_: Any, axis: Sequence[int] | int, keepdims: bool = False, **__: Any) -> Shape:
    """The shape after reducing over ``axis``."""
    axes = check_axes(axis, len(shape))
    if keepdims:
        return tuple(1 if i in axes else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def along_axis(shape: Shape, *_: Any, axis: int, **__: Any) -> Shape:
    """The first operand's shape, with ``axis`` checked."""
    check_axis(axis, len(shape))
    return shape


def matmul(x: Shape, y: Shape, **_: Any) -> Shape:
    """Vector, matrix and batched products."""
    if not x or not y:
        raise ShapeError("a product needs at least one dimension: write x * y for a scalar")
    axis = -2 if len(y) > 1 else 0
    if x[-1] != y[axis]:
        raise ShapeError(f"the inner dimensions differ: axis -1 is {x[-1]} and axis {axis} is {y[axis]}")
    batch = broadcast(x[:-2], y[:-2], trailing=2)
    return batch + (x[-2:-1] if len(x) > 1 else ()) + (y[-1:] if len(y) > 1 else ())


def reshape(x: Shape, *, shape: Shape, **_: Any) -> Shape:
    """``shape``, when it has as many elements."""
    if math.prod(x) != math.prod(shape):
        raise ShapeError(f"{math.prod(x)} elements do not fill the shape {list(shape)} of {math.prod(shape)}")
    return tuple(shape)


def broadcast_to(x: Shape, *, shape: Shape, **_: Any) -> Shape:
    """``shape``, when ``x`` broadcasts to it."""
    if broadcast(x, shape) != tuple(shape):
        raise ShapeError(f"cannot broadcast shape {list(x)} to {list(shape)}")
    return tuple(shape)


# ---- operations that move elements ----


def permuted(x: Shape, *, axes: Axes, **_: Any) -> Shape:
    """The shape with its axes in the order ``axes``."""
    if sorted(axes) != list(range(len(x))):
        raise AxisError(f"{list(axes)} is not an order of the {len(x)} axes from 0 to {len(x) - 1}")
    return tuple(x[a] for a in axes)


def joined(tensors: Sequence[Shape], *, axis: int, **_: Any) -> Shape:
    """The shape of tensors joined along ``axis``."""
    if not tensors:
        raise ShapeError("there is no tensor to join")
    first = tensors[0]
    axis = check_axis(axis, len(first))
    before, after = first[:axis], first[axis + 1 :]
    for shape in tensors[1:]:
        if len(shape) != len(first):
            raise ShapeError(f"the tensors have {len(first)} and {len(shape)} dimensions")
        if shape[:axis] != before or shape[axis + 1 :] != after:
            other = next(i for i, n in enumerate(shape) if n != first[i] and i != axis)
            n, m = first[other], shape[other]
            raise ShapeError(f"the tensors differ in axis {other}, along which they are not joined: {n} and {m}")
    return (*before, sum([s[axis] for s in tensors]), *after)


def stacked(tensors: Sequence[Shape], *, axis: int, **_: Any) -> Shape:
    """The shape of tensors of one shape stacked along a new axis."""
    if not tensors:
        raise ShapeError("there is no tensor to stack")
    first = tensors[0]
    for shape in tensors[1:]:
        if shape != first:
            raise ShapeError(f"the tensors have the shapes {list(first)} and {list(shape)}")
    axis = check_axis(axis, len(first) + 1)
    return (*first[:axis], len(tensors), *first[axis:])


def flipped(x: Shape, *, axis: Axes, **_: Any) -> Shape:
    """The shape itself; ``axis`` is checked."""
    check_axes(axis, len(x))
    return x


def rolled(x: Shape, *, shift: Axes, axis: Axes, **_: Any) -> Shape:
    """The shape itself; ``axis`` is checked."""
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
    """The shape with the number of windows along each of ``axis``, and the window as new last axes."""
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
    """The shape, with ``length`` along ``axis``, from which :func:`windows` gives ``x``."""
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


def sides_of_matrix(x: Shape, **_: Any) -> tuple[int, int]:
    """The rows and the columns of matrices along the last two axes."""
    if len(x) < 2:
        raise ShapeError(f"a matrix has two axes at least, and the shape is {list(x)}")
    return x[-2], x[-1]


def square_matrix(x: Shape, *_: Any, **__: Any) -> Shape:
    """The shape of square matrices, unchanged; raises for others."""
    rows, columns = sides_of_matrix(x)
    if rows != columns:
        raise ShapeError(f"the matrices must be square, and they are {rows} by {columns}")
    return x
