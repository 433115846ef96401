"""Every layer of ``nn`` computes its result and gradients shard by shard: none gathers operands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn
from backburn.distributed import place, plans
from backburn.nn.functional import max_pool_with_indices

#: Shapes of batches of rows, sequences, signals, images and volumes.
ROWS, SEQUENCE = (6, 8), (6, 5, 8)
SIGNALS, IMAGES, VOLUMES = (6, 4, 8), (6, 4, 6, 8), (6, 4, 4, 6, 4)
Case = tuple[Callable[[], Any], tuple[Any, ...]]


def ints(*shape: int) -> tuple[Any, ...]:
    """The shape of an integer input."""
    return "ints", shape


class Taking(nn.Module):
    """A layer called by ``call(layer, *inputs)``."""

    def __init__(self, layer: Any, call: Callable[..., Any]) -> None:
        self.layer = layer
        self.call = call

    def forward(self, *inputs: Any) -> Any:
        return self.call(self.layer, *inputs)


def unpooled(dims: int) -> Callable[..., Any]:
    """A call that unpools the result of maximum pooling."""
    return lambda layer, x: layer(*max_pool_with_indices(x, (2,) * dims))


def first_of(layer: Any, x: Any) -> Any:
    """Returns only the first result of a layer."""
    return layer(x)[0]


def made(name: str, *arguments: Any, take: Callable[..., Any] | None = None, **options: Any) -> Any:
    """A layer of ``nn``, called by ``take`` if given."""
    layer = getattr(nn, name)(*arguments, **options)
    return layer if take is None else Taking(layer, take)


CASES: dict[str, Case] = {
    **{
        name: (partial(made, name), (SEQUENCE,))
        for name in (
            *("CELU", "ELU", "GELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "Identity"),
            *("LeakyReLU", "LogSigmoid", "LogSoftmax", "Mish", "PReLU", "ReLU", "ReLU6", "SELU", "SiLU"),
            *("Sigmoid", "Softmax", "Softmin", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Flatten"),
            *("AlphaDropout", "Dropout"),
        )
    },
    "Threshold": (lambda: nn.Threshold(0.1, 2.0), (SEQUENCE,)),
    "Pad": (lambda: nn.Pad(1), (IMAGES,)),
    "Unflatten": (lambda: nn.Unflatten(1, (2, 4)), (ROWS,)),
    "Function": (lambda: nn.Function(bb.tanh), (ROWS,)),
    "Sequential": (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (ROWS,)),
    "Linear": (lambda: nn.Linear(8, 3), (SEQUENCE,)),
    "LoRALinear": (lambda: nn.LoRALinear(nn.Linear(8, 3), 2), (SEQUENCE,)),
    "FakeQuantizedLinear": (lambda: nn.FakeQuantizedLinear(nn.Linear(8, 3)), (ROWS,)),
    "FakeQuantizedConv": (lambda: nn.FakeQuantizedConv(nn.Conv2d(4, 3, 3)), (IMAGES,)),
    "QuantizedLinear": (lambda: nn.QuantizedLinear(nn.Linear(8, 3)), (ROWS,)),
    "QuantizedConv": (lambda: nn.QuantizedConv(nn.Conv2d(4, 3, 3)), (IMAGES,)),
    "Bilinear": (lambda: nn.Bilinear(8, 8, 3), (ROWS, ROWS)),
    "Embedding": (lambda: nn.Embedding(10, 8), (ints(6, 5),)),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(10, 8), (ints(6, 5),)),
    "LayerNorm": (lambda: nn.LayerNorm(8), (SEQUENCE,)),
    "RMSNorm": (lambda: nn.RMSNorm(8), (SEQUENCE,)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (IMAGES,)),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), (IMAGES,)),
    "BatchNorm": (lambda: nn.BatchNorm(8), (ROWS,)),
    "InstanceNorm": (lambda: nn.InstanceNorm(4), (IMAGES,)),
    "SpectralNorm": (lambda: nn.SpectralNorm(nn.Linear(8, 3)), (ROWS,)),
    "WeightNorm": (lambda: nn.WeightNorm(nn.Linear(8, 3)), (ROWS,)),
    "MultiheadAttention": (lambda: Taking(nn.MultiheadAttention(8, 2), lambda m, x: m(x, x, x)), (SEQUENCE,)),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16), (SEQUENCE,)),
    "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(8, 2, 16), (SEQUENCE, SEQUENCE)),
    "RotaryEmbedding": (lambda: nn.RotaryEmbedding(8), ((6, 2, 5, 8),)),
    "Upsample": (lambda: nn.Upsample(scale_factor=2), (IMAGES,)),
    **{
        f"{name}{dims}d": (partial(made, f"{name}{dims}d", *a), (shape,))
        for dims, shape in ((1, SIGNALS), (2, IMAGES), (3, VOLUMES))
        for name, a in (
            *((kind, (2,)) for kind in ("AdaptiveAvgPool", "AdaptiveMaxPool", "AvgPool", "MaxPool")),
            *(("LPPool", (2, 2)), ("BatchNorm", (4,)), ("InstanceNorm", (4,)), ("Dropout", ())),
            *(("Conv", (4, 3, 2)), ("ConvTranspose", (4, 3, 2))),
        )
    },
    **{
        f"MaxUnpool{dims}d": (partial(made, f"MaxUnpool{dims}d", 2, take=unpooled(dims)), (shape,))
        for dims, shape in ((1, SIGNALS), (2, IMAGES), (3, VOLUMES))
    },
    **{
        f"{name}{', two layers' * deep}{', both ways' * both}": (
            partial(made, name, 8, 4, num_layers=1 + deep, bidirectional=bool(both), batch_first=True, take=first_of),
            (SEQUENCE,),
        )
        for name in ("RNN", "LSTM", "GRU")
        for deep, both in ((0, 0), (1, 0), (0, 1))
    },
    **{name: (partial(made, name, 8, 4), (ROWS,)) for name in ("RNNCell", "GRUCell")},
    "LSTMCell": (partial(made, "LSTMCell", 8, 4, take=first_of), (ROWS,)),
}


def run(name: str, spec: str, plan: Any, cut: bool) -> list[Any]:
    """The result of a layer, and the gradients of its parameters and inputs."""
    make, shapes = CASES[name]
    rng = np.random.default_rng(0)
    found: list[Any] = []
    with bb.use_backend(spec):
        bb.random.seed(0)
        layer = make()
        if cut and isinstance(layer, nn.Module):
            layer = place(layer, plans.named(plan, "dp"))
        inputs = []
        for shape in shapes:
            if shape[0] == "ints":
                x = bb.asarray(rng.integers(0, 10, shape[1]))
            else:
                x = bb.asarray(np.asarray(rng.normal(size=shape), np.float32))
            x = place(x, {"dp": 0}) if cut else x
            inputs.append(x.require_grad() if x.dtype.kind == "float" else x)
        result = layer(*inputs)
        gradients = (result * result).sum().backward()
        tensors = [x for x in inputs if x.dtype.kind == "float"] + list(layer.parameters())
        found = [result.numpy(), *(g.numpy() for g in (x.grad(gradients) for x in tensors) if g is not None)]
    return found


@pytest.mark.parametrize("plan", ["replicated", "sharded"])
@pytest.mark.parametrize("name", CASES)
def test_layers_compute_shard_by_shard(name: str, plan: str) -> None:
    expected = run(name, "autodiff(numpy)", plan, cut=False)
    found = run(name, "autodiff(sharded(numpy, dp=2, on_fallback=error))", plan, cut=True)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-4, strict=True)


def test_all_layers_have_a_case() -> None:
    layers = {
        name for name in nn.__all__ if isinstance(kind := getattr(nn, name), type) and issubclass(kind, nn.Module)
    }
    assert layers - {name.partition(",")[0] for name in CASES} == {"Module", "ModuleList"}
