"""NumPy: indexing, gather and scatter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backburn.base.dtypes import DType, int64
from backburn.base.errors import ArgumentError, OutOfRangeError, ShapeError
from backburn.ops.bodies import quantized_moves
from backburn.ops.bodies.scalars import shape_or_none
from backburn.ops.bodies.shapes import check_not_negative, check_same_shape
from backburn.ops.index import added, gathered, scattered, untaken
from backburn.ops.table import OPERATIONS
from backburn_numpy import compiled, tuning
from backburn_numpy.elementwise.half_precision import cast_like, compute_dtype
from backburn_numpy.implements import implements
from backburn_numpy.ops.quantization import QuantizedArray
from backburn_numpy.runtime.memory import contiguous, empty
from backburn_numpy.runtime.threads import available, parallel_for

Array = Any
Shape = tuple[int, ...]

_ALL = slice(None)


@implements("slice", takes_backend=True)
def slice(k: Any, x: Array, /, key: Any) -> Array:
    if x.__class__ is QuantizedArray:
        return quantized_moves.slice_(k, x, key)
    return x[(*key, ...)]  # the Ellipsis keeps a 0-d result an array


@implements("select", takes_backend=True)
def select(k: Any, x: Array, /, axis: int, index: int) -> Array:
    if x.__class__ is QuantizedArray or index < 0:
        return OPERATIONS["select"].body(k, x, axis, index)
    return x[index, ...] if axis == 0 else x[(*(_ALL,) * axis, index, ...)]


@implements("slice_assign")
def slice_assign(x: Array, value: Any, /, key: Any) -> Array:
    out = _copy(x)
    out[key] = value
    return out


@implements("slice_backward")
def slice_backward(grad: Array, /, shape: Shape, key: Any) -> Array:
    out = _zeros(shape, grad.dtype)
    out[key] = grad
    return out


@implements("take_along_axis", takes_backend=True)
def take_along_axis(k: Any, x: Array, indices: Array, /, axis: int) -> Array:
    if x.__class__ is QuantizedArray:
        return quantized_moves.take_along_axis(k, x, indices, axis)
    gathered(x.shape, indices.shape, axis=axis)  # NumPy would broadcast the indices
    pays = (
        x.itemsize in (4, 8)
        and x.dtype.kind != "c"
        and indices.size >= tuning.MIN_ELEMENTS_FOR_KERNEL.get("take_places", 1)
    )
    if pays and math.prod(x.shape[axis + 1 :]) == 1 and compiled.kernel("take_places") is not None:
        out = empty(indices.shape, x.dtype)
        _run_places_kernel("take_places", x, wrap_indices(indices, x.shape[axis]), out, axis)
        return out
    return x[_grid(indices, axis)]


@implements("take_along_axis_backward")
def take_along_axis_backward(grad: Array, indices: Array, /, shape: Shape, axis: int) -> Array:
    check_not_negative("take_along_axis_backward", axis)
    check_same_shape("take_along_axis_backward", indices, grad)
    gathered(tuple(shape), indices.shape, axis=axis)
    if axis == len(shape) - 1 and indices.shape[axis] > 1:
        kernel = compiled.serving("spread_places", grad)
        if kernel is not None:
            return _spread_places(kernel, grad, wrap_indices(indices, shape[axis]), shape)
    out = _zeros(shape, compute_dtype(grad))
    _scatter_add(out, indices, grad, axis)
    return cast_like(out, grad)


@implements("scatter")
def scatter(x: Array, indices: Array, values: Any, /, axis: int, mode: str = "assign") -> Array:
    scattered(x.shape, indices.shape, getattr(values, "shape", None), axis=axis)
    if mode == "assign":
        out = _copy(x)
        # The last of several values for one position wins only if NumPy walks the indices forwards.
        out[_grid(np.ascontiguousarray(indices), axis)] = values
        return out
    if mode != "add":
        raise ArgumentError(f"scatter: the mode is 'assign' or 'add', not {mode!r}")
    out = _copy(x, compute_dtype(x))
    _scatter_add(out, indices, values, axis)
    return cast_like(out, x)


@implements("scatter_reduce")
def scatter_reduce(x: Array, indices: Array, values: Array, /, axis: int, mode: str) -> Array:
    ufunc = {"mul": np.multiply, "min": np.minimum, "max": np.maximum}.get(mode)
    if ufunc is None:
        raise ArgumentError(f"scatter_reduce: the mode is one of mul, min, max, not {mode!r}")
    scattered(x.shape, indices.shape, shape_or_none(values), axis=axis)
    out = _copy(x, compute_dtype(x))
    ufunc.at(out, _grid(indices, axis), values)
    return cast_like(out, x)


#: The most axes of NumPy's arrays, which its ``take`` does not check.
MOST_AXES = 64


@implements("take", takes_backend=True)
def take(k: Any, x: Array, indices: Array, /, axis: int) -> Array:
    if x.__class__ is QuantizedArray:
        return quantized_moves.take(k, x, indices, axis)
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    if len(shape) > MOST_AXES:
        raise ShapeError(f"the result would have {len(shape)} axes, more than {MOST_AXES}")
    size = math.prod(shape)
    if size and size * x.itemsize < tuning.MIN_POOLED_BYTES:
        return np.asarray(x.take(indices, axis))  # else a single element would be a scalar
    # NumPy does not check the indices of an empty result, and writes to ``out`` directly only in a mode without checks.
    return np.take(x, wrap_indices(indices, x.shape[axis]), axis, out=empty(shape, x.dtype), mode="clip")


@implements("take_backward")
def take_backward(grad: Array, indices: Array, /, length: int, axis: int) -> Array:
    check_not_negative("take_backward", axis)
    shape = untaken(grad.shape, indices.shape, length=length, axis=axis)
    out = _zeros(shape, compute_dtype(grad))
    # Kernels take one axis of entries, with its stride: several axes of indices become one.
    entries = grad.reshape(*grad.shape[:axis], indices.size, *grad.shape[axis + indices.ndim :])
    _add_entries(out, indices.reshape(-1), entries, axis)
    return cast_like(out, grad)


@implements("index_add")
def index_add(x: Array, indices: Array, values: Any, /, axis: int) -> Array:
    added(x.shape, indices.shape, shape_or_none(values), axis=axis)
    out = _copy(x, compute_dtype(x))
    _add_entries(out, indices, values, axis)
    return cast_like(out, x)


@implements("index_copy")
def index_copy(x: Array, indices: Array, values: Any, /, axis: int, donate: bool = False) -> Array:
    added(x.shape, indices.shape, shape_or_none(values), axis=axis)
    out = x if donate and x.flags.writeable else _copy(x)
    out[(*[np.s_[:]] * axis, np.ascontiguousarray(indices))] = values
    return out


@implements("gather_nd")
def gather_nd(x: Array, indices: Array, /) -> Array:
    if not indices.shape[-1]:  # no axis is indexed: every entry is x itself
        return np.broadcast_to(x, (*indices.shape[:-1], *x.shape))
    return np.asarray(x[(*np.moveaxis(indices, -1, 0), ...)])


@implements("nonzero")
def nonzero(x: Array, /) -> Array:
    return x.nonzero()[0][:, None] if x.ndim == 1 else np.argwhere(x)


@implements("one_hot")
def one_hot(x: Array, /, depth: int, dtype: DType = int64) -> Array:
    out = np.zeros((x.size, depth), dtype.dtype)
    out[np.arange(x.size), x.reshape(-1)] = 1
    return out.reshape(*x.shape, depth)


def _grid(indices: Array, axis: int) -> tuple[Array, ...]:
    """``indices`` along ``axis``, and each element's own position along the other axes."""
    rank = indices.ndim
    grid = [
        indices if i == axis else np.arange(n).reshape(-1, *[1] * (rank - 1 - i)) for i, n in enumerate(indices.shape)
    ]
    return tuple(grid)


