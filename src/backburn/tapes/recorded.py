"""The base class of the record tape and of the typed graph: a backend, a level of autodiff over it, and copies."""

from __future__ import annotations

from copy import copy
from typing import Any, ClassVar, NoReturn, Self

from backburn.autodiff.reverse import Autodiff
from backburn.backend.contract import AnyBackend
from backburn.base.errors import DTypeError, GraphError, OutOfRangeError
from backburn.tapes.values import as_copies, base_backend, index_of


class Recorded:
    """Values recorded one after another, each identified by its index."""

    #: Converts primitives of :attr:`backend` into the values that users receive.
    _hand_out: ClassVar[staticmethod[[Any, AnyBackend], Any]] = staticmethod(as_copies)
    #: The words that errors use for the recording and for one of its entries: "a tape", "slot".
    _words: ClassVar[tuple[str, str]]
    #: The advice of the error for pickling.
    _instead: ClassVar[str]

    def __init__(self, *, backend: AnyBackend | str | None = None) -> None:
        self.backend: Any = base_backend(backend)
        self._level: Any = Autodiff(self.backend)
        self._values: list[Any] = []

    def __copy__(self) -> Self:
        """A copy with copied lists, maps and sets; the values in them are replaced, never changed."""
        made = type(self).__new__(type(self))
        for name, value in vars(self).items():
            setattr(made, name, copy(value) if isinstance(value, (list, dict, set)) else value)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy, in which values are shared, since they never change."""
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        """Raise :class:`GraphError`: a recording cannot be pickled."""
        raise GraphError(f"{self._words[0]} cannot be pickled: store {self._instead}")

    def _index(self, where: str, index: Any) -> int:
        """``index`` as the index of an existing entry."""
        place, word = index_of(index), self._words[1]
        advice = f"input(x) makes a {word}"
        if place is None:
            raise DTypeError(f"{where}: expected the index of a {word}, not {type(index).__name__}. {advice}")
        if not 0 <= place < len(self._values):
            have = f"0 to {len(self._values) - 1}" if self._values else "none"
            whole = self._words[0].removeprefix("a ")
            raise OutOfRangeError(f"{where}: there is no {word} {place}; the {whole} has {have}. {advice}")
        return place
