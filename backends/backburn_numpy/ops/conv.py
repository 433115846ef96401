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
    window_reach,
)
from backburn_numpy import tuning
from backburn_numpy.convolution import kernels
from backburn_numpy.convolution.blocks import Block, cut, flip_weight, run_blocks
from backburn_numpy.elementwise.half_precision import in_float32, is_half
from backburn_numpy.implements import implements
from backburn_numpy.ops.linalg import affine, matmul
from backburn_numpy.ops.shape import overlap_add, sliding_window
from backburn_numpy.runtime.gemm import Epilogue
from backburn_numpy.runtime.memory import empty
from backburn_numpy.runtime.threads import parallel_for

Array = Any
Shape = tuple[int, ...]


@implements("conv")
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
    if is_half(x):
        return in_float32(conv, x, weight, bias, stride, padding, dilation, groups)
    options = weight.shape[2:], stride, padding, dilation
    lengths = kernels.geometry("conv", x, x.shape, shape, *options, groups)
    if lengths is not None:
        return kernels.convolve(x, weight, bias, lengths)
    out = _convolve(_windows(x, *options), _group_matrices(weight, groups), shape)
    return out if bias is None else np.add(out, _column(bias, out.ndim), out=out)


@implements("conv_transpose")
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
    if is_half(x):
        return in_float32(conv_transpose, x, weight, bias, stride, padding, output_padding, dilation, groups)
    size = weight.shape[2:]
    lengths = kernels.geometry("conv_input", x, shape, x.shape, size, stride, padding, dilation, groups)
    if lengths is not None:
        return kernels.overlap_windows(x, weight, bias, lengths)
    # With stride 1 it is a convolution with the flipped weight, padded by the rest of the window.
    edges = [window_reach(n, spacing) - 1 for n, spacing in zip(size, dilation, strict=True)]
    rest = tuple((e - before, e - after) for e, (before, after) in zip(edges, padding, strict=True))
    if max(stride) == 1 and min(map(min, rest)) >= 0 and (x.shape[1] <= shape[1] or math.prod(size) == 1):
        matrices = _group_matrices(flip_weight(weight, groups), groups)
        out = _convolve(_windows(x, size, stride, rest, dilation), matrices, shape)
    else:
        out = _overlap_windows(x, weight, shape, stride, padding, dilation, groups)
    return out if bias is None else np.add(out, _column(bias, out.ndim), out=out)


