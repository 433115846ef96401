"""``python -m benchmarks.gpu``: all checks and benchmarks that need a GPU, into one JSON and one Markdown file.

Each part runs in its own process, parts about models in one per model, with a time limit, so a failing part does not
affect the others; what it found before being stopped is kept. The files are written after each part. If commands may
not run long, ``--limit`` stops in time, and ``--resume`` continues the last command with the same ``--out``. Without a
GPU it says why and exits with status 2. ``--backend`` names another backend and ``--small`` shrinks everything, to try
the program itself.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu.models import MODELS
from benchmarks.gpu.parts import OF_MODELS, PARTS, ROOT, Options
from benchmarks.gpu.report import markdown

PACKAGES = ("backburn", "numpy", "cupy-cuda12x", "cupy-cuda13x", "ml_dtypes", "torch")


def from_checkout() -> None:
    """Let this process and its children import backburn from the checkout if it is not installed."""
    if importlib.util.find_spec("backburn") is None or importlib.util.find_spec("backburn_cupy") is None:
        folders = [str(ROOT / "src"), str(ROOT / "backends")]
        sys.path[:0] = folders
        os.environ["PYTHONPATH"] = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)


def main() -> int:
    """Run the parts one after the other, and write their results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--backend", default="cupy", help="the backend to run on (cupy)")
    parser.add_argument("--small", action="store_true", help="shrink everything, to try the program itself")
    parser.add_argument("--rounds", type=int, default=5, help="how often each variant is timed (5)")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}, separated by commas (all)")
    parser.add_argument("--timeout", type=float, default=420.0, help="seconds that a part may take (420)")
    parser.add_argument("--limit", type=float, help="seconds that the command may take (no limit)")
    parser.add_argument("--resume", action="store_true", help="run only what the report in --out lacks")
    parser.add_argument("--out", type=Path, default=Path(), help="the folder for gpu.json and gpu.md (this one)")
    parser.add_argument("--part", help=argparse.SUPPRESS)  # one part, in this process
    parser.add_argument("--model", choices=MODELS, help="only this model in the parts that take models (all)")
    started, given = time.perf_counter(), parser.parse_args()
    from_checkout()
    options = Options(given.backend, given.small, given.rounds, given.model)
    if given.part:
        _say(PARTS[given.part](options, _say))
        return 0
    chosen = given.parts.split(",")
    if unknown := [n for n in chosen if n not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}")
    names = [f"{n} {m}".strip() for n in chosen for m in (options.models if n in OF_MODELS else ("",))]
    if reason := _why_not(options):
        print(f"nothing was run: {reason}", file=sys.stderr)
        return 2
    given.out.mkdir(parents=True, exist_ok=True)
    about = _about(options)
    report: dict[str, Any] = {"about": about, "parts": _found_before(given.out, about) if given.resume else {}}
    # Parts stopped before come last: they may be stopped again.
    lacking = [n for n in names if not report["parts"].get(n, {}).get("complete")]
    for name in sorted(lacking, key=report["parts"].__contains__):
        left = given.timeout
        if given.limit is not None:
            left = min(left, given.limit - (time.perf_counter() - started) - 5)
        if left < 10:
            print(f"{name}: not run, since no time is left; --resume continues here", flush=True)
            continue
        found = _part(name, options, left)
        if not found["complete"]:  # an earlier run may have found more
            found = {**report["parts"].get(name, {}), **found}
        report["parts"][name] = found
        _write(report, given.out)
        print(f"{name}: {found['seconds']:.0f} s, {len(found['problems'])} problems", flush=True)
    _write(report, given.out)
    print((given.out / "gpu.md").read_text(encoding="utf-8"))
    wrong = any(part["problems"] for part in report["parts"].values())
    return 1 if wrong or any(not report["parts"].get(n, {}).get("complete") for n in names) else 0


def _say(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


#: Facts that are the same for all parts of a report.
SAME = ("backend", "small", "device", "commit", "versions")


def _found_before(folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    """The parts of the report in a folder, unless its code, machine or size differ."""
    path = folder / "gpu.json"
    if not path.exists():
        return {}
    before = json.loads(path.read_text(encoding="utf-8"))
    if other := [name for name in SAME if before.get("about", {}).get(name) != about[name]]:
        print(f"the report in {path} is of another {other[0]}: every part is run", flush=True)
        return {}
    return dict(before["parts"])


def _why_not(options: Options) -> str | None:
    import backburn as bb

    try:
        bb.load_backend(options.training)
    except bb.base.errors.BackburnError as error:
        return str(error)
    return None


def _part(name: str, options: Options, timeout: float) -> dict[str, Any]:
    """Run one part, or one with its model, in its own process."""
    part, _, model = name.partition(" ")
    command = [sys.executable, "-m", "benchmarks.gpu", "--part", part, "--backend", options.backend]
    command += ["--model", model] if model else []
    command += ["--rounds", str(options.rounds)] + (["--small"] if options.small else [])
    started, status = time.perf_counter(), 1
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
        # In a process group, to be stopped with its children; in a new session it would outlive the current one.
        child = subprocess.Popen(command, stdout=said, stderr=errors, cwd=ROOT, process_group=0)
        try:
            status, problem = child.wait(timeout), ""
        except subprocess.TimeoutExpired:
            problem = f"took more than {timeout:.0f} s and was stopped"
        finally:
            _stop(child)
        lines = _text(said).splitlines()
        if status and not problem:
            problem = _text(errors)[-2000:] or f"ended with status {status}"
    found: dict[str, Any] = next((p for line in reversed(lines) if (p := _parsed(line)) is not None), {"problems": []})
    if problem:
        found["problems"].append(problem)
    return {**found, "complete": status == 0, "seconds": time.perf_counter() - started}


def _stop(child: subprocess.Popen[Any]) -> None:
    """Stop a process and its children."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.wait()


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))


def _parsed(line: str) -> dict[str, Any] | None:
    """The report of a part; None for other lines, or a truncated one."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "problems" in found else None


def _about(options: Options) -> dict[str, Any]:
    """The versions and the machine."""
    import backburn as bb

    backend: Any = bb.load_backend(options.backend)
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        **dataclasses.asdict(options), "device": str(backend.device), "python": platform.python_version(),
        "date": datetime.now(UTC).isoformat(timespec="minutes"), "commit": _commit(),
        "versions": versions, "libraries": _libraries(backend),
    }  # fmt: skip


def _libraries(backend: Any) -> dict[str, str]:
    """The libraries in use; an error in looking for them is reported, and stops nothing."""
    try:
        return dict(getattr(backend, "libraries", {}))
    except Exception as error:
        return {"not known": f"{type(error).__name__}: {str(error)[:500]}"}


def _commit() -> str:
    """The commit of the checkout; "unknown" without git or its history."""
    try:
        said = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False)
    except OSError:
        return "unknown"
    return said.stdout.strip() or "unknown"


def _write(report: dict[str, Any], folder: Path) -> None:
    for name, text in (("gpu.json", json.dumps(report, indent=2) + "\n"), ("gpu.md", markdown(report))):
        # Atomically: the command may be killed meanwhile.
        part = folder / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(folder / name)


if __name__ == "__main__":
    raise SystemExit(main())
