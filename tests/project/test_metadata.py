"""Public facts of the project: links, addresses, supported versions, and the workflows that check them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.conftest import pytest_ignore_collect

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Repository"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def text(path: str | Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_every_extra_is_in_the_table_of_the_documentation() -> None:
    section = text("docs/getting-started.md").partition("## Installation and extras")[2].partition("\n### ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert set(PROJECT["optional-dependencies"]) <= set(re.findall(r"`([\w-]+)`", "\n".join(rows)))


# ---- links ----


def links(page: str) -> set[str]:
    """The targets of a page's links and pictures, in Markdown and HTML."""
    prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    inline = re.findall(r"\]\(\s*<?([^)\s>]+)", prose)
    defined = re.findall(r"^\[[^\]]+\]:\s*<?(\S+?)>?$", prose, re.MULTILINE)
    return {*inline, *defined, *re.findall(r"(?:src|srcset|href)=\"([^\"]+)\"", prose)}


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def local(link: str) -> tuple[Path, str] | None:
    """The file and anchor in this repository for an address; None for another address."""
    raw = REPOSITORY.replace("://github.com/", "://raw.githubusercontent.com/")
    for prefix in (f"{REPOSITORY}/blob/main/", f"{REPOSITORY}/tree/main/", f"{raw}/main/"):
        if link.startswith(prefix):
            path, _, anchor = link.removeprefix(prefix).partition("#")
            return ROOT / path, anchor
    return None


def wrong_links(page: str) -> list[str]:
    """The links of a page that would break on other sites, or whose target in this repository is missing."""
    wrong = []
    for link in sorted(links(page)):
        if link.startswith("#"):
            good = link[1:] in anchors(page)
        elif (found := local(link)) is not None:
            path, anchor = found
            good = path.exists() and (not anchor or anchor in anchors(path.read_text(encoding="utf-8")))
        else:
            good = link.startswith("https://") and not link.startswith(f"{REPOSITORY}/blob")
        if not good:
            wrong.append(link)
    return wrong


def test_links_of_the_readme_work_on_the_package_index() -> None:
    page = text("README.md")
    assert len([link for link in links(page) if local(link)]) > 20
    assert wrong_links(page) == []
    used = set(re.findall(r"\]\[([\w-]+)\]", page))
    assert used == set(re.findall(r"^\[([\w-]+)\]:", page, re.MULTILINE))


@pytest.mark.parametrize(
    "link",
    [
        "[a](docs/index.md)",
        "[a](#nowhere)",
        f"[a]({REPOSITORY}/blob/main/docs/no-such-page.md)",
        f"[a]({REPOSITORY}/blob/main/docs/getting-started.md#nowhere)",
        f"[a]({REPOSITORY}/blob/v1/docs/index.md)",
        "[a]: docs/index.md",
        '<img src="docs/images/stack-light.svg">',
    ],
)
def test_wrong_links_are_detected(link: str) -> None:
    assert wrong_links("# Page\n\n[b](#page) [c](https://example.org)\n") == []
    assert len(wrong_links(f"# Page\n\n{link}\n")) == 1


def test_all_files_have_one_repository_address() -> None:
    assert all(address.startswith(REPOSITORY) for address in PROJECT["urls"].values())
    assert wrong_links("\n".join(f"[a]({address})" for address in PROJECT["urls"].values())) == []
    assert f"repository-code: {REPOSITORY}\n" in text("CITATION.cff")
    owner_and_name = REPOSITORY.removeprefix("https://github.com/")
    assert f"github.repository == '{owner_and_name}'" in text(".github/workflows/release.yml")


# ---- versions ----


def python_versions() -> list[str]:
    """The Python versions of the classifiers."""
    found = [name.removeprefix("Programming Language :: Python :: ") for name in PROJECT["classifiers"]]
    return [version for version in found if re.fullmatch(r"3\.\d+", version)]


def lowest_numpy() -> str:
    (bound,) = [name.removeprefix("numpy>=") for name in PROJECT["dependencies"] if name.startswith("numpy>=")]
    return bound


def test_versions_agree_everywhere() -> None:
    versions, numpy = python_versions(), lowest_numpy()
    assert PROJECT["requires-python"] == f">={versions[0]}"
    policy = text("docs/stability.md")
    assert f"Python {versions[0]} and newer, and NumPy {numpy} and newer" in " ".join(policy.split())
    assert re.findall(r"^\| Python ([\d.]+) \|", policy, re.MULTILINE) == versions
    assert re.findall(r"^\| NumPy ([\d.]+) \|", policy, re.MULTILINE)[0] == numpy
    config = tomllib.loads(text("pyproject.toml"))["tool"]
    assert config["ruff"]["target-version"] == f"py{versions[0].replace('.', '')}"
    assert config["pyright"]["pythonVersion"] == versions[0]


