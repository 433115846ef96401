"""Data types and promotion.

A :class:`DType` is an immutable singleton, so that ``is`` compares dtypes. It equals its own name and the NumPy dtype
of that name::

    >>> from backburn.base.dtypes import float32, promote
    >>> float32 == "float32", float32.bits, promote(float32, "int64")
    (True, 32, float32)

Promotion follows the Array API standard. In the cases that it leaves open, a float or complex dtype wins over integers
and booleans and keeps its width, an integer wins over a boolean, and Python scalars are weakly typed.
"""

from __future__ import annotations

import re
from contextlib import suppress
from operator import index
from typing import Any, ClassVar, Final

import numpy as np

from backburn.base.errors import DTypeError, hint_for

Scalar = bool | int | float | complex


class DType:
    """A data type: its ``name``, ``kind`` and ``bits``.

    The kind is ``"float"``, ``"complex"``, ``"int"``, ``"bool"`` or ``"quantized"``.
    Equal to its name and to NumPy's dtype of that name; hashable as its name. ``np.dtype(bb.float32)`` works.

        >>> import backburn as bb
        >>> bb.float32.is_floating, bb.float32.has_gradient, bb.int64.is_arithmetic
        (True, True, True)
        >>> bb.int64.has_gradient, bb.bool.is_arithmetic
        (False, False)
    """

    __slots__ = ("bits", "name")
    kind: ClassVar[str] = ""
    #: Whether values are real floating-point numbers: they have an order, NaN and rounding.
    is_floating: ClassVar[bool] = False
    #: Whether tensors of this dtype can require gradients and carry tangents.
    has_gradient: ClassVar[bool] = False
    #: Whether values can be added and multiplied: neither booleans nor quantized values can.
    is_arithmetic: ClassVar[bool] = False
    name: str
    bits: int

    def __init__(self, name: str, bits: int) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "bits", bits)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a dtype is immutable: {self.name}.{name} cannot be set")

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return (self.bits + 7) // 8

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's dtype of the same name, so that ``np.dtype(bb.float32)`` works."""
        if self.name in _HOST:
            return _HOST[self.name]
        if self.name == "bfloat16":
            try:
                import ml_dtypes
            except ImportError as cause:
                raise DTypeError(
                    "bfloat16 on the host needs the package ml_dtypes: pip install 'backburn[bfloat16]'"
                ) from cause
            return np.dtype(ml_dtypes.bfloat16)
        return np.dtype(self.name)

    @property
    def byteorder(self) -> str:
        """NumPy's sign for the byte order: ``"="`` for the machine's, or ``"|"`` for elements of one byte."""
        return self.dtype.byteorder

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, str):
            return self.name == other
        if isinstance(other, np.dtype):
            return self.name == other.name
        if isinstance(other, type) and issubclass(other, np.generic):
            return self.name == np.dtype(other).name
        return False

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return (as_dtype, (self.name,))


class FloatDType(DType):
    """A floating-point type."""

    __slots__ = ()
    kind = "float"
    is_floating = has_gradient = is_arithmetic = True


class ComplexDType(DType):
    """A complex type: two floats of half its bits, the real and the imaginary part.

    >>> import backburn as bb
    >>> bb.complex64.part, bb.complex64.has_gradient, bb.complex64.is_floating
    (float32, True, False)
    """

    __slots__ = ()
    kind = "complex"
    has_gradient = is_arithmetic = True

    @property
    def part(self) -> FloatDType:
        """The dtype of the real and the imaginary part."""
        return float64 if self.bits == 128 else float32


class IntDType(DType):
    """A signed or unsigned integer type."""

    __slots__ = ()
    kind = "int"
    is_arithmetic = True

    @property
    def signed(self) -> bool:
        """Whether negative values exist."""
        return not self.name.startswith("u")


class BoolDType(DType):
    """The type of booleans."""

    __slots__ = ()
    kind = "bool"


