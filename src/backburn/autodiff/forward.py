"""``Forward``: forward-mode differentiation around any backend, by dual numbers."""

from __future__ import annotations

from typing import Any

from backburn.autodiff.decorator import BoolOf, IntOf, QuantizedOf
from backburn.autodiff.duals import Dual, compile_operation
from backburn.autodiff.rules import RULES
from backburn.backend.contract import BK, Backend, is_backend, no_backend
from backburn.backend.decorating import Decorating, make_operations, shared
from backburn.base.dtypes import DType
from backburn.base.errors import BackendMismatchError, DTypeError, NotDifferentiableError, ShapeError


class Forward(Decorating, Backend[Dual[BK], IntOf[BK], BoolOf[BK], QuantizedOf[BK]]):
    """``inner`` with tangents: a backend like any other, so that it can be wrapped again, also by ``Autodiff``.

    Its float primitives are dual numbers: an inner float primitive, and a tangent like it unless it is a constant; the
    tangent of each result is computed along with it, and nothing is recorded. Int, bool and quantized primitives are
    the inner backend's, unchanged. A directional derivative costs a small multiple of the function, whatever the number
    of inputs and outputs. Inside ``no_grad`` results are constants.

        >>> from backburn_numpy import NumpyBackend
        >>> import numpy as np
        >>> k = Forward(NumpyBackend())
        >>> x = k.dual(np.array([1.0, 2.0]), np.array([1.0, 0.0]))
        >>> k.tangent(k.mul(x, x))
        array([2., 0.])

    Raises an :class:`ArgumentError` that is a TypeError too when ``inner`` is not a backend. (Wengert, A simple
    automatic derivative evaluation program, 1964)
    """

    _inner: BK

    def __new__(cls, inner: BK) -> Forward[BK]:
        """The one object around ``inner``."""
        return shared(cls, inner, lambda: cls.level(inner))

    def __init__(self, inner: BK) -> None:
        """``__new__`` has done it: the object may be one that exists already."""

    @classmethod
    def level(cls, inner: BK) -> Forward[BK]:
        """An object around ``inner`` that equals no other, so that two runs cannot confuse their tangents."""
        if not is_backend(inner):
            raise no_backend("Forward", inner)
        made = super().__new__(cls)
        made._inner = inner
        return made

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @property
    def inner_backend(self) -> BK:
        """The very backend that was wrapped."""
        return self._inner

    @property
    def spec(self) -> str:
        """``forward(...)`` around the inner backend's."""
        return f"forward({self._inner.spec})"

    def dtype(self, x: Any, /) -> DType:
        """The dtype of a primitive; a float primitive of the inner backend is refused."""
        if x.__class__ is Dual:
            return self._inner.dtype(x.value)
        dtype = self._inner.dtype(x)
        if dtype.kind == "float":
            raise BackendMismatchError(
                f"a float primitive of {self._inner.spec} is not one of {self.spec}: lift it with from_inner"
            )
        return dtype

    def differentiates_whole(self, operation: str) -> bool:
        """Whether an operation is differentiated by rules of its own, and not by its default body."""
        return bool(RULES.get(operation))

    # ---- tangents ----

    def dual(self, value: Any, tangent: Any) -> Dual[BK]:
        """Two inner float primitives of one shape and dtype as one of this backend.

        Raises :class:`ShapeError` or :class:`DTypeError` where they differ.
        """
        k: Any = self._inner
        dtype, found = k.dtype(value), k.dtype(tangent)
        if found is not dtype or dtype.kind != "float":
            raise DTypeError(f"dual: a value and its tangent are floats of one dtype, not {dtype} and {found}")
        if tuple(value.shape) != tuple(tangent.shape):
            raise ShapeError(f"dual: the value has shape {list(value.shape)} and the tangent {list(tangent.shape)}")
        return Dual(value, tangent)

    def tangent(self, x: Dual[BK]) -> Any:
        """The tangent of a float primitive as an inner one, or None for a constant."""
        return _float("tangent", x).tangent

    def inner(self, x: Dual[BK]) -> Any:
        """The inner float primitive, without the tangent."""
        return _float("inner", x).value

    def is_tracked(self, x: Dual[BK], /) -> bool:
        """Whether ``x`` has a tangent."""
        return x.__class__ is Dual and x.tangent is not None

    def detach(self, x: Dual[BK], /) -> Dual[BK]:
        """``x`` as a constant at this level; inner levels keep what they know of it."""
        return Dual(_float("detach", x).value)

    def from_inner(self, x: Any) -> Dual[BK]:
        """An inner float primitive as a constant."""
        return Dual(x)

    def int_inner(self, x: Any) -> Any:
        """The inner int primitive, which ``x`` is."""
        return x

    bool_inner = q_inner = int_from_inner = bool_from_inner = q_from_inner = int_inner


def _float(operation: str, x: Any) -> Any:
    """``x``, which must be a dual number."""
    if x.__class__ is not Dual:
        raise NotDifferentiableError(f"{operation}: only float tensors have tangents, and this is {type(x).__name__}")
    return x


make_operations(Forward, compile_operation)
