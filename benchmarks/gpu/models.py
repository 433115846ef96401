"""Three models, each written once over the functions of a framework: a small network, a GPT, a ResNet.

A model is a function of a namespace of functions, its parameters and a batch, and returns the loss. Initial parameters
are the same float32 arrays in every framework.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = Any


@dataclass(frozen=True)
class Model:
    """A model and its training: ``loss(f, parameters, *batch)``, the initial arrays, and the optimizer."""

    loss: Callable[..., Any]
    parameters: Arrays
    batch: tuple[np.ndarray[Any, Any], ...]
    dtype: str
    optimizer: str


class Random:
    """Initial arrays."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def normal(self, *shape: int, std: float) -> Any:
        return (self._rng.standard_normal(shape) * std).astype(np.float32)

    def integers(self, high: int, *shape: int) -> Any:
        return self._rng.integers(0, high, shape)


# ---- a small network: Python and launch overhead dominate ----


def mlp(small: bool = False) -> Model:
    """784-1024-1024-10, batch 128, ReLU, cross-entropy, Adam."""
    sizes, batch = ((8, 16, 16, 4), 4) if small else ((784, 1024, 1024, 10), 128)
    random = Random()
    layers = [
        {"weight": random.normal(m, n, std=math.sqrt(2 / n)), "bias": np.zeros(m, np.float32)}
        for n, m in itertools.pairwise(sizes)
    ]

    def loss(f: Any, layers: Any, x: Any, y: Any) -> Any:
        for layer in layers[:-1]:
            x = f.relu(f.linear(x, layer["weight"], layer["bias"]))
        return f.cross_entropy(f.linear(x, layers[-1]["weight"], layers[-1]["bias"]), y)

    examples = random.normal(batch, sizes[0], std=1.0), random.integers(sizes[-1], batch)
    return Model(loss, layers, examples, "float32", "adam")


# ---- a GPT: products, attention, normalizations ----


def gpt(small: bool = False) -> Model:
    """12 layers of width 768 with 12 heads, 8 x 1,024 tokens, bfloat16, AdamW."""
    layers, width, heads, batch, tokens, words = (2, 16, 2, 2, 8, 32) if small else (12, 768, 12, 8, 1024, 50304)
    random, residual = Random(), 0.02 / math.sqrt(2 * layers)

    def dense(n: int, m: int, std: float = 0.02) -> Any:
        return {"weight": random.normal(m, n, std=std), "bias": np.zeros(m, np.float32)}

    def norm() -> Any:
        return {"weight": np.ones(width, np.float32), "bias": np.zeros(width, np.float32)}

    blocks = [
        {
            "norm1": norm(), "qkv": dense(width, 3 * width), "out": dense(width, width, residual),
            "norm2": norm(), "up": dense(width, 4 * width), "down": dense(4 * width, width, residual),
        }
        for _ in range(layers)
    ]  # fmt: skip
    parameters = {
        "words": random.normal(words, width, std=0.02), "places": random.normal(tokens, width, std=0.02),
        "blocks": blocks, "norm": norm(),
    }  # fmt: skip

    def heads_first(f: Any, x: Any) -> Any:
        return f.permute(f.reshape(x, (batch, tokens, heads, width // heads)), (0, 2, 1, 3))

    def block(f: Any, p: Any, x: Any) -> Any:
        qkv = f.dense(f.layer_norm(x, **p["norm1"]), **p["qkv"])
        q, k, v = (heads_first(f, part) for part in f.split3(qkv))
        mixed = f.reshape(f.permute(f.attention(q, k, v), (0, 2, 1, 3)), (batch, tokens, width))
        x = x + f.dense(mixed, **p["out"])
        return x + f.feed_forward(f.layer_norm(x, **p["norm2"]), p["up"], p["down"])

    def loss(f: Any, p: Any, x: Any, y: Any) -> Any:
        h = f.embedding(p["words"], x) + p["places"]
        for each in p["blocks"]:
            h = block(f, each, h)
        logits = f.reshape(f.layer_norm(h, **p["norm"]), (batch * tokens, width)) @ f.transpose(p["words"])
        return f.cross_entropy(logits, y)

    ids = random.integers(words, batch, tokens)
    return Model(loss, parameters, (ids, random.integers(words, batch * tokens)), "bfloat16", "adamw")


# ---- a ResNet: convolutions ----


def resnet(small: bool = False) -> Model:
    """A stem and four stages of two basic blocks, batch 64 of 3 x 224 x 224, float32, momentum."""
    widths, batch, side, classes = ((4, 8), 2, 16, 4) if small else ((64, 128, 256, 512), 64, 224, 1000)
    random = Random()

    def unit(n: int, m: int, size: int) -> Any:
        std = math.sqrt(2 / (n * size * size))
        weight = random.normal(m, n, size, size, std=std)
        return {"weight": weight, "scale": np.ones(m, np.float32), "bias": np.zeros(m, np.float32)}

    def basic(n: int, m: int) -> Any:
        return {"first": unit(n, m, 3), "second": unit(m, m, 3), **({} if n == m else {"short": unit(n, m, 1)})}

    stages, before = [], widths[0]
    for width in widths:
        stages.append([basic(before, width), basic(width, width)])
        before = width
    parameters = {
        "stem": unit(3, widths[0], 7), "stages": stages,
        "head": {"weight": random.normal(classes, before, std=0.01), "bias": np.zeros(classes, np.float32)},
    }  # fmt: skip

    def convolved(f: Any, p: Any, x: Any, stride: int) -> Any:
        return f.batch_norm(f.conv(x, p["weight"], stride, p["weight"].shape[-1] // 2), p["scale"], p["bias"])

    def loss(f: Any, p: Any, x: Any, y: Any) -> Any:
        x = f.max_pool(f.relu(convolved(f, p["stem"], x, 2)))
        for i, stage in enumerate(p["stages"]):
            for j, each in enumerate(stage):
                stride = 2 if i and not j else 1
                short = convolved(f, each["short"], x, stride) if "short" in each else x
                h = f.relu(convolved(f, each["first"], x, stride))
                x = f.relu(convolved(f, each["second"], h, 1) + short)
        return f.cross_entropy(f.linear(f.spatial_mean(x), **p["head"]), y)

    batch_x = random.normal(batch, 3, side, side, std=1.0)
    return Model(loss, parameters, (batch_x, random.integers(classes, batch)), "float32", "momentum")


MODELS = {"mlp": mlp, "gpt": gpt, "resnet": resnet}
