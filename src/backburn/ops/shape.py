"""Operations on the shape, which move elements without changing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, overload

from backburn.base.dtypes import int64
from backburn.ops.bodies.slicing import axis_slices, index_axis, slice_axis
from backburn.ops.primitives import Primitives
from backburn.ops.rules import shapes
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.rules.shapes import Axes, Shape, Widths
from backburn.ops.rules.tangents import linear_in, tangent
from backburn.ops.table import missing, operation
from backburn.ops.types import B, F, I, Q


def inverse_permutation(axes: Shape) -> Shape:
    """The order that undoes the order ``axes``."""
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


def split(k: Any, g: Any, axis: int, lengths: list[int]) -> list[Any]:
    """``g`` split along ``axis`` into parts of these ``lengths``."""
    result, start = [], 0
    for n in lengths:
        result.append(slice_axis(k, g, axis, start, start + n))
        start += n
    return result


def unstack(k: Any, g: Any, axis: int) -> list[Any]:
    """The entries of ``g`` along ``axis``, which they lack."""
    select = k.select
    return [select(g, axis, i) for i in range(g.shape[axis])]


def grad_pad(k: Any, g: Any, x_shape: Shape, widths: tuple[tuple[int, int], ...], mode: str) -> Any:
    """The gradient of ``pad``: gradients of copied elements are added to the elements."""
    if mode == "constant":
        return k.slice(g, tuple(slice(b, b + n, 1) for n, (b, _) in zip(x_shape, widths, strict=True)))
    for axis, (n, (before, after)) in reversed(tuple(enumerate(zip(x_shape, widths, strict=True)))):
        if before or after:
            g = k.take_backward(g, pad_sources(k, n, before, after, mode), n, axis)
    return g


class ShapeOperations(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Operations that move elements without changing them.

    Quantized tensors are reshaped, permuted, broadcast, joined and flipped exactly if values that share a step still do
    so afterwards; otherwise :class:`ShapeError` is raised.
    """

    @overload
    def reshape(self, x: F, /, shape: Shape) -> F: ...
    @overload
    def reshape(self, x: I, /, shape: Shape) -> I: ...
    @overload
    def reshape(self, x: B, /, shape: Shape) -> B: ...
    @overload
    def reshape(self, x: Q, /, shape: Shape) -> Q: ...
    @operation(kinds="FCIBQ", shape=shapes.reshape, required=True, differentiable=True)
    def reshape(self, x: Any, /, shape: Shape) -> Any:
        """The elements in row-major order in another shape, which has no -1."""
        return missing("reshape")

    gradient_rule(reshape, x=lambda k, g, x_shape: k.reshape(g, x_shape))
    linear_in(reshape)

    @overload
    def broadcast_to(self, x: F, /, shape: Shape) -> F: ...
    @overload
    def broadcast_to(self, x: I, /, shape: Shape) -> I: ...
    @overload
    def broadcast_to(self, x: B, /, shape: Shape) -> B: ...
    @overload
    def broadcast_to(self, x: Q, /, shape: Shape) -> Q: ...
    @operation(kinds="FCIBQ", shape=shapes.broadcast_to, required=True, differentiable=True)
    def broadcast_to(self, x: Any, /, shape: Shape) -> Any:
        """``x`` repeated along axes of length 1 and new leading axes to ``shape``."""
        return missing("broadcast_to")

    gradient_rule(broadcast_to, x=lambda g: g)  # the engine sums over what was broadcast
    linear_in(broadcast_to)

    @overload
    def permute_dims(self, x: F, /, axes: Axes) -> F: ...
    @overload
    def permute_dims(self, x: I, /, axes: Axes) -> I: ...
    @overload
    def permute_dims(self, x: B, /, axes: Axes) -> B: ...
    @overload
    def permute_dims(self, x: Q, /, axes: Axes) -> Q: ...
    @operation(kinds="FCIBQ", shape=shapes.permuted, required=True, differentiable=True)
    def permute_dims(self, x: Any, /, axes: Axes) -> Any:
        """``x`` with its axes in the order ``axes``: axis ``i`` of the result is axis ``axes[i]`` of ``x``."""
        return missing("permute_dims")

    gradient_rule(permute_dims, x=lambda k, g, axes: k.permute_dims(g, inverse_permutation(axes)))
    linear_in(permute_dims)

    @overload
    def concat(self, tensors: Sequence[F], /, axis: int) -> F: ...
    @overload
    def concat(self, tensors: Sequence[I], /, axis: int) -> I: ...
    @overload
    def concat(self, tensors: Sequence[B], /, axis: int) -> B: ...
    @overload
    def concat(self, tensors: Sequence[Q], /, axis: int) -> Q: ...
    @operation(kinds="FCIBQ", shape=shapes.joined, required=True, differentiable=True, lists=("tensors",))
    def concat(self, tensors: Sequence[Any], /, axis: int) -> Any:
        """One or more tensors joined along ``axis``; their other axes are equal."""
        return missing("concat")

    gradient_rule(concat, tensors=lambda k, g, tensors_shape, axis: split(k, g, axis, [s[axis] for s in tensors_shape]))
    linear_in(concat)

    @overload
    def stack(self, tensors: Sequence[F], /, axis: int) -> F: ...
    @overload
    def stack(self, tensors: Sequence[I], /, axis: int) -> I: ...
    @overload
    def stack(self, tensors: Sequence[B], /, axis: int) -> B: ...
    @operation(kinds="FCIB", shape=shapes.stacked, differentiable=True, lists=("tensors",))
    def stack(self, tensors: Sequence[Any], /, axis: int) -> Any:
        """One or more tensors of one shape joined along a new axis."""
        shapes.stacked([x.shape for x in tensors], axis=axis)
        shape = tensors[0].shape
        shape = (*shape[:axis], 1, *shape[axis:])
        return self.concat([self.reshape(x, shape) for x in tensors], axis)

    gradient_rule(stack, tensors=unstack)
    linear_in(stack)

    @overload
    def flip(self, x: F, /, axis: Axes) -> F: ...
    @overload
    def flip(self, x: I, /, axis: Axes) -> I: ...
    @overload
    def flip(self, x: B, /, axis: Axes) -> B: ...
    @overload
    def flip(self, x: Q, /, axis: Axes) -> Q: ...
    @operation(kinds="FCIBQ", shape=shapes.flipped, differentiable=True)
    def flip(self: Any, x: Any, /, axis: Axes) -> Any:
        """``x`` with the order of its elements reversed along each of ``axis``."""
        shapes.flipped(x.shape, axis=axis)
        key = [slice(n - 1, None, -1) if a in axis and n else slice(0, n, 1) for a, n in enumerate(x.shape)]
        return self.slice(x, tuple(key))

    gradient_rule(flip, x=lambda k, g, axis: k.flip(g, axis))
    linear_in(flip)

    @overload
    def roll(self, x: F, /, shift: Axes, axis: Axes) -> F: ...
    @overload
    def roll(self, x: I, /, shift: Axes, axis: Axes) -> I: ...
    @overload
    def roll(self, x: B, /, shift: Axes, axis: Axes) -> B: ...
    @overload
    def roll(self, x: Q, /, shift: Axes, axis: Axes) -> Q: ...
    @operation(kinds="FCIBQ", shape=shapes.rolled, differentiable=True)
    def roll(self: Any, x: Any, /, shift: Axes, axis: Axes) -> Any:
        """``x`` with its elements shifted cyclically by ``shift`` positions along ``axis``, one shift for each axis."""
        for by, a in zip(shift, axis, strict=True):
            n = x.shape[a]
            if n and by % n:
                place = n - by % n
                x = self.concat([slice_axis(self, x, a, place, n), slice_axis(self, x, a, 0, place)], a)
        return x

    gradient_rule(roll, x=lambda k, g, shift, axis: k.roll(g, tuple(-s for s in shift), axis))
    linear_in(roll)

    @overload
    def tile(self, x: F, /, repeats: Axes) -> F: ...
    @overload
    def tile(self, x: I, /, repeats: Axes) -> I: ...
    @overload
    def tile(self, x: B, /, repeats: Axes) -> B: ...
    @operation(kinds="FCIB", shape=shapes.tiled, differentiable=True)
    def tile(self, x: Any, /, repeats: Axes) -> Any:
        """``x`` repeated ``repeats[i]`` times along axis ``i``."""
        apart = tuple(m for n in x.shape for m in (1, n))
        spread = tuple(m for n, r in zip(x.shape, repeats, strict=True) for m in (r, n))
        shape = tuple(n * r for n, r in zip(x.shape, repeats, strict=True))
        return self.reshape(self.broadcast_to(self.reshape(x, apart), spread), shape)

    @overload
    def repeat(self, x: F, /, repeats: int, axis: int) -> F: ...
    @overload
    def repeat(self, x: I, /, repeats: int, axis: int) -> I: ...
    @overload
    def repeat(self, x: B, /, repeats: int, axis: int) -> B: ...
    @operation(kinds="FCIB", shape=shapes.repeated, differentiable=True)
    def repeat(self, x: Any, /, repeats: int, axis: int) -> Any:
        """Each element ``repeats`` times in a row along ``axis``."""
        before, n, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
        x = self.broadcast_to(self.reshape(x, (*before, n, 1, *after)), (*before, n, repeats, *after))
        return self.reshape(x, (*before, n * repeats, *after))

    @overload
    def pad(self, x: F, /, widths: Widths, mode: str = "constant", value: float = 0.0) -> F: ...
    @overload
    def pad(self, x: I, /, widths: Widths, mode: str = "constant", value: float = 0.0) -> I: ...
    @overload
    def pad(self, x: B, /, widths: Widths, mode: str = "constant", value: float = 0.0) -> B: ...
    @operation(kinds="FCIB", shape=shapes.padded, differentiable=True)
    def pad(self: Any, x: Any, /, widths: Widths, mode: str = "constant", value: float = 0.0) -> Any:
        """``x`` with ``widths[i] = (before, after)`` more elements at the ends of axis ``i``.

        The new elements depend on ``mode``: ``value`` (``"constant"``); ``x`` mirrored at its first and last element,
        as often as needed (``"reflect"``); these two elements repeated (``"edge"``); or ``x`` continued periodically
        (``"wrap"``), as in ``numpy.pad``.
        """
        shape = shapes.padded(x.shape, widths=widths, mode=mode)
        if mode == "constant":
            dtype = self.dtype(x)
            fitted = {"float": float, "complex": complex, "int": int, "bool": bool}[dtype.kind](value)
            inside = tuple(slice(before, before + n, 1) for n, (before, _) in zip(x.shape, widths, strict=True))
            return self.slice_assign(self.full(shape, fitted, dtype), x, inside)
        for axis, (before, after) in enumerate(widths):
            if before or after:
                x = self.take(x, pad_sources(self, x.shape[axis], before, after, mode), axis)
        return x

    gradient_rule(pad, x=grad_pad)
    tangent(pad, x=lambda k, t, widths, mode: k.pad(t, widths, mode, 0.0))

    @overload
    def sliding_window(self, x: F, /, size: Axes, stride: Axes, axis: Axes, dilation: Axes) -> F: ...
    @overload
    def sliding_window(self, x: I, /, size: Axes, stride: Axes, axis: Axes, dilation: Axes) -> I: ...
    @overload
    def sliding_window(self, x: B, /, size: Axes, stride: Axes, axis: Axes, dilation: Axes) -> B: ...
    @operation(kinds="FCIB", shape=shapes.windows, differentiable=True)
    def sliding_window(self: Any, x: Any, /, size: Axes, stride: Axes, axis: Axes, dilation: Axes) -> Any:
        """All windows of ``size`` elements over ``axis``, as new last axes; ``axis`` then indexes the windows.

        Window ``i`` along an axis begins at element ``i * stride`` and takes every ``dilation``-th; windows that do not
        fit are left out. A backend with strided views copies nothing.
        """
        shapes.windows(x.shape, size=size, stride=stride, axis=axis, dilation=dilation)
        for a, width, step, spacing in zip(axis, size, stride, dilation, strict=True):
            count = (x.shape[a] - spacing * (width - 1) - 1) // step + 1
            starts = self.reshape(self.arange(0, count * step, step, int64), (count, 1))
            places = self.add(starts, self.arange(0, width * spacing, spacing, int64))
            x = self.take(x, places, a)
            rank = len(x.shape)
            x = self.permute_dims(x, (*range(a + 1), *range(a + 2, rank), a + 1))
        return x

    gradient_rule(
        sliding_window,
        x=lambda k, g, x_shape, stride, axis, dilation: k.overlap_add(
            g, tuple(x_shape[a] for a in axis), stride, axis, dilation
        ),
    )
    linear_in(sliding_window)

    @operation(kinds="FC", shape=shapes.overlapped, differentiable=True)
    def overlap_add(self: Any, x: Any, /, length: Axes, stride: Axes, axis: Axes, dilation: Axes) -> F:
        """The sum of overlapping windows, with ``length`` along ``axis``.

        It is the transpose of :meth:`sliding_window`, and each is the other's gradient.
        """
        shapes.overlapped(x.shape, length=length, stride=stride, axis=axis, dilation=dilation)
        for a, n, step, spacing in reversed(tuple(zip(axis, length, stride, dilation, strict=True))):
            count, width = x.shape[a], x.shape[-1]
            shape = (*x.shape[:a], n, *x.shape[a + 1 : -1])
            total = self.zeros(shape, self.dtype(x))
            for j in range(width):
                start = j * spacing
                key = axis_slices(shape, a, start, start + (count - 1) * step + 1, step)
                total = self.add(total, self.slice_backward(index_axis(self, x, len(x.shape) - 1, j), shape, key))
            x = total
        return x

    gradient_rule(
        overlap_add,
        x=lambda k, g, x_shape, stride, axis, dilation: k.sliding_window(
            g, x_shape[len(x_shape) - len(axis) :], stride, axis, dilation
        ),
    )
    linear_in(overlap_add)

    @overload
    def diagonal(self, x: F, /, offset: int, axis1: int, axis2: int) -> F: ...
    @overload
    def diagonal(self, x: I, /, offset: int, axis1: int, axis2: int) -> I: ...
    @overload
    def diagonal(self, x: B, /, offset: int, axis1: int, axis2: int) -> B: ...
    @operation(kinds="FCIB", shape=shapes.diagonal, differentiable=True)
    def diagonal(self: Any, x: Any, /, offset: int, axis1: int, axis2: int) -> Any:
        """The diagonal of the matrices in ``axis1`` (rows) and ``axis2`` (columns), as a new last axis.

        It lies ``offset`` above the main diagonal, or below for a negative one.
        """
        rest = [a for a in range(len(x.shape)) if a not in (axis1, axis2)]
        n, m = x.shape[axis1], x.shape[axis2]
        *batch, count = shapes.diagonal(x.shape, offset=offset, axis1=axis1, axis2=axis2)
        flat = self.reshape(self.permute_dims(x, (*rest, axis1, axis2)), (*batch, n * m))
        start = offset if offset >= 0 else -offset * m
        stop = start + (count - 1) * (m + 1) + 1
        start, stop = (start, stop) if count else (0, 0)
        return slice_axis(self, flat, len(batch), start, stop, m + 1)


def pad_sources(k: Any, n: int, before: int, after: int, mode: str) -> Any:
    """The position in the axis of length ``n`` that each element of the padded axis comes from, as an int64 tensor."""
    places = k.arange(-before, n + after, 1, int64)
    if mode == "wrap":
        return k.remainder(places, n)
    if mode == "edge" or n == 1:
        return k.minimum(k.maximum(places, 0), n - 1)
    places = k.remainder(places, 2 * (n - 1))  # down to the last element and back up to the second
    return k.minimum(places, k.sub(2 * (n - 1), places))
