"""Native lists: calls of a program that follow one another, and that a backend makes in one call without Python.

A backend with a method ``native_list`` (:class:`ListingBackend`) is asked for every run of calls that it can list; for
any other backend they stay single calls.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from backburn.decorators.capture.program import Call, Number, Variable, variables_in

#: The operation of a call that is a list.
NATIVE_LIST = "native list"

#: The fewest calls, views not counted, for which a list pays: it has to find the addresses of what it is given.
FEWEST = 4


class Lister(Protocol):
    """Makes lists of the calls of one program."""

    @abstractmethod
    def spares(self, call: Call) -> int:
        """How many calls are spared where this one becomes part of a list: 0 for a view, -1 if it cannot."""

    @abstractmethod
    def native_list(
        self, calls: Sequence[Call], given: Sequence[Variable | Number], results: Sequence[Variable]
    ) -> Callable[..., Sequence[Any]]:
        """A function of the primitives and numbers ``given`` that makes calls for which :meth:`spares` was asked.

        It returns these results of theirs. If it raises an error, an attribute ``failed`` may name the call.
        """


class ListingBackend(Protocol):
    """A backend that makes calls in lists."""

    @abstractmethod
    def lister(self) -> Lister | None:
        """A maker of lists for a new program; None if the backend makes none."""


def list_calls(calls: list[Call], returned: Collection[Variable], k: Any) -> list[Call]:
    """A program in which runs of calls that the backend can list are one call each."""
    lister = k.lister()
    if lister is None:
        return calls
    last_reads: dict[Variable, int] = {}
    for i, call in enumerate(calls):
        last_reads.update(dict.fromkeys(call.reads, i))
    last_reads.update(dict.fromkeys(returned, len(calls)))
    found: list[Call] = []
    run: list[tuple[Call, int]] = []

    def end_run(end: int) -> None:
        enough = sum(spares for _, spares in run) >= FEWEST
        found.extend(_listed(run, end, last_reads, lister) if enough else [call for call, _ in run])
        run.clear()

    for i, call in enumerate(calls):
        spares = lister.spares(call)
        if spares < 0:
            end_run(i)
            found.append(call)
        else:
            run.append((call, spares))
    end_run(len(calls))
    return found


def _listed(run: list[tuple[Call, int]], end: int, last_reads: dict[Variable, int], lister: Lister) -> list[Call]:
    """A run of calls that ends before the call with that number, as a list."""
    made: set[Variable] = set()
    before, calls, results = [], [], []
    for call, spares in run:
        written = variables_in((call.results,))
        needed = [v for v in written if last_reads.get(v, -1) >= end]
        # A view of what is given, which others need too, is made before: the list would have to copy it.
        if needed and not spares and made.isdisjoint(call.reads):
            before.append(call)
            continue
        calls.append(call)
        made.update(written)
        results += needed
    given = {x: None for call in calls for x in _leaves([call.operands, [*call.attributes.values()]]) if x not in made}
    return [*before, Call(NATIVE_LIST, lister.native_list(calls, [*given], results), [*given], {}, results)]


def _leaves(nested: Any) -> list[Variable | Number]:
    """The variables and numbers in a list and the lists in it."""
    found: list[Variable | Number] = []
    for value in nested:
        if value.__class__ is list:
            found += _leaves(value)
        elif value.__class__ is Variable or value.__class__ is Number:
            found.append(value)
    return found
