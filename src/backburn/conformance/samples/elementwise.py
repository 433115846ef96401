"""Samples: element-wise functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from backburn.conformance.samples import references
from backburn.conformance.samples.table import INF, NAN, Array, Sample, case, integers, positive, real, samples, unit

EDGES = np.array([0.0, -0.0, 1.0, -1.0, -2.5, INF, -INF, NAN])


def unary(
    name: str, reference: Callable[..., Array], values: Callable[..., Array] = real, *more: Sample, **particulars: Any
) -> None:
    """Samples of a function of one number, smooth at the ``values``."""
    samples(
        name,
        reference,
        case(values(2, 3)),
        case(values()),
        case(values(0, 2)),
        case(EDGES, smooth=0, note="zeros, infinities and NaN"),
        *more,
        **particulars,
    )


#: Arguments at which ``exp(x) - 1`` and ``log(1 + x)``, computed naively, lose most of their digits.
DIGITS = case(np.array([1e-2, -1e-3, 1e-4, -1e-6]), smooth=0, note="near 0", relative=True)


def broadcasts(x: Callable[..., Array] = real) -> tuple[Any, ...]:
    """Pairs of operands that broadcast, the first from ``x``."""
    return (
        case(x(2, 3), real(2, 3, seed=1)),
        case(x(2, 3), real(3, seed=1)),
        case(x(2, 1, 3), real(4, 1, seed=1)),
        case(x(3), 1.5),
        case(0.5, real(3)),
        case(x(), real(seed=1)),
        case(x(0, 3), real(1, 3, seed=1)),
    )


# ---- powers and logarithms ----

BASES = np.array([-2.0, -0.5, 0.0, 0.5, 2.0])
samples(
    "pow",
    np.power,
    *broadcasts(positive),
    case(BASES, 2.0, note="a square at 0 and below"),
    case(BASES, 3.0),
    case(BASES, 4.0),
    case(BASES, 1.0),
    case(BASES, 0.0),
    case(BASES[[0, 1, 3, 4]], -2.0),
    case(positive(3), 0.5),
    case(2.0, real(3)),
    case(1.0, real(3)),
    case(0.0, positive(3)),
    case(-2.0, np.array([0.0, 1.0, 2.0, 3.0]), smooth=0),
    case(EDGES[:, None], EDGES, smooth=0),
    case(
        BASES,
        np.full(5, 2.0),
        smooth=0,
        gradients=(2 * BASES, np.array([NAN, NAN, 0.0, 0.25 * math.log(0.5), 4 * math.log(2.0)])),
        note="the exponent's derivative exists for positive bases, and is 0 at 0",
    ),
    case(
        BASES, np.zeros(5), smooth=0, gradients=(np.zeros(5), np.array([NAN, NAN, 0.0, math.log(0.5), math.log(2.0)]))
    ),
    case(np.zeros(3), np.array([0.0, 1.0, 2.0]), smooth=0, gradients=(np.array([0.0, 1.0, 0.0]), np.zeros(3))),
    case(np.zeros(2), 0.0, smooth=0, gradients=(np.zeros(2), None)),
    case(0.0, np.array([0.0, 0.5, 2.0]), smooth=0, gradients=(None, np.zeros(3))),
    case(positive(3), np.zeros(3), note="the exponent 0"),
    case(integers(2, 3), integers(3, low=0, high=5)),
    case(integers(3), 3),
    case(2, integers(3, low=0, high=8)),
    case(np.array([0, 0, -1], np.int8), np.array([0, 3, 7], np.int8)),
    case(np.array([3, -3, 7]), np.array([39, 39, 22]), note="exact beyond float64"),
)
unary("sqrt", np.sqrt, positive)
unary("rsqrt", lambda x: 1 / np.sqrt(x), positive)
samples(
    "hypot",
    np.hypot,
    *broadcasts(),
    case(EDGES[:, None], EDGES[:-1], smooth=0),
    case(np.array([3.0, 0.0, 1e-3]), np.array([4.0, 2.0, 300.0]), smooth=0),
    case(np.zeros(2), np.zeros(2), smooth=0, gradients=(np.zeros(2), np.zeros(2))),
    case(np.zeros(2), 0.0, smooth=0, gradients=(np.zeros(2), None)),
    case(np.zeros(2), real(2), note="on an axis"),
)
unary("exp", np.exp)
WHOLE = np.arange(-9.0, 10.0)
unary("exp2", np.exp2, real, case(WHOLE, exact=True))
unary("expm1", np.expm1, real, DIGITS)
unary("log", np.log, positive)
unary("log2", np.log2, positive, case(2.0**WHOLE, smooth=0, exact=True))
unary(
    "log10",
    np.log10,
    positive,
    case(10.0 ** np.arange(-3.0, 5.0), smooth=0),
    case(10.0 ** np.arange(4.0), smooth=0, exact=True),
)
unary("log1p", np.log1p, unit, DIGITS)
samples(
    "logaddexp",
    np.logaddexp,
    *broadcasts(),
    case(real(3), real(3), note="both alike"),
    case(np.array([0.0, 700.0, -700.0]), np.array([800.0, -800.0, -701.0]), note="far apart"),
    case(EDGES[:, None], EDGES, smooth=0),
    case(
        np.array([INF, -INF, INF, -INF, -INF]),
        np.array([INF, -INF, -INF, INF, 1.0]),
        smooth=0,
        gradients=(np.array([0.5, 0.5, 1.0, 0.0, 0.0]), np.array([0.5, 0.5, 0.0, 1.0, 1.0])),
    ),
)

samples(
    "logaddexp2",
    np.logaddexp2,
    *broadcasts(),
    case(real(3), real(3), note="both alike"),
    case(np.array([0.0, 1000.0, -700.0]), np.array([800.0, -800.0, -701.0]), note="far apart"),
    case(EDGES[:, None], EDGES, smooth=0),
    case(
        np.array([INF, -INF, INF, -INF]),
        np.array([INF, -INF, -INF, 1.0]),
        smooth=0,
        gradients=(np.array([0.5, 0.5, 1.0, 0.0]), np.array([0.5, 0.5, 0.0, 1.0])),
    ),
)
ZEROS = np.zeros(6)
POLES = np.array([0.0, -0.5, INF, -INF, 2.0, 1.0])
samples(
    "xlogy",
    references.xlogy,
    case(real(3), positive(2, 3)),
    case(real(2, 1, 3), positive(4, 1)),
    case(real(3), 1.5),
    case(0.5, positive(3)),
    case(real(), positive()),
    case(real(0, 3), positive(1, 3)),
    case(EDGES[:, None], EDGES, smooth=0, note="zeros, infinities and NaN"),
    case(
        ZEROS,
        POLES,
        smooth=0,
        gradients=(np.array([0.0, 0.0, 0.0, 0.0, math.log(2.0), 0.0]), ZEROS),
        note="0 times a logarithm",
    ),
)
samples(
    "xlog1py",
    references.xlog1py,
    case(real(3), unit(2, 3)),
    case(real(2, 1, 3), unit(4, 1)),
    case(real(3), 0.5),
    case(0.5, unit(3)),
    case(real(), unit()),
    case(real(0, 3), unit(1, 3)),
    case(np.array([1.0, 2.0]), np.array([1e-3, -1e-6]), smooth=0, note="near 0", relative=True),
    case(EDGES[:, None], EDGES, smooth=0, note="zeros, infinities and NaN"),
    case(
        ZEROS,
        POLES - 1.0,
        smooth=0,
        gradients=(np.array([0.0, 0.0, 0.0, 0.0, math.log(2.0), 0.0]), ZEROS),
        note="0 times a logarithm",
    ),
)
unary(
    "entr",
    lambda x: np.where(x < 0, -INF, 0.0 - references.xlogy(x, x)),
    positive,
    case(np.array([0.0]), smooth=0, gradients=(np.array([INF]),)),
)
unary(
    "logit",
    lambda x: np.log(x) - np.log1p(-x),
    lambda *shape: real(*shape, low=0.05, high=0.95),
    case(np.array([0.5, 0.5 + 2.0**-10, 0.25, 0.75]), note="at 1/2 and near it"),
    case(np.array([0.0, 1.0, 1.5]), smooth=0, note="ends"),
)

# ---- trigonometry ----

unary("sin", np.sin)
unary("cos", np.cos)
unary("tan", np.tan, unit)
unary("asin", np.arcsin, unit)
unary("acos", np.arccos, unit)
unary("atan", np.arctan)
samples(
    "atan2",
    np.arctan2,
    *broadcasts(),
    case(EDGES[:, None], EDGES, smooth=0),
    case(np.array([0.0, 1.0, 0.0, -1.0]), np.array([1.0, 0.0, -1.0, 0.0]), smooth=0, note="on the axes"),
    case(np.zeros(1), np.zeros(1), smooth=0, gradients=(np.zeros(1), np.zeros(1))),
)
unary("sinh", np.sinh)
unary("cosh", np.cosh)
unary("tanh", np.tanh)
unary("asinh", np.arcsinh)
unary("acosh", np.arccosh, lambda *shape: real(*shape, low=1.2, high=4.0))
unary("atanh", np.arctanh, unit)

# ---- special functions ----

unary("erf", references.erf)
unary("erfc", references.erfc, real, case(np.array([3.0, 5.0, 8.0]), smooth=0, note="small", relative=True))
unary("erfcx", references.erfcx, real, case(np.array([3.0, 12.0, 1e4]), smooth=0, note="small", relative=True))
samples(
    "erfc_ratio",
    references.erfc_ratio,
    case(real(2, 3)),
    case(real(2, 3, low=0.5, high=3.5), n=2),
    case(real(), n=1),
    case(real(0, 2), n=1),
    case(real(3, low=-3.0), n=4, smooth=1),
    case(np.array([INF, -INF, NAN]), smooth=0, note="infinities and NaN"),
)
TAIL = case(np.array([-3.0, -8.0, -13.0]), smooth=0, note="small", relative=True)
unary("ndtr", references.ndtr, real, TAIL)
unary("log_ndtr", references.log_ndtr, real, TAIL, case(np.array([3.0, 5.0]), smooth=0, note="near 0", relative=True))
unary(
    "inverse_mills",
    references.inverse_mills,
    real,
    TAIL,
    *(case(np.array([-9.0, -3.0, -0.1, 0.1, 1.0]), n=n, smooth=1) for n in (1, 2, 3)),
)
unary("erfinv", references.erfinv, unit)
unary(
    "ndtri",
    references.ndtri,
    lambda *shape: real(*shape, low=0.05, high=0.95),
    case(np.array([0.03, 0.2, 0.97]), smooth=2),
    case(np.array([6e-5, 1e-3, 0.999]), smooth=0, note="near the ends", relative=True),
)


def apart(*shape: int) -> Array:
    """Numbers of both signs that are not near an integer."""
    return np.floor(real(*shape, low=-4.0, high=6.0)) + real(*shape, low=0.25, high=0.75, seed=1)


MOMENTS = np.array([1e-3, 0.5, 1.0, 1.4616321449683622, 2.0, 9.5, 40.0])
CANCELS = "near its zeros, and reflected, the result is a difference of larger numbers"
BETWEEN_POLES = (case(positive(2, 3)), case(positive()), case(positive(0, 2)), case(apart(2, 3)))
samples(
    "lgamma",
    references.lgamma,
    *BETWEEN_POLES,
    case(MOMENTS, smooth=0),
    case(np.array([0.0, -1.0, -2.0, INF]), smooth=0, note="poles"),
    tolerance=4.0,
    because=CANCELS,
)
samples(
    "digamma",
    references.digamma,
    *BETWEEN_POLES,
    case(MOMENTS[1:], smooth=0),
    tolerance=4.0,
    because=CANCELS,
)
samples(
    "polygamma",
    references.polygamma,
    case(positive(2, 3)),
    case(positive(), n=2),
    case(positive(0, 2), n=1),
    case(apart(2, 3), n=1),
    case(apart(2, 3), n=2, smooth=2),
    case(MOMENTS[1:], n=3, smooth=0),
    tolerance=8.0,
    because=CANCELS,
)

NEAR_0 = np.array([0.0, 1e-3, -0.05, 0.3])
samples(
    "sinc",
    np.sinc,
    case(NEAR_0, note="at 0 and near it"),
    case(real(2, 3)),
    case(real()),
    case(real(0, 2)),
    case(np.array([0.0, -0.0, 1.0, -3.0, 0.5, 10.25, NAN]), smooth=0),
)
samples(
    "sinc_ratio",
    references.sinc_ratio,
    case(NEAR_0, n=1),
    case(real(2, 3), n=2),
    case(real(), n=0),
    case(real(0, 2), n=1),
    case(real(3, low=2.0, high=4.0), n=3, smooth=2),
)
BESSEL = (case(NEAR_0), case(real(2, 3)), case(real()), case(real(0, 2)), case(np.array([7.5, -8.5]), smooth=2))
samples("i0", references.i0, *BESSEL)
samples("i1", references.i1, *BESSEL)
samples(
    "bessel_ratio",
    references.bessel_ratio,
    case(NEAR_0, n=1),
    case(real(2, 3), n=2),
    case(real(), n=0),
    case(real(0, 2), n=1),
    case(np.array([7.5, -8.5]), n=3, smooth=2),
)

SCALED = (case(real(2, 3)), case(real()), case(real(0, 2)), case(np.array([7.5, -40.0]), smooth=2))
samples("i0e", references.i0e, *SCALED, case(np.array([0.0, INF, -INF, NAN]), smooth=0))
samples("i1e", references.i1e, *SCALED, case(np.array([0.0, -0.0, INF, -INF, NAN]), smooth=0))
samples(
    "i0e_slope",
    references.i0e_slope,
    case(real(2, 3), n=1),
    case(real(), n=0),
    case(real(0, 2), n=1),
    case(np.array([7.5, -40.0]), n=3, smooth=2),
)

# ---- rounding ----

HALVES = np.array([-2.5, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.5])
for _name, _reference in {"floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc}.items():
    unary(
        _name,
        _reference,
        real,
        case(HALVES, smooth=0, gradients=(np.zeros(9),)),
        case(np.array([2.0**30 + 0.75, -(2.0**30) - 0.25, 1 - 2.0**-40]), smooth=0, note="fractions of 64 bits"),
    )
samples(
    "frac",
    lambda x: x - np.trunc(x),
    case(real(2, 3)),
    case(real()),
    case(real(0, 2)),
    case(HALVES, smooth=0, gradients=(np.ones(9),)),
    case(np.array([INF, NAN]), smooth=0),
)
