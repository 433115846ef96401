"""NumPy: reductions of large float arrays, in cache blocks and several threads.

If the axes are the leading or the trailing ones, the array is a matrix whose columns or rows are reduced. If they are
neighbours, it is a stack of matrices; where their rows are many and short, NumPy would take ten times as long as a
kernel. In all other cases the functions return None, and NumPy does the work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from backburn_numpy import compiled, halves
from backburn_numpy.blocks import BLOCK, WORTH, in_parts, scratch
from backburn_numpy.compiled import FLOAT32
from backburn_numpy.memory import empty
from backburn_numpy.rows import for_blocks, moments, powers, products, sums
from backburn_numpy.threads import WORTH_A_THREAD, for_parts

Array = Any
Axes = tuple[int, ...]

#: Smaller arrays are left to NumPy,
LARGE = 1 << 16
#: also by the kernels for many short rows, as are
SMALL = 1 << 12
#: longer rows of matrices whose columns are reduced, and fewer rows.
LONG, ROWS = 1 << 9, 1 << 8

#: The fewest elements for which a second thread pays for sums, which are fast.
WORTH_OF_SUMS = 3 << 20

#: The length of the rows into which a full sum is split.
ROW = 1 << 12


def _matrix(x: Array, axis: Axes) -> tuple[Array, int] | None:
    """``x`` as a matrix, and the axis to reduce: 1 for rows, 0 for columns."""
    if x.size < LARGE or x.dtype.kind != "f" or x.itemsize < 4 or not x.flags.c_contiguous or not axis:
        return None
    if axis == tuple(range(x.ndim - len(axis), x.ndim)):
        return x.reshape(math.prod(x.shape[: axis[0]]), -1), 1
    if axis == tuple(range(len(axis))):
        return x.reshape(-1, math.prod(x.shape[len(axis) :])), 0
    return None


def of_many(x: Array, axis: Axes, name: str) -> Array | None:
    """``x`` reduced over neighbouring axes, flat, by the kernel of that name for many short rows; None if not so."""
    if not axis or axis != tuple(range(axis[0], axis[-1] + 1)) or not x.flags.c_contiguous:
        return None
    number, inner = math.prod(x.shape[: axis[0]]), math.prod(x.shape[axis[-1] + 1 :])
    kernel, options = f"{name}_matrices", [inner]
    if axis[-1] == x.ndim - 1:
        if number < ROWS:
            return None
        kernel, options = f"{name}_rows", []
    elif inner >= LONG or x.size < ROWS * inner or x.size == number * inner:
        return None
    out = np.empty(number * inner, x.dtype)
    return out if in_parts(kernel, (x, out), number, x.size // number, *options) else None


def total(x: Array, axis: Axes) -> Array | None:
    """The sums of ``x`` over ``axis``, flat."""
    found = of_many(x, axis, "sum")
    if found is not None:
        return found
    matrix = _matrix(x, axis)
    if matrix is not None:
        return _total(*matrix)
    rows = next((i for i in range(1, len(axis)) if axis[i:] == tuple(range(axis[i], x.ndim))), None)
    if rows is None or x.size < LARGE or (found := total(x, axis[rows:])) is None:
        return None
    # As of the channels of images: the rows first, then what is left.
    return np.add.reduce(found.reshape(x.shape[: axis[rows]]), axis=axis[:rows]).reshape(-1)


def by_rows(x: Array, axis: Axes, kernel: str, join: Callable[[Array], Any]) -> Array | None:
    """``x`` reduced over the last axes by a kernel, flat, or None; ``join`` combines partial results."""
    matrix = _matrix(x, axis)
    return None if matrix is None or not matrix[1] else _by_rows(kernel, join, matrix[0])


def _by_rows(kernel: str, join: Callable[[Array], Any], lines: Array) -> Array | None:
    """Each row reduced by a kernel; a single long row is split."""
    if len(lines) == 1 and lines.size > 2 * ROW:
        cut = lines.size // ROW * ROW
        found = _by_rows(kernel, join, lines[:, :cut].reshape(-1, ROW))
        if found is None:
            return None
        return np.array([join(np.concatenate((found, lines[0, cut:]), dtype=np.float64))], lines.dtype)
    out = np.empty(len(lines), lines.dtype)
    return out if in_parts(kernel, (lines, out), *lines.shape) else None


def of_halves(x: Array, axis: Axes, kernel: str, join: Callable[[Array], Any]) -> Array | None:
    """16-bit floats ``x`` reduced over the last axes by a kernel of float32, or summed over the first; flat, or None.

    In float32, without a copy of ``x`` in memory.
    """
    widen, fast = halves.widening(x), compiled.kernel(kernel)
    if x.size < SMALL or widen is None or fast is None or not axis:
        return None
    if axis == tuple(range(x.ndim - len(axis), x.ndim)):
        return _rows_of_halves(x.reshape(math.prod(x.shape[: axis[0]]), -1), widen, fast, join)
    if axis == tuple(range(len(axis))) and kernel == "sum_rows":
        out = empty((math.prod(x.shape[len(axis) :]),), FLOAT32)
        sums: Any = compiled.kernel("column_sums_of_halves")
        sums(compiled.address(out), compiled.address(x), widen.where, x.size // out.size, out.size)
        return out
    return None


def _rows_of_halves(lines: Array, widen: Any, fast: Any, join: Callable[[Array], Any]) -> Array | None:
    """Each row reduced by the kernel ``fast``; a single long row is split."""
    width = lines.shape[1]
    if len(lines) == 1 and width > ROW:
        cut = width // ROW * ROW
        parts = _rows_of_halves(lines[:, :cut].reshape(-1, ROW), widen, fast, join)
        if parts is None:
            return None
        return np.array([join(np.concatenate((parts, halves.widened(lines[0, cut:])), dtype=np.float64))], FLOAT32)
    if width > ROW:
        return None
    out = np.empty(len(lines), FLOAT32)
    return out if in_parts("rows_of_halves", (out, lines), len(lines), width, widen.where, fast.where) else None


def _total(lines: Array, along: int) -> Array:
    if along == 1 and (found := _by_rows("sum_rows", np.add.reduce, lines)) is not None:
        return found
    if along == 0 and lines.size < WORTH_A_THREAD:
        return np.add.reduce(lines, axis=0)
    if along == 0:
        return _over_blocks(lines, lambda block: np.add.reduce(block, axis=0), WORTH_OF_SUMS)
    if len(lines) == 1 and lines.size > ROW:
        cut = lines.size // ROW * ROW
        return np.add.reduce(_total(lines[:, :cut].reshape(-1, ROW), 1)) + np.add.reduce(lines[:, cut:], axis=1)
    out = np.empty((len(lines), 1), lines.dtype)

    def part(start: int, stop: int) -> None:
        out[start:stop] = sums(lines[start:stop])

    for_parts(part, len(lines), max(1, WORTH_OF_SUMS // lines.shape[1]))
    return out[:, 0]


def _over_blocks(lines: Array, work: Callable[[Array], Array], worth: int = WORTH) -> Array:
    """The sum of ``work`` over blocks of rows, in row order, so that results are reproducible."""
    found: dict[int, Array] = {}

    def begin(part: slice) -> Callable[[slice], None]:
        rows, own = lines[part], np.zeros(lines.shape[1], lines.dtype)
        found[part.start] = own

        def add(block: slice) -> None:
            np.add(own, work(rows[block]), out=own)

        return add

    for_blocks(begin, lines, worth)
    return np.add.reduce([found[start] for start in sorted(found)], axis=0)


def _over_columns(lines: Array, work: Callable[[Array, Array], Array], row: Array) -> Array:
    """The sum of ``work(block, row)`` over blocks of rows; narrow ones are computed several beside each other."""
    number = max(1, min(LONG // row.size, len(lines)))
    cut, several = len(lines) // number * number, np.tile(row, number)
    found = _over_blocks(lines[:cut].reshape(-1, several.size), lambda block: work(block, several))
    found = np.add.reduce(found.reshape(number, row.size), axis=0)
    return found + work(lines[cut:], row) if cut < len(lines) else found


def squared_deviations(x: Array, axis: Axes) -> Array | None:
    """The sums of the squared deviations from the mean of ``x`` over ``axis``, flat."""
    matrix = _matrix(x, axis)
    if matrix is None:
        return None
    lines, along = matrix
    if along == 0:

        def squares(block: Array, mean: Array) -> Array:
            centred = np.subtract(block, mean, out=scratch(block))
            return np.add.reduce(np.square(centred, out=centred), axis=0)

        sum_of_all = of_many(lines, (0,), "sum")
        return _over_columns(lines, squares, (_total(lines, 0) if sum_of_all is None else sum_of_all) / len(lines))
    if len(lines) == 1:
        return _squares_of_all(lines[0], _total(lines, 1) / lines.size)
    out = np.empty((len(lines), 1), x.dtype)

    def begin(part: slice) -> Callable[[slice], None]:
        rows, target = lines[part], out[part]
        mean, variance = moments(rows)
        if variance is not None:
            np.multiply(variance, rows.shape[1], out=target)

        def centre(block: slice) -> None:
            if variance is None:
                centred = np.subtract(rows[block], mean[block], out=scratch(rows[block]))
                target[block] = products(centred, centred)

        return centre

    for_blocks(begin, lines, WORTH_OF_SUMS)
    return out[:, 0]


def _squares_of_all(x: Array, mean: Array) -> Array:
    found: dict[int, Array] = {}

    def part(start: int, stop: int) -> None:
        for first in range(start, stop, BLOCK):
            piece = x[first : min(first + BLOCK, stop)]
            centred = np.subtract(piece, mean, out=scratch(piece))
            found[first] = np.add.reduce(np.square(centred, out=centred), keepdims=True)

    for_parts(part, x.size, WORTH)
    return np.add.reduce([found[first] for first in sorted(found)], axis=0)


def logsumexp(x: Array, axis: Axes) -> Array | None:
    """The logarithms of the sums of exponentials of ``x`` over ``axis``, flat."""
    matrix = _matrix(x, axis)
    if matrix is None:
        return None
    lines, along = matrix
    if along == 0:
        return _of_columns(lines)
    out = np.empty((len(lines), 1), x.dtype)

    def begin(part: slice) -> Callable[[slice], None]:
        rows, target = lines[part], out[part]

        def work(block: slice) -> None:
            exponentials, top = powers(rows[block], scratch(rows[block]), finite=True)
            result = np.log(exponentials, out=target[block])
            if top is not None:
                np.add(result, top, out=result)

        return work

    for_blocks(begin, lines)
    return out[:, 0]


def _of_columns(lines: Array) -> Array:
    top = of_many(lines, (0,), "max")
    top = np.maximum.reduce(lines, axis=0) if top is None else top
    top[np.isinf(top)] = 0

    def exponentials(block: Array, top: Array) -> Array:
        shifted = np.subtract(block, top, out=scratch(block))
        return np.add.reduce(np.exp(shifted, out=shifted), axis=0)

    result = np.log(_over_columns(lines, exponentials, top))
    return np.add(result, top, out=result)
