"""Forward-mode rules: declarations next to the gradient rules, from which ``Forward`` is generated.

A derivative is written once. Nearly every tangent follows from the gradient rule or the operation itself, given one
property:

* ``elementwise``: each element of the result depends on one element of the operand, so the Jacobian is diagonal and
  the gradient rule, applied to the tangent, gives the tangent;
* ``linear_in``: the operation itself, applied to the tangent, gives the tangent (without operands that are only added);
* ``reduction``: each element of the operand contributes to one element of the result, so the tangent is the sum over
  the axes of the tangent times the gradient for a cotangent of ones;
* ``decompose``: the default body runs on ``Forward``, as for an operation without a rule;
* ``tangent``: a function of the values it names, like a gradient rule, with ``t`` the tangent of its operand::

      tangent(softmax, x=lambda k, t, out, axis: k.softmax_backward(t, out, axis))

The rule of an operation without a declaration, such as a user's, is transposed: the gradient is linear in its cotangent
``u``, and the tangent along ``t`` is the derivative by ``u`` of ``t`` times the gradient. That is always correct, and
costs about twice the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backburn.base.errors import ArgumentError
from backburn.ops.rules.gradients import entry_of
from backburn.ops.table import RESERVED, Operation, notify

#: The tangent's name in tangent functions, which may name it besides the names of gradient rules.
TANGENT = "t"


@dataclass(frozen=True)
class JvpTerm:
    """A term of the result's tangent, from the tangents of some operands; the terms are summed.

    ``kind`` is "elementwise", "linear", "reduction" or "tangent". ``operands`` are served by one call: all in
    which the operation is linear together, else one. ``axes`` are the axes of a reduction without ``axis``.
    """

    kind: str
    operands: tuple[str, ...]
    function: Callable[..., Any] | None = None
    takes: tuple[str, ...] = ()
    axes: tuple[int, ...] | None = None


#: An operation, as ``Backend.name``, as the function that ``bb.operation`` returned, or by its name.
Named = Callable[..., Any] | str


def _enter(entry: Operation, terms: list[JvpTerm]) -> None:
    served = {o for term in entry.tangents for o in term.operands}
    for term in terms:
        for operand in term.operands:
            if operand not in entry.operands or operand in served:
                raise ArgumentError(f"{entry.name} has no operand {operand!r}, or it has a tangent already")
    entry.tangents.extend(terms)
    notify(entry.name)


def _served(entry: Operation) -> tuple[str, ...]:
    """The operands that have gradient rules, one rule each."""
    if not entry.gradients:
        raise ArgumentError(f"{entry.name}: there is no gradient rule from which a tangent could follow")
    if any(r.grouped for r in entry.gradients):
        raise ArgumentError(f"{entry.name}: a rule for several operands at once gives no tangent of one")
    return tuple(o for r in entry.gradients for o in r.operands)


def elementwise(*operations: Named) -> None:
    """Declare that each element of the result depends on one element of each operand, apart from broadcasting.

    The gradient rule applied to the tangent is then the tangent. The contract's operations are element-wise by their
    shape rule (:class:`backburn.ops.table.Operation`).
    """
    for operation in operations:
        entry = entry_of("elementwise", operation)
        if entry.elementwise:
            raise ArgumentError(f"{entry.name} is element-wise already, by its declaration")
        _enter(entry, [JvpTerm("elementwise", (o,)) for o in _served(entry)])


def reduction(*operations: Named, axes: tuple[int, ...] | None = None) -> None:
    """Declare that the result reduces each operand over ``axes`` (which may be negative), or over its ``axis``."""
    for operation in operations:
        entry = entry_of("reduction", operation)
        _enter(entry, [JvpTerm("reduction", (o,), axes=axes) for o in _served(entry)])


def linear_in(operation: Named, *groups: str | tuple[str, ...]) -> None:
    """Declare that the operation is linear in the operands of each group together, the others being constant.

    Without ``groups``, all operands with a gradient are one. An optional operand outside the group is left out of
    the call for its tangent, since it is added.
    """
    entry = entry_of("linear_in", operation)
    together = groups or (tuple(o for r in entry.gradients for o in r.operands),)
    _enter(entry, [JvpTerm("linear", (g,) if isinstance(g, str) else g) for g in together])


def decompose(*operations: Named) -> None:
    """Declare that the default body gives the tangent, also at points where the gradient is a convention."""
    for operation in operations:
        entry = entry_of("decompose", operation)
        if entry.required:
            raise ArgumentError(f"{entry.name} is required and has no body")
        entry.decomposed = True


def tangent(operation: Named, /, **functions: Callable[..., Any]) -> None:
    """Attach a function to each operand that gives its term of the tangent, of any shape that broadcasts.

    It may name ``k``, the tangent ``t``, ``out``, operands and attributes, as gradient rules do. Where the operation
    has several outputs it returns a tuple, with None for outputs without a tangent. Raises :class:`ArgumentError` for
    other names.
    """
    entry, terms = entry_of("tangent", operation), []
    name = entry.name
    knows = {*RESERVED, TANGENT, *entry.parameters, *(f"{o}_{m}" for o in entry.operands for m in ("shape", "dtype"))}
    for operand, function in functions.items():
        takes = function.__code__.co_varnames[: function.__code__.co_argcount]
        if unknown := set(takes) - knows:
            raise ArgumentError(f"the tangent of {name} names {min(unknown)!r}, which {name} does not have")
        terms.append(JvpTerm("tangent", (operand,), function, takes))
    _enter(entry, terms)


def jvp_terms(entry: Operation) -> list[JvpTerm]:
    """The terms of an operation's tangent: the declared ones, or those of an element-wise operation."""
    if entry.tangents or not entry.elementwise or any(r.grouped for r in entry.gradients):
        return entry.tangents
    return [JvpTerm("elementwise", (o,)) for r in entry.gradients for o in r.operands]


def runs_body(entry: Operation) -> bool:
    """Whether tangents are propagated through the default body."""
    return entry.decomposed or (entry.differentiable and not entry.required and not entry.gradients)


def jvp_strategy(operation: Named) -> str:
    """A short description of how an operation propagates tangents.

    >>> import backburn.autodiff
    >>> [jvp_strategy(name) for name in ("sin", "matmul", "max", "qr", "argmax")]
    ['elementwise', 'linear', 'reduction', 'transposed', 'none']
    """
    entry = entry_of("jvp_strategy", operation)
    if not entry.differentiable:
        return "none"
    if runs_body(entry):
        return "body"
    return ", ".join(dict.fromkeys(term.kind for term in jvp_terms(entry))) or "transposed"
