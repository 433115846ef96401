"""Attaching the fused kernels to a backend."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from backburn.backend.table import OPERATIONS
from backburn_cupy.kernels import activate, index, normalize, optimize, pool, random, reduce, scan, softmax
from backburn_cupy.kernels.formulas import FORMULAS, in_one_pass

#: The modules whose functions are operations of the contract, with a runner as their first argument.
FAMILIES = (softmax, normalize, reduce, activate, index, optimize, random, scan, pool)

#: The launcher of each operation that has one. It returns NotImplemented for unsupported operands.
LAUNCHERS: dict[str, Callable[..., Any]] = {
    name: function
    for module in FAMILIES
    for name, function in vars(module).items()
    if name in OPERATIONS and getattr(function, "__module__", None) == module.__name__
}


def preferred(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """The operation ``plain(k, ...)``, preceded by its launcher if there is one.

    Without a ``k.runner`` no kernels run.
    """
    launcher = LAUNCHERS.get(name)
    if launcher is None:
        return plain

    @wraps(plain)
    def operation(k: Any, *operands: Any, **options: Any) -> Any:
        result = NotImplemented if k.runner is None else launcher(k.runner, *operands, **options)
        return plain(k, *operands, **options) if result is NotImplemented else result

    return operation


def attach(backend: type, method: Callable[[str, Callable[..., Any]], Any] = lambda _, function: function) -> None:
    """Put the launchers before the operations of the class ``backend``; ``method`` turns functions into methods."""
    for name in LAUNCHERS:
        setattr(backend, name, method(name, preferred(name, getattr(backend, name))))
    for name in FORMULAS:
        setattr(backend, name, method(name, in_one_pass(name, getattr(backend, name))))
