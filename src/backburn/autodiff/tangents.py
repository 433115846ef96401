"""Forward-mode rules: declarations beside the gradient rules, from which ``Forward`` is generated.

A derivative is written once. Nearly every tangent follows from the gradient rule or the operation itself, given one
property:

* ``elementwise``: each element of the result depends on one element of the operand, so the Jacobian is diagonal and
  the gradient rule, applied to the tangent, gives the tangent;
* ``linear``: the operation itself, applied to the tangent, gives the tangent (less the operands that are only added);
* ``reduction``: each element of the operand goes into one element of the result, so the tangent is the sum over
  the axes of the tangent times the gradient for a cotangent of ones;
* ``through_body``: the default body runs on ``Forward``, as for an operation without a rule;
* ``tangent``: a function of what it names, like a gradient rule, with ``t`` the tangent of its operand::

      tangent("softmax", x=lambda k, t, out, axis: k.softmax_backward(t, out, axis))

The rule of an operation without a declaration, such as a user's, is transposed: the gradient is linear in its cotangent
``u``, and the tangent along ``t`` is the derivative by ``u`` of ``t`` times the gradient. That is always right, and
costs about twice the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backburn.autodiff.rules import RULES, entry_of
from backburn.backend.table import ATTACHED, OPERATIONS, RESERVED, notify
from backburn.base.errors import ArgumentError

#: What a tangent function may name besides what every rule may.
TANGENT = "t"


@dataclass(frozen=True)
class Term:
    """A term of the result's tangent, from the tangents of some operands; the terms are summed.

    ``kind`` is "elementwise", "linear", "reduction" or "tangent". ``operands`` are those that one call serves: those
    in which the operation is linear together, else one. ``axes`` are those that a reduction without ``axis`` takes.
    """

    kind: str
    operands: tuple[str, ...]
    function: Callable[..., Any] | None = None
    takes: tuple[str, ...] = ()
    axes: tuple[int, ...] | None = None


#: The terms of each marked operation, by its name.
TANGENTS: dict[str, list[Term]] = {}
ATTACHED.append(TANGENTS)

#: The operations with a rule whose default body gives the tangent nevertheless.
BODIES: dict[str, bool] = {}
ATTACHED.append(BODIES)


#: An operation, as ``Backend.name``, as the function that ``bb.operation`` made, or by its name.
Named = Callable[..., Any] | str


def _names(where: str, operations: tuple[Named, ...]) -> list[str]:
    return [entry_of(where, operation).name for operation in operations]


def _enter(name: str, terms: list[Term]) -> None:
    entry, known = OPERATIONS[name], TANGENTS.setdefault(name, [])
    served = {o for p in known for o in p.operands}
    for term in terms:
        for operand in term.operands:
            if operand not in entry.operands or operand in served:
                raise ArgumentError(f"{name} has no operand {operand!r}, or that carries its tangent already")
    known.extend(terms)
    notify(name)


def _served(name: str) -> tuple[str, ...]:
    """The operands for which there are gradient rules, each by a rule of its own."""
    if not RULES.get(name):
        raise ArgumentError(f"{name}: there is no gradient rule from which a tangent could follow")
    if any(r.grouped for r in RULES[name]):
        raise ArgumentError(f"{name}: a rule for several operands at once gives no tangent of one")
    return tuple(o for r in RULES[name] for o in r.operands)


def elementwise(*operations: Named) -> None:
    """Declare that each element of the result depends on one element of each operand, apart from broadcasting.

    The gradient rule applied to the tangent is then the tangent.
    """
    for name in _names("elementwise", operations):
        _enter(name, [Term("elementwise", (o,)) for o in _served(name)])


def reduction(*operations: Named, axes: tuple[int, ...] | None = None) -> None:
    """Declare that the result reduces each operand over ``axes`` (which may be negative), or over its ``axis``."""
    for name in _names("reduction", operations):
        _enter(name, [Term("reduction", (o,), axes=axes) for o in _served(name)])


def linear(*operations: Named, groups: tuple[str | tuple[str, ...], ...] = ()) -> None:
    """Declare that the operation is linear in the operands of each group together, the others being constant.

    Without ``groups``, all operands with a gradient are one. An optional operand outside the group is left out of
    the call for its tangent, since it is added.
    """
    for name in _names("linear", operations):
        together = groups or (tuple(o for r in RULES.get(name, ()) for o in r.operands),)
        _enter(name, [Term("linear", (g,) if isinstance(g, str) else g) for g in together])


def through_body(*operations: Named) -> None:
    """Declare that the default body gives the tangent, also at points where the gradient is a convention."""
    for name in _names("through_body", operations):
        if OPERATIONS[name].required:
            raise ArgumentError(f"{name} is required and has no body")
        BODIES[name] = True


def tangent(operation: Named, /, **functions: Callable[..., Any]) -> None:
    """Attach a function to each operand that gives its term of the tangent, of any shape that broadcasts.

    It may name ``k``, the tangent ``t``, ``out``, operands and attributes, as gradient rules do. Where the operation
    has several outputs it returns a tuple, with None for what has no tangent. Raises :class:`ArgumentError` for other
    names.
    """
    entry, terms = entry_of("tangent", operation), []
    name = entry.name
    knows = {*RESERVED, TANGENT, *entry.parameters, *(f"{o}_{m}" for o in entry.operands for m in ("shape", "dtype"))}
    for operand, function in functions.items():
        takes = function.__code__.co_varnames[: function.__code__.co_argcount]
        if unknown := set(takes) - knows:
            raise ArgumentError(f"the tangent of {name} names {min(unknown)!r}, which {name} does not have")
        terms.append(Term("tangent", (operand,), function, takes))
    _enter(name, terms)


def way(operation: Named) -> str:
    """A short description of how an operation propagates tangents.

    >>> import backburn.autodiff
    >>> way("sin"), way("matmul"), way("max"), way("svd"), way("argmax")
    ('elementwise', 'linear', 'reduction', 'transposed', 'none')
    """
    entry = entry_of("way", operation)
    name = entry.name
    if not entry.differentiable:
        return "none"
    if name in BODIES or (not RULES.get(name) and not entry.required):
        return "body"
    kinds = dict.fromkeys(p.kind for p in TANGENTS.get(name, ()))
    return ", ".join(kinds) or "transposed"
