"""Elementwise operations beyond the samples: signs of zeros, exact results, neighbours, bfloat16 scalars."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.backend.registry import load_backend
from backburn.base.errors import ArgumentError
from backburn.ops.table import OPERATIONS

BASE = load_backend("numpy")


def test_signs_of_zeros() -> None:
    """Comparisons of values miss the sign, since -0.0 equals 0.0."""
    for name, operands in {
        "fmod": (np.array([-0.0, 0.0, -4.0, 4.0]), 2.0),
        "copysign": (np.zeros(2), np.array([-0.0, 0.0])),
        "hypot": (np.array([-0.0]), np.array([-0.0])),
    }.items():
        body = OPERATIONS[name].body(BASE, *operands)
        np.testing.assert_array_equal(np.signbit(body), np.signbit(getattr(BASE, name)(*operands)), err_msg=name)


def test_exact_powers() -> None:
    for dtype in (np.float64, np.float32):
        twos = np.arange(np.finfo(dtype).minexp, np.finfo(dtype).maxexp).astype(dtype)
        tens = np.arange(0, 22 if dtype is np.float64 else 10).astype(dtype)
        exp2, log2, log10 = (OPERATIONS[name].body for name in ("exp2", "log2", "log10"))
        np.testing.assert_array_equal(exp2(BASE, twos), np.ldexp(dtype(1), twos.astype(int)))
        np.testing.assert_array_equal(log2(BASE, np.ldexp(dtype(1), twos.astype(int))), twos)
        np.testing.assert_array_equal(log10(BASE, np.array([10**n for n in range(len(tens))], dtype)), tens)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nextafter_is_the_neighbour(dtype: str) -> None:
    info = np.finfo(dtype)
    x = np.array([0.0, 1.0, 1.0, info.max, -info.max, info.smallest_subnormal, info.smallest_normal], dtype)
    towards = np.array([1.0, 2.0, 0.0, np.inf, -np.inf, 0.0, 0.0], dtype)
    eps, least = info.eps, info.smallest_subnormal
    expected = np.array([least, 1 + eps, 1 - eps / 2, np.inf, -np.inf, 0.0, info.smallest_normal - least], dtype)
    np.testing.assert_array_equal(BASE.nextafter(x, towards), expected)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "remainder", "maximum", "pow", "hypot", "atan2"])
def test_bfloat16_with_a_python_scalar(name: str) -> None:
    """NumPy gives float32, because bfloat16 is not a built-in dtype."""
    dtype = pytest.importorskip("ml_dtypes").bfloat16
    x = np.array([1.0, 2.0, 3.0], dtype)
    operation = getattr(BASE, name)
    for got, reference in ((operation(x, 2.5), operation(x, np.array(2.5, dtype))), (operation(2.5, x), None)):
        assert got.dtype == dtype
        if reference is not None:
            np.testing.assert_array_equal(got, reference)
    assert BASE.clip(x, 1.5, 2.5).dtype == dtype


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n", range(5))
def test_bessel_functions_over_powers(n: int, dtype: str) -> None:
    """Against mpmath, on both sides of the end of the series, with errors in eps of the result or of its envelope."""
    mp = pytest.importorskip("mpmath").mp.clone()
    mp.dps = 40
    eps = float(np.finfo(dtype).eps)

    x = np.array([0.0, 1e-8, 1e-3, 0.1, 0.63, 0.64, 0.95, 1.27, 1.9, 1.92, 2.5, 5.5, 20.3, 100.5], dtype)
    for value, got in zip(x, BASE.sinc_ratio(x, n), strict=True):
        z = mp.pi * mp.mpf(float(value))
        at_0 = 1 / mp.fac2(2 * n + 1)
        exact = at_0 if value == 0 else mp.sqrt(mp.pi / (2 * z)) * mp.besselj(n + mp.mpf(1) / 2, z) / z**n
        envelope = at_0 if z < n + 1 else z ** -(n + 1)
        assert abs(mp.mpf(float(got)) - exact) <= 8 * eps * envelope, f"sinc_ratio({value}, {n}) is {got}"

    x = np.array([0.0, 1e-8, 1e-3, 1.0, 7.9, 8.0, 8.1, 15.0, 40.0, 80.0], dtype)
    for value, got in zip(x, BASE.bessel_ratio(x, n), strict=True):
        y = mp.mpf(float(value))
        exact = mp.besseli(n, y) / y**n if value else mp.mpf(1) / (2**n * mp.factorial(n))
        assert abs(mp.mpf(float(got)) - exact) <= 6 * eps * exact, f"bessel_ratio({value}, {n}) is {got}"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("n", "bound"), [(1, 3), (2, 5), (3, 5), (4, 5), (5, 12)])
def test_ratios_of_integrals_of_erfc(n: int, bound: float, dtype: str) -> None:
    """Against mpmath, on both sides of where the form changes: in units of eps."""
    mp = pytest.importorskip("mpmath").mp.clone()
    mp.dps = 60
    eps = float(np.finfo(dtype).eps)
    largest = float(np.finfo(dtype).max)
    x = np.array(
        [-largest, -30.0, -2.0, -1e-8, 0.0, 1e-8, 0.1, 0.4, 0.7, 1.3, 1.9, 2.0, 2.1, 3.0, 10.2, 10.3, 27.9, 28.1, 1e3],
        dtype,
    )
    for value, got in zip(x, BASE.erfc_ratio(x, n), strict=True):
        z = mp.mpf(float(value))
        integrals = [2 / mp.sqrt(mp.pi), mp.exp(z * z) * mp.erfc(z)] if abs(z) < 1e4 else [0, 1]
        for order in range(1, n + 1):
            integrals.append((integrals[-2] - 2 * z * integrals[-1]) / (2 * order))
        exact = integrals[-1] / integrals[-2]
        assert abs(mp.mpf(float(got)) - exact) <= bound * eps * exact, f"erfc_ratio({value}, {n}) is {got}"
    far = np.array([1e9, largest, np.inf, np.nan], dtype)
    np.testing.assert_allclose(BASE.erfc_ratio(far, n), 0.5 / far, rtol=2 * eps)
    for dtype_ in ("float16", "float32"):
        np.testing.assert_array_equal(BASE.erfc_ratio(np.array([-np.inf], dtype_), n), [np.inf])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n", range(5))
def test_slopes_of_scaled_bessel_functions(n: int, dtype: str) -> None:
    """Against mpmath, on both sides of where the form changes: in units of eps."""
    mp = pytest.importorskip("mpmath").mp.clone()
    mp.dps = 40
    eps = float(np.finfo(dtype).eps)
    ends = [end for split in (9.0, 20.0) for end in (split + 4 * n - 0.01, split + 4 * n + 0.01)]
    x = np.array([0.0, 1e-8, 0.3, -2.5, 6.0, -12.0, *ends, 70.0, 1e4], dtype)
    for value, got in zip(x, BASE.i0e_slope(x, n), strict=True):
        half = mp.mpf(1) / 2
        exact = 2**n * mp.rf(half, n) / mp.factorial(n) * mp.hyp1f1(n + half, n + 1, -2 * abs(mp.mpf(float(value))))
        assert abs(mp.mpf(float(got)) - exact) <= 7 * eps * exact, f"i0e_slope({value}, {n}) is {got}"
    np.testing.assert_array_equal(BASE.i0e_slope(np.array([np.inf, -np.inf, np.nan], dtype), n), [0.0, 0.0, np.nan])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n", range(1, 6))
def test_slopes_of_the_inverse_of_mills_ratio(n: int, dtype: str) -> None:
    """Against mpmath, on both sides of where the form changes: in units of eps."""
    mp = pytest.importorskip("mpmath").mp.clone()
    mp.dps = 120
    eps = float(np.finfo(dtype).eps)
    x = np.array([-1e7, -1e3, -37.0, -5.0, -1.0, -0.01, 0.0, 0.03, 0.4, 0.5, 0.51, 0.9, 1.0, 1.1, 2.0, 5.0, 9.0], dtype)
    x = x if n < 4 else x[4:]
    for value, got in zip(x, BASE.inverse_mills(x, n), strict=True):
        z = mp.mpf(float(value))
        slopes = [mp.npdf(z) / mp.ncdf(z)]
        distances = [slopes[0] + z, 1 - slopes[0] * (slopes[0] + z)]
        for order in range(1, n + 1):
            products = (mp.binomial(order - 1, j) * slopes[j] * distances[order - 1 - j] for j in range(order))
            slopes.append(-mp.fsum(products))
            distances[2:] = slopes[2:]
        bound = (9 if n < 3 else 4) * abs(slopes[n]) if n < 3 or value <= 0.5 else 4
        bound = bound if n < 4 else 60
        assert abs(mp.mpf(float(got)) - slopes[n]) <= bound * eps, f"inverse_mills({value}, {n}) is {got}"
    ends = np.array([-np.inf, np.inf, np.nan], dtype)
    np.testing.assert_array_equal(BASE.inverse_mills(ends, n)[1:], [0.0, np.nan])
    assert abs(BASE.inverse_mills(ends, n)[0] - (-1.0 if n == 1 else 0.0)) <= eps


def test_erfc_ratio_refuses_order_0() -> None:
    with pytest.raises(ArgumentError, match=r"erfc_ratio: the order n is 0; it is 1 or more"):
        BASE.erfc_ratio(np.ones(2), 0)


def test_bessel_functions_over_powers_at_the_ends() -> None:
    x = np.array([713.0, 720.0, np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(BASE.bessel_ratio(x, 2)[2:], [np.inf, np.inf, np.nan])
    assert np.isfinite(BASE.bessel_ratio(x, 2)[:2]).all()
    assert np.isnan(BASE.sinc_ratio(x[2:], 1)).all()
    for name in ("sinc_ratio", "bessel_ratio", "i0e_slope", "inverse_mills"):
        with pytest.raises(ArgumentError, match=f"{name}: the order n is -1"):
            getattr(BASE, name)(x, -1)


FAR = {
    "sinc": bb.sinc,
    "atan": bb.atan,
    "atan2": lambda x: bb.atan2(x, 6e4),
    "erf": bb.erf,
    "softsign": bb.nn.functional.softsign,
    "mish": bb.nn.functional.mish,
    "gelu": bb.gelu,
}


@pytest.mark.parametrize("name", FAR)
def test_derivatives_in_float16_neither_overflow_nor_vanish(name: str) -> None:
    points = np.array([-6e4, -300.0, -2.5, 0.75, 30.0, 100.0, 300.0, 3e4, 6e4])

    def derivatives(dtype: str) -> Iterator[Any]:
        function: Any = FAR[name]
        for _ in range(3):
            function = bb.grad(lambda x, inner=function: inner(x).sum())
            yield function(bb.asarray(points, dtype=dtype)).numpy().astype(np.float64)

    for half, double in zip(derivatives("float16"), derivatives("float64"), strict=True):
        np.testing.assert_allclose(half, double, rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "exponent", [3, -1, -2, 5, 0, -3.0, 0.5, -0.5, 1.5, 1 / 3, 1001.0, -1e3, math.inf, -math.inf, math.nan]
)
def test_many_powers_are_those_of_few(exponent: float, dtype: str) -> None:
    """One exponent for many elements equals an array of exponents for few, also for negatives, zeros and infinities."""
    ends = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2, -2, 0.5, -0.5, 1e-30, -1e30, 1.1, -1.1], dtype)
    k = load_backend("numpy")
    found = k.pow(np.tile(ends, 20), exponent)
    expected = np.tile(k.pow(ends, np.full(len(ends), exponent, dtype)), 20)
    np.testing.assert_allclose(found, expected, rtol=1e-6 if dtype == "float32" else 1e-13, atol=0, strict=True)
    real = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found)[real], np.signbit(expected)[real])
