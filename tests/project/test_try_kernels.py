"""The comparison of the kernels of two wheels, here with locally compiled libraries."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.kernels import USABLE

from backburn_numpy.compiled import build

TOOLS = Path(__file__).parents[2] / "tools"
CC = shutil.which("cc")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tool, with the local compiler for both wheels."""
    monkeypatch.syspath_prepend(TOOLS)
    module = importlib.import_module("try_kernels")

    def compiled(wheel: Path, folder: Path) -> str:
        program = folder / "program"
        subprocess.run([str(CC), "-O1", "-o", program, TOOLS / "try_kernels.c", "-ldl"], check=True)
        return str(program)

    monkeypatch.setattr(module, "compiled", compiled)
    return module


def wheel(path: Path, libraries: dict[str, Path]) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        for level, library in libraries.items():
            archive.write(library, "-".join([f"backburn_numpy/compiled/{level}", *library.name.rsplit("-", 2)[1:]]))
    return str(path)


@pytest.mark.skipif(CC is None or len(USABLE) < 2, reason="needs a C compiler and two instruction sets")
@pytest.mark.parametrize("same", [True, False])
def test_kernels_with_different_results_are_named(
    same: bool, tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lowest instruction set has no fused multiply-add, the best has."""
    lowest, best, found = USABLE[0], USABLE[-1], build.libraries()
    processor = {"processor": found["processor"]}
    ours = wheel(tmp_path / "ours.whl", {**processor, lowest: found[lowest]})
    other = wheel(tmp_path / "other.whl", {**processor, lowest: found[lowest if same else best]})
    monkeypatch.setattr(sys, "argv", ["try_kernels.py", ours, other])
    assert tool.main() == (0 if same else 1)
    said = capsys.readouterr().out
    assert said.startswith(f"{lowest}: ")
    assert ("differing: none" in said) is same
    assert ("multiply_add" in said) is not same
