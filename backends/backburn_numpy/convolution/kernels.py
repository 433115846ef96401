"""NumPy: convolutions by compiled kernels, which copy windows and call a BLAS product block by block.

A thread processes its blocks without taking the GIL in between. Over three axes, without kernels, or with an unknown
BLAS library, the caller falls back to NumPy (:mod:`backburn_numpy.ops.conv`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from backburn.ops.conv import Pairs
from backburn_numpy import compiled, tuning
from backburn_numpy.compiled import FLOAT32
from backburn_numpy.convolution.blocks import Block, cut, flip_weight, run_blocks, team
from backburn_numpy.runtime import blas
from backburn_numpy.runtime.gemm import Epilogue
from backburn_numpy.runtime.memory import contiguous, empty
from backburn_numpy.runtime.threads import num_threads

Array = Any
Shape = tuple[int, ...]


#: The most output channels that the direct kernel sums at a time, and the positions of a vector.
MOST_CHANNELS, LANES = 8, 16
#: The most positions that kernels sum at a time.
TILE = 64
#: The kernel for few inputs sums the gradients of a multiple of this number of outputs.
SUMMED = 3


class Geometry:
    """The sizes of a convolution, from images (examples, channels, *lengths) to their windows' positions."""

    def __init__(
        self, images: Shape, places: Shape, size: Shape, stride: Shape, padding: Pairs, dilation: Shape, groups: int
    ) -> None:
        self.images, self.groups, self.examples = images, groups, images[0]
        self.inputs, self.outputs = images[1] // groups, places[1] // groups
        self.places, self.depth = places, self.inputs * math.prod(size)
        lead = (1,) * (2 - len(size))  # a sequence is a one-row image
        before = (*(0,) * len(lead), *(first for first, _ in padding))
        self.counts = (*lead, *places[2:])
        self.numbers = np.array(
            [groups, self.inputs, self.outputs, *lead, *images[2:], *self.counts, *lead, *size, *lead, *stride, *before,
             *lead, *dilation], np.int64,
        )  # fmt: skip
        self.size, self.stride, self.padding, self.dilation = size, stride, padding, dilation
        #: Multiplications in total.
        self.products = math.prod(places) * self.depth
        #: Whether the kernels work on planes instead of matrix products (``has_few_channels`` in C).
        self.is_thin = self.inputs == 1 and self.outputs < 4
        #: Whether windows are single elements, so that images are their own columns, and copying those of several
        #: examples side by side would take longer than packing the weight for each.
        positions = math.prod(self.counts)
        self.is_by_example = (
            math.prod(size) == max(stride) == 1
            and not any(map(any, padding))
            and positions >= tuning.CONV_MIN_GEMM_COLUMNS
            and self.inputs * self.outputs <= 2 * (self.inputs + self.outputs) * positions
        )
        #: Whether the direct kernel is faster than matrix products: not where padding rows to one length wastes too
        #: much, nor for few sums or windows, nor where a product needs no copy.
        _, length, _, _ = self.layout(1)
        self.is_direct = (
            math.prod(size) > 1
            and (math.prod(stride) <= tuning.CONV_MAX_PLANES or math.prod(size) >= 2 * math.prod(stride))
            and self.outputs >= tuning.CONV_MIN_OUTPUTS
            and self.depth >= tuning.CONV_MIN_DEPTH
            and self.examples * positions >= tuning.CONV_MIN_WINDOWS
            and -(-self.counts[0] * length // LANES) * LANES <= tuning.CONV_MAX_PADDING_RATIO * positions
        )
        #: Whether its copies of the image have a plane for each column of the windows, so that rows are adjacent: not
        #: where the copies take longer to write and read than the gaps between rows to compute.
        self.is_flat = (
            self.counts[0] > 1
            and stride[-1] == 1 < size[-1] <= tuning.CONV_MAX_COPIES
            and (self.inputs <= tuning.CONV_MAX_COPIED_INPUTS or length > tuning.CONV_MIN_GAP_RATIO * self.counts[1])
        )

        #: Whether the direct kernel for small images is faster, in which each thread packs the weight.
        self.is_small = (
            not self.is_direct
            and math.prod(size) > 1
            and self.inputs >= tuning.CONV_MIN_INPUTS
            and self.outputs >= 2 * tuning.CONV_MIN_OUTPUTS
            and self.counts[1] >= tuning.CONV_MIN_COLUMNS
            and self.examples * positions >= tuning.CONV_MIN_WINDOWS >> 1
        )
        #: Whether the direct kernel is faster for the gradient of the weight, whose tiles have 2 or 4 inputs by 3
        #: elements: for few of both most of the time goes into copying the gradients of the outputs.
        self.has_direct_weight_grad = (
            math.prod(size) > 2
            and self.inputs >= tuning.CONV_MIN_INPUTS
            and self.outputs >= tuning.CONV_MIN_OUTPUTS
            and self.depth >= tuning.CONV_MIN_DEPTH_FOR_WEIGHT_GRAD
        )

        #: Whether the kernel for few inputs is faster for that gradient. For each element of the weight it has a vector
        #: of sums, which it reads and writes for each example; the direct one has tiles of channels that may be empty.
        by_few = (
            _filled(self.depth, 9)
            * _filled(self.outputs, 3)
            * (_filled(positions, LANES) + tuning.CONV_SUM_COST / positions)
        )
        directly = _filled(self.inputs, 4) * _filled(math.prod(size), 3) * _filled(self.outputs, LANES)
        self.has_few_inputs = (
            not self.is_thin
            and (
                self.inputs < tuning.CONV_MIN_INPUTS
                or (self.has_direct_weight_grad and by_few < tuning.CONV_MAX_TIME_RATIO * directly)
            )
            and self.outputs >= tuning.CONV_MIN_OUTPUTS >> 1
            and self.depth * self.outputs <= tuning.CONV_MAX_VECTOR_SUMS
            and positions >= tuning.CONV_MIN_WINDOWS >> 1
        )

        #: The parts of the gradient of the weight, a power of two: each has a separate sum, so that the number of
        #: threads does not change results. Its call and its sum take at most a twentieth of a part's time.
        windows, weight = self.examples * positions, self.depth * self.outputs * groups
        least = (
            tuning.CONV_MIN_WINDOWS_SMALL_WEIGHT
            if weight <= tuning.CONV_SMALL_WEIGHT
            else tuning.CONV_MIN_WINDOWS_LARGE_WEIGHT
        )
        most = min(tuning.CONV_MAX_PARTIALS, windows // least, self.products // tuning.CONV_MIN_PRODUCTS_OF_PARTIAL)
        self.weight_parts = 1 << max(0, most.bit_length() - 1)

    def packing_pays(self) -> bool:
        """Whether each thread has enough windows to pack the weight, as the kernel for small images does."""
        windows = self.examples * math.prod(self.counts)
        return (
            self.depth * self.outputs <= tuning.CONV_MAX_PACKED_WEIGHT
            or windows >= (tuning.CONV_MIN_WINDOWS >> 1) * num_threads()
        )

    def layout(self, rows: int, flat: bool = False) -> tuple[int, int, int, int]:
        """The layout of images in kernels, for windows of ``rows`` rows (conv_layout.h).

        Returns the number of planes, the length of their rows, their size, and that of a table. With ``flat`` there are
        no gaps between rows.
        """
        window = [int(n) for n in self.numbers[7:]]
        size, stride, spacing = window[:2], window[2:4], window[6:]
        last = [(n - 1) * d for n, d in zip(size, spacing, strict=True)]
        row_planes, column_planes = (min(s, n + 1) for n, s in zip(last, stride, strict=True))
        above, left = (n // s for n, s in zip(last, stride, strict=True))
        if flat:
            column_planes, left = size[1], 0
        length = self.counts[1] + left
        planes = row_planes * column_planes
        return planes, length, (rows + above) * length + left + TILE, 2 * math.prod(size) + planes + 1

    def padded(self, blocks: Array) -> int:
        """Elements of the padded inputs of the largest of the blocks, and of two vectors for each of its positions."""
        window, stride, spacing = ([int(n) for n in self.numbers[i : i + 2]] for i in (7, 9, 13))
        examples, rows = int((blocks[:, 1] - blocks[:, 0]).max()), int((blocks[:, 3] - blocks[:, 2]).max())
        counts = rows, self.counts[1]
        sides = ((c - 1) * s + (n - 1) * d + 1 for c, s, n, d in zip(counts, stride, window, spacing, strict=True))
        return examples * (self.inputs * math.prod(sides) + 2 * LANES * math.prod(counts))

    @cached_property
    def flipped(self) -> Geometry | None:
        """The geometry of the transposed convolution, with the flipped weight; None unless the stride is 1."""
        if max(self.stride) > 1:
            return None
        reaches = [(n - 1) * spacing for n, spacing in zip(self.size, self.dilation, strict=True)]
        padding = tuple((r - before, r - after) for r, (before, after) in zip(reaches, self.padding, strict=True))
        return Geometry(self.places, self.images, self.size, self.stride, padding, self.dilation, self.groups)


def geometry(
    kernel: str, x: Array, images: Shape, places: Shape, size: Shape, stride: Shape, padding: Pairs, dilation: Shape,
    groups: int,
) -> Geometry | None:  # fmt: skip
    """The geometry for the kernel on ``x``; None if there is no kernel for such arrays."""
    if len(size) > 2 or not math.prod(images) or not math.prod(places) or not math.prod(size):
        return None
    if compiled.serving(kernel, x) is None or blas.sgemm_address() is None:
        return None
    found = _geometry(images, places, size, stride, padding, dilation, groups)
    return None if len(size) == 1 and found.depth * found.counts[1] > tuning.CONV_MAX_SEQUENCE else found


def _filled(count: int, tile: int) -> float:
    """The ratio of what whole tiles compute to the ``count`` that is wanted."""
    return -(-count // tile) * tile / count


_geometry = lru_cache(maxsize=256)(Geometry)


def convolve(x: Array, weight: Array, bias: Array | None, g: Geometry) -> Array:
    """The convolution of ``x``."""
    if g.is_direct:
        return convolve_direct(x, weight, bias, g)
    if g.is_small and g.packing_pays():
        return _convolve_small(x, weight, bias, g)
    out = empty(g.places, x.dtype)
    whole = _contiguous(out, x, weight, bias)

    def work(blocks: Array, memory: tuple[Array, Array]) -> None:
        _run_kernel("conv", whole, memory, g, (), blocks)

    _run_over_blocks(work, g, _blocks(g))
    return out


def convolve_direct(
    x: Array, weight: Array, bias: Array | None, g: Geometry, is_flipped: bool = False, epilogue: Epilogue | None = None
) -> Array:
    """The convolution of ``x``, some rows at a time, and its epilogue.

    If ``is_flipped``, the weight is that of a transposed convolution.
    """
    mask = None if epilogue is None else epilogue.mask
    out, whole, threads = empty(g.places, x.dtype), _contiguous(x, weight, bias, mask), team(g.products)
    row = g.inputs * g.images[-1] * (g.size[-1] if g.is_flat else 1)
    rows = max(8, tuning.CONV_ROW_ELEMENTS // row)
    if g.examples < threads:  # each takes some rows
        rows = min(rows, max(tuning.CONV_MIN_ROWS_OF_TASK, -(-g.counts[0] * g.examples // (2 * threads))))
    rows = min(rows, g.counts[0])
    planes, length, plane_stride, table = g.layout(rows, g.is_flat)
    packed = g.groups * -(-g.outputs // MOST_CHANNELS) * MOST_CHANNELS * g.depth
    size = g.inputs * planes * plane_stride + (0 if g.is_flat else MOST_CHANNELS * rows * length)
    grain = max(1, tuning.CONV_MIN_PRODUCTS_FOR_THREADS // 8 * g.counts[0] * g.examples // (rows * g.products))
    memory = empty((packed + threads * size,), np.dtype(np.float32)), np.empty(table, np.int64)
    kernel: Any = compiled.kernel("conv_direct")
    at = compiled.addresses(out, *whole, *memory, g.numbers)
    kernel(*at, epilogue is not None, g.examples, rows, size, grain, g.is_flat, is_flipped, threads)
    return out


def _convolve_small(x: Array, weight: Array, bias: Array | None, g: Geometry, is_flipped: bool = False) -> Array:
    """The convolution of small images ``x``, with the weight of a transposed convolution if ``is_flipped``."""
    out, whole = empty(g.places, x.dtype), _contiguous(x, weight, bias)
    blocks = _block_bounds(cut(g.examples, g.counts, tuning.CONV_BLOCK_SHARE * (g.inputs + g.outputs)))
    packed = -(-g.outputs // (2 * LANES)) * 2 * LANES * g.depth

    def part(start: int, stop: int) -> None:
        mine = blocks[start:stop]
        memory = empty((packed + g.padded(mine),), np.dtype(np.float32))
        kernel = compiled.kernel("conv_small")
        assert kernel is not None
        offsets = np.empty(math.prod(g.size), np.int64)
        kernel(
            *compiled.addresses(out, *whole, memory, offsets, g.numbers), is_flipped, compiled.address(mine), len(mine)
        )

    run_blocks(part, len(blocks), g.products, by_kernels=True)
    return out


def weight_grad(x: Array, grad: Array, g: Geometry) -> Array:
    """The gradient of the weight: (groups, outputs, depth)."""
    if g.has_few_inputs:
        return _weight_grad_of_few(x, grad, g)
    if g.has_direct_weight_grad:
        return _weight_grad_directly(x, grad, g)
    whole, parts, most = _contiguous(x, grad), g.weight_parts, 1 if g.is_thin else -(-g.outputs // LANES)
    # Summing large products costs more than cache misses.
    blocks = _block_bounds(
        _blocks(g, tuning.CONV_MIN_BLOCK_COLUMNS * (g.depth * g.outputs // tuning.CONV_BLOCK_ELEMENTS), parts)
    )
    # Products are faster with the longer side first; for large ones, transposing the result costs more than that.
    transposed = g.outputs < min(g.depth, tuning.CONV_MIN_OUTPUTS_FIRST) and not g.is_thin
    shape = (g.depth, g.outputs) if transposed else (g.outputs, g.depth)
    totals = np.zeros((parts, g.groups, *shape), np.float32)
    outputs_per_task = _shared(num_threads(), parts, most) * LANES
    bounds = [(first, min(first + outputs_per_task, g.outputs)) for first in range(0, g.outputs, outputs_per_task)]
    units = [
        (part, blocks[len(blocks) * part // parts : len(blocks) * (part + 1) // parts], some)
        for part in range(parts)
        for some in bounds
    ]

    def work(start: int, stop: int) -> None:
        memory = _memory(g, blocks)
        for part, mine, some in units[start:stop]:
            _run_kernel("conv_weight", [totals[part], *whole], memory, g, (transposed, *some), mine)

    run_blocks(work, len(units), g.products, by_kernels=True)
    result = np.add.reduce(totals, 0) if parts > 1 else totals[0]
    return result.swapaxes(1, 2) if transposed else result


def _shared(threads: int, parts: int, count: int) -> int:
    """How many of ``count`` portions of the outputs a thread takes: all, or so few that each has some.

    Where threads outnumber the parts of a sum, they share the outputs of each part, which changes no sum.
    """
    return -(-count // min(-(-threads // parts), count))


def _weight_grad_directly(x: Array, grad: Array, g: Geometry) -> Array:
    """The gradient of the weight without products, in the threads of kernels."""
    whole, parts, threads = _contiguous(x, grad), g.weight_parts, team(g.products)
    blocks = _cut_bounds(g.examples, g.counts, tuning.CONV_BLOCK_SHARE * (g.inputs + g.outputs), parts)
    width, size = -(-g.outputs // LANES) * LANES, g.padded(blocks)
    totals = np.zeros((parts, g.groups, g.depth, width), np.float32)
    memory = empty((threads * size,), np.dtype(np.float32))
    outputs_per_task = _shared(threads, parts, width // LANES) * LANES
    kernel: Any = compiled.kernel("conv_weight_direct")
    at = compiled.addresses(totals, *whole, memory, g.numbers, blocks)
    kernel(*at, len(blocks), size, width, parts, outputs_per_task, threads)
    result = np.add.reduce(totals, 0) if parts > 1 else totals[0]
    return result.swapaxes(1, 2)[:, : g.outputs]


def _weight_grad_of_few(x: Array, grad: Array, g: Geometry) -> Array:
    """The gradient of the weight for few inputs, in the threads of kernels."""
    whole, parts, threads = _contiguous(x, grad), g.weight_parts, team(g.products)
    blocks = _cut_bounds(g.examples, g.counts, g.outputs, parts)
    rows = int((blocks[:, 3] - blocks[:, 2]).max())
    outputs_per_task = _shared(threads, parts, -(-g.outputs // SUMMED)) * SUMMED
    planes, _, size, table = g.layout(rows, True)
    size = g.inputs * planes * size + g.groups * outputs_per_task * g.depth * LANES
    memory = empty((threads * size,), np.dtype(np.float32)), np.empty(table, np.int64)
    totals = empty((parts, g.groups, g.outputs, g.depth), np.dtype(np.float32))
    kernel: Any = compiled.kernel("conv_weight_few_channels")
    at = compiled.addresses(totals, *whole, *memory, g.numbers, blocks)
    kernel(*at, len(blocks), rows, size, parts, outputs_per_task, threads)
    return np.add.reduce(totals, 0) if parts > 1 else totals[0]


def overlap_windows(y: Array, weight: Array, bias: Array | None, g: Geometry) -> Array:
    """The sums of the windows computed from ``y``, in the shape of the images."""
    flipped = g.flipped
    if flipped is not None and flipped.is_small and flipped.packing_pays():
        return _convolve_small(y, weight, bias, flipped, is_flipped=True)
    if flipped is not None and flipped.is_direct:
        return convolve_direct(y, weight, bias, flipped, is_flipped=True)
    if flipped is not None and flipped.is_by_example:
        return convolve(y, flip_weight(weight, g.groups), bias, flipped)
    out = empty(g.images, y.dtype)
    whole = _contiguous(out, y, weight, bias)
    blocks = _block_bounds(cut(g.examples, g.counts, g.depth))
    images = [blocks[blocks[:, 0] == first] for first in np.unique(blocks[:, 0])]
    # The windows of an example overlap, so threads split its channels.
    parts = min(g.inputs, num_threads()) if len(images) < num_threads() else 1
    bounds = [(g.inputs * i // parts, g.inputs * (i + 1) // parts) for i in range(parts)]
    units = [(image, channels) for image in images for channels in bounds]

    def work(start: int, stop: int) -> None:
        memory = _memory(g, blocks)
        for channels in bounds:
            mine = [image for image, some in units[start:stop] if some == channels]
            if mine:
                _run_kernel("conv_input", whole, memory, g, channels, np.concatenate(mine))

    run_blocks(work, len(units), g.products, by_kernels=True)
    return out


def _contiguous(*arrays: Array | None) -> list[Array | None]:
    return [contiguous(a, FLOAT32) for a in arrays]


@lru_cache(maxsize=256)
def _cut_bounds(examples: int, counts: Shape, depth: int, shares: int) -> Array:
    return _block_bounds(cut(examples, counts, depth, shares=shares))


def _blocks(g: Geometry, least: int = 0, shares: int | None = None) -> list[Block]:
    """The blocks of a convolution, one product each, for ``shares`` shares: by default, one per thread."""
    if g.is_by_example and g.examples >= (shares or num_threads()):
        return [(slice(n, n + 1), slice(0, g.counts[0])) for n in range(g.examples)]
    return cut(g.examples, g.counts, g.depth, least, shares)


def _block_bounds(blocks: list[Block]) -> Array:
    return np.array([(e.start, e.stop, r.start, r.stop) for e, r in blocks], np.int64)


def _memory(g: Geometry, blocks: Array) -> tuple[Array, Array]:
    """Scratch memory for the columns of the largest block, and for its outputs."""
    if g.is_thin:  # the planes of an image, and of the outputs with a margin
        planes, _, plane_stride, table = g.layout(g.counts[0])
        return empty(((planes + 2) * plane_stride,), np.dtype(np.float32)), np.empty(table, np.int64)
    examples, rows = blocks[:, 1] - blocks[:, 0], blocks[:, 3] - blocks[:, 2]
    count = int((examples * rows).max()) * g.counts[1]
    side = count if int(examples.max()) > 1 else 0
    return empty((g.depth, count), np.dtype(np.float32)), empty((g.outputs, side), np.dtype(np.float32))


def _run_over_blocks(work: Callable[[Array, tuple[Array, Array]], None], g: Geometry, blocks: list[Block]) -> None:
    """Call ``work(blocks, memory)`` for each thread's part of the blocks."""
    numbers = _block_bounds(blocks)
    run_blocks(lambda i, j: work(numbers[i:j], _memory(g, numbers[i:j])), len(blocks), g.products, by_kernels=True)


def _run_kernel(
    name: str, arrays: Sequence[Array | None], memory: tuple[Array, Array], g: Geometry, options: Shape, blocks: Array
) -> None:
    kernel: Any = compiled.kernel(name)
    at = compiled.addresses(*arrays, *memory)
    kernel(*at, blas.sgemm_address(), compiled.address(g.numbers), *options, compiled.address(blocks), len(blocks))
