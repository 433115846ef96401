"""Tensor functions: products with quantized operands, and rounding to the values of a scheme."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from backburn.base.contexts import RECORDING
from backburn.base.dtypes import QuantizedDType, as_dtype, float32, float64, qint8
from backburn.base.errors import ArgumentError, AxisError, DTypeError, NotDifferentiableError, ShapeError
from backburn.ops.bodies.quantized import scale_shape
from backburn.ops.quantized_products import linear_shape, product_shape, row_blocks
from backburn.ops.rules.shapes import broadcast_to, check_axis
from backburn.tensor.core.dispatch import (
    call,
    cast,
    create,
    dequantize_operand,
    float_operand,
    is_quantized,
    tensor_operand,
)
from backburn.tensor.core.levels import has_history
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import dtype_of, number
from backburn.tensor.core.wrapping import is_tensor

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, Tensor


def scheme_for(name: str, x: Tensor, dtype: Any) -> QuantizedDType:
    """The scheme that ``dtype`` names, with a non-negative channel axis for ``x``."""
    scheme = as_dtype(dtype)
    if not isinstance(scheme, QuantizedDType):
        raise DTypeError(f"{name}: {scheme} is not a quantized dtype; bb.qint8 is one")
    if scheme.axis is None:
        return scheme
    try:
        return scheme.over(check_axis(scheme.axis, x.ndim))
    except AxisError as error:
        raise AxisError(f"{name}: {scheme} does not fit the shape: {error}. Operand: {describe((x,))}") from None


def range_for(name: str, x: Tensor, scheme: QuantizedDType, low: Any, high: Any) -> tuple[Any, ...]:
    """Both ends of a range, as constants of the dtype of ``x`` and the shape of its steps; empty if none is given."""
    if low is None and high is None:
        return ()
    if low is None or high is None:
        raise ArgumentError(f"{name}: a range has a low and a high end; give both, or neither")
    try:
        steps = scale_shape(x.shape, scheme)
        return _end(name, x, low, steps), _end(name, x, high, steps)
    except (AxisError, ShapeError) as error:
        raise type(error)(f"{name}: {error}. Operand: {describe((x,))}") from None


def _end(name: str, x: Tensor, value: Any, steps: tuple[int, ...]) -> Any:
    if is_tensor(value):
        if has_history(value) and RECORDING.get():
            raise NotDifferentiableError(f"{name}: the range has no gradient: detach {describe((value,))} first")
        end = cast(float_operand(name, value), x.dtype)
    else:
        value = number(name, "an end of the range", value)
        end = create("full", x.backend, shape=(), value=value, dtype=x.dtype)
    broadcast_to(end.shape, shape=steps)
    return call("broadcast_to", end, shape=steps)


def fake_quantize(x: Tensor, /, *, dtype: Any = qint8, low: Any = None, high: Any = None) -> FloatTensor:
    """``x`` rounded to the values of a scheme, as a float tensor; the gradient passes straight through.

    Training with them makes a model robust to quantization (Jacob et al. (2018), *Quantization and Training of Neural
    Networks for Efficient Integer-Arithmetic-Only Inference*, CVPR, section 3). If a range from ``low`` to ``high`` is
    given, values beyond it get no gradient. Raises the errors of :func:`backburn.quantize`.

        >>> import backburn as bb
        >>> x = bb.asarray([127.0, 0.7]).require_grad()
        >>> y = fake_quantize(x)
        >>> y.tolist(), x.grad(y.sum().backward()).tolist()
        ([127.0, 1.0], [1.0, 1.0])
    """
    y = float_operand("fake_quantize", x)
    scheme = scheme_for("fake_quantize", y, dtype)
    ends = range_for("fake_quantize", y, scheme, low, high)
    name = "fake_quantize_between" if ends else "fake_quantize"
    return call(name, y, *ends, dtype=scheme)


def quantized_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, /) -> FloatTensor:
    """``x @ weight.T + bias`` for a quantized ``weight`` of shape (outputs, inputs).

    The weight is never dequantized whole, and is a constant: gradients flow to ``x`` and ``bias``. A quantized ``x``,
    which has no gradient, is multiplied as in :func:`quantized_matmul`, with a result in float32. Raises
    :class:`DTypeError` for a weight that is not quantized and :class:`ShapeError` for shapes that do not fit.

        >>> import backburn as bb
        >>> weight = bb.asarray([[127.0, 0.0], [0.0, 127.0]]).quantize()
        >>> quantized_linear(bb.asarray([1.0, 2.0]), weight).tolist()
        [127.0, 254.0]
    """
    w = tensor_operand("quantized_linear", weight)
    if not is_quantized(w):
        raise DTypeError(f"quantized_linear: takes a quantized tensor, not {describe((w,))}; x.quantize() makes one")
    if tensor_operand("quantized_linear", x).dtype.kind == "quantized":
        return _quantized_input_linear(x, w, bias)
    y = float_operand("quantized_linear", x)
    added = None if bias is None else cast(float_operand("quantized_linear", bias), y.dtype)
    return call("quantized_linear", y, w, added)


def _quantized_input_linear(x: Any, weight: Any, bias: Tensor | None) -> Any:
    """The linear map of a quantized input, whose leading axes are merged if its steps allow it."""
    added = None if bias is None else cast(float_operand("quantized_linear", bias), float32)
    try:
        shape = linear_shape(x.shape, weight.shape, None if added is None else added.shape)
        rows = x if x.ndim == 2 else call("reshape", x, shape=(math.prod(x.shape[:-1]), x.shape[-1]))
    except ShapeError as error:
        if "would separate values" not in str(error):
            raise ShapeError(f"quantized_linear: {error}. Operands: {describe((x, weight, bias))}") from None
        return call("quantized_linear", call("dequantize", x, dtype=float32), weight, added)
    product = call("quantized_matmul", rows, weight, dtype=float32, transposed=True)
    product = product if x.ndim == 2 else call("reshape", product, shape=shape)
    return product if added is None else call("add", product, added)


def quantized_matmul(x: Tensor, y: Tensor, /, *, dtype: Any = None) -> FloatTensor:
    """The product of two matrices, one or both of them quantized, in float32 or in another float ``dtype``.

    If both are quantized, with one step for all values, or for each row of ``x`` and each column of ``y``, products of
    integers are summed exactly; else the dequantized values are multiplied. With a float matrix, to which gradients
    flow, the quantized one is dequantized block by block, and the result has the float matrix's dtype unless ``dtype``
    is given. Raises :class:`DTypeError` for two float matrices and :class:`ShapeError` if lengths differ.

        >>> import backburn as bb
        >>> x = bb.asarray([[127.0, 1.0]]).quantize()
        >>> quantized_matmul(x, x.T).tolist(), quantized_matmul(x, bb.asarray([[1.0], [2.0]])).tolist()
        ([[16130.0]], [[129.0]])
    """
    kinds = [tensor_operand("quantized_matmul", t).dtype.kind == "quantized" for t in (x, y)]
    out_dtype = None if dtype is None else dtype_of(dtype, x.backend)
    if out_dtype is not None and not out_dtype.is_floating:
        raise DTypeError(f"quantized_matmul: the dtype of the product is a float one, not {out_dtype}")
    if all(kinds):
        return call("quantized_matmul", x, y, dtype=out_dtype or float32)
    if not any(kinds):
        raise DTypeError(f"quantized_matmul: takes a quantized tensor, not {describe((x, y))}; x.quantize() makes one")
    try:
        product_shape(x.shape, y.shape)
    except ShapeError as error:
        raise ShapeError(f"quantized_matmul: {error}. Operands: {describe((x, y))}") from None
    if kinds[1]:
        result = call("quantized_linear_backward", float_operand("quantized_matmul", x), y)
    else:
        y_transposed = call("permute_dims", float_operand("quantized_matmul", y), axes=(1, 0))
        result = call("permute_dims", call("quantized_linear", y_transposed, x), axes=(1, 0))
    return cast(result, out_dtype or result.dtype)


def exact_or_float(move: Callable[..., Any], *tensors: Any) -> Any:
    """``move`` applied to tensors, which are dequantized if their steps cannot be moved along."""
    if not is_quantized(tensors[0]):
        return move(*tensors)
    try:
        return move(*tensors)
    except (ArgumentError, ShapeError):  # other errors are raised again for the floats
        pass
    return move(*map(dequantize_operand, tensors))


def largest_error(x: Tensor, original: Tensor) -> float:
    """The largest absolute difference between a quantized tensor and ``original``, computed part by part."""
    y = tensor_operand("error", original)
    if y.shape != x.shape:
        raise ShapeError(f"error: the tensors have different shapes: {describe((x, y))}")
    found = [
        float((p.dequantize(dtype=float64) - q.astype(float64).detach()).max_abs().item()) for p, q in _parts(x, y)
    ]
    return next((e for e in found if math.isnan(e)), max(found, default=0.0))


def _parts(x: Any, y: Any) -> Iterator[tuple[Any, Any]]:
    """Parts of both along the first axis, of the size that a product dequantizes at a time."""
    if not x.ndim:
        yield x, y
    elif x.size:
        yield from ((x[part], y[part]) for part in row_blocks(x.shape, x.dtype))
