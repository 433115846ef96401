"""Try the kernels of a wheel where there is no Python: under Wine, or in an emulator.

``python tools/try_kernels.py OURS.whl OTHER.whl --with "wine64"`` compiles ``try_kernels.c`` for the platforms of both
wheels with ``ziglang`` and runs it on each of their instruction sets, for the other wheel with the command after
``--with`` (such as ``"qemu-aarch64-static -L FOLDER"``, whose folder has the system's C library). It compares the
results of element-wise kernels, of products in two threads, and of a loop of machine code, bit by bit. The first wheel
must be for this machine.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from build_wheels import ROOT, load_build

from backburn_numpy.machine_code.loops import Loop, assemble
from backburn_numpy.machine_code.memory import VECTORS

#: The parameters of element-wise kernels, which the program can call.
ELEMENTWISE = re.compile(r"((const )?(float|double) \*\w+, )+int64_t \w+")
#: Kernels that it calls in two threads; a result of 0 means that the threads' results differ.
PRODUCTS = "gemm", "gemm_double"
#: A loop of machine code: the arrays are those of ``tiles`` in ``try_kernels.c``.
ARRAYS = "full", "row", "row", "full", "column", "row"
KERNELS = (
    ("multiply", (("array", 3), ("array", 4))),
    ("silu_backward", (("made", 0), ("array", 3))),
    ("add", (("made", 1), ("array", 5))),
)
OUTPUTS = ("store", (("made", 2),), 0), ("sum", (("made", 2),), 1), ("max", (("made", 2),), 2)
#: The instruction set of the first wheel whose results a level of another architecture must equal.
ALIKE = {"base": "x86-64-v3"}


def main() -> int:
    """Compare; 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("ours", type=Path, metavar="OURS.whl", help="a wheel for this machine")
    parser.add_argument("other", type=Path, metavar="OTHER.whl")
    parser.add_argument(
        "--with", default="", dest="runner", help="the command that runs programs of the other platform"
    )
    options = parser.parse_args()
    with TemporaryDirectory() as first, TemporaryDirectory() as second:
        ours, other = unpacked(options.ours, Path(first)), unpacked(options.other, Path(second))
        names = kernels(min(path for level, path in ours.items() if level != "processor"))
        programs = compiled(options.ours, Path(first)), compiled(options.other, Path(second))
        wrong = 0
        for level in sorted(other.keys() - {"processor"}):
            code, called = "none", [*names, *PRODUCTS]
            if level in VECTORS:
                code = str(Path(first) / level)
                Path(code).write_bytes(assemble(Loop(VECTORS[level], 4, 77, ARRAYS, KERNELS, OUTPUTS)))
                called.append("code")
            theirs = results([*shlex.split(options.runner), programs[1]], other, level, code, names)
            expected = results([programs[0]], ours, level if level in ours else ALIKE[level], code, names)
            differing = [name for name in called if theirs[name] != expected[name] or int(theirs[name], 16) == 0]
            wrong += len(differing)
            print(f"{level}: {len(called)} kernels called, differing: {', '.join(differing) or 'none'}")
    return 1 if wrong else 0


def unpacked(wheel: Path, folder: Path) -> dict[str, Path]:
    """A wheel's libraries, by instruction set, in a folder."""
    found = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".kernels"):
                path = folder / Path(name).name
                path.write_bytes(archive.read(name))
                found[path.name.rsplit("-", 2)[0]] = path
    return found


def kernels(path: Path) -> list[str]:
    """The element-wise kernels of a library for this machine, found by their declared parameters."""
    library = ctypes.CDLL(str(path))

    def parameters(name: str) -> str:
        text = ctypes.c_char.in_dll(library, f"backburn_parameters_of_{name}")
        return " ".join(ctypes.string_at(ctypes.addressof(text)).decode().split())

    names = sorted({name.decode() for name in re.findall(rb"backburn_parameters_of_(\w+)", path.read_bytes())})
    return [name for name in names if ELEMENTWISE.fullmatch(parameters(name))]


def compiled(wheel: Path, folder: Path) -> str:
    """The program for a wheel's platform."""
    (target,) = (target for target, tag in load_build().TARGETS.items() if wheel.stem.endswith(tag))
    program = folder / "try_kernels.exe"
    options = ["-O1", "-pthread", *(["-dynamic"] if target.endswith("musl") else [])]
    command = [sys.executable, "-m", "ziglang", "cc", "-target", target, *options, "-o", str(program)]
    subprocess.run([*command, str(ROOT / "tools" / "try_kernels.c")], check=True)
    return str(program)


def results(command: list[str], libraries: dict[str, Path], level: str, code: str, names: list[str]) -> dict[str, str]:
    """The checksum of the results of each kernel, and of the machine code in the file ``code``."""
    paths = str(libraries["processor"]), str(libraries[level]), code
    done = subprocess.run([*command, *paths, *names], check=True, capture_output=True, text=True)
    return dict(line.split() for line in done.stdout.splitlines())


if __name__ == "__main__":
    sys.exit(main())
