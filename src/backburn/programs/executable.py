"""``CompiledProgram``: runs the calls of a program, and its updates in the memory of the state."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

from backburn.base.module_calls import WATCHERS, replay_call
from backburn.programs import explanation, plan_text
from backburn.programs.ir import Program, Variable
from backburn.programs.passes.in_place import Donated, InPlaceUpdates
from backburn.programs.source import source_of

#: From the parts of a state and the counts of known references to each: whether there are no others.
IsUnshared = Callable[[Sequence[Any], Sequence[int]], list[bool]]


class CompiledProgram:
    """A program that is replayed: see :class:`backburn.backend.capturing.Executable`."""

    in_place = False

    def __init__(
        self,
        k: Any,
        program: Program,
        in_place: InPlaceUpdates | None = None,
        donated: Sequence[tuple[int, Donated]] = (),
        is_unshared: IsUnshared | None = None,
    ) -> None:
        """A program of calls of ``k``.

        ``in_place`` runs its updates. ``donated`` are parts of the state, by number, that calls may overwrite if
        unshared.
        """
        self.k = k
        self.program = program
        self.updates = updates = program.updates
        self.state: list[Any] = []
        self.launches = program.launches
        self._in_place = in_place
        self._is_unshared = is_unshared
        self._donated = donated
        made = {v: n for n, v in enumerate(v for update in updates for v in update.results) if v is not None}
        #: For the state and the outputs: the places that results of updates take, and the numbers of these results.
        self._puts = [
            [(i, made[v]) for i, v in enumerate(values) if isinstance(v, Variable) and v in made]
            for values in program.results
        ]
        results = [[None if isinstance(v, Variable) and v in made else v for v in x] for x in program.results]
        given = [[update.operands, [*update.call.attributes.values()]] for update in updates]
        self.source = source_of(program.calls, [program.state, program.inputs], [*results, given])
        #: Whether a replay allocated each part of the state.
        self._owned = [False] * len(program.state)
        self._lock = threading.Lock()
        _COMPILED.add(self)

    def set_state(self, place: int, value: Any) -> None:
        """Set a part of the state to a primitive, or None."""
        self.state[place] = value
        self._owned[place] = False

    def __call__(
        self, inputs: Sequence[Any], numbers: Sequence[float], release: Callable[[], list[int]] | None = None
    ) -> list[Any]:
        """Run the calls, then the updates, and replace the list :attr:`state`; returns the outputs."""
        if self._in_place is None and not self._donated:
            state, out, _ = self._run(inputs, numbers)
            self.state, self._owned = state, [False] * len(state)
            return out
        with self._lock:  # one replay at a time decides what it may overwrite
            return self._replay(inputs, numbers, release)

    def _run(self, inputs: Sequence[Any], numbers: Sequence[float]) -> Any:
        """Run the calls; returns the new state, the outputs, and the operands of the updates."""
        if not WATCHERS:
            return self.source.run(self.state, inputs, numbers)
        with replay_call():
            return self.source.run(self.state, inputs, numbers)

    def _replay(
        self, inputs: Sequence[Any], numbers: Sequence[float], release: Callable[[], list[int]] | None
    ) -> list[Any]:
        """Run the calls and the updates of a program that overwrites its state."""
        if self._donated and release is not None and self._is_unshared is not None:
            is_free = self._is_unshared(self.state, release())
            for place, donated in self._donated:
                donated.is_free = self._owned[place] and is_free[place]
        try:
            state, out, given = self._run(inputs, numbers)
        finally:
            for _, donated in self._donated:
                donated.is_free = False
        if self._in_place is None:
            self.state, self._owned = state, [False] * len(state)
        else:
            self._update(self._in_place, state, out, given, release)
        for place, _ in self._donated:
            self._owned[place] = True
        return out

    def _update(
        self,
        in_place: InPlaceUpdates,
        state: list[Any],
        out: list[Any],
        given: list[Any],
        release: Callable[[], list[int]] | None,
    ) -> None:
        """Run the updates, ``given`` operands and attributes; their results complete ``state`` and ``out``."""
        owned = [False] * len(state)
        if release is None:
            in_place.begin(self.state, owned, owned)
        else:
            held = release()
            in_place.begin(self.state, self._owned, held)
        made: list[tuple[Any, bool]] = []
        for number, (operands, values) in enumerate(given):
            attributes = dict(zip(self.updates[number].call.attributes, values, strict=True))
            made += in_place.prepare(number, operands, attributes)
        for place, i in self._puts[0]:
            state[place], owned[place] = made[i]
        for place, i in self._puts[1]:
            out[place] = made[i][0]
        try:
            in_place.run()
        finally:
            if in_place.done[0]:
                self.state, self._owned = state, owned

    def failed(self, error: BaseException) -> tuple[str, list[Any], dict[str, Any]] | None:
        """The operation whose call raised ``error`` in a replay, with its operands and attributes."""
        return explanation.failed(self, CompiledProgram._update.__code__, error)

    def plan(self) -> str:
        """The passes over memory as text, and why other calls are in none."""
        return plan_text.plan_of(self)

    def __str__(self) -> str:
        """The program as text: a call on each line, and what became of it."""
        return explanation.text_of(self)


#: All programs, for a forked child to renew their locks: a thread of the parent may have held one.
_COMPILED: WeakSet[CompiledProgram] = WeakSet()


def _after_fork_in_child() -> None:
    for one in _COMPILED:
        one._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
