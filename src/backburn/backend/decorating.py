"""What decorators of backends have in common: everything but their primitives and operations is the inner backend's."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from backburn.backend.contract import Capabilities
from backburn.backend.table import LISTENERS, OPERATIONS, Operation
from backburn.base.dtypes import FloatDType, IntDType

D = TypeVar("D")

_SHARED: weakref.WeakValueDictionary[tuple[type, int], Any] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def shared(decorator: type[D], inner: Any, make: Callable[[], D]) -> D:
    """The one object of a decorator around ``inner``, which ``make`` makes where there is none, in any thread."""
    key = (decorator, id(inner))
    known = _SHARED.get(key)
    if known is None:
        with _lock:
            known = _SHARED.get(key)
            if known is None:
                known = _SHARED[key] = make()
    return known


class Decorating:
    """The members of a backend that a decorator hands on to the one that it wraps, ``_inner``.

    A base beside :class:`Backend`, before it. :func:`make_operations` gives it the operations.
    """

    _inner: Any

    @property
    def inner_backend(self) -> Any:
        """The very backend that was wrapped."""
        return self._inner

    @property
    def device(self) -> str:
        """The inner backend's."""
        return self._inner.device  # type: ignore[no-any-return]

    @property
    def float_dtype(self) -> FloatDType:
        """The inner backend's."""
        return self._inner.float_dtype  # type: ignore[no-any-return]

    @property
    def int_dtype(self) -> IntDType:
        """The inner backend's."""
        return self._inner.int_dtype  # type: ignore[no-any-return]

    @property
    def capabilities(self) -> Capabilities:
        """The inner backend's."""
        return self._inner.capabilities  # type: ignore[no-any-return]

    def synchronize(self) -> None:
        """Wait for the inner backend."""
        self._inner.synchronize()

    def memory_stats(self) -> Mapping[str, int]:
        """The inner backend's."""
        return self._inner.memory_stats()  # type: ignore[no-any-return]

    def memory_cleanup(self) -> None:
        """Let the inner backend give memory back."""
        self._inner.memory_cleanup()

    def quantized_parts(self, x: Any, /) -> tuple[Any, Any, Any]:
        """The inner backend's."""
        return self._inner.quantized_parts(x)  # type: ignore[no-any-return]

    def quantized_from_parts(self, values: Any, scale: Any, zero: Any, /, dtype: Any, shape: tuple[int, ...]) -> Any:
        """The inner backend's."""
        return self._inner.quantized_from_parts(values, scale, zero, dtype=dtype, shape=shape)


def make_operations(
    decorator: type[Any], compile_operation: Callable[[Operation], Callable[..., Any]], written: Collection[str] = ()
) -> None:
    """Give a decorator a method for each operation of the table, compiled at its first call.

    It takes up operations that users add, and compiles anew those whose rules change. Those that are ``written`` out
    in the class are left alone.
    """

    def install(name: str) -> None:
        if name in written:
            return
        if name not in OPERATIONS:
            delattr(decorator, name)
            return

        def compiled() -> Callable[..., Any]:
            return compile_operation(OPERATIONS[name])

        def first_call(self: Any, /, *operands: Any, **attributes: Any) -> Any:
            operation = compiled()
            setattr(decorator, name, operation)
            return operation(self, *operands, **attributes)

        first_call.compiled = compiled  # type: ignore[attr-defined]
        setattr(decorator, name, first_call)

    for name in OPERATIONS:
        install(name)
    LISTENERS.append(install)
