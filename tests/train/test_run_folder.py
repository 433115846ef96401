"""Run folders: files, the lock, full disks and read-only folders."""

from __future__ import annotations

import csv
import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import training
from tests.helpers.training import Batches, trainer

import backburn as bb
from backburn import optim, train
from backburn.errors import ArgumentError, NumericalInstabilityError, RunFolderError
from backburn.io import load_model, load_state
from backburn.train.locks import FileLock, is_locked
from backburn.train.run_folder import RunFolder, read_rows


class Fails(train.Callback):
    """Raises after a number of steps."""

    def __init__(self, steps: int, error: BaseException | None = None) -> None:
        self.steps, self.error = steps, error or ZeroDivisionError("of my own")

    def on_step(self, trainer: Any, row: Any) -> None:
        if trainer.steps == self.steps:
            raise self.error


def test_the_files_of_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    run = trainer(folder, log_every=5).fit(3)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert names == [
        "best.safetensors", *(f"checkpoints/step-{n:08d}.safetensors" for n in (24, 27, 30)), "config.json", "lock",
        "metrics.csv", "metrics.jsonl", "model.safetensors", "steps.jsonl",
    ]  # fmt: skip
    assert read_rows(folder / "metrics.jsonl") == run.history
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [{name: float(x) for name, x in row.items()} for row in rows] == run.history
    assert [row["step"] for row in read_rows(folder / "steps.jsonl")] == [5, 10, 15, 20, 25, 30]
    config = json.loads((folder / "config.json").read_text())
    assert config["fit"]["epochs"] == 3
    assert config["fit"]["model"]["0.weight"] == "float32[16,6]"
    assert config["fit"]["data"] == {"kind": "Batches", "batches": 10}
    assert config["environment"]["backburn"] == bb.__version__
    saved = load_model(folder / "model.safetensors")
    assert saved.about["epoch"] == 3
    assert saved.about["metrics"]["loss"] == run.history[-1]["loss"]
    assert run.average is not None
    with run.average.applied(run.model):
        assert (run.model.state_dict()["0.weight"].numpy() == saved.state["0.weight"]).all()
    best = min(run.history, key=lambda row: row["validation/loss"])
    assert load_model(folder / "best.safetensors").about["epoch"] == best["epoch"]


def test_columns_added_later(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.open()
    folder.append({"epoch": 1, "loss": 2.0})
    folder.append({"epoch": 2, "loss": 1.0, "other": 3.0})
    folder.append({"epoch": 3, "loss": 1.0})
    folder.close()
    assert (tmp_path / "metrics.csv").read_text() == "epoch,loss,other\n1,2.0,\n2,1.0,3.0\n3,1.0,\n"


def test_a_truncated_last_line_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text('{"epoch": 1}\n{"epo')
    assert read_rows(tmp_path / "rows") == [{"epoch": 1}]


def test_a_folder_with_a_run_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path / "a").fit(1)
    before = (tmp_path / "a" / "model.safetensors").read_bytes()
    with pytest.raises(RunFolderError, match="already has a run: continue it with resume=True, replace it with"):
        trainer(tmp_path / "a").fit(1)
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == before
    run = trainer(tmp_path / "a", seed=8).fit(2, overwrite=True)
    assert read_rows(tmp_path / "a" / "metrics.jsonl") == run.history
    assert load_state(RunFolder(tmp_path / "a").checkpoints[-1])["steps"] == 20
    assert run.fit(3).epoch == 3  # continues its own run
    assert read_rows(tmp_path / "a" / "metrics.jsonl") == run.history
    with pytest.raises(ArgumentError, match="pass one"):
        trainer(tmp_path / "a").fit(1, resume=True, overwrite=True)
    with pytest.raises(ArgumentError, match="pass folder="):
        trainer().fit(1, resume=True)


