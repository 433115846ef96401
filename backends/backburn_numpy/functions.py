"""NumPy: functions of each element.

``out=...`` (the Ellipsis) makes a ufunc return an array where it would return a scalar: 0-d results stay arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def tanh(x: Array, /) -> Array:
    return np.tanh(x, out=...)
