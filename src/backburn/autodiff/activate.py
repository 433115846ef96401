"""Gradient rules: activation functions."""

from __future__ import annotations

from typing import Any

from backburn.autodiff.arithmetic import clamp_x
from backburn.autodiff.functions import in_float32, over_square_of
from backburn.autodiff.rules import gradient, one_pass
from backburn.autodiff.tangents import elementwise, through_body
from backburn.backend.activate import SELU_ALPHA, SELU_SCALE, halves


def between(k: Any, g: Any, out: Any, low: float, high: float) -> Any:
    """``g`` where ``out`` lies strictly between two bounds."""
    return k.where(k.logical_and(k.less(low, out), k.less(out, high)), g, 0.0)


gradient("sigmoid", x=lambda k, g, out: k.sigmoid_backward(g, out))
gradient("log_sigmoid", x=lambda k, g, x: k.mul(g, k.sigmoid(k.neg(x))))
gradient("hard_sigmoid", x=lambda k, g, out: between(k, k.mul(g, 1.0 / 6.0), out, 0.0, 1.0))

gradient("relu", x=lambda k, g, out: k.relu_backward(g, out))
gradient("relu6", x=lambda k, g, out: between(k, g, out, 0.0, 6.0))
gradient("leaky_relu", x=lambda k, g, x, slope: k.where(k.less_equal(x, 0.0), k.mul(g, slope), g))
gradient(
    "prelu",
    x=lambda k, g, x, slope: k.where(k.less_equal(x, 0.0), k.mul(g, slope), g),
    slope=lambda k, g, x: k.where(k.less(0.0, x), 0.0, k.mul(g, x)),
)


gradient("threshold", x=lambda k, g, x, threshold: k.where(k.less_equal(x, threshold), 0.0, g))
gradient("hardtanh", x=lambda k, g, x, low, high: clamp_x(k, g, x, low, high))


def hard_swish(k: Any, g: Any, x: Any) -> Any:
    """The slope is ``x / 3 + 1/2`` between the ends, 0 at the lower and 1 at the upper one."""
    slope = k.where(k.less_equal(3.0, x), 1.0, k.add(k.mul(x, 1.0 / 3.0), 0.5))
    return k.mul(g, k.where(k.less_equal(x, -3.0), 0.0, slope))


gradient("hard_swish", x=hard_swish)


def elu(k: Any, g: Any, x: Any, alpha: float) -> Any:
    """The exponential is bounded by that of 0, so that it cannot overflow where it is not used."""
    bent = k.mul(k.exp(k.minimum(x, 0.0)), alpha)
    return k.where(k.less_equal(x, 0.0), k.mul(g, bent), g)


def celu(k: Any, g: Any, x: Any, alpha: float) -> Any:
    """As that of ``elu``."""
    return k.where(k.less_equal(x, 0.0), k.mul(g, k.exp(k.div(k.minimum(x, 0.0), alpha))), g)


gradient("elu", x=elu)
gradient("celu", x=celu)
gradient("selu", x=lambda k, g, x: k.mul(elu(k, g, x, SELU_ALPHA), SELU_SCALE))
gradient("gelu", x=lambda k, g, x, approximate: k.gelu_backward(g, x, approximate))
gradient("silu", x=lambda k, g, x: k.silu_backward(g, x))


def mish(k: Any, g: Any, x: Any) -> Any:
    """``t + x * (1 - t ** 2) * sigmoid(x)`` with ``t = tanh(softplus(x))``."""
    t = k.tanh(k.softplus(x))
    return k.mul(g, k.add(t, k.mul(k.mul(x, k.sub(1.0, k.square(t))), k.sigmoid(x))))


gradient("mish", x=lambda k, g, x: in_float32(k, mish, g, x))
gradient("softplus", x=lambda k, g, x, beta: k.mul(g, k.sigmoid(k.mul(x, beta))))
gradient("softsign", x=lambda k, g, x: over_square_of(k, g, k.add(k.abs(x), 1.0)))
gradient("tanhshrink", x=lambda k, g, x: k.mul(g, k.square(k.tanh(x))))
for _name in ("softshrink", "hardshrink"):
    gradient(_name, x=lambda k, g, x, threshold: k.where(k.less_equal(k.abs(x), threshold), 0.0, g))


def glu(k: Any, g: Any, x: Any, axis: int) -> Any:
    """Both halves from the same sigmoid."""
    value, gate = halves(k, x, axis)
    opened = k.sigmoid(gate)
    of_value = k.mul(g, opened)
    return k.concat([of_value, k.mul(k.mul(of_value, value), k.sub(1.0, opened))], axis)


gradient("glu", x=glu)

elementwise("sigmoid", "log_sigmoid", "hard_sigmoid", "relu", "relu6", "leaky_relu", "prelu", "threshold", "hardtanh")
elementwise("hard_swish", "elu", "celu", "selu", "gelu", "silu", "mish", "softplus", "softsign", "tanhshrink")
elementwise("softshrink", "hardshrink")
through_body("glu")
one_pass("log_sigmoid", "hard_sigmoid", "relu6", "leaky_relu", "prelu", "threshold", "hardtanh", "hard_swish", "elu")
one_pass("celu", "selu", "mish", "softplus", "softsign", "tanhshrink", "softshrink", "hardshrink")
