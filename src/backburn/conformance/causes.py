"""Which operation's fault a failure probably is: that of another one that was called, and fails by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from backburn.backend.table import OPERATIONS


@contextmanager
def calls_of(backend: Any) -> Iterator[set[str]]:
    """The operations that are looked up on a backend, or on what it wraps, inside the block.

    While it lasts, the objects are of a class that notes what is asked of them; an object whose class cannot be changed
    tells nothing.
    """
    seen: set[str] = set()
    with ExitStack() as stack:
        level = backend
        while level is not None:
            inner = getattr(level, "inner_backend", None)
            known = type(level)
            try:
                level.__class__ = _noting(known, seen.add)
            except TypeError:
                break
            stack.callback(_give_back, level, known)
            level = inner
        yield seen


def _noting(known: Any, note: Callable[[str], None]) -> type:
    def noted(self: Any, name: str) -> Any:
        if name in OPERATIONS:
            note(name)
        return known.__getattribute__(self, name)

    return type(known)(known.__name__, (known,), {"__slots__": (), "__getattribute__": noted})


def _give_back(level: Any, known: type) -> None:
    level.__class__ = known


def causes(failed: Iterable[tuple[str, str, Iterable[str]]]) -> Mapping[str, str]:
    """For each failure, given as id, operation and what it called: the operation that probably caused it, if another.

    An operation fails by itself where one of its failures called no other operation that fails. What else failed, and
    called such a one, is put down to the one that most failures called.

        >>> causes([("a", "sum", []), ("b", "mean", ["sum", "div"]), ("c", "norm", ["mean", "sum"])])
        {'b': 'sum', 'c': 'sum'}
    """
    found = [(name, operation, set(calls) - {operation}) for name, operation, calls in failed]
    failing = {operation for _, operation, _ in found}
    roots = {operation for _, operation, calls in found if not calls & failing}
    count = {root: sum(root in calls for _, _, calls in found) for root in roots}
    return {
        name: max(sorted(calls & roots), key=count.__getitem__)
        for name, operation, calls in found
        if operation not in roots and calls & roots
    }
