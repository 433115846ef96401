"""Element-wise formulas in one pass over memory, at every instruction set, compared with NumPy in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest
from tests.helpers.kernels import USABLE, use_level

import backburn as bb
from backburn.autodiff import Autodiff
from backburn.backend.registry import load_backend
from backburn.base.errors import ArgumentError
from backburn.conformance import SAMPLES, checks
from backburn.conformance.checks.behaviour import check_mutation
from backburn.conformance.checks.kinds import VALUE_KINDS
from backburn.ops.table import OPERATIONS
from backburn_numpy import compiled, tuning
from backburn_numpy.elementwise import fused
from backburn_numpy.runtime import threads

BASE: Any = load_backend("numpy")
OUTER: Any = Autodiff(BASE)

#: The operations computed as fused formulas.
FUSED = [name for name in OPERATIONS if getattr(type(BASE), name).__module__ == "backburn_numpy.elementwise.fused"]

pytestmark = pytest.mark.skipif(compiled.level() is None, reason="the kernels are not compiled")


@pytest.fixture(params=USABLE)
def at_each_level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute even the smallest arrays in one pass."""
    use_level(monkeypatch, request.param)
    for limit in ("MIN_ELEMENTS_FOR_FORMULA", "MIN_ELEMENTS_FOR_FORMULAS"):
        monkeypatch.setattr(tuning, limit, 2)
    fused._program.cache_clear()
    yield
    fused._program.cache_clear()


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.usefixtures("at_each_level")
def test_samples() -> None:
    for check in checks(BASE, ops=FUSED, kinds=(*VALUE_KINDS, "layout")):
        if check.dtype.startswith(("float", "bfloat")):
            check()
            replace(check, function=check_mutation)()


def gradients(name: str, operands: list[Any], attributes: dict[str, Any]) -> list[Any]:
    def lift(a: Any) -> Any:
        return OUTER.set_require_grad(OUTER.from_inner(a), True) if isinstance(a, np.ndarray) else a

    given = [lift(a) for a in operands]
    out = getattr(OUTER, name)(*given, **attributes)
    cotangent = np.cos(np.arange(math.prod(out.shape))).reshape(out.shape).astype(out.dtype)
    found = OUTER.backward(out, cotangent)
    return [OUTER.grad(x, found) for x in given if hasattr(x, "node")]


