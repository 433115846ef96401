"""Activation functions.

No intermediate result overflows if the result is finite. The derivative at a kink is given with each function. An
operation whose name ends in ``_backward`` is the gradient of the one before it, without a gradient rule of its own, so
that further derivatives follow from its body.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from backburn.backend.index import shape_of
from backburn.backend.kinds import Kinds
from backburn.backend.reduce import widened
from backburn.backend.shapes import Shape, broadcast, check_axis, unchanged
from backburn.backend.table import operation
from backburn.backend.types import B, F, I, Q
from backburn.backend.views import part
from backburn.base.errors import ArgumentError, ShapeError

#: The parameters of SELU, at which activations keep mean 0 and variance 1 (Klambauer et al., 2017, equation 14).
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946

#: The tanh form of GELU (Hendrycks and Gimpel, 2016) is ``x * sigmoid(LINEAR * x + CUBIC * x ** 3)``.
GELU_LINEAR = 2.0 * math.sqrt(2.0 / math.pi)
GELU_CUBIC = GELU_LINEAR * 0.044715
#: From here on the normal distribution's mass above is 0 in every dtype.
GELU_ZERO = 40.0
#: From here on the sigmoid above is 0 or 1 in every dtype, and its derivative 0.
GELU_FLAT = 32.0


def _halved(x: Shape, *, axis: int) -> Shape:
    axis = check_axis(axis, len(x))
    if x[axis] % 2:
        raise ShapeError(f"axis {axis} has {x[axis]} elements, which do not form two halves")
    return (*x[:axis], x[axis] // 2, *x[axis + 1 :])


def halves(k: Any, x: Any, axis: int) -> tuple[Any, Any]:
    """The first and the second half of ``x`` along ``axis``."""
    middle = x.shape[axis] // 2
    return part(k, x, axis, 0, middle), part(k, x, axis, middle, 2 * middle)


def _exact(operation: str, approximate: str) -> bool:
    """Whether GELU is meant in its exact form."""
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f"{operation}: approximate is 'none' or 'tanh', not {approximate!r}")
    return approximate == "none"


def _gelu_gate(k: Any, x: Any) -> Any:
    """The sigmoid that the tanh form of GELU multiplies by."""
    return k.sigmoid(k.mul(x, k.add(k.mul(k.square(x), GELU_CUBIC), GELU_LINEAR)))


class Activate(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
    """Activation functions."""

    # ---- sigmoids ----

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def sigmoid(self: Any, x: F, /) -> F:
        """``1 / (1 + exp(-x))``."""
        return self.div(1.0, self.add(self.exp(self.neg(x)), 1.0))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def sigmoid_backward(self: Any, grad: F, y: F, /) -> F:
        """The gradient of :meth:`sigmoid`, whose result was ``y``: ``grad * y * (1 - y)``."""
        return self.mul(grad, self.mul(y, self.sub(1.0, y)))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def tanh_backward(self: Any, grad: F, y: F, /) -> F:
        """The gradient of :meth:`tanh`, whose result was ``y``: ``grad * (1 - y ** 2)``."""
        return self.mul(grad, self.sub(1.0, self.square(y)))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def log_sigmoid(self: Any, x: F, /) -> F:
        """``log(sigmoid(x))``, accurate for all ``x``."""
        return self.sub(self.minimum(x, 0.0), self.log1p(self.exp(self.neg(self.abs(x)))))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def hard_sigmoid(self: Any, x: F, /) -> F:
        """``x / 6 + 1/2`` between 0 and 1; the derivative at both ends is 0."""
        return self.mul(self.clamp(self.add(x, 3.0), 0.0, 6.0), 1.0 / 6.0)

    # ---- rectifiers ----

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def relu(self: Any, x: F, /) -> F:
        """``max(x, 0)``; the derivative at 0 is 0."""
        return self.maximum(x, 0.0)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def relu_backward(self: Any, grad: F, y: F, /) -> F:
        """The gradient of :meth:`relu`, whose result was ``y``: ``grad`` where that is above 0."""
        return self.where(self.less(0.0, y), grad, 0.0)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def relu6(self: Any, x: F, /) -> F:
        """``min(max(x, 0), 6)``; the derivative at 0 and at 6 is 0."""
        return self.clamp(x, 0.0, 6.0)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def leaky_relu(self: Any, x: F, /, slope: float = 0.01) -> F:
        """``x`` above 0, else ``slope * x``; the derivative at 0 is ``slope``."""
        if 0.0 < slope <= 1.0:
            return self.maximum(self.mul(x, slope), x)
        return self.where(self.less_equal(x, 0.0), self.mul(x, slope), x)

    @operation(kinds="F", shape=broadcast, differentiable=True)
    def prelu(self: Any, x: F, slope: F, /) -> F:
        """:meth:`leaky_relu` with a tensor ``slope``, which broadcasts and has a gradient."""
        return self.where(self.less_equal(x, 0.0), self.mul(x, slope), x)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def threshold(self: Any, x: F, /, threshold: float, value: float) -> F:
        """``x`` above ``threshold``, else ``value``; the derivative at ``threshold`` is 0."""
        return self.where(self.less_equal(x, threshold), value, x)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def hardtanh(self: Any, x: F, /, low: float = -1.0, high: float = 1.0) -> F:
        """``x`` clamped from ``low`` to ``high``; like :meth:`clamp`, the derivative at both ends is 1."""
        return self.clamp(x, low, high)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def hard_swish(self: Any, x: F, /) -> F:
        """``x * hard_sigmoid(x)``; the derivative at -3 is 0, at 3 it is 1. After Howard et al., MobileNetV3, 2019."""
        return self.mul(x, self.hard_sigmoid(x))

    # ---- exponential linear units ----

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def elu(self: Any, x: F, /, alpha: float = 1.0) -> F:
        """``x`` above 0, else ``alpha * (exp(x) - 1)``; the derivative at 0 is ``alpha``.

        After Clevert, Unterthiner and Hochreiter, Exponential linear units, 2015.
        """
        bent = self.mul(self.expm1(self.minimum(x, 0.0)), alpha)
        return self.where(self.less_equal(x, 0.0), bent, x)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def celu(self: Any, x: F, /, alpha: float = 1.0) -> F:
        """``x`` above 0, else ``alpha * (exp(x / alpha) - 1)``, for a positive ``alpha``; the derivative at 0 is 1.

        After Barron, Continuously differentiable exponential linear units, 2017.
        """
        return self.mul(self.elu(self.div(x, alpha)), alpha)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def selu(self: Any, x: F, /) -> F:
        """:meth:`elu` with the scale and the ``alpha`` of self-normalizing networks.

        After Klambauer et al., Self-normalizing neural networks, 2017.
        """
        return self.mul(self.elu(x, SELU_ALPHA), SELU_SCALE)

    # ---- smooth units ----

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def gelu(self: Any, x: F, /, approximate: str = "none") -> F:
        """``x`` times the normal distribution function, or the form with tanh for ``approximate="tanh"``.

        After Hendrycks and Gimpel, Gaussian error linear units, 2016.
        """
        wide = widened(self, x)
        if _exact("gelu", approximate):
            size = self.minimum(self.abs(wide), GELU_ZERO)
            above = self.mul(size, self.mul(self.erfc(self.mul(size, math.sqrt(0.5))), 0.5))
            return self.cast(self.sub(self.maximum(wide, 0.0), above), self.dtype(x))
        return self.cast(self.mul(wide, _gelu_gate(self, wide)), self.dtype(x))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def gelu_backward(self: Any, grad: F, x: F, /, approximate: str) -> F:
        """The gradient of :meth:`gelu`, that of the form which ``approximate`` names."""
        wide = widened(self, x)
        if _exact("gelu_backward", approximate):
            wide = self.clamp(wide, -GELU_ZERO, GELU_ZERO)
            distribution = self.mul(self.erfc(self.mul(wide, -math.sqrt(0.5))), 0.5)
            density = self.mul(self.exp(self.mul(self.square(wide), -0.5)), 1.0 / math.sqrt(2.0 * math.pi))
            slope = self.add(distribution, self.mul(wide, density))
        else:
            # Beyond the flat ends the powers would overflow, and infinity times 0 is NaN.
            wide = self.clamp(wide, -GELU_FLAT, GELU_FLAT)
            gate = _gelu_gate(self, wide)
            inner = self.mul(wide, self.add(self.mul(self.square(wide), 3.0 * GELU_CUBIC), GELU_LINEAR))
            slope = self.add(gate, self.mul(inner, self.mul(gate, self.sub(1.0, gate))))
        return self.cast(self.mul(widened(self, grad), slope), self.dtype(x))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def silu(self: Any, x: F, /) -> F:
        """``x * sigmoid(x)``, also called swish. After Elfwing, Uchibe and Doya, 2017."""
        return self.mul(x, self.sigmoid(x))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def silu_backward(self: Any, grad: F, x: F, /) -> F:
        """The gradient of :meth:`silu`."""
        gate = self.sigmoid(x)
        slope = self.mul(gate, self.add(self.mul(x, self.sub(1.0, gate)), 1.0))
        return self.mul(grad, slope)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def mish(self: Any, x: F, /) -> F:
        """``x * tanh(softplus(x))``. After Misra, Mish, 2019."""
        return self.mul(x, self.tanh(self.softplus(x)))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def softplus(self: Any, x: F, /, beta: float = 1.0) -> F:
        """``log(1 + exp(beta * x)) / beta``, accurate and without overflow for all ``x``."""
        tail = self.log1p(self.exp(self.neg(self.abs(self.mul(x, beta)))))
        line = self.maximum(x, 0.0) if beta > 0 else self.minimum(x, 0.0)  # not divided: beta * x may overflow
        return self.add(line, self.div(tail, beta))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def softsign(self: Any, x: F, /) -> F:
        """``x / (1 + |x|)``."""
        return self.div(x, self.add(self.abs(x), 1.0))

    # ---- shrinking ----

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def tanhshrink(self: Any, x: F, /) -> F:
        """``x - tanh(x)``."""
        return self.sub(x, self.tanh(x))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def softshrink(self: Any, x: F, /, threshold: float = 0.5) -> F:
        """``x`` moved towards 0 by ``threshold``, at most to 0; the derivative at both thresholds is 0."""
        return self.sub(x, self.clamp(x, -threshold, threshold))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def hardshrink(self: Any, x: F, /, threshold: float = 0.5) -> F:
        """``x``, or 0 where ``|x|`` is at most ``threshold``; the derivative at both thresholds is 0."""
        return self.where(self.less_equal(self.abs(x), threshold), 0.0, x)

    # ---- gates ----

    @operation(kinds="F", shape=_halved, differentiable=True)
    def glu(self: Any, x: F, /, axis: int) -> F:
        """The first half of ``x`` along ``axis`` times the sigmoid of the second.

        After Dauphin et al., Language modeling with gated convolutional networks, 2016.
        """
        _halved(shape_of(x), axis=axis)
        value, gate = halves(self, x, axis)
        return self.mul(value, self.sigmoid(gate))
