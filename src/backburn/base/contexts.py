"""Scoped settings, safe with threads and coroutines: each is a ``ContextVar``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from backburn.base.dtypes import DType
from backburn.base.errors import ArgumentError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

#: False inside ``no_grad()``: operations on tracked tensors record nothing.
RECORDING: ContextVar[bool] = ContextVar("backburn_recording", default=True)
#: The backend of the innermost function transform that is running; the next one runs a level above it.
ACTIVE: ContextVar[Any] = ContextVar("backburn_active", default=None)
#: The backends of the derivatives that are running, the outermost first.
TRANSFORMS: ContextVar[tuple[Any, ...]] = ContextVar("backburn_transforms", default=())
#: Lists of the eigenvalues and singular values that functions under differentiation have computed.
DECOMPOSED: ContextVar[tuple[list[Any], ...]] = ContextVar("backburn_decomposed", default=())
#: The backend of new tensors; None until first asked for.
DEFAULT_BACKEND: ContextVar[Any] = ContextVar("backburn_default_backend", default=None)
#: The dtype of new float tensors made from Python numbers; None for that of their backend.
DEFAULT_FLOAT: ContextVar[Any] = ContextVar("backburn_default_float", default=None)

#: The means that losses have computed, with functions that return the divisors; None if they are not collected.
MEANS: ContextVar[list[tuple[Any, Callable[[], Any]]] | None] = ContextVar("backburn_means", default=None)


def default_float(backend: Any) -> DType:
    """The dtype of new float tensors of a backend: that of the innermost ``use_dtype``, else the backend's own."""
    return DEFAULT_FLOAT.get() or backend.float_dtype


class scoped(AbstractContextManager[T, None]):  # noqa: N801 - used like a function
    """Set ``variable`` to ``value`` for the duration of a ``with`` block."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> T:
        self._token = self._variable.set(self._value)
        return self._value

    def __exit__(self, *error: object) -> None:
        self._variable.reset(self._token)


class Block(Generic[T]):
    """A context manager and decorator, such as ``no_grad()`` returns.

    It has no effect until it is entered, and may be entered several times. The setting is a context variable: it holds
    in one thread or task; ``contextvars.copy_context().run`` copies it to another. Decorating a generator or
    coroutine function raises :class:`ArgumentError`, since its body runs after the call.
    """

    __slots__ = ("_entered", "_make", "_name")

    def __init__(self, name: str, make: Callable[[], AbstractContextManager[T]]) -> None:
        """``make`` returns a new context manager for each entry; ``name`` is the public name of the block."""
        self._name = name
        self._make = make
        self._entered: list[AbstractContextManager[T]] = []

    def __repr__(self) -> str:
        state = "entered" if self._entered else "has no effect until a with statement enters it"
        return f"<{self._name}: {state}>"

    def __enter__(self) -> T:
        block = self._make()
        value = block.__enter__()
        self._entered.append(block)
        return value

    def __exit__(self, *error: Any) -> bool | None:
        return self._entered.pop().__exit__(*error)

    def __call__(self, function: F, /) -> F:
        """``function``, whose calls run inside the block."""
        if not callable(function):
            raise ArgumentError(f"{self._name}: decorates a function, not {function!r}")
        later = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        if later or inspect.iscoroutinefunction(function):
            raise ArgumentError(
                f"{self._name}: {function.__qualname__} is a {'generator' if later else 'coroutine'} function, whose "
                f"body runs after the call: write 'with {self._name}(...):' around what it computes"
            )

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self._make():
                return function(*args, **kwargs)

        return inside  # type: ignore[return-value]
