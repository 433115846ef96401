"""Build the source distribution and the wheels of every platform, and check them; ``nox -s wheels`` calls it.

``python tools/build_wheels.py [--out FOLDER] [TARGET ...]``. Targets are zig's names for platforms, those of
``TARGETS`` in the kernels' ``build.py``; all of them by default. Each wheel contains the kernels for every instruction
set of its platform, compiled by ``ziglang`` on this machine from the source distribution, is compressed by
``zopflipy``, and is refused if kernels are missing, if it is larger than 2.9 MB, or if it fails ``twine check
--strict``, ``check-wheel-contents`` or, on Linux, auditwheel's policy.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COMPILED = Path("backends/backburn_numpy/compiled")
#: The largest wheel, in bytes.
LARGEST = 2_900_000
PACKAGES = {"backburn", "backburn_cupy", "backburn_null", "backburn_numpy"}


def main() -> int:
    """Build and check; print a line for each file."""
    build = load_build()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(build.TARGETS))
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="FOLDER", help="default: dist")
    options = parser.parse_args()
    out: Path = options.out.resolve()
    if wrong := set(options.targets) - set(build.TARGETS):
        parser.error(f"no such target: {', '.join(sorted(wrong))}; there are {', '.join(build.TARGETS)}")
    out.mkdir(parents=True, exist_ok=True)
    sdist = made_by("sdist", ROOT, out)
    report(sdist)
    wheels = []
    with TemporaryDirectory() as scratch:
        with tarfile.open(sdist) as archive:
            archive.extractall(scratch, filter="data")
        (source,) = Path(scratch).iterdir()
        for target in options.targets or build.TARGETS:
            wheel = made_by("wheel", source, out, BACKBURN_COMPILED_TARGET=target)
            compress(wheel)
            check_contents(wheel, {"processor", *build.levels(target.partition("-")[0])})
            if "-linux-" in target:
                check_policy(wheel)
            report(wheel)
            wheels.append(wheel)
    run("twine", "check", "--strict", sdist, *wheels)
    run("check_wheel_contents", *wheels)
    return 0


def load_build() -> Any:
    """The kernels' ``build.py``, imported without the package that contains it."""
    spec = importlib.util.spec_from_file_location("build_kernels", ROOT / COMPILED / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made_by(kind: str, source: Path, out: Path, **variables: str) -> Path:
    """Build a distribution with the packages that are installed here; the built file."""
    with TemporaryDirectory(dir=out) as folder:
        run("build", f"--{kind}", "--no-isolation", "--outdir", folder, source, **variables)
        (made,) = Path(folder).iterdir()
        return made.replace(out / made.name)


def compress(wheel: Path) -> None:
    """Recompress a wheel's files, in the same order and format, to a size a thirtieth smaller than zlib's."""
    zopfli = importlib.import_module("zopfli")  # from the package zopflipy, which only this function needs
    smaller = wheel.with_suffix(".smaller")
    options = {"block_splitting_max": 0}  # as many blocks as pay: kernels lose half a percent
    with zipfile.ZipFile(wheel) as before, zopfli.ZipFile(smaller, "w", zipfile.ZIP_DEFLATED, **options) as after:
        for info in before.infolist():
            after.writestr(info, before.read(info))
    smaller.replace(wheel)


def check_contents(wheel: Path, levels: set[str]) -> None:
    """Refuse a wheel that lacks a package, a level of kernels or a licence, or has sources or too many bytes."""
    names = zipfile.ZipFile(wheel).namelist()
    kernels = {Path(name).name.rsplit("-", 2)[0] for name in names if name.endswith(".kernels")}
    assert kernels == levels, f"{wheel.name} has kernels of {sorted(kernels)}, not of {sorted(levels)}"
    assert not [name for name in names if name.endswith((".c", ".h"))], f"{wheel.name} contains C sources"
    missing = PACKAGES - {name.partition("/")[0] for name in names}
    assert not missing, f"{wheel.name} lacks {missing}"
    licences = {Path(name).name for name in names if ".dist-info/licenses/" in name}
    expected = {"LICENSE", *(path.name for path in (ROOT / "licenses").iterdir())}
    assert licences == expected, f"{wheel.name} has the licences {sorted(licences)}, not {sorted(expected)}"
    assert wheel.stat().st_size <= LARGEST, f"{wheel.name} has {wheel.stat().st_size:,} bytes, more than {LARGEST:,}"


def check_policy(wheel: Path) -> None:
    """Refuse a wheel for Linux whose tag claims wider compatibility than its libraries have."""
    shown = run("auditwheel", "show", "--json", wheel)
    tag = json.loads(shown)["overall_tag"]
    assert tag in wheel.name, f"{wheel.name} is compatible only with {tag}"


def report(made: Path) -> None:
    """Print a file's size."""
    print(f"{made.stat().st_size / 1e6:5.2f} MB  {made.name}", flush=True)


def run(module: str, *arguments: object, **variables: str) -> str:
    """Run ``python -m module`` in the root, and return its output. Ends this program if it fails."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
