"""Sums of terms, some of which may be absent, and reductions over all elements of a tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def sum_terms(k: Any, terms: Iterable[Any]) -> Any:
    """The sum of the terms that are not None, added one after another; None if there are none."""
    result = None
    for term in terms:
        if term is not None:
            result = term if result is None else k.add(result, term)
    return result


def sum_to(k: Any, x: Any, shape: tuple[int, ...]) -> Any:
    """The sum of ``x`` over the axes along which ``shape`` broadcasts to its shape."""
    extra = len(x.shape) - len(shape)
    if extra > 0 and x.shape[extra:] == shape:
        return k.sum(x, tuple(range(extra)), False)
    ones = range(len(shape)) if extra >= 0 else ()
    axes = (*range(extra), *(extra + i for i in ones if shape[i] == 1 and x.shape[extra + i] != 1))
    return k.reshape(k.sum(x, axes, False), shape) if axes else x


def all_axes(x: Any) -> tuple[int, ...]:
    """All axes of a primitive."""
    return tuple(range(len(x.shape)))


def all_true(k: Any, x: Any) -> bool:
    """Whether all booleans of ``x`` are true, read on the host."""
    return bool(k.to_numpy(k.all(x, all_axes(x))))
