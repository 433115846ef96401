"""Operators that compute element by element."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from backburn.base.dtypes import as_dtype
from backburn.base.errors import Unsupported
from backburn.onnx import naming
from backburn.onnx.dtypes import BY_VALUE, NAMES, NARROW, held, named
from backburn.onnx.registry import Call, Host, Value, operator
from backburn.tensor import arithmetic, creation, elementwise, logic, selection, special
from backburn.tensor.classes import Tensor
from backburn.tensor.core.levels import constant
from backburn.tensor.core.wrapping import is_tensor


def _enter() -> None:
    """Register the functions that take one or two tensors and nothing else."""
    one: dict[str, Callable[..., Any]] = {
        "Abs": arithmetic.abs, "Acos": elementwise.acos, "Acosh": elementwise.acosh, "Asin": elementwise.asin,
        "Asinh": elementwise.asinh, "Atan": elementwise.atan, "Atanh": elementwise.atanh, "Ceil": elementwise.ceil,
        "Cos": elementwise.cos, "Cosh": elementwise.cosh, "Erf": special.erf, "Exp": elementwise.exp,
        "Floor": elementwise.floor, "IsNaN": logic.isnan, "Log": elementwise.log, "Neg": arithmetic.negative,
        "Not": logic.logical_not, "BitwiseNot": logic.bitwise_invert, "Reciprocal": arithmetic.reciprocal,
        "Round": elementwise.round, "Sign": arithmetic.sign, "Sin": elementwise.sin, "Sinh": elementwise.sinh,
        "Sqrt": elementwise.sqrt, "Tan": elementwise.tan,
    }  # fmt: skip
    two: dict[str, Callable[..., Any]] = {
        "Add": arithmetic.add, "Sub": arithmetic.subtract, "Mul": arithmetic.multiply, "Equal": logic.equal,
        "Less": logic.less, "Greater": logic.greater, "LessOrEqual": logic.less_equal,
        "GreaterOrEqual": logic.greater_equal, "And": logic.logical_and, "Or": logic.logical_or,
        "Xor": logic.logical_xor, "BitwiseAnd": logic.bitwise_and, "BitwiseOr": logic.bitwise_or,
        "BitwiseXor": logic.bitwise_xor,
    }  # fmt: skip
    for name, function in one.items():
        operator(name)(_unary(function))
    for name, function in two.items():
        operator(name)(_binary(function))


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    def compute(x: Tensor, /) -> Any:
        return function(x)

    return compute


def _binary(function: Callable[..., Any]) -> Callable[..., Any]:
    def compute(x: Tensor, y: Tensor, /, *, run: Any) -> Any:
        if x.shape != y.shape:
            run.check_broadcast(x.shape, y.shape)
        return function(x, y)

    return compute


_enter()


@operator("Div")
def div(x: Tensor, y: Tensor, /) -> Any:
    """Quotients; those of integers are rounded towards zero."""
    if x.dtype.kind != "int":
        return arithmetic.divide(x, y)
    quotient: Any = arithmetic.floor_divide(x, y)
    rest: Any = arithmetic.subtract(x, quotient * y)
    upwards = logic.logical_and(logic.not_equal(rest, 0), logic.less(rest, 0) ^ logic.less(x, 0))
    return arithmetic.add(quotient, creation.astype(upwards, x.dtype))


@operator("Mod")
def mod(x: Tensor, y: Tensor, /, *, fmod: int = 0) -> Any:
    """Remainders, with the sign of the divisor, or of the dividend with ``fmod``."""
    return arithmetic.fmod(x, y) if fmod else arithmetic.remainder(x, y)


@operator("Pow")
def pow_(x: Tensor, y: Tensor, /) -> Any:
    """Powers, in the dtype of the bases."""
    if x.dtype.kind == "int" and y.dtype.kind == "int":
        return creation.astype(elementwise.pow(x, creation.astype(y, x.dtype)), x.dtype)
    return creation.astype(elementwise.pow(x, y), x.dtype)


@operator("Max")
def max_(*xs: Tensor) -> Any:
    """The element-wise maximum of several tensors."""
    return functools.reduce(arithmetic.maximum, xs)


@operator("Min")
def min_(*xs: Tensor) -> Any:
    """The element-wise minimum of several tensors."""
    return functools.reduce(arithmetic.minimum, xs)


@operator("Sum")
def sum_(*xs: Tensor) -> Any:
    """The sum of several tensors."""
    return functools.reduce(arithmetic.add, xs)


@operator("Mean")
def mean(*xs: Tensor) -> Any:
    """The mean of several tensors."""
    return arithmetic.divide(sum_(*xs), len(xs))


@operator("Where")
def where(condition: Tensor, x: Tensor, y: Tensor, /, *, run: Any) -> Any:
    """Elements of one of two tensors."""
    run.check_broadcast(condition.shape, x.shape, y.shape)
    return selection.where(condition, x, y)


@operator("Clip")
def clip(
    x: Tensor, low: Tensor | None = None, high: Tensor | None = None, /, *, min: Any = None, max: Any = None
) -> Any:
    """Between two bounds; the upper one wins."""
    if low is None and min is not None:
        low = min
    if high is None and max is not None:
        high = max
    result: Any = x if low is None else arithmetic.maximum(x, low)
    return result if high is None else arithmetic.minimum(result, high)


@operator("BitShift")
def bit_shift(x: Tensor, y: Tensor, /, *, direction: str) -> Any:
    """Bits shifted to the left or to the right."""
    shift = logic.bitwise_left_shift if direction == "LEFT" else logic.bitwise_right_shift
    return shift(x, y)


@operator("IsInf")
def isinf(x: Tensor, /, *, detect_negative: int = 1, detect_positive: int = 1) -> Any:
    """Which elements are infinite, of one sign or both."""
    found = logic.isinf(x)
    if not detect_negative:
        found = logic.logical_and(found, logic.greater(x, 0))
    return found if detect_positive else logic.logical_and(found, logic.less(x, 0))


@operator("Cast")
def cast(x: Tensor, /, *, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    """Numbers in another dtype."""
    target = held(to)
    if target is None or NAMES[to] in BY_VALUE:
        raise Unsupported(f"casts to {named(to)} are not supported")
    if NAMES[to] in NARROW:
        return _narrowed(x, NAMES[to])
    if x.dtype.is_floating and target.kind == "bool":
        return logic.not_equal(x, 0)
    return creation.astype(x, target)


def _narrowed(x: Any, name: str) -> Any:
    """Integers of 4 or 2 bits, in 8-bit tensors: the lowest bits of the values rounded towards zero."""
    kind, least, _ = NARROW[name]
    count = 2 ** int(name[-1])
    whole = creation.astype(elementwise.trunc(x), "int64") if x.dtype.is_floating else creation.astype(x, "int64")
    wrapped: Any = arithmetic.remainder(arithmetic.subtract(whole, least), count)
    return creation.astype(wrapped + least, kind)


@operator("CastLike")
def cast_like(x: Tensor, like: Tensor, /, *, saturate: int = 1, round_mode: str = "up") -> Any:
    """Numbers in the dtype of another tensor."""
    if x.dtype.is_floating and like.dtype.kind == "bool":
        return logic.not_equal(x, 0)
    return creation.astype(x, like.dtype)


@operator("BitCast")
def bit_cast(x: Host, /, *, to: int, run: Any) -> Any:
    """The elements reinterpreted as another dtype of the same width, on the host."""
    target = held(to)
    if target is None or NAMES[to] in BY_VALUE or NAMES[to] in NARROW or target.itemsize != x.dtype.itemsize:
        raise Unsupported(f"the bits of {x.dtype} cannot be read as {named(to)} here")
    bits = x.view(as_dtype(target).dtype) if target.kind != "bool" else x.view("uint8") != 0
    return run.tensor(bits)


@operator("Identity")
def identity(x: Value, /, *, call: Call) -> Any:
    """The value itself; as a constant if a file of backburn marks the node."""
    return constant(x) if naming.STOP in call.notes and is_tensor(x) else x
