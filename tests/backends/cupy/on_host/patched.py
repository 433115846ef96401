"""Runs the installed CuPy, whose library includes CUDA's runtime, on ``driver.cpp``.

Each of the runtime's functions is patched to jump to ours. Needs a CuPy from pip for Linux on x86-64, g++ and nm, and
the built driver's folder in LD_LIBRARY_PATH, and so a separate process (``walk.py``).
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAME = "libcuda.so.1"


def missing() -> str | None:
    """Why CuPy cannot be patched on this system; None if it can."""
    if os.uname().machine != "x86_64":
        return "CuPy's library is patched on x86-64 only"
    return next((f"{tool} is not installed" for tool in ("g++", "nm") if shutil.which(tool) is None), None)


def build(folder: Path) -> None:
    """Compile the driver library."""
    command = ["g++", "-O1", "-std=c++17", "-fPIC", "-shared", "-o", str(folder / NAME), str(HERE / "driver.cpp")]
    subprocess.run(command, check=True)


def jump(to: int) -> bytes:
    """``movabs rax, to; jmp rax``."""
    return b"\x48\xb8" + to.to_bytes(8, "little") + b"\xff\xe0"


def patch(library: str, ours: ctypes.CDLL, name_of: Callable[[str], str | None]) -> int:
    """Patch functions of a loaded library to jump to those of ``ours`` named by ``name_of``; returns their number."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    base = next(int(line.partition("-")[0], 16) for line in maps if line.endswith(library))
    symbols = subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout
    c, count = ctypes.CDLL(None), 0
    for offset, symbol in re.findall(r"^([0-9a-f]+) [tTW] (\S+)$", symbols, re.MULTILINE):
        name = name_of(symbol)
        if name is not None:
            address = base + int(offset, 16)
            c.mprotect(ctypes.c_void_p(address & ~4095), ctypes.c_size_t(8192), 7)
            ctypes.memmove(address, jump(ctypes.cast(getattr(ours, name), ctypes.c_void_p).value or 0), 12)
            count += 1
    return count


def install() -> Any:
    """Patch CuPy in this process; returns our library."""
    # No files are cached, and CUB is off, because its sources query NVRTC's version.
    os.environ.update(CUPY_CACHE_IN_MEMORY="1", CUPY_ACCELERATORS="")
    ours = ctypes.CDLL(NAME, ctypes.RTLD_GLOBAL)
    ours.host_launches.restype, ours.host_problems.restype = ctypes.c_long, ctypes.c_char_p

    def of_runtime(symbol: str) -> str | None:
        return f"host_{symbol}" if symbol.startswith("cuda") and hasattr(ours, f"host_{symbol}") else None

    def of_algorithms(symbol: str) -> str | None:
        return "host_nothing" if re.match(r"_Z\d+(cub|thrust)_", symbol) else of_runtime(symbol)

    import cupy_backends.cuda.api.runtime as runtime

    assert patch(runtime.__file__, ours, of_runtime) > 30
    from cupy.cuda import compiler, cub, thrust

    for module in (cub, thrust):
        patch(module.__file__, ours, of_algorithms)
    # Nothing is compiled: another test compiles every kernel.
    compiler._get_arch = lambda: "90"
    compiler._get_nvrtc_version = lambda: (12, 9)
    compiler._get_arch_for_options_for_nvrtc = lambda arch=None: ("-arch=sm_90", "cubin")
    compiler._preprocess = lambda *_: ""
    compiler._compile_using_nvrtc_no_warning = lambda source, options=(), arch=None, filename="", names=None, *_: (
        b"\x7fELF", {name: name for name in names or ()},
    )  # fmt: skip
    import cuda.pathfinder

    cuda.pathfinder.find_nvidia_header_directory = lambda _: "."  # any folder
    return ours
