"""The special functions against mpmath: the default bodies on arrays, and the NumPy backend.

Errors are in units in the last place (ulp) of the exact result; subnormal results count in the smallest subnormal.
Near zeros on the negative axis errors are relative to the terms of the reflection formula.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import mpmath as mp
import numpy as np
import pytest
from tests.helpers.kernels import needs_kernels

import backburn as bb
from backburn.backend.registry import load_backend
from backburn.base.dtypes import as_dtype
from backburn.base.errors import ArgumentError
from backburn.ops.bodies import special as bodies
from backburn.ops.bodies import special_coefficients as table
from backburn.ops.table import OPERATIONS

BASE: Any = load_backend("numpy")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(np.float16), BFLOAT16, np.dtype(np.float32), np.dtype(np.float64)]
POINTS = 60


RENAMED = {"neg": "negative", "mul": "multiply", "sub": "subtract", "div": "divide", "round": "rint"}


class Namespace:
    """NumPy's functions under the contract's names, for arrays of any shape, without warnings."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, RENAMED.get(name, name))

        def silent(*operands: Any) -> Any:
            with np.errstate(all="ignore"):
                return np.asarray(function(*operands))

        return silent

    @staticmethod
    def dtype(x: Any) -> Any:
        return as_dtype(x.dtype)

    @staticmethod
    def cast(x: Any, dtype: Any) -> Any:
        with np.errstate(all="ignore"):
            return x.astype(np.dtype(dtype))


def by_body(name: str, x: Any, *args: Any) -> Any:
    return getattr(bodies, name)(Namespace(), x, *args)


def by_numpy(name: str, x: Any, *args: Any) -> Any:
    return OPERATIONS[name].body(BASE, x, *args)


EVALUATORS = [by_body, by_numpy]


def log_gamma(x: Any) -> Any:
    return mp.loggamma(x).real if x > 0 else mp.log(abs(mp.gamma(x)))


def scaled_bessel(n: int, x: Any) -> Any:
    return mp.exp(-abs(x)) * mp.besseli(n, x)


def log_normal(x: Any) -> Any:
    return mp.log(mp.ncdf(x)) if x < 0 else mp.log1p(-mp.ncdf(-x))


def normal_quantile(x: Any) -> Any:
    if x > 0.1:
        return mp.sqrt(2) * mp.erfinv(2 * x - 1)
    y = 1 - mp.sqrt(-2 * mp.log(x))
    for _ in range(12):
        y -= mp.log(mp.ncdf(y) / x) * mp.ncdf(y) / mp.npdf(y)
    return y


# name: (reference, intervals, bound in ulp). "log" intervals are sampled evenly in the logarithm.
CASES: dict[str, tuple[Any, list[tuple[Any, ...]], dict[int, float]]] = {
    "erf": (mp.erf, [(-1, 1), (0.5, 4), (3.5, 6.2), (-6, -1), ("log", 1e-300, 1)], {32: 4, 64: 4}),
    "erfc": (mp.erfc, [(-6, 0), (0, 1), (0, 5), (5, 9), (9, 26)], {32: 5, 64: 4}),
    "erfcx": (
        lambda x: mp.exp(x * x) * mp.erfc(x),
        [(-27, 0), (0, 3), (3, 30), ("log", 1e-300, 1), ("log", 10, 1e4)],
        {32: 3, 64: 3},
    ),
    "ndtr": (mp.ncdf, [(-1, 1), (0, 6), (-8, 0), (-38.4, -8)], {32: 5, 64: 4}),
    "log_ndtr": (lambda x: log_normal(x), [(-1, 0), (0, 10), (10, 38), (-3, 0), (-40, 0)], {32: 7, 64: 4}),
    "inverse_mills": (lambda x: mp.npdf(x) / mp.ncdf(x), [(-1, 1), (0, 37), (-40, 0)], {32: 4, 64: 4}),
    "ndtri": (lambda x: normal_quantile(x), [(0.01, 0.99), (0.4, 0.6), ("log", 1e-307, 0.1)], {32: 4, 64: 4}),
    "erfinv": (mp.erfinv, [(-0.76, 0.76), (0.7, 1), (-1, -0.7), ("log", 1e-300, 1), ("ends",)], {32: 4, 64: 4}),
    "lgamma": (
        log_gamma,
        [(0, 3), (0.9, 1.1), (1.9, 2.1), (3, 9), (-0.5, 0), ("log", 1e-300, 1), ("log", 5, 1e30), ("log", 1e30, 1e300)],
        {32: 4, 64: 4},
    ),
    "digamma": (
        mp.digamma,
        [(0, 2), (1.46, 1.463), (1, 2), (2, 6), ("log", 1e-300, 1), ("log", 4, 1e300)],
        {32: 4, 64: 4},
    ),
    "polygamma": (lambda x: mp.polygamma(1, x), [(0, 3), (2, 9), ("log", 1e-15, 1), ("log", 8, 1e15)], {32: 4, 64: 4}),
    "sinc": (mp.sincpi, [(-3, 3), (-0.1, 0.1), (0.99, 1.01), (-60, 60), (1e4, 2e4)], {32: 3, 64: 3}),
    "i0": (lambda x: mp.besseli(0, x), [(-9, 9), (5, 16), (14, 91), (80, 713)], {32: 5, 64: 4}),
    "i1": (lambda x: mp.besseli(1, x), [(-9, 9), (5, 16), (14, 91), (80, 713)], {32: 5, 64: 4}),
    "i0e": (lambda x: scaled_bessel(0, x), [(-9, 9), (5, 16), (14, 91), ("log", 80, 1e30)], {32: 4, 64: 4}),
    "i1e": (lambda x: scaled_bessel(1, x), [(-9, 9), (5, 16), (14, 91), ("log", 80, 1e30)], {32: 4, 64: 4}),
}  # fmt: skip


