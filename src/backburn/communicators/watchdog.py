"""The watchdog, which ends a job with a message if one of its processes fails.

A thread of each process checks periodically whether a collective waits too long, and answers the threads of other
processes that ask what this process does. It sends messages through a :class:`Post`, which the engine provides.

A process that ends tells all others how many collectives of each communicator it has begun. A process that waits for it
in a later collective aborts the job at once.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Protocol

from backburn.base.call_site import call_site
from backburn.base.errors import CommunicationError
from backburn.communicators.launching import FINISHED, STACK, STARTED, leave, leave_message, left

#: Seconds that a collective may wait.
TIMEOUT = 300.0
#: Seconds between two checks, and seconds to wait for answers of other processes.
TICK, PATIENCE = 0.2, 2.0
#: Seconds for mpiexec to forward a last message: when it ends its ranks, it may drop their latest output.
FORWARDING = 0.3
#: Subjects of messages.
ENDED, ASKED, ANSWERED = 1, 2, 3


class Post(Protocol):
    """Messages between the watchdogs of all processes; ranks are those of the whole job."""

    rank: int
    size: int

    def send(self, rank: int, about: int, message: object) -> None:
        """Send a small object, without waiting for its receiver."""
        ...

    def receive(self) -> tuple[int, int, Any] | None:
        """The sender, subject and object of a message that has arrived, if any."""
        ...

    def abort(self, status: int) -> NoReturn:
        """End all processes."""
        ...

    def finish(self) -> None:
        """Release the engine's resources; the last call."""
        ...


class Group(Protocol):
    """The part of a communicator that the watchdog uses."""

    #: The same for all its processes, and for no other communicator.
    key: str
    #: The ranks of its processes in the whole job.
    members: Sequence[int]
    timeout: float


class Wait(NamedTuple):
    """A collective, and the time since when it has been waited for."""

    group: Group
    number: int
    operation: str
    since: float

    def __str__(self) -> str:
        ranks = ", ".join(map(str, self.group.members[:8])) + (", ..." if len(self.group.members) > 8 else "")
        return f"{self.operation} (collective {self.number} of ranks {ranks})"


class State(NamedTuple):
    """Activity of a process: collectives begun per communicator, the one it waits in, and the line it executes."""

    begun: dict[str, int]
    waits: str | None
    line: str
    key: str | None = None
    number: int = 0


