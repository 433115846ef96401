"""Special functions of tensors in their tails: values, first and second derivatives against mpmath, in every mode."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest

import backburn as bb

INF, NAN = math.inf, math.nan


def scaled_tail(x: Any, n: int) -> Any:
    """Return the derivative of order ``n`` of ``exp(x**2) erfc(x)``: NIST DLMF 7.18.3, and a series above 100."""
    if x > 100:
        terms = [(-1) ** m * mp.factorial(2 * m + n) / mp.factorial(m) / (2 * x) ** (2 * m) for m in range(8)]
        return (-1) ** n * 2 / mp.sqrt(mp.pi) * mp.fsum(terms) / 2 / x ** (n + 1)
    found = [mp.exp(x * x) * mp.erfc(x)]
    found.append(2 * x * found[0] - 2 / mp.sqrt(mp.pi))
    for m in range(1, n):
        found.append(2 * m * found[m - 1] + 2 * x * found[m])
    return found[n]


def normal(x: Any, n: int) -> Any:
    """Return a derivative of the normal distribution function."""
    density = mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)
    return (mp.erfc(-x / mp.sqrt(2)) / 2, density, -x * density)[n]


def log_normal(x: Any, n: int) -> Any:
    """Return a derivative of the logarithm of the normal distribution function."""
    tail = scaled_tail(-x / mp.sqrt(2), 0)
    slope = mp.sqrt(2 / mp.pi) / tail
    value = mp.log(tail / 2) - x * x / 2 if x < 0 else mp.log1p(-normal(-x, 0))
    distance = slope + x
    rest = distance**2 - (1 - slope * distance)
    fourth = slope * distance * (2 * distance**2 - 3 * rest) - slope**2 * rest
    return (value, slope, -slope * distance, slope * rest, fourth)[n]


def normal_quantile(x: Any, n: int) -> Any:
    """Return a derivative of the inverse of the normal distribution function, by Newton's method on logarithms."""
    if x > 0.5:
        return (-1) ** (n + 1) * normal_quantile(1 - x, n)
    y = -mp.sqrt(-2 * mp.log(x)) + mp.mpf(1) if x < 0.4 else mp.mpf(0)
    for _ in range(16):
        y -= (mp.log(normal(y, 0)) - mp.log(x)) * normal(y, 0) / normal(y, 1)
    slope = 1 / normal(y, 1)
    return (y, slope, y * slope * slope)[n]


def scaled_bessel(x: Any, n: int) -> Any:
    """Return a derivative of ``exp(-|x|) I0(x)``, from Kummer's function."""
    half = mp.mpf(1) / 2
    size = mp.mpf(2) ** n * mp.rf(half, n) / mp.factorial(n) * mp.hyp1f1(n + half, n + 1, -2 * abs(x))
    return (-mp.sign(x)) ** n * size


def scaled_bessel_1(x: Any, n: int) -> Any:
    """Return a derivative of ``exp(-|x|) I1(x)``."""
    sign = 1 if x >= 0 else -1
    return sign * (scaled_bessel(x, n) + sign * scaled_bessel(x, n + 1))


#: The derivative of order ``n`` from mpmath, and points in the tails and near 0.
FUNCTIONS: dict[str, tuple[Callable[[Any, int], Any], tuple[float, ...]]] = {
    "erfcx": (scaled_tail, (-20.0, -5.0, -0.5, 0.0, 0.5, 1.9, 2.1, 9.0, 30.0, 1e8, 1e30, 1e100)),
    "i0e": (scaled_bessel, (-1e30, -50.0, -3.0, 0.5, 8.1, 23.9, 24.1, 100.0, 1e5, 1e10, 1e30)),
    "i1e": (scaled_bessel_1, (-1e30, -50.0, -3.0, 0.5, 8.1, 27.9, 28.1, 100.0, 1e5, 1e10, 1e30)),
    "ndtr": (normal, (-37.0, -13.0, -5.0, -1.0, 0.0, 1.0, 4.0)),
    "log_ndtr": (log_normal, (-1e100, -1e18, -1e10, -1e4, -37.0, -2.0, -1.0, -0.5, 0.0, 0.5, 5.0, 9.0)),
    "ndtri": (normal_quantile, (1e-300, 1e-100, 1e-30, 1e-10, 0.01, 0.2, 0.4, 0.5, 0.7, 0.99, 1 - 2.0**-20)),
}


