"""Runs finish, can be read and are resumed even if the clock jumps."""

from __future__ import annotations

import itertools
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim, train
from backburn.train.report import write_report
from backburn.train.runs import aligned, find_runs, run_table


def run(folder: Path, epochs: int, resume: bool) -> Any:
    with bb.random.fork(0):
        model = nn.Linear(2, 1)
    return train.fit(
        model, lambda model, batch: (model(batch["x"]) ** 2).mean(),
        bb.data.batches({"x": np.ones((8, 2), np.float32)}, batch_size=4, seed=0), optimizer=optim.SGD(0.1),
        epochs=epochs, folder=folder, resume=resume, callbacks=[train.Checkpoints(minutes=1)], seed=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    "names", [("time", "time_ns"), ("monotonic",), ("perf_counter",), ("time", "monotonic", "perf_counter")]
)
@pytest.mark.parametrize("jumps", [(0, -1e6), (0, 1e9), (1e18, -1e18, 0.5)], ids=["back", "forth", "far"])
def test_a_clock_that_jumps(
    names: tuple[str, ...], jumps: tuple[float, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only times are wrong."""
    straight = run(tmp_path / "straight", 3, False)
    for name in names:
        clock, each = getattr(time, name), itertools.cycle(jumps)
        monkeypatch.setattr(time, name, lambda clock=clock, each=each: clock() + type(clock())(next(each)))
    run(tmp_path / "a", 2, False)
    resumed = run(tmp_path / "a", 3, True)
    assert resumed.model.weight.tolist() == straight.model.weight.tolist()
    rows = train.read_rows(tmp_path / "a" / "metrics.jsonl")
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert "a" in aligned(run_table(find_runs([tmp_path])))
    assert write_report(tmp_path / "a").is_file()
