"""Functions of each element: powers, logarithms, trigonometry, special functions, rounding.

Outside a function's domain the result is NaN, and at a pole it is infinite, without a warning.
"""

from __future__ import annotations

import math
from typing import Any, Protocol, overload

from backburn.backend import special, special_ratios
from backburn.backend.kinds import Kinds
from backburn.backend.scalars import both_tensors
from backburn.backend.shapes import broadcast, unchanged
from backburn.backend.table import missing, operation
from backburn.backend.types import B, F, I, Q


class Functions(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
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
    @operation(kinds="FI", shape=broadcast, required=True, differentiable=True)
    def pow(self, x: Any, y: Any, /) -> Any:
        """``x ** y``; integer exponents are non-negative, and ``0 ** 0`` is 1.

        A negative ``x`` needs an integral ``y``, else the result is NaN. The derivative for ``y`` is 0 where ``x`` is 0
        and ``y`` is not negative, and NaN where ``x`` is negative.
        """
        return missing("pow")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def sqrt(self, x: F, /) -> F:
        """The square root; NaN below 0."""
        return missing("sqrt")

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def rsqrt(self: Any, x: F, /) -> F:
        """``1 / sqrt(x)``."""
        return self.div(1.0, self.sqrt(x))

    @overload
    def hypot(self, x: F, y: F | float, /) -> F: ...
    @overload
    def hypot(self, x: float, y: F, /) -> F: ...
    @operation(kinds="F", shape=broadcast, differentiable=True)
    def hypot(self: Any, x: Any, y: Any, /) -> Any:
        """``sqrt(x**2 + y**2)`` without intermediate overflow. The gradient at (0, 0) is 0."""
        x, y = both_tensors(self, x, y)
        x, y = self.abs(x), self.abs(y)
        larger, smaller = self.maximum(x, y), self.minimum(x, y)
        ratio = self.div(smaller, self.where(self.equal(larger, 0.0), 1.0, larger))
        length = self.mul(larger, self.sqrt(self.add(self.square(ratio), 1.0)))
        # An infinite side makes the length infinite, whatever the other one is.
        return self.where(self.logical_or(self.equal(x, math.inf), self.equal(y, math.inf)), math.inf, length)

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def exp(self, x: F, /) -> F:
        """``e ** x``."""
        return missing("exp")

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def exp2(self: Any, x: F, /) -> F:
        """``2 ** x``, exact for integers."""
        return self.pow(2.0, x)

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def expm1(self, x: F, /) -> F:
        """``exp(x) - 1``, exact near 0."""
        return missing("expm1")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def log(self, x: F, /) -> F:
        """The natural logarithm; -inf at 0, NaN below."""
        return missing("log")

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def log2(self: Any, x: F, /) -> F:
        """The logarithm to base 2, exact for powers of 2; -inf at 0, NaN below."""
        return exact_at_powers(self, 2.0, self.mul(self.log(x), 1.0 / math.log(2.0)), x)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def log10(self: Any, x: F, /) -> F:
        """The logarithm to base 10, exact for powers of 10; -inf at 0, NaN below."""
        return exact_at_powers(self, 10.0, self.mul(self.log(x), 1.0 / math.log(10.0)), x)

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def log1p(self, x: F, /) -> F:
        """``log(1 + x)``, exact near 0."""
        return missing("log1p")

    @overload
    def logaddexp(self, x: F, y: F | float, /) -> F: ...
    @overload
    def logaddexp(self, x: float, y: F, /) -> F: ...
    @operation(kinds="F", shape=broadcast, differentiable=True)
    def logaddexp(self: Any, x: Any, y: Any, /) -> Any:
        """``log(exp(x) + exp(y))`` without intermediate overflow, also of infinities."""
        # The difference of two equal infinities is NaN, and what is added to them no matter.
        distance = self.where(self.equal(x, y), 0.0, self.abs(self.sub(x, y)))
        return self.add(self.maximum(x, y), self.log1p(self.exp(self.neg(distance))))

    # ---- trigonometry ----

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def sin(self, x: F, /) -> F:
        """The sine of ``x`` in radians."""
        return missing("sin")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def cos(self, x: F, /) -> F:
        """The cosine of ``x`` in radians."""
        return missing("cos")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def tan(self, x: F, /) -> F:
        """The tangent of ``x`` in radians."""
        return missing("tan")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def asin(self, x: F, /) -> F:
        """The inverse of the sine, from -pi/2 to pi/2; NaN outside [-1, 1]."""
        return missing("asin")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def acos(self, x: F, /) -> F:
        """The inverse of the cosine, from 0 to pi; NaN outside [-1, 1]."""
        return missing("acos")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def atan(self, x: F, /) -> F:
        """The inverse of the tangent, from -pi/2 to pi/2."""
        return missing("atan")

    @overload
    def atan2(self, x: F, y: F | float, /) -> F: ...
    @overload
    def atan2(self, x: float, y: F, /) -> F: ...
    @operation(kinds="F", shape=broadcast, required=True, differentiable=True)
    def atan2(self, x: Any, y: Any, /) -> Any:
        """``atan(x / y)`` in the right quadrant: the angle of the point with ordinate ``x`` and abscissa ``y``.

        The gradient at (0, 0) is 0.
        """
        return missing("atan2")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def sinh(self, x: F, /) -> F:
        """The hyperbolic sine."""
        return missing("sinh")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def cosh(self, x: F, /) -> F:
        """The hyperbolic cosine."""
        return missing("cosh")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def tanh(self, x: F, /) -> F:
        """The hyperbolic tangent."""
        return missing("tanh")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def asinh(self, x: F, /) -> F:
        """The inverse of the hyperbolic sine."""
        return missing("asinh")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def acosh(self, x: F, /) -> F:
        """The non-negative inverse of the hyperbolic cosine; NaN below 1."""
        return missing("acosh")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def atanh(self, x: F, /) -> F:
        """The inverse of the hyperbolic tangent; infinite at -1 and 1, NaN beyond."""
        return missing("atanh")

    # ---- special functions: the bodies, their sources and their bounds are in backburn.backend.special ----

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def erf(self: Any, x: F, /) -> F:
        """The error function: ``2 / sqrt(pi)`` times the integral of ``exp(-t**2)`` from 0 to ``x``."""
        return special.erf(self, x)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def erfc(self: Any, x: F, /) -> F:
        """``1 - erf(x)``, with its full relative precision where it is small."""
        return special.erfc(self, x)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def erfinv(self: Any, x: F, /) -> F:
        """The inverse of ``erf``; infinite at -1 and 1, NaN beyond."""
        return special.erfinv(self, x)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def lgamma(self: Any, x: F, /) -> F:
        """The logarithm of the absolute value of the gamma function; infinite at 0, -1, -2, ..."""
        return special.lgamma(self, x)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def digamma(self: Any, x: F, /) -> F:
        """The derivative of ``lgamma``."""
        return special.digamma(self, x)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def polygamma(self: Any, x: F, /, n: int = 1) -> F:
        """The derivative of order ``n``, from 1 (the trigamma function) to 10, of ``digamma``.

        Its own derivative is that of order ``n + 1``. Raises :class:`ArgumentError` for another ``n``.
        """
        return special.polygamma(self, x, n)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def sinc(self: Any, x: F, /) -> F:
        """``sin(pi x) / (pi x)``, and 1 at 0."""
        return special.sinc(self, x)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def sinc_ratio(self: Any, x: F, /, n: int) -> F:
        """``j_n(z) / z**n`` at ``z = pi x``, with the spherical Bessel function of order ``n``: order 0 is ``sinc``.

        The derivatives of ``sinc`` are written with it, since that of order ``n`` is ``-pi**2 x`` times order ``n +
        1``.
        """
        return special_ratios.sinc_ratio(self, x, n)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def i0(self: Any, x: F, /) -> F:
        """The modified Bessel function of the first kind and order 0."""
        return special.i0(self, x)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def i1(self: Any, x: F, /) -> F:
        """The modified Bessel function of the first kind and order 1."""
        return special.i1(self, x)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def bessel_ratio(self: Any, x: F, /, n: int) -> F:
        """``I_n(x) / x**n``, with the modified Bessel function of the first kind and order ``n``.

        The derivatives of ``i0`` and ``i1`` are written with it, since that of order ``n`` is ``x`` times order ``n +
        1``.
        """
        return special_ratios.bessel_ratio(self, x, n)

    # ---- rounding ----

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def floor(self, x: F, /) -> F:
        """The largest integral value not above ``x``. The derivative is 0."""
        return missing("floor")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def ceil(self, x: F, /) -> F:
        """The smallest integral value not below ``x``. The derivative is 0."""
        return missing("ceil")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def round(self, x: F, /) -> F:
        """The nearest integral value; ties go to the even one. The derivative is 0."""
        return missing("round")

    @operation(kinds="F", shape=unchanged, required=True, differentiable=True)
    def trunc(self, x: F, /) -> F:
        """``x`` without its fractional part. The derivative is 0."""
        return missing("trunc")

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def frac(self: Any, x: F, /) -> F:
        """The fractional part, ``x - trunc(x)``, with the sign of ``x``. The derivative is 1."""
        return self.sub(x, self.trunc(x))


def exact_at_powers(k: Any, base: float, logarithm: Any, x: Any) -> Any:
    """``logarithm``, with its rounding error undone where ``x`` is an integral power of ``base``."""
    nearest = k.round(logarithm)
    return k.where(k.equal(k.pow(base, nearest), x), nearest, logarithm)
