"""The memory of a run does not grow with its steps, only by one row per epoch."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim, train
from backburn.base.module_calls import WATCHERS


class Recurrent(nn.Module):
    def __init__(self) -> None:
        self.lstm, self.out = nn.LSTM(4, 8), nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        return self.out(self.lstm(x)[0][:, -1])


class Convolution(nn.Module):
    def __init__(self) -> None:
        self.conv, self.norm, self.out = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm(4), nn.Linear(64, 1)

    def forward(self, x: Any) -> Any:
        return self.out(nn.MaxPool2d(2)(bb.relu(self.norm(self.conv(x)))).reshape((x.shape[0], -1)))


SHAPES = {Recurrent: (40, 5, 4), Convolution: (40, 1, 8, 8)}


def mean_square(model: Any, batch: Any) -> Any:
    return ((model(batch["x"]) - batch["y"]) ** 2).mean()


def grown(loss: Any, kind: Any, capture: bool, epochs: int) -> tuple[int, int]:
    """The growth in bytes and objects during epochs of five steps, after a warm-up."""
    x = np.random.default_rng(0).standard_normal(SHAPES[kind]).astype(np.float32)
    whole = {"x": x, "y": x.reshape(40, -1)[:, :1]}
    trainer = train.Trainer(
        kind(), loss, bb.data.batches(whole, batch_size=8, seed=0), optimizer=optim.Adam(1e-3), clip=1.0,
        validation=bb.data.batches(whole, batch_size=8), average=optim.Average(0.9), progress=False, capture=capture,
    )  # fmt: skip
    for _ in range(4):
        trainer.run_epoch()
    before = measured()
    for _ in range(epochs):
        trainer.run_epoch()
    del trainer.history[4:]
    after = measured()
    return after[0] - before[0], after[1] - before[1]


def measured() -> tuple[int, int]:
    gc.collect()
    return tracemalloc.get_traced_memory()[0], len(gc.get_objects())


@pytest.fixture
def traced() -> Any:
    """Measure memory without the traces of other tests, which record calls of layers."""
    watching = WATCHERS[:]
    WATCHERS.clear()
    tracemalloc.start()
    yield
    tracemalloc.stop()
    WATCHERS[:] = watching


@pytest.mark.slow
@pytest.mark.parametrize("capture", [False, True])
@pytest.mark.parametrize("kind", list(SHAPES))
def test_steps_do_not_leak_memory(kind: Any, capture: bool, traced: None) -> None:
    """With averaging, validation and clipping, recorded and not."""
    memory, objects = grown(mean_square, kind, capture, 20)
    assert objects < 20, "one per epoch"
    assert memory < 60_000


def test_a_leaking_loss_is_detected(traced: None) -> None:
    """The measurement of these tests detects leaks."""
    kept: list[Any] = []

    def keeping(model: Any, batch: Any) -> Any:
        kept.append(mean_square(model, batch))
        return kept[-1]

    memory, objects = grown(keeping, Recurrent, False, 20)
    assert objects > 100
    assert memory > 60_000
