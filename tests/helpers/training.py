"""A small classifier, trained with every component that has a state; as a script, a run that kills itself.

``python tests/helpers/training.py FOLDER [STEPS [SIGNAL]]`` continues the run in a folder, and sends itself a
signal, SIGKILL by default, after ``STEPS`` further steps: after 7, with all checkpoints written, or after 7.5,
during the eighth, when checkpoints may be being written.
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
    """Batches in a random order per epoch, whose iterators have a state."""

    def __init__(self, size: int = 16, x: Any = X, y: Any = Y) -> None:
        self.x, self.y, self.size, self.epoch = x, y, size, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-len(self.x) // self.size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return Position(self)


class Position:
    """An iterator with Grain's protocol, whose state is bytes."""

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
    """A trainer with every component that has a state."""
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


class Ending(train.Callback):
    """Sends a signal after ``steps`` steps, counted from the first one seen; no fixed delay is used."""

    def __init__(self, steps: float, number: int) -> None:
        self.left, self.number = steps, number
        self.before = time.perf_counter()

    def on_step(self, trainer: train.Trainer[Any], row: Any) -> None:
        now = time.perf_counter()
        last, self.before = now - self.before, now
        self.left -= 1.0
        if 0.0 < self.left < 1.0:
            threading.Thread(target=self.send, args=(self.left * last,), daemon=True).start()
        elif self.left == 0.0:
            assert trainer.folder is not None
            trainer.folder.wait()  # for earlier checkpoints
            self.send(0.0)

    def send(self, pause: float) -> None:
        time.sleep(pause)
        os.kill(os.getpid(), self.number)


def main(folder: str, steps: str | None = None, number: str = "SIGKILL") -> None:
    """Continue a run of six epochs of ten steps."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore SIGINT
    callbacks: list[train.Callback] = [train.EarlyStopping(patience=50), train.Checkpoints(every=3)]
    if steps is not None:
        callbacks.append(Ending(float(steps), getattr(signal, number)))
    trainer(folder, callbacks=callbacks).fit(6, resume=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
