"""NumPy: splitting a convolution into blocks and distributing them over threads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from backburn_numpy import tuning
from backburn_numpy.runtime import blas
from backburn_numpy.runtime.threads import available, num_threads, parallel_for

Array = Any
Shape = tuple[int, ...]
Block = tuple[slice, slice]


def cut(examples: int, counts: Shape, depth: int, least: int = 0, shares: int | None = None) -> list[Block]:
    """Blocks of examples, or of rows of one, with about ``CONV_BLOCK_ELEMENTS`` elements in columns of ``depth``.

    Each has at least ``CONV_MIN_BLOCK_COLUMNS`` and ``least`` columns, if there are as many. Their number is a multiple
    of ``shares``, by default the number of threads, if there is enough to split.
    """
    rows, row = counts[0], math.prod(counts[1:])
    limit, threads = (
        max(tuning.CONV_BLOCK_ELEMENTS // depth, tuning.CONV_MIN_BLOCK_COLUMNS, least),
        shares or num_threads(),
    )
    if rows * row <= limit and examples >= threads:
        number = -(-examples // (limit // (rows * row)))
        step = -(-examples // min(examples, -(-number // threads) * threads))
        return [(slice(n, min(n + step, examples)), slice(0, rows)) for n in range(0, examples, step)]
    number = -(-rows // max(1, limit // row))
    if examples < threads:
        number = min(rows, -(-number // threads) * threads)
    step = -(-rows // number)
    return [(slice(n, n + 1), slice(r, min(r + step, rows))) for n in range(examples) for r in range(0, rows, step)]


def flip_weight(weight: Array, groups: int) -> Array:
    """The weight (inputs, outputs / groups, ...) of a transposed convolution as that of a stride-1 convolution."""
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    back = (slice(None, None, -1),) * (weight.ndim - 2)
    split = weight.reshape(groups, inputs, *weight.shape[1:])[(..., *back)].swapaxes(1, 2)
    return split.reshape(groups * outputs, inputs, *weight.shape[2:])


def team(products: int) -> int:
    """The number of threads that a kernel may take for that many multiplications."""
    return available() if products >= tuning.CONV_MIN_PRODUCTS_FOR_THREADS else 1


def run_blocks(work: Callable[[int, int], None], size: int, products: int, by_kernels: bool = False) -> None:
    """Call ``work`` on parts of ``range(size)``, in several threads with single-threaded products if it pays.

    ``by_kernels`` if all its products are in kernels.
    """
    if (
        size == 1
        or products < tuning.CONV_MIN_PRODUCTS_FOR_THREADS
        or num_threads() == 1
        or not (by_kernels or blas.can_be_single())
    ):
        work(0, size)
        return
    with blas.single_in_kernels() if by_kernels else blas.single():
        parallel_for(work, size, 2)
