"""Executable memory: first written, then made executable, never both at once."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import sys
import weakref
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

from backburn.base.errors import ArgumentError
from backburn_numpy import compiled

#: The bytes of a vector, by the kernels' instruction set: code uses the same, so that sums have as many lanes.
VECTORS = {"x86-64-v3": 32, "x86-64-v4": 64}
#: The supported systems; all call code by the convention of System V (``tile_interpreter.c``).
SYSTEMS = ("linux", "darwin", "win32")


class Code:
    """A function in executable, read-only memory, which lives as long as this object."""

    def __init__(self, content: bytes) -> None:
        """Raises :class:`OSError` if the system refuses."""
        self._memory = _WindowsMemory(content) if sys.platform == "win32" else _Memory(content)
        self.address = self._memory.address


class _Memory:
    """Code in memory of Linux and macOS."""

    def __init__(self, content: bytes) -> None:
        self._map = mmap.mmap(-1, len(content), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._map[:] = content
        held = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(held)
        del held
        _protect(self.address, len(content))


def _protect(address: int, length: int) -> None:
    """Make memory readable and executable, and nothing else."""
    if sys.platform == "darwin" and _only_signed_code():
        raise PermissionError(errno.EPERM, "the process executes signed code only")
    readable, executable = 1, 4
    change = ctypes.CDLL(None, use_errno=True).mprotect
    change.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if change(address, length, readable | executable):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _only_signed_code() -> bool:
    """Whether macOS ends this process when it executes unsigned code, which ``mprotect`` does not report.

    That holds for a hardened process without ``com.apple.security.cs.allow-unsigned-executable-memory`` or
    ``disable-executable-page-protection``. ``csops`` with ``CS_OPS_STATUS``, 0, returns the flags of the process.
    """
    enforcement, flags = 0x1000, ctypes.c_uint32()
    tell = ctypes.CDLL(None).csops
    tell.argtypes = [ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, ctypes.c_size_t]
    failed = tell(os.getpid(), 0, ctypes.byref(flags), ctypes.sizeof(flags))
    return not failed and bool(flags.value & enforcement)


#: The module :mod:`ctypes` for names that it has on Windows alone, which type checkers do not find elsewhere.
_ctypes: Any = ctypes


class _WindowsMemory:
    """Code in memory of Windows."""

    def __init__(self, content: bytes) -> None:
        system = _ctypes.WinDLL("kernel32", use_last_error=True)
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32
        for function, result, arguments in (
            (system.VirtualAlloc, pointer, [pointer, size, number, number]),
            (system.VirtualProtect, ctypes.c_int, [pointer, size, number, pointer]),
            (system.GetCurrentProcess, pointer, []),
            (system.FlushInstructionCache, ctypes.c_int, [pointer, pointer, size]),
            (system.VirtualFree, ctypes.c_int, [pointer, size, number]),
        ):
            function.restype, function.argtypes = result, arguments
        reserved_and_committed, released, writable, executable = 0x3000, 0x8000, 0x04, 0x20
        length, before = len(content), ctypes.c_uint32()
        self.address: int = system.VirtualAlloc(None, length, reserved_and_committed, writable) or 0
        if not self.address:
            raise _ctypes.WinError(_ctypes.get_last_error())
        weakref.finalize(self, system.VirtualFree, self.address, 0, released).atexit = False
        ctypes.memmove(self.address, content, length)
        if not (
            system.VirtualProtect(self.address, length, executable, ctypes.byref(before))
            and system.FlushInstructionCache(system.GetCurrentProcess(), self.address, length)
        ):
            raise _ctypes.WinError(_ctypes.get_last_error())


_lock = Lock()
if hasattr(os, "register_at_fork"):  # a child lacks the threads that may have held the lock
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_codes: WeakValueDictionary[bytes, Code] = WeakValueDictionary()
_refused: list[str] = []
#: Code that only returns, by which :func:`missing` sees whether memory can be made executable; made once.
_probe: list[Code | None] = []


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
    if platform.machine().lower() not in ("x86_64", "amd64") or sys.platform not in SYSTEMS:
        return "it is for x86-64 on Linux, macOS and Windows"
    if compiled.level() not in VECTORS:
        return f"it is for kernels of {' or '.join(VECTORS)}"
    if not _refused:
        _probe[:] = [executable(b"\xc3")]
    return _refused[0] if _refused else ""


def describe() -> str:
    """The instruction set of machine code, or why there is none."""
    reason = missing()
    names = {32: "AVX2", 64: "AVX-512"}
    return f"none, kernels are called one by one: {reason}" if reason else names[VECTORS[compiled.level() or ""]]
