"""Make a release: check the tree, build the files, check them, rehearse the upload, and tag.

``nox -s release`` calls it, with what ``tools/build_wheels.py`` needs:

    nox -s release -- --prepare 0.2.0   dates the changelog and writes the version, to be committed
    nox -s release                      does everything else, but uploads nothing
    nox -s release -- --upload          uploads as well, as the user that twine finds

Twine itself rehearses the upload, to an index on this machine that discards the files. A refused release lists
everything that is wrong with the tree, and changes nothing. A tag at this commit is kept, so a command that failed
after tagging can be repeated.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import Parser
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parent.parent
CHANGELOG, SOURCE, CITATION = Path("CHANGELOG.md"), Path("src/backburn/__init__.py"), Path("CITATION.cff")
#: The lines that name the version and the date, as regular expressions with the value as their only group.
VERSION_IN_SOURCE, VERSION_IN_CITATION, DATE_IN_CITATION = (
    r'^__version__ = "(.*)"$', r"^version: (.*)$", r"^date-released: (.*)$",
)  # fmt: skip


class Refused(Exception):
    """The release is refused; the message has a line for each reason."""


class Release(NamedTuple):
    """The newest section of the changelog with any text."""

    version: str
    #: ISO 8601; ``""`` for a section without one.
    date: str
    notes: str

    @property
    def tag(self) -> str:
        """The name of its tag."""
        return f"v{self.version}"


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Run the command; 0, or 1 for a release that is refused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--prepare", metavar="VERSION", help="only date the changelog and write the version")
    parser.add_argument("--upload", action="store_true", help="upload the files with twine after all checks")
    options = parser.parse_args(arguments)
    try:
        if options.prepare:
            prepare(root, options.prepare, datetime.datetime.now(datetime.UTC).date().isoformat())
            return 0
        release = checked(root, for_upload=options.upload)
        files = build(root)
        check_files(files, release.version)
        upload(files, rehearse=True)
        tag(root, release)
        if options.upload:
            upload(files)
        else:
            print(f"\nNothing has been uploaded. To publish: git push origin {release.tag}")
    except Refused as error:
        print(f"No release:\n{error}", file=sys.stderr)
        return 1
    return 0


# ---- the tree ----


def read_changelog(root: Path) -> Release:
    """The newest release of the changelog, below an empty section *Unreleased* if there is one."""
    text = (root / CHANGELOG).read_text(encoding="utf-8")
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, notes = section.partition("\n")
        if notes.strip() or heading.strip() != "Unreleased":
            version, _, date = heading.strip().partition(" - ")
            return Release(version, date, notes.strip())
    raise Refused(f"{CHANGELOG}: no section has any text")


def checked(root: Path, for_upload: bool = False) -> Release:
    """The release that the tree is ready for. Raises :class:`Refused` with everything that is not ready."""
    release = read_changelog(root)
    version, date, notes = release
    wrong = []
    if version == "Unreleased":
        raise Refused(f"{CHANGELOG}: the newest section is 'Unreleased'. Date it: nox -s release -- --prepare VERSION")
    try:
        number = Version(version)
    except InvalidVersion:
        raise Refused(f"{CHANGELOG}: {version!r} is not a version; a heading is '## 1.2.3 - 2026-01-31'") from None
    if str(number) != version or number.is_devrelease or number.local:
        wrong.append(f"{CHANGELOG}: {version!r} is not a release's version, such as 1.2.3 or 1.2.3rc1")
    if not _is_date(date):
        wrong.append(f"{CHANGELOG}: the section {version} is undated; a heading is '## {version} - 2026-01-31'")
    if not notes:
        wrong.append(f"{CHANGELOG}: the section {version} is empty")
    for path, pattern, expected in (
        (SOURCE, VERSION_IN_SOURCE, version),
        (CITATION, VERSION_IN_CITATION, version),
        (CITATION, DATE_IN_CITATION, date),
    ):
        found = re.search(pattern, (root / path).read_text(encoding="utf-8"), re.MULTILINE)
        if found is None or found[1] != expected:
            line = found[0] if found else f"no line {pattern}"
            wrong.append(f"{path}: {line} should be {expected}, as {CHANGELOG} says")
    if changed := git(root, "status", "--porcelain"):
        wrong.append(f"the tree has changes that are not committed:\n{changed}")
    wrong += _tag_problems(root, release, number)
    if for_upload:
        wrong += _remote_problems(root)
    if wrong:
        raise Refused("\n".join(wrong))
    return release


def _is_date(text: str) -> bool:
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _tag_problems(root: Path, release: Release, number: Version) -> list[str]:
    tags = git(root, "tag", "--list", "v*").split()
    if release.tag in tags:
        there, here = git(root, "rev-parse", f"{release.tag}^{{commit}}"), git(root, "rev-parse", "HEAD")
        return [] if there == here else [f"the tag {release.tag} exists, at another commit: {there[:12]}"]
    released = [Version(name[1:]) for name in tags if re.fullmatch(r"v\d+(\.\d+)*(rc\d+)?", name)]
    newer = [str(other) for other in released if other > number]
    return [f"{release.version} is older than {', '.join(newer)}, which has a tag"] if newer else []


def _remote_problems(root: Path) -> list[str]:
    """A problem if the links in the package's description do not lead to the repository that it is uploaded from."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    linked = project["urls"]["Repository"]
    origin = git(root, "remote", "get-url", "origin", check=False)
    address = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", origin).removesuffix("/").removesuffix(".git")
    return [] if address == linked else [f"pyproject.toml links to {linked}, and 'origin' is {origin or 'not set'}"]