@pytest.mark.usefixtures("at_each_level")
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_gradients(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Derivatives at all finite samples, including those defined by convention."""
    rounding = 40 * float(np.finfo(dtype).eps)
    for name in (n for n, entry in OPERATIONS.items() if entry.fuse):
        for sample in SAMPLES[name].cases:
            operands = [a.astype(dtype) if isinstance(a, np.ndarray) else a for a in sample.operands]
            wide = [a.astype(np.float64) if isinstance(a, np.ndarray) else a for a in operands]
            if not all(np.isfinite(a).all() for a in operands if a is not None):
                continue
            found = gradients(name, operands, dict(sample.attributes))
            with monkeypatch.context() as without:
                without.setattr(tuning, "MIN_ELEMENTS_FOR_FORMULAS", 1 << 60)
                other = gradients(name, wide, dict(sample.attributes))
            for got, expected in zip(found, other, strict=True):
                if got is None:  # the rule has no gradient
                    assert expected is None
                    continue
                assert got.dtype == dtype
                with np.errstate(over="ignore"):
                    expected = expected.astype(dtype).astype(np.float64)
                np.testing.assert_allclose(got, expected, rtol=rounding, atol=rounding, err_msg=f"{name} {operands}")


def test_formulas_are_used() -> None:
    x = numbers(50_000)
    for name in (n for n, entry in OPERATIONS.items() if entry.fuse):
        operands = len(OPERATIONS[name].operands)
        rule = next(r for r in OPERATIONS[name].gradients if r.takes[0] == "k")
        options = {"alpha": 1.0, "beta": 1.0, "slope": 0.1, "threshold": 0.5, "low": -1.0, "high": 1.0}
        options = options if operands == 1 else {"delta": 1.0, "steep": 1e-3}
        given = [options.get(n, x) for n in rule.takes[1:]]
        assert fused.fuse(rule.function, *given) is not None, name


@pytest.mark.parametrize("name", sorted(name for name, cost in fused.COSTS.items() if cost.long))
def test_long_functions_of_few_elements(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"n": 2} if "n" in OPERATIONS[name].parameters else {}
    x = np.linspace(0.1, 0.9, 8, dtype=np.float32).reshape(2, 4)
    for given in (x[0, 0, ...], x[:1, :1], x.T, x[:, ::2], x[:0]):
        found = getattr(BASE, name)(given, **options)
        with monkeypatch.context() as without:
            without.setattr(fused, "fuse", lambda *_, **__: None)
            expected = OPERATIONS[name].body(BASE, given.astype(np.float64), **options)
        assert (type(found), found.shape, found.dtype) == (np.ndarray, given.shape, np.float32)
        np.testing.assert_allclose(found, expected, rtol=5e-6)
    monkeypatch.setattr(fused, "fuse", lambda formula, x, *_, few: x + 1.0 if few else None)
    np.testing.assert_array_equal(getattr(BASE, name)(x[0, 0, ...], **options), x[0, 0] + np.float32(1.0))


@pytest.mark.parametrize("function", [bb.nn.functional.hard_swish, bb.erf, bb.abs])
def test_tangents_and_second_derivatives(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradient rules run on the inner backend, or are recorded."""
    x = bb.asarray(numbers(9000), backend=OUTER)

    def slope(x: Any) -> Any:
        return bb.grad(lambda x: function(x).sum())(x)

    def derivatives() -> list[Any]:
        found = [bb.jvp(function, (x,), (x,))[1], bb.jvp(slope, (x,), (x,))[1], bb.grad(lambda x: slope(x).sum())(x)]
        return [y.numpy() for y in found]

    passes = derivatives()
    monkeypatch.setattr(tuning, "MIN_ELEMENTS_FOR_FORMULAS", 1 << 60)
    for one, several in zip(passes, derivatives(), strict=True):
        np.testing.assert_allclose(one, several, rtol=2e-6, atol=2e-6)


SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e38, -1e38, 1e-40, -1e-40, 88.7, -88.7, 104.5, -104.5], np.float32
)
#: The largest errors in units in the last place, against NumPy in float64.
ACCURATE: dict[str, tuple[Any, float]] = {
    "log": (np.log, 1), "log1p": (np.log1p, 1.6), "expm1": (np.expm1, 1.7), "exp": (np.exp, 1.1),
    "cosh": (np.cosh, 1.7), "sinh": (np.sinh, 1.7), "atan": (np.arctan, 1.8),
    "floor": (np.floor, 0), "round": (np.rint, 0), "sign": (np.sign, 0), "sqrt": (np.sqrt, 0.5),
    "erf": (BASE.erf, 3.2), "erfc": (BASE.erfc, 4), "erfinv": (BASE.erfinv, 4),
}  # fmt: skip


@pytest.mark.usefixtures("at_each_level")
@pytest.mark.parametrize("name", ACCURATE)
def test_functions_are_accurate(name: str) -> None:
    """Operands of every magnitude, near 0 and 1, NaN and infinities; the signs of zeros are compared, too."""
    function, bound = ACCURATE[name]
    every = np.arange(0, 1 << 32, 65_521, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = [np.linspace(-a, a, 20_001, dtype=np.float32) for a in (12.0, 1.0, 1e-3)]
    x = np.concatenate([SPECIAL, every, *near, np.linspace(-104, 90, 20_001, dtype=np.float32)])
    got: Any = fused.fuse(lambda k, x: getattr(k, name)(x), x)
    with np.errstate(all="ignore"):
        exact = function(x.astype(np.float64))
        expected = exact.astype(np.float32)
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(got[~finite], expected[~finite])
        unit = np.spacing(np.maximum(np.abs(expected), np.float32(2.0**-126)))
        assert (np.abs(got.astype(np.float64) - exact) / unit)[finite].max() <= bound
    if name != "erfinv":
        np.testing.assert_array_equal(np.signbit(got[finite]), np.signbit(expected[finite]))


@pytest.mark.usefixtures("at_each_level")
def test_float64_is_accurate() -> None:
    for name, low, high, bound in (("exp", -745.2, 709.7, 1.1), ("erf", -7.0, 7.0, 4), ("erfc", -7.0, 27.2, 4)):
        x = np.concatenate([np.linspace(low, high, 1001), np.linspace(-1, 1, 501)])
        got: Any = fused.fuse(lambda k, x, name=name: getattr(k, name)(x), x)
        with mpmath.workprec(120):
            for point, found in zip(x, got, strict=True):
                exact = getattr(mpmath, name)(mpmath.mpf(float(point)))
                unit = np.spacing(max(abs(found), 2.0**-1022))
                assert abs(mpmath.mpf(float(found)) - exact) <= bound * unit, f"{name} {point}"
    ends = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e308, -1e308, 5e-324])
    for name in ("exp", "erf", "erfc", "hard_swish", "softsign", "hypot"):
        operands = (ends, ends[::-1].copy()) if name == "hypot" else (ends,)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(
                fused.fuse(lambda k, *v, name=name: getattr(k, name)(*v), *operands),
                [getattr(BASE, name)(*(np.full(1, v) for v in given))[0] for given in zip(*operands, strict=True)],
            )


