"""Reading files that others may have written: ordinary files only, and no more bytes than allowed."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from backburn.base.errors import FileFormatError
from backburn.base.foreign import printable

#: Opening a pipe does not wait for a writer, opening a terminal does not make it the controlling terminal.
_CAREFUL = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def open_regular(path: str | os.PathLike[str], *, follow: bool = True) -> BinaryIO:
    """Open an ordinary file for reading; without ``follow`` the last part of the path may not be a link.

    Raises :class:`FileFormatError` for such a link, a pipe or a device, and OSError as ``open`` does.

        >>> try:
        ...     open_regular("/dev/zero")
        ... except FileFormatError as error:
        ...     print(error)
        /dev/zero: not an ordinary file
    """
    if not follow and os.path.islink(path):  # also on systems without the flag
        raise FileFormatError(f"{printable(os.fspath(path))}: this is a link, which is not followed in this folder")
    # The path may point elsewhere between a check and the opening, so the open file is checked.
    number = os.open(path, _CAREFUL | (0 if follow else _NO_LINK))
    try:
        mode = os.fstat(number).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(mode):
            raise FileFormatError(f"{printable(os.fspath(path))}: not an ordinary file")
    except BaseException:
        os.close(number)
        raise
    return open(number, "rb")


def read_regular(path: str | os.PathLike[str], most: int, *, follow: bool = True) -> bytes:
    """The bytes of an ordinary file; see :func:`open_regular`.

    Raises :class:`FileFormatError` for a file of more than ``most`` bytes.
    """
    with open_regular(path, follow=follow) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise FileFormatError(f"{printable(os.fspath(path))}: has more than {most:,} bytes, the most that are read")
        return file.read(most)


def read_end(path: Path, most: int) -> bytes:
    """The last ``most`` bytes of an ordinary file, from the beginning of a line on; links are not followed."""
    with open_regular(path, follow=False) as file:
        left = os.fstat(file.fileno()).st_size - most
        if left <= 0:
            return file.read(most)
        file.seek(left - 1)
        found = file.read(most + 1)
        return found[found.find(b"\n") + 1 :] if b"\n" in found else b""
