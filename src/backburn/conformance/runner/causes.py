"""Probable causes of failures: other operations that a check called and that fail by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from backburn.conformance.checks.check import parts_of
from backburn.conformance.checks.kinds import GRADIENT_KINDS
from backburn.ops.table import OPERATIONS


@contextmanager
def calls_of(backend: Any) -> Iterator[set[str]]:
    """The operations that are looked up on a backend, or on the backends inside it, during the block.

    The objects temporarily have a class that records attribute access; objects whose class cannot be changed are
    ignored.
    """
    seen: set[str] = set()
    with ExitStack() as stack:
        level = backend
        while level is not None:
            inner = getattr(level, "inner_backend", None)
            known = type(level)
            try:
                level.__class__ = _recording_class(known, seen.add)
            except TypeError:
                break
            stack.callback(setattr, level, "__class__", known)
            level = inner
        yield seen


def _recording_class(known: Any, note: Callable[[str], None]) -> type:
    def getattribute(self: Any, name: str) -> Any:
        if name in OPERATIONS:
            note(name)
        return known.__getattribute__(self, name)

    return type(known)(known.__name__, (known,), {"__slots__": (), "__getattribute__": getattribute})


def causes_by_kind(failed: Iterable[tuple[str, Iterable[str]]]) -> Mapping[str, str]:
    """:func:`causes` of failures, given as id and called operations, among failures that can have such effects.

    An operation with a wrong signature, or that accepts too much, still computes correctly, and a wrong gradient
    changes no values.

        >>> causes_by_kind([("add-any-signature-0", []), ("exp-float32-value-0", ["add"])])
        {}
        >>> causes_by_kind([("add-float32-value-0", []), ("exp-float32-gradient-0", ["add"])])
        {'exp-float32-gradient-0': 'add'}
    """
    effects: dict[str, list[tuple[str, str, Iterable[str]]]] = {}
    for name, calls in failed:
        operation, _, kind, _ = parts_of(name)
        effect = (
            "gradient"
            if kind in (*GRADIENT_KINDS, "large_gradient")
            else kind
            if kind in ("signature", "errors")
            else "value"
        )
        effects.setdefault(effect, []).append((name, operation, calls))
    values, gradients = effects.get("value", []), effects.get("gradient", [])
    own = {name for name, _, _ in gradients}
    return {
        **causes(values),
        **{name: cause for name, cause in causes([*values, *gradients]).items() if name in own},
        **causes(effects.get("errors", [])),
    }


def causes(failed: Iterable[tuple[str, str, Iterable[str]]]) -> Mapping[str, str]:
    """The operation that probably caused each failure, given as id, operation and the operations called.

    An operation fails by itself if one of its failures called no other failing operation. The remaining failures that
    called such an operation are attributed to the one that most failures called.

        >>> causes([("a", "sum", []), ("b", "mean", ["sum", "div"]), ("c", "var", ["mean", "sum"])])
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
