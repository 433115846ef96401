"""Arithmetic on tensors, against NumPy: values, promotion, errors, methods, gradients."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, BackendMismatchError, DTypeError, ShapeError

BINARY: dict[Any, Any] = {
    bb.add: np.add,
    bb.subtract: np.subtract,
    bb.multiply: np.multiply,
    bb.divide: np.true_divide,
    bb.floor_divide: np.floor_divide,
    bb.remainder: np.remainder,
    bb.fmod: np.fmod,
    bb.maximum: np.maximum,
    bb.minimum: np.minimum,
}
UNARY: dict[Any, Any] = {
    bb.negative: np.negative,
    bb.positive: np.positive,
    bb.abs: np.abs,
    bb.sign: np.sign,
    bb.square: np.square,
}
X = np.array([[1.5, -2.0, 3.0], [4.0, 0.5, -6.5]], np.float32)
Y = np.array([2.0, -0.5, 1.5], np.float32)
I = np.array([[7, -7, 3], [0, 5, -1]])
J = np.array([2, 3, -2])


def name_of(function: Any) -> str:
    return str(function.__name__)


@pytest.mark.parametrize("function", BINARY, ids=name_of)
class TestBinary:
    def test_values_and_dtypes(self, function: Any) -> None:
        reference = BINARY[function]
        for dtype in ("float32", "float64", "int64", "int8"):
            x, y = (X.astype(dtype), Y.astype(dtype)) if dtype.startswith("f") else (I.astype(dtype), J.astype(dtype))
            got = function(bb.asarray(x), bb.asarray(y))
            is_true_division = function is bb.divide and x.dtype.kind == "i"
            assert got.dtype == ("float32" if is_true_division else x.dtype)
            np.testing.assert_allclose(got.numpy(), reference(x, y), rtol=1e-6, strict=not is_true_division)

    def test_scalars_are_weak_on_both_sides(self, function: Any) -> None:
        x = bb.asarray(X.astype(np.float16))
        assert function(x, 3).dtype == function(2.5, x).dtype == "float16"
        expected = BINARY[function](np.float16(2.5), X.astype(np.float16))
        np.testing.assert_allclose(function(2.5, x).numpy(), expected, rtol=1e-2)
        assert function(bb.asarray(I), 2.5).dtype == "float32"
        assert function(bb.asarray(X), True).dtype == "float32"

    def test_promotion(self, function: Any) -> None:
        assert function(bb.asarray(X), bb.asarray(Y.astype(np.float64))).dtype == "float64"
        assert function(bb.asarray(X), bb.asarray(J)).dtype == "float32"
        if function is not bb.divide:
            assert function(bb.asarray(I.astype(np.int8)), bb.asarray(J.astype(np.int32))).dtype == "int32"

    def test_refusals_name_operation_and_operands(self, function: Any) -> None:
        with pytest.raises(ShapeError, match=r"cannot broadcast: axis -1 is 3 and 2.*float32\[2,3\] .*float32\[2\]"):
            function(bb.asarray(X), bb.asarray([1.0, 2.0]))
        with pytest.raises(DTypeError, match=r"not bool.*astype.*bool\[2\]"):
            function(bb.asarray([True, False]), bb.asarray([True, False]))
        with pytest.raises(DTypeError, match="tensors and Python numbers, not str"):
            function(bb.asarray(X), "a")
        with pytest.raises(ArgumentError, match=r"at least one operand must be a tensor.*asarray"):
            function(1.0, 2.0)
        if function in (bb.minimum, bb.maximum):  # bounds may exceed the dtype's range
            return
        with pytest.raises(ArgumentError, match="an integer of 20001 bits"):  # more digits than ``str`` allows
            function(bb.asarray([1, 2]), 2**20000)

    def test_gradient_flows(self, function: Any) -> None:
        x, y = bb.asarray(X).require_grad(), bb.asarray(Y).require_grad()
        gradients = function(x, y).sum().backward()
        assert x.grad(gradients).shape == (2, 3)  # type: ignore[union-attr]
        assert y.grad(gradients).shape == (3,)  # type: ignore[union-attr]


@pytest.mark.parametrize("function", UNARY, ids=name_of)
def test_unary(function: Any) -> None:
    for x in (X, X.astype(np.float64), I, I.astype(np.int8), np.array(-2.5), np.zeros((0, 2), np.float32)):
        got = function(bb.asarray(x))
        assert isinstance(got, bb.FloatTensor if x.dtype.kind == "f" else bb.IntTensor)
        np.testing.assert_array_equal(got.numpy(), UNARY[function](x), strict=True)
    x = bb.asarray(X).require_grad()  # type: ignore[assignment]
    assert x.grad(function(x).sum().backward()).shape == (2, 3)  # type: ignore[union-attr]
    with pytest.raises(DTypeError, match="tensor"):
        function("a")


@pytest.mark.parametrize("function", [f for f in UNARY if f is not bb.positive], ids=name_of)
def test_bools_are_refused(function: Any) -> None:
    with pytest.raises(DTypeError, match=r"not bool; cast it with astype.*bool\[1\]"):
        function(bb.asarray([True]))


def test_operators_and_methods_are_the_functions() -> None:
    x, y = bb.asarray(X), bb.asarray(Y)
    pairs = [
        (x + y, bb.add(x, y)), (x - y, bb.subtract(x, y)), (x * y, bb.multiply(x, y)), (x / y, bb.divide(x, y)),
        (x // y, bb.floor_divide(x, y)), (x % y, bb.remainder(x, y)), (1.5 - x, bb.subtract(1.5, x)),
        (2 / x, bb.divide(2, x)), (2 // x, bb.floor_divide(2, x)), (2 % x, bb.remainder(2, x)),
        (-x, bb.negative(x)), (+x, x), (builtins.abs(x), bb.abs(x)), (x.maximum(y), bb.maximum(x, y)),
        (x.minimum(0.0), bb.minimum(x, 0.0)), (x.fmod(y), bb.fmod(x, y)), (x.square(), bb.square(x)),
        (x.sign(), bb.sign(x)), (x.reciprocal(), bb.reciprocal(x)), (x.clip(-1, 1), bb.clip(x, -1, 1)),
        (x.lerp(y, 0.5), bb.lerp(x, y, 0.5)),
        *zip(builtins.divmod(x, y), bb.divmod(x, y), strict=True),
        *zip(builtins.divmod(5.0, x), bb.divmod(5.0, x), strict=True),
    ]  # fmt: skip
    for by_operator, by_function in pairs:
        np.testing.assert_array_equal(by_operator.numpy(), by_function.numpy(), strict=True)


def test_integers_divided_by_zero_give_zero() -> None:
    x = bb.asarray([5, -5, 0])
    assert (x // 0).tolist() == (x % 0).tolist() == bb.fmod(x, 0).tolist() == [0, 0, 0]


def test_integers_wrap_around() -> None:
    assert (bb.asarray([127], dtype="int8") + 1).tolist() == [-128]
    assert (-bb.asarray([1], dtype="uint8")).tolist() == [255]


def test_reciprocal_makes_floats() -> None:
    assert bb.reciprocal(bb.asarray([2, 4])).dtype == "float32"
    assert bb.reciprocal(bb.asarray([0.0, -0.0])).tolist() == [math.inf, -math.inf]


class TestClip:
    def test_bounds_are_optional_scalars_or_tensors(self) -> None:
        x = bb.asarray(X)
        np.testing.assert_array_equal(bb.clip(x).numpy(), X)
        np.testing.assert_array_equal(bb.clip(x, max=1).numpy(), np.minimum(X, 1))
        np.testing.assert_array_equal(bb.clip(x, min=0.5).numpy(), np.maximum(X, 0.5))
        np.testing.assert_array_equal(x.clip(bb.asarray([0.0, 1.0, 2.0]), 3).numpy(), np.clip(X, [0.0, 1.0, 2.0], 3))

    def test_dtype(self) -> None:
        x = bb.asarray([1, 5, 9], dtype="uint8")
        assert x.clip(2, 6).dtype == "uint8"
        assert x.clip(0.5, None).dtype == "float32"
        assert x.clip(-1, 6).tolist() == [1, 5, 6]  # -1 is below every uint8

    def test_gradient_reaches_tensor_bounds(self) -> None:
        x, low, high = (bb.asarray(v).require_grad() for v in ([-2.0, 0.0, 2.0], [-1.0, -1.0, -1.0], 1.0))
        gradients = x.clip(low, high).backward()
        assert x.grad(gradients).tolist() == [0.0, 1.0, 0.0]  # type: ignore[union-attr]
        assert low.grad(gradients).tolist() == [1.0, 0.0, 0.0]  # type: ignore[union-attr]
        assert high.grad(gradients).item() == 1.0  # type: ignore[union-attr]

    def test_clip_needs_a_tensor(self) -> None:
        with pytest.raises(DTypeError, match=r"clip: takes a tensor, not float. bb.asarray"):
            bb.clip(1.0, 0.0, 2.0)  # type: ignore[arg-type]


class TestLerp:
    def test_values(self) -> None:
        x, y = bb.asarray([0.0, 1.0]), bb.asarray([10.0, 3.0])
        assert x.lerp(y, 0.25).tolist() == [2.5, 1.5]
        assert bb.lerp(x, y, bb.asarray([1.0, 0.0])).tolist() == [10.0, 1.0]
        assert bb.lerp(bb.asarray([0, 2]), 4, 0.5).tolist() == [2.0, 3.0]

    def test_two_scalar_ends_are_refused(self) -> None:
        with pytest.raises(ArgumentError, match=r"lerp: x or y must be a tensor.*asarray.*float32\[1\]"):
            bb.lerp(0.0, 1.0, bb.asarray([0.5]))


def test_a_cotangent_lives_on_the_inner_backend() -> None:
    x = bb.asarray([1.0, 2.0]).require_grad()
    cotangent: Any = bb.asarray([1.0, 10.0])
    with pytest.raises(BackendMismatchError, match=r"backward: .* tensors of numpy.*; \.to\('numpy'\) makes"):
        (x * x).backward(cotangent)
    with pytest.raises(BackendMismatchError, match=r"ndarray; bb\.asarray\(\.\.\., backend='numpy'\) makes one"):
        (x * x).backward(np.ones(2))  # type: ignore[arg-type]
    assert x.grad((x * x).backward(cotangent.to("numpy"))).tolist() == [2.0, 40.0]  # type: ignore[union-attr]


def test_backends_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Levels of one backend combine; another backend is refused."""
    plain, tracked = bb.asarray([1.0], backend="numpy"), bb.asarray([2.0], backend="autodiff(numpy)")
    assert (plain + tracked).backend is tracked.backend

    class Elsewhere(type(plain.backend)):  # type: ignore[misc]
        _instance = None
        spec = "elsewhere"

    foreign = bb.FloatTensor(plain.primitive, Elsewhere(), plain.dtype)
    operands = r"float32\[1\] \(numpy\), float32\[1\] \(elsewhere\)"
    with pytest.raises(BackendMismatchError, match=rf"add: .*{operands}.*\.to\("):
        bb.add(plain, foreign)


@pytest.mark.parametrize(
    ("call", "operands"),
    [
        (lambda x: x + np.ones(2), "float32[2] (numpy), ndarray float64[2]"),
        (lambda x: np.ones(2) @ x, "ndarray float64[2], float32[2] (numpy)"),
        (lambda x: x == None, "float32[2] (numpy), None"),  # noqa: E711 - the comparison under test
        (lambda x: x * [1.5] * 100, "float32[2] (numpy), [1.5]"),
        (lambda x: x - ["a" * 1000], "float32[2] (numpy), ['aaaaaaaa"),
        (lambda x: bb.where(x > 0, "a", 1.0), "bool[2] (numpy), 'a', 1.0"),  # type: ignore[arg-type]
    ],
)
def test_errors_describe_operands_that_are_not_tensors(call: Any, operands: str) -> None:
    with pytest.raises(DTypeError) as caught:
        call(bb.ones(2, backend="numpy"))
    assert f". Operands: {operands}" in str(caught.value)
    assert len(str(caught.value)) < 300
