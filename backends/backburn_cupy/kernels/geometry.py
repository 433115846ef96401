"""Launch dimensions and variants of kernels, as functions of plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

#: The most blocks along a grid's first axis, and the threads of a warp.
MOST_BLOCKS, WARP = 2**31 - 1, 32

#: Threads per block of kernels whose threads are independent.
THREADS = 256

#: Bytes of the widest access.
WIDEST = 16


class Launch(NamedTuple):
    """Blocks, and threads in each."""

    grid: int
    block: int


class Rows(NamedTuple):
    """The launch of a row kernel, and its variant.

    ``lanes`` threads per row (0: a block) each keep up to ``items`` elements in registers (0: the row is reread in each
    pass).
    """

    lanes: int
    items: int
    grid: int
    block: int


#: The variants of a row kernel, (lanes, items), shortest rows first.
ROW_VARIANTS = ((4, 8), (32, 8), (32, 32), (0, 8), (0, 16), (0, 0))


def ceil_div(n: int, d: int) -> int:
    """``n / d``, rounded up."""
    return -(-n // d)


def pack(itemsize: int) -> int:
    """The elements of one access."""
    return WIDEST // itemsize


@lru_cache(4096)
def rows(count: int, length: int, itemsize: int, processors: int, address: int = 1) -> Rows:
    """For ``count`` rows of ``length`` elements from ``address`` on, on a device with ``processors`` multiprocessors.

    A row of up to 1,024 elements is held by at most a warp, one of up to 16,384 (8,192 of 64 bits) by a block; longer
    ones are reread from the L2 cache. A few rows of medium length are given to blocks, to occupy more threads.
    """
    aligned = address % WIDEST == 0 and length * itemsize % WIDEST == 0
    span = length if aligned else length + pack(itemsize) - 1  # the row may be unaligned
    for lanes, items in ROW_VARIANTS[:3]:
        if span <= lanes * items and (items == 8 or count >= 8 * processors):
            groups = max(1, min(THREADS // lanes, count // (2 * processors)))
            block = ceil_div(groups * lanes, WARP) * WARP
            return Rows(lanes, items, min(ceil_div(count, block // lanes), MOST_BLOCKS), block)
    # A thread has 16 elements of a longer row. Eight of 16 bits would be one access, too few in flight; of 32 bits,
    # fewer threads have more bytes in flight, as registers limit how many a multiprocessor runs.
    for lanes, items in ROW_VARIANTS[4 if itemsize <= 4 and span >= 2048 else 3 : 5]:
        block = ceil_div(ceil_div(span, items), WARP) * WARP
        if block <= most_threads(itemsize):
            return Rows(lanes, items, min(count, MOST_BLOCKS), block)
    return Rows(0, 0, min(count, MOST_BLOCKS), 512)  # some blocks compute sums while others read


def most_threads(itemsize: int) -> int:
    """The most threads of a block that processes a row: fewer if each needs more registers."""
    return 512 if itemsize == 8 else 1024


def elements(count: int, each: int) -> Launch:
    """For ``count`` elements, ``each`` per thread at a time, in a grid-stride loop."""
    return Launch(max(1, min(ceil_div(count, THREADS * each), MOST_BLOCKS)), THREADS)


#: The variants of a row kernel that also sums columns, and so needs more registers.
SUM_VARIANTS = ((4, 8), (32, 8), (0, 8), (0, 0))


@lru_cache(4096)
def rows_with_sums(count: int, length: int, itemsize: int, processors: int) -> Rows:
    """Like :func:`rows`, for kernels that also sum columns.

    Packs start with the row. Each block writes a row of sums, so there are no more blocks than run concurrently, and
    each has several rows.
    """
    span = ceil_div(length, pack(itemsize)) * pack(itemsize)
    lanes, items = next(
        (v for v in SUM_VARIANTS[:2] if span <= v[0] * v[1]), (0, 8 if span <= 8 * most_threads(itemsize) else 0)
    )
    block = THREADS if lanes else ceil_div(ceil_div(span, 8), WARP) * WARP if items else 512
    groups = block // (lanes or block)
    most = max(processors, min(processors * max(1, 1024 // block), count // (8 * groups)))
    return Rows(lanes, items, min(ceil_div(count, groups), most), block)


def planes(outer: int, channels: int, processors: int) -> int:
    """The parts in which a channel's planes are summed: enough to occupy the device, at most one per plane."""
    return max(1, min(outer, ceil_div(8 * processors, channels)))


def columns(outer: int, channels: int, itemsize: int, processors: int) -> tuple[int, int]:
    """The number of tiles of 32 packs across the channels, and of parts of each, which take 8 rows at a time."""
    tiles = ceil_div(channels, WARP * pack(itemsize))
    return tiles, max(1, min(ceil_div(outer, 8), ceil_div(8 * processors, tiles)))


#: Tensors per launch of a step: what fits in 4 KB of kernel parameters, and in the 32 KB of CUDA 12.1 and later.
TABLES = (48, 400)

#: Packs per tensor and thread in a step.
STEP_PACKS = 4


def table(count: int, large: bool) -> int:
    """The tensors per launch, for ``count``: parameters are copied at each launch, so no more than needed."""
    return TABLES[large and count > TABLES[0]]


def steps(sizes: Sequence[int], itemsize: int) -> tuple[list[int], int]:
    """The first block of each tensor, and the number of blocks."""
    starts, blocks = [], 0
    for size in sizes:
        starts.append(blocks)
        blocks += ceil_div(size, THREADS * STEP_PACKS * pack(itemsize))
    return starts, blocks
