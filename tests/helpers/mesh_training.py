"""A few training steps on a mesh, and a digest of all results."""

from __future__ import annotations

import hashlib
import warnings
from typing import Any

import numpy as np

import backburn as bb
from backburn import nn, optim
from backburn.decorators.sharding import GatherWarning
from backburn.distributed import place
from backburn.nn.functional import cross_entropy

FEATURES = np.random.default_rng(0).normal(size=(61, 12)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 5, 61)
#: Batches; the last has fewer rows than a mesh of eight has shards.
BATCHES = (slice(0, 32), slice(32, 56), slice(56, 61))

TENSOR = {"0.*": {"tp": 0}, "5.weight": {"tp": 1}}
SHARDED_TENSOR = {"0.weight": {"tp": 0, "dp": 1}, "0.bias": {"tp": 0}, "5.weight": {"tp": 1, "dp": 0}, "*": {"dp": 0}}
#: Spec, placements of parameters, placements of data.
PLANS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dp": ("sharded(numpy, dp=4{})", {}, {"dp": 0}),
    "tp": ("sharded(numpy, tp=4{})", TENSOR, {}),
    "dp x tp": ("sharded(sharded(numpy, tp=2), dp=2{})", TENSOR, {"dp": 0}),
    "fsdp": ("sharded(numpy, dp=4{})", {"*": {"dp": 0}}, {"dp": 0}),
    "fsdp x tp": ("sharded(sharded(numpy, tp=2), dp=2{})", SHARDED_TENSOR, {"dp": 0}),
}


def model() -> nn.Module:
    """Linear layers with dropout, batch norm and layer norm."""
    bb.random.seed(0)
    layers = (nn.Linear(12, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(16), nn.Linear(16, 5))
    return nn.Sequential(*layers)


def train(spec: str, parameters: Any, data: Any, epochs: int = 2) -> tuple[str, list[float]]:
    """Train with clipping and AdamW; return the SHA-256 of parameters, buffers and losses, and the losses."""
    with bb.use_backend(f"autodiff({spec})"), warnings.catch_warnings():
        warnings.simplefilter("error", GatherWarning)
        net, optimizer, losses = place(model(), parameters), optim.AdamW(1e-2), []
        for rows in BATCHES * epochs:
            x, y = place(bb.asarray(FEATURES[rows]), data), place(bb.asarray(LABELS[rows]), data)
            loss = cross_entropy(net(x), y)
            gradients, _ = optim.clip_grad_norm(optim.named_gradients(net, loss.backward()), 1.0)
            optimizer.step(net, gradients)
            losses.append(loss.item())
        digest = hashlib.sha256()
        for name, value in sorted(net.state_dict().items()):
            digest.update(f"{name} {value.shape}".encode())
            digest.update(np.ascontiguousarray(value.numpy()).tobytes())
        digest.update(np.array(losses).tobytes())
    return digest.hexdigest(), losses
