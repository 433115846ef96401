"""Activation functions as modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from backburn.base.errors import ShapeError
from backburn.nn import functional
from backburn.nn.linear import sizes
from backburn.nn.module import Module, parameter
from backburn.tensor import creation
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.core.dispatch import tensor_operand
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import number, one_of


class Identity(Module):
    """Returns its input."""

    def forward(self, x: Any) -> Any:
        """``x``."""
        return x


class _Activation(Module):
    """The base class of activations: applies ``_function``; subclasses pass options to it."""

    _function: ClassVar[Callable[..., FloatTensor]]

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return self._function(x)


class _AlongAxis(_Activation):
    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation along the axis."""
        return self._function(x, axis=self.axis)


class _WithAlpha(_Activation):
    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return self._function(x, alpha=self.alpha)


class _WithThreshold(_Activation):
    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return self._function(x, self.lambd)


class ReLU(_Activation):
    """``max(x, 0)``."""

    _function = staticmethod(functional.relu)


class LeakyReLU(Module):
    """``x`` above 0, else ``negative_slope * x``."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.leaky_relu(x, self.negative_slope)


class ELU(_WithAlpha):
    """``x`` above 0, else ``alpha * (exp(x) - 1)``."""

    _function = staticmethod(functional.elu)


class GELU(Module):
    """``x`` times the standard normal CDF of ``x``, or with ``approximate="tanh"`` its approximation."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = one_of("GELU", "approximate", approximate, ("none", "tanh"))

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.gelu(x, approximate=self.approximate)


class SiLU(_Activation):
    """``x * sigmoid(x)``."""

    _function = staticmethod(functional.silu)


class Tanh(_Activation):
    """The hyperbolic tangent."""

    _function = staticmethod(functional.tanh)


class Sigmoid(_Activation):
    """``1 / (1 + exp(-x))``."""

    _function = staticmethod(functional.sigmoid)


class Softmax(_AlongAxis):
    """``exp(x) / sum(exp(x))`` along ``axis``."""

    _function = staticmethod(functional.softmax)


class ReLU6(_Activation):
    """``x`` clamped to the range from 0 to 6."""

    _function = staticmethod(functional.relu6)


class PReLU(Module):
    """``x`` above 0, else ``weight * x`` with a learnt ``weight`` of ``num_parameters`` elements.

    Several parameters are one per channel (axis 1, as in convolutions). They are initialized to ``init``. After He et
    al. (2015). Raises :class:`ShapeError` for another number of channels.

    >>> import backburn as bb
    >>> PReLU()(bb.asarray([-2.0, 2.0])).tolist()
    [-0.5, 2.0]
    """

    weight: FloatTensor

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        (count,) = sizes("PReLU", num_parameters=num_parameters)
        self.weight = parameter(creation.full((count,), float(number("PReLU", "init", init))))

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        tensor_operand("PReLU", x)
        weight, count = self.weight, self.weight.shape[0]
        if count > 1:
            if x.ndim < 2 or x.shape[1] != count:
                raise ShapeError(f"PReLU: axis 1 of the input has {count} channels, not {describe((x,))}")
            weight = weight.reshape((count, *(1,) * (x.ndim - 2)))
        elif not x.ndim:
            weight = weight.reshape(())
        return functional.prelu(x, weight)


class CELU(_WithAlpha):
    """``max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)``."""

    _function = staticmethod(functional.celu)


class SELU(_Activation):
    """ELU with the constants of self-normalizing networks (Klambauer et al. 2017)."""

    _function = staticmethod(functional.selu)


class Mish(_Activation):
    """``x * tanh(softplus(x))`` (Misra 2019)."""

    _function = staticmethod(functional.mish)


class Softplus(Module):
    """``log(1 + exp(beta * x)) / beta``, without overflow; see :func:`functional.softplus`."""

    def __init__(self, beta: float = 1.0, threshold: float | None = None) -> None:
        self.beta = beta
        self.threshold = None if threshold is None else number("Softplus", "threshold", threshold)

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.softplus(x, beta=self.beta, threshold=self.threshold)


class Softsign(_Activation):
    """``x / (1 + |x|)``."""

    _function = staticmethod(functional.softsign)


class LogSigmoid(_Activation):
    """The logarithm of :class:`Sigmoid`."""

    _function = staticmethod(functional.log_sigmoid)


class Hardsigmoid(_Activation):
    """``x / 6 + 1/2`` clamped to the range from 0 to 1."""

    _function = staticmethod(functional.hard_sigmoid)


class Hardswish(_Activation):
    """``x`` times :class:`Hardsigmoid` of ``x`` (Howard et al. 2019)."""

    _function = staticmethod(functional.hard_swish)


class Hardtanh(Module):
    """``x`` clamped to the range from ``min_val`` to ``max_val``."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        self.min_val = min_val
        self.max_val = max_val

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.hardtanh(x, self.min_val, self.max_val)


class Hardshrink(_WithThreshold):
    """``x``, or 0 where ``|x|`` is at most ``lambd``."""

    _function = staticmethod(functional.hardshrink)


class Softshrink(_WithThreshold):
    """``x`` moved towards 0 by ``lambd``, at most to 0."""

    _function = staticmethod(functional.softshrink)


class Tanhshrink(_Activation):
    """``x - tanh(x)``."""

    _function = staticmethod(functional.tanhshrink)


class Threshold(Module):
    """``x`` above ``threshold``, else ``value``."""

    def __init__(self, threshold: float, value: float) -> None:
        self.threshold = threshold
        self.value = value

    def forward(self, x: Tensor) -> FloatTensor:
        """The activation of each element."""
        return functional.threshold(x, threshold=self.threshold, value=self.value)


class GLU(_AlongAxis):
    """The first half of ``x`` along ``axis`` times the sigmoid of the second."""

    _function = staticmethod(functional.glu)


class LogSoftmax(_AlongAxis):
    """The logarithm of :class:`Softmax` along ``axis``, without overflow."""

    _function = staticmethod(functional.log_softmax)


class Softmin(_AlongAxis):
    """:class:`Softmax` of ``-x``."""

    _function = staticmethod(functional.softmin)