def within(name: str, dtype: str, order: int) -> tuple[Any, list[Any]]:
    """Return the points where the derivative is 0 or a normal number of the dtype, and its values there."""
    (derivative, points), info, found = FUNCTIONS[name], np.finfo(dtype), []
    with mp.workdps(400):
        for point in np.array(points).astype(dtype):
            if np.isfinite(point) and (point != 0 or 0.0 in points):
                value = derivative(mp.mpf(float(point)), order)
                if value == 0 or float(info.tiny) < abs(value) < float(info.max):
                    found.append((point, float(value)))
    assert len(found) > 4
    return np.array([x for x, _ in found], dtype), [y for _, y in found]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_values_and_derivatives(name: str, dtype: str) -> None:
    function = getattr(bb, name)
    for order, tolerance in enumerate((8, 2000, 8000)):
        x, expected = within(name, dtype, order)
        reverse, forward = function, function
        for _ in range(order):
            reverse = (lambda f: bb.grad(lambda t: f(t).sum()))(reverse)
            forward = (lambda f: lambda t: bb.jvp(f, (t,), (bb.ones_like(t),))[1])(forward)
        rtol = tolerance * float(np.finfo(dtype).eps)
        for derivative in (reverse, forward, bb.vmap(reverse)):
            np.testing.assert_allclose(derivative(bb.asarray(x)).numpy(), expected, rtol=rtol)
        recorded = bb.capture(reverse, state=False)
        for _ in range(2):
            found = recorded(bb.asarray(x, backend="autodiff(capture(numpy))"))
            np.testing.assert_allclose(bb.to(found, "numpy").numpy(), expected, rtol=rtol)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_four_derivatives_of_the_scaled_tail(dtype: str) -> None:
    """The ratios of integrals of ``erfc`` stay accurate where their recurrence changes direction."""
    x, derivative = np.linspace(-8, 5, 131).astype(dtype), bb.erfcx
    for order in range(1, 5):
        derivative = (lambda f: bb.grad(lambda t: f(t).sum()))(derivative)
        with mp.workdps(60):
            expected = [float(scaled_tail(mp.mpf(float(v)), order)) for v in x]
        np.testing.assert_allclose(derivative(bb.asarray(x)).numpy(), expected, rtol=8 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_four_derivatives_of_the_logarithm_of_the_normal_distribution(dtype: str) -> None:
    """They are accurate everywhere, except the fourth where it changes sign, near 1."""
    x, derivative = np.concatenate([[-1e6], np.linspace(-30, 9, 79)]).astype(dtype), bb.log_ndtr
    for order, tolerance in enumerate((4, 9, 9, 25), start=1):
        derivative = (lambda f: bb.grad(lambda t: f(t).sum()))(derivative)
        with mp.workdps(90):
            expected = np.array([float(log_normal(mp.mpf(float(v)), order)) for v in x])
        normal = (np.abs(expected) > float(np.finfo(dtype).tiny)) & ((order < 4) | (np.abs(x - 1.0) > 0.4))
        found = derivative(bb.asarray(x)).numpy()[normal]
        np.testing.assert_allclose(found, expected[normal], rtol=tolerance * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_16_bits_are_computed_in_float32(name: str, dtype: str) -> None:
    points = [x for x in FUNCTIONS[name][1] if abs(x) < 6e4]
    x = bb.asarray(points, dtype=dtype)
    for function in (getattr(bb, name), bb.grad(lambda t: getattr(bb, name)(t).sum())):
        got, expected = function(x), function(x.astype("float32")).astype(dtype)
        assert got.dtype == dtype
        info = bb.finfo(dtype)
        value, near = (t.astype("float64").numpy() for t in (got, expected))
        np.testing.assert_allclose(value, near, rtol=4 * info.eps, atol=info.smallest_normal)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_operands(name: str) -> None:
    function = getattr(bb, name)
    assert function(bb.asarray([0, 1])).dtype is bb.float32
    assert function(bb.zeros((2, 3), backend="null")).shape == (2, 3)
    with pytest.raises(bb.errors.DTypeError, match=rf"^{name}: takes float tensors, not bool"):
        function(bb.asarray([True]))
    assert np.isnan(function(bb.asarray(NAN)).item())


#: Values and derivatives at the ends.
ENDS: list[tuple[str, float, float, float]] = [
    ("erfcx", INF, 0.0, 0.0),
    ("erfcx", -INF, INF, -INF),
    ("i0e", INF, 0.0, 0.0),
    ("i0e", -INF, 0.0, 0.0),
    ("i0e", 0.0, 1.0, 0.0),
    ("i1e", INF, 0.0, 0.0),
    ("i1e", 0.0, 0.0, 0.5),
    ("ndtr", INF, 1.0, 0.0),
    ("ndtr", -INF, 0.0, 0.0),
    ("log_ndtr", INF, 0.0, 0.0),
    ("log_ndtr", -INF, -INF, INF),
    ("ndtri", 0.0, -INF, INF),
    ("ndtri", 1.0, INF, INF),
]


@pytest.mark.parametrize(("name", "x", "value", "slope"), ENDS)
def test_ends(name: str, x: float, value: float, slope: float) -> None:
    for dtype in ("float64", "float32", "float16"):
        at = bb.asarray(x, dtype=dtype)
        found = [t.item() for t in bb.value_and_grad(getattr(bb, name))(at)]
        assert found == pytest.approx([value, slope], rel=4 * float(np.finfo(dtype).eps), abs=0)


def test_the_smallest_arguments_and_results() -> None:
    """Subnormal numbers keep their digits."""
    smallest = 2.0**-1074
    tails = bb.ndtr(bb.asarray([-37.6, -38.0, -38.4], dtype="float64"))
    with mp.workdps(30):
        np.testing.assert_allclose(
            tails.numpy(), [float(mp.ncdf(x)) for x in (-37.6, -38.0, -38.4)], atol=smallest, rtol=1e-13
        )
    for dtype, x in (("float64", smallest), ("float32", 2.0**-149), ("float16", 2.0**-24)):
        with mp.workdps(30):
            expected = float(normal_quantile(mp.mpf(x), 0))
        found = bb.ndtri(bb.asarray(x, dtype=dtype)).item()
        assert found == pytest.approx(expected, rel=4 * float(np.finfo(dtype).eps))
    assert np.isnan(bb.ndtri(bb.asarray([-1e-300, 1.5, -INF, INF], dtype="float64")).numpy()).all()
    far = bb.asarray([40.0, 1e200, INF], dtype="float64")
    second = bb.grad(lambda t: bb.grad(lambda s: bb.log_ndtr(s).sum())(t).sum())(far)
    np.testing.assert_array_equal(second.numpy(), 0.0)


# ---- logarithms and exponents ----


def test_products_with_logarithms_of_zeros() -> None:
    """As in SciPy: 0 where x is 0 and y is not NaN, and NaN where y is NaN."""
    ends = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, INF, -INF, NAN, 1e-300])
    x, y = (t.ravel() for t in np.meshgrid(ends, ends))
    for function, logarithm, pole in ((bb.xlogy, np.log, 0.0), (bb.xlog1py, np.log1p, -1.0)):
        with np.errstate(all="ignore"):
            expected = np.where((x == 0) & ~np.isnan(y), 0.0, x * logarithm(y))
        for rank in (x.size, 1 << 14):  # large arrays are computed in one pass
            a, b = (bb.asarray(np.resize(t, rank)) for t in (x, y))
            np.testing.assert_allclose(function(a, b).numpy(), np.resize(expected, rank), rtol=1e-15)
        slopes = bb.grad(lambda s, t, f=function: f(s, t).sum(), argnums=(0, 1))(bb.asarray(x), bb.asarray(y))
        lost = (x == 0) & ((y <= pole) | (y == INF))
        for slope in slopes:
            np.testing.assert_array_equal(slope.numpy()[lost], 0.0)
    probabilities = bb.asarray([0.0, 0.25, 0.75])
    entropy = bb.grad(lambda p: -bb.xlogy(p, p).sum())(probabilities)
    np.testing.assert_allclose(entropy.numpy(), [0.0, math.log(4) - 1, math.log(4 / 3) - 1], rtol=1e-6)
    assert bb.xlogy(bb.asarray([2]), 1).dtype is bb.float32
    with pytest.raises(bb.errors.DTypeError, match="xlogy: takes float tensors, not bool"):
        bb.xlogy(bb.asarray([True]), bb.asarray([True]))


