"""Ratios of special functions, for derivatives, as bodies over a backend's elementwise operations.

Each family is closed under differentiation. Bessel functions over powers need no division by ``x``, so that derivatives
of every order of ``sinc``, ``i0`` and ``i1`` are correct at 0 and accurate near it; ratios of the integrals of
``erfc``, and the derivatives of scaled Bessel functions, are not differences in the tails, and neither overflow nor
underflow. ``k`` is the backend and ``x`` one of its float primitives; 16-bit floats are computed in float32.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from backburn.base.dtypes import float32
from backburn.base.errors import ArgumentError
from backburn.ops.bodies import special
from backburn.ops.bodies import special_coefficients as table
from backburn.ops.bodies.reductions import sum_terms
from backburn.ops.bodies.special import horner, rational


def check_order(name: str, n: int, least: int = 0) -> None:
    """Raise for an order below ``least``."""
    if n < least:
        raise ArgumentError(f"{name}: the order n is {n}; it is {least} or more")


@cache
def series(sign: int, first: float, growth: int, limit: float, bits: int) -> tuple[float, ...]:
    """The coefficients of a power series in ``x**2`` whose j-th term is the one before times a simple ratio.

    The ratio is ``sign * x**2 / (2 j (2 j + growth))`` and ``first`` is term 0. As many are returned as matter up to
    ``x = limit``.
    """
    coefficients, term, total, j = [first], first, first, 0
    while abs(term) > 2.0 ** -(26 if bits == 32 else 55) * abs(total):
        j += 1
        ratio = sign / (2 * j * (2 * j + growth))
        coefficients.append(coefficients[-1] * ratio)
        term *= abs(ratio) * limit**2
        total = max(total, term) if sign < 0 else total + term
    return tuple(coefficients)


def sinc_ratio(k: Any, x: Any, n: int) -> Any:
    """``j_n(z) / z**n`` at ``z = pi x``, with the spherical Bessel function of order ``n``; order 0 is ``sinc``.

    The power series up to ``z = n + 2``; above, the recurrence from the cosine and the sine (NIST DLMF 10.53.1,
    10.51.1), both taken of the exact distance from the nearest integer. For ``n <= 4`` within 8 rounding units of the
    larger of the result and its envelope. NaN at the infinities. Derivative: ``-pi**2 x`` times that of order ``n + 1``
    (DLMF 10.51.3). Raises :class:`ArgumentError` for a negative ``n``.
    """
    check_order("sinc_ratio", n)
    dtype = k.dtype(x)
    if dtype.bits < 32:
        return k.astype(sinc_ratio(k, k.astype(x, float32), n), dtype)
    z = k.mul(x, math.pi)
    square = k.mul(z, z)
    limit = n + 2.0
    odd_factorial = math.prod(range(1, 2 * n + 2, 2))
    small = horner(k, square, series(-1, 1.0 / odd_factorial, 2 * n + 1, limit, dtype.bits))

    nearest = k.round(x)
    half = k.mul(nearest, 0.5)
    even = k.equal(k.floor(half), half)
    angle = k.mul(k.sub(x, nearest), math.pi)
    sine, cosine = (k.where(even, f, k.neg(f)) for f in (k.sin(angle), k.cos(angle)))
    before, value = cosine, k.div(sine, z)
    for order in range(n):
        before, value = value, k.div(k.sub(k.mul(value, 2.0 * order + 1.0), before), square)
    return k.where(k.less(k.abs(z), limit), small, value)


def bessel_ratio(k: Any, x: Any, n: int) -> Any:
    """``I_n(x) / x**n``, with the modified Bessel function of the first kind and order ``n``.

    The power series for small ``x``; above, the recurrence from orders 0 and 1 (NIST DLMF 10.25.2, 10.29.1). For
    ``n <= 4`` within 6 ulp. Derivative: ``x`` times that of order ``n + 1`` (DLMF 10.29.4). Raises
    :class:`ArgumentError` for a negative ``n``.
    """
    check_order("bessel_ratio", n)
    dtype = k.dtype(x)
    if dtype.bits < 32:
        return k.astype(bessel_ratio(k, k.astype(x, float32), n), dtype)
    limit = max(8.0, 2.0 * n)
    coefficients = series(1, 1.0 / (2**n * math.factorial(n)), 2 * n, limit, dtype.bits)
    small = horner(k, k.square(k.minimum(k.abs(x), limit)), coefficients)

    # The cap, far beyond overflow, keeps the infinite exponential from being multiplied by 0.
    y = k.minimum(k.abs(x), 800.0)
    square = k.mul(y, y)
    before, value = special.i0e(k, y), k.div(special.i1e(k, y), y)
    if n == 0:
        value = before
    for order in range(1, n):
        before, value = value, k.div(k.sub(before, k.mul(value, 2.0 * order)), square)
    # In two factors, each of which is finite wherever the product is.
    growth = k.exp(k.mul(y, 0.5))
    return k.where(k.less(k.abs(x), limit), small, k.mul(k.mul(value, growth), growth))


def erfc_ratio(k: Any, x: Any, n: int = 1) -> Any:
    """The n-th repeated integral of ``erfc`` from ``x`` on over the one before it, for an integer ``n >= 1``.

    About ``1 / (2 x)`` for large ``x`` and ``-x / n`` for large negative ``x``. For ``n = 1`` a rational function of
    ``x`` over ``sqrt(pi) + 2 x``. Higher orders by the recurrence (NIST DLMF 7.18.7) in the direction in which errors
    do not grow (W. Gautschi, "Computational aspects of three-term recurrence relations", SIAM Review 9, 1967): below 0
    upwards from ``exp(-x**2) / (sqrt(pi) erfc(x)) - x``; above, downwards, up to 2 from a rational function for ``n =
    4``, and beyond from an order so high that the first ratio does not matter. Within 3 ulp for ``n = 1`` and 5 for ``n
    <= 4``; each higher order loses up to two bits between 0 and 2. Derivative: ``2 r(n) (n r(n) - (n + 1) r(n + 1))``
    (DLMF 7.18.2). Raises :class:`ArgumentError` for another ``n``.
    """
    check_order("erfc_ratio", n, least=1)
    dtype, bits = k.dtype(x), k.dtype(x).bits
    if bits < 32:
        return k.astype(erfc_ratio(k, k.astype(x, float32), n), dtype)
    limit, root = table.ERFC_LIMIT[bits], math.sqrt(math.pi)
    start = limit if n == 1 else table.ERFC_RATIO_SPLIT
    near = k.clip(x, 0.0, start)

    def upwards(ratio: Any, x: Any, first: int) -> Any:
        for order in range(first, n + 1):
            ratio = k.div(k.sub(k.mul(k.reciprocal(ratio), 0.5), x), float(order))
        return ratio

    def downwards(ratio: Any, x: Any, last: int) -> Any:
        for order in reversed(range(n + 1, last + 1)):
            ratio = k.div(0.5, k.add(x, k.mul(ratio, float(order))))
        return ratio

    left = upwards(k.sub(k.div(k.exp(k.neg(k.square(x))), k.mul(special.erfc(k, x), root)), x), x, 2)
    if n == 1:
        middle = k.div(k.add(rational(k, near, table.ERFC_RATIO[bits]), 1.0), k.add(k.mul(near, 2.0), root))
    else:
        order = table.ERFC_RATIO_ORDER
        inverse = 2.0 * math.gamma(order / 2 + 1) / math.gamma((order + 1) / 2)
        high = k.div(k.add(rational(k, near, table.ERFC_RATIO_HIGH[bits]), 1.0), k.add(k.mul(near, 2.0), inverse))
        middle = upwards(downwards(high, near, order), near, order + 1)
    # The first ratio affects the result by about exp(-2 x sqrt(2 steps)).
    last = n + (3 if bits == 32 else 6) + math.ceil((8.6 if bits == 32 else 18.5) ** 2 / (2 * start**2))
    far = k.maximum(x, start)
    right = downwards(k.reciprocal(k.add(far, k.sqrt(k.add(k.square(far), 2.0 * last + 1.0)))), far, last)
    return k.where(k.less(x, 0.0), left, k.where(k.less(x, start), middle, right))


def inverse_mills(k: Any, x: Any, n: int = 0) -> Any:
    """The derivative of order ``n`` of the inverse of Mills' ratio, :func:`special.inverse_mills`.

    It is the derivative of order ``n + 1`` of ``log_ndtr``. Orders 2 and 3 are rational functions up to 1/2. Above,
    they and the orders from 4 on follow from the inverse ``m`` and ``d = m + x`` by Leibniz's rule for ``m' = -m d``.
    Within 9 ulp up to order 2, and 4 for order 3 up to 1/2; above, around a zero, it is off by 4 epsilons. Each
    higher order loses a factor of about ``x**2`` for negative ``x``. Derivative: that of order ``n + 1``. Raises
    :class:`ArgumentError` for a negative ``n``.
    """
    check_order("inverse_mills", n)
    dtype, bits = k.dtype(x), k.dtype(x).bits
    if bits < 32:
        return k.astype(inverse_mills(k, k.astype(x, float32), n), dtype)
    if n == 0:
        return special.inverse_mills(k, x)
    # Beyond the bounds the product below is 0 or -1, and 0 would meet an infinity.
    bounded = k.clip(x, -1e30, 40.0)
    inverse = special.inverse_mills(k, bounded)
    distance = k.mul(erfc_ratio(k, k.mul(bounded, -math.sqrt(0.5))), math.sqrt(2.0))
    first = k.neg(k.mul(inverse, distance))
    if n == 1:
        return first
    right, t = k.less(table.INVERSE_MILLS_SPLIT, x), k.maximum(k.neg(x), -table.INVERSE_MILLS_SPLIT)
    square, near = k.square(t), k.minimum(k.add(t, table.INVERSE_MILLS_SPLIT), table.INVERSE_MILLS_LIMIT[bits])
    variance, distance_square = k.add(first, 1.0), k.square(distance)
    above = k.mul(inverse, k.sub(distance_square, variance))
    below = k.div(rational(k, near, table.INVERSE_MILLS_2[bits]), k.add(k.mul(k.add(square, 12.0), t), 30.0))
    second = k.where(right, above, below)
    if n == 2:
        return second
    above = k.sub(k.mul(first, k.sub(distance_square, k.mul(variance, 3.0))), k.mul(inverse, second))
    quotient = k.div(rational(k, near, table.INVERSE_MILLS_3[bits]), k.add(square, 10.0))
    third = k.where(right, above, k.div(quotient, k.add(square, 10.0)))
    slopes, distances = [inverse, first, second, third], [distance, variance, second, third]
    for order in range(4, n + 1):
        products = (
            k.mul(k.mul(slopes[j], distances[order - 1 - j]), -float(math.comb(order - 1, j))) for j in range(order)
        )
        slopes.append(sum_terms(k, products))
        distances.append(slopes[-1])
    return slopes[n]


@cache
def slope_terms(n: int, bits: int) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    """Where :func:`i0e_slope` becomes asymptotic, ``1 - cos(t)`` at angles ``t``, and the asymptotic coefficients.

    The mean over the angles, the midpoint rule on a period, is exact up to the Bessel function of twice their number.
    The coefficients are those of ``1 / x``.
    """
    limit, count = (9.0 + 4 * n, 12 + 4 * n) if bits == 32 else (20.0 + 4 * n, 24 + 4 * n)
    angles = tuple(2.0 * math.sin(math.pi * (j + 0.5) / (2 * count)) ** 2 for j in range(count))
    coefficients = [math.gamma(n + 0.5) / (math.pi * math.sqrt(2.0))]
    j = 0
    while coefficients[-1] > 2.0 ** -(26 if bits == 32 else 55) * coefficients[0] * limit**j:
        coefficients.append(coefficients[-1] * (j + 0.5) * (n + j + 0.5) / (2 * (j + 1)))
        j += 1
    return limit, angles, tuple(coefficients)


def i0e_slope(k: Any, x: Any, n: int) -> Any:
    """``(-1)**n`` times the derivative of order ``n`` of ``i0e``, the scaled Bessel function, at ``|x|``.

    The mean over all angles ``t`` of ``u**n exp(-|x| u)`` with ``u = 1 - cos(t)`` (NIST DLMF 10.32.1): as a sum over
    some angles, without negative terms, and for large ``x`` by Watson's lemma. For ``n <= 4`` within 7 ulp. Derivative:
    ``-sign(x)`` times that of order ``n + 1``. Raises :class:`ArgumentError` for a negative ``n``.
    """
    check_order("i0e_slope", n)
    dtype = k.dtype(x)
    if dtype.bits < 32:
        return k.astype(i0e_slope(k, k.astype(x, float32), n), dtype)
    limit, angles, coefficients = slope_terms(n, dtype.bits)
    y = k.abs(x)
    near = k.minimum(y, limit)
    total = sum_terms(k, (k.mul(k.exp(k.mul(near, -u)), u**n / len(angles)) for u in reversed(angles)))
    inverse = k.reciprocal(y)
    far = k.mul(horner(k, inverse, coefficients), k.sqrt(inverse))
    for _ in range(n):
        far = k.mul(far, inverse)
    return k.where(k.less(y, limit), total, far)
