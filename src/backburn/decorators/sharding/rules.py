"""Rules of sharding: which axes of an operation's operands may be cut together, and families of them.

A rule is called with the shapes of the operands (None for a scalar or an absent operand, a list for a list of tensors),
the index of the operand that is cut, its axis, and the attributes. It returns a :class:`Plan`, which says how every
operand must be cut for the operation to be computed shard by shard, or None if it cannot be::

    def cumulate(shapes, index, cut, *, axis, reverse):
        return None if cut == axis else Plan((cut,))

    sharding("cumulative_sum", cumulate)

The operation's shape rule tells the cut axis of the results: it is the one that grows with that of the operand.
A rule knows one mesh axis; several are nested levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from backburn.ops.rules.shapes import broadcast, unchanged
from backburn.ops.table import OPERATIONS

Shape = tuple[int, ...]
Shapes = Sequence[Any]
Local = Callable[[int, int], dict[str, Any]]

#: The axis of results that do not have the cut axis.
NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Plan:
    """A way to compute an operation shard by shard.

    ``axes`` are the axes along which the operands are cut, None for one that every shard takes whole. Results without
    the cut axis are addends with ``sums``, else equal on all shards. ``local`` gives the attributes that differ in a
    shard, from the start and stop of its range. ``result`` is the cut axis of every result, or :data:`NOWHERE`; None
    leaves it to the shape rule.
    """

    axes: tuple[int | None, ...]
    sums: bool = False
    local: Local | None = None
    result: int | None = None


Rule = Callable[..., Plan | None]
#: The rules by operation. Element-wise operations of the usual shapes need none.
RULES: dict[str, Rule] = {}
#: Functions that are tried before the rule of an operation: called with the level, operands and attributes, they
#: return a primitive of the level, or NotImplemented.
DIRECT: dict[str, Callable[..., Any]] = {}
#: For those that call the operation itself on each part of one operand: the attributes of each part, from the result.
LOCAL: dict[str, Callable[[Any], list[dict[str, Any]]]] = {}


#: The operands that hold examples, each by its index and number of trailing axes: cut along any other axis, they decide
#: the plan, and parameters that are cut over the same mesh axis are joined, as fully sharded ones are.
EXAMPLES: dict[str, tuple[int, int]] = {
    "linear": (0, 1), "matmul": (0, 1), "feed_forward": (0, 1), "conv": (0, 1), "conv_transpose": (0, 1),
    "embedding": (1, 0),
}  # fmt: skip


def sharding(operation: str, rule: Rule) -> None:
    """Attach a rule to an operation. Raises ValueError for an unknown operation or a second rule."""
    if operation not in OPERATIONS or operation in RULES:
        raise ValueError(f"{operation} is not an operation, or has a rule of sharding already")
    RULES[operation] = rule


def direct(
    operation: str, function: Callable[..., Any], local: Callable[[Any], list[dict[str, Any]]] | None = None
) -> None:
    """Attach a function that computes an operation of the level, and perhaps its entry of :data:`LOCAL`.

    Raises ValueError as :func:`sharding` does.
    """
    if operation not in OPERATIONS or operation in DIRECT:
        raise ValueError(f"{operation} is not an operation, or has a function already")
    DIRECT[operation] = function
    if local is not None:
        LOCAL[operation] = local


def rule_of(name: str) -> Rule | None:
    """The rule of an operation: its own, or that of element-wise ones."""
    entry = OPERATIONS[name]
    if name not in RULES and entry.elementwise and entry.shape in (broadcast, unchanged):
        return elementwise
    return RULES.get(name)


# ---- families ----


def aligned(shapes: Shapes, index: int, cut: int, trailing: int = 0) -> tuple[int | None, ...] | None:
    """The axes of operands that broadcast, if the axis ``cut`` of one is cut; None if it is stretched or trailing."""
    place = cut - len(shapes[index])
    length = shapes[index][cut]
    if place >= -trailing:
        return None
    axes: list[int | None] = []
    for shape in shapes:
        if shape is None or len(shape) < -place or shape[place] != length:
            if shape is not None and length == 1 and len(shape) >= -place:
                return None
            axes.append(None)
        else:
            axes.append(len(shape) + place)
    return tuple(axes)


def elementwise(shapes: Shapes, index: int, cut: int, **_: Any) -> Plan | None:
    """Operands that broadcast are cut alike."""
    axes = aligned(shapes, index, cut)
    if axes is None:
        return None
    rank = max(len(s) for s in shapes if s is not None)
    return Plan(axes, result=rank + cut - len(shapes[index]))


def broadcasting(trailing: int) -> Rule:
    """The rule of operations on the last axes, which are independent along all others."""

    def rule(shapes: Shapes, index: int, cut: int, **_: Any) -> Plan | None:
        axes = aligned(shapes, index, cut, trailing)
        return None if axes is None else Plan(axes)

    return rule


def along(*names: str) -> Rule:
    """The rule of operations along the axes that attributes name, which are independent along all others.

    Operands with one axis less, such as labels, lack the first of them.
    """

    def rule(shapes: Shapes, index: int, cut: int, **attributes: Any) -> Plan | None:
        ranks = [rank_of(s) for s in shapes]
        full = max(ranks)
        taken = [a for name in names for a in as_axes(attributes[name])]
        if ranks[index] < full and cut >= taken[0]:
            cut += 1
        if cut in taken:
            return None
        own = (own_axis(n, full, cut, taken) for n in ranks)
        return Plan(tuple(None if s is None else a for s, a in zip(shapes, own, strict=True)))

    return rule


def own_axis(rank: int, full: int, cut: int, taken: list[int]) -> int:
    """The axis ``cut`` of the largest operand in one of ``rank`` axes."""
    return cut - (rank < full and cut > taken[0])


def folded(*leading: int) -> Rule:
    """The rule of operations whose operands ``leading`` have a first axis of independent entries."""

    def rule(shapes: Shapes, index: int, cut: int, **_: Any) -> Plan | None:
        if cut or index not in leading:
            return None
        return Plan(tuple(0 if i in leading and s is not None else None for i, s in enumerate(shapes)))

    return rule


def rows(*operands: int, sums: bool = False) -> Rule:
    """The rule of operations on the last axis of ``operands``, whose leading axes agree; others are whole."""

    def rule(shapes: Shapes, index: int, cut: int, **_: Any) -> Plan | None:
        if index not in operands or cut == len(shapes[index]) - 1:
            return None
        return Plan(tuple(cut if i in operands and s is not None else None for i, s in enumerate(shapes)), sums)

    return rule


def rank_of(shape: Any) -> int:
    """The number of axes of an operand, or of the first in a list; 0 for anything else."""
    if isinstance(shape, list):
        return len(shape[0]) if shape else 0
    return 0 if shape is None else len(shape)


def as_axes(axes: int | Sequence[int]) -> Sequence[int]:
    """Axes as a sequence."""
    return (axes,) if isinstance(axes, int) else axes
