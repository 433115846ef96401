"""Defaults with a scope: the backend and the float dtype of new tensors, and whether operations are recorded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from backburn.backend.contract import AnyBackend, is_backend
from backburn.backend.registry import check_autodiff_backend, load_backend
from backburn.base.contexts import DEFAULT_BACKEND, DEFAULT_FLOAT, RECORDING, scoped
from backburn.base.dtypes import DType, as_dtype
from backburn.base.errors import DTypeError, SpecError


def as_backend(backend: AnyBackend | str | None) -> AnyBackend:
    """A backend from itself, from an expression, or (None) the default."""
    if backend is None:
        return default_backend()
    if isinstance(backend, str):
        return load_backend(backend)
    if is_backend(backend):
        check_autodiff_backend(backend)
        return backend
    raise SpecError(f"{backend!r} is neither a backend nor an expression such as 'autodiff(numpy)'")


def default_backend() -> AnyBackend:
    """The backend of new tensors.

    It is that of the innermost :func:`use_backend`, else ``BACKBURN_BACKEND``, else ``autodiff(numpy)``.

        >>> default_backend()
        <backend autodiff(numpy)>
    """
    backend: AnyBackend | None = DEFAULT_BACKEND.get()
    return load_backend(os.environ.get("BACKBURN_BACKEND", "autodiff(numpy)")) if backend is None else backend


@contextmanager
def use_backend(backend: AnyBackend | str) -> Iterator[AnyBackend]:
    """Make new tensors on ``backend`` inside a ``with`` block.

    >>> with use_backend("numpy") as backend:
    ...     backend is default_backend()
    True
    """
    with scoped(DEFAULT_BACKEND, as_backend(backend)) as made:
        yield made


def default_dtype() -> DType:
    """The dtype of tensors made from Python floats; float32 unless :func:`use_dtype` says otherwise.

    >>> default_dtype()
    float32
    """
    return DEFAULT_FLOAT.get()


@contextmanager
def use_dtype(dtype: Any) -> Iterator[DType]:
    """Make another float type the default inside a ``with`` block.

    >>> with use_dtype("float64"):
    ...     default_dtype()
    float64
    """
    found = as_dtype(dtype)
    if found.kind != "float":
        raise DTypeError(f"use_dtype: the default is a float dtype, not {found}")
    with scoped(DEFAULT_FLOAT, found):
        yield found


@contextmanager
def no_grad() -> Iterator[None]:
    """Record nothing inside a ``with`` block (or a decorated function), at any level of nesting.

    >>> import backburn as bb
    >>> x = bb.asarray([1.0]).require_grad()
    >>> with no_grad():
    ...     (x * 2.0).is_tracked
    False
    """
    with scoped(RECORDING, False):
        yield
