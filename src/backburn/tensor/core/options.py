"""Validation of options: numbers, choices, axes and shapes, from what users write to what the contract takes.

Each function takes the names of the called function and of the option, for its error message, and returns the valid
value. Raises :class:`ArgumentError`, or :class:`AxisError` and :class:`ShapeError` for axes and shapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

from backburn.base.contexts import default_float
from backburn.base.dtypes import DType, as_dtype
from backburn.base.errors import ArgumentError, AxisError, ShapeError
from backburn.ops.rules.shapes import check_axes, check_axis
from backburn.tensor.core.dispatch import as_scalar
from backburn.tensor.core.messages import describe
from backburn.tensor.core.wrapping import is_tensor

if TYPE_CHECKING:
    from backburn.backend.contract import AnyBackend
    from backburn.tensor.classes import Tensor


def number(name: str, option: str, value: Any, *, of: Sequence[Any] = ()) -> float:
    """An option that is a Python number; tensors are rejected, because their gradient would be lost.

    ``of`` are the operands of the call, for the error message, here and in the other functions.
    """
    found = None if is_tensor(value) else as_scalar(value)
    if found is None:
        raise ArgumentError(f"{name}: {option} is a number, not {describe((value,)) or None}{beside(of)}")
    try:
        float(found)
    except OverflowError as cause:
        raise ArgumentError(f"{name}: {option} is larger than floats are: {describe((value,))}{beside(of)}") from cause
    return found


def bounded(
    name: str,
    option: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    below: float | None = None,
    of: Sequence[Any] = (),
) -> float:
    """:func:`number` within bounds (``least`` and ``most`` inclusive); ``below=math.inf`` requires a finite one."""
    found = number(name, option, value, of=of)
    if (
        not isinstance(value, bool)
        and (above is None or found > above)
        and (least is None or found >= least)
        and (most is None or found <= most)
        and (below is None or found < below)
    ):
        return float(found)
    bounds = {"above": above, "of at least": least, "of at most": most, "below": None if below == math.inf else below}
    words = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None)
    if least is not None and most is not None:
        words = f"from {least:g} to {most:g}"
    kind = "a finite number" if below == math.inf else "a number"
    raise ArgumentError(f"{name}: {option} is {kind} {words}, not {describe((value,))}{beside(of)}")


def integer(name: str, option: str, value: Any, *, least: int | None = None) -> int:
    """An option that is one integer, of any kind, and not below ``least``."""
    try:
        if value.__class__ is not bool:
            found = index(value)
            if least is None or found >= least:
                return found
    except TypeError:
        pass
    bound = "" if least is None else f" of at least {least}"
    raise ArgumentError(f"{name}: {option} is an integer{bound}, not {describe((value,)) or None}")


def one_integer(value: Any) -> int | None:
    """An option that may be one integer, of any kind; None if it is something else, such as several."""
    try:
        return index(value)
    except (TypeError, ShapeError):  # a tensor that is not an integer
        return None


def flags(name: str, **options: Any) -> None:
    """Options that are True or False; anything else was probably meant for another parameter."""
    for option, value in options.items():
        if not isinstance(value, bool):
            raise ArgumentError(f"{name}: {option} is True or False, not {value!r}; other options come by name")


def beside(operands: Sequence[Any]) -> str:
    """The end of an error message: the operands of the call, if any."""
    return f". Operand{'s' * (len(operands) > 1)}: {describe(operands)}" if operands else ""


#: Names of options in PyTorch and JAX that differ from the names here.
_ELSEWHERE = {
    "amax": "max", "amin": "min", "bicubic": "cubic", "bilinear": "linear", "circular": "wrap", "multiply": "mul",
    "prod": "mul", "replicate": "edge", "set": "assign", "sum": "add", "trilinear": "linear",
}  # fmt: skip


def one_of(name: str, option: str, value: Any, known: Iterable[Any], *, of: Sequence[Any] = ()) -> Any:
    """An option that is one of the ``known`` strings or numbers."""
    known = list(known)
    if isinstance(value, (str, int, float)) and not isinstance(value, bool) and value in known:
        return value
    words = ", ".join(map(repr, known))
    hint = _ELSEWHERE.get(value) if isinstance(value, str) else None
    meant = f"; use {hint!r}" if hint in known else ""
    raise ArgumentError(f"{name}: {option} is one of {words}, not {describe((value,)) or None}{meant}{beside(of)}")


def integers_of(name: str, option: str, value: Any) -> tuple[int, ...]:
    """One integer or several, of any kind, as a tuple."""
    try:
        return tuple(map(index, value)) if value.__class__ in (tuple, list) else (index(value),)
    except TypeError:
        try:
            return tuple(map(index, value))
        except (TypeError, ShapeError):  # a tensor that is not an integer
            words = describe((value,)) or None
            raise ArgumentError(f"{name}: {option} is one integer or several, not {words}") from None


def shape_of(name: str, shape: Any) -> tuple[int, ...]:
    """A shape as the contract takes it, from one length or several, integers of any kind."""
    lengths = integers_of(name, "a shape", shape)
    if lengths and min(lengths) < 0:
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


def dtype_of(dtype: Any, backend: AnyBackend) -> DType:
    """The dtype that an argument names; ``float`` is the default float of the backend."""
    return default_float(backend) if dtype is float else as_dtype(dtype)


def dtype_or_default(dtype: Any, default: DType, backend: AnyBackend) -> DType:
    """The dtype that an argument names, or ``default`` for None."""
    return default if dtype is None else dtype_of(dtype, backend)
