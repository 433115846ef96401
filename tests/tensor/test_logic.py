"""Comparisons, predicates, and logical and bitwise operations on tensors."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, DTypeError, ShapeError

X = np.array([[0.0, 1.0, math.nan], [2.0, -math.inf, 1.0]])
Y = np.array([1.0, 1.0, 1.0])
I = np.array([[1, -2, 3], [4, 0, 3]])
COMPARISONS: dict[str, Any] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}


@pytest.mark.parametrize("name", COMPARISONS)
class TestComparison:
    def test_function_operator_and_numpy_agree(self, name: str) -> None:
        compare = COMPARISONS[name]
        for dtype in ("float64", "float32", "int64", "int8"):
            a, b = (X, Y) if dtype.startswith("f") else (I, I[0])
            x, y = a.astype(dtype), b.astype(dtype)
            got = getattr(bb, name)(bb.asarray(x), bb.asarray(y))
            assert isinstance(got, bb.BoolTensor)
            np.testing.assert_array_equal(got.numpy(), compare(x, y), strict=True)
            np.testing.assert_array_equal(compare(bb.asarray(x), bb.asarray(y)).numpy(), compare(x, y), strict=True)
        np.testing.assert_array_equal(compare(bb.asarray(I), 1.5).numpy(), compare(I, 1.5), strict=True)
        np.testing.assert_array_equal(getattr(bb, name)(1, bb.asarray(I)).numpy(), compare(1, I), strict=True)

    def test_truth_values(self, name: str) -> None:
        x, y = bb.asarray([True, False]), bb.asarray([True, True])
        if name in ("equal", "not_equal"):
            assert getattr(bb, name)(x, y).tolist() == [(a == b) == (name == "equal") for a, b in ((1, 1), (0, 1))]
        else:
            with pytest.raises(DTypeError, match=rf"{name}: takes float and int tensors, not bool.*bool\[2\]"):
                getattr(bb, name)(x, y)

    def test_refusals(self, name: str) -> None:
        with pytest.raises(ShapeError, match=rf"{name}: cannot broadcast.*float32\[2\]"):
            getattr(bb, name)(bb.asarray([1.0, 2.0]), bb.asarray([1.0, 2.0, 3.0]))
        with pytest.raises(DTypeError, match=rf"{name}: takes tensors and Python numbers, not list"):
            getattr(bb, name)(bb.asarray([1.0]), [1.0])

    def test_nothing_is_recorded(self, name: str) -> None:
        assert not getattr(bb, name)(bb.asarray([1.0]).require_grad(), 2.0).is_tracked


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite", "signbit"])
def test_predicates(name: str) -> None:
    edges = np.array([0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, math.nan])
    function, reference = getattr(bb, name), getattr(np, name)
    for x in (edges, edges.astype(np.float16), np.array(math.inf), np.zeros((0, 2)), I):
        np.testing.assert_array_equal(function(bb.asarray(x)).numpy(), reference(x), strict=True)
        np.testing.assert_array_equal(getattr(bb.asarray(x), name)().numpy(), reference(x), strict=True)
    if name != "signbit":
        assert function(bb.asarray([True, False])).tolist() == [name == "isfinite"] * 2
    with pytest.raises((DTypeError, ArgumentError), match=rf"{name}: .*asarray"):
        function(1.0)


class TestIsClose:
    PAIRS = (
        (1.0, 1.0 + 1e-6), (1.0, 1.1), (math.inf, math.inf), (math.inf, -math.inf), (math.inf, 1.0), (1.0, math.inf),
        (math.nan, math.nan), (0.0, 1e-9), (0.0, 1e-7),
    )  # fmt: skip

    @pytest.mark.parametrize("options", [{}, {"rtol": 0.2}, {"atol": 1e-3}, {"equal_nan": True}])
    def test_as_numpy(self, options: dict[str, Any]) -> None:
        x, y = (np.array(v) for v in zip(*self.PAIRS, strict=True))
        expected = np.isclose(x, y, **options)
        assert bb.isclose(bb.asarray(x), bb.asarray(y), **options).tolist() == expected.tolist()
        assert bb.allclose(bb.asarray(x), bb.asarray(y), **options) is bool(expected.all())
        assert bb.allclose(bb.asarray(x[expected]), bb.asarray(y[expected]), **options) is True

    def test_scalars_and_integers(self) -> None:
        assert bb.asarray([1, 2]).isclose(1.000001).tolist() == [True, False]
        assert bb.isclose(2.0, bb.asarray([2.0, 3.0])).tolist() == [True, False]
        assert bb.asarray([1, 2]).allclose(bb.asarray([1, 2])) is True

    def test_truth_values_are_refused(self) -> None:
        x = bb.asarray([1.0])
        for options in ({"rtol": -1e-5}, {"atol": -1.0}, {"rtol": float("nan")}):
            (option,) = options
            with pytest.raises(ArgumentError, match=f"isclose: {option} is a number of at least 0, not "):
                bb.isclose(x, x, **options)  # type: ignore[arg-type]
            with pytest.raises(ArgumentError, match=f"allclose: {option} is a number of at least 0, not "):
                x.allclose(x, **options)  # type: ignore[arg-type]
        with pytest.raises(DTypeError, match="isclose: takes float tensors, not bool"):
            bb.isclose(bb.asarray([True]), bb.asarray([True]))


def test_copysign_and_nextafter() -> None:
    x, y = np.array([1.0, -2.0, 0.0]), np.array([-0.0, 3.0, -1.0])
    for name in ("copysign", "nextafter"):
        got = getattr(bb, name)(bb.asarray(x), bb.asarray(y))
        np.testing.assert_array_equal(got.numpy(), getattr(np, name)(x, y), strict=True)
        np.testing.assert_array_equal(getattr(bb.asarray(x), name)(bb.asarray(y)).numpy(), got.numpy())
    tracked = bb.asarray(x).require_grad()
    assert tracked.grad(tracked.copysign(bb.asarray(y)).backward()).tolist() == [-1.0, -1.0, 0.0]  # type: ignore[union-attr]
    assert bb.copysign(bb.asarray([1, 2]), -1.0).dtype == "float32"


@pytest.mark.parametrize(("name", "symbol"), [("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)])
class TestLogicAndBits:
    def test_truth_values(self, name: str, symbol: Any) -> None:
        x, y = np.array([[True], [False]]), np.array([True, False])
        for function in (getattr(bb, f"logical_{name}"), getattr(bb, f"bitwise_{name}"), symbol):
            got = function(bb.asarray(x), bb.asarray(y))
            assert isinstance(got, bb.BoolTensor)
            np.testing.assert_array_equal(got.numpy(), symbol(x, y), strict=True)
            np.testing.assert_array_equal(function(bb.asarray(x), True).numpy(), symbol(x, True), strict=True)
        np.testing.assert_array_equal((symbol(True, bb.asarray(y))).numpy(), symbol(True, y), strict=True)

    def test_integers(self, name: str, symbol: Any) -> None:
        x, y = np.array([6, -5], np.int16), np.array([3, 12], np.int16)
        for function in (getattr(bb, f"bitwise_{name}"), symbol):
            np.testing.assert_array_equal(function(bb.asarray(x), bb.asarray(y)).numpy(), symbol(x, y), strict=True)
            np.testing.assert_array_equal(function(bb.asarray(x), 3).numpy(), symbol(x, np.int16(3)), strict=True)
        assert symbol(bb.asarray([True, False]), bb.asarray(x)).dtype == "int16"

    def test_refusals(self, name: str, symbol: Any) -> None:
        with pytest.raises(DTypeError, match=rf"logical_{name}: takes bool tensors, not int; cast it.*int64\[1\]"):
            getattr(bb, f"logical_{name}")(bb.asarray([1]), bb.asarray([1]))
        for other in (bb.asarray([1.0]), 1.0):
            with pytest.raises(DTypeError, match=rf"logical_{name}: takes bool tensors, not float"):
                getattr(bb, f"logical_{name}")(bb.asarray([1.0]), other)
            for function in (getattr(bb, f"bitwise_{name}"), symbol):
                with pytest.raises(DTypeError, match=rf"bitwise_{name}: takes int and bool tensors, not float"):
                    function(bb.asarray([1.0]), other)


def test_not_and_invert() -> None:
    truth, integers = bb.asarray([True, False]), bb.asarray([0, 5, -6], dtype="int8")
    for got in (bb.logical_not(truth), truth.logical_not(), bb.bitwise_invert(truth), ~truth):
        assert got.tolist() == [False, True]
    for got in (bb.bitwise_invert(integers), ~integers):
        assert got.tolist() == [-1, -6, 5]
        assert got.dtype == "int8"
    for other, kind in ((integers, "int"), (bb.asarray([1.0]), "float")):
        with pytest.raises(DTypeError, match=f"logical_not: takes bool tensors, not {kind}"):
            bb.logical_not(other)
    with pytest.raises(DTypeError, match="bitwise_invert: takes int and bool tensors, not float"):
        ~bb.asarray([1.0])


def test_shifts() -> None:
    x = np.array([1, -5, 100], np.int32)
    for name, symbol in (("left", operator.lshift), ("right", operator.rshift)):
        function = getattr(bb, f"bitwise_{name}_shift")
        two = bb.asarray(np.int32(2))
        for got in (function(bb.asarray(x), 2), symbol(bb.asarray(x), 2), symbol(bb.asarray(x), two)):
            np.testing.assert_array_equal(got.numpy(), symbol(x, 2), strict=True)
        assert symbol(1, bb.asarray([3])).tolist() == [symbol(1, 3)]
        with pytest.raises(DTypeError, match="takes int tensors, not bool"):
            function(bb.asarray([True]), bb.asarray([True]))
        for shift in (function, symbol):
            with pytest.raises(DTypeError, match="takes int tensors, not float"):
                shift(bb.asarray([1.0]), 1.0)
