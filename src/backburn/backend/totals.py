"""Sums of terms, some of which may be absent, and reductions over all elements of a tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def total(k: Any, terms: Iterable[Any]) -> Any:
    """The sum of the terms that are not None, added one after another; None if there are none."""
    result = None
    for term in terms:
        if term is not None:
            result = term if result is None else k.add(result, term)
    return result


def axes_of(x: Any) -> tuple[int, ...]:
    """All axes of a primitive."""
    return tuple(range(len(x.shape)))


def all_of(k: Any, x: Any) -> bool:
    """Whether all booleans of ``x`` are true, read on the host."""
    return bool(k.to_numpy(k.all(x, axes_of(x))))
