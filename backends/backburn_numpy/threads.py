"""The threads of the NumPy backend: one small pool for work on large arrays.

NumPy lets other Python threads run while it computes, so that halves of a large array can be computed at once. The
pool is made when first needed and again in a forked child. ``BACKBURN_NUM_THREADS`` sets the number of threads, the
caller's own included; without it, it is the number of processors that the process may use.

    >>> import numpy as np
    >>> squares = np.empty(3_000_000)
    >>> def work(start: int, stop: int) -> None:
    ...     np.square(np.arange(start, stop, dtype=np.float64), out=squares[start:stop])
    >>> for_parts(work, squares.size)
    >>> float(squares[-1])
    8999994000001.0
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from backburn.base.errors import ArgumentError

#: Below so many elements a second thread costs more than it brings.
WORTH_A_THREAD = 1 << 20

Work = Callable[[int, int], None]
#: A part of some work, and where it is told that it has ended: None, or what it raised.
Task = tuple[Work, int, int, "SimpleQueue[BaseException | None]"]

_lock = threading.Lock()
_pool: _Pool | None = None
_count: int | None = None
_inside = threading.local()


def num_threads() -> int:
    """How many threads work on a large array."""
    global _count
    if _count is None:
        _count = _from_environment()
    return _count


def available() -> int:
    """How many threads may work on an array of the caller's: one, if the caller is itself one of several."""
    return 1 if hasattr(_inside, "worker") else num_threads()


def set_num_threads(count: int) -> None:
    """Let ``count`` threads work on a large array. Raises :class:`ArgumentError` below 1."""
    global _count, _pool
    if count < 1:
        raise ArgumentError(f"set_num_threads: at least one thread computes, not {count}")
    with _lock:
        _count, old, _pool = count, _pool, None
    if old is not None:
        old.close()


def _from_environment() -> int:
    text = os.environ.get("BACKBURN_NUM_THREADS", "")
    if not text:
        affinity = getattr(os, "sched_getaffinity", None)
        return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentError(f"BACKBURN_NUM_THREADS={text!r}: a number of threads from 1 on is needed")
    return int(text)


class _Pool:
    """Threads that wait for tasks. Futures would take ten times as long to hand over and back as a queue."""

    def __init__(self, workers: int) -> None:
        self.workers, self.tasks = workers, SimpleQueue[Task | None]()
        for number in range(workers):
            threading.Thread(target=self._serve, name=f"backburn-numpy-{number}", daemon=True).start()

    def _serve(self) -> None:
        _inside.worker = True
        while (task := self.tasks.get()) is not None:
            work, start, stop, ended = task
            try:
                work(start, stop)
            except BaseException as error:
                ended.put(error)
            else:
                ended.put(None)
            del task, work, ended  # a thread that waits keeps nothing alive

    def close(self) -> None:
        """Let the threads end when their tasks have."""
        for _ in range(self.workers):
            self.tasks.put(None)


def _workers(count: int) -> _Pool:
    global _pool
    with _lock:
        if _pool is None:
            _pool = _Pool(count)
        return _pool


def for_parts(work: Work, size: int, worth: int = WORTH_A_THREAD) -> None:
    """Call ``work(start, stop)`` for parts that make up ``range(size)``, at once in several threads if it pays.

    The parts are equal, at least ``worth`` / 2 long, and none is empty. What one of them raises is raised here when all
    have ended.
    """
    parts = 1 if size < worth else min(available(), size, 2 * size // worth)
    if parts == 1:
        work(0, size)
        return
    bounds = [size * i // parts for i in range(parts + 1)]
    tasks, ended = _workers(num_threads() - 1).tasks, SimpleQueue[BaseException | None]()
    for i in range(1, parts):
        tasks.put((work, bounds[i], bounds[i + 1], ended))
    try:
        work(bounds[0], bounds[1])
    finally:
        errors = [ended.get() for _ in range(1, parts)]
    for error in errors:
        if error is not None:
            raise error


def _after_fork_in_child() -> None:
    """A child has none of its parent's threads, and the lock may have been held by one of them."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
