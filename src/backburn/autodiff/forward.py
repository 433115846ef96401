"""``Forward``: forward-mode differentiation around any backend, by dual numbers."""

from __future__ import annotations

from typing import Any, Self

from backburn.autodiff.base import BoolOf, DifferentiatingDecorator, IntOf, QuantizedOf, check_kind
from backburn.autodiff.forward_codegen import Dual, compile_operation
from backburn.backend.contract import BK, Backend
from backburn.backend.wrapper import make_operations
from backburn.base.dtypes import DType
from backburn.base.errors import DTypeError, NotDifferentiableError, ShapeError


class Forward(DifferentiatingDecorator[BK], Backend[Dual[BK], IntOf[BK], BoolOf[BK], QuantizedOf[BK]]):
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

    name = "forward"

    @classmethod
    def level(cls, inner: BK) -> Self:
        """An object around ``inner`` that equals no other, so that two runs cannot confuse their tangents."""
        return cls._wrap(inner)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def dtype(self, x: Any, /) -> DType:
        """The dtype of a primitive; a float primitive of the inner backend is refused."""
        if x.__class__ is Dual:
            return self._inner.dtype(x.value)
        return self._dtype_of_unboxed(x)

    # ---- tangents ----

    def dual(self, value: Any, tangent: Any) -> Dual[BK]:
        """Two inner float primitives of one shape and dtype as one of this backend.

        Raises :class:`ShapeError` or :class:`DTypeError` where they differ.
        """
        k: Any = self._inner
        dtype, found = k.dtype(value), k.dtype(tangent)
        if found is not dtype or not dtype.has_gradient:
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
        """``x`` as a constant at this level; inner levels keep their tangents and history."""
        return Dual(_float("detach", x).value)

    def from_inner(self, x: Any) -> Dual[BK]:
        """An inner float primitive as a constant."""
        return Dual(check_kind("float", self, "from_inner", x))


def _float(operation: str, x: Any) -> Any:
    """``x``, which must be a dual number."""
    if x.__class__ is not Dual:
        raise NotDifferentiableError(f"{operation}: only float tensors have tangents, and this is {type(x).__name__}")
    return x


make_operations(Forward, compile_operation)
