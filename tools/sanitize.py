"""Run the kernels with sanitizers: `nox -s sanitize`, or `python tools/sanitize.py [--minutes M] [--best] [NAME ...]`.

Names are those of ``SANITIZERS``, all by default:

- ``address``: the kernels compiled with AddressSanitizer and UndefinedBehaviorSanitizer, at every instruction set that
  this processor has: random programs (`tests.programs`), and the trials of `tests.programs.stress`;
- ``thread``: with ThreadSanitizer, the trials of several threads and signals, and random programs;
- ``none``: without a sanitizer, in forked children and with little address space, which sanitizers would use up.

The minutes are shared; compiling is not counted. Copies of the backend with their libraries stay in ``build/sanitize``,
and are compiled again when a source changes. A missing library of a sanitizer is reported, and its runs are left out;
the exit status is 1 if a sanitizer or a trial found something.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BACKEND = ROOT / "backends" / "backburn_numpy"
FOLDER = ROOT / "build" / "sanitize"


class Sanitizer(NamedTuple):
    """Compiler options, libraries to preload, environment variables, and the modules to run, with arguments."""

    flags: tuple[str, ...]
    libraries: tuple[str, ...]
    variables: dict[str, str]
    runs: tuple[tuple[str, ...], ...]


PROGRAMS = ("tests.programs", "--unguarded")
STRESS = "tests.programs.stress"
SANITIZERS = {
    "address": Sanitizer(
        ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
        ("libasan.so",),
        # Python does not free all memory when it exits.
        {"ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1"},
        (PROGRAMS, (STRESS, "threads", "signals", "forks")),
    ),
    "thread": Sanitizer(
        ("-fsanitize=thread",),
        ("libtsan.so",),
        # Children of a process with threads are allowed. OpenBLAS is not compiled with it: it would be reported.
        {"TSAN_OPTIONS": "halt_on_error=1:exitcode=66:die_after_fork=0", "OPENBLAS_NUM_THREADS": "1"},
        ((STRESS, "threads", "signals"), PROGRAMS),
    ),
    "none": Sanitizer((), (), {}, ((STRESS, "forks", "memory"),)),
}


def main() -> int:
    """Compile and run; print what is left out and why."""
    parser = argparse.ArgumentParser(prog="python tools/sanitize.py", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SANITIZERS))
    parser.add_argument("--minutes", type=float, default=20.0, help="of all runs together")
    parser.add_argument("--best", action="store_true", help="only the best instruction set")
    options = parser.parse_args()
    if wrong := {*options.names} - SANITIZERS.keys():
        parser.error(f"no such sanitizer: {', '.join(sorted(wrong))}; there are {', '.join(SANITIZERS)}")
    compiler = shutil.which("gcc")
    if platform.system() != "Linux" or compiler is None:
        print("sanitize: nothing was run: kernels are compiled with GCC, on Linux")
        return 0
    plans: list[tuple[str, str, tuple[str, ...]]] = []
    for name in options.names or SANITIZERS:
        if missing := [library for library in SANITIZERS[name].libraries if path_of(compiler, library) is None]:
            print(f"sanitize: {name} is left out: {compiler} has no {' and no '.join(missing)}")
            continue
        levels = compiled(name, compiler, options.best)
        # Lower instruction sets use threads in the same way.
        plans += [
            (name, level, run)
            for level in (levels if name == "address" else levels[-1:])
            for run in SANITIZERS[name].runs
        ]
    failed = [plan for plan in plans if not is_clean(*plan, compiler, 60.0 * options.minutes / len(plans))]
    for name, level, run in failed:
        print(f"sanitize: {name} at {level}, {' '.join(run)}: failed")
    return int(bool(failed))


def path_of(compiler: str, library: str) -> str | None:
    """The path of a sanitizer's library; None if the compiler has none."""
    done = subprocess.run([compiler, f"-print-file-name={library}"], capture_output=True, text=True, check=True)
    path = done.stdout.strip()
    return os.path.realpath(path) if os.path.isabs(path) and os.path.exists(path) else None


def compiled(name: str, compiler: str, is_best: bool) -> list[str]:
    """Compile a copy of the backend unless it exists; the instruction sets that it has for this processor."""
    folder = FOLDER / name / "backburn_numpy"
    kept = {path.name: path.read_bytes() for path in folder.glob("compiled/*.kernels")}
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(
        BACKEND, folder, ignore=shutil.ignore_patterns("__pycache__", *(["*.kernels"] if name != "none" else []))
    )
    for file, content in kept.items() if name != "none" else ():
        (folder / "compiled" / file).write_bytes(content)
    variables = environment(name, {})
    if SANITIZERS[name].flags:
        variables["CC"] = str(wrapper(name, compiler))
    code = (
        "from backburn_numpy.compiled import build\n"
        f"wanted = set(build.levels()) if not {is_best} else set()\n"
        "there = build.libraries()\n"
        "if not wanted <= there.keys() or len(there) < 2:\n"
        f"    build.build(only_best={is_best})\n"
        "print(*(level for level in build.supported_levels() if level in build.libraries()))"
    )
    # Kernels with a sanitizer are not loaded here, since its library is not preloaded.
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=variables | {"BACKBURN_COMPILED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"sanitize: the kernels of {name} are not compiled:\n{done.stderr}")
    levels = done.stdout.split()
    return levels[-1:] if is_best else levels


def wrapper(name: str, compiler: str) -> Path:
    """A compiler that adds a sanitizer to everything except the processor's test, and keeps function names."""
    path = FOLDER / name / "cc"
    path.write_text(f"""#!/bin/sh
for last; do shift; [ "$last" = -s ] || set -- "$@" "$last"; done
case "$*" in *processor.c*|*processor-processor.o*) exec {shlex.quote(compiler)} "$@" ;; esac
exec {shlex.quote(compiler)} {shlex.join(SANITIZERS[name].flags)} -fno-omit-frame-pointer -g1 "$@"
""")
    path.chmod(0o755)
    return path


def environment(name: str, more: dict[str, str]) -> dict[str, str]:
    """The variables of a process with the copy of the backend."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("BACKBURN_")}
    paths = [FOLDER / name, ROOT / "src", ROOT / "backends", ROOT]
    return kept | {"PYTHONPATH": os.pathsep.join(map(str, paths))} | more


def is_clean(name: str, level: str, run: tuple[str, ...], compiler: str, seconds: float) -> bool:
    """Run a module for some seconds: whether neither it nor a sanitizer found anything."""
    length = ("--minutes", str(seconds / 60)) if run[0] == "tests.programs" else ("--seconds", str(seconds))
    print(f"sanitize: {name} at {level}: {' '.join(run)}, {seconds:.0f} s", flush=True)
    return python(name, compiler, "-m", *run, *length, BACKBURN_COMPILED=level) == 0


def python(name: str, compiler: str, *arguments: str, **variables: str) -> int:
    """The status of a Python process with a sanitizer's libraries and the copy of the backend."""
    sanitizer = SANITIZERS[name]
    libraries = [str(path_of(compiler, library)) for library in sanitizer.libraries]
    # env, so that setarch runs without the libraries. ThreadSanitizer supports only some of Linux's memory layouts.
    loaded = ["env", f"LD_PRELOAD={' '.join(libraries)}"] if libraries else []
    fixed = ["setarch", "-R"] if name == "thread" and shutil.which("setarch") else []
    command = [*fixed, *loaded, sys.executable, *arguments]
    return subprocess.run(
        command, env=environment(name, sanitizer.variables | variables), cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
