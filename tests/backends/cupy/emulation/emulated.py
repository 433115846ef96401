"""A runner for the CUDA sources on the CPU, compiled by g++ with ``emulation.h``."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.backends.cupy.emulation import formulas
from tests.backends.cupy.emulation.instances import instances
from tests.backends.cupy.stand_in import compiled

from backburn.backend.host_numbers import RECORDING_STEP
from backburn_cupy.kernels.sources import C_TYPES, FAMILIES, source

HEADER = Path(__file__).with_name("emulation.h")

#: With _FORTIFY_SOURCE, a jump from one stack to another would be an error.
OPTIONS = (
    *("-std=c++20", "-O1", "-fPIC", "-w", "-fno-strict-aliasing", "-ffp-contract=off", "-U_FORTIFY_SOURCE"),
    *("--param", "ggc-min-expand=1000", "--param", "ggc-min-heapsize=1000000"),  # less garbage collection in g++
)

#: Bytes before and after each array that no kernel may touch.
GUARD = 256
GUARD_BYTE = 0xA5

ENTRY = """
struct Entry { const char* name; void (*call)(Size, Size, void**); };
static const Entry entries[] = {
%s
};
extern "C" const char* emulated_run(
    const char* name, unsigned grid, unsigned block_x, unsigned block_y, int order, void** arguments) {
  emulation::error.clear();
  emulation::order = order;
  for (const Entry& entry : entries)
    if (std::string(entry.name) == name) {
      entry.call({grid}, {block_x, block_y}, arguments);
      return emulation::error.empty() ? nullptr : emulation::error.c_str();
    }
  return "no such instance; is it in instances.py?";
}
"""


def missing() -> str | None:
    """Why kernels cannot be emulated; None if they can."""
    return None if shutil.which("g++") else "g++ is not installed"


def program(dtype: str, families: tuple[str, ...] = FAMILIES, kernels: str = "") -> str:
    """The kernels for one dtype as one C++ source, with a function that calls them by name.

    ``kernels`` is a pattern for their names: fewer kernels compile faster.
    """
    rows = [_row(name) for family in families for name in instances(family, C_TYPES[dtype]) if re.match(kernels, name)]
    return source(*families) + ENTRY % "\n".join(rows)


@functools.cache
def of_formula(family: str, c_type: str, code: str, folder: Path) -> ctypes.CDLL:
    """The kernel of a formula: built-in formulas are compiled together, others alone."""
    known = formulas.families(next(d for d, c in C_TYPES.items() if c == c_type))
    together, text = (known, source(*known)) if family in known else ((family,), code)
    # Optimizing so many would take longer than running them.
    return build(text + ENTRY % "\n".join(_row(f"{other}<{c_type}>") for other in together), folder, "-Og")


@functools.cache
def of_pass(kernel: str, code: str, folder: Path) -> ctypes.CDLL:
    """The kernel of a pass."""
    return build(code + ENTRY % _row(kernel), folder, "-Og")


def _row(kernel: str) -> str:
    return f'  {{"{kernel}", [](Size g, Size b, void** a) {{ emulation::call({kernel}, g, b, a); }}}},'


def _compile(code: Path, to: Path, *options: str) -> None:
    made = to.with_suffix(f".{os.getpid()}")
    done = subprocess.run(["g++", *OPTIONS, *options, str(code), "-o", str(made)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"g++ does not compile {code}:\n{done.stderr[:4000]}")
    made.rename(to)  # atomically, because other processes may look for it


@functools.cache
def _header(folder: Path) -> Path:
    """The emulation header, precompiled because it takes most of a small kernel's compilation."""
    text = HEADER.read_text("utf-8")
    header = compiled.written(folder / f"emulation-{hashlib.sha256(text.encode()).hexdigest()[:16]}.h", text)
    if not (beforehand := header.with_suffix(".h.gch")).exists():
        _compile(header, beforehand, "-x", "c++-header")
    return header


def build(text: str, folder: Path, *options: str) -> ctypes.CDLL:
    """Compile a source to a library, unless ``folder`` has it already, and load it."""
    name = hashlib.sha256("\n".join([text, HEADER.read_text("utf-8"), *OPTIONS, *options]).encode()).hexdigest()[:16]
    code, library = folder / f"{name}.cpp", folder / f"{name}.so"
    if not library.exists():
        code.write_text(text, "utf-8")
        _compile(code, library, "-shared", "-include", str(_header(folder)), *options)
    loaded = ctypes.CDLL(str(library))
    loaded.emulated_run.restype = ctypes.c_char_p
    return loaded


