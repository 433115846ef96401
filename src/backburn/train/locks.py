"""A lock on a file, released when the process that holds it ends, even by SIGKILL."""

from __future__ import annotations

import os
import re
import struct
import sys
import threading
from pathlib import Path
from typing import Any

from backburn.base.errors import FileFormatError
from backburn.base.regular import open_regular

#: The files that this process has locked: a record lock does not stop the process that holds it.
_HELD: set[Path] = set()
_GUARD = threading.Lock()
#: The content of a lock: the id of the process that took it last.
_CONTENT = re.compile(rb"[0-9]{0,20}\n?\Z")


class FileLock:
    """A lock that one process at a time holds.

    On POSIX it is a record lock, which processes created by ``fork``, such as a loader's workers, do not inherit.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None

    def acquire(self) -> bool:
        """Take the lock and return True, or return False if it is held. Raises OSError if the file cannot be opened.

        A file that is not a lock, such as a link or a file with other contents, is not changed: it raises
        :class:`FileExistsError`.
        """
        key = _key(self.path)
        with _GUARD:
            if key in _HELD:
                return False
            file = _opened(self.path)
            try:
                _lock(file)
            except OSError:
                file.close()
                return False
            if not _CONTENT.match(file.read(32)):
                file.close()
                raise FileExistsError(17, f"{self.path.name} in it belongs to another program", str(self.path))
            _HELD.add(key)
        self._file = file
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()}\n".encode())
        file.flush()
        return True

    def holder(self) -> str:
        """The id of the process that holds the lock; empty if unknown."""
        if _key(self.path) in _HELD:  # closing the file would release this process's record lock
            return str(os.getpid())
        try:
            with open_regular(self.path, follow=False) as file:
                found = file.read(32)
        except (OSError, FileFormatError):
            return ""
        return found.decode().strip() if _CONTENT.match(found) else ""

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._file is not None:
            with _GUARD:
                _HELD.discard(_key(self.path))
                self._file.close()
                self._file = None


def is_locked(path: Path) -> bool:
    """Whether a process, this one included, holds the lock of a file, which is only read."""
    with _GUARD:  # another thread may take the lock, and closing the file here would release it
        if _key(path) in _HELD:
            return True
        try:
            with open_regular(path, follow=False) as file:
                return _has_lock(file)
        except (OSError, FileFormatError):  # no file, another user's, or not a lock
            return False


def _key(path: Path) -> Path:
    """A lock's path with its folder resolved, since several paths may lead there; the lock itself is not a link."""
    return Path(os.path.realpath(path.parent)) / path.name


def _opened(path: Path) -> Any:
    """The file of a lock, created if absent. Raises :class:`FileExistsError` for a file that is not a lock's."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    other = FileExistsError(17, f"{path.name} in it is a link or not an ordinary file", str(path))
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise other
    number = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o666)
    if os.fstat(number).st_nlink > 1:
        os.close(number)
        raise other
    return open(number, "r+b")


if sys.platform == "win32":
    import msvcrt
    import time

    #: Looking at a lock takes it for a moment, so that taking it is retried for a while.
    _TRIES, _PAUSE = 20, 0.01

    def _lock(file: Any, tries: int = _TRIES) -> None:
        file.seek(2**30)  # beyond the content, which others may read
        for left in reversed(range(tries)):
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
                break
            except OSError:
                if not left:
                    raise
                time.sleep(_PAUSE)
        file.seek(0)

    def _has_lock(file: Any) -> bool:
        try:
            _lock(file, 1)
        except OSError:
            return True
        file.seek(2**30)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
        return False

else:
    import fcntl

    #: The system's struct of a lock, as in <fcntl.h>: the kind, the first byte, the number of bytes, the process.
    _IS_BSD = sys.platform == "darwin" or "bsd" in sys.platform
    _FLOCK = struct.Struct("qqihh" if _IS_BSD else "hhqqi4x")

    def _lock(file: Any) -> None:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _has_lock(file: Any) -> bool:
        """Ask the system without taking the lock, which even for a moment would refuse a run that is starting."""
        kind, whole = fcntl.F_WRLCK, (0, 0, 0)
        asked = _FLOCK.pack(*whole, kind, 0) if _IS_BSD else _FLOCK.pack(kind, 0, *whole)
        answer = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))
        return bool(answer[3 if _IS_BSD else 0] != fcntl.F_UNLCK)
