"""Compiles and loads the stand-in for cuBLASLt, ``cublaslt.cpp``, and records its products."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

import compiled  # type: ignore[import-not-found]
import cupy


class Product(NamedTuple):
    """A recorded product, with column-major matrices."""

    m: int
    n: int
    k: int
    batch: int
    transpose_a: int
    transpose_b: int
    type: int
    compute: int
    epilogue: int
    stream: int


#: The products since the list was last emptied.
CALLS: list[Product] = []
HIDDEN: list[bool] = []


def is_installed() -> bool:
    """Whether it can be compiled, and no test hides it."""
    return compiled.COMPILER is not None and not HIDDEN


@functools.cache
def library() -> Any:
    """The library, with signatures of its functions for tests."""
    made: Any = ctypes.CDLL(load())
    made.fake_again.argtypes = (ctypes.c_int64,)
    made.fake_describe.argtypes = (ctypes.c_int64, ctypes.c_void_p)
    made.fake_alive.restype = ctypes.c_int64
    return made


@functools.cache
def load() -> str:
    """Compile and load the library; returns its path."""
    path = compiled.shared((compiled.HERE / "cublaslt.cpp").read_text())
    made: Any = ctypes.CDLL(str(path))
    made.fake_listen.argtypes = (ctypes.c_void_p,)
    made.fake_listen(ctypes.cast(_listener, ctypes.c_void_p))
    return str(path)


def _heard(number: int) -> None:
    words = (ctypes.c_int64 * len(Product._fields))()
    library().fake_describe(number, words)
    product = Product(*words)
    assert product.stream == cupy.cuda.get_current_stream().ptr
    CALLS.append(product)
    cupy.Tape.add(lambda: library().fake_again(number))


_listener = ctypes.CFUNCTYPE(None, ctypes.c_int64)(_heard)
