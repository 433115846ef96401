"""Elementwise functions of tensors, special functions included: promotion, dtypes, methods, gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, DTypeError, ShapeError

NAMES = {f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")}
POINTS = {"acosh": [1.5, 2.0], **{name: [-0.5, 0.25] for name in ("asin", "acos", "atanh", "erfinv")}}
FLOATS = [
    "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "frac", "erf", "erfc", "erfinv", "lgamma", "digamma",
    "sinc", "i0", "i1",
]  # fmt: skip
ROUNDINGS = {"floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc}


@pytest.mark.parametrize("name", FLOATS)
class TestFloatFunction:
    def test_method_function_and_numpy_agree(self, name: str) -> None:
        function, points = getattr(bb, name), np.array(POINTS.get(name, [0.5, 1.25]))
        reference = getattr(np, NAMES.get(name, name), None)
        for dtype in ("float64", "float32", "float16"):
            x = bb.asarray(points, dtype=dtype)
            got = function(x)
            assert isinstance(got, bb.FloatTensor)
            assert got.dtype == dtype
            np.testing.assert_array_equal(getattr(x, name)().numpy(), got.numpy(), strict=True)
            if reference is not None:
                np.testing.assert_allclose(got.numpy(), reference(points), rtol={"float16": 5e-3}.get(dtype, 1e-6))

    def test_shapes(self, name: str) -> None:
        for shape in ((), (0, 3), (2, 1, 3)):
            assert getattr(bb, name)(bb.asarray(np.full(shape, 0.5))).shape == shape

    def test_kinds(self, name: str) -> None:
        assert getattr(bb, name)(bb.asarray([1, 1], dtype="int8")).dtype == "float32"
        with bb.use_dtype("float64"):
            assert getattr(bb, name)(bb.asarray([1])).dtype == "float64"
        with pytest.raises(DTypeError, match=rf"{name}: takes float tensors, not bool; cast it.*bool\[1\]"):
            getattr(bb, name)(bb.asarray([True]))
        with pytest.raises((DTypeError, ArgumentError), match=rf"{name}: .*asarray"):
            getattr(bb, name)(0.5)

    def test_gradient_flows(self, name: str) -> None:
        points = np.array(POINTS.get(name, [0.5, 1.25]))
        x = bb.asarray(points).require_grad()
        function, step = getattr(bb, name), 1e-6
        got = x.grad(function(x).sum().backward()).numpy()  # type: ignore[union-attr]
        plus, minus = (function(bb.asarray(points + s)).numpy() for s in (step, -step))
        np.testing.assert_allclose(got, (plus - minus) / (2 * step), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", ROUNDINGS)
def test_rounding(name: str) -> None:
    function = getattr(bb, name)
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.7])
    np.testing.assert_array_equal(function(bb.asarray(x)).numpy(), ROUNDINGS[name](x), strict=True)
    np.testing.assert_array_equal(getattr(bb.asarray(x), name)().numpy(), ROUNDINGS[name](x), strict=True)
    integers = bb.asarray([1, -2], dtype="int16")
    assert function(integers) is integers
    tracked = bb.asarray(x).require_grad()
    assert tracked.grad(function(tracked).sum().backward()).tolist() == [0.0] * 7  # type: ignore[union-attr]
    with pytest.raises(DTypeError, match=rf"{name}: takes float tensors, not bool"):
        function(bb.asarray([True]))
    with pytest.raises(ArgumentError, match=rf"{name}: at least one operand must be a tensor"):
        function(1.5)


def test_rounding_to_decimals() -> None:
    x = np.array([3.14159, -2.675, 1234.5, 0.125, 1e300, np.inf, -np.inf, np.nan])
    for places in (1, 2, 3, -1, -2):
        np.testing.assert_array_equal(bb.round(bb.asarray(x), places).numpy(), np.round(x, places), strict=True)
    np.testing.assert_array_equal(bb.asarray(x).round(decimals=20).numpy(), x)
    narrow = x[:4].astype("float32")
    np.testing.assert_array_equal(bb.round(bb.asarray(narrow), 400).numpy(), narrow, strict=True)
    half = bb.asarray([0.12345, 1000.0], dtype="float16")
    assert half.round(4).tolist() == half.numpy().astype("float32").round(4).astype("float16").tolist()
    for places in (1, 20, -1):  # the product with 10**20 overflows
        assert bb.vmap(bb.grad(lambda x, places=places: bb.round(x, places)))(bb.asarray(x)).tolist() == [0.0] * 8
    quantized = bb.asarray([0.126, 1.0]).quantize()
    assert bb.round(quantized, 1).tolist() == bb.round(quantized.dequantize(), 1).tolist()
    with pytest.raises(DTypeError, match=r"round: takes float tensors, not bool"):
        bb.round(bb.asarray([True]), 1)
    integers = bb.asarray([15, 25])
    assert bb.round(integers, 2) is integers
    with pytest.raises(ArgumentError, match=r"round: integers cannot be rounded to .* decimals.*int64\[2\]"):
        bb.round(integers, -1)
    with pytest.raises(ArgumentError, match=r"round: decimals is an integer, not 1.5"):
        bb.round(bb.asarray(x), 1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["pow", "hypot", "logaddexp", "atan2"])
class TestBinary:
    def test_values_promotion_and_scalars(self, name: str) -> None:
        function, reference = getattr(bb, name), getattr(np, {"atan2": "arctan2", "pow": "power"}.get(name, name))
        x, y = np.array([[0.5], [2.0]]), np.array([1.0, -1.5, 2.0])
        got = function(bb.asarray(x), bb.asarray(y)).numpy()
        np.testing.assert_allclose(got, reference(x, y), rtol=1e-14, strict=True)
        np.testing.assert_allclose(function(bb.asarray(x), 2).numpy(), reference(x, 2.0), rtol=1e-14, strict=True)
        np.testing.assert_allclose(function(2, bb.asarray(y)).numpy(), reference(2.0, y), rtol=1e-14, strict=True)
        np.testing.assert_array_equal(getattr(bb.asarray(x), name)(bb.asarray(y)).numpy(), got)
        assert function(bb.asarray(x, dtype="float32"), bb.asarray([1, 2])).dtype == "float32"

    def test_refusals(self, name: str) -> None:
        with pytest.raises(ShapeError, match=rf"{name}: cannot broadcast: axis -1 is 2 and 3.*float32\[2\]"):
            getattr(bb, name)(bb.asarray([1.0, 2.0]), bb.asarray([1.0, 2.0, 3.0]))
        with pytest.raises(DTypeError, match=rf"{name}: takes .*not bool"):
            getattr(bb, name)(bb.asarray([True]), bb.asarray([True]))

    def test_gradient_flows(self, name: str) -> None:
        x, y = bb.asarray([[1.0], [2.0]]).require_grad(), bb.asarray([1.0, 2.0]).require_grad()
        gradients = getattr(bb, name)(x, y).sum().backward()
        assert x.grad(gradients).shape == (2, 1)  # type: ignore[union-attr]
        assert y.grad(gradients).shape == (2,)  # type: ignore[union-attr]


class TestPow:
    def test_integers(self) -> None:
        x = bb.asarray([2, -3], dtype="int16")
        assert (x**2).tolist() == [4, 9]
        assert (x**2).dtype == "int16"
        assert (2 ** x.abs()).tolist() == [4, 8]
        with pytest.raises(ArgumentError, match=r"pow: .*negative.*x \*\* -1\.0\. .*int16\[2\].*-1"):
            x**-1

    def test_float_exponents_of_integers(self) -> None:
        assert (bb.asarray([4, 9]) ** 0.5).tolist() == [2.0, 3.0]

    def test_gradient_of_a_square_at_zero_and_below(self) -> None:
        for exponent in (2, 2.0, bb.asarray(2.0)):
            x = bb.asarray([-3.0, 0.0, 3.0]).require_grad()
            assert x.grad((x**exponent).backward()).tolist() == [-6.0, 0.0, 6.0]  # type: ignore[union-attr]

    def test_gradient_of_the_exponent_zero(self) -> None:
        x = bb.asarray([0.0, -1.0]).require_grad()
        assert x.grad((x**0).backward()).tolist() == [0.0, 0.0]  # type: ignore[union-attr]


def test_infinities() -> None:
    minus_inf = bb.asarray([-math.inf, 0.0])
    assert bb.logaddexp(minus_inf, -math.inf).tolist() == [-math.inf, 0.0]
    assert bb.log(bb.asarray([0.0, -1.0, math.inf])).tolist()[::2] == [-math.inf, math.inf]


def test_polygamma() -> None:
    x = bb.asarray([1.0, 2.0], dtype="float64")
    np.testing.assert_allclose(bb.polygamma(x).numpy(), [math.pi**2 / 6, math.pi**2 / 6 - 1], rtol=1e-14)
    np.testing.assert_allclose(x.polygamma(3).numpy(), [math.pi**4 / 15, math.pi**4 / 15 - 6], rtol=1e-13)
    assert bb.polygamma(bb.asarray([1])).dtype == "float32"
    tracked = x.require_grad()
    gradient = tracked.grad(tracked.polygamma().sum().backward())
    assert gradient is not None
    np.testing.assert_allclose(gradient.numpy(), x.inner().polygamma(2).numpy())
    np.testing.assert_array_equal(bb.polygamma(x, 0).numpy(), bb.digamma(x).numpy())
    np.testing.assert_allclose(bb.grad(lambda t: t.polygamma(0).sum())(x).numpy(), x.polygamma().numpy())
    with pytest.raises(ArgumentError, match=r"polygamma: the order n is -1"):
        bb.polygamma(x, -1)
    with pytest.raises(DTypeError, match="polygamma: takes float tensors, not bool"):
        bb.polygamma(bb.asarray([True]))
