"""Special functions as bodies over a backend's elementwise operations.

``k`` is the backend (or any namespace with the operations ``add``, ``mul``, ``where``, ``exp``, ...) and ``x`` one of
its float primitives. Every body evaluates all its pieces on all elements and selects with ``where``, so it works on
accelerators and on lazy backends; it is not meant to be differentiated: each docstring states the derivative.

float64 and float32 have separate coefficients; 16-bit floats are computed in float32. Bounds are the largest errors
observed against 200-bit arithmetic, in units in the last place, with ``exp``, ``log``, ``sin`` and ``tan`` accurate to
about one unit; errors of a backend's own functions come on top. NaN gives NaN.

The coefficients are in :mod:`backburn.ops.bodies.special_coefficients`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, update_wrapper
from typing import Any, Concatenate, ParamSpec

from backburn.base.dtypes import float32
from backburn.base.errors import ArgumentError
from backburn.ops.bodies import special_coefficients as table
from backburn.ops.bodies.reductions import sum_terms

P = ParamSpec("P")

POLYGAMMA_ORDERS = range(1, 11)


def horner(k: Any, x: Any, coefficients: table.Polynomial) -> Any:
    """The polynomial with two or more ascending ``coefficients`` at ``x``; a leading 1 costs no multiplication."""
    *rest, second, first = coefficients
    total = k.add(x if first == 1.0 else k.mul(x, first), second)
    for coefficient in reversed(rest):
        total = k.add(k.mul(total, x), coefficient)
    return total


def rational(k: Any, x: Any, coefficients: table.Rational) -> Any:
    """The quotient of two polynomials at ``x``; the denominator may be the constant 1."""
    if len(coefficients[1]) == 1:
        return horner(k, x, coefficients[0])
    return k.div(horner(k, x, coefficients[0]), horner(k, x, coefficients[1]))


def _in_working_precision(
    body: Callable[Concatenate[Any, Any, int, P], Any],
) -> Callable[Concatenate[Any, Any, P], Any]:
    """Turn ``body(k, x, bits, ...)`` into ``f(k, x, ...)``: 64 bits for float64, else 32, 16-bit floats by casting."""

    def evaluate(k: Any, x: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        dtype = k.dtype(x)
        if dtype.bits >= 32:
            return body(k, x, dtype.bits, *args, **kwargs)
        return k.astype(body(k, k.astype(x, float32), 32, *args, **kwargs), dtype)

    update_wrapper(evaluate, body)
    return evaluate


# ---- error function ----


@_in_working_precision
def erf(k: Any, x: Any, bits: int) -> Any:
    """The error function: ``2 / sqrt(pi)`` times the integral of ``exp(-t**2)`` from 0 to ``x``.

    float32: ``tanh(x r)``, where the rational function ``r`` of ``x**2`` approximates ``artanh(erf(x)) / x``;
    every error shrinks as the hyperbolic tangent saturates. float64: ``x`` times a rational function of
    ``x**2`` up to 1 (the form of W. J. Cody, "Rational Chebyshev approximations for the error function",
    Math. Comp. 23, 1969), and ``1 - exp(r(|x|))`` beyond, where ``r`` approximates ``log(erfc)``. Within 4
    ulp. Derivative: ``2 / sqrt(pi) * exp(-x**2)``.
    """
    limit = table.ERF_LIMIT[bits]
    square = k.mul(x, x)
    if bits == 32:
        inner = rational(k, k.minimum(square, limit * limit), table.ERF_ARTANH[bits])
        return k.tanh(k.mul(x, inner))
    y = k.abs(x)

    centre = k.mul(x, rational(k, square, table.ERF_CENTRE[bits]))
    value = k.sub(1.0, k.exp(rational(k, k.minimum(y, limit), table.ERF_TAIL[bits])))
    tail = k.mul(value, k.sign(x))
    return k.where(k.less(y, table.ERF_SPLIT), centre, tail)


def _exp_of_square(k: Any, x: Any, bits: int, factor: float = -1.0) -> tuple[Any, Any]:
    """``a`` and a small ``b`` with ``exp(factor * x**2) = a * (1 + b)`` for ``0 <= x``; ``a`` has an exact exponent."""
    # The leading bits of x have an exact square, at most 24 or 53 bits long; what remains needs a short series only.
    step, terms = (2.0**8, 5) if bits == 32 else (2.0**20, 4)
    head = k.mul(k.round(k.mul(x, step)), 1.0 / step)
    rest = k.mul(k.sub(x, head), k.add(x, head))
    series = horner(k, rest, tuple(factor**i / math.factorial(i) for i in range(1, terms)))
    return k.exp(k.mul(k.mul(head, head), factor)), k.mul(rest, series)


@_in_working_precision
def erfc(k: Any, x: Any, bits: int) -> Any:
    """The complementary error function ``1 - erf(x)``, with its full relative precision where it is small.

    ``exp(-x**2)`` with a corrected exponent, times ``(1 + r) / (1 + 2 |x|)`` with one rational function ``r``
    of ``|x|`` for the whole line: the division leaves a numerator near 1, as in M. M. Shepherd and J. G.
    Laframboise, "Chebyshev approximation of (1 + 2x) exp(x**2) erfc x in 0 <= x < inf", Math. Comp. 36, 1981.
    Within 4 ulp until results are subnormal (float32: 5, with an ``exp`` that loses two itself). Derivative:
    ``-2 / sqrt(pi) * exp(-x**2)``.
    """
    y = k.minimum(k.abs(x), table.ERFC_LIMIT[bits])
    ratio = rational(k, y, table.ERFCX[bits])
    power, correction = _exp_of_square(k, y, bits)
    # Small terms are summed before 1 is added: this costs one rounding instead of three.
    small = k.add(ratio, k.mul(correction, k.add(ratio, 1.0)))
    value = k.mul(power, k.div(k.add(small, 1.0), k.add(k.mul(y, 2.0), 1.0)))
    return k.where(k.less(x, 0.0), k.sub(2.0, value), value)


@cache
def _erfcx_series(bits: int) -> table.Polynomial:
    """The coefficients of ``x erfcx(x)`` in ``x**-2`` (NIST DLMF 7.12.1), as many as matter from ``ERFC_LIMIT`` on."""
    return tuple(
        (-0.5) ** j * math.prod(range(1, 2 * j, 2)) / math.sqrt(math.pi) for j in range(6 if bits == 32 else 9)
    )


def _erfcx_above(k: Any, y: Any, bits: int) -> Any:
    """:func:`erfcx` for ``0 <= y``."""
    limit = table.ERFC_LIMIT[bits]

    z = k.minimum(y, limit)
    near = k.div(k.add(rational(k, z, table.ERFCX[bits]), 1.0), k.add(k.mul(z, 2.0), 1.0))
    inverse = k.reciprocal(y)
    far = k.div(horner(k, k.mul(inverse, inverse), _erfcx_series(bits)), y)
    return k.where(k.less(y, limit), near, far)


@_in_working_precision
def erfcx(k: Any, x: Any, bits: int) -> Any:
    """:func:`erfc` without its decay: times ``exp(x**2)``. Infinite for large negative ``x``, 0 at infinity.

    The rational function of :func:`erfc`, and beyond it the asymptotic series (NIST DLMF 7.12.1); below 0 ``2
    exp(x**2) - erfcx(-x)``, with a corrected exponent. Within 3 ulp. Derivative: ``-2 erfcx(x) erfc_ratio(x)``.
    """
    y = k.abs(x)
    above = _erfcx_above(k, y, bits)

    power, correction = _exp_of_square(k, k.minimum(y, table.ERFC_LIMIT[bits]), bits, 1.0)
    below = k.sub(k.mul(power, k.add(k.mul(correction, 2.0), 2.0)), above)
    return k.where(k.less(x, 0.0), below, above)


# ---- normal distribution ----


def _normal_tail(k: Any, y: Any, bits: int) -> tuple[Any, Any]:
    """The density over ``sqrt(2 / pi)``, and the upper tail over this quotient, both at ``0 <= y``."""
    near = k.minimum(y, math.sqrt(2.0) * table.ERFC_LIMIT[bits])
    power, correction = _exp_of_square(k, near, bits, -0.5)
    return k.mul(power, k.add(k.mul(correction, 0.5), 0.5)), _erfcx_above(k, k.mul(y, math.sqrt(0.5)), bits)


def _upper_tail(k: Any, y: Any, bits: int) -> Any:
    """The integral of the density from ``0 <= y`` on, by the formula of :func:`erfc`, with as few roundings."""
    y = k.minimum(y, math.sqrt(2.0) * table.ERFC_LIMIT[bits])
    ratio = rational(k, k.mul(y, math.sqrt(0.5)), table.ERFCX[bits])
    power, correction = _exp_of_square(k, y, bits, -0.5)
    small = k.add(ratio, k.mul(correction, k.add(ratio, 1.0)))
    return k.mul(power, k.div(k.add(small, 1.0), k.add(k.mul(y, math.sqrt(8.0)), 2.0)))


@_in_working_precision
def ndtr(k: Any, x: Any, bits: int) -> Any:
    """The distribution function of the normal distribution, with its full relative precision where it is small.

    ``exp(-x**2 / 2)`` with a corrected exponent, times ``erfcx(|x| / sqrt(2)) / 2``. Within 4 ulp until results are
    subnormal (float32: 5, with an ``exp`` that loses two itself). Derivative: ``exp(-x**2 / 2) / sqrt(2 pi)``.
    """
    tail = _upper_tail(k, k.abs(x), bits)
    return k.where(k.less(0.0, x), k.sub(1.0, tail), tail)


@_in_working_precision
def log_ndtr(k: Any, x: Any, bits: int) -> Any:
    """The logarithm of :func:`ndtr`, without underflow for negative ``x``, and accurate for large ``x``.

    ``log(erfcx(-x / sqrt(2)) / 2) - x**2 / 2`` below -1, and ``log1p(-ndtr(-x))`` above 0. Within 4 ulp (float32: 7,
    with an ``exp`` that loses two itself). Derivative: :func:`inverse_mills`.
    """
    y = k.abs(x)
    tail = _upper_tail(k, y, bits)
    above = k.where(k.less(0.0, x), k.log1p(k.neg(tail)), k.log(tail))
    ratio = _erfcx_above(k, k.mul(y, math.sqrt(0.5)), bits)
    below = k.sub(k.log(k.mul(ratio, 0.5)), k.mul(y, k.mul(y, 0.5)))
    return k.where(k.less(x, -1.0), below, above)


@_in_working_precision
def inverse_mills(k: Any, x: Any, bits: int) -> Any:
    """The density of the normal distribution over its distribution function, :func:`ndtr`.

    The inverse of Mills' ratio at ``-x``: ``sqrt(2 / pi) / erfcx(-x / sqrt(2))``. Within 4 ulp until results are
    subnormal. Derivative: order 1 of :func:`special_ratios.inverse_mills`.
    """
    power, ratio = _normal_tail(k, k.abs(x), bits)
    scale = math.sqrt(2.0 / math.pi)
    right = k.div(k.mul(power, scale), k.sub(1.0, k.mul(power, ratio)))
    return k.where(k.less(0.0, x), right, k.div(scale, ratio))


@_in_working_precision
def erfinv(k: Any, x: Any, bits: int) -> Any:
    """The inverse of :func:`erf`: infinite at -1 and 1, NaN beyond.

    A rational function of ``x**2`` in the middle and one of ``sqrt(-log(1 - |x|))`` towards the ends: the
    variables of M. Giles, "Approximating the erfinv function", GPU Computing Gems Jade, 2012, and of J. M.
    Blair, C. A. Edwards and J. H. Johnson, Math. Comp. 30, 1976. Within 4 ulp. Derivative: ``sqrt(pi) / 2 *
    exp(erfinv(x)**2)``.
    """
    y = k.abs(x)

    # Counted from the split, the coefficients of the denominator have one sign: nothing cancels.
    distance = k.sub(table.ERFINV_SPLIT**2, k.mul(x, x))
    centre = k.mul(x, k.add(rational(k, distance, table.ERFINV_CENTRE[bits]), 1.0))
    left = k.sub(1.0, y)
    s = k.sqrt(k.neg(k.log(left)))
    value = k.sub(s, rational(k, s, table.ERFINV_TAIL[bits]))
    tail = k.mul(k.where(k.equal(left, 0.0), math.inf, value), k.sign(x))
    return k.where(k.less(y, table.ERFINV_SPLIT), centre, tail)


@_in_working_precision
def ndtri(k: Any, x: Any, bits: int) -> Any:
    """The inverse of :func:`ndtr`: infinite at 0 and 1, NaN beyond.

    The rational functions of :func:`erfinv`, of ``2 x - 1`` and of ``sqrt(-log(2 x))``, and one more for the smallest
    ``x``. Within 4 ulp. Derivative: the inverse of the density at the result.
    """
    left = k.mul(k.minimum(x, k.sub(1.0, x)), 2.0)

    y = k.sub(k.mul(x, 2.0), 1.0)
    distance = k.sub(table.ERFINV_SPLIT**2, k.mul(y, y))
    centre = k.mul(k.mul(y, math.sqrt(2.0)), k.add(rational(k, distance, table.ERFINV_CENTRE[bits]), 1.0))
    s = k.sqrt(k.neg(k.log(left)))
    near, far = rational(k, s, table.ERFINV_TAIL[bits]), rational(k, s, table.ERFINV_FAR_TAIL[bits])
    rest = k.where(k.less(s, table.ERFINV_FAR[bits]), near, far)
    value = k.where(k.equal(left, 0.0), math.inf, k.sub(s, rest))
    tail = k.mul(k.mul(value, math.sqrt(2.0)), k.sign(k.sub(x, 0.5)))
    return k.where(k.less(1.0 - table.ERFINV_SPLIT, left), centre, tail)


# ---- gamma function ----


@_in_working_precision
def lgamma(k: Any, x: Any, bits: int) -> Any:
    """The logarithm of the absolute value of the gamma function: infinite at 0, -1, -2, ... and at both infinities.

    ``(x - 1) (x - 2)`` times a rational function from 1/2 to 6, so that the zeros at 1 and 2 are exact and
    their neighbourhood keeps its relative precision; Stirling's series above; ``lgamma(x + 1) - log|x|``
    below 1/2; and below -1/2 the reflection ``log(pi / |x sin(pi x)|) - lgamma(-x)``, the sine of the exact
    distance from an integer (NIST DLMF 5.5.1, 5.5.3, 5.11.1). Within 4 ulp for ``x > -1/2``; below, where
    there are zeros, the error is at most 4 rounding units of the largest of 1, the result and ``lgamma(-x)``.
    Derivative: :func:`digamma`.
    """
    y = k.abs(x)
    log_y = k.log(y)

    inverse = k.reciprocal(y)
    rest = k.mul(inverse, horner(k, k.mul(inverse, inverse), table.LGAMMA_TAIL[bits]))
    stirling = k.add(k.mul(k.sub(y, 0.5), k.sub(log_y, 1.0)), k.add(rest, table.STIRLING))
    small = k.less(y, 0.5)
    z = k.where(small, k.add(x, 1.0), y)
    quotient = k.add(rational(k, z, table.LGAMMA_MIDDLE[bits]), table.LGAMMA_OFFSET)
    value = k.mul(k.sub(z, 1.0), k.mul(k.sub(z, 2.0), quotient))
    middle = k.sub(value, k.where(small, log_y, 0.0))
    value = k.where(k.less(y, table.LGAMMA_SPLIT), middle, stirling)

    sine = k.sin(k.mul(k.abs(k.sub(y, k.round(y))), math.pi))
    mirrored = k.sub(k.log(k.div(math.pi, k.mul(y, sine))), value)
    # From here on down every number is an integer, and the difference above would become inf - inf.
    reflected = k.where(k.less(x, -(2.0**23) if bits == 32 else -(2.0**52)), math.inf, mirrored)
    return k.where(k.less_equal(x, -0.5), reflected, value)


@_in_working_precision
def digamma(k: Any, x: Any, bits: int) -> Any:
    """The derivative of :func:`lgamma`: -inf at 0, +inf at -0, NaN at -1, -2, ... and at -inf.

    ``x - root`` (the positive root as a sum of two numbers) times a rational function, the asymptotic series
    above, ``digamma(x + 1) - 1 / x`` below 1/2 and below -1/2 the reflection ``digamma(-x) - 1 / x - pi /
    tan(pi x)`` (NIST DLMF 5.5.2, 5.5.4, 5.11.2). Within 4 ulp for ``x > 0``; below, where there are zeros,
    the error is at most 10 rounding units of the largest of 1, ``digamma(-x)`` and the cotangent's term.
    Derivative: ``polygamma(x, 1)``.
    """
    y = k.abs(x)
    inverse = k.reciprocal(y)

    square = k.mul(inverse, inverse)
    rest = k.add(k.mul(inverse, 0.5), k.mul(square, horner(k, square, table.DIGAMMA_TAIL[bits])))
    asymptotic = k.sub(k.log(y), rest)
    small = k.less(y, 0.5)
    z = k.where(small, k.add(x, 1.0), y)
    high, low = table.DIGAMMA_ROOT[bits]
    quotient = k.add(rational(k, z, table.DIGAMMA_MIDDLE[bits]), table.DIGAMMA_OFFSET)
    value = k.mul(k.sub(k.sub(z, high), low), quotient)
    middle = k.where(small, k.sub(value, k.reciprocal(x)), value)
    value = k.where(k.less(y, table.DIGAMMA_SPLIT[bits]), middle, asymptotic)

    distance = k.sub(y, k.round(y))
    cotangent = k.div(math.pi, k.tan(k.mul(distance, math.pi)))
    cotangent = k.where(k.equal(distance, 0.0), math.nan, cotangent)
    reflected = k.add(value, k.add(inverse, cotangent))
    return k.where(k.less_equal(x, -0.5), reflected, value)


def _power(k: Any, x: Any, n: int) -> Any:
    """``x**n`` for an integer ``n >= 1`` by repeated squaring."""
    result = None
    while True:
        if n % 2:
            result = x if result is None else k.mul(result, x)
        n //= 2
        if not n:
            return result
        x = k.mul(x, x)


@cache
def polygamma_series(n: int, bits: int) -> tuple[int, table.Polynomial]:
    """The terms that :func:`polygamma` sums one at a time, and the coefficients of the Euler-Maclaurin remainder.

    With ``w = x + terms`` the remainder is ``w**-n * (1 / n + 1 / (2 w) + w**-2 * polynomial(w**-2))``, all times
    ``n!``. ``terms`` is the least number for which the first coefficient left out is below a rounding unit.
    """
    bernoulli = (
        1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330,
    )  # fmt: skip
    used = 4 if bits == 32 else 9
    rising = [math.factorial(n + 2 * j - 1) // math.factorial(n) for j in range(1, used + 2)]
    c = [b * r / math.factorial(2 * j) for j, (b, r) in enumerate(zip(bernoulli, rising, strict=False), 1)]
    terms = 1
    while abs(c[used]) * n > 2.0 ** -(26 if bits == 32 else 56) * terms ** (2 * used + 2):
        terms += 1
    return terms, tuple(c[:used])


@cache
def cotangent_derivative(n: int) -> table.Polynomial:
    """The n-th derivative of the cotangent as a polynomial in the cotangent (whose first is ``-1 - c**2``)."""
    p = [0, 1]
    for _ in range(n):
        slope = [i * c for i, c in enumerate(p)][1:]
        p = [-a - b for a, b in zip([*slope, 0, 0], [0, 0, *slope], strict=True)]
    return tuple(map(float, p))


@_in_working_precision
def polygamma(k: Any, x: Any, bits: int, n: int = 1) -> Any:
    """The n-th derivative of :func:`digamma`, for an integer ``n`` from 1 (the trigamma function) to 10.

    Infinite at 0; at -1, -2, ... infinite for odd ``n`` and NaN for even; NaN at -inf. ``-(-1)**n n!`` times Hurwitz's
    zeta function ``zeta(n + 1, x)`` by the Euler-Maclaurin formula: some terms one at a time, the smallest first, and
    an asymptotic remainder (NIST DLMF 25.11.5, 5.15.1); below 0 the reflection with the n-th derivative of the
    cotangent (DLMF 5.15.6). For ``n <= 4``: within 4 ulp (n = 1) and 6 ulp (others) for ``x > 0``; below, for ``n <=
    3``, the error is at most 4 (n + 1) rounding units of ``|polygamma(x, n)| + |polygamma(1 - x, n)|``. Raises
    :class:`ArgumentError` for another ``n``. Derivative: ``polygamma(x, n + 1)``.
    """
    if n not in POLYGAMMA_ORDERS:
        raise ArgumentError(
            f"polygamma: the order n is {n!r}; it must be an integer "
            f"from {POLYGAMMA_ORDERS[0]} to {POLYGAMMA_ORDERS[-1]}"
        )
    terms, coefficients = polygamma_series(n, bits)
    below = k.less(x, 0.0)
    z = k.where(below, k.sub(1.0, x), x)
    inverse = k.reciprocal(k.add(z, float(terms)))
    square = k.mul(inverse, inverse)
    rest = k.add(k.mul(inverse, 0.5), k.mul(square, horner(k, square, coefficients)))
    remainder = k.mul(_power(k, inverse, n), k.add(rest, 1.0 / n))
    # For large arguments the terms are far below the remainder: summed first, they cost it one rounding, not many.
    small = (_power(k, k.reciprocal(k.add(z, float(j)) if j else z), n + 1) for j in reversed(range(terms)))
    value = k.mul(k.add(sum_terms(k, small), remainder), -((-1.0) ** n) * math.factorial(n))

    distance = k.sub(x, k.round(x))
    # The cosine as the sine of the exact distance from a half: it keeps its precision near its zero.
    cosine = k.sin(k.mul(k.sub(0.5, k.abs(distance)), math.pi))
    derivative = horner(k, k.div(cosine, k.sin(k.mul(distance, math.pi))), cotangent_derivative(n))
    if n % 2 == 0:
        derivative = k.where(k.equal(distance, 0.0), math.nan, derivative)
    mirrored = value if n % 2 == 0 else k.neg(value)
    reflected = k.sub(mirrored, k.mul(derivative, math.pi ** (n + 1)))
    return k.where(below, reflected, value)


# ---- sine ----


@_in_working_precision
def sinc(k: Any, x: Any, bits: int) -> Any:
    """``sin(pi x) / (pi x)``: 1 at 0, exactly 0 at every other integer, NaN at the infinities.

    The sine is taken of the exact distance from the nearest integer. Within 3 ulp. Derivative:
    ``(cos(pi x) - sinc(x)) / x``, and 0 at 0.
    """
    nearest = k.round(x)
    sine = k.sin(k.mul(k.sub(x, nearest), math.pi))
    half = k.mul(nearest, 0.5)
    even = k.equal(k.floor(half), half)
    value = k.div(k.where(even, sine, k.neg(sine)), k.mul(x, math.pi))
    return k.where(k.equal(x, 0.0), 1.0, value)


# ---- modified Bessel functions ----


def _bessel(
    k: Any, x: Any, bits: int, small: dict[int, table.Polynomial], large: dict[int, table.Rational], scaled: bool
) -> Any:
    """The even factor of I0 or I1 (without the ``x`` of I1's series), times ``exp(-|x|)`` if ``scaled``."""
    # The cap, far beyond overflow, keeps the infinite exponential from being multiplied by 0.
    y = k.abs(x) if scaled else k.minimum(k.abs(x), 800.0)
    shift = table.BESSEL_SHIFT

    value = horner(k, k.mul(y, y), small[bits])
    series = k.mul(value, k.exp(k.neg(y))) if scaled else value
    # Counted from the split, the coefficients of the denominator have one sign: nothing cancels.
    distance = k.sub(1.0 / table.BESSEL_SPLIT[bits], k.reciprocal(y))
    value = k.add(rational(k, distance, large[bits]), table.BESSEL_OFFSET)
    value = k.div(value, k.sqrt(y))
    asymptotic = k.mul(value, math.exp(-shift) if scaled else k.exp(k.sub(y, shift)))
    return k.where(k.less(y, table.BESSEL_SPLIT[bits]), series, asymptotic)


def _odd_factor(k: Any, x: Any, bits: int) -> Any:
    """The factor of I1 that :func:`_bessel` omits."""
    return k.where(k.less(k.abs(x), table.BESSEL_SPLIT[bits]), x, k.sign(x))


@_in_working_precision
def i0(k: Any, x: Any, bits: int) -> Any:
    """The modified Bessel function of the first kind and order 0.

    A polynomial in ``x**2``, and ``exp(|x| - 8) / sqrt(|x|)`` times a rational function of ``1 / |x|``: the
    two forms of J. M. Blair and C. A. Edwards, "Stable rational minimax approximations to the modified Bessel
    functions I0(x) and I1(x)", AECL-4928, 1974. Within 4 ulp (float32: 5, with an
    ``exp`` that loses two itself). Derivative: :func:`i1`.
    """
    return _bessel(k, x, bits, table.I0_SMALL, table.I0_LARGE, scaled=False)


@_in_working_precision
def i0e(k: Any, x: Any, bits: int) -> Any:
    """:func:`i0` without its growth: times ``exp(-|x|)``.

    Within 4 ulp. Derivative: ``i1e(x) - sign(x) * i0e(x)``, computed without the difference.
    """
    return _bessel(k, x, bits, table.I0_SMALL, table.I0_LARGE, scaled=True)


@_in_working_precision
def i1(k: Any, x: Any, bits: int) -> Any:
    """The modified Bessel function of the first kind and order 1, by the forms of :func:`i0`.

    Within 4 ulp (float32: 5, as there). Derivative: ``i0(x) - i1(x) / x``, and 1/2 at 0.
    """
    return k.mul(_bessel(k, x, bits, table.I1_SMALL, table.I1_LARGE, scaled=False), _odd_factor(k, x, bits))


@_in_working_precision
def i1e(k: Any, x: Any, bits: int) -> Any:
    """:func:`i1` without its growth: times ``exp(-|x|)``.

    Within 4 ulp. Derivative: ``i0e(x) - i1e(x) * (sign(x) + 1 / x)``, and 1/2 at 0.
    """
    return k.mul(_bessel(k, x, bits, table.I1_SMALL, table.I1_LARGE, scaled=True), _odd_factor(k, x, bits))
