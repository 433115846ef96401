"""Models with quantized layers: convolutions, quantization-aware training, restoring, and errors naming the layer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, DTypeError, NumericalInstabilityError, ShapeError
from backburn.nn import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    Flatten,
    Linear,
    Module,
    QuantizedConv,
    QuantizedLinear,
    ReLU,
    Sequential,
)  # fmt: skip
from backburn.optim import Adam
from backburn.quantization import (
    MSE,
    add_adapters,
    calibrate,
    fake_quantize_model,
    gptq,
    quantize_like,
    quantize_model,
    sensitivity,
)  # fmt: skip

RANDOM = np.random.default_rng(0)
INT4 = "qint4_symmetric_block8_float16"


def tensor(*shape: int) -> Any:
    return bb.asarray(RANDOM.standard_normal(shape).astype(np.float32))


MIXED = RANDOM.standard_normal((24, 24)).astype(np.float32)
BATCHES = [bb.asarray(np.maximum(RANDOM.standard_normal((32, 24)).astype(np.float32) @ MIXED, 0)) for _ in range(6)]


def model() -> Any:
    bb.random.seed(1)
    return Sequential(Linear(24, 32), ReLU(), Linear(32, 8), ReLU(), Linear(8, 4))


CONVOLUTIONS = [
    (Conv1d, (5, 4, 9), {"stride": 2, "groups": 2}), (Conv2d, (3, 4, 6, 5), {"padding": "same"}),
    (Conv3d, (2, 4, 4, 3, 5), {"dilation": 1}), (ConvTranspose1d, (5, 4, 6), {"stride": 2, "output_padding": 1}),
    (ConvTranspose2d, (2, 4, 5, 5), {"groups": 2}), (ConvTranspose3d, (2, 4, 3, 3, 3), {"padding": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "shape", "options"), CONVOLUTIONS)
@pytest.mark.parametrize("static", [True, False])
def test_quantized_activations_of_convolutions(kind: Any, shape: Any, options: Any, static: bool) -> None:
    """They compute with rounded inputs and weights, pass gradients, and are restored exactly from their state."""
    bb.random.seed(0)
    plain: Any = Sequential(kind(4, 6, 3, **options), ReLU())
    x, activations = tensor(*shape), "quint8_affine_tensor_float32"
    found = calibrate(plain, [x * 0.5]) if static else None
    m: Any = quantize_model(plain, "qint8_affine_block4_float32", activations=activations, inputs=found)
    layer = m[0]
    assert (type(layer), layer.activations) == (QuantizedConv, activations)
    rounded = copy.copy(plain[0])
    rounded.weight = layer.weight.dequantize().reshape(*plain[0].weight.shape)
    q = x.quantize(dtype=activations, low=layer.low, high=layer.high)
    expected = rounded(q.dequantize()).detach().numpy()
    np.testing.assert_allclose(layer(x).numpy(), expected, atol=1e-5)
    leaf = x.require_grad()
    gradient = leaf.grad(layer(leaf).sum().backward()).numpy()
    passed = leaf.grad(rounded(leaf).sum().backward()).numpy()
    inside = (layer.low.numpy() <= x.numpy()) & (x.numpy() <= layer.high.numpy()) if static else True
    np.testing.assert_allclose(gradient, np.where(inside, passed, 0), atol=1e-5)
    state = m.state_dict()
    again = quantize_like(plain, state)
    again.load_state_dict(state)
    np.testing.assert_array_equal(again(x).numpy(), m(x).numpy())


# ---- quantization-aware training ----


@pytest.mark.parametrize("activations", [None, "quint8_affine_tensor_float32"])
def test_quantization_aware_training(activations: str | None) -> None:
    """A model trained with rounded values computes the same when quantized, with a smaller error than without."""
    from backburn.nn.functional import mse_loss

    bb.random.seed(3)
    m = Sequential(Linear(24, 32), ReLU(), Linear(32, 4))
    name, x = "qint4_symmetric_tensor_float32", bb.concat(BATCHES) / 30.0
    target = bb.asarray(np.tanh(np.asarray(x) @ RANDOM.standard_normal((24, 4)).astype(np.float32)))
    inputs = calibrate(m, [x]) if activations else None

    def train(f: Any) -> float:
        optimizer = Adam(0.01)
        for _ in range(150):
            optimizer.step(f, mse_loss(f(x), target).backward())
        return float(mse_loss(f(x), target).item())

    aware = fake_quantize_model(m, name, activations=activations, inputs=inputs)
    assert [type(layer).__name__ for layer in aware] == ["FakeQuantizedLinear", "ReLU", "FakeQuantizedLinear"]
    train(m)
    loss = train(aware)
    small = quantize_model(aware, name, activations=activations, inputs=inputs)
    np.testing.assert_allclose(small(x).detach().numpy(), aware(x).detach().numpy(), atol=2e-4)
    assert loss < float(mse_loss(quantize_model(m, name)(x), target).item())
    with pytest.raises(ArgumentError, match="no range for the inputs of '0'"):
        fake_quantize_model(m, name, activations="qint8_symmetric_tensor_float32", inputs={})


def test_quantize_like_follows_the_state() -> None:
    m: Any = Sequential(Linear(8, 4), ReLU(), Conv2d(1, 2, 1), Linear(4, 2))
    state = quantize_model(m, INT4, skip="3").state_dict()
    made: Any = quantize_like(m, state)
    made.load_state_dict(state)
    assert [type(layer).__name__ for layer in made] == ["QuantizedLinear", "ReLU", "QuantizedConv", "Linear"]
    assert made[0].weight.dtype == INT4


def test_integer_and_quantized_inputs() -> None:
    for layer, shape in ((Linear(4, 3), (2, 4)), (Conv1d(2, 3, 2), (1, 2, 4))):
        m: Any = quantize_model(Sequential(layer), activations="quint8_affine_tensor_float32")
        whole = bb.ones(shape, dtype="int32")
        np.testing.assert_allclose(m(whole).numpy(), m(whole.astype("float32")).numpy(), atol=1e-5)
        q = tensor(*shape).quantize(dtype="qint8_symmetric_channel0_float32")
        np.testing.assert_allclose(m(q).numpy(), m(q.dequantize()).numpy(), atol=1e-5)
        assert m(bb.zeros((0, *shape[1:]))).shape[0] == 0


@pytest.mark.parametrize("static", [True, False])
def test_quantized_inputs_in_transforms(static: bool) -> None:
    """Each example has its own range, unless ranges are static."""
    m, activations = model().eval(), "quint8_affine_tensor_float32"
    small = quantize_model(m, activations=activations, inputs=calibrate(m, BATCHES) if static else None)
    x = BATCHES[0]
    expected = np.stack([small(row).numpy() for row in x])
    np.testing.assert_allclose(bb.vmap(small)(x).numpy(), expected, atol=1e-3)
    gradients: Any = bb.vmap(bb.grad(lambda row: small(row).square().sum()))(x)
    leaf: Any = x[3].require_grad()
    np.testing.assert_allclose(
        gradients[3].numpy(), leaf.grad(small(leaf).square().sum().backward()).numpy(), atol=1e-2
    )
    below = bb.grad(lambda x: bb.grad(lambda y: small(x * bb.stop_gradient(y)).square().sum() * y)(1.0))(x[3])
    np.testing.assert_allclose(below.numpy(), gradients[3].numpy(), atol=1e-2)


@pytest.mark.parametrize("activations", ["quint8_affine_tensor_float32", "qint8_symmetric_channel1_float16"])
@pytest.mark.parametrize("static", [True, False])
def test_quantized_inputs_are_restored(tmp_path: Path, activations: str, static: bool) -> None:
    """State dicts and files restore schemes, and static ranges."""
    from backburn.io import load_model, save_model

    static = static and "tensor" in activations
    m = model().eval()
    found = calibrate(m, BATCHES, MSE(candidates=5)) if static else None
    small = quantize_model(m, INT4, skip="4", activations=activations, inputs=found)
    save_model(tmp_path / "m.safetensors", small.state_dict())
    for state in (small.state_dict(), load_model(tmp_path / "m.safetensors").state):
        made: Any = quantize_like(model(), state).eval()
        made.load_state_dict(state)
        assert [(layer.activations, layer.low is None) for layer in made[0:3:2]] == [(activations, not static)] * 2
        np.testing.assert_array_equal(made(BATCHES[0]).detach().numpy(), small(BATCHES[0]).detach().numpy())
    other = quantize_model(m, INT4, skip="4", activations="qint8_symmetric_tensor_float32", inputs=found)
    with pytest.raises((ShapeError, DTypeError), match=r"0\.inputs"):
        other.load_state_dict(small.state_dict(), strict=False)


def test_restoring_allocates_no_weights() -> None:
    import tracemalloc

    m: Any = Sequential(Linear(512, 512), ReLU(), Conv2d(64, 64, 3))
    state = quantize_model(m, "qint4_symmetric_block32_float16").state_dict()
    quantize_like(m, state)
    tracemalloc.start()
    made: Any = quantize_like(m, state)
    made.load_state_dict(state)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.05 * 4 * 512 * 512
    with pytest.raises(ShapeError, match=r"'0'.*\[512, 512\] there and \[8, 512\] here"):
        quantize_like(Sequential(Linear(512, 8)), state)
    with pytest.raises(ArgumentError, match=r"quantize_like: takes tensors by path"):
        quantize_like(m, [state])  # type: ignore[arg-type]


def test_adapters_on_quantized_layers_are_restored() -> None:
    adapted = add_adapters(quantize_model(model(), INT4), rank=2)
    made = quantize_like(add_adapters(model(), rank=2), adapted.state_dict())
    made.load_state_dict(adapted.state_dict())
    np.testing.assert_array_equal(made.eval()(BATCHES[0]).numpy(), adapted.eval()(BATCHES[0]).numpy())
    assert [p for p, x in made.named_parameters() if x.is_require_grad][:2] == ["0.lora_A", "0.lora_B"]


@pytest.mark.parametrize("activations", [None, "quint8_affine_tensor_float32"])
def test_quantization_aware_training_of_convolutions(activations: str | None) -> None:
    bb.random.seed(3)
    m: Any = Sequential(ConvTranspose2d(2, 3, 2), ReLU(), Conv2d(3, 4, 2, groups=1), Flatten(), Linear(64, 3))
    x, name = tensor(6, 2, 4, 4), "qint4_symmetric_channel0_float32"
    inputs = calibrate(m, [x]) if activations else None
    aware: Any = fake_quantize_model(m, name, activations=activations, inputs=inputs)
    assert [type(aware[i]).__name__ for i in (0, 2, 4)] == ["FakeQuantizedConv"] * 2 + ["FakeQuantizedLinear"]
    assert [p for p, _ in aware.named_parameters()] == [p for p, _ in m.named_parameters()]
    before, optimizer = float(aware(x).square().mean().item()), Adam(0.01)
    for _ in range(30):
        optimizer.step(aware, aware(x).square().mean().backward())
    assert float(aware(x).square().mean().item()) < 0.5 * before
    small: Any = quantize_model(aware, name, activations=activations, inputs=inputs)
    assert [type(small[i]) for i in (0, 2, 4)] == [QuantizedConv, QuantizedConv, QuantizedLinear]
    np.testing.assert_allclose(small(x).numpy(), aware(x).detach().numpy(), atol=1e-4)
    again: Any = fake_quantize_model(aware, name, activations=activations, inputs=inputs)
    np.testing.assert_array_equal(again(x).detach().numpy(), aware(x).detach().numpy())


def test_partly_quantized_models_can_be_quantized_further() -> None:
    """The layer inside a quantized convolution, which has no weight, is not a layer of the model."""
    bb.random.seed(0)
    m: Any = Sequential(Conv2d(1, 2, 3), Flatten(), Linear(8, 4))
    x = tensor(5, 1, 4, 4)
    part: Any = quantize_model(m, "qint8_symmetric_tensor_float32", "0")
    both: Any = quantize_model(part, "qint8_symmetric_tensor_float32")
    assert [type(layer) for layer in both] == [QuantizedConv, Flatten, QuantizedLinear]
    np.testing.assert_array_equal(both(x).numpy(), quantize_model(m, "qint8_symmetric_tensor_float32")(x).numpy())
    assert [layer.path for layer in sensitivity(part, [x], INT4).layers] == ["2"]
    assert list(calibrate(part, [x])) == ["2"]
    assert isinstance(gptq(part, [x], INT4)[2], QuantizedLinear)
    quantize_model(part, skip="0")
    with pytest.raises(ArgumentError, match="the model has no Linear or Convolution layer"):
        quantize_model(both)


@pytest.mark.parametrize("model", [3, Linear, lambda x: x], ids=["number", "class", "function"])
def test_only_modules_are_accepted(model: Any) -> None:
    quantization, scheme, data = bb.quantization, "qint8_symmetric_tensor_float32", [tensor(4, 3)]
    calls: dict[str, Callable[[], Any]] = {
        "quantize_model": lambda: quantization.quantize_model(model, scheme),
        "fake_quantize_model": lambda: quantization.fake_quantize_model(model, scheme),
        "quantize_like": lambda: quantization.quantize_like(model, {}),
        "add_adapters": lambda: quantization.add_adapters(model),
        "observe": lambda: quantization.calibrate(model, data),
        "sensitivity": lambda: quantization.sensitivity(model, data, scheme),
        "gptq": lambda: quantization.gptq(model, data, scheme),
    }
    for name, call in calls.items():
        with pytest.raises(ArgumentError, match=f"^{name}: takes a module, not "):
            call()


def test_errors_name_the_layer() -> None:
    class Unused(Module):
        def __init__(self) -> None:
            self.used, self.unused = Linear(3, 2), Linear(3, 2)

        def forward(self, x: Any) -> Any:
            return self.used(x)

    m: Any = Unused()
    activations = "quint8_affine_tensor_float32"
    found = calibrate(m, [tensor(4, 3)])
    for make in (quantize_model, fake_quantize_model):
        with pytest.raises(ArgumentError, match=r"'unused'.*nothing was observed.*skip"):
            make(m, "qint8_symmetric_tensor_float32", activations=activations, inputs=found)
        made = make(m, "qint8_symmetric_tensor_float32", skip="unused", activations=activations, inputs=found)
        assert type(made.unused) is Linear
    m.unused.weight = bb.full((2, 3), float("nan"))
    with pytest.raises(NumericalInstabilityError, match=r"'unused'.*finite"):
        quantize_model(m)


# ---- attention ----

#: The linear layers of an encoder layer.
PARTS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj", "linear1", "linear2"]


def of_kind(model: Module, kind: type[Module]) -> list[str]:
    """The paths of the layers of a class."""
    return [path for path, layer in model.named_modules() if isinstance(layer, kind)]


@pytest.mark.parametrize("groups", [4, 2])
def test_every_projection_of_attention_is_found(groups: int) -> None:
    """By quantization, calibration, GPTQ, quantization-aware training, adapters and sensitivity."""
    bb.random.seed(3)
    encoder = bb.nn.TransformerEncoderLayer(16, 4, 32).eval()
    encoder.self_attn = bb.nn.MultiheadAttention(16, 4, num_kv_heads=groups).eval()
    x = tensor(3, 5, 16)
    right = encoder(x).numpy()
    scheme = "qint8_symmetric_channel0_float32"
    inputs = calibrate(encoder, [x, x])
    assert list(inputs) == PARTS
    assert {*sensitivity(encoder, [x], scheme).worst(6)} == {*PARTS}
    for model in (
        quantize_model(encoder, scheme), gptq(encoder, [x], scheme),
        quantize_model(encoder, scheme, activations="qint8", inputs=inputs),
    ):  # fmt: skip
        assert of_kind(model, QuantizedLinear) == PARTS
        np.testing.assert_allclose(model(x).numpy(), right, atol=0.05)
    quantized = quantize_model(encoder, scheme)
    again = quantize_like(encoder, quantized.state_dict())
    again.load_state_dict(quantized.state_dict())
    assert again(x).tolist() == quantized(x).tolist()
    assert of_kind(fake_quantize_model(encoder, scheme), bb.nn.FakeQuantizedLinear) == PARTS
    for base in (encoder, quantized):
        adapted = add_adapters(base, rank=2)
        assert of_kind(adapted, bb.nn.LoRALinear) == PARTS
        assert adapted(x).tolist() == base(x).tolist()
        gradients = adapted(x).square().sum().backward()
        trained = [path for path, p in adapted.named_parameters() if p.is_require_grad]
        assert len(trained) == 2 * len(PARTS)
        assert all(p.grad(gradients) is not None for p in adapted.parameters() if p.is_require_grad)
    only = quantize_model(encoder, scheme, "self_attn.*", skip="*.out_proj")
    assert of_kind(only, QuantizedLinear) == PARTS[:3]
