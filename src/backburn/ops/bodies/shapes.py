"""Shapes that operands must have in common."""

from __future__ import annotations

from typing import Any

from backburn.base.errors import ShapeError


def check_same_shape(operation: str, first: Any, *others: Any) -> None:
    """Raise :class:`ShapeError` unless all operands have one shape."""
    for other in others:
        if other.shape != first.shape:
            raise ShapeError(f"{operation}: operands of the shapes {list(first.shape)} and {list(other.shape)}")
