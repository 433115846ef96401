"""Samples: arithmetic."""

from __future__ import annotations

import numpy as np

from backburn.conformance.samples.table import INF, NAN, Array, Sample, case, integers, positive, real, samples

EDGES = np.array([0.0, -0.0, 1.0, -2.5, INF, -INF, NAN])
SMALL_INTS = np.array([-128, -7, -1, 0, 1, 7, 127], np.int8)
BYTES = np.array([0, 1, 7, 200, 255], np.uint8)
#: Integers whose squares and sums float64 cannot hold.
WIDE = np.array([2**31 + 1, -(2**40) - 3])

FLOAT_BROADCASTS = (
    case(real(2, 3), real(2, 3, seed=1)),
    case(real(2, 3), real(3, seed=1)),
    case(real(2, 1, 3), real(4, 1, seed=1)),
    case(real(3), 1.5),
    case(-0.5, real(3)),
    case(real(), real(2, seed=1)),
    case(real(), real(seed=1)),
    case(real(0, 3), real(1, 3, seed=1)),
)
INT_BROADCASTS = (
    case(integers(2, 3), integers(3, seed=1)),
    case(integers(3), 2),
    case(3, integers(3)),
    case(SMALL_INTS[:, None], SMALL_INTS),
    case(BYTES, BYTES[::-1].copy()),
)
BROADCASTS = FLOAT_BROADCASTS + INT_BROADCASTS
AT_EDGES = case(EDGES[:, None], EDGES, smooth=0, note="zeros, infinities and NaN")


def ties(first: float, second: float) -> tuple[Sample, ...]:
    """Samples in which ``x`` is smaller, equal and larger; it gets the gradient ``first`` if larger, half for a tie."""
    x, y = np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0])
    grad_x = np.array([1.0 - first, 0.5, first])
    return (
        case(x, y, smooth=0, gradients=(grad_x, 1.0 - grad_x), note="ties share"),
        case(x, 2.0, smooth=0, gradients=(grad_x, None)),
        case(2.0, x, smooth=0, gradients=(None, np.array([1.0 - second, 0.5, second]))),
    )


samples("add", np.add, *BROADCASTS, AT_EDGES)
samples("sub", np.subtract, *BROADCASTS, AT_EDGES)
samples("mul", np.multiply, *BROADCASTS, AT_EDGES, case(np.zeros(2), real(2), note="a factor of 0"), case(WIDE, WIDE))
samples("div", np.true_divide, *FLOAT_BROADCASTS, AT_EDGES)
samples(
    "floor_divide",
    np.floor_divide,
    *BROADCASTS,
    case(integers(4), 0, note="integers by 0"),
    case(np.array([-4.0, 4.0, -4.5]), np.array([2.0, -2.0, 2.0]), smooth=0),
    case(np.array([3.0, -3.0]), np.array([INF, INF]), smooth=0),
    case(np.array([1 - 2.0**-40, -1 - 2.0**-40]), 1.0, smooth=0),
    case(np.array([NAN, 1.0, 5.0]), np.array([2.0, NAN, 2.0]), smooth=0),
)
for _name, _reference, _count in (("remainder", np.remainder, 4), ("fmod", np.fmod, 5)):
    samples(
        _name,
        _reference,
        *BROADCASTS,
        case(integers(4), 0, note="integers by 0"),
        case(np.array([-4.0, 4.0, -0.0, 5.0, -1e-6])[:_count], np.array([2.0, -2.0, 3.0, INF, 1.0])[:_count], smooth=0),
        case(real(3), 0.0, smooth=0, note="NaN"),
        case(np.array([NAN, 1.0, INF, 5.0]), np.array([2.0, NAN, 2.0, 2.0]), smooth=0),
    )

