"""The command that measures on a GPU, tried on a backend that is everywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.report import markdown

ROOT = Path(__file__).parents[1]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=200)


def test_its_parts_run_on_any_backend(tmp_path: Path) -> None:
    parts = ["--parts", "parity,leaks,recording"]
    done = run("--backend", "numpy", "--small", "--rounds", "1", *parts, "--out", str(tmp_path))
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert done.stdout.endswith((tmp_path / "gpu.md").read_text() + "\n")
    assert report["about"]["backend"] == "numpy"
    assert report["parts"]["parity"]["problems"] == report["parts"]["leaks"]["problems"] == []
    assert set(report["parts"]["parity"]) >= set(MODELS)
    assert [p.split(":")[0] for p in report["parts"]["recording"]["problems"]] == list(MODELS)  # NumPy does not record
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--backend", "nump"], "Did you mean 'autodiff(numpy)'"), (["--parts", "everything"], "there is no part 'everything'")],
)
def test_it_says_why_it_does_not_run(arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_the_page_has_ratios_and_problems() -> None:
    about = {"backend": "b", "device": "d", "date": "now", "commit": "c", "python": "3", "versions": {}, "small": False}
    times = {"eager": 2e-3, "replayed": 1e-3, "torch eager": 4e-3}
    speed = {"mlp": times, "problems": ["gpt: out of\nmemory"], "seconds": 1}
    page = markdown({"about": about, "parts": {"speed": speed}})
    assert "| mlp | replayed | torch eager | 0.25 | 0.3 |" in page
    assert "| mlp | eager | torch eager | 0.50 | 1.0 |" in page
    assert "- **problem**: gpt: out of memory" in page
    assert "shrunk" not in page
