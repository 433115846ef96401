"""Files mapped into memory; no byte beyond their end is read."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from backburn.base.errors import FileFormatError
from backburn.base.foreign import printable
from backburn.base.regular import open_regular


class MappedFile:
    """A file's bytes, read-only.

    The next call of :meth:`array`, or :meth:`release`, releases the pages of the last part, so that reading a file
    tensor by tensor keeps at most one in memory.
    """

    def __init__(self, path: Path) -> None:
        self.where = printable(path, 1000)
        if path.is_dir():
            raise FileFormatError(f"{self.where}: this is a folder, not a file")
        self.file: BinaryIO = open_regular(path)  # closed with this object
        try:
            self.size = os.fstat(self.file.fileno()).st_size
            if self.size == 0:
                raise FileFormatError(f"{path}: the file is empty")
            self._map = mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ)
            self._last = (0, 0)
        except BaseException:
            self.file.close()
            raise

    def array(self, start: int, length: int, what: str) -> NDArray[np.uint8]:
        """A part of the file as an array; ``what`` names it in errors."""
        found = self.view(start, length, what)
        self.release()
        self._last = (start, length)
        return found

    def view(self, start: int, length: int, what: str) -> NDArray[np.uint8]:
        """A part of the file as an array, whose pages are kept."""
        self._check(start, length, what)
        return np.frombuffer(self._map, np.uint8, length, start) if length else np.empty(0, np.uint8)

    def bytes(self, start: int, length: int, what: str) -> bytes:
        """A copy of a part of the file."""
        self._check(start, length, what)
        return self._map[start : start + length]

    def _check(self, start: int, length: int, what: str) -> None:
        if not (0 <= start <= self.size and 0 <= length <= self.size - start):
            raise FileFormatError(f"{self.where}: {what} ends beyond the end of the file: truncated, or damaged")

    def release(self) -> None:
        """Release the pages of the last part; they are read again if still needed."""
        self.give_back(*self._last)
        self._last = (0, 0)

    def give_back(self, start: int, length: int) -> None:
        """Release the pages of a part."""
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        count = (start + length - first) // mmap.PAGESIZE * mmap.PAGESIZE
        if count > 0 and hasattr(mmap, "MADV_DONTNEED"):
            with suppress(OSError):
                self._map.madvise(mmap.MADV_DONTNEED, first, count)

    def close(self) -> None:
        """Close the file. Arrays of it stay valid: the map is closed when the last of them dies."""
        self.release()
        self.file.close()
        with suppress(BufferError):
            self._map.close()
