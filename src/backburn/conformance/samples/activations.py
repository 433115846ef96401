"""Samples: activation functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from backburn.conformance.samples.references import gelu, gelu_backward, sigmoid
from backburn.conformance.samples.table import Sample, case, real, samples

TAILS = np.array([-1e3, -90.0, -20.0, 20.0, 90.0, 1e3])
BEYOND = np.array([-3e4, 3e4, np.inf, np.nan])

PLAIN = (
    case(real(2, 3, low=-5.0, high=5.0)),
    case(real()),
    case(real(0)),
    case(TAILS, smooth=1),
)
#: Samples of functions that also have values at infinities and NaN.
ALL_REALS = (*PLAIN, case(BEYOND, smooth=0))


def kinks(at: tuple[float, ...], slopes: tuple[float, ...], **attributes: Any) -> Sample:
    """Points without a derivative, with the documented gradient there."""
    return case(np.array(at), smooth=0, gradients=(np.array(slopes),), **attributes)


def slope_of_tanh(grad: Any, x: Any, note: str = "") -> Sample:
    """A point and the value of tanh there, from which all derivatives of the slope follow."""
    y = np.asarray(np.tanh(x))
    slope = 4.0 * sigmoid(2.0 * x) * sigmoid(-2.0 * x)
    return case(grad, x, y, smooth=0, gradients=(slope, None, -2.0 * grad * y), note=note)


# ---- sigmoids ----

samples("sigmoid", sigmoid, *ALL_REALS)
samples(
    "sigmoid_backward",
    lambda grad, y: grad * y * (1 - y),
    case(real(2, 3, seed=1), real(2, 3, low=0.0, high=1.0)),
    case(real(seed=1), real(low=0.0, high=1.0)),
    case(real(0), real(0)),
    case(real(3, seed=1), np.array([0.0, 0.5, 1.0])),
)
samples(
    "sigmoid_slope",
    lambda grad, x: grad * sigmoid(x) * sigmoid(-x),
    case(real(2, 3, seed=1), real(2, 3, low=-5.0, high=5.0)),
    case(real(seed=1), real()),
    case(real(0), real(0)),
    case(real(6, seed=1), TAILS, smooth=1),
    case(real(6, seed=1), np.array([-60.0, -17.0, -9.5, 9.5, 17.0, 60.0]), note="the result of sigmoid is 0 or 1"),
)
samples(
    "tanh_slope",
    lambda grad, x, y: grad * np.exp(-2.0 * np.abs(x)) * (1.0 + np.abs(y)) ** 2,
    slope_of_tanh(real(2, 3, seed=1), real(2, 3, low=-5.0, high=5.0)),
    slope_of_tanh(real(seed=1), real()),
    slope_of_tanh(real(0), real(0)),
    slope_of_tanh(real(6, seed=1), TAILS),
    slope_of_tanh(real(4, seed=1), np.array([-20.0, -9.5, 9.5, 20.0]), note="the result of tanh is -1 or 1"),
)
samples(
    "relu_backward",
    lambda grad, y: np.where(y > 0, grad, 0),
    case(real(2, 3, seed=1), real(2, 3), smooth=1),
    case(real(seed=1), real(low=0.5, high=1.0)),
    case(real(0), real(0)),
    case(np.array([np.inf, np.nan, 2.0, -3.0]), np.array([0.0, 0.0, 1.0, np.nan]), smooth=0),
)
samples(
    "tanh_backward",
    lambda grad, y: grad * (1 - y**2),
    case(real(2, 3, seed=1), real(2, 3, low=-1.0, high=1.0)),
    case(real(seed=1), real(low=-1.0, high=1.0)),
    case(real(0), real(0)),
    case(real(4, seed=1), np.array([-1.0, 0.0, 0.5, 1.0])),
)
samples("log_sigmoid", lambda x: -np.logaddexp(0.0, -x), *ALL_REALS)
samples(
    "hard_sigmoid",
    lambda x: np.clip(x / 6 + 0.5, 0.0, 1.0),
    *ALL_REALS,
    kinks((-3.0, 3.0, 0.0, -4.0), (0.0, 0.0, 1 / 6, 0.0)),
)

# ---- rectifiers ----


def leaky_relu(x: Any, slope: Any = 0.01) -> Any:
    """The reference of ``leaky_relu`` and ``prelu``."""
    return np.where(x <= 0, slope * x, x)


samples("relu", lambda x: np.maximum(x, 0.0), *ALL_REALS, kinks((0.0, -0.0, 1.0, -1.0), (0, 0, 1, 0)))
samples(
    "relu6",
    lambda x: np.clip(x, 0.0, 6.0),
    *ALL_REALS,
    kinks((0.0, 6.0, 3.0, 7.0), (0, 0, 1, 0)),
)
samples(
    "leaky_relu",
    leaky_relu,
    *PLAIN,
    case(real(3), slope=0.5),
    case(BEYOND, smooth=0),
    kinks((0.0, 1.0, -1.0), (0.25, 1.0, 0.25), slope=0.25),
)
samples(
    "prelu",
    leaky_relu,
    case(real(2, 3), real(3, seed=1)),
    case(real(2, 3, 2), real(3, 1, seed=1)),
    case(real(2, 3), real(seed=1)),
    case(real(), real(seed=1)),
    case(real(0, 3), real(3, seed=1)),
    case(
        np.array([0.0, 1.0, -2.0]),
        np.array([0.5]),
        smooth=0,
        gradients=(np.array([0.5, 1.0, 0.5]), np.array([-2.0])),
    ),
    case(real(2, 3), real(2, 3, seed=1)),
)
samples(
    "threshold",
    lambda x, threshold, value: np.where(x <= threshold, value, x),
    *(case(s.operands[0], threshold=0.5, value=-7.0, smooth=s.smooth) for s in PLAIN),
    case(BEYOND, threshold=0.5, value=2.0, smooth=0),
    kinks((0.5, 0.0, 1.0), (0.0, 0.0, 1.0), threshold=0.5, value=2.0),
    case(np.array([-1.1, -0.95, 0.2]), threshold=-1.0, value=0.5),
)
samples(
    "hardtanh",
    lambda x, low=-1.0, high=1.0: np.clip(x, low, high),
    *PLAIN,
    case(real(3), low=-0.5, high=3.0),
    case(BEYOND, smooth=0),
    kinks((-1.0, 1.0, 0.0, 2.0), (1.0, 1.0, 1.0, 0.0)),
)
samples(
    "hard_swish",
    lambda x: x * np.clip(x / 6 + 0.5, 0.0, 1.0),
    *ALL_REALS,
    kinks((-3.0, 3.0, 0.0, 4.0), (0.0, 1.0, 0.5, 1.0)),
)

# ---- exponential linear units ----


def elu(x: Any, alpha: float = 1.0) -> Any:
    """The reference of ``elu``."""
    return np.where(x <= 0, alpha * np.expm1(np.minimum(x, 0.0)), x)


samples(
    "elu",
    elu,
    *PLAIN,
    case(real(3), alpha=0.5),
    case(BEYOND, smooth=0),
    kinks((0.0, 1.0, -1.0), (0.5, 1.0, 0.5 * math.exp(-1.0)), alpha=0.5),
)
samples(
    "celu",
    lambda x, alpha=1.0: alpha * elu(x / alpha),
    *PLAIN,
    case(real(3), alpha=0.5),
    case(BEYOND, smooth=0),
    kinks((0.0,), (1.0,), alpha=0.5),
)
SELU = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
samples(
    "selu",
    lambda x: SELU[1] * elu(x, SELU[0]),
    *ALL_REALS,
    kinks((0.0, 1.0), (SELU[0] * SELU[1], SELU[1])),
)

# ---- smooth units ----


FORMS = ("none", "tanh")
FAR = np.array([-3e4, -300.0, 300.0, 3e4])

samples(
    "gelu",
    gelu,
    *PLAIN,
    *(case(real(2, 3, low=-5.0, high=5.0), approximate=form) for form in FORMS),
    *(case(FAR, approximate=form, smooth=1) for form in FORMS),
    case(np.zeros(2), smooth=3),
)
samples(
    "gelu_backward",
    gelu_backward,
    *(case(real(2, 3, seed=1), real(2, 3, low=-5.0, high=5.0), approximate=form) for form in FORMS),
    *(case(real(seed=1), real(), approximate=form) for form in FORMS),
    *(case(real(4, seed=1), FAR, approximate=form, smooth=1) for form in FORMS),
    case(real(0), real(0), approximate="none"),
)
samples("silu", lambda x: x * sigmoid(x), *PLAIN, case(FAR, smooth=1))
samples(
    "silu_backward",
    lambda grad, x: grad * sigmoid(x) * (1 + x * sigmoid(-x)),
    case(real(2, 3, seed=1), real(2, 3, low=-5.0, high=5.0)),
    case(real(seed=1), real()),
    case(real(0), real(0)),
    case(real(4, seed=1), FAR, smooth=1),
)
samples("mish", lambda x: x * np.tanh(np.logaddexp(0.0, x)), *PLAIN, case(FAR, smooth=1))
samples(
    "softplus",
    lambda x, beta=1.0: np.logaddexp(0.0, beta * x) / beta,
    *PLAIN,
    case(real(2, 3), beta=2.5),
    case(BEYOND, smooth=0),
    case(real(3), beta=-0.5),
    case(np.array([3e4, -3e4]), beta=4.0, smooth=0, note="beta times x overflows 16 bits"),
)
samples("softsign", lambda x: x / (1 + np.abs(x)), *PLAIN, kinks((0.0, 1.0), (1.0, 0.25)))

# ---- shrinking ----


def softshrink(x: Any, threshold: float = 0.5) -> Any:
    """The reference of ``softshrink``."""
    return x - np.clip(x, -threshold, threshold)


def hardshrink(x: Any, threshold: float = 0.5) -> Any:
    """The reference of ``hardshrink``."""
    return np.where(np.abs(x) <= threshold, 0.0, x)


samples("tanhshrink", lambda x: x - np.tanh(x), *ALL_REALS, kinks((0.0,), (0.0,)))
SHRINKS: tuple[tuple[str, Callable[..., Any]], ...] = (("softshrink", softshrink), ("hardshrink", hardshrink))
for name, reference in SHRINKS:
    samples(
        name,
        reference,
        *PLAIN,
        case(real(2, 3), threshold=1.0),
        case(BEYOND, smooth=0),
        kinks((0.5, -0.5, 0.0, 1.0, -1.0), (0.0, 0.0, 0.0, 1.0, 1.0)),
    )

# ---- gates ----


def glu(x: Any, axis: int) -> Any:
    """The reference of ``glu``."""
    value, gate = np.split(x, 2, axis)
    return value * sigmoid(gate)


samples(
    "glu",
    glu,
    case(real(2, 4), axis=1),
    case(real(4, 2), axis=0),
    case(real(2, 4, 2), axis=1),
    case(real(0, 2), axis=1),
    case(np.array([2.0, 3.0, -1e3, 1e3]), axis=0, smooth=1),
)
