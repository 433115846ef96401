"""The report of ``backburn info``, as text and JSON: both show the same facts, and errors do not stop it."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import backburn as bb
from backburn import cli
from backburn.backend import CONTRACT_VERSION, OPERATIONS, registry
from backburn.cli import environment
from backburn_numpy import NumpyBackend, compiled
from backburn_numpy.runtime import blas, threads

ROOT = Path(__file__).parents[2]

#: The keys of the report, in dotted form; ``[]`` stands for every element of a list, ``{}`` for any key.
KEYS = {
    "format": int,
    "backburn": str,
    "contract.version": str,
    "contract.operations": int,
    "contract.required": int,
    "python.version": str,
    "python.implementation": str,
    "python.executable": str,
    "python.free_threaded": bool,
    "platform.name": str,
    "platform.machine": str,
    "platform.processor": str,
    "platform.processors": int | None,
    "default.spec": str | None,
    "default.variable": str | None,
    "default.error": str | None,
    "packages.{}": str | None,
    "variables.{}": str,
    "backends.[].name": str,
    "backends.[].target": str,
    "backends.[].package": str | None,
    "backends.[].usable": bool,
    "backends.[].reason": str | None,
    "backends.[].absent": bool,
    "backends.[].device": str | None,
    "backends.[].libraries.{}": str,
    "backends.[].check.outcome": str,
    "backends.[].check.words": str,
    "decorators.[].name": str,
    "decorators.[].target": str,
    "decorators.[].package": str | None,
    "decorators.[].usable": bool,
    "decorators.[].reason": str | None,
}
#: Entries with arbitrary keys.
OPEN = ("packages", "variables", "libraries")


def facts(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """The leaves of a report, with their dotted keys."""
    if isinstance(value, dict):
        any_key = path.endswith(OPEN)
        return [pair for key, each in value.items() for pair in facts(each, f"{path}.{'{}' if any_key else key}")]
    if isinstance(value, list):
        return [pair for each in value for pair in facts(each, f"{path}.[]")]
    return [(path.removeprefix("."), value)]


def as_json(capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    status = cli.main(["info", "--json"])
    captured = capsys.readouterr()
    assert captured.err == ""
    return status, json.loads(captured.out)


def test_report_keys_have_their_types(capsys, monkeypatch) -> None:
    monkeypatch.setenv("BACKBURN_NUM_THREADS", "1")
    status, report = as_json(capsys)
    assert status == 0
    leaves = facts(report)
    assert {path for path, _ in leaves} == set(KEYS)
    for path, value in leaves:
        assert isinstance(value, KEYS[path]), (path, value)


def test_every_key_is_described() -> None:
    text = (ROOT / "docs" / "bug-reports.md").read_text(encoding="utf-8")
    described = set(
        re.findall(r"`([\w.]+(?:\[\])?[\w.]*)`", "\n".join(re.findall(r"^\| (.*?) \|", text, re.MULTILINE)))
    )
    written = {path.replace(".[]", "[]").replace(".{}", "") for path in KEYS}
    assert described == written


def test_reported_facts_match_the_installation(capsys, monkeypatch) -> None:
    monkeypatch.setenv("BACKBURN_NUM_THREADS", "1")
    monkeypatch.setenv("OPENBLAS_VERBOSE", "0")
    monkeypatch.setenv("UNRELATED", "secret")
    report = as_json(capsys)[1]
    assert report["format"] == environment.FORMAT == 1
    assert report["backburn"] == bb.__version__
    assert report["contract"]["version"] == CONTRACT_VERSION
    assert report["contract"]["operations"] == len(OPERATIONS)
    assert report["contract"]["required"] == sum(entry.required for entry in OPERATIONS.values())
    assert report["python"]["version"] == platform.python_version()
    assert report["platform"]["processors"] == os.cpu_count()
    assert report["packages"]["numpy"] == sys.modules["numpy"].__version__
    assert report["variables"].items() >= {"BACKBURN_NUM_THREADS": "1", "OPENBLAS_VERBOSE": "0"}.items()
    assert "secret" not in json.dumps(report)
    numpy = next(b for b in report["backends"] if b["name"] == "numpy")
    assert numpy["check"] == {"outcome": "PASS", "words": "[1, 1] + 1 = [2.0, 2.0] on cpu"}
    assert numpy["libraries"]["BLAS"].startswith(blas.words())
    assert numpy["libraries"]["threads"].startswith(f"{threads.num_threads()}, ")
    assert numpy["libraries"].get("kernel library", "").endswith((compiled.file() or "").rpartition(os.sep)[2])
    assert {d["name"] for d in report["decorators"]} >= {"autodiff", "capture", "forward", "profile"}


def test_the_text_shows_the_facts(capsys, monkeypatch) -> None:
    """Every string of the report is in the text, except those that ``backburn backends`` shows."""
    monkeypatch.setenv("BACKBURN_BACKEND", "autodiff(null)")
    report = as_json(capsys)[1]
    cli.main(["info"])
    text = " ".join(capsys.readouterr().out.split())
    elsewhere = re.compile(r"decorators\.|platform\.machine$|backends\.\[\]\.(target|package|device|reason)$")
    shown = [(path, value) for path, value in facts(report) if isinstance(value, str) and not elsewhere.match(path)]
    assert len(shown) > 20
    for path, value in shown:
        assert " ".join(value.split()) in text, path


def test_default_backend_and_its_error_are_reported(capsys, monkeypatch) -> None:
    assert as_json(capsys)[1]["default"] == {"spec": "autodiff(numpy)", "variable": None, "error": None}
    monkeypatch.setenv("BACKBURN_BACKEND", "nunpy")
    status, report = as_json(capsys)
    assert status == 0
    assert report["default"]["spec"] is None
    assert report["default"]["variable"] == "nunpy"
    assert "no backend is called 'nunpy'" in report["default"]["error"]


@pytest.fixture
def toy():
    """Registers a backend by its factory."""
    yield lambda factory: bb.register_backend("toy", factory)
    registry._registered.pop((registry.BACKENDS, "toy"), None)
    registry._loaded.pop("toy", None)


def entry(report: Any, name: str) -> Any:
    return next(b for b in report["backends"] if b["name"] == name)


def test_an_unusable_backend_fails_the_report_and_says_why(capsys, toy) -> None:
    def no_driver() -> None:
        raise RuntimeError("no driver")

    toy(no_driver)
    status, report = as_json(capsys)
    assert status == 1
    found = entry(report, "toy")
    assert (found["usable"], found["absent"], found["device"], found["libraries"]) == (False, False, None, {})
    assert "no driver" in found["reason"]
    assert found["check"] == {"outcome": "FAIL", "words": found["reason"]}


@pytest.mark.parametrize(
    ("override", "outcome"),
    [
        ({"libraries": property(lambda self: 1 / 0)}, "PASS"),
        ({"add": lambda self, x, y: x}, "FAIL"),
        ({"add": lambda self, x, y: 1 / 0}, "FAIL"),
    ],
    ids=["libraries", "wrong sum", "no sum"],
)
def test_a_broken_backend_does_not_stop_the_report(capsys, toy, override: dict[str, Any], outcome: str) -> None:
    toy(type("Toy", (NumpyBackend,), {"spec": property(lambda self: "toy"), **override}))
    status, report = as_json(capsys)
    found = entry(report, "toy")
    assert (status, found["check"]["outcome"]) == (outcome == "FAIL", outcome)
    if "libraries" in override:
        assert found["libraries"] == {"not known": "ZeroDivisionError: division by zero"}


def test_the_home_folder_is_abbreviated(monkeypatch) -> None:
    folder = Path(sys.executable).parent
    monkeypatch.setattr(Path, "home", lambda: folder)
    executable = environment.gather()["python"]["executable"]
    assert executable == os.path.join("~", Path(sys.executable).name)


def test_processor_name_without_proc_cpuinfo(monkeypatch) -> None:
    def missing(self: Path, **options: Any) -> str:
        raise FileNotFoundError(str(self))

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(platform, "processor", lambda: "a processor")
    assert environment._processor() == "a processor"


@pytest.mark.parametrize("arguments", [["info", "add", "--json"], ["info", "--required", "--json"]])
def test_json_takes_no_operation_or_required(capsys, arguments: list[str]) -> None:
    assert cli.main(arguments) == 2
    assert "leave OPERATION and --required out" in capsys.readouterr().err


def test_disabled_kernels_are_reported() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "backburn", "info", "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "BACKBURN_COMPILED": "0"},
        capture_output=True,
        check=True,
        timeout=240,
    )
    report = json.loads(done.stdout)
    assert report["variables"]["BACKBURN_COMPILED"] == "0"
    libraries = entry(report, "numpy")["libraries"]
    assert "compiled for" not in libraries["kernels"]
    assert "kernel library" not in libraries
