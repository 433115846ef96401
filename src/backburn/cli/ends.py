"""The message of ``backburn launch`` about a job that failed: how its ranks ended."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import NamedTuple

from backburn.communicators.launching import ENDED, FINISHED, MESSAGE, STACK, STARTED, Ended, Message

#: Explanations of signals.
_SIGNALS = {"SIGKILL": ", as the system does with processes that take too much memory"}
#: The lines of a stack that are shown.
MOST_LINES = 12


class Ends(NamedTuple):
    """The contents of the files that the ranks have written."""

    folder: Path
    ranks: int
    messages: dict[int, Message]
    ended: dict[int, Ended]

    def has(self, fact: str, rank: int) -> bool:
        """Whether a rank has recorded a fact."""
        return (self.folder / f"{fact}-{rank}").exists()

    def failed(self) -> list[int]:
        """The ranks that failed without a message: first those ended by SIGKILL, then in the order in which they ended.

        A rank that the launcher kills writes no note, so SIGKILL is a cause, even if another rank that noticed it was
        faster to note its own end.
        """
        found = [rank for rank in self.ended if rank not in self.messages and self.is_failure(rank)]
        return sorted(found, key=lambda rank: (not self.is_killed(rank), self.ended[rank].time))

    def is_killed(self, rank: int) -> bool:
        """Whether SIGKILL ended a rank."""
        return self.ended[rank].status == -9

    def is_failure(self, rank: int) -> bool:
        """Whether a rank ended by a signal, with a status, or silently while it communicated."""
        return self.ended[rank].status != 0 or (self.has(STARTED, rank) and not self.has(FINISHED, rank))

    def status(self, of_mpiexec: int) -> int:
        """The exit status of the job: that of mpiexec, or if it reports success, of the rank that failed."""
        if of_mpiexec:
            return of_mpiexec if of_mpiexec > 0 else 128 - of_mpiexec
        failed = self.failed()
        if not failed:
            return 1 if self.messages else 0
        return max(1, self.ended[failed[0]].status)


def read_ends(folder: Path, ranks: int) -> Ends:
    """Read the files that the ranks have written to a folder."""
    messages, ended = {}, {}
    for rank in range(ranks):
        if (file := folder / f"{MESSAGE}-{rank}").exists():
            messages[rank] = Message(*json.loads(file.read_text("utf-8")))
        if (file := folder / f"{ENDED}-{rank}").exists():
            ended[rank] = Ended(*json.loads(file.read_text("utf-8")))
    return Ends(folder, ranks, messages, ended)


def words(ends: Ends, of_mpiexec: int) -> list[str]:
    """The lines to print: the end of the rank that failed first, and the messages of ranks, the earliest first.

    Ranks that fail after the first one are ended by the launcher, and are not named.
    """
    failed, said = ends.failed(), sorted(ends.messages.items(), key=lambda entry: entry[1].time)
    found = []
    if failed and (ends.is_killed(failed[0]) or not said or ends.ended[failed[0]].time <= said[0][1].time):
        found.append(_end(ends, failed[0]))
    together: dict[tuple[str, str], list[int]] = {}
    for rank, message in said:
        together.setdefault((message.trace, message.text), []).append(rank)
    for (trace, text), own in together.items():
        found.append(f"{trace}backburn: {_named(sorted(own))} of {ends.ranks}: {text}")
    if not found and of_mpiexec:
        silent = [rank for rank in range(ends.ranks) if rank not in ends.ended]
        who = f", and {_named(silent)} of {ends.ranks} left no trace" if silent else ""
        found.append(f"backburn launch: mpiexec ended with status {of_mpiexec}{who}")
    return found


def _end(ends: Ends, rank: int) -> str:
    """A description of the end of a rank without a message."""
    status, who = ends.ended[rank].status, f"backburn launch: rank {rank} of {ends.ranks}"
    if status < 0:
        name = _signal(-status)
        stack = ends.folder / f"{STACK}-{rank}"
        lines = stack.read_text("utf-8", "replace").splitlines()[:MOST_LINES] if stack.exists() else []
        return "\n".join([f"{who} was killed by {name}{_SIGNALS.get(name, '')}", *lines])
    if ends.has(STARTED, rank) and not ends.has(FINISHED, rank):
        left = f"{who} left with status {status} before its program had come to its end: by os._exit"
        return (
            left
            if not status
            else (
                f"{left}, or by a library in C, as MPI does after an error that it prints. Ranks that are out of "
                f"step are one cause: check=true compares what they do"
            )
        )
    return f"{who} ended with status {status}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a number without a name
        return f"signal {number}"


def _named(ranks: list[int]) -> str:
    """Ranks as text."""
    return f"rank {', '.join(map(str, ranks[:8]))}{', ...' if len(ranks) > 8 else ''}"
