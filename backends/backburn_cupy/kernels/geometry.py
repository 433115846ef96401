"""How many threads in how many blocks a kernel gets, and which of its variants: numbers in, numbers out."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

#: The most blocks of a grid's first axis, and the threads of a warp.
MOST_BLOCKS, WARP = 2**31 - 1, 32

#: Threads of a block whose threads work on their own.
THREADS = 256

#: Bytes of the widest access.
WIDEST = 16


class Launch(NamedTuple):
    """Blocks, and threads in each."""

    grid: int
    block: int


class Rows(NamedTuple):
    """How rows are worked on.

    ``lanes`` threads for each (0: a block), of which each keeps up to ``items`` elements (0: none, the row is read once
    for each pass).
    """

    lanes: int
    items: int
    grid: int
    block: int


#: The variants of a kernel that works on rows, (lanes, items), those for the shortest rows first.
ROW_VARIANTS = ((4, 8), (32, 8), (32, 32), (0, 8), (0, 16), (0, 0))


def ceil_div(n: int, d: int) -> int:
    """``n / d``, rounded up."""
    return -(-n // d)


def pack(itemsize: int) -> int:
    """The elements of one access."""
    return WIDEST // itemsize


@lru_cache(4096)
def rows(count: int, length: int, itemsize: int, processors: int, address: int = 1) -> Rows:
    """For ``count`` rows of ``length`` elements from ``address`` on, on a device with so many multiprocessors.

    A row of up to 1,024 elements is kept by a warp or less, one of up to 16,384 (8,192 of 64 bits) by a block, and
    longer ones are read again from the second-level cache. Few rows of middling length are given to blocks, so that
    more threads work.
    """
    aligned = address % WIDEST == 0 and length * itemsize % WIDEST == 0
    span = length if aligned else length + pack(itemsize) - 1  # the row may begin in the midst of an access
    for lanes, items in ROW_VARIANTS[:3]:
        if span <= lanes * items and (items == 8 or count >= 8 * processors):
            groups = max(1, min(THREADS // lanes, count // (2 * processors)))
            block = ceil_div(groups * lanes, WARP) * WARP
            return Rows(lanes, items, min(ceil_div(count, block // lanes), MOST_BLOCKS), block)
    # Of 16-bit elements eight are one access, which is little to have under way; two for each thread of a longer row.
    for lanes, items in ROW_VARIANTS[4 if itemsize == 2 and span >= 2048 else 3 : 5]:
        block = ceil_div(ceil_div(span, items), WARP) * WARP
        if block <= most_threads(itemsize):
            return Rows(lanes, items, min(count, MOST_BLOCKS), block)
    return Rows(0, 0, min(count, MOST_BLOCKS), most_threads(itemsize))


def most_threads(itemsize: int) -> int:
    """The threads of the largest block that works on a row: fewer where each needs more registers."""
    return 512 if itemsize == 8 else 1024


def elements(count: int, each: int) -> Launch:
    """For ``count`` elements of which a thread takes ``each`` at a time; the kernel goes on where the grid ends."""
    return Launch(max(1, min(ceil_div(count, THREADS * each), MOST_BLOCKS)), THREADS)


#: The variants of a kernel that sums columns as well, and so needs more registers.
SUM_VARIANTS = ((4, 8), (32, 8), (0, 8), (0, 0))


@lru_cache(4096)
def rows_with_sums(count: int, length: int, itemsize: int, processors: int) -> Rows:
    """Like :func:`rows`, for rows whose columns are summed as well.

    Rows begin with an access. Each block leaves a row of sums, so that there are no more blocks than run at a time, and
    each has some rows.
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
    """In how many parts the planes of each channel are summed: enough to occupy the device, at most one per plane."""
    return max(1, min(outer, ceil_div(8 * processors, channels)))


def columns(outer: int, channels: int, itemsize: int, processors: int) -> tuple[int, int]:
    """How many tiles of 32 accesses the channels form, and in how many parts of 8 rows at a time each is worked on."""
    tiles = ceil_div(channels, WARP * pack(itemsize))
    return tiles, max(1, min(ceil_div(outer, 8), ceil_div(8 * processors, tiles)))


#: How many tensors a step is launched over: what fits into 4 KB of parameters, and into the 32 KB of CUDA 12.1 and on.
TABLES = (48, 400)

#: Accesses that a thread makes to each tensor of a step.
STEP_PACKS = 4


def table(large: bool) -> int:
    """The tensors in one launch."""
    return TABLES[1] if large else TABLES[0]


def steps(sizes: list[int], itemsize: int) -> tuple[list[int], int]:
    """The first block of each tensor, and the number of blocks."""
    starts, blocks = [], 0
    for size in sizes:
        starts.append(blocks)
        blocks += ceil_div(size, THREADS * STEP_PACKS * pack(itemsize))
    return starts, blocks
