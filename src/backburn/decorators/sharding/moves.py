"""Rules of sharding: operations that move elements, and those that read and write by position."""

from __future__ import annotations

import math
from typing import Any

from backburn.decorators.sharding.rules import Plan, Shape, Shapes, direct, rank_of, sharding
from backburn.decorators.sharding.shards import Shards, block_length, neutral, starts_of


def reshape(level: Any, x: Any, *, shape: Shape) -> Any:
    """Reshaped parts, if they are parts along an axis of the new shape too; addends one by one."""
    k = level.wrapped
    if x.axis is None:
        return linear(level, "reshape", x, shape=shape)
    if is_bound(level, x):
        return NotImplemented  # a part's quantization steps may move otherwise than those of the whole
    before, size = math.prod(x.shape[: x.axis]), math.prod(x.shape)
    if not size:
        return NotImplemented
    each = size // (before * x.shape[x.axis])  # elements per position along the cut axis
    for axis, length in enumerate(shape):
        unit = math.prod(shape[axis + 1 :])
        if math.prod(shape[:axis]) != before or (length == 1 and unit > 1):
            continue
        if all(n * each % unit == 0 for n in x.cuts):
            cuts = tuple(n * each // unit for n in x.cuts)
            made = tuple((*shape[:axis], n, *shape[axis + 1 :]) for n in cuts)
            parts = [k.reshape(p, s) for p, s in zip(x.parts, level.mine(made), strict=True)]
            return Shards(parts, axis, cuts, tuple(shape), level.mesh_axis)
    return NotImplemented


def broadcast_to(shapes: Shapes, index: int, cut: int, *, shape: Shape) -> Plan | None:
    """Stretched axes are whole."""
    axis = cut + len(shape) - len(shapes[0])
    if shape[axis] != shapes[0][cut]:
        return None
    return Plan((cut,), local=with_length("shape", shape, axis), result=axis)


def with_length(name: str, shape: Shape, axis: int) -> Any:
    """The attribute ``name`` of a shard: a shape with the shard's length."""
    return lambda start, stop: {name: (*shape[:axis], stop - start, *shape[axis + 1 :])}


def permute_dims(shapes: Shapes, index: int, cut: int, *, axes: Shape) -> Plan | None:
    """The cut axis goes with the others."""
    return Plan((cut,), result=axes.index(cut))


def stack(shapes: Shapes, index: int, cut: int, *, axis: int) -> Plan | None:
    """All tensors are cut alike."""
    return Plan((cut,), result=cut + (cut >= axis))


def tile(shapes: Shapes, index: int, cut: int, *, repeats: Shape) -> Plan | None:
    """The cut axis is not repeated."""
    return Plan((cut,)) if repeats[cut] == 1 else None


def pad(shapes: Shapes, index: int, cut: int, *, widths: Any, **_: Any) -> Plan | None:
    """The cut axis is not padded."""
    return Plan((cut,)) if tuple(widths[cut]) == (0, 0) else None


def overlap_add(shapes: Shapes, index: int, cut: int, *, axis: Shape, **_: Any) -> Plan | None:
    """Windows, and the axes along which they overlap, are whole."""
    return Plan((cut,)) if cut < len(shapes[0]) - len(axis) and cut not in axis else None


def is_bound(level: Any, x: Any) -> bool:
    """Whether the step of a quantized value depends on its channel or block."""
    dtype = level.dtype(x)
    return dtype.kind == "quantized" and dtype.granularity != "tensor"


# ---- ranges ----


def slice_(level: Any, x: Any, *, key: Any) -> Any:
    """Each shard's part of a range with a positive step."""
    if x.axis is None:
        return linear(level, "slice", x, key=key)
    k, axis = level.wrapped, x.axis
    if block_length(level.dtype(x), x.shape, axis) > 1 and not is_full(key[axis], x.shape[axis]):
        return NotImplemented  # a range may have whole blocks in a part, but not in the whole
    wanted = range(*key[axis].indices(x.shape[axis]))
    if wanted.step < 1:
        return NotImplemented
    keys, cuts = [], []
    for start, length in zip(starts_of(x.cuts), x.cuts, strict=True):
        first = wanted.start if wanted.start >= start else start + (wanted.start - start) % wanted.step
        own = range(first - start, min(wanted.stop, start + length) - start, wanted.step)
        local = slice(own.start, own.stop, own.step) if own else slice(0, 0, 1)
        keys.append((*key[:axis], local, *key[axis + 1 :]))
        cuts.append(len(own))
    parts = [k.slice(part, own_key) for part, own_key in zip(x.parts, level.mine(tuple(keys)), strict=True)]
    shape = tuple(len(range(*s.indices(n))) for s, n in zip(key, x.shape, strict=True))
    return Shards(parts, axis, tuple(cuts), shape, level.mesh_axis)


def is_full(key: slice, length: int) -> bool:
    """Whether a slice selects all of an axis, in order."""
    return key.indices(length) == (0, length, 1)


def with_range(key: Any, axis: int) -> Any:
    """The attribute ``key`` of a shard whose axis is selected whole."""
    return lambda start, stop: {"key": (*key[:axis], slice(0, stop - start, 1), *key[axis + 1 :])}


def slice_assign(shapes: Shapes, index: int, cut: int, *, key: Any) -> Plan | None:
    """The cut axis is written in full."""
    x, value = shapes
    if index == 1:
        axis = cut + len(x) - len(value)
        if value[cut] != x[axis]:
            return None
    else:
        axis = cut
    if not is_full(key[axis], x[axis]):
        return None
    own = axis - len(x) + rank_of(value)
    is_stretched = value is None or own < 0 or value[own] != x[axis]
    return Plan((axis, None if is_stretched else own), local=with_range(key, axis), result=axis)


def slice_backward(shapes: Shapes, index: int, cut: int, *, shape: Shape, key: Any) -> Plan | None:
    """The cut axis was read in full."""
    if not is_full(key[cut], shape[cut]):
        return None
    length, range_ = with_length("shape", shape, cut), with_range(key, cut)
    return Plan((cut,), local=lambda start, stop: {**length(start, stop), **range_(start, stop)}, result=cut)


# ---- positions ----


def take(shapes: Shapes, index: int, cut: int, *, axis: int) -> Plan | None:
    """Entries are whole along ``axis``; indices, and all other axes, are independent."""
    added = len(shapes[1]) - 1
    if index == 1:
        return Plan((None, cut), result=axis + cut)
    return None if cut == axis else Plan((cut, None), result=cut + added * (cut > axis))


def take_of_parts(level: Any, x: Any, indices: Any, *, axis: int) -> Any:
    """Entries of a table that is cut along ``axis``: each shard takes those it has, and the results are addends."""
    if not level.is_cut(x) or x.axis != axis or level.is_cut(indices) or not level.dtype(x).is_arithmetic:
        return NotImplemented
    k, zero = level.wrapped, neutral(level.dtype(x))
    places = k.take(k.arange(0, x.shape[axis], 1, k.int_dtype), indices, 0)  # raises for indices out of range
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    parts = []
    for part, start, length in zip(x.parts, level.mine(starts_of(x.cuts)), level.mine(x.cuts), strict=True):
        if not length:
            parts.append(k.full(shape, zero, level.dtype(x)))
            continue
        has_it = k.logical_and(k.greater_equal(places, start), k.less(places, start + length))
        found = k.take(part, k.where(has_it, k.sub(places, start), 0), axis)
        has_it = k.reshape(has_it, (*indices.shape, *(1 for _ in x.shape[axis + 1 :])))
        parts.append(k.where(has_it, found, zero))
    return Shards(parts, None, (), shape, level.mesh_axis)


def take_backward(shapes: Shapes, index: int, cut: int, *, length: int, axis: int) -> Plan | None:
    """Gradients at cut indices are addends."""
    count = len(shapes[1])
    place = cut + axis if index == 1 else cut
    if axis <= place < axis + count:
        return Plan((place, place - axis), sums=True)
    return Plan((place, None), result=place - (count - 1) * (place >= axis))


def take_along_axis_backward(shapes: Shapes, index: int, cut: int, *, shape: Shape, axis: int) -> Plan | None:
    """Gradients at cut indices are addends; other axes are independent."""
    if cut == axis:
        return Plan((cut, cut), sums=True)
    return Plan((cut, cut), local=with_length("shape", shape, cut), result=cut)


def write(shapes: Shapes, index: int, cut: int, *, axis: int, **attributes: Any) -> Plan | None:
    """Whole entries are written: all other axes are independent."""
    if index == 1 or cut == axis:
        return None
    unshared = {"donate": False} if "donate" in attributes else {}  # parts may be views
    return Plan((cut, None, None if shapes[2] is None else cut), local=lambda start, stop: unshared, result=cut)


# ---- addends ----


def linear(level: Any, name: str, x: Any, **attributes: Any) -> Any:
    """A linear operation on each addend; its result must not be larger."""
    function = getattr(level.wrapped, name)
    parts = [function(p, **attributes) for p in x.parts]
    return Shards(parts, None, (), tuple(parts[0].shape), level.mesh_axis)


def of_addends(name: str) -> Any:
    """A linear operation that keeps the signs of zeros, on addends one by one."""

    def function(level: Any, x: Any, **attributes: Any) -> Any:
        return linear(level, name, x, **attributes) if x.axis is None else NotImplemented

    return function


def add(level: Any, x: Any, y: Any) -> Any:
    """The addends of two sums, added pair by pair; a whole operand is added to those of the first shard.

    So gradients of layers with cut features are summed once, together with those that bypass the layers.
    """
    shapes = [getattr(t, "shape", None) for t in (x, y)]
    are_addends = [level.is_cut(t) and t.axis is None for t in (x, y)]
    if shapes[0] != shapes[1] or not any(are_addends) or any(level.is_cut(t) and t.axis is not None for t in (x, y)):
        return NotImplemented
    k, parts = level.wrapped, []
    for i, shard in enumerate(level.own):
        if all(are_addends) or shard == 0:
            parts.append(k.add(*(t.parts[i] if is_sum else t for t, is_sum in zip((x, y), are_addends, strict=True))))
        else:
            parts.append((x if are_addends[0] else y).parts[i])
    return Shards(parts, None, (), tuple(x.shape), level.mesh_axis)


def scale(name: str) -> Any:
    """Addends multiplied or divided by a positive finite number, which keeps the signs of zeros."""

    def function(level: Any, x: Any, y: Any) -> Any:
        if name == "mul" and isinstance(x, (int, float)):
            x, y = y, x
        number = isinstance(y, (int, float)) and not isinstance(y, bool) and 0 < y < math.inf
        if not number or not level.is_cut(x) or x.axis is not None:
            return NotImplemented
        parts = [getattr(level.wrapped, name)(p, y) for p in x.parts]
        return Shards(parts, None, (), x.shape, level.mesh_axis)

    return function


direct("reshape", reshape, lambda found: [{"shape": tuple(part.shape)} for part in found.parts])
direct("slice", slice_)
direct("permute_dims", of_addends("permute_dims"))
direct("stop_gradient", of_addends("stop_gradient"))
direct("add", add)
direct("mul", scale("mul"))
direct("div", scale("div"))
direct("take", take_of_parts)
sharding("broadcast_to", broadcast_to)
sharding("permute_dims", permute_dims)
sharding("stack", stack)
sharding("tile", tile)
sharding("pad", pad)
sharding("overlap_add", overlap_add)
sharding("slice_assign", slice_assign)
sharding("slice_backward", slice_backward)
sharding("take", take)
sharding("take_backward", take_backward)
sharding("take_along_axis_backward", take_along_axis_backward)
sharding("index_add", write)
sharding("index_copy", write)
