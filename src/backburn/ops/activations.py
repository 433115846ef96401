"""Activation functions.

No intermediate result overflows if the result is finite. The derivative at a kink is given with each function. An
operation whose name ends in ``_backward`` is the gradient of the one before it and has no gradient rule: further
derivatives follow from its body.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from backburn.base.errors import ArgumentError, ShapeError
from backburn.ops.arithmetic import grad_clip_x
from backburn.ops.bodies.half_precision import in_float32, upcast_half
from backburn.ops.bodies.slicing import slice_axis
from backburn.ops.elementwise import div_by_square
from backburn.ops.primitives import Primitives
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.rules.shapes import Shape, broadcast, check_axis, unchanged
from backburn.ops.rules.tangents import decompose
from backburn.ops.table import operation
from backburn.ops.types import B, F, I, Q

#: The parameters of SELU, at which activations keep mean 0 and variance 1 (Klambauer et al., 2017, equation 14).
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946

#: The tanh form of GELU (Hendrycks and Gimpel, 2016) is ``x * sigmoid(LINEAR * x + CUBIC * x ** 3)``.
GELU_LINEAR = 2.0 * math.sqrt(2.0 / math.pi)
GELU_CUBIC = GELU_LINEAR * 0.044715
#: From here on the upper tail of the normal distribution is 0 in every dtype.
GELU_ZERO = 40.0
#: From here on the sigmoid above is 0 or 1 in every dtype, and its derivative 0.
GELU_FLAT = 32.0


def _half_shape(x: Shape, *, axis: int) -> Shape:
    axis = check_axis(axis, len(x))
    if x[axis] % 2:
        raise ShapeError(f"axis {axis} has {x[axis]} elements, which do not form two halves")
    return (*x[:axis], x[axis] // 2, *x[axis + 1 :])


def split_halves(k: Any, x: Any, axis: int) -> tuple[Any, Any]:
    """The first and the second half of ``x`` along ``axis``."""
    middle = x.shape[axis] // 2
    return slice_axis(k, x, axis, 0, middle), slice_axis(k, x, axis, middle, 2 * middle)


def _exact(operation: str, approximate: str) -> bool:
    """Whether ``approximate`` selects the exact form of GELU."""
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f"{operation}: approximate is 'none' or 'tanh', not {approximate!r}")
    return approximate == "none"


def _gelu_gate(k: Any, x: Any) -> Any:
    """The sigmoid in the tanh form of GELU."""
    return k.sigmoid(k.mul(x, k.add(k.mul(k.square(x), GELU_CUBIC), GELU_LINEAR)))


# ---- gradients ----


def grad_between_bounds(k: Any, g: Any, out: Any, low: float, high: float) -> Any:
    """``g`` where ``out`` lies strictly between two bounds."""
    return k.where(k.logical_and(k.less(low, out), k.less(out, high)), g, 0.0)


def grad_hard_swish(k: Any, g: Any, x: Any) -> Any:
    """The gradient of ``hard_swish``: its slope is ``x / 3 + 1/2`` inside, 0 at the lower and 1 at the upper end."""
    slope = k.where(k.less_equal(3.0, x), 1.0, k.add(k.mul(x, 1.0 / 3.0), 0.5))
    return k.mul(g, k.where(k.less_equal(x, -3.0), 0.0, slope))


def grad_elu(k: Any, g: Any, x: Any, alpha: float) -> Any:
    """The gradient of ``elu``; the exponential is limited to 1, so that it cannot overflow where it is not used."""
    bent = k.mul(k.exp(k.minimum(x, 0.0)), alpha)
    return k.where(k.less_equal(x, 0.0), k.mul(g, bent), g)


def grad_celu(k: Any, g: Any, x: Any, alpha: float) -> Any:
    """The gradient of ``celu``; its exponential cannot overflow, either."""
    return k.where(k.less_equal(x, 0.0), k.mul(g, k.exp(k.div(k.minimum(x, 0.0), alpha))), g)


def grad_mish(k: Any, g: Any, x: Any) -> Any:
    """The gradient of ``mish``: ``tanh(s) + x * sigmoid(x) / cosh(s) ** 2`` with ``s = softplus(x)``."""
    s = k.softplus(x)
    y = k.tanh(s)
    return k.mul(g, k.add(y, k.tanh_slope(k.mul(x, k.sigmoid(x)), s, y)))


def grad_glu(k: Any, g: Any, x: Any, axis: int) -> Any:
    """The gradient of ``glu``."""
    value, gate = split_halves(k, x, axis)
    return k.concat([k.mul(g, k.sigmoid(gate)), k.sigmoid_slope(k.mul(g, value), gate)], axis)


class Activations(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Activation functions."""

    # ---- sigmoids ----

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def sigmoid(self: Any, x: F, /) -> F:
        """``1 / (1 + exp(-x))``."""
        return self.div(1.0, self.add(self.exp(self.neg(x)), 1.0))

    gradient_rule(sigmoid, x=lambda k, g, x: k.sigmoid_slope(g, x))

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def sigmoid_slope(self: Any, grad: F, x: F, /) -> F:
        """``grad`` times the slope of :meth:`sigmoid` at ``x``, ``sigmoid(x) * sigmoid(-x)``, accurate at both ends.

        It cannot be computed from the result of :meth:`sigmoid`, which is 1 from 17 on in float32.
        """
        power = self.exp(self.neg(self.abs(x)))
        above = self.add(power, 1.0)
        return self.mul(grad, self.div(self.div(power, above), above))

    gradient_rule(
        sigmoid_slope,
        grad=lambda k, g, x: k.sigmoid_slope(g, x),
        x=lambda k, g, x, out: k.neg(k.mul(k.mul(g, out), k.tanh(k.mul(x, 0.5)))),
    )

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def tanh_slope(self: Any, grad: F, x: F, y: F, /) -> F:
        """``grad`` times the derivative of :meth:`tanh` at ``x``, where ``y`` is its result: ``1 - y ** 2``.

        Computed as ``exp(-2 * abs(x)) * (1 + abs(y)) ** 2``, it is accurate at both ends, where ``y`` rounds to -1 or
        1. It is differentiated as a function of ``y`` alone.
        """
        return self.mul(grad, self.mul(self.exp(self.mul(self.abs(x), -2.0)), self.square(self.add(self.abs(y), 1.0))))

    gradient_rule(
        tanh_slope,
        grad=lambda k, g, x, y: k.tanh_slope(g, x, y),
        x=lambda g: None,
        y=lambda k, g, grad, y: k.mul(k.mul(g, grad), k.mul(y, -2.0)),
    )

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def sigmoid_backward(self: Any, grad: F, y: F, /) -> F:
        """The gradient of :meth:`sigmoid` where only its result ``y`` is known, as in gates: ``grad * y * (1 - y)``."""
        return self.mul(grad, self.mul(y, self.sub(1.0, y)))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def tanh_backward(self: Any, grad: F, y: F, /) -> F:
        """The gradient of :meth:`tanh` where only its result ``y`` is known: ``grad * (1 - y ** 2)``."""
        return self.mul(grad, self.sub(1.0, self.square(y)))

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def log_sigmoid(self: Any, x: F, /) -> F:
        """``log(sigmoid(x))``, accurate for all ``x``."""
        return self.sub(self.minimum(x, 0.0), self.log1p(self.exp(self.neg(self.abs(x)))))

    gradient_rule(log_sigmoid, x=lambda k, g, x: k.mul(g, k.sigmoid(k.neg(x))))

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def hard_sigmoid(self: Any, x: F, /) -> F:
        """``x / 6 + 1/2`` between 0 and 1; the derivative at both ends is 0."""
        return self.mul(self.clip(self.add(x, 3.0), 0.0, 6.0), 1.0 / 6.0)

    gradient_rule(hard_sigmoid, x=lambda k, g, out: grad_between_bounds(k, k.mul(g, 1.0 / 6.0), out, 0.0, 1.0))

    # ---- rectifiers ----

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def relu(self: Any, x: F, /) -> F:
        """``max(x, 0)``; the derivative at 0 is 0."""
        return self.maximum(x, 0.0)

    gradient_rule(relu, x=lambda k, g, out: k.relu_backward(g, out))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def relu_backward(self: Any, grad: F, y: F, /) -> F:
        """The gradient of :meth:`relu`, whose result was ``y``: ``grad`` where that is above 0."""
        return self.where(self.less(0.0, y), grad, 0.0)

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def relu6(self: Any, x: F, /) -> F:
        """``min(max(x, 0), 6)``; the derivative at 0 and at 6 is 0."""
        return self.clip(x, 0.0, 6.0)

    gradient_rule(relu6, x=lambda k, g, out: grad_between_bounds(k, g, out, 0.0, 6.0))

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def leaky_relu(self: Any, x: F, /, slope: float = 0.01) -> F:
        """``x`` above 0, else ``slope * x``; the derivative at 0 is ``slope``."""
        if 0.0 < slope <= 1.0:
            return self.maximum(self.mul(x, slope), x)
        return self.where(self.less_equal(x, 0.0), self.mul(x, slope), x)

    gradient_rule(leaky_relu, x=lambda k, g, x, slope: k.where(k.less_equal(x, 0.0), k.mul(g, slope), g))

    @operation(kinds="F", shape=broadcast, differentiable=True, fuse=True)
    def prelu(self: Any, x: F, slope: F, /) -> F:
        """:meth:`leaky_relu` with a tensor ``slope``, which broadcasts and has a gradient."""
        return self.where(self.less_equal(x, 0.0), self.mul(x, slope), x)

    gradient_rule(
        prelu,
        x=lambda k, g, x, slope: k.where(k.less_equal(x, 0.0), k.mul(g, slope), g),
        slope=lambda k, g, x: k.where(k.less(0.0, x), 0.0, k.mul(g, x)),
    )

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def threshold(self: Any, x: F, /, threshold: float, value: float) -> F:
        """``x`` above ``threshold``, else ``value``; the derivative at ``threshold`` is 0."""
        return self.where(self.less_equal(x, threshold), value, x)

    gradient_rule(threshold, x=lambda k, g, x, threshold: k.where(k.less_equal(x, threshold), 0.0, g))

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def hardtanh(self: Any, x: F, /, low: float = -1.0, high: float = 1.0) -> F:
        """``x`` clamped from ``low`` to ``high``; like :meth:`clip`, the derivative at both ends is 1."""
        return self.clip(x, low, high)

    gradient_rule(hardtanh, x=lambda k, g, x, low, high: grad_clip_x(k, g, x, low, high))

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def hard_swish(self: Any, x: F, /) -> F:
        """``x * hard_sigmoid(x)``; the derivative at -3 is 0, at 3 it is 1. After Howard et al., MobileNetV3, 2019."""
        return self.mul(x, self.hard_sigmoid(x))

    gradient_rule(hard_swish, x=grad_hard_swish)

    # ---- exponential linear units ----

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def elu(self: Any, x: F, /, alpha: float = 1.0) -> F:
        """``x`` above 0, else ``alpha * (exp(x) - 1)``; the derivative at 0 is ``alpha``.

        After Clevert, Unterthiner and Hochreiter, Exponential linear units, 2015.
        """
        bent = self.mul(self.expm1(self.minimum(x, 0.0)), alpha)
        return self.where(self.less_equal(x, 0.0), bent, x)

    gradient_rule(elu, x=grad_elu)

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def celu(self: Any, x: F, /, alpha: float = 1.0) -> F:
        """``x`` above 0, else ``alpha * (exp(x / alpha) - 1)``, for a positive ``alpha``; the derivative at 0 is 1.

        After Barron, Continuously differentiable exponential linear units, 2017.
        """
        return self.mul(self.elu(self.div(x, alpha)), alpha)

    gradient_rule(celu, x=grad_celu)

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def selu(self: Any, x: F, /) -> F:
        """:meth:`elu` with the scale and the ``alpha`` of self-normalizing networks.

        After Klambauer et al., Self-normalizing neural networks, 2017.
        """
        return self.mul(self.elu(x, SELU_ALPHA), SELU_SCALE)

    gradient_rule(selu, x=lambda k, g, x: k.mul(grad_elu(k, g, x, SELU_ALPHA), SELU_SCALE))

    # ---- smooth units ----

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def gelu(self: Any, x: F, /, approximate: str = "none") -> F:
        """``x`` times the normal distribution function, or the form with tanh for ``approximate="tanh"``.

        After Hendrycks and Gimpel, Gaussian error linear units, 2016.
        """
        wide = upcast_half(self, x)
        if _exact("gelu", approximate):
            size = self.minimum(self.abs(wide), GELU_ZERO)
            above = self.mul(size, self.mul(self.erfc(self.mul(size, math.sqrt(0.5))), 0.5))
            return self.astype(self.sub(self.maximum(wide, 0.0), above), self.dtype(x))
        return self.astype(self.mul(wide, _gelu_gate(self, wide)), self.dtype(x))

    gradient_rule(gelu, x=lambda k, g, x, approximate: k.gelu_backward(g, x, approximate))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def gelu_backward(self: Any, grad: F, x: F, /, approximate: str) -> F:
        """The gradient of :meth:`gelu`, in the form that ``approximate`` names."""
        wide = upcast_half(self, x)
        if _exact("gelu_backward", approximate):
            wide = self.clip(wide, -GELU_ZERO, GELU_ZERO)
            distribution = self.mul(self.erfc(self.mul(wide, -math.sqrt(0.5))), 0.5)
            density = self.mul(self.exp(self.mul(self.square(wide), -0.5)), 1.0 / math.sqrt(2.0 * math.pi))
            slope = self.add(distribution, self.mul(wide, density))
        else:
            # Beyond the flat ends the powers would overflow, and infinity times 0 is NaN.
            wide = self.clip(wide, -GELU_FLAT, GELU_FLAT)
            square = self.square(wide)
            argument = self.mul(wide, self.add(self.mul(square, GELU_CUBIC), GELU_LINEAR))
            inner = self.mul(wide, self.add(self.mul(square, 3.0 * GELU_CUBIC), GELU_LINEAR))
            slope = self.add(self.sigmoid(argument), self.sigmoid_slope(inner, argument))
        return self.astype(self.mul(upcast_half(self, grad), slope), self.dtype(x))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def silu(self: Any, x: F, /) -> F:
        """``x * sigmoid(x)``, also called swish. After Elfwing, Uchibe and Doya, 2017."""
        return self.mul(x, self.sigmoid(x))

    gradient_rule(silu, x=lambda k, g, x: k.silu_backward(g, x))

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def silu_backward(self: Any, grad: F, x: F, /) -> F:
        """The gradient of :meth:`silu`."""
        slope = self.mul(self.sigmoid(x), self.add(self.mul(x, self.sigmoid(self.neg(x))), 1.0))
        return self.mul(grad, slope)

    gradient_rule(
        silu_backward,
        grad=lambda k, g, x: k.silu_backward(g, x),
        # The second derivative: the sigmoid's slope times 2 - x * tanh(x / 2).
        x=lambda k, g, grad, x: k.sigmoid_slope(k.mul(k.mul(g, grad), k.sub(2.0, k.mul(x, k.tanh(k.mul(x, 0.5))))), x),
    )

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def mish(self: Any, x: F, /) -> F:
        """``x * tanh(softplus(x))``. After Misra, Mish, 2019."""
        return self.mul(x, self.tanh(self.softplus(x)))

    gradient_rule(mish, x=lambda k, g, x: in_float32(k, grad_mish, g, x))

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def softplus(self: Any, x: F, /, beta: float = 1.0) -> F:
        """``log(1 + exp(beta * x)) / beta``, accurate and without overflow for all ``x``."""
        tail = self.log1p(self.exp(self.neg(self.abs(self.mul(x, beta)))))
        line = self.maximum(x, 0.0) if beta > 0 else self.minimum(x, 0.0)  # not divided: beta * x may overflow
        return self.add(line, self.div(tail, beta))

    gradient_rule(softplus, x=lambda k, g, x, beta: k.mul(g, k.sigmoid(k.mul(x, beta))))

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def softsign(self: Any, x: F, /) -> F:
        """``x / (1 + |x|)``."""
        return self.div(x, self.add(self.abs(x), 1.0))

    gradient_rule(softsign, x=lambda k, g, x: div_by_square(k, g, k.add(k.abs(x), 1.0)))

    # ---- shrinking ----

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def tanhshrink(self: Any, x: F, /) -> F:
        """``x - tanh(x)``."""
        return self.sub(x, self.tanh(x))

    gradient_rule(tanhshrink, x=lambda k, g, x: k.mul(g, k.square(k.tanh(x))))

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def softshrink(self: Any, x: F, /, threshold: float = 0.5) -> F:
        """``x`` moved towards 0 by ``threshold``, at most to 0; the derivative at both thresholds is 0."""
        return self.sub(x, self.clip(x, -threshold, threshold))

    gradient_rule(softshrink, x=lambda k, g, x, threshold: k.where(k.less_equal(k.abs(x), threshold), 0.0, g))

    @operation(kinds="F", shape=unchanged, differentiable=True, fuse=True)
    def hardshrink(self: Any, x: F, /, threshold: float = 0.5) -> F:
        """``x``, or 0 where ``|x|`` is at most ``threshold``; the derivative at both thresholds is 0."""
        return self.where(self.less_equal(self.abs(x), threshold), 0.0, x)

    gradient_rule(hardshrink, x=lambda k, g, x, threshold: k.where(k.less_equal(k.abs(x), threshold), 0.0, g))

    # ---- gates ----

    @operation(kinds="F", shape=_half_shape, differentiable=True)
    def glu(self: Any, x: F, /, axis: int) -> F:
        """The first half of ``x`` along ``axis`` times the sigmoid of the second.

        After Dauphin et al., Language modeling with gated convolutional networks, 2016.
        """
        _half_shape(x.shape, axis=axis)
        value, gate = split_halves(self, x, axis)
        return self.mul(value, self.sigmoid(gate))

    gradient_rule(glu, x=grad_glu)
    decompose(glu)
