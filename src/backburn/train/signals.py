"""Ending a run by a signal: the step is finished and saved first."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Terminated(KeyboardInterrupt):
    """The process was asked to end (SIGTERM), as a batch system does before it kills."""


@contextmanager
def interruptible(stop: Callable[[str], None]) -> Iterator[Callable[[], KeyboardInterrupt | None]]:
    """A context in which Ctrl-C and SIGTERM call ``stop`` with the reason; a second signal raises at once.

    Yields a function that returns the error to raise after the block has saved its work: None without a signal, else
    :class:`KeyboardInterrupt` or :class:`Terminated`. Only the main thread handles signals; in others nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    found: list[KeyboardInterrupt] = []

    def handle(number: int, frame: object) -> None:
        raised: KeyboardInterrupt = Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
        if found:
            raise raised
        found.append(raised)
        print(
            "\ninterrupted: saving after this step; a second signal ends the run at once", file=sys.stderr, flush=True
        )
        stop(f"interrupted by {signal.Signals(number).name}")

    before: dict[int, Any] = {}
    for number in (int(signal.SIGINT), int(signal.SIGTERM)):
        if signal.getsignal(number) not in (None, signal.SIG_IGN):  # as under nohup, or a handler of another language
            before[number] = signal.signal(number, handle)
    try:
        yield lambda: found[0] if found else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
