"""NumPy: how the work of a convolution is cut into blocks and shared out between threads."""

from __future__ import annotations

import math
from collections.abc import Callable

from backburn_numpy import blas
from backburn_numpy.threads import for_parts, num_threads

Shape = tuple[int, ...]
Block = tuple[slice, slice]

#: Elements of the columns of one block, which stay in the second-level cache with what belongs to them,
COLUMNS = 1 << 18
#: but at least so many columns: a product with fewer spends its time on laying out the weight.
PLACES = 512

#: Gradients of weights for fewer outputs than this are computed with the windows' side first, where that is longer.
TURNED = 128

#: From so many multiplications on, blocks are shared out between threads.
WORTH = 1 << 21


def cut(examples: int, counts: Shape, depth: int, least: int = 0) -> list[Block]:
    """Blocks of examples, or of rows of one, whose columns of ``depth`` elements have about :data:`COLUMNS`.

    They are of at least :data:`PLACES` and ``least`` columns, if there are so many.
    """
    rows, row = counts[0], math.prod(counts[1:])
    limit, threads = max(COLUMNS // depth, PLACES, least), num_threads()
    if rows * row <= limit and examples >= threads:
        number = -(-examples // (limit // (rows * row)))
        step = -(-examples // min(examples, -(-number // threads) * threads))
        return [(slice(n, min(n + step, examples)), slice(0, rows)) for n in range(0, examples, step)]
    number = -(-rows // max(1, limit // row))
    if examples < threads:
        number = min(rows, -(-number // threads) * threads)
    step = -(-rows // number)
    return [(slice(n, n + 1), slice(r, min(r + step, rows))) for n in range(examples) for r in range(0, rows, step)]


def in_threads(work: Callable[[int, int], None], size: int, products: int) -> None:
    """``work`` on parts of ``range(size)``: in several threads, each with its own products, where that pays."""
    if size == 1 or products < WORTH or num_threads() == 1 or not blas.can_be_single():
        work(0, size)
        return
    with blas.single():
        for_parts(work, size, 2)
