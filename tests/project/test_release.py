"""``tools/release.py``: a ready release is built, rehearsed and tagged; others are refused with reasons."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def load() -> Any:
    path = ROOT / "tools" / "release.py"
    spec = importlib.util.spec_from_file_location("release", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["release"] = module  # its dataclasses need it there
    spec.loader.exec_module(module)
    return module


release = load()

FILES = {
    "CHANGELOG.md": "# Changelog\n\n## Unreleased\n\n### Added\n\n- All.\n\n## 0.1.0 - 2026-01-31\n\n- The first.\n",
    "src/backburn/__init__.py": '"""A package."""\n\n__version__ = "0.1.0"\n',
    "CITATION.cff": "title: backburn\nversion: 0.1.0\ndate-released: 2026-01-31\nlicense: MIT\n",
    "pyproject.toml": '[project]\nname = "backburn"\n[project.urls]\nRepository = "https://forge.example/us/backburn"\n',
    ".gitignore": "/dist/\n",
    # A fake builder of a source distribution and a wheel with minimal contents.
    "tools/build_wheels.py": """
import io, sys, tarfile, zipfile
from pathlib import Path

out = Path(sys.argv[2])
out.mkdir()
version = (Path(__file__).parents[1] / "src/backburn/__init__.py").read_text().split('"')[-2]
readme = "Content-Type: text/markdown\\nLicense: MIT\\nLicense-File: LICENSE\\n\\n# backburn\\n"
metadata = f"Metadata-Version: 2.4\\nName: backburn\\nVersion: {version}\\nSummary: Tensors\\nDescription-{readme}"
with tarfile.open(out / f"backburn-{version}.tar.gz", "w:gz") as archive:
    for name, text in (("PKG-INFO", metadata), ("LICENSE", "free")):
        member = tarfile.TarInfo(f"backburn-{version}/{name}")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text.encode()))
info = f"backburn-{version}.dist-info"
contents = {
    "backburn/__init__.py": "'A package.'\\n",
    f"{info}/METADATA": metadata,
    f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    f"{info}/licenses/LICENSE": "free",
}
contents[f"{info}/RECORD"] = "".join(f"{name},,\\n" for name in [*contents, f"{info}/RECORD"])
with zipfile.ZipFile(out / f"backburn-{version}-py3-none-any.whl", "w") as archive:
    for name, text in contents.items():
        archive.writestr(name, text)
""",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one commit, whose changelog has an undated section."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8", newline="\n")
    for arguments in (
        ["init", "--quiet", "--initial-branch=main"],
        ["config", "user.name", "Somebody"],
        ["config", "user.email", "somebody@example.org"],
        ["config", "core.autocrlf", "false"],
    ):
        git(tmp_path, *arguments)
    commit(tmp_path)
    return tmp_path


@pytest.fixture
def ready(tree: Path) -> Path:
    """A repository that is ready for release 0.2.0."""
    release.prepare(tree, "0.2.0", "2026-02-28")
    commit(tree)
    return tree


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=All", "--no-verify", "--no-gpg-sign", "--allow-empty")


def change(folder: Path, name: str, old: str, new: str) -> None:
    path = folder / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8", newline="\n")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rehearsal's index runs on localhost."""
    monkeypatch.setenv("no_proxy", "*")


# ---- a tree that is ready ----


def test_preparing_writes_the_version_and_the_date(tree: Path) -> None:
    release.prepare(tree, "0.2.0", "2026-02-28")
    written = {name: (tree / name).read_text(encoding="utf-8") for name in FILES}
    assert written["CHANGELOG.md"] == FILES["CHANGELOG.md"].replace("## Unreleased", "## 0.2.0 - 2026-02-28")
    assert written["src/backburn/__init__.py"] == FILES["src/backburn/__init__.py"].replace("0.1.0", "0.2.0")
    assert written["CITATION.cff"] == "title: backburn\nversion: 0.2.0\ndate-released: 2026-02-28\nlicense: MIT\n"
    with pytest.raises(release.Refused, match="no section 'Unreleased'"):
        release.prepare(tree, "0.3.0", "2026-03-31")


def test_the_first_release_adds_the_date_to_the_citation(tree: Path) -> None:
    change(tree, "CITATION.cff", "date-released: 2026-01-31\n", "")
    release.prepare(tree, "0.2.0", "2026-02-28")
    commit(tree)
    assert release.checked(tree) == ("0.2.0", "2026-02-28", "### Added\n\n- All.")


@pytest.mark.parametrize("version", ["two", "", "1.0.0-"])
def test_preparing_a_wrong_version_changes_nothing(tree: Path, version: str) -> None:
    with pytest.raises(release.Refused, match="is not a version"):
        release.prepare(tree, version, "2026-02-28")
    assert git(tree, "status", "--porcelain") == ""


def test_an_empty_section_above_is_skipped(ready: Path) -> None:
    change(ready, "CHANGELOG.md", "## 0.2.0", "## Unreleased\n\n## 0.2.0")
    commit(ready)
    assert release.checked(ready).version == "0.2.0"