def prepare(root: Path, version: str, date: str) -> None:
    """Date the section *Unreleased*, and write the version and the date to the files that name them."""
    text = (root / CHANGELOG).read_text(encoding="utf-8")
    if read_changelog(root).version != "Unreleased":
        raise Refused(f"{CHANGELOG}: there is no section 'Unreleased' with any text")
    try:
        version = str(Version(version))
    except InvalidVersion:
        raise Refused(f"{version!r} is not a version, such as 1.2.3") from None
    write(root / CHANGELOG, text.replace("## Unreleased\n", f"## {version} - {date}\n", 1))
    source = (root / SOURCE).read_text(encoding="utf-8")
    write(root / SOURCE, re.sub(VERSION_IN_SOURCE, f'__version__ = "{version}"', source, count=1, flags=re.MULTILINE))
    citation = re.sub(DATE_IN_CITATION + "\n", "", (root / CITATION).read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = f"version: {version}\ndate-released: {date}"
    write(root / CITATION, re.sub(VERSION_IN_CITATION, lines, citation, count=1, flags=re.MULTILINE))
    print(f"{CHANGELOG}, {SOURCE} and {CITATION} say {version} of {date}. Look at them, commit them: nox -s release")


def write(path: Path, text: str) -> None:
    """Write a file with the line ends of the repository."""
    path.write_text(text, encoding="utf-8", newline="\n")


def tag(root: Path, release: Release) -> None:
    """Tag this commit, with the notes as the message, unless the tag exists."""
    if release.tag not in git(root, "tag", "--list", release.tag).split():
        message = f"backburn {release.version}\n\n{release.notes}\n"
        git(root, "tag", "--annotate", "--cleanup=verbatim", "--file=-", release.tag, text=message)
    print(f"tag {release.tag}: {git(root, 'rev-parse', 'HEAD')[:12]}")


def git(root: Path, *arguments: str, check: bool = True, text: str | None = None) -> str:
    """The output of a git command. Raises :class:`Refused` if it fails, unless ``check`` is False."""
    done = subprocess.run(["git", *arguments], cwd=root, input=text, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise Refused(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.rstrip()


# ---- the files ----


def build(root: Path) -> list[Path]:
    """Build the source distribution and all wheels into an empty ``dist``."""
    folder = root / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, str(root / "tools" / "build_wheels.py"), "--out", str(folder)])
    return sorted(path for path in folder.iterdir() if path.is_file())


def check_files(files: list[Path], version: str) -> None:
    """Refuse files unless they are one source distribution and wheels, of this version, that the index would accept."""
    sources = [path for path in files if path.name.endswith(".tar.gz")]
    wheels = [path for path in files if path.suffix == ".whl"]
    wrong = [f"{path.name} is neither a wheel nor a source distribution" for path in {*files} - {*sources, *wheels}]
    if [path.name for path in sources] != [f"backburn-{version}.tar.gz"]:
        wrong.append(f"there should be one backburn-{version}.tar.gz, not {[path.name for path in sources]}")
    if not wheels:
        wrong.append("there is no wheel")
    for wheel in wheels:
        if (found := _version_in(wheel)) != version:
            wrong.append(f"{wheel.name} is of version {found}, not {version}")
    if wrong:
        raise Refused("\n".join(wrong))
    _run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)])
    _run([sys.executable, "-m", "check_wheel_contents", *map(str, wheels)])


def _version_in(wheel: Path) -> str:
    """The version in a wheel's metadata, or why it cannot be read."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            return str(Parser().parsestr(archive.read(name).decode())["Version"])
    except (zipfile.BadZipFile, ValueError) as error:
        return f"none ({error})"


def upload(files: list[Path], rehearse: bool = False) -> None:
    """Upload with twine; to rehearse, to an index on this machine, which must receive every file."""
    command = [sys.executable, "-m", "twine", "upload", "--disable-progress-bar"]
    if not rehearse:
        _run([*command, *map(str, files)])
        return
    nobody = {"TWINE_USERNAME": "nobody", "TWINE_PASSWORD": "nothing", "TWINE_NON_INTERACTIVE": "1"}
    with forgetful_index() as (address, taken):
        # Without a proxy, which could not reach the index.
        _run([*command, "--repository-url", address, *map(str, files)], **nobody, NO_PROXY="*", no_proxy="*")
    if lost := {path.name for path in files} - set(taken):
        raise Refused(f"twine would not upload {', '.join(sorted(lost))}")


@contextmanager
def forgetful_index() -> Iterator[tuple[str, list[str]]]:
    """A package index on this machine that accepts every upload; its address, and the names of the received files."""
    taken: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"]))
            taken.extend(name.decode() for name in re.findall(rb'name="content"; filename="([^"]+)"', form))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", taken
        finally:
            server.shutdown()
            thread.join()


def _run(command: list[str], **variables: str) -> None:
    print(f"\n$ python {' '.join(command[1:])}", flush=True)
    done = subprocess.run(command, env={**os.environ, **variables}, check=False)
    if done.returncode:
        raise Refused(f"the command above failed, with status {done.returncode}")


if __name__ == "__main__":
    sys.exit(main())
