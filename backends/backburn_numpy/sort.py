"""NumPy: order."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn.backend.table import OPERATIONS

Array = Any


def _reverses(x: Array) -> np.ufunc:
    """A function that turns the order of all values of a dtype around, and is its own inverse.

    Negation would overflow at the smallest integer; of a NaN it is a NaN, which stays last.
    """
    return np.invert if x.dtype.kind in "iub" else np.negative


def argsort(x: Array, /, axis: int, descending: bool = False) -> Array:
    key = _reverses(x)(x) if descending else x
    return np.argsort(key, axis=axis, kind="stable").astype(np.int64, copy=False)


def sort(x: Array, /, axis: int, descending: bool = False) -> Array:
    if not descending:
        return np.sort(x, axis=axis)
    reverse = _reverses(x)
    result = reverse(x)
    result.sort(axis=axis)
    return reverse(result, out=result)


def searchsorted(x: Array, values: Array, /, right: bool = False) -> Array:
    if x.ndim == 1:
        return np.asarray(np.searchsorted(x, values, side="right" if right else "left"), np.int64)
    from backburn_numpy.backend import NumpyBackend

    return OPERATIONS["searchsorted"].body(NumpyBackend(), x, values, right)
