"""Gradient rules: functions of each element, and of signs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from backburn.autodiff.arithmetic import zero_for_x, zero_for_y
from backburn.autodiff.rules import gradient, one_pass
from backburn.autodiff.tangents import elementwise
from backburn.backend.reduce import widened
from backburn.backend.scalars import is_scalar

# ---- powers and logarithms ----


def pow_x(k: Any, g: Any, x: Any, y: Any) -> Any:
    """The gradient of the base: ``y x**(y - 1)``, and 0 for the exponent 0 even where ``x`` is 0."""
    if is_scalar(y):
        if y == 0:
            return k.zeros(x.shape, k.dtype(x))
        return k.mul(g, k.mul(x if y == 2 else k.pow(x, y - 1), y))
    # Only at (0, 0) is the factor infinite: elsewhere its derivative by y counts, also where y is 0.
    origin = k.logical_and(k.equal(x, 0.0), k.equal(y, 0.0))
    return k.mul(g, k.mul(y, k.pow(x, k.where(origin, 1.0, k.sub(y, 1.0)))))


def pow_y(k: Any, g: Any, x: Any, y: Any, out: Any) -> Any:
    """The gradient of the exponent: ``x**y log(x)``, 0 where ``x`` is 0 and ``y`` not negative, NaN for negative ``x``.

    There the power is defined for integral exponents only, so that it has no derivative.
    """
    if is_scalar(x):
        if x > 0:
            return k.mul(g, k.mul(out, math.log(x)))
        x = k.full((), x, k.dtype(y))
    flat = k.logical_and(k.equal(x, 0.0), k.less_equal(0.0, y))
    return k.mul(g, k.mul(out, k.log(k.where(flat, 1.0, x))))


gradient("pow", x=pow_x, y=pow_y)
gradient("sqrt", x=lambda k, g, out: k.div(g, k.mul(out, 2.0)))
gradient("rsqrt", x=lambda k, g, out: k.mul(g, k.mul(k.mul(out, k.square(out)), -0.5)))


def nonzero(k: Any, x: Any) -> Any:
    """``x`` as a divisor of what is 0 wherever ``x`` is: 1 takes the place of 0."""
    return k.where(k.equal(x, 0.0), 1.0, x)


gradient(
    "hypot",
    x=lambda k, g, x, out: k.mul(g, k.div(x, nonzero(k, out))),
    y=lambda k, g, y, out: k.mul(g, k.div(y, nonzero(k, out))),
)
gradient("exp", x=lambda k, g, out: k.mul(g, out))
gradient("exp2", x=lambda k, g, out: k.mul(g, k.mul(out, math.log(2.0))))
gradient("expm1", x=lambda k, g, x: k.mul(g, k.exp(x)))  # out + 1 would lose the small ones
gradient("log", x=lambda k, g, x: k.div(g, x))
gradient("log2", x=lambda k, g, x: k.div(g, k.mul(x, math.log(2.0))))
gradient("log10", x=lambda k, g, x: k.div(g, k.mul(x, math.log(10.0))))
gradient("log1p", x=lambda k, g, x: k.div(g, k.add(x, 1.0)))


def logaddexp_x(k: Any, g: Any, x: Any, y: Any, out: Any) -> Any:
    """The share of ``x`` in ``log(exp(x) + exp(y))``; one half where both are the same infinity."""
    undefined = k.logical_and(k.isinf(out), k.equal(x, y))
    return k.mul(g, k.sigmoid(k.where(undefined, 0.0, k.sub(x, y))))


gradient("logaddexp", x=logaddexp_x, y=lambda k, g, x, y, out: logaddexp_x(k, g, y, x, out))

# ---- trigonometry ----


def one_minus_square(k: Any, x: Any) -> Any:
    """``1 - x**2``, exact near -1 and 1."""
    return k.mul(k.sub(1.0, x), k.add(x, 1.0))


def over_square_of(k: Any, x: Any, r: Any) -> Any:
    """``x / r**2``, where ``r**2`` may overflow."""
    return k.div(k.div(x, r), r)


def in_float32(k: Any, slope: Callable[..., Any], g: Any, *operands: Any) -> Any:
    """``slope(k, g, *operands)``; of 16-bit floats in float32, where nothing on the way overflows or vanishes."""
    dtype = k.dtype(g)
    if dtype.bits >= 32:
        return slope(k, g, *operands)
    return k.cast(slope(k, *(x if is_scalar(x) else widened(k, x) for x in (g, *operands))), dtype)


def atan2_slope(k: Any, g: Any, x: Any, y: Any) -> Any:
    """``g y / (x**2 + y**2)``; 0 at the origin."""
    return k.mul(g, over_square_of(k, y, nonzero(k, k.hypot(x, y))))


gradient("sin", x=lambda k, g, x: k.mul(g, k.cos(x)))
gradient("cos", x=lambda k, g, x: k.neg(k.mul(g, k.sin(x))))
gradient("tan", x=lambda k, g, out: k.mul(g, k.add(k.square(out), 1.0)))
gradient("asin", x=lambda k, g, x: k.div(g, k.sqrt(one_minus_square(k, x))))
gradient("acos", x=lambda k, g, x: k.neg(k.div(g, k.sqrt(one_minus_square(k, x)))))
gradient("atan", x=lambda k, g, x: over_square_of(k, g, k.hypot(x, 1.0)))
gradient(
    "atan2",
    x=lambda k, g, x, y: in_float32(k, atan2_slope, g, x, y),
    y=lambda k, g, x, y: k.neg(in_float32(k, atan2_slope, g, y, x)),
)
gradient("sinh", x=lambda k, g, x: k.mul(g, k.cosh(x)))
gradient("cosh", x=lambda k, g, x: k.mul(g, k.sinh(x)))
gradient("tanh", x=lambda k, g, out: k.tanh_backward(g, out))
gradient("asinh", x=lambda k, g, x: k.div(g, k.hypot(x, 1.0)))
gradient("acosh", x=lambda k, g, x: k.div(g, k.mul(k.sqrt(k.sub(x, 1.0)), k.sqrt(k.add(x, 1.0)))))
gradient("atanh", x=lambda k, g, x: k.div(g, one_minus_square(k, x)))

# ---- special functions ----


def gauss(k: Any, x: Any) -> Any:
    """The derivative of ``erf``: ``2 / sqrt(pi) exp(-x**2)``, which beyond 40 is 0 in every dtype."""
    near = k.clamp(x, -40.0, 40.0)
    return k.mul(k.exp(k.neg(k.square(near))), 2.0 / math.sqrt(math.pi))


gradient("erf", x=lambda k, g, x: k.mul(g, gauss(k, x)))
gradient("erfc", x=lambda k, g, x: k.neg(k.mul(g, gauss(k, x))))
gradient("erfinv", x=lambda k, g, out: k.mul(g, k.mul(k.exp(k.square(out)), math.sqrt(math.pi) / 2.0)))
gradient("lgamma", x=lambda k, g, x: k.mul(g, k.digamma(x)))
gradient("digamma", x=lambda k, g, x: k.mul(g, k.polygamma(x, 1)))
gradient("polygamma", x=lambda k, g, x, n: k.mul(g, k.polygamma(x, n + 1)))


def sinc_slope(k: Any, g: Any, x: Any, n: int) -> Any:
    """The gradient of ``sinc`` (order 0) and of its relatives."""
    return k.mul(g, k.mul(x, k.mul(k.sinc_ratio(x, n + 1), -(math.pi**2))))  # the other way, large x overflow


gradient("sinc", x=lambda k, g, x: in_float32(k, sinc_slope, g, x, 0))
gradient("sinc_ratio", x=lambda k, g, x, n: in_float32(k, sinc_slope, g, x, n))
gradient("i0", x=lambda k, g, x: k.mul(g, k.i1(x)))
gradient("i1", x=lambda k, g, x: k.mul(g, k.add(k.bessel_ratio(x, 1), k.mul(k.square(x), k.bessel_ratio(x, 2)))))
gradient("bessel_ratio", x=lambda k, g, x, n: k.mul(g, k.mul(x, k.bessel_ratio(x, n + 1))))

# ---- rounding and signs ----

for _name in ("floor", "ceil", "round", "trunc"):
    gradient(_name, x=zero_for_x)
gradient("frac", x=lambda g: g)
gradient("nextafter", x=lambda g: g, y=zero_for_y)
gradient("copysign", x=lambda k, g, x, out: k.mul(g, k.mul(k.sign(x), k.sign(out))), y=zero_for_y)

elementwise("pow", "sqrt", "rsqrt", "hypot", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "logaddexp")
elementwise("sin", "cos", "tan", "asin", "acos", "atan", "atan2")
elementwise("sinh", "cosh", "tanh", "asinh", "acosh", "atanh")
elementwise("erf", "erfc", "erfinv", "lgamma", "digamma", "polygamma")
elementwise("sinc", "sinc_ratio", "i0", "i1", "bessel_ratio")
elementwise("floor", "ceil", "round", "trunc", "frac", "copysign", "nextafter")
one_pass(
    "sqrt", "rsqrt", "hypot", "exp2", "log1p", "log2", "log10", "logaddexp", "tan", "asin", "acos", "atan", "atan2"
)
one_pass("asinh", "acosh", "atanh", "erf", "erfc", "erfinv")
