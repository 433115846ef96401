"""Interrupted, killed and resumed runs end like uninterrupted ones."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers import training
from tests.helpers.training import Batches, network, trainer

import backburn as bb
from backburn import optim, train
from backburn.io import load_state
from backburn.train import RunFolder

SCRIPT = training.ROOT / "tests" / "helpers" / "training.py"


def go_on(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Start or resume the run in a folder, in a new process."""
    paths = [str(training.ROOT), str(training.ROOT / "src"), str(training.ROOT / "backends")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(SCRIPT), str(folder), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    done = go_on(folder)
    assert done.returncode == 0, done.stderr
    return folder


def end_of(run: Any) -> dict[str, Any]:
    """The state at the end of a run, without times."""
    state = run.state()
    state["history"] = [timeless(row) for row in state["history"]]
    del state["seconds"], state["passes"]
    return state


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in row.items() if not name.startswith(("seconds", "examples_per"))}


def assert_equal(a: Any, b: Any, path: str = "") -> None:
    """Assert that trees of plain values and tensors are bitwise equal."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_equal(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_equal(x, y, f"{path}.{i}")
    elif hasattr(a, "shape"):
        x, y = (np.asarray(z.numpy() if isinstance(z, bb.Tensor) else z) for z in (a, b))
        assert x.shape == y.shape, path
        assert x.dtype == y.dtype, path
        assert x.tobytes() == y.tobytes(), path
    else:
        assert a == b, path


def newest(folder: Path) -> dict[str, Any] | None:
    """The last saved state; None before the first."""
    found = sorted((folder / "checkpoints").glob("*.safetensors"))
    return load_state(found[-1]) if found else None


def killed_until_done(folder: Path, moments: random.Random, kills: int) -> int:
    """Kill a run ``kills`` times at random moments, then finish it; return how often the saved state was mid-epoch."""
    within = 0
    for _ in range(kills):
        done = go_on(folder, f"{moments.uniform(1.0, 16.0):.4f}")
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        state = newest(folder)
        within += state is not None and state["batches"] > 0
    done = go_on(folder)
    assert done.returncode == 0, done.stderr
    return within


def assert_same_files(folder: Path, whole: Path) -> None:
    for name in ("model.safetensors", "best.safetensors"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
    states: list[Any] = [newest(folder), newest(whole)]
    for state in states:
        assert state is not None
        state["history"] = [timeless(row) for row in state["history"]]
        del state["seconds"]
    assert_equal(*states)
    rows = [train.read_rows(f / "metrics.jsonl") for f in (folder, whole)]
    assert [timeless(row) for row in rows[0]] == [timeless(row) for row in rows[1]]
    assert not list(folder.rglob("*.tmp"))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
@pytest.mark.slow
def test_runs_killed_at_random_moments_end_with_identical_files(tmp_path: Path, whole: Path) -> None:
    within, moments = 0, random.Random(1)
    for number in range(5):
        folder = tmp_path / f"killed-{number}"
        within += killed_until_done(folder, moments, 5)
        assert_same_files(folder, whole)
    assert within > 0


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_killed_runs_end_with_identical_files(tmp_path: Path, whole: Path) -> None:
    for steps in ("7", "20", "19"):  # mid-epoch (ten steps), and not just after a save
        done = go_on(tmp_path / "a", steps)
        assert done.returncode == -signal.SIGKILL, done.stderr
        state = newest(tmp_path / "a")
        assert state is not None
        assert state["batches"] > 0
    assert go_on(tmp_path / "a").returncode == 0
    assert_same_files(tmp_path / "a", whole)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.parametrize(("name", "status"), [("SIGINT", -2), ("SIGTERM", 1)])
def test_a_signal_saves_within_the_epoch(tmp_path: Path, whole: Path, name: str, status: int) -> None:
    done = go_on(tmp_path / "a", "7", name)
    assert done.returncode in (status, 130), done.stderr
    assert "interrupted: saving after this step" in done.stderr
    state = newest(tmp_path / "a")
    assert state is not None
    assert 7 <= state["steps"] < 20
    assert go_on(tmp_path / "a").returncode == 0
    assert_same_files(tmp_path / "a", whole)


@pytest.mark.parametrize("spec", ["autodiff(numpy)", "autodiff(capture(numpy, join=false))"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulate": 3, "clip": 0.5},
        {"precision": "float16", "accumulate": 2},
        {"precision": "bfloat16"},
        {"on_nan": "back_off"},
        {"steps_per_epoch": 7},
        {"optimizer": optim.Groups({"*.bias": optim.SGD(0.1), "*": optim.Adam(0.01)})},
        {"average": None, "validation": None, "callbacks": []},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_resuming_a_saved_state_is_bitwise_identical(tmp_path: Path, spec: str, options: dict[str, Any]) -> None:
    def fresh() -> dict[str, Any]:
        made = dict(options)
        if "optimizer" in made:
            made["optimizer"] = optim.Groups({"*.bias": optim.SGD(0.1), "*": optim.Adam(0.01)})
        return made

    whole = trainer(spec=spec, **fresh()).fit(3)
    stopped = trainer(spec=spec, **fresh())
    steps = 13 if "accumulate" not in options else 5

    class Stop(train.Callback):
        def on_step(self, trainer: Any, row: Any) -> None:
            if trainer.steps == steps:
                trainer.stop("here")

    stopped.callbacks.append(Stop())
    stopped.fit(3)
    assert stopped.stopped == "here"
    assert stopped.batches > 0
    stopped.save(tmp_path / "state.safetensors")
    resumed = trainer(spec=spec, **fresh())
    assert resumed.resume(tmp_path / "state.safetensors")
    assert (resumed.steps, resumed.batches, resumed.epoch) == (stopped.steps, stopped.batches, stopped.epoch)
    resumed.fit(3)
    assert len(resumed.history) == 3
    assert_equal(end_of(resumed), end_of(whole))
    stopped.callbacks.pop()
    assert_equal(end_of(stopped.fit(3)), end_of(whole))  # so does continuing without loading


def test_data_without_a_position_resume_at_an_epoch(tmp_path: Path, capsys: Any) -> None:
    def plain(epoch: int) -> Any:
        data = Batches()
        data.set_epoch(epoch)
        return [next(iterator) for iterator in [iter(data)] for _ in range(len(data))]

    whole = trainer(data=plain, callbacks=[]).fit(4)

    class Interrupt(train.Callback):
        def on_step(self, trainer: Any, row: Any) -> None:
            if trainer.steps == 25:
                trainer.stop("here")

    first = trainer(tmp_path / "a", data=plain, callbacks=[Interrupt()])
    first.fit(4)
    assert "goes on at the beginning of an epoch" in capsys.readouterr().err
    assert load_state(RunFolder(tmp_path / "a").checkpoints[-1])["steps"] == 20
    resumed = trainer(tmp_path / "a", data=plain, callbacks=[]).fit(4, resume=True)
    assert_equal(end_of(resumed)["model"], end_of(whole)["model"])
    with pytest.raises(bb.errors.ArgumentError, match="the position in the data, a function, cannot be saved"):
        first.state()


class Loader(Batches):
    """Data with torchdata's protocol for loaders."""

    def __init__(self) -> None:
        super().__init__()
        self.done = 0

    def __iter__(self) -> Any:
        inner: Any = Batches.__iter__(self)
        plain = Batches()
        plain.set_epoch(self.epoch)
        inner = iter(plain)
        inner.at, self.done = self.done, 0
        for batch in _without_state(inner):
            self.now = inner.at
            yield batch

    def state_dict(self) -> dict[Any, Any]:
        return {"at": self.now, 3: (1, None, b"x")}

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        assert state[3] == (1, None, b"x")
        self.done = state["at"]


