"""Programs: the calls of a recorded step, their variables, and functions for passes over them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backburn.base.dtypes import DType
from backburn.ops.table import OPERATIONS


@dataclass(eq=False, slots=True)
class Variable:
    """A value that differs from replay to replay: a part of the state, an input, or the result of a call."""

    index: int
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True)
class Number:
    """A number that may change between replays, by its place in the recording."""

    place: int


@dataclass(eq=False, slots=True)
class Call:
    """A call of the wrapped backend, on constants, variables, numbers, and lists with these.

    ``results`` has one variable, or a list of them; None stands for a result that was known before.
    """

    operation: str
    function: Callable[..., Any]
    operands: list[Any]
    attributes: dict[str, Any]
    results: Any

    #: The variables among operands and attributes, and among the results.
    reads: frozenset[Variable] = field(init=False)
    writes: frozenset[Variable] = field(init=False)

    def __post_init__(self) -> None:
        given = variables_in(self.operands)
        self.reads = frozenset([*given, *variables_in(self.attributes.values())] if self.attributes else given)
        is_one = self.results.__class__ is Variable
        self.writes = frozenset((self.results,) if is_one else variables_in((self.results,)))


@dataclass(eq=False)
class Program:
    """The calls of a step, its input variables, and its results.

    ``results`` are the new state and the outputs: variables and constants. ``constants`` has calls of ``take_backward``
    with constant results, by the ids of these.
    """

    calls: list[Call]
    state: list[Variable]
    inputs: list[Variable]
    results: list[list[Any]]
    constants: Mapping[int, Call] = field(default_factory=dict)
    #: Whether calls may be joined, which may round differently.
    joins: bool = True
    #: The calls that a backend runs last, in the state's memory (:class:`backburn.programs.passes.in_place.Update`).
    updates: Sequence[Any] = ()
    #: The number of calls before backends turn some into native programs and updates.
    launches: int = 0
    #: Remarks for people, by the call: how it was joined or compiled, or why not.
    notes: dict[Call, str] = field(default_factory=dict)
    #: The report of how calls were joined (:class:`backburn.programs.fusion.replacement.Report`), or None.
    fusion: Any = None

    def __post_init__(self) -> None:
        self._next = 1 + max((v.index for v in self._variables()), default=-1)

    def _variables(self) -> list[Variable]:
        made = [v for call in self.calls for v in (*call.reads, *call.writes)]
        return [*self.state, *self.inputs, *self.returned, *made]

    @property
    def returned(self) -> list[Variable]:
        """The variables that the program returns, or gives to its updates."""
        given = [[update.operands, [*update.call.attributes.values()]] for update in self.updates]
        return variables_in([*self.results, *given])

    def variable(self, shape: tuple[int, ...], dtype: DType) -> Variable:
        """A new variable."""
        self._next += 1
        return Variable(self._next - 1, shape, dtype)

    def makers(self) -> dict[Variable, Call]:
        """The call that computes each variable; the state and the inputs have none."""
        return {v: call for call in self.calls for v in call.writes}

    def users(self) -> dict[Variable, list[Call]]:
        """The calls that read each variable."""
        found = defaultdict[Variable, list[Call]](list)
        for call in self.calls:
            for v in call.reads:
                found[v].append(call)
        return found

    def uses(self) -> Counter[Variable]:
        """How often each variable is an operand or an attribute, or is returned."""
        given = [[call.operands, [*call.attributes.values()]] for call in self.calls]
        return Counter([*self.returned, *variables_in(given)])

    def remove_unused(self) -> None:
        """Keep the calls whose results are used."""
        used, found = set(self.returned), []
        for call in reversed(self.calls):
            if not used.isdisjoint(call.writes):
                used |= call.reads
                found.append(call)
        self.calls = found[::-1]


#: A function from a program and the backend of its calls to the calls of a program that computes the same.
Pass = Callable[[Program, Any], list[Call]]


def rewrite(program: Program, k: Any, passes: Iterable[Pass]) -> None:
    """Rewrite a program by passes, one after the other; those that change nothing return the same list."""
    for one in passes:
        calls = one(program, k)
        if calls is not program.calls:
            program.calls = calls
            program.remove_unused()
    program.launches = len(program.calls)


def listed(results: Any) -> list[Any]:
    """The results of a call in one list."""
    return results if isinstance(results, list) else [results]


def variables_in(nested: Iterable[Any]) -> list[Variable]:
    """The variables among values and in lists of them."""
    return _of_class(Variable, nested)


def numbers_in(nested: Iterable[Any]) -> list[Number]:
    """The numbers of the recording among values and in lists of them."""
    return _of_class(Number, nested)


def _of_class(kind: type[Any], nested: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in nested:
        if value.__class__ is kind:
            found.append(value)
        elif value.__class__ is list:
            found += _of_class(kind, value)
    return found


def arguments(call: Call) -> list[Any]:
    """The operands of an operation's call, and its attributes in their order."""
    if not call.attributes:
        return call.operands
    parameters = [*OPERATIONS[call.operation].parameters.values()][len(call.operands) :]
    return [*call.operands, *(call.attributes.get(p.name, p.default) for p in parameters)]


def varies(value: Any) -> bool:
    """Whether ``value`` is or contains a variable or a number of the recording."""
    kind = value.__class__
    return any(map(varies, value)) if kind is list else kind is Variable or kind is Number


def ordered(
    wanted: Iterable[Variable],
    makers: Mapping[Variable, Call],
    then: Mapping[Variable, Sequence[Variable]] | None = None,
) -> list[Call]:
    """The calls that compute variables, each after those that compute its operands, else in the order of ``wanted``.

    ``then`` has the variables to compute right after another.
    """
    found: list[Call] = []
    made: set[int] = set()
    for v in wanted:
        left = [makers.get(v)]
        while left:
            call = left[-1]
            if call is None or id(call) in made:
                left.pop()
                continue
            missing: list[Variable] = [x for x in call.reads if x in makers and id(makers[x]) not in made]
            if missing:
                left += [makers[x] for x in sorted(missing, key=lambda x: -x.index)]
                continue
            left.pop()
            made.add(id(call))
            found.append(call)
            if then:
                left += [makers[x] for v in call.writes for x in then.get(v, ())]
    return found