def test_the_changelog_of_this_repository_is_undated_or_names_its_version() -> None:
    found = release.read_changelog(ROOT)
    assert found.notes
    for name, pattern in ((release.SOURCE, release.VERSION_IN_SOURCE), (release.CITATION, release.VERSION_IN_CITATION)):
        value = release.re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), release.re.MULTILINE)
        assert value is not None
        assert found.version in ("Unreleased", value[1])


# ---- trees that are refused ----


def undated(tree: Path) -> None:
    change(tree, "CHANGELOG.md", " - 2026-02-28", "")


def no_such_day(tree: Path) -> None:
    change(tree, "CHANGELOG.md", "2026-02-28", "2026-02-30")


def unreleased(tree: Path) -> None:
    change(tree, "CHANGELOG.md", "## 0.2.0", "## Unreleased\n\n- More.\n\n## 0.2.0")


def no_version(tree: Path) -> None:
    change(tree, "CHANGELOG.md", "## 0.2.0", "## Soon")


def development(tree: Path) -> None:
    for name in release.CHANGELOG, release.SOURCE, release.CITATION:
        change(tree, name, "0.2.0", "0.2.0.dev0")


def empty(tree: Path) -> None:
    change(tree, "CHANGELOG.md", "### Added\n\n- All.\n", "")


def no_sections(tree: Path) -> None:
    (tree / "CHANGELOG.md").write_text("# Changelog\n", encoding="utf-8")


def other_version(tree: Path) -> None:
    change(tree, "src/backburn/__init__.py", "0.2.0", "0.3.0")


def other_citation(tree: Path) -> None:
    change(tree, "CITATION.cff", "0.2.0", "0.1.0")


def other_day(tree: Path) -> None:
    change(tree, "CITATION.cff", "2026-02-28", "2026-02-27")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (undated, "CHANGELOG.md: the section 0.2.0 is undated"),
        (no_such_day, "CHANGELOG.md: the section 0.2.0 is undated"),
        (unreleased, "--prepare VERSION"),
        (no_version, "'Soon' is not a version"),
        (development, "'0.2.0.dev0' is not a release's version"),
        (empty, "the section 0.2.0 is empty"),
        (no_sections, "no section has any text"),
        (other_version, '__version__ = "0.3.0" should be 0.2.0'),
        (other_citation, "CITATION.cff: version: 0.1.0 should be 0.2.0"),
        (other_day, "CITATION.cff: date-released: 2026-02-27 should be 2026-02-28"),
    ],
)
def test_a_tree_that_is_not_ready_is_refused(
    ready: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], None], reason: str
) -> None:
    release.checked(ready)
    spoil(ready)
    commit(ready)
    assert release.main([], ready) == 1
    assert reason in capsys.readouterr().err
    assert git(ready, "tag") == ""
    assert not (ready / "dist").exists()


@pytest.mark.parametrize("name", ["CITATION.cff", "new.py"], ids=["a change", "a new file"])
def test_a_tree_with_changes_is_refused(ready: Path, name: str) -> None:
    with (ready / name).open("a", encoding="utf-8") as file:
        file.write("# more\n")
    with pytest.raises(release.Refused, match=f"not committed:\n.*{name}"):
        release.checked(ready)


def test_all_reasons_are_reported_together(ready: Path) -> None:
    other_version(ready)
    other_day(ready)
    with pytest.raises(release.Refused) as caught:
        release.checked(ready)
    assert len(str(caught.value).splitlines()) == 5  # two differences, and two uncommitted files


def test_a_tag_at_another_commit_is_refused(ready: Path) -> None:
    found = release.checked(ready)
    release.tag(ready, found)
    assert git(ready, "tag", "--list", "--format=%(contents)") == "backburn 0.2.0\n\n### Added\n\n- All."
    release.checked(ready)
    release.tag(ready, found)
    commit(ready)
    with pytest.raises(release.Refused, match=r"the tag v0\.2\.0 exists, at another commit"):
        release.checked(ready)


@pytest.mark.parametrize(("older", "allowed"), [("v0.1.9", True), ("v0.2.0rc1", True), ("v0.10.0", False)])
def test_versions_must_increase(ready: Path, older: str, allowed: bool) -> None:
    git(ready, "tag", older)
    git(ready, "tag", "vision")  # not a version
    if allowed:
        assert release.checked(ready).tag == "v0.2.0"
        return
    with pytest.raises(release.Refused, match=r"0\.2\.0 is older than 0\.10\.0"):
        release.checked(ready)


def test_an_upload_needs_the_repository_that_the_pages_link_to(ready: Path) -> None:
    with pytest.raises(release.Refused, match="'origin' is not set"):
        release.checked(ready, for_upload=True)
    git(ready, "remote", "add", "origin", "https://forge.example/others/backburn.git")
    with pytest.raises(release.Refused, match="others"):
        release.checked(ready, for_upload=True)
    for address in ("https://forge.example/us/backburn.git", "git@forge.example:us/backburn.git"):
        git(ready, "remote", "set-url", "origin", address)
        release.checked(ready, for_upload=True)


