"""Recycled memory for large results.

The first touch of a page costs more than the arithmetic done on it, and a large array that the C library maps for each
operation consists of fresh pages only. So results of ``MIN_POOLED_BYTES`` and more use pooled blocks: an array made by
:func:`empty` references its block, as do all its views, and when the last of them dies the block's bytes return to the
pool. No reference counts of our own are involved, and live arrays never share a block.

NumPy allocates smaller results from the C library. glibc returns the end of its heap to the system once 128 KiB there
are free, so that a training step would touch fresh pages for all that it keeps; it holds more in processes that have
freed a large block. One is freed here.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from backburn_numpy import tuning

#: Alignment of blocks in bytes, a cache line: vectors that straddle two lines halve the speed of a sum.
ALIGNMENT = 64

#: Bytes of a huge page. Linux maps memory in huge pages if asked to, which saves TLB misses. A quarter of one may be
#: left unused. NumPy itself asks for arrays of :data:`NUMPY_ASKS` bytes and more.
HUGE = 1 << 21
NUMPY_ASKS = 1 << 22
_HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)

#: Freed at once: glibc then holds twice as many bytes, unless ``MALLOC_TRIM_THRESHOLD_`` is set.
np.empty(tuning.BYTES_FREED_AT_FIRST, np.uint8)

_free: dict[int, list[_Raw]] = {}
_held = 0
#: Bytes of all blocks, in use or held, and their peak.
_total = 0
_peak = 0
#: Guards the counts and the free blocks. It is reentrant: the collector may run inside and free a block.
_lock = threading.RLock()


#: The files in which Linux states a container's memory limit, a number or "max": version 2 of control groups, and 1.
CONTAINER = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def _default_limit() -> int:
    """An eighth of the memory of the machine or the container, at most 2 GiB."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        total = 8 << 30
    for path in CONTAINER:
        with suppress(OSError, ValueError):
            total = min(total, int(Path(path).read_bytes()))
    return min(total // 8, 2 << 30)


#: The pool's limit in bytes: blocks beyond it are returned to the system.
LIMIT = _default_limit()


class _Raw(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of a block, reused from block to block."""

    __slots__ = ()


class Block(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes that return to the pool when no longer referenced.

    It is the base of the arrays over it, since NumPy does not collapse bases of another type. Only its bytes are
    reused, not the object itself, since an object tracked by the cyclic collector is finalized only once.
    """

    __slots__ = ()

    def __del__(self, free: dict[int, list[_Raw]] = _free, lock: threading.RLock = _lock) -> None:
        global _held, _total
        if _held is None:  # the interpreter ends, and has cleared the module
            return
        size = self.size
        with lock:
            if _held + size <= LIMIT:
                _held += size
                free[size].append(self.base)  # type: ignore[arg-type]
            else:
                _total -= size


def _rounded(size: int) -> int:
    """``size`` rounded up to an eighth of its power of two, so that similar sizes share blocks."""
    step = 1 << max(size.bit_length() - 4, 12)
    return -(-size // step) * step


def aligned(size: int) -> Any:
    """Newly allocated uninitialised bytes, aligned to :data:`ALIGNMENT`, and to huge pages if there are any."""
    pages = (size + HUGE // 4) // HUGE
    if _HUGE_PAGES is not None and pages and size < NUMPY_ASKS:
        with suppress(OSError):  # the allocation below raises if there is no memory
            return _in_huge_pages(size, pages, _HUGE_PAGES)
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    return raw[start : start + size]


def _in_huge_pages(size: int, pages: int, advice: int) -> Any:
    """Bytes that begin with ``pages`` huge pages; the addresses beside them are never used."""
    mapped = mmap.mmap(-1, HUGE + max(size, pages * HUGE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    raw: Any = np.frombuffer(mapped, np.uint8)
    start = -raw.__array_interface__["data"][0] % HUGE
    with suppress(OSError):  # Linux without huge pages
        mapped.madvise(advice, start, pages * HUGE)
    return raw[start : start + size]


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """An uninitialised C-contiguous array of the shape and dtype, in a recycled block if there is one."""
    global _held, _total, _peak
    size = dtype.itemsize
    for n in shape:
        size *= n
    if size < tuning.MIN_POOLED_BYTES:
        return np.empty(shape, dtype)
    rounded = _rounded(size)
    raw = None
    with _lock:
        blocks = _free.get(rounded)
        if blocks:
            raw = blocks.pop()
            _held -= rounded
        elif blocks is None:
            _free[rounded] = []
    if raw is None:
        try:
            raw = aligned(rounded).view(_Raw)
        except MemoryError:
            _release()
            raw = aligned(rounded).view(_Raw)
        with _lock:
            _total += rounded
            _peak = max(_peak, _total)
    return np.ndarray(shape, dtype, Block((rounded,), np.uint8, raw))


def append_empty(arrays: list[Any], kinds: Iterable[tuple[tuple[int, ...], np.dtype[Any], bool]]) -> None:
    """Append an :func:`empty` array for each shape and dtype; the third says whether its memory is pooled."""
    make = np.empty
    for shape, dtype, is_large in kinds:
        arrays.append(empty(shape, dtype) if is_large else make(shape, dtype))


def empty_like(x: Any) -> Any:
    """:func:`empty` with the shape and dtype of an array."""
    return empty(x.shape, x.dtype)


def contiguous(x: Any, dtype: np.dtype[Any] | None = None) -> Any:
    """``x`` in row-major order, and of the dtype if one is given, copied only if needed; None stays None."""
    if x.__class__ is not np.ndarray:
        if x is None:
            return None
        x = np.asarray(x)  # NumPy's scalars, whose values lie elsewhere
    wanted = x.dtype if dtype is None else dtype
    if x.flags.c_contiguous and x.dtype == wanted:
        return x
    copy = empty(x.shape, wanted)
    np.copyto(copy, x, "unsafe")
    return copy


def memory_ordered(*operands: Any) -> tuple[list[Any], list[int]] | None:
    """Arrays of equal strides that are in row-major order but for a permutation of axes, such as transposed ones.

    Returns them with their axes in memory order, and the permutation back. Operands that are not arrays or have no axes
    are unchanged. None if an array is not like the first one, or if that is already in row-major order.
    """
    first = operands[0]
    if first.flags.c_contiguous:
        return None
    strides = first.strides
    longest = max(strides)
    if longest * first.shape[strides.index(longest)] != first.nbytes:
        return None  # a part of a larger array
    order = sorted(range(first.ndim), key=strides.__getitem__, reverse=True)
    if not first.transpose(order).flags.c_contiguous:
        return None
    views = []
    for x in operands:
        if x.__class__ is np.ndarray and x.ndim:
            if x.strides != first.strides or x.shape != first.shape:
                return None
            x = x.transpose(order)
        views.append(x)
    return views, sorted(range(first.ndim), key=order.__getitem__)


def stats() -> dict[str, int]:
    """``used`` by live arrays, ``held`` by all blocks (those included), and ``peak``, the most ever held.

    Arrays below ``tuning.MIN_POOLED_BYTES``, and those that NumPy allocates itself, are not counted.
    """
    with _lock:
        return {"used": _total - _held, "held": _total, "peak": _peak}


def cleanup() -> None:
    """Return all unused blocks to the system, and reset the peak."""
    global _peak
    with _lock:
        _release()
        _peak = _total


def _release() -> None:
    """Return all unused blocks to the system."""
    global _held, _total
    with _lock:
        for blocks in list(_free.values()):
            blocks.clear()
        _total -= _held
        _held = 0


if hasattr(os, "register_at_fork"):  # a child lacks the threads that may have held the lock
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
