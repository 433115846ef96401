"""Savings and cost of ``checkpoint``: 24 blocks of Linear-GELU-Linear, width 512, batch 4,096, forward and backward.

The peer is the same network without checkpoints. Memory is the process's peak during its first step, minus what it
used before (parameters and data) and the gradients; time is that of later steps.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

from benchmarks.cases import Figures, case

BLOCKS, WIDTH, BATCH, STEPS = 24, 512, 4096, 5


def _resident() -> float:
    """The resident memory of this process in KiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024


def _figures(checkpointed: bool) -> Figures:
    import numpy as np

    import backburn as bb
    from backburn import nn

    with bb.random.fork(0):
        blocks = [
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU("tanh"), nn.Linear(WIDTH, WIDTH)) for _ in range(BLOCKS)
        ]
    parameters = [p for block in blocks for _, p in block.named_parameters()]
    layers: list[Any] = [bb.checkpoint(block) for block in blocks] if checkpointed else list(blocks)
    x = bb.asarray(np.random.default_rng(0).normal(size=(BATCH, WIDTH)).astype(np.float32))

    def step() -> float:
        start = time.perf_counter()
        h = x
        for layer in layers:
            h = layer(h)
        gradients = h.sum().backward()
        found = [p.grad(gradients) for p in parameters]
        assert all(g is not None for g in found)
        return time.perf_counter() - start

    before = _resident()
    step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    gradients = sum(p.size for p in parameters) * 4 / 1024
    return {"step": min(step() for _ in range(STEPS)), "KiB of activations": peak - before - gradients}


@case("checkpoint", "backburn")
def with_checkpoints() -> Figures:
    return _figures(True)


@case("checkpoint", "plain")
def without_checkpoints() -> Figures:
    return _figures(False)


BARS: list[tuple[str, str, dict[str, float]]] = [("checkpoint", "plain", {"step": 1.6, "KiB of activations": 0.4})]
