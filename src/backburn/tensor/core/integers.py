"""Integers among floats: if a cast to the default float would round them, compute in float64 and cast the result.

float32 has 24 significant bits: times, ids and counts above 16 million lose their last digits in a cast, and
differences and decisions after it are wrong. Comparisons with a Python float are done in integers, where they are
exact.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from backburn.base.contexts import default_float
from backburn.base.dtypes import ComplexDType, DType, IntDType, complex128, complex_of, float64
from backburn.tensor.core.wrapping import CLASSES, is_tensor

#: The significant bits of float dtypes.
DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
#: Comparisons, each with its equivalent for swapped operands.
COMPARISONS = {
    "equal": "equal", "not_equal": "not_equal", "less": "greater", "less_equal": "greater_equal", "greater": "less",
    "greater_equal": "less_equal",
}  # fmt: skip
#: Operations on an int and a float tensor whose result loses more than a rounding error of each operand.
CANCEL = frozenset({*COMPARISONS, "add", "sub", "remainder", "fmod", "floor_divide"})


def int_range(dtype: DType) -> tuple[int, int]:
    """The smallest and the largest integer of an int dtype."""
    assert isinstance(dtype, IntDType)
    if not dtype.signed:
        return 0, (1 << dtype.bits) - 1
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1


def loses(x: Any, dtype: DType) -> bool:
    """Whether a cast of ``x`` to a float dtype would round integers that float64 holds."""
    if x.__class__ is not CLASSES["int"] or dtype is float64 or not x._backend.capabilities.supports(float64):
        return False
    return x._dtype.bits - x._dtype.signed > DIGITS[dtype.name]


def is_integer(*operands: Any) -> bool:
    """Whether all operands are int tensors."""
    return all(x.__class__ is CLASSES["int"] for x in operands)


def has_wide_integers(*operands: Any) -> bool:
    """Whether one of the operands is an int tensor that the default float would round."""
    for x in operands:  # a generator would cost more than the check
        if x.__class__ is CLASSES["int"]:
            return any(is_tensor(t) and loses(t, default_float(t._backend)) for t in operands)
    return False


def in_float64(function: Callable[..., Any], *operands: Any, **options: Any) -> Any:
    """The results of a function of int and other tensors, with ``options``, computed in float64.

    They are cast to the dtype that they would have had: that of the float tensors, the default float, or its complex
    dtype.
    """
    from backburn.tensor.core.dispatch import cast, common_dtype

    tensors = [x for x in operands if is_tensor(x)]
    dtype = common_dtype("in_float64", tensors)
    if isinstance(dtype, ComplexDType):
        dtype = dtype.part
    elif not dtype.is_floating:
        dtype = default_float(tensors[0]._backend)

    def narrow(result: Any) -> Any:
        if is_tensor(result):
            narrowed = {float64: dtype, complex128: complex_of(dtype)}
            return cast(result, narrowed.get(result._dtype, result._dtype))
        if isinstance(result, tuple):
            made = [narrow(x) for x in result]
            return type(result)(*made) if hasattr(result, "_fields") else tuple(made)
        return result

    def widened(x: Any) -> Any:
        if not is_tensor(x) or x._dtype.kind == "bool":
            return x
        return cast(x, complex128 if x._dtype.kind == "complex" else float64)

    return narrow(function(*map(widened, operands), **options))


def compared(name: str, x: Any, y: Any) -> Any:
    """A comparison of an int tensor and a Python number, exact for every number; None for other operands.

    The number is replaced by the integer next to it; no integer reaches a number beyond the dtype.
    """
    if name not in COMPARISONS:
        return None
    if not is_tensor(x):
        return compared(COMPARISONS[name], y, x) if is_tensor(y) else None
    if x.__class__ is not CLASSES["int"] or is_tensor(y) or isinstance(y, bool):
        return None
    low, high = int_range(x._dtype)
    if isinstance(y, float):
        if math.isnan(y) or (name in ("equal", "not_equal") and not y.is_integer()):
            return _same(x, name == "not_equal")
        if math.isinf(y):
            y = high + 1 if y > 0 else low - 1
        else:
            y = math.ceil(y) if name in ("less", "greater_equal") else math.floor(y)
    elif low <= y <= high:
        return None
    if low <= y <= high:
        from backburn.tensor.core.dispatch import call

        return call(name, x, int(y))
    functions = {"less": operator.lt, "less_equal": operator.le, "greater": operator.gt, "greater_equal": operator.ge}
    return _same(x, bool(functions[name](0, y)) if name in functions else name == "not_equal")


def beyond(x: Any, number: Any) -> int:
    """1 where a Python integer is larger than the dtype of an int tensor holds, -1 where it is smaller, else 0."""
    if x.__class__ is not CLASSES["int"] or not isinstance(number, int):
        return 0
    low, high = int_range(x._dtype)
    return 1 if number > high else -1 if number < low else 0


def among(name: str, x: Any, number: Any, right: bool = False) -> Any:
    """``isin`` and ``searchsorted`` of an int tensor and a Python number, exact for every number.

    For ``isin``, ``x`` may be the number and ``number`` the tensor.
    """
    from backburn.tensor.core.dispatch import call, create

    values: Any
    found: Any
    values, found = (x, number) if is_tensor(x) else (number, x)
    low, high = int_range(values._dtype)
    if name == "isin":
        exact = low <= found <= high and found == math.floor(found)
        any_equal = call("equal", values, int(found)) if exact else _same(values, False)
        if is_tensor(x):
            return any_equal
        return call("any", any_equal, axis=tuple(range(any_equal.ndim)), keepdims=False)
    if found != found or found > high:
        place, right = high, True
    elif found < low:
        place, right = low, False
    else:
        place = math.floor(found) if right else math.ceil(found)
    k = values._backend
    return call("searchsorted", values, create("full", k, shape=(), value=place, dtype=values._dtype), right=right)


def _same(x: Any, value: bool) -> Any:
    """Booleans of the shape of ``x``, all of one ``value``."""
    from backburn.tensor.core.dispatch import call

    return call("equal" if value else "not_equal", x, x)
