"""Element-wise kernels of two arrays that broadcast: on runs of elements where each is contiguous or one number."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from backburn.programs.fusion.plan import MAX_TERMS, Extent, Repeat, extent_in
from backburn_numpy import compiled, tuning
from backburn_numpy.elementwise.fused import FLIPPED
from backburn_numpy.runtime.memory import empty
from backburn_numpy.runtime.threads import available

Array = Any
Shape = tuple[int, ...]


class Runs(NamedTuple):
    """How a result of two shapes is computed in runs.

    ``number`` is the operand of which a run reads a single number, if any; ``rows_of_run`` is the number of rows of a
    run. ``terms`` are those of the operands (:func:`row_terms`), of the number last.
    """

    shape: Shape
    runs: int
    elements: int
    rows_of_run: int
    number: int | None
    terms: np.ndarray[Any, Any]


def row_terms(repeat: Repeat | None, step: int) -> np.ndarray[Any, Any]:
    """Where the rows of an array begin, which are ``step`` bytes apart, as ``repeat.h`` reads it."""
    terms = [(1, 0, 1)] if repeat is None else repeat.terms
    found = np.array([*terms, *[(1, 0, 0)] * (MAX_TERMS - len(terms))], np.int64)
    found[:, 2] *= step
    return found


@lru_cache(1024)
def runs_of(x: Shape, y: Shape, size: int) -> Runs | None:
    """The runs of arrays of two shapes, with elements of ``size`` bytes; None if they are short or of no such kind."""
    whole = np.broadcast_shapes(x, y)
    rows, width = prod(whole[:-1]), whole[-1]
    found = [extent_in(shape, whole) for shape in (x, y)]
    if not rows or None in found:
        return None
    extents, repeats = zip(*(pair for pair in found if pair is not None), strict=True)
    numbers = [i for i, extent in enumerate(extents) if extent in (Extent.ROW, Extent.ONE)]
    if len(numbers) == 2:
        return None
    block = rows
    for extent, repeat in zip(extents, repeats, strict=True):
        if extent in (Extent.ROW, Extent.COLUMN):
            block = 1
        elif repeat is not None:
            block = min(block, repeat.block)  # which divides the other
    if block * width < tuning.MIN_ELEMENTS_OF_RUN:
        return None
    if block * width > tuning.ELEMENTS_PER_TASK and width >= tuning.MIN_ELEMENTS_OF_RUN:
        block = 1  # for several threads
    terms = []
    for extent, repeat in zip(extents, repeats, strict=True):
        step = size * (width if extent in (Extent.FULL, Extent.COLUMN) else 1)
        is_same = repeat is None and extent in (Extent.COLUMN, Extent.ONE)  # in all rows
        terms.append(row_terms(repeat, 0 if is_same else step))
    number = numbers[0] if numbers else None
    return Runs(whole, rows // block, block * width, block, number, np.array(terms[::-1] if number == 0 else terms))


def broadcast_kernel(name: str, x: Array, y: Array) -> Array | None:
    """A kernel's result for two contiguous arrays of float32 or float64 that broadcast; None if none applies."""
    dtype = x.dtype
    if name not in FLIPPED or y.dtype is not dtype or dtype.kind != "f" or dtype.itemsize < 4:
        return None
    if not (x.flags.c_contiguous and y.flags.c_contiguous and x.ndim and y.ndim):
        return None
    size = dtype.itemsize
    if (runs := runs_of(x.shape, y.shape, size)) is None:
        return None
    if runs.number is not None:
        if runs.number == 0:
            name, x, y = FLIPPED[name], y, x
        name += "_number"
    fast: Any = compiled.kernel(name if size == 4 else f"{name}_double")
    run: Any = compiled.kernel("parallel_runs")
    if fast is None or run is None:
        return None
    out = empty(runs.shape, dtype)
    grain = max(1, tuning.ELEMENTS_PER_TASK // runs.elements)
    threads = available() if out.size >= tuning.MIN_ELEMENTS_FOR_NATIVE_THREADS else 1
    starts = compiled.addresses_of((out, x, y, runs.terms))
    run(fast.where, runs.runs, runs.elements, runs.rows_of_run, size, grain, threads, *starts)
    return out
