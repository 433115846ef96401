"""Products with quantized operands, and rounding to the values of a scheme.

A weight is dequantized one block of rows at a time, never as a whole. Products of two quantized matrices are
accumulated exactly, as integers, where the steps allow it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

from backburn.base.dtypes import DType, QuantizedDType, float32, float64, int8, qint8
from backburn.base.errors import ShapeError
from backburn.ops.bodies.quantized import block_shape, broadcast_steps, subtract_zero
from backburn.ops.bodies.reductions import sum_terms
from backburn.ops.bodies.scalars import shape_or_none
from backburn.ops.bodies.slicing import full_slices
from backburn.ops.primitives import Primitives, between, quantizable
from backburn.ops.rules import shapes
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.rules.tangents import linear_in, tangent
from backburn.ops.rules.work import multiply_adds
from backburn.ops.table import operation
from backburn.ops.types import B, F, I, Q

Shape = tuple[int, ...]

#: Elements of a weight that are expanded at a time.
BLOCK = 1 << 17

#: Float32 holds every integer up to this.
EXACT = 1 << 24


def linear_shape(x: Shape, weight: Shape, bias: Shape | None = None) -> Shape:
    """The shape of :meth:`QuantizedProducts.quantized_linear`."""
    if len(weight) != 2:
        raise ShapeError(f"the weight must have two axes, (outputs, inputs), not {len(weight)}")
    outputs, inputs = weight
    if not x or x[-1] != inputs:
        raise ShapeError(f"axis -1 of the input is {x[-1] if x else 'missing'} and the weight takes {inputs} inputs")
    if bias is not None and bias != (outputs,):
        raise ShapeError(f"the bias must have the {outputs} outputs of the weight, not the shape {list(bias)}")
    return (*x[:-1], outputs)


def linear_backward_shape(grad: Shape, weight: Shape) -> Shape:
    """The shape of :meth:`QuantizedProducts.quantized_linear_backward`."""
    if len(weight) != 2:
        raise ShapeError(f"the quantized matrix must have two axes, not {len(weight)}")
    if not grad or grad[-1] != weight[0]:
        have = grad[-1] if grad else "missing"
        raise ShapeError(f"axis -1 of the first operand is {have} and axis 0 of the quantized matrix {weight[0]}")
    return (*grad[:-1], weight[1])


def product_shape(x: Shape, y: Shape, *, transposed: bool = False, **_: Any) -> Shape:
    """The shape of a product of two matrices, the second of which may be given transposed."""
    if len(x) != 2 or len(y) != 2:
        raise ShapeError(f"both operands must have two axes, not {len(x)} and {len(y)}")
    return shapes.matmul(x, y[::-1] if transposed else y)


def row_blocks(shape: Shape, dtype: QuantizedDType) -> Iterator[slice]:
    """Ranges of the first axis of a quantized tensor to dequantize at a time; none splits a block."""
    size, block = max(1, BLOCK // max(1, math.prod(shape[1:]))), block_shape(dtype, len(shape))[0]
    for blocks in _parts(shape[0], max(1, size // block) * block):
        for part in _parts(blocks.stop - blocks.start, size):
            yield slice(blocks.start + part.start, blocks.start + part.stop, 1)


def depth(x: QuantizedDType, y: QuantizedDType) -> int:
    """The number of products of stored values that float32 accumulates exactly."""
    most = 1
    for scheme in (x, y):
        low, high = scheme.limits
        most *= high - low if scheme.has_zero else -low
    return EXACT // most


def is_integral(x: Any, y: Any, transposed: bool) -> bool:
    """Whether a product can accumulate integers: no step of either matrix lies along the contracted axis."""
    if x.dtype.is_float or y.dtype.is_float:
        return False
    return all(
        q.dtype.granularity == "tensor" or q.dtype.axis == axis for q, axis in ((x, 0), (y, 0 if transposed else 1))
    )


def _grad_in_range(k: Any, g: Any, x: Any, low: Any, high: Any, dtype: QuantizedDType) -> tuple[Any, ...]:
    """``g`` where ``x`` lies in the range, extended to 0 and, without zero points, to all multiples of the step.

    The range itself is a constant.
    """
    low, high = k.minimum(low, 0.0), k.maximum(high, 0.0)
    if not dtype.has_zero:
        least, most = dtype.limits
        high = k.maximum(k.mul(low, most / least), high)
        low = k.mul(high, least / most)
    low, high = (broadcast_steps(k, end, x.shape, dtype) for end in (low, high))
    return k.where(k.logical_and(k.less_equal(low, x), k.less_equal(x, high)), g, 0.0), None, None


class QuantizedProducts(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Products with quantized operands."""

    @operation(kinds="F", shape=linear_shape, differentiable=True, like=("x",))
    def quantized_linear(self: Any, x: F, weight: Q, bias: F | None = None, /) -> F:
        """``x @ weight.T + bias`` for a quantized ``weight`` of shape (outputs, inputs).

        The weight is a constant; gradients flow to ``x`` and ``bias``. 16-bit floats are accumulated in float32.
        (Dettmers et al. (2023), *QLoRA: Efficient Finetuning of Quantized LLMs*, NeurIPS.)
        """
        given: Any = x
        rows: Any = weight
        shape = linear_shape(given.shape, rows.shape, shape_or_none(bias))
        dtype = self.dtype(given)
        wide = float64 if dtype is float64 else float32
        x = self.astype(given, wide)
        parts = [
            self.matmul(x, self.permute_dims(self.dequantize(_rows(self, rows, block), wide), (1, 0)))
            for block in row_blocks(rows.shape, rows.dtype)
        ]
        product = self.concat(parts, len(shape) - 1) if parts else self.zeros(shape, wide)
        if bias is not None:
            product = self.add(product, self.astype(bias, wide))
        return self.astype(product, dtype)

    gradient_rule(quantized_linear, x=lambda k, g, weight: k.quantized_linear_backward(g, weight), bias=lambda k, g: g)
    linear_in(quantized_linear, "x")
    tangent(quantized_linear, bias=lambda t: t)
    multiply_adds(quantized_linear, lambda out, x, weight, bias: math.prod(out) * weight[1])

    @operation(kinds="F", shape=linear_backward_shape, differentiable=True, like=("grad",))
    def quantized_linear_backward(self: Any, grad: F, weight: Q, /) -> F:
        """The gradient of :meth:`quantized_linear` for its input, ``grad @ weight``.

        The weight is a constant; gradients flow to ``grad``. 16-bit floats are accumulated in float32.
        """
        given: Any = grad
        rows: Any = weight
        shape = linear_backward_shape(given.shape, rows.shape)
        dtype = self.dtype(given)
        wide = float64 if dtype is float64 else float32
        grad = self.astype(given, wide)
        terms = (
            self.matmul(
                self.slice(grad, (*full_slices(*shape[:-1]), block)), self.dequantize(_rows(self, rows, block), wide)
            )
            for block in row_blocks(rows.shape, rows.dtype)
        )
        return self.astype(sum_terms(self, terms) if rows.shape[0] else self.zeros(shape, wide), dtype)

    gradient_rule(quantized_linear_backward, grad=lambda k, g, weight: k.quantized_linear(g, weight))
    linear_in(quantized_linear_backward, "grad")
    multiply_adds(quantized_linear_backward, lambda out, grad, weight: math.prod(grad) * weight[1])

    @operation(kinds="Q", shape=product_shape, result="dtype")
    def quantized_matmul(self: Any, x: Q, y: Q, /, dtype: DType = float32, transposed: bool = False) -> F:
        """The product of two quantized matrices in a float ``dtype``; with ``transposed``, ``x @ y.T``.

        If no step lies along the contracted axis (there is one step for all values, or for each row of ``x`` and each
        column of the product), integers are accumulated exactly, in parts short enough for float32, and the sums are
        multiplied by the steps. Otherwise, and for 8-bit floats, ``x`` is dequantized, and ``y`` one block of rows at
        a time.
        """
        return product(self, x, y, dtype, transposed)

    multiply_adds(quantized_matmul, lambda out, x, y, **_: math.prod(out) * x[1])

    @operation(kinds="F", shape=quantizable, differentiable=True, elementwise=True)
    def fake_quantize(self: Any, x: F, /, dtype: QuantizedDType = qint8) -> F:
        """The values of ``x`` after quantizing and dequantizing it, in its own dtype.

        The gradient passes as if nothing had been rounded. (Bengio, Leonard and Courville (2013), *Estimating or
        Propagating Gradients Through Stochastic Neurons*, arXiv:1308.3432.)
        """
        return self.dequantize(self.quantize(x, dtype), self.dtype(x))

    gradient_rule(fake_quantize, x=lambda k, g: g)

    @operation(kinds="F", shape=between, differentiable=True, like=("x",))
    def fake_quantize_between(self: Any, x: F, low: F, high: F, /, dtype: QuantizedDType = qint8) -> F:
        """The values of ``x`` after :meth:`quantize_between` and dequantizing, in its own dtype.

        The gradient passes to values in the range, and is 0 outside. The range is a constant.
        """
        return self.dequantize(self.quantize_between(x, low, high, dtype), self.dtype(x))

    gradient_rule(fake_quantize_between, ("x", "low", "high"), _grad_in_range)