@pytest.mark.usefixtures("at_each_level")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_angles_are_accurate(dtype: Any) -> None:
    """In all octants, for quotients that overflow or underflow, and exactly for zeros and infinities."""
    kind, rng = np.finfo(dtype), np.random.default_rng(0)
    ends = np.array([0.0, 1.0, np.inf, np.nan, kind.smallest_subnormal, kind.tiny, kind.max], dtype)
    y, x = (v.ravel() for v in np.meshgrid(*[np.concatenate([ends, -ends])] * 2))
    got: Any = fused.fuse(lambda k, y, x: k.atan2(y, x), y, x, few=True)
    exact: Any = np.arctan2(y.astype(np.longdouble), x.astype(np.longdouble)).astype(dtype)  # NumPy's float32 is not
    np.testing.assert_array_equal(got, exact)
    np.testing.assert_array_equal(np.signbit(got)[~np.isnan(got)], np.signbit(exact)[~np.isnan(got)])
    y, x = (rng.normal(size=5001) * 10.0 ** rng.uniform(-2, 2, 5001) for _ in range(2))
    x[::3] = y[::3] * rng.uniform(-2, 2, 1667)
    y, x = y.astype(dtype), x.astype(dtype)
    got = fused.fuse(lambda k, y, x: k.atan2(y, x), y, x)
    with mpmath.workprec(80):
        exact = [mpmath.atan2(mpmath.mpf(float(b)), mpmath.mpf(float(a))) for a, b in zip(x, y, strict=True)]
        errors = [abs(mpmath.mpf(float(found)) / right - 1) for found, right in zip(got, exact, strict=True)]
        assert max(errors) <= 1.4 * kind.eps
    for count in (1, 2, 3, 5, 8, 13, 300):
        part = fused.fuse(lambda k, y, x: k.atan2(y, x), y[:count], x[:count], few=True)
        np.testing.assert_array_equal(part, got[:count])


@pytest.mark.usefixtures("at_each_level")
def test_every_length_and_layout_and_number_of_threads() -> None:
    whole = numbers(100_003)
    expected = BASE.hard_swish(whole.astype(np.float64))
    for count in (*range(1, 40), 511, 512, 513, 100_003):
        np.testing.assert_allclose(BASE.hard_swish(whole[:count]), expected[:count], rtol=1e-5, atol=1e-7)
    square = whole[:10_000].reshape(100, 100)
    np.testing.assert_array_equal(BASE.hard_swish(square.T), BASE.hard_swish(square).T)
    np.testing.assert_array_equal(BASE.hard_swish(whole[::-3]), BASE.hard_swish(whole[::-3].copy()))
    assert BASE.hard_swish(whole[:0]).shape == (0,)
    before = threads.num_threads()
    results = []
    for count in (1, 3):
        threads.set_num_threads(count)
        results.append([getattr(BASE, name)(whole) for name in ("erf", "mish", "elu")])
    threads.set_num_threads(before)
    for one, three in zip(*results, strict=True):
        np.testing.assert_array_equal(one, three)


@pytest.mark.usefixtures("at_each_level")
def test_operands_of_one_element_and_scalars() -> None:
    x, one = numbers(3, 700), np.full((1, 1), 0.3, np.float32)
    spread = np.broadcast_to(np.float32(0.3), x.shape)
    for low in (one, spread, 0.3, one[0, 0, ...]):
        np.testing.assert_array_equal(BASE.clip(x, low, 0.5), np.clip(x, np.float32(0.3), np.float32(0.5)))
    np.testing.assert_allclose(BASE.hypot(one, x), np.hypot(np.float64(0.3), x), rtol=3e-7)
    np.testing.assert_array_equal(BASE.clip(x, x[:1], None), np.maximum(x, x[:1]))
    zeros = np.zeros(10, np.float32)
    assert not np.signbit(BASE.threshold(zeros, 0.5, 0.0)).any()
    assert np.signbit(BASE.threshold(zeros, 0.5, -0.0)).all()
    half = np.full(8, 0.3, np.float16)  # a little more than 0.3, but the scalar is rounded, too
    np.testing.assert_array_equal(BASE.threshold(half, 0.3, 7.0), np.float16(7.0))


