"""NumPy: reductions of large float arrays by compiled kernels, in several threads.

If the axes are the leading or the trailing ones, the array is a matrix whose columns or rows are reduced. If they are
adjacent, it is a stack of matrices; where their rows are many and short, NumPy would take ten times as long as a
kernel. In all other cases the functions return None, and NumPy does the work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from backburn_numpy import compiled, tuning
from backburn_numpy.compiled import FLOAT32
from backburn_numpy.elementwise.blocks import run_rows
from backburn_numpy.elementwise.half_precision import upcast_half, upcast_kernel
from backburn_numpy.runtime.memory import contiguous, empty, memory_ordered
from backburn_numpy.runtime.threads import parallel_for

Array = Any
Axes = tuple[int, ...]


def _matrix(x: Array, axis: Axes) -> tuple[Array, int] | None:
    """``x`` as a matrix, and the axis to reduce: 1 for rows, 0 for columns."""
    if (
        x.size < tuning.MIN_ELEMENTS_FOR_REDUCTION
        or x.dtype.kind != "f"
        or x.itemsize < 4
        or not x.flags.c_contiguous
        or not axis
    ):
        return None
    if axis == tuple(range(x.ndim - len(axis), x.ndim)):
        return x.reshape(math.prod(x.shape[: axis[0]]), -1), 1
    if axis == tuple(range(len(axis))):
        return x.reshape(-1, math.prod(x.shape[len(axis) :])), 0
    return None


def reduce_matrices(x: Array, axis: Axes, name: str) -> Array | None:
    """``x`` reduced over adjacent axes, flat, by the kernel of that name for many short rows; None for others."""
    if not axis or axis != tuple(range(axis[0], axis[-1] + 1)) or not x.flags.c_contiguous:
        return None
    number, inner = math.prod(x.shape[: axis[0]]), math.prod(x.shape[axis[-1] + 1 :])
    kernel, options = f"{name}_matrices", [inner]
    if axis[-1] == x.ndim - 1:
        if number < tuning.MIN_SHORT_ROWS:
            return None
        kernel, options = f"{name}_rows", []
    elif inner >= tuning.MAX_SHORT_ROW or x.size < tuning.MIN_SHORT_ROWS * inner or x.size == number * inner:
        return None
    out = np.empty(number * inner, x.dtype)
    return out if run_rows(kernel, (x, out), number, x.size // number, *options) else None


def _reordered(found: Array, lengths: list[int], order: list[int]) -> Array:
    """The flat result ``found``, of axes of these lengths, flat in another order of them."""
    return found.reshape(lengths).transpose(order).reshape(-1)


def _stack(x: Array, axis: Axes) -> tuple[Array, Callable[[Array], Array]] | None:
    """``x`` as matrices (number, rows, columns) whose rows are to be added; None if it is small, or not of floats.

    Also returns a function that puts the flat result in the order of the remaining axes. Axes are taken in memory
    order. Axes that are not adjacent are copied, and so are arrays with gaps, unless the reduction is along the
    shortest stride: NumPy sums these pairwise.
    """
    if x.size < tuning.MIN_ELEMENTS_FOR_REDUCTION or x.dtype.kind != "f" or x.itemsize < 4 or not axis:
        return None
    left = [i for i in range(x.ndim) if i not in axis]
    in_order: Callable[[Array], Array] = np.asarray
    if not x.flags.c_contiguous:
        ordered = memory_ordered(x)
        if ordered is None:
            strides = [abs(stride) for stride, length in zip(x.strides, x.shape, strict=True) if length > 1]
            if 0 in strides or min(strides) in [abs(x.strides[i]) for i in axis]:
                return None
            x = contiguous(x)
        else:
            (x,), places = ordered
            axis, others = tuple(sorted(places[i] for i in axis)), [places[i] for i in left]
            left = sorted(others)
            lengths, order = [x.shape[i] for i in left], [left.index(i) for i in others]
            in_order = partial(_reordered, lengths=lengths, order=order)
    if axis[-1] - axis[0] >= len(axis):
        rows = contiguous(x.transpose(*left, *axis))
        return rows.reshape(math.prod(x.shape[i] for i in left), -1, 1), in_order
    shape = math.prod(x.shape[: axis[0]]), -1, math.prod(x.shape[axis[-1] + 1 :])
    return x.reshape(shape), in_order


def sum_all(x: Array, axis: Axes) -> Array | None:
    """The sums of ``x`` over ``axis``, flat."""
    if compiled.serving("sum_rows", x) is None:
        return None
    found = reduce_matrices(x, axis, "sum")
    if found is not None:
        return found
    if (matrix := _matrix(x, axis)) is not None and matrix[1]:
        return _reduce_rows("sum_rows", np.add.reduce, matrix[0])
    rows = next((i for i in range(1, len(axis)) if axis[i:] == tuple(range(axis[i], x.ndim))), None)
    if (
        rows is not None
        and axis[rows] - axis[0] > rows
        and x.flags.c_contiguous
        and x.size >= tuning.MIN_ELEMENTS_FOR_REDUCTION
    ):
        # For example, sums of channels of images: first the rows, then the rest.
        found = sum_all(x, axis[rows:])
        if found is None:
            return None
        total = np.add.reduce(found.reshape(x.shape[: axis[rows]]), axis=axis[:rows], dtype=np.float64)
        return total.astype(x.dtype).reshape(-1)
    stack = _stack(x, axis)
    if stack is None:
        return None
    matrices, in_order = stack
    if matrices.shape[2] != 1:
        return in_order(_sum_columns_of(matrices))
    return in_order(_reduce_rows("sum_rows", np.add.reduce, matrices[:, :, 0]))


def _sum_columns_of(matrices: Array) -> Array:
    found = reduce_matrices(matrices, (1,), "sum")
    if found is not None:
        return found
    if matrices.shape[1] <= tuning.MAX_ROWS_SUMMED_IN_DTYPE:
        return np.add.reduce(matrices, axis=1)
    return sum_columns(matrices).astype(matrices.dtype)


def reduce_rows(x: Array, axis: Axes, kernel: str, join: Callable[[Array], Any]) -> Array | None:
    """``x`` reduced over the last axes by a kernel, flat, or None; ``join`` combines partial results."""
    matrix = _matrix(x, axis)
    return None if matrix is None or not matrix[1] else _reduce_rows(kernel, join, matrix[0])


def _reduce_rows(kernel: str, join: Callable[[Array], Any], lines: Array) -> Array | None:
    """Each row reduced by a kernel; a single long row is split."""
    if len(lines) == 1 and lines.size > 2 * tuning.SUM_ROW_ELEMENTS:
        cut = lines.size // tuning.SUM_ROW_ELEMENTS * tuning.SUM_ROW_ELEMENTS
        found = _reduce_rows(kernel, join, lines[:, :cut].reshape(-1, tuning.SUM_ROW_ELEMENTS))
        if found is None:
            return None
        return np.array([join(np.concatenate((found, lines[0, cut:]), dtype=np.float64))], lines.dtype)
    out = np.empty(len(lines), lines.dtype)
    return out if run_rows(kernel, (lines, out), *lines.shape) else None


def reduce_half(x: Array, axis: Axes, kernel: str, join: Callable[[Array], Any]) -> Array | None:
    """16-bit floats ``x`` reduced over the last axes by a kernel of float32, or summed over the first; flat, or None.

    The result is in float32; ``x`` is not copied.
    """
    widen, fast = upcast_kernel(x), compiled.kernel(kernel)
    if x.size < tuning.MIN_ELEMENTS_FOR_SHORT_ROWS or widen is None or fast is None or not axis:
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
    if len(lines) == 1 and width > tuning.SUM_ROW_ELEMENTS:
        cut = width // tuning.SUM_ROW_ELEMENTS * tuning.SUM_ROW_ELEMENTS
        parts = _reduce_half_rows(lines[:, :cut].reshape(-1, tuning.SUM_ROW_ELEMENTS), widen, fast, join)
        if parts is None:
            return None
        return np.array([join(np.concatenate((parts, upcast_half(lines[0, cut:])), dtype=np.float64))], FLOAT32)
    if width > tuning.SUM_ROW_ELEMENTS:
        return None
    out = np.empty(len(lines), FLOAT32)
    return out if run_rows("reduce_half_rows", (out, lines), len(lines), width, widen.where, fast.where) else None


def sum_columns(matrices: Array) -> Array:
    """The sums of the columns of contiguous matrices in float64."""
    return _over_columns("sum_columns", matrices)


def _over_columns(name: str, matrices: Array, *rows: Array) -> Array:
    """One number per column, by a kernel that takes ``rows``, too; several narrow rows of one matrix are joined."""
    fast: Any = compiled.serving(name, matrices)
    stack, count, width = matrices.shape
    number = max(1, min(tuning.MAX_SHORT_ROW // width, count)) if stack == 1 else 1
    cut, several = count // number * number, [np.tile(row, number) for row in rows]
    out = np.empty((stack * number, width))
    at = compiled.addresses(matrices, out, *several)
    sizes = stack, cut // number, number * width
    worth = max(tuning.MAX_SHORT_ROW, tuning.MIN_SUM_ELEMENTS_FOR_SECOND_THREAD // (stack * sizes[1]))
    parallel_for(lambda *part: fast(*at, *sizes, *part), sizes[2], worth)
    if number == 1:
        return out
    total = np.add.reduce(out, axis=0, keepdims=True)
    if cut < count:
        rest = matrices[:, cut:]
        fast(*compiled.addresses(rest, out, *several), 1, count - cut, width, 0, width)
        total += out[0]
    return total


def split(wide: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """``wide`` as sums of two numbers of the dtype."""
    first = wide.astype(dtype)
    return first, (wide - first).astype(dtype)


def squared_deviations(x: Array, axis: Axes) -> Array | None:
    """The sums of the squared deviations from the mean of ``x`` over ``axis``, flat, in float64."""
    stack = None if compiled.serving("deviation_rows", x) is None else _stack(x, axis)
    if stack is None:
        return None
    matrices, in_order = stack
    if matrices.shape[2] == 1:
        return in_order(_moments(matrices[:, :, 0])[1])
    means = split(sum_columns(matrices) / matrices.shape[1], x.dtype)
    return in_order(_over_columns("deviation_columns", matrices, *means))


def _moments(lines: Array) -> Array:
    """The means of the rows, and the sums of their squared deviations; a single long row is split."""
    if len(lines) > 1 or lines.size <= tuning.SUM_ROW_ELEMENTS:
        found = np.empty((2, len(lines)))
        run_rows("deviation_rows", (lines, *found), *lines.shape)
        return found
    cut = (lines.size - 1) // tuning.SUM_ROW_ELEMENTS * tuning.SUM_ROW_ELEMENTS
    pieces = [_moments(piece) for piece in (lines[:, :cut].reshape(-1, tuning.SUM_ROW_ELEMENTS), lines[:, cut:])]
    means, squares = np.concatenate(pieces, axis=1)
    counts = np.full(len(means), tuning.SUM_ROW_ELEMENTS)
    counts[-1] = lines.size - cut
    mean = np.add.reduce(means * counts) / lines.size
    return np.array([[mean], [np.add.reduce(squares + np.square(means - mean) * counts)]])
