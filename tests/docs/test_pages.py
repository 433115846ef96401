"""Pages and files that state facts of the project: versions, commands, stable modules, glossary terms."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import runpy
from pathlib import Path

import pytest

import backburn
from backburn.conformance import check_backend
from backburn.conformance.reports.pages import markdown, record

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "tapes").glob("*.md")])


REPORTS = sorted((ROOT / "docs" / "conformance").glob("*.json"))


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_the_citation_names_the_version() -> None:
    found = re.search(r"^version: (.+)$", text("CITATION.cff"), re.MULTILINE)
    assert found is not None
    assert found[1] == backburn.__version__


@pytest.mark.parametrize("changes", ["", "- More.\n\n"], ids=["released", "unreleased"])
def test_pages_say_whether_they_are_of_a_release(tmp_path: Path, changes: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "conf.py").write_text(text("docs/conf.py"), encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text(
        f"# Changelog\n\n## Unreleased\n\n{changes}## 0.1.0 - 2026-01-31\n\n- All.\n"
    )
    settings = runpy.run_path(str(tmp_path / "docs" / "conf.py"))
    assert ("announcement" in settings["html_theme_options"]) == bool(changes)
    assert settings["html_title"].startswith(f"backburn {settings['release']}")
    assert settings["html_title"].endswith(", unreleased") == bool(changes)


STABLE = re.findall(
    r"`(backburn[\w.]*)`", "\n".join(re.findall(r"^\| (.*?) \|", text("docs/stability.md"), re.MULTILINE))
)


@pytest.mark.parametrize("name", STABLE)
def test_stable_modules_list_their_names(name: str) -> None:
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None) or dir(module)
    assert names
    assert all(hasattr(module, each) for each in names)


def test_there_are_stable_modules() -> None:
    assert {"backburn", "backburn.backend", "backburn.errors", "backburn.autodiff.tape"} <= set(STABLE)


def test_terms_that_pages_link_are_in_the_glossary() -> None:
    entries = set(re.findall(r"^([a-z][\w ]*)\n  ", text("docs/glossary.md"), re.MULTILINE))
    linked = {
        word.strip(">").rpartition("<")[2]
        for page in PAGES
        for word in re.findall(r"\{term\}`([^`]+)`", page.read_text(encoding="utf-8").replace("\n", " "))
    }
    assert len(entries) > 20
    assert {"spec", "primitive", "kind", "level", "tree", "capture", "inner backend", "cotangent"} <= entries
    assert linked <= entries


def test_every_group_of_tests_is_described() -> None:
    described = set(
        re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", text("tests/README.md"), re.MULTILINE)))
    )
    groups = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert groups - {"backends", "__pycache__"} <= described


def test_hooks_are_pinned_to_commits() -> None:
    revisions = re.findall(r"^    rev: (\S+)", text(".pre-commit-config.yaml"), re.MULTILINE)
    assert revisions
    assert all(re.fullmatch(r"[0-9a-f]{40}", revision) for revision in revisions)


def test_the_first_example_of_the_readme_prints_its_result(capsys: pytest.CaptureFixture[str]) -> None:
    block = re.search(r"```python\n(.*?)```", text("README.md"), re.DOTALL)
    assert block is not None
    exec(block[1], {})
    assert capsys.readouterr().out.strip() == "[3.0, 12.0, 27.0]"
    assert "# [3.0, 12.0, 27.0]" in block[1]


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_a_stored_report_renders_as_a_page(path: Path) -> None:
    kept = json.loads(path.read_text(encoding="utf-8"))
    page = markdown(kept)
    assert page.startswith(f"# Conformance: {kept['spec']}\n\n**{kept['score']}**: passes. ")
    assert f"Made on {kept['date']} by the command\n\n    backburn conformance " in page
    for table, columns in (("errors", kept["dtypes"]), ("checks", kept["kinds"])):
        assert all(len(row.split()) == len(columns) for row in kept[table].values())
    assert page.count("\n| softmax |") == 2


def test_a_stored_report_renders_like_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    keep = importlib.import_module("write_reports").text_of
    report = check_backend("numpy", ops=["tanh", "argmax"])
    assert markdown(json.loads(keep(record(report)))) == report.to_markdown()