@implements("conv_weight_backward")
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
    conv_weight_shape(x.shape, grad.shape, size=size,
             stride=stride, padding=padding, dilation=dilation, groups=groups)  # fmt: skip
    if _is_one_window(size, x.shape[2:], padding, dilation, groups):
        return matmul(_flat(grad).T, _flat(x)).reshape(grad.shape[1], x.shape[1], *size)
    if is_half(x):
        return in_float32(conv_weight_backward, x, grad, size, stride, padding, dilation, groups)
    lengths = kernels.geometry("conv_weight", x, x.shape, grad.shape, size, stride, padding, dilation, groups)
    channels, outputs = x.shape[1] // groups, grad.shape[1] // groups
    if lengths is not None:
        total = kernels.weight_grad(x, grad, lengths)
        return total.reshape(grad.shape[1], channels, *size)
    windows = _windows(x, size, stride, padding, dilation)
    depth = channels * math.prod(size)
    totals: dict[int, Array] = {}

    def work(first: int, blocks: list[Block]) -> None:
        total = totals[first] = np.zeros((groups, depth, outputs), windows.dtype)
        for examples, rows in blocks:
            slopes = _channel_rows(grad[examples, :, rows], groups)
            total += np.matmul(_columns(windows[examples, :, rows], groups), slopes.swapaxes(1, 2))

    if windows.size and grad.size:
        # Summing large products costs more than columns that do not fit the cache.
        _run_over_blocks(
            work,
            windows,
            groups * depth,
            windows.size * outputs,
            tuning.CONV_MIN_BLOCK_COLUMNS * (depth * outputs // tuning.CONV_BLOCK_ELEMENTS),
        )
    result = np.zeros((groups, depth, outputs), windows.dtype)
    for first in sorted(totals):
        result += totals[first]
    return result.swapaxes(1, 2).reshape(groups * outputs, channels, *size)


# ---- with an epilogue ----


def conv_then(
    epilogue: Epilogue, x: Array, weight: Array, bias: Array | None = None, /,
    stride: Shape = (1,), padding: Pairs = ((0, 0),), dilation: Shape = (1,), groups: int = 1,
) -> Array:  # fmt: skip
    """:func:`conv`, and its epilogue."""
    size, options = weight.shape[2:], (stride, padding, dilation, groups)
    shape = convolved(x.shape, weight.shape, None, stride=stride, padding=padding, dilation=dilation, groups=groups)
    g = kernels.geometry("conv", x, x.shape, shape, size, *options)
    if g is None or not g.is_direct or _is_one_window(size, x.shape[2:], padding, dilation, groups):
        return epilogue(conv(x, weight, bias, *options))
    return kernels.convolve_direct(x, weight, bias, g, epilogue=epilogue)


def conv_transpose_then(
    epilogue: Epilogue, x: Array, weight: Array, bias: Array | None = None, /,
    stride: Shape = (1,), padding: Pairs = ((0, 0),), output_padding: Shape = (0,), dilation: Shape = (1,),
    groups: int = 1,
) -> Array:  # fmt: skip
    """:func:`conv_transpose`, and its epilogue."""
    options = stride, padding, output_padding, dilation, groups
    shape = convolved_transposed(
        x.shape, weight.shape, None, stride=stride, padding=padding, output_padding=output_padding,
        dilation=dilation, groups=groups,
    )  # fmt: skip
    g = kernels.geometry("conv_input", x, shape, x.shape, weight.shape[2:], stride, padding, dilation, groups)
    flipped = None if g is None or math.prod(x.shape[2:]) == 1 else g.flipped
    if flipped is None or not flipped.is_direct:
        return epilogue(conv_transpose(x, weight, bias, *options))
    return kernels.convolve_direct(x, weight, bias, flipped, is_flipped=True, epilogue=epilogue)


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

        parallel_for(part, len(x), max(1, (tuning.CONV_MIN_PRODUCTS_FOR_THREADS >> 2) * len(x) // max(1, x.size)))
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


# ---- im2col and col2im ----


def _convolve(windows: Array, weight: Array, shape: Shape) -> Array:
    """The products of windows and weight."""
    groups, outputs, depth = weight.shape
    out = empty(shape, windows.dtype)
    if not windows.size:  # no channels, or an empty result
        out.fill(0)
        return out

    def work(first: int, blocks: list[Block]) -> None:
        for examples, rows in blocks:
            columns, target = _columns(windows[examples, :, rows], groups), out[examples, :, rows].swapaxes(0, 1)
            by_group = target.reshape(groups, outputs, columns.shape[2])
            if np.may_share_memory(by_group, out):
                np.matmul(weight, columns, out=by_group)
            else:
                np.copyto(target, np.matmul(weight, columns).reshape(target.shape))

    _run_over_blocks(work, windows, groups * depth, out.size * depth)
    return out


def _overlap_windows(
    x: Array, weight: Array, shape: Shape, stride: Shape, padding: Pairs, dilation: Shape, groups: int
) -> Array:
    """The sums of the windows computed from ``x``, some examples at a time, without the padding."""
    lengths = tuple(n + before + after for n, (before, after) in zip(shape[2:], padding, strict=True))
    inner = tuple(slice(before, before + n) for n, (before, _) in zip(shape[2:], padding, strict=True))
    outputs, size, rank = weight.shape[1], weight.shape[2:], x.ndim - 2
    matrix = weight.reshape(groups, x.shape[1] // groups, outputs * math.prod(size)).swapaxes(1, 2)
    out, axes = empty(shape, x.dtype), (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    step = max(1, tuning.CONV_BLOCK_ELEMENTS // max(1, groups * matrix.shape[1] * math.prod(x.shape[2:])))

    def work(start: int, stop: int) -> None:
        for first in range(start, stop, step):
            some = x[first : min(first + step, stop)]
            columns = some.reshape(len(some), groups, matrix.shape[2], math.prod(x.shape[2:]))
            windows = np.matmul(matrix, columns).reshape(len(some), shape[1], *size, *x.shape[2:]).transpose(axes)
            sums = overlap_add(windows, lengths, stride, tuple(range(2, 2 + rank)), dilation)
            out[first : first + len(some)] = sums[(..., *inner)]

    run_blocks(work, len(x), out.size * math.prod(size))
    return out
