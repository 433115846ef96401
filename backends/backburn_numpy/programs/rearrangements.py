"""Plans of views, transposed matrices, slices, diagonals, stacks and concatenations."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from backburn.programs.ir import Call, Variable, arguments
from backburn_numpy import tuning
from backburn_numpy.programs.layout import (
    COPY,
    Layout,
    Place,
    Plan,
    bytes_of,
    dtype_of,
    is_free,
)


def permutation_plan(call: Call) -> Plan | None:
    """The plan of transposed matrices, or of a permutation that moves no elements."""
    x, axes = arguments(call)
    dtype = dtype_of(x)
    if dtype is None or prod(x.shape) > tuning.NATIVE_MAX_ELEMENTS:
        return None
    order = [a for a in axes if x.shape[a] > 1]
    rank = {a: i for i, a in enumerate(sorted(order))}
    if order == sorted(order):
        return view_plan(call)
    groups: list[list[int]] = []  # axes that are adjacent before and after
    for a in order:
        if groups and rank[a] == rank[groups[-1][-1]] + 1:
            groups[-1].append(a)
        else:
            groups.append([a])
    if [groups.index(group) for group in sorted(groups)] not in ([1, 0], [0, 2, 1]):
        return None
    sizes = [prod(x.shape[a] for a in group) for group in groups]
    count = sizes[0] if len(sizes) == 3 else 1
    columns, rows = sizes[-2:]

    def plan(layout: Layout, call: Call) -> None:
        layout.transposed[call.results] = x, count, rows, columns

    return plan


def view_plan(call: Call) -> Plan | None:
    """The plan of a contiguous view."""
    x = arguments(call)[0]
    dtype = dtype_of(x)
    if dtype is None or dtype_of(call.results) is None:
        return None

    def plan(layout: Layout, call: Call) -> None:
        if x.__class__ is Variable and x not in layout.places and x.shape == call.results.shape:
            layout.transposed[call.results] = layout.transposed[x]
        else:
            layout.places[call.results] = layout.read(x, dtype)

    return plan


def slice_plan(call: Call) -> Plan | None:
    """The plan of a slice."""
    x, key = arguments(call)
    start, inner = 0, 1
    axes: list[tuple[int, int]] = []
    for s, n, length in zip(reversed(key), reversed(x.shape), reversed(call.results.shape), strict=True):
        first, _, step = s.indices(n)
        start += first * inner
        axes.append((length, step * inner))
        inner *= n
    return _strided(x, call.results, start, axes[::-1])


def diagonal_plan(call: Call) -> Plan | None:
    """The plan of the diagonals of the last two axes."""
    x, offset, *axes = arguments(call)
    rank = len(x.shape)
    rows, columns = x.shape[-2:]
    if [a % rank for a in axes] != [rank - 2, rank - 1]:
        return None
    sides = prod(x.shape[:-2]), columns, rows
    length = call.results.shape[-1]

    def plan_of(v: Any, width: int, offset: int) -> Plan | None:
        start = offset if offset >= 0 else -offset * width
        return _strided(v, call.results, start, [(sides[0], rows * columns), (length, width + 1)])

    if (as_it_is := plan_of(x, columns, offset)) is None:
        return None

    def plan(layout: Layout, call: Call) -> None:
        held = layout.transposed.get(x) if x.__class__ is Variable and x not in layout.places else None
        turned = plan_of(held[0], rows, -offset) if held is not None and held[1:] == sides else None
        (turned or as_it_is)(layout, call)

    return plan


def _strided(x: Any, result: Variable, start: int, axes: Sequence[tuple[int, int]]) -> Plan | None:
    """The plan of a strided selection, by the length and stride of each axis: a view if contiguous, else a copy."""
    dtype = dtype_of(x)
    if dtype is None or dtype_of(result) is not dtype:
        return None
    merged: list[tuple[int, int]] = []
    for length, step in axes:
        if merged and merged[-1][1] == length * step:
            merged[-1] = merged[-1][0] * length, step
        elif length > 1:
            merged.append((length, step))
    block = merged.pop()[0] if merged and merged[-1][1] == 1 else 1
    rows, between = merged.pop() if merged else (1, 0)
    starts = [start]
    for length, step in merged:
        starts = [at + i * step for at in starts for i in range(length)]
    if rows > 1 and (prod(result.shape) > tuning.NATIVE_MAX_ELEMENTS or len(starts) > tuning.NATIVE_MAX_GROUPS):
        return None
    size = dtype.itemsize

    def plan(layout: Layout, call: Call) -> None:
        memory, offset = layout.read(x, dtype)
        if rows == 1:
            layout.places[result] = Place(memory, offset + start * size)
            return
        target = layout.new(result).memory
        for i, at in enumerate(starts):
            places = Place(target, i * rows * block * size), Place(memory, offset + at * size)
            layout.append(COPY, *places, rows, block * size, block * size, between * size)
        layout.hold((Place(memory, offset), Place(target, 0)))

    return plan


def concatenation_plan(call: Call) -> Plan | None:
    """The plan of a stack or a concatenation: parts along the first axis are computed in the result's memory."""
    values = arguments(call)
    parts, axis = values[0], values[1] if len(values) > 1 else 0
    result = call.results
    dtype = dtype_of(result)
    if dtype is None or any(dtype_of(v) is not dtype for v in parts):
        return None
    rows = prod(result.shape[:axis])

    def plan(layout: Layout, call: Call) -> None:
        now = len(layout.steps)
        whole = layout.new(result).memory
        at = 0
        for v in parts:
            place, size = layout.read(v, dtype), prod(v.shape) * dtype.itemsize
            memory = place.memory
            if rows == 1 and place == (memory, 0) and is_free(memory, whole) and memory.size == size:
                memory.whole, memory.offset = whole, at
                whole.first = min(whole.first, memory.first)
            else:
                target = Place(whole, at)
                layout.append(COPY, target, place, rows, size // rows, bytes_of(result) // rows, size // rows)
            at += size // rows
        whole.last = max(now, len(layout.steps))

    return plan
