"""NumPy: scans."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn_numpy.reduce import is_narrow

Array = Any


def _accumulate(ufunc: np.ufunc, x: Array, axis: int, reverse: bool = False) -> Array:
    """``ufunc.accumulate`` in the dtype of ``x``, 16-bit floats by way of float32, from either end."""
    backwards = (*(slice(None),) * axis, slice(None, None, -1))
    narrow = is_narrow(x)
    running = ufunc.accumulate(x[backwards] if reverse else x, axis=axis, dtype=np.float32 if narrow else x.dtype)
    if narrow:
        running = running.astype(x.dtype)
    return running[backwards] if reverse else running


def cumsum(x: Array, /, axis: int, reverse: bool = False) -> Array:
    return _accumulate(np.add, x, axis, reverse)


def cumprod(x: Array, /, axis: int, reverse: bool = False) -> Array:
    return _accumulate(np.multiply, x, axis, reverse)


def cummax(x: Array, /, axis: int) -> Array:
    return np.maximum.accumulate(x, axis=axis)


def cummin(x: Array, /, axis: int) -> Array:
    return np.minimum.accumulate(x, axis=axis)


def logcumsumexp(x: Array, /, axis: int) -> Array:
    return _accumulate(np.logaddexp, x, axis)
