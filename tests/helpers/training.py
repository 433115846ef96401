"""A small classification to train, with every part that has a state; as a script, a run that kills itself.

``python tests/helpers/training.py FOLDER [SECONDS [SIGNAL [STEP]]]`` goes on with the run in a folder, and sends itself
a signal, SIGKILL by default, so many seconds after its first step, or at once after a step of a given number.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import backburn as bb
from backburn import nn, optim, train

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(160, 6))
Y = (X[:, :3].sum(axis=1) > 0).astype(np.int64)


class Batches:
    """Batches in an order that each epoch draws, whose iterators have a position."""

    def __init__(self, size: int = 16, x: Any = X, y: Any = Y) -> None:
        self.x, self.y, self.size, self.epoch = x, y, size, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-len(self.x) // self.size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return Position(self)


class Position:
    """An iterator with Grain's protocol, whose state has bytes."""

    def __init__(self, data: Batches) -> None:
        self.data, self.at = data, 0
        self.order = np.random.default_rng([7, data.epoch]).permutation(len(data.x))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        size = self.data.size
        part = self.order[self.at * size : (self.at + 1) * size]
        if not len(part):
            raise StopIteration
        self.at += 1
        return {"x": self.data.x[part], "y": self.data.y[part]}

    def get_state(self) -> bytes:
        return str(self.at).encode()

    def set_state(self, state: bytes) -> None:
        self.at = int(state)


def loss(model: Any, batch: Any) -> Any:
    """Cross-entropy and accuracy."""
    logits = model(batch["x"])
    right = (logits.argmax(axis=1) == batch["y"]).mean()
    return nn.functional.cross_entropy(logits, batch["y"]), {"accuracy": right}


def network(spec: str = "autodiff(numpy)", hidden: int = 16) -> nn.Sequential:
    """A model with buffers and random draws."""
    with bb.use_backend(spec), bb.random.fork(3):
        return nn.Sequential(
            nn.Linear(6, hidden), nn.BatchNorm(hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, 2)
        )


def trainer(folder: Any = None, *, spec: str = "autodiff(numpy)", **options: Any) -> train.Trainer[Any]:
    """A trainer with every part that has a state."""
    given: dict[str, Any] = {
        "data": Batches(),
        "optimizer": optim.AdamW(optim.schedules.ReduceOnPlateau(1e-2, patience=0, factor=0.5)),
        "validation": Batches(64),
        "average": optim.Average(0.9),
        "seed": 5,
        "progress": False,
        "callbacks": [train.EarlyStopping(patience=50), train.Checkpoints(every=3)],
        **options,
    }
    return train.Trainer(given.pop("model", None) or network(spec), loss, given.pop("data"), folder=folder, **given)


class Slow(train.Callback):
    """Sleeps after each step, and has a signal sent after the first one."""

    def __init__(self, seconds: float | None, number: int, step: int | None = None) -> None:
        self.seconds, self.number, self.step = seconds, number, step

    def on_step(self, trainer: train.Trainer[Any], row: Any) -> None:
        if self.step is not None:
            if trainer.steps == self.step:
                assert trainer.folder is not None
                trainer.folder.wait()  # for the checkpoints before
                os.kill(os.getpid(), self.number)
        elif self.seconds is not None:
            pause, self.seconds = self.seconds, None

            def send() -> None:
                time.sleep(pause)
                os.kill(os.getpid(), self.number)

            threading.Thread(target=send, daemon=True).start()
        time.sleep(0.002)


def main(folder: str, seconds: str | None = None, number: str = "SIGKILL", step: str | None = None) -> None:
    """Go on with a run of six epochs of ten steps."""
    at = None if step is None else int(step)
    slow = Slow(None if seconds is None else float(seconds), getattr(signal, number), at)
    callbacks = [train.EarlyStopping(patience=50), train.Checkpoints(every=3), slow]
    trainer(folder, callbacks=callbacks).fit(6, resume=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
