"""Files that the processes of ``backburn launch`` leave for it in a folder, one for each rank and fact."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from backburn.communicators.ranks import launched

#: The variable with the folder.
LAUNCH_FOLDER = "_BACKBURN_LAUNCH_FOLDER"
#: Facts: communication has begun; the program has come to its end; why the rank ends the job; how its process ended;
#: its stack when a signal killed it.
STARTED, FINISHED, MESSAGE, ENDED, STACK = "started", "finished", "message", "ended", "stack"


class Message(NamedTuple):
    """Why a rank ends the job, after the traceback of an exception, if there was one; times are monotonic."""

    time: int
    text: str
    trace: str = ""


class Ended(NamedTuple):
    """The exit status of a rank's process; the negative number of the signal that ended it."""

    time: int
    status: int


def left(fact: str, rank: int) -> Path | None:
    """The file of a rank's fact; None without a launcher on this machine."""
    folder = os.environ.get(LAUNCH_FOLDER)
    return Path(folder) / f"{fact}-{rank}" if folder and Path(folder).is_dir() else None


def leave(fact: str, rank: int, content: tuple[Any, ...] = ()) -> bool:
    """Leave a fact, and tell whether a launcher will read it."""
    path = left(fact, rank)
    if path is None:
        return False
    path.with_suffix(".new").write_text(json.dumps(content), "utf-8")
    path.with_suffix(".new").replace(path)  # at once
    return True


def leave_message(rank: int, text: str, trace: str = "") -> bool:
    """Leave the reason why a rank ends the job, which the launcher prints once for all ranks that say the same."""
    return leave(MESSAGE, rank, Message(time.monotonic_ns(), text, trace))


def leave_error(text: str) -> bool:
    """Leave the error with which a command ends on this rank; False where nobody has launched it."""
    place = launched()
    return place is not None and leave_message(place[0], text)
