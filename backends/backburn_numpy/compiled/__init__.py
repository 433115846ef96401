"""Optional compiled kernels of float32 operations, and some of float64: the same work in one pass over memory.

NumPy computes an operation in several passes. The kernels in this folder's C sources do softmax, normalizations,
activation functions, optimizer steps and products with quantized weights in one pass, vectorized and without the GIL.
They are in wheels, or compiled when the package is installed, if there is a C compiler, or by ``python -m
backburn_numpy.compiled``. Without them, or with ``BACKBURN_COMPILED=0``, the operations' default bodies do the same
work with NumPy: the same results up to rounding, but slower. ``BACKBURN_COMPILED=x86-64-v3`` uses those of that
instruction set or a lower one.

>>> level() in (None, "base", "x86-64", "x86-64-v3", "x86-64-v4")
True
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from backburn.backend import BackendWarning
from backburn.base.call_site import stack_level
from backburn.base.errors import ArgumentError, DTypeError
from backburn_numpy import tuning
from backburn_numpy.compiled.build import REMEDY, SOURCES, levels, libraries, load, supported_levels

Array = Any

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


def level() -> str | None:
    """The instruction set of the kernels in use; None if NumPy does their work."""
    return None if _library is None else _library[0]


def describe() -> str:
    """The instruction set and the compiler of the kernels in use, or why NumPy does their work and what to do."""
    if _library is None:
        return f"none, NumPy computes: {_missing or 'not compiled'}"
    return f"compiled for {_library[0]} by {_text('backburn_compiler')}"


def kernel(name: str) -> Callable[..., None] | None:
    """The kernel of that name, which takes addresses and sizes; None if there is none.

    It checks nothing: arrays that are not C-contiguous, or of another dtype or size, corrupt memory.
    """
    return _kernels.get(name) if name in _kernels else _find(name)


def file() -> str | None:
    """The path of the library of the kernels in use; None if NumPy does their work."""
    return None if _library is None else _library[1]._name


def serving(name: str, x: Array) -> Callable[..., None] | None:
    """The kernel of that name for the dtype of ``x``, float32 or float64, if it exists and pays; else None."""
    if x.size < tuning.MIN_ELEMENTS_FOR_KERNEL.get(name, 1):
        return None
    return kernel(name) if x.dtype == FLOAT32 else kernel(f"{name}_double") if x.dtype == FLOAT64 else None


def are_alike(first: Array, *others: Array) -> bool:
    """Whether arrays have the shape and dtype of the first: kernels read as many elements of each."""
    return all(x.shape == first.shape and x.dtype == first.dtype for x in others)


def have_dtype(like: Array, *arrays: Array | None) -> bool:
    """Whether arrays, some of which may be absent, have the dtype of another one."""
    return all(x is None or x.dtype == like.dtype for x in arrays)


def check_arrays(operation: str, *operands: Array) -> None:
    """Raise :class:`DTypeError` unless all operands are arrays: nothing else has the address of one."""
    for x in operands:
        if not isinstance(x, np.ndarray):
            given = x if x is None else f"{x!r}, of the type {type(x).__name__}"
            raise DTypeError(f"{operation}: an operand is an array, not {given}")


def address(x: Array) -> int:
    """The address of an array's elements. The caller keeps the array alive."""
    # NumPy's ABI: the data pointer follows the object header. Any other way to get it takes as long as the work on a
    # small array.
    return _pointer(id(x) + _HEAD).value if _HEAD else x.__array_interface__["data"][0]


def addresses(*arrays: Array | None) -> list[int | None]:
    """The :func:`address` of each array, None for one that is absent."""
    return [None if x is None else address(x) for x in arrays]


def addresses_of(arrays: Iterable[Array]) -> list[int]:
    """The :func:`address` of each array, without a Python call for each."""
    if not _HEAD:
        return [*map(address, arrays)]
    found, pointer, head = [], _pointer, _HEAD
    for x in arrays:
        found.append(pointer(id(x) + head).value)
    return found


def fields_of(arrays: Iterable[Array]) -> list[int]:
    """The address of each array's fields, as ``runs.h`` has them; empty if their layout is not known."""
    head = _HEAD
    return [id(x) + head for x in arrays] if head else []


