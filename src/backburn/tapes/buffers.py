"""Buffers of the record tape: gradients are added to the caller's arrays, or returned as new ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from backburn.autodiff.graph import Tracked
from backburn.base.errors import ArgumentError, DTypeError, NumericalInstabilityError, ShapeError
from backburn.ops.bodies.reductions import all_axes
from backburn.tapes.values import as_float, is_host, primitive_of, shown
from backburn.tensor.core.host import first_overlap

Shape = tuple[int, ...]


def is_flat(shape: Shape, full: Shape) -> bool:
    """Whether ``shape`` is ``full`` flattened to one axis."""
    return len(full) != 1 and shape == (math.prod(full),)


def seed_of(k: Any, loss_grad: Any, value: Any, slot: int) -> Any:
    """The gradient to start from, in the shape and dtype of the slot's value."""
    shape = tuple(value.shape)
    if loss_grad.__class__ in (int, float):
        if math.prod(shape) != 1:
            raise ShapeError(f"backward: loss_grad is one number, and slot {slot} is {shown(k, value)}")
        return k.full(shape, float(loss_grad), k.dtype(value))
    given = as_float(k, loss_grad, "backward: loss_grad")
    if tuple(given.shape) != shape and is_flat(tuple(given.shape), shape):
        given = k.reshape(given, shape)
    if tuple(given.shape) != shape:
        raise ShapeError(f"backward: loss_grad has shape {list(given.shape)}, and slot {slot} is {shown(k, value)}")
    return k.astype(given, k.dtype(value))


def plan(k: Any, tensors: Any, values: Sequence[Tracked[Any]]) -> list[Any]:
    """The buffers as primitives; raises an error for buffers that cannot take the gradients."""
    if not isinstance(tensors, list):
        raise DTypeError(f"backward: tensors is a list of buffers, one for each slot, not {type(tensors).__name__}")
    if len(tensors) < len(values):
        count = f"{len(tensors)} buffer{'s' if len(tensors) != 1 else ''}"
        raise ArgumentError(f"backward: tensors holds {count}, and the tape has {len(values)} slots")
    seen: dict[int, int] = {}
    arrays: dict[int, Any] = {}
    found = []
    for slot, value in enumerate(values):
        buffer, shape, where = tensors[slot], tuple(value.shape), f"backward: the buffer of slot {slot}"
        if is_host(buffer) and hasattr(buffer, "__setitem__"):
            if id(buffer) in seen:
                raise ArgumentError(
                    f"{where} is also that of slot {seen[id(buffer)]}: each slot needs a separate array"
                )
            if not buffer.flags.writeable:
                raise ArgumentError(f"{where} is read-only, and gradients are added in place")
            seen[id(buffer)], arrays[slot] = slot, buffer
        made = as_float(k, buffer, where)
        if tuple(made.shape) != shape and not is_flat(tuple(made.shape), shape):
            raise ShapeError(f"{where} has shape {list(made.shape)}, and the slot {list(shape)}")
        found.append(made)
    if (shared := first_overlap(arrays)) is not None:
        raise ArgumentError(
            f"backward: the buffers of slots {shared[0]} and {shared[1]} share memory, and gradients are added in "
            f"place: each needs separate memory"
        )
    return found


def first_unstable(k: Any, gradients: Sequence[Any]) -> int | None:
    """The last slot (the first in the reverse pass) whose gradient holds NaN or an infinity, found with one transfer.

    The check is whether any element is non-finite, so a backend without values, which answers no, reports none.
    """
    slots = [i for i, g in enumerate(gradients) if g is not None]
    flags = [k.any(k.logical_not(k.isfinite(g)), all_axes(g), False) for g in gradients if g is not None]
    return max((slot for slot, flag in zip(slots, k.to_numpy_many(flags), strict=True) if flag.item()), default=None)


def add(k: Any, tensors: list[Any], gradients: Sequence[Any], buffers: Sequence[Any]) -> list[Any]:
    """Add to the caller's buffers: to all of them, or after an error to none."""
    sums: list[Any] = []
    for gradient, buffer in zip(gradients, buffers, strict=True):
        if gradient is None:
            sums.append(None)
            continue
        fitting = gradient if tuple(buffer.shape) == tuple(gradient.shape) else k.reshape(gradient, tuple(buffer.shape))
        sums.append(k.add(buffer, k.astype(fitting, k.dtype(buffer))))
    unstable = first_unstable(k, sums)
    if unstable is not None:
        raise NumericalInstabilityError(
            f"GradientTape.backward: added to its buffer, the gradient of slot {unstable} is no longer finite"
        )
    for slot, total in enumerate(sums):
        if total is None:
            continue
        buffer = tensors[slot]
        if is_host(buffer) and hasattr(buffer, "__setitem__"):
            buffer[...] = k.to_numpy(total)
        else:
            tensors[slot] = total if primitive_of(buffer) is buffer else like_tensor(buffer, total)
    return tensors


def like_tensor(tensor: Any, primitive: Any) -> Any:
    """A primitive as a tensor with the class and backend of another."""
    return type(tensor)(primitive, tensor.backend, tensor.dtype)