@pytest.mark.usefixtures("at_each_level")
@pytest.mark.parametrize("name", ["relu_backward", "sigmoid_backward", "tanh_backward", "silu_backward", "remainder"])
def test_kernels_of_a_number_and_an_array(name: str) -> None:
    """A broadcast operand, as in the gradient of a sum."""
    x = np.abs(numbers(3, 700)).astype(np.float16)
    for number in (np.full((1, 1), 0.3, np.float16), np.broadcast_to(np.float16(0.3), x.shape)):
        expected = getattr(BASE, name)(np.broadcast_to(number, x.shape).astype(np.float64), x.astype(np.float64))
        np.testing.assert_allclose(getattr(BASE, name)(number, x), expected, rtol=2e-3, atol=2e-4)


@pytest.mark.usefixtures("at_each_level")
@pytest.mark.parametrize("name", ["log1p", "erf", "hypot"])
def test_a_wrong_number_of_operands(name: str) -> None:
    with pytest.raises(TypeError):
        getattr(BASE, name)(*[numbers(3, 700)] * 5)


def moved(k: Any, x: Any, m: Any, v: Any, beta: float) -> tuple[Any, ...]:
    m = k.add(k.mul(m, beta), k.mul(x, 1.0 - beta))
    v = k.maximum(v, k.abs(m))
    return k.sub(x, k.div(m, v)), m, v


@pytest.mark.usefixtures("at_each_level")
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("size", [7, 1025, 40_000])
def test_formulas_with_several_results(dtype: str, size: int) -> None:
    """Donated operands are overwritten if nothing reads them later; others are not."""
    rounding = 4 * float(np.finfo(dtype).eps)
    x, m, v = numbers(3, size).astype(dtype)
    v = abs(v) + np.ones((), dtype)
    wide = [a.astype(np.float64) for a in (x, m, v)]
    expected = moved(BASE, wide[0], wide[1], wide[2], 0.75)
    kept = [a.copy() for a in (x, m, v)]
    for k, given in ((BASE, (x, m, v)), (OUTER, tuple(map(OUTER.from_inner, (x, m, v))))):
        found = k.fuse(moved, *given, 0.75)
        assert isinstance(found, tuple)
        for got, reference in zip(found if k is BASE else map(OUTER.inner, found), expected, strict=True):
            assert got.dtype == dtype
            np.testing.assert_allclose(got, reference, rtol=rounding, atol=rounding)
    for a, copy in zip((x, m, v), kept, strict=True):
        np.testing.assert_array_equal(a, copy)
    new, first, second = BASE.fuse(moved, x, m, v, 0.75, donate=(1, 2))
    for got, reference in zip((new, first, second), found, strict=True):
        np.testing.assert_array_equal(got, OUTER.inner(reference))
    assert first is m
    np.testing.assert_array_equal(x, kept[0])
    assert second is v  # it is read in the step that computes the result
    m, v = kept[1].copy(), kept[2].copy()
    m.flags.writeable = False
    assert BASE.fuse(moved, x, m, v, 0.75, donate=(1, 2))[1] is not m
    np.testing.assert_array_equal(m, kept[1])
    m = kept[1].copy()
    product, rest = BASE.fuse(lambda k, x, m: (k.sub(x, m), k.mul(x, m))[::-1], x, m, donate=(1,))
    np.testing.assert_allclose(product, x * kept[1], rtol=rounding, atol=rounding)
    np.testing.assert_allclose(rest, x - kept[1], rtol=rounding, atol=rounding)
    assert (rest is m) == (dtype == "float16")  # otherwise the product reads it after its result is computed


