"""Relative errors of slopes in the tails, where the slope cannot be recovered from the function's result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backburn as bb

Array = Any
functional = bb.nn.functional
X = np.array([-60.0, -38.0, -17.5, -9.5, -3.0, -0.5, 0.5, 3.0, 9.5, 17.5, 38.0, 60.0])


def slope(x: Array) -> Array:
    """The slope of the sigmoid."""
    power = np.exp(-np.abs(x))
    return power / (1.0 + power) ** 2


def sech2(x: Array) -> Array:
    return 4.0 * slope(2.0 * x)


def sigmoid(x: Array) -> Array:
    return np.where(x < 0, np.exp(np.minimum(x, 0.0)), 1.0) / (1.0 + np.exp(-np.abs(x)))


def first_of_two(function: Callable[..., Any], place: int = 0) -> Callable[[Any], Any]:
    """Return one of the results of a function at the rows ``(x, 0)``."""
    return lambda x: function(bb.stack([x, bb.zeros_like(x)], -1))[..., place]


def labelled(x: Any) -> Any:
    rows = bb.stack([x, bb.zeros_like(x)], -1)
    return functional.cross_entropy(rows, bb.zeros(x.shape, dtype="int64"), reduction="none")


def distributed(x: Any) -> Any:
    rows = bb.stack([x, bb.zeros_like(x)], -1)
    return functional.cross_entropy(rows, bb.stack([bb.ones_like(x), bb.zeros_like(x)], -1), reduction="none")


def columns(x: Any) -> Any:
    return bb.softmax(bb.stack([x, bb.zeros_like(x)], 0), 0)[0]


def with_logits(target: float) -> Callable[[Any], Any]:
    return lambda x: functional.binary_cross_entropy_with_logits(x, bb.full_like(x, target), reduction="none")


def second_of_sigmoid(x: Array) -> Array:
    return -slope(x) * np.tanh(x / 2.0)


#: Functions with their first and second derivatives.
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Array], Callable[[Array], Array]]] = {
    "sigmoid": (bb.sigmoid, slope, second_of_sigmoid),
    "tanh": (bb.tanh, sech2, lambda x: -2.0 * sech2(x) * np.tanh(x)),
    "softplus": (functional.softplus, sigmoid, slope),
    "log_sigmoid": (functional.log_sigmoid, lambda x: sigmoid(-x), lambda x: -slope(x)),
    "logaddexp": (lambda x: bb.logaddexp(x, 0.0), sigmoid, slope),
    "silu": (
        functional.silu,
        lambda x: sigmoid(x) + x * slope(x),
        lambda x: slope(x) * (2.0 - x * np.tanh(x / 2.0)),
    ),
    "glu": (
        lambda x: functional.glu(bb.stack([bb.ones_like(x), x], -1), -1)[..., 0],
        slope,
        second_of_sigmoid,
    ),
    "softmax of the first": (first_of_two(bb.softmax), slope, second_of_sigmoid),
    "softmax of the second": (first_of_two(bb.softmax, 1), lambda x: -slope(x), lambda x: -second_of_sigmoid(x)),
    "softmax of columns": (columns, slope, second_of_sigmoid),
    "log_softmax": (first_of_two(bb.log_softmax), lambda x: sigmoid(-x), lambda x: -slope(x)),
    "logsumexp": (lambda x: bb.logsumexp(bb.stack([x, bb.zeros_like(x)], -1), -1), sigmoid, slope),
    "cross_entropy of labels": (labelled, lambda x: -sigmoid(-x), slope),
    "cross_entropy of shares": (distributed, lambda x: -sigmoid(-x), slope),
    "with logits, 1": (with_logits(1.0), lambda x: -sigmoid(-x), slope),
    "with logits, 0": (with_logits(0.0), sigmoid, slope),
}


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("mode", ["reverse", "forward"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_slopes_in_tails(name: str, dtype: str, mode: str, order: int) -> None:
    """For few elements, which NumPy computes, and for many, which kernels compute."""
    function, *derivatives = FUNCTIONS[name]
    expected = derivatives[order - 1](X)
    for times in (1, 1000):
        x = bb.asarray(np.tile(X, times), dtype=dtype)

        def first(x: Any) -> Any:
            return bb.grad(lambda x: function(x).sum())(x)

        if mode == "forward":
            found = bb.jvp(function if order == 1 else first, (x,), (bb.ones_like(x),))[1]
        else:
            found = first(x) if order == 1 else bb.grad(lambda x: first(x).sum())(x)
        tolerance, least = 100 * bb.finfo(x.dtype).eps, 10 * bb.finfo(x.dtype).smallest_normal
        np.testing.assert_allclose(found.numpy()[: len(X)], expected, rtol=tolerance, atol=least)
        np.testing.assert_allclose(found.numpy()[-len(X) :], expected, rtol=tolerance, atol=least)


@pytest.mark.parametrize("width", [2, 12, 40, 300])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_with_one_dominant_logit(width: int, dtype: str, axis: int) -> None:
    """The gradient of the largest logit is the sum of differences to the others, weighted by their probabilities."""
    generator = np.random.default_rng(width)
    x = generator.normal(size=(3, width))
    x[:, 1] += 30.0
    weights = generator.normal(size=(3, width))
    powers = np.exp(x - x[:, 1:2])
    rest = np.delete(np.arange(width), 1)
    shares = powers[:, rest] / (1.0 + powers[:, rest].sum(1, keepdims=True))
    difference = ((weights[:, 1:2] - weights[:, rest]) * shares).sum(1)
    laid = (lambda a: a) if axis == 1 else np.transpose

    def function(t: Any) -> Any:
        return (bb.softmax(t, axis) * bb.asarray(laid(weights), dtype=dtype)).sum()

    found = laid(bb.grad(function)(bb.asarray(laid(x), dtype=dtype)).numpy())
    rounded = 3e-4 if dtype == "float32" else 1e-9  # rounding of the operands, 30 apart
    np.testing.assert_allclose(found[:, 1], difference, rtol=rounded)
    others = shares * (weights[:, rest] - weights[:, 1:2])
    np.testing.assert_allclose(found[:, rest], others, rtol=0.0, atol=rounded * np.abs(others).max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("steps", [1, 3])
def test_the_state_of_a_long_short_term_memory(dtype: str, steps: int) -> None:
    """The slope of tanh at a large cell state; gates are given by their results."""
    cells = np.array([[-30.0, -9.5, 9.5, 17.0, 20.0]], dtype)
    k, size = bb.load_backend("numpy"), cells.shape[1]
    gates = np.full((steps, 1, 4 * size), 0.5, dtype)
    grads = np.zeros((steps, 1, size), dtype)
    grads[-1] = 1.0
    weight = np.zeros((4 * size, size), dtype)
    states = np.broadcast_to(cells, (steps, 1, size)).copy()
    found = k.lstm_backward(weight, cells, states, gates, grads, None, None)[0]
    expected = 0.5 * sech2(cells.astype("float64")) * 0.5 * 0.25
    np.testing.assert_allclose(found[-1, :, :size], expected, rtol=100 * float(np.finfo(dtype).eps))


INF, NAN = float("inf"), float("nan")


def test_infinite_terms_of_sums_of_exponentials() -> None:
    def slopes(values: list[float]) -> tuple[list[float], list[float]]:
        x = bb.asarray(values)
        cumulative = bb.grad(lambda x: bb.logcumsumexp(x, 0).sum())(x)
        pushed = bb.jvp(lambda x: bb.logcumsumexp(x, 0), (x,), (bb.ones_like(x),))[1]
        assert pushed.tolist() == [1.0] * len(values)
        return cumulative.tolist(), bb.grad(lambda x: bb.logsumexp(x))(x).tolist()

    assert slopes([INF, 0.0]) == ([2.0, 0.0], [1.0, 0.0])
    assert slopes([0.0, INF, 1.0]) == ([1.0, 2.0, 0.0], [0.0, 1.0, 0.0])
    assert slopes([INF, INF]) == ([1.5, 0.5], [0.5, 0.5])
    assert bb.logcumsumexp(bb.asarray([INF, 0.0]), 0).tolist() == [INF, INF]


@pytest.mark.parametrize("low", [0.0, None])
@pytest.mark.parametrize("high", [1.0, None])
def test_clip_passes_no_gradient_to_nan(low: float | None, high: float | None) -> None:
    if low is high is None:
        return
    x = bb.asarray([NAN, 0.5])
    for bounds in ((low, high), tuple(None if b is None else bb.asarray(b) for b in (low, high))):
        assert bb.grad(lambda x, b=bounds: bb.clip(x, *b).sum())(x).tolist() == [0.0, 1.0]
