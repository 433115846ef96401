"""Programs: the calls of a recorded step, the removal of unused ones, and the function that makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

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
    """A number of the recording, by its place."""

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
        self.reads = frozenset(variables_in([*self.operands, *self.attributes.values()]))
        self.writes = frozenset(variables_in((self.results,)))


def variables_in(nested: Iterable[Any]) -> list[Variable]:
    """The variables among values and in lists of them."""
    found = []
    for value in nested:
        if value.__class__ is Variable:
            found.append(value)
        elif value.__class__ is list:
            found += variables_in(value)
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


def live_calls(calls: list[Call], results: list[list[Any]]) -> list[Call]:
    """The calls whose results are used."""
    used, found = set(variables_in(results)), []
    for call in reversed(calls):
        if not used.isdisjoint(call.writes):
            used |= call.reads
            found.append(call)
    return found[::-1]


def ordered(
    wanted: Iterable[Variable],
    makers: Mapping[Variable, Call],
    then: Mapping[Variable, Sequence[Variable]] | None = None,
) -> list[Call]:
    """The calls that make variables, each after those that make its operands, otherwise in the order of these.

    ``then`` are variables to make as soon as another is made.
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
            before = [makers.get(x) for x in sorted(call.reads, key=lambda x: -x.index)]
            if missing := [maker for maker in before if maker is not None and id(maker) not in made]:
                left += missing
                continue
            left.pop()
            made.add(id(call))
            found.append(call)
            if then:
                left += [makers[x] for v in call.writes for x in then.get(v, ())]
    return found


#: A value of fewer bytes is not freed right after its last use, but by the next of the values that take its place.
SMALL = 1 << 12


class Program(NamedTuple):
    """A function of state, inputs and numbers that makes calls, and returns lists of results."""

    run: Callable[..., Any]
    #: The call of each of its lines.
    calls: Mapping[int, Call]
    #: The local variable that holds a value; values that are not needed at the same time share one.
    names: Mapping[Variable, str]


def compile_program(calls: list[Call], variables: list[list[Variable]], results: list[list[Any]]) -> Program:
    """A program of the calls, for variables of the state and the inputs, that returns the results."""
    source = ProgramSource("replay(state, inputs, numbers)")
    names: dict[Variable, str] = {}
    free: list[str] = []

    def name(made: Iterable[Variable]) -> None:
        for v in made:
            names[v] = source.names[id(v)] = free.pop() if free else f"v{len(names)}"

    for given, which in zip(variables, ("state", "inputs"), strict=True):
        name(given)
        if given:
            source.line(f"{source.targets(given)}= {which}")
    last: dict[Variable, int] = {}
    for i, call in enumerate(calls):
        last.update(dict.fromkeys(call.reads, i))
        last.update(dict.fromkeys(call.writes, i))
    last.update(dict.fromkeys(variables_in(results), len(calls)))
    places: dict[int, Call] = {}
    for i, call in enumerate(calls):
        name(variables_in((call.results,)))
        places[source.call(call, source.expression(call.function))] = call
        over = [v for v in call.reads if last[v] == i]
        over += [v for v in call.writes if last[v] == i and v not in call.reads]
        if large := [names[v] for v in over if prod(v.shape) * v.dtype.bits >= 8 * SMALL]:
            source.line("".join(f"{n} = " for n in sorted(large)) + "None")  # which frees their memory
        free += sorted((names[v] for v in over), reverse=True)
    source.line("return " + ", ".join(f"[{', '.join(map(source.expression, values))}]" for values in results))
    return Program(source.compiled(), places, names)


class ProgramSource:
    """The source of a function, line by line."""

    def __init__(self, head: str) -> None:
        """A function with this name and these parameters."""
        self._lines = [f"def {head}:"]
        self._constants: dict[str, Any] = {}
        #: Expressions other than a variable's name, by the identity of what they stand for.
        self.names: dict[int, str] = {}

    def line(self, text: str) -> int:
        """Add a line, and return its number."""
        self._lines.append(f"    {text}")
        return len(self._lines)

    def call(self, call: Call, function: str) -> int:
        """Add the line of a call of the function that the expression ``function`` gives."""
        given = [*map(self.expression, call.operands)]
        if call.attributes:
            given += (f"{name}={self.expression(x)}" for name, x in call.attributes.items())
        return self.line(f"{self.targets(call.results)} = {function}({', '.join(given)})")

    def expression(self, value: Any) -> str:
        """An expression for an operand or an attribute."""
        if (known := self.names.get(id(value))) is not None:
            return known
        if isinstance(value, Variable):
            return f"v{value.index}"
        if isinstance(value, Number):
            return f"numbers[{value.place}]"
        if isinstance(value, list) and varies(value):
            return f"[{', '.join(map(self.expression, value))}]"
        name = self.names[id(value)] = f"c{len(self._constants)}"
        self._constants[name] = value  # which keeps its identity
        return name

    def targets(self, results: Any) -> str:
        """The targets of an assignment."""
        if isinstance(results, list):
            return "".join(f"{self.targets(x)}, " for x in results)
        return "_" if results is None else self.expression(results)

    def compiled(self) -> Callable[..., Any]:
        """The function."""
        name = self._lines[0].removeprefix("def ").partition("(")[0]
        exec(compile("\n".join(self._lines), "<backburn replay>", "exec"), self._constants)
        return self._constants[name]
