"""User-defined operations, entered into the operation table, from which decorators and checks read them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from backburn.backend import table
from backburn.backend.contract import Backend
from backburn.base.errors import ArgumentError

C = TypeVar("C", bound=Callable[..., Any])

#: The operations that users have added, and the backends that implement them.
ADDED: dict[str, list[type[Any]]] = {}

#: Those that are element-wise formulas, like their gradient rules.
FORMULAS: dict[str, bool] = {}
table.ATTACHED.append(FORMULAS)


def define(
    body: Callable[..., Any],
    *,
    kinds: str,
    shape: Any,
    result: str | tuple[str, ...],
    differentiable: bool,
    one_pass: bool = False,
) -> table.Operation:
    """Define ``body(k, operands, /, attributes)`` as a derived operation of every backend.

    With ``one_pass``, backends may trace the body and its gradient rules. An earlier user-defined operation of the same
    name is removed first, as when a cell of a notebook runs again. Raises :class:`ArgumentError` for an invalid name or
    one in use, a parameter with a name that gradient rules reserve or that begins with an underscore, one that is
    keyword-only, and a body without a docstring.
    """
    name = body.__name__
    withdraw(name)
    if hasattr(Backend, name) or not name.isidentifier() or name.startswith("_"):
        raise ArgumentError(f"operation: {name!r} is taken by the contract, or not a valid name for an operation")
    if not (body.__doc__ or "").strip() and sys.flags.optimize < 2:  # python -OO strips docstrings
        raise ArgumentError(f"operation: {name} needs a docstring that says what it computes")
    enter = table.operation(kinds=kinds, shape=shape, result=result, differentiable=differentiable)
    enter(body)
    entry = table.OPERATIONS[name]
    taken = {*table.RESERVED, "self", *(f"{o}_{about}" for o in entry.operands for about in ("shape", "dtype"))}
    problems = [f"the name {n!r} is reserved" for n in entry.parameters if n in taken or n.startswith("_")]
    named = [n for n, p in entry.parameters.items() if p.kind is p.KEYWORD_ONLY]
    problems += [f"{n!r} is keyword-only: leave out the * before it" for n in named]
    problems += [] if entry.operands else ["it has no operands before '/'"]
    problems += ["what is computed in one pass has the dtype of its operands"] if one_pass and result != "same" else []
    if problems:
        del table.OPERATIONS[name]
        raise ArgumentError(f"operation: {name} cannot be declared so: {problems[0]}")
    setattr(Backend, name, _in_one_pass(entry) if one_pass else body)
    ADDED[name] = []
    if one_pass:
        FORMULAS[name] = True
    table.notify(name)
    return entry


def _in_one_pass(entry: table.Operation) -> Callable[..., Any]:
    """The operation as a method of a backend, which may compute it in one pass over memory."""
    body, names, defaults = entry.body, tuple(entry.parameters), entry.defaults

    @wraps(body)
    def operation(self: Any, /, *given: Any, **attributes: Any) -> Any:
        rest = names[len(given) :]
        if not attributes.keys() <= set(rest) <= attributes.keys() | defaults.keys():
            return body(self, *given, **attributes)  # which raises the error
        return self.one_pass(body, *given, *(attributes.get(n, defaults.get(n)) for n in rest))

    return operation


def withdraw(name: str) -> None:
    """Remove a user-defined operation with its rules, implementations and samples; does nothing for another name."""
    if name not in ADDED:
        return
    del table.OPERATIONS[name]
    for cls in (Backend, *ADDED.pop(name)):
        delattr(cls, name)
    for attached in table.ATTACHED:
        attached.pop(name, None)
    table.notify(name)


def implement(operation: Callable[..., Any] | str, backend: type[Any]) -> Callable[[C], C]:
    """Attach the decorated function as ``backend``'s own implementation of a derived operation.

    It takes the operands and attributes, without the backend, and must compute the same as the body, which the
    conformance samples of the operation check.

        >>> import backburn as bb
        >>> @bb.operation()
        ... def doctest_double(k, x, /):
        ...     '''Twice each element.'''
        ...     return k.mul(x, 2.0)
        >>> @bb.implement(doctest_double, type(bb.load_backend("numpy")))
        ... def numpy_double(x, /):
        ...     return x + x
        >>> doctest_double(bb.asarray([1.0, 2.0], backend="numpy")).tolist()
        [2.0, 4.0]
    """
    name = operation if isinstance(operation, str) else operation.__name__
    if name not in table.OPERATIONS:
        raise ArgumentError(f"implement: {name!r} is not an operation")

    def attach(function: C) -> C:
        setattr(backend, name, staticmethod(function))
        if name in ADDED and backend not in ADDED[name]:
            ADDED[name].append(backend)
        return function

    return attach
