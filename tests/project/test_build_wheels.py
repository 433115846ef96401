"""``tools/build_wheels.py``: incomplete wheels and wheels with unexpected files are refused."""

from __future__ import annotations

import importlib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LICENCES = ["LICENSE", *(path.name for path in (ROOT / "licenses").iterdir())]
KERNELS = "backburn_numpy/compiled/{}-01234567-89abcdef.kernels"
COMPLETE = {
    *(f"{package}/__init__.py" for package in ("backburn", "backburn_cupy", "backburn_null", "backburn_numpy")),
    *(KERNELS.format(level) for level in ("processor", "x86-64", "x86-64-v3", "x86-64-v4")),
    *(f"backburn-0.1.0.dist-info/licenses/{name}" for name in LICENCES),
}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("build_wheels")


def refused(tool: Any, folder: Path, names: set[str]) -> str:
    """Why a wheel of these files is refused; empty if it is not."""
    path = folder / "backburn-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted(names):
            archive.writestr(name, "text")
    try:
        tool.check_contents(path, {"processor", *tool.load_build().levels("x86_64")})
    except AssertionError as error:
        return str(error)
    return ""


def test_a_complete_wheel_passes(tool: Any, tmp_path: Path) -> None:
    assert refused(tool, tmp_path, COMPLETE) == ""


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({KERNELS.format("x86-64-v3")}, "has kernels of"),
        ({KERNELS.format("processor")}, "has kernels of"),
        ({"backburn_cupy/__init__.py"}, "lacks {'backburn_cupy'}"),
        ({"backburn-0.1.0.dist-info/licenses/zig.txt"}, "has the licences"),
        ({"backburn_numpy/compiled/runtime/kernels.h"}, "contains C sources"),
        ({KERNELS.format("base")}, "has kernels of"),
    ],
)
def test_wheels_with_missing_or_unexpected_files_are_refused(
    changed: set[str], words: str, tool: Any, tmp_path: Path
) -> None:
    assert words in refused(tool, tmp_path, COMPLETE ^ changed)


def test_compressing_keeps_files_and_their_order(tool: Any, tmp_path: Path) -> None:
    pytest.importorskip("zopfli")
    path = tmp_path / "backburn-0.1.0-py3-none-any.whl"
    source = Path(__file__).read_bytes()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("b/second.py", "a/first.py", "empty.py"):
            archive.writestr(name, b"" if name == "empty.py" else source)
    before, size = [i.filename for i in zipfile.ZipFile(path).infolist()], path.stat().st_size
    tool.compress(path)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert [i.filename for i in archive.infolist()] == before
        assert [archive.read(name) for name in before] == [source, source, b""]
        assert {i.compress_type for i in archive.infolist()} == {zipfile.ZIP_DEFLATED}
    assert path.stat().st_size < size
    assert [*tmp_path.iterdir()] == [path]


def test_the_size_of_a_wheel_is_limited(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tool.LARGEST == 2_900_000
    assert "wheel.stat().st_size <= 2.9e6" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    monkeypatch.setattr(tool, "LARGEST", 1000)
    assert "bytes, more than 1,000" in refused(tool, tmp_path, COMPLETE)
