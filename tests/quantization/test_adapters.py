"""Quantized layers and models, and adapters trained on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, DTypeError, NotDifferentiableError, ShapeError
from backburn.nn import Linear, LoRALinear, QuantizedLinear, ReLU, Sequential, add_adapters, functional, quantize_model
from backburn.nn.functional import mse_loss
from backburn.optim import Adam

X = bb.asarray(np.random.default_rng(0).standard_normal((16, 12)).astype(np.float32))


def model() -> Sequential:
    bb.random.seed(1)
    return Sequential(Linear(12, 8), ReLU(), Linear(8, 3))


@pytest.mark.parametrize(
    ("scheme", "tolerance"),
    [
        ("qint8_symmetric_channel0_float32", 0.02),
        ("quint8_affine_tensor_float32", 0.03),
        ("qint4_affine_block4_float16", 0.3),
        ("qint8_affine_block3x5_float16", 0.03),
    ],
)
def test_a_quantized_model_computes_nearly_the_same(scheme: str, tolerance: float) -> None:
    m = model()
    q = quantize_model(m, scheme)
    assert [type(layer) for layer in q] == [QuantizedLinear, ReLU, QuantizedLinear]
    assert [type(layer) for layer in m] == [Linear, ReLU, Linear]
    assert float((q(X) - m(X)).max_abs().item()) < tolerance
    assert not q(X).is_tracked


def test_patterns() -> None:
    assert [type(layer) for layer in quantize_model(model(), pattern="2")] == [Linear, ReLU, QuantizedLinear]
    with pytest.raises(ArgumentError, match=r"matches 'x'. Layers: 0, 2"):
        quantize_model(model(), pattern="x")
    assert [type(layer) for layer in quantize_model(model(), skip=("0",))] == [Linear, ReLU, QuantizedLinear]
    for skip in ("head", ("0", "head"), "1"):
        with pytest.raises(ArgumentError, match=r"no layer's path matches '(head|1)', .*skipped. Layers: 0, 2"):
            quantize_model(model(), skip=skip)
    with pytest.raises(ArgumentError, match="float32 is not a scheme"):
        quantize_model(model(), "float32")


def test_loading_float_states_into_quantized_models_has_a_hint() -> None:
    m = model()
    q = quantize_model(m)
    with pytest.raises(DTypeError, match=r"0.weight is qint8.* there and float32 here: quantize_like\(model, state\)"):
        m.load_state_dict(q.state_dict())
    with pytest.raises(DTypeError, match=r"0.weight is float32 there and qint8.* here: load it, then quantize"):
        q.load_state_dict(m.state_dict())


def test_only_adapters_are_trained() -> None:
    q = quantize_model(model(), "qint4_symmetric_block4_float16")
    adapted = add_adapters(q, rank=2)
    assert [type(layer) for layer in adapted] == [LoRALinear, ReLU, LoRALinear]
    np.testing.assert_array_equal(adapted(X).numpy(), q(X).numpy())  # lora_B begins with zeros
    frozen = {name: x.numpy() for name, x in adapted.state_dict().items() if "base" in name}
    target = bb.asarray(np.random.default_rng(1).standard_normal((16, 3)).astype(np.float32))
    optimizer, losses = Adam(0.02), []
    for _ in range(60):
        loss = mse_loss(adapted(X), target)
        optimizer.step(adapted, loss.backward())
        losses.append(float(loss.item()))
    assert losses[-1] < 0.7 * losses[0]
    for name, x in adapted.state_dict().items():
        if name in frozen:
            np.testing.assert_array_equal(x.numpy(), frozen[name])


def test_options_of_adapters() -> None:
    q = quantize_model(model())
    adapted: Any = add_adapters(q, rank=2, alpha=8.0, pattern="2")
    assert [type(layer) for layer in adapted] == [QuantizedLinear, ReLU, LoRALinear]
    assert adapted[2].scaling == 4.0
    wrong: Any = "much"
    with pytest.raises(ArgumentError, match="LoRALinear: alpha is a number, not 'much'"):
        add_adapters(q, alpha=wrong)


def test_functional_on_tensors() -> None:
    w = bb.asarray(np.random.default_rng(0).standard_normal((5, 12)).astype(np.float32))
    q = w.quantize(dtype="qint4_affine_channel0_float32")
    x = X.require_grad()
    y = bb.quantized_linear(x, q)
    np.testing.assert_allclose(y.numpy(), X.numpy() @ q.numpy().T, atol=1e-5)
    np.testing.assert_allclose(np.asarray(x.grad(y.sum().backward())), np.ones((16, 5)) @ q.numpy(), atol=1e-5)
    product = bb.quantized_matmul(X.quantize(), q.T, dtype="float64")
    np.testing.assert_allclose(product.numpy(), X.quantize().numpy().astype(float) @ q.numpy().T, atol=1e-5)
    with pytest.raises(DTypeError, match="quantized_linear: takes a quantized tensor"):
        bb.quantized_linear(X, w)
    with pytest.raises(ShapeError, match=r"q(uantized)?_linear: .*12 inputs.*float32\[2,3\]"):
        bb.quantized_linear(bb.zeros((2, 3)), q)


def test_straight_through() -> None:
    x = bb.asarray([127.0, 0.7, -3.2]).require_grad()
    for y in (x.quantize(straight_through=True), functional.fake_quantize(x)):
        assert y.tolist() == [127.0, 1.0, -3.0]
        np.testing.assert_array_equal(np.asarray(x.grad((y * y).sum().backward())), [254.0, 2.0, -6.0])
    with pytest.raises(NotDifferentiableError, match="straight_through=True"):
        x.quantize()
