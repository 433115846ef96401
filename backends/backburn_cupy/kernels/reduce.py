"""Launchers: sums and means of all elements of small arrays, such as losses, and sums per channel."""

from __future__ import annotations

from typing import Any

from backburn_cupy.kernels import geometry
from backburn_cupy.kernels.normalization import channel_sum
from backburn_cupy.kernels.runner import Runner
from backburn_cupy.kernels.sources import c_type

Array = Any
Axes = tuple[int, ...]

#: The most elements that one block sums: more take longer than a second launch.
FEW = 1 << 14

#: The most threads of the block.
THREADS = 1024


def sum(on: Runner, x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    return _reduce_all(on, x, 1.0, keepdims) if _is_small(x, axis) else channel_sum(on, x, axis, keepdims)


def mean(on: Runner, x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    return _reduce_all(on, x, float(x.size), keepdims) if _is_small(x, axis) else NotImplemented


def _is_small(x: Array, axis: Axes) -> bool:
    """Whether a block sums all elements of ``x``, floats, along all of its axes."""
    if axis != tuple(range(x.ndim)) or not axis or not 0 < x.size <= FEW:
        return False
    return x.dtype.char in "fdeE" and bool(x.flags.c_contiguous)


def _reduce_all(on: Runner, x: Array, divisor: float, keepdims: bool) -> Array:
    out = on.xp.ndarray((1,) * x.ndim if keepdims else (), x.dtype)
    threads = min(geometry.ceil_div(x.size, geometry.WARP) * geometry.WARP, THREADS)
    on.run("reduce", f"sum_all<{c_type(x)}>", 1, threads, x, out, x.size, divisor)
    return out
