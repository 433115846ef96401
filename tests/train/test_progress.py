"""Lines of progress: their contents and the remaining time."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np

import backburn as bb
from backburn import nn, optim, train


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def loss(model: Any, batch: Any) -> Any:
    return nn.functional.mse_loss(model(batch["x"]), batch["x"])


def test_lines_have_the_rate_and_the_time_left() -> None:
    data = bb.data.batches({"x": np.zeros((1200, 1), np.float32)}, batch_size=600)
    stream = Terminal()
    progress = train.Progress(stream, io.StringIO())
    trainer = train.Trainer(nn.Linear(1, 1), loss, data, optimizer=optim.SGD(0.1), callbacks=[progress])
    trainer.fit(3)
    trainer.fit(4)
    lines = stream.getvalue().splitlines()
    assert lines[3].startswith("resumed after step 6, in epoch 4")
    pattern = r"epoch {}/{}  loss \S+  lr 0.1  \d+\.\d s  [\d,]+ examples/s{}"
    for number, line in ((1, lines[0]), (2, lines[1])):
        assert re.fullmatch(pattern.format(number, 3, r"  \d+\.\d s left"), line), line
    assert re.fullmatch(pattern.format(3, 3, ""), lines[2]), lines[2]
    assert re.fullmatch(pattern.format(4, 4, ""), lines[4]), lines[4]


def test_lines_in_files_have_no_rate_or_time_left() -> None:
    data = bb.data.batches({"x": np.zeros((12, 1), np.float32)}, batch_size=6)
    stream = io.StringIO()
    trainer = train.Trainer(nn.Linear(1, 1), loss, data, optimizer=optim.SGD(0.1), callbacks=[train.Progress(stream)])
    trainer.fit(2)
    assert all(
        re.fullmatch(r"epoch \d/2  loss \S+  lr 0.1  \d+\.\d s", line) for line in stream.getvalue().splitlines()
    )


def test_the_time_left_follows_the_pace_of_this_call(monkeypatch: Any) -> None:
    """Earlier epochs of a resumed run may have been on another machine."""
    seconds = iter([100.0, 130.0, 160.0])
    monkeypatch.setattr("backburn.train.callbacks.time.monotonic", lambda: next(seconds))

    class Run:
        steps, last_epoch, first_epoch, epoch = 5, 10, 5, 5

    stream = Terminal()
    progress, run = train.Progress(stream, io.StringIO()), Run()
    progress.on_start(run)  # type: ignore[arg-type]
    progress.on_epoch(run, {"epoch": 5, "seconds": 30.0})  # type: ignore[arg-type]
    run.epoch = 6
    progress.on_epoch(run, {"epoch": 6, "seconds": 30.0})  # type: ignore[arg-type]
    _, first, second = stream.getvalue().splitlines()
    assert first.endswith("2 min 30 s left")
    assert second.endswith("2 min 00 s left")