def test_logit_within_bounds() -> None:
    x = bb.asarray([0.0, 0.05, 0.5, 0.95, 1.0], dtype="float64")
    np.testing.assert_allclose(bb.sigmoid(x.logit(eps=0.1)).numpy(), [0.1, 0.1, 0.5, 0.9, 0.9], rtol=1e-15)
    np.testing.assert_allclose(bb.grad(lambda t: t.logit(0.1).sum())(x).numpy(), [0.0, 0.0, 4.0, 0.0, 0.0])
    near = 0.5 + 2.0 ** -np.arange(2.0, 50.0)
    with mp.workdps(40):
        expected = [float(mp.log(mp.mpf(v) / (1 - mp.mpf(v)))) for v in near]
    np.testing.assert_allclose(bb.logit(bb.asarray(near)).numpy(), expected, rtol=4e-16)
    for eps in (-0.1, 0.6, NAN):
        with pytest.raises(bb.errors.ArgumentError, match=r"logit: eps is a number from 0 to 0.5, not"):
            bb.logit(x, eps=eps)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_powers_of_two_round_once(dtype: str) -> None:
    """Results equal NumPy's, which edits the exponent bits, also to and from subnormal numbers."""
    rng, info = np.random.default_rng(5), np.finfo(dtype)
    reach = int(info.maxexp - info.minexp + info.nmant + 3)
    x = np.ldexp(rng.uniform(-1, 1, 3000), rng.integers(info.minexp - info.nmant, info.maxexp, 3000)).astype(dtype)
    exponents = rng.integers(-reach, reach, 3000)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(bb.ldexp(bb.asarray(x), bb.asarray(exponents)).numpy(), np.ldexp(x, exponents))
        for exponent in (-reach, -3, 0, 5, reach, 2**40, -(2**40)):
            expected = np.ldexp(x, max(min(exponent, 1 << 20), -(1 << 20)))
            np.testing.assert_array_equal(bb.asarray(x).ldexp(exponent).numpy(), expected)
    tracked = bb.asarray([1.5, -2.0], dtype=dtype)
    slope = bb.grad(lambda t: bb.ldexp(t, bb.asarray([3, -1])).sum())(tracked)
    assert slope.tolist() == [8.0, 0.5]
    assert slope.dtype == dtype


