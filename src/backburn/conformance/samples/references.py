"""Float64 references of the special functions, with other methods than the operations: quadrature, recurrences, Newton.

They are slow, and accurate to about 1e-14 at the moderate arguments of the samples.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from backburn.conformance.samples.table import Array


def elementwise(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of one number as a function of arrays, including 0-d and empty ones."""

    def apply(x: Array) -> Array:
        x = np.asarray(x, np.float64)
        return np.array([function(float(v)) for v in x.ravel()], np.float64).reshape(x.shape)

    return apply


erf = elementwise(math.erf)
erfc = elementwise(math.erfc)


@elementwise
def lgamma(x: float) -> float:
    """The logarithm of the gamma function, infinite at its poles."""
    return math.inf if x <= 0 and x == math.floor(x) else math.lgamma(x)


@elementwise
def erfinv(x: float) -> float:
    """The inverse of ``erf`` by Newton's method on the side where ``erfc`` is small."""
    if not abs(x) < 1:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    y = math.sqrt(-math.log1p(-abs(x))) if abs(x) > 0.7 else abs(x)
    for _ in range(60):
        before = y
        y -= (math.erf(y) - abs(x)) * math.sqrt(math.pi) / 2 * math.exp(y * y)
        if y == before:
            break
    return math.copysign(y, x)


@elementwise
def ndtri(x: float) -> float:
    """The inverse of the normal distribution function, from the standard library."""
    if not 0.0 < x < 1.0:
        return math.copysign(math.inf, x - 0.5) if x in (0.0, 1.0) else math.nan
    return statistics.NormalDist().inv_cdf(x)


def polygamma_of(x: float, n: int) -> float:
    """The n-th derivative of digamma: shifted above 30 by its recurrence, then asymptotic (NIST DLMF 5.15.8)."""
    if x <= 0 and x == math.floor(x):
        return math.nan if x < 0 else math.inf
    sign, factorial, total = -((-1.0) ** n), math.factorial(n), 0.0
    while x < 30:
        total += sign * factorial / x ** (n + 1)
        x += 1
    total += math.log(x) if n == 0 else sign * math.factorial(n - 1) / x**n
    total += sign * factorial / (2 * x ** (n + 1))
    for j, bernoulli in enumerate((1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6), 1):
        rising = math.factorial(2 * j + n - 1) / math.factorial(2 * j)
        total += sign * bernoulli * rising / x ** (2 * j + n)
    return total


digamma = elementwise(lambda x: polygamma_of(x, 0))


def polygamma(x: Array, n: int = 1) -> Array:
    """The n-th derivative of digamma."""
    return elementwise(lambda value: polygamma_of(value, n))(x)


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(60)


def sinc_ratio(x: Array, n: int) -> Array:
    """Poisson's integral (NIST DLMF 10.54.1) by Gauss-Legendre quadrature."""
    kernel = np.cos(math.pi * np.asarray(x)[..., None] * _NODES) * (1 - _NODES**2) ** n
    return np.asarray((kernel * _WEIGHTS).sum(-1) / (2 ** (n + 1) * math.factorial(n)))


def _erfcx(x: float) -> float:
    """``exp(x**2) erfc(x)`` as written, and above 2 by the continued fraction (NIST DLMF 7.9.1)."""
    if not x > 2.0:
        return math.inf if x < -26.0 else math.exp(x * x) * math.erfc(x)
    value = 0.0
    for j in reversed(range(1, 200)):
        value = j / 2 / (x + value)
    return 1.0 / (math.sqrt(math.pi) * (x + value))


erfcx = elementwise(_erfcx)


@elementwise
def ndtr(x: float) -> float:
    """The distribution function of the normal distribution."""
    return math.erfc(-x * math.sqrt(0.5)) / 2


@elementwise
def log_ndtr(x: float) -> float:
    """The logarithm of the distribution function of the normal distribution."""
    if x < -5.0:
        return -x * x / 2 + math.log(_erfcx(-x * math.sqrt(0.5)) / 2) if x > -math.inf else -math.inf
    return math.log1p(-math.erfc(x * math.sqrt(0.5)) / 2)


