"""NumPy: choosing between values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = Any

#: From this many elements on, branches are chosen by arithmetic on their bits: ``np.where`` jumps on each element of
#: the condition, and a jump that the processor cannot foresee costs ten times as much as the arithmetic.
MANY = 4096
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def where(condition: Array, x: Array, y: Array, /) -> Array:
    if y.__class__ is not np.ndarray:
        if _is_zero(y) and x.size >= MANY:
            return _kept(x, condition)
        y = np.asarray(y, x.dtype)
    elif x.__class__ is not np.ndarray:
        if _is_zero(x) and y.size >= MANY:
            return _kept(y, np.logical_not(condition))
        x = np.asarray(x, y.dtype)
    if max(condition.size, x.size, y.size) < MANY or x.dtype != y.dtype:
        return np.where(condition, x, y)
    unsigned = UNSIGNED[x.itemsize]
    bits = np.bitwise_xor(x.view(unsigned), y.view(unsigned), out=...)
    same_shape = np.broadcast_shapes(bits.shape, condition.shape) == bits.shape
    bits = np.multiply(bits, condition, out=bits if same_shape else ...)
    return np.bitwise_xor(bits, y.view(unsigned), out=bits).view(x.dtype)


def _is_zero(scalar: float) -> bool:
    """Whether all bits of a Python scalar are 0 in every dtype, which they are not in a negative zero."""
    return scalar == 0 and math.copysign(1.0, scalar) > 0


def _kept(x: Array, condition: Array) -> Array:
    """``x`` where ``condition`` is true, else 0, infinities and NaN included."""
    return np.multiply(x.view(UNSIGNED[x.itemsize]), condition, out=...).view(x.dtype)


def masked_select(x: Array, mask: Array, /) -> Array:
    if x.shape != mask.shape:
        x, mask = np.broadcast_arrays(x, mask)
    return x[mask]