def _copy(x: Array, dtype: Any = None) -> Array:
    """A writable C-contiguous copy, in another dtype if one is given."""
    out = empty(x.shape, x.dtype if dtype is None else dtype)
    np.copyto(out, x)
    return out


def _zeros(shape: Shape, dtype: Any) -> Array:
    """Writable zeros."""
    out = empty(shape, dtype)
    if out.nbytes < tuning.MIN_POOLED_BYTES:
        out.fill(0)
        return out
    flat = out.reshape(-1)
    parallel_for(lambda start, stop: flat[start:stop].fill(0), flat.size)
    return out


def wrap_indices(indices: Array, length: int) -> Array:
    """``indices`` made non-negative; raises for one out of range."""
    if not indices.size:
        return indices.astype(np.intp)
    # Without their signs, negative indices are large.
    if indices.dtype == np.int64 and np.maximum.reduce(indices.view(np.uint64), None) < length:
        return indices
    low, high = int(np.minimum.reduce(indices, None)), int(np.maximum.reduce(indices, None))
    if low < -length or high >= length:
        raise OutOfRangeError(f"index {high if high >= length else low} is out of range for an axis of {length}")
    indices = indices.astype(np.intp, copy=False)
    return np.where(indices < 0, indices + length, indices) if low < 0 else indices


