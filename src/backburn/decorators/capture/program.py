"""Programs: the calls of a recorded step, the removal of unused ones, and the function that makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from backburn.base.dtypes import DType


@dataclass(frozen=True, eq=False)
class Variable:
    """A value that differs from replay to replay: a part of the state, an input, or the result of a call."""

    index: int
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True)
class Number:
    """A number of the recording, by its place."""

    place: int


@dataclass(frozen=True, eq=False)
class Call:
    """A call of the wrapped backend, on constants, variables, numbers, and lists with these.

    ``results`` has one variable, or a list of them; None stands for a result that was known before.
    """

    operation: str
    function: Callable[..., Any]
    operands: list[Any]
    attributes: dict[str, Any]
    results: Any

    @cached_property
    def reads(self) -> frozenset[Variable]:
        """The variables among operands and attributes."""
        return frozenset(variables_in([self.operands, [*self.attributes.values()]]))

    @cached_property
    def writes(self) -> frozenset[Variable]:
        """The variables among its results."""
        return frozenset(variables_in([self.results]))


def variables_in(nested: Iterable[Any]) -> Iterator[Variable]:
    """The variables among values and in lists of them."""
    for value in nested:
        if isinstance(value, Variable):
            yield value
        elif isinstance(value, list):
            yield from variables_in(value)


def varies(value: Any) -> bool:
    """Whether ``value`` is or contains a variable or a number of the recording."""
    return any(map(varies, value)) if isinstance(value, list) else isinstance(value, Variable | Number)


def live_calls(calls: list[Call], results: list[list[Any]]) -> list[Call]:
    """The calls whose results are used."""
    used, found = set(variables_in(results)), []
    for call in reversed(calls):
        if call.writes & used:
            used |= call.reads
            found.append(call)
    return found[::-1]


def compile_program(
    calls: list[Call], variables: list[list[Variable]], results: list[list[Any]]
) -> tuple[Callable[..., Any], Mapping[int, Call]]:
    """A function of state, inputs and numbers that makes the calls, and returns the new state and the outputs.

    With it comes the call of each of its lines.
    """
    source = ProgramSource("replay(state, inputs, numbers)")
    for given, name in zip(variables, ("state", "inputs"), strict=True):
        if given:
            source.line(f"{source.targets(given)}= {name}")
    last = {v: i for i, call in enumerate(calls) for v in call.reads | call.writes}
    returned = set(variables_in(results))
    places: dict[int, Call] = {}
    for i, call in enumerate(calls):
        places[source.call(call, source.expression(call.function))] = call
        over = sorted(v.index for v in call.reads | call.writes if last[v] == i and v not in returned)
        if over:
            source.line("".join(f"v{n} = " for n in over) + "None")  # which frees their memory
    source.line("return " + ", ".join(f"[{', '.join(map(source.expression, values))}]" for values in results))
    return source.compiled(), places


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
        named = (f"{name}={self.expression(x)}" for name, x in call.attributes.items())
        given = ", ".join([*map(self.expression, call.operands), *named])
        return self.line(f"{self.targets(call.results)} = {function}({given})")

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
        name = f"c{len(self._constants)}"
        self._constants[name] = value
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
