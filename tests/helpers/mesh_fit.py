"""Train on a mesh of four shards: a program that tests start on several ranks.

Arguments: the folder of runs, the number of epochs, ``new`` or ``resume``, the failure to cause, and the plans.
"""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import backburn as bb
from backburn import distributed, nn, optim, train
from backburn.distributed import place, place_state, plans
from backburn.nn.functional import cross_entropy

PLANS = {"replicated": plans.replicated(), "sharded": plans.sharded(), "state": plans.state()}
ROWS = 61


class Rows:
    """A dataset that counts the rows read."""

    def __init__(self) -> None:
        self.x = np.random.default_rng(0).normal(size=(ROWS, 12))
        self.y = np.random.default_rng(1).integers(0, 5, ROWS)
        self.read = 0

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, numbers: Any) -> dict[str, Any]:
        self.read += len(numbers)
        return {"x": self.x[numbers], "y": self.y[numbers]}


class Happens(train.Callback):
    """Causes a failure on a rank in step 6, in the middle of the second epoch."""

    def __init__(self, what: str, rank: int) -> None:
        self.what, self.rank = what, rank

    def on_step(self, trainer: Any, row: Any) -> None:
        if row["step"] != 6:
            return
        if self.what == "killed" and self.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.what == "terminated" and self.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        if self.what == "full" and self.rank == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def loss(model: Any, batch: Any) -> Any:
    out = model(batch["x"])
    return cross_entropy(out, batch["y"]), {"accuracy": (out.argmax(-1) == batch["y"]).astype("float32").mean()}


def held(x: Any) -> int:
    """The bytes that this process holds for a tensor; a view counts as its whole base."""

    def of(value: Any) -> int:
        if hasattr(value, "parts"):
            return sum(map(of, value.parts))
        root = value
        while isinstance(root.base, np.ndarray):
            root = root.base
        return int(root.nbytes)

    while hasattr(x.backend, "inner_backend"):
        x = x.inner()
    return of(x.primitive)


def fit(folder: Path, epochs: int, resume: bool, what: str, plan: Any) -> str:
    """Train, and return a digest of the model, the optimizer and the losses."""
    grid = distributed.mesh(dp=4)
    with bb.use_backend(grid.backend()):
        bb.random.seed(0)
        model = place(
            nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 5)), plan
        )
        optimizer, rows = optim.AdamW(1e-2), Rows()
        place_state(optimizer, model, plan)
        run = train.fit(
            model, loss, bb.data.batches(rows, batch_size=16, seed=0), optimizer=optimizer, epochs=epochs,
            validation=bb.data.batches(Rows(), batch_size=10), folder=folder, resume=resume, mesh=grid, clip=1.0,
            average=optim.Average(0.9), seed=0, progress=True, callbacks=[Happens(what, grid.rank)],
        )  # fmt: skip
        digest = hashlib.sha256()
        for state in (model.state_dict(), optimizer.state_dict()):
            for name, x in sorted(state.items()):
                digest.update(name.encode() + (x.numpy().tobytes() if hasattr(x, "numpy") else str(x).encode()))
        digest.update(str([(row["loss"], row["validation/accuracy"]) for row in run.history]).encode())
    if "sharded" in plan.name:
        tensors = [*model.parameters(), *optimizer.state_tensors().values()]
        assert sum(map(held, tensors)) <= 1.3 * sum(4 * x.size for x in tensors) / grid.processes
    if grid.processes > 1:
        read = grid.communicator.gather_objects(rows.read)
        taken = epochs if not resume else 1
        assert sum(read) == taken * ROWS, read
        assert max(read) <= taken * 2 * 16 * 2 // grid.processes + taken * 8, read
    return digest.hexdigest()


def main() -> None:
    folder, epochs, how, what, *names = sys.argv[1:]
    for name in names:
        found = fit(Path(folder) / name, int(epochs), how == "resume", what, PLANS[name])
        if distributed.mesh(dp=4).rank == 0:
            print(name, found, flush=True)


if __name__ == "__main__":
    main()
