"""NumPy: convolutions by compiled kernels, which copy windows and call the BLAS library block after block.

Between the copies and the products of a thread's blocks no other thread's Python is waited for. Over three axes, and
where there are no kernels or the library is unknown, the caller has its own way (:mod:`backburn_numpy.conv`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from backburn.backend.conv import Pairs
from backburn_numpy import blas, compiled
from backburn_numpy.conv_blocks import COLUMNS, PLACES, TURNED, Block, cut, in_threads
from backburn_numpy.memory import empty
from backburn_numpy.threads import num_threads

Array = Any
Shape = tuple[int, ...]

#: Longer sequences are cut along their axis, which the kernels do not do.
LONG = 1 << 22


class Geometry:
    """The lengths of a convolution: of images (examples, channels, *lengths) and the places of their windows."""

    def __init__(
        self, images: Shape, places: Shape, size: Shape, stride: Shape, padding: Pairs, dilation: Shape, groups: int
    ) -> None:
        self.images, self.groups, self.examples = images, groups, images[0]
        self.inputs, self.outputs = images[1] // groups, places[1] // groups
        self.places, self.depth = places, self.inputs * math.prod(size)
        lead = (1,) * (2 - len(size))  # a sequence is an image of one row
        before = (*(0,) * len(lead), *(first for first, _ in padding))
        self.counts = (*lead, *places[2:])
        self.numbers = np.array(
            [groups, self.inputs, self.outputs, *lead, *images[2:], *self.counts, *lead, *size, *lead, *stride, *before,
             *lead, *dilation], np.int64,
        )  # fmt: skip
        #: Multiplications of the whole.
        self.products = math.prod(places) * self.depth
        #: The lengths of an image that all windows lie in.
        self.padded = [
            n + (m - 1) * spacing for n, m, spacing in zip(self.counts, (*lead, *size), (*lead, *dilation), strict=True)
        ]
        #: Whether the kernels take planes instead of products of matrices (``is_thin`` in conv.c).
        self.is_thin = self.inputs == 1 and self.outputs < 4


def geometry(
    kernel: str, x: Array, images: Shape, places: Shape, size: Shape, stride: Shape, padding: Pairs, dilation: Shape,
    groups: int,
) -> Geometry | None:  # fmt: skip
    """The lengths for a kernel that is given ``x``; None where there is none for such arrays."""
    if len(size) > 2 or not math.prod(images) or not math.prod(places) or not math.prod(size):
        return None
    if not compiled.serves(x) or compiled.kernel(kernel) is None or blas.product() is None:
        return None
    found = Geometry(images, places, size, stride, padding, dilation, groups)
    return None if len(size) == 1 and found.depth * found.counts[1] > LONG else found


def convolve(x: Array, weight: Array, bias: Array | None, g: Geometry) -> Array:
    """The convolution of ``x``."""
    out = empty(g.places, x.dtype)
    whole = _whole(out, x, weight, bias)

    def work(blocks: Array, memory: tuple[Array, Array]) -> None:
        _call("conv", whole, memory, g, (), blocks)

    _over_blocks(work, g, cut(g.examples, g.counts, g.depth))
    return out


def weight_gradient(x: Array, grad: Array, g: Geometry) -> Array:
    """The gradient of the weight: (groups, outputs, depth)."""
    # Products are faster with the longer side first; of large ones, turning the result round costs more than that.
    turned = g.outputs < min(g.depth, TURNED) and not g.is_thin
    totals: dict[tuple[int, int], Array] = {}
    whole = _whole(x, grad)

    def work(blocks: Array, memory: tuple[Array, Array]) -> None:
        total = np.zeros((g.groups, g.depth, g.outputs) if turned else (g.groups, g.outputs, g.depth), np.float32)
        totals[int(blocks[0, 0]), int(blocks[0, 2])] = total
        _call("conv_weight", [total, *whole], memory, g, (turned,), blocks)

    least = PLACES * (g.depth * g.outputs // COLUMNS)  # adding up large products costs more than columns out of cache
    _over_blocks(work, g, cut(g.examples, g.counts, g.depth, least))
    result = totals[min(totals)]
    for first in sorted(totals)[1:]:
        result += totals[first]
    return result.swapaxes(1, 2) if turned else result


def add_windows(y: Array, weight: Array, bias: Array | None, g: Geometry) -> Array:
    """The sum of the windows that the places of ``y`` make, in the shape of the images."""
    out = empty(g.images, y.dtype)
    whole = _whole(out, y, weight, bias)
    blocks = _numbers(cut(g.examples, g.counts, g.depth))
    images = [blocks[blocks[:, 0] == first] for first in np.unique(blocks[:, 0])]
    # Windows of one example overlap: what several threads share of it is its channels.
    parts = min(g.inputs, num_threads()) if len(images) < num_threads() else 1
    bounds = [(g.inputs * i // parts, g.inputs * (i + 1) // parts) for i in range(parts)]
    units = [(image, channels) for image in images for channels in bounds]

    def work(start: int, stop: int) -> None:
        memory = _memory(g, blocks)
        for channels in bounds:
            mine = [image for image, some in units[start:stop] if some == channels]
            if mine:
                _call("conv_input", whole, memory, g, channels, np.concatenate(mine))

    in_threads(work, len(units), g.products)
    return out


def _whole(*arrays: Array | None) -> list[Array | None]:
    return [None if a is None else np.ascontiguousarray(a, np.float32) for a in arrays]


def _numbers(blocks: list[Block]) -> Array:
    return np.array([(e.start, e.stop, r.start, r.stop) for e, r in blocks], np.int64)


def _memory(g: Geometry, blocks: Array) -> tuple[Array, Array]:
    """Memory for the columns of the largest block, and for its outputs side by side."""
    if g.is_thin:  # an image and its outputs, in rows of the padded length
        height, width = g.padded
        return empty((2 * height + 1, width), np.dtype(np.float32)), np.empty(0, np.float32)
    examples, rows = blocks[:, 1] - blocks[:, 0], blocks[:, 3] - blocks[:, 2]
    count = int((examples * rows).max()) * g.counts[1]
    side = count if int(examples.max()) > 1 else 0
    return empty((g.depth, count), np.dtype(np.float32)), empty((g.outputs, side), np.dtype(np.float32))


def _over_blocks(work: Callable[[Array, tuple[Array, Array]], None], g: Geometry, blocks: list[Block]) -> None:
    """Call ``work(blocks, memory)`` for the parts of several threads."""
    numbers = _numbers(blocks)
    in_threads(lambda i, j: work(numbers[i:j], _memory(g, numbers[i:j])), len(blocks), g.products)


def _call(
    name: str, arrays: Sequence[Array | None], memory: tuple[Array, Array], g: Geometry, options: Shape, blocks: Array
) -> None:
    kernel = compiled.kernel(name)
    assert kernel is not None
    at = [None if a is None else compiled.address(a) for a in (*arrays, *memory)]
    kernel(*at, blas.product(), compiled.address(g.numbers), *options, compiled.address(blocks), len(blocks))
