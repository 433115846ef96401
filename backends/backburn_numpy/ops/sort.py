"""NumPy: sorting and searching.

NumPy's stable sort is several times slower than its default one, except for 16 bits, for which it is a radix sort. So
integers of a small range are converted to 16 bits, and other large inputs avoid the stable sort: elements of at most 32
bits, and integers whose range is not too large, are sorted as integers that include the index, so that no two are
equal; wider floats are first sorted unstably, which matters only if some are equal. 16-bit floats are compared as
float32, which is exact: bfloat16's comparison does not order NaN.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backburn.ops.sort import topk_shape
from backburn.ops.table import OPERATIONS
from backburn_numpy import tuning
from backburn_numpy.elementwise.half_precision import cast_like, upcast_half
from backburn_numpy.implements import implements
from backburn_numpy.ops import reduce
from backburn_numpy.ops.index import take_along_axis
from backburn_numpy.runtime.memory import contiguous

Array = Any


@implements("argsort")
def argsort(x: Array, /, axis: int, descending: bool = False) -> Array:
    key = upcast_half(x)
    if x.size < tuning.MIN_ELEMENTS_FOR_KEY_SORT:
        return _stable_argsort(_reverse_order(key) if descending else key, axis)
    if key.dtype.kind in "iub" and (small := _as_uint16(key)) is not None:
        return _stable_argsort(np.invert(small[0]) if descending else small[0], axis)
    if key.dtype.itemsize <= 4:
        numbers = _pack_indices(key, axis, descending)
        numbers.sort(axis=axis)
        return _unpack_indices(numbers)
    if descending:
        key = _reverse_order(key)
    if key.dtype.kind in "iu":
        least, bits = key.min(), (x.shape[axis] - 1).bit_length()
        if int(key.max()) - int(least) >= 1 << (63 - bits):
            return _stable_argsort(key, axis)
        numbers = np.left_shift(np.subtract(key, least).astype(np.int64, copy=False), bits)
        numbers |= _positions(numbers, axis)
        numbers.sort(axis=axis)
        return np.bitwise_and(numbers, (1 << bits) - 1, out=numbers)
    order = np.argsort(key, axis=axis)
    ordered = np.moveaxis(np.take_along_axis(key, order, axis), axis, -1)
    rises = np.less(ordered[..., :-1], ordered[..., 1:]).all()
    return order.astype(np.int64, copy=False) if rises else _stable_argsort(key, axis)


def _stable_argsort(key: Array, axis: int) -> Array:
    return key.argsort(axis, "stable").astype(np.int64, copy=False)


def _as_uint16(x: Array) -> tuple[Array, Array] | None:
    """Integers minus their minimum, in 16 bits, and the minimum; None if they do not fit."""
    wide = x if x.itemsize > 2 else x.astype(np.int32)
    least = wide.min()
    return (np.subtract(wide, least).astype(np.uint16), least) if int(wide.max()) - int(least) < 1 << 16 else None


def _reverse_order(x: Array) -> Array:
    """``x`` with the order of its values reversed; its own inverse.

    Integers are inverted, since negating the smallest one overflows; a negated NaN is NaN, and still sorts last.
    """
    return np.invert(x) if x.dtype.kind in "iub" else np.negative(x)


def _pack_indices(x: Array, axis: int, descending: bool) -> Array:
    """Integers ordered as ``x``, of at most 32 bits, with the index in the lower half."""
    if x.dtype.kind == "f":
        # The bits of floats are ordered, except that negative ones are reversed; -0 becomes 0.
        numbers = np.add(x, np.float32(0.0)).view(np.int32).astype(np.int64)
        np.bitwise_xor(numbers, np.right_shift(numbers, 31) & 0x7FFFFFFF, out=numbers)
    else:
        numbers = x.astype(np.int64)
        if x.dtype == np.uint32:
            numbers -= 1 << 31
    if descending:
        np.invert(numbers, out=numbers)
    if x.dtype.kind == "f":
        numbers[np.isnan(x)] = 0x7FFFFFFF
    numbers <<= 32
    numbers |= _positions(x, axis)
    return numbers


def _positions(x: Array, axis: int) -> Array:
    """The index of each element along ``axis``."""
    return np.arange(x.shape[axis]).reshape(-1, *(1,) * (x.ndim - axis - 1))


def _unpack_indices(numbers: Array) -> Array:
    return np.bitwise_and(numbers, 0xFFFFFFFF, out=numbers)


@implements("sort")
def sort(x: Array, /, axis: int, descending: bool = False) -> Array:
    key = upcast_half(x)
    if x.size >= tuning.MIN_ELEMENTS_FOR_KEY_SORT and x.dtype.kind in "iu" and (small := _as_uint16(x)) is not None:
        ordered = _counting_sort(small[0]) if x.ndim == 1 else np.sort(small[0], axis=axis)
        result = np.add(ordered, small[1], dtype=small[1].dtype, casting="unsafe").astype(x.dtype, copy=False)
        return np.flip(result, axis) if descending else result
    if not descending:
        return cast_like(np.sort(key, axis=axis), x)
    key = _reverse_order(key)
    key.sort(axis=axis)
    return cast_like(_reverse_order(key), x)


def _counting_sort(x: Array) -> Array:
    """A vector of small numbers in order, by how often each occurs."""
    counts = np.bincount(x)
    return np.repeat(np.arange(len(counts)), counts) if len(counts) <= 4 * len(x) else np.sort(x)


@implements("topk", takes_backend=True)
def topk(k: Any, x: Array, /, count: int, axis: int, largest: bool = True) -> tuple[Array, Array]:
    topk_shape(x.shape, count=count, axis=axis)
    if x.size < tuning.MIN_ELEMENTS_FOR_KEY_SORT or not 0 < count < x.shape[axis]:
        indices = argsort(x, axis, largest)[(*(slice(None),) * axis, slice(count))]
        return take_along_axis(k, x, indices, axis), indices
    rows = contiguous(np.moveaxis(upcast_half(x), axis, -1))
    values, indices = (np.moveaxis(found, -1, axis) for found in _topk_rows(k, rows, count, largest))
    return cast_like(values, x), indices


def _topk_rows(k: Any, rows: Array, count: int, largest: bool) -> tuple[Array, Array]:
    """The results of ``topk`` along the last axis, for 16-bit floats in float32."""
    if rows.size >= tuning.MIN_ELEMENTS_FOR_SEARCH:
        if rows.shape[-1] // count >= tuning.MIN_TOPK_BLOCK * tuning.MIN_TOPK_BLOCK:
            return _topk_blocks(k, rows, count, largest)
        if (
            rows.dtype.kind == "f"
            and count <= tuning.MAX_COUNT_BY_SEARCH
            and (found := _topk_search(rows, count, largest)) is not None
        ):
            return found
    if rows.dtype.itemsize > 4:
        indices = _topk_distinct(_reverse_order(rows) if largest else rows, count)
        if indices is None:
            indices = argsort(rows, rows.ndim - 1, largest)[..., :count]
    else:
        numbers = np.partition(_pack_indices(rows, rows.ndim - 1, largest), count - 1)[..., :count]
        indices = _unpack_indices(np.sort(numbers))
    return take_along_axis(k, rows, indices, rows.ndim - 1), indices


def _topk_blocks(k: Any, rows: Array, count: int, largest: bool) -> tuple[Array, Array]:
    """The results of ``topk`` from the ``count`` blocks with the topmost extremes, and the elements after the blocks.

    Each of these blocks has an element that comes before all those of other blocks, also among equal ones.
    """
    length, axis = rows.shape[-1], rows.ndim
    width = math.isqrt(length // count)
    number = length // width
    blocks = rows[..., : number * width].reshape(*rows.shape[:-1], number, width)
    extremes = (reduce.max if largest else reduce.min)(blocks, (axis,))
    if rows.dtype.kind == "f" and np.isnan(extremes).any():  # NaN is last
        extremes = (np.fmax if largest else np.fmin).reduce(blocks, axis=axis)
    chosen = np.sort(_topk_rows(k, extremes, count, largest)[1])
    some = np.take_along_axis(blocks, chosen[..., None], -2).reshape(*rows.shape[:-1], -1)
    values, at = _topk_rows(k, np.concatenate((some, rows[..., number * width :]), -1), count, largest)
    chosen = np.concatenate((chosen, np.full_like(chosen[..., :1], number)), -1)
    return values, np.take_along_axis(chosen, at // width, -1) * width + at % width


def _topk_distinct(key: Array, count: int) -> Array | None:
    """The indices of the least elements along the last axis; None where one is NaN, or equal to one left out."""
    indices = np.sort(np.argpartition(key, count - 1)[..., :count])
    found = np.take_along_axis(key, indices, -1)
    if not (np.count_nonzero(key <= found.max(-1, keepdims=True), -1) == count).all():
        return None
    order = np.argsort(found, kind="stable")
    return np.take_along_axis(indices, order, -1).astype(np.int64, copy=False)


def _topk_search(x: Array, count: int, largest: bool) -> tuple[Array, Array] | None:
    """The results of ``topk`` by ``count`` searches; None where one of the elements found is not finite."""
    rest = x.copy()
    search, taken = (np.argmax, -np.inf) if largest else (np.argmin, np.inf)
    shape = (*rest.shape[:-1], count)
    values, indices = np.empty(shape, x.dtype), np.empty(shape, np.int64)
    for i in range(count):
        index = search(rest, -1, keepdims=True)
        value = np.take_along_axis(rest, index, -1)
        if not np.isfinite(value).all():  # NaN, which is last, or an element that was taken before
            return None
        np.put_along_axis(rest, index, taken, -1)
        values[..., i : i + 1], indices[..., i : i + 1] = value, index
    return values, indices


@implements("searchsorted", takes_backend=True)
def searchsorted(k: Any, x: Array, values: Array, /, right: bool = False) -> Array:
    if x.ndim == 1:
        found = np.searchsorted(upcast_half(x), upcast_half(values), side="right" if right else "left")
        return np.asarray(found, np.int64)
    return OPERATIONS["searchsorted"].body(k, x, values, right)
