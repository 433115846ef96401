"""MKL in place of the kernels' own matrix products, if the environment variable ``BACKBURN_BLAS`` is ``mkl``.

Kernels split a product into parts, depending on its shape alone, and call ``cblas_sgemm`` or ``cblas_dgemm`` for each
part in their own threads. MKL uses one thread in these calls only: other users of it in the process keep theirs. Its
results differ in the last bits from processor to processor, so it multiplies only where the variable asks for it.

``pip install mkl`` installs the library.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ctypes.util import find_library
from pathlib import Path
from typing import Any, NamedTuple

from backburn.base.errors import ArgumentError, BackendUnavailableError
from backburn_numpy import compiled

#: The values of ``BACKBURN_BLAS``: the kernels multiply, which is the default, or MKL does.
CHOICES = ("kernels", "mkl")

_FOLDERS = ("lib", "Library/bin")
_PATTERNS = ("libmkl_rt.so*", "mkl_rt*.dll", "libmkl_rt*.dylib")


class Library(NamedTuple):
    """A BLAS library with 64-bit integers, by the addresses of its functions."""

    words: str
    sgemm: int
    dgemm: int
    #: The function that sets how many threads products of the calling thread may use; 0 if there is none.
    set_threads: int = 0


def look_up(prefixes: Iterable[str] = (sys.prefix, sys.base_prefix)) -> Library:
    """The MKL that is installed with Python, or else in the system.

    Raises :class:`BackendUnavailableError` if there is none, or none that can be used.
    """
    failures = []
    for path in _places(prefixes):
        try:
            loaded = ctypes.CDLL(path)
            names = "cblas_sgemm_64", "cblas_dgemm_64", "MKL_Set_Num_Threads_Local"
            addresses = [ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value or 0 for name in names]
            return Library(_version(loaded), *addresses)
        except (AttributeError, OSError) as error:
            failures.append(f"{path}: {error}")
    why = "; ".join(failures) or "no library mkl_rt is installed with Python or in the system"
    raise BackendUnavailableError(f"BACKBURN_BLAS='mkl': {why}. Write `pip install mkl`, or unset BACKBURN_BLAS")


def in_use() -> Library | None:
    """The library that multiplies in place of the kernels; None if they do."""
    return _in_use


def use(library: Library | None) -> None:
    """Let this library multiply from now on, or the kernels; no other thread may be multiplying.

    Raises :class:`BackendUnavailableError` where there are no kernels, in whose threads a library multiplies.
    """
    global _in_use
    kernel: Any = compiled.kernel("blas_use")
    if kernel is None and library is not None:
        raise BackendUnavailableError(
            "BACKBURN_BLAS='mkl': the compiled kernels call it, and there are none here "
            f"({compiled.describe()}). Compile them, or unset BACKBURN_BLAS"
        )
    if kernel is not None:
        kernel(*((None,) * 3 if library is None else (library.sgemm, library.dgemm, library.set_threads or None)))
    _in_use = library


def _places(prefixes: Iterable[str]) -> Iterator[str]:
    for folder in dict.fromkeys(Path(prefix, name) for prefix in prefixes for name in _FOLDERS):
        with suppress(OSError):
            yield from sorted((str(path) for pattern in _PATTERNS for path in folder.glob(pattern)), reverse=True)
    if found := find_library("mkl_rt"):
        yield found


def _version(loaded: ctypes.CDLL) -> str:
    text = ctypes.create_string_buffer(200)
    loaded.MKL_Get_Version_String(text, len(text))
    return " ".join(text.value.decode(errors="replace").partition(" for ")[0].split())


def _from_environment() -> Library | None:
    wanted = os.environ.get("BACKBURN_BLAS") or CHOICES[0]
    if wanted not in CHOICES:
        raise ArgumentError(
            f"BACKBURN_BLAS={wanted!r}: write kernels, which is the default, or mkl for the MKL that is installed"
        )
    return look_up() if wanted == "mkl" else None


_in_use: Library | None = None
use(_from_environment())
