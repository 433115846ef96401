"""Reading ahead: a thread takes batches while the previous step computes."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from backburn.base.errors import ArgumentError, Unsupported
from backburn.hints.arguments import explained
from backburn.tensor.core.options import integer

B = TypeVar("B")


@explained
def prefetch(data: Iterable[B], size: int = 2) -> Prefetch[B]:
    """Let a thread take up to ``size`` batches of ``data`` ahead of the loop that uses them.

    The thread reads, decodes or waits, which Python runs concurrently with computations; batches and their order stay
    the same. An error that ``data`` raises is raised at its batch, after those before it. The thread ends with the
    data, or when the loop is left. If the iterator of ``data`` has ``get_state`` and ``set_state``, so has that of the
    result, and its state is that of the batches handed out, not of those taken ahead. ``len`` and ``set_epoch`` are
    those of ``data``. Raises :class:`ArgumentError` for what cannot be iterated over, or a size below 1.

        >>> [batch for batch in prefetch(range(5))]
        [0, 1, 2, 3, 4]
    """
    given: object = data
    if not isinstance(given, Iterable) and not hasattr(given, "__getitem__"):
        raise ArgumentError(f"prefetch: takes an iterable of batches, not {data!r:.60}")
    kind: type[Prefetch[B]] = SizedPrefetch if hasattr(given, "__len__") else Prefetch
    return kind(data, integer("prefetch", "size", size, least=1))


class Prefetch(Iterable[B], Generic[B]):
    """The result of :func:`prefetch`."""

    def __init__(self, data: Iterable[B], size: int) -> None:
        """Take ``size`` batches of ``data`` ahead."""
        self._data: Any = data
        self._size = size

    def __iter__(self) -> PrefetchIterator[B]:
        iterator = iter(self._data)
        kind: type[PrefetchIterator[B]] = StatefulIterator if hasattr(iterator, "get_state") else PrefetchIterator
        return kind(iterator, self._size)

    def set_epoch(self, epoch: int) -> None:
        """Pass the number of the epoch to the data, if they take it."""
        if hasattr(self._data, "set_epoch"):
            self._data.set_epoch(epoch)

    def describe(self) -> dict[str, Any]:
        """The description of the data."""
        return dict(self._data.describe()) if hasattr(self._data, "describe") else {}


class SizedPrefetch(Prefetch[B]):
    """The result of :func:`prefetch` for data that have a length."""

    def __len__(self) -> int:
        return len(self._data)


class PrefetchIterator(Iterator[B], Generic[B]):
    """The iterator over :class:`Prefetch`. Its thread starts with the first batch."""

    def __init__(self, iterator: Any, size: int) -> None:
        self._iterator = iterator
        self._size = size
        self._ahead: _Ahead | None = None
        self._ended = False
        #: The state of the data after the last batch that was handed out, if they have one.
        self._state: Any = iterator.get_state() if hasattr(iterator, "get_state") else None

    def __next__(self) -> B:
        if self._ended:
            raise StopIteration
        if self._ahead is None:
            self._ahead = _Ahead(self._iterator, self._size)
            weakref.finalize(self, self._ahead.stop)
        batch, state, error = self._ahead.get()
        if error is not None:
            self._ended = True
            self._ahead = None
            if isinstance(error, StopIteration):
                raise StopIteration
            raise error
        self._state = state
        found: B = batch
        return found


class StatefulIterator(PrefetchIterator[B]):
    """The iterator over data whose iterator has a state."""

    def get_state(self) -> Any:
        """The state of the data after the last batch that was handed out."""
        return self._state

    def set_state(self, state: Any) -> None:
        """Continue from a state; batches taken ahead are dropped."""
        if self._ahead is not None:
            self._ahead.stop(wait=True)
        self._iterator.set_state(state)
        self._ahead, self._state, self._ended = None, state, False


class _Ahead:
    """Batches taken ahead by a thread. It refers to no iterator of the user, so that leaving a loop ends it."""

    def __init__(self, iterator: Iterator[Any], size: int) -> None:
        self._found: deque[tuple[Any, Any, BaseException | None]] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self._size = size
        # The thread runs in the contexts of the loop, such as that of a default backend.
        run, given = copy_context().run, (self._run, iterator)
        self._thread = threading.Thread(target=run, args=given, name="backburn.prefetch", daemon=True)
        self._thread.start()

    def get(self) -> tuple[Any, Any, BaseException | None]:
        """The next batch, the state of the data after it, and an error that came in its place."""
        with self._changed:
            while not self._changed.wait_for(lambda: self._found, timeout=1.0):
                if not self._thread.is_alive():
                    raise Unsupported(
                        "prefetch: the thread is gone, as in a process that was forked from the one that began to "
                        "iterate: begin in the process that uses the batches"
                    )
            found = self._found.popleft()
            self._changed.notify()
        return found

    def stop(self, wait: bool = False) -> None:
        """Let the thread end after its current batch."""
        with self._changed:
            self._stopped = True
            self._found.clear()
            self._changed.notify_all()
        if wait:
            self._thread.join()

    def _run(self, iterator: Iterator[Any]) -> None:
        state_of = getattr(iterator, "get_state", None)
        error: BaseException | None = None
        while error is None:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or len(self._found) < self._size)
                if self._stopped:
                    return
            batch = state = None
            try:
                batch = next(iterator)
                state = state_of() if state_of is not None else None
            except BaseException as raised:  # raised in the loop, even if it would end a thread
                error = raised
            with self._changed:
                if not self._stopped:
                    self._found.append((batch, state, error))
                self._changed.notify()
            del batch, state  # only the loop keeps them
