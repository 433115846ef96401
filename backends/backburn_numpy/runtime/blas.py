"""The threads of OpenBLAS, which computes NumPy's matrix products.

Matrix products in our own threads, each of which processes a block, should use one thread each; and in a container no
more threads than it has processor time for. NumPy has no function for that; the library bundled with it does.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from backburn.base.threads import chosen, follow
from backburn_numpy.runtime import gemm, mkl
from backburn_numpy.runtime.processors import processors

#: The environment variables from which the library reads its number of threads when it is loaded.
VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")

_PLACES = ("../numpy.libs/*openblas*", ".dylibs/*openblas*")
_NAMES = ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads")
_CONFIGURATIONS = ("scipy_openblas_get_config64_", "scipy_openblas_get_config", "openblas_get_config")

_SGEMM = "scipy_cblas_sgemm64_"

_lock = threading.Lock()
_users = 0
_before = 0
#: Whether ``_before`` was inherited by a fork and is still to be restored.
_inherited = False


def _libraries() -> Iterator[ctypes.CDLL]:
    folder = Path(np.__file__).parent
    for path in (p for place in _PLACES for p in folder.glob(place)):
        with suppress(OSError):
            yield ctypes.CDLL(str(path))


def _found() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """The functions that get and set the number of threads."""
    for library in _libraries():
        for name in _NAMES:
            if hasattr(library, name.format("set")):
                return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return None


_functions = _found()


def words() -> str:
    """The library of NumPy's matrix products, its version, and the processor for which it chose its code.

    For an unknown library, the name and the version with which NumPy was compiled. MKL comes first if it multiplies in
    place of the kernels.
    """
    chosen_library = mkl.in_use()
    return _words() if chosen_library is None else f"{chosen_library.words} in kernels, {_words()} in NumPy"


def _words() -> str:
    for library in _libraries():
        for name in _CONFIGURATIONS:
            if (found := getattr(library, name, None)) is not None:
                found.restype = ctypes.c_char_p
                return " ".join(found().decode().split())
    built = (np.show_config(mode="dicts") or {}).get("Build Dependencies", {}).get("blas", {})
    return f"{built.get('name', 'unknown')} {built.get('version', '')}".strip()


def num_threads() -> int | None:
    """The number of threads that products use; None for an unknown library."""
    return None if _functions is None else _functions[0]()


def sgemm_address() -> int | None:
    """The address of ``cblas_sgemm`` with 64-bit integers, for compiled kernels: their own, MKL's, or NumPy's.

    None for an unknown library, and not None only if :func:`single_in_kernels` works too.
    """
    return gemm.sgemm_address() or library_sgemm_address()


@cache
def library_sgemm_address() -> int | None:
    """The address of the library's ``cblas_sgemm``; None for an unknown library."""
    for library in _libraries():
        if hasattr(library, _SGEMM) and _functions is not None:
            return ctypes.cast(getattr(library, _SGEMM), ctypes.c_void_p).value
    return None


def can_be_single() -> bool:
    """Whether :func:`single` has an effect: the library is a known one."""
    return _functions is not None


@cache
def function(name: str, *types: Any) -> Any:
    """A function of the library, with 64-bit integers and arguments of those types; None for an unknown library.

    None, too, on processors other than x86-64: on an emulated AArch64, triangular systems and ``cholesky`` of float32
    were wrong for some layouts, whereas the functions that NumPy calls were right.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return None
    for library in _libraries():
        if (found := getattr(library, name, None)) is not None:
            found.restype, found.argtypes = None, types
            return found
    return None


@cache
def limit() -> None:
    """Let products use no more threads than the process has processors, unless their number has been chosen.

    The library starts one thread for each processor that it sees: in a container, all of the machine's. They spin while
    they wait for each other: on two processors limited to the time of one, products took 12 times as long as in one
    thread.
    """
    if _functions is None or chosen() or not os.environ.keys().isdisjoint(VARIABLES):
        return
    get, set_ = _functions
    if get() > (count := processors()):
        set_(count)


def set_num_threads(count: int) -> None:
    """Let products use ``count`` threads; those of an unknown library if ``threadpoolctl`` is installed."""
    global _before, _inherited
    if _functions is None:
        with suppress(ImportError):
            importlib.import_module("threadpoolctl").threadpool_limits(count, user_api="blas")
        return
    with _lock:
        if _users:
            _before = count
        else:
            _functions[1](count)
            _inherited = False


@contextmanager
def single() -> Iterator[None]:
    """A context in which matrix products use one thread each, on any calling thread. No effect on an unknown library.

    >>> with single():
    ...     float((np.ones((2, 3)) @ np.ones((3, 2)))[0, 0])
    3.0
    """
    global _users, _before, _inherited
    if _functions is None:
        yield
        return
    get, set_ = _functions
    with _lock:
        if _users == 0:
            if not _inherited:
                _before = get()
            _inherited = False
            set_(1)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                set_(_before)


def single_in_kernels() -> AbstractContextManager[None]:
    """:func:`single`, where kernels call the library's products; their own take one thread anyway."""
    return single() if gemm.sgemm_address() is None else nullcontext()


def _after_fork_in_child() -> None:
    """A child has only the thread that forked; no product is running in it.

    The number of threads is restored only after the child's next products: setting it starts the library's threads,
    which deadlocks if a thread of the parent held the library's lock, and many children compute no product at all.
    """
    global _lock, _users, _inherited
    _lock = threading.Lock()
    _inherited = _inherited or _users > 0
    _users = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

follow(set_num_threads)
