"""The base of ``Autodiff`` and ``Forward``: float primitives that wrap those of the inner backend.

Int, bool and quantized primitives are the inner backend's, unchanged.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Self

from backburn.backend.contract import (
    BI,
    BK,
    II,
    QI,
    BoolsOf,
    IntsOf,
    QuantizedsOf,
    is_backend,
    no_backend,
)  # fmt: skip
from backburn.backend.opaque import Opaque
from backburn.backend.wrapper import DecoratorBase, singleton
from backburn.base.dtypes import DType
from backburn.base.errors import BackendMismatchError, DTypeError
from backburn.ops.table import OPERATIONS


class _PassedThrough(Generic[BK]):
    """A primitive that decorators do not change, for type checkers."""

    shape: tuple[int, ...]


class IntOf(_PassedThrough[BK]):
    """The int primitive of ``Autodiff[BK]`` for type checkers; at run time it is the inner backend's own."""


class BoolOf(_PassedThrough[BK]):
    """The bool primitive of ``Autodiff[BK]`` for type checkers; at run time it is the inner backend's own."""


class QuantizedOf(_PassedThrough[BK]):
    """The quantized primitive of ``Autodiff[BK]`` for type checkers; at run time it is the inner backend's own."""


def check_kind(kind: str, backend: Any, operation: str, tensor: Any) -> Any:
    """``tensor``, which must be a primitive of that kind of the backend inside ``backend``."""
    found = backend.inner_backend.dtype(tensor).kind
    if found != kind and (kind, found) != ("float", "complex"):  # complex numbers are float primitives
        raise DTypeError(f"{operation}: expected a primitive of the {kind} kind, not of the {found} kind")
    return tensor


class Box(Opaque, Generic[BK]):
    """A float primitive of a decorator: an inner one, ``value``, to which a subclass adds a node or a tangent."""

    __slots__ = ("value",)
    value: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return self.value.shape

    @property
    def dtype(self) -> Any:
        """The dtype object of the innermost primitive, as its library has it."""
        return self.value.dtype


class DifferentiatingDecorator(DecoratorBase, Generic[BK]):
    """A decorator whose float primitives are boxes; its spec begins with its ``name``."""

    name: ClassVar[str]
    _inner: BK

    def __new__(cls, inner: BK) -> Self:
        """The one object around ``inner``."""
        return singleton(cls, inner, lambda: cls._wrap(inner))

    def __init__(self, inner: BK) -> None:
        """Do nothing: ``__new__`` may return an existing object."""

    @classmethod
    def _wrap(cls, inner: BK) -> Self:
        """A new object around ``inner``."""
        if not is_backend(inner):
            raise no_backend(cls.__name__, inner)
        level = super().__new__(cls)
        level._inner = inner
        return level

    @property
    def settles(self) -> bool:
        """False: gradients that are differentiated again are settled on the level below."""
        return False

    @property
    def inner_backend(self) -> BK:
        """The wrapped backend itself."""
        return self._inner

    @property
    def spec(self) -> str:
        """``name(...)`` around the spec of the inner backend."""
        return f"{self.name}({self._inner.spec})"

    def differentiates_whole(self, operation: str) -> bool:
        """Whether an operation is differentiated by its own rules, rather than through its default body."""
        return operation in OPERATIONS and bool(OPERATIONS[operation].gradients)

    def _dtype_of_unboxed(self, x: Any) -> DType:
        """The dtype of a primitive that is the inner backend's too. Raises for a float primitive."""
        dtype = self._inner.dtype(x)
        if dtype.has_gradient:
            raise BackendMismatchError(
                f"a float primitive of {self._inner.spec} is not one of {self.spec}: lift it with from_inner"
            )
        return dtype

    def int_inner(self: IntsOf[II], tensor: IntOf[BK]) -> II:
        """The inner int primitive, which ``tensor`` is."""
        return check_kind("int", self, "int_inner", tensor)

    def bool_inner(self: BoolsOf[BI], tensor: BoolOf[BK]) -> BI:
        """The inner bool primitive, which ``tensor`` is."""
        return check_kind("bool", self, "bool_inner", tensor)

    def q_inner(self: QuantizedsOf[QI], tensor: QuantizedOf[BK]) -> QI:
        """The inner quantized primitive, which ``tensor`` is."""
        return check_kind("quantized", self, "q_inner", tensor)

    def int_from_inner(self: IntsOf[II], tensor: II) -> IntOf[BK]:
        """An inner int primitive, unchanged."""
        return check_kind("int", self, "int_from_inner", tensor)

    def bool_from_inner(self: BoolsOf[BI], tensor: BI) -> BoolOf[BK]:
        """An inner bool primitive, unchanged."""
        return check_kind("bool", self, "bool_from_inner", tensor)

    def q_from_inner(self: QuantizedsOf[QI], tensor: QI) -> QuantizedOf[BK]:
        """An inner quantized primitive, unchanged."""
        return check_kind("quantized", self, "q_from_inner", tensor)