UNARY = (case(real(2, 3)), case(real()), case(real(0, 2)), case(integers(2, 3)), case(SMALL_INTS))
samples("neg", np.negative, *UNARY, case(BYTES), case(EDGES, smooth=0))
samples(
    "abs",
    np.absolute,
    *UNARY,
    case(BYTES),
    case(EDGES, smooth=0),
    case(np.array([-2.0, 0.0, 2.0]), smooth=0, gradients=(np.array([-1.0, 0.0, 1.0]),)),
)
samples(
    "sign",
    np.sign,
    *UNARY,
    case(BYTES),
    case(EDGES, smooth=0),
    case(np.array([-2.0, 0.0, 2.0]), smooth=0, gradients=(np.zeros(3),)),
    case(np.array([1e-300, -1e-300]), smooth=0),
)
NUMBERS = (
    case(
        np.array([1.0, NAN, NAN]),
        np.array([NAN, 2.0, NAN]),
        smooth=0,
        gradients=(np.array([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0])),
        note="the gradient goes to numbers only",
    ),
)
samples("maximum", np.maximum, *BROADCASTS, AT_EDGES, *ties(1.0, 1.0))
samples("minimum", np.minimum, *BROADCASTS, AT_EDGES, *ties(0.0, 0.0))
samples("fmax", np.fmax, *BROADCASTS, AT_EDGES, *ties(1.0, 1.0), *NUMBERS)
samples("fmin", np.fmin, *BROADCASTS, AT_EDGES, *ties(0.0, 0.0), *NUMBERS)
samples("square", np.square, *UNARY, case(EDGES, smooth=0), case(np.zeros(2), note="at 0"), case(WIDE))
samples("reciprocal", np.reciprocal, case(positive(2, 3)), case(real()), case(real(0)), case(EDGES, smooth=0))


def clip(x: Array, low: Array | float | None = None, high: Array | float | None = None) -> Array:
    """The reference of ``clip``."""
    bounded = x if low is None else np.maximum(x, low)
    return bounded if high is None else np.minimum(bounded, high)


LADDER = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
INSIDE = np.array([0.0, 1.0, 1.0, 1.0, 0.0])
samples(
    "clip",
    clip,
    case(real(2, 3), -0.7, 0.9),
    case(real(2, 3), real(3, low=-1.5, high=-0.5), real(2, 1, low=0.5, high=1.5)),
    case(real(3), real(2, 3, seed=1), 1.0),
    case(real(3), -1.0, real(2, 3, seed=1)),
    case(real(3), 0.5),
    case(real(3), None, 0.5),
    case(real(3), None, real(3, seed=1)),
    case(real(3)),
    case(real(), -0.05, 0.05),
    case(real(0, 2), -1.0, 1.0),
    case(integers(2, 3), -2, 3),
    case(integers(2, 3), integers(3, low=-3, high=0), None),
    case(BYTES, 3, 100),
    case(EDGES, -1.0, 2.0, smooth=0),
    case(real(3), 1.0, -1.0, note="the bounds cross: the upper one wins"),
    case(LADDER, -1.0, 1.0, smooth=0, gradients=(INSIDE, None, None), note="the gradient passes at the bounds"),
    case(
        LADDER,
        np.full(5, -1.0),
        np.full(5, 1.0),
        smooth=0,
        gradients=(INSIDE, np.array([1.0, 0.0, 0.0, 0.0, 0.0]), np.array([0.0, 0.0, 0.0, 0.0, 1.0])),
    ),
    case(LADDER, np.full(5, 1.5), np.full(5, -1.5), smooth=0, gradients=(np.zeros(5), np.zeros(5), np.ones(5))),
    case(real(3), real(3, seed=1), None),
    case(
        np.array([-1.0, 2.0]),
        np.zeros(2),
        np.zeros(2),
        smooth=0,
        gradients=(np.zeros(2), np.array([1.0, 0.0]), np.array([0.0, 1.0])),
        note="one bound on either side",
    ),
)


def lerp(x: Array | float, y: Array | float, weight: Array | float) -> Array:
    """The reference of ``lerp``."""
    return np.asarray((1.0 - np.asarray(weight)) * x + np.asarray(weight) * y)


samples(
    "lerp",
    lerp,
    case(real(2, 3), real(2, 3, seed=1), real(2, 3, low=0.1, high=0.4)),
    case(real(2, 3), real(3, seed=1), real(2, 1, low=0.6, high=1.5)),
    case(real(3), real(3, seed=1), 0.25),
    case(real(3), real(3, seed=1), 0.75),
    case(real(3), 1.0, real(3, low=0.2, high=0.9)),
    case(2.0, real(3), real(3, low=0.2, high=0.9)),
    case(-2.0, real(2), 1.5),
    case(real(), real(seed=1), real(low=0.3, high=0.4)),
    case(real(0, 2), real(2), 0.5),
    case(np.array([-3.0, 1e4]), np.array([1.0, 1e-3]), np.array([1.0, 1.0]), note="exactly the end"),
    case(np.array([-3.0, 1e-3]), np.array([1.0, 1e4]), np.array([0.0, 0.0]), note="exactly the start"),
    case(np.array([6e4, -6e4]), np.array([-6e4, 6e4]), 0.5, smooth=1, note="ends whose difference overflows float16"),
)
