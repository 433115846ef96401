"""CuPy's user-defined kernels on the CPU: their source, compiled by g++ instead of NVRTC.

Threads run sequentially, which checks arithmetic and indexing but not races.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
PRELUDE = (HERE / "prelude.h").read_text()
C_NAMES = {
    "bool": "bool", "int8": "signed char", "uint8": "unsigned char", "int16": "short", "uint16": "unsigned short",
    "int32": "int", "uint32": "unsigned int", "int64": "long long", "uint64": "unsigned long long",
    "float16": "float16", "bfloat16": "bfloat16", "float32": "float", "float64": "double",
    "complex64": "complex<float>", "complex128": "complex<double>",
}  # fmt: skip

COMPILER = shutil.which("g++")
OPTIONS = ("-O1", "-fPIC", "-std=c++17", "-w", "-fno-strict-aliasing", "-ffp-contract=off")

Types = dict[str, np.dtype[Any]]


def folder() -> Path:
    """The folder that keeps compiled files between runs."""
    path = Path(tempfile.gettempdir()) / f"backburn-kernels-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


@functools.cache
def emulation(dtype: str) -> Any:
    """The fused kernels for a dtype, compiled with the header that emulates a block of threads."""
    from tests.backends.cupy.emulation import emulated

    return emulated.build(emulated.program(dtype), folder())


def launch(name: str, code: str, grid: tuple[int, ...], block: tuple[int, ...], arguments: list[Any]) -> None:
    """Run a fused kernel, or that of a formula or pass with source ``code``."""
    from tests.backends.cupy.emulation.emulated import _cell, of_formula, of_pass

    from backburn_cupy.kernels.sources import C_TYPES

    family, _, parameters = name.partition("<")
    c_type = parameters.rstrip(">").split(",")[0]
    if family.startswith("formula"):
        kernels = of_formula(family, c_type, code, folder())
    elif family.startswith("pass_"):
        kernels = of_pass(name, code, folder())
    else:
        kernels = emulation(next((d for d, c in C_TYPES.items() if c == c_type), "float32"))
    cells = [_cell(a) for a in arguments]
    pointers = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(c) for c in cells))
    x, y = (*block, 1)[:2]
    error = kernels.emulated_run(name.encode(), grid[0], x, y, len(name) % 8, pointers)
    if error:
        raise RuntimeError(f"{name}: {error.decode()}")


def made(source: str, name: str, *options: str) -> Path:
    """The compiler's output for a source, kept between runs as ``name``."""
    if COMPILER is None:
        raise NotImplementedError("compiling a kernel for the CPU needs g++")
    path = folder() / name
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder()) as work:
            text, result = Path(work) / "kernel.cpp", Path(work) / "kernel.out"
            text.write_text(source)
            command = [COMPILER, *OPTIONS, *options, "-o", str(result), str(text)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"a kernel does not compile:\n{done.stderr[:4000]}\n{source}")
            result.replace(path)  # atomically, because other processes may look for it
    return path


def written(path: Path, text: str) -> Path:
    """Write a text file that other processes never see incomplete."""
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(text, "utf-8")
    return unfinished.replace(path)


def checksum(*texts: str) -> str:
    """The name of the file compiled from these texts."""
    return hashlib.sha256("\n".join([*texts, *OPTIONS]).encode()).hexdigest()[:24]


def shared(source: str, *options: str) -> Path:
    """The shared library compiled from a source, kept between runs."""
    return made(source, f"{checksum(source, *options)}.so", "-shared", *options)


@functools.cache
def prelude() -> Path:
    """The header that every kernel includes, precompiled because it takes most of a kernel's compilation."""
    header = written(folder() / f"prelude-{checksum(PRELUDE)}.h", PRELUDE)  # used if the precompiled header cannot be
    made(PRELUDE, f"{header.name}.gch", "-x", "c++-header")
    return header


@functools.cache
def library(source: str) -> Any:
    """The compiled function of a kernel."""
    function = ctypes.CDLL(str(shared(source, "-include", str(prelude())))).run
    function.restype = None
    return function


class Parameter:
    """One parameter of a kernel, as in ``raw T x``."""

    def __init__(self, text: str) -> None:
        *words, self.type, self.name = text.split()
        assert words in ([], ["raw"]), text
        assert self.name != "i", "CuPy does not accept the name i"
        self.raw = words == ["raw"]
        self.is_variable = len(self.type) == 1


def parameters(text: str) -> list[Parameter]:
    """The parameters of a list in CuPy's syntax."""
    return [Parameter(part) for part in text.split(",") if part.strip()]


def dtypes(params: list[Parameter], values: list[Any]) -> Types:
    """The dtype of each type variable, from the array arguments; numbers have none."""
    found: Types = {}
    for parameter, value in zip(params, values, strict=False):
        if isinstance(value, np.ndarray):
            if parameter.is_variable:
                if found.setdefault(parameter.type, value.dtype) != value.dtype:
                    raise TypeError(f"Type is mismatched. {parameter.name} {value.dtype} {found[parameter.type]}")
            elif value.dtype != np.dtype(parameter.type):
                raise TypeError(f"Type is mismatched. {parameter.name} {value.dtype} {parameter.type}")
    return found


def dtype_of(parameter: Parameter, variables: Types) -> np.dtype[Any]:
    """The dtype of a parameter."""
    if not parameter.is_variable:
        return np.dtype(parameter.type)
    if parameter.type not in variables:
        raise TypeError(f"the type of {parameter.name} is not determined")
    return variables[parameter.type]