class Watchdog:
    """The watchdog of this process.

    ``waiting`` is the collective that the program is in, ``begun`` counts collectives per communicator.
    """

    def __init__(self, post: Post) -> None:
        """Start watching, until the interpreter ends."""
        self.post = post
        self.begun: dict[str, int] = {}
        self.waiting: Wait | None = None
        self.broken: str | None = None
        #: Seconds that a rank waits for the others when it has ended; the longest timeout of its communicators.
        self.timeout = 0.0
        self._process = os.getpid()
        self._program = threading.main_thread().ident
        self._ended: dict[int, State] = {}
        self._answers: dict[int, State] = {}
        self._stop = threading.Event()
        leave(STARTED, post.rank)
        if (stack := left(STACK, post.rank)) is not None and not faulthandler.is_enabled():
            faulthandler.enable(stack.open("wb", buffering=0), all_threads=False)
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self._say_goodbye)
        self._thread = threading.Thread(target=self._watch, name="backburn watchdog", daemon=True)
        self._hook = sys.excepthook
        if post.size > 1:
            sys.excepthook = self._uncaught
            self._thread.start()

    # ---- collectives ----

    def enter(self, group: Group, operation: str) -> int:
        """Note that a collective begins, and return its number."""
        if self.broken is not None:
            raise CommunicationError(f"{operation}: {self.broken}")
        number = self.begun[group.key] = self.begun.get(group.key, 0) + 1
        self.waiting = Wait(group, number, operation, time.monotonic())
        return number

    def waits(self, group: Group, operation: str, number: int) -> None:
        """Note that the program waits for a collective that it began earlier."""
        self.waiting = Wait(group, number, operation, time.monotonic())

    def interrupted(self, operation: str, error: BaseException) -> None:
        """Note that an exception ended a collective: later ones would not pair with those of other processes."""
        self.waiting = None
        self.broken = (
            f"a {type(error).__name__} interrupted {operation} before, so the ranks are out of step. End the program"
        )

    def _forked(self) -> None:
        self.waiting = None
        self.broken = "this process was forked from a rank and is not one. Communicate in the process that was launched"

    # ---- the thread ----

    def _watch(self) -> None:
        while not self._stop.wait(TICK):
            self._read()
            wait = self.waiting
            if wait is None:
                continue
            for rank in wait.group.members:
                if rank in self._ended and self._ended[rank].begun.get(wait.group.key, 0) < wait.number:
                    self._give_up(f"{wait} waits at {self._line()} for rank {rank}, whose program has ended")
            if time.monotonic() - wait.since > wait.group.timeout:
                self._report(wait)

    def _read(self) -> None:
        """Read the messages that have arrived, and answer them."""
        while (message := self.post.receive()) is not None:
            rank, about, content = message
            if about == ASKED:
                self.post.send(rank, ANSWERED, self._state())
            else:
                (self._ended if about == ENDED else self._answers)[rank] = State(*content)

    def _report(self, wait: Wait) -> None:
        """Report which ranks delay a collective, and end the job; return if the collective has gone on meanwhile."""
        others = [rank for rank in wait.group.members if rank != self.post.rank]
        self._answers.clear()
        for rank in others:
            self.post.send(rank, ASKED, None)
        last = time.monotonic() + PATIENCE
        while time.monotonic() < last and self.waiting is wait and len(self._answers) < len(others):
            self._read()
            time.sleep(TICK / 10)
        if self.waiting is not wait:
            return
        here = [
            rank for rank, state in self._answers.items() if (state.key, state.number) == (wait.group.key, wait.number)
        ]
        if any(rank < self.post.rank for rank in here):  # let the lowest waiting rank report it, unless it cannot
            self._stop.wait(2 * PATIENCE)
        elsewhere = []
        for rank in others:
            state = self._answers.get(rank)
            if state is None:
                elsewhere.append(f"rank {rank} does not answer")
            elif state.waits != str(wait):
                does = f"waits in {state.waits}" if state.waits else "waits for nobody"
                elsewhere.append(f"rank {rank} {does} at {state.line}")
        absent = "; ".join(elsewhere[:8]) + (f"; and {len(elsewhere) - 8} ranks more" if len(elsewhere) > 8 else "")
        self._give_up(
            f"{wait} has waited at {self._line()} for longer than its timeout of {wait.group.timeout:g} s, and "
            + (absent or "so have all its ranks: what they send and receive differs (check=true compares it)")
        )

    def _give_up(self, message: str, trace: str = "", status: int = 1) -> NoReturn:
        """End the job with a message, after a traceback; ``backburn launch`` prints them if it started this process."""
        if not leave_message(self.post.rank, message, trace):
            who = f"rank {self.post.rank} of {self.post.size}"
            print(f"{trace}backburn: {who}: {message}", file=sys.stderr, flush=True)
        time.sleep(FORWARDING)
        self.post.abort(status)

    def _state(self) -> State:
        wait = self.waiting
        known = (wait.group.key, wait.number) if wait else (None, 0)
        return State(dict(self.begun), None if wait is None else str(wait), self._line(), *known)

    def _line(self) -> str:
        """The innermost line outside of backburn that the program executes."""
        frame = sys._current_frames().get(self._program or 0)
        return call_site(frame) if frame is not None else "an unknown line"

    # ---- the end ----

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """End the job after an uncaught exception, since the other ranks would wait for this one."""
        if self._hook is not sys.__excepthook__ or os.getpid() != self._process:
            self._hook(kind, error, trace)
        if os.getpid() == self._process:
            shown = self._hook is not sys.__excepthook__
            lines = "" if shown else "".join(traceback.format_exception(kind, error, trace))
            status = 130 if issubclass(kind, KeyboardInterrupt) else 1
            self._give_up(f"ended by {kind.__name__}; the other ranks are ended, too", lines, status)

    def abort(self, message: str) -> NoReturn:
        """End the job with a message."""
        self._give_up(message)

    def _say_goodbye(self) -> None:
        """Tell the others that this program has ended, and wait for them to end."""
        if os.getpid() != self._process:
            return
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        begun = time.monotonic()
        state = State(dict(self.begun), None, "the end of its program")
        others = [rank for rank in range(self.post.size) if rank != self.post.rank]
        for rank in others:
            self.post.send(rank, ENDED, state)
        pause = 0.0005
        while any(rank not in self._ended for rank in others):
            self._read()
            time.sleep(pause)
            pause = min(2 * pause, TICK / 4)
            if time.monotonic() - begun > self.timeout:
                late = ", ".join(str(rank) for rank in others if rank not in self._ended)
                self._give_up(f"has ended, and ranks {late} have not for {self.timeout:g} s")
        self.post.finish()
        leave(FINISHED, self.post.rank)
