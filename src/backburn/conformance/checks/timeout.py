"""A time limit for code in this process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Seconds after which the exception is raised again if it was swallowed.
AGAIN = 1.0


class OutOfTime(BaseException):
    """The limit has passed. Not an Exception, so that a backend that catches these does not swallow it."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise :class:`OutOfTime` inside the block once it has run for ``seconds``.

    It uses the timer of the process and SIGALRM. There is no limit if ``seconds`` is None, if the system has no such
    timer, off the main thread, and if anything else uses the signal or the timer. A function written in C is
    interrupted only when it returns.
    """
    if seconds is None or not can_limit():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise OutOfTime(f"took more than {seconds:g} s and was stopped")

    previous = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def can_limit() -> bool:
    """Whether this thread can be interrupted by a timer that nothing else uses."""
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    )