def typedefs(variables: Types) -> str:
    """The type variables as CuPy defines them."""
    return "".join(f"typedef {C_NAMES[dtype.name]} {name};\n" for name, dtype in sorted(variables.items()))


@functools.cache
def loop(
    ins: tuple[Parameter, ...],
    outs: tuple[Parameter, ...],
    body: str,
    preamble: str,
    variables: tuple[tuple[str, np.dtype[Any]], ...],
) -> Any:
    """The compiled function of an element-wise kernel, for given type variables."""
    known, lines = dict(variables), []
    for number, parameter in enumerate((*ins, *outs)):
        c = C_NAMES[dtype_of(parameter, known).name]
        constant = "" if number >= len(ins) else "const "
        pointer = f"static_cast<{constant}{c}*>(arguments[{number}])"
        if parameter.raw:
            lines.append(f"Raw<{constant}{c}> {parameter.name}{{{pointer}}};")
        else:
            lines.append(f"{constant}{c}& {parameter.name} = {pointer}[i];")
    return library(
        f"{typedefs(known)}{preamble}\n"
        'extern "C" void run(void** arguments, long long count_of_threads_) {\n'
        "for (ptrdiff_t i = 0; i < count_of_threads_; ++i) {\n" + "\n".join(lines) + f"\n{body};\n}}\n}}\n"
    )


def addresses(arrays: list[Any]) -> Any:
    """The addresses of arrays as a C array."""
    return (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))


def elementwise(
    name: str,
    ins: list[Parameter],
    outs: list[Parameter],
    body: str,
    preamble: str,
    values: list[Any],
    size: int | None,
) -> list[Any]:
    """Run an element-wise kernel on NumPy arrays and numbers; returns its outputs."""
    if len(values) not in (len(ins), len(ins) + len(outs)):
        raise TypeError(f"Wrong number of arguments for {name!r}")
    params = [*ins, *outs]
    variables = dtypes(params, values)
    given = values[len(ins) :]
    spanning = [v for p, v in zip(params, values, strict=False) if isinstance(v, np.ndarray) and not p.raw]
    if (size is None) == (not spanning):
        raise ValueError(f"{name}: a size is given if and only if every array is raw")
    shape = np.broadcast_shapes(*(v.shape for v in spanning)) if size is None else (size,)
    for p, v in zip(outs, given, strict=False):
        assert p.raw or v.shape == shape, f"{name}: out shape is mismatched"
    results = given or [np.empty(shape, dtype_of(p, variables)) for p in outs]
    count = int(np.prod(shape))
    if count == 0:
        return results
    operands: list[Any] = []
    for p, v in zip(ins, values, strict=False):
        x = np.asarray(v).astype(dtype_of(p, variables), copy=False)
        operands.append(np.ascontiguousarray(x if p.raw else np.broadcast_to(x, shape)))
    targets = [r if r.flags.c_contiguous else np.ascontiguousarray(r) for r in results]
    function = loop(tuple(ins), tuple(outs), body, preamble, tuple(variables.items()))
    function(addresses([*operands, *targets]), ctypes.c_longlong(count))
    for result, target in zip(results, targets, strict=True):
        if result is not target:
            result[...] = target
    return results


def reduction(
    name: str,
    parameter: Parameter,
    out: Parameter,
    texts: dict[str, str],
    x: Any,
    axis: tuple[int, ...],
    keepdims: bool,
) -> Any:
    """Run a reduction of one array: two threads combine alternate elements, then their results are combined."""
    variables = dtypes([parameter], [x])
    kept = [a for a in range(x.ndim) if a not in axis]
    lines = np.ascontiguousarray(x.transpose(*kept, *axis))
    outer = tuple(x.shape[a] for a in kept)
    length = int(np.prod([x.shape[a] for a in axis]))
    result = np.empty(outer, dtype_of(out, variables))
    if result.size:
        if not length and not texts["identity"]:
            raise ValueError(f"zero-size array to reduction operation {name} which has no identity")
        source = (
            f"{typedefs(variables)}typedef {texts['reduce_type']} Reduced;\n{texts['preamble']}\n"
            if "<" not in texts["reduce_type"]
            else f"{typedefs(variables)}{texts['preamble']}\ntypedef {texts['reduce_type']} Reduced;\n"
        )
        c_in, c_out = (C_NAMES[dtype_of(p, variables).name] for p in (parameter, out))
        source += f"""
        extern "C" void run(void** arguments, long long lines, long long length) {{
          for (long long line = 0; line < lines; ++line) {{
            Reduced totals[2] = {{Reduced({texts["identity"]}), Reduced({texts["identity"]})}};
            for (long long j = 0; j < length; ++j) {{
              const {c_in}& {parameter.name} = static_cast<const {c_in}*>(arguments[0])[line * length + j];
              const Reduced a = totals[j & 1], b = {texts["map"]};
              totals[j & 1] = {texts["reduce"]};
            }}
            Reduced a = totals[1], b = totals[0];
            a = {texts["reduce"]};
            {c_out}& {out.name} = static_cast<{c_out}*>(arguments[1])[line];
            {texts["post"]};
          }}
        }}
        """
        library(source)(addresses([lines, result]), ctypes.c_longlong(result.size), ctypes.c_longlong(length))
    return result.reshape([1 if a in axis else n for a, n in enumerate(x.shape)]) if keepdims else result
