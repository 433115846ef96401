"""Compiling the kernels with the machine's C compiler.

The package's build hook and ``python -m backburn_numpy.compiled`` both call :func:`build`. This module imports nothing
from the rest of the package, which may not be installed yet.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import shutil
import subprocess
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

FOLDER = Path(__file__).parent
#: Detects the instruction sets: a separate library, which every processor can run.
PROCESSOR = FOLDER / "processor.c"
SOURCES = sorted(set(FOLDER.glob("*.c")) - {PROCESSOR})
HEADERS = sorted(FOLDER.glob("*.h"))

#: Not .so, lest tools take a library for a Python module.
SUFFIX = ".kernels"

#: No -ffast-math: NaN and infinities are values, which these flags preserve. No -Os either, not even by a pragma: with
#: it GCC omits vzeroupper at the end of kernels, and the SSE code that runs next, such as NumPy's, takes several times
#: as long.
FLAGS = (
    *("-std=c11", "-O2", "-fopenmp-simd", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
    *("-fPIC", "-pthread", "-fvisibility=hidden", "-Wall"),
    # Vectors wider than the processor's are passed to inlined functions only, so that their ABI does not matter. Clang
    # leaves some loops as they are.
    *("-fno-asynchronous-unwind-tables", "-Wno-psabi", "-Wno-pass-failed"),
)
#: No symbols; Apple's linker knows the flag no longer.
LINK = ("-shared", *(() if platform.system() == "Darwin" else ("-s",)))

#: The instruction sets with a library, the lowest first, and their flags. No MMX, whose registers are those of long
#: doubles: GCC moves numbers through one, and all long doubles that the thread computes next are NaN.
LEVELS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "x86-64": ("-march=x86-64", "-mno-mmx"),
        "x86-64-v3": ("-march=x86-64-v3", "-mno-mmx"),
        "x86-64-v4": ("-march=x86-64-v4", "-mno-mmx", "-mprefer-vector-width=512"),
    },
}
OTHERS: dict[str, tuple[str, ...]] = {
    "base": ()
}  # on AArch64 all processors have the same vectors, as far as compilers use them


def levels() -> dict[str, tuple[str, ...]]:
    """The instruction sets of this architecture, the lowest first, and the compiler flags of each.

    On Windows only the lowest: GCC stores wider vectors at aligned addresses of a stack that is aligned to 16 bytes,
    which crashes (https://gcc.gnu.org/bugzilla/show_bug.cgi?id=54412).
    """
    machine = platform.machine()
    known = LEVELS.get({"AMD64": "x86_64"}.get(machine, machine), OTHERS)
    return dict(islice(known.items(), 1)) if platform.system() == "Windows" else known


def edition() -> str:
    """A hash of the sources, so that a library built from others is never used."""
    return f"{zlib.crc32(b''.join(path.read_bytes() for path in (PROCESSOR, *HEADERS, *SOURCES))):08x}"


def library(level: str, folder: Path = FOLDER) -> Path:
    """The path of the library for an instruction set, or of ``processor``, built from the present sources.

    A wheel with compiled libraries has no sources, and libraries of a single edition.
    """
    if not SOURCES:
        return next(folder.glob(f"{level}-????????{SUFFIX}"), folder / f"{level}{SUFFIX}")
    return folder / f"{level}-{edition()}{SUFFIX}"


class NoCompilerError(RuntimeError):
    """There is no C compiler for this machine, or it failed; the message has the command and its output."""


def supported_levels(folder: Path = FOLDER) -> list[str]:
    """This processor's instruction sets, the lowest first. Raises :class:`OSError` if nothing is compiled."""
    number: int = ctypes.CDLL(str(library("processor", folder))).backburn_level()
    return list(levels())[: number + 1]


def build(folder: Path = FOLDER, only_best: bool = False) -> list[Path]:
    """Compile the kernels into ``folder``, for all instruction sets or for this processor's best.

    Raises :class:`NoCompilerError`.
    """
    if not SOURCES:
        raise NoCompilerError("there are no sources to compile: this package was installed with compiled libraries")
    made = _compiled({"processor": ()}, [PROCESSOR], folder)
    wanted = set(levels())
    if only_best:
        try:
            wanted = {supported_levels(folder)[-1]}
        except OSError as error:  # a cross compiler, or libraries of the compiler's that are not found at run time
            raise NoCompilerError(f"what the C compiler makes cannot be loaded on this machine: {error}") from error
    made += _compiled({name: flags for name, flags in levels().items() if name in wanted}, SOURCES, folder)
    for old in folder.glob(f"*{SUFFIX}"):
        if edition() not in old.name:
            with suppress(OSError):  # Windows deletes no library that a process has loaded
                old.unlink()
    return made


def _compiled(libraries: dict[str, tuple[str, ...]], sources: list[Path], folder: Path) -> list[Path]:
    """Compile libraries of the same sources, all sources of all libraries in parallel."""
    compiler = _words(os.environ.get("CC", "")) or [shutil.which("cc") or shutil.which("gcc") or ""]
    if not compiler[0]:
        raise NoCompilerError("no C compiler: neither cc nor gcc is on the PATH, and CC names none")
    # The largest first, lest one be compiled alone in the end.
    order = sorted(sources, key=lambda source: source.stat().st_size, reverse=True)
    made = []
    try:
        scratch = TemporaryDirectory()
    except OSError as error:
        raise NoCompilerError(f"there is no folder for what the compiler makes: {error}") from error
    with scratch as objects, ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = {level: {source: Path(objects, f"{level}-{source.stem}.o") for source in order} for level in libraries}
        running = [
            pool.submit(_run, [*compiler, *FLAGS, *libraries[level], "-c", str(source)], part)
            for level, level_parts in parts.items()
            for source, part in level_parts.items()
        ]
        try:
            for job in running:
                job.result()
        finally:  # after a failure or Ctrl-C the rest is not compiled
            pool.shutdown(wait=False, cancel_futures=True)
        for level, flags in libraries.items():
            # Written under another name first, so that no process ever loads half a library.
            target = library(level, folder)
            unfinished = target.with_suffix(f".{os.getpid()}")
            _run([*compiler, *FLAGS, *flags, *LINK, *map(str, parts[level].values()), "-lm"], unfinished)
            unfinished.replace(target)
            made.append(target)
    return made


def _run(command: list[str], target: Path) -> None:
    """Run a command that is to make ``target``."""
    command = [*command, "-o", str(target)]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise NoCompilerError(f"{shlex.join(command)}\n{error}") from error
    if done.returncode or not target.exists():
        target.unlink(missing_ok=True)
        raise NoCompilerError(f"{shlex.join(command)}\n{done.stdout}")


def _words(command: str) -> list[str]:
    """The words of a command; on Windows, backslashes are parts of paths."""
    if platform.system() == "Windows":
        return [word.strip('"') for word in shlex.split(command, posix=False)]
    return shlex.split(command)