def _without_state(iterator: Any) -> Any:
    yield from iterator


def test_loaders_with_a_state_dict_resume_within_an_epoch(tmp_path: Path) -> None:
    whole = trainer(data=Batches()).fit(2)
    first = trainer(data=Loader(), callbacks=[])

    class Stop(train.Callback):
        def on_step(self, trainer: Any, row: Any) -> None:
            if trainer.steps == 14:
                trainer.stop("here")

    first.callbacks.append(Stop())
    first.fit(2)
    first.save(tmp_path / "s.safetensors")
    resumed = trainer(data=Loader(), callbacks=[])
    resumed.resume(tmp_path / "s.safetensors")
    resumed.fit(2)
    assert_equal(end_of(resumed)["model"], end_of(whole)["model"])
    assert_equal(end_of(resumed)["history"], end_of(whole)["history"])


def test_models_that_are_trees_are_saved(tmp_path: Path) -> None:
    def squares(model: Any, batch: Any) -> Any:
        return ((model["a"] * batch - model["b"][0]) ** 2.0).mean()

    def make() -> Any:
        model = {"a": bb.asarray(0.5).require_grad(), "b": [bb.asarray(0.0).require_grad()]}
        return train.Trainer(model, squares, [np.arange(3.0)], optimizer=optim.Adam(0.1), progress=False)

    run = make().fit(3)
    run.save(tmp_path / "s.safetensors")
    other = make()
    other.resume(tmp_path / "s.safetensors")
    assert other.model["a"].item() == run.model["a"].item() != 0.5
    assert other.fit(6).model["b"][0].item() == run.fit(6).model["b"][0].item()


