"""Run folders with foreign contents: no file is lost, nothing hangs, errors are backburn's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from backburn import cli
from backburn.base.errors import FileFormatError, RunFolderError
from backburn.train import find_runs, read_run
from backburn.train import run_folder as layout
from backburn.train.locks import FileLock, is_locked
from backburn.train.report import write_comparison, write_report
from backburn.train.run_folder import RunFolder, read_rows
from backburn.train.runs import aligned, comparison, run_table

ROW = '{"epoch": 1, "step": 5, "loss": 0.5, "seconds": 2.0}\n'
POSIX = pytest.mark.skipif(os.name == "nt", reason="needs POSIX")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A user's file that must not change."""
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run with one row."""
    path = tmp_path / "runs" / "a"
    path.mkdir(parents=True)
    (path / "metrics.jsonl").write_text(ROW)
    (path / "config.json").write_text('{"fit": {"epochs": 3}}')
    return path


def listed(*arguments: object) -> int:
    """The exit status of ``backburn runs``."""
    return cli.main(["runs", *map(str, arguments)])


# ---- listing runs ----


@pytest.mark.parametrize("options", [[], ["--compare"], ["--json"], ["--report"]])
def test_listing_runs_writes_nothing_through_links(folder: Path, victim: Path, options: list[str]) -> None:
    """The targets of a linked lock and report are unchanged; a new report replaces its link."""
    (folder / "lock").symlink_to(victim)
    (folder / "report.html").symlink_to(victim)
    assert listed(folder, *options) == 0
    assert victim.read_text() == "precious"
    assert (folder / "report.html").is_symlink() is ("--report" not in options)


def test_listing_runs_does_not_change_a_lock(folder: Path) -> None:
    """Content and time are kept: the file may belong to another program."""
    lock = folder / "lock"
    lock.write_text("of another program")
    os.utime(lock, (1, 1))
    assert listed(folder) == 0
    assert (lock.read_text(), lock.stat().st_mtime) == ("of another program", 1)


def test_listing_runs_opens_nothing_for_writing(folder: Path) -> None:
    """Checked with an audit hook of the interpreter."""
    (folder / "lock").write_text("12\n")
    program = (
        "import os, sys\n"
        "def hook(event, args):\n"
        "    if event == 'open' and (str(args[0]).startswith(sys.argv[1]) and args[2] & (os.O_WRONLY | os.O_RDWR)):\n"
        "        os.write(2, f'opened {args}'.encode()); os._exit(9)\n"
        "    if event in ('os.remove', 'os.rename', 'os.truncate', 'os.mkdir'):\n"
        "        os.write(2, event.encode()); os._exit(9)\n"
        "from backburn import cli\n"
        "sys.addaudithook(hook)\n"
        "sys.exit(cli.main(['runs', sys.argv[1]]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@POSIX
def test_listing_runs_does_not_block_locks(folder: Path) -> None:
    """Acquiring a lock never fails while another process checks it in a loop."""
    lock, program = FileLock(folder / "lock"), "import sys; from backburn.train.locks import is_locked\nfrom pathlib "
    program += "import Path\nprint(flush=True)\nwhile True: is_locked(Path(sys.argv[1]))"
    with subprocess.Popen([sys.executable, "-c", program, str(lock.path)], stdout=subprocess.PIPE) as looking:
        assert looking.stdout is not None
        looking.stdout.readline()
        try:
            for _ in range(2000):
                assert lock.acquire()
                lock.release()
        finally:
            looking.kill()


def test_locks_of_other_processes_are_detected(folder: Path) -> None:
    """They end with the process."""
    program = "import sys; from backburn.train.locks import FileLock\nfrom pathlib import Path\n"
    program += "lock = FileLock(Path(sys.argv[1])); print(lock.acquire(), flush=True); sys.stdin.read()"
    path = folder / "lock"
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holding:
        assert holding.stdout is not None
        assert holding.stdout.readline() == "True\n"
        assert is_locked(path)
        assert FileLock(path).holder() == str(holding.pid)
        assert read_run(folder).is_running
        with pytest.raises(RunFolderError, match=f"process {holding.pid}"):
            RunFolder(folder).open(resume=True)
        holding.communicate()
    assert not is_locked(path)


# ---- foreign files in a folder ----


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(2**42)


KINDS: dict[str, Callable[[Path], object]] = {
    "folder": Path.mkdir,
    "pipe": _fifo,
    "device": _zeros,
    "loop": lambda path: path.symlink_to(path),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "sparse": _sparse,
    "empty": lambda path: path.write_bytes(b""),
    "nul": lambda path: path.write_bytes(bytes(100)),
}


@POSIX
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "steps.jsonl", "lock", "checkpoints", "report.html"])
def test_other_objects_with_the_names_of_run_files(folder: Path, name: str, kind: str, victim: Path) -> None:
    """Listing and training end at once, with a result or a backburn error."""
    path = folder / name
    path.unlink(missing_ok=True)
    KINDS[kind](path)
    started = time.monotonic()
    assert listed(folder) in (0, 2)
    try:
        with_report = write_report(folder)
    except (FileFormatError, OSError):
        pass
    else:
        assert with_report.is_file()
    run = RunFolder(folder)
    try:
        run.open(resume=True)
        run.forget(1, 5)
        run.append({"epoch": 2, "loss": 0.1})
    except (RunFolderError, FileFormatError):
        pass
    finally:
        run.close()
    assert victim.read_text() == "precious"
    assert time.monotonic() - started < 60, "too slow"


@pytest.mark.parametrize("name", [*layout._RUN, "lock", "report.html", "curves.png", "timeline.json", "tensorboard"])
def test_run_folders_with_links_are_refused(folder: Path, name: str, victim: Path) -> None:
    """With any option; the link and its target are kept."""
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(victim)
    for options in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(RunFolderError, match=f"{name} in it is a link"):
            RunFolder(folder).open(**options)
    assert victim.read_text() == "precious"
    assert (folder / name).is_symlink()


@POSIX
@pytest.mark.parametrize("name", ["metrics.jsonl", "metrics.csv", "steps.jsonl", "lock"])
def test_hard_links_are_not_written_to(folder: Path, name: str, victim: Path) -> None:
    """An archive may contain hard links."""
    (folder / name).unlink(missing_ok=True)
    os.link(victim, folder / name)
    with pytest.raises(RunFolderError, match="is a link"):
        RunFolder(folder).open(resume=True)
    assert victim.read_text() == "precious"


def test_linked_checkpoints_are_not_deleted(folder: Path, tmp_path: Path) -> None:
    """Neither by the limit of their number nor by a new run."""
    others = tmp_path / "others"
    others.mkdir()
    for number in range(5):
        (others / f"step-{number:08d}.safetensors").write_bytes(b"x")
    (folder / "checkpoints").symlink_to(others)
    with pytest.raises(RunFolderError, match="checkpoints in it is a link"):
        RunFolder(folder).open(overwrite=True)
    RunFolder(folder).delete_old(0)
    assert len(list(others.iterdir())) == 5


def test_only_files_with_names_of_run_files_are_deleted(folder: Path) -> None:
    """Only in the folder and its checkpoints, not in other subfolders."""
    (folder / "checkpoints").mkdir()
    (folder / "sub").mkdir()
    ours = [
        ".config.json.12.0123abcd.tmp", ".metrics.jsonl.1.ffffffff.tmp",
        "checkpoints/.step-00000001.safetensors.1.00000000.tmp"
    ]  # fmt: skip
    theirs = [
        ".mine.tmp", ".config.json.tmp", ".config.json.x.0123abcd.tmp", ".notes.txt.12.0123abcd.tmp",
        "sub/.config.json.12.0123abcd.tmp", "sub/.x.tmp", "checkpoints/.mine.tmp", "checkpoints/step-mine.safetensors",
        "checkpoints/step-1.safetensors", "checkpoints/step-00000001.safetensors.bak", "checkpoints/notes",
    ]  # fmt: skip
    for name in (*ours, *theirs):
        (folder / name).write_text("x")
    (folder / ".model.safetensors.1.0123abcd.tmp").mkdir()
    run = RunFolder(folder)
    run.open(overwrite=True)
    run.delete_old(0)
    run.close()
    assert not [name for name in ours if (folder / name).exists()]
    assert [name for name in theirs if not (folder / name).exists()] == []
    assert (folder / ".model.safetensors.1.0123abcd.tmp").is_dir()


@pytest.mark.parametrize("name", ["metrics.csv", "steps.jsonl", "best.safetensors", "report.html", "curves.png"])
def test_user_files_are_not_overwritten_by_a_run(tmp_path: Path, name: str) -> None:
    """For example in the current folder, unless ``overwrite=True``."""
    (tmp_path / name).write_text("mine")
    for resume in (False, True):
        if resume and name in layout._RUN:
            continue
        with pytest.raises(RunFolderError, match="overwrite=True"):
            RunFolder(tmp_path).open(resume=resume)
    assert (tmp_path / name).read_text() == "mine"


def test_a_lock_file_of_another_program_is_refused(tmp_path: Path) -> None:
    """Its content is kept."""
    (tmp_path / "lock").write_text("a list of versions")
    with pytest.raises(RunFolderError, match="lock in it belongs to another program"):
        RunFolder(tmp_path).open()
    assert (tmp_path / "lock").read_text() == "a list of versions"


def test_links_to_folders_are_not_followed(folder: Path, tmp_path: Path) -> None:
    """Links to other runs, to ``/`` and in cycles are ignored; a folder named by the user may be a link."""
    runs = folder.parent
    (tmp_path / "elsewhere" / "b").mkdir(parents=True)
    (tmp_path / "elsewhere" / "b" / "metrics.jsonl").write_text(ROW)
    for name, target in (("x", tmp_path / "elsewhere"), ("all", Path("/")), ("circle", runs)):
        (runs / name).symlink_to(target)
    assert [run.name for run in find_runs([runs])] == ["a"]
    assert [run.name for run in find_runs([runs / "x"])] == ["b"]
    (runs / "only").mkdir()
    (runs / "only" / "l").symlink_to(folder)
    with pytest.raises(FileFormatError, match="links in it are not followed"):
        find_runs([runs / "only"])


def test_deeply_nested_folders(tmp_path: Path) -> None:
    """Deeper than the interpreter's recursion limit."""
    deep = tmp_path / "deep"
    deep.mkdir()
    here, number = os.getcwd(), 1200
    try:
        os.chdir(deep)
        for _ in range(number):
            os.mkdir("d")
            os.chdir("d")
        Path("metrics.jsonl").write_text(ROW)
        assert len(find_runs([deep])) == 1
        Path("metrics.jsonl").unlink()
        for _ in range(number):
            os.chdir("..")
            os.rmdir("d")  # pytest cannot remove such deep folders
    finally:
        os.chdir(here)


