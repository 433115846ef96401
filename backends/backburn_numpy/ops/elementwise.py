"""NumPy: arithmetic, comparisons, logic and element-wise functions, except the special functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from backburn.base.errors import ArgumentError
from backburn_numpy import tuning
from backburn_numpy.elementwise.half_precision import cast_like, upcast_half
from backburn_numpy.elementwise.ufuncs import binary, comparison, unary
from backburn_numpy.implements import implements, register
from backburn_numpy.ops.selection import where
from backburn_numpy.runtime.memory import empty_like
from backburn_numpy.runtime.quiet import quietly

Array = Any

#: The operations that are ufuncs of NumPy.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: unary(getattr(np, name)) for name in (
        "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_invert", "ceil", "cos", "cosh", "exp",
        "exp2", "floor", "isfinite", "isinf", "isnan", "log", "log2", "logical_not", "reciprocal", "sign",
        "signbit", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc",
    )},
    **{name: binary(getattr(np, name)) for name in (
        "add", "atan2", "bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
        "copysign", "floor_divide", "fmax", "fmin", "fmod", "hypot", "logaddexp", "logaddexp2", "logical_and",
        "logical_or", "logical_xor", "maximum", "minimum", "nextafter", "remainder",
    )},
    **{name: comparison(getattr(np, name)) for name in (
        "equal", "greater", "greater_equal", "less", "less_equal", "not_equal",
    )},
    "sub": binary(np.subtract), "mul": binary(np.multiply), "div": binary(np.divide), "neg": unary(np.negative),
    "round": unary(np.rint),
}  # fmt: skip
for _name, _function in FUNCTIONS.items():
    register(_name, _function)
square, maximum, minimum, divide, multiply = (FUNCTIONS[n] for n in ("square", "maximum", "minimum", "div", "mul"))

_power, _expm1, _log1p, _log10 = binary(np.power), unary(np.expm1), unary(np.log1p), unary(np.log10)


@implements("pow")
def pow(x: Array, y: Array, /) -> Array:
    number = y.__class__ is float or y.__class__ is int
    if number and y == 2:
        return square(x)
    if number and x.size >= tuning.MIN_ELEMENTS_FOR_REAL_POWER and x.dtype.kind not in "iuc" and math.isfinite(y):
        return cast_like(_real_power(upcast_half(x), float(np.asarray(y, x.dtype))), x)
    try:
        return _power(x, y)
    except ValueError as error:  # also for shapes
        if "negative" in str(error):
            words = "an integer to a negative power is not an integer: write a float exponent, as in x ** -1.0"
            raise ArgumentError(words) from error
        raise


def _real_power(x: Array, y: float) -> Array:
    """``x ** y`` from ``|x| ** y``: NumPy takes fifty times as long for negative numbers."""
    if y == 3:
        cube = np.multiply(x, x, out=empty_like(x))
        return np.multiply(cube, x, out=cube)
    result = _power(FUNCTIONS["abs"](x), y)
    if y % 2 == 1:
        return np.copysign(result, x, out=result)
    if y % 1 != 0:
        below = np.less(x, 0) & np.greater(x, -np.inf)
        if below.any():
            return where(below, np.nan, result)
    return result


@implements("clip")
def clip(x: Array, min: Array = None, max: Array = None, /) -> Array:
    if min is None:
        return x if max is None else minimum(x, max)
    if (
        x.nbytes < tuning.MIN_BYTES_FOR_THREADS
        and x.itemsize > 2
        and x.ndim
        and min.__class__ is max.__class__ is float
    ):
        return x.clip(min, max)
    above = maximum(x, min)
    if max is None:
        return above
    if max.__class__ is np.ndarray:
        return minimum(above, max)
    return np.minimum(above, max, out=above)


@implements("log10")
def log10(x: Array, /) -> Array:
    """Exact for powers of 10: on some processors NumPy's float32 logarithm of 100 is 2.0000002."""
    out = _log10(x)
    if x.dtype == np.float32:
        near = np.abs(np.subtract(out, np.rint(out, out=...), out=...)) < 1e-5
        if near.any():
            out[near] = np.log10(x[near], dtype=np.float64)
    return out


@implements("expm1")
def expm1(x: Array, /) -> Array:
    out = cast_like(_expm1(upcast_half(x)), x)  # NumPy 2.3 loses the sign of a zero of float16
    if x.dtype.kind == "c":
        if not (finite := np.isfinite(x)).all():
            out = np.where(finite, out, np.exp(x) - 1)  # NumPy gives NaN for infinities
        out.real += 0.0  # NumPy keeps the sign of zero; in the standard it is 0
    return out


@implements("log1p")
def log1p(x: Array, /) -> Array:
    return _complex_log1p(x) if x.dtype.kind == "c" else _log1p(x)


@quietly
def _complex_log1p(x: Array) -> Array:
    """NumPy computes ``log(1 + x)``, in which a small ``x`` loses its digits."""
    a, b, out = x.real, x.imag, empty_like(x)
    above, small = a + 1, np.maximum(np.abs(a), np.abs(b)) < 0.5
    c, d = np.where(small, a, 0), np.where(small, b, 0)  # whose squares do not overflow
    out.real = np.where(small, np.log1p(c * (c + 2) + d * d) / 2, np.log(np.hypot(above, b)))
    out.imag = np.arctan2(b, above)
    return out


@implements("rsqrt")
def rsqrt(x: Array, /) -> Array:
    root = np.sqrt(x, out=...)
    return np.reciprocal(root, root)
