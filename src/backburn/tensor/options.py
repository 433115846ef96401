"""Validation of options: numbers, choices, axes and shapes, as users write them and as the contract takes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

from backburn.backend.shapes import check_axes, check_axis
from backburn.base.dtypes import DType, as_dtype
from backburn.base.errors import ArgumentError, AxisError, ShapeError
from backburn.tensor.dispatch import scalar_of
from backburn.tensor.messages import describe
from backburn.tensor.wrapping import is_tensor

if TYPE_CHECKING:
    from backburn.tensor.classes import Tensor


def number(name: str, option: str, value: Any, *, of: Sequence[Any] = ()) -> float:
    """An option that is a Python number; a tensor is refused, whose gradient would be lost.

    An error names the operands ``of`` the call, if any are given; so it is with :func:`one_of`.
    """
    found = None if is_tensor(value) else scalar_of(value)
    if found is None:
        raise ArgumentError(f"{name}: {option} is a number, not {describe((value,)) or None}{beside(of)}")
    try:
        float(found)
    except OverflowError as cause:
        raise ArgumentError(f"{name}: {option} is larger than floats are: {describe((value,))}{beside(of)}") from cause
    return found


def integer(name: str, option: str, value: Any) -> int:
    """An option that is one integer, of any kind."""
    try:
        if value.__class__ is not bool:
            return index(value)
    except TypeError:
        pass
    raise ArgumentError(f"{name}: {option} is an integer, not {describe((value,)) or None}")


def beside(operands: Sequence[Any]) -> str:
    """The operands of a call whose option is wrong, if they are given, as the end of a message."""
    return f". Operands: {describe(operands)}" if operands else ""


def one_of(name: str, option: str, value: Any, known: Iterable[Any], *, of: Sequence[Any] = ()) -> Any:
    """An option that is one of several words (or numbers)."""
    known = list(known)
    if isinstance(value, (str, int, float)) and not isinstance(value, bool) and value in known:
        return value
    words = ", ".join(map(repr, known))
    raise ArgumentError(f"{name}: {option} is one of {words}, not {describe((value,)) or None}{beside(of)}")


def integers_of(name: str, option: str, value: Any) -> tuple[int, ...]:
    """One integer or several, of any kind, as a tuple; an error of ours for anything else."""
    try:
        return tuple(map(index, value)) if value.__class__ in (tuple, list) else (index(value),)
    except TypeError:
        try:
            return tuple(map(index, value))
        except (TypeError, ShapeError):  # a tensor that is no integer
            words = describe((value,)) or None
            raise ArgumentError(f"{name}: {option} is one integer or several, not {words}") from None


def shape_of(name: str, shape: Any) -> tuple[int, ...]:
    """A shape as the contract takes it, from one length or several, integers of any kind."""
    lengths = integers_of(name, "a shape", shape)
    if any(n < 0 for n in lengths):
        raise ShapeError(f"{name}: a length is 0 or more, and the shape is {list(lengths)}")
    return lengths


def axes_of(name: str, x: Tensor, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    """``axis`` of a function as the contract takes it: a sorted tuple; None means all axes."""
    try:
        return check_axes(axis, len(x._primitive.shape))
    except AxisError as error:
        raise AxisError(f"{name}: {error}. Operand: {describe((x,))}") from None


def axis_of(name: str, x: Tensor, axis: int) -> int:
    """One ``axis`` of a function as the contract takes it: from 0 to rank - 1."""
    try:
        return check_axis(axis, len(x._primitive.shape))
    except AxisError as error:
        raise AxisError(f"{name}: {error}. Operand: {describe((x,))}") from None


def dtype_or_default(dtype: Any, default: DType) -> DType:
    """The dtype that an argument names, or ``default`` for None."""
    return default if dtype is None else as_dtype(dtype)
