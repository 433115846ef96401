"""Compiling the kernels: with the machine's C compiler, or with zig (``pip install ziglang``).

The package's build hook and ``python -m backburn_numpy.compiled`` both call :func:`build`. This module imports nothing
from the rest of the package, which may not be installed yet.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

FOLDER = Path(__file__).parent
#: Detects the instruction sets: a separate library, which every processor can run.
PROCESSOR = FOLDER / "runtime" / "processor.c"
#: In folders by subject; no two have the same name.
SOURCES = sorted(set(FOLDER.rglob("*.c")) - {PROCESSOR})
HEADERS = sorted(FOLDER.rglob("*.h"))

#: Not .so, lest tools take a library for a Python module.
SUFFIX = ".kernels"

#: No -ffast-math: NaN and infinities are values, which these flags preserve. No -Os either, not even by a pragma: with
#: it GCC omits vzeroupper at the end of kernels, and the SSE code that runs next, such as NumPy's, takes several times
#: as long.
FLAGS = (
    *("-std=c11", "-O2", "-fopenmp-simd", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
    # A short loop across two cache lines takes up to 1.7 times as long (an AMD EPYC, Zen 3).
    *("-fPIC", "-pthread", "-fvisibility=hidden", "-Wall", "-falign-loops=32", f"-I{FOLDER}"),
    # Vectors wider than the processor's are passed to inlined functions only, so that their ABI does not matter. Clang
    # does not vectorize some loops.
    *("-fno-asynchronous-unwind-tables", "-Wno-psabi", "-Wno-pass-failed"),
)

#: The instruction sets with a library, the lowest first, and their flags. No MMX, which shares registers with long
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

#: The machines that zig compiles for, by its names for them, and the tags of wheels for them: the lowest versions of
#: glibc, musl and macOS.
TARGETS = {
    "x86_64-linux-gnu.2.17": "manylinux_2_17_x86_64.manylinux2014_x86_64",
    "aarch64-linux-gnu.2.17": "manylinux_2_17_aarch64.manylinux2014_aarch64",
    "x86_64-linux-musl": "musllinux_1_2_x86_64",
    "aarch64-linux-musl": "musllinux_1_2_aarch64",
    "x86_64-macos.11.0": "macosx_11_0_x86_64",
    "aarch64-macos.11.0": "macosx_11_0_arm64",
    "x86_64-windows-gnu": "win_amd64",
}

#: The command that makes up for an absent C compiler.
REMEDY = "pip install ziglang && python -m backburn_numpy.compiled"


class NoCompilerError(RuntimeError):
    """No C compiler for this machine, or one that failed; the message has the command and its output."""


def machine() -> str:
    """This machine's architecture, by one name on every system."""
    name = platform.machine()
    return {"AMD64": "x86_64", "arm64": "aarch64", "ARM64": "aarch64"}.get(name, name)


def host() -> str:
    """The one of :data:`TARGETS` that this machine is, or ``"native"``."""
    libc = "gnu" if platform.libc_ver()[0] == "glibc" else "musl"
    system = {"Linux": f"linux-{libc}", "Darwin": "macos", "Windows": "windows"}.get(platform.system(), "none")
    return next((name for name in TARGETS if name.startswith(f"{machine()}-{system}")), "native")


def levels(architecture: str | None = None) -> dict[str, tuple[str, ...]]:
    """The instruction sets of an architecture, the lowest first, and the compiler flags of each; by default ours."""
    return LEVELS.get(architecture or machine(), OTHERS)


def edition() -> str:
    """A hash of the sources, so that a library built from other sources is never used."""
    return f"{zlib.crc32(b''.join(path.read_bytes() for path in (PROCESSOR, *HEADERS, *SOURCES))):08x}"


def libraries(folder: Path = FOLDER) -> dict[str, Path]:
    """The libraries built from the present sources, by instruction set, and the one named ``processor``.

    The name of a file ends with the hashes of the sources and of its own bytes. A wheel with compiled libraries has no
    sources, and libraries of a single edition.
    """
    end = f"-{edition() if SOURCES else '?' * 8}-????????{SUFFIX}"
    return {path.name[: -len(end)]: path for path in folder.glob(f"*{end}")}


