"""A runner that executes the kernels' PTX, as compiled by NVRTC, on the CPU: see ``ptx/run.cpp``."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tests.backends.cupy.emulation import emulated, nvrtc
from tests.backends.cupy.emulation.emulated import EmulatedRunner, Guarded, _cell
from tests.backends.cupy.emulation.nvrtc import CUPYS

from backburn_cupy.kernels.sources import OPTIONS, source

SOURCES = sorted(Path(__file__).with_name("ptx").iterdir())

COMPILER = ("g++", "-std=c++20", "-O2", "-march=native", "-fPIC", "-shared", "-ffp-contract=off")


def missing() -> str | None:
    """Why PTX cannot be executed; None if it can."""
    return nvrtc.missing() or emulated.missing()


def _name(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


@cache
def executor(folder: Path) -> ctypes.CDLL:
    """The library compiled from ``ptx/``, kept in ``folder``."""
    library = folder / f"{_name(*(s.read_text('utf-8') for s in SOURCES), *COMPILER)}.so"
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}")
        command = [*COMPILER, *(str(s) for s in SOURCES if s.suffix == ".cpp"), "-o", str(made)]
        subprocess.run(command, check=True)
        made.rename(library)  # atomically, because other processes may look for it
    loaded = ctypes.CDLL(str(library))
    loaded.ptx_read.restype = ctypes.c_void_p
    loaded.ptx_run.restype = ctypes.c_char_p
    return loaded


class Memory(ctypes.Structure):
    """Memory that a kernel may access: address, size, element size, and flags of written bytes (or null)."""

    _fields_ = (
        ("start", ctypes.c_uint64), ("size", ctypes.c_uint64), ("item", ctypes.c_uint64), ("known", ctypes.c_void_p),
    )  # fmt: skip


class Kernel:
    """A kernel of a source, as PTX for an architecture such as 90; the PTX is kept in ``folder``."""

    def __init__(self, folder: Path, text: str, name: str, architecture: int) -> None:
        options = (*OPTIONS, *CUPYS, f"-arch=compute_{architecture}", "-lineinfo")
        path = folder / f"{_name(text, name, *options, str(nvrtc.version()))}.ptx"
        if not path.exists():
            code, (symbol,), _ = nvrtc.compiled(text, options, [name])
            made = path.with_suffix(f".{os.getpid()}")
            made.write_bytes(symbol.encode() + b"\n" + code)
            made.rename(path)
        self._library, error = executor(folder), ctypes.c_char_p()
        self._symbol, _, code = path.read_bytes().partition(b"\n")
        self._module = ctypes.c_void_p(self._library.ptx_read(code, ctypes.byref(error)))
        if error.value:
            raise RuntimeError(f"{name}: {error.value.decode()}")

    def run(self, grid: int, block: tuple[int, int], order: int, arguments: list[Any], memory: list[Memory]) -> str:
        """Execute the kernel; returns an error, or an empty string."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        table = (Memory * len(memory))(*memory)
        launch = (self._module, self._symbol, grid, *block, order)
        error: bytes | None = self._library.ptx_run(*launch, pointers, table, len(memory))
        return error.decode() if error else ""


class Fresh(Guarded):
    """Records which bytes of its new arrays kernels have written."""

    def __init__(self) -> None:
        super().__init__()
        self.known: list[tuple[Any, Any]] = []

    def made(self, shape: Any, dtype: Any) -> Any:
        result = super().made(shape, dtype)
        self.known.append((result, np.zeros(result.nbytes, np.uint8)))
        return result


def memory_of(arrays: list[Any], fresh: list[tuple[Any, Any]]) -> list[Memory]:
    """The memory of arrays, which may have any strides, and overlap."""
    known = {(x.ctypes.data, x.nbytes): bytes_.ctypes.data for x, bytes_ in fresh}
    found: list[Memory] = []
    for start, end, item in sorted((*np.lib.array_utils.byte_bounds(x), x.itemsize) for x in arrays if x.size):
        last = found[-1] if found else None
        if last is None or last.start + last.size <= start:
            found.append(Memory(start, end - start, item, known.get((start, end - start))))
        elif (last.start, last.size, last.item) != (start, end - start, item):
            last.size, last.item, last.known = max(end - last.start, last.size), min(item, last.item), None
    return found


class ExecutedRunner(EmulatedRunner):
    """Kernels as PTX for an architecture; ``right`` in their sources is replaced by ``wrong``."""

    def __init__(
        self, folder: Path, kernels: dict[Any, Kernel], architecture: int, order: int = 0, processors: int = 2,
        right: str = "", wrong: str = "",
    ) -> None:  # fmt: skip
        super().__init__({}, order, processors)
        self.xp: Fresh = Fresh()
        self._folder, self._kernels, self._architecture, self._change = folder, kernels, architecture, (right, wrong)
        self._addressed: list[Any] = []  # arrays whose addresses may be passed to a kernel

    def address(self, x: Any) -> int:
        self._addressed.append(x)
        return super().address(x)

    def run(self, family: str, kernel: str, grid: int, block: int | tuple[int, int], *arguments: Any) -> None:
        key = (kernel, self._architecture, self._change)
        if key not in self._kernels:
            right, wrong = self._change
            assert right in source(family)
            text = source(family).replace(right, wrong) if right else source(family)
            self._kernels[key] = Kernel(self._folder, text, kernel, self._architecture)
        arrays = [a for a in arguments if isinstance(a, np.ndarray) and a.dtype.char != "V"]
        memory = memory_of([*arrays, *self._addressed], self.xp.known)
        shape = block if isinstance(block, tuple) else (block, 1)
        error = self._kernels[key].run(grid, shape, self.order, [_cell(a) for a in arguments], memory)
        if error:
            raise RuntimeError(f"{kernel}: {error}")
        self.launched.append(kernel)
        self.xp.check()
