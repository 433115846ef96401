"""Requantization of results: the policy of a backend such as ``numpy(quantized=propagate)``.

An operation that has no quantized form dequantizes its operands. By default its result stays a float tensor; on a
backend that propagates, it is quantized with the scheme of the first quantized operand, unless a float tensor is among
the operands. Which operations these are follows from the operation table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backburn.base.dtypes import DType, QuantizedDType
from backburn.base.errors import AxisError, ShapeError
from backburn.ops.bodies.quantized import scale_shape
from backburn.ops.table import OPERATIONS
from backburn.tensor.classes import FloatTensor
from backburn.tensor.core.dispatch import REQUANTIZING_CALL, call, dequantize_operand, is_quantized
from backburn.tensor.core.wrapping import REAL_TENSORS, TENSORS, flat

#: Families whose operations define results for quantized operands.
QUANTIZED_FAMILIES = ("primitives", "quantized_products", "creation")


class Dequantized(FloatTensor):
    """A dequantized operand, with the scheme for quantizing results.

    Only :meth:`of` creates one; calling the class, as functions call their operand's class, creates a float tensor.
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
        return made


def call_and_requantize(name: str, operands: Sequence[Any], attributes: dict[str, Any]) -> Any:
    """Call an operation, and quantize its float results unless a float tensor is among the operands.

    None if no operand is or was quantized, or if the operation is defined for quantized operands.
    """
    entry = OPERATIONS[name]
    if entry.family in QUANTIZED_FAMILIES or "Q" in entry.kinds:
        return None
    tensors = flat(operands)
    first = next((t for t in tensors if t.__class__ is Dequantized or is_quantized(t)), None)
    if first is None:
        return None
    scheme = first.scheme if first.__class__ is Dequantized else first.dtype
    result = call(
        name, *([_as_float(t) for t in x] if x.__class__ is list else _as_float(x) for x in operands), **attributes
    )
    if any(t.dtype.is_floating and t.__class__ is not Dequantized for t in tensors):
        return result
    if result.__class__ is tuple:
        return tuple(_requantize(r, scheme, first.ndim) for r in result)
    return _requantize(result, scheme, first.ndim)


def _as_float(x: Any) -> Any:
    """An operand without a scheme."""
    if is_quantized(x):
        x = dequantize_operand(x)
    return FloatTensor(x._primitive, x.backend, x.dtype) if x.__class__ is Dequantized else x


def _requantize(x: Any, scheme: QuantizedDType, rank: int) -> Any:
    """A float result quantized with ``scheme``, or with one step for all values if the scheme does not fit its shape.

    ``rank`` is that of the operand: a result of another rank has lost the channel axis.
    """
    if not x.dtype.is_floating:
        return x
    try:
        scale_shape(x.shape, scheme)
        fits = scheme.axis is None or x.ndim == rank
    except (AxisError, ShapeError):
        fits = False
    scheme = scheme if fits else scheme.for_tensor()
    return call("quantize", x.detach(), dtype=scheme)


TENSORS.add(Dequantized)
REAL_TENSORS.add(Dequantized)
REQUANTIZING_CALL.append(call_and_requantize)