def is_built(folder: Path = FOLDER) -> bool:
    """Whether there is an undamaged library of the present sources for every instruction set."""
    found = libraries(folder)
    return found.keys() >= {"processor", *levels()} and not any(map(_is_damaged, found.values()))


def load(path: Path, symbol: str) -> ctypes.CDLL:
    """Load a library. Raises :class:`OSError` if it is damaged, for another system, or lacks the symbol.

    Damage is looked for first: loading half a library ends the process.
    """
    if _is_damaged(path):
        raise OSError(f"{path} is damaged: its contents are not those that were compiled")
    loaded = ctypes.CDLL(str(path))
    if not hasattr(loaded, symbol):
        raise OSError(f"{path} is another program's: it has no {symbol}")
    return loaded


def supported_levels(folder: Path = FOLDER) -> list[str]:
    """This processor's instruction sets, the lowest first. Raises :class:`OSError` if nothing tells it."""
    path = libraries(folder).get("processor")
    if path is None:
        raise FileNotFoundError(f"no library processor-*{SUFFIX} in {folder} tells the instruction sets")
    number: int = load(path, "backburn_level").backburn_level()
    return list(levels())[: number + 1]


class Compiler(NamedTuple):
    """The first words of a compiler's command, whether it is zig, and what it needs for linking."""

    words: list[str]
    is_zig: bool = False
    link: tuple[str, ...] = ("-lm",)


#: Linking by zig. Functions are the system's: zig's own library has some by the same names. Windows needs it to check
#: the stack; there a library starts by ``windows_entry.c``. Musl's library has another name on each system, and Python
#: has loaded it.
_ZIG_LINK = {
    "windows": (
        *("-nostdlib", "-rtlib=compiler-rt", "-Wl,-e,DllMainCRTStartup"),
        *("-lapi-ms-win-crt-math-l1-1-0", "-lapi-ms-win-crt-heap-l1-1-0"),
    ),
    "linux-gnu": ("-rtlib=none", "-Wl,-z,defs", "-lm"),
    "linux-musl": ("-rtlib=none", "-nostdlib"),
    "macos": ("-rtlib=none", "-Wl,-install_name,@rpath/{}"),
}


def find_compiler(target: str | None = None) -> Compiler:
    """The compiler: the one named by ``CC``, ``cc``, ``gcc`` or ``clang`` on the PATH, or else zig, if it is installed.

    For another machine, or with ``BACKBURN_COMPILED=zig``, it is zig. Raises :class:`NoCompilerError` with the remedy.
    """
    if target is None and os.environ.get("BACKBURN_COMPILED") != "zig":
        if named := _words(os.environ.get("CC", "")):
            return Compiler(named)
        for name in ("cc", "gcc", "clang"):
            if found := shutil.which(name):
                return Compiler([found])
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise NoCompilerError(
            f"no C compiler: CC names none, and cc, gcc, clang and ziglang are not installed. Remedy: {REMEDY}"
            if target is None
            else f"kernels for {target} are compiled by zig: pip install ziglang"
        )
    program = Path(spec.origin).with_name("zig.exe" if platform.system() == "Windows" else "zig")
    made_for = target or host()
    name = f'-DBACKBURN_COMPILER="zig {metadata.version("ziglang")}"'
    link = next((flags for system, flags in _ZIG_LINK.items() if system in made_for), ("-lm",))
    words = [str(program), "cc", "-target", made_for, "-fno-sanitize=undefined", name]
    return Compiler([*words, "-DBACKBURN_BARE"] if "windows" in made_for else words, True, link)


