"""Compiling the kernels, with the C compiler of the machine.

The hook of the package's build and ``python -m backburn_numpy.compiled`` both do it by :func:`build`. Nothing is
imported from the rest of the package: it may not be installed yet.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import shutil
import subprocess
import zlib
from pathlib import Path

FOLDER = Path(__file__).parent
#: What tells the instruction sets of the processor is a library of its own, which every processor can run.
PROCESSOR = FOLDER / "processor.c"
SOURCES = sorted(set(FOLDER.glob("*.c")) - {PROCESSOR})
HEADERS = sorted(FOLDER.glob("*.h"))

#: Not .so, lest tools that list a package's modules take a library for one.
SUFFIX = ".kernels"

#: No -ffast-math: NaN and infinities are values. What is allowed changes neither of them.
FLAGS = (
    *("-std=c11", "-O2", "-fopenmp-simd", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
    *("-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-s", "-Wall"),
    "-fno-asynchronous-unwind-tables",
)

#: The instruction sets that there is a library for, the least first, and the flags of each.
LEVELS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "x86-64": ("-march=x86-64",),
        "x86-64-v3": ("-march=x86-64-v3",),
        "x86-64-v4": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
    },
}
OTHERS: dict[str, tuple[str, ...]] = {
    "base": ()
}  # on AArch64 all processors have the same vectors, as far as compilers use them


def levels() -> dict[str, tuple[str, ...]]:
    """The instruction sets of this kind of processor, the least first, and the compiler's flags for each."""
    machine = platform.machine()
    return LEVELS.get({"AMD64": "x86_64"}.get(machine, machine), OTHERS)


def edition() -> str:
    """A number that changes with the sources, so that a library of others is never taken for theirs."""
    return f"{zlib.crc32(b''.join(path.read_bytes() for path in (PROCESSOR, *HEADERS, *SOURCES))):08x}"


def library(level: str, folder: Path = FOLDER) -> Path:
    """Where the library for an instruction set, or that called ``processor``, lies, as made of the present sources.

    A wheel with compiled libraries has no sources, and libraries of one edition.
    """
    if not SOURCES:
        return next(folder.glob(f"{level}-????????{SUFFIX}"), folder / f"{level}{SUFFIX}")
    return folder / f"{level}-{edition()}{SUFFIX}"


class NoCompilerError(RuntimeError):
    """There is no C compiler, or it refused the sources; the message says which command failed and how."""


def of_this_processor(folder: Path = FOLDER) -> list[str]:
    """The instruction sets that this processor has, the least first. Raises :class:`OSError` if nothing is compiled."""
    number: int = ctypes.CDLL(str(library("processor", folder))).backburn_level()
    return list(levels())[: number + 1]


def build(folder: Path = FOLDER, only_best: bool = False) -> list[Path]:
    """Compile the kernels into ``folder``, for all instruction sets or for the best of this processor.

    Raises :class:`NoCompilerError`.
    """
    if not SOURCES:
        raise NoCompilerError("there are no sources to compile: this package was installed with compiled libraries")
    made = _compiled({"processor": ()}, [PROCESSOR], folder)
    wanted = {of_this_processor(folder)[-1]} if only_best else set(levels())
    made += _compiled({name: flags for name, flags in levels().items() if name in wanted}, SOURCES, folder)
    for old in folder.glob(f"*{SUFFIX}"):
        if edition() not in old.name:
            old.unlink(missing_ok=True)
    return made


def _compiled(libraries: dict[str, tuple[str, ...]], sources: list[Path], folder: Path) -> list[Path]:
    """Compile libraries of the same sources side by side."""
    compiler = shlex.split(os.environ.get("CC", "")) or [shutil.which("cc") or shutil.which("gcc") or ""]
    if not compiler[0]:
        raise NoCompilerError("no C compiler: neither cc nor gcc is on the PATH, and CC names none")
    made, running = [], []
    for level, flags in libraries.items():
        # Written beside its place, so that no process ever loads half a library.
        target = library(level, folder)
        unfinished = target.with_suffix(f".{os.getpid()}")
        command = [*compiler, *FLAGS, *flags, *map(str, sources), "-o", str(unfinished), "-lm"]
        try:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        except OSError as error:
            raise NoCompilerError(f"{shlex.join(command)}\n{error}") from error
        running.append((process, unfinished, target, command))
    said = [process.communicate()[0] for process, *_ in running]
    for (process, unfinished, target, command), text in zip(running, said, strict=True):
        if process.returncode:
            for _, rest, *_ in running:
                rest.unlink(missing_ok=True)
            raise NoCompilerError(f"{shlex.join(command)}\n{text}")
        unfinished.replace(target)
        made.append(target)
    return made
