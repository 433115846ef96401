"""Functions of each element: powers, logarithms, trigonometry, special functions, rounding.

Outside a function's domain the result is NaN, and at a pole it is infinite, without a warning.
"""

from __future__ import annotations

import cmath
import math
from functools import partial
from typing import Any, Protocol, overload

from backburn.ops.arithmetic import grad_zero_x
from backburn.ops.bodies import special, special_ratios
from backburn.ops.bodies.half_precision import in_float32
from backburn.ops.bodies.scalars import both_tensors, is_scalar
from backburn.ops.primitives import Primitives
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.rules.shapes import broadcast, unchanged
from backburn.ops.table import missing, operation
from backburn.ops.types import B, F, I, Q


def exact_at_powers(k: Any, base: float, logarithm: Any, x: Any) -> Any:
    """``logarithm``, with its rounding error undone where ``x`` is an integral power of ``base``."""
    if k.dtype(x).kind == "complex":
        return logarithm
    nearest = k.round(logarithm)
    return k.where(k.equal(k.pow(base, nearest), x), nearest, logarithm)


# ---- gradients ----


def grad_pow_x(k: Any, g: Any, x: Any, y: Any) -> Any:
    """The gradient of the base: ``y x**(y - 1)``, and 0 for the exponent 0 even where ``x`` is 0."""
    if is_scalar(y):
        if y == 0:
            return k.zeros(x.shape, k.dtype(x))
        return k.mul(g, k.mul(x if y == 2 else k.pow(x, y - 1), y))
    # The factor is infinite only at (0, 0): elsewhere its derivative by y counts, even where y is 0.
    origin = k.logical_and(k.equal(x, 0.0), k.equal(y, 0.0))
    return k.mul(g, k.mul(y, k.pow(x, k.where(origin, 1.0, k.sub(y, 1.0)))))


def grad_pow_y(k: Any, g: Any, x: Any, y: Any, out: Any) -> Any:
    """The gradient of the exponent: ``x**y log(x)``, 0 where ``x`` is 0 and ``y`` not negative, NaN for negative ``x``.

    For negative ``x`` the power is defined for integral exponents only, and has no derivative.
    """
    if is_scalar(x):
        if x.__class__ is complex:
            slope = cmath.log(x) if x else 0.0
            return k.mul(g, k.mul(out, slope))
        if x > 0:
            return k.mul(g, k.mul(out, math.log(x)))
        x = k.full((), x, k.dtype(y))
    flat = k.logical_and(k.equal(x, 0.0), k.isfinite(out))  # a negative power of 0 is infinite
    return k.mul(g, k.mul(out, k.log(k.where(flat, 1.0, x))))


def grad_logaddexp2_x(k: Any, g: Any, x: Any, y: Any, out: Any) -> Any:
    """The share of ``x`` in ``log2(2**x + 2**y)``; one half where both are the same infinity."""
    undefined = k.logical_and(k.isinf(out), k.equal(x, y))
    return k.mul(g, k.sigmoid(k.where(undefined, 0.0, k.mul(k.sub(x, y), math.log(2.0)))))


def log_argument(k: Any, x: Any, y: Any, pole: float) -> Any:
    """``y``, but ``pole + 1`` where ``x`` is 0 and the logarithm, which has this pole, is not finite.

    The logarithm is then 0, and so are its product with ``x`` and the derivatives.
    """
    x, y = both_tensors(k, x, y)
    infinite = k.logical_or(k.less_equal(y, pole), k.equal(y, math.inf))
    return k.where(k.logical_and(k.equal(x, 0.0), infinite), pole + 1.0, y)


def positive_zeros(k: Any, x: Any, product: Any) -> Any:
    """``product``, a multiple of ``x``, without a sign where ``x`` is 0."""
    return k.where(k.equal(x, 0.0), k.abs(product), product)


def nonzero_divisor(k: Any, x: Any) -> Any:
    """``x`` with 1 in place of 0, as a divisor of values that are 0 wherever ``x`` is."""
    return k.where(k.equal(x, 0.0), 1.0, x)


def grad_logaddexp_x(k: Any, g: Any, x: Any, y: Any, out: Any) -> Any:
    """The share of ``x`` in ``log(exp(x) + exp(y))``; one half where both are the same infinity."""
    undefined = k.logical_and(k.isinf(out), k.equal(x, y))
    return k.mul(g, k.sigmoid(k.where(undefined, 0.0, k.sub(x, y))))


