"""NumPy: convolutions as products of matrices.

The windows of a block of examples (or of a part of one) are copied side by side into the columns of a matrix, which
the weight multiplies: im2col, block by block, so that the columns stay in cache (Chellapilla, Puri and Simard 2006).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from backburn.backend.conv import Pairs, convolved, convolved_transposed, places_of, reach_of
from backburn_numpy.blocks import wide
from backburn_numpy.memory import empty
from backburn_numpy.shape import sliding_window
from backburn_numpy.threads import for_parts

Array = Any
Shape = tuple[int, ...]

#: Elements of the columns of one block: large enough for fast products, and in the third-level cache.
COLUMNS = 1 << 20

#: From this many elements on, two threads copy faster than one.
WORTH = 1 << 19


def conv(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    /,
    stride: Shape = (1,),
    padding: Pairs = ((0, 0),),
    dilation: Shape = (1,),
    groups: int = 1,
) -> Array:
    shape = convolved(
        x.shape, weight.shape, None if bias is None else bias.shape,
        stride=stride, padding=padding, dilation=dilation, groups=groups,
    )  # fmt: skip
    out = empty(shape, x.dtype)
    windows = _windows(wide(x), weight.shape[2:], stride, padding, dilation)
    _convolve(windows, _by_group(wide(weight), groups), bias, out)
    return out


def conv_transpose(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    /,
    stride: Shape = (1,),
    padding: Pairs = ((0, 0),),
    output_padding: Shape = (0,),
    dilation: Shape = (1,),
    groups: int = 1,
) -> Array:
    shape = convolved_transposed(
        x.shape, weight.shape, None if bias is None else bias.shape,
        stride=stride, padding=padding, output_padding=output_padding, dilation=dilation, groups=groups,
    )  # fmt: skip
    size, out = weight.shape[2:], empty(shape, x.dtype)
    if not x.size or not weight.size:
        out[...] = 0 if bias is None else _column(bias, out.ndim)
        return out
    # With stride 1 it is the convolution with the flipped weight, whose padding is what the other leaves of the window.
    edges = [reach_of(n, spacing) - 1 for n, spacing in zip(size, dilation, strict=True)]
    rest = tuple((e - before, e - after) for e, (before, after) in zip(edges, padding, strict=True))
    if max(stride) == 1 and min(map(min, rest)) >= 0 and x.shape[1] <= 2 * shape[1]:
        flipped = _flipped(wide(weight), groups)
        _convolve(_windows(wide(x), size, stride, rest, dilation), _by_group(flipped, groups), bias, out)
        return out
    _add_windows(wide(x), _by_group(wide(weight), groups), out, size, stride, padding, dilation)
    if bias is not None:
        np.add(out, _column(bias, out.ndim), out=out, casting="same_kind")
    return out


def conv_weight_backward(
    x: Array,
    grad: Array,
    /,
    size: Shape = (1,),
    stride: Shape = (1,),
    padding: Pairs = ((0, 0),),
    dilation: Shape = (1,),
    groups: int = 1,
) -> Array:
    windows, wide_grad = _windows(wide(x), size, stride, padding, dilation), wide(grad)
    channels, outputs = x.shape[1], grad.shape[1]
    total = np.zeros((groups, outputs // groups, channels // groups * math.prod(size)), windows.dtype)
    for block in _blocks(windows):
        columns = _columns(windows[block], groups)
        total += np.matmul(_rows(wide_grad[block], groups), columns.swapaxes(1, 2))
    return total.reshape(outputs, channels // groups, *size).astype(x.dtype, copy=False)


def _windows(x: Array, size: Shape, stride: Shape, padding: Pairs, dilation: Shape) -> Array:
    """All windows of the padded ``x``, as a view of shape (examples, channels, *counts, *size)."""
    if any(map(any, padding)):
        inside = tuple(slice(before, before + n) for n, (before, _) in zip(x.shape[2:], padding, strict=True))
        lengths = (n + before + after for n, (before, after) in zip(x.shape[2:], padding, strict=True))
        padded = empty((*x.shape[:2], *lengths), x.dtype)
        padded.fill(0)
        padded[(..., *inside)] = x
        x = padded
    return sliding_window(x, size, stride, tuple(range(2, x.ndim)), dilation)


def _blocks(windows: Array) -> Iterator[tuple[slice, slice, slice]]:
    """Keys of the first three axes that cut the windows into blocks of about :data:`COLUMNS` elements."""
    if not windows.size:
        return
    examples, _, rows = windows.shape[:3]
    one = windows.size // examples
    if one <= COLUMNS:
        step = max(1, COLUMNS // one)
        for n in range(0, examples, step):
            yield slice(n, n + step), slice(None), slice(None)
        return
    step = max(1, COLUMNS * rows // one)
    for n, row in itertools.product(range(examples), range(0, rows, step)):
        yield slice(n, n + 1), slice(None), slice(row, row + step)


def _columns(windows: Array, groups: int) -> Array:
    """A copy of windows as a matrix for each group, with a window in each column, by example and place."""
    rank = (windows.ndim - 2) // 2
    axes = (1, *range(2 + rank, 2 + 2 * rank), 0, *range(2, 2 + rank))
    view = windows.transpose(axes)
    out = empty(view.shape, windows.dtype)

    def part(start: int, stop: int) -> None:
        np.copyto(out[start:stop], view[start:stop])

    for_parts(part, len(out), _worth(out))
    return out.reshape(groups, math.prod(view.shape[: 1 + rank]) // groups, -1)


def _worth(x: Array) -> int:
    """How many entries of the first axis are worth a second thread."""
    return int(max(1, WORTH * len(x) // max(1, x.size)))


def _rows(x: Array, groups: int) -> Array:
    """``x`` as a matrix for each group: a row of all examples and places for each channel."""
    view = x.swapaxes(0, 1)
    out = empty(view.shape, x.dtype)
    np.copyto(out, view)
    return out.reshape(groups, x.shape[1] // groups, -1)


def _by_group(weight: Array, groups: int) -> Array:
    """A weight as a matrix for each group."""
    return weight.reshape(groups, weight.shape[0] // groups, math.prod(weight.shape[1:]))


def _flipped(weight: Array, groups: int) -> Array:
    """The weight (inputs, outputs / groups, ...) of a transposed convolution as that of a convolution of stride 1."""
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    back = (slice(None, None, -1),) * (weight.ndim - 2)
    split = weight.reshape(groups, inputs, *weight.shape[1:])[(..., *back)].swapaxes(1, 2)
    return split.reshape(groups * outputs, inputs, *weight.shape[2:])


def _column(bias: Array, rank: int) -> Array:
    return bias.reshape(-1, *[1] * (rank - 2))


def _convolve(windows: Array, weight: Array, bias: Array | None, out: Array) -> None:
    """Fill ``out`` with the products of windows and weight, plus the bias."""
    groups, outputs = weight.shape[0], out.shape[1]
    for block in _blocks(windows):
        columns = _columns(windows[block], groups)
        product = np.matmul(weight, columns, out=empty((groups, outputs // groups, columns.shape[2]), weight.dtype))
        target = out[block]
        product = product.reshape(outputs, target.shape[0], *target.shape[2:]).swapaxes(0, 1)
        _place(product, bias, target)
    if not windows.size and out.size:  # no channels
        out[...] = 0 if bias is None else _column(bias, out.ndim)


def _place(product: Array, bias: Array | None, out: Array) -> None:
    """Fill ``out`` with the products, plus the bias."""

    def part(start: int, stop: int) -> None:
        if bias is None:
            np.copyto(out[start:stop], product[start:stop], casting="same_kind")
        else:
            np.add(product[start:stop], _column(bias, out.ndim), out=out[start:stop], casting="same_kind")

    for_parts(part, len(out), _worth(out))


def _add_windows(
    x: Array, weight: Array, out: Array, size: Shape, stride: Shape, padding: Pairs, dilation: Shape
) -> None:
    """Fill ``out`` with the sum of the windows that the places of ``x`` make, without what lies in the padding."""
    groups, outputs = weight.shape[0], out.shape[1]
    uncut = (n + before + after for n, (before, after) in zip(out.shape[2:], padding, strict=True))
    total = empty((*out.shape[:2], *uncut), x.dtype)
    total.fill(0)
    transposed = weight.swapaxes(1, 2)
    step = max(1, COLUMNS // max(1, outputs * math.prod(size) * math.prod(x.shape[2:])))
    for first in range(0, x.shape[0], step):
        block = slice(first, first + step)
        rows = _rows(x[block], groups)
        columns = np.matmul(transposed, rows, out=empty((groups, transposed.shape[1], rows.shape[2]), x.dtype))
        columns = columns.reshape(outputs, *size, -1, *x.shape[2:])
        _overlap(total[block], np.moveaxis(columns, 1 + len(size), 0), size, x.shape[2:], stride, dilation)
    cut = tuple(slice(before, before + n) for n, (before, _) in zip(out.shape[2:], padding, strict=True))
    np.copyto(out, total[(..., *cut)], casting="same_kind")


def _overlap(total: Array, windows: Array, size: Shape, counts: Shape, stride: Shape, dilation: Shape) -> None:
    """Add windows (examples, channels, *size, *counts) to ``total``, each where it was."""

    def part(start: int, stop: int) -> None:
        for offset in itertools.product(*(range(n) for n in size)):
            place = total[(slice(start, stop), slice(None), *places_of(offset, counts, stride, dilation))]
            np.add(place, windows[(slice(start, stop), slice(None), *offset)], out=place)

    for_parts(part, len(total), _worth(windows))
