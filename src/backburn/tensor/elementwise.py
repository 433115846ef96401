"""Tensor functions: powers, logarithms, trigonometry and rounding of each element.

Integers become the default float, except in rounding, which returns them unchanged; other dtypes stay. Outside a
function's domain the result is NaN, and at a pole it is infinite, without a warning. Functions of two operands
broadcast and promote. All raise :class:`DTypeError` for bool and quantized tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backburn.base.contexts import default_float
from backburn.base.errors import ArgumentError
from backburn.tensor.core.complex_numbers import by_parts
from backburn.tensor.core.dispatch import (
    Number,
    Scalar,
    binary,
    call,
    cast,
    create,
    float_operand,
    kind_operand,
    unary,
    upcast_half,
)
from backburn.tensor.core.messages import describe
from backburn.tensor.core.methods import method
from backburn.tensor.core.options import integer, number
from backburn.tensor.core.types import T
from backburn.tensor.core.wrapping import is_tensor

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, Tensor


# ---- powers and logarithms ----


@method
def pow(x: Tensor | Number, y: Tensor | Number, /) -> Tensor:
    """``x ** y``. ``0 ** 0`` is 1; a negative float to a non-integral power is NaN.

    The derivative for ``y`` is 0 where ``x`` is 0 and ``y`` is not negative, and NaN where ``x`` is negative. Integers
    stay integers; a negative exponent then raises :class:`ArgumentError`.

        >>> import backburn as bb
        >>> bb.pow(bb.asarray([1, 2, 3]), 2).tolist(), bb.pow(2.0, bb.asarray([-1.0, 3.0])).tolist()
        ([1, 4, 9], [0.5, 8.0])
    """
    return binary("pow", x, y)


@method
def sqrt(x: Tensor, /) -> FloatTensor:
    """The square root; NaN below 0.

    >>> import backburn as bb
    >>> bb.sqrt(bb.asarray([4, 9])).tolist()
    [2.0, 3.0]
    """
    return unary("sqrt", x)


@method
def rsqrt(x: Tensor, /) -> FloatTensor:
    """``1 / sqrt(x)``.

    >>> import backburn as bb
    >>> bb.rsqrt(bb.asarray([4.0, 0.0])).tolist()
    [0.5, inf]
    """
    return unary("rsqrt", x)


@method
def hypot(x: Tensor | Scalar, y: Tensor | Scalar, /) -> FloatTensor:
    """``sqrt(x**2 + y**2)`` without intermediate overflow. The gradient at (0, 0) is 0.

    >>> import backburn as bb
    >>> bb.hypot(bb.asarray([3.0, 3e200], dtype="float64"), bb.asarray([4.0, 4e200], dtype="float64"))
    Tensor([5.e+000, 5.e+200], dtype=float64, backend=autodiff(numpy))
    """
    return binary("hypot", x, y)


@method
def exp(x: Tensor, /) -> FloatTensor:
    """``e ** x``.

    >>> import backburn as bb
    >>> bb.exp(bb.asarray([0.0, 1.0], dtype="float64"))
    Tensor([1.        , 2.71828183], dtype=float64, backend=autodiff(numpy))
    """
    return unary("exp", x)


@method
def exp2(x: Tensor, /) -> FloatTensor:
    """``2 ** x``, exact for integers.

    >>> import backburn as bb
    >>> bb.exp2(bb.asarray([-1, 3])).tolist()
    [0.5, 8.0]
    """
    return unary("exp2", x)


@method
def expm1(x: Tensor, /) -> FloatTensor:
    """``exp(x) - 1``, accurate near 0.

    >>> import backburn as bb
    >>> bb.expm1(bb.asarray([0.0, 1e-10], dtype="float64"))
    Tensor([0.e+00, 1.e-10], dtype=float64, backend=autodiff(numpy))
    """
    return unary("expm1", x)


@method
def log(x: Tensor, /) -> FloatTensor:
    """The natural logarithm; -inf at 0, NaN below.

    >>> import backburn as bb
    >>> bb.log(bb.asarray([1.0, 0.0], dtype="float64"))
    Tensor([  0., -inf], dtype=float64, backend=autodiff(numpy))
    """
    return unary("log", x)


@method
def log2(x: Tensor, /) -> FloatTensor:
    """The logarithm to base 2, exact for powers of 2.

    >>> import backburn as bb
    >>> bb.log2(bb.asarray([0.5, 8.0])).tolist()
    [-1.0, 3.0]
    """
    return unary("log2", x)


@method
def log10(x: Tensor, /) -> FloatTensor:
    """The logarithm to base 10, exact for powers of 10.

    >>> import backburn as bb
    >>> bb.log10(bb.asarray([0.01, 1000.0], dtype="float64"))
    Tensor([-2.,  3.], dtype=float64, backend=autodiff(numpy))
    """
    return unary("log10", x)


@method
def log1p(x: Tensor, /) -> FloatTensor:
    """``log(1 + x)``, accurate near 0.

    >>> import backburn as bb
    >>> bb.log1p(bb.asarray([0.0, 1e-10], dtype="float64"))
    Tensor([0.e+00, 1.e-10], dtype=float64, backend=autodiff(numpy))
    """
    return unary("log1p", x)


@method
def logaddexp(x: Tensor | Scalar, y: Tensor | Scalar, /) -> FloatTensor:
    """``log(exp(x) + exp(y))`` without intermediate overflow.

    >>> import backburn as bb
    >>> bb.logaddexp(bb.asarray([0.0, 1000.0], dtype="float64"), 1000.0)
    Tensor([1000.        , 1000.69314718], dtype=float64, backend=autodiff(numpy))
    """
    return binary("logaddexp", x, y)


@method
def logaddexp2(x: Tensor | Scalar, y: Tensor | Scalar, /) -> FloatTensor:
    """``log2(2**x + 2**y)`` without intermediate overflow.

    >>> import backburn as bb
    >>> bb.logaddexp2(bb.asarray([0.0, 5000.0], dtype="float64"), 5000.0).tolist()
    [5000.0, 5001.0]
    """
    return binary("logaddexp2", x, y)


@method
def ldexp(x: Tensor | Scalar, exponent: Tensor | int, /) -> FloatTensor:
    """``x * 2**exponent`` for integral exponents, rounded at most once: no intermediate overflow or underflow.

    Integers ``x`` become the default float. Raises :class:`DTypeError` for exponents that are not integers.

        >>> import backburn as bb
        >>> bb.ldexp(bb.asarray([1.5, -1.0, 0.0]), bb.asarray([3, -1, 100])).tolist()
        [12.0, -0.5, 0.0]
        >>> bb.ldexp(bb.asarray(2.0**-149), 270).item() == 2.0**121
        True
    """
    power: Any = kind_operand("ldexp", exponent, "I") if is_tensor(exponent) else integer("ldexp", "exponent", exponent)
    if not is_tensor(x) and is_tensor(power):
        dtype = default_float(power.backend)
        x = create("full", power.backend, shape=(), value=float(number("ldexp", "x", x)), dtype=dtype)
    y: Any = float_operand("ldexp", x)
    wide = upcast_half(y)
    most = 126 if wide.dtype.bits == 32 else 1022
    for part in _parts_of_exponent(cast(power, wide.dtype) if is_tensor(power) else power, most):
        wide = wide * (call("exp2", part) if is_tensor(part) else 2.0**part)
    return cast(wide, y.dtype)


def _parts_of_exponent(power: Any, most: int) -> list[Any]:
    """Three exponents of normal numbers whose sum is ``power``, or beyond all results.

    The last one is the largest in magnitude: it turns a product that is already subnormal into 0.
    """
    parts: list[Any] = []
    for _ in range(3):
        part = call("clip", power, -float(most), float(most)) if is_tensor(power) else min(max(power, -most), most)
        parts.insert(0, part)
        power = power - part
    return parts


# ---- trigonometry ----


@method
def sin(x: Tensor, /) -> FloatTensor:
    """The sine of ``x`` in radians.

    >>> import backburn as bb
    >>> bb.sin(bb.asarray([0.0, 1.0], dtype="float64"))
    Tensor([0.        , 0.84147098], dtype=float64, backend=autodiff(numpy))
    """
    return unary("sin", x)


@method
def cos(x: Tensor, /) -> FloatTensor:
    """The cosine of ``x`` in radians.

    >>> import backburn as bb
    >>> bb.cos(bb.asarray([0.0, 1.0], dtype="float64"))
    Tensor([1.        , 0.54030231], dtype=float64, backend=autodiff(numpy))
    """
    return unary("cos", x)


@method
def tan(x: Tensor, /) -> FloatTensor:
    """The tangent of ``x`` in radians.

    >>> import backburn as bb
    >>> bb.tan(bb.asarray([0.0, 1.0], dtype="float64"))
    Tensor([0.        , 1.55740772], dtype=float64, backend=autodiff(numpy))
    """
    return unary("tan", x)


@method
def asin(x: Tensor, /) -> FloatTensor:
    """The inverse of the sine, from -pi/2 to pi/2; NaN outside [-1, 1].

    >>> import backburn as bb
    >>> bb.asin(bb.asarray([0.0, 1.0, 2.0], dtype="float64"))
    Tensor([0.        , 1.57079633,        nan], dtype=float64, backend=autodiff(numpy))
    """
    return unary("asin", x)


@method
def acos(x: Tensor, /) -> FloatTensor:
    """The inverse of the cosine, from 0 to pi; NaN outside [-1, 1].

    >>> import backburn as bb
    >>> bb.acos(bb.asarray([1.0, 0.0], dtype="float64"))
    Tensor([0.        , 1.57079633], dtype=float64, backend=autodiff(numpy))
    """
    return unary("acos", x)


@method
def atan(x: Tensor, /) -> FloatTensor:
    """The inverse of the tangent, from -pi/2 to pi/2.

    >>> import backburn as bb
    >>> bb.atan(bb.asarray([0.0, 1.0], dtype="float64"))
    Tensor([0.        , 0.78539816], dtype=float64, backend=autodiff(numpy))
    """
    return unary("atan", x)


@method
def atan2(x: Tensor | Scalar, y: Tensor | Scalar, /) -> FloatTensor:
    """``atan(x / y)`` in the right quadrant: the angle, from -pi to pi, of the point with ordinate ``x``.

    ``y`` is the abscissa. The gradient at (0, 0) is 0.

        >>> import backburn as bb
        >>> bb.atan2(bb.asarray([1.0, 1.0], dtype="float64"), bb.asarray([1.0, -1.0], dtype="float64"))
        Tensor([0.78539816, 2.35619449], dtype=float64, backend=autodiff(numpy))
    """
    return binary("atan2", x, y)


@method
def sinh(x: Tensor, /) -> FloatTensor:
    """The hyperbolic sine.

    >>> import backburn as bb
    >>> bb.sinh(bb.asarray([0.0, 1.0], dtype="float64"))
    Tensor([0.        , 1.17520119], dtype=float64, backend=autodiff(numpy))
    """
    return unary("sinh", x)


@method
def cosh(x: Tensor, /) -> FloatTensor:
    """The hyperbolic cosine.

    >>> import backburn as bb
    >>> bb.cosh(bb.asarray([0.0, 1.0], dtype="float64"))
    Tensor([1.        , 1.54308063], dtype=float64, backend=autodiff(numpy))
    """
    return unary("cosh", x)


@method
def tanh(x: Tensor, /) -> FloatTensor:
    """The hyperbolic tangent.

    >>> import backburn as bb
    >>> bb.tanh(bb.asarray([0.0, 1.0], dtype="float64"))
    Tensor([0.        , 0.76159416], dtype=float64, backend=autodiff(numpy))
    """
    return unary("tanh", x)


@method
def asinh(x: Tensor, /) -> FloatTensor:
    """The inverse of the hyperbolic sine.

    >>> import backburn as bb
    >>> bb.asinh(bb.asarray([0.0, 1.0], dtype="float64"))
    Tensor([0.        , 0.88137359], dtype=float64, backend=autodiff(numpy))
    """
    return unary("asinh", x)


@method
def acosh(x: Tensor, /) -> FloatTensor:
    """The non-negative inverse of the hyperbolic cosine; NaN below 1.

    >>> import backburn as bb
    >>> bb.acosh(bb.asarray([1.0, 2.0], dtype="float64"))
    Tensor([0.       , 1.3169579], dtype=float64, backend=autodiff(numpy))
    """
    return unary("acosh", x)


@method
def atanh(x: Tensor, /) -> FloatTensor:
    """The inverse of the hyperbolic tangent; infinite at -1 and 1, NaN beyond.

    >>> import backburn as bb
    >>> bb.atanh(bb.asarray([0.5, 1.0], dtype="float64"))
    Tensor([0.54930614,        inf], dtype=float64, backend=autodiff(numpy))
    """
    return unary("atanh", x)


# ---- rounding ----


def _round_operation(name: str, x: Any) -> Any:
    """``x`` rounded by the operation ``name``; integers are returned unchanged."""
    return x if is_tensor(x) and x.dtype.kind == "int" else unary(name, x)


@method
def floor(x: T, /) -> T:
    """The largest integral value not above ``x``. The derivative is 0.

    >>> import backburn as bb
    >>> bb.floor(bb.asarray([1.5, -1.5])).tolist()
    [1.0, -2.0]
    """
    return _round_operation("floor", x)


@method
def ceil(x: T, /) -> T:
    """The smallest integral value not below ``x``. The derivative is 0.

    >>> import backburn as bb
    >>> bb.ceil(bb.asarray([1.5, -1.5])).tolist()
    [2.0, -1.0]
    """
    return _round_operation("ceil", x)


@method
def round(x: T, /, decimals: int = 0) -> T:
    """The nearest value with ``decimals`` decimal places; ties go to the even one. The derivative is 0.

    Both parts of complex numbers are rounded.

    Negative ``decimals`` round floats to tens, hundreds and so on; for integers they raise :class:`ArgumentError`. With
    ``decimals``, the product of ``x`` and a power of ten is rounded, as in NumPy.

        >>> import backburn as bb
        >>> bb.round(bb.asarray([0.5, 1.5, 2.6])).tolist()
        [0.0, 2.0, 3.0]
        >>> x = bb.asarray([3.14159, 1234.5], dtype="float64")
        >>> x.round(2).tolist(), x.round(-2).tolist()
        ([3.14, 1234.5], [0.0, 1200.0])
    """
    places = integer("round", "decimals", decimals)
    if places == 0:
        return _round_operation("round", x)
    if is_tensor(x) and x.dtype.kind == "int":
        if places < 0:
            raise ArgumentError(
                f"round: integers cannot be rounded to {places} decimals; cast them with astype(...). "
                f"Operand: {describe((x,))}"
            )
        return x
    if is_tensor(x) and x.dtype.kind == "complex":
        return by_parts(lambda part: round(part, places))(x)
    y, power = float_operand("round", x), 10.0 ** min(abs(places), 308)
    wide: Any = upcast_half(y)
    if places < 0:
        return cast(call("round", wide / power) * power, y.dtype)
    scaled = wide * power
    # Numbers too large for the product have no decimals.
    unchanged = call("stop_gradient", wide)
    return cast(call("where", call("isfinite", scaled), call("round", scaled) / power, unchanged), y.dtype)


@method
def trunc(x: T, /) -> T:
    """``x`` without its fractional part. The derivative is 0.

    >>> import backburn as bb
    >>> bb.trunc(bb.asarray([1.5, -1.5])).tolist()
    [1.0, -1.0]
    """
    return _round_operation("trunc", x)


@method
def frac(x: Tensor, /) -> FloatTensor:
    """The fractional part ``x - trunc(x)``, with the sign of ``x``. The derivative is 1.

    >>> import backburn as bb
    >>> bb.frac(bb.asarray([1.5, -1.25])).tolist()
    [0.5, -0.25]
    """
    return unary("frac", x)
