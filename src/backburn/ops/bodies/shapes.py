"""Checks of shapes and axes by operations of a backend, whose operands no tensor has checked."""

from __future__ import annotations

from typing import Any

from backburn.base.errors import ArgumentError, ShapeError


def check_not_negative(operation: str, axis: int) -> None:
    """Raise :class:`ArgumentError` for an axis that is counted from the end: only functions of tensors take these."""
    if axis < 0:
        raise ArgumentError(f"{operation}: an axis is 0 or more, not {axis}")


def check_same_shape(operation: str, first: Any, *others: Any) -> None:
    """Raise :class:`ShapeError` unless all operands have one shape."""
    for other in others:
        if other.shape != first.shape:
            raise ShapeError(f"{operation}: operands of the shapes {list(first.shape)} and {list(other.shape)}")