# ---- other models and data ----


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": network(hidden=8)}, r"model 0\.weight was float32\[16,6\], is float32\[8,6\]"),
        ({"data": Batches(8)}, "data batches was 10, is 20"),
        ({"data": [{"x": training.X, "y": training.Y}] * 10}, "data kind was Batches, is list"),
        ({"optimizer": optim.SGD(0.1)}, "optimizer was AdamW, is SGD"),
        ({"precision": "bfloat16"}, "options precision was float32, is bfloat16"),
        ({"accumulate": 2}, "options accumulate was 1, is 2"),
        ({"average": None}, r"options average was Average\(.*\), is None"),
        ({"seed": 6}, "options seed was 5, is 6"),
    ],
)
def test_other_runs_are_not_resumed(tmp_path: Path, options: Any, words: str) -> None:
    trainer(tmp_path / "a").fit(1)
    with pytest.raises(
        bb.errors.RunFolderError, match=f"step-00000010.safetensors: the saved run is another one: .*{words}"
    ):
        trainer(tmp_path / "a", **options).fit(2, resume=True)


def test_other_data_are_detected_in_the_first_batch(tmp_path: Path) -> None:
    trainer(tmp_path / "a").fit(1)
    other = Batches(x=training.X.astype(np.float32))
    with pytest.raises(bb.errors.RunFolderError, match=r"had other data: x was float64\[n,6\], is float32\[n,6\]"):
        trainer(tmp_path / "a", data=other).fit(2, resume=True)


def test_early_stopping_stays_stopped(tmp_path: Path) -> None:
    def make(patience: int) -> Any:
        stopping = train.EarlyStopping("loss", patience=patience, min_delta=10.0)
        return trainer(tmp_path / "a", callbacks=[stopping])

    assert make(2).fit(9).epoch == 3
    again = make(2).fit(9, resume=True)
    assert (again.epoch, again.stopped) == (
        3,
        "loss has not improved on " + str(again.history[0]["loss"]) + " in 2 epochs",
    )
    assert make(4).fit(9, resume=True).epoch == 5


def test_other_files_are_refused(tmp_path: Path) -> None:
    bb.io.save_state(tmp_path / "s.safetensors", {"about": 3})
    with pytest.raises(bb.errors.FileFormatError, match="this is not the state of a training run"):
        trainer().resume(tmp_path / "s.safetensors")
    with pytest.raises(bb.errors.ArgumentError, match="takes the path of a saved state"):
        trainer().resume()
    with pytest.raises(bb.errors.ArgumentError, match="no run folder is open"):
        trainer().save()


def test_two_callbacks_of_a_class_have_their_own_states(tmp_path: Path) -> None:
    def make() -> list[Any]:
        return [train.EarlyStopping("loss", patience=9), train.EarlyStopping("accuracy", patience=9, mode="max")]

    trainer(tmp_path / "a", callbacks=make()).fit(2)
    restored = make()
    run = trainer(tmp_path / "a", callbacks=restored)
    assert run.resume()
    assert restored[0].best == min(row["loss"] for row in run.history)
    assert restored[1].best == max(row["accuracy"] for row in run.history)


def test_a_kill_after_the_row_of_an_epoch_repeats_no_row(tmp_path: Path) -> None:
    class Killed(train.Callback):
        """Ends a run like a kill after the row of its second epoch was written."""

        def on_epoch(self, trainer: Any, row: Any) -> None:
            if row["epoch"] == 2:
                trainer.folder.wait()
                raise KeyboardInterrupt

    run = trainer(tmp_path / "a", callbacks=[Killed(), train.Checkpoints(every=10)])
    with pytest.raises(KeyboardInterrupt):
        run.fit(4)
    newest = load_state(run.folder.checkpoints[-1]) if run.folder is not None else {}
    assert (newest["steps"], newest["epoch"], newest["batches"]) == (20, 1, 10)
    resumed = trainer(tmp_path / "a", callbacks=[]).fit(4, resume=True)
    rows = train.read_rows(tmp_path / "a" / "metrics.jsonl")
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
    assert [list(row) for row in rows] == [list(rows[0])] * 4
    assert rows[2:] == resumed.history[2:]