class Refuses:
    """Data whose first batch cannot be read."""

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Any:
        raise ZeroDivisionError("of my own")


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder, except the lock."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_an_overwritten_run_is_kept_until_the_first_step(tmp_path: Path) -> None:
    trainer(tmp_path / "a").fit(2)
    (tmp_path / "a" / "report.html").write_text("of the first run")
    before = contents(tmp_path / "a")
    run = trainer(tmp_path / "a", seed=8, callbacks=[train.Report()])
    good, run.data = run.data, Refuses()
    with pytest.raises(ZeroDivisionError):
        run.fit(1, overwrite=True)
    assert contents(tmp_path / "a") == before
    with pytest.raises(RunFolderError, match="already has a run"):
        run.fit(1)
    seen = []

    class Looks(train.Callback):
        def on_start(self, trainer: Any) -> None:
            seen.append(contents(tmp_path / "a"))

        def on_step(self, trainer: Any, row: Any) -> None:
            seen.append(contents(tmp_path / "a"))

    run.data = good
    run.callbacks = [Looks()]
    assert run.fit(1, overwrite=True).steps == 10
    assert {f".replaced-run/{Path(name).name}": content for name, content in before.items()}.items() <= seen[0].items()
    assert not any(name.startswith(".replaced-run") for name in seen[1])
    assert read_rows(tmp_path / "a" / "metrics.jsonl") == run.history
    assert not {"best.safetensors", "checkpoints/step-00000020.safetensors"} & {*seen[1]}
    assert not list((tmp_path / "a").glob(".replaced-run*"))


@pytest.mark.parametrize("killed", ["while it is put aside", "before the first step", "while it is deleted"])
def test_killing_a_process_that_overwrites_a_run(tmp_path: Path, killed: str) -> None:
    """The next process finds the old run, or none if the new one had begun."""
    folder = tmp_path / "a"
    trainer(folder).fit(1)
    before = contents(folder)
    aside = folder / (".replaced-run.moved" if killed == "while it is put aside" else ".replaced-run")
    aside.mkdir()
    for name in ("config.json", "metrics.jsonl", "checkpoints/step-00000010.safetensors"):
        (folder / name).rename(aside / Path(name).name)
    if killed == "before the first step":
        for name in before.keys() - {"config.json", "metrics.jsonl", "checkpoints/step-00000010.safetensors"}:
            target = aside / Path(name).name
            (folder / name).rename(target)
        (folder / "config.json").write_text("{}")
        (folder / "checkpoints" / "step-00000000.safetensors").write_bytes(b"of the new run")
    elif killed == "while it is deleted":
        aside.rename(folder / ".replaced-run.deleted")
    run = RunFolder(folder)
    assert run.has_run
    run.open(resume=True)
    run.close()
    after = contents(folder)
    if killed == "while it is deleted":
        assert after.keys() == before.keys() - {"config.json", "metrics.jsonl", "checkpoints/step-00000010.safetensors"}
    else:
        assert after == before
    assert not list(folder.glob(".replaced-run*"))


def test_resuming_without_a_run_starts_one(tmp_path: Path) -> None:
    run = trainer(tmp_path / "new").fit(1, resume=True)
    assert run.epoch == 1
    assert trainer(tmp_path / "new").fit(1, resume=True).history == run.history


# ---- two runs ----


def test_a_second_run_in_a_folder_is_refused(tmp_path: Path) -> None:
    class Second(train.Callback):
        def on_epoch(self, first: Any, row: Any) -> None:
            with pytest.raises(RunFolderError, match=r"another run is training in .*a"):
                trainer(tmp_path / "a").fit(1, resume=True)
            assert is_locked(tmp_path / "a" / "lock")
            code = (
                "import sys; from pathlib import Path; from backburn.train.locks import FileLock, is_locked\n"
                "path = Path(sys.argv[1]); print(is_locked(path), FileLock(path).acquire())"
            )
            paths = os.pathsep.join(str(training.ROOT / name) for name in ("src", "backends"))
            command = [sys.executable, "-c", code, str(tmp_path / "a" / "lock")]
            done = subprocess.run(
                command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True
            )
            assert done.stdout == "True False\n"

    trainer(tmp_path / "a", callbacks=[Second()]).fit(1)
    assert not is_locked(tmp_path / "a" / "lock")
    assert trainer(tmp_path / "a").fit(2, resume=True).epoch == 2