def sample(intervals: list[tuple[Any, ...]], dtype: Any) -> Any:
    """Return a grid and as many random points of each interval in ``dtype``, without 0 and infinities."""
    rng = np.random.default_rng(20)
    parts = []
    for interval in intervals:
        t = np.concatenate([np.linspace(0, 1, POINTS), rng.random(POINTS)])
        if interval[0] == "log":
            low, high = np.log(interval[1:])
            parts.append(np.exp(low + (high - low) * t))
        elif interval[0] == "ends":
            parts.append(1 - 10.0 ** (-16 * t))
        else:
            low, high = interval
            parts.append(low + (high - low) * t)
    with np.errstate(all="ignore"):
        x = np.concatenate(parts).astype(dtype)
    wide = x.astype(np.float64)
    return x[np.isfinite(wide) & (wide != 0)]


def points_and_values(name: str, dtype: Any) -> tuple[Any, list[Any]]:
    """Sample points of a function and its exact values there."""
    reference, intervals, _ = CASES[name]
    x = sample(intervals, dtype)
    if name == "erfinv":
        x = x[np.abs(x.astype(np.float64)) < 1]
    with mp.workprec(200):
        return x, [reference(mp.mpf(float(v))) for v in x]


def ulps(got: Any, exact: list[Any], dtype: Any) -> Any:
    """Return the error of each element in units in the last place of the exact value."""
    info = ml_dtypes.finfo(dtype)
    errors = []
    with mp.workprec(200):
        for g, e in zip(got.astype(np.float64), exact, strict=True):
            exponent = max(mp.frexp(e)[1] - 1, info.minexp) if e else info.minexp
            unit = mp.ldexp(1, exponent - info.nmant)
            overflows = abs(e) > mp.mpf(float(info.max))
            errors.append(0.0 if overflows and abs(g) >= float(info.max) else float(abs(mp.mpf(float(g)) - e) / unit))
    return np.array(errors)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, dtype: Any) -> None:
    x, exact = points_and_values(name, dtype)
    bound = CASES[name][2][dtype.itemsize * 8] if dtype.itemsize > 2 else 0.51
    for evaluate in EVALUATORS:
        got = evaluate(name, x)
        assert got.dtype == dtype
        errors = ulps(got, exact, dtype)
        worst = int(errors.argmax())
        which = f"{evaluate.__name__}: {name}({x[worst]!r}) = {got[worst]!r}"
        assert errors[worst] <= bound, f"{which}: {errors[worst]:.2f} ulp"


