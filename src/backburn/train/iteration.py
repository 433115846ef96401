"""``Iteration``: the batches of a run in order, and the position in the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from backburn.base.errors import ArgumentError, BackburnError, FileFormatError
from backburn.train.batches import batches_of
from backburn.train.positions import has_position, iterator_at, position_of
from backburn.train.states import MISFITS

#: Returned in place of a batch when the data have ended.
END: Final = object()


class Iteration:
    """Passes over data; a resumed one continues where the saved one stopped.

    ``note`` prints that the position in the data cannot be saved, or is None if nothing is saved.
    """

    def __init__(self, note: Callable[[str], None] | None) -> None:
        #: The number of passes begun, and the position at which to continue.
        self.passes = 0
        self.position: Any = None
        self._note = note
        self._iterator: Iterator[Any] | None = None
        self._is_empty = False

    def next_batch(self, data: Any, epoch: int, *, again: bool) -> Any:
        """The next batch, or :data:`END`; with ``again``, data that have ended start over, in a new pass.

        Raises :class:`ArgumentError` for data that end without a batch.
        """
        while True:
            if self._iterator is None:
                self._begin(data, epoch, again)
                assert self._iterator is not None
            batch = next(self._iterator, END)
            if batch is not END:
                self._is_empty = False
                return batch
            if self._is_empty:
                raise _exhausted(data, epoch, self.passes > 1)
            if not again:
                return END
            self._iterator = None

    def end(self) -> None:
        """Let the next batch be the first of the data."""
        self._iterator = None

    def go_on(self, passes: int, position: Any) -> None:
        """Let the next batch be the one at a saved position."""
        self.passes, self.position, self._iterator = passes, position, None

    def has_position(self, data: Any) -> bool:
        """Whether a pass has begun over data whose position can be saved."""
        return self._iterator is not None and has_position(data, self._iterator)

    def position_in(self, data: Any) -> Any:
        """The position in the data as a tree of plain values; None if no pass has begun."""
        return None if self._iterator is None else position_of(data, self._iterator)

    def _begin(self, data: Any, epoch: int, again: bool) -> None:
        position, self.position = self.position, None
        self._is_empty = position is None
        self.passes += self._is_empty
        number = self.passes if again else epoch
        try:
            self._iterator = iterator_at(data, lambda: batches_of(data, number), position)
        except MISFITS as error:
            if position is None or isinstance(error, BackburnError):
                raise
            raise FileFormatError(f"the saved position in the data does not fit a {type(data).__name__}") from error
        if self._note is not None and number == 1 and position is None and not self.has_position(data):
            self._note(
                f"note: the position in the data, a {type(data).__name__}, cannot be saved: a run that is killed "
                f"goes on at the beginning of an epoch"
            )


def _exhausted(data: Any, epoch: int, had_some: bool) -> ArgumentError:
    kind = type(data).__name__
    once = iter(data) is data if hasattr(data, "__iter__") else False
    if once and had_some:
        return ArgumentError(
            f"fit: the data have no batch left in epoch {epoch}: a {kind} can be iterated over only once. Pass "
            f"data that can be iterated over again, or a function of the epoch's number that returns them"
        )
    return ArgumentError(f"fit: the data, a {kind}, have no batch in epoch {epoch}")