def test_a_lock_is_held_by_one_thread_at_a_time(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert first.acquire()
    taken: list[bool] = []
    thread = threading.Thread(target=lambda: taken.append(second.acquire()))
    thread.start()
    thread.join()
    assert taken == [False]
    first.release()
    first.release()
    assert second.acquire()
    second.release()
    assert not is_locked(tmp_path / "nowhere")


# ---- errors of users and of disks ----


def test_an_error_leaves_the_folder_intact(tmp_path: Path) -> None:
    run = trainer(tmp_path / "a", callbacks=[Fails(25)])
    with pytest.raises(ZeroDivisionError, match="of my own"):
        run.fit(5)
    assert (
        load_state(RunFolder(tmp_path / "a").checkpoints[-1])["steps"] == 20
    )  # the previous epoch, whose save had been deferred
    assert load_model(tmp_path / "a" / "model.safetensors").about["epoch"] == 2
    whole, resumed = trainer(callbacks=[]).fit(5), trainer(tmp_path / "a", callbacks=[]).fit(5, resume=True)
    assert [row["loss"] for row in resumed.history] == [row["loss"] for row in whole.history]
    assert [row["epoch"] for row in read_rows(tmp_path / "a" / "metrics.jsonl")] == [1, 2, 3, 4, 5]


def test_nonfinite_states_are_not_saved(tmp_path: Path) -> None:
    spoiled = training.X.copy()
    spoiled[:] = float("nan")

    def data(epoch: int) -> Any:
        return Batches() if epoch < 3 else Batches(x=spoiled)

    run = trainer(tmp_path / "a", data=data, callbacks=[train.Checkpoints(every=1)])
    with pytest.raises(NumericalInstabilityError, match="the loss is nan in step 21, in epoch 3"):
        run.fit(5)
    assert load_state(RunFolder(tmp_path / "a").checkpoints[-1])["steps"] == 20


def test_unwritable_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"the run folder .*below cannot be written to: "):
        trainer(tmp_path / "file" / "below").fit(1)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root can write anywhere")
def test_a_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunFolderError, match="cannot be written to: Permission denied"):
        trainer(tmp_path / "a").fit(1)
    tmp_path.chmod(0o700)


def test_a_full_disk_keeps_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from backburn.io import save_state as real
    from backburn.train import run_folder

    room = [5]

    def save_state(path: Any, tree: Any) -> None:
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real(path, tree)

    monkeypatch.setattr(run_folder, "save_state", save_state)
    run = trainer(tmp_path / "a")
    words = "cannot be saved: there is no space left on its disk; the last good checkpoint is .*step-000000(09|10|12)"
    with pytest.raises(RunFolderError, match=words):
        run.fit(9)
    monkeypatch.undo()
    assert load_state(RunFolder(tmp_path / "a").checkpoints[-1])["steps"] in (
        9,
        10,
        12,
    )  # epoch ends are saved as well
    resumed, whole = trainer(tmp_path / "a").fit(3, resume=True), trainer().fit(3)
    assert [row["loss"] for row in resumed.history] == [row["loss"] for row in whole.history]


