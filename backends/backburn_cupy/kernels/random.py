"""Launchers: random numbers, bit for bit those of :mod:`backburn.backend.random`."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn.backend.random import check_stream, threshold
from backburn.base.dtypes import DType
from backburn_cupy.kernels import geometry
from backburn_cupy.kernels.runner import Runner
from backburn_cupy.kernels.sources import C_TYPES

Array = Any
Shape = tuple[int, ...]

#: The words that a thread makes at a time.
BLOCK = 8


def random_bits(on: Runner, key: int, offset: int, shape: Shape) -> Array:
    return _filled(on, "random_bits", key, offset, on.xp.empty(shape, np.int64))


def bernoulli(on: Runner, key: int, offset: int, shape: Shape, p: float) -> Array:
    return _filled(on, "bernoulli", key, offset, on.xp.empty(shape, np.bool_), threshold(p))


def uniform(on: Runner, key: int, offset: int, shape: Shape, dtype: DType) -> Array:
    return _filled(on, f"uniform<{C_TYPES[dtype.name]}>", key, offset, on.xp.empty(shape, dtype.dtype))


def _filled(on: Runner, kernel: str, key: int, offset: int, out: Array, *more: int) -> Array:
    check_stream(key, offset)
    if out.size:
        # One block more for the words before the first, and elements of 64 bits take two.
        words = out.size * (2 if kernel == "uniform<double>" else 1) + BLOCK
        moving = on.bound(offset)
        stream = (np.uint64(key % 2**64), np.uint64(key >> 64), np.uint64(0 if moving is not None else offset), moving)
        on.run("random", kernel, *geometry.elements(words, BLOCK), *stream, out, out.size, *more)
    return out
