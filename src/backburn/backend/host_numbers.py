"""Values that a recorded program needs from the host at each replay.

A captured step (:func:`backburn.capture`) runs its Python code once and is then replayed by the backend. Host code that
changes from step to step (the learning rate of a schedule, an optimizer's counter, the offset of a random draw) must
still run. While a step is recorded, :data:`RECORDING_STEP` holds a :class:`Recording`; such values are made with
:meth:`Recording.number`, and the backend binds each to a location on its device that is written before each replay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any
from weakref import ReferenceType, ref

from backburn.base.errors import CaptureError


class ReplayedFloat(float):
    """A float whose value is replaced at each replay; ``place`` is its index in the recording.

    Numbers computed from it in Python are ordinary and would be frozen: a recording backend uses it unchanged, or
    refuses to record.
    """

    place: int


class ReplayedInt(int):
    """An integer whose value is replaced at each replay; see :class:`ReplayedFloat`."""

    place: int


class Overwritten(Exception):
    """The step reads state after overwriting it: it must be recorded without overwriting."""


#: Two functions: one reads the state that a host function changes, the other restores it.
Kept = tuple[Callable[[], Any], Callable[[Any], None]]
#: The contents of an array on the host: dtype, shape, and elements.
Contents = tuple[Any, tuple[int, ...], bytes]
#: The most bytes of an array that counts as a constant of a recorded step; a larger one is data.
LARGEST_CONSTANT = 1 << 20


class Recording:
    """The numbers of one recorded program, in the order in which the host computes them."""

    def __init__(self, constants: Collection[Contents] = (), overwrites: bool = True) -> None:
        """A recording without numbers, of a step that took these arrays from the host when it last ran.

        With ``overwrites``, new parameters may overwrite the state, unless it is read later.
        """
        self.host_constants = constants
        self.overwrites = overwrites
        #: The host's functions, in order.
        self._host: list[Callable[[], Any]] = []
        #: The state that they change: its reader, its writer, and its value before the present step.
        self._kept: list[Kept] = []
        self._before: list[Any] = []
        self._numbers: list[tuple[int, type]] = []
        #: The places of the numbers that the backend has bound.
        self.bound: set[int] = set()
        #: The results of the host's functions in this step.
        self._results: list[Any] = []
        self._assumed: list[Callable[[], bool]] = []
        #: Objects whose state this recording sets or has assumed.
        self.known: list[object] = []
        #: The error that made the recording invalid, even if the step caught it and went on.
        self.refused: CaptureError | None = None

    def number(self, advance: Callable[[], Any], kept: Kept | None = None) -> Any:
        """The present result of ``advance()``, which is called again before each replay, as a number.

        ``kept`` reads what ``advance`` changes, and restores it if the step is interrupted, even within ``advance``.
        """
        value = self._first(advance, kept)
        kind = ReplayedInt if isinstance(value, int) else ReplayedFloat
        number = kind(value)
        number.place = len(self._numbers)
        self._numbers.append((len(self._host) - 1, kind))
        return number

    def derived(self, formula: Callable[..., tuple[float, ...]], *numbers: float) -> tuple[float, ...]:
        """``formula(*numbers)``, recomputed before each replay from the numbers' new values."""
        places = [self.bind(x) for x in numbers]

        def now(i: int) -> float:
            given = (
                x if p is None else self._results[self._numbers[p][0]] for x, p in zip(numbers, places, strict=True)
            )
            return formula(*given)[i]

        return tuple(self.number(partial(now, i)) for i in range(len(formula(*numbers))))

    def host(self, advance: Callable[[], Any], kept: Kept | None = None) -> None:
        """Run ``advance()`` now and before each replay, in order with the numbers; for ``kept`` see :meth:`number`."""
        self._first(advance, kept)

    def assume(self, holds: Callable[[], bool]) -> None:
        """Assume ``holds()``, which is checked before each replay."""
        self._assumed.append(holds)

    @property
    def holds(self) -> bool:
        """Whether all assumptions still hold."""
        for holds in self._assumed:  # noqa: SIM110 (a generator costs a call per item)
            if not holds():
                return False
        return True

    def _first(self, advance: Callable[[], Any], kept: Kept | None) -> Any:
        """The result of one of the host's functions in the step that is recorded."""
        if kept is not None:
            self._before.append(kept[0]())
            self._kept.append(kept)
        result = advance()
        self._results.append(result)
        self._host.append(advance)
        return result

    def bind(self, value: Any) -> int | None:
        """The place of a number of this recording, which is then marked as bound; None for an ordinary number."""
        if not isinstance(value, ReplayedFloat | ReplayedInt):
            return None
        self.bound.add(value.place)
        return value.place

    def refuse(self, error: CaptureError) -> CaptureError:
        """``error``, to raise; the recording is invalid from now on."""
        self.refused = error
        return error

    @property
    def unbound(self) -> int:
        """How many numbers the backend has not bound: their values would be frozen."""
        return len(self._numbers) - len(self.bound)

    def advance(self) -> list[float]:
        """Run the host's part of one more step; returns each number's value, by place. A failure changes nothing."""
        results, before = self._results, list[Any]()
        results.clear()
        for read, _ in self._kept:
            before.append(read())
        self._before = before
        try:
            for advance in self._host:
                results.append(advance())
            numbers = []
            for i, _ in self._numbers:
                numbers.append(results[i])
            return numbers
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Undo the host's part of this step, even if it is incomplete: restore each value."""
        for (_, put), value in zip(reversed(self._kept), reversed(self._before), strict=True):
            put(value)


def contents(array: Any) -> Contents:
    """The contents of a NumPy array."""
    return array.dtype, array.shape, array.tobytes()


#: The recording in progress, if there is one.
RECORDING_STEP: ContextVar[Recording | None] = ContextVar("backburn_recording_step", default=None)
#: The arrays that a step takes from the host in its uncaptured run before the recording.
HOST_CONSTANTS: ContextVar[set[Contents] | None] = ContextVar("backburn_host_constants", default=None)


#: The objects that replay recorded programs; the attribute ``state`` has the primitives that a replay overwrites.
_PLAYERS: list[ReferenceType[Any]] = []


def register_player(player: Any) -> None:
    """Register an object that replays a recorded program, for its lifetime."""
    _PLAYERS[:] = [*(known for known in _PLAYERS if known() is not None), ref(player)]


def overwritten_ids() -> set[int]:
    """The identities of all primitives that replays overwrite."""
    return {id(held) for known in _PLAYERS if (player := known()) is not None for held in player.state}


class HasState(ABC):
    """An object, such as an optimizer, that keeps tensors from step to step but is not a tree."""

    @abstractmethod
    def state_tensors(self) -> Mapping[str, Any]:
        """The tensors by name."""

    @abstractmethod
    def held_tensors(self) -> Sequence[Any]:
        """The object's own tensors, in the order of :meth:`state_tensors`: a replay writes their primitives."""

    @abstractmethod
    def load_tensors(self, tensors: Mapping[str, Any], owned: bool) -> None:
        """Replace the tensors under the same names; ``owned`` if their memory may be overwritten."""