# ---- files ----


@pytest.fixture
def files(ready: Path) -> list[Path]:
    """The files of release 0.2.0."""
    subprocess.run([sys.executable, "tools/build_wheels.py", "--out", "dist"], cwd=ready, check=True)
    return sorted((ready / "dist").iterdir())


def test_files_of_another_version_are_refused(files: list[Path]) -> None:
    with pytest.raises(release.Refused) as caught:
        release.check_files(files, "0.3.0")
    assert "one backburn-0.3.0.tar.gz, not ['backburn-0.2.0.tar.gz']" in str(caught.value)
    assert "backburn-0.2.0-py3-none-any.whl is of version 0.2.0, not 0.3.0" in str(caught.value)


def test_missing_strange_and_broken_files_are_refused(files: list[Path], tmp_path: Path) -> None:
    wheel, source = files
    with pytest.raises(release.Refused, match="there is no wheel"):
        release.check_files([source], "0.2.0")
    with pytest.raises(release.Refused, match="should be one backburn"):
        release.check_files([wheel], "0.2.0")
    with pytest.raises(release.Refused, match=r"notes\.txt is neither a wheel nor"):
        release.check_files([*files, tmp_path / "notes.txt"], "0.2.0")
    wheel.write_bytes(b"not an archive")
    with pytest.raises(release.Refused, match="version none"):
        release.check_files(files, "0.2.0")
    with zipfile.ZipFile(wheel, "w"):
        pass
    with pytest.raises(release.Refused, match="version none"):
        release.check_files(files, "0.2.0")


def test_the_rehearsal_index_lists_the_files_it_receives() -> None:
    form = b'--line\r\nContent-Disposition: form-data; name="content"; filename="a-1.whl"\r\n\r\nbytes\r\n--line--\r\n'
    with release.forgetful_index() as (address, taken), urllib.request.urlopen(address, form) as answer:
        assert answer.status == 200
    assert taken == ["a-1.whl"]


def test_a_command_that_fails_ends_the_release(monkeypatch: pytest.MonkeyPatch, files: list[Path]) -> None:
    with pytest.raises(release.Refused, match="failed, with status 3"):
        release._run([sys.executable, "-c", "raise SystemExit(3)"])
    monkeypatch.setattr(release, "_run", lambda command, **variables: None)
    with pytest.raises(
        release.Refused, match=r"would not upload backburn-0\.2\.0-py3-none-any\.whl, backburn-0\.2\.0\.tar"
    ):
        release.upload(files, rehearse=True)


@pytest.mark.slow
def test_a_release_is_built_rehearsed_and_tagged(ready: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for package in ("twine", "check_wheel_contents"):
        pytest.importorskip(package, reason="releases are checked with it: nox -s release")
    (ready / "dist").mkdir()
    (ready / "dist" / "backburn-0.1.0.tar.gz").touch()  # from an earlier build
    assert release.main([], ready) == 0
    shown = capfd.readouterr()
    assert "Nothing has been uploaded. To publish: git push origin v0.2.0" in shown.out
    assert git(ready, "tag") == "v0.2.0"
    assert git(ready, "rev-parse", "v0.2.0^{commit}") == git(ready, "rev-parse", "HEAD")
    assert git(ready, "status", "--porcelain") == ""
    assert sorted(path.name for path in (ready / "dist").iterdir()) == [
        "backburn-0.2.0-py3-none-any.whl", "backburn-0.2.0.tar.gz",
    ]  # fmt: skip


def test_only_upload_uploads(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twine uploads to the rehearsal's index, and only with ``--upload`` also to the real one."""
    commands: list[list[str]] = []

    def run(command: list[str], **variables: str) -> None:
        commands.append(command)
        if "build_wheels.py" in command[1]:
            subprocess.run([command[0], "tools/build_wheels.py", "--out", "dist"], cwd=ready, check=True)
        elif "--repository-url" in command:
            names = [Path(argument).name for argument in command if "backburn-0.2.0" in argument]
            form = "".join(f'name="content"; filename="{name}"\n' for name in names).encode()
            urllib.request.urlopen(command[command.index("--repository-url") + 1], form).close()

    monkeypatch.setattr(release, "_run", run)
    git(ready, "remote", "add", "origin", "https://forge.example/us/backburn")
    assert release.main([], ready) == 0
    rehearsed = [command for command in commands if "upload" in command]
    assert len(rehearsed) == 1
    assert rehearsed[0][rehearsed[0].index("--repository-url") + 1].startswith("http://127.0.0.1:")
    commands.clear()
    assert release.main(["--upload"], ready) == 0
    assert ["--repository-url" in command for command in commands if "upload" in command] == [True, False]
