"""Batching rules: reading and writing by position."""

from __future__ import annotations

import math
from typing import Any

from backburn.backend.table import OPERATIONS
from backburn.backend.views import whole
from backburn.batching.rules import Rule, batching, front, is_mapped, moved, rank_of, with_rank

Shape = tuple[int, ...]


def slice_(level: Any, x: Any, *, key: Any) -> Any:
    """Of all examples."""
    return level.inner_backend.slice(x.value, (*whole(level.size), *key))


def slice_assign(level: Any, x: Any, value: Any, *, key: Any) -> Any:
    """The value broadcasts to the place in each example."""
    new = with_rank(level, value, max(len(x.shape), rank_of(value)))
    return level.inner_backend.slice_assign(front(level, x), new, (*whole(level.size), *key))


def slice_backward(level: Any, grad: Any, *, shape: Shape, key: Any) -> Any:
    """The gradient of :func:`slice_`."""
    return level.inner_backend.slice_backward(grad.value, (level.size, *shape), (*whole(level.size), *key))


def gather_backward(level: Any, grad: Any, indices: Any, *, shape: Shape, axis: int) -> Any:
    """The gradient of ``gather``, whose positions are each example's own."""
    k = level.inner_backend
    return k.gather_backward(front(level, grad), front(level, indices), (level.size, *shape), axis + 1)


def take(level: Any, x: Any, indices: Any, *, axis: int) -> Any:
    """Where both differ between examples, a position for each element, so that none reaches another example."""
    k = level.inner_backend
    if not is_mapped(level, indices):
        return k.take(x.value, indices, axis + 1)
    if not is_mapped(level, x):
        return moved(k, k.take(x, indices.value, axis), axis, 0)
    found = k.gather(x.value, each_element(level, indices, x.shape, axis), axis + 1)
    return k.reshape(found, (level.size, *x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def take_backward(level: Any, grad: Any, indices: Any, *, length: int, axis: int) -> Any:
    """The gradient of :func:`take`."""
    k = level.inner_backend
    if not is_mapped(level, indices):
        return k.take_backward(grad.value, indices, length, axis + 1)
    shape = (*grad.shape[:axis], length, *grad.shape[axis + len(indices.shape) :])
    positions = each_element(level, indices, shape, axis)
    return k.gather_backward(k.reshape(front(level, grad), positions.shape), positions, (level.size, *shape), axis + 1)


def each_element(level: Any, indices: Any, shape: Shape, axis: int) -> Any:
    """Each example's positions along ``axis``, as one axis, repeated for every element of tensors of ``shape``."""
    k, count = level.inner_backend, math.prod(indices.shape)
    before, after = shape[:axis], shape[axis + 1 :]
    column = k.reshape(front(level, indices), (level.size, *(1,) * len(before), count, *(1,) * len(after)))
    return k.broadcast_to(column, (level.size, *before, count, *after))


def writing(name: str, mode: str) -> Rule:
    """The rule of an operation that writes whole entries."""

    def rule(level: Any, x: Any, indices: Any, values: Any, *, axis: int) -> Any:
        k = level.inner_backend
        if not is_mapped(level, indices):
            return getattr(k, name)(front(level, x), indices, front(level, values), axis + 1)
        positions = each_element(level, indices, x.shape, axis)
        return k.scatter(front(level, x), positions, front(level, values), axis + 1, mode)

    return rule


def masked_select(level: Any, x: Any, mask: Any) -> Any:
    """With a mask that is the same for all examples, they select equally many elements: its body finds them."""
    if is_mapped(level, mask):
        return NotImplemented
    return OPERATIONS["masked_select"].body(level, x, mask).value


batching("slice", slice_)
batching("slice_assign", slice_assign)
batching("slice_backward", slice_backward)
batching("take", take)
batching("take_backward", take_backward)
batching("gather_backward", gather_backward)
batching("index_add", writing("index_add", "add"))
batching("index_copy", writing("index_copy", "assign"))
batching("masked_select", masked_select)
