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

from backburn.base.errors import AxisError, ShapeError

Shape = tuple[int, ...]


def broadcast(*shapes: Shape | None, trailing: int = 0, **_: Any) -> Shape:
    """NumPy's broadcasting; the error names the axis and the two lengths.

    ``trailing`` axes, which were cut off the shapes, count for the axis in the error.
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
