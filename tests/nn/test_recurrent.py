"""Recurrent layers and cells, against torch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from tests.helpers.against_torch import agrees, normal, state_of

import backburn as bb
from backburn import nn
from backburn.base.errors import ArgumentError, ShapeError
from backburn.nn import functional as layers

ANY: Any = nn


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_modules(torch: Any, name: str, bidirectional: bool) -> None:
    theirs = getattr(torch.nn, name)(3, 4, num_layers=2, bidirectional=bidirectional)
    ours = getattr(nn, name)(3, 4, num_layers=2, bidirectional=bidirectional)
    ours.load_state_dict(state_of(theirs))
    x = normal(5, 2, 3).astype(np.float32)
    first = normal(4 if bidirectional else 2, 2, 4).astype(np.float32)
    count = 2 if name == "LSTM" else 1
    mine = (bb.asarray(first),) * count if count > 1 else bb.asarray(first)
    other = (torch.from_numpy(first),) * count if count > 1 else torch.from_numpy(first)
    got, last = ours(bb.asarray(x), mine)
    expected, after = theirs(torch.from_numpy(x), other)
    np.testing.assert_allclose(got.numpy(), expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    for a, b in zip(last if count > 1 else [last], after if count > 1 else [after], strict=True):
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-5)
    gradients = got.square().sum().backward()
    expected.square().sum().backward()
    for path, parameter in ours.named_parameters():
        expected = getattr(theirs, path).grad.numpy()
        gradient: Any = parameter.grad(gradients)
        np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-3, atol=1e-5)
    turned = getattr(nn, name)(3, 4, batch_first=True)(bb.asarray(x.swapaxes(0, 1)))[0]
    assert turned.shape == (2, 5, 4)
    with pytest.raises(ShapeError, match=f"{name}: the input has the shape"):
        ours(bb.asarray(x[..., :2]))
    with pytest.raises(ShapeError, match=f"{name}: an initial state has the shape"):
        ours(bb.asarray(x), (mine[0][:1],) * 2 if count > 1 else mine[:1])


@pytest.mark.parametrize("bidirectional", [False, True])
def test_lstm_with_a_projection(torch: Any, bidirectional: bool) -> None:
    options: dict[str, Any] = {"num_layers": 2, "bidirectional": bidirectional, "proj_size": 2}
    theirs, ours = torch.nn.LSTM(3, 4, **options), nn.LSTM(3, 4, **options)
    ours.load_state_dict(state_of(theirs))
    rows = 4 if bidirectional else 2
    x, hidden, cell = (normal(*shape).astype(np.float32) for shape in ((5, 2, 3), (rows, 2, 2), (rows, 2, 4)))
    got, last = ours(bb.asarray(x), (bb.asarray(hidden), bb.asarray(cell)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a library that does not support projections
        expected, after = theirs(torch.from_numpy(x), (torch.from_numpy(hidden), torch.from_numpy(cell)))
    for a, b in zip((got, *last), (expected, *after), strict=True):
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-5)
    gradients = got.square().sum().backward()
    expected.square().sum().backward()
    for path, parameter in ours.named_parameters():
        expected = getattr(theirs, path).grad.numpy()
        gradient: Any = parameter.grad(gradients)
        np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-3, atol=1e-5)
    with pytest.raises(ShapeError, match=rf"LSTM: an initial state has the shape \[{rows}, 2, 2\]"):
        ours(bb.asarray(x), (bb.asarray(cell), bb.asarray(cell)))
    for size in (4, -1):
        with pytest.raises(ArgumentError, match=f"LSTM: proj_size is from 0 to hidden_size - 1, 3, not {size}"):
            nn.LSTM(3, 4, proj_size=size)


@pytest.mark.parametrize("bias", [True, False])
def test_gru_that_resets_before_its_product(bias: bool) -> None:
    def logistic(x: Any) -> Any:
        return 1.0 / (1.0 + np.exp(-x))

    layer = nn.GRU(3, 4, bias=bias, reset_after=False)
    x, h = normal(5, 2, 3).astype(np.float32), np.zeros((2, 4))
    cell, state = nn.GRUCell(3, 4, bias, reset_after=False), None
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    w, u, b, c = (np.zeros(12) if p is None else p.numpy().T for p in (
        layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0,
    ))  # fmt: skip
    outputs, last = layer(bb.asarray(x))
    for step, of_layer in zip(x, outputs.numpy(), strict=True):
        gates = logistic((step @ w + b + h @ u + c)[:, :8])
        new = np.tanh((step @ w + b)[:, 8:] + (gates[:, :4] * h) @ u[:, 8:] + c[8:])
        h = (1.0 - gates[:, 4:]) * new + gates[:, 4:] * h
        state = cell(bb.asarray(step), state)
        np.testing.assert_allclose(of_layer, h, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state.numpy(), h, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(last.numpy()[0], outputs.numpy()[-1])
    gradients = last.square().sum().backward()
    assert all(gradient.abs().max().item() > 0 for gradient in bb.optim.named_gradients(layer, gradients).values())
    with pytest.raises(ArgumentError, match="GRU: reset_after is True or False, not 1"):
        nn.GRU(3, 4, reset_after=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "more"), [("LSTMCell", ()), ("GRUCell", ()), ("RNNCell", ()), ("RNNCell", ("relu",))])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_cells(torch: Any, name: str, more: tuple[str, ...], bias: bool) -> None:
    theirs = getattr(torch.nn, name)(3, 4, bias, *more)
    ours = getattr(nn, name)(3, 4, bias, *more)
    ours.load_state_dict(state_of(theirs))
    steps = normal(3, 2, 3).astype(np.float32)
    mine: Any = None
    other: Any = None
    for x in steps:
        mine, other = ours(bb.asarray(x), mine), theirs(torch.from_numpy(x), other)
        for a, b in zip(*((s if name == "LSTMCell" else [s]) for s in (mine, other)), strict=True):
            np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-6)
    last, expected = (s[0] if name == "LSTMCell" else s for s in (mine, other))
    gradients = last.square().sum().backward()
    expected.square().sum().backward()
    for path, parameter in ours.named_parameters():
        expected = getattr(theirs, path).grad.numpy()
        np.testing.assert_allclose(parameter.grad(gradients).numpy(), expected, rtol=1e-3, atol=1e-6)
    with pytest.raises(ShapeError, match=f"{name}: the input has the shape"):
        ours(bb.asarray(steps))
    if name == "LSTMCell":
        with pytest.raises(ArgumentError, match="the states are a pair"):
            ours(bb.asarray(x), last)
    wrong = bb.zeros((3, 4))
    with pytest.raises(ShapeError, match=f"{name}: a state has the shape"):
        ours(bb.asarray(x), (wrong, wrong) if name == "LSTMCell" else wrong)


def test_invalid_cells_are_refused() -> None:
    x, h, w = bb.zeros((2, 12)), bb.zeros((2, 3)), bb.zeros((12, 3))
    with pytest.raises(ShapeError, match=r"lstm_cell: the bias must have the shape \[12\]"):
        layers.lstm_cell(x, h, h, w, bb.zeros((1,)))
    with pytest.raises(ShapeError, match=r"lstm_cell: the projected input must have the shape \[2, 12\]"):
        layers.lstm_cell(x[:1], h, h, w)
    with pytest.raises(ShapeError, match=r"gru_cell: a state .* takes a weight \(3 \* size, size\)"):
        layers.gru_cell(x, h, w)


class First(bb.nn.Module):
    """A module that returns only the first result of another."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)[0]


# ---- recurrent layers ----


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_activations_of_recurrent_layers(torch: Any, activation: str, bidirectional: bool) -> None:
    model = nn.RNN(3, 4, 2, activation, bidirectional=bidirectional).astype("float64")
    directions = 2 if bidirectional else 1

    def theirs(p: Any, x: Any, state: Any) -> Any:
        other = torch.nn.RNN(3, 4, 2, activation, bidirectional=bidirectional, dtype=torch.float64)
        weights = {path.removeprefix("module."): given for path, given in p.items()}
        return torch.func.functional_call(other, weights, (x, state))[0]

    agrees(First(model), theirs, normal(5, 2, 3), normal(2 * directions, 2, 4))


def test_unknown_activations_of_recurrent_layers_are_refused() -> None:
    with pytest.raises(ArgumentError, match="RNN: the nonlinearity is one of 'tanh', 'relu', not 'gelu'"):
        nn.RNN(3, 4, nonlinearity="gelu")
    with pytest.raises(TypeError, match=r"RNN\(\) got an unexpected .*'activation'; here: nonlinearity"):
        ANY.RNN(3, 4, activation="relu")
