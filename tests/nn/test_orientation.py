"""Weights are (outputs, inputs) wherever that affects results: initial values, optimizers, adapters, products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim
from backburn.nn import init

RANDOM = np.random.default_rng(0)


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def alike(torch: Any) -> tuple[Any, Any]:
    """A linear layer with more outputs than inputs, and PyTorch's with the same parameters, in float64."""
    theirs = torch.nn.Linear(3, 8, dtype=torch.float64)
    ours = nn.Linear(3, 8).astype("float64")
    ours.load_state_dict({path: x.numpy() for path, x in theirs.state_dict().items()})
    return ours, theirs


@pytest.mark.parametrize("shape", [(8, 3), (3, 8), (4, 2, 3), (6, 2, 3, 5)])
def test_fans(torch: Any, shape: tuple[int, ...]) -> None:
    assert init.fans(shape) == torch.nn.init._calculate_fan_in_and_fan_out(torch.empty(shape))


@pytest.mark.parametrize("name", ["kaiming_uniform", "kaiming_normal"])
def test_initial_values_depend_on_the_inputs(torch: Any, name: str) -> None:
    theirs = getattr(torch.nn.init, f"{name}_")(torch.empty(400, 100)).std().item()
    assert float(getattr(init, name)((400, 100)).std()) == pytest.approx(theirs, rel=0.02)
    assert float(getattr(init, name)((100, 400)).std()) == pytest.approx(0.5 * theirs, rel=0.02)


@pytest.mark.parametrize("make", [nn.Linear, nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_initial_values_of_layers(torch: Any, make: Any) -> None:
    """Uniform within PyTorch's bounds, from the inputs of a linear layer or the state size of a cell."""
    bound = (300 if make is nn.Linear else 20) ** -0.5
    theirs = getattr(torch.nn, make.__name__)(300, 20)
    for layer in ([x.numpy() for x in make(300, 20).parameters()], [x.detach().numpy() for x in theirs.parameters()]):
        largest = [np.abs(x).max() for x in layer]
        assert 0.99 * bound < max(largest) <= 1.0001 * bound
        assert min(largest) > 0.5 * bound


OPTIMIZERS: list[tuple[str, Callable[[], Any], dict[str, Any]]] = [
    ("Muon", lambda: optim.Muon(0.1), {"lr": 0.1}),
    ("Adafactor", lambda: optim.Adafactor(0.2), {"lr": 0.2}),
]


@pytest.mark.parametrize(("name", "make", "options"), OPTIMIZERS)
def test_optimizers_that_depend_on_the_orientation(
    torch: Any, name: str, make: Callable[[], Any], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda x: x.clone())  # PyTorch's Muon computes in bfloat16
    ours, theirs = alike(torch)
    turned = {"x": ours.weight.T.detach().require_grad()}
    x = RANDOM.normal(size=(6, 3))
    optimizers = make(), make(), getattr(torch.optim, name)([theirs.weight], **options)
    gradient = bb.grad(lambda model: (model(bb.asarray(x)) ** 2.0).mean())(ours.freeze("bias")).weight
    (theirs(torch.from_numpy(x)) ** 2.0).mean().backward()
    optimizers[0].step(ours, {"weight": gradient})
    optimizers[1].step(turned, {"x": gradient.T})
    optimizers[2].step()
    np.testing.assert_allclose(ours.weight.numpy(), theirs.weight.detach().numpy(), rtol=1e-9, atol=1e-12)
    if name == "Muon":
        assert not np.allclose(turned["x"].numpy().T, ours.weight.numpy(), rtol=1e-3)
    else:  # Adafactor's updates are equal, but its rows and columns are not
        state = optimizers[2].state[theirs.weight]
        for path, key in (("weight.rows", "row_var"), ("weight.columns", "col_var")):
            np.testing.assert_allclose(optimizers[0].state_tensors()[path].numpy(), state[key].numpy(), rtol=1e-9)


def test_norms_of_weights(torch: Any) -> None:
    """By default each output, a row of the matrix, has a norm."""
    layer, theirs = alike(torch)
    norm = torch.nn.utils.parametrizations.weight_norm(theirs)
    made = nn.WeightNorm(layer)
    magnitude = norm.parametrizations.weight.original0.detach().numpy()
    np.testing.assert_allclose(made.magnitude.numpy(), magnitude, rtol=1e-12)
    assert made.magnitude.shape == (8, 1)
    spectral = nn.SpectralNorm(layer)
    assert (spectral.u.shape, spectral.v.shape) == ((8,), (3,))
    bilinear = nn.SpectralNorm(nn.Bilinear(2, 3, 5))
    assert (bilinear.u.shape, bilinear.v.shape) == ((5,), (6,))


def test_adapters() -> None:
    base = nn.Linear(6, 4).astype("float64")
    layer = nn.LoRALinear(base, rank=2, alpha=3.0).astype("float64")
    assert (layer.lora_A.shape, layer.lora_B.shape) == ((2, 6), (4, 2))
    a, b = RANDOM.normal(size=(2, 6)), RANDOM.normal(size=(4, 2))
    layer.load_state_dict({**layer.state_dict(), "lora_A": a, "lora_B": b})
    x = RANDOM.normal(size=(5, 6))
    merged = base.weight.numpy() + 1.5 * b @ a  # as in PEFT
    assert base.bias is not None
    expected = x @ merged.T + base.bias.numpy()
    np.testing.assert_allclose(layer(bb.asarray(x)).numpy(), expected, rtol=1e-12)


def test_products_with_quantized_weights() -> None:
    """Blocks and channels refer to the axes of the layer's weight, and no option transposes it."""
    layer, x = nn.Linear(6, 4), bb.asarray(RANDOM.normal(size=(5, 6)).astype(np.float32))
    made = nn.QuantizedLinear(layer, "qint8_symmetric_channel0_float32")
    assert (made.weight.shape, made.weight.nbytes) == ((4, 6), 4 * 6 + 4 * 4)  # a step for each output
    np.testing.assert_allclose(made(x).numpy(), layer(x).numpy(), atol=0.05)
    with pytest.raises(TypeError, match="transposed"):
        bb.quantized_linear(x, made.weight, transposed=True)  # type: ignore[call-arg]


@pytest.mark.parametrize("size", [3, 5])
def test_square_weights_are_loaded_as_they_are(torch: Any, size: int) -> None:
    """Weights are matched by name and never transposed to fit, which a square weight would hide."""
    theirs, ours = torch.nn.Linear(3, size, dtype=torch.float64), nn.Linear(3, size).astype("float64")
    x = RANDOM.normal(size=(4, 3))
    ours.load_state_dict({path: t.numpy() for path, t in theirs.state_dict().items()})
    expected = theirs(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(ours(bb.asarray(x)).numpy(), expected, rtol=1e-12)
    if size != 3:
        with pytest.raises(bb.errors.ShapeError, match=r"weight has shape \[3, 5\] there and \[5, 3\] here. Nothing"):
            ours.load_state_dict({"weight": np.zeros((3, 5)), "bias": np.zeros(5)})