def _rows(k: Any, x: Any, rows: slice) -> Any:
    return k.slice(x, (rows, *full_slices(*x.shape[1:])))


#: The product of two int8 matrices, accumulated in int32; None if the library does not support their shapes.
Multiply = Callable[[Any, Any], Any]

#: The most products of int8 values whose sum fits int32.
INT32_DEPTH = 1 << 17


def product(k: Any, x: Any, y: Any, dtype: DType, transposed: bool, multiply: Multiply | None = None) -> Any:
    """The body of :meth:`QuantizedProducts.quantized_matmul`; int8 values go to ``multiply`` if there is one."""
    rows, columns = product_shape(x.shape, y.shape, transposed=transposed)
    inner = x.shape[1]
    if not inner or not columns:
        return k.zeros((rows, columns), dtype)
    if not is_integral(x, y, transposed):
        wide = float64 if dtype is float64 else float32
        times = k.quantized_linear if transposed else k.quantized_linear_backward
        return k.astype(times(k.dequantize(x, wide), y), dtype)
    total = _sums(k, x, y, transposed, multiply)
    for q, shape in ((x, (rows, 1)), (y, (1, columns))):
        scale = k.astype(q.scale, float64)
        total = k.mul(total, k.reshape(scale, shape) if q.dtype.axis is not None else scale)
    return k.astype(total, dtype)


