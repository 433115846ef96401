"""Registration of the functions that implement operations of the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from backburn.ops.table import OPERATIONS
from backburn_numpy.runtime.quiet import quiet

F = TypeVar("F", bound=Callable[..., Any])


class Implementation(NamedTuple):
    """The function of an operation, and whether its first parameter is the backend."""

    function: Callable[..., Any]
    takes_backend: bool


#: The implementations by the operation's name. An operation without one uses the contract's body.
IMPLEMENTATIONS: dict[str, Implementation] = {}


def implements(name: str, takes_backend: bool = False) -> Callable[[F], F]:
    """A decorator: the function is the operation ``name``, repeated quietly if NumPy raises for NaN and infinities.

    With ``takes_backend`` its first parameter is the backend. The decorated function itself is unchanged.

    >>> @implements("soft")
    ... def soft(x): ...
    Traceback (most recent call last):
    KeyError: 'the contract has no operation soft'
    """

    def registered(function: F) -> F:
        register(name, quiet(function), takes_backend)
        return function

    return registered


def register(name: str, function: Callable[..., Any], takes_backend: bool = False) -> None:
    """Register the function, which is quiet already, as the operation ``name``."""
    if name not in OPERATIONS:
        raise KeyError(f"the contract has no operation {name}")
    if name in IMPLEMENTATIONS:
        raise KeyError(f"{name} has an implementation in {IMPLEMENTATIONS[name].function.__module__}")
    IMPLEMENTATIONS[name] = Implementation(function, takes_backend)
