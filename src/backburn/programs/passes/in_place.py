"""Updates: the calls at the end of a program that compute the new state, for backends that overwrite the old one.

Such a backend runs them in the state's memory, together, after all other calls of the replay. For other backends they
stay ordinary calls, with new memory for their results.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from backburn.programs.ir import Call, Program, Variable, arguments, listed, variables_in


class Place(NamedTuple):
    """A part of the state, by its number, as an operand of an update that may overwrite it."""

    number: int


@dataclass(frozen=True)
class Update:
    """A call of an optimizer's step, or of an element-wise formula, whose results nothing else in the program reads."""

    call: Call
    #: The call's operands, with a :class:`Place` for each part of the state that only this call reads for an update.
    operands: list[Any]
    #: The place of each result whose old value is such an operand; else None.
    places: list[int | None]
    #: The parameters, by number, whose gradient is a list ``[values, indices, length]`` in place of
    #: ``take_backward(values, indices, length, 0)``, which nothing else reads.
    gathered: frozenset[int]

    @property
    def results(self) -> list[Variable | None]:
        """The results in one list."""
        return listed(self.call.results)


class InPlaceUpdates(Protocol):
    """The updates of a program, which a backend runs in the memory of the state."""

    #: One number, nonzero once :meth:`run` has written since :meth:`begin`: no interrupt comes between the two.
    done: Sequence[int]

    @abstractmethod
    def begin(self, state: Sequence[Any], owned: Sequence[bool], held: Sequence[int]) -> None:
        """Prepare a replay that replaces this state.

        A part may be overwritten if it is ``owned`` (an earlier replay allocated it for an update of this program) and
        only ``state`` and ``held`` other references refer to it, which follow the state: anything that needs its old
        values holds another reference.
        """

    @abstractmethod
    def prepare(self, number: int, operands: Sequence[Any], attributes: dict[str, Any]) -> Sequence[tuple[Any, bool]]:
        """The results of an update, each with whether it is owned; :meth:`run` writes those that are.

        Anything that can fail happens here; the state is not written.
        """

    @abstractmethod
    def run(self) -> None:
        """Write all that was prepared. An interrupt comes before or after that; :attr:`done` tells which."""


class Donated:
    """The attribute ``donate`` of a recorded call: true in a replay that may overwrite the operand's memory."""

    __slots__ = ("is_free",)

    def __init__(self) -> None:
        self.is_free = False

    def __bool__(self) -> bool:
        return self.is_free


def donated_parts(program: Program) -> list[tuple[int, Donated]]:
    """The parts of the state, by number, that a call with ``donate`` replaces and nothing else reads."""
    results, kept = program.results, Counter(program.returned)
    reads = program.uses() - kept
    numbers = {v: i for i, v in enumerate(program.state)}
    found = []
    for call in program.calls:
        donated, old = call.attributes.get("donate"), call.operands[0] if call.operands else None
        if not isinstance(donated, Donated) or not isinstance(old, Variable) or old not in numbers:
            continue
        place, made = numbers[old], call.results
        if results[0][place] is made and (reads[old], kept[old], kept[made]) == (1, 0, 1):
            found.append((place, donated))
    return found


#: Operations that may be updates, with the operands, by number, that their lists of results renew.
STEPS: dict[str, tuple[int, ...]] = {"sgd_steps": (0, 2), "adam_steps": (0, 2, 3)}


def split_updates(program: Program, stays: Callable[[Call], bool]) -> tuple[list[Call], list[Update]]:
    """The calls that stay, including those for which ``stays`` is true, and the updates, which may all come after."""
    calls, state, results, constants = program.calls, program.state, program.results, program.constants
    places, new = {v: i for i, v in enumerate(state)}, results[0]
    reads = Counter(v for call in calls for v in call.reads)
    after = {made: i for i, made in enumerate(new) if isinstance(made, Variable)}
    last = [
        call
        for call in calls
        if (
            call.operation == "fuse"
            or (call.operation in STEPS and len(call.operands) == 1 + STEPS[call.operation][-1])
        )
        and not any(reads[v] for v in call.writes)
        and any(v in after for v in call.writes)
        and not stays(call)
    ]
    # One part may be an operand twice: the second read would see the new value.
    mentions = Counter(v for call in last for v in variables_in([call.operands, [*call.attributes.values()]]))
    kept = Counter(program.returned)
    makers = {call.results: call for call in calls if call.operation == "take_backward"}
    updates, gone = [], {id(call) for call in last}
    for call in last:
        found: list[int | None] = []
        for made, old in _pairs(call, state, after):
            fits = isinstance(made, Variable) and isinstance(old, Variable) and after.get(made) == places.get(old, -1)
            found.append(places[old] if fits and mentions[old] == kept[made] == 1 else None)
        mine = {state[i]: Place(i) for i in found if i is not None}
        operands: list[Any] = [_replaced(x, mine) for x in call.operands]
        gathered = set()
        if call.operation == "sgd_steps" and not any(call.attributes.get(n) for n in ("momentum", "weight_decay")):
            gradients = operands[1] = [*operands[1]]
            for i, v in enumerate(gradients):
                is_constant = not isinstance(v, Variable)
                maker = constants.get(id(v)) if is_constant else makers.get(v)
                if maker is None or arguments(maker)[3] != 0:
                    continue
                if is_constant or (reads[v] == 1 and not kept[v]):
                    gradients[i] = arguments(maker)[:3]
                    gathered.add(i)
                    gone.add(id(maker))
            if gathered:
                call = replace(call, operands=operands)  # a constant gradient is as large as the table
        updates.append(Update(call, operands, found, frozenset(gathered)))
    return [call for call in calls if id(call) not in gone], updates


def _pairs(call: Call, state: Sequence[Variable], after: dict[Any, int]) -> list[tuple[Any, Any]]:
    """Each result of a call that may be an update, and the operand that it renews, or None."""
    results = listed(call.results)
    if call.operation == "fuse":
        olds = [None if made not in after else state[after[made]] for made in results]
        return [(made, old if old in call.reads else None) for made, old in zip(results, olds, strict=True)]
    lists = [call.operands[i] if i < len(call.operands) else [] for i in STEPS[call.operation]]
    count = len(call.operands[0])
    olds = [old for given in lists for old in (given or [None] * count)]
    return [*zip(results, olds, strict=True)]


def _replaced(value: Any, others: dict[Variable, Any]) -> Any:
    """An operand with some variables replaced."""
    if isinstance(value, list):
        return [_replaced(x, others) for x in value]
    return others.get(value, value) if isinstance(value, Variable) else value
