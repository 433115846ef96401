"""Models: training steps of backburn and of PyTorch from the same weights, alternating in one process.

``python -m benchmarks.models [PATTERN ...] [--capture] [--threads N] [--json FILE]`` compares the losses of four steps
with AdamW, and prints the ratios of the times, below 1 where backburn is faster: of the loss, and of a whole step. With
``--capture``, backburn's step is recorded and replayed (``bb.capture``); PyTorch runs eagerly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from benchmarks.functions import Parts, options, report

Model = tuple[Any, Callable[[], Any]]


class Framework(NamedTuple):
    """The modules and functions of a framework; those whose names differ between the frameworks are separate fields."""

    nn: Any
    functions: Any
    tensor: Callable[[Any], Any]
    batch_norm: Callable[[int], Any]
    attention: Callable[..., Any]
    entries: Callable[[Any, Any], Any]
    """The entry of each row at an index."""
    add_rows: Callable[[Any, Any, Any], Any]
    """A matrix with rows added at indices."""

    def normal(self, *shape: int, seed: int = 0) -> Any:
        """Normally distributed float32 numbers."""
        import numpy as np

        return self.tensor(np.random.default_rng(seed).normal(size=shape).astype(np.float32))

    def integers(self, high: int, *shape: int, seed: int = 0) -> Any:
        """Integers below ``high``."""
        import numpy as np

        return self.tensor(np.random.default_rng(seed).integers(0, high, shape))


def ours() -> Framework:
    """Backburn."""
    import backburn as bb
    from backburn import nn

    return Framework(
        nn, nn.functional, bb.asarray, nn.BatchNorm,
        partial(nn.functional.scaled_dot_product_attention, is_causal=True),
        lambda x, index: bb.take_along_axis(x, index[:, None], axis=1)[:, 0],
        lambda x, index, rows: bb.index_add(x, index, rows, axis=0),
    )  # fmt: skip


def theirs() -> Framework:
    """PyTorch."""
    import torch
    from torch import nn

    attention = partial(nn.functional.scaled_dot_product_attention, is_causal=True)
    return Framework(
        nn, nn.functional, torch.tensor, nn.BatchNorm2d, attention,
        lambda x, index: x.gather(1, index[:, None])[:, 0],
        lambda x, index, rows: x.index_add(0, index, rows),
    )  # fmt: skip


# ---- models, each written once ----


def mlp(f: Framework) -> Model:
    """Three linear layers on 64 x 784."""
    n = f.nn
    model = n.Sequential(n.Linear(784, 256), n.ReLU(), n.Linear(256, 128), n.ReLU(), n.Linear(128, 10))
    x, labels = f.normal(64, 784), f.integers(10, 64)
    return model, lambda: f.functions.cross_entropy(model(x), labels)


def lenet(f: Framework) -> Model:
    """LeNet on 32 images of 28 x 28."""
    n = f.nn
    model = n.Sequential(
        n.Conv2d(1, 6, 5, padding=2), n.ReLU(), n.MaxPool2d(2), n.Conv2d(6, 16, 5), n.ReLU(), n.MaxPool2d(2),
        n.Flatten(), n.Linear(400, 120), n.ReLU(), n.Linear(120, 84), n.ReLU(), n.Linear(84, 10),
    )  # fmt: skip
    x, labels = f.normal(32, 1, 28, 28), f.integers(10, 32)
    return model, lambda: f.functions.cross_entropy(model(x), labels)


def resnet(f: Framework) -> Model:
    """A stem and three basic blocks on 16 images of 3 x 32 x 32."""
    n, relu = f.nn, f.functions.relu

    class Block(n.Module):  # type: ignore[misc,name-defined]
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.first = n.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.norm = f.batch_norm(outputs)
            self.second = n.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.last = f.batch_norm(outputs)
            self.short = n.Conv2d(inputs, outputs, 1, stride, bias=False)

        def forward(self, x: Any) -> Any:
            return relu(self.last(self.second(relu(self.norm(self.first(x))))) + self.short(x))

    model = n.Sequential(
        n.Conv2d(3, 16, 3, 1, 1, bias=False), f.batch_norm(16), n.ReLU(),
        Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2), n.AdaptiveAvgPool2d(1), n.Flatten(), n.Linear(64, 10),
    )  # fmt: skip
    x, labels = f.normal(16, 3, 32, 32), f.integers(10, 16)
    return model, lambda: f.functions.cross_entropy(model(x), labels)


def gpt(
    f: Framework, layers: int = 2, width: int = 128, batch: int = 4, tokens: int = 64, vocabulary: int = 500
) -> Model:
    """A decoder of two layers, width 128, on 4 x 64 tokens."""
    n, heads = f.nn, 4

    class Block(n.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.before = n.LayerNorm(width)
            self.query, self.key, self.value, self.out = (n.Linear(width, width) for _ in range(4))
            self.between = n.LayerNorm(width)
            self.wide, self.narrow = n.Linear(width, 4 * width), n.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            y = self.before(x)
            q, k, v = (
                layer(y).reshape((len(y), tokens, heads, -1)).swapaxes(1, 2)
                for layer in (self.query, self.key, self.value)
            )
            x = x + self.out(f.attention(q, k, v).swapaxes(1, 2).reshape(x.shape))
            return x + self.narrow(f.functions.gelu(self.wide(self.between(x))))

    class Decoder(n.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = n.Embedding(vocabulary, width), n.Embedding(tokens, width)
            self.blocks = n.Sequential(*(Block() for _ in range(layers)))
            self.norm, self.head = n.LayerNorm(width), n.Linear(width, vocabulary)

        def forward(self, ids: Any, places: Any) -> Any:
            return self.head(self.norm(self.blocks(self.tokens(ids) + self.places(places))))

    model, ids = Decoder(), f.integers(vocabulary, batch, tokens)
    labels, places = f.integers(vocabulary, batch * tokens, seed=1), f.tensor(list(range(tokens)))
    return model, lambda: f.functions.cross_entropy(model(ids, places).reshape((-1, vocabulary)), labels)


def recurrent(f: Framework, cell: str) -> Model:
    """A language model of one recurrent layer of 128 on 32 x 35 tokens."""
    n = f.nn

    class Language(n.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.cells = n.Embedding(500, 128), getattr(n, cell)(128, 128)
            self.head = n.Linear(128, 500)

        def forward(self, ids: Any) -> Any:
            return self.head(self.cells(self.embedding(ids))[0])

    model, ids, labels = Language(), f.integers(500, 35, 32), f.integers(500, 35 * 32, seed=1)
    return model, lambda: f.functions.cross_entropy(model(ids).reshape((-1, 500)), labels)


def autoencoder(f: Framework) -> Model:
    """Convolutions and transposed convolutions on 16 images of 28 x 28."""
    n = f.nn
    model = n.Sequential(
        n.Conv2d(1, 16, 3, 2, 1), n.ReLU(), n.Conv2d(16, 32, 3, 2, 1), n.ReLU(),
        n.ConvTranspose2d(32, 16, 4, 2, 1), n.ReLU(), n.ConvTranspose2d(16, 1, 4, 2, 1),
    )  # fmt: skip
    x = f.normal(16, 1, 28, 28)
    return model, lambda: f.functions.mse_loss(model(x), x)


def q_learning(f: Framework) -> Model:
    """The Huber loss of the values of chosen actions, on 128 observations."""
    n = f.nn
    model = n.Sequential(n.Linear(16, 128), n.ReLU(), n.Linear(128, 128), n.ReLU(), n.Linear(128, 6))
    x, actions, goals = f.normal(128, 16), f.integers(6, 128), f.normal(128, seed=1)
    return model, lambda: f.functions.huber_loss(f.entries(model(x), actions), goals)


def graph(f: Framework) -> Model:
    """Two rounds of sums over 8,000 edges between 2,000 nodes."""
    n = f.nn
    model = n.Sequential(n.Linear(32, 64), n.Linear(64, 7))
    x, nothing = f.normal(2000, 32), 0 * f.normal(2000, 64)
    start, end, labels = f.integers(2000, 8000), f.integers(2000, 8000, seed=1), f.integers(7, 2000)

    def loss() -> Any:
        hidden = f.functions.relu(f.add_rows(nothing, end, model[0](x)[start]))
        return f.functions.cross_entropy(model[1](f.add_rows(hidden, end, hidden[start])), labels)

    return model, loss


MODELS: dict[str, Callable[[Framework], Model]] = {
    "MLP": mlp,
    "LeNet": lenet,
    "residual network": resnet,
    "GPT": gpt,
    "LSTM": partial(recurrent, cell="LSTM"),
    "GRU": partial(recurrent, cell="GRU"),
    "autoencoder": autoencoder,
    "Q-learning": q_learning,
    "graph network": graph,
}


# ---- measuring ----


def begin_alike(model: Any, peer: Any) -> None:
    """Give our model the peer's parameters."""
    values = [p.detach().numpy() for p in peer.parameters()]
    names = [name for name, _ in model.named_parameters()]
    model.load_state_dict({**model.state_dict(), **dict(zip(names, values, strict=True))})


