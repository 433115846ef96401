"""Executable memory: written first and made executable after that, never both at once."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
from threading import Lock
from weakref import WeakValueDictionary

from backburn.base.errors import ArgumentError
from backburn_numpy import compiled

#: The bytes of a vector, by the kernels' instruction set: code uses the same, and so has sums of as many lanes.
VECTORS = {"x86-64-v3": 32, "x86-64-v4": 64}


class Code:
    """A function in memory that can be executed and no longer written; it is there as long as this object."""

    def __init__(self, content: bytes) -> None:
        """Raises :class:`OSError` if the system refuses."""
        self._memory = mmap.mmap(-1, len(content), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory[:] = content
        held = ctypes.c_char.from_buffer(self._memory)
        self.address = ctypes.addressof(held)
        del held
        _protect(self.address, len(content))


def _protect(address: int, length: int) -> None:
    """Make memory readable and executable, and nothing else."""
    readable, executable = 1, 4
    change = ctypes.CDLL(None, use_errno=True).mprotect
    change.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if change(address, length, readable | executable):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


_lock = Lock()
if hasattr(os, "register_at_fork"):  # a child does without the threads that may have held the lock
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_codes: WeakValueDictionary[bytes, Code] = WeakValueDictionary()
_refused: list[str] = []


def executable(content: bytes) -> Code | None:
    """Code of these bytes, the same object for equal ones; None where the system refuses executable memory."""
    with _lock:
        found = _codes.get(content)
        if found is None and not _refused:
            try:
                _codes[content] = found = Code(content)
            except OSError as error:
                _refused.append(f"the system refuses executable memory: {error.strerror}")
        return found


def missing() -> str:
    """Why there is no machine code; empty if there is."""
    wanted = os.environ.get("BACKBURN_MACHINE_CODE") or "1"
    if wanted not in ("0", "1"):
        raise ArgumentError(f"BACKBURN_MACHINE_CODE={wanted!r}: 0 leaves machine code out, 1 uses it")
    if wanted == "0":
        return "BACKBURN_MACHINE_CODE=0"
    if platform.machine().lower() not in ("x86_64", "amd64") or sys.platform != "linux":
        return "it is for x86-64 and Linux"
    if compiled.level() not in VECTORS:
        return f"it is for kernels of {' or '.join(VECTORS)}"
    return _refused[0] if _refused or not executable(b"\xc3") else ""


def describe() -> str:
    """The instruction set of machine code, or why there is none."""
    reason = missing()
    names = {32: "AVX2", 64: "AVX-512"}
    return f"none, kernels are called one by one: {reason}" if reason else names[VECTORS[compiled.level() or ""]]
