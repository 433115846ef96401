"""The contract's types are real: two checkers accept what is right and refuse each misuse, line by line."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "typed"
ROOT = HERE.parent.parent
CHECKERS = {
    "mypy": [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml")],
    "pyright": [sys.executable, "-m", "pyright", "--project", str(ROOT)],
}


def refused(checker: str, *files: str) -> set[tuple[str, int]]:
    """The lines of ``files`` in which ``checker`` finds an error."""
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    run = subprocess.run(
        [*CHECKERS[checker], *(str(HERE / f) for f in files)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    found = re.findall(r"typed/(\w+\.py):(\d+)(?::\d+)?[:\s-]+error", run.stdout)
    return {(file, int(line)) for file, line in found}


@pytest.mark.parametrize("checker", CHECKERS)
def test_checkers_accept_what_is_right_and_refuse_each_misuse(checker: str) -> None:
    lines = (HERE / "misuse.py").read_text().splitlines()
    expected = {("misuse.py", n) for n, line in enumerate(lines, 1) if line.endswith("# error")}
    assert len(expected) >= 20
    got = refused(checker, "correct.py", "misuse.py")
    assert got - expected == set(), "refused, and right"
    assert expected - got == set(), "misused, and accepted"
