"""A lock on a file, which ends with the process that holds it, also by SIGKILL."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

#: The files that this process has locked: record locks do not hold against the process that has them.
_HELD: set[Path] = set()
_GUARD = threading.Lock()


class FileLock:
    """A lock that one process at a time holds.

    On POSIX it is a record lock, which children by ``fork``, such as the workers of a loader, do not hold as well.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None

    def acquire(self) -> bool:
        """Take the lock; returns whether nobody else has it. Raises OSError if the file cannot be opened."""
        key = self.path.resolve()
        with _GUARD:
            if key in _HELD:
                return False
            file = open(self.path, "a+b")  # noqa: SIM115 - the lock ends where it is closed
            try:
                _lock(file)
            except OSError:
                file.close()
                return False
            _HELD.add(key)
        self._file = file
        file.truncate(0)
        file.write(f"{os.getpid()}\n".encode())
        file.flush()
        return True

    def holder(self) -> str:
        """The number of the process that has the lock, as far as it says so."""
        if self.path.resolve() in _HELD:  # to read the file, and close it, would end a record lock of this process
            return str(os.getpid())
        try:
            return self.path.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._file is not None:
            with _GUARD:
                _HELD.discard(self.path.resolve())
                self._file.close()
                self._file = None


def is_locked(path: Path) -> bool:
    """Whether a process, this one included, holds the lock of a file."""
    if path.resolve() in _HELD:
        return True
    if not path.exists():
        return False
    lock = FileLock(path)
    try:
        if not lock.acquire():
            return True
    except OSError:  # the file of another user
        return False
    lock.release()
    return False


if sys.platform == "win32":
    import msvcrt

    def _lock(file: Any) -> None:
        file.seek(2**30)  # beyond the content, which others may read
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        file.seek(0)

else:
    import fcntl

    def _lock(file: Any) -> None:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
