"""Programs as the source of a Python function that runs their calls in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

from backburn.programs.ir import Call, Number, Variable, variables_in, varies

#: Values of fewer bytes are not freed right after their last use, but when their variable is assigned again.
SMALL = 1 << 12


class Source(NamedTuple):
    """A function of state, inputs and numbers that runs calls and returns lists of results."""

    run: Callable[..., Any]
    #: The calls by line number.
    calls: Mapping[int, Call]
    #: The local variable that holds a value; values that are not needed at the same time share one.
    names: Mapping[Variable, str]


def source_of(calls: list[Call], variables: list[list[Variable]], results: list[list[Any]]) -> Source:
    """A function that runs the calls on variables of the state and the inputs, and returns the results."""
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
            source.line("".join(f"{n} = " for n in sorted(large)) + "None")  # frees their memory
        free += sorted((names[v] for v in over), reverse=True)
    source.line("return " + ", ".join(f"[{', '.join(map(source.expression, values))}]" for values in results))
    return Source(source.compiled(), places, names)


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
        self._constants[name] = value  # keeps it alive, and so its id unique
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