class Arrays:
    """NumPy's array class for ``isinstance``; a call creates an array with ``make``."""

    def __init__(self, make: Callable[[Any, Any], Any]) -> None:
        self._make = make

    def __call__(self, shape: Any, dtype: Any) -> Any:
        return self._make(shape, dtype)

    def __instancecheck__(self, x: object) -> bool:
        return isinstance(x, np.ndarray)


class Guarded:
    """NumPy, except that new arrays hold garbage and lie between guard bytes."""

    def __init__(self) -> None:
        self.given: list[tuple[Any, int, int]] = []
        self.ndarray = Arrays(self.made)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def made(self, shape: Any, dtype: Any) -> Any:
        dtype = np.dtype(dtype)
        size = math.prod(shape) * dtype.itemsize
        memory = np.full(size + 2 * GUARD + 16, GUARD_BYTE, np.uint8)
        start = GUARD + -(memory.ctypes.data + GUARD) % 16
        memory[start : start + size] = 0xFF  # NaN in every float
        self.given.append((memory, start, start + size))
        return memory[start : start + size].view(dtype).reshape(shape)

    def check(self) -> None:
        """Fail if a guard was written, and forget the arrays."""
        given, self.given = self.given, []
        for memory, start, stop in given:
            assert np.all(memory[:start] == GUARD_BYTE), "a kernel wrote before an array"
            assert np.all(memory[stop:] == GUARD_BYTE), "a kernel wrote beyond an array"


class EmulatedRunner:
    """Kernels on the CPU, in a given order of threads."""

    def __init__(self, libraries: dict[str, ctypes.CDLL], order: int = 0, processors: int = 2) -> None:
        self.xp, self.libraries, self.order, self.processors = Guarded(), libraries, order, processors
        self.capability, self.fault = 80, np.zeros(3, np.int64)
        self.numbers: dict[int, Any] = {}  # device numbers, by index
        self.large_parameters, self.deterministic = False, False
        self.recorded: Any = None
        self.launched: list[str] = []

    def address(self, x: Any) -> int:
        return int(x.ctypes.data)

    def successor(self, x: Any) -> Any:
        return self.xp.ndarray(x.shape, x.dtype)

    def device_number(self, number: float) -> Any:
        recording = RECORDING_STEP.get()
        place = None if recording is None else recording.bind(number)
        return None if place is None else self.numbers[place]

    def pass_library(self, family: str, kernel: str) -> ctypes.CDLL:
        """The library with the kernel of a pass."""
        return of_pass(kernel, source(family), compiled.folder())

    def run(self, family: str, kernel: str, grid: int, block: int | tuple[int, int], *arguments: Any) -> None:
        c_type = kernel.partition("<")[2].rstrip(">").split(",")[0]
        # Kernels that are not templates are in the library of every dtype.
        library = self.libraries[next((d for d, c in C_TYPES.items() if c == c_type), next(iter(self.libraries)))]
        if family.startswith("formula"):
            library = of_formula(family, c_type, source(family), compiled.folder())
        elif family.startswith("pass_"):
            library = self.pass_library(family, kernel)
        cells = [_cell(a) for a in arguments]
        pointers = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(c) for c in cells))
        x, y = block if isinstance(block, tuple) else (block, 1)
        error = library.emulated_run(kernel.encode(), grid, x, y, self.order, pointers)
        if error:
            raise RuntimeError(f"{kernel}: {error.decode()}")
        self.launched.append(kernel)
        self.xp.check()


def _cell(argument: Any) -> Any:
    """An argument as the bytes that a kernel receives."""
    if argument is None:
        return ctypes.c_void_p(0)
    if isinstance(argument, np.ndarray):
        if argument.dtype.char == "V":  # a structure, by value
            return (ctypes.c_char * argument.nbytes).from_buffer_copy(argument.tobytes())
        assert argument.flags.c_contiguous, "a kernel got an array that is not contiguous"
        return ctypes.c_void_p(argument.ctypes.data)
    if isinstance(argument, np.uint64):
        return ctypes.c_uint64(int(argument))
    # CuPy passes a bool in one byte, and rejects subclasses of numbers.
    assert type(argument) in (int, float), f"a kernel got a {type(argument).__name__}"
    return ctypes.c_double(argument) if isinstance(argument, float) else ctypes.c_int64(argument)
