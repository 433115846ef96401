"""NumPy: layer norm and RMS norm of rows by compiled kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn_numpy import compiled
from backburn_numpy.blocks import WORTH
from backburn_numpy.memory import contiguous, empty
from backburn_numpy.threads import parallel_for

Array = Any

#: The gradient for a scale is summed in float32 over blocks of rows, and in float64 over these: so it depends on the
#: shape alone, and errors do not grow with the number of rows. A block has at most so many rows; there are at least so
#: many blocks, unless they would be small.
MOST_ROWS, FEWEST_BLOCKS, SMALL = 64, 16, 1 << 13


def standardize_backward(out: Array, grad: Array, x: Array, scale: Array, eps: float, centred: bool) -> Array:
    """Fill ``out`` with the gradient for the rows ``x``; return that for ``scale``."""
    fast: Any = compiled.serving("standardize_backward", x)
    count, length = x.shape
    block = min(MOST_ROWS, max(-(-count // FEWEST_BLOCKS), SMALL // length))
    sums = empty((-(-count // block), length), x.dtype)
    arrays = [contiguous(a) for a in (grad, x, scale)]
    at = compiled.addresses(out, sums, *arrays)
    sizes = eps, centred, block, count, length
    parallel_for(lambda first, last: fast(*at, *sizes, first, last), len(sums), max(1, WORTH // (block * length)))
    return sums[0] if len(sums) == 1 else np.add.reduce(sums, axis=0, dtype=np.float64)
