"""Requantization of results: the policy of a backend such as ``numpy(quantized=propagate)``.

An operation that has no quantized form dequantizes its operands. By default its result stays a float tensor; on a
backend that propagates, it is quantized by the scheme of the first quantized operand, unless a float tensor is among
the operands. Which operations these are follows from the operation table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backburn.backend.quantized import scale_shape
from backburn.backend.table import OPERATIONS
from backburn.base.dtypes import DType, QuantizedDType
from backburn.base.errors import AxisError, ShapeError
from backburn.tensor.classes import FloatTensor
from backburn.tensor.dispatch import PROPAGATED, call, dequantized, is_quantized
from backburn.tensor.wrapping import TENSORS, flat

#: Families with results of their own for quantized operands.
QUANTIZED_FAMILIES = ("kinds", "quantized_products", "create")


class Dequantized(FloatTensor):
    """A dequantized operand, with the scheme by which results are quantized.

    Only :meth:`of` makes one: what a function makes of its operand's class is a float tensor like any other.
    """

    __slots__ = ("scheme",)
    scheme: QuantizedDType

    def __new__(cls, primitive: Any, backend: Any, dtype: DType) -> Any:
        """A float tensor."""
        return FloatTensor(primitive, backend, dtype)

    @classmethod
    def of(cls, x: Any, dtype: DType) -> Dequantized:
        """The values of a quantized tensor in a float ``dtype``."""
        made: Dequantized = object.__new__(cls)
        made.__init__(x.backend.dequantize(x._primitive, dtype), x.backend, dtype)  # type: ignore[misc]
        made.scheme = x.dtype
        if not PROPAGATED:
            PROPAGATED.append(propagated_call)
        return made


TENSORS.add(Dequantized)


def propagated_call(name: str, operands: Sequence[Any], attributes: dict[str, Any]) -> Any:
    """Call an operation, and quantize its float results where quantized operands were the only tensors of floats.

    None where no operand is quantized, or was, or the operation has a form of its own for quantized operands.
    """
    entry = OPERATIONS[name]
    if entry.family in QUANTIZED_FAMILIES or "Q" in entry.kinds:
        return None
    tensors = flat(operands)
    first = next((t for t in tensors if t.__class__ is Dequantized or is_quantized(t)), None)
    if first is None:
        return None
    scheme = first.scheme if first.__class__ is Dequantized else first.dtype
    result = call(name, *([_plain(t) for t in x] if x.__class__ is list else _plain(x) for x in operands), **attributes)
    if any(t.dtype.kind == "float" and t.__class__ is not Dequantized for t in tensors):
        return result
    if result.__class__ is tuple:
        return tuple(_quantized(r, scheme, first.ndim) for r in result)
    return _quantized(result, scheme, first.ndim)


def _plain(x: Any) -> Any:
    """An operand as a float tensor like any other."""
    if is_quantized(x):
        x = dequantized(x)
    return FloatTensor(x._primitive, x.backend, x.dtype) if x.__class__ is Dequantized else x


def _quantized(x: Any, scheme: QuantizedDType, rank: int) -> Any:
    """A float result by ``scheme``, or with one step for all where the scheme does not fit its shape.

    The channel axis of an operand of another rank, ``rank``, is another one in the result.
    """
    if x.dtype.kind != "float":
        return x
    if scheme.axis is not None and x.ndim != rank:
        scheme = scheme.for_tensor()
    try:
        scale_shape(x.shape, scheme)
    except (AxisError, ShapeError):
        scheme = scheme.for_tensor()
    return call("quantize", x.detach(), dtype=scheme)
