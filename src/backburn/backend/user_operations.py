"""User-defined operations, entered into the operation table, from which decorators and checks read them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from backburn.backend.contract import Backend
from backburn.base.errors import ArgumentError
from backburn.ops import table

C = TypeVar("C", bound=Callable[..., Any])


def define(
    body: Callable[..., Any],
    *,
    kinds: str,
    shape: Any,
    result: str | tuple[str, ...],
    differentiable: bool,
    fuse: bool = False,
) -> table.Operation:
    """Define ``body(k, operands, /, attributes)`` as a derived operation of every backend.

    With ``fuse``, backends may trace the body and its gradient rules. An earlier operation of the same name and module
    is replaced, as when a cell of a notebook runs again. Raises :class:`ArgumentError` for an invalid name or one in
    use, also by another module, a parameter with a name that gradient rules reserve or that begins with an underscore,
    one that is keyword-only, and a body without a docstring.
    """
    name = body.__name__
    _check_free(name, body)
    withdraw(name)
    if hasattr(Backend, name) or not name.isidentifier() or name.startswith("_"):
        raise ArgumentError(f"operation: {name!r} is taken by the contract, or not a valid name for an operation")
    if not (body.__doc__ or "").strip() and sys.flags.optimize < 2:  # python -OO strips docstrings
        raise ArgumentError(f"operation: {name} needs a docstring that says what it computes")
    enter = table.operation(
        kinds=kinds, shape=shape, result=result, differentiable=differentiable, elementwise=fuse, fuse=fuse
    )
    enter(body)
    entry = table.OPERATIONS[name]
    taken = {*table.RESERVED, "self", *(f"{o}_{about}" for o in entry.operands for about in ("shape", "dtype"))}
    problems = [f"the name {n!r} is reserved" for n in entry.parameters if n in taken or n.startswith("_")]
    named = [n for n, p in entry.parameters.items() if p.kind is p.KEYWORD_ONLY]
    problems += [f"{n!r} is keyword-only: leave out the * before it" for n in named]
    problems += [] if entry.operands else ["it has no operands before '/'"]
    problems += ["a fused operation has the dtype of its operands"] if fuse and result != "same" else []
    if problems:
        del table.OPERATIONS[name]
        raise ArgumentError(f"operation: {name} cannot be declared so: {problems[0]}")
    setattr(Backend, name, _fused(entry) if fuse else body)
    entry.implementations = []
    table.notify(name)
    return entry


def _check_free(name: str, body: Callable[..., Any]) -> None:
    """Raise if another module has defined an operation of this name, which its functions would then compute wrongly."""
    entry = table.OPERATIONS.get(name)
    if entry is None or entry.implementations is None or entry.body.__module__ == body.__module__:
        return
    # A file that runs as __main__ may be imported by its name as well.
    if _file(entry.body) is None or _file(entry.body) != _file(body):
        raise ArgumentError(
            f"operation: {name!r} of {body.__module__} is defined by {entry.body.__module__} already, and operations "
            f"have one namespace: give it another name, such as {body.__module__.rpartition('.')[2].strip('_')}_{name}"
        )


def _file(body: Callable[..., Any]) -> str | None:
    code = getattr(body, "__code__", None)
    return None if code is None else code.co_filename


def _fused(entry: table.Operation) -> Callable[..., Any]:
    """The operation as a method of a backend, which may compute it in one pass over memory."""
    body, names, defaults = entry.body, tuple(entry.parameters), entry.defaults

    @wraps(body)
    def operation(self: Any, /, *given: Any, **attributes: Any) -> Any:
        rest = names[len(given) :]
        if not attributes.keys() <= set(rest) <= attributes.keys() | defaults.keys():
            return body(self, *given, **attributes)  # which raises the error
        return self.fuse(body, *given, *(attributes.get(n, defaults.get(n)) for n in rest))

    return operation


def withdraw(name: str) -> None:
    """Remove a user-defined operation with its rules, implementations and samples; does nothing for another name."""
    entry = table.OPERATIONS.get(name)
    if entry is None or entry.implementations is None:
        return
    del table.OPERATIONS[name]
    for cls in (Backend, *entry.implementations):
        delattr(cls, name)
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
        implementations = table.OPERATIONS[name].implementations
        if implementations is not None and backend not in implementations:
            implementations.append(backend)
        table.notify(name)
        return function

    return attach
