"""Gradients of slices of a tensor, assembled once all of them are known.

A step of a loop that reads ``x[t]`` has a gradient for that entry alone. Padding each to the shape of ``x`` and adding
them up would cost a pass over all of ``x`` at every step; joining the slices builds the gradient in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

Shape = tuple[int, ...]


class SliceGradient:
    """The gradient of the slice ``key`` of a tensor."""

    __slots__ = ("gradient", "key")

    def __init__(self, gradient: Any, key: tuple[slice, ...]) -> None:
        self.gradient = gradient
        self.key = key


class EntryGradient:
    """The gradient of the entry ``index`` of a tensor along ``axis``, which that entry lacks."""

    __slots__ = ("axis", "gradient", "index")

    def __init__(self, gradient: Any, axis: int, index: int) -> None:
        self.gradient = gradient
        self.axis = axis
        self.index = index

    def as_slice(self, k: Any, shape: Shape) -> SliceGradient:
        """This gradient as that of the slice of length 1 of a tensor of ``shape``."""
        axis, index = self.axis, self.index
        kept = k.reshape(self.gradient, (*shape[:axis], 1, *shape[axis + 1 :]))
        key = tuple([slice(index, index + 1, 1) if a == axis else slice(0, n, 1) for a, n in enumerate(shape)])
        return SliceGradient(kept, key)


class SlicedGradient:
    """The gradient of a tensor whose slices or entries were read: their gradients, and the ``rest``, or None."""

    __slots__ = ("rest", "slices")

    def __init__(self, rest: Any) -> None:
        self.rest = rest
        self.slices: list[SliceGradient | EntryGradient] = []

    def assembled(self, k: Any, shape: Shape) -> Any:
        """The whole gradient, of a tensor of ``shape``."""
        gradient = assemble(k, self.slices, shape)
        return gradient if self.rest is None else k.add(self.rest, gradient)


def assemble(k: Any, parts: Sequence[SliceGradient | EntryGradient], shape: Shape) -> Any:
    """The gradient of a tensor of ``shape`` from those of its slices and entries; overlapping ones are summed."""
    stacked = _stack_entries(k, parts, shape)
    if stacked is not None:
        return stacked
    slices: Sequence[SliceGradient] = [
        part.as_slice(k, shape) if isinstance(part, EntryGradient) else part for part in parts
    ]
    if len(slices) > 1:
        joined = _join_entries(k, slices, shape)
        if joined is not None:
            return joined
        slices = _sum_same_slices(k, slices)
    for axis in reversed(range(len(shape))):
        if len(slices) == 1:
            break
        slices = _join_slices(k, slices, shape, axis)
    total = None
    for part in slices:
        full = all(s == slice(0, n, 1) for s, n in zip(part.key, shape, strict=True))
        gradient = part.gradient if full else k.slice_backward(part.gradient, shape, part.key)
        total = gradient if total is None else k.add(total, gradient)
    return total


def _stack_entries(k: Any, parts: Sequence[SliceGradient | EntryGradient], shape: Shape) -> Any | None:
    """The gradient of a tensor whose entries along one axis were all read, once or more; None for any others."""
    axis = parts[0].axis if isinstance(parts[0], EntryGradient) else None
    found: dict[int, Any] = {}
    for part in parts:
        if not isinstance(part, EntryGradient) or part.axis != axis:
            return None
        known = found.get(part.index)
        found[part.index] = part.gradient if known is None else k.add(known, part.gradient)
    if axis is None or len(found) < shape[axis]:
        return None
    return k.stack([found[i] for i in range(shape[axis])], axis)


def _join_entries(k: Any, slices: Sequence[SliceGradient], shape: Shape) -> Any | None:
    """The gradient of a tensor that these slices split along one axis, each read once; None for any others."""
    first = slices[0].key
    axes = [axis for axis, n in enumerate(shape) if first[axis] != slice(0, n, 1)]
    if len(axes) != 1:
        return None
    (axis,) = axes
    before, after = first[:axis], first[axis + 1 :]
    parts: dict[int, Any] = {}
    for part in slices:
        key = part.key
        if key[:axis] != before or key[axis + 1 :] != after or key[axis].step != 1:
            return None
        parts[key[axis].start] = part.gradient
    end, pieces = 0, []
    for start in sorted(parts):
        if start != end:
            return None
        pieces.append(parts[start])
        end += parts[start].shape[axis]
    return k.concat(pieces, axis) if end == shape[axis] and len(pieces) == len(slices) else None


def _bounds(key: tuple[slice, ...]) -> tuple[tuple[Any, ...], ...]:
    """The bounds of a key's slices, as a hashable tuple."""
    return tuple((s.start, s.stop, s.step) for s in key)


def _sum_same_slices(k: Any, slices: Sequence[SliceGradient]) -> list[SliceGradient]:
    """One gradient for each key: a slice that was read several times has several."""
    found: dict[tuple[Any, ...], SliceGradient] = {}
    for part in slices:
        bounds = _bounds(part.key)
        known = found.get(bounds)
        found[bounds] = part if known is None else SliceGradient(k.add(known.gradient, part.gradient), part.key)
    return list(found.values())


def _join_slices(k: Any, slices: Sequence[SliceGradient], shape: Shape, axis: int) -> list[SliceGradient]:
    """Join slices that differ along ``axis`` only and do not overlap into one along all of it."""
    groups: dict[tuple[Any, ...], list[SliceGradient]] = {}
    for part in slices:
        groups.setdefault(_bounds((*part.key[:axis], *part.key[axis + 1 :])), []).append(part)
    result: list[SliceGradient] = []
    for group in groups.values():
        group.sort(key=lambda part: part.key[axis].start)
        ranges = [part.key[axis] for part in group]
        by_one = all(r.step == 1 for r in ranges)
        if len(group) == 1 or not by_one or any(a.stop > b.start for a, b in pairwise(ranges)):
            result.extend(group)
            continue
        pieces, end = [], 0
        for part, r in zip(group, ranges, strict=True):
            if end < r.start:
                pieces.append(_zeros_like(k, part, axis, r.start - end))
            pieces.append(part.gradient)
            end = r.stop
        if end < shape[axis]:
            pieces.append(_zeros_like(k, group[0], axis, shape[axis] - end))
        key = (*group[0].key[:axis], slice(0, shape[axis], 1), *group[0].key[axis + 1 :])
        result.append(SliceGradient(k.concat(pieces, axis), key))
    return result


def _zeros_like(k: Any, part: SliceGradient, axis: int, length: int) -> Any:
    """Zeros of the shape and dtype of a slice's gradient, of another length along ``axis``."""
    shape = part.gradient.shape
    return k.zeros((*shape[:axis], length, *shape[axis + 1 :]), k.dtype(part.gradient))
