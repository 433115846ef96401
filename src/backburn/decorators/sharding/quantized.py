"""Rules of sharding: quantized tensors, whose parts are quantized tensors of the same scheme.

Cuts keep values with their quantization steps: anywhere if there is one step, or one for each channel, and between
blocks. A step that several shards share is computed from the range of all of them.
"""

from __future__ import annotations

import math
from typing import Any

from backburn.base.dtypes import DType, QuantizedDType
from backburn.decorators.sharding.rules import NOWHERE, Plan, Shapes, direct, sharding
from backburn.decorators.sharding.shards import Cuts, Shards, are_between, block_length, cuts_between
from backburn.ops.bodies.quantized import extremes
from backburn.ops.table import OPERATIONS


def can_cut(level: Any, x: Any, axis: int, cuts: Cuts) -> bool:
    """Whether a primitive can be cut so."""
    return are_between(cuts, block_length(level.dtype(x), x.shape, axis))


# ---- to and from quantized ----


def quantize(level: Any, x: Any, *, dtype: QuantizedDType) -> Any:
    """Parts of whole blocks and channels independently; a step that shards share from the range of all its values."""
    axis = x.axis
    if axis is None:
        return NotImplemented
    if dtype.granularity == "tensor" or dtype.axis not in (None, axis):
        like = level.dtype(x)  # exact: extremes are values of `x`, or 0, in float64
        low, high = (level.whole(level.astype(end, like)) for end in extremes(level, x, dtype))
        return quantize_between(level, x, low, high, dtype=dtype)
    block = block_length(dtype, x.shape, axis)
    cuts = x.cuts if are_between(x.cuts, block) else cuts_between(x.shape[axis], block, level.size)
    return level.run(OPERATIONS["quantize"], (x,), {"dtype": dtype}, Plan((axis,), result=axis), cuts)


def quantize_between(level: Any, x: Any, low: Any, high: Any, *, dtype: QuantizedDType) -> Any:
    """Values limited to the range of their step."""
    if not level.is_cut(x) or x.axis is None:
        return level.wrapped.quantize_between(*map(level.whole, (x, low, high)), dtype)
    axis = x.axis
    entry, block = OPERATIONS["quantize_between"], block_length(dtype, x.shape, axis)
    if not dtype.block_shape:
        own = 0 if dtype.axis == axis else None
        plan = Plan((axis, own, own), result=axis)
        return level.run(entry, (x, low, high), {"dtype": dtype}, plan, x.cuts)
    cuts = x.cuts if are_between(x.cuts, block) else cuts_between(x.shape[axis], block, level.size)
    blocks = tuple(-(-n // block) for n in cuts)
    x, low, high = (
        Shards(level.parts(t, axis, lengths), axis, cuts, tuple(t.shape), level.mesh_axis)
        for t, lengths in ((x, cuts), (low, blocks), (high, blocks))
    )
    return level.run(entry, (x, low, high), {"dtype": dtype}, Plan((axis,) * 3, result=axis), cuts)


def dequantize(shapes: Shapes, index: int, cut: int, **_: Any) -> Plan:
    """Values go with their steps."""
    return Plan((cut,), result=cut)


# ---- products ----


def _contract(level: Any, name: str, operands: tuple[Any, ...], axes: tuple[int | None, ...], **attributes: Any) -> Any:
    """A product of operands cut along the contracted axis, as addends; if both are, with the larger one's cuts."""
    cut = [(math.prod(x.shape), x.cuts) for x, a in zip(operands, axes, strict=True) if _is_cut_along(level, x, a)]
    for _, cuts in sorted(cut, reverse=True):
        if all(a is None or can_cut(level, x, a, cuts) for x, a in zip(operands, axes, strict=True)):
            plan = Plan(axes, sums=True, result=NOWHERE)
            return level.run(OPERATIONS[name], operands, attributes, plan, cuts)
    return NotImplemented


def _is_cut_along(level: Any, x: Any, axis: int | None) -> bool:
    return axis is not None and level.is_cut(x) and x.axis == axis


def linear(level: Any, x: Any, weight: Any, bias: Any) -> Any:
    """Outputs are independent, and rows of the input; inputs are contracted, and the bias is added to their sum."""
    x, bias, last = level.gathered(x, True), level.gathered(bias, True), len(x.shape) - 1
    if _is_cut_along(level, weight, 0):
        plan = Plan((None, 0, None if bias is None else 0), result=last)
        return level.run(OPERATIONS["quantized_linear"], (x, weight, bias), {}, plan, weight.cuts)
    product = _contract(level, "quantized_linear", (x, weight, None), (last, 1, None))
    return product if bias is None or product is NotImplemented else level.add(product, bias)


def linear_backward(level: Any, grad: Any, weight: Any) -> Any:
    """Inputs of the weight are independent; its outputs are contracted."""
    grad, last = level.gathered(grad, True), len(grad.shape) - 1
    if _is_cut_along(level, weight, 1):
        plan = Plan((None, 1), result=last)
        return level.run(OPERATIONS["quantized_linear_backward"], (grad, weight), {}, plan, weight.cuts)
    return _contract(level, "quantized_linear_backward", (grad, weight), (last, 0))


def matmul(level: Any, x: Any, y: Any, *, dtype: DType, transposed: bool) -> Any:
    """Rows and columns are independent; the inner axis is contracted."""
    attributes = {"dtype": dtype, "transposed": transposed}
    inner = int(transposed)
    for operand, axis, axes in ((x, 0, (0, None)), (y, 1 - inner, (None, 1 - inner))):
        if _is_cut_along(level, operand, axis):
            plan = Plan(axes, result=0 if operand is x else 1)
            return level.run(OPERATIONS["quantized_matmul"], (x, y), attributes, plan, operand.cuts)
    return _contract(level, "quantized_matmul", (x, y), (1, inner), **attributes)


direct("quantize", quantize)
direct("quantize_between", quantize_between)
direct("quantized_linear", linear)
direct("quantized_linear_backward", linear_backward)
direct("quantized_matmul", matmul)
sharding("dequantize", dequantize)
