"""The two frameworks compared: a training step of a model, and how to synchronize."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu.models import Model

Step = Callable[[], Any]


# ---- backburn ----


class OurFunctions:
    """The models' functions in backburn."""

    def __init__(self) -> None:
        import backburn as bb
        from backburn.nn import functional as f

        def feed_forward(x: Any, up: Any, down: Any) -> Any:
            return f.feed_forward(x, up["weight"], up["bias"], down["weight"], down["bias"], "gelu_tanh")

        self.relu, self.linear, self.dense = f.relu, f.linear, f.linear
        self.cross_entropy, self.layer_norm = f.cross_entropy, f.layer_norm
        self.reshape, self.permute = bb.reshape, bb.permute_dims
        self.transpose = bb.matrix_transpose
        self.feed_forward = feed_forward
        self.split3 = lambda x: bb.chunk(x, 3, axis=-1)
        self.attention = lambda q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True)
        self.embedding = lambda table, ids: bb.take(table, ids, axis=0)
        self.conv = lambda x, w, stride, padding: f.conv(x, w, stride=stride, padding=padding)
        self.batch_norm = lambda x, scale, bias: f.batch_norm_training(x, scale, bias)[0]
        self.max_pool = lambda x: f.max_pool(x, 3, stride=2, padding=1)
        self.spatial_mean = lambda x: bb.mean(x, axis=(2, 3))


def our_step(model: Model, backend: str, captured: bool) -> tuple[Step, Callable[[], None], Any]:
    """A training step on a backend, its synchronization, and the captured step (None without capture)."""
    import backburn as bb
    from backburn import optim

    f, dtype = OurFunctions(), getattr(bb, model.dtype)
    optimizers: dict[str, Callable[[], Any]] = {
        "adam": lambda: optim.Adam(1e-3),
        "adamw": lambda: optim.AdamW(1e-4),
        "momentum": lambda: optim.SGD(1e-2, momentum=0.9),
    }
    optimizer = optimizers[model.optimizer]()

    def tensor(array: Any) -> Any:
        floats = array.dtype.kind == "f"
        return bb.asarray(array, dtype=dtype if floats else None, backend=backend)

    parameters = mapped(lambda array: tensor(array).require_grad(), model.parameters)
    batch = tuple(tensor(array) for array in model.batch)

    def step(state: Any, *batch: Any) -> Any:
        parameters, optimizer = state
        loss = model.loss(f, parameters, *batch)
        optimizer.step(parameters, loss.backward())
        return state, loss

    run = bb.capture(step, on_fallback="allow") if captured else step
    state = [(parameters, optimizer)]

    def once() -> Any:
        state[0], loss = run(state[0], *batch)
        return loss

    return once, bb.load_backend(backend).synchronize, run if captured else None


# ---- PyTorch ----


class TorchFunctions:
    """The models' functions in PyTorch."""

    def __init__(self) -> None:
        import torch
        from torch.nn import functional as f

        self.relu, self.cross_entropy = torch.relu, f.cross_entropy
        self.linear = self.dense = f.linear
        self.layer_norm = lambda x, weight, bias: f.layer_norm(x, weight.shape, weight, bias)
        self.reshape, self.permute, self.transpose = torch.reshape, torch.permute, torch.t
        self.feed_forward = lambda x, up, down: f.linear(f.gelu(f.linear(x, **up), approximate="tanh"), **down)
        self.split3 = lambda x: torch.chunk(x, 3, -1)
        self.attention = lambda q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True)
        self.embedding = lambda table, ids: f.embedding(ids, table)
        self.conv = lambda x, w, stride, padding: f.conv2d(x, w, None, stride, padding)
        self.batch_norm = lambda x, scale, bias: f.batch_norm(x, None, None, scale, bias, training=True)
        self.max_pool = lambda x: f.max_pool2d(x, 3, 2, 1)
        self.spatial_mean = lambda x: x.mean((2, 3))


def torch_step(model: Model, device: str, mode: str | None) -> tuple[Step, Callable[[], None]]:
    """A training step in PyTorch, eager or compiled in a mode, and its synchronization."""
    import torch

    f, dtype = TorchFunctions(), getattr(torch, model.dtype)
    # float32 products in full precision, like ours; for convolutions PyTorch's default is TF32.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

    def tensor(array: Any) -> Any:
        made = torch.from_numpy(np.ascontiguousarray(array)).to(device)
        return made.to(dtype) if made.is_floating_point() else made

    parameters = mapped(lambda array: tensor(array).requires_grad_(), model.parameters)
    batch = tuple(tensor(array) for array in model.batch)
    leaves = flat(parameters)
    fused: dict[str, Any] = {"fused": True} if device != "cpu" else {}
    optimizers: dict[str, Callable[[], Any]] = {
        "adam": lambda: torch.optim.Adam(leaves, 1e-3, **fused),
        "adamw": lambda: torch.optim.AdamW(leaves, 1e-4, weight_decay=0.01, **fused),
        "momentum": lambda: torch.optim.SGD(leaves, 1e-2, momentum=0.9, **fused),
    }
    optimizer = optimizers[model.optimizer]()

    def forward(*batch: Any) -> Any:
        return model.loss(f, parameters, *batch)

    run = forward if mode is None else torch.compile(forward, mode=mode)

    def once() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = run(*batch)
        loss.backward()
        optimizer.step()
        return loss

    return once, torch_synchronize(device)


def torch_synchronize(device: str) -> Callable[[], None]:
    """A function that waits for PyTorch's work on a device."""
    import torch

    return torch.cuda.synchronize if device != "cpu" else lambda: None


# ---- trees of dicts and lists ----


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """``function`` of every leaf."""
    if isinstance(tree, dict):
        return {k: mapped(function, v) for k, v in tree.items()}
    return [mapped(function, v) for v in tree] if isinstance(tree, list) else function(tree)


def flat(tree: Any) -> list[Any]:
    """The leaves."""
    found: list[Any] = []
    mapped(found.append, tree)
    return found
