"""The overhead of ``train.fit`` over the same loop by hand, for steps of about 1 ms and 20 ms.

Run with ``python -m benchmarks.training``. Epochs of both alternate, and the quickest of each is compared, in CPU time,
which other processes affect less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import backburn as bb
from backburn import data, nn, optim, train
from backburn.nn import functional

#: Hidden units, batch size and steps in an epoch of each size.
SIZES = {"1 ms": (192, 96, 200), "20 ms": (1024, 256, 40)}
BARS = {"1 ms": 3.0, "20 ms": 0.5}


def loss(model: Any, batch: Any) -> Any:
    """The cross-entropy of a batch."""
    return functional.cross_entropy(model(batch["x"]), batch["y"])


def model_of(hidden: int) -> nn.Sequential:
    """A perceptron with two hidden layers."""
    with bb.random.fork(0):
        return nn.Sequential(
            nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10)
        )


def by_hand(hidden: int, batches: Any) -> Callable[[], float]:
    """An epoch written by hand."""
    model, optimizer, epoch = model_of(hidden), optim.Adam(1e-3), 0

    def run() -> float:
        nonlocal epoch
        epoch += 1
        batches.set_epoch(epoch)
        model.train()
        losses = []
        for batch in batches:
            tensors = {key: bb.asarray(x) for key, x in batch.items()}
            value = loss(model, tensors)
            optimizer.step(model, value.backward())
            losses.append(value.detach())
        return float(bb.stack(losses).mean())

    return run


def by_trainer(hidden: int, batches: Any) -> Callable[[], float]:
    """An epoch run by a trainer."""
    trainer = train.Trainer(model_of(hidden), loss, batches, optimizer=optim.Adam(1e-3), progress=False)
    return lambda: trainer.run_epoch()["loss"]


def compared(hidden: int, size: int, steps: int, rounds: int) -> tuple[float, float]:
    """Milliseconds of a step by hand and by the trainer: the least of the rounds."""
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.normal(size=(size * steps, 64)).astype(np.float32),
        "y": rng.integers(0, 10, size * steps),
    }
    runs = [make(hidden, data.batches(arrays, batch_size=size, seed=0)) for make in (by_hand, by_trainer)]
    best = [float("inf")] * 2
    for number in range(rounds + 1):
        for i in (0, 1) if number % 2 else (1, 0):
            started = time.process_time()
            runs[i]()
            if number:  # the first is a warm-up
                best[i] = min(best[i], 1e3 * (time.process_time() - started) / steps)
    return best[0], best[1]


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    for name, (hidden, size, steps) in SIZES.items():
        hand, fit = compared(hidden, size, steps, options.rounds)
        more = f"{100 * (fit / hand - 1):+.2f} %, target at most {BARS[name]} %"
        print(f"{name:>5}: by hand {hand:.3f} ms, fit {fit:.3f} ms, {more}")


if __name__ == "__main__":
    main()
