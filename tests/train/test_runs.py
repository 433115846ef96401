"""Runs in folders: reading (also incomplete ones), listing and comparing; ``backburn runs``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from backburn import cli, train
from backburn.base.errors import FileFormatError
from backburn.train.locks import FileLock
from backburn.train.report import report_html
from backburn.train.runs import aligned, comparison, duration, run_table


def write(
    folder: Path, losses: list[float], *, rate: float = 0.1, started: str = "2026-01-02T03:04:05+0000", **more: Any
) -> Path:
    """Write the folder of a run."""
    folder.mkdir(parents=True)
    config = {"fit": {"epochs": 3, "options": {"rate": rate}}, "environment": {"started": started, "python": "3.11"}}
    (folder / "config.json").write_text(json.dumps(config | more), encoding="utf-8")
    rows = [
        {"epoch": i + 1, "step": 10 * i + 10, "loss": x, "validation/loss": 2 * x, "lr": rate, "seconds": 30.0}
        for i, x in enumerate(losses)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three runs: a complete one, one with another rate, one without a complete epoch."""
    write(tmp_path / "runs" / "a", [3.0, 2.0, 1.0])
    write(tmp_path / "runs" / "more" / "b", [3.0, 0.5], rate=0.2)
    write(tmp_path / "runs" / "c", [])
    (tmp_path / "runs" / ".hidden").mkdir()
    return tmp_path / "runs"


# ---- reading ----


def test_a_run_is_read(folder: Path) -> None:
    run = train.read_run(folder / "a")
    assert (run.name, run.planned, run.started, run.seconds) == ("a", 3, "2026-01-02 03:04", 90.0)
    assert run.metrics == ["loss", "validation/loss", "lr"]
    assert run.curve("loss") == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert run.settings() == {"fit.epochs": 3, "fit.options.rate": 0.1, "environment.python": "3.11"}
    assert not run.is_running
    write(folder / "longer", [4.0, 3.0, 2.0, 1.0])
    longer = train.read_run(folder / "longer")
    assert (longer.planned, run_table([longer])[1][1]) == (None, "4")
    assert "<th>epochs</th><td>4</td>" in report_html(longer)
    empty = train.read_run(folder / "c")
    assert (empty.last, empty.metrics, empty.seconds) == ({}, [], 0.0)


def test_truncated_and_invalid_lines_are_ignored(folder: Path) -> None:
    path = folder / "a" / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'{"epoch": 4, "lo')
    assert train.read_run(folder / "a").last["epoch"] == 3
    path.write_bytes(b'{"epoch": 1, "loss": NaN, "name": "text"}\n[1]\n\xff\n{}\n')
    (row,) = train.read_run(folder / "a").rows
    assert math.isnan(row["loss"])
    assert list(row) == ["epoch", "loss"]


def test_a_run_with_a_held_lock_is_running(folder: Path) -> None:
    lock = FileLock(folder / "a" / "lock")
    assert lock.acquire()
    try:
        assert train.read_run(folder / "a").is_running
        assert "running" in aligned(run_table(train.find_runs([folder])))
    finally:
        lock.release()
    assert not train.read_run(folder / "a").is_running


def test_runs_are_found_recursively(folder: Path) -> None:
    assert [run.name for run in train.find_runs([folder])] == ["a", "c", "b"]
    assert [run.name for run in train.find_runs([folder / "more", folder])] == ["b", "a", "c"]
    (folder / "a" / "sub").mkdir()
    write(folder / "a" / "sub" / "d", [1.0])  # runs inside a run are ignored
    assert [run.name for run in train.find_runs([folder])] == ["a", "c", "b"]


def test_one_folder_may_be_given_without_a_list(folder: Path) -> None:
    names = [run.name for run in train.find_runs([folder])]
    assert names
    assert [run.name for run in train.find_runs(folder)] == names
    assert [run.name for run in train.find_runs(str(folder))] == names