def one_minus_square(k: Any, x: Any) -> Any:
    """``1 - x**2``, exact near -1 and 1."""
    return k.mul(k.sub(1.0, x), k.add(x, 1.0))


def div_by_square(k: Any, x: Any, r: Any) -> Any:
    """``x / r**2``, where ``r**2`` may overflow."""
    return k.div(k.div(x, r), r)


def grad_atan2(k: Any, g: Any, x: Any, y: Any) -> Any:
    """``g y / (x**2 + y**2)``; 0 at the origin."""
    return k.mul(g, div_by_square(k, y, nonzero_divisor(k, k.hypot(x, y))))


def grad_erf(k: Any, x: Any) -> Any:
    """The derivative of ``erf``: ``2 / sqrt(pi) exp(-x**2)``, which beyond 40 is 0 in every dtype."""
    near = k.clip(x, -40.0, 40.0)
    return k.mul(k.exp(k.neg(k.square(near))), 2.0 / math.sqrt(math.pi))


def grad_ndtr(k: Any, x: Any) -> Any:
    """The density of the normal distribution, which beyond 40 is 0 in every dtype."""
    near = k.clip(x, -40.0, 40.0)
    return k.mul(k.exp(k.mul(k.square(near), -0.5)), 1.0 / math.sqrt(2.0 * math.pi))


def grad_ndtri(k: Any, g: Any, x: Any, out: Any) -> Any:
    """The inverse of the density at ``out``, computed as the tail times :meth:`inverse_mills`.

    So a rounding error of ``out`` is not multiplied by ``out**2``. The bound prevents 0 times infinity for a tail of 0.
    """
    return k.div(g, k.mul(k.minimum(x, k.sub(1.0, x)), k.inverse_mills(k.maximum(k.neg(k.abs(out)), -1e4))))


def grad_erfc_ratio(k: Any, g: Any, x: Any, out: Any, n: int) -> Any:
    """The gradient of a ratio: ``2 r(n) (n r(n) - (n + 1) r(n + 1))``."""
    difference = k.sub(k.mul(out, float(n)), k.mul(k.erfc_ratio(x, n + 1), n + 1.0))
    return k.mul(g, k.mul(out, k.mul(difference, 2.0)))


def grad_sinc(k: Any, g: Any, x: Any, n: int) -> Any:
    """The gradient of ``sinc`` (order 0) and of :meth:`sinc_ratio`."""
    return k.mul(g, k.mul(x, k.mul(k.sinc_ratio(x, n + 1), -(math.pi**2))))  # in another order, large x would overflow


