"""Attaching the fused kernels to a backend."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from backburn.ops.table import OPERATIONS, contract_operations
from backburn.programs.lowering import is_formula
from backburn_cupy.kernels import (
    activations,
    index,
    normalization,
    optimizer_steps,
    pool,
    random,
    reduce,
    scan,
    softmax,
)
from backburn_cupy.kernels.fused import prefer_fused

#: The modules whose functions are operations of the contract, with a runner as their first argument.
FAMILIES = (softmax, normalization, reduce, activations, index, optimizer_steps, random, scan, pool)

#: The launcher of each operation that has one. It returns NotImplemented for unsupported operands.
LAUNCHERS: dict[str, Callable[..., Any]] = {
    name: function
    for module in FAMILIES
    for name, function in vars(module).items()
    if name in OPERATIONS and getattr(function, "__module__", None) == module.__name__
}


def prefer_launcher(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """The operation ``plain(k, ...)``, preceded by its launcher if there is one.

    No kernels run without a ``k.runner``, or on complex numbers.
    """
    launcher = LAUNCHERS.get(name)
    if launcher is None:
        return plain

    @wraps(plain)
    def operation(k: Any, *operands: Any, **options: Any) -> Any:
        result = NotImplemented if k.runner is None else launcher(k.runner, *operands, **options)
        return plain(k, *operands, **options) if result is NotImplemented else result

    @wraps(plain)
    def unless_complex(k: Any, x: Any, *operands: Any, **options: Any) -> Any:
        return (plain if x.dtype.kind == "c" else operation)(k, x, *operands, **options)

    return unless_complex if "C" in OPERATIONS[name].kinds else operation


def attach(backend: type, method: Callable[[str, Callable[..., Any]], Any] = lambda _, function: function) -> None:
    """Put the launchers before the operations of the class ``backend``; ``method`` turns functions into methods.

    Element-wise operations for which the class has no function are fused.
    """
    for name in LAUNCHERS:
        setattr(backend, name, method(name, prefer_launcher(name, getattr(backend, name))))
    for name in (entry.name for entry in contract_operations()):
        if is_formula(name) and name not in vars(backend):
            setattr(backend, name, method(name, prefer_fused(name, getattr(backend, name))))
