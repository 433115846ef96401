"""NumPy: arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn_numpy.memory import THRESHOLD
from backburn_numpy.ufuncs import binary, unary

Array = Any

add = binary(np.add)
sub = binary(np.subtract)
mul = binary(np.multiply)
div = binary(np.true_divide)
floor_divide = binary(np.floor_divide)
remainder = binary(np.remainder)
fmod = binary(np.fmod)
neg = unary(np.negative)
abs = unary(np.absolute)
sign = unary(np.sign)
maximum = binary(np.maximum)
minimum = binary(np.minimum)
square = unary(np.square)
reciprocal = unary(np.reciprocal)


def clamp(x: Array, min: Array = None, max: Array = None, /) -> Array:
    if min is None:
        return x if max is None else minimum(x, max)
    if x.nbytes < THRESHOLD and x.itemsize > 2 and x.ndim and min.__class__ is max.__class__ is float:
        return x.clip(min, max)
    above = maximum(x, min)
    if max is None:
        return above
    if max.__class__ is np.ndarray:
        return minimum(above, max)
    return np.minimum(above, max, out=above)
