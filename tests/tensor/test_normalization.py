"""Tensor functions: softmax and the normalizations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, AxisError, DTypeError, ShapeError
from backburn.tensor import normalization as functions

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(2, 4, 3)).astype(np.float32)
SCALE, BIAS = GENERATOR.uniform(0.5, 2.0, 4).astype(np.float32), GENERATOR.normal(size=4).astype(np.float32)


def softmax(x: Any, axis: int) -> Any:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


SOFTMAXES: dict[str, Any] = {
    "softmax": softmax,
    "log_softmax": lambda x, axis: np.log(softmax(x, axis)),
    "softmin": lambda x, axis: softmax(-x, axis),
}


@pytest.mark.parametrize("name", SOFTMAXES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(name: str, axis: int) -> None:
    got = getattr(functions, name)(bb.asarray(X), axis=axis)
    np.testing.assert_allclose(got.numpy(), SOFTMAXES[name](X, axis), rtol=1e-5, atol=1e-6)
    assert getattr(functions, name)(bb.asarray([1, 2, 3])).dtype is bb.float32
    with pytest.raises(AxisError, match=rf"{name}: axis 3 is out of range.*float32\[2,4,3\]"):
        getattr(functions, name)(bb.asarray(X), axis=3)
    with pytest.raises(DTypeError, match=f"{name}: .*not bool"):
        getattr(functions, name)(bb.asarray([True]))


def test_softmax_of_methods_and_its_gradient() -> None:
    x = bb.asarray(X).require_grad()
    np.testing.assert_array_equal(x.softmax(axis=0).numpy(), bb.softmax(x, axis=0).numpy())
    np.testing.assert_array_equal(x.log_softmax().numpy(), bb.log_softmax(x).numpy())
    gradient = x.grad(bb.softmax(x).sum().backward())
    np.testing.assert_allclose(gradient.numpy(), np.zeros_like(X), atol=1e-6)  # type: ignore[arg-type, union-attr]


def layer_norm(x: Any, axis: Any, eps: float = 1e-5) -> Any:
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + eps)


def test_layer_norm() -> None:
    x, scale, bias = bb.asarray(X), bb.asarray(SCALE), bb.asarray(BIAS)
    np.testing.assert_allclose(functions.layer_norm(x).numpy(), layer_norm(X, -1), rtol=1e-4, atol=1e-5)
    swapped = bb.asarray(np.swapaxes(X, 1, 2))
    expected = layer_norm(np.swapaxes(X, 1, 2), -1) * SCALE + BIAS
    np.testing.assert_allclose(functions.layer_norm(swapped, scale, bias).numpy(), expected, rtol=1e-4, atol=1e-5)
    both = functions.layer_norm(x, axis=(-2, -1), eps=0.5)
    np.testing.assert_allclose(both.numpy(), layer_norm(X, (1, 2), 0.5), rtol=1e-4, atol=1e-5)
    assert functions.layer_norm(x, bb.asarray(np.ones(3))).dtype is bb.float64


def test_gradients_of_layer_norm() -> None:
    x, scale, bias = (bb.asarray(a).require_grad() for a in (np.swapaxes(X, 1, 2), SCALE, BIAS))
    gradients = functions.layer_norm(x, scale, bias).sum().backward()
    normal = layer_norm(np.swapaxes(X, 1, 2), -1)
    np.testing.assert_allclose(scale.grad(gradients).numpy(), normal.sum((0, 1)), rtol=1e-4, atol=1e-5)  # type: ignore[union-attr]
    np.testing.assert_allclose(bias.grad(gradients).numpy(), np.full(4, 6.0), rtol=1e-6)  # type: ignore[union-attr]
    assert x.grad(gradients).shape == (2, 3, 4)  # type: ignore[union-attr]


def test_rms_norm() -> None:
    expected = X / np.sqrt((X**2).mean(-1, keepdims=True) + np.finfo(X.dtype).eps)
    np.testing.assert_allclose(functions.rms_norm(bb.asarray(X)).numpy(), expected, rtol=1e-5)
    scaled = functions.rms_norm(bb.asarray(X), bb.asarray(SCALE[:3]))
    np.testing.assert_allclose(scaled.numpy(), expected * SCALE[:3], rtol=1e-5)


def test_group_and_instance_norm() -> None:
    x, scale, bias = bb.asarray(X), bb.asarray(SCALE), bb.asarray(BIAS)
    grouped = layer_norm(X.reshape(2, 2, 6), -1).reshape(X.shape) * SCALE[:, None] + BIAS[:, None]
    got = functions.group_norm(x, 2, scale, bias)
    np.testing.assert_allclose(got.numpy(), grouped, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(functions.instance_norm(x).numpy(), layer_norm(X, -1), rtol=1e-4, atol=1e-5)
    assert functions.instance_norm(bb.zeros((2, 0, 3))).shape == (2, 0, 3)
    with pytest.raises(ShapeError, match=r"group_norm: 4 channels do not form 3 groups.*float32\[2,4,3\]"):
        functions.group_norm(x, 3)


def test_batch_norm() -> None:
    x, scale, bias = bb.asarray(X), bb.asarray(SCALE), bb.asarray(BIAS)
    mean, variance = X.mean((0, 2)), X.var((0, 2))
    expected = layer_norm(X, (0, 2)) * SCALE[:, None] + BIAS[:, None]
    y, its_mean, its_variance = functions.batch_norm_training(x, scale, bias)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(its_mean.numpy(), mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(its_variance.numpy(), variance, rtol=1e-4)
    given = functions.batch_norm(x, its_mean, its_variance, scale, bias)
    np.testing.assert_allclose(given.numpy(), expected, rtol=1e-4, atol=1e-5)
    last = functions.batch_norm_training(bb.asarray(np.moveaxis(X, 1, 2)), axis=-1)[0]
    np.testing.assert_allclose(last.numpy(), layer_norm(np.moveaxis(X, 1, 2), (0, 1)), rtol=1e-4, atol=1e-5)
    with pytest.raises(ShapeError, match="batch_norm: axis 1 has 4 channels; a parameter has the shape"):
        functions.batch_norm(x, bb.asarray(SCALE[:3]), its_variance)


@pytest.mark.parametrize("shape", [(0, 3), (2, 3, 0)])
def test_batch_norm_of_empty_tensors_has_no_statistics(shape: tuple[int, ...]) -> None:
    x = bb.ones(shape)
    y, mean, variance = functions.batch_norm_training(x)
    assert y.shape == shape
    assert np.isnan(mean.numpy()).all()
    assert np.isnan(variance.numpy()).all()
    assert bb.grad(lambda x: sum(bb.sum(y) for y in functions.batch_norm_training(x)))(x).shape == shape


def test_normalize() -> None:
    got = functions.normalize(bb.asarray(X), axis=1, p=3)
    np.testing.assert_allclose(got.numpy(), X / (np.abs(X) ** 3).sum(1, keepdims=True) ** (1 / 3), rtol=1e-5)
    assert functions.normalize(bb.asarray([0.0, 0.0], dtype="float16")).tolist() == [0.0, 0.0]


def test_options_are_numbers() -> None:
    x = bb.asarray(X)
    with pytest.raises(ArgumentError, match="layer_norm: eps is a number"):
        functions.layer_norm(x, eps=bb.asarray(0.1))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="normalize: p is a number"):
        functions.normalize(x, p="fro")  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["numpy", "null"])
@pytest.mark.parametrize(("x", "scale"), [((0, 3), (4,)), ((2, 0), (4,)), ((3,), (1, 3))])
def test_a_scale_that_does_not_broadcast_is_refused_for_empty_tensors_too(backend: str, x: Any, scale: Any) -> None:
    x, scale = bb.ones(x, backend=backend), bb.ones(scale, backend=backend)
    for call in (
        lambda: bb.nn.functional.layer_norm(x, scale),
        lambda: bb.nn.functional.layer_norm(x, None, scale),
        lambda: bb.nn.functional.rms_norm(x, scale),
    ):
        with pytest.raises(ShapeError, match="cannot broadcast"):
            call()