# ---- numbers, names and sizes ----

NUMBERS = [
    "NaN", "Infinity", "-Infinity", "1" * 400, "-" + "9" * 400, "1e999", "5e-324", "1.7976931348623157e308",
    "-1.7976931348623157e308", "9" * 5000, "0", "-0.0", "1e300", "true", "null", '"x"', "[" * 2000 + "]" * 2000,
    '{"a": ' * 990 + "1" + "}" * 990,
]  # fmt: skip


@pytest.mark.parametrize("key", ["loss", "epoch", "step", "seconds", "seconds/data", "examples_per_second"])
def test_extreme_values_in_any_column(tmp_path: Path, key: str) -> None:
    """All tables and pages are still written."""
    for i, number in enumerate(NUMBERS):
        folder = tmp_path / f"{i:02d}"
        folder.mkdir()
        rows = [json.dumps({"epoch": n, "step": n, "loss": 1.0 / n, "seconds": 1.0}) for n in (1, 2)]
        line = f'{{"epoch": 3, "loss": 1, "{key}": {number}}}'
        (folder / "metrics.jsonl").write_text("\n".join([line, *rows, line, line]))
        (folder / "steps.jsonl").write_text(line)
        (folder / "config.json").write_text(f'{{"fit": {{"epochs": {number if len(number) < 4000 else 3}}}}}')
        if len(number) >= 4000 or "[[" in number or '{"a"' in number:
            (folder / "config.json").write_text('{"fit": {"epochs": 1}}')
        write_report(folder)
    runs = find_runs([tmp_path])
    assert aligned(run_table(runs)).isprintable() is False
    assert "\x1b" not in aligned(comparison(runs))
    write_comparison([tmp_path], tmp_path / "all.html")
    for option in ("--json", "--compare", "--sort=loss"):
        assert listed(tmp_path, option) == 0


