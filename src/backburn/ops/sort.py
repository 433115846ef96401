"""Sorting, the largest and smallest elements, and searching in sorted order.

Sorting is stable in both directions: equal elements keep their order. NaN comes last in both directions.
"""

from __future__ import annotations

import math
from typing import Any, Protocol, overload

from backburn.base.dtypes import int64
from backburn.base.errors import ArgumentError, ShapeError
from backburn.ops.bodies.slicing import slice_axis
from backburn.ops.primitives import Primitives
from backburn.ops.reduce import extremum_and_index, take_extremum
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.rules.shapes import Shape, along_axis, check_axis
from backburn.ops.rules.tangents import tangent
from backburn.ops.table import missing, operation
from backburn.ops.types import B, F, I, Q


def _twice(x: Shape, *, axis: int, **_: Any) -> tuple[Shape, Shape]:
    along_axis(x, axis=axis)
    return x, x


def topk_shape(x: Shape, *, count: int, axis: int, **_: Any) -> tuple[Shape, Shape]:
    """The shapes of ``count`` values along ``axis`` and of their indices."""
    length = x[check_axis(axis, len(x))]
    if not 0 <= count <= length:
        raise ArgumentError(f"axis {axis} has {length} elements: {count} cannot be taken")
    result = (*x[:axis], count, *x[axis + 1 :])
    return result, result


def _nth(x: Shape, *, nth: int, axis: int, keepdims: bool = False) -> tuple[Shape, Shape]:
    length = x[check_axis(axis, len(x))]
    if not 1 <= nth <= length:
        raise ArgumentError(f"axis {axis} has {length} elements, numbered from 1; there is no element {nth}")
    return extremum_and_index(x, axis=axis, keepdims=keepdims)


def _searched(x: Shape, values: Shape, **_: Any) -> Shape:
    if not x:
        raise ShapeError("the sorted tensor must have at least one axis")
    if len(x) > 1 and (len(values) != len(x) or values[:-1] != x[:-1]):
        raise ShapeError(f"{list(values)} and {list(x)} must be alike in every axis but the last")
    return values


def grad_topk(k: Any, g: Any, x_shape: tuple[int, ...], out: Any, axis: int) -> Any:
    """The gradient of ``x``: ``g`` at the indices of the result."""
    return None if g[0] is None else k.take_along_axis_backward(g[0], out[1], x_shape, axis)


