"""Pooling: the largest element or the mean of windows over the last axes.

``x`` has the shape ``(examples, channels, *spatial)``. ``size``, ``stride`` and ``dilation`` have one number for each
spatial axis, ``padding`` a pair of any widths. With ``ceil_mode`` the last window may extend beyond the end, as long as
it begins in ``x`` or in the padding before it. A window without any element of ``x`` raises, except for a mean
that counts padding. Indices are positions in one channel, in row-major order.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple, Protocol

from backburn.base.dtypes import int64
from backburn.base.errors import ArgumentError, ShapeError
from backburn.ops.bodies.half_precision import upcast_half
from backburn.ops.bodies.reductions import sum_terms
from backburn.ops.bodies.slicing import full_slices, slice_axis
from backburn.ops.conv import Pairs, check_window, offsets, unpadded, window_reach, window_slices, zero_padded
from backburn.ops.primitives import Primitives
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.rules.tangents import linear_in, tangent
from backburn.ops.table import operation
from backburn.ops.types import B, F, I, Q

Shape = tuple[int, ...]


class Windows(NamedTuple):
    """The number of windows of a pooling operation, and the padding they need, along each axis."""

    counts: Shape
    padding: Pairs


def pool_windows(
    places: Shape, size: Shape, stride: Shape, padding: Pairs, dilation: Shape, ceil_mode: bool, counts_pad: bool
) -> Windows:
    """The windows along each axis. Raises for options that do not fit.

    Unless padding counts as elements, it also raises for a window without any element.
    """
    check_window(len(places), stride, padding, dilation)
    if len(size) != len(places):
        raise ArgumentError(f"the size {list(size)} needs one entry for each of {len(places)} axes")
    counts, widths = [], []
    for axis, (n, width, step, (before, after), spacing) in enumerate(
        zip(places, size, stride, padding, dilation, strict=True), 2
    ):
        reach = window_reach(width, spacing)
        room = n + before + after - reach
        if width < 1:
            raise ShapeError(f"a window has 1 element or more along each axis, not {list(size)}")
        count = (room + (step - 1 if ceil_mode else 0)) // step + 1
        if ceil_mode and (count - 1) * step >= n + before:  # it would begin beyond the end
            count -= 1
        if room < 0 and (count < 1 or not ceil_mode):
            raise ShapeError(
                f"a window that reaches over {reach} elements does not fit into axis {axis} of {n}, padded to "
                f"{n + before + after}"
            )
        for i in () if counts_pad else (0, count - 1) if spacing == 1 else range(count):
            start = i * step - before
            if (start if start >= 0 else start % spacing) >= min(n, start + reach):
                raise ShapeError(f"the window {i} along axis {axis} of {n} lies in the padding alone")
        counts.append(count)
        widths.append((before, max(after, (count - 1) * step + reach - n - before)))
    return Windows(tuple(counts), tuple(widths))


def _check_rank(x: Shape) -> None:
    if not 3 <= len(x) <= 5:
        raise ShapeError(f"the input (examples, channels, *spatial) has 3 to 5 axes, not {len(x)}")


def _pooled(
    x: Shape, *, size: Shape, stride: Shape, padding: Pairs, dilation: Shape = (), ceil_mode: bool = False,
    counts_pad: bool = False,
) -> Shape:  # fmt: skip
    _check_rank(x)
    counts, _padding = pool_windows(x[2:], size, stride, padding, dilation or (1,) * len(size), ceil_mode, counts_pad)
    return (*x[:2], *counts)


def _averaged(x: Shape, *, count_include_pad: bool = True, **options: Any) -> Shape:
    return _pooled(x, counts_pad=count_include_pad, **options)


def _pooled_twice(x: Shape, **options: Any) -> tuple[Shape, Shape]:
    shape = _pooled(x, **options)
    return shape, shape


def _adapted(x: Shape, *, size: Shape) -> Shape:
    _check_rank(x)
    if len(size) != len(x) - 2 or any(m < 1 for m in size):
        raise ArgumentError(f"one size, 1 or more, for each of the {len(x) - 2} spatial axes, not {list(size)}")
    if 0 in x[2:]:
        raise ShapeError(f"there is nothing to pool in {list(x)}")
    return (*x[:2], *size)


def adaptive_places(n: int, m: int) -> list[range]:
    """The ranges of ``n`` positions for ``m`` windows: as equal as possible, covering every position."""
    return [range(i * n // m, -((i + 1) * n // -m)) for i in range(m)]


def element_counts(
    n: int, count: int, size: int, step: int, padding: tuple[int, int], include_pad: bool, spacing: int
) -> list[int]:
    """The number of elements that each of ``count`` windows averages: in ``x``, or in ``x`` and its padding."""
    before, after = padding
    low, high = (-before, n + after) if include_pad else (0, n)
    starts = [i * step - before for i in range(count)]
    return [min(size, -((s - high) // spacing)) - max(0, -((s - low) // spacing)) for s in starts]


def column(k: Any, values: list[int], axis: int, rank: int, dtype: Any) -> Any:
    """Host integers as a tensor of ``rank`` axes that varies along ``axis``."""
    ones = [1] * rank
    if values == list(range(values[0], values[0] + len(values))):
        made = k.astype(k.arange(values[0], values[0] + len(values), 1, int64), dtype)
    else:
        made = k.concat([k.full((1,), float(v) if dtype.is_floating else v, dtype) for v in values], 0)
    return k.reshape(made, (*ones[:axis], len(values), *ones[axis + 1 :]))


def _flat_places(k: Any, by_axis: list[Any], places: Shape) -> Any:
    """The flat index of a position from its indices along each axis."""
    total = by_axis[0]
    for index, n in zip(by_axis[1:], places[1:], strict=True):
        total = k.add(k.mul(total, n), index)
    return total


# ---- gradients ----


def grad_max_pool(k: Any, g: Any, x_shape: Shape, out: Any) -> Any:
    """The gradient of the input: each element of ``g`` at the largest element of its window."""
    g, indices = g[0], out[1]
    if g is None:
        return None
    flat = (*g.shape[:2], math.prod(g.shape[2:]))
    lines = (*x_shape[:2], math.prod(x_shape[2:]))
    return k.reshape(k.take_along_axis_backward(k.reshape(g, flat), k.reshape(indices, flat), lines, 2), x_shape)


def tangent_max_pool(k: Any, t: Any, out: Any) -> Any:
    """The tangent of the largest element of each window."""
    values, indices = out
    lines = k.reshape(t, (*t.shape[:2], math.prod(t.shape[2:])))
    flat = k.reshape(indices, (*indices.shape[:2], math.prod(indices.shape[2:])))
    return k.reshape(k.take_along_axis(lines, flat, 2), values.shape), None


class Pool(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Pooling."""

    @operation(kinds="F", shape=_pooled_twice, result=("same", "int64"), differentiable=True)
    def max_pool(
        self: Any,
        x: F,
        /,
        size: Shape = (1,),
        stride: Shape = (1,),
        padding: Pairs = ((0, 0),),
        dilation: Shape = (1,),
        ceil_mode: bool = False,
    ) -> tuple[F, I]:
        """The largest element of each window, NaN if one is, and its index.

        Of several equal ones the first is chosen, and gets the whole gradient. Padding is never chosen: it counts as
        smaller than every number, -inf included.
        """
        shape = x.shape
        places, rank = shape[2:], len(shape)
        counts, widths = pool_windows(places, size, stride, padding, dilation, ceil_mode, False)
        padded = self.pad(x, ((0, 0), (0, 0), *widths), "constant", -math.inf)
        starts = [
            self.add(self.mul(column(self, list(range(m)), a + 2, rank, int64), step), -before)
            for a, (m, step, (before, _)) in enumerate(zip(counts, stride, widths, strict=True))
        ]
        first = [  # the first element that is not a padding, which stays chosen where all are -inf
            self.where(self.less(s, 0), self.remainder(s, spacing), s)
            for s, spacing in zip(starts, dilation, strict=True)
        ]
        best = self.full((*shape[:2], *counts), -math.inf, self.dtype(x))
        index = self.broadcast_to(_flat_places(self, first, places), (*shape[:2], *counts))
        for offset in offsets(size):
            seen = self.slice(padded, (*full_slices(*shape[:2]), *window_slices(offset, counts, stride, dilation)))
            at = [self.add(s, o * d) for s, o, d in zip(starts, offset, dilation, strict=True)]
            first_nan = self.logical_and(self.isnan(seen), self.logical_not(self.isnan(best)))
            better = self.logical_or(self.less(best, seen), first_nan)
            best = self.where(better, seen, best)
            index = self.where(better, _flat_places(self, at, places), index)
        return best, index

    gradient_rule(max_pool, x=grad_max_pool)
    tangent(max_pool, x=tangent_max_pool)

    @operation(kinds="F", shape=_averaged, differentiable=True)
    def avg_pool(
        self: Any,
        x: F,
        /,
        size: Shape = (1,),
        stride: Shape = (1,),
        padding: Pairs = ((0, 0),),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        dilation: Shape = (),
    ) -> F:
        """The mean of each window; zeros of the padding count as elements unless ``count_include_pad`` is False.

        The part of a window beyond the padding, which ``ceil_mode`` allows, never counts. Without ``dilation``, windows
        have no gaps.
        """
        shape, dtype, spacing = x.shape, self.dtype(x), dilation or (1,) * len(size)
        places, wide = shape[2:], upcast_half(self, x)
        counts, widths = pool_windows(places, size, stride, padding, spacing, ceil_mode, count_include_pad)
        padded, rows = zero_padded(self, wide, widths), full_slices(*shape[:2])
        sums = sum_terms(
            self, (self.slice(padded, (*rows, *window_slices(o, counts, stride, spacing))) for o in offsets(size))
        )
        sizes = _divisor(self, places, counts, size, stride, padding, count_include_pad, spacing, self.dtype(wide))
        return self.astype(self.div(sums, sizes), dtype)

    gradient_rule(
        avg_pool,
        x=lambda k, g, x_shape, size, stride, padding, ceil_mode, count_include_pad, dilation: k.avg_pool_backward(
            g, x_shape[2:], size, stride, padding, ceil_mode, count_include_pad, dilation
        ),
    )
    linear_in(avg_pool)

    @operation(
        kinds="F",
        shape=lambda grad, *, places, **_: (*grad[:2], *places),
        differentiable=True,
    )
    def avg_pool_backward(
        self: Any,
        grad: F,
        /,
        places: Shape = (1,),
        size: Shape = (1,),
        stride: Shape = (1,),
        padding: Pairs = ((0, 0),),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        dilation: Shape = (),
    ) -> F:
        """The gradient of :meth:`avg_pool` for an input of spatial shape ``places``: an equal part to each element."""
        shape, dtype, spacing = grad.shape, self.dtype(grad), dilation or (1,) * len(size)
        counts, widths = pool_windows(places, size, stride, padding, spacing, ceil_mode, count_include_pad)
        wide = upcast_half(self, grad)
        sizes = _divisor(self, places, counts, size, stride, padding, count_include_pad, spacing, self.dtype(wide))
        part = self.div(wide, sizes)
        padded = tuple(n + before + after for n, (before, after) in zip(places, widths, strict=True))
        ones, axes = (1,) * len(size), tuple(range(2, len(shape)))
        parts = self.broadcast_to(self.reshape(part, (*shape, *ones)), (*shape, *size))
        total = self.overlap_add(parts, padded, stride, axes, spacing)
        return self.astype(unpadded(self, total, places, widths), dtype)

    gradient_rule(
        avg_pool_backward,
        grad=lambda k, g, size, stride, padding, ceil_mode, count_include_pad, dilation: k.avg_pool(
            g, size, stride, padding, ceil_mode, count_include_pad, dilation
        ),
    )
    linear_in(avg_pool_backward)

    @operation(kinds="F", shape=_adapted, differentiable=True)
    def adaptive_avg_pool(self: Any, x: F, /, size: Shape) -> F:
        """The means of ``size`` windows of nearly equal length along each axis.

        Window ``i`` of ``m`` over ``n`` positions covers ``floor(i n / m)`` up to but excluding ``ceil((i +
        1) n / m)``.
        """
        dtype, wide = self.dtype(x), upcast_half(self, x)
        _adapted(x.shape, size=size)
        single = tuple(axis for axis, m in enumerate(size, 2) if m == 1)
        if single:  # one mean for all of these
            wide = self.mean(wide, single, True)
        for axis, m in enumerate(size, 2):
            if m == 1:
                continue
            shape = wide.shape
            windows = adaptive_places(shape[axis], m)
            if shape[axis] % m == 0:
                split = self.reshape(wide, (*shape[:axis], m, shape[axis] // m, *shape[axis + 1 :]))
                wide = self.mean(split, (axis + 1,), False)
                continue
            lengths = [len(w) for w in windows]
            if m <= max(lengths):
                means = [self.mean(slice_axis(self, wide, axis, w.start, w.stop), (axis,), True) for w in windows]
                wide = self.concat(means, axis)
                continue
            parts = [self.take(wide, column(self, [w[min(j, len(w) - 1)] for w in windows], 0, 1, int64), axis)
                     for j in range(max(lengths))]  # fmt: skip
            total = parts[0]
            for j, elements in enumerate(parts[1:], 1):
                inside = self.less(j, column(self, lengths, axis, len(shape), int64))
                total = self.add(total, self.where(inside, elements, 0.0))
            wide = self.div(total, column(self, lengths, axis, len(shape), self.dtype(wide)))
        return self.astype(wide, dtype)

    @operation(
        kinds="F",
        shape=lambda x, *, size: (_adapted(x, size=size),) * 2,
        result=("same", "int64"),
        differentiable=True,
    )
    def adaptive_max_pool(self: Any, x: F, /, size: Shape) -> tuple[F, I]:
        """The largest element of each window of :meth:`adaptive_avg_pool`, and its index, as in :meth:`max_pool`."""
        shape = x.shape
        _adapted(shape, size=size)
        places, count, rank = shape[2:], math.prod(size), len(size)
        windows = [adaptive_places(n, m) for n, m in zip(places, size, strict=True)]
        longest = [max(map(len, w)) for w in windows]
        at = []  # along each axis, the positions of each window, the last repeated up to the length of the longest
        for axis, (by_axis, length) in enumerate(zip(windows, longest, strict=True)):
            flat = [w[min(j, len(w) - 1)] for w in by_axis for j in range(length)]
            ones = [1] * (2 * rank)
            ones[axis], ones[rank + axis] = len(by_axis), length
            at.append(self.reshape(column(self, flat, 0, 1, int64), tuple(ones)))
        flat_index = self.broadcast_to(_flat_places(self, at, places), (*size, *longest))
        index = self.reshape(flat_index, (count, math.prod(longest)))
        lines = self.take(self.reshape(x, (*shape[:2], math.prod(places))), index, 2)
        value, chosen = self.max_with_indices(lines, 3, True)
        spread = self.broadcast_to(self.reshape(index, (1, 1, *index.shape)), lines.shape)
        where = self.take_along_axis(spread, chosen, 3)
        return self.reshape(value, (*shape[:2], *size)), self.reshape(where, (*shape[:2], *size))


def _divisor(
    k: Any, places: Shape, counts: Shape, size: Shape, stride: Shape, padding: Pairs, include_pad: bool,
    dilation: Shape, dtype: Any,
) -> Any:  # fmt: skip
    """The number of elements that each window averages: one number, or a tensor that broadcasts."""
    by_axis = [
        element_counts(n, m, width, step, pair, include_pad, spacing)
        for n, m, width, step, pair, spacing in zip(places, counts, size, stride, padding, dilation, strict=True)
    ]
    if all(len(set(numbers)) == 1 for numbers in by_axis):
        return float(math.prod(numbers[0] for numbers in by_axis))
    rank = len(places) + 2
    return functools.reduce(k.mul, [column(k, numbers, axis, rank, dtype) for axis, numbers in enumerate(by_axis, 2)])