def test_operands_of_ldexp() -> None:
    assert bb.ldexp(3, bb.asarray([1, -1])).tolist() == [6.0, 1.5]
    assert bb.ldexp(bb.asarray([3]), 1).dtype is bb.float32
    assert bb.ldexp(bb.ones((2, 1)), bb.asarray([1, 2, 3], dtype="int8")).shape == (2, 3)
    with pytest.raises(bb.errors.DTypeError, match="ldexp: takes int tensors, not float"):
        bb.ldexp(bb.ones(2), bb.ones(2))
    with pytest.raises(bb.errors.ArgumentError, match=r"ldexp: exponent is an integer, not 1.5"):
        bb.ldexp(bb.ones(2), 1.5)  # type: ignore[arg-type]


def test_extrema_of_numbers() -> None:
    x, y = bb.asarray([1.0, NAN, NAN, 2.0]), bb.asarray([NAN, 3.0, NAN, 2.0])
    for function, expected in ((bb.fmax, [1.0, 3.0, NAN, 2.0]), (bb.fmin, [1.0, 3.0, NAN, 2.0])):
        np.testing.assert_array_equal(function(x, y).numpy(), expected)
        slopes = bb.grad(lambda s, t, f=function: f(s, t).sum(), argnums=(0, 1))(x, y)
        assert [t.tolist() for t in slopes] == [[1.0, 0.0, 0.0, 0.5], [0.0, 1.0, 0.0, 0.5]]
    assert bb.fmin(bb.asarray([3, 1]), 2).tolist() == [2, 1]
    assert bb.fmax(bb.asarray([3, 1]), 2.5).tolist() == [3.0, 2.5]