def _sums(k: Any, x: Any, y: Any, transposed: bool, multiply: Multiply | None) -> Any:
    """The sums of products of multiples of steps, exact, in float64."""
    are_int8 = all(q.dtype.storage is int8 and q.dtype.mode == "symmetric" for q in (x, y))
    if multiply is not None and are_int8 and x.shape[1] <= INT32_DEPTH:
        found = multiply(x.values, k.permute_dims(y.values, (1, 0)) if transposed else y.values)
        if found is not None:
            return k.astype(found, float64)
    left, most = k.astype(subtract_zero(k, x), float32), depth(x.dtype, y.dtype)
    if not transposed:  # the rows of y are expanded one block after another
        return _in_parts(k, left, partial(_multiples, k, y), max(1, min(most, BLOCK // y.shape[1])))
    turned = (k.permute_dims(_multiples(k, y, block), (1, 0)) for block in row_blocks(y.shape, y.dtype))
    return k.concat([_in_parts(k, left, partial(_rows, k, right), most) for right in turned], 1)


def _multiples(k: Any, y: Any, rows: slice) -> Any:
    """Some rows of a weight as the multiples of their steps, in float32."""
    return k.astype(subtract_zero(k, _rows(k, y, rows)), float32)


def _in_parts(k: Any, left: Any, rows: Callable[[slice], Any], most: int) -> Any:
    """The product of ``left`` and a matrix with these rows: ``most`` at a time in float32, summed in float64."""
    products = (
        k.matmul(k.slice(left, (*full_slices(left.shape[0]), part)), rows(part)) for part in _parts(left.shape[1], most)
    )
    return sum_terms(k, (k.astype(product, float64) for product in products))


def _parts(length: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, length), 1) for start in range(0, length, size))
