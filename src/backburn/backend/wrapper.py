"""The base of decorators of backends, which delegates everything but primitives and operations.

:class:`Wrapper`, for decorators that keep the primitives, delegates every operation too.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from backburn.backend.contract import Backend, Capabilities, is_backend, no_backend
from backburn.base.dtypes import DType, FloatDType, IntDType
from backburn.base.errors import ArgumentError, SpecError
from backburn.ops.table import LISTENERS, OPERATIONS, Operation

D = TypeVar("D")

_SHARED: weakref.WeakValueDictionary[tuple[type, int], Any] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def singleton(decorator: type[D], inner: Any, make: Callable[[], D]) -> D:
    """The only object of a decorator around ``inner``, created by ``make`` on first use; thread-safe."""
    key = (decorator, id(inner))
    known = _SHARED.get(key)
    if known is None:
        with _lock:
            known = _SHARED.get(key)
            if known is None:
                known = _SHARED[key] = make()
    return known


class DecoratorBase:
    """The members of a backend other than its operations, delegated to the wrapped backend, ``_inner``.

    A base class of decorators, before :class:`Backend`. :func:`make_operations` adds the operations.
    """

    _inner: Any

    def __eq__(self, other: object) -> bool:
        if self is other or type(self) is not type(other):
            return self is other
        return self.spec == other.spec and self._inner == other._inner  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(self.spec)  # type: ignore[attr-defined]

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

    @property
    def conformance_kinds(self) -> Collection[str] | None:
        """The kinds of conformance checks that the inner backend limits itself to; None if it does not."""
        return getattr(self._inner, "conformance_kinds", None)

    @property
    def settles(self) -> bool:
        """The inner backend's."""
        return self._inner.settles

    def synchronize(self) -> None:
        """Wait for the inner backend."""
        self._inner.synchronize()

    @property
    def libraries(self) -> Mapping[str, str]:
        """The inner backend's."""
        return self._inner.libraries

    def memory_stats(self) -> Mapping[str, int]:
        """The inner backend's."""
        return self._inner.memory_stats()

    def memory_cleanup(self) -> None:
        """Let the inner backend release memory."""
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

    Operations that users add get one too, and those whose rules change are compiled again. Methods that the class
    defines itself, ``written``, are kept.
    """

    def install(name: str) -> None:
        if name in written:
            return
        if name not in OPERATIONS:
            delattr(decorator, name)
            return

        operation: Callable[..., Any] | None = None

        def first_call(self: Any, /, *operands: Any, **attributes: Any) -> Any:
            nonlocal operation  # a method that was bound before the first call runs this each time
            if operation is None:
                operation = compile_operation(OPERATIONS[name])
            if vars(decorator).get(name) is first_call:
                setattr(decorator, name, operation)
            return operation(self, *operands, **attributes)

        setattr(decorator, name, first_call)

    for name in OPERATIONS:
        install(name)
    LISTENERS.append(install)


class Wrapper(DecoratorBase, Backend[Any, Any, Any, Any]):
    """A backend that delegates every operation to ``wrapped``: the base class of decorators that count, log or check.

    A subclass has a ``name``, with which its ``spec`` begins, and overrides :meth:`call`, through which every operation
    goes. Primitives are those of the wrapped backend. It differentiates nothing, so it goes inside ``autodiff``:
    ``autodiff(count(numpy))``. :func:`backburn.register_decorator` registers the name.

        >>> from backburn_numpy import NumpyBackend
        >>> class Counting(Wrapper):
        ...     name, calls = "count", 0
        ...     def call(self, operation, *operands, **attributes):
        ...         self.calls += 1
        ...         return super().call(operation, *operands, **attributes)
        >>> k = Counting(NumpyBackend())
        >>> k.to_numpy(k.exp(k.zeros((2,), dtype=k.float_dtype))).tolist(), k.spec, k.calls
        ([1.0, 1.0], 'count(numpy)', 3)
    """

    name: ClassVar[str]

    def __init__(self, wrapped: Any) -> None:
        """Wrap a backend, which is not changed."""
        if not is_backend(wrapped):
            raise no_backend(type(self).__name__, wrapped)
        if not hasattr(self, "name"):
            raise SpecError(f"{type(self).__name__}: give the class a name = '...', with which its spec begins")
        self._inner = wrapped

    def __setattr__(self, name: str, value: Any) -> None:
        if name in OPERATIONS:  # it would hide the operation: a decorator that logs has no option "log"
            raise ArgumentError(f"{type(self).__name__}: {name} is an operation; give the attribute another name")
        super().__setattr__(name, value)

    def call(self, operation: str, /, *operands: Any, **attributes: Any) -> Any:
        """Call an operation; by default, that of the wrapped backend."""
        return getattr(self._inner, operation)(*operands, **attributes)

    @property
    def wrapped(self) -> Any:
        """The wrapped backend itself."""
        return self._inner

    @property
    def spec(self) -> str:
        """``name(...)`` around the spec of the wrapped backend; a class with options overrides it.

        Options that differ from their defaults are part of it, as in ``"count(numpy, start=3)"``: a spec names one
        backend.
        """
        return f"{self.name}({self._inner.spec})"

    @property
    def capabilities(self) -> Capabilities:
        """The wrapped backend's, but without capture: a replay would bypass :meth:`call`."""
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
