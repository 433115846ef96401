"""Whole values from the parts that the shards of one mesh axis have."""

from __future__ import annotations

from typing import Any


def join(k: Any, parts: list[Any], axis: int) -> Any:
    """The parts of all shards, one after the other along ``axis``."""
    return k.concat(parts, axis)


def total(k: Any, parts: list[Any]) -> Any:
    """The sum of the parts of all shards, in the fixed order of a binary tree over neighbours."""
    while len(parts) > 1:
        pairs = [k.add(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]
