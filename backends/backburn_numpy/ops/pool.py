"""NumPy: pooling, one window element at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backburn.ops.conv import Pairs, offsets, window_slices
from backburn.ops.pool import element_counts, pool_windows
from backburn_numpy import compiled
from backburn_numpy.blocks import BLOCK
from backburn_numpy.half_precision import cast_like, is_half, upcast_half
from backburn_numpy.memory import contiguous, empty
from backburn_numpy.threads import WORTH_A_THREAD, parallel_for

Array = Any
Shape = tuple[int, ...]


def max_pool(
    x: Array,
    /,
    size: Shape = (1,),
    stride: Shape = (1,),
    padding: Pairs = ((0, 0),),
    dilation: Shape = (1,),
    ceil_mode: bool = False,
) -> tuple[Array, Array]:
    places = x.shape[2:]
    counts, widths = pool_windows(places, size, stride, padding, dilation, ceil_mode, False)
    found = _run_kernel(x, size, stride, dilation, counts, widths)
    if found is not None:
        return found
    images = _padded(x.reshape(-1, *places), widths, -np.inf)
    out = empty((len(images), *counts), x.dtype)
    index = empty(out.shape, np.dtype(np.int64))
    if out.size:
        starts, ones = [], [1] * len(places)
        for axis, (m, step, (before, _)) in enumerate(zip(counts, stride, widths, strict=True)):
            starts.append((np.arange(m) * step - before).reshape(*ones[:axis], m, *ones[axis + 1 :]))
        keys = [(slice(None), *window_slices(o, counts, stride, dilation)) for o in offsets(size)]
        at = [_flat([s + o * d for s, o, d in zip(starts, offset, dilation, strict=True)], places)
              for offset in offsets(size)]  # fmt: skip
        # If all are -inf, the first element outside the padding is chosen.
        first = _flat([np.where(s < 0, s % d, s) for s, d in zip(starts, dilation, strict=True)], places)
        rows = max(1, BLOCK // math.prod(images.shape[1:]))

        def part(start: int, stop: int) -> None:
            for low in range(start, stop, rows):
                block = slice(low, min(low + rows, stop))
                _choose(images[block], keys, at, first, out[block], index[block])

        parallel_for(part, len(images), max(1, (WORTH_A_THREAD >> 2) // math.prod(images.shape[1:])))
    return out.reshape(*x.shape[:2], *counts), index.reshape(*x.shape[:2], *counts)


def _run_kernel(
    x: Array, size: Shape, stride: Shape, dilation: Shape, counts: Shape, widths: Pairs
) -> tuple[Array, Array] | None:
    """The results of the compiled kernel; None if there is none."""
    kernel = compiled.kernel("max_pool") if is_half(x) or x.dtype == compiled.FLOAT32 else None
    if kernel is None or 0 in counts or math.prod(x.shape[2:]) >= 2**31:
        return None
    images = contiguous(upcast_half(x))
    lead = (1,) * (3 - len(size))  # a sequence is a volume of one line
    before = tuple(first for first, _ in widths)
    numbers = [n for sizes in (x.shape[2:], counts, size, stride) for n in (*lead, *sizes)]
    geometry = np.array([*numbers, *(0 for _ in lead), *before, *lead, *dilation], np.int64)
    shape = (*x.shape[:2], *counts)
    out, index = empty(shape, images.dtype), empty(shape, np.dtype(np.int64))
    at = compiled.addresses(out, index, images, geometry)
    worth = max(1, (WORTH_A_THREAD >> 2) // math.prod(x.shape[2:]))
    parallel_for(lambda first, last: kernel(*at, first, last), x.shape[0] * x.shape[1], worth)
    return cast_like(out, x), index


def _choose(images: Array, keys: list[Any], at: list[Array], first: Array, best: Array, index: Array) -> None:
    """Fill ``best`` with the windows' largest elements and ``index`` with their indices."""
    best.fill(-np.inf)
    index[...] = first
    has_nan = np.isnan(images.max() if images.dtype.kind == "f" else images.astype(np.float32).max())
    for key, places in zip(keys, at, strict=True):
        seen = images[key]
        better = np.less(best, seen)
        if has_nan:
            better |= np.isnan(seen) & ~np.isnan(best)
        np.copyto(best, seen, where=better)
        np.copyto(index, places, where=better)


def _flat(by_axis: list[Array], places: Shape) -> Array:
    """The flat index of a position, from its indices along each axis."""
    total = by_axis[0]
    for index, n in zip(by_axis[1:], places[1:], strict=True):
        total = total * n + index
    return total


def _padded(images: Array, widths: Pairs, value: float) -> Array:
    """Images padded with ``value``."""
    if not any(map(any, widths)):
        return images
    lengths = (n + before + after for n, (before, after) in zip(images.shape[1:], widths, strict=True))
    out = empty((len(images), *lengths), images.dtype)
    out.fill(value)
    inside = tuple(slice(before, before + n) for n, (before, _) in zip(images.shape[1:], widths, strict=True))
    out[(slice(None), *inside)] = images
    return out


def avg_pool(
    x: Array,
    /,
    size: Shape = (1,),
    stride: Shape = (1,),
    padding: Pairs = ((0, 0),),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    dilation: Shape = (),
) -> Array:
    places, spacing = x.shape[2:], dilation or (1,) * len(size)
    counts, widths = pool_windows(places, size, stride, padding, spacing, ceil_mode, count_include_pad)
    images = _padded(upcast_half(x).reshape(-1, *places), widths, 0.0)
    total = empty((len(images), *counts), images.dtype)
    total.fill(0)
    for offset in offsets(size):
        np.add(total, images[(slice(None), *window_slices(offset, counts, stride, spacing))], out=total)
    sizes = _divisor(places, counts, size, stride, padding, count_include_pad, spacing, total.dtype)
    np.divide(total, sizes, out=total)
    return cast_like(total.reshape(*x.shape[:2], *counts), x)


def avg_pool_backward(
    grad: Array,
    /,
    places: Shape = (1,),
    size: Shape = (1,),
    stride: Shape = (1,),
    padding: Pairs = ((0, 0),),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    dilation: Shape = (),
) -> Array:
    spacing = dilation or (1,) * len(size)
    counts, widths = pool_windows(places, size, stride, padding, spacing, ceil_mode, count_include_pad)
    part = upcast_half(grad)
    part = part / _divisor(places, counts, size, stride, padding, count_include_pad, spacing, part.dtype)
    padded = (n + before + after for n, (before, after) in zip(places, widths, strict=True))
    total = empty((*grad.shape[:2], *padded), part.dtype)
    total.fill(0)
    for offset in offsets(size):
        place = total[(..., *window_slices(offset, counts, stride, spacing))]
        np.add(place, part, out=place)
    cut = tuple(slice(before, before + n) for n, (before, _) in zip(places, widths, strict=True))
    return cast_like(total[(..., *cut)], grad)


def _divisor(
    places: Shape, counts: Shape, size: Shape, stride: Shape, padding: Pairs, include_pad: bool, dilation: Shape,
    dtype: Any,
) -> Array:  # fmt: skip
    """The number of elements that each window averages."""
    total = np.ones((1,) * len(places), dtype)
    for axis, (n, count, width, step, pair, gap) in enumerate(
        zip(places, counts, size, stride, padding, dilation, strict=True)
    ):
        numbers = element_counts(n, count, width, step, pair, include_pad, gap)
        if len(set(numbers)) == 1:
            numbers = numbers[:1]
        total = total * np.array(numbers, dtype).reshape(-1, *[1] * (len(places) - 1 - axis))
    return total
