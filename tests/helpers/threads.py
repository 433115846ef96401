"""A communicator for threads of one process that stand for ranks, and one that exchanges as late as allowed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from backburn.communicators import Local
from backburn.communicators.local import Done


class Group:
    """What the threads of a communicator share: a slot per rank for the values exchanged, and a barrier."""

    def __init__(self, size: int) -> None:
        self.places: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)

    def exchanged(self, rank: int, value: Any) -> list[Any]:
        """The value of every thread; no thread continues before all have read them."""
        self.places[rank] = value
        self.barrier.wait(60)
        found = list(self.places)
        self.barrier.wait(60)
        return found


class Threads(Local):
    """The communicator of a thread. ``events`` records its exchanges, with the bytes sent to others."""

    def __init__(self, rank: int, group: Group) -> None:
        self.name = f"thread {threading.get_ident()}"  # buffers are cached by name; ranks must not share them
        self.rank = rank
        self.size = len(group.places)
        self.group = group
        self.events: list[tuple[str, int]] = []

    def _note(self, kind: str, send: Sequence[Any]) -> None:
        self.events.append((kind, sum(b.nbytes for r, b in enumerate(send) if r != self.rank)))

    def split(self, colors: Sequence[int]) -> Threads:
        mine = [r for r in range(self.size) if colors[r] == colors[self.rank]]
        group = Group(len(mine)) if self.rank == mine[0] else None
        found = self.group.exchanged(self.rank, group)[mine[0]]
        return type(self)(mine.index(self.rank), found)

    def all_gather(self, send: Any, receive: Sequence[Any]) -> None:
        self._note("all_gather", [send] * self.size)
        self._copy([send] * self.size, receive)

    def all_to_all(self, send: Sequence[Any], receive: Sequence[Any]) -> None:
        self._note("all_to_all", send)
        self._copy(send, receive)

    def start_all_to_all(self, send: Sequence[Any], receive: Sequence[Any]) -> Any:
        self._note("start", send)
        self._copy(send, receive)
        return Done()

    def _copy(self, send: Sequence[Any], receive: Sequence[Any]) -> None:
        rows = self.group.exchanged(self.rank, send)
        for buffer, row in zip(receive, rows, strict=True):
            buffer[...] = row[self.rank]
        self.group.barrier.wait(60)

    def broadcast(self, buffer: Any, root: int) -> None:
        buffer[...] = self.group.exchanged(self.rank, np.array(buffer))[root]

    def gather_objects(self, value: object) -> list[Any]:
        return self.group.exchanged(self.rank, value)

    def barrier(self) -> None:
        self.group.barrier.wait(60)


class Late(Threads):
    """A communicator that reads sent buffers only in ``wait``, like a slow network."""

    def start_all_to_all(self, send: Sequence[Any], receive: Sequence[Any]) -> Any:
        self._note("start", send)
        return _Late(self, send, receive)


class _Late:
    def __init__(self, comm: Late, send: Sequence[Any], receive: Sequence[Any]) -> None:
        self.comm, self.send, self.receive = comm, send, receive

    def wait(self) -> None:
        self.comm.events.append(("wait", 0))
        self.comm._copy(self.send, self.receive)


def on_threads(size: int, function: Callable[[Any], Any], kind: type[Threads] = Threads) -> list[Any]:
    """What ``function`` returns for the communicator of each of ``size`` threads."""
    group, found = Group(size), [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            found[rank] = function(kind(rank, group))
        except BaseException as error:
            errors.append(error)
            group.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    real = [e for e in errors if not isinstance(e, threading.BrokenBarrierError)]
    if errors:
        raise (real or errors)[0]
    return found
