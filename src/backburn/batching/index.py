"""Batching rules: reading and writing by position."""

from __future__ import annotations

import math
from typing import Any

from backburn.batching.rules import Rule, batching, front, is_mapped, moved, rank_of, with_rank
from backburn.ops.bodies.slicing import full_slices
from backburn.ops.table import OPERATIONS

Shape = tuple[int, ...]


def slice_(level: Any, x: Any, *, key: Any) -> Any:
    """The slice of each example."""
    return level.inner_backend.slice(x.value, (*full_slices(level.size), *key))


def slice_assign(level: Any, x: Any, value: Any, *, key: Any) -> Any:
    """The value broadcasts to the slice of each example."""
    new = with_rank(level, value, max(len(x.shape), rank_of(value)))
    return level.inner_backend.slice_assign(front(level, x), new, (*full_slices(level.size), *key))


def slice_backward(level: Any, grad: Any, *, shape: Shape, key: Any) -> Any:
    """The gradient of :func:`slice_`."""
    return level.inner_backend.slice_backward(grad.value, (level.size, *shape), (*full_slices(level.size), *key))


def take_along_axis_backward(level: Any, grad: Any, indices: Any, *, shape: Shape, axis: int) -> Any:
    """The gradient of ``take_along_axis``, with the positions of each example."""
    k = level.inner_backend
    return k.take_along_axis_backward(front(level, grad), front(level, indices), (level.size, *shape), axis + 1)


def take(level: Any, x: Any, indices: Any, *, axis: int) -> Any:
    """Entries of each example; if operand and indices are both mapped, gathered with one index for each element."""
    k = level.inner_backend
    if not is_mapped(level, indices):
        return k.take(x.value, indices, axis + 1)
    if not is_mapped(level, x):
        return moved(k, k.take(x, indices.value, axis), axis, 0)
    found = k.take_along_axis(x.value, element_positions(level, indices, x.shape, axis), axis + 1)
    return k.reshape(found, (level.size, *x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def take_backward(level: Any, grad: Any, indices: Any, *, length: int, axis: int) -> Any:
    """The gradient of :func:`take`."""
    k = level.inner_backend
    if not is_mapped(level, indices):
        return k.take_backward(grad.value, indices, length, axis + 1)
    shape = (*grad.shape[:axis], length, *grad.shape[axis + len(indices.shape) :])
    positions = element_positions(level, indices, shape, axis)
    return k.take_along_axis_backward(
        k.reshape(front(level, grad), positions.shape), positions, (level.size, *shape), axis + 1
    )


def element_positions(level: Any, indices: Any, shape: Shape, axis: int) -> Any:
    """The indices of each example, flattened to the one axis ``axis`` and broadcast to the other axes of ``shape``."""
    k, count = level.inner_backend, math.prod(indices.shape)
    before, after = shape[:axis], shape[axis + 1 :]
    column = k.reshape(front(level, indices), (level.size, *(1,) * len(before), count, *(1,) * len(after)))
    return k.broadcast_to(column, (level.size, *before, count, *after))


def write_rule(name: str, mode: str) -> Rule:
    """The rule of an operation that writes whole entries, in place if a mapped operand is donated.

    With indices that differ between examples, the result is new.
    """

    def rule(level: Any, x: Any, indices: Any, values: Any, *, axis: int, donate: bool = False) -> Any:
        k = level.inner_backend
        if not is_mapped(level, indices):
            options = {"donate": True} if donate and is_mapped(level, x) else {}
            return getattr(k, name)(front(level, x), indices, front(level, values), axis + 1, **options)
        positions = element_positions(level, indices, x.shape, axis)
        return k.scatter(front(level, x), positions, front(level, values), axis + 1, mode)

    return rule


def masked_select(level: Any, x: Any, mask: Any) -> Any:
    """The body, if all examples share the mask and hence select equally many elements."""
    if is_mapped(level, mask):
        return NotImplemented
    return OPERATIONS["masked_select"].body(level, x, mask).value


batching("slice", slice_)
batching("slice_assign", slice_assign)
batching("slice_backward", slice_backward)
batching("take", take)
batching("take_backward", take_backward)
batching("take_along_axis_backward", take_along_axis_backward)
batching("index_add", write_rule("index_add", "add"))
batching("index_copy", write_rule("index_copy", "assign"))
batching("masked_select", masked_select)
