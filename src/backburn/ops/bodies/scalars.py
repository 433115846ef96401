"""Python scalars among the operands of a default body."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypeIs


def is_scalar(operand: Any) -> TypeIs[bool | int | float]:
    """Whether an operand is a Python scalar rather than a tensor."""
    return isinstance(operand, (bool, int, float, complex))


def both_tensors(k: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Two operands, at most one of them a Python scalar, as tensors: a scalar becomes 0-d in the other's dtype."""
    if is_scalar(x):
        return k.full((), x, k.dtype(y)), y
    if is_scalar(y):
        return x, k.full((), y, k.dtype(x))
    return x, y


def shape_or_none(x: Any) -> tuple[int, ...] | None:
    """The shape of an operand as shape rules take it: None for one that is absent or a Python scalar."""
    return None if x is None or is_scalar(x) else x.shape
