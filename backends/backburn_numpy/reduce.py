"""NumPy: reductions and scans."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
Axes = tuple[int, ...]


def sum(x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    return np.add.reduce(x, axis=axis, dtype=x.dtype, keepdims=keepdims, out=...)
