"""Loggers: the protocol, TensorBoard files, and data sent to Weights & Biases."""

from __future__ import annotations

import math
import os
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim, train
from backburn.base.errors import ArgumentError, BackendUnavailableError

X = np.linspace(0, 1, 12, dtype=np.float32)[:, None]


def loss(model: Any, batch: Any) -> Any:
    return nn.functional.mse_loss(model(batch["x"]), batch["x"])


def fit(*callbacks: Any, epochs: int = 3, **options: Any) -> Any:
    bb.random.seed(0)
    data = bb.data.batches({"x": X}, batch_size=4, seed=0)
    given = {"epochs": epochs, "log_every": 2, "progress": False, "seed": 0} | options
    return train.fit(nn.Linear(1, 1), loss, data, optimizer=optim.SGD(0.1), callbacks=list(callbacks), **given)


class Kept(train.Logger):
    """A user's logger."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.closed = 0

    def log(self, row: Mapping[str, float], step: int) -> None:
        self.rows.append((step, dict(row)))

    def close(self) -> None:
        self.closed += 1


def test_a_logger_gets_the_rows_of_epochs_and_steps() -> None:
    kept = Kept()
    run = fit(kept)
    epochs = [(step, row) for step, row in kept.rows if "loss" in row]
    assert [step for step, _ in epochs] == [3, 6, 9]
    for (_, row), expected in zip(epochs, run.history, strict=True):
        assert row == {name: x for name, x in expected.items() if name != "step"}
    steps = [(step, row) for step, row in kept.rows if "loss" not in row]
    assert [step for step, _ in steps] == [2, 4, 6, 8]
    assert all(row.keys() >= {"steps/loss", "steps/lr"} for _, row in steps)
    assert all(type(x) in (int, float) for _, row in kept.rows for x in row.values())
    assert kept.closed == 1


def test_a_logger_is_closed_when_a_run_fails() -> None:
    class Broken(train.Callback):
        def on_step(self, trainer: Any, row: Any) -> None:
            raise RuntimeError("mine")

    kept = Kept()
    with pytest.raises(RuntimeError, match="mine"):
        fit(kept, Broken())
    assert (kept.rows, kept.closed) == ([], 1)


def test_a_logger_must_define_log() -> None:
    with pytest.raises(NotImplementedError, match=r"Logger\.log"):
        train.Logger().log({}, 1)


# ---- TensorBoard ----


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The points in the files of a folder by curve, without purged ones."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.iterdir()):
        content, start = path.read_bytes(), 0
        while start < len(content):  # length, checksum, event, checksum
            size = int.from_bytes(content[start : start + 8], "little")
            event = Event.FromString(content[start + 12 : start + 12 + size])
            start += 16 + size
            if event.HasField("session_log") and event.session_log.status == 1:  # START: purges later points
                found = {name: [p for p in curve if p[0] < event.step] for name, curve in found.items()}
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def test_tensorboard_has_every_point(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    run = fit(train.TensorBoard(), folder=tmp_path / "run")
    found = points(tmp_path / "run" / "tensorboard")
    assert [step for step, _ in found["steps/loss"]] == [2, 4, 6, 8]
    assert [step for step, _ in found["loss"]] == [3, 6, 9]
    np.testing.assert_allclose([y for _, y in found["loss"]], [row["loss"] for row in run.history], rtol=1e-6)


def test_tensorboard_in_a_given_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    logger = train.TensorBoard(tmp_path / "mine")
    logger.log({"a": math.nan, "b/c": 2}, 7)
    logger.close()
    logger.close()
    found = points(tmp_path / "mine")
    assert found["b/c"] == [(7, 2.0)]
    assert math.isnan(found["a"][0][1])


def test_tensorboard_continues_with_a_resumed_run(tmp_path: Path) -> None:
    """Points after the resumed step are replaced."""
    pytest.importorskip("tensorboardX")

    class Interrupted(train.Callback):
        def on_step(self, trainer: Any, row: Any) -> None:
            if trainer.steps == 8:
                raise RuntimeError("mine")

    once: Any = {"folder": tmp_path / "run", "epochs": 4}
    fit(train.TensorBoard(), **once | {"epochs": 2})
    with pytest.raises(RuntimeError, match="mine"):
        fit(train.TensorBoard(), Interrupted(), **once, resume=True)
    fit(train.TensorBoard(), **once, resume=True)
    found = points(tmp_path / "run" / "tensorboard")
    assert [step for step, _ in found["loss"]] == [3, 6, 9, 12]
    assert [step for step, _ in found["steps/loss"]] == [2, 4, 6, 8, 10, 12]


def test_tensorboard_needs_a_folder() -> None:
    pytest.importorskip("tensorboardX")
    with pytest.raises(ArgumentError, match=r"TensorBoard: the run has no folder, so name one"):
        fit(train.TensorBoard())
    with pytest.raises(ArgumentError, match="TensorBoard: log needs a folder"):
        train.TensorBoard().log({"loss": 1.0}, 1)


# ---- Weights & Biases ----


class FakeRun:
    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.id = options.get("id", "made-up")
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.finished = False

    def log(self, row: dict[str, float], step: int) -> None:
        assert not self.finished
        self.rows.append((step, row))

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> list[FakeRun]:
    """The runs started with a fake ``wandb`` package."""
    begun: list[FakeRun] = []

    def init(**options: Any) -> FakeRun:
        begun.append(FakeRun(options))
        return begun[-1]

    module: Any = types.ModuleType("wandb")
    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return begun


def test_rows_are_sent(wandb: list[FakeRun], tmp_path: Path) -> None:
    fit(train.WandB(project="mine", mode="offline"), folder=tmp_path / "a")
    (run,) = wandb
    assert run.options["project"] == "mine"
    assert run.options["mode"] == "offline"
    assert (run.options["name"], run.options["dir"]) == ("a", str(tmp_path / "a"))
    assert run.options["config"]["fit"]["optimizer"] == "SGD"
    assert [step for step, row in run.rows if "loss" in row] == [3, 6, 9]
    assert [step for step, _ in run.rows] == sorted(step for step, _ in run.rows)
    assert run.finished


def test_options_of_the_user_override_defaults(wandb: list[FakeRun], tmp_path: Path) -> None:
    fit(train.WandB(name="other", config={"a": 1}), folder=tmp_path / "a")
    assert (wandb[0].options["name"], wandb[0].options["config"]) == ("other", {"a": 1})
    fit(train.WandB(), epochs=1)
    assert wandb[1].options == {}
    logger = train.WandB(id="x")
    logger.log({"loss": 1.0}, 1)
    logger.close()
    assert (wandb[2].rows, wandb[2].id, wandb[2].finished) == ([(1, {"loss": 1.0})], "x", True)


def test_wandb_continues_with_a_resumed_run(wandb: list[FakeRun], tmp_path: Path) -> None:
    fit(train.WandB(), folder=tmp_path / "a", epochs=2)
    fit(train.WandB(), folder=tmp_path / "a", epochs=3, resume=True)
    assert wandb[1].options["id"] == wandb[0].id == "made-up"
    assert wandb[1].options["resume"] == "allow"
    assert [step for step, row in wandb[1].rows if "loss" in row] == [9]


@pytest.mark.slow
def test_the_real_wandb_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    fit(train.WandB(project="mine", mode="offline"), folder=tmp_path / "a")
    files = [name for _, _, names in os.walk(tmp_path / "a") for name in names]
    assert any(name.endswith(".wandb") for name in files)


# ---- missing packages ----


@pytest.mark.parametrize(
    ("module", "make", "words"),
    [
        ("tensorboardX", train.TensorBoard, r"TensorBoard: needs the package tensorboardX: .*'backburn\[loggers\]'"),
        ("wandb", train.WandB, "WandB: needs the package wandb: pip install wandb"),
    ],
)
def test_missing_packages_raise_one_line_errors(
    module: str, make: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BackendUnavailableError, match=words):
        make()
