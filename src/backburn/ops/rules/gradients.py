"""Gradient rules of operations.

A rule is a function whose parameters name what it needs. ``k`` is the inner backend, whose operations every rule
uses (and which may itself record them, for second derivatives), ``g`` the gradient of the output, ``out`` the
output; of several outputs, ``kept`` are all but the first. An operand's or an attribute's own name is its value,
``x_shape`` and ``x_dtype`` describe operand ``x`` without keeping it. Only what rules name is saved::

    gradient_rule(mul, x=lambda k, g, y: k.mul(g, y), y=lambda k, g, x: k.mul(g, x))
    gradient_rule(tanh, x=lambda k, g, out: k.sub(g, k.mul(g, k.square(out))))

The engine undoes broadcasting, sums over uses and skips operands that need no gradient, so that rules need not. A rule
that serves several operands at once, to share work, takes their names first and returns a tuple in that order;
``needs`` then says which gradients are needed::

    gradient_rule(layer_norm, ("x", "scale", "bias"), layer_norm_gradients)

The rule of an operand that is a list of tensors returns a list. Where an operation has several outputs, ``g`` is a
list, with None for an output without a gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backburn.base.errors import ArgumentError, hint_for
from backburn.ops.table import OPERATIONS, RESERVED, Operation, notify

Rule = Callable[..., Any]
Needs = tuple[bool, ...]


@dataclass(frozen=True)
class GradientRule:
    """One rule: the operands it serves, the function, and the names of what the function takes."""

    operands: tuple[str, ...]
    function: Rule
    takes: tuple[str, ...]
    grouped: bool


def entry_of(where: str, operation: Callable[..., Any] | str) -> Operation:
    """The entry of an operation, given as ``Backend.name`` or by its name."""
    name = operation if isinstance(operation, str) else getattr(operation, "__name__", None)
    if name is None:
        raise ArgumentError(f"{where}: takes an operation or its name, not {type(operation).__name__}")
    if name not in OPERATIONS:
        raise ArgumentError(f"{where}: there is no operation {name!r}. {hint_for(name, OPERATIONS)}")
    return OPERATIONS[name]


def gradient_rule(
    operation: Callable[..., Any] | str, operands: tuple[str, ...] = (), rule: Rule | None = None, /, **rules: Rule
) -> None:
    """Attach gradient rules to an operation, given as ``Backend.name`` or by its name.

    Raises :class:`ArgumentError`, a ValueError, if the operation, an operand or something that a rule takes does not
    exist, or if an operand has a rule already.

        >>> import backburn as bb
        >>> @bb.operation()
        ... def doctest_half(k, x, /):
        ...     '''Half of each element.'''
        ...     return k.mul(x, 0.5)
        >>> bb.gradient_rule(doctest_half, x=lambda k, g: k.mul(g, 0.5))
        >>> bb.grad(doctest_half)(3.0).item()
        0.5
    """
    entry = entry_of("gradient_rule", operation)
    name = entry.name
    found = list(entry.gradients)
    served = {o for r in found for o in r.operands}
    groups: list[tuple[tuple[str, ...], Rule, bool]] = [((o,), r, False) for o, r in rules.items()]
    if rule is not None:
        groups.append((operands, rule, True))
    knows = {*RESERVED, *entry.parameters, *(f"{o}_{m}" for o in entry.operands for m in ("shape", "dtype"))}
    for names, function, grouped in groups:
        code = getattr(function, "__code__", None)
        if code is None:
            raise ArgumentError(f"the gradient rule of {name} is not a function, but {function!r}: write a lambda")
        takes = code.co_varnames[: code.co_argcount]
        for unknown in (set(names) - set(entry.operands)) | (set(takes) - knows):
            raise ArgumentError(f"the gradient rule of {name} names {unknown!r}, which {name} does not have")
        if served & set(names):
            again = "" if entry.implementations is None else ": to replace it, define the operation again"
            raise ArgumentError(f"{name} has a gradient rule for {sorted(served & set(names))} already{again}")
        if function.__name__ == "<lambda>":  # shown in profiles
            function.__name__ = f"gradient of {name}"
        served |= set(names)
        found.append(GradientRule(names, function, takes, grouped))
    entry.gradients = found  # all of them or, after an error, none
    notify(name)


def constant(operation: Callable[..., Any] | str, /, **advice: str) -> None:
    """Make an operation raise for operands that are on the graph or have a tangent, which would be lost silently.

    ``advice`` says, for each operand, what to do instead. Inside ``no_grad()``, where nothing is recorded, they are
    accepted.
    """
    entry = entry_of("constant", operation)
    if unknown := set(advice) - set(entry.operands):
        raise ArgumentError(f"{entry.name} has no operand {min(unknown)!r}")
    entry.constants.update(advice)
    notify(entry.name)
