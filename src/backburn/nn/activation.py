"""Activation functions, dropout and reshaping as modules without parameters."""

from __future__ import annotations

from typing import Any

from backburn.nn import functional
from backburn.nn.module import Module
from backburn.tensor.classes import FloatTensor, Tensor


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
        self.approximate = approximate

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
        """The shares, which add up to 1 along the axis."""
        return functional.softmax(x, axis=self.axis)


class Dropout(Module):
    """In training mode each element is 0 with probability ``p`` and divided by ``1 - p`` otherwise; else unchanged.

    The mode is that of :meth:`Module.train`, whatever the backend. After Srivastava et al. (2014). Raises
    :class:`ArgumentError` unless ``0 <= p <= 1``.

    >>> import backburn as bb
    >>> Dropout(0.5).eval()(bb.asarray([1.0, 2.0], backend="numpy"))
    Tensor([1., 2.], dtype=float32, backend=numpy)
    """

    def __init__(self, p: float = 0.5) -> None:
        functional.check_probability("Dropout", p)
        self.p = p

    def forward(self, x: Tensor) -> FloatTensor:
        """The elements that were not dropped."""
        return functional.dropout(x, self.p, training=self.training)


class Flatten(Module):
    """All axes from ``start`` on become one."""

    def __init__(self, start: int = 1) -> None:
        self.start = start

    def forward(self, x: Tensor) -> Tensor:
        """The same elements in the same order."""
        return functional.flatten(x, start=self.start)
