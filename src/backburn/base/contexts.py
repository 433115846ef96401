"""Scoped settings, safe with threads and coroutines: each is one ``ContextVar``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from backburn.base.dtypes import DType, float32

T = TypeVar("T")

#: False inside ``no_grad()``: operations on tracked tensors record nothing.
RECORDING: ContextVar[bool] = ContextVar("backburn_recording", default=True)
#: The backend of the innermost function transform that is running; the next one runs a level above it.
ACTIVE: ContextVar[Any] = ContextVar("backburn_active", default=None)
#: The backend of new tensors; None until first asked for.
DEFAULT_BACKEND: ContextVar[Any] = ContextVar("backburn_default_backend", default=None)
#: The dtype of new float tensors made from Python numbers.
DEFAULT_FLOAT: ContextVar[DType] = ContextVar("backburn_default_float", default=float32)


@contextmanager
def scoped(variable: ContextVar[T], value: T) -> Iterator[T]:
    """Set ``variable`` to ``value`` for the length of a ``with`` block."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