def inverse_mills(x: Array, n: int = 0) -> Array:
    """The density of the normal distribution over its distribution function, and its derivatives up to the third.

    The derivatives are cumulants of the distance of a normal number below ``x``, given that it is below.
    """
    if n == 0:
        with np.errstate(divide="ignore"):
            return np.asarray(math.sqrt(2.0 / math.pi) / erfcx(np.asarray(x) * -math.sqrt(0.5)))
    t = 5.0 * (_NODES + 1.0)
    kernel = np.exp(np.asarray(x)[..., None] * t - t**2 / 2) * _WEIGHTS
    kernel /= kernel.sum(-1, keepdims=True)
    t = t - (kernel * t).sum(-1, keepdims=True)
    second, third, fourth = ((kernel * t**power).sum(-1) for power in (2, 3, 4))
    return np.asarray((second - 1.0, third, fourth - 3.0 * second**2)[n - 1])


def erfc_ratio(x: Array, n: int = 1) -> Array:
    """Ratios of integrals of ``t**n exp(-t**2 - 2 x t)`` over positive ``t`` (NIST DLMF 7.18.2) by Gauss-Legendre."""
    t = 4.5 * (_NODES + 1.0)
    kernel = np.exp(-(t**2) - 2 * np.clip(x, -3.0, 4.0)[..., None] * t) * _WEIGHTS * t ** (n - 1)
    value = (kernel * t).sum(-1) / (n * kernel.sum(-1))
    return np.asarray(np.where(np.isinf(x), np.where(np.asarray(x) > 0, 0.0, math.inf), value))


def bessel_ratio(x: Array, n: int) -> Array:
    """Poisson's integral (NIST DLMF 10.32.2) by the trapezoidal rule, which converges exponentially on a period."""
    angle = np.arange(200) * (math.pi / 200)
    kernel = np.exp(np.asarray(x)[..., None] * np.cos(angle)) * np.sin(angle) ** (2 * n)
    # On half a period, the rule would miss the end point: adding the mirror image makes the function periodic.
    mirrored = np.exp(-np.asarray(x)[..., None] * np.cos(angle)) * np.sin(angle) ** (2 * n)
    mean = (kernel + mirrored).mean(-1) / 2
    return np.asarray(mean * math.sqrt(math.pi) / (2**n * math.gamma(n + 0.5)))


def i0(x: Array) -> Array:
    """The modified Bessel function of order 0."""
    return bessel_ratio(x, 0)


def i1(x: Array) -> Array:
    """The modified Bessel function of order 1."""
    return np.asarray(x * bessel_ratio(x, 1))


def i0e(x: Array) -> Array:
    """The scaled modified Bessel function of order 0."""
    return i0e_slope(x, 0)


def i1e(x: Array) -> Array:
    """The scaled modified Bessel function of order 1."""
    return np.copysign(i0e_slope(x, 0) - i0e_slope(x, 1), x)


def i0e_slope(x: Array, n: int) -> Array:
    """The mean of ``u**n exp(-|x| u)`` with ``u = 1 - cos(t)`` over the angles ``t``, by Gauss-Legendre quadrature."""
    u = 1.0 - np.cos((_NODES + 1.0) * (math.pi / 2))
    kernel = np.exp(-np.abs(np.asarray(x))[..., None] * u) * u**n
    return np.asarray((kernel * _WEIGHTS).sum(-1) / 2)


def xlogy(x: Array, y: Array) -> Array:
    """``x log(y)``, and 0 where ``x`` is 0 and ``y`` a number."""
    return np.where((np.asarray(x) == 0) & ~np.isnan(y), 0.0, x * np.log(y))


def xlog1py(x: Array, y: Array) -> Array:
    """``x log(1 + y)``, and 0 where ``x`` is 0 and ``y`` a number."""
    return np.where((np.asarray(x) == 0) & ~np.isnan(y), 0.0, x * np.log1p(y))


def sigmoid(x: Any) -> Any:
    """The reference of ``sigmoid``, without overflow."""
    return np.exp(-np.logaddexp(0.0, -x))


def density(x: Any) -> Any:
    """The density of the normal distribution."""
    return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def gelu(x: Any, approximate: str = "none") -> Any:
    """The reference of ``gelu``."""
    if approximate == "none":
        return x * erfc(-x / math.sqrt(2)) / 2
    return x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def gelu_backward(grad: Any, x: Any, approximate: str) -> Any:
    """The reference of ``gelu_backward``."""
    if approximate == "none":
        return grad * (erfc(-x / math.sqrt(2)) / 2 + np.where(np.abs(x) < 1e3, x * density(x), 0.0))
    x = np.clip(x, -100.0, 100.0)
    scale = math.sqrt(2 / math.pi)
    t = np.tanh(scale * (x + 0.044715 * x**3))
    return grad * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * scale * (1 + 3 * 0.044715 * x**2))
