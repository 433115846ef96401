"""NumPy: convolutions as matrix products.

The windows of an example (or of part of one, or of several small ones) are copied into the columns of a matrix, which
the weight multiplies: im2col, in blocks whose columns stay in cache (Chellapilla, Puri and Simard 2006). The blocks,
copies and products alike, are distributed over threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from backburn.ops.conv import (
    Pairs,
    conv_weight_shape,
    convolved,
    convolved_transposed,
    offsets,
    window_reach,
    window_slices,
)
from backburn_numpy import conv_compiled
from backburn_numpy.conv_blocks import COLUMNS, PLACES, TURNED, WORTH, Block, cut, flip_weight, run_blocks
from backburn_numpy.half_precision import cast_like, upcast_half
from backburn_numpy.memory import empty
from backburn_numpy.ops.linalg import affine, matmul
from backburn_numpy.ops.shape import sliding_window
from backburn_numpy.threads import num_threads, parallel_for

Array = Any
Shape = tuple[int, ...]
Sums = Callable[[Array, list[slice]], Array]

#: The fewest elements per call that make an addition pay.
LONG = 1 << 14


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
    if _is_one_window(weight.shape[2:], x.shape[2:], padding, dilation, groups):
        return affine(_flat(x), _flat(weight).T, bias).reshape(shape)
    wide_x, options = upcast_half(x), (weight.shape[2:], stride, padding, dilation)
    lengths = conv_compiled.geometry("conv", wide_x, x.shape, shape, *options, groups)
    if lengths is not None:
        return cast_like(conv_compiled.convolve(wide_x, weight, bias, lengths), x)
    out = empty(shape, x.dtype)
    windows = _windows(wide_x, *options)
    _convolve(windows, _group_matrices(upcast_half(weight), groups), bias, out)
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
    if math.prod(x.shape[2:]) == 1 and _is_one_window(weight.shape[2:], shape[2:], padding, dilation, groups):
        biases = None if bias is None else np.repeat(bias, math.prod(shape[2:]))
        return affine(_flat(x), _flat(weight), biases).reshape(shape)
    wide_x, size = upcast_half(x), weight.shape[2:]
    lengths = conv_compiled.geometry("conv_input", wide_x, shape, x.shape, size, stride, padding, dilation, groups)
    if lengths is not None:
        return cast_like(conv_compiled.overlap_windows(wide_x, weight, bias, lengths), x)
    out = empty(shape, x.dtype)
    if not x.size or not weight.size:
        out[...] = 0 if bias is None else _column(bias, out.ndim)
        return out
    # With stride 1 it is a convolution with the flipped weight, padded by the rest of the window.
    edges = [window_reach(n, spacing) - 1 for n, spacing in zip(size, dilation, strict=True)]
    rest = tuple((e - before, e - after) for e, (before, after) in zip(edges, padding, strict=True))
    if max(stride) == 1 and min(map(min, rest)) >= 0 and (x.shape[1] <= shape[1] or math.prod(size) == 1):
        flipped = flip_weight(upcast_half(weight), groups)
        _convolve(_windows(wide_x, size, stride, rest, dilation), _group_matrices(flipped, groups), bias, out)
        return out
    _overlap_windows(wide_x, upcast_half(weight), bias, out, stride, padding, dilation, groups)
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
    options: dict[str, Any] = {
        "size": size,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
    }
    conv_weight_shape(x.shape, grad.shape, **options)
    if _is_one_window(size, x.shape[2:], padding, dilation, groups):
        return matmul(_flat(grad).T, _flat(x)).reshape(grad.shape[1], x.shape[1], *size)
    wide_x, wide_grad = upcast_half(x), upcast_half(grad)
    lengths = conv_compiled.geometry("conv_weight", wide_x, x.shape, grad.shape, **options)
    if lengths is not None:
        total = conv_compiled.weight_grad(wide_x, wide_grad, lengths)
        return cast_like(total.reshape(grad.shape[1], x.shape[1] // groups, *size), x)
    windows = _windows(wide_x, size, stride, padding, dilation)
    channels, outputs = x.shape[1] // groups, grad.shape[1] // groups
    depth = channels * math.prod(size)
    # Products are faster with the longer side first; for large ones, transposing the result costs more than that.
    transposed = outputs < min(depth, TURNED)
    totals: dict[int, Array] = {}

    def work(first: int, blocks: list[Block]) -> None:
        shape = (groups, depth, outputs) if transposed else (groups, outputs, depth)
        total = totals[first] = np.zeros(shape, windows.dtype)
        product = np.empty_like(total)
        for examples, rows in blocks:
            columns = _columns(windows[examples, :, rows], groups)
            slopes = _channel_rows(wide_grad[examples, :, rows], groups)
            sides = (columns, slopes) if transposed else (slopes, columns)
            np.add(total, np.matmul(sides[0], sides[1].swapaxes(1, 2), out=product), out=total)

    if windows.size and grad.size:
        # Summing large products costs more than columns that do not fit the cache.
        _run_over_blocks(work, windows, groups * depth, windows.size * outputs, PLACES * (depth * outputs // COLUMNS))
    result = np.zeros((groups, outputs, depth), windows.dtype)
    for first in sorted(totals):
        result += totals[first].swapaxes(1, 2) if transposed else totals[first]
    return cast_like(result.reshape(groups * outputs, channels, *size), x)


# ---- a single window ----


def _is_one_window(size: Shape, lengths: Shape, padding: Pairs, dilation: Shape, groups: int) -> bool:
    """Whether the only window is the whole image: then a convolution is a linear layer."""
    return size == lengths and groups == 1 and max(dilation) == 1 and not any(map(any, padding))


def _flat(x: Array) -> Array:
    """``x`` as a matrix with the rows of its first axis."""
    return x.reshape(len(x), math.prod(x.shape[1:]))


# ---- blocks ----


def _run_over_blocks(
    work: Callable[[int, list[Block]], None], windows: Array, depth: int, products: int, least: int = 0
) -> None:
    """Call ``work(first, blocks)`` for parts of the blocks; ``first`` is the index of a part's first block."""
    blocks = cut(len(windows), windows.shape[2 : windows.ndim // 2 + 1], depth, least)
    run_blocks(lambda start, stop: work(start, blocks[start:stop]), len(blocks), products)


def _windows(x: Array, size: Shape, stride: Shape, padding: Pairs, dilation: Shape) -> Array:
    """The windows of the padded ``x``, as a view of shape (examples, channels, *counts, *size)."""
    if any(map(any, padding)):
        inside = tuple(slice(before, before + n) for n, (before, _) in zip(x.shape[2:], padding, strict=True))
        lengths = (n + before + after for n, (before, after) in zip(x.shape[2:], padding, strict=True))
        padded = empty((*x.shape[:2], *lengths), x.dtype)

        def part(start: int, stop: int) -> None:
            padded[start:stop].fill(0)
            padded[(slice(start, stop), slice(None), *inside)] = x[start:stop]

        parallel_for(part, len(x), max(1, (WORTH >> 2) * len(x) // max(1, x.size)))
        x = padded
    return sliding_window(x, size, stride, tuple(range(2, x.ndim)), dilation)


def _columns(windows: Array, groups: int) -> Array:
    """Windows as a matrix per group, with one window per column, by example and position."""
    rank = (windows.ndim - 2) // 2
    places, size = windows.shape[2 : 2 + rank], windows.shape[2 + rank :]
    shape = (groups, windows.shape[1] // groups * math.prod(size), len(windows) * math.prod(places))
    if len(windows) == 1 and math.prod(size) == 1:
        return windows.reshape(shape)
    view = windows.transpose(1, *range(2 + rank, 2 + 2 * rank), 0, *range(2, 2 + rank))
    columns = empty(view.shape, view.dtype)
    np.copyto(columns, view)
    return columns.reshape(shape)


def _channel_rows(x: Array, groups: int) -> Array:
    """``x`` as a matrix per group: one row per channel, over examples and positions; a view if one example."""
    return x.swapaxes(0, 1).reshape(groups, x.shape[1] // groups, len(x) * math.prod(x.shape[2:]))


def _group_matrices(weight: Array, groups: int) -> Array:
    """A weight as a matrix per group."""
    return weight.reshape(groups, weight.shape[0] // groups, math.prod(weight.shape[1:]))


def _column(bias: Array, rank: int) -> Array:
    return bias.reshape(-1, *[1] * (rank - 2))


# ---- im2col ----


def _convolve(windows: Array, weight: Array, bias: Array | None, out: Array) -> None:
    """Fill ``out`` with the products of windows and weight, plus the bias."""
    groups, outputs, depth = weight.shape
    if not windows.size:  # no channels, or an empty result
        out[...] = 0 if bias is None else _column(bias, out.ndim)
        return

    def work(first: int, blocks: list[Block]) -> None:
        for examples, rows in blocks:
            columns = _columns(windows[examples, :, rows], groups)
            target = out[examples, :, rows]
            by_group = target.swapaxes(0, 1).reshape(groups, outputs, columns.shape[2])
            if np.may_share_memory(by_group, out) and out.dtype == weight.dtype:
                np.matmul(weight, columns, out=by_group)
                if bias is not None:
                    np.add(by_group, bias.reshape(groups, outputs, 1), out=by_group)
                continue
            product = np.matmul(weight, columns).reshape(target.swapaxes(0, 1).shape).swapaxes(0, 1)
            if bias is None:
                np.copyto(target, product, casting="same_kind")
            else:
                np.add(product, _column(bias, out.ndim), out=target, casting="same_kind")

    _run_over_blocks(work, windows, groups * depth, out.size * depth)


# ---- col2im ----


def _overlap_windows(
    x: Array, weight: Array, bias: Array | None, out: Array, stride: Shape, padding: Pairs, dilation: Shape, groups: int
) -> None:
    """Fill ``out`` with the sums of the windows made from ``x``, without the padding."""
    lengths = tuple(n + before + after for n, (before, after) in zip(out.shape[2:], padding, strict=True))
    inner = tuple(slice(before, before + n) for n, (before, _) in zip(out.shape[2:], padding, strict=True))
    examples, inputs, counts = len(x), x.shape[1] // groups, x.shape[2:]
    outputs, size = weight.shape[1], weight.shape[2:]
    weights = weight.reshape(groups, inputs, outputs, *size)
    targets = out.reshape(examples, groups, outputs, *out.shape[2:])
    biases = None if bias is None else bias.reshape(groups, outputs, *[1] * len(size))

    blocks = cut(examples, counts, groups * outputs * math.prod(size), LONG // (groups * outputs))
    images = sorted({(e.start, e.stop) for e, _ in blocks})
    rows = [r for e, r in blocks if e.start == 0]
    # The windows of an example overlap, so threads split its channels.
    parts = min(outputs, num_threads()) if len(images) < num_threads() else 1
    bounds = [slice(outputs * i // parts, outputs * (i + 1) // parts) for i in range(parts)]
    if max(stride) == 1 and _shifts_pay(inputs, outputs, size, counts, lengths):
        sum_functions = [_shifted_sums(weights[:, :, c], lengths, dilation) for c in bounds]
    else:
        sum_functions = [_window_sums(weights[:, :, c], lengths, stride, dilation) for c in bounds]
    units = [(slice(*i), *c) for i in images for c in zip(bounds, sum_functions, strict=True)]

    by_example = (2, 0, 1, *range(3, 1 + out.ndim))

    def work(start: int, stop: int) -> None:
        for image, channels, sum_windows in units[start:stop]:
            some = x[image].swapaxes(0, 1)
            total = sum_windows(some.reshape(groups, inputs, *some.shape[1:]), rows)
            sums, target = total[(..., *inner)].transpose(by_example), targets[image, :, channels]
            if biases is None:
                np.copyto(target, sums, casting="same_kind")
            else:
                np.add(sums, biases[:, channels], out=target, casting="same_kind")

    run_blocks(work, len(units), x.size * outputs * math.prod(size))


def _shifts_pay(inputs: int, outputs: int, size: Shape, counts: Shape, lengths: Shape) -> bool:
    """Whether :func:`_shifted_sums` is faster than :func:`_window_sums`, in nanoseconds per position.

    Padded rows cost wasted products (80 multiplications per nanosecond) and copies of ``x``, but leave fewer and longer
    pieces to add.
    """
    waste = math.prod(lengths[1:]) / math.prod(counts[1:]) - 1
    elements = outputs * math.prod(size)
    products, copies = waste * inputs * elements / 80, inputs * size[-1] / 8
    return products + copies + elements / size[-1] * 3 / 8 < elements * 2 / 3


def _window_sums(weight: Array, lengths: Shape, stride: Shape, dilation: Shape) -> Sums:
    """The sums of the windows of ``x`` (groups, inputs, examples, *counts), one window element at a time."""
    groups, inputs, outputs, *size = weight.shape
    matrix = weight.reshape(groups, inputs, outputs * math.prod(size)).swapaxes(1, 2)

    def sum_windows(x: Array, blocks: list[slice]) -> Array:
        total = empty((groups, outputs, x.shape[2], *lengths), x.dtype)
        total.fill(0)
        for rows in blocks:
            some = x[:, :, :, rows]
            columns = some.reshape(groups, inputs, math.prod(some.shape[2:]))
            windows = np.matmul(matrix, columns, out=empty((groups, matrix.shape[1], columns.shape[2]), x.dtype))
            windows = windows.reshape(groups, outputs, *size, *some.shape[2:])
            reached = total[:, :, :, rows.start * stride[0] :]
            for offset in offsets(tuple(size)):
                place = reached[(..., *window_slices(offset, some.shape[3:], stride, dilation))]
                np.add(place, windows[(slice(None), slice(None), *offset)], out=place)
        return total

    return sum_windows


def _shifted_sums(weight: Array, lengths: Shape, dilation: Shape) -> Sums:
    """The sums of the windows for stride 1: with padded rows, each window element is one shift of all positions.

    Shifts along the last axis are applied to ``x``, and summed by the product; others are applied to the products.
    """
    groups, inputs, outputs, *size = weight.shape
    steps = [math.prod(lengths[i + 1 :]) for i in range(len(lengths))]
    shifts = [
        sum(o * d * s for o, d, s in zip(offset, dilation[:-1], steps[:-1], strict=True))
        for offset in offsets(tuple(size[:-1]))
    ]
    last, back = size[-1], (size[-1] - 1) * dilation[-1]
    split = weight.reshape(groups, inputs, outputs, len(shifts), last)
    matrix = split.transpose(0, 3, 2, 1, 4).reshape(groups, len(shifts) * outputs, inputs * last)

    def sum_windows(x: Array, blocks: list[slice]) -> Array:
        examples = x.shape[2]
        total = empty((groups, outputs, examples * lengths[0] * steps[0] + shifts[-1]), x.dtype)
        total.fill(0)
        for rows in blocks:
            some = x[:, :, :, rows]
            lead = lengths[0] if examples > 1 else some.shape[3] + (back if len(lengths) == 1 else 0)
            length = examples * lead * steps[0]
            laid = empty((groups, inputs, back + length), x.dtype)
            laid.fill(0)
            inside = laid[..., back:].reshape(groups, inputs, examples, lead, *lengths[1:])
            inside[(..., *(slice(n) for n in some.shape[3:]))] = some
            columns = empty((groups, inputs, last, length), x.dtype)
            strides = (*laid.strides[:2], -dilation[-1] * x.itemsize, x.itemsize)
            np.copyto(columns, np.ndarray(columns.shape, x.dtype, laid, back * x.itemsize, strides))
            columns = columns.reshape(groups, inputs * last, length)
            products = np.matmul(matrix, columns, out=empty((groups, matrix.shape[1], length), x.dtype))
            for i, shift in enumerate(shifts):
                start = rows.start * steps[0] + shift
                place = total[..., start : start + length]
                np.add(place, products[:, i * outputs : (i + 1) * outputs], out=place)
        whole = total[..., : examples * lengths[0] * steps[0]]
        return whole.reshape(groups, outputs, examples, *lengths)

    return sum_windows
