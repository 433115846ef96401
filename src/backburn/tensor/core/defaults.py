"""Scoped defaults: the backend and the float dtype of new tensors, and whether operations are recorded."""

from __future__ import annotations

import os
from typing import Any, TypeAlias, overload

from backburn.autodiff.reverse import Autodiff
from backburn.backend.contract import AnyBackend, is_backend, lacking
from backburn.backend.registry import check_autodiff_backend, load_backend
from backburn.base.contexts import DEFAULT_BACKEND, DEFAULT_FLOAT, RECORDING, Block, F, scoped
from backburn.base.dtypes import DType, as_dtype
from backburn.base.errors import ArgumentError, BackburnError, DTypeError, SpecError

#: Arguments that name a backend: the backend, its expression, or None for the default.
BackendLike: TypeAlias = AnyBackend | str | None


def as_backend(backend: BackendLike) -> AnyBackend:
    """The backend that is given, that an expression names, or (for None) the default."""
    if backend is None:
        return default_backend()
    if type(backend) is Autodiff:  # nothing to check
        return backend
    if isinstance(backend, str):
        return load_backend(backend)
    if is_backend(backend):
        check_autodiff_backend(backend)
        return backend
    given: object = backend
    hint = f"; astype({given.name!r}) casts" if isinstance(given, DType) else ""
    if isinstance(given, type) and hasattr(given, "spec"):
        hint = f"; it is a class: {given.__name__}() makes a backend"
    elif hasattr(given, "spec"):
        hint = f": {lacking(given)}"
    raise SpecError(f"{backend!r} is neither a backend nor an expression such as 'autodiff(numpy)'{hint}")


def given_backend(backend: BackendLike, device: BackendLike) -> BackendLike:
    """The backend of a new tensor: ``backend``, or ``device``, the Array API's name for it; both must agree."""
    if backend is None or device is None:
        return device if backend is None else backend
    first, second = as_backend(backend), as_backend(device)
    if first is not second and first != second:
        raise ArgumentError(
            f"backend is {first.spec} and device is {second.spec}: these are two names of one argument; give one"
        )
    return first


def default_backend() -> AnyBackend:
    """The backend of new tensors.

    It is that of the innermost :func:`use_backend`, else that of the environment variable ``BACKBURN_BACKEND``, if not
    empty, else ``autodiff(numpy)``.

        >>> default_backend()
        <backend autodiff(numpy)>
    """
    backend: AnyBackend | None = DEFAULT_BACKEND.get()
    if backend is not None:
        return backend
    spec = os.environ.get("BACKBURN_BACKEND") or "autodiff(numpy)"
    try:
        return load_backend(spec)
    except BackburnError as error:
        raise type(error)(f"BACKBURN_BACKEND={spec}: {error}") from error


def use_backend(backend: AnyBackend | str) -> Block[AnyBackend]:
    """Create tensors on ``backend`` inside a ``with`` block (or a decorated function).

    A call alone changes nothing; for a whole process, set the environment variable ``BACKBURN_BACKEND``. The setting is
    a context variable: it holds in the thread that entered the block, but not in threads started there, unless they run
    ``contextvars.copy_context().run(function)``.

    >>> with use_backend("numpy") as backend:
    ...     backend is default_backend()
    True
    """
    found = as_backend(backend)
    return Block("use_backend", lambda: scoped(DEFAULT_BACKEND, found))


def default_dtype() -> DType:
    """The dtype of tensors made from Python floats: that of :func:`use_dtype`, else of the default backend, float32.

    >>> default_dtype()
    float32
    """
    return DEFAULT_FLOAT.get() or default_backend().float_dtype


def use_dtype(dtype: Any) -> Block[DType]:
    """Make another float dtype the default inside a ``with`` block (or a decorated function).

    A call alone changes nothing. The setting holds in the thread that entered the block; see :func:`use_backend`.

    >>> with use_dtype("float64"):
    ...     default_dtype()
    float64
    """
    found = as_dtype(dtype)
    if not found.is_floating:
        raise DTypeError(f"use_dtype: the default is a float dtype, not {found}")
    return Block("use_dtype", lambda: scoped(DEFAULT_FLOAT, found))


@overload
def no_grad() -> Block[bool]: ...
@overload
def no_grad(function: F, /) -> F: ...
def no_grad(function: Any = None, /) -> Any:
    """Record nothing inside a ``with`` block, or a decorated function, at any level of nesting.

    It holds in the thread that entered the block, not in others; see :func:`use_backend`. Raises :class:`ArgumentError`
    for generator and coroutine functions, whose bodies run after the call.

        >>> import backburn as bb
        >>> x = bb.asarray([1.0]).require_grad()
        >>> with no_grad():
        ...     (x * 2.0).is_tracked
        False
        >>> @no_grad
        ... def doubled(x):
        ...     return x * 2.0
        >>> doubled(x).is_tracked
        False
    """
    block = Block("no_grad", lambda: scoped(RECORDING, False))
    return block if function is None else block(function)
