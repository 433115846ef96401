"""NumPy: arithmetic.

``out=...`` (the Ellipsis) makes a ufunc return an array where it would return a scalar: 0-d results stay arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def add(x: Array, y: Array, /) -> Array:
    return np.add(x, y, out=...)


def sub(x: Array, y: Array, /) -> Array:
    return np.subtract(x, y, out=...)


def mul(x: Array, y: Array, /) -> Array:
    return np.multiply(x, y, out=...)


def div(x: Array, y: Array, /) -> Array:
    return np.true_divide(x, y, out=...)


def neg(x: Array, /) -> Array:
    return np.negative(x, out=...)


def square(x: Array, /) -> Array:
    return np.square(x, out=...)
