"""Every command under unusual conditions: full and closed outputs, other locales, deleted folders."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pydantic")

from backburn import models
from backburn.communicators.wheels import find_mpiexec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/dev/full").exists() or shutil.which("bash") is None, reason="needs Linux"),
]
COMMANDS = {
    "nothing": [], "--help": ["--help"], "--version": ["--version"], "train --help": ["train", "--help"],
    "train": ["train", "run.toml", "--out", "out2", "--overwrite"], "check": ["train", "run.toml", "--check"],
    "evaluate": ["evaluate", "out"], "predict": ["predict", "out", "x.npy", "--out", "y.npz"], "runs": ["runs", "."],
    "compare": ["runs", ".", "--compare"], "json": ["runs", ".", "--json"], "report": ["runs", "out", "--report"],
    "generate": ["generate", "lm", "a", "--max-new-tokens", "9"], "backends": ["backends"], "info": ["info"],
    "operation": ["info", "sqrt"],
    "conformance": ["conformance", "numpy", "--ops", "neg", "--quick", "--in-process"],
    "jobs": ["conformance", "numpy", "--ops", "neg", "--quick", "--jobs", "1", "--brief"],
    "launch": ["launch", "-n", "2", "info", "sqrt"],
}  # fmt: skip
#: Commands that fail.
WRONG = {"command": ["frobnicate"], "option": ["runs", "--nonsense"], "folder": ["runs", "nowhere"]}
NEEDS = {"generate": "tokenizers"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration, a run of it, inputs, and a language model."""
    path = tmp_path_factory.mktemp("faults")
    (path / "run.toml").write_text("[model]\nhidden = [4]\n[train]\nepochs = 1\n")
    np.save(path / "x.npy", np.zeros((3, 64), np.float32))
    config = models.LlamaConfig(
        vocab_size=300, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1,
    )  # fmt: skip
    models.Llama(config).save_pretrained(path / "lm")
    letters = {chr(code): code for code in range(1, 256)}  # includes many control characters
    tokenizer = {"version": "1.0", "model": {"type": "BPE", "vocab": letters, "merges": []}}
    (path / "lm" / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert shell(path, ["train", "run.toml", "--out", "out"]).returncode == 0
    return path


def shell(folder: Path, words: list[str], after: str = "", before: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command in a shell, with redirections after it and other commands before it."""
    environment = {name: x for name, x in os.environ.items() if not name.startswith("PYTHON")}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    line = f'{before} "$@" {after}'
    command = ["bash", "-c", line, "-", sys.executable, "-P", "-m", "backburn", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=300,
        encoding="utf-8", errors="surrogateescape",
    )  # fmt: skip


def tried(name: str, words: list[str]) -> list[str]:
    """The arguments of a command; skips the test if a requirement is not installed."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    if name == "launch" and find_mpiexec() is None:
        pytest.skip("no mpiexec")
    return words


def check(done: subprocess.CompletedProcess[str]) -> None:
    """Raise AssertionError if the interpreter printed an error."""
    for word in ("Traceback", "Exception ignored", "Error in sys"):
        assert word not in done.stderr + done.stdout, done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_writing_to_a_full_device_is_an_error(folder: Path, name: str) -> None:
    """An error is printed and the status is 2 (``mpiexec`` has another status)."""
    words = tried(name, COMMANDS[name])
    done = shell(folder, words, ">/dev/full")
    check(done)
    if name == "launch":
        assert done.returncode != 0
    else:
        assert (done.returncode, done.stderr.splitlines()[-1:]) == (2, ["backburn: No space left on device"])


@pytest.mark.parametrize("name", COMMANDS)
def test_closed_streams_are_no_error(folder: Path, name: str) -> None:
    """With closed streams or a closed pipe the command finishes and prints nothing."""
    words = tried(name, COMMANDS[name])
    done = shell(folder, words, "<&- >&- 2>&-")
    assert (done.returncode, done.stderr) == (0, "")
    if name != "launch":  # mpiexec ends by SIGPIPE
        done = shell(folder, words, "| true; exit ${PIPESTATUS[0]}")
        check(done)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("after", ["2>/dev/full", ">/dev/full 2>&1", "2>&-"])
def test_an_error_that_cannot_be_printed_keeps_its_status(folder: Path, name: str, after: str) -> None:
    """The status is 2, whichever stream is full or closed."""
    assert shell(folder, WRONG[name], after).returncode == 2


def test_control_characters_of_a_model_do_not_reach_a_terminal(folder: Path) -> None:
    """A file receives them unchanged."""
    pty = pytest.importorskip("pty")
    pytest.importorskip("tokenizers")
    words = ["generate", "lm", "a", "--temperature", "1", "--seed", "0", "--max-new-tokens", "200"]
    raw = shell(folder, words).stdout
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", raw), "the model writes no control characters"
    ours, theirs = pty.openpty()
    command = [sys.executable, "-P", "-m", "backburn", *words]
    with subprocess.Popen(command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux: the other end has closed
                break
            shown += part
        assert process.wait(240) == 0
    os.close(ours)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown.decode().replace("\r\n", "\n"))


# ---- locales ----


@pytest.fixture(scope="module")
def locales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Turkish and Japanese locales in legacy encodings; the Turkish one has decimal commas."""
    path = tmp_path_factory.mktemp("locales")
    for language, encoding in (("tr_TR", "ISO-8859-9"), ("ja_JP", "EUC-JP")):
        made = shutil.which("localedef") and subprocess.run(
            ["localedef", "-i", language, "-f", encoding, path / f"{language}.{encoding}"],
            capture_output=True, check=False,
        )  # fmt: skip
        if not made or not (path / f"{language}.{encoding}").exists():
            pytest.skip("localedef cannot compile the locales")
    return path


def lines(text: str) -> list[str]:
    """What was printed, without times and the names of folders."""
    return [re.sub(r"\d+\.\d s|out-\w+|\d{4}-\d\d-\d\d \d\d:\d\d", "", line).rstrip() for line in text.splitlines()]


@pytest.fixture(scope="module")
def usual(folder: Path) -> subprocess.CompletedProcess[str]:
    """A run in the current locale, in ``out-usual``."""
    return shell(folder, ["train", "run.toml", "--out", "out-usual"])


VARIABLES = {
    "C": "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0", "C.UTF-8": "LC_ALL=C.UTF-8",
    "tr": "LC_ALL=tr_TR.ISO-8859-9 PYTHONUTF8=0", "ja": "LC_ALL=ja_JP.EUC-JP PYTHONUTF8=0",
    "io": "PYTHONIOENCODING=ascii",
}  # fmt: skip


@pytest.mark.parametrize("name", VARIABLES)
def test_commands_do_the_same_in_every_locale(folder: Path, usual: Any, locales: Path, name: str) -> None:
    """Train, list and evaluate. File names that the encoding lacks either work or raise a backburn error."""
    before = f"env LOCPATH={locales} {VARIABLES[name]}"
    out = "out-here"
    done = shell(folder, ["train", "run.toml", "--out", out, "--overwrite"], before=before)
    check(done)
    assert done.returncode == 0, done.stderr
    assert [x.split()[-1] for x in lines(done.stdout)[-2:]] == [x.split()[-1] for x in lines(usual.stdout)[-2:]]
    rows = [
        [{k: v for k, v in json.loads(line).items() if "second" not in k} for line in path.read_text().splitlines()]
        for path in (folder / out / "metrics.jsonl", folder / "out-usual" / "metrics.jsonl")
    ]
    assert rows[0] == rows[1]
    for words in (["runs", "."], ["runs", out, "--report"], ["evaluate", out], ["predict", out, "x.npy"]):
        done = shell(folder, words, before=before)
        check(done)
        assert done.returncode == 0, done.stderr
    shutil.copy(folder / "run.toml", folder / "läuft ış.toml")
    done = shell(folder, ["train", "läuft ış.toml", "--out", "out-ışık日本", "--overwrite"], before=before)
    check(done)
    assert done.returncode == 0 or (done.returncode == 2 and done.stderr.startswith("backburn: ")), done.stderr
    if name in ("C.UTF-8", "io"):
        assert (folder / "out-ışık日本" / "model.safetensors").exists()
    check(shell(folder, ["runs", "."], before=before))


PROGRAM = """
import locale, sys
assert locale.setlocale(locale.LC_ALL, "") and locale.localeconv()["decimal_point"] == ","
import backburn as bb
from backburn.train.config import read_config
open("t.csv", "wb").write("İ,ı,t\\n1.5,a,1\\n2.25,ü,2\\n".encode())
table = bb.data.read_table("t.csv")
assert {name: x.tolist() for name, x in table.items()} == {"İ": [1.5, 2.25], "ı": ["a", "ü"], "t": [1, 2]}, table
open("t.toml", "wb").write('[optimizer]\\nlearning_rate = 0.125\\n[output]\\nfolder = "ış"\\n'.encode())
run = read_config("t.toml")
assert run.tables["optimizer"]["learning_rate"] == 0.125 and run.tables["output"]["folder"] == "ış"
from backburn.train.runs import aligned, find_runs, run_table
assert "0.5" in aligned(run_table(find_runs(["r"])))
print(bb.asarray([1.5, 2.25]), "TITLE".lower(), "title".upper())
"""


def test_decimal_points_are_read_in_a_locale_with_commas(folder: Path, locales: Path) -> None:
    """After ``locale.setlocale``, which changes how C reads and writes numbers."""
    pytest.importorskip("pyarrow")
    (folder / "r").mkdir(exist_ok=True)
    (folder / "r" / "metrics.jsonl").write_text('{"epoch": 1, "loss": 0.5}\n')
    environment = {**os.environ, "LOCPATH": str(locales), "LC_ALL": "tr_TR.ISO-8859-9", "PYTHONUTF8": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=folder, env=environment, capture_output=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr.decode("latin-1")
    assert b"1.5" in done.stdout
    assert b"title TITLE" in done.stdout


# ---- folders and files ----


@pytest.mark.parametrize("name", COMMANDS)
def test_deleted_current_folder(folder: Path, name: str) -> None:
    """Commands that do not need the folder work; the others raise an error that names a file."""
    words = tried(name, COMMANDS[name])
    given = {path: str(folder / path) for path in ("run.toml", "out", "x.npy", "lm")}
    done = shell(folder, [given.get(word, word) for word in words], before="mkdir gone; cd gone; rmdir ../gone; ")
    check(done)
    needs = {"train", "predict", "runs", "compare", "json"}  # write to it or read it
    assert done.returncode == (2 if name in needs else 0), done.stderr
    if name in needs:
        assert re.match(r"backburn: .*(out2|y\.npz|\.: )", done.stderr), done.stderr


LONG = "/".join(["d" * 200] * 20)


@pytest.mark.parametrize("path", [LONG, "x" * 4000], ids=["long", "name"])
def test_paths_of_4000_characters(folder: Path, path: str) -> None:
    """They work, or raise an error that quotes them abbreviated."""
    done = shell(folder, ["train", "run.toml", "--out", path])
    check(done)
    assert done.returncode in ((0, 2) if path == LONG else (2,)), done.stderr  # too long behind the current folder
    for words in (
        ["runs", path + "z"], ["train", path + "z"], ["evaluate", path + "z"], ["predict", path + "z", "x.npy"],
        ["predict", "out", path + "z.npy"], ["generate", path + "z", "a"], ["info", path], [path],
        ["evaluate", "out", "--config", path + "z"], ["conformance", path], ["launch", "-n", "2", path],
        ["train", "run.toml", f"train.epochs={path}"], ["train", "run.toml", f"{path}=1"],
    ):  # fmt: skip
        done = shell(folder, words)
        check(done)
        assert done.returncode == 2, words
        assert len(done.stderr) < 9000, words


@pytest.mark.parametrize(("mask", "mode"), [("077", 0o600), ("022", 0o644), ("002", 0o664)])
def test_files_of_a_run_follow_the_umask(folder: Path, mask: str, mode: int) -> None:
    """All files do, including those written to a temporary name and renamed."""
    out = f"out-{mask}"
    assert shell(folder, ["train", "run.toml", "--out", out], before=f"umask {mask};").returncode == 0
    assert shell(folder, ["runs", out, "--report"], before=f"umask {mask};").returncode == 0
    words = ["predict", out, "x.npy", "--out", f"{out}/y.npz"]
    assert shell(folder, words, before=f"umask {mask};").returncode == 0
    files = [path for path in (folder / out).rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {
        "config.json",
        "metrics.jsonl",
        "model.safetensors",
        "report.html",
        "y.npz",
    }
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {oct(mode)}
    folders = [path for path in (folder / out, *(folder / out).rglob("*")) if path.is_dir()]
    assert {oct(path.stat().st_mode & 0o777) for path in folders} == {oct(0o777 & ~int(mask, 8))}
