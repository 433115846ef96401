"""Tensor functions: losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, AxisError, DTypeError, OutOfRangeError, ShapeError
from backburn.nn.functional.losses import cross_entropy, l1_loss, mse_loss, nll_loss

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(4, 3)).astype(np.float32)
LABELS = np.array([2, 0, 1, 2])
PROBABILITIES = GENERATOR.dirichlet(np.ones(3), 4).astype(np.float32)
REDUCE: dict[str, Any] = {"none": lambda x: x, "mean": np.mean, "sum": np.sum}


def log_softmax(x: Any) -> Any:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.parametrize("reduction", REDUCE)
def test_distances(reduction: str) -> None:
    x, y = bb.asarray(X).require_grad(), bb.asarray(PROBABILITIES).require_grad()
    for function, expected in ((mse_loss, (X - PROBABILITIES) ** 2), (l1_loss, np.abs(X - PROBABILITIES))):
        loss = function(x, y, reduction=reduction)
        np.testing.assert_allclose(loss.numpy(), REDUCE[reduction](expected), rtol=1e-5)
        gradients = loss.backward()
        np.testing.assert_array_equal(x.grad(gradients).numpy(), -y.grad(gradients).numpy())  # type: ignore[union-attr]


def test_shapes_never_broadcast() -> None:
    with pytest.raises(ShapeError, match=r"mse_loss: .*predictions \[4, 3\] and .*targets \[4, 1\] .*float32\[4,1\]"):
        mse_loss(bb.asarray(X), bb.asarray(X[:, :1]))
    with pytest.raises(ShapeError, match="l1_loss: the predictions"):
        l1_loss(bb.asarray(X), bb.asarray(X[0]))
    assert mse_loss(bb.asarray([1]), bb.asarray([3])).item() == 4.0


@pytest.mark.parametrize("reduction", REDUCE)
def test_cross_entropy_of_labels_and_of_probabilities(reduction: str) -> None:
    x = bb.asarray(X)
    by_label = -log_softmax(X)[np.arange(4), LABELS]
    got = cross_entropy(x, bb.asarray(LABELS), reduction=reduction)
    np.testing.assert_allclose(got.numpy(), REDUCE[reduction](by_label), rtol=1e-5)
    small = cross_entropy(x, bb.asarray(LABELS.astype(np.uint8)), reduction=reduction)
    np.testing.assert_array_equal(small.numpy(), got.numpy())
    columns = cross_entropy(bb.asarray(X.T), bb.asarray(LABELS), axis=0, reduction=reduction)
    np.testing.assert_allclose(columns.numpy(), got.numpy(), rtol=1e-6)
    logarithms = bb.log_softmax(x)
    np.testing.assert_allclose(nll_loss(logarithms, bb.asarray(LABELS), reduction=reduction).numpy(), got.numpy(), 1e-6)
    dense = cross_entropy(x, bb.asarray(PROBABILITIES), reduction=reduction)
    expected = -(log_softmax(X) * PROBABILITIES).sum(-1)
    np.testing.assert_allclose(dense.numpy(), REDUCE[reduction](expected), rtol=1e-5)


def test_gradient_of_cross_entropy() -> None:
    x = bb.asarray(X).require_grad()
    gradient = x.grad(cross_entropy(x, bb.asarray(LABELS)).backward())
    expected = (np.exp(log_softmax(X)) - np.eye(3)[LABELS]) / 4
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-5, atol=1e-7)  # type: ignore[union-attr]


def test_options() -> None:
    x, labels = bb.asarray(X), bb.asarray(LABELS)
    weight = np.array([1.0, 2.0, 0.5], np.float32)
    losses = -log_softmax(X)[np.arange(4), LABELS]
    got = cross_entropy(x, labels, bb.asarray(weight))
    np.testing.assert_allclose(got.item(), (losses * weight[LABELS]).sum() / weight[LABELS].sum(), rtol=1e-5)
    ignoring = cross_entropy(x, labels, ignore_index=2)
    np.testing.assert_allclose(ignoring.item(), losses[LABELS != 2].mean(), rtol=1e-5)
    smooth = cross_entropy(x, labels, label_smoothing=0.3, reduction="none")
    np.testing.assert_allclose(smooth.numpy(), 0.7 * losses - 0.3 * log_softmax(X).mean(-1), rtol=1e-5)
    far = cross_entropy(x, bb.asarray([2, -100, 1, 2]), ignore_index=-100, reduction="none")
    assert far.tolist()[1] == 0.0


def test_dtypes() -> None:
    assert cross_entropy(bb.asarray(X, dtype="float16"), bb.asarray(LABELS)).dtype is bb.float16
    assert cross_entropy(bb.asarray(X), bb.asarray(PROBABILITIES, dtype="float64")).dtype is bb.float64
    assert cross_entropy(bb.asarray([[1, 2]]), bb.asarray([0])).dtype is bb.float32
    many = cross_entropy(bb.zeros((1, 8000), dtype="float16"), bb.asarray([0]), label_smoothing=0.1)
    np.testing.assert_allclose(many.item(), np.log(8000), rtol=1e-3)


def test_what_is_refused() -> None:
    x = bb.asarray(X)
    for label in (3, -1):
        with pytest.raises(OutOfRangeError, match=f"label_?.*{label}"):
            cross_entropy(x, bb.asarray([label, 0, 0, 0]))
        with pytest.raises(OutOfRangeError):
            nll_loss(x, bb.asarray([label, 0, 0, 0]))
    with pytest.raises(
        ShapeError, match=r"cross_entropy: the labels \[4, 1\] must have the shape .*int64\[4,1\]|the targets"
    ):
        cross_entropy(x, bb.asarray(LABELS[:, None]))
    with pytest.raises(ShapeError, match=r"cross_entropy: .*shape \[3, 3\] .*; class labels are integers"):
        cross_entropy(bb.zeros((3, 3)), bb.asarray([0.0, 1.0, 2.0]))  # would broadcast
    with pytest.raises(ShapeError, match=r"cross_entropy: float targets .*shape \[2\].*not \[\]"):
        cross_entropy(bb.zeros(2), bb.asarray(1.0))
    with pytest.raises(ShapeError, match="cross_entropy: the weight must have one value for each of the 3 classes"):
        cross_entropy(x, bb.asarray(LABELS), bb.asarray([1.0]))
    with pytest.raises(AxisError, match="cross_entropy: axis 2 is out of range"):
        cross_entropy(x, bb.asarray(LABELS), axis=2)
    with pytest.raises(ArgumentError, match="cross_entropy: the reduction is one of none, mean, sum, not 'avg'"):
        cross_entropy(x, bb.asarray(LABELS), reduction="avg")
    for smoothing in (-0.1, 1.5, float("nan")):
        expected = rf"cross_entropy: label_smoothing is from 0 to 1, not {smoothing}\. Operands: float"
        for backend in ("numpy", "autodiff(numpy)"):
            with pytest.raises(ArgumentError, match=expected):
                cross_entropy(x.to(backend), bb.asarray(LABELS, backend=backend), label_smoothing=smoothing)
    with pytest.raises(ArgumentError, match="cross_entropy: ignore_index is for integer targets"):
        cross_entropy(x, bb.asarray(PROBABILITIES), ignore_index=1)
    with pytest.raises(DTypeError, match=r"cross_entropy: labels are integers.*bool\[4\]"):
        cross_entropy(x, bb.asarray(LABELS > 0))
    with pytest.raises(DTypeError, match="nll_loss: labels are integers"):
        nll_loss(x, bb.asarray(PROBABILITIES))
