"""The names at the top level: listed, documented, run as examples, and seen by type checkers."""

from __future__ import annotations

import importlib.util
import inspect
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tools.write_all import NAMESPACE, block, imported

import backburn as bb
from backburn import _namespace
from backburn.base.dtypes import DType

ROOT = Path(__file__).parents[1]
NAMES = sorted(_namespace.__all__)

#: Classes that are described where they are made or implemented, by pages of their own, and not by an example.
WITHOUT_EXAMPLE = {"AutodiffBackend", "Backend", "DType", "QuantizedDType"}


def test_all_lists_what_is_imported() -> None:
    source = NAMESPACE.read_text(encoding="utf-8")
    names = imported(source)
    assert names == NAMES, "run: python tools/write_all.py"
    assert source.endswith(block(names)), "run: python tools/write_all.py"
    assert len(names) == len(set(names))


def test_the_list_is_read_from_imports() -> None:
    source = "from __future__ import annotations\nfrom a.b import d as z, c\nimport os\nx = 1\n"
    assert imported(source) == ["c", "z"]
    assert block(["c", "z"]) == '\n__all__ = [\n    "c", "z",\n]  # fmt: skip\n'


def test_every_listed_name_is_there() -> None:
    assert bb.__all__ == _namespace.__all__  # type: ignore[attr-defined]
    for name in NAMES:
        assert getattr(bb, name) is getattr(_namespace, name)
    assert set(NAMES) - {"__array_namespace_info__"} <= set(dir(bb))
    with pytest.raises(AttributeError, match="no attribute 'summ'"):
        bb.summ  # type: ignore[attr-defined]  # noqa: B018


def described() -> list[str]:
    """The names of functions and classes: constants, dtypes and modules are no place for an example."""
    return [
        name
        for name in NAMES
        if not isinstance(getattr(bb, name), (float, DType, ModuleType, type(None))) and name not in WITHOUT_EXAMPLE
    ]


def test_most_names_are_described() -> None:
    assert len(described()) > 200
    assert set(NAMES) >= WITHOUT_EXAMPLE


@pytest.mark.parametrize("name", described())
def test_every_name_has_an_example(name: str) -> None:
    text = inspect.getdoc(getattr(bb, name)) or ""
    assert ">>>" in text, f"the docstring of bb.{name} has no example"


@pytest.mark.parametrize("name", sorted(WITHOUT_EXAMPLE))
def test_other_classes_have_a_docstring(name: str) -> None:
    assert len(inspect.getdoc(getattr(bb, name)) or "") > 40


USER = """
from typing import assert_type

import backburn as bb

x = bb.ones((2, 3))
assert_type(x, bb.FloatTensor)
assert_type(bb.sum(x), bb.FloatTensor)
assert_type(bb.exp(x), bb.FloatTensor)
assert_type(bb.matmul(x, x.mT), bb.Tensor)
assert_type(x < 1.0, bb.BoolTensor)
assert_type(bb.argmax(x), bb.IntTensor)
assert_type(bb.zeros(2, dtype=bb.int32), bb.IntTensor)
assert_type(bb.linalg.det(x), bb.FloatTensor)
assert_type(bb.nn.Linear(2, 3), bb.nn.Linear)
bb.summ(x)
"""


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_checkers_see_the_types_of_functions(checker: str, tmp_path: Path) -> None:
    """Each line is as it says but the last, which names no function."""
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    program = tmp_path / "user.py"
    program.write_text(USER)
    options = {
        "mypy": ["--strict", "--config-file", str(ROOT / "pyproject.toml"), "--follow-imports=silent"],
        "pyright": ["--project", str(ROOT)],
    }
    if checker == "pyright":
        (tmp_path / "pyrightconfig.json").write_text(
            json.dumps({"extraPaths": [str(ROOT / "src"), str(ROOT / "backends")], "include": ["user.py"]})
        )
        options["pyright"] = ["--project", str(tmp_path), "--pythonpath", sys.executable]
    run = subprocess.run(
        [sys.executable, "-m", checker, *options[checker], *([str(program)] if checker == "mypy" else [])],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    errors = [line for line in run.stdout.splitlines() if "user.py:" in line and " error: " in line]
    last = USER.count("\n")
    assert len(errors) == 1, run.stdout + run.stderr
    assert f"user.py:{last}:" in errors[0]
    assert "summ" in errors[0]
