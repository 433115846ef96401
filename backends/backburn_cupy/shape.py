"""CuPy: shape operations. Results are views where possible."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np

from backburn.backend.host_numbers import RECORDING_STEP
from backburn.ops.rules.shapes import joined, overlapped, padded, stacked, windows
from backburn.ops.table import OPERATIONS
from backburn_cupy.creation import cast
from backburn_cupy.reduce import is_half

Array = Any
Shape = tuple[int, ...]


def reshape(k: Any, x: Array, /, shape: Shape) -> Array:
    return x.reshape(shape)


def broadcast_to(k: Any, x: Array, /, shape: Shape) -> Array:
    return x if x.shape == shape else cupy.broadcast_to(x, shape)


def permute_dims(k: Any, x: Array, /, axes: Shape) -> Array:
    return x.transpose(axes) if axes else x


#: CuPy joins more arrays than this by a table of addresses, which it copies from the host.
BY_THEMSELVES = 8


def concat(k: Any, tensors: Sequence[Array], /, axis: int) -> Array:
    shape = joined([x.shape for x in tensors], axis=axis)
    if len(tensors) == 1:
        return tensors[0]
    if (words := _words(tensors, axis)) is not None:
        return concat(k, words, 1).view(tensors[0].dtype).reshape(shape)
    if len(tensors) <= BY_THEMSELVES or RECORDING_STEP.get() is None:
        return cupy.concatenate(list(tensors), axis)
    result = cupy.ndarray(shape, tensors[0].dtype)
    start = 0
    for x in tensors:
        stop = start + x.shape[axis]
        result[(slice(None),) * axis + (slice(start, stop),)] = x
        start = stop
    return result


#: The bytes from which on arrays are joined as words: CuPy copies one element at a time.
LARGE, WORD = 1 << 20, 8


def _words(tensors: Sequence[Array], axis: int) -> list[Array] | None:
    """Arrays as matrices of words to join along axis 1, if they are large and consist of whole words."""
    dtype, *others = {x.dtype for x in tensors}
    if others or dtype.itemsize >= WORD or sum(x.nbytes for x in tensors) < LARGE:
        return None
    rows = math.prod(tensors[0].shape[:axis])
    for x in tensors:
        if not x.size or not x.flags.c_contiguous or x.nbytes // rows % WORD or x.data.ptr % WORD:
            return None
    return [x.reshape(rows, -1).view(np.uint64) for x in tensors]


def stack(k: Any, tensors: Sequence[Array], /, axis: int) -> Array:
    shape = stacked([x.shape for x in tensors], axis=axis)
    return concat(k, [x.reshape(*shape[:axis], 1, *shape[axis + 1 :]) for x in tensors], axis)


def pad(k: Any, x: Array, /, widths: tuple[tuple[int, int], ...], mode: str = "constant", value: float = 0.0) -> Array:
    shape = padded(x.shape, widths=widths, mode=mode)
    if mode != "constant":
        return OPERATIONS["pad"].body(k, x, widths, mode, value)
    result = k.full(shape, value, k.dtype(x))
    result[tuple(slice(b, b + n) for n, (b, _) in zip(x.shape, widths, strict=True))] = x
    return result


def sliding_window(k: Any, x: Array, /, size: Shape, stride: Shape, axis: Shape, dilation: Shape) -> Array:
    shape = windows(x.shape, size=size, stride=stride, axis=axis, dilation=dilation)
    strides = list(x.strides)
    for a, step in zip(axis, stride, strict=True):
        strides[a] *= step
    within = (x.strides[a] * spacing for a, spacing in zip(axis, dilation, strict=True))
    return cupy.lib.stride_tricks.as_strided(x, shape, (*strides, *within))


def overlap_add(k: Any, x: Array, /, length: Shape, stride: Shape, axis: Shape, dilation: Shape) -> Array:
    shape = overlapped(x.shape, length=length, stride=stride, axis=axis, dilation=dilation)
    total = cupy.zeros(shape, np.float32 if is_half(x) else x.dtype)
    key: list[Any] = [slice(None)] * total.ndim
    for offsets in itertools.product(*(range(n) for n in x.shape[total.ndim :])):
        for a, offset, step, spacing in zip(axis, offsets, stride, dilation, strict=True):
            start = offset * spacing
            key[a] = slice(start, start + (x.shape[a] - 1) * step + 1, step)
        place = total[tuple(key)]
        cupy.add(place, cast(x[(..., *offsets)], total.dtype), out=place)
    return cast(total, x.dtype)


def diagonal(k: Any, x: Array, /, offset: int, axis1: int, axis2: int) -> Array:
    return x.diagonal(offset, axis1, axis2)
