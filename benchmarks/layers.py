"""Layers: convolution, normalization, embedding, scans, and chains of element-wise operations.

Every case is one forward and backward pass, on the same float32 data in both frameworks. The figure ``faults`` is the
number of page faults per step, after warm-up.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.cases import Figures, case

Step = Callable[[], Any]


def measured(step: Step, repeats: int = 30) -> Figures:
    """The median time and the mean number of page faults of a step, after warm-up steps."""
    for _ in range(5):
        step()
    seconds = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return {"step": sorted(seconds)[repeats // 2], "faults": faults / repeats}


def normal(*shape: int, seed: int = 0) -> Any:
    """Normally distributed float32 numbers."""
    import numpy as np

    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def integers(high: int, *shape: int) -> Any:
    """Integers below ``high``."""
    import numpy as np

    return np.random.default_rng(0).integers(0, high, shape)


def ours(function: Callable[..., Any], *arrays: Any) -> Figures:
    """A step of backburn: ``sum(function(*leaves) * weight)``, or a scalar ``function``, and its gradients."""
    import backburn as bb

    leaves = [bb.asarray(a).require_grad() for a in arrays]
    shape = function(*leaves).shape
    weight = bb.asarray(normal(*shape, seed=9)) if shape else None

    def step() -> Any:
        result = function(*leaves)
        gradients = result.backward() if weight is None else (result * weight).sum().backward()
        return [x.grad(gradients) for x in leaves]

    return measured(step)


def theirs(function: Callable[..., Any], *arrays: Any) -> Figures:
    """The figures of torch."""
    import torch

    leaves = [torch.from_numpy(a.copy()).requires_grad_() for a in arrays]
    shape = function(*leaves).shape
    weight = torch.from_numpy(normal(*shape, seed=9)) if shape else None

    def step() -> Any:
        result = function(*leaves)
        return torch.autograd.grad(result if weight is None else (result * weight).sum(), leaves)

    return measured(step)


# ---- convolution: batch 32, 32 channels of 28 x 28 to 64 channels, 3 x 3 filters ----

CONV = ((32, 32, 28, 28), (64, 32, 3, 3), (64,))


def _random(shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    return [normal(*shape, seed=seed) * 0.1 for seed, shape in enumerate(shapes)]


@case("conv2d", "backburn")
def conv_backburn() -> Figures:
    from backburn.nn.functional import conv

    return ours(lambda x, w, b: conv(x, w, b, padding=1), *_random(CONV))


@case("conv2d", "torch")
def conv_torch() -> Figures:
    from torch.nn.functional import conv2d

    return theirs(lambda x, w, b: conv2d(x, w, b, padding=1), *_random(CONV))


# ---- layer norm and cross-entropy, 4096 x 1024 ----

NORMALIZED = ((4096, 1024), (1024,), (1024,))


@case("layer norm", "backburn")
def layer_norm_backburn() -> Figures:
    import backburn as bb
    from backburn.nn.functional import cross_entropy, layer_norm

    labels = bb.asarray(integers(1024, 4096))
    return ours(lambda x, g, b: cross_entropy(layer_norm(x, g, b), labels), *_random(NORMALIZED))


@case("layer norm", "torch")
def layer_norm_torch() -> Figures:
    import torch
    from torch.nn.functional import cross_entropy, layer_norm

    labels = torch.from_numpy(integers(1024, 4096))
    return theirs(lambda x, g, b: cross_entropy(layer_norm(x, (1024,), g, b), labels), *_random(NORMALIZED))


# ---- embedding: 50,000 rows of 256, 4,096 indices, with an SGD step ----


@case("embedding", "backburn")
def embedding_backburn() -> Figures:
    import backburn as bb
    from backburn import nn, optim

    model = nn.Embedding(50_000, 256)
    optimizer = optim.SGD(lr=0.1)
    ids, weight = bb.asarray(integers(50_000, 4096)), bb.asarray(normal(4096, 256))
    return measured(lambda: optimizer.step(model, (model(ids) * weight).sum().backward()))


@case("embedding", "torch")
def embedding_torch() -> Figures:
    import torch

    model = torch.nn.Embedding(50_000, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids, weight = torch.from_numpy(integers(50_000, 4096)), torch.from_numpy(normal(4096, 256))

    def step() -> None:
        optimizer.zero_grad()
        (model(ids) * weight).sum().backward()
        optimizer.step()

    return measured(step)


# ---- GELU (tanh) and sigmoid of 4 million elements ----


@case("gelu chain", "backburn")
def gelu_backburn() -> Figures:
    import backburn as bb
    from backburn.nn.functional import gelu

    return ours(lambda x: bb.sigmoid(gelu(x, approximate="tanh")).sum(), normal(4_000_000))


@case("gelu chain", "torch")
def gelu_torch() -> Figures:
    import torch
    from torch.nn.functional import gelu

    return theirs(lambda x: torch.sigmoid(gelu(x, approximate="tanh")).sum(), normal(4_000_000))


# ---- broadcast, log-sum-exp and variance, 512 x 2048 ----

REDUCED = ((512, 2048), (2048,), (512, 1))


@case("reductions", "backburn")
def reductions_backburn() -> Figures:
    import backburn as bb

    def function(x: Any, row: Any, column: Any) -> Any:
        y = x * row + column
        return (bb.logsumexp(y, axis=1) + bb.var(y, axis=1)).sum()

    return ours(function, *_random(REDUCED))


@case("reductions", "torch")
def reductions_torch() -> Figures:
    import torch

    def function(x: Any, row: Any, column: Any) -> Any:
        y = x * row + column
        return (torch.logsumexp(y, 1) + torch.var(y, 1, correction=0)).sum()

    return theirs(function, *_random(REDUCED))


# ---- a linear recurrence: 512 steps of 32 x 64 ----


def _recurrence() -> list[Any]:
    import numpy as np

    a = np.random.default_rng(0).uniform(0.5, 0.99, (512, 32, 64)).astype(np.float32)
    return [a, normal(512, 32, 64, seed=1), normal(512, 32, 64, seed=2), normal(32, 64, seed=3)]


@case("scan", "backburn")
def scan_backburn() -> Figures:
    from backburn.nn.functional import ssm_scan

    return ours(ssm_scan, *_recurrence())


@case("scan", "torch")
def scan_torch() -> Figures:
    import torch

    def function(a: Any, b: Any, x: Any, h: Any) -> Any:
        states = []
        # The gradient of unbind is one stack; that of indexing per step would be quadratic in the steps.
        for a_t, fed in zip(a.unbind(), (b * x).unbind(), strict=True):
            h = a_t * h + fed
            states.append(h)
        return torch.stack(states)

    return theirs(function, *_recurrence())


BARS: list[tuple[str, str, dict[str, float]]] = [
    ("conv2d", "torch", {"step": 1.3}),
    ("layer norm", "torch", {"step": 1.0}),
    ("embedding", "torch", {"step": 0.6}),
    ("gelu chain", "torch", {"step": 1.0}),
    ("reductions", "torch", {"step": 1.0}),
    ("scan", "torch", {"step": 0.3}),
]
