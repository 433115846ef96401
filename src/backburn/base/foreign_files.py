"""Files that others wrote: which may be opened, how much memory they may take, and parsing their JSON.

Readers without a limit of their own use :func:`room`. A link out of the folder that is read is refused, because its
target is not part of the folder.
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

#: Reading a file may take ``TIMES`` its size plus ``ROOM`` bytes of memory.
ROOM, TIMES = 200_000_000, 10
#: Numbers from here on are infinite in float64.
MOST_FLOAT = 2**1024
#: A JSON escape of a surrogate, paired or not.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
#: The most bytes that Python takes per object, list, item and quotation mark of JSON.
_COSTS = {b"{": 240, b"[": 64, b",": 40, b'"': 30}


def room(size: int) -> int:
    """The bytes of memory that reading a file of ``size`` bytes may take."""
    return TIMES * size + ROOM


def ordinary(path: Path, error: type[BackburnError] = FileFormatError) -> os.stat_result:
    """The status of an ordinary file, before it is opened: a pipe would wait for a writer, a device has no end.

    Raises ``error`` for anything but an ordinary file, and FileNotFoundError if there is none.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        what = "this is a folder, not a file" if stat.S_ISDIR(found.st_mode) else "not an ordinary file"
        raise error(f"{printable(path, 1000)}: {what}")
    return found


def inside(path: Path, folder: Path, error: type[BackburnError] = FileFormatError) -> Path:
    """``path``, a file or folder below ``folder``. Raises ``error`` if a link leads out of ``folder``.

    Links in Hugging Face's cache, from ``snapshots/REVISION/...`` to a file directly in ``blobs`` beside ``snapshots``,
    are allowed.
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
    """The value of a JSON text; errors begin with ``start``. ``pairs`` builds an object from its items.

    Raises ``error`` for anything but JSON in UTF-8, for an unpaired surrogate, and for values that may take more memory
    than :func:`room`.
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
    """The first repeated name among names that are not all different, for errors."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    raise AssertionError("no name occurs twice")


def is_number(value: object) -> bool:
    """Whether a JSON value is a number that is finite in float64; an integer of 400 digits is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < MOST_FLOAT
