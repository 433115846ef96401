"""NumPy: element-wise functions, except the special functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backburn_numpy.arithmetic import square
from backburn_numpy.blocks import elementwise, scratch
from backburn_numpy.choice import where
from backburn_numpy.halves import narrowed, widened
from backburn_numpy.memory import empty_like
from backburn_numpy.ufuncs import binary, unary

Array = Any

_power, _absolute = binary(np.power), unary(np.absolute)

#: For fewer elements, NumPy's power is faster.
MANY = 64


def pow(x: Array, y: Array, /) -> Array:
    number = y.__class__ is float or y.__class__ is int
    if number and y == 2:
        return square(x)
    if number and x.size >= MANY and x.dtype.kind not in "iu" and math.isfinite(y):
        return narrowed(_to_the(widened(x), float(np.asarray(y, x.dtype))), x)
    return _power(x, y)


def _to_the(x: Array, y: float) -> Array:
    """``x ** y`` from ``|x| ** y``: NumPy takes fifty times as long for negative numbers."""
    if y == 3:
        cube = np.multiply(x, x, out=empty_like(x))
        return np.multiply(cube, x, out=cube)
    result = _power(_absolute(x), y)
    if y % 2 == 1:
        return np.copysign(result, x, out=result)
    if y % 1 != 0:
        below = np.less(x, 0) & np.greater(x, -np.inf)
        if below.any():
            return where(below, np.nan, result)
    return result


sqrt = unary(np.sqrt)
hypot = binary(np.hypot)
exp = unary(np.exp)
exp2 = unary(np.exp2)
log = unary(np.log)
log2 = unary(np.log2)
log1p = unary(np.log1p)
logaddexp = binary(np.logaddexp)


_expm1, _log10 = unary(np.expm1), unary(np.log10)


def log10(x: Array, /) -> Array:
    """Exact for powers of 10: of float32, NumPy's logarithm is 2.0000002 at 100 on some processors."""
    return elementwise(_log10_of_float32, x) if x.dtype == np.float32 else _log10(x)


def _log10_of_float32(out: Array, x: Array) -> None:
    np.log10(x, out)
    distance = np.subtract(out, np.rint(out, scratch(out)), scratch(out))
    near = np.abs(distance, distance) < 1e-5
    if near.any():
        out[near] = np.log10(x[near], dtype=np.float64)


def expm1(x: Array, /) -> Array:
    return narrowed(_expm1(widened(x)), x)  # NumPy 2.3 loses the sign of a zero of float16


def rsqrt(x: Array, /) -> Array:
    root = np.sqrt(x, out=...)
    return np.reciprocal(root, out=root)


sin = unary(np.sin)
cos = unary(np.cos)
tan = unary(np.tan)
asin = unary(np.arcsin)
acos = unary(np.arccos)
atan = unary(np.arctan)
atan2 = binary(np.arctan2)
sinh = unary(np.sinh)
cosh = unary(np.cosh)
tanh = unary(np.tanh)
asinh = unary(np.arcsinh)
acosh = unary(np.arccosh)
atanh = unary(np.arctanh)

floor = unary(np.floor)
ceil = unary(np.ceil)
round = unary(np.rint)
trunc = unary(np.trunc)