def _scatter_add(out: Array, indices: Array, values: Any, axis: int) -> None:
    """Add ``values`` to ``out`` at ``indices`` along ``axis``."""
    if indices.shape[axis] == 1:  # no duplicates
        place = _grid(indices, axis)
        out[place] += values
        return
    length, after = out.shape[axis], math.prod(out.shape[axis + 1 :])
    before = math.prod(out.shape[:axis])
    in_range = wrap_indices(indices, length)
    values = _as_summands(values, out)
    if after == 1 and np.ndim(values) and compiled.serving("add_places", values) is not None:
        _run_places_kernel("add_places", out, in_range, values, axis)
        return
    flat = in_range.reshape(before, indices.shape[axis], after) * after
    flat += (np.arange(before) * (length * after))[:, None, None]
    flat += np.arange(after)
    _add_at(out.reshape(-1), flat.reshape(-1), values)


def _run_places_kernel(kernel: str, x: Array, indices: Array, values: Array, axis: int) -> None:
    """Call a kernel on the elements of ``x`` at ``indices`` along ``axis``, the last longer than 1, and on ``values``.

    A vector of indices is shared by all lines along the axis.
    """
    fast: Any = compiled.kernel(kernel if x.itemsize == 4 else f"{kernel}_double")
    shared = indices.ndim == 1
    length, count = x.shape[axis], indices.size if shared else indices.shape[axis]
    whole = [contiguous(a) for a in (x, indices.astype(np.int64, copy=False), values)]
    between = 0 if shared else count
    at, strides = [compiled.address(a) for a in whole], (x.itemsize * length, 8 * between, x.itemsize * count)
    if values.size < tuning.MIN_WORK_FOR_SECOND_THREAD:
        fast(*at, values.size // (count or 1), length, count, between)
        return

    def part(start: int, stop: int) -> None:
        fast(*(a + start * stride for a, stride in zip(at, strides, strict=True)), stop - start, length, count, between)

    parallel_for(part, values.size // count, each=count)


def _spread_places(kernel: Any, values: Array, indices: Array, shape: Shape) -> Array:
    """Zeros with the values added at ``indices`` along the last axis, line by line."""
    out, length, count = empty(shape, values.dtype), shape[-1], indices.shape[-1]
    whole = [contiguous(indices, np.dtype(np.int64)), contiguous(values)]  # copies live until the kernel has returned
    grain = max(1, tuning.ELEMENTS_PER_TASK // max(1, length))
    kernel(*compiled.addresses(out, *whole), values.size // count, length, count, grain, available())
    return out


def _add_entries(out: Array, indices: Array, values: Any, axis: int) -> None:
    """Add the entries of ``values`` to those of ``out`` at ``indices``, along ``axis``."""
    length, after = out.shape[axis], math.prod(out.shape[axis + 1 :])
    before = math.prod(out.shape[:axis])
    entries = wrap_indices(indices, length)
    values = _as_summands(values, out)
    if after == 1 and np.ndim(values) and compiled.serving("add_places", values) is not None:
        _run_places_kernel("add_places", out, entries, values, axis)
        return
    if before == after == 1:
        _add_elements(out.reshape(-1), entries, values)
        return
    if before != 1:
        entries = (entries + (np.arange(before) * length)[:, None]).reshape(-1)
    if np.ndim(values):
        values = values.reshape(entries.size, after)
        if (fast := compiled.serving("add_rows", values)) is not None:
            values, entries = contiguous(values), contiguous(entries, np.dtype(np.int64))
            at = compiled.addresses(out, entries, values)
            # Threads split the columns, since indices may repeat.
            parallel_for(lambda first, last: fast(*at, entries.size, after, first, last), after, each=entries.size)
            return
    _add_at(out.reshape(-1), (entries[:, None] * after + np.arange(after)).reshape(-1), values)


def _add_elements(out: Array, positions: Array, values: Any) -> None:
    """Add the elements of a vector, or one number, to those of ``out`` at positions in range."""
    if not np.ndim(values) and out.dtype.kind in "iu" and out.size <= positions.size:
        out += np.bincount(positions, minlength=out.size).astype(out.dtype) * values  # wraps as sums do
    else:
        _add_at(out, positions, values)


def _as_summands(values: Any, out: Array) -> Any:
    """An array of values in the dtype of ``out``: only then there are kernels and fast loops of NumPy."""
    return values.astype(out.dtype, copy=False) if np.ndim(values) else values


def _add_at(out: Array, positions: Array, values: Any) -> None:
    """Add to a flat array in place."""
    np.add.at(out, positions, values.reshape(-1) if np.ndim(values) else values)
