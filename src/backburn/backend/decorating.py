"""What decorators of backends have in common: everything but their primitives and operations is the inner backend's.

:class:`Wrapper` is the base of those that change no primitives: it delegates every operation.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from backburn.backend.contract import Backend, Capabilities, is_backend, no_backend
from backburn.backend.table import LISTENERS, OPERATIONS, Operation
from backburn.base.dtypes import DType, FloatDType, IntDType
from backburn.base.errors import ArgumentError, SpecError

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


class Delegating:
    """The members of a backend besides its operations, as those of the one that it wraps, ``_inner``.

    A base of decorators beside :class:`Backend`, before it. :func:`make_operations` gives them the operations.
    """

    _inner: Any

    @property
    def device(self) -> str:
        """The inner backend's."""
        return self._inner.device

    @property
    def float_dtype(self) -> FloatDType:
        """The inner backend's."""
        return self._inner.float_dtype

    @property
    def int_dtype(self) -> IntDType:
        """The inner backend's."""
        return self._inner.int_dtype

    @property
    def capabilities(self) -> Capabilities:
        """The inner backend's."""
        return self._inner.capabilities

    def synchronize(self) -> None:
        """Wait for the inner backend."""
        self._inner.synchronize()

    @property
    def libraries(self) -> Mapping[str, str]:
        """Those of the inner backend."""
        return self._inner.libraries

    def memory_stats(self) -> Mapping[str, int]:
        """The inner backend's."""
        return self._inner.memory_stats()

    def memory_cleanup(self) -> None:
        """Let the inner backend give memory back."""
        self._inner.memory_cleanup()

    def quantized_parts(self, x: Any, /) -> tuple[Any, Any, Any]:
        """The inner backend's."""
        return self._inner.quantized_parts(x)

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


class Wrapper(Delegating, Backend[Any, Any, Any, Any]):
    """A backend that delegates every operation to ``wrapped``: the base of decorators that count, log or check.

    A subclass has a ``name``, with which its ``spec`` begins, and overrides :meth:`call`, through which every operation
    goes. Primitives are those of the wrapped backend. It differentiates nothing, so that it goes inside:
    ``autodiff(count(numpy))``. :func:`backburn.register_decorator` makes the name known.

        >>> from backburn_numpy import NumpyBackend
        >>> class Counting(Wrapper):
        ...     name, calls = "count", 0
        ...     def call(self, operation, *operands, **attributes):
        ...         self.calls += 1
        ...         return super().call(operation, *operands, **attributes)
        >>> k = Counting(NumpyBackend())
        >>> k.to_numpy(k.exp(k.zeros((2,), dtype=k.float_dtype))).tolist(), k.spec, k.calls
        ([1.0, 1.0], 'count(numpy)', 3)

    Raises an :class:`ArgumentError` that is a TypeError too when ``wrapped`` is not a backend, and :class:`SpecError`
    for a class without a name.
    """

    name: ClassVar[str]

    def __init__(self, wrapped: Any) -> None:
        """Around a backend, which stays as it is."""
        if not is_backend(wrapped):
            raise no_backend(type(self).__name__, wrapped)
        if not hasattr(self, "name"):
            raise SpecError(f"{type(self).__name__}: give the class a name = '...', with which its spec begins")
        self._inner = wrapped

    def __setattr__(self, name: str, value: Any) -> None:
        if name in OPERATIONS:  # it would stand in the operation's place: a decorator that logs has no option "log"
            raise ArgumentError(f"{type(self).__name__}: {name} is an operation; give the attribute another name")
        super().__setattr__(name, value)

    def call(self, operation: str, /, *operands: Any, **attributes: Any) -> Any:
        """What the wrapped backend's operation of this name gives."""
        return getattr(self._inner, operation)(*operands, **attributes)

    @property
    def wrapped(self) -> Any:
        """The very backend that was wrapped."""
        return self._inner

    @property
    def spec(self) -> str:
        """``name(...)`` around the wrapped backend's; to be overridden by a class with options.

        It tells those that are not the default, as ``"count(numpy, start=3)"``: a spec is the name of one backend.
        """
        return f"{self.name}({self._inner.spec})"

    @property
    def capabilities(self) -> Capabilities:
        """The wrapped backend's, but that nothing is captured: a replay would pass :meth:`call` by."""
        return replace(super().capabilities, capture=False)

    def dtype(self, x: Any, /) -> DType:
        """The wrapped backend's."""
        return self._inner.dtype(x)


def _delegated(operation: Operation) -> Callable[..., Any]:
    name = operation.name

    def delegated(self: Wrapper, /, *operands: Any, **attributes: Any) -> Any:
        return self.call(name, *operands, **attributes)

    return delegated


make_operations(Wrapper, _delegated)
