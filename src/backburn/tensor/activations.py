"""Tensor functions: activation functions.

Each takes a float tensor and keeps its shape and dtype; integers become the default float. Raises :class:`DTypeError`
for bool and quantized tensors. The derivative at a kink is given with each function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backburn.base.errors import ArgumentError
from backburn.tensor.core.dispatch import binary, call, float_operand, tensor_operand, unary
from backburn.tensor.core.integers import has_wide_integers, in_float64
from backburn.tensor.core.messages import describe
from backburn.tensor.core.methods import method
from backburn.tensor.core.options import axis_of, bounded, number

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, Tensor

__all__ = [
    "celu", "elu", "gelu", "glu", "hard_sigmoid", "hard_swish", "hardshrink", "hardtanh", "leaky_relu", "log_sigmoid",
    "mish", "prelu", "relu", "relu6", "selu", "sigmoid", "silu", "softplus", "softshrink", "softsign", "tanhshrink",
    "threshold",
]  # fmt: skip

# ---- sigmoids ----


@method
def sigmoid(x: Tensor, /) -> FloatTensor:
    """``1 / (1 + exp(-x))``, also of complex tensors.

    >>> import backburn as bb
    >>> bb.sigmoid(bb.asarray([-1000.0, 0.0, 1000.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return unary("sigmoid", x)


def log_sigmoid(x: Tensor, /) -> FloatTensor:
    """The logarithm of :func:`sigmoid`, accurate for all ``x``.

    >>> import backburn as bb
    >>> log_sigmoid(bb.asarray([-1000.0, 1000.0])).tolist()
    [-1000.0, 0.0]
    """
    return unary("log_sigmoid", x)


def hard_sigmoid(x: Tensor, /) -> FloatTensor:
    """``x / 6 + 1/2`` between 0 and 1; the derivative at both ends is 0.

    >>> import backburn as bb
    >>> hard_sigmoid(bb.asarray([-3.0, 0.0, 9.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return unary("hard_sigmoid", x)


# ---- rectifiers ----


@method
def relu(x: Tensor, /) -> FloatTensor:
    """``max(x, 0)``; the derivative at 0 is 0.

    >>> import backburn as bb
    >>> bb.relu(bb.asarray([-1.0, 0.0, 2.0])).tolist()
    [0.0, 0.0, 2.0]
    """
    return unary("relu", x)


def relu6(x: Tensor, /) -> FloatTensor:
    """``min(max(x, 0), 6)``; the derivative at 0 and at 6 is 0.

    >>> import backburn as bb
    >>> relu6(bb.asarray([-1.0, 2.0, 9.0])).tolist()
    [0.0, 2.0, 6.0]
    """
    return unary("relu6", x)


def leaky_relu(x: Tensor, /, negative_slope: float = 0.01) -> FloatTensor:
    """``x`` above 0, else ``negative_slope * x``; the derivative at 0 is the slope. For tensor slopes: :func:`prelu`.

    >>> import backburn as bb
    >>> leaky_relu(bb.asarray([-2.0, 2.0]), 0.5).tolist()
    [-1.0, 2.0]
    """
    slope = number("leaky_relu", "negative_slope", negative_slope)
    return call("leaky_relu", float_operand("leaky_relu", x), slope=slope)


def prelu(x: Tensor, weight: Tensor) -> FloatTensor:
    """:func:`leaky_relu` whose slope is the tensor ``weight``, which broadcasts and has a gradient.

    >>> import backburn as bb
    >>> prelu(bb.asarray([[-2.0, 2.0], [-4.0, 4.0]]), bb.asarray([0.5, 0.25])).tolist()
    [[-1.0, 2.0], [-2.0, 4.0]]
    """
    return binary("prelu", tensor_operand("prelu", x), tensor_operand("prelu", weight))


def threshold(x: Tensor, /, threshold: float, value: float) -> FloatTensor:
    """``x`` above ``threshold``, else ``value``; the derivative at ``threshold`` is 0.

    >>> import backburn as bb
    >>> threshold(bb.asarray([0.5, 2.0]), 1.0, -1.0).tolist()
    [-1.0, 2.0]
    """
    limit, value = number("threshold", "threshold", threshold), number("threshold", "value", value)
    return call("threshold", float_operand("threshold", x), threshold=limit, value=value)


def hardtanh(x: Tensor, /, min_val: float = -1.0, max_val: float = 1.0) -> FloatTensor:
    """``x`` clamped to [``min_val``, ``max_val``]; the derivative at both ends is 1, as for :func:`clip`.

    Raises :class:`ArgumentError` unless ``min_val`` is at most ``max_val``.

        >>> import backburn as bb
        >>> hardtanh(bb.asarray([-3.0, 0.5, 3.0])).tolist()
        [-1.0, 0.5, 1.0]
    """
    low, high = number("hardtanh", "min_val", min_val), number("hardtanh", "max_val", max_val)
    if not low <= high:
        words = f"min_val is at most max_val, and they are {low!r} and {high!r}"
        raise ArgumentError(f"hardtanh: {words}. Operand: {describe((x,))}")
    return call("hardtanh", float_operand("hardtanh", x), low=low, high=high)


def hard_swish(x: Tensor, /) -> FloatTensor:
    """``x * hard_sigmoid(x)``; the derivative at -3 is 0, at 3 it is 1. After Howard et al., MobileNetV3, 2019.

    >>> import backburn as bb
    >>> hard_swish(bb.asarray([-4.0, 0.0, 4.0])).numpy().tolist()
    [-0.0, 0.0, 4.0]
    """
    return unary("hard_swish", x)


# ---- exponential linear units ----


def elu(x: Tensor, /, alpha: float = 1.0) -> FloatTensor:
    """``x`` above 0, else ``alpha * (exp(x) - 1)``; the derivative at 0 is ``alpha``.

    After Clevert, Unterthiner and Hochreiter, Exponential linear units, 2015.

        >>> import backburn as bb
        >>> elu(bb.asarray([-1000.0, 2.0]), 0.5).tolist()
        [-0.5, 2.0]
    """
    return call("elu", float_operand("elu", x), alpha=number("elu", "alpha", alpha))


def celu(x: Tensor, /, alpha: float = 1.0) -> FloatTensor:
    """``x`` above 0, else ``alpha * (exp(x / alpha) - 1)``, for a positive ``alpha``; the derivative at 0 is 1.

    Raises :class:`ArgumentError` for another ``alpha``. After Barron, Continuously differentiable exponential linear
    units, 2017.

        >>> import backburn as bb
        >>> celu(bb.asarray([-1000.0, 2.0]), 0.5).tolist()
        [-0.5, 2.0]
    """
    alpha = bounded("celu", "alpha", alpha, above=0, of=(x,))
    return call("celu", float_operand("celu", x), alpha=alpha)


def selu(x: Tensor, /) -> FloatTensor:
    """:func:`elu` with the scale and the ``alpha`` of self-normalizing networks (Klambauer et al., 2017).

    >>> import backburn as bb
    >>> selu(bb.asarray([-1000.0, 1.0])).numpy().round(2).tolist()
    [-1.7599999904632568, 1.0499999523162842]
    """
    return unary("selu", x)


# ---- smooth units ----


def gelu(x: Tensor, /, approximate: str = "none") -> FloatTensor:
    """``x`` times the cumulative normal distribution function; ``approximate="tanh"`` uses the form with tanh.

    Each form has its own derivative. After Hendrycks and Gimpel, Gaussian error linear units, 2016. Raises
    :class:`ArgumentError` for another ``approximate``.

        >>> import backburn as bb
        >>> bb.gelu(bb.asarray([-1.0, 0.0, 1.0])).numpy().round(2).tolist()
        [-0.1599999964237213, 0.0, 0.8399999737739563]
    """
    return call("gelu", float_operand("gelu", x), approximate=approximate)


def silu(x: Tensor, /) -> FloatTensor:
    """``x * sigmoid(x)``, also called swish. After Elfwing, Uchibe and Doya, 2017.

    >>> import backburn as bb
    >>> bb.silu(bb.asarray([0.0, 1000.0])).tolist()
    [0.0, 1000.0]
    """
    return unary("silu", x)


def mish(x: Tensor, /) -> FloatTensor:
    """``x * tanh(softplus(x))``. After Misra, Mish, 2019.

    >>> import backburn as bb
    >>> mish(bb.asarray([0.0, 1000.0])).tolist()
    [0.0, 1000.0]
    """
    return unary("mish", x)


def softplus(x: Tensor, /, beta: float = 1.0, threshold: float | None = None) -> FloatTensor:
    """``log(1 + exp(beta * x)) / beta``, accurate and without overflow for all ``x``.

    The result is ``x`` where ``beta * x`` is above a given ``threshold``; other libraries use 20.

    >>> import backburn as bb
    >>> softplus(bb.asarray([-1000.0, 1000.0])).tolist()
    [0.0, 1000.0]
    """
    x = float_operand("softplus", x)
    result = call("softplus", x, beta=number("softplus", "beta", beta))
    if threshold is None:
        return result
    return call("where", x * beta > number("softplus", "threshold", threshold), x, result)


def softsign(x: Tensor, /) -> FloatTensor:
    """``x / (1 + |x|)``.

    >>> import backburn as bb
    >>> softsign(bb.asarray([-1.0, 3.0])).tolist()
    [-0.5, 0.75]
    """
    return unary("softsign", x)


# ---- shrinking ----


def tanhshrink(x: Tensor, /) -> FloatTensor:
    """``x - tanh(x)``.

    >>> import backburn as bb
    >>> tanhshrink(bb.asarray([0.0, 1000.0])).tolist()
    [0.0, 999.0]
    """
    return unary("tanhshrink", x)


def softshrink(x: Tensor, /, lambd: float = 0.5) -> FloatTensor:
    """``x`` moved towards 0 by ``lambd``, at most to 0; the derivative at both thresholds is 0.

    Raises :class:`ArgumentError` for a negative ``lambd``.

        >>> import backburn as bb
        >>> softshrink(bb.asarray([-2.0, 0.25, 2.0])).tolist()
        [-1.5, 0.0, 1.5]
    """
    if has_wide_integers(x):
        return in_float64(softshrink, x, lambd=lambd)
    limit = bounded("softshrink", "lambd", lambd, least=0, of=(x,))
    return call("softshrink", float_operand("softshrink", x), threshold=limit)


def hardshrink(x: Tensor, /, lambd: float = 0.5) -> FloatTensor:
    """``x``, or 0 where ``|x|`` is at most ``lambd``; the derivative at both thresholds is 0.

    >>> import backburn as bb
    >>> hardshrink(bb.asarray([-2.0, 0.25, 2.0])).tolist()
    [-2.0, 0.0, 2.0]
    """
    if has_wide_integers(x):
        return in_float64(hardshrink, x, lambd=lambd)
    limit = number("hardshrink", "lambd", lambd)
    return call("hardshrink", float_operand("hardshrink", x), threshold=limit)


# ---- gates ----


def glu(x: Tensor, /, axis: int = -1) -> FloatTensor:
    """The first half of ``x`` along ``axis`` times the :func:`sigmoid` of the second half.

    Raises :class:`ShapeError` if the length of ``axis`` is odd. After Dauphin et al., Language modeling with gated
    convolutional networks, 2016.

        >>> import backburn as bb
        >>> glu(bb.asarray([4.0, 6.0, 0.0, 1000.0])).tolist()
        [2.0, 6.0]
    """
    x = float_operand("glu", x)
    return call("glu", x, axis=axis_of("glu", x, axis))