def parts(name: str, is_captured: bool = False) -> Parts:
    """The loss and a step of both, or a replayed step. Raises where the losses differ."""
    import torch

    import backburn as bb
    from backburn import optim

    with bb.use_backend("autodiff(capture(numpy))" if is_captured else "autodiff(numpy)"):
        model, loss = MODELS[name](ours())
    peer, peers_loss = MODELS[name](theirs())
    begin_alike(model, peer)
    optimizer, peers = optim.AdamW(1e-3, weight_decay=0.01), torch.optim.AdamW(peer.parameters(), 1e-3)

    def step_of(state: Any) -> Any:
        value = loss()
        optimizer.step(model, value.backward())
        return state, value

    update = bb.capture(step_of, on_fallback="error") if is_captured else step_of

    def step() -> float:
        return float(update((model, optimizer))[1].item())

    def peers_step() -> float:
        peers.zero_grad()
        value = peers_loss()
        value.backward()
        peers.step()
        return float(value.item())

    for number in range(4):
        mine, other = step(), peers_step()
        if not math.isclose(mine, other, rel_tol=2e-3):
            raise AssertionError(f"{name}: the losses of step {number} are {mine} and {other}")
    if not is_captured:
        yield "loss", loss, peers_loss
    yield "step", step, peers_step


def main() -> None:
    """Measure models."""
    parser = options(__doc__)
    parser.add_argument("--capture", action="store_true", help="replay backburn's steps")
    chosen = parser.parse_args()
    report(chosen, ("loss", "step"), ((name, partial(parts, name, chosen.capture)) for name in MODELS))


if __name__ == "__main__":
    main()