LIMITED = """\
import resource, signal, sys
sys.path[:0] = sys.argv[2:]
from tests.helpers.training import trainer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
run = trainer(sys.argv[1])
class Fill:
    pass
from backburn import train
class Full(train.Callback):
    def on_epoch(self, trainer, row):
        if row["epoch"] == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
run.callbacks.append(Full())
try:
    run.fit(5)
except train.RunFolderError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX limits of file sizes")
def test_a_system_limit_of_file_sizes_is_a_clear_error(tmp_path: Path) -> None:
    paths = [str(training.ROOT / name) for name in ("", "src", "backends")]
    command = [sys.executable, "-c", LIMITED.replace("train.Run", "__import__('backburn').errors.Run")]
    done = subprocess.run([*command, str(tmp_path / "a"), *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "there is no space left on its disk; the last good checkpoint is" in done.stdout
    resumed, whole = trainer(tmp_path / "a").fit(3, resume=True), trainer().fit(3)
    assert [row["loss"] for row in resumed.history] == [row["loss"] for row in whole.history]


def test_a_damaged_checkpoint_is_skipped(tmp_path: Path, capsys: Any) -> None:
    trainer(tmp_path / "a").fit(2)
    newest = RunFolder(tmp_path / "a").checkpoints[-1]
    newest.write_bytes(newest.read_bytes()[:-9])
    resumed = trainer(tmp_path / "a").fit(3, resume=True)
    assert "the checkpoint before it is used" in capsys.readouterr().err
    whole = trainer().fit(3)
    assert [row["loss"] for row in resumed.history] == [row["loss"] for row in whole.history]


def test_temporary_files_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    trainer(tmp_path / "a").fit(1)
    left = tmp_path / "a" / "checkpoints" / ".step-00000001.safetensors.99.0123abcd.tmp"
    left.write_bytes(b"half")
    trainer(tmp_path / "a").fit(2, resume=True)
    assert not left.exists()


def test_saving_does_not_disturb_recorded_steps(tmp_path: Path) -> None:
    spec = "autodiff(capture(numpy, join=false))"
    saving = trainer(tmp_path / "a", spec=spec, callbacks=[train.Checkpoints(every=1)]).fit(3)
    assert saving.not_replayed == ""
    plain = trainer(spec=spec, callbacks=[]).fit(3)
    assert [row["loss"] for row in saving.history] == [row["loss"] for row in plain.history]


def test_options_of_checkpoints() -> None:
    with pytest.raises(ArgumentError, match="Checkpoints: last"):
        train.Checkpoints(last=0)
    with pytest.raises(ArgumentError, match="Checkpoints: mode"):
        train.Checkpoints(mode="least")
    with pytest.raises(ArgumentError, match="Checkpoints: every"):
        train.Checkpoints(every=0)
    kept = train.Checkpoints(best="a", mode="max")
    assert [kept.is_best({"a": x}) for x in (1.0, 0.5, 2.0)] == [True, False, True]
    assert not kept.is_best({"b": 3.0})
    assert not train.Checkpoints(best=None).is_best({"": 1.0, "validation/loss": 1.0})


def test_an_empty_folder_name_is_refused() -> None:
    with pytest.raises(ArgumentError, match="the folder of a run has an empty name; the current folder is"):
        trainer("")


def test_an_unknown_best_value_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"Checkpoints: the epochs have no 'validation/acuracy'\. Did you mean"):
        trainer(tmp_path / "a", callbacks=[train.Checkpoints(best="validation/acuracy")]).fit(2)
    with pytest.raises(
        ArgumentError, match="Checkpoints: the epochs have no 'validation/accuracy', as there are no val"
    ):
        trainer(
            tmp_path / "b", validation=None, metrics={}, callbacks=[train.Checkpoints(best="validation/accuracy")]
        ).fit(2)
    run = trainer(tmp_path / "c", validation=None, metrics={}, callbacks=[train.Checkpoints()]).fit(2)
    assert run.epoch == 2
    assert not (tmp_path / "c" / "best.safetensors").exists()


def test_rows_have_the_learning_rates_of_groups() -> None:
    optimizer = optim.Groups({"*.bias": optim.SGD(0.1), "*": optim.SGD(0.2)})
    row = trainer(optimizer=optimizer).fit(1).history[0]
    assert (row["lr/*.bias"], row["lr/*"]) == (0.1, 0.2)