class Elementwise(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Functions of one or two real numbers."""

    # ---- powers and logarithms ----

    @overload
    def pow(self, x: F, y: F | float, /) -> F: ...
    @overload
    def pow(self, x: float, y: F, /) -> F: ...
    @overload
    def pow(self, x: I, y: I | int, /) -> I: ...
    @overload
    def pow(self, x: int, y: I, /) -> I: ...
    @operation(kinds="FCI", shape=broadcast, required=True, differentiable=True)
    def pow(self, x: Any, y: Any, /) -> Any:
        """``x ** y``; integer exponents are non-negative, and ``0 ** 0`` is 1.

        A negative ``x`` needs an integral ``y``, else the result is NaN. The derivative for ``y`` is 0 where ``x`` is 0
        and ``y`` is not negative, and NaN where ``x`` is negative.
        """
        return missing("pow")

    gradient_rule(pow, x=grad_pow_x, y=grad_pow_y)

    @operation(kinds="FC", shape=unchanged, required=True, differentiable=True, fuse=True)
    def sqrt(self, x: F, /) -> F:
        """The square root; NaN below 0."""
        return missing("sqrt")

    gradient_rule(sqrt, x=lambda k, g, out: k.div(g, k.mul(out, 2.0)))

    @operation(kinds="FC", shape=unchanged, differentiable=True, fuse=True)
    def rsqrt(self: Any, x: F, /) -> F:
        """``1 / sqrt(x)``."""
        return self.div(1.0, self.sqrt(x))

    gradient_rule(rsqrt, x=lambda k, g, out: k.mul(g, k.mul(k.mul(out, k.square(out)), -0.5)))

    @overload
    def hypot(self, x: F, y: F | float, /) -> F: ...
    @overload
    def hypot(self, x: float, y: F, /) -> F: ...
    @operation(kinds="F", shape=broadcast, differentiable=True, fuse=True)
    def hypot(self: Any, x: Any, y: Any, /) -> Any:
        """``sqrt(x**2 + y**2)`` without intermediate overflow. The gradient at (0, 0) is 0."""
        x, y = both_tensors(self, x, y)
        x, y = self.abs(x), self.abs(y)
        larger, smaller = self.maximum(x, y), self.minimum(x, y)
        ratio = self.div(smaller, self.where(self.equal(larger, 0.0), 1.0, larger))
        length = self.mul(larger, self.sqrt(self.add(self.square(ratio), 1.0)))
        # An infinite side makes the length infinite, whatever the other one is.
        return self.where(self.logical_or(self.equal(x, math.inf), self.equal(y, math.inf)), math.inf, length)

    gradient_rule(
        hypot,
        x=lambda k, g, x, out: k.mul(g, k.div(x, nonzero_divisor(k, out))),
        y=lambda k, g, y, out: k.mul(g, k.div(y, nonzero_divisor(k, out))),
    )

    @operation(kinds="FC", shape=unchanged, required=True, differentiable=True)
    def exp(self, x: F, /) -> F:
        """``e ** x``."""
        return missing("exp")

    gradient_rule(exp, x=lambda k, g, out: k.mul(g, out))

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def exp2(self: Any, x: F, /) -> F:
        """``2 ** x``, exact for integers."""
        return self.pow(2.0, x)

    gradient_rule(exp2, x=lambda k, g, out: k.mul(g, k.mul(out, math.log(2.0))))

    @operation(kinds="FC", shape=unchanged, required=True, differentiable=True)
    def expm1(self, x: F, /) -> F:
        """``exp(x) - 1``, exact near 0."""
        return missing("expm1")

    gradient_rule(expm1, x=lambda k, g, x: k.mul(g, k.exp(x)))  # out + 1 would lose the digits of small values

    @operation(kinds="FC", shape=unchanged, required=True, differentiable=True)
    def log(self, x: F, /) -> F:
        """The natural logarithm; -inf at 0, NaN below."""
        return missing("log")

    gradient_rule(log, x=lambda k, g, x: k.div(g, x))

    @operation(kinds="FC", shape=unchanged, differentiable=True, fuse=True)
    def log2(self: Any, x: F, /) -> F:
        """The logarithm to base 2, exact for powers of 2; -inf at 0, NaN below."""
        return exact_at_powers(self, 2.0, self.mul(self.log(x), 1.0 / math.log(2.0)), x)

    gradient_rule(log2, x=lambda k, g, x: k.div(g, k.mul(x, math.log(2.0))))

    @operation(kinds="FC", shape=unchanged, differentiable=True, fuse=True)
    def log10(self: Any, x: F, /) -> F:
        """The logarithm to base 10, exact for powers of 10; -inf at 0, NaN below."""
        return exact_at_powers(self, 10.0, self.mul(self.log(x), 1.0 / math.log(10.0)), x)

    gradient_rule(log10, x=lambda k, g, x: k.div(g, k.mul(x, math.log(10.0))))

    @operation(kinds="FC", shape=unchanged, required=True, differentiable=True, fuse=True)
    def log1p(self, x: F, /) -> F:
        """``log(1 + x)``, exact near 0."""
        return missing("log1p")

    gradient_rule(log1p, x=lambda k, g, x: k.div(g, k.add(x, 1.0)))

    @overload
    def logaddexp(self, x: F, y: F | float, /) -> F: ...
    @overload
    def logaddexp(self, x: float, y: F, /) -> F: ...
    @operation(kinds="F", shape=broadcast, differentiable=True, fuse=True)
    def logaddexp(self: Any, x: Any, y: Any, /) -> Any:
        """``log(exp(x) + exp(y))`` without intermediate overflow, also of infinities."""
        # The difference of two equal infinities would be NaN; what is added to them does not matter.
        distance = self.where(self.equal(x, y), 0.0, self.abs(self.sub(x, y)))
        return self.add(self.maximum(x, y), self.log1p(self.exp(self.neg(distance))))

    gradient_rule(logaddexp, x=grad_logaddexp_x, y=lambda k, g, x, y, out: grad_logaddexp_x(k, g, y, x, out))

    @overload
    def logaddexp2(self, x: F, y: F | float, /) -> F: ...
    @overload
    def logaddexp2(self, x: float, y: F, /) -> F: ...
    @operation(kinds="F", shape=broadcast, differentiable=True, fuse=True)
    def logaddexp2(self: Any, x: Any, y: Any, /) -> Any:
        """``log2(2**x + 2**y)`` without intermediate overflow, also of infinities."""
        distance = self.where(self.equal(x, y), 0.0, self.abs(self.sub(x, y)))
        rest = self.log1p(self.exp(self.mul(distance, -math.log(2.0))))
        return self.add(self.maximum(x, y), self.mul(rest, 1.0 / math.log(2.0)))

    gradient_rule(logaddexp2, x=grad_logaddexp2_x, y=lambda k, g, x, y, out: grad_logaddexp2_x(k, g, y, x, out))

    @overload
    def xlogy(self, x: F, y: F | float, /) -> F: ...
    @overload
    def xlogy(self, x: float, y: F, /) -> F: ...
    @operation(kinds="F", shape=broadcast, differentiable=True, fuse=True)
    def xlogy(self: Any, x: Any, y: Any, /) -> Any:
        """``x * log(y)``, and 0 where ``x`` is 0 and ``y`` is not NaN.

        Where the logarithm has no finite value there, both derivatives are 0.
        """
        x, y = both_tensors(self, x, y)
        return positive_zeros(self, x, self.mul(x, self.log(log_argument(self, x, y, 0.0))))

    gradient_rule(
        xlogy,
        x=lambda k, g, x, y: k.mul(g, k.log(log_argument(k, x, y, 0.0))),
        y=lambda k, g, x, y: k.mul(g, k.div(x, log_argument(k, x, y, 0.0))),
    )

    @overload
    def xlog1py(self, x: F, y: F | float, /) -> F: ...
    @overload
    def xlog1py(self, x: float, y: F, /) -> F: ...
    @operation(kinds="F", shape=broadcast, differentiable=True, fuse=True)
    def xlog1py(self: Any, x: Any, y: Any, /) -> Any:
        """``x * log(1 + y)``, exact for small ``y``, and 0 where ``x`` is 0 and ``y`` is not NaN.

        Where the logarithm has no finite value there, both derivatives are 0.
        """
        x, y = both_tensors(self, x, y)
        return positive_zeros(self, x, self.mul(x, self.log1p(log_argument(self, x, y, -1.0))))

    gradient_rule(
        xlog1py,
        x=lambda k, g, x, y: k.mul(g, k.log1p(log_argument(k, x, y, -1.0))),
        y=lambda k, g, x, y: k.mul(g, k.div(x, k.add(log_argument(k, x, y, -1.0), 1.0))),
    )

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def entr(self: Any, x: F, /) -> F:
        """``-x * log(x)``, the term of an entropy: 0 at 0, where the slope is infinite, and -inf below."""
        return self.where(self.less(x, 0.0), -math.inf, self.sub(0.0, self.xlogy(x, x)))

    gradient_rule(entr, x=lambda k, g, x: k.mul(g, k.sub(-1.0, k.log(x))))

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def logit(self: Any, x: F, /) -> F:
        """``log(x / (1 - x))``, the inverse of ``sigmoid``, exact near 1/2; infinite at 0 and 1, NaN beyond."""
        distance = self.sub(self.mul(x, 2.0), 1.0)
        middle = self.sub(self.log1p(distance), self.log1p(self.neg(distance)))
        ends = self.log(self.div(x, self.sub(1.0, x)))
        return self.where(self.less(self.abs(distance), 0.5), middle, ends)

    gradient_rule(logit, x=lambda k, g, x: k.div(g, k.mul(x, k.sub(1.0, x))))

    # ---- trigonometry ----

    @operation(kinds="FC", shape=unchanged, required=True, differentiable=True)
    def sin(self, x: F, /) -> F:
        """The sine of ``x`` in radians."""
        return missing("sin")

    gradient_rule(sin, x=lambda k, g, x: k.mul(g, k.cos(x)))

    @operation(kinds="FC", shape=unchanged, required=True, differentiable=True)
    def cos(self, x: F, /) -> F:
        """The cosine of ``x`` in radians."""
        return missing("cos")

    gradient_rule(cos, x=lambda k, g, x: k.neg(k.mul(g, k.sin(x))))

    @operation(kinds="FC", shape=unchanged, required=True, differentiable=True, fuse=True)
    def tan(self, x: F, /) -> F:
        """The tangent of ``x`` in radians."""
        return missing("tan")

    gradient_rule(tan, x=lambda k, g, out: k.mul(g, k.add(k.square(out), 1.0)))

    @operation(kinds="FC", shape=unchanged, required=True, differentiable=True, fuse=True)
    def asin(self, x: F, /) -> F:
        """The inverse of the sine, from -pi/2 to pi/2; NaN outside [-1, 1]."""
        return missing("asin")

    gradient_rule(asin, x=lambda k, g, x: k.div(g, k.sqrt(one_minus_square(k, x))))

    @operation(kinds="FC", shape=unchanged, required=True, differentiable=True, fuse=True)
    def acos(self, x: F, /) -> F:
        """The inverse of the cosine, from 0 to pi; NaN outside [-1, 1]."""
        return missing("acos")

    gradient_rule(acos, x=lambda k, g, x: k.neg(k.div(g, k.sqrt(one_minus_square(k, x)))))

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True, fuse=True)
    def atan(self, x: F, /) -> F:
        """The inverse of the tangent, from -pi/2 to pi/2."""
        return missing("atan")

    gradient_rule(atan, x=lambda k, g, x: div_by_square(k, g, k.hypot(x, 1.0)))

    @overload
    def atan2(self, x: F, y: F | float, /) -> F: ...
    @overload
    def atan2(self, x: float, y: F, /) -> F: ...
    @operation(kinds="F", shape=broadcast, required=True, differentiable=True, fuse=True)
    def atan2(self, x: Any, y: Any, /) -> Any:
        """``atan(x / y)`` in the right quadrant: the angle of the point with ordinate ``x`` and abscissa ``y``.

        The gradient at (0, 0) is 0.
        """
        return missing("atan2")

    gradient_rule(
        atan2,
        x=lambda k, g, x, y: in_float32(k, grad_atan2, g, x, y),
        y=lambda k, g, x, y: k.neg(in_float32(k, grad_atan2, g, y, x)),
    )

    @operation(kinds="FC", shape=unchanged, required=True, differentiable=True)
    def sinh(self, x: F, /) -> F:
        """The hyperbolic sine."""
        return missing("sinh")

    gradient_rule(sinh, x=lambda k, g, x: k.mul(g, k.cosh(x)))

    @operation(kinds="FC", shape=unchanged, required=True, differentiable=True)
    def cosh(self, x: F, /) -> F:
        """The hyperbolic cosine."""
        return missing("cosh")

    gradient_rule(cosh, x=lambda k, g, x: k.mul(g, k.sinh(x)))

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def tanh(self, x: F, /) -> F:
        """The hyperbolic tangent."""
        return missing("tanh")

    gradient_rule(tanh, x=lambda k, g, x, out: k.tanh_slope(g, x, out))

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True, fuse=True)
    def asinh(self, x: F, /) -> F:
        """The inverse of the hyperbolic sine."""
        return missing("asinh")

    gradient_rule(asinh, x=lambda k, g, x: k.div(g, k.hypot(x, 1.0)))

    @operation(kinds="FC", shape=unchanged, required=True, differentiable=True, fuse=True)
    def acosh(self, x: F, /) -> F:
        """The non-negative inverse of the hyperbolic cosine; NaN below 1."""
        return missing("acosh")

    gradient_rule(acosh, x=lambda k, g, x: k.div(g, k.mul(k.sqrt(k.sub(x, 1.0)), k.sqrt(k.add(x, 1.0)))))

    @operation(kinds="FC", shape=unchanged, required=True, differentiable=True, fuse=True)
    def atanh(self, x: F, /) -> F:
        """The inverse of the hyperbolic tangent; infinite at -1 and 1, NaN beyond."""
        return missing("atanh")

    gradient_rule(atanh, x=lambda k, g, x: k.div(g, one_minus_square(k, x)))

    # ---- special functions: the bodies, their sources and their bounds are in backburn.ops.bodies.special ----

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def erf(self: Any, x: F, /) -> F:
        """The error function: ``2 / sqrt(pi)`` times the integral of ``exp(-t**2)`` from 0 to ``x``."""
        return special.erf(self, x)

    gradient_rule(erf, x=lambda k, g, x: k.mul(g, grad_erf(k, x)))

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def erfc(self: Any, x: F, /) -> F:
        """``1 - erf(x)``, with its full relative precision where it is small."""
        return special.erfc(self, x)

    gradient_rule(erfc, x=lambda k, g, x: k.neg(k.mul(g, grad_erf(k, x))))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def erfcx(self: Any, x: F, /) -> F:
        """``exp(x**2) * erfc(x)``, which for large ``x`` is ``1 / (sqrt(pi) x)``."""
        return special.erfcx(self, x)

    gradient_rule(erfcx, x=lambda k, g, x, out: k.mul(g, k.mul(k.mul(out, k.erfc_ratio(x)), -2.0)))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def erfc_ratio(self: Any, x: F, /, n: int = 1) -> F:
        """The n-th repeated integral of ``erfc`` from ``x`` to infinity over the one before it, for ``n`` from 1 on.

        It is about ``1 / (2 x)`` for large ``x``, and ``-x / n`` for large negative ``x``. The derivatives of scaled
        normal tails are expressed with it, and its own derivative with the next order. Raises :class:`ArgumentError`
        for another ``n``.
        """
        return special_ratios.erfc_ratio(self, x, n)

    gradient_rule(erfc_ratio, x=lambda k, g, x, out, n: in_float32(k, partial(grad_erfc_ratio, n=n), g, x, out))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def ndtr(self: Any, x: F, /) -> F:
        """The distribution function of the normal distribution, with its full relative precision where it is small."""
        return special.ndtr(self, x)

    gradient_rule(ndtr, x=lambda k, g, x: k.mul(g, grad_ndtr(k, x)))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def log_ndtr(self: Any, x: F, /) -> F:
        """The logarithm of ``ndtr``, without underflow."""
        return special.log_ndtr(self, x)

    gradient_rule(log_ndtr, x=lambda k, g, x: k.mul(g, k.inverse_mills(x)))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def inverse_mills(self: Any, x: F, /, n: int = 0) -> F:
        """The derivative of order ``n`` of the density over the distribution function, the derivative of ``log_ndtr``.

        Order 0 is about ``-x`` for large negative ``x``. Raises :class:`ArgumentError` for a negative ``n``.
        """
        return special_ratios.inverse_mills(self, x, n)

    gradient_rule(inverse_mills, x=lambda k, g, x, n: k.mul(g, k.inverse_mills(x, n + 1)))

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def erfinv(self: Any, x: F, /) -> F:
        """The inverse of ``erf``; infinite at -1 and 1, NaN beyond."""
        return special.erfinv(self, x)

    gradient_rule(erfinv, x=lambda k, g, out: k.mul(g, k.mul(k.exp(k.square(out)), math.sqrt(math.pi) / 2.0)))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def ndtri(self: Any, x: F, /) -> F:
        """The inverse of ``ndtr``; infinite at 0 and 1, NaN beyond."""
        return special.ndtri(self, x)

    gradient_rule(ndtri, x=lambda k, g, x, out: in_float32(k, grad_ndtri, g, x, out))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def lgamma(self: Any, x: F, /) -> F:
        """The logarithm of the absolute value of the gamma function; infinite at 0, -1, -2, ..."""
        return special.lgamma(self, x)

    gradient_rule(lgamma, x=lambda k, g, x: k.mul(g, k.digamma(x)))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def digamma(self: Any, x: F, /) -> F:
        """The derivative of ``lgamma``."""
        return special.digamma(self, x)

    gradient_rule(digamma, x=lambda k, g, x: k.mul(g, k.polygamma(x, 1)))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def polygamma(self: Any, x: F, /, n: int = 1) -> F:
        """The derivative of order ``n``, from 1 (the trigamma function) to 10, of ``digamma``.

        Its own derivative is that of order ``n + 1``. Raises :class:`ArgumentError` for another ``n``.
        """
        return special.polygamma(self, x, n)

    gradient_rule(polygamma, x=lambda k, g, x, n: k.mul(g, k.polygamma(x, n + 1)))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def sinc(self: Any, x: F, /) -> F:
        """``sin(pi x) / (pi x)``, and 1 at 0."""
        return special.sinc(self, x)

    gradient_rule(sinc, x=lambda k, g, x: in_float32(k, grad_sinc, g, x, 0))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def sinc_ratio(self: Any, x: F, /, n: int) -> F:
        """``j_n(z) / z**n`` at ``z = pi x``, with the spherical Bessel function of order ``n``: order 0 is ``sinc``.

        The derivatives of ``sinc`` are expressed with it: its own derivative is ``-pi**2 x`` times order ``n + 1``.
        """
        return special_ratios.sinc_ratio(self, x, n)

    gradient_rule(sinc_ratio, x=lambda k, g, x, n: in_float32(k, grad_sinc, g, x, n))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def i0(self: Any, x: F, /) -> F:
        """The modified Bessel function of the first kind and order 0."""
        return special.i0(self, x)

    gradient_rule(i0, x=lambda k, g, x: k.mul(g, k.i1(x)))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def i1(self: Any, x: F, /) -> F:
        """The modified Bessel function of the first kind and order 1."""
        return special.i1(self, x)

    gradient_rule(i1, x=lambda k, g, x: k.mul(g, k.add(k.bessel_ratio(x, 1), k.mul(k.square(x), k.bessel_ratio(x, 2)))))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def bessel_ratio(self: Any, x: F, /, n: int) -> F:
        """``I_n(x) / x**n``, with the modified Bessel function of the first kind and order ``n``.

        The derivatives of ``i0`` and ``i1`` are expressed with it: its own derivative is ``x`` times order ``n + 1``.
        """
        return special_ratios.bessel_ratio(self, x, n)

    gradient_rule(bessel_ratio, x=lambda k, g, x, n: k.mul(g, k.mul(x, k.bessel_ratio(x, n + 1))))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def i0e(self: Any, x: F, /) -> F:
        """``exp(-|x|) * i0(x)``, which does not overflow. The derivative at 0, where there is a corner, is 0."""
        return special.i0e(self, x)

    gradient_rule(i0e, x=lambda k, g, x: k.mul(g, k.neg(k.mul(k.sign(x), k.i0e_slope(x, 1)))))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def i1e(self: Any, x: F, /) -> F:
        """``exp(-|x|) * i1(x)``, which does not overflow."""
        return special.i1e(self, x)

    gradient_rule(i1e, x=lambda k, g, x: k.mul(g, k.sub(k.i0e_slope(x, 2), k.i0e_slope(x, 1))))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def i0e_slope(self: Any, x: F, /, n: int) -> F:
        """``(-1)**n`` times the derivative of order ``n`` of ``i0e`` at ``|x|``: positive, and without cancellation.

        The derivatives of ``i0e`` and ``i1e`` are expressed with it.
        """
        return special_ratios.i0e_slope(self, x, n)

    gradient_rule(i0e_slope, x=lambda k, g, x, n: k.mul(g, k.neg(k.mul(k.sign(x), k.i0e_slope(x, n + 1)))))

    # ---- rounding ----

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def floor(self, x: F, /) -> F:
        """The largest integral value not above ``x``. The derivative is 0."""
        return missing("floor")

    gradient_rule(floor, x=grad_zero_x)

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def ceil(self, x: F, /) -> F:
        """The smallest integral value not below ``x``. The derivative is 0."""
        return missing("ceil")

    gradient_rule(ceil, x=grad_zero_x)

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def round(self, x: F, /) -> F:
        """The nearest integral value; ties go to the even one. The derivative is 0."""
        return missing("round")

    gradient_rule(round, x=grad_zero_x)

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def trunc(self, x: F, /) -> F:
        """``x`` without its fractional part. The derivative is 0."""
        return missing("trunc")

    gradient_rule(trunc, x=grad_zero_x)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def frac(self: Any, x: F, /) -> F:
        """The fractional part, ``x - trunc(x)``, with the sign of ``x``. The derivative is 1."""
        return self.sub(x, self.trunc(x))

    gradient_rule(frac, x=lambda g: g)
