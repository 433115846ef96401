"""Activation functions, dropout and reshaping as modules without parameters."""

from __future__ import annotations

from typing import Any

from backburn.base.errors import ShapeError
from backburn.nn import functional
from backburn.nn.linear import sizes
from backburn.nn.module import Module, parameter
from backburn.tensor import create
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.dispatch import tensor_operand
from backburn.tensor.messages import describe
from backburn.tensor.options import number, one_of


class Identity(Module):
    """Returns its input."""

    def forward(self, x: Any) -> Any:
        """``x``."""
        return x


class ReLU(Module):
    """``max(x, 0)``."""

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.relu(x)


class LeakyReLU(Module):
    """``x`` above 0, else ``slope * x``."""

    def __init__(self, slope: float = 0.01) -> None:
        self.slope = slope

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.leaky_relu(x, slope=self.slope)


class ELU(Module):
    """``x`` above 0, else ``alpha * (exp(x) - 1)``."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.elu(x, alpha=self.alpha)


class GELU(Module):
    """``x`` times the normal distribution function of ``x``; with ``approximate="tanh"`` its approximation."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = one_of("GELU", "approximate", approximate, ("none", "tanh"))

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.gelu(x, approximate=self.approximate)


class SiLU(Module):
    """``x * sigmoid(x)``."""

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.silu(x)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.tanh(x)


class Sigmoid(Module):
    """``1 / (1 + exp(-x))``."""

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.sigmoid(x)


class Softmax(Module):
    """``exp(x) / sum(exp(x))`` along ``axis``."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Tensor) -> FloatTensor:
        """The softmax, which sums to 1 along the axis."""
        return functional.softmax(x, axis=self.axis)


class ReLU6(Module):
    """``x`` clamped to the range from 0 to 6."""

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.relu6(x)


class PReLU(Module):
    """``x`` above 0, else ``slope * x`` with a learnt ``slope``: one for all elements, or one for each of ``channels``.

    The channels are axis 1, as in convolutions. After He et al. (2015). Raises :class:`ShapeError` for another number
    of channels.

    >>> import backburn as bb
    >>> PReLU()(bb.asarray([-2.0, 2.0])).tolist()
    [-0.5, 2.0]
    """

    def __init__(self, channels: int = 1, slope: float = 0.25) -> None:
        (channels,) = sizes("PReLU", channels=channels)
        self.slope = parameter(create.full((channels,), float(number("PReLU", "slope", slope))))

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        tensor_operand("PReLU", x)
        slope, count = self.slope, self.slope.shape[0]
        if count > 1:
            if x.ndim < 2 or x.shape[1] != count:
                raise ShapeError(f"PReLU: axis 1 of the input has {count} channels, not {describe((x,))}")
            slope = slope.reshape((count, *(1,) * (x.ndim - 2)))
        elif not x.ndim:
            slope = slope.reshape(())
        return functional.prelu(x, slope)


class CELU(Module):
    """``max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)``."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.celu(x, alpha=self.alpha)


class SELU(Module):
    """ELU with the constants of self-normalizing networks (Klambauer et al. 2017)."""

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.selu(x)


class Mish(Module):
    """``x * tanh(softplus(x))`` (Misra 2019)."""

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.mish(x)


class Softplus(Module):
    """``log(1 + exp(beta * x)) / beta``, without overflow for every ``x``; see :func:`functional.softplus`."""

    def __init__(self, beta: float = 1.0, threshold: float | None = None) -> None:
        self.beta = beta
        self.threshold = None if threshold is None else number("Softplus", "threshold", threshold)

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.softplus(x, beta=self.beta, threshold=self.threshold)


class Softsign(Module):
    """``x / (1 + |x|)``."""

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.softsign(x)


class LogSigmoid(Module):
    """The logarithm of :class:`Sigmoid`."""

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.log_sigmoid(x)


class Hardsigmoid(Module):
    """``x / 6 + 1/2`` from 0 to 1."""

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.hard_sigmoid(x)


class Hardswish(Module):
    """``x`` times :class:`Hardsigmoid` of ``x`` (Howard et al. 2019)."""

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.hard_swish(x)


class Hardtanh(Module):
    """``x`` clamped to the range from ``low`` to ``high``."""

    def __init__(self, low: float = -1.0, high: float = 1.0) -> None:
        self.low = low
        self.high = high

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.hardtanh(x, low=self.low, high=self.high)


class Hardshrink(Module):
    """``x``, or 0 where ``|x|`` is at most ``threshold``."""

    def __init__(self, threshold: float = 0.5) -> None:
        self.threshold = threshold

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.hardshrink(x, threshold=self.threshold)


class Softshrink(Module):
    """``x`` moved towards 0 by ``threshold``, at most to 0."""

    def __init__(self, threshold: float = 0.5) -> None:
        self.threshold = threshold

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.softshrink(x, threshold=self.threshold)


class Tanhshrink(Module):
    """``x - tanh(x)``."""

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.tanhshrink(x)


class Threshold(Module):
    """``x`` above ``threshold``, else ``value``."""

    def __init__(self, threshold: float, value: float) -> None:
        self.threshold = threshold
        self.value = value

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.threshold(x, threshold=self.threshold, value=self.value)


class GLU(Module):
    """The first half of ``x`` along ``axis`` times the sigmoid of the second."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.glu(x, axis=self.axis)


class LogSoftmax(Module):
    """The logarithm of :class:`Softmax` along ``axis``, without overflow."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.log_softmax(x, axis=self.axis)


class Softmin(Module):
    """:class:`Softmax` of ``-x``."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.softmin(x, axis=self.axis)
