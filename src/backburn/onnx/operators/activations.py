"""Activation functions."""

from __future__ import annotations

import math
from typing import Any

from backburn.nn import functional
from backburn.onnx.registry import operator
from backburn.tensor import activations, arithmetic, creation, elementwise, logic, normalization, reduce, selection
from backburn.tensor import shape as shapes
from backburn.tensor.classes import Tensor


@operator("Relu")
def relu(x: Tensor, /) -> Any:
    """The positive part."""
    return activations.relu(x) if x.dtype.is_floating else arithmetic.maximum(x, 0)


@operator("Sigmoid")
def sigmoid(x: Tensor, /) -> Any:
    """The logistic function."""
    return activations.sigmoid(x)


@operator("Tanh")
def tanh(x: Tensor, /) -> Any:
    """The hyperbolic tangent."""
    return elementwise.tanh(x)


@operator("Elu")
def elu(x: Tensor, /, *, alpha: float = 1.0) -> Any:
    """``alpha * (exp(x) - 1)`` below 0."""
    return functional.elu(x, alpha)


@operator("Celu")
def celu(x: Tensor, /, *, alpha: float = 1.0) -> Any:
    """``alpha * (exp(x / alpha) - 1)`` below 0."""
    return functional.celu(x, alpha)


@operator("Selu")
def selu(x: Tensor, /, *, alpha: float, gamma: float) -> Any:
    """``gamma * elu(x, alpha)``."""
    return functional.elu(x, alpha) * gamma


@operator("LeakyRelu")
def leaky_relu(x: Tensor, /, *, alpha: float = 0.01) -> Any:
    """``alpha * x`` below 0."""
    return functional.leaky_relu(x, alpha)


@operator("ThresholdedRelu")
def thresholded_relu(x: Tensor, /, *, alpha: float = 1.0) -> Any:
    """``x`` above a threshold, else 0."""
    return functional.threshold(x, alpha, 0.0)


@operator("PRelu")
def prelu(x: Tensor, slope: Tensor, /) -> Any:
    """``slope * x`` below 0; slopes are broadcast."""
    return selection.where(logic.less(x, 0), arithmetic.multiply(x, slope), x)


@operator("HardSigmoid")
def hard_sigmoid(x: Tensor, /, *, alpha: float = 0.2, beta: float = 0.5) -> Any:
    """``alpha * x + beta`` between 0 and 1."""
    return arithmetic.clip(arithmetic.add(x * alpha, beta), 0.0, 1.0)


@operator("HardSwish")
def hard_swish(x: Tensor, /) -> Any:
    """``x`` times a hard sigmoid."""
    return functional.hard_swish(x)


@operator("Mish")
def mish(x: Tensor, /) -> Any:
    """``x * tanh(softplus(x))``."""
    return functional.mish(x)


@operator("Swish")
def swish(x: Tensor, /, *, alpha: float = 1.0) -> Any:
    """``x * sigmoid(alpha * x)``."""
    if alpha == 1.0:
        return activations.silu(x)
    return arithmetic.multiply(x, activations.sigmoid(arithmetic.multiply(x, alpha)))


@operator("Gelu")
def gelu(x: Tensor, /, *, approximate: str = "none") -> Any:
    """``x`` times the normal distribution function."""
    return activations.gelu(x, approximate)


@operator("Softplus")
def softplus(x: Tensor, /) -> Any:
    """``log(1 + exp(x))``."""
    return functional.softplus(x)


@operator("Softsign")
def softsign(x: Tensor, /) -> Any:
    """``x / (1 + |x|)``."""
    return functional.softsign(x)


@operator("Shrink")
def shrink(x: Tensor, /, *, bias: float = 0.0, lambd: float = 0.5) -> Any:
    """0 between ``-lambd`` and ``lambd``, and moved towards 0 by ``bias`` outside."""
    low: Any = arithmetic.add(x, bias)
    high: Any = arithmetic.subtract(x, bias)
    outside = selection.where(logic.less(x, -lambd), low, creation.zeros_like(low))
    return creation.astype(selection.where(logic.greater(x, lambd), high, outside), x.dtype)


def _rows(x: Any, axis: int, opset: int) -> tuple[Any, int]:
    """The operand and axis of a softmax, which until opset 12 normalizes over all axes from ``axis`` on."""
    axis = axis + x.ndim if axis < 0 else axis
    if opset >= 13:
        return x, axis
    return shapes.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))), 1


@operator("Softmax")
def softmax(x: Tensor, /, *, axis: int = -1, call: Any) -> Any:
    """Exponentials with sum 1."""
    rows, along = _rows(x, axis, call.opset)
    return shapes.reshape(normalization.softmax(rows, along), x.shape)


@operator("LogSoftmax")
def log_softmax(x: Tensor, /, *, axis: int = -1, call: Any) -> Any:
    """The logarithm of the softmax."""
    rows, along = _rows(x, axis, call.opset)
    return shapes.reshape(normalization.log_softmax(rows, along), x.shape)


@operator("Hardmax")
def hardmax(x: Tensor, /, *, axis: int = -1, call: Any) -> Any:
    """1 at the first largest element, else 0."""
    rows, along = _rows(x, axis, call.opset)
    first = reduce.argmax(rows, axis=along, keepdims=True)
    places = creation.arange(rows.shape[along], dtype="int64", backend=rows.backend)
    places = shapes.reshape(places, [-1 if i == along else 1 for i in range(rows.ndim)])
    return shapes.reshape(creation.astype(logic.equal(places, first), x.dtype), x.shape)


@operator("LpNormalization")
def lp_normalization(x: Tensor, /, *, axis: int = -1, p: int = 2) -> Any:
    """Divides by the norm along an axis; 0 where the norm is 0."""
    norm: Any = reduce.vector_norm(x, axis=axis, ord=p, keepdims=True)
    zero = logic.equal(norm, 0)
    safe = selection.where(zero, creation.ones_like(norm), norm)
    return selection.where(zero, creation.zeros_like(x), arithmetic.divide(x, safe))
