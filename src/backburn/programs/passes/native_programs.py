"""Native programs: consecutive calls that a backend runs as one, without Python."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from backburn.programs.ir import Call, Number, Program, Variable, variables_in

#: The operation of a call that is a native program.
NATIVE_PROGRAM = "native program"

#: The fewest calls, views not counted, for which one pays off: it has to look up the addresses of its operands.
FEWEST = 4


class ProgramCompiler(Protocol):
    """Compiles calls of a program to native programs."""

    @abstractmethod
    def calls_saved(self, call: Call) -> int | None:
        """Calls saved by adding this one to a native program, 0 for a view; None if it cannot be added."""

    @abstractmethod
    def native_program(
        self, calls: Sequence[Call], given: Sequence[Variable | Number], results: Sequence[Variable]
    ) -> Callable[..., Sequence[Any]]:
        """A function of the primitives and numbers ``given`` that runs calls known to :meth:`calls_saved`.

        It returns their ``results``. Its attribute ``made`` has the calls; if it raises an error, an attribute
        ``failed`` may name the call.
        """


def compile_calls(program: Program, k: Any, compiler: ProgramCompiler) -> list[Call]:
    """A program in which runs of calls that the backend can compile are one call each."""
    calls = program.calls
    last_reads: dict[Variable, int] = {}
    for i, call in enumerate(calls):
        last_reads.update(dict.fromkeys(call.reads, i))
    last_reads.update(dict.fromkeys(program.returned, len(calls)))
    found: list[Call] = []
    run: list[tuple[Call, int]] = []

    def end_run(end: int) -> None:
        if sum(saved for _, saved in run) >= FEWEST:
            found.extend(_compiled(run, end, last_reads, compiler))
        else:
            program.notes.update((call, f"not native: fewer than {FEWEST} calls in a row") for call, _ in run)
            found.extend(call for call, _ in run)
        run.clear()

    for i, call in enumerate(calls):
        saved = compiler.calls_saved(call)
        if saved is None:
            end_run(i)
            found.append(call)
            program.notes.setdefault(call, "not native: the backend has no code for the operation, dtype or size")
        else:
            run.append((call, saved))
    end_run(len(calls))
    return found


def _compiled(
    run: list[tuple[Call, int]], end: int, last_reads: dict[Variable, int], compiler: ProgramCompiler
) -> list[Call]:
    """A run of calls that ends before call number ``end``, as a native program."""
    made: set[Variable] = set()
    before, calls, results = [], [], []
    for call, saved in run:
        written = variables_in((call.results,))
        needed = [v for v in written if last_reads.get(v, -1) >= end]
        # A view of an operand that later calls need is taken before: the native program would have to copy it.
        if needed and not saved and made.isdisjoint(call.reads):
            before.append(call)
            continue
        calls.append(call)
        made.update(written)
        results += needed
    given = {x: None for call in calls for x in _leaves([call.operands, [*call.attributes.values()]]) if x not in made}
    function: Any = compiler.native_program(calls, [*given], results)
    return [*before, Call(NATIVE_PROGRAM, function, [*given], {}, results)]


def _leaves(nested: Any) -> list[Variable | Number]:
    """The variables and numbers in a list and the lists in it."""
    found: list[Variable | Number] = []
    for value in nested:
        if value.__class__ is list:
            found += _leaves(value)
        elif value.__class__ is Variable or value.__class__ is Number:
            found.append(value)
    return found
