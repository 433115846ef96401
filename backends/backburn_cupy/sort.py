"""CuPy: sorting. Floats are sorted as integers, stably, with NaN last, for which radix sort is fastest."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from backburn_cupy.reduce import sort_keys

Array = Any


def argsort(k: Any, x: Array, /, axis: int, descending: bool = False) -> Array:
    if not x.size:
        return cupy.ndarray(x.shape, np.int64)
    # 16-bit and narrower integers are widened: Thrust has a radix sort for all widths, but CuPy does not expose all.
    return cupy.argsort(sort_keys(x, falling=descending), axis, "stable").astype(np.int64, copy=False)
