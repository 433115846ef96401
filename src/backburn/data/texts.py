"""Text files as arrays of tokens."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.errors import ArgumentError, FileFormatError
from backburn.base.foreign_files import inside, ordinary
from backburn.hints.arguments import explained


@explained
def read_text(
    path: str | os.PathLike[str], encode: Callable[[str], Iterable[int]] | None = None
) -> NDArray[np.unsignedinteger[Any]]:
    """The tokens of a text file, or of all files ``*.txt`` below a folder, concatenated by name.

    Tokens are the bytes of the files, uint8, and one file is mapped rather than read; with ``encode``, a function such
    as that of :class:`backburn.models.Tokenizer`, they are the numbers that it returns for the text of each file, which
    is in UTF-8, in the smallest unsigned dtype that holds them. Line ends are unchanged, and a byte-order mark is not
    part of the text. :func:`windows` splits the tokens into rows of equal length.

    Raises :class:`FileFormatError` for a folder without texts or with links out of it, for an empty file and, with
    ``encode``, for one that is not in UTF-8, and :class:`ArgumentError` where ``encode`` returns anything but integers
    from 0 on.

        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.txt")
        >>> _ = path.write_text("to be", encoding="utf-8")
        >>> bytes(read_text(path))
        b'to be'
        >>> read_text(path, lambda text: [len(word) for word in text.split()])
        array([2, 2], dtype=uint8)
    """
    place = Path(path)
    files = [place]
    if place.is_dir():
        files = sorted(inside(found, place) for found in place.rglob("*.txt") if found.is_file())
    if not files:
        raise FileFormatError(f"read_text: {place} has no files *.txt")
    for file in files:
        if not ordinary(file).st_size:
            raise FileFormatError(f"read_text: {file} is empty")
    if encode is None:
        if len(files) == 1:
            return np.memmap(files[0], np.uint8, mode="r")
        return np.concatenate([np.fromfile(file, np.uint8) for file in files])
    return _smallest(np.concatenate([_encoded(file, encode) for file in files]))


def _encoded(path: Path, encode: Callable[[str], Iterable[int]]) -> NDArray[np.int64]:
    """The tokens of a file."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        raise FileFormatError(f"read_text: {path} is not UTF-8: {cause.reason} at byte {cause.start}") from None
    tokens = np.asarray(encode(text))
    if tokens.ndim != 1 or (tokens.size and (tokens.dtype.kind not in "iu" or tokens.min() < 0)):
        kind = f"{tokens.dtype}{list(tokens.shape)}"
        raise ArgumentError(f"read_text: encode returns token numbers, from 0 on, for a text; {path} gave {kind}")
    return tokens.astype(np.int64)


def _smallest(tokens: NDArray[np.int64]) -> NDArray[np.unsignedinteger[Any]]:
    return tokens.astype(np.min_scalar_type(int(tokens.max(initial=0))))