@needs_kernels
@pytest.mark.parametrize("name", ["ndtr", "log_ndtr"])
def test_the_normal_distribution_in_float32(name: str) -> None:
    """Kernels err by one rounding at most, also far to the left."""
    function = getattr(BASE, name)
    x = np.concatenate([np.linspace(-13, 13, 100_001), -np.logspace(1, 19, 2001)]).astype(np.float32)
    exact = function(x.astype(np.float64))
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    assert (np.abs(function(x) - exact) <= unit).all()
    special = np.array([INF, -INF, NAN, -0.0, 3e38, -3e38], np.float32)
    with np.errstate(over="ignore"):
        expected = function(special.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(function(special), expected)


def polygamma(n: int, dtype: Any) -> tuple[Any, list[Any]]:
    """Return positive points and the exact values there."""
    x = sample([(0, 3), (2, 12), ("log", 1e-4, 1), ("log", 8, 1e5)], dtype)
    with mp.workprec(200):
        return x, [mp.polygamma(n, mp.mpf(float(v))) for v in x]


@pytest.mark.parametrize("dtype", DTYPES[2:], ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_polygamma_of_positive_numbers(n: int, dtype: Any) -> None:
    x, exact = polygamma(n, dtype)
    for evaluate in EVALUATORS:
        assert ulps(evaluate("polygamma", x, n), exact, dtype).max() <= (4 if n == 1 else 6), evaluate.__name__


def reflections() -> dict[str, tuple[Any, Any, tuple[Any, ...], float]]:
    """Return name: (reference, size of the terms of the reflection formula, further arguments, bound in roundings).

    The size is a function of a point and of the exact value there.
    """

    def cotangent(n: int, x: Any, value: Any) -> Any:
        return abs(value) + abs(mp.polygamma(n, 1 - x))

    return {
        "lgamma": (log_gamma, lambda x, value: max(1, abs(value), abs(log_gamma(-x))), (), 4),
        "digamma": (mp.digamma, lambda x, _: max(1, abs(mp.digamma(-x)), abs(mp.pi * mp.cot(mp.pi * x))), (), 10),
        **{
            f"polygamma {n}": (
                functools.partial(mp.polygamma, n),
                functools.partial(cotangent, n),
                (n,),
                4 * (n + 1),
            )
            for n in (1, 2, 3)
        },
    }


def reflected(case: str, dtype: Any) -> tuple[Any, list[Any]]:
    """Return points left of 0, each with its exact value and the size that its error is relative to."""
    reference, size, _, _ = reflections()[case]
    x = sample([(-3, -0.5), (-2.5, -2.4), (-2.01, -1.99), (-30, -3), (-0.52, -0.5)], dtype)
    x = x[x != np.rint(x)]
    with mp.workprec(200):
        points = [mp.mpf(float(v)) for v in x]
        return x, [(value, size(at, value)) for at, value in zip(points, map(reference, points), strict=True)]


@pytest.mark.parametrize("case", reflections())
@pytest.mark.parametrize("dtype", DTYPES[2:], ids=str)
def test_reflection(case: str, dtype: Any) -> None:
    _, _, args, bound = reflections()[case]
    x, expected = reflected(case, dtype)
    rounding = float(np.finfo(dtype).eps) / 2
    for evaluate in EVALUATORS:
        got = evaluate(case.split()[0], x, *args)
        with mp.workprec(200):
            errors = [
                float(abs(mp.mpf(float(g)) - value) / size) / rounding
                for g, (value, size) in zip(got, expected, strict=True)
            ]
        worst = int(np.argmax(errors))
        assert errors[worst] <= bound, f"{evaluate.__name__}: {case}({x[worst]!r}): {errors[worst]:.2f} roundings"


INF, NAN = math.inf, math.nan

EDGES: dict[str, list[tuple[float, float]]] = {
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (10.0, 1.0), (-10.0, -1.0), (5e-324, 5e-324)],
    "erfc": [(0.0, 1.0), (-0.0, 1.0), (INF, 0.0), (-INF, 2.0), (30.0, 0.0), (-30.0, 2.0), (5e-324, 1.0)],
    "erfcx": [(0.0, 1.0), (-0.0, 1.0), (INF, 0.0), (-INF, INF), (-30.0, INF), (5e-324, 1.0)],
    "ndtr": [(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (40.0, 1.0), (-40.0, 0.0), (5e-324, 0.5)],
    "log_ndtr": [(0.0, math.log(0.5)), (INF, 0.0), (-INF, -INF), (40.0, 0.0), (5e-324, math.log(0.5))],
    "inverse_mills": [(0.0, math.sqrt(2 / math.pi)), (INF, 0.0), (-INF, INF), (40.0, 0.0)],
    "ndtri": [(0.5, 0.0), (0.0, -INF), (-0.0, -INF), (1.0, INF), (-0.5, NAN), (1.5, NAN), (INF, NAN), (-INF, NAN)],
    "erfinv": [(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (1.5, NAN), (-1.5, NAN), (INF, NAN), (-INF, NAN)],
    "lgamma": [
        (0.0, INF), (-0.0, INF), (1.0, 0.0), (2.0, 0.0), (-1.0, INF), (-7.0, INF), (INF, INF), (-INF, INF),
        (-1e30, INF), (3.0, math.log(2.0)),
    ],
    "digamma": [(0.0, -INF), (-0.0, INF), (-1.0, NAN), (-40.0, NAN), (INF, INF), (-INF, NAN), (-1e30, NAN)],
    "polygamma": [(0.0, INF), (-0.0, INF), (-1.0, INF), (-40.0, INF), (INF, 0.0), (-INF, NAN)],
    "sinc": [(0.0, 1.0), (-0.0, 1.0), (1.0, 0.0), (-2.0, 0.0), (0.5, 2 / math.pi), (INF, NAN), (-INF, NAN), (3e4, 0.0)],
    "i0": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF), (750.0, INF), (5e-324, 1.0)],
    "i1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (-750.0, -INF)],
    "i0e": [(0.0, 1.0), (-0.0, 1.0), (INF, 0.0), (-INF, 0.0)],
    "i1e": [(0.0, 0.0), (-0.0, -0.0), (INF, 0.0), (-INF, -0.0)],
}  # fmt: skip


@pytest.mark.parametrize("evaluate", EVALUATORS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", EDGES)
def test_edges(name: str, dtype: Any, evaluate: Any) -> None:
    with np.errstate(all="ignore"):
        x, want = np.array([*EDGES[name], (NAN, NAN)]).T.astype(dtype)
    # All at once, where `where` combines the pieces, and one by one, where only the needed piece is evaluated.
    for got in (evaluate(name, x), np.array([evaluate(name, v) for v in x.reshape(-1, 1)]).reshape(-1)):
        tolerance = 2 * float(ml_dtypes.finfo(dtype).eps)
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=0)
        zero = (want == 0) & (x == 0)
        np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("evaluate", EVALUATORS)
def test_even_polygamma_has_no_value_at_its_poles(evaluate: Any) -> None:
    got = evaluate("polygamma", np.array([0.0, -0.0, -1.0, -2.0, INF]), 2)
    np.testing.assert_array_equal(got, [-INF, INF, NAN, NAN, -0.0])


@pytest.mark.parametrize("evaluate", EVALUATORS)
def test_extremes_of_float64(evaluate: Any) -> None:
    tiny, huge = 5e-324, 1e306
    np.testing.assert_allclose(evaluate("lgamma", np.array([tiny, -tiny])), -math.log(tiny), rtol=1e-15)
    np.testing.assert_array_equal(evaluate("lgamma", np.array([huge, -huge])), [INF, INF])
    np.testing.assert_allclose(evaluate("digamma", np.array([huge])), math.log(huge), rtol=1e-15)
    np.testing.assert_array_equal(evaluate("digamma", np.array([tiny, -tiny])), [-INF, INF])
    np.testing.assert_array_equal(evaluate("sinc", np.array([tiny, -tiny, 1e308])), [1.0, 1.0, 0.0])
    np.testing.assert_allclose(evaluate("polygamma", np.array([1e300])), 1e-300, rtol=1e-15)


@pytest.mark.parametrize(("dtype", "large"), [("float32", 3e38), ("float64", 1.7e308)])
def test_the_slope_of_sinc_is_finite_everywhere(dtype: str, large: float) -> None:
    x = bb.asarray([large, -large], dtype=dtype).require_grad()
    np.testing.assert_allclose(x.grad(bb.sinc(x).backward()).numpy(), 0.0, atol=1e-37)  # type: ignore[union-attr]


@pytest.mark.parametrize("evaluate", EVALUATORS)
def test_erf_stays_within_one(evaluate: Any) -> None:
    for dtype in (np.float32, np.float64):
        got = evaluate("erf", np.linspace(-8, 8, 20001, dtype=dtype))
        assert np.abs(got).max() == 1.0


@pytest.mark.parametrize("n", [0, -1, 11, 1.5, None])
def test_polygamma_refuses_other_orders(n: Any) -> None:
    with pytest.raises(ArgumentError, match="polygamma"):
        by_body("polygamma", np.ones(3), n)


def layouts() -> dict[str, Any]:
    base = np.linspace(-3.3, 3.3, 60).reshape(3, 4, 5)
    return {
        "0-d": np.array(0.3),
        "empty": np.empty((2, 0, 3)),
        "strided": base[:, ::2, 1:],
        "reversed": base[::-1],
        "transposed": base.T,
        "permuted": base.transpose(1, 0, 2),
        "broadcast": np.broadcast_to(base[0, 0], (4, 5)),
        "read-only": np.frombuffer(base.tobytes()),
        "blocks": np.linspace(-3.3, 3.3, 50_000),
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", layouts())
def test_kernels_take_any_layout(layout: str, dtype: Any) -> None:
    x = layouts()[layout].astype(dtype, copy=layout == "blocks" or dtype != np.float64)
    before = x.copy()
    for name in ("erf", "lgamma"):
        got = by_numpy(name, x)
        assert isinstance(got, np.ndarray)
        assert (got.shape, got.dtype) == (x.shape, x.dtype)
        want = by_body(name, np.ascontiguousarray(x).reshape(-1)).reshape(x.shape)
        tolerance = 8 * float(ml_dtypes.finfo(dtype).eps)
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(x, before)


def test_coefficients_are_what_the_tool_fits() -> None:
    path = Path(__file__).parents[2] / "tools" / "fit_special.py"
    spec = importlib.util.spec_from_file_location("fit_special", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    precision = mp.mp.dps
    try:
        spec.loader.exec_module(tool)
        fit = next(fit for fit in tool.FITS if fit.name == "ERF_CENTRE")
        p, q, _ = tool.minimax(fit.f, fit.weight, *fit.bounds[64], *fit.degrees[64])
    finally:
        mp.mp.dps = precision
    for part, stored in zip((p, q), table.ERF_CENTRE[64], strict=True):
        np.testing.assert_allclose([float(c / q[-1]) for c in part], stored, rtol=1e-12)


def roots_within(coefficients: tuple[float, ...], low: float, high: float) -> int:
    with mp.workdps(60):
        scaled = [mp.mpf(c) for c in reversed(coefficients)]
        with warnings.catch_warnings():  # mpmath 1.4 wants an argument for the order, which 1.3 does not have
            warnings.simplefilter("ignore", DeprecationWarning)
            roots = mp.polyroots(scaled, maxsteps=500, extraprec=400)
    return sum(1 for r in roots if abs(r.imag) < mp.mpf(10) ** -12 and low <= r.real <= high)


def test_no_denominator_has_a_zero_in_its_interval() -> None:
    domains = {
        "ERF_ARTANH": lambda b: (0, table.ERF_LIMIT[b] ** 2),
        "ERF_CENTRE": lambda b: (0, table.ERF_SPLIT**2),
        "ERF_TAIL": lambda b: (table.ERF_SPLIT, table.ERF_LIMIT[b]),
        "ERFCX": lambda b: (0, table.ERFC_LIMIT[b]),
        "ERFC_RATIO": lambda b: (0, table.ERFC_LIMIT[b]),
        "ERFINV_CENTRE": lambda b: (0, table.ERFINV_SPLIT**2),
        "ERFINV_FAR_TAIL": lambda b: (table.ERFINV_FAR[b], {32: 10.2, 64: 27.4}[b]),
        "ERFINV_TAIL": lambda b: (math.sqrt(-math.log(1 - table.ERFINV_SPLIT)), {32: 4.09, 64: 6.1}[b]),
        "LGAMMA_MIDDLE": lambda b: (0.5, table.LGAMMA_SPLIT),
        "DIGAMMA_MIDDLE": lambda b: (0.5, table.DIGAMMA_SPLIT[b]),
        "I0_LARGE": lambda b: (0, 1 / table.BESSEL_SPLIT[b]),
        "I1_LARGE": lambda b: (0, 1 / table.BESSEL_SPLIT[b]),
    }
    for name, domain in domains.items():
        for bits, (_, denominator) in getattr(table, name).items():
            if len(denominator) > 1:
                assert roots_within(denominator, *domain(bits)) == 0, (name, bits)