# ---- workflows ----


def test_workflows_try_every_version_and_the_lowest_numpy() -> None:
    page = text(".github/workflows/tests.yml")
    tried = re.findall(r'\{python: "([\d.]+)", numpy: "?([\w.]+)"?, system: ([\w.-]+)', page)
    assert {python for python, _, _ in tried} == set(python_versions())
    assert (python_versions()[0], f"{lowest_numpy()}.0", "ubuntu-24.04") in tried
    assert {system.partition("-")[0] for _, _, system in tried} == {"ubuntu", "macos", "windows"}
    release = text(".github/workflows/release.yml")
    assert f'python: ["{python_versions()[0]}", "{python_versions()[-1]}", "{python_versions()[-1]}t"]' in release


def test_deselected_tests_are_run_by_ci_and_a_session() -> None:
    """Marked tests in other folders would never run."""
    options = tomllib.loads(text("pyproject.toml"))["tool"]["pytest"]["ini_options"]["addopts"]
    assert "not slow and not stand_in" in options
    assert '-m "slow and not stand_in"\n' in text(".ci/run")
    assert '"-m", "not stand_in"]' in text("noxfile.py")
    paths = re.findall(r"-m stand_in (tests/\S+) (tests/\S+) (tests/\S+)$", text(".ci/run"), re.MULTILINE)
    assert len(paths) == 1
    assert '"-m", "stand_in", "{}", "{}", "{}"'.format(*paths[0]) in text("noxfile.py")
    marked = [path for path in (ROOT / "tests").rglob("*.py") if "mark.stand_in" in path.read_text(encoding="utf-8")]
    assert len(marked) >= 2
    for path in marked:
        assert path == Path(__file__) or path.relative_to(ROOT).as_posix().startswith(paths[0])


def test_modules_without_a_selected_test_are_not_collected(tmp_path: Path) -> None:
    """Judged by their text, unless the command line names them."""
    texts = {
        "slow": "pytestmark = pytest.mark.slow\n\ndef test_a(): ...\n",
        "listed": "pytestmark = [\n    pytest.mark.slow,\n    needs_kernels,\n]\n",
        "some": "@pytest.mark.slow\ndef test_a(): ...\n",
        "case": "@pytest.mark.parametrize('n', [1, pytest.param(2, marks=pytest.mark.slow)])\n",
        "none": "def test_slow_things(): ...\n",
    }
    for name, source in texts.items():
        (tmp_path / f"test_{name}.py").write_text(source)

    def collected(expression: str, *arguments: str) -> set[str]:
        config: Any = SimpleNamespace(getoption={"markexpr": expression}.__getitem__, args=arguments)
        return {name for name in texts if not pytest_ignore_collect(tmp_path / f"test_{name}.py", config)}

    assert collected("slow and not stand_in") == collected("slow") == {"slow", "listed", "some", "case"}
    assert collected("not slow and not stand_in") == {"some", "case", "none"}
    for expression in ("", "stand_in", "not stand_in", "slow or stand_in"):
        assert collected(expression) == {*texts}
    assert collected("slow", "tests", f"{tmp_path / 'test_none.py'}::test_slow_things") == {*texts}
    helpers = [path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_")]
    assert [path.name for path in helpers if "pytest.mark.slow" in path.read_text("utf-8")] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_pin_actions_and_may_only_read(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    used = re.findall(r"uses: (.+)$", page, re.MULTILINE)
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+(\.\d+)+", use) for use in used)
    assert "\npermissions:\n  contents: read\n" in page
    allowed = {"contents: read"} | ({"id-token: write"} if path.stem == "release" else set())
    assert set(re.findall(r"^ +([\w-]+: (?:read|write))\b", page, re.MULTILINE)) == allowed
    assert page.count("timeout-minutes:") == page.count("runs-on:")


def test_each_action_has_one_commit() -> None:
    used = {use for path in WORKFLOWS for use in re.findall(r"uses: (\S+)", path.read_text(encoding="utf-8"))}
    assert len(used) == len({use.partition("@")[0] for use in used}) >= 5


def test_only_tags_are_published_and_without_a_password() -> None:
    page = text(".github/workflows/release.yml")
    before, _, publish = page.partition("\n  publish:\n")
    assert "gh-action-pypi-publish" not in before
    assert "id-token" not in before
    assert "if: github.ref_type == 'tag' && " in publish
    assert "needs: try\n" in publish
    assert "environment: pypi\n" in publish
    assert not any("secrets." in path.read_text(encoding="utf-8") for path in WORKFLOWS)
