"""Samples: comparisons, logic and bits."""

from __future__ import annotations

import numpy as np

from backburn.conformance.samples.arithmetic import BYTES, EDGES, SMALL_INTS
from backburn.conformance.samples.table import INF, NAN, booleans, case, integers, real, samples

FLOATS = (
    case(real(2, 3), np.where(booleans(2, 3), real(2, 3), real(2, 3, seed=1))),
    case(np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0])),
    case(real(2, 1, 3), real(4, 1, seed=1)),
    case(real(3), 0.5),
    case(-0.5, real(3)),
    case(real(), real(seed=1)),
    case(real(0, 3), real(1, 3, seed=1)),
    case(EDGES[:, None], EDGES),
)
INTS = (
    case(integers(2, 3), integers(3, seed=1)),
    case(integers(3), 2),
    case(3, integers(3)),
    case(integers(), integers(0)),
    case(SMALL_INTS[:, None], SMALL_INTS),
    case(BYTES[:, None], BYTES),
)
#: Neighbours in 64 bits that are equal in 32 bits.
NEAR = (
    case(np.array([1.0, 1 + 2.0**-40, 1.0]), np.array([1.0, 1.0, 1 + 2.0**-40])),
    case(np.array([1, 2**53 + 1, 2**40, -(2**40)]), np.array([1, 2**53, 2**53 + 1, 2**40])),
)
BOOLS = (
    case(booleans(2, 3), booleans(3, seed=1)),
    case(np.array([False, False, True, True]), np.array([False, True, False, True])),
    case(booleans(3), True),
    case(False, booleans(3)),
    case(booleans(), booleans(0)),
)

# ---- comparisons ----

samples("equal", np.equal, *FLOATS, *INTS, *BOOLS, *NEAR)
samples("not_equal", np.not_equal, *FLOATS, *INTS, *BOOLS, *NEAR)
samples("less", np.less, *FLOATS, *INTS, *NEAR)
samples("less_equal", np.less_equal, *FLOATS, *INTS, *NEAR)
samples("greater", np.greater, *FLOATS, *INTS, *NEAR)
samples("greater_equal", np.greater_equal, *FLOATS, *INTS, *NEAR)

# ---- classes of floats ----

#: Numbers that only float64 can hold.
FAR = np.array([1e300, -1e300, 1e-300, -1e-300])
OF_ONE = (case(EDGES), case(real(2, 3)), case(real()), case(np.array(NAN)), case(real(0, 2)), case(FAR))
samples("isnan", np.isnan, *OF_ONE)
samples("isinf", np.isinf, *OF_ONE)
samples("isfinite", np.isfinite, *OF_ONE)
samples("signbit", np.signbit, *OF_ONE)

SIGNED = EDGES[:-1]
samples(
    "copysign",
    np.copysign,
    case(real(2, 3), real(2, 3, seed=1)),
    case(real(2, 1, 3), real(4, 1, seed=1)),
    case(real(3), -0.5),
    case(-0.5, real(3)),
    case(real(3), -0.0),
    case(real(), real(seed=1)),
    case(real(0, 3), real(1, 3, seed=1)),
    case(EDGES[:, None], SIGNED, smooth=0),
    case(
        np.array([-2.0, 0.0, -0.0, 2.0]),
        np.full(4, -1.0),
        smooth=0,
        gradients=(np.array([1.0, 0.0, 0.0, -1.0]), np.zeros(4)),
    ),
)
samples(
    "nextafter",
    np.nextafter,
    case(real(2, 3), real(2, 3, seed=1)),
    case(real(2, 1, 3), real(4, 1, seed=1)),
    case(real(3), INF),
    case(0.0, real(3)),
    case(real(), real(seed=1)),
    case(real(0, 3), real(1, 3, seed=1)),
    # The largest finite number, the neighbour of an infinity, differs between dtypes.
    case(EDGES[:4, None], EDGES, smooth=0),
    case(np.array([INF, -INF, NAN]), np.array([INF, -INF, 1.0]), smooth=0),
)

# ---- truth values ----

samples("logical_and", np.logical_and, *BOOLS)
samples("logical_or", np.logical_or, *BOOLS)
samples("logical_xor", np.logical_xor, *BOOLS)
samples("logical_not", np.logical_not, case(booleans(2, 3)), case(booleans()), case(booleans(0, 2)))

# ---- bits ----

samples("bitwise_and", np.bitwise_and, *INTS)
samples("bitwise_or", np.bitwise_or, *INTS)
samples("bitwise_xor", np.bitwise_xor, *INTS)
samples(
    "bitwise_invert",
    np.invert,
    case(integers(2, 3)),
    case(integers()),
    case(integers(0)),
    case(SMALL_INTS),
    case(BYTES),
    case(np.array([2**53 + 1, -(2**40) - 3])),
)

SHIFTS = (
    case(integers(2, 3), integers(3, low=0, high=8, seed=1)),
    case(integers(3), 2),
    case(-5, integers(3, low=0, high=8)),
    case(integers(), integers(0, low=0, high=8)),
    case(SMALL_INTS[:, None], np.arange(8, dtype=np.int8)),
    case(BYTES[:, None], np.arange(8, dtype=np.uint8)),
    case(integers(3), 63, note="to the last bit"),
    case(np.array([2**53 + 1, -(2**53) - 3, 5]), 1),
)
samples("bitwise_left_shift", np.left_shift, *SHIFTS)
samples("bitwise_right_shift", np.right_shift, *SHIFTS)
