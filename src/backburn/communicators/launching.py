"""Files that processes write for ``backburn launch``, one per rank and fact."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from backburn.communicators.ranks import launched

#: The environment variable with the folder.
LAUNCH_FOLDER = "_BACKBURN_LAUNCH_FOLDER"
#: Facts: communication has begun; the program has finished; why the rank ends the job; how its process ended; its stack
#: when a signal killed it.
STARTED, FINISHED, MESSAGE, ENDED, STACK = "started", "finished", "message", "ended", "stack"


class Message(NamedTuple):
    """Why a rank ends the job, with a monotonic time, and the traceback of an exception, if any."""

    time: int
    text: str
    trace: str = ""


class Ended(NamedTuple):
    """The exit status of a rank's process; negative for the signal that ended it."""

    time: int
    status: int


def left(fact: str, rank: int) -> Path | None:
    """The file of a rank's fact; None without a launcher on this machine."""
    folder = os.environ.get(LAUNCH_FOLDER)
    return Path(folder) / f"{fact}-{rank}" if folder and Path(folder).is_dir() else None


def leave(fact: str, rank: int, content: tuple[Any, ...] = ()) -> bool:
    """Write a fact. Returns whether a launcher will read it."""
    path = left(fact, rank)
    if path is None:
        return False
    path.with_suffix(".new").write_text(json.dumps(content), "utf-8")
    path.with_suffix(".new").replace(path)  # atomically
    return True


def leave_message(rank: int, text: str, trace: str = "") -> bool:
    """Write why a rank ends the job; the launcher prints equal reasons of several ranks once."""
    return leave(MESSAGE, rank, Message(time.monotonic_ns(), text, trace))


def leave_error(text: str) -> bool:
    """Write the error with which a command ends on this rank; False if it was not launched."""
    place = launched()
    return place is not None and leave_message(place[0], text)
