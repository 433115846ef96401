"""Launchers: rows of a table by index, and their gradient."""

from __future__ import annotations

import math
from typing import Any

from backburn_cupy.kernels import geometry
from backburn_cupy.kernels.operands import int64, sum_dtype
from backburn_cupy.kernels.runner import Runner
from backburn_cupy.kernels.sources import c_type

Array = Any

#: The rows of a block with a warp per row, and those of a sum_runs block.
ROWS, CHUNK = 8, 32


def embedding(on: Runner, weight: Array, indices: Array, /, padding_idx: int | None = None) -> Array:
    length, *rest = weight.shape
    out = on.xp.ndarray((*indices.shape, *rest), weight.dtype)
    if out.size:
        arguments = (on.xp.ascontiguousarray(weight), int64(on, indices), out)
        grid = min(geometry.ceil_div(indices.size, ROWS), geometry.MOST_BLOCKS)
        name = f"take_rows<{c_type(weight)}>"
        on.run("index", name, grid, (32, ROWS), *arguments, indices.size, math.prod(rest), length, on.fault)
    return out


def take_backward(on: Runner, grad: Array, indices: Array, /, length: int, axis: int) -> Array:
    shape = (length, *grad.shape[indices.ndim :])
    if axis != 0 or grad.shape[: indices.ndim] != indices.shape:
        return NotImplemented
    if not grad.size:
        return on.xp.zeros(shape, grad.dtype)
    grad, indices = on.xp.ascontiguousarray(grad), int64(on, indices)
    add = _in_order if on.deterministic else _as_they_come
    return add(on, grad, indices, length, shape)


def _as_they_come(on: Runner, grad: Array, indices: Array, length: int, shape: tuple[int, ...]) -> Array:
    """Sums by atomic additions, which are nondeterministic in the last bits."""
    sums = on.xp.zeros(shape, sum_dtype(grad))
    grid = min(geometry.ceil_div(indices.size, ROWS), geometry.MOST_BLOCKS)
    sizes = (indices.size, math.prod(shape[1:]), length)
    on.run("index", f"add_rows<{c_type(grad)}>", grid, (32, ROWS), grad, indices, sums, *sizes, on.fault)
    return sums.astype(grad.dtype, copy=False)


def _in_order(on: Runner, grad: Array, indices: Array, length: int, shape: tuple[int, ...]) -> Array:
    """Deterministic sums, over sorted indices."""
    count, width, type_ = indices.size, math.prod(shape[1:]), c_type(grad)
    keys = on.xp.ndarray((count,), "int64")
    on.run("index", "wrap_indices", *geometry.elements(count, 1), indices, keys, count, length, on.fault)
    order = on.xp.argsort(keys, kind="stable")
    keys = keys[order]
    out = on.xp.zeros(shape, grad.dtype)
    chunks, tiles = geometry.ceil_div(count, CHUNK), geometry.ceil_div(width, geometry.THREADS)
    computed = sum_dtype(grad)
    heads, tails = (on.xp.ndarray((chunks, width), computed) for _ in range(2))
    launch, sizes = (chunks * tiles, min(geometry.THREADS, geometry.ceil_div(width, 32) * 32)), (count, width, length)
    on.run("index", f"sum_runs<{type_}>", *launch, grad, order, keys, out, heads, tails, *sizes, tiles)
    on.run("index", f"join_runs<{type_}>", *launch, keys, out, heads, tails, *sizes, tiles)
    return out
