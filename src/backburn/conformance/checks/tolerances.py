"""Tolerances: the largest accepted distance of a result from its float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Relative and absolute tolerance of values, by dtype.
VALUE = {"float64": (1e-13, 1e-14), "float32": (4e-6, 1e-6), "float16": (4e-3, 2e-3), "bfloat16": (3e-2, 2e-2)}

#: Relative roundings of operands, from which the tolerance of ill-conditioned results follows: a few units in the last
#: place, and more in float64, in which the reference itself is rounded.
ROUNDINGS = {
    "float64": 2.0**-40, "float32": 2.0**-21, "float16": 2.0**-9, "bfloat16": 2.0**-6, "complex128": 2.0**-40,
    "complex64": 2.0**-21,
}  # fmt: skip

#: The absolute tolerance of results that keep all their digits: the smallest normal number, by dtype.
NORMAL = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}

#: Tolerance of first derivatives, relative to the size of the differentiated value, by dtype.
GRADIENT = {
    "float64": 1e-6, "float32": 2e-4, "float16": 4e-2, "bfloat16": 3e-1, "complex128": 1e-6, "complex64": 2e-4
}  # fmt: skip
#: Tolerance of second derivatives, which are differences of first ones in float64.
SECOND_GRADIENT = 1e-5


def tolerance_factor(backend: Any, operation: str, dtype: str) -> float:
    """The factor by which a backend declares to need more tolerance, which its reports show.

    The attribute ``conformance_tolerances`` declares factors of at least 1 by operation, by dtype, or by both:
    ``{"erf": 2.0, "float16": 4.0, "tan-float32": 3.0}``.
    """
    declared = getattr(backend, "conformance_tolerances", {})
    return max(1.0, *(float(declared.get(key, 1.0)) for key in (operation, dtype, f"{operation}-{dtype}")))


def compare(
    got: NDArray[Any],
    expected: NDArray[Any],
    dtype: str,
    factor: float = 1.0,
    keeps_digits: bool = False,
    slack: Callable[[], NDArray[Any]] | None = None,
) -> float:
    """The worst error in units of tolerance; raises AssertionError for different shapes or errors above 1.

    Shapes are compared first, since values would broadcast. NaN equals NaN, infinities equal themselves. With
    ``keeps_digits`` the absolute tolerance is only the smallest normal number. ``slack`` returns errors, in units of
    the relative tolerance, that are accepted in addition; it is called only if the tolerance is exceeded.
    """
    if got.shape != expected.shape:
        raise AssertionError(f"shape {got.shape}, expected {expected.shape}")
    if dtype not in VALUE:
        if not np.array_equal(got, expected):
            raise AssertionError(_difference(got, expected))
        return 0.0
    wide = np.complex128 if got.dtype.kind == "c" else np.float64
    got, expected = np.asarray(got, wide), np.asarray(expected, wide)
    relative, absolute = VALUE[dtype]
    if keeps_digits:
        absolute = NORMAL[dtype]
    with np.errstate(all="ignore"):
        allowed = factor * (absolute + relative * np.abs(expected))
        error = np.abs(got - expected)
        error /= allowed
    worst = float(error.max(initial=0.0))
    if worst <= 1:  # and none is NaN
        return worst
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    if dtype == "float16":  # values that overflow become infinite
        same |= np.isinf(got) & (np.abs(expected) > 6e4) & (np.sign(got) == np.sign(expected))
    error = np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))
    worst = float(error.max(initial=0.0))
    if worst > 1 and slack is not None:
        with np.errstate(all="ignore"):
            error = np.where(same, 0.0, np.abs(got - expected) / (allowed + 4 * factor * relative * slack()))
        error[np.isnan(error)] = np.inf
        worst = float(error.max(initial=0.0))
    if worst > 1:
        place = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
        raise AssertionError(
            f"{dtype}: error {worst:.3g} x tolerance at {place}: got {got[place]}, expected {expected[place]}"
        )
    return worst


def _difference(got: NDArray[Any], expected: NDArray[Any]) -> str:
    """Two arrays of integers or booleans, or for large ones the first difference."""
    if got.size <= 100:
        return f"got {got!r}, expected {expected!r}"
    wrong = np.argwhere(got != expected)
    place = tuple(int(i) for i in wrong[0])
    first = f"got {got[place]}, expected {expected[place]}"
    return f"{len(wrong)} of {got.size} elements differ, the first at {place}: {first}"
