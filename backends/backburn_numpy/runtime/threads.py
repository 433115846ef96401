"""The NumPy backend's thread pool, for work on large arrays.

NumPy releases the GIL while it computes, so parts of a large array can be computed in parallel. The pool is created
when first needed, and again in a forked child. ``BACKBURN_NUM_THREADS`` sets the number of threads, including the
caller's; the default is the number of processors that the process may use. ``backburn.set_num_threads`` changes it.

    >>> import numpy as np
    >>> squares = np.empty(3_000_000)
    >>> def work(start: int, stop: int) -> None:
    ...     np.square(np.arange(start, stop, dtype=np.float64), out=squares[start:stop])
    >>> parallel_for(work, squares.size)
    >>> float(squares[-1])
    8999994000001.0
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from queue import SimpleQueue

import numpy as np

from backburn.base.errors import ArgumentError
from backburn.base.threads import follow
from backburn_numpy import tuning
from backburn_numpy.runtime.processors import processors

Work = Callable[[int, int], None]
#: The exceptions of the parts that have ended, None for a part without one.
Outcomes = list[BaseException | None]
#: A part of some work, the list for its outcome, and the queue that wakes the thread that waits for it.
Task = tuple[Work, int, int, Outcomes, "SimpleQueue[None]"]

_lock = threading.Lock()
_pool: _Pool | None = None
_count: int | None = None
_inside = threading.local()


def num_threads() -> int:
    """The number of threads that work on a large array."""
    global _count
    if _count is None:
        _count = _from_environment()
    return _count


def available() -> int:
    """The number of threads that the calling thread may use: one, if it is itself a worker."""
    return 1 if hasattr(_inside, "worker") else num_threads()


def set_num_threads(count: int) -> None:
    """Let ``count`` threads work on a large array, 1 or more."""
    global _count, _pool
    with _lock:
        _count, old, _pool = count, _pool, None
    if old is not None:
        old.close()


def _from_environment() -> int:
    text = os.environ.get("BACKBURN_NUM_THREADS", "")
    if not text:
        return processors()
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentError(f"BACKBURN_NUM_THREADS={text!r}: a number of threads from 1 on is needed")
    return int(text)


class _Pool:
    """Threads that wait for tasks. A queue takes a tenth of the time of futures to hand work over and back."""

    def __init__(self, workers: int) -> None:
        self.workers, self.tasks = 0, SimpleQueue[Task | None]()
        with suppress(RuntimeError):  # the system allows no more
            while self.workers < workers:
                name = f"backburn-numpy-{self.workers}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                # A free-threaded Python would run it in the caller's context for good, `np.errstate` included.
                Context().run(thread.start)
                self.workers += 1

    def _serve(self) -> None:
        _inside.worker = True
        np.seterr(all="ignore")  # of this thread: the caller's `np.errstate` is not here
        while (task := self.tasks.get()) is not None:
            work, start, stop, outcomes, ended = task
            try:
                work(start, stop)
            except BaseException as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
            ended.put(None)
            del task, work, outcomes, ended  # an idle thread keeps nothing alive

    def close(self) -> None:
        """Let the threads exit after the queued tasks."""
        for _ in range(self.workers):
            self.tasks.put(None)


def _hand_over(tasks: list[Task]) -> bool:
    """Queue tasks for the pool while nobody can close it; False if it has no threads."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = _Pool(num_threads() - 1)
        if _pool.workers:
            for task in tasks:
                _pool.tasks.put(task)
        return _pool.workers > 0


def parallel_for(work: Work, size: int, worth: int = tuning.MIN_ELEMENTS_FOR_SECOND_THREAD, *, each: int = 0) -> None:
    """Call ``work(start, stop)`` for parts of ``range(size)``, in parallel if it pays.

    The parts are equal, at least ``worth`` / 2 long, and not empty; with ``each``, the elements that a kernel computes
    per item, ``worth`` follows from it. An exception in one of the parts is raised here once all have finished.
    """
    if each:
        worth = max(1, tuning.MIN_WORK_FOR_SECOND_THREAD // each)
    parts = 1 if size < worth else min(available(), size, 2 * size // worth)
    if parts == 1:
        work(0, size)
        return
    bounds = [size * i // parts for i in range(parts + 1)]
    outcomes: Outcomes = []
    ended = SimpleQueue[None]()
    if not _hand_over([(work, bounds[i], bounds[i + 1], outcomes, ended) for i in range(1, parts)]):
        work(0, size)
        return
    try:
        work(bounds[0], bounds[1])
    finally:
        _wait(ended, outcomes, parts - 1)
    for error in outcomes:
        if error is not None:
            raise error


def _wait(ended: SimpleQueue[None], outcomes: Outcomes, parts: int) -> None:
    """Wait until ``parts`` parts have ended, and only then raise what Ctrl-C raised meanwhile.

    They write into memory that the caller's error would free.
    """
    interrupt: BaseException | None = None
    while len(outcomes) < parts:
        try:
            ended.get()
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def _after_fork_in_child() -> None:
    """A child has none of its parent's threads, one of which may have held the lock."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

follow(set_num_threads)
