"""Error messages of tensor functions: operands described, and a backend's failures turned into errors of backburn."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from backburn.base.errors import (
    ArgumentError,
    BackburnError,
    DeviceMemoryError,
    DTypeError,
    OutOfRangeError,
    ShapeError,
)
from backburn.ops.table import OPERATIONS
from backburn.tensor.core.wrapping import flat, is_tensor


def raise_out_of_memory(name: str, where: str, device: str, cause: MemoryError) -> NoReturn:
    """Raise :class:`DeviceMemoryError` for a call that ran out of memory; an error of backburn is raised unchanged."""
    if isinstance(cause, BackburnError):
        raise cause
    words = str(cause).strip().rstrip(".") or "nothing more can be allocated"
    raise DeviceMemoryError(
        f"{name}: the memory of {device} is exhausted: {words}.{where} Use less at a time, or a smaller dtype"
    ) from cause


#: Abbreviates long values.
_REPR = reprlib.Repr()
_REPR.maxother = _REPR.maxstring = _REPR.maxlong = 100


#: Messages describe integers with more bits by their length; Python refuses to print the longest.
LONGEST = 256


def type_name(value: Any) -> str:
    """The name of a value's type; for another library's ``Tensor``, with the name of the library."""
    kind = type(value)
    return f"{kind.__module__.partition('.')[0]}.Tensor" if kind.__name__ == "Tensor" else kind.__name__


def describe(operands: Iterable[Any]) -> str:
    """``float32[2,3] (numpy), 1.5``: every operand's dtype, shape and backend, for messages; arrays by their type."""
    words = []
    for x in operands:
        if x.__class__ is list and any(map(is_tensor, x)):
            words.append(f"[{describe(x)}]")
        elif is_tensor(x):
            words.append(f"{x.dtype}[{','.join(map(str, x.shape))}] ({x.backend.spec})")
        elif x.__class__ is int and x.bit_length() > LONGEST:
            words.append(f"an integer of {x.bit_length()} bits")
        elif hasattr(x, "dtype") and isinstance(getattr(x, "shape", None), tuple) and x.shape:
            words.append(f"{type(x).__name__} {x.dtype}[{','.join(map(str, x.shape))}]")
        elif x is not None:
            words.append(_REPR.repr(x))
    return ", ".join(words)


#: Public names of the options that have another name in the contract.
OPTION_NAMES = {
    ("eye", "offset"): "k",
    ("kthvalue", "nth"): "k",
    ("one_hot", "depth"): "classes",
    ("topk", "count"): "k",
    ("tril", "offset"): "k",
    ("triu", "offset"): "k",
}


def _format_option(name: str, option: str, value: Any) -> str:
    """An option as the user wrote it."""
    if (name, option) == ("searchsorted", "right"):
        return "side='right'" if value else "side='left'"
    return f"{OPTION_NAMES.get((name, option), option)}={value!r}"


def explain(name: str, operands: Sequence[Any], attributes: dict[str, Any], cause: Exception) -> NoReturn:
    """Raise an error of backburn for a failed call, with the message of its shape rule, else of the backend.

    The backend's error becomes the cause. Other exceptions, such as an interrupt, are raised unchanged.
    """
    where = f" Operands: {describe(operands)}." if operands else ""
    entry = OPERATIONS[name]
    hidden = ("key", "offset") if entry.family == "random" else ()  # the position in the random stream
    options = ", ".join(_format_option(name, k, v) for k, v in attributes.items() if k not in hidden)
    where += f" Options: {options}." if options else ""
    if isinstance(cause, MemoryError) and not isinstance(cause, BackburnError):
        raise_out_of_memory(name, where, flat(operands)[0].backend.device, cause)

    def rule() -> None:
        try:
            entry.result_shape(operands, attributes)
        except BackburnError:
            raise
        except Exception:  # the rule does not understand the call, such as operands that are not tensors
            pass
        for operand_name, x in zip(entry.operands, operands, strict=False):
            absent = x is None and operand_name not in entry.optional
            if absent or (isinstance(cause, AttributeError) and x.__class__ in (bool, int, float)):
                raise DTypeError(f"{operand_name} is a tensor, not {x!r}; bb.asarray(...) makes one")

    failed(name, rule, cause, where)


def failed(name: str, rule: Callable[[], object], cause: Exception, where: str) -> NoReturn:
    """Raise an error of backburn for a failed call: with the message of ``rule``, if it raises, else of ``cause``.

    ``where`` describes the operands and follows the message.
    """
    try:
        rule()
    except BackburnError as error:
        raise type(error)(f"{name}: {error}.{where}") from cause
    except Exception:  # the rule does not understand the call: the backend's message is better
        pass
    words = str(cause).strip().rstrip(".")
    if isinstance(cause, OverflowError) and any(x in words for x in ("too large to convert", "out of bounds for")):
        words = "an integer is beyond what the dtype holds"
    if isinstance(cause, BackburnError):
        if "Operand" in words:  # they are described already
            raise type(cause)(str(cause)) from cause
        raise type(cause)(f"{name}: {words.removeprefix(f'{name}: ')}.{where}") from cause
    kinds: dict[type[Exception], type[BackburnError]] = {
        IndexError: OutOfRangeError,
        TypeError: DTypeError,
        ValueError: ShapeError if "shape" in str(cause) or "dimension" in str(cause) else ArgumentError,
        OverflowError: ArgumentError,
        RuntimeError: ArgumentError,  # some libraries raise it for any misuse; its subclasses say more
    }
    for kind, ours in kinds.items():
        if isinstance(cause, kind) and (kind is not RuntimeError or type(cause) is RuntimeError):
            raise ours(f"{name}: {words}.{where}") from cause
    cause.add_note(f"in {name}.{where}")
    raise cause
