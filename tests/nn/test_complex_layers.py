"""Layers, initial values, dropout and random numbers in complex dtypes, and training of a model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.helpers.real_only import RealOnly

import backburn as bb
from backburn import nn, optim
from backburn.base.errors import ArgumentError, DTypeError, Unsupported
from backburn.nn import init
from backburn_numpy import NumpyBackend

generator = np.random.default_rng(0)
X = generator.normal(size=(5, 3)) + 1j * generator.normal(size=(5, 3))


def test_normal_numbers_are_two_draws() -> None:
    for dtype, part in (("complex64", "float32"), ("complex128", "float64")):
        ours = bb.random.normal((3, 5), std=2.0, mean=1j, dtype=dtype, generator=bb.random.Generator(7))
        draws = bb.random.Generator(7)
        real, imag = (
            bb.random.normal((3, 5), std=2.0 * math.sqrt(0.5), dtype=part, generator=draws).numpy() for _ in range(2)
        )
        assert ours.dtype.name == dtype
        np.testing.assert_array_equal(ours.numpy().real, real)
        np.testing.assert_array_equal(ours.numpy().imag, imag + real.dtype.type(1))
    x = bb.random.normal((20000,), std=3.0, dtype="complex64", generator=bb.random.Generator(1)).numpy()
    assert abs(np.mean(np.abs(x) ** 2) - 9) < 0.3
    assert abs(np.mean(x * x)) < 0.3  # the parts are independent and identically distributed


def test_the_parameters_of_normal_numbers_have_gradients() -> None:
    def drawn(mean: Any, std: Any) -> Any:
        x = bb.random.normal((4, 3), mean=mean, std=std, dtype="complex128", generator=bb.random.Generator(3))
        return bb.sum(bb.abs(x) ** 2)

    std = bb.asarray([0.5, 1.0, 2.0], dtype="float64")
    bb.check_grads(drawn, (bb.asarray(X[0]), std))
    each = bb.vmap(lambda m: bb.random.normal((3,), mean=m, dtype="complex64"), randomness="different")
    assert each(bb.asarray(X, dtype="complex64")).shape == (5, 3)


def test_refused() -> None:
    with pytest.raises(DTypeError, match=r"uniform: draws floats, not complex64; bb.random.normal draws complex"):
        bb.random.uniform((2,), dtype="complex64")
    with pytest.raises(ArgumentError, match="std is a number of at least 0"):
        bb.random.normal((2,), std=-1.0, dtype="complex64")
    with pytest.raises(DTypeError, match="normal: takes tensors and Python numbers, not complex"):
        bb.random.normal((2,), std=1j, dtype="complex64")  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="draws floats, not complex64"):
        init.trunc_normal((2, 3), dtype="complex64")
    with pytest.raises(DTypeError, match="int8"):
        nn.Linear(2, 2).astype("int8")
    with pytest.raises(DTypeError, match=r"mse_loss.*bb.real\(x\), bb.imag\(x\) and bb.abs\(x\)"):
        nn.functional.mse_loss(bb.asarray(X), bb.asarray(X))


@pytest.mark.parametrize(
    ("function", "variance"),
    [
        (lambda shape, **o: init.normal(shape, std=0.5, **o), 0.25),
        (lambda shape, **o: init.uniform(shape, -1.0, 1.0, **o), 2 / 3),
        (init.kaiming_normal, 2 / 100),
        (init.kaiming_uniform, 2 / 100),
        (init.xavier_normal, 2 / 150),
        (init.xavier_uniform, 2 / 150),
    ],
)
def test_initial_values(function: Any, variance: float) -> None:
    bb.random.seed(0)
    w = function((50, 100), dtype="complex64")
    assert (w.dtype.name, w.shape) == ("complex64", (50, 100))
    for part in (w.numpy().real, w.numpy().imag):
        assert np.mean(part**2) == pytest.approx(variance / 2, rel=0.1)
    assert abs(np.mean(w.numpy())) < 0.02
    assert init.constant((2,), 1 + 2j, dtype="complex64").tolist() == [1 + 2j, 1 + 2j]
    assert init.ones((2,), dtype="complex64").tolist() == [1, 1]


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (6, 2), (4, 2, 3)])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_orthogonal_matrices_are_unitary(shape: tuple[int, ...], dtype: str) -> None:
    bb.random.seed(2)
    w = init.orthogonal(shape, gain=2.0, dtype=dtype).numpy()
    assert (w.dtype, w.shape) == (np.dtype(dtype), shape)
    rows = w.reshape(shape[0], -1)
    rows = rows if rows.shape[0] <= rows.shape[1] else rows.T
    np.testing.assert_allclose(
        rows @ rows.conj().T, 4 * np.eye(len(rows)), atol=1e-5 if dtype == "complex64" else 1e-14
    )
    assert np.abs(w.imag).max() > 0.1


def test_phases_of_unitary_matrices_are_spread_evenly() -> None:
    bb.random.seed(5)
    entries = np.array([init.orthogonal((2, 2), dtype="complex128").numpy()[0, 0] for _ in range(400)])
    assert abs(np.mean(entries / np.abs(entries))) < 0.15
    assert abs(np.mean(np.abs(entries) ** 2) - 0.5) < 0.06
    real = np.array([init.orthogonal((2, 2), dtype="float64").numpy()[0, 0] for _ in range(400)])
    assert abs(np.mean(np.sign(real))) < 0.15


def test_a_module_in_complex_dtypes() -> None:
    layer = nn.Linear(3, 2).astype("complex64")
    assert layer.weight.is_require_grad
    assert layer.bias is not None
    assert layer.bias.dtype is bb.complex64
    layer.weight = nn.parameter(init.kaiming_uniform((2, 3), dtype="complex64"))
    x = bb.asarray(X, dtype="complex64")
    expected = X.astype("complex64") @ layer.weight.numpy().T + layer.bias.numpy()
    np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-5)
    wide = layer.freeze("bias").astype("float64")  # a float dtype keeps complex parameters complex
    assert wide.weight.dtype is bb.complex128
    assert wide.bias is not None
    assert not wide.bias.is_require_grad
    assert layer.astype("complex64").weight is not None
    mixed = nn.Sequential(nn.Linear(3, 2), layer).astype("float64")
    assert [p.dtype.name for p in mixed.parameters()] == ["float64", "float64", "complex128", "complex128"]
    state = layer.state_dict()
    other = nn.Linear(3, 2).astype("complex64")
    other.load_state_dict(state)
    np.testing.assert_array_equal(other(x).numpy(), layer(x).numpy())
    assert "complex64[2,3]" in repr(layer)


def test_dropout() -> None:
    x = bb.asarray(np.full((40, 50), 1 + 2j), dtype="complex64")
    bb.random.seed(3)
    dropped = nn.functional.dropout(x, 0.25)
    bb.random.seed(3)
    real = nn.functional.dropout(bb.ones((40, 50)), 0.25)
    np.testing.assert_array_equal(dropped.numpy(), real.numpy() * np.complex64(1 + 2j))
    assert dropped.dtype is bb.complex64
    assert nn.functional.dropout(x, 1.0).numpy().any() == np.False_
    layer = nn.Dropout(0.5)
    assert layer.eval()(x) is x
    channels = nn.Dropout1d(0.5)(bb.asarray(np.ones((4, 8, 3)), dtype="complex64")).numpy()
    assert set(channels.ravel().tolist()) == {0j, 2 + 0j}
    fixed = bb.random.get_state()

    def loss(z: Any) -> Any:
        bb.random.set_state(fixed)
        return bb.sum(bb.abs(nn.functional.dropout(z, 0.5)) ** 2)

    bb.check_grads(loss, (bb.asarray(X),))


class Rotation(nn.Module):
    """Two complex layers with a real loss."""

    def __init__(self) -> None:
        self.first = nn.Linear(3, 4).astype("complex64")
        self.second = nn.Linear(4, 2).astype("complex64")

    def forward(self, x: Any) -> Any:
        h = self.first(x)
        return self.second(h * bb.sigmoid(bb.abs(h)))


def test_a_complex_network_is_trained() -> None:
    bb.random.seed(0)
    model, optimizer = Rotation(), optim.Adam(0.03)
    x = bb.asarray(X, dtype="complex64")
    target = x[:, :2] * 1j
    losses = []
    for _ in range(60):
        loss = bb.mean(bb.abs(model(x) - target) ** 2)
        optimizer.step(model, loss.backward())
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]


def test_a_backend_without_complex_numbers_has_no_random_ones() -> None:
    with pytest.raises(Unsupported, match=r"normal: the backend .* has no complex64 tensors"):
        bb.random.normal((2,), dtype="complex64", backend=RealOnly(NumpyBackend()))
