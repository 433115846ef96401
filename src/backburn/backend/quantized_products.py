"""Products with quantized operands, and rounding to the values of a scheme.

A weight is never dequantized whole, but one block of rows after another. Products of two quantized matrices are
accumulated exactly, as integers, where the steps allow it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

from backburn.backend import shapes
from backburn.backend.index import shape_or_none
from backburn.backend.kinds import Kinds, between, quantizable
from backburn.backend.quantized import block_over, centred
from backburn.backend.table import operation
from backburn.backend.totals import total
from backburn.backend.types import B, F, I, Q
from backburn.backend.views import whole
from backburn.base.dtypes import DType, QuantizedDType, float32, float64, int8, qint8
from backburn.base.errors import ShapeError

Shape = tuple[int, ...]

#: Elements of a weight that are expanded at a time.
BLOCK = 1 << 17

#: Float32 holds every integer up to this.
EXACT = 1 << 24


def linear_shape(x: Shape, weight: Shape, bias: Shape | None = None, *, transposed: bool = False) -> Shape:
    """The shape of :meth:`QuantizedProducts.q_linear`."""
    if len(weight) != 2:
        raise ShapeError(f"the weight must have two axes, not {len(weight)}")
    inputs, outputs = weight[::-1] if transposed else weight
    if not x or x[-1] != inputs:
        raise ShapeError(f"axis -1 of the input is {x[-1] if x else 'missing'} and the weight takes {inputs} inputs")
    if bias is not None and bias != (outputs,):
        raise ShapeError(f"the bias must have the {outputs} outputs of the weight, not the shape {list(bias)}")
    return (*x[:-1], outputs)


def product_shape(x: Shape, y: Shape, *, transposed: bool = False, **_: Any) -> Shape:
    """The shape of a product of two matrices, the second of which may be given transposed."""
    if len(x) != 2 or len(y) != 2:
        raise ShapeError(f"both operands must have two axes, not {len(x)} and {len(y)}")
    return shapes.matmul(x, y[::-1] if transposed else y)


def row_blocks(shape: Shape, dtype: QuantizedDType) -> Iterator[slice]:
    """Ranges of the first axis of a quantized tensor to dequantize at a time; none splits a block."""
    size, block = max(1, BLOCK // max(1, math.prod(shape[1:]))), block_over(dtype, len(shape))[0]
    for blocks in _parts(shape[0], max(1, size // block) * block):
        for part in _parts(blocks.stop - blocks.start, size):
            yield slice(blocks.start + part.start, blocks.start + part.stop, 1)


def depth(x: QuantizedDType, y: QuantizedDType) -> int:
    """The number of products of stored values that float32 accumulates exactly."""
    most = 1
    for scheme in (x, y):
        low, high = scheme.limits
        most *= high if scheme.mode == "symmetric" else high - low
    return EXACT // most


def is_integral(x: Any, y: Any, transposed: bool) -> bool:
    """Whether a product can accumulate integers: no step of either matrix lies along the contracted axis."""
    if x.dtype.is_float or y.dtype.is_float:
        return False
    return all(
        q.dtype.granularity == "tensor" or q.dtype.axis == axis for q, axis in ((x, 0), (y, 0 if transposed else 1))
    )


class QuantizedProducts(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
    """Products with quantized operands."""

    @operation(kinds="F", shape=linear_shape, differentiable=True, like=("x",))
    def q_linear(self: Any, x: F, weight: Q, bias: F | None = None, /, transposed: bool = False) -> F:
        """``x @ weight + bias`` for a quantized ``weight``; with ``transposed``, its shape is (outputs, inputs).

        The weight is a constant; gradients flow to ``x`` and ``bias``. 16-bit floats are accumulated in float32.
        (Dettmers et al. (2023), *QLoRA: Efficient Finetuning of Quantized LLMs*, NeurIPS.)
        """
        given: Any = x
        rows: Any = weight
        shape = linear_shape(given.shape, rows.shape, shape_or_none(bias), transposed=transposed)
        dtype = self.dtype(given)
        wide = float64 if dtype is float64 else float32
        x = self.cast(given, wide)
        parts: list[Any] = []
        total: Any = None
        for block in row_blocks(rows.shape, rows.dtype):
            part = self.dequantize(_rows(self, rows, block), wide)
            if transposed:
                parts.append(self.matmul(x, self.permute_dims(part, (1, 0))))
            else:
                piece = self.matmul(self.slice(x, (*whole(*given.shape[:-1]), block)), part)
                total = piece if total is None else self.add(total, piece)
        if transposed and parts:
            total = self.concat(parts, len(given.shape) - 1)
        if total is None:
            total = self.zeros(shape, wide)
        if bias is not None:
            total = self.add(total, self.cast(bias, wide))
        return self.cast(total, dtype)

    @operation(kinds="Q", shape=product_shape, result="dtype")
    def q_matmul(self: Any, x: Q, y: Q, /, dtype: DType = float32, transposed: bool = False) -> F:
        """The product of two quantized matrices in a float ``dtype``; with ``transposed``, ``x @ y.T``.

        If no step lies along the contracted axis (there is one step for all values, or for each row of ``x`` and each
        column of the product), integers are accumulated exactly, in parts that float32 holds, and the sums multiplied
        by the steps. Otherwise, and for 8-bit floats, ``x`` is dequantized, and ``y`` one block of rows after another.
        """
        return product(self, x, y, dtype, transposed)

    @operation(kinds="F", shape=quantizable, differentiable=True)
    def fake_quantize(self: Any, x: F, /, dtype: QuantizedDType = qint8) -> F:
        """The values of ``x`` after quantizing and dequantizing it, in its own dtype.

        The gradient passes as if nothing had been rounded. (Bengio, Leonard and Courville (2013), *Estimating or
        Propagating Gradients Through Stochastic Neurons*, arXiv:1308.3432.)
        """
        return self.dequantize(self.quantize(x, dtype), self.dtype(x))

    @operation(kinds="F", shape=between, differentiable=True, like=("x",))
    def fake_quantize_between(self: Any, x: F, low: F, high: F, /, dtype: QuantizedDType = qint8) -> F:
        """The values of ``x`` after :meth:`quantize_between` and dequantizing, in its own dtype.

        The gradient passes to values in the range, and is 0 for those outside. The range is a constant.
        """
        return self.dequantize(self.quantize_between(x, low, high, dtype), self.dtype(x))


def _rows(k: Any, x: Any, rows: slice) -> Any:
    return k.slice(x, (rows, *whole(*x.shape[1:])))


#: The product of two int8 matrices, added up in int32; None where a library has none for their shapes.
Multiply = Callable[[Any, Any], Any]

#: Products of int8 values of which int32 holds the sum.
INT32_DEPTH = 1 << 17


def product(k: Any, x: Any, y: Any, dtype: DType, transposed: bool, multiply: Multiply | None = None) -> Any:
    """The body of :meth:`QuantizedProducts.q_matmul`; values of int8 go to ``multiply`` if there is one."""
    rows, columns = product_shape(x.shape, y.shape, transposed=transposed)
    inner = x.shape[1]
    if not inner or not columns:
        return k.zeros((rows, columns), dtype)
    if not is_integral(x, y, transposed):
        wide = float64 if dtype is float64 else float32
        return k.cast(k.q_linear(k.dequantize(x, wide), y, None, transposed), dtype)
    total = _sums(k, x, y, transposed, multiply)
    for q, shape in ((x, (rows, 1)), (y, (1, columns))):
        scale = k.cast(q.scale, float64)
        total = k.mul(total, k.reshape(scale, shape) if q.dtype.axis is not None else scale)
    return k.cast(total, dtype)


def _sums(k: Any, x: Any, y: Any, transposed: bool, multiply: Multiply | None) -> Any:
    """The sums of products of multiples of steps, exactly, in float64."""
    are_int8 = all(q.dtype.storage is int8 and q.dtype.mode == "symmetric" for q in (x, y))
    if multiply is not None and are_int8 and x.shape[1] <= INT32_DEPTH:
        found = multiply(x.values, k.permute_dims(y.values, (1, 0)) if transposed else y.values)
        if found is not None:
            return k.cast(found, float64)
    left, most = k.cast(centred(k, x), float32), depth(x.dtype, y.dtype)
    if not transposed:  # the rows of y are expanded one block after another
        return _in_parts(k, left, partial(_multiples, k, y), max(1, min(most, BLOCK // y.shape[1])))
    turned = (k.permute_dims(_multiples(k, y, block), (1, 0)) for block in row_blocks(y.shape, y.dtype))
    return k.concat([_in_parts(k, left, partial(_rows, k, right), most) for right in turned], 1)


def _multiples(k: Any, y: Any, rows: slice) -> Any:
    """Some rows of a weight as the multiples of their steps, in float32."""
    return k.cast(centred(k, _rows(k, y, rows)), float32)


def _in_parts(k: Any, left: Any, rows: Callable[[slice], Any], most: int) -> Any:
    """The product of ``left`` and a matrix with these rows: ``most`` of them in float32, and their sums in float64."""
    products = (
        k.matmul(k.slice(left, (*whole(left.shape[0]), part)), rows(part)) for part in _parts(left.shape[1], most)
    )
    return total(k, (k.cast(product, float64) for product in products))


def _parts(length: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, length), 1) for start in range(0, length, size))
