"""Tensor functions: products with quantized operands, and rounding to the values of a scheme."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from backburn.backend.quantized import scale_shape
from backburn.backend.quantized_products import linear_shape, product_shape, row_blocks
from backburn.backend.shapes import broadcast_to, check_axis
from backburn.base.contexts import RECORDING
from backburn.base.dtypes import QuantizedDType, as_dtype, float32, float64, qint8
from backburn.base.errors import ArgumentError, AxisError, DTypeError, NotDifferentiableError, ShapeError
from backburn.tensor.dispatch import call, cast, create, dequantized, float_operand, is_quantized, tensor_operand
from backburn.tensor.levels import has_history
from backburn.tensor.messages import describe
from backburn.tensor.options import dtype_of, number
from backburn.tensor.wrapping import is_tensor

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, Tensor


def scheme_for(name: str, x: Tensor, dtype: Any) -> QuantizedDType:
    """The scheme that ``dtype`` names, with a non-negative channel axis for ``x``."""
    scheme = as_dtype(dtype)
    if not isinstance(scheme, QuantizedDType):
        raise DTypeError(f"{name}: {scheme} is no quantized dtype; bb.qint8 is one")
    if scheme.axis is None:
        return scheme
    try:
        return scheme.over(check_axis(scheme.axis, x.ndim))
    except AxisError as error:
        raise AxisError(f"{name}: {scheme} does not fit the shape: {error}. Operand: {describe((x,))}") from None


def range_for(name: str, x: Tensor, scheme: QuantizedDType, low: Any, high: Any) -> tuple[Any, ...]:
    """Both ends of a range, as constants of the dtype of ``x`` and the shape of its steps; none if none is given."""
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
    """The values of ``x`` rounded by a scheme, as a float tensor; the gradient passes straight through.

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


def quantized_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, /, *, transposed: bool = False
) -> FloatTensor:
    """``x @ weight + bias`` for a quantized ``weight`` (inputs, outputs), or with ``transposed`` (outputs, inputs).

    The weight is never dequantized whole, and is a constant: gradients flow to ``x`` and ``bias``. A quantized ``x``,
    which has no gradient, is multiplied as in :func:`quantized_matmul`, with a result in float32. Raises
    :class:`DTypeError` for a weight that is not quantized and :class:`ShapeError` for shapes that do not fit.

        >>> import backburn as bb
        >>> weight = bb.asarray([[127.0, 0.0], [0.0, 127.0]]).quantize()
        >>> quantized_linear(bb.asarray([1.0, 2.0]), weight).tolist()
        [127.0, 254.0]
    """
    w = tensor_operand("q_linear", weight)
    if not is_quantized(w):
        raise DTypeError(f"q_linear: takes a quantized tensor, not {describe((w,))}; x.quantize() makes one")
    if tensor_operand("q_linear", x).dtype.kind == "quantized":
        return _of_quantized(x, w, bias, transposed)
    y = float_operand("q_linear", x)
    added = None if bias is None else cast(float_operand("q_linear", bias), y.dtype)
    return call("q_linear", y, w, added, transposed=transposed)


def _of_quantized(x: Any, weight: Any, bias: Tensor | None, transposed: bool) -> Any:
    """The linear map of a quantized input, whose leading axes are merged if its steps allow it."""
    added = None if bias is None else cast(float_operand("q_linear", bias), float32)
    try:
        shape = linear_shape(x.shape, weight.shape, None if added is None else added.shape, transposed=transposed)
        rows = x if x.ndim == 2 else call("reshape", x, shape=(math.prod(x.shape[:-1]), x.shape[-1]))
    except ShapeError as error:
        if "would part values" not in str(error):
            raise ShapeError(f"q_linear: {error}. Operands: {describe((x, weight, bias))}") from None
        return call("q_linear", call("dequantize", x, dtype=float32), weight, added, transposed=transposed)
    product = call("q_matmul", rows, weight, dtype=float32, transposed=transposed)
    product = product if x.ndim == 2 else call("reshape", product, shape=shape)
    return product if added is None else call("add", product, added)


def quantized_matmul(x: Tensor, y: Tensor, /, *, dtype: Any = None) -> FloatTensor:
    """The product of two matrices of which one or both are quantized, in float32 or in another float ``dtype``.

    If both are quantized, with one step for all values, or for each row of ``x`` and each column of ``y``, products of
    integers are summed exactly; else the dequantized values are multiplied. With a float matrix, to which gradients
    flow, the quantized one is dequantized block by block, and the result has the float matrix's dtype unless ``dtype``
    is given. Raises :class:`DTypeError` for two float matrices and :class:`ShapeError` if lengths differ.

        >>> import backburn as bb
        >>> x = bb.asarray([[127.0, 1.0]]).quantize()
        >>> quantized_matmul(x, x.T).tolist(), quantized_matmul(x, bb.asarray([[1.0], [2.0]])).tolist()
        ([[16130.0]], [[129.0]])
    """
    kinds = [tensor_operand("q_matmul", t).dtype.kind == "quantized" for t in (x, y)]
    chosen = None if dtype is None else dtype_of(dtype, x.backend)
    if chosen is not None and chosen.kind != "float":
        raise DTypeError(f"q_matmul: the dtype of the product is a float one, not {chosen}")
    if all(kinds):
        return call("q_matmul", x, y, dtype=chosen or float32)
    if not any(kinds):
        raise DTypeError(f"q_matmul: takes a quantized tensor, not {describe((x, y))}; x.quantize() makes one")
    try:
        product_shape(x.shape, y.shape)
    except ShapeError as error:
        raise ShapeError(f"q_matmul: {error}. Operands: {describe((x, y))}") from None
    if kinds[1]:
        result = call("q_linear", float_operand("q_matmul", x), y)
    else:
        turned = call("permute_dims", float_operand("q_matmul", y), axes=(1, 0))
        result = call("permute_dims", call("q_linear", turned, x, None, transposed=True), axes=(1, 0))
    return cast(result, chosen or result.dtype)


def exact_or_float(move: Callable[..., Any], *tensors: Any) -> Any:
    """``move`` applied to tensors, which are dequantized if their steps cannot be moved along."""
    if not is_quantized(tensors[0]):
        return move(*tensors)
    try:
        return move(*tensors)
    except (ArgumentError, ShapeError):  # if it was another mistake, it is told of the floats
        pass
    return move(*map(dequantized, tensors))


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
