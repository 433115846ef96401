"""Which host arrays share memory, found from their addresses, shapes and strides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple


class Extent(NamedTuple):
    """The bytes of an array: blocks of ``block`` bytes from ``start`` to ``end``, multiples of ``step`` apart."""

    start: int
    end: int
    block: int
    step: int


def extent(x: Any) -> Extent | None:
    """The bytes of a host array; None if it has none."""
    if 0 in x.shape:
        return None
    start, block = x.__array_interface__["data"][0], x.dtype.itemsize
    steps = sorted((abs(s), n) for s, n in zip(x.strides, x.shape, strict=True) if n > 1)
    start += sum((n - 1) * s for s, n in zip(x.strides, x.shape, strict=True) if s < 0)
    end = start + sum((n - 1) * s for s, n in steps) + block
    while steps and steps[0][0] <= block:  # what lies side by side is one larger block
        s, n = steps.pop(0)
        block += (n - 1) * s
    return Extent(start, end, block, math.gcd(*(s for s, _ in steps)))


def disjoint(a: Extent, b: Extent) -> bool:
    """Whether no byte is in both: the extents are apart, or the blocks of each lie in the gaps of the other."""
    if a.end <= b.start or b.end <= a.start:
        return True
    step = math.gcd(a.step, b.step)
    if not step:
        return False
    place = (b.start - a.start) % step
    return place >= a.block and step - place >= b.block


def first_overlap(arrays: Mapping[int, Any]) -> tuple[int, int] | None:
    """The keys of two arrays that share memory, the smaller one first; None if there are none."""
    if all(x.base is None for x in arrays.values()):
        return None  # each has memory of its own
    found = [(e, key) for key, x in arrays.items() if (e := extent(x)) is not None]
    found.sort()
    active: list[tuple[Extent, int]] = []
    for now, key in found:
        active = [entry for entry in active if entry[0].end > now.start]
        for other, earlier in active:
            if not disjoint(other, now):
                return min(earlier, key), max(earlier, key)
        active.append((now, key))
    return None