def test_subnormal_values(tmp_path: Path) -> None:
    """An eighth of their range underflows."""
    lines = [json.dumps({"epoch": i, "loss": i * 5e-324}) for i in range(20)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert "loss" in aligned(run_table(find_runs([tmp_path])))
    assert write_report(tmp_path).is_file()


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "[" * 900 + "]" * 900,
        '{"a":' * 900 + "1" + "}" * 900,
        '"\\ud800',
        "\xff\xfe",
        "1" * 5000,
    ],
)
def test_invalid_settings(folder: Path, content: str) -> None:
    """They raise one error that names the file."""
    (folder / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(FileFormatError, match=r"config\.json"):
        read_run(folder)
    assert listed(folder) == 2


def test_control_characters_are_escaped(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In names of values, settings and folders, in tables, pages and errors."""
    bad = "\x1b]0;owned\x07\x1b[2J\u202e\r\ud800"
    row = {"epoch": 1, "step": 1, bad: 2.0, "validation/" + bad: 1.0, "loss": 1.0}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    config = {"fit": {"epochs": 3, bad: bad}, bad: {bad: [bad]}, "environment": {"started": bad}}
    (folder / "config.json").write_text(json.dumps(config))
    odd = folder.parent / "b\x1b[31m\nc"
    odd.mkdir()
    (odd / "metrics.jsonl").write_text(ROW)
    for options in (
        [],
        ["--compare"],
        ["--json"],
        ["--report"],
        ["--plot", str(tmp_path / "p.html")],
        ["--metric", bad],
    ):
        listed(folder.parent, *options)
        out, err = capsys.readouterr()
        assert all(c.isprintable() or c == "\n" for c in out + err), repr(out + err)
    for path in (folder / "report.html", tmp_path / "p.html"):
        text = path.read_text(encoding="utf-8")
        assert all(c.isprintable() or c == "\n" for c in text)
    (odd / "config.json").write_text("{")
    assert listed(odd) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_many_names_and_rows_take_linear_time(folder: Path) -> None:
    """300 rows of 300 different names each: tables and pages show the first ones."""
    with open(folder / "metrics.jsonl", "w") as file:
        for i in range(300):
            file.write(json.dumps({f"n{i}-{j}": j for j in range(300)}) + "\n")
    run = read_run(folder)
    assert len(run.metrics) == 90_000
    assert len(run.curves()) == 200
    assert write_report(folder).stat().st_size < 5_000_000
    assert len(comparison([run])) < 700


def test_the_end_of_a_long_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Complete rows, up to limits of bytes and rows."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"epoch": {i}}}\n' for i in range(1000)))
    monkeypatch.setattr(layout, "MOST_BYTES", 1000)
    found = [row["epoch"] for row in read_rows(path)]
    assert found == list(range(1000 - len(found), 1000))
    assert 50 < len(found) < 100
    monkeypatch.setattr(layout, "MOST_ROWS", 10)
    assert [row["epoch"] for row in read_rows(path)] == list(range(990, 1000))
    path.write_text("x" * 5000)
    assert read_rows(path) == []
