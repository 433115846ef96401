"""Files that others wrote: which are opened, how much memory they may take, and JSON of them.

A reader without another bound keeps to :func:`room`. A folder is read without leaving it: a link out of it
is refused, whoever made it, because the file behind it is not the folder's.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from backburn.base.errors import BackburnError, FileFormatError
from backburn.base.foreign import printable

#: The memory that a file of any size may take: ten times its bytes, and this many more.
ROOM, TIMES = 200_000_000, 10
#: From here on a number is infinite as a float64.
MOST_FLOAT = 2**1024
#: Half of a surrogate pair, or a whole one, as JSON escapes it.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
#: The most bytes that Python takes for an object, a list, an item and a quotation mark of JSON.
_COSTS = {b"{": 240, b"[": 64, b",": 40, b'"': 30}


def room(size: int) -> int:
    """The bytes of memory that may be made of a file of ``size`` bytes."""
    return TIMES * size + ROOM


def ordinary(path: Path, error: type[BackburnError] = FileFormatError) -> os.stat_result:
    """The status of an ordinary file, read before it is opened: a pipe would wait for a writer, a device has no end.

    Raises ``error`` for anything but an ordinary file, and FileNotFoundError if there is none.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        what = "this is a folder, not a file" if stat.S_ISDIR(found.st_mode) else "not an ordinary file"
        raise error(f"{printable(path, 1000)}: {what}")
    return found


def inside(path: Path, folder: Path, error: type[BackburnError] = FileFormatError) -> Path:
    """``path``, a file or folder below ``folder``. Raises ``error`` for one that a link leads out of it.

    Links of Hugging Face's cache, from ``snapshots/REVISION/...`` to a file right in ``blobs`` beside ``snapshots``,
    stay in it.
    """
    real, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    if real.is_relative_to(root):
        return path
    for place in (root, *root.parents):
        if place.parent.name == "snapshots" and real.parent == place.parent.parent / "blobs":
            return path
    raise error(
        f"{printable(path, 1000)}: a link to {printable(real, 1000)}, out of the folder that is read: put a copy in "
        "its place"
    )


def parsed(
    text: bytes,
    start: str,
    *,
    error: type[BackburnError] = FileFormatError,
    pairs: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """The value of a text in JSON; errors begin with ``start``. ``pairs`` makes objects of their items.

    Raises ``error`` for what is not JSON in UTF-8, for half of a surrogate pair, which no name has, and for values that
    would take more memory than :func:`room`.
    """
    if sum(each * text.count(sign) for sign, each in _COSTS.items()) > room(len(text)):
        raise error(f"{start} JSON of too many values")
    try:
        found = json.loads(text.decode("utf-8-sig"), object_pairs_hook=pairs)
        if _SURROGATE.search(text):
            json.dumps(found, ensure_ascii=False).encode()
    except BackburnError:
        raise
    except (ValueError, RecursionError) as fault:
        raise error(f"{start} not JSON ({fault!s:.200})") from fault
    return found


def repeated(names: Iterable[str]) -> str:
    """The first name that occurs again, among names that are not all different; for errors."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    raise AssertionError("no name is there twice")


def is_number(value: object) -> bool:
    """Whether a value of JSON is a finite number, which an integer of 400 digits is not for a float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < MOST_FLOAT
