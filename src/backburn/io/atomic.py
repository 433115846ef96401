"""Writing a file so that it is there whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write ``content`` beside ``path``, then put it in its place: a reader sees the old file or the new one.

    Whatever interrupts the writing, an old file of that name stays as it was; a kill leaves an unfinished file beside
    it, all else leaves nothing. Where several threads or processes write, the last to end has the last word. Raises
    OSError as ``open`` does.

        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_atomically(folder / "a.txt", b"new")
        >>> [p.name for p in folder.iterdir()], (folder / "a.txt").read_bytes()
        (['a.txt'], b'new')
    """
    path = Path(path)
    # Threads share a process number, and so do processes on machines that share a folder.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        with open(unfinished, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        if isinstance(error, OSError) and error.filename is not None:  # by the name that the caller knows
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