class Sort(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Operations that order elements along an axis."""

    @overload
    def argsort(self, x: F, /, axis: int, descending: bool = False) -> I: ...
    @overload
    def argsort(self, x: I, /, axis: int, descending: bool = False) -> I: ...
    @overload
    def argsort(self, x: B, /, axis: int, descending: bool = False) -> I: ...
    @operation(kinds="FIB", shape=along_axis, result="int64", required=True)
    def argsort(self, x: Any, /, axis: int, descending: bool = False) -> Any:
        """The indices that sort ``x`` along ``axis``; equal elements keep their order in both directions."""
        return missing("argsort")

    @overload
    def sort(self, x: F, /, axis: int, descending: bool = False) -> F: ...
    @overload
    def sort(self, x: I, /, axis: int, descending: bool = False) -> I: ...
    @overload
    def sort(self, x: B, /, axis: int, descending: bool = False) -> B: ...
    @operation(kinds="FIB", shape=along_axis, differentiable=True)
    def sort(self: Any, x: Any, /, axis: int, descending: bool = False) -> Any:
        """The sorted elements of ``x`` along ``axis``."""
        return self.take_along_axis(x, self.argsort(x, axis, descending), axis)

    @overload
    def sort_with_indices(self, x: F, /, axis: int, descending: bool = False) -> tuple[F, I]: ...
    @overload
    def sort_with_indices(self, x: I, /, axis: int, descending: bool = False) -> tuple[I, I]: ...
    @overload
    def sort_with_indices(self, x: B, /, axis: int, descending: bool = False) -> tuple[B, I]: ...
    @operation(kinds="FIB", shape=_twice, result=("same", "int64"), differentiable=True)
    def sort_with_indices(self: Any, x: Any, /, axis: int, descending: bool = False) -> Any:
        """The sorted elements of ``x`` along ``axis``, and their indices."""
        indices = self.argsort(x, axis, descending)
        return self.take_along_axis(x, indices, axis), indices

    @overload
    def topk(self, x: F, /, count: int, axis: int, largest: bool = True) -> tuple[F, I]: ...
    @overload
    def topk(self, x: I, /, count: int, axis: int, largest: bool = True) -> tuple[I, I]: ...
    @operation(kinds="FI", shape=topk_shape, result=("same", "int64"), differentiable=True)
    def topk(self: Any, x: Any, /, count: int, axis: int, largest: bool = True) -> Any:
        """The ``count`` largest (or smallest) elements along ``axis``, in order, and their indices.

        Of equal elements, the ones with the lowest indices come first; NaN is taken last. Raises ValueError
        if there are fewer than ``count``.
        """
        topk_shape(x.shape, count=count, axis=axis)
        indices = slice_axis(self, self.argsort(x, axis, largest), axis, 0, count)
        return self.take_along_axis(x, indices, axis), indices

    gradient_rule(topk, x=grad_topk)
    tangent(topk, x=lambda k, t, out, axis: (k.take_along_axis(t, out[1], axis), None))

    @overload
    def kthvalue(self, x: F, /, nth: int, axis: int, keepdims: bool = False) -> tuple[F, I]: ...
    @overload
    def kthvalue(self, x: I, /, nth: int, axis: int, keepdims: bool = False) -> tuple[I, I]: ...
    @operation(kinds="FI", shape=_nth, result=("same", "int64"), differentiable=True)
    def kthvalue(self: Any, x: Any, /, nth: int, axis: int, keepdims: bool = False) -> Any:
        """The ``nth`` smallest element along ``axis``, counted from 1, and its index.

        Raises ValueError if there is no such element.
        """
        _nth(x.shape, nth=nth, axis=axis)
        return take_extremum(self, x, slice_axis(self, self.argsort(x, axis), axis, nth - 1, nth), axis, keepdims)

    @overload
    def searchsorted(self, x: F, values: F, /, right: bool = False) -> I: ...
    @overload
    def searchsorted(self, x: I, values: I, /, right: bool = False) -> I: ...
    @operation(kinds="FI", shape=_searched, result="int64")
    def searchsorted(self: Any, x: Any, values: Any, /, right: bool = False) -> Any:
        """The number of elements of the sorted ``x`` that come before each of ``values``.

        With ``right``, equal elements are counted too. If ``x`` has several axes, each row along the last is searched
        for the corresponding row of ``values``. NaN comes after all numbers.
        """
        shape = _searched(x.shape, values.shape)
        if len(x.shape) == 1:
            values = self.reshape(values, (math.prod(shape),))
        length, last = x.shape[-1], len(x.shape) - 1
        found = self.zeros(values.shape, int64)
        # Bit by bit from the highest: a step is taken when the element that it reaches comes before the value.
        for bit in reversed(range(length.bit_length())):
            ahead = self.add(found, 1 << bit)
            here = self.take_along_axis(x, self.sub(self.minimum(ahead, length), 1), last)
            step = self.logical_and(self.less_equal(ahead, length), _before(self, here, values, right))
            found = self.where(step, ahead, found)
        return self.reshape(found, shape)


def _before(k: Any, x: Any, value: Any, right: bool) -> Any:
    """Whether ``x`` comes before the insertion point of ``value`` in sorted order, in which NaN is last."""
    numbers = k.less_equal(x, value) if right else k.less(x, value)
    if not k.dtype(x).is_floating:
        return numbers
    beyond = k.isnan(value) if right else k.logical_and(k.isnan(value), k.logical_not(k.isnan(x)))
    return k.logical_or(numbers, beyond)
