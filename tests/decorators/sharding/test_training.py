"""The layers and models of the package train with data, tensor and fully sharded parallelism; nothing gathers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim
from backburn.decorators.sharding import place_primitive
from backburn.models import GPT2, GPT2Config, Llama, LlamaConfig
from backburn.nn.functional import cross_entropy

RNG = np.random.default_rng(0)
ROWS, IMAGES, LABELS = RNG.normal(size=(9, 12)), RNG.normal(size=(9, 1, 8, 8)), RNG.integers(0, 6, 9)
TOKENS, NEXT = RNG.integers(0, 11, (2, 5, 6))


def mlp() -> nn.Module:
    layers = (nn.Linear(12, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(16), nn.Linear(16, 6))
    return nn.Sequential(*layers)


def cnn() -> nn.Module:
    first = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, nn.Conv2d(4, 8, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 6))


def transformer() -> nn.Module:
    block = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16)
    return nn.Sequential(nn.Embedding(11, 8), block, nn.LayerNorm(8), nn.Linear(8, 11))


def llama() -> nn.Module:
    heads = LlamaConfig(vocab_size=11, hidden_size=8, intermediate_size=16, num_attention_heads=4, num_hidden_layers=1)
    return Llama(replace(heads, num_key_value_heads=2))


def gpt2() -> nn.Module:
    return GPT2(GPT2Config(vocab_size=11, n_embd=8, n_layer=1, n_head=2, n_positions=16))


MODELS: dict[str, tuple[Callable[[], nn.Module], Any, Any]] = {
    "mlp": (mlp, ROWS.astype(np.float32), LABELS),
    "cnn": (cnn, IMAGES.astype(np.float32), LABELS),
    "transformer": (transformer, TOKENS, NEXT),
    "llama": (llama, TOKENS, NEXT),
    "gpt2": (gpt2, TOKENS, NEXT),
}
UP = ("0.weight", "0.bias", "q_proj", "k_proj", "v_proj", "linear1", "up_proj", "gate_proj")
DOWN = ("5.weight", "8.weight", "out_proj.weight", "o_proj.weight", "linear2.weight", "down_proj.weight")


def whole(path: str, shape: tuple[int, ...]) -> dict[str, int]:
    return {}


def fully_sharded(path: str, shape: tuple[int, ...]) -> dict[str, int]:
    return {"dp": next((a for a, n in enumerate(shape) if n % 2 == 0), 0)}


def by_rows(path: str, shape: tuple[int, ...]) -> dict[str, int]:
    return {"dp": 0}


def tensor_parallel(path: str, shape: tuple[int, ...]) -> dict[str, int]:
    if any(name in path for name in DOWN):
        return {"tp": 1}
    return {"tp": 0} if any(name in path for name in UP) else {}


def cut(x: Any, placement: dict[str, int]) -> Any:
    return type(x)(place_primitive(x.backend, x.primitive, placement), x.backend, x.dtype)


def losses(name: str, backend: str, placement: Any, rows: dict[str, int]) -> list[float]:
    make, inputs, labels = MODELS[name]
    with bb.use_backend(backend):
        bb.random.seed(0)
        model: Any = make()
        for leaf in model._parameters():
            if found := placement(leaf.path, tuple(leaf.value.shape)):
                leaf.put(cut(leaf.value, found))
        x, y = (cut(bb.asarray(t), rows) for t in (inputs, labels))
        optimizer, found = optim.AdamW(1e-2), []
        for _ in range(3):
            logits = model(x)
            loss = cross_entropy(logits.reshape((-1, logits.shape[-1])), y.reshape((-1,)))
            gradients, _ = optim.clip_grad_norm(optim.named_gradients(model, loss.backward()), 1.0)
            optimizer.step(model, gradients)
            found.append(loss.item())
    return found


@pytest.mark.parametrize("name", MODELS)
def test_models_train_in_parts(name: str) -> None:
    expected = losses(name, "autodiff(numpy)", whole, {})
    dp = "autodiff(sharded(numpy, dp=2, on_fallback=error))"
    both = "autodiff(sharded(sharded(numpy, tp=2, on_fallback=error), dp=2, on_fallback=error))"
    for mesh, placement in ((dp, whole), (dp, fully_sharded), (dp, by_rows), (both, tensor_parallel)):
        np.testing.assert_allclose(losses(name, mesh, placement, {"dp": 0}), expected, rtol=2e-4)