def build(folder: Path = FOLDER, only_best: bool = False, target: str | None = None) -> list[Path]:
    """Compile the kernels into ``folder``, for all instruction sets or for this processor's best.

    ``target`` is one of :data:`TARGETS`, for which zig compiles. Raises :class:`NoCompilerError`.
    """
    if not SOURCES:
        raise NoCompilerError("there are no sources to compile: this package was installed with compiled libraries")
    if target not in (None, *TARGETS):
        raise NoCompilerError(f"{target!r} is not a machine to compile for: {', '.join(TARGETS)}")
    compiler = find_compiler(target)
    chosen = levels(target and target.partition("-")[0])
    if platform.system() == "Windows" and not compiler.is_zig:
        # GCC stores wider vectors at aligned addresses of a stack that is aligned to 16 bytes, which crashes
        # (https://gcc.gnu.org/bugzilla/show_bug.cgi?id=54412).
        chosen = dict(islice(chosen.items(), 1))
    if compiler.is_zig:  # in whose names a hyphen would disable a feature
        names = {f"-march={name}": f"-mcpu={name.replace('-', '_')}" for name in chosen}
        chosen = {name: tuple(names.get(flag, flag) for flag in flags) for name, flags in chosen.items()}
    lowest = next(iter(chosen.values()))
    made = _compiled(compiler, {"processor": lowest}, [PROCESSOR], folder)
    if only_best:
        try:
            best = [name for name in supported_levels(folder) if name in chosen][-1]
        except OSError as error:  # a cross compiler, or libraries of the compiler's that are not found at run time
            raise NoCompilerError(f"what the C compiler makes cannot be loaded on this machine: {error}") from error
        chosen = {best: chosen[best]}
    made |= _compiled(compiler, chosen, SOURCES, folder)
    kept = (libraries(folder) | made).values()
    _remove(path for path in folder.glob(f"*{SUFFIX}") if path not in kept)
    return list(made.values())


def _compiled(
    compiler: Compiler, wanted: dict[str, tuple[str, ...]], sources: list[Path], folder: Path
) -> dict[str, Path]:
    """Compile libraries of the same sources, all sources of all libraries in parallel."""
    # The largest first, lest one be compiled alone in the end.
    order = sorted(sources, key=lambda source: source.stat().st_size, reverse=True)
    try:
        scratch = TemporaryDirectory()
    except OSError as error:
        raise NoCompilerError(f"there is no folder for what the compiler makes: {error}") from error
    with scratch as objects, ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = {level: {source: Path(objects, f"{level}-{source.stem}.o") for source in order} for level in wanted}
        running = [
            pool.submit(_run, [*compiler.words, *FLAGS, *wanted[level], "-c", str(source)], part)
            for level, level_parts in parts.items()
            for source, part in level_parts.items()
        ]
        try:
            for job in running:
                job.result()
        finally:  # after a failure or Ctrl-C the rest is not compiled
            pool.shutdown(wait=False, cancel_futures=True)
        made = {}
        for level in wanted:
            _link(compiler, [*parts[level].values()], Path(objects, level))
            made[level] = _put(Path(objects, level), folder, f"{level}-{edition()}")
        return made


def _link(compiler: Compiler, parts: list[Path], target: Path) -> None:
    """Link a library, without symbols; Apple's linker no longer knows the flag."""
    strip = ("-s",) if compiler.is_zig or platform.system() != "Darwin" else ()
    libraries = [option.format(target.name) for option in compiler.link]
    _run([*compiler.words, *FLAGS, "-shared", *strip, *map(str, parts), *libraries], target)


def _put(made: Path, folder: Path, name: str) -> Path:
    """Put a library into its folder; under another name first, so that no process ever loads half of it."""
    target = folder / f"{name}-{_hash(made)}{SUFFIX}"
    unfinished = target.with_suffix(f".{os.getpid()}")
    try:
        shutil.copyfile(made, unfinished)
        unfinished.replace(target)
    except OSError as error:
        raise NoCompilerError(f"the folder of the kernels cannot be written: {error}") from error
    _remove(path for path in folder.glob(f"{name}-*{SUFFIX}") if path != target)  # another compiler's
    return target


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):  # Windows deletes no library that a process has loaded
            path.unlink()


def _is_damaged(path: Path) -> bool:
    return path.stem.rpartition("-")[2] != _hash(path)


def _hash(path: Path) -> str:
    return f"{zlib.crc32(path.read_bytes()):08x}"


def _run(command: list[str], target: Path) -> None:
    """Run a command that creates ``target``."""
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
