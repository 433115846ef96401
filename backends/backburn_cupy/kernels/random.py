"""Launchers: random numbers, bit-identical to :mod:`backburn.ops.random`."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn.base.dtypes import DType
from backburn.ops.random import check_stream, dropout_scale, threshold
from backburn_cupy.kernels import geometry
from backburn_cupy.kernels.runner import Runner
from backburn_cupy.kernels.sources import C_TYPES, c_type

Array = Any
Shape = tuple[int, ...]

#: Words per thread at a time.
BLOCK = 8


def random_bits(on: Runner, key: int, offset: int, shape: Shape) -> Array:
    return _fill(on, "random_bits", key, offset, on.xp.ndarray(shape, np.int64))


def bernoulli(on: Runner, key: int, offset: int, shape: Shape, p: float) -> Array:
    return _fill(on, "bernoulli", key, offset, on.xp.ndarray(shape, np.bool_), threshold(p))


def uniform(on: Runner, key: int, offset: int, shape: Shape, dtype: DType) -> Array:
    return _fill(on, f"uniform<{C_TYPES[dtype.name]}>", key, offset, on.xp.ndarray(shape, dtype.dtype))


def dropout(on: Runner, x: Array, /, key: int, offset: int, p: float) -> tuple[Array, Array]:
    x, out, keep = on.xp.ascontiguousarray(x), on.xp.ndarray(x.shape, x.dtype), on.xp.ndarray(x.shape, np.bool_)
    below = threshold(1.0 - p)
    _launch(on, f"dropout<{c_type(x)}>", key, offset, x.size, x, out, keep, x.size, below, dropout_scale(p))
    return out, keep


def _fill(on: Runner, kernel: str, key: int, offset: int, out: Array, *more: int) -> Array:
    words = out.size * (2 if kernel == "uniform<double>" else 1)  # elements of 64 bits take two
    _launch(on, kernel, key, offset, words, out, out.size, *more)
    return out


def _launch(on: Runner, kernel: str, key: int, offset: int, words: int, *arguments: Any) -> None:
    """Launch a kernel that uses ``words`` words of a stream from ``offset`` on."""
    check_stream(key, offset)
    if words:
        replayed = on.device_number(offset)
        stream = (
            np.uint64(key % 2**64),
            np.uint64(key >> 64),
            np.uint64(0 if replayed is not None else offset),
            replayed,
        )
        # One more block for the words skipped before the offset.
        on.run("random", kernel, *geometry.elements(words + BLOCK, BLOCK), *stream, *arguments)