def test_folders_without_runs(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no such folder of runs"):
        train.find_runs([folder / "none"])
    with pytest.raises(FileFormatError, match=r"\.hidden: there is no run here or below"):
        train.find_runs([folder / ".hidden"])


# ---- tables ----


def test_a_table_of_runs(folder: Path) -> None:
    titles, *rows = run_table(train.find_runs([folder]))
    assert titles == ["run", "epochs", "time", "loss", "validation/loss", "validation/loss by epoch", "started", ""]
    path = folder.as_posix()
    assert rows[0] == [f"{path}/a", "3/3", "1 min 30 s", "1", "2", "█▅▁", "2026-01-02 03:04", ""]
    assert rows[1][:5] == [f"{path}/c", "0/3", "0.0 s", "-", "-"]
    assert rows[2][:5] == [f"{path}/more/b", "2/3", "1 min 00 s", "0.5", "1"]


def test_columns_can_be_chosen(folder: Path) -> None:
    assert run_table(train.find_runs([folder]), ["lr"])[0][3] == "lr"
    with pytest.raises(FileFormatError, match=r"no run has the value 'los'. Did you mean 'loss'\?"):
        run_table(train.find_runs([folder]), ["los"])


def test_a_comparison_shows_differences(folder: Path) -> None:
    table = {name: cells for name, *cells in comparison(train.find_runs([folder / "a", folder / "more"]))}
    assert table["fit.options.rate"] == ["0.1", "0.2"]
    assert "fit.epochs" not in table
    assert "environment.started" not in table
    assert table["epochs"] == ["3", "2"]
    assert (table["loss, last"], table["loss, least"], table["loss, largest"]) == (
        ["1", "0.5"],
        ["1", "0.5"],
        ["3", "3"],
    )
    assert table["lr, last"] == ["0.1", "0.2"]


def test_a_comparison_of_nan_and_missing_values(tmp_path: Path) -> None:
    write(tmp_path / "a", [1.0, math.nan])
    write(tmp_path / "b", [math.inf])
    write(tmp_path / "c", [])
    table = {name: cells for name, *cells in comparison(train.find_runs([tmp_path]))}
    assert table["loss, last"] == ["nan", "inf", "-"]
    assert table["loss, least"] == ["1", "-", "-"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0.0 s"), (59.94, "59.9 s"), (60, "1 min 00 s"), (3599.9, "1 h 00 min"), (86400, "24 h 00 min")],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


# ---- the command ----


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = cli.main(["runs", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out, err


def test_the_command_lists(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    status, out, err = run(capsys)
    assert (status, err) == (0, "")
    assert out.splitlines()[0].split()[:4] == ["run", "epochs", "time", "loss"]
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["runs/a", "runs/c", "runs/more/b"]


@pytest.mark.parametrize(("options", "order"), [([], "bac"), (["--reverse"], "abc")])
def test_the_command_sorts(options: list[str], order: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs without the value are last."""
    status, out, _ = run(capsys, folder, "--sort", "validation/loss", *options)
    assert status == 0
    assert "".join(line.split()[0][-1] for line in out.splitlines()[1:]) == order


def test_the_command_compares_and_prints_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, folder / "a", folder / "more" / "b", "--compare")
    assert status == 0
    assert any(line.split() == ["fit.options.rate", "0.1", "0.2"] for line in out.splitlines())
    status, out, _ = run(capsys, folder, "--json")
    tables = json.loads(out)
    assert [Path(table["path"]).name for table in tables] == ["a", "c", "b"]
    assert tables[0]["rows"][2]["loss"] == 1.0
    assert tables[0]["config"]["fit"]["epochs"] == 3


def test_the_command_draws(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = folder.parent / "all.html"
    status, out, _ = run(capsys, folder, "--plot", page)
    assert (status, out) == (0, f"{page}\n")
    text = page.read_text(encoding="utf-8")
    chart = text[text.index("<h3>loss</h3>") : text.index("<h3>validation/loss</h3>")]
    assert chart.count("<path") == 2  # the third run has no complete epoch
    assert f"{folder.as_posix()}/more/b" in chart
    status, out, _ = run(capsys, folder, "--report")
    assert out.splitlines() == [str(folder / name / "report.html") for name in ("a", "c", "more/b")]
    assert all((folder / name / "report.html").exists() for name in ("a", "c", "more/b"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none"], "none: there is no such folder of runs"),
        (["runs", "--metric", "los"], "no run has the value 'los'. Did you mean 'loss'?"),
        (["runs", "--sort", "los"], "no run has the value 'los'. Did you mean 'loss'?"),
        (["runs/.hidden"], "runs/.hidden: there is no run here or below"),
    ],
)
def test_the_command_fails_in_one_line(
    arguments: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    assert run(capsys, *arguments) == (2, "", f"backburn: {words}\n")


def test_pages_that_cannot_be_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, folder, "--plot", folder)
    assert (status, out) == (2, "")
    assert err.startswith("backburn: ")