class _Fields(ctypes.Structure):
    """The fields of an array after the object header that :data:`_HEAD` relies on."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("axes", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
    )


def _head() -> int:
    """The size of the object header; 0 if the fields of an array are not known to follow it."""
    size, probe = object.__basicsize__, np.empty((2, 3, 5))[:, ::2]
    if sys.implementation.name != "cpython" or type(probe).__basicsize__ < size + ctypes.sizeof(_Fields):
        return 0
    known = _Fields.from_address(id(probe) + size)
    if (known.data, known.axes) != (probe.__array_interface__["data"][0], probe.ndim):
        return 0
    is_array = (*known.shape[:3],) == probe.shape and (*known.strides[:3],) == probe.strides
    return size if is_array else 0


def parallel_for(kernel: Any, starts: list[int], strides: list[int], rows: int, width: int, threads: int) -> None:
    """Call a kernel on rows of 2 to 4 arrays, in several native threads.

    ``starts`` are the arrays' addresses and ``strides`` their row strides in bytes. Rows have ``width`` elements; if it
    is 0 the kernel takes no width. A portion is some 16,000 elements.
    """
    run: Any = _kernels.get("parallel_for") or _find("parallel_for")
    missing = MISSING[len(starts)]
    run(kernel.where, rows, width, portion(width), threads, len(starts), *starts, *missing, *strides, *missing)


def portion(width: int) -> int:
    """The number of rows, or of elements if ``width`` is 0, that a thread takes at a time."""
    return tuning.ELEMENTS_PER_TASK // width or 1 if width else tuning.ELEMENTS_PER_TASK


#: Zeros for the arrays that a kernel of up to four does not take, by the number of those that it takes.
MISSING = [(0,) * (4 - count) for count in range(5)]


def _find(name: str) -> Callable[..., None] | None:
    found = None if _library is None else getattr(_library[1], f"backburn_{name}", None)
    if found is not None:
        found.restype = ctypes.c_int if name in _ANSWERING else None
        found.argtypes = _parameter_types(name)
        found.where = ctypes.cast(found, ctypes.c_void_p).value
    _kernels[name] = found
    return found


#: The kernels that return whether they computed anything.
_ANSWERING = frozenset(("on_runs", "run_formula_on_runs"))
_pointer: Any = ctypes.c_void_p.from_address
_HEAD = _head()
#: The C types of parameters that are not pointers.
_TYPES = {f"{name}_t" if name.endswith("64") else name: getattr(ctypes, f"c_{name}")
          for name in ("float", "double", "int", "int64", "uint64")}  # fmt: skip


def _parameter_types(name: str) -> list[Any]:
    """The C types of a kernel's parameters, from the library: the text between the parentheses."""
    parameters = _text(f"backburn_parameters_of_{name}").split(",")
    return [ctypes.c_void_p if "*" in text else _TYPES[text.split()[-2]] for text in parameters]


def _text(name: str) -> str:
    """A string in the library."""
    assert _library is not None
    return ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(_library[1], name))).decode()


def _load() -> tuple[tuple[str, ctypes.CDLL] | None, str]:
    """The library for the processor's best instruction set; or None, and why.

    Libraries that exist but cannot be used cause a warning; missing libraries do not.
    """
    names = list(levels())
    wanted = os.environ.get("BACKBURN_COMPILED") or "1"
    if wanted not in ("0", "1", "zig", *names):
        raise ArgumentError(
            f"BACKBURN_COMPILED={wanted!r}: 0 leaves the compiled kernels out, 1 uses them, and {' or '.join(names)} "
            "limits their instruction set"
        )
    if wanted == "0":
        return None, "BACKBURN_COMPILED=0"
    try:
        found = libraries()
        if not found and SOURCES:
            return None, f"they are not compiled; {REMEDY}"
        able = supported_levels()
        there = [name for name in able if name in found]
        allowed = names[: names.index(wanted) + 1] if wanted in names else names
        if best := [name for name in there if name in allowed]:
            return (best[-1], load(found[best[-1]], "backburn_pool_reset")), ""
        if there:
            reason = f"BACKBURN_COMPILED={wanted!r} leaves out those here, which are for {', '.join(there)}"
        else:
            greater = ", ".join(name for name in names if name in found)
            reason = f"those here are for {greater or 'no processor'}; this one has {', '.join(able)}"
    except OSError as error:
        reason = str(error)
    warnings.warn(
        f"compiled kernels are not used, and NumPy computes, slower: {reason}", BackendWarning, stacklevel=stack_level()
    )
    return None, reason


_kernels: dict[str, Callable[..., None] | None] = {}
_library, _missing = _load()


def _after_fork_in_child() -> None:
    """A forked child has none of the threads."""
    if _library is not None:
        _library[1].backburn_pool_reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
