"""Arrays that end where memory cannot be read, so that a read beyond one ends the process."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

import numpy as np
import pytest

needs_pages = pytest.mark.skipif(sys.platform == "win32", reason="pages are protected by mprotect")


def at_the_end(x: Any) -> Any:
    """A copy of an array that ends at a page that cannot be read."""
    end = -(-x.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, end + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + end), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    made = np.frombuffer(memory, x.dtype, x.size, end - x.nbytes).reshape(x.shape)
    made[...] = x
    return made