class QuantizedDType(DType):
    """The dtype of a quantized tensor: its quantization scheme, a singleton with a name that describes it.

    A stored value represents ``(stored - zero_point) * step``. ``storage`` is the dtype of a stored value: int8, uint8,
    int4 (two in a byte), int2 (four in a byte; -1, 0 and 1 if symmetric), float8_e4m3fn (up to 448) or float8_e5m2 (up
    to 57344; Micikevicius et al. (2022), *FP8 Formats for Deep Learning*, arXiv:2209.05433). 8-bit floats are always
    symmetric.

    In ``mode`` ``"symmetric"`` zero points are 0, and the least integer is unused: int4 has -7 to 7. ``"full"`` uses it
    too (-8), and steps read from a file may have any sign, as in the block formats of llama.cpp; in
    ``"affine"`` each step has a zero point. ``granularity`` says which values share a step: all (``"tensor"``), those
    at one index along ``axis`` (``"channel"``), or those of a ``block`` (``"block"``), which has a length along the
    last axis, or lengths along several last axes. At the end of an axis blocks may be shorter; leading block lengths of
    1 are dropped. ``scale`` is the dtype of the steps: float32, float16 or bfloat16.

        >>> QuantizedDType("int4", granularity="block", block=32, scale="float16")
        qint4_symmetric_block32_float16
        >>> QuantizedDType("int8", granularity="block", block=(16, 32)).block_shape
        (16, 32)
        >>> as_dtype("qint8_symmetric_block16x32_float32").block
        (16, 32)
        >>> as_dtype("quint8_affine_channel0_float32").axis
        0

    Raises :class:`DTypeError` for schemes that do not exist, such as uint8 values without zero points.
    """

    __slots__ = ("axis", "block_shape", "granularity", "mode", "scale", "storage")
    kind = "quantized"
    storage: IntDType | FloatDType
    scale: FloatDType
    mode: str
    granularity: str
    axis: int | None
    #: The lengths of a block along the last axes; empty for other granularities.
    block_shape: tuple[int, ...]

    def __new__(
        cls,
        storage: IntDType | FloatDType | str = "int8",
        scale: FloatDType | str = "float32",
        mode: str = "symmetric",
        granularity: str = "tensor",
        *,
        axis: int | None = None,
        block: int | tuple[int, ...] | None = None,
    ) -> QuantizedDType:
        """The scheme with these parameters; always the same object."""
        axis, lengths = None if axis is None else _whole_number("an axis", axis), _lengths(block)
        part = axis if granularity == "channel" else "x".join(map(str, lengths)) if granularity == "block" else None
        name = f"q{storage}_{mode}_{granularity}{'' if part is None else part}_{scale}"
        stored, step = STORAGES.get(str(storage)), _SCALES.get(str(scale))
        known = mode in ("symmetric", "full", "affine") and granularity in ("tensor", "channel", "block")
        if stored is None or step is None or not known:
            raise DTypeError(
                f"{name} is not a scheme: storage is one of {', '.join(STORAGES)}, scale one of {', '.join(_SCALES)}, "
                "mode symmetric, full or affine, granularity tensor, channel or block"
            )
        given = (axis is not None, lengths != ())
        if given != (granularity == "channel", granularity == "block") or min(lengths, default=1) < 1:
            raise DTypeError(
                f"{name} is not a scheme with axis={axis} and block={block}: channel needs an axis, block positive "
                "lengths, and nothing else is allowed"
            )
        if stored is uint8 and mode != "affine":
            raise DTypeError(f"{name} is not a scheme: uint8 holds no negative values, so its mode is affine")
        if isinstance(stored, FloatDType) and mode != "symmetric":
            raise DTypeError(f"{name} is not a scheme: floats are densest around 0, so their mode is symmetric")
        if name in _SCHEMES:
            return _SCHEMES[name]
        self = object.__new__(cls)
        DType.__init__(self, name, stored.bits)
        for key, value in (("storage", stored), ("scale", step), ("mode", mode), ("granularity", granularity)):
            object.__setattr__(self, key, value)
        object.__setattr__(self, "axis", axis)
        object.__setattr__(self, "block_shape", lengths)
        return _SCHEMES.setdefault(name, self)

    def __init__(self, *parts: Any, **named: Any) -> None:
        """``__new__`` does everything."""

    @property
    def block(self) -> int | tuple[int, ...] | None:
        """The length of a block along the last axis, or its lengths along several axes, or None."""
        return self.block_shape[0] if len(self.block_shape) == 1 else self.block_shape or None

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and the largest stored value; symmetric schemes do not use the least integer."""
        if self.storage is uint8:
            return 0, 255
        if self.is_float:
            most = LARGEST_FLOAT8[self.storage.name]
            return -most, most
        most = 2 ** (self.bits - 1) - 1
        return (-most if self.mode == "symmetric" else -most - 1), most

    @property
    def has_zero(self) -> bool:
        """Whether each step has a zero point."""
        return self.mode == "affine"

    @property
    def is_packed(self) -> bool:
        """Whether several values share a byte."""
        return self.bits < 8

    def bytes_for(self, values: int) -> int:
        """The bytes that ``values`` neighbouring values take."""
        return -(-values * self.bits // 8)

    @property
    def is_float(self) -> bool:
        """Whether stored values are 8-bit floats, stored as bytes."""
        return self.storage.is_floating

    @property
    def stored(self) -> IntDType:
        """The dtype of the arrays that hold the stored values: int8, or uint8 for unsigned, packed and float values."""
        return int8 if self.storage is int8 else uint8

    def over(self, axis: int) -> QuantizedDType:
        """This scheme with one step per channel along ``axis``."""
        return QuantizedDType(self.storage, self.scale, self.mode, "channel", axis=axis)

    def in_blocks(self, lengths: tuple[int, ...]) -> QuantizedDType:
        """This scheme with blocks of these lengths along the last axes, or with one step for all values."""
        if not lengths:
            return self.for_tensor()
        return QuantizedDType(self.storage, self.scale, self.mode, "block", block=lengths)

    def for_tensor(self) -> QuantizedDType:
        """This scheme with one step for all values."""
        return QuantizedDType(self.storage, self.scale, self.mode)


def _lengths(block: Any) -> tuple[int, ...]:
    """The lengths of a block without leading lengths of 1, but at least one; empty for None."""
    if block is None:
        return ()
    lengths = tuple(_whole_number("a block", n) for n in (block if isinstance(block, tuple | list) else (block,)))
    while lengths[:1] == (1,) and len(lengths) > 1:
        lengths = lengths[1:]
    return lengths


def _whole_number(what: str, value: Any) -> int:
    """An integer of any type but bool."""
    try:
        if not isinstance(value, bool):
            return index(value)
    except TypeError:
        pass
    raise DTypeError(f"{what} of a scheme is an integer, not {value!r}")


float16: Final = FloatDType("float16", 16)
bfloat16: Final = FloatDType("bfloat16", 16)
float32: Final = FloatDType("float32", 32)
float64: Final = FloatDType("float64", 64)
complex64: Final = ComplexDType("complex64", 64)
complex128: Final = ComplexDType("complex128", 128)
int8: Final = IntDType("int8", 8)
int16: Final = IntDType("int16", 16)
int32: Final = IntDType("int32", 32)
int64: Final = IntDType("int64", 64)
uint8: Final = IntDType("uint8", 8)
uint16: Final = IntDType("uint16", 16)
uint32: Final = IntDType("uint32", 32)
uint64: Final = IntDType("uint64", 64)
#: Dtypes of stored values of quantized tensors, two and four to a byte; not dtypes of tensors.
int4: Final = IntDType("int4", 4)
int2: Final = IntDType("int2", 2)
#: Dtypes of stored values of quantized tensors, one to a byte; not dtypes of tensors.
float8_e4m3fn: Final = FloatDType("float8_e4m3fn", 8)
float8_e5m2: Final = FloatDType("float8_e5m2", 8)
LARGEST_FLOAT8: Final = {"float8_e4m3fn": 448, "float8_e5m2": 57344}
bool_: Final = BoolDType("bool", 8)
#: The dtypes of stored values of quantized tensors, by name.
STORAGES: Final[dict[str, IntDType | FloatDType]] = {
    d.name: d for d in (int8, uint8, int4, int2, float8_e4m3fn, float8_e5m2)
}
_SCALES: Final = {d.name: d for d in (float32, float16, bfloat16)}
_SCHEMES: Final[dict[str, QuantizedDType]] = {}
_SCHEME_NAME: Final = re.compile(r"q(\w+)_([a-z]+)_(tensor|channel|block)(-?\d+(?:x-?\d+)*)?_(\w+)")
#: Matches names that look like a quantization scheme: a misspelt one gets an error about its parts.
_SCHEME_PREFIX: Final = re.compile(r"q(u?int|float)\d")
qint8: Final = QuantizedDType()

FLOATS: Final = (float16, bfloat16, float32, float64)
#: Significant bits and the largest exponent of each float dtype.
PRECISIONS: Final = {"float16": (11, 15), "bfloat16": (8, 127), "float32": (24, 127), "float64": (53, 1023)}
COMPLEX: Final = (complex64, complex128)
INTS: Final = (int8, int16, int32, int64, uint8, uint16, uint32, uint64)
#: Every dtype of tensors, by name.
DTYPES: Final[dict[str, DType]] = {d.name: d for d in (*FLOATS, *COMPLEX, *INTS, bool_, qint8)}

_PYTHON: Final[dict[type, DType]] = {float: float32, int: int64, bool: bool_, complex: complex64}
#: NumPy's dtypes, by the names that they share with ours, and ours by NumPy's types of scalars.
_HOST = {name: np.dtype(name) for name, d in DTYPES.items() if d.kind != "quantized" and name != "bfloat16"}
_SCALARS = {host.type: DTYPES[name] for name, host in _HOST.items()}
#: Names of other libraries to which the most similar name here, if any, is a different dtype.
_FOREIGN_NAMES: Final = {
    "double": "float64", "fp16": "float16", "fp32": "float32", "fp64": "float64", "half": "float16", "int": "int64",
    "long": "int64", "short": "int16", "single": "float32", "uint": "uint64",
}  # fmt: skip


def largest(dtype: DType) -> float:
    """The largest finite number of a float dtype."""
    digits, exponent = PRECISIONS[dtype.name]
    return (2.0 - 2.0 ** (1 - digits)) * 2.0**exponent


def as_dtype(dtype: Any) -> DType:
    """The :class:`DType` named by a ``DType``, a string, a NumPy dtype or scalar type, or a type of Python numbers.

    ``float`` is float32, ``int`` int64, ``complex`` complex64 and ``"qint8"`` the default scheme. Raises
    :class:`DTypeError` for anything else.

        >>> as_dtype("int8"), as_dtype(np.float64), as_dtype(bool)
        (int8, float64, bool)
    """
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, np.dtype) and dtype.type in _SCALARS:
        return _SCALARS[dtype.type]
    if isinstance(dtype, str):
        name = dtype
    elif dtype is None or isinstance(dtype, bytes):  # NumPy reads None as float64 and accepts or warns about bytes
        name = repr(dtype)
    elif isinstance(dtype, type) and dtype in _PYTHON:
        return _PYTHON[dtype]
    elif hasattr(dtype, "__array_namespace__") and not isinstance(dtype, (type, np.generic)):
        name = repr(dtype)  # an array or a tensor, which has a dtype but is not one
    else:
        try:
            name = np.dtype(dtype).name
        except (TypeError, ValueError):  # also for other objects that have a dtype
            name = repr(dtype)
    found = qint8 if name == "qint8" else DTYPES.get(name)
    if found is None and (scheme := _SCHEME_NAME.fullmatch(name)):
        storage, mode, granularity, number, scale = scheme.groups()
        numbers = tuple(map(int, number.split("x"))) if number is not None else ()
        if granularity == "block":
            return QuantizedDType(storage, scale, mode, granularity, block=numbers or None)
        if len(numbers) == (granularity == "channel"):
            return QuantizedDType(storage, scale, mode, granularity, axis=numbers[0] if numbers else None)
    if found is None:
        hint = hint_for(_FOREIGN_NAMES.get(name, name), DTYPES)
        if dtype is None:
            hint = "Name one, such as 'float32'; bb.default_dtype() is the default"
        if name.startswith("complex"):
            hint = "The complex dtypes are complex64 and complex128"
        if name.removeprefix("q") in STORAGES or _SCHEME_PREFIX.match(name):
            hint = (
                "A scheme names its storage, mode, granularity (tensor, channel and an axis, or block and a length) "
                "and the dtype of its steps, as in qint8_symmetric_channel0_float32 and qint4_symmetric_block32_float16"
            )
        raise DTypeError(f"{name} is not a dtype of backburn. {hint}")
    return found


def host_dtypes(has_complex: bool = False) -> dict[np.dtype[Any], DType]:
    """The dtypes of tensors, by NumPy dtype; without bfloat16 if ``ml_dtypes`` is not installed.

    Complex dtypes are included with ``has_complex``, for backends that compute with them.
    """
    known: dict[np.dtype[Any], DType] = {}
    for dtype in DTYPES.values():
        if dtype.kind != "quantized" and (has_complex or dtype.kind != "complex"):
            with suppress(DTypeError):
                known[dtype.dtype] = dtype
    return known


def _promote_ints(a: IntDType, b: IntDType) -> IntDType:
    if a.signed == b.signed:
        return a if a.bits >= b.bits else b
    signed, unsigned = (a, b) if a.signed else (b, a)
    if unsigned.bits < signed.bits:
        return signed
    if unsigned.bits == 64:
        raise DTypeError(f"{a.name} and {b.name} have no common integer type: cast one of them first")
    return {8: int16, 16: int32, 32: int64}[unsigned.bits]


def promote(a: Any, b: Any) -> DType:
    """The dtype of an operation on ``a`` and ``b``; raises :class:`DTypeError` if there is none.

    >>> promote(uint8, int8), promote(float16, bfloat16), promote(bool_, int8), promote(float64, complex64)
    (int16, float32, int8, complex128)
    """
    return _promoted(as_dtype(a), as_dtype(b))


def _promoted(a: DType, b: DType) -> DType:
    if a is b:
        return a
    if isinstance(a, FloatDType) and isinstance(b, FloatDType):
        return float32 if a.bits == b.bits else a if a.bits > b.bits else b
    if isinstance(a, IntDType) and isinstance(b, IntDType):
        return _promote_ints(a, b)
    if isinstance(a, ComplexDType) or isinstance(b, ComplexDType):
        both = [d for d in (a, b) if d.kind in ("complex", "float")]
        if len(both) == 2:
            return complex128 if any(d.bits == 128 or d is float64 for d in both) else complex64
    order = ("bool", "int", "float", "complex")
    if a.kind in order and b.kind in order:
        return a if order.index(a.kind) > order.index(b.kind) else b
    raise DTypeError(f"{a.name} and {b.name} do not combine: dequantize the quantized operand first")


def promote_scalar(dtype: DType, scalar: Scalar, default_float: DType) -> DType:
    """The dtype of an operation on a tensor of ``dtype`` and a weakly typed Python scalar.

    >>> promote_scalar(int8, 2.5, float32), promote_scalar(float16, 3, float32), promote_scalar(float64, 1j, float32)
    (float32, float16, complex128)
    """
    if dtype.kind == "quantized":
        raise DTypeError(f"{dtype.name} and a number do not combine: dequantize the quantized operand first")
    if isinstance(scalar, complex):
        own = dtype if dtype.is_floating else default_float
        return dtype if dtype.kind == "complex" else complex_of(own)
    if isinstance(scalar, float):
        return dtype if dtype.is_floating or dtype.kind == "complex" else default_float
    if isinstance(scalar, bool) or dtype.kind != "bool":
        return dtype
    return int64


def complex_of(dtype: DType) -> ComplexDType:
    """The complex dtype whose parts can hold the values of a float dtype.

    >>> complex_of(float16), complex_of(float64)
    (complex64, complex128)
    """
    return complex128 if dtype is float64 else complex64


def nearest(array: Any, dtype: np.dtype[Any]) -> Any:
    """A host array of another dtype, rounded once.

    ``ml_dtypes`` converts to bfloat16 from float32. Here float64 and integers are first rounded to odd, so that the
    second rounding is correct (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).

        >>> near = nearest(np.array([1.0 + 2.0**-8 + 2.0**-40]), np.dtype(np.float32))
        >>> near.tolist()
        [1.00390625]
    """
    if dtype.name != "bfloat16" or array.dtype.kind not in "fiu" or array.dtype.itemsize < 4:
        return array.astype(dtype, copy=False)
    if array.dtype == np.float32:
        return array.astype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        wide = np.asarray(array, np.float64)
        narrow = wide.astype(np.float32)
        inexact = (narrow != wide) & np.isfinite(wide)
        below = np.where(np.abs(narrow) > np.abs(wide), np.nextafter(narrow, np.float32(0)), narrow)
        odd = (below.view(np.uint32) | 1).view(np.float32)
        return np.where(inexact, odd, narrow).astype(dtype)


def rounded(number: Any, dtype: np.dtype[Any]) -> Any:
    """A number rounded to a float dtype, which may overflow to infinity; anything else is returned unchanged.

    >>> rounded(0.1, np.dtype(np.float16)), rounded(3, np.dtype(np.float16)), rounded("mean", np.dtype(np.float16))
    (0.0999755859375, 3, 'mean')
    """
    if number.__class__ not in (float, int):
        return number
    with np.errstate(over="ignore"):
        near = float(nearest(np.asarray(number, np.float64), dtype))
    return number if near == number else near