@pytest.mark.usefixtures("at_each_level")
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_kernels_of_two_operations(dtype: str) -> None:
    """With arrays, constants and numbers in either order; NaN and signs of zeros."""
    given = np.array([0.0, -0.0, 1.5, -2.0, np.inf, -np.inf, np.nan], dtype)
    x, y, z = (a.ravel().copy() for a in np.meshgrid(given, given, given))

    def number(of: float) -> Any:
        return np.full((), of, dtype)

    pairs: list[tuple[Any, tuple[Any, ...]]] = [
        (lambda k, x, y, z: k.add(k.mul(x, y), z), (x, y, z)),
        (lambda k, x, y, z: k.add(z, k.mul(x, y)), (x, y, z)),
        (lambda k, x, y: k.add(k.mul(x, y), 1.5), (x, y)),
        (lambda k, x, y: k.add(k.mul(x, 1.5), y), (x, y)),
        (lambda k, x, y, n: k.add(y, k.mul(n, x)), (x, y, number(-2.0))),
        (lambda k, x, y: k.mul(k.mul(x, 0.5), y), (x, y)),
        (lambda k, x, y: k.mul(y, k.mul(x, 0.5)), (x, y)),
        (lambda k, x, y, z: k.add(k.mul(k.mul(x, 0.5), y), z), (x, y, z)),
        (lambda k, x, y, z: k.add(z, k.mul(y, k.mul(x, 0.5))), (x, y, z)),
        (lambda k, x: k.add(k.mul(x, 0.5), k.mul(x, 0.25)), (x,)),
        (lambda k, x: k.add(k.mul(x, 0.5), -2.0), (x,)),
        (lambda k, x: k.mul(t := k.mul(x, 0.5), t), (x,)),
        (lambda k, x: k.where(k.less(x, 1.0), 2.0, x), (x,)),
        (lambda k, x: k.where(k.less(x, 1.0), x, -0.0), (x,)),
        (lambda k, x, n: k.where(k.less(x, 1.0), n, x), (x, number(7.0))),
    ]
    for formula, operands in pairs:
        got: Any = fused.fuse(formula, *operands)
        with np.errstate(all="ignore"):
            expected = formula(BASE, *(o.astype(np.float64) for o in operands)).astype(dtype)
        np.testing.assert_allclose(got, expected, rtol=4 * float(np.finfo(dtype).eps))
        np.testing.assert_array_equal(np.signbit(got)[got == got], np.signbit(expected)[got == got])
    one = fused.fuse
    for low in given:
        above = one(lambda k, x, y: k.maximum(x, y), x, number(low))
        for high in given:
            expected = one(lambda k, x, y: k.minimum(x, y), above, number(high))
            for bounds in ((float(low), float(high)), (number(low), number(high))):
                got = one(lambda k, x, y, z: k.minimum(k.maximum(x, y), z), x, *bounds)
                np.testing.assert_array_equal(got, expected)
                np.testing.assert_array_equal(np.signbit(got)[got == got], np.signbit(expected)[got == got])


@pytest.mark.usefixtures("at_each_level")
def test_unsupported_formulas_are_left_to_numpy() -> None:
    x = numbers(50)

    def many(k: Any, x: Any) -> Any:
        values = [k.exp(k.add(x, float(i))) for i in range(30)]
        total = x
        for value in values:
            total = k.add(total, value)
        return total

    def twice(k: Any, x: Any) -> tuple[Any, Any]:
        y = k.exp(x)
        return y, y

    for formula in (many, lambda k, x: x, lambda k, x: k.asin(x), lambda k, x: k.sum(x, (0,), False)):
        assert fused.fuse(formula, x) is None
        np.testing.assert_array_equal(BASE.fuse(formula, x), formula(BASE, x))
    for several in (lambda k, x: (k.exp(x), x), twice):
        assert fused.fuse(several, x) is None
        for got, expected in zip(BASE.fuse(several, x), several(BASE, x), strict=True):
            np.testing.assert_array_equal(got, expected)
    assert fused.fuse(lambda k, x: k.exp(x), np.arange(50)) is None
    assert fused.fuse(lambda k, x: k.tanh(x), x.astype(np.float64)) is None
    assert fused.fuse(lambda k, x, y: k.mul(x, k.exp(y)), x, x[:1].astype(np.float64)) is None

    def wrong(k: Any, x: Any) -> Any:
        raise ArgumentError("it says what is wrong")

    with pytest.raises(ArgumentError, match="what is wrong"):
        BASE.fuse(wrong, x)


@pytest.mark.parametrize("name", ["silu", "log_sigmoid", "hypot", "logaddexp", "rsqrt", "leaky_relu", "softplus"])
@pytest.mark.parametrize("size", [300, 624, 2000, 8000, 20_000])
def test_first_calls_equal_later_ones_bitwise(name: str, size: int) -> None:
    """Whether a fused formula pays is known only after tracing."""
    x = np.random.default_rng(0).uniform(0.1, 2.0, size).astype(np.float32)
    operands = [x] * len([p for p in OPERATIONS[name].operands if p in ("x", "y")])
    fused._PASSES.clear()
    fused._program.cache_clear()
    first, *rest = (getattr(load_backend("numpy"), name)(*operands) for _ in range(3))
    for later in rest:
        np.testing.assert_array_equal(later, first)
