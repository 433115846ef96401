"""Inspection of dtypes and shapes, under the names of the Array API."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backburn.base.dtypes import PRECISIONS, ComplexDType, DType, IntDType, as_dtype, largest, promote, promote_scalar
from backburn.base.errors import ArgumentError, DTypeError, ShapeError
from backburn.hints import add_hints
from backburn.ops.rules.shapes import broadcast
from backburn.tensor.core.defaults import default_dtype
from backburn.tensor.core.dispatch import as_number
from backburn.tensor.core.options import shape_of
from backburn.tensor.core.wrapping import is_tensor

if TYPE_CHECKING:
    from backburn.tensor.classes import Tensor


def _dtype(value: Any) -> DType:
    """The dtype of a tensor, or the one that an argument names."""
    return value.dtype if is_tensor(value) else default_dtype() if value is float else as_dtype(value)


def result_type(*arrays_and_dtypes: Tensor | DType | complex | str) -> DType:
    """The dtype of an operation on tensors, dtypes and (weak) Python numbers.

    With other dtypes, a quantized one counts as a float: the first float dtype among the arguments, or the default.
    Raises :class:`DTypeError` if there is no common dtype, and :class:`ArgumentError` for Python numbers alone.

        >>> import backburn as bb
        >>> bb.result_type(bb.int8, bb.uint8), bb.result_type(bb.asarray([1]), 2.5), bb.result_type("float16", 2.5)
        (int16, float32, float16)
    """
    scalars: list[Any] = []
    dtypes: list[DType] = []
    for value in arrays_and_dtypes:
        scalar = as_number(value)
        if scalar is None or isinstance(value, str | DType):
            dtypes.append(_dtype(value))
        else:
            scalars.append(scalar)
    if not dtypes:
        raise ArgumentError("result_type: at least one tensor or dtype is needed beside Python numbers")
    if any(d.kind == "quantized" for d in dtypes) and (scalars or len(set(dtypes)) > 1):
        stands = next((d for d in dtypes if d.is_floating), default_dtype())
        dtypes = [stands if d.kind == "quantized" else d for d in dtypes]
    try:
        result = dtypes[0]
        for dtype in dtypes[1:]:
            result = promote(result, dtype)
        for scalar in scalars:
            result = promote_scalar(result, scalar, default_dtype())
    except DTypeError as error:
        raise DTypeError(f"result_type: {error}") from None
    return result


def can_cast(from_: Tensor | DType | str, to: DType | str, /) -> bool:
    """Whether a tensor or dtype can be cast to another dtype by the rules of promotion.

    >>> import backburn as bb
    >>> bb.can_cast("int8", "int32"), bb.can_cast(bb.float32, bb.float16), bb.can_cast("bool", "int8")
    (True, False, True)
    """
    start, end = _dtype(from_), as_dtype(to)
    try:
        return promote(start, end) is end
    except DTypeError:
        return False


#: The Array API's kinds of dtypes.
KINDS: dict[str, Callable[[DType], bool]] = {
    "bool": lambda d: d.kind == "bool",
    "signed integer": lambda d: isinstance(d, IntDType) and d.signed,
    "unsigned integer": lambda d: isinstance(d, IntDType) and not d.signed,
    "integral": lambda d: d.kind == "int",
    "real floating": lambda d: d.is_floating,
    "complex floating": lambda d: d.kind == "complex",
    "numeric": lambda d: d.is_arithmetic,
}


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype equals another or is of a kind, or matches any of a tuple of these.

    Kinds are ``"bool"``, ``"signed integer"``, ``"unsigned integer"``, ``"integral"``, ``"real floating"``,
    ``"complex floating"`` and ``"numeric"``. Raises :class:`ArgumentError` for other strings.

        >>> import backburn as bb
        >>> bb.isdtype(bb.int8, "integral"), bb.isdtype(bb.int8, ("bool", "real floating")), bb.isdtype("int8", bb.int8)
        (True, False, True)
    """
    found = _dtype(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(found, one) for one in kind)
    if not isinstance(kind, str):
        return found is _dtype(kind)
    if kind not in KINDS:
        raise ArgumentError(f"isdtype: {kind!r} is not a kind of dtypes. Known: {', '.join(map(repr, KINDS))}")
    return KINDS[kind](found)


@dataclass(frozen=True)
class FloatInfo:
    """The limits of a float dtype; ``eps`` is the distance from 1 to the next larger number."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


add_hints(FloatInfo, {"smallest_subnormal": "smallest_normal * eps", "tiny": "smallest_normal"})


@dataclass(frozen=True)
class IntInfo:
    """The limits of an int dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def finfo(type: Tensor | DType | str, /) -> FloatInfo:
    """The limits of a float dtype, of the parts of a complex one, or of a tensor's.

    Raises :class:`DTypeError` for other kinds.

    >>> import backburn as bb
    >>> bb.finfo(bb.float32).eps, bb.finfo("float16").max
    (1.1920928955078125e-07, 65504.0)
    """
    dtype = _dtype(type)
    if isinstance(dtype, ComplexDType):
        dtype = dtype.part
    if not dtype.is_floating:
        raise DTypeError(f"finfo: {dtype} is not a float dtype; iinfo has the limits of integers")
    return _float_info(dtype)


@functools.cache
def _float_info(dtype: DType) -> FloatInfo:
    digits, exponent = PRECISIONS[dtype.name]
    return FloatInfo(dtype.bits, 2.0 ** (1 - digits), largest(dtype), -largest(dtype), 2.0 ** (1 - exponent), dtype)


def iinfo(type: Tensor | DType | str, /) -> IntInfo:
    """The limits of an int dtype, or of a tensor's. Raises :class:`DTypeError` for other kinds.

    >>> import backburn as bb
    >>> bb.iinfo(bb.int8).min, bb.iinfo("uint16").max
    (-128, 65535)
    """
    dtype = _dtype(type)
    if dtype.kind != "int":
        raise DTypeError(f"iinfo: {dtype} is not an int dtype; finfo has the limits of floats")
    bits = dtype.bits
    if dtype.name.startswith("u"):
        return IntInfo(bits, 2**bits - 1, 0, dtype)
    return IntInfo(bits, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), dtype)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape to which tensors of these shapes broadcast. Raises :class:`ShapeError` where there is none.

    >>> import backburn as bb
    >>> bb.broadcast_shapes((2, 1), (3,), ())
    (2, 3)
    """
    try:
        return broadcast(*(shape_of("broadcast_shapes", s) for s in shapes))
    except ShapeError as error:
        raise ShapeError(f"broadcast_shapes: {error}" if "broadcast_shapes" not in str(error) else str(error)) from None
