"""Batching rules of operations, and helpers for writing them.

A rule computes an operation for all examples at once. It is called with the level and the operation's operands and
attributes; at least one operand is :class:`Mapped`. It calls the level's inner backend and returns the inner
primitive of the result with the batch axis first (a tuple of them for several outputs), or ``NotImplemented`` to run
the operation's default body on the level::

    def cumulate(level, x, *, axis, reverse):
        return level.inner_backend.cumsum(front(level, x), axis + 1, reverse)

    batching("cumsum", cumulate)

Element-wise operations need no rule. Most others belong to a few families, whose rules are built from the name:
:func:`broadcasting`, :func:`along` and :func:`folded`. An operation without a rule runs its default body, and a
required one without a rule runs example by example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from backburn.backend.opaque import Opaque
from backburn.ops.bodies.scalars import is_scalar
from backburn.ops.rules.shapes import broadcast, unchanged
from backburn.ops.table import OPERATIONS, Operation, notify

if TYPE_CHECKING:
    from backburn.batching.decorator import Batched

Rule = Callable[..., Any]
Shape = tuple[int, ...]


class FallbackWarning(UserWarning):
    """``vmap`` runs an operation that has no batching rule example by example."""


class Mapped(Opaque):
    """A primitive of :class:`Batched` that differs between examples: an inner primitive with the batch axis first.

    ``shape`` is that of one example. ``level`` is its owner, since the inner primitive may belong to another level.
    """

    __slots__ = ("level", "shape", "value")

    def __init__(self, value: Any, level: Batched) -> None:
        self.value = value
        self.level = level
        self.shape: Shape = tuple(value.shape[1:])

    @property
    def dtype(self) -> Any:
        """The dtype object that the library of the innermost primitive uses."""
        return self.value.dtype

    def __repr__(self) -> str:
        return f"Mapped({self.value!r})"


class Same:
    """A rule's result that is the same for all examples."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def batching(operation: Callable[..., Any] | str, rule: Rule) -> None:
    """Attach a batching rule to an operation, given as a function or by its name.

    Raises ValueError for an unknown operation or a second rule.

        >>> import backburn as bb
        >>> @bb.operation()
        ... def doctest_quarter(k, x, /):
        ...     '''A quarter of each element.'''
        ...     return k.mul(x, 0.25)
        >>> batching(doctest_quarter, broadcasting("doctest_quarter"))
        >>> bb.vmap(doctest_quarter)(bb.asarray([4.0, 8.0])).tolist()
        [1.0, 2.0]
    """
    name = operation if isinstance(operation, str) else operation.__name__
    if name not in OPERATIONS or OPERATIONS[name].batching is not None:
        raise ValueError(f"{name} is not an operation, or has a batching rule already")
    OPERATIONS[name].batching = rule
    notify(name)


def rule_of(entry: Operation) -> Rule | None:
    """The batching rule of an operation: the attached one, or for an element-wise one a call with a batch axis."""
    if entry.batching is not None or not entry.elementwise:
        return entry.batching
    if entry.shape is broadcast:
        return broadcasting(entry.name)
    # A backend may not broadcast operands of an operation that takes equal shapes: shared ones are broadcast here.
    return along(entry.name) if entry.shape is unchanged else None


# ---- operands ----


def is_mapped(level: Batched, x: Any) -> bool:
    """Whether an operand differs between the examples of ``level``."""
    return x.__class__ is Mapped and x.level is level


def front(level: Batched, x: Any) -> Any:
    """An operand as an inner primitive with the batch axis first; anything but a tensor is returned unchanged."""
    if x is None or is_scalar(x):
        return x
    if x.__class__ is list or x.__class__ is tuple:
        return [front(level, t) for t in x]
    if is_mapped(level, x):
        return x.value
    return level.inner_backend.broadcast_to(x, (level.size, *x.shape))


def rank_of(x: Any) -> int:
    """The number of axes of an operand, of one example; 0 for anything but a tensor."""
    return len(getattr(x, "shape", ()))


def aligned(level: Batched, *operands: Any) -> list[Any]:
    """Operands that broadcast, as inner primitives that also broadcast with the batch axis first.

    Shared operands are unchanged.
    """
    rank = max(map(rank_of, operands))
    return [with_rank(level, x, rank) for x in operands]


def with_rank(level: Batched, x: Any, rank: int) -> Any:
    """The inner primitive of ``x`` with ``rank`` axes after the batch axis, new ones first; a shared ``x`` itself."""
    if not is_mapped(level, x):
        return x
    missing = rank - len(x.shape)
    return level.inner_backend.reshape(x.value, (level.size, *(1,) * missing, *x.shape)) if missing else x.value


def moved(k: Any, x: Any, source: int, target: int) -> Any:
    """``x`` with the axis ``source`` at ``target``."""
    if source == target:
        return x
    order = [a for a in range(len(x.shape)) if a != source]
    order.insert(target, source)
    return k.permute_dims(x, tuple(order))


# ---- families of rules ----


def broadcasting(name: str) -> Rule:
    """The rule of an operation whose operands broadcast, in all axes or in the leading ones."""

    def rule(level: Batched, *operands: Any, **attributes: Any) -> Any:
        return getattr(level.inner_backend, name)(*aligned(level, *operands), **attributes)

    return rule


def along(name: str, *axes: str) -> Rule:
    """The rule of an operation along the axes that its attributes ``axes`` name; all other axes are independent."""

    def rule(level: Batched, *operands: Any, **attributes: Any) -> Any:
        for axis in axes:
            given = attributes[axis]
            attributes[axis] = given + 1 if isinstance(given, int) else tuple(a + 1 for a in given)
        return getattr(level.inner_backend, name)(*(front(level, x) for x in operands), **attributes)

    return rule


def sharing(name: str) -> Rule:
    """The rule of an operation that takes all examples at once if they share all operands but the first."""

    def rule(level: Batched, x: Any, *others: Any, **attributes: Any) -> Any:
        if any(is_mapped(level, p) for p in others):
            return NotImplemented
        return getattr(level.inner_backend, name)(x.value, *others, **attributes)

    return rule


def folded(name: str, *leading: int) -> Rule:
    """The rule of an operation whose operands ``leading`` already have a leading axis of independent entries.

    The batch axis is merged into it. Other operands must be the same for all examples.
    """

    def rule(level: Batched, *operands: Any, **attributes: Any) -> Any:
        if any(is_mapped(level, x) for i, x in enumerate(operands) if i not in leading):
            return NotImplemented
        k, entries = level.inner_backend, operands[leading[0]].shape[0]

        def fold(x: Any) -> Any:
            return x if x is None else k.reshape(front(level, x), (level.size * entries, *x.shape[1:]))

        found = getattr(k, name)(*(fold(x) if i in leading else x for i, x in enumerate(operands)), **attributes)
        parts = tuple(k.reshape(y, (level.size, entries, *y.shape[1:])) for y in as_tuple(found))
        return parts if found.__class__ is tuple else parts[0]

    return rule


def as_tuple(found: Any) -> tuple[Any, ...]:
    """The results of an operation, one or several."""
    return found if found.__class__ is tuple else (found,)
