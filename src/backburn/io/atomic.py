"""Writing files atomically."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

#: The most characters of a file's name that begin the name of its temporary file.
LONGEST = 40


def write_atomically(
    path: str | os.PathLike[str],
    content: bytes | Iterable[bytes | memoryview] | Callable[[BinaryIO], object],
    *,
    follow: bool = True,
) -> None:
    """Write ``content`` to a temporary file and rename it to ``path``: a reader sees the old file or the new one.

    Large content may be an iterable of parts, or a function that writes it to an open file.

    If writing is interrupted, an old file of that name is unchanged; only a killed process leaves the temporary file
    behind. If several threads or processes write, the last to finish wins. As with ``open``, links are followed and an
    old file's permissions stay; devices and pipes are written to. ``follow=False``, for folders that others may write
    to, replaces a link, a device or a pipe with the new file. Raises OSError as ``open`` does.

        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_atomically(folder / "a.txt", b"new")
        >>> [p.name for p in folder.iterdir()], (folder / "a.txt").read_bytes()
        (['a.txt'], b'new')
    """
    path = Path(path)
    if path.exists() and not path.is_file() and (follow or path.is_dir()):
        with open(path, "wb") as file:  # a folder raises
            _fill(file, content)
        return
    try:
        target = Path(os.path.realpath(path if follow else path.parent))
    except OSError as error:  # the current folder may have been deleted
        raise OSError(error.errno, error.strerror, str(path)) from error
    if not follow:
        target /= path.name
    elif target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    # Threads share a process id, and so may processes on machines that share a folder.
    unfinished = target.with_name(f".{target.name[:LONGEST]}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    mode = 0o666
    with contextlib.suppress(OSError):
        if follow or not target.is_symlink():
            mode = target.stat().st_mode & 0o777
    try:  # created with the old file's permissions, so that nobody else can read it
        with open(unfinished, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            _fill(file, content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            if follow or not target.is_symlink():
                shutil.copymode(target, unfinished)
        os.replace(unfinished, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        if isinstance(error, OSError) and error.errno is not None:  # with the path that the caller gave
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def _fill(file: BinaryIO, content: bytes | Iterable[bytes | memoryview] | Callable[[BinaryIO], object]) -> None:
    if callable(content):
        content(file)
    else:
        file.writelines([content] if isinstance(content, (bytes, bytearray, memoryview)) else content)
