"""Tensor functions: activation functions."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, DTypeError, ShapeError
from backburn.tensor import activations as activate

X = np.array([[-4.0, -1.5, -0.25], [0.75, 2.0, 7.0]], np.float32)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def elu(x: Any, alpha: float) -> Any:
    return np.where(x <= 0, alpha * np.expm1(np.minimum(x, 0)), x)


#: For each function: options, and a formula for the result.
CASES: dict[str, list[tuple[dict[str, Any], Any]]] = {
    "sigmoid": [({}, sigmoid)],
    "log_sigmoid": [({}, lambda x: np.log(sigmoid(x)))],
    "hard_sigmoid": [({}, lambda x: np.clip(x / 6 + 0.5, 0, 1))],
    "relu": [({}, lambda x: np.maximum(x, 0))],
    "relu6": [({}, lambda x: np.clip(x, 0, 6))],
    "leaky_relu": [
        ({}, lambda x: np.where(x > 0, x, 0.01 * x)),
        ({"negative_slope": 0.5}, lambda x: np.where(x > 0, x, x / 2)),
    ],
    "threshold": [({"threshold": 1.0, "value": -3}, lambda x: np.where(x > 1, x, -3))],
    "hardtanh": [({}, lambda x: np.clip(x, -1, 1)), ({"min_val": 0, "max_val": 5.0}, lambda x: np.clip(x, 0, 5))],
    "hard_swish": [({}, lambda x: x * np.clip(x / 6 + 0.5, 0, 1))],
    "elu": [({}, lambda x: elu(x, 1)), ({"alpha": 0.5}, lambda x: elu(x, 0.5))],
    "celu": [({}, lambda x: elu(x, 1)), ({"alpha": 2.0}, lambda x: 2 * elu(x / 2, 1))],
    "selu": [({}, lambda x: 1.0507009873554805 * elu(x, 1.6732632423543772))],
    "gelu": [
        ({"approximate": "tanh"}, lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
    ],
    "silu": [({}, lambda x: x * sigmoid(x))],
    "mish": [({}, lambda x: x * np.tanh(np.log1p(np.exp(x))))],
    "softplus": [({}, lambda x: np.log1p(np.exp(x))), ({"beta": 2.0}, lambda x: np.log1p(np.exp(2 * x)) / 2)],
    "softsign": [({}, lambda x: x / (1 + np.abs(x)))],
    "tanhshrink": [({}, lambda x: x - np.tanh(x))],
    "softshrink": [({}, lambda x: x - np.clip(x, -0.5, 0.5)), ({"lambd": 1}, lambda x: x - np.clip(x, -1, 1))],
    "hardshrink": [({"lambd": 1.0}, lambda x: np.where(np.abs(x) <= 1, 0, x))],
}  # fmt: skip


def test_every_function_has_a_case() -> None:
    assert set(CASES) | {"prelu", "glu"} == set(activate.__all__)


@pytest.mark.parametrize(("name", "options", "expected"), [(n, o, e) for n, cases in CASES.items() for o, e in cases])
def test_values_dtypes_and_gradients(name: str, options: Any, expected: Any) -> None:
    function = getattr(activate, name)
    got = function(bb.asarray(X), **options)
    assert isinstance(got, bb.FloatTensor)
    np.testing.assert_allclose(got.numpy(), expected(X.astype(np.float64)), rtol=1e-5, atol=2e-6)
    assert function(bb.asarray([1, -2]), **options).dtype is bb.float32
    assert function(bb.asarray(X, dtype="float16"), **options).dtype is bb.float16
    x = bb.asarray(X.astype(np.float64)).require_grad()
    step = 1e-6
    slope = (expected(X.astype(np.float64) + step) - expected(X.astype(np.float64) - step)) / (2 * step)
    np.testing.assert_allclose(x.grad(function(x, **options).backward()).numpy(), slope, rtol=1e-6, atol=1e-8)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", activate.__all__)
def test_what_is_refused(name: str) -> None:
    function = getattr(activate, name)
    needed = {"threshold": (0.0, 0.0), "prelu": (bb.asarray([True]),)}.get(name, ())
    with pytest.raises(DTypeError, match=f"{name}: takes float tensors, not bool"):
        function(bb.asarray([True]), *needed)
    with pytest.raises((DTypeError, ArgumentError), match=f"{name}: "):
        function("a", *needed)
    numbers = [n for n, p in inspect.signature(function).parameters.items() if p.annotation == "float"]
    for option in numbers:
        options: dict[str, Any] = dict.fromkeys(numbers, 0.5) | {option: bb.asarray(1.0)}
        with pytest.raises(ArgumentError, match=f"{name}: {option} is a number, not float32"):
            function(bb.asarray([1.0]), **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("celu", {"alpha": 0.0}, "alpha is a number above 0, not 0.0"),
        ("celu", {"alpha": -1.0}, "alpha is a number above 0, not -1.0"),
        ("softshrink", {"lambd": -0.5}, "lambd is a number of at least 0, not -0.5"),
        ("hardtanh", {"min_val": 1.0, "max_val": -1.0}, "min_val is at most max_val, and they are 1.0 and -1.0"),
    ],
)
def test_invalid_options_are_refused(name: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(ArgumentError, match=rf"{name}: {message}\. Operand: float32\[2\]"):
        getattr(activate, name)(bb.ones(2), **options)


def test_prelu() -> None:
    x, slope = bb.asarray([-2.0, 3.0]).require_grad(), bb.asarray(0.5).require_grad()
    y = activate.prelu(x, slope)
    assert y.tolist() == [-1.0, 3.0]
    gradients = y.backward()
    assert (x.grad(gradients).tolist(), slope.grad(gradients).item()) == ([0.5, 1.0], -2.0)  # type: ignore[union-attr]
    assert activate.prelu(bb.asarray([-2]), bb.asarray([0.5], dtype="float64")).dtype is bb.float64


def test_the_second_derivative_of_prelu_at_zero_is_symmetric() -> None:
    point = bb.asarray(0.0), bb.asarray(0.25)
    rows = bb.hessian(activate.prelu, (0, 1))(*point)
    assert [[entry.item() for entry in row] for row in rows] == [[0.0, 1.0], [1.0, 0.0]]


def test_glu() -> None:
    x = np.arange(8.0).reshape(2, 4) / 4
    np.testing.assert_allclose(activate.glu(bb.asarray(x)).numpy(), x[:, :2] * sigmoid(x[:, 2:]))
    np.testing.assert_allclose(activate.glu(bb.asarray(x), axis=0).numpy(), x[:1] * sigmoid(x[1:]))
    with pytest.raises(ShapeError, match=r"glu: axis 0 has 3 elements, which do not form two halves.*float32\[3\]"):
        activate.glu(bb.asarray([1.0, 2.0, 3.0]))


def test_gelu_forms() -> None:
    with pytest.raises(ArgumentError, match="gelu: approximate is 'none' or 'tanh', not 'erf'"):
        bb.gelu(bb.asarray([1.0]), "erf")
    x = bb.asarray([0.0, 1.0], dtype="float64").require_grad()
    exact = x.grad(bb.gelu(x).backward()).tolist()  # type: ignore[union-attr]
    assert exact[0] == 0.5
    assert exact != x.grad(bb.gelu(x, "tanh").backward()).tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-6), ("float64", 4e-15)])
def test_gelu_keeps_its_precision_far_below_zero(dtype: str, rtol: float) -> None:
    x = bb.asarray([-0.5, -1.0, -5.0, -6.0, -10.0], dtype=dtype).require_grad()
    y = bb.gelu(x)
    points = x.numpy().astype(np.float64)
    below = np.array([math.erfc(-p * math.sqrt(0.5)) / 2 for p in points])
    np.testing.assert_allclose(y.numpy(), points * below, rtol=rtol)
    slope = below + points * np.exp(-(points**2) / 2) / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(x.grad(y.sum().backward()).numpy(), slope, rtol=rtol)  # type: ignore[union-attr]
    ends = bb.asarray([-math.inf, -1e30, math.inf], dtype=dtype)
    assert bb.gelu(ends).tolist() == [0.0, 0.0, math.inf]


def test_methods() -> None:
    x = bb.asarray(X)
    np.testing.assert_array_equal(x.relu().numpy(), bb.relu(x).numpy())
    np.testing.assert_array_equal(x.sigmoid().numpy(), bb.sigmoid(x).numpy())
