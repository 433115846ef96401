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

from backburn_numpy import compiled
from backburn_numpy.blocks import BLOCK, WORTH, run_rows, scratch
from backburn_numpy.compiled import FLOAT32
from backburn_numpy.half_precision import upcast_half, upcast_kernel
from backburn_numpy.memory import empty
from backburn_numpy.row_kernels import dot_keepdims, exp_and_sum, for_blocks, moments, sum_keepdims, sum_parts
from backburn_numpy.threads import WORTH_A_THREAD, parallel_for

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


def reduce_matrices(x: Array, axis: Axes, name: str) -> Array | None:
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
    return out if run_rows(kernel, (x, out), number, x.size // number, *options) else None


def sum_all(x: Array, axis: Axes) -> Array | None:
    """The sums of ``x`` over ``axis``, flat."""
    found = reduce_matrices(x, axis, "sum")
    if found is not None:
        return found
    matrix = _matrix(x, axis)
    if matrix is not None:
        return _sum_matrix(*matrix)
    rows = next((i for i in range(1, len(axis)) if axis[i:] == tuple(range(axis[i], x.ndim))), None)
    if rows is None or x.size < LARGE or (found := sum_all(x, axis[rows:])) is None:
        return None
    # For example, sums of channels of images: first the rows, then the rest.
    total = np.add.reduce(found.reshape(x.shape[: axis[rows]]), axis=axis[:rows], dtype=np.float64)
    return total.astype(x.dtype).reshape(-1)


def reduce_rows(x: Array, axis: Axes, kernel: str, join: Callable[[Array], Any]) -> Array | None:
    """``x`` reduced over the last axes by a kernel, flat, or None; ``join`` combines partial results."""
    matrix = _matrix(x, axis)
    return None if matrix is None or not matrix[1] else _reduce_rows(kernel, join, matrix[0])


def _reduce_rows(kernel: str, join: Callable[[Array], Any], lines: Array) -> Array | None:
    """Each row reduced by a kernel; a single long row is split."""
    if len(lines) == 1 and lines.size > 2 * ROW:
        cut = lines.size // ROW * ROW
        found = _reduce_rows(kernel, join, lines[:, :cut].reshape(-1, ROW))
        if found is None:
            return None
        return np.array([join(np.concatenate((found, lines[0, cut:]), dtype=np.float64))], lines.dtype)
    out = np.empty(len(lines), lines.dtype)
    return out if run_rows(kernel, (lines, out), *lines.shape) else None


def reduce_half(x: Array, axis: Axes, kernel: str, join: Callable[[Array], Any]) -> Array | None:
    """16-bit floats ``x`` reduced over the last axes by a kernel of float32, or summed over the first; flat, or None.

    In float32, without a copy of ``x`` in memory.
    """
    widen, fast = upcast_kernel(x), compiled.kernel(kernel)
    if x.size < SMALL or widen is None or fast is None or not axis:
        return None
    if axis == tuple(range(x.ndim - len(axis), x.ndim)):
        return _reduce_half_rows(x.reshape(math.prod(x.shape[: axis[0]]), -1), widen, fast, join)
    if axis == tuple(range(len(axis))) and kernel == "sum_rows":
        out = empty((math.prod(x.shape[len(axis) :]),), FLOAT32)
        sum_columns: Any = compiled.kernel("sum_half_columns")
        sum_columns(compiled.address(out), compiled.address(x), widen.where, x.size // out.size, out.size)
        return out
    return None


def _reduce_half_rows(lines: Array, widen: Any, fast: Any, join: Callable[[Array], Any]) -> Array | None:
    """Each row reduced by the kernel ``fast``; a single long row is split."""
    width = lines.shape[1]
    if len(lines) == 1 and width > ROW:
        cut = width // ROW * ROW
        parts = _reduce_half_rows(lines[:, :cut].reshape(-1, ROW), widen, fast, join)
        if parts is None:
            return None
        return np.array([join(np.concatenate((parts, upcast_half(lines[0, cut:])), dtype=np.float64))], FLOAT32)
    if width > ROW:
        return None
    out = np.empty(len(lines), FLOAT32)
    return out if run_rows("reduce_half_rows", (out, lines), len(lines), width, widen.where, fast.where) else None


def _sum_matrix(lines: Array, along: int) -> Array:
    if along == 1 and (found := _reduce_rows("sum_rows", np.add.reduce, lines)) is not None:
        return found
    if along == 0:
        found = sum_columns(lines)
        return (np.add.reduce(lines, axis=0, dtype=np.float64) if found is None else found).astype(lines.dtype)
    if len(lines) == 1 and lines.size > ROW:
        cut = lines.size // ROW * ROW
        return np.add.reduce(_sum_matrix(lines[:, :cut].reshape(-1, ROW), 1)) + np.add.reduce(lines[:, cut:], axis=1)
    out = np.empty((len(lines), 1), lines.dtype)

    def part(start: int, stop: int) -> None:
        out[start:stop] = sum_keepdims(lines[start:stop])

    parallel_for(part, len(lines), max(1, WORTH_OF_SUMS // lines.shape[1]))
    return out[:, 0]


def _sum_blocks(lines: Array, work: Callable[[Array], Array], worth: int = WORTH) -> Array:
    """The sum of ``work`` over blocks of rows, in row order, so that results are reproducible."""
    found: dict[int, Array] = {}

    def begin(part: slice) -> Callable[[slice], None]:
        rows, own = lines[part], np.zeros(lines.shape[1], lines.dtype)
        found[part.start] = own

        def add(block: slice) -> None:
            np.add(own, work(rows[block]), out=own)

        return add

    for_blocks(begin, lines, worth)
    return sum_parts(found)


def _sum_columns(lines: Array, work: Callable[[Array, Array], Array], row: Array) -> Array:
    """The sum of ``work(block, row)`` over blocks of rows; several narrow rows are joined to one."""
    number = max(1, min(LONG // row.size, len(lines)))
    cut, several = len(lines) // number * number, np.tile(row, number)
    found = _sum_blocks(lines[:cut].reshape(-1, several.size), lambda block: work(block, several))
    found = np.add.reduce(found.reshape(number, row.size), axis=0)
    return found + work(lines[cut:], row) if cut < len(lines) else found


def sum_columns(lines: Array) -> Array | None:
    """The sums of the columns of a contiguous matrix in float64, by a kernel; None if there is none."""
    return _over_columns("sum_columns", lines)


def _over_columns(name: str, lines: Array, *rows: Array) -> Array | None:
    """One number for each column, by a kernel that gets ``rows`` too; several narrow rows are joined to one."""
    fast = compiled.serving(name, lines)
    if fast is None:
        return None
    number = max(1, min(LONG // lines.shape[1], len(lines)))
    cut, several = len(lines) // number * number, [np.tile(row, number) for row in rows]
    out = np.empty((number, lines.shape[1]))
    count, width = cut // number, out.size
    at = compiled.addresses(lines, out, *several)
    parallel_for(lambda *part: fast(*at, count, width, *part), width, max(LONG, WORTH_OF_SUMS // count))
    total = np.add.reduce(out, axis=0)
    if cut < len(lines):
        rest = lines[cut:]
        fast(*compiled.addresses(rest, out, *several), len(rest), out.shape[1], 0, out.shape[1])
        total += out[0]
    return total


def split(wide: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """The numbers ``wide`` as sums of two of the dtype."""
    first = wide.astype(dtype)
    return first, (wide - first).astype(dtype)


def squared_deviations(x: Array, axis: Axes) -> Array | None:
    """The sums of the squared deviations from the mean of ``x`` over ``axis``, flat, in float64."""
    matrix = _matrix(x, axis)
    if matrix is None:
        return None
    lines, along = matrix
    if along == 0:
        sums = sum_columns(lines)
        return None if sums is None else _over_columns("deviation_columns", lines, *split(sums / len(lines), x.dtype))
    found = _moments(lines)
    return None if found is None else found[1]


def _moments(lines: Array) -> Array | None:
    """The means of the rows, and the sums of their squared deviations, by a kernel; a single long row is split."""
    if len(lines) == 1 and lines.size > ROW:
        cut = lines.size // ROW * ROW
        pieces = [piece for piece in (lines[:, :cut].reshape(-1, ROW), lines[:, cut:]) if piece.size]
        found = [_moments(piece) for piece in pieces]
        if found[0] is None:
            return None
        (means, squares), counts = np.concatenate(found, axis=1), np.repeat(*np.array([p.shape for p in pieces])[:, ::-1].T)
        mean = np.vdot(means, counts) / lines.size
        return np.array([[mean], [np.add.reduce(squares) + np.vdot(np.square(means - mean), counts)]])
    found = np.empty((2, len(lines)))
    return found if run_rows("deviation_rows", (lines, *found), *lines.shape) else None


def logsumexp(x: Array, axis: Axes) -> Array | None:
    """The logarithms of the sums of exponentials of ``x`` over ``axis``, flat."""
    matrix = _matrix(x, axis)
    if matrix is None:
        return None
    lines, along = matrix
    if along == 0:
        return _logsumexp_columns(lines)
    out = np.empty((len(lines), 1), x.dtype)

    def begin(part: slice) -> Callable[[slice], None]:
        rows, target = lines[part], out[part]

        def work(block: slice) -> None:
            exponentials, top = exp_and_sum(rows[block], scratch(rows[block]), finite=True)
            result = np.log(exponentials, out=target[block])
            if top is not None:
                np.add(result, top, out=result)

        return work

    for_blocks(begin, lines)
    return out[:, 0]


def _logsumexp_columns(lines: Array) -> Array:
    top = reduce_matrices(lines, (0,), "max")
    top = np.maximum.reduce(lines, axis=0) if top is None else top
    top[np.isinf(top)] = 0

    def exponentials(block: Array, top: Array) -> Array:
        shifted = np.subtract(block, top, out=scratch(block))
        return np.add.reduce(np.exp(shifted, out=shifted), axis=0)

    result = np.log(_sum_columns(lines, exponentials, top))
    return np.add(result, top, out=result)
