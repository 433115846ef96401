"""NumPy: comparisons, logic and bits.

``out=...`` (the Ellipsis) makes a ufunc return an array where it would return a scalar: 0-d results stay arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def bitwise_invert(x: Array, /) -> Array:
    return np.invert(x, out=...)


def logical_not(x: Array, /) -> Array:
    return np.logical_not(x, out=...)
