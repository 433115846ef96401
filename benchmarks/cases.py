"""The timed cases, one per framework. ``python -m benchmarks.cases NAME FRAMEWORK`` prints one JSON line.

Each function returns seconds by figure. A process runs one case of one framework, because its allocator's behaviour
depends on what was freed before.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

CASES: dict[tuple[str, str], Callable[[], dict[str, float]]] = {}
Figures = dict[str, float]


def case(name: str, framework: str) -> Callable[[Callable[[], Figures]], Callable[[], Figures]]:
    """Register the decorated function as ``name`` for ``framework``."""

    def enter(function: Callable[[], Figures]) -> Callable[[], Figures]:
        CASES[name, framework] = function
        return function

    return enter


def best(function: Callable[[], Figures], repeats: int) -> Figures:
    """The minimum of each figure over ``repeats`` runs, after one warm-up run."""
    function()
    runs = [function() for _ in range(repeats)]
    return {key: min(run[key] for run in runs) for key in runs[0]}


def median(function: Callable[[], Figures], repeats: int) -> Figures:
    """The median of each figure over ``repeats`` runs, after a few warm-up runs."""
    for _ in range(max(3, repeats // 10)):
        function()
    runs = [function() for _ in range(repeats)]
    return {key: sorted(run[key] for run in runs)[repeats // 2] for key in runs[0]}


# ---- many small operations: tanh(h * w + x) on 16 elements, a thousand times ----


@case("small", "backburn")
def small_backburn() -> Figures:
    import backburn as bb

    w, x = (bb.full((16,), v, dtype=bb.float32).require_grad() for v in (0.9, 0.1))
    start = bb.zeros((16,), dtype=bb.float32).require_grad()

    def run() -> Figures:
        h: Any = start
        t0 = time.perf_counter()
        for _ in range(1000):
            h = bb.tanh(h * w + x)
        t1 = time.perf_counter()
        h.backward()
        return {"forward": t1 - t0, "backward": time.perf_counter() - t1}

    return best(run, 30)


@case("small", "torch")
def small_torch() -> Figures:
    import torch

    w, x = (torch.full((16,), v, requires_grad=True) for v in (0.9, 0.1))
    start = torch.zeros(16, requires_grad=True)
    ones = torch.ones(16)

    def run() -> Figures:
        h = start
        t0 = time.perf_counter()
        for _ in range(1000):
            h = torch.tanh(h * w + x)
        t1 = time.perf_counter()
        h.backward(ones)
        return {"forward": t1 - t0, "backward": time.perf_counter() - t1}

    return best(run, 30)


# ---- a training step: MLP 784-512-512-10, batch 128, ReLU, cross-entropy, Adam ----


@case("mlp", "backburn")
def mlp_backburn() -> Figures:
    import numpy as np

    import backburn as bb
    from backburn import nn, optim

    bb.random.seed(0)
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = optim.Adam(lr=1e-3)
    generator = np.random.default_rng(0)
    images = bb.asarray(generator.normal(size=(128, 784)).astype(np.float32))
    labels = bb.asarray(generator.integers(0, 10, 128))

    def run() -> Figures:
        t0 = time.perf_counter()
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.step(model, loss.backward())
        return {"step": time.perf_counter() - t0}

    return median(run, 200)


@case("mlp", "torch")
def mlp_torch() -> Figures:
    import numpy as np
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = np.random.default_rng(0)
    images = torch.from_numpy(generator.normal(size=(128, 784)).astype(np.float32))
    labels = torch.from_numpy(generator.integers(0, 10, 128))

    def run() -> Figures:
        t0 = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        return {"step": time.perf_counter() - t0}

    return median(run, 200)


# ---- long chains of operations on one element ----


def _chain(length: int, framework: str) -> Figures:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if framework == "backburn":
        import backburn as bb

        leaf: Any = bb.zeros((1,), dtype=bb.float32).require_grad()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    else:
        import torch

        leaf = torch.zeros(1, requires_grad=True)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    t0 = time.perf_counter()
    x = leaf
    for _ in range(length):
        x = x + 1e-3
    x.backward()
    seconds = time.perf_counter() - t0
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"per operation": seconds / length, "KiB per 1,000 operations": grown / length * 1000}


for _length, _name in ((100_000, "chain 100,000"), (1_000_000, "chain 1,000,000")):
    for _framework in ("backburn", "torch"):
        case(_name, _framework)(lambda length=_length, framework=_framework: _chain(length, framework))  # type: ignore[misc]


# ---- import time ----


def _import_time(module: str) -> Figures:
    def run() -> Figures:
        t0 = time.perf_counter()
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
        return {"process": time.perf_counter() - t0}

    return best(run, 9)


@case("import", "backburn")
def import_backburn() -> Figures:
    return _import_time("backburn")


@case("import", "numpy")
def import_numpy() -> Figures:
    return _import_time("numpy")


if __name__ == "__main__":
    # Under this module's own name, since the others register their cases there, not in __main__.
    from benchmarks import cases, checkpoint, layers, quantized  # noqa: F401

    print(json.dumps(cases.CASES[sys.argv[1], sys.argv[2]]()))
