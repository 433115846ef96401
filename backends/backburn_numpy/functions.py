"""NumPy: functions of each element; the special functions have a module of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn_numpy.reduce import narrowed, widened
from backburn_numpy.ufuncs import binary, unary

Array = Any

pow = binary(np.power)
sqrt = unary(np.sqrt)
hypot = binary(np.hypot)
exp = unary(np.exp)
exp2 = unary(np.exp2)
log = unary(np.log)
log2 = unary(np.log2)
log10 = unary(np.log10)
log1p = unary(np.log1p)
logaddexp = binary(np.logaddexp)


_expm1 = unary(np.expm1)


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
