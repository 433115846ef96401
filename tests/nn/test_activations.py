"""Activations with options, Gumbel-softmax and dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.helpers.against_torch import agrees, normal

import backburn as bb
from backburn import nn
from backburn.base.errors import ArgumentError, AxisError

ANY: Any = nn


# ---- softplus ----


@pytest.mark.parametrize("backend", ["numpy", "autodiff(numpy)"])
@pytest.mark.parametrize(("dtype", "large"), [("float32", 3e38), ("float64", 1.7e308)])
def test_softplus_where_beta_times_x_overflows(dtype: str, large: float, backend: str) -> None:
    x = bb.asarray([large, -large], dtype=dtype, backend=backend)
    assert nn.functional.softplus(x, beta=4.0).tolist() == [x[0].item(), 0.0]
    assert nn.functional.softplus(x, beta=-4.0).tolist() == [0.0, x[1].item()]


@pytest.mark.parametrize(("beta", "threshold"), [(1.0, 20.0), (2.0, 0.5), (1.0, -1.0)])
def test_softplus_above_a_threshold(torch: Any, beta: float, threshold: float) -> None:
    x = np.concatenate([normal(50) * 3, [threshold / beta, 1000.0, -1000.0]])
    agrees(
        nn.Softplus(beta, threshold), lambda _, x: torch.nn.functional.softplus(x, beta=beta, threshold=threshold), x
    )
    assert nn.Softplus()(bb.asarray([25.0], dtype="float64")).item() > 25.0  # exact without a threshold
    with pytest.raises(ArgumentError, match="Softplus: threshold is a number"):
        ANY.Softplus(1.0, "x")


# ---- dropout ----


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    bb.random.seed(0)
    x = bb.random.normal((200_000,))
    for p in (0.1, 0.5, 0.9):
        y = nn.AlphaDropout(p)(x).numpy()
        assert abs(y.mean()) < 0.02
        assert abs(y.std() - 1.0) < 0.02
        values, counts = np.unique(y, return_counts=True)
        assert abs(counts.max() / y.size - p) < 0.01
        scale = 1.0 / np.sqrt((1 - p) * (1 + p * 1.7580993408473766**2))
        np.testing.assert_allclose(values[counts.argmax()], -1.7580993408473766 * scale * (1 - p), rtol=1e-5)
    layer = nn.AlphaDropout(0.5)
    assert layer.eval()(x) is x
    one: Any = bb.asarray([1.0, float("inf")]).require_grad()
    gone = nn.AlphaDropout(1.0)(one)
    assert gone.tolist() == one.grad(gone.backward()).tolist() == [0.0, 0.0]
    same = [nn.functional.alpha_dropout(x, 0.5, generator=bb.random.Generator(3)).tolist() for _ in range(2)]
    assert same[0] == same[1]


# ---- gumbel_softmax ----


def test_gumbel_softmax_draws_categories() -> None:
    """Draws have the softmax probabilities at every temperature; at a low one they are nearly one-hot."""
    bb.random.seed(0)
    logits = np.array([0.0, 1.0, -1.0])
    x = bb.asarray(np.tile(logits, (20_000, 1)))
    expected = np.exp(logits) / np.exp(logits).sum()
    for tau in (0.1, 1.0, 5.0):
        soft = nn.functional.gumbel_softmax(x, tau)
        np.testing.assert_allclose(soft.sum(-1).numpy(), 1.0, rtol=1e-12)
        chosen = np.bincount(soft.numpy().argmax(-1), minlength=3) / len(soft)
        np.testing.assert_allclose(chosen, expected, atol=0.015)
    hard = nn.functional.gumbel_softmax(x.T, 2.0, hard=True, axis=0)
    assert hard.shape == (3, 20_000)
    np.testing.assert_allclose(hard.mean(1).numpy(), expected, atol=0.015)
    np.testing.assert_allclose(np.sort(hard.numpy(), axis=0), np.tile([[0.0], [0.0], [1.0]], (1, 20_000)), atol=1e-15)
    cold = nn.functional.gumbel_softmax(x[:50], 1e-4).numpy()
    np.testing.assert_allclose(cold.max(-1), 1.0, atol=1e-6)
    half = nn.functional.gumbel_softmax(bb.ones((2, 3), dtype="float16"), hard=True)
    assert half.dtype is bb.float16


@pytest.mark.parametrize("hard", [False, True])
def test_gradients_of_gumbel_softmax_are_those_of_the_soft_one(hard: bool) -> None:
    x, weights = bb.asarray([[0.3, -1.0, 2.0], [0.0, 0.5, 0.1]], dtype="float64"), bb.asarray([1.0, -2.0, 0.5])

    def drawn(x: Any, hard: bool) -> Any:
        return nn.functional.gumbel_softmax(x, 0.7, hard=hard, generator=bb.random.Generator(5))

    bb.check_grads(lambda x: drawn(x, False), (x,), order=2)
    got = bb.grad(lambda x: (drawn(x, hard) * weights).sum())(x).numpy()
    np.testing.assert_allclose(got, bb.grad(lambda x: (drawn(x, False) * weights).sum())(x).numpy(), rtol=1e-12)
    assert (drawn(x, True).argmax(-1) == drawn(x, False).argmax(-1)).all()


def test_gumbel_softmax_refuses() -> None:
    x: Any = bb.ones((2, 3))
    for tau in (0.0, -1.0, float("inf"), x):
        with pytest.raises(ArgumentError, match="gumbel_softmax: tau is a"):
            nn.functional.gumbel_softmax(x, tau)
    with pytest.raises(AxisError, match="gumbel_softmax: axis 2"):
        nn.functional.gumbel_softmax(x, axis=2)


def test_prelu_of_a_scalar_is_a_scalar() -> None:
    layer = ANY.PReLU()
    result = layer(bb.asarray(-2.0))
    assert result.shape == ()
    assert layer.weight.grad(result.backward()).tolist() == [-2.0]
