"""NumPy: shape operations. Results are views where NumPy can make one."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from ctypes import c_int64
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from backburn.ops.bodies import quantized_moves
from backburn.ops.rules.shapes import joined, overlapped, padded, tiled, windows
from backburn_numpy import compiled, tuning
from backburn_numpy.elementwise.half_precision import cast_like, compute_dtype
from backburn_numpy.implements import implements
from backburn_numpy.ops.quantization import QuantizedArray
from backburn_numpy.runtime import memory
from backburn_numpy.runtime.threads import available

Array = Any
Shape = tuple[int, ...]


@implements("reshape", takes_backend=True)
def reshape(k: Any, x: Array, /, shape: Shape) -> Array:
    if x.__class__ is QuantizedArray:
        return quantized_moves.reshape(k, x, shape)
    if x.nbytes >= tuning.MIN_POOLED_BYTES and not x.flags.c_contiguous:
        with suppress(ValueError):  # where a view cannot have the shape
            return x.reshape(shape, copy=False)
        return memory.contiguous(x).reshape(shape)
    return x.reshape(shape)


@implements("broadcast_to", takes_backend=True)
def broadcast_to(k: Any, x: Array, /, shape: Shape) -> Array:
    if x.__class__ is QuantizedArray:
        return quantized_moves.broadcast_to(k, x, shape)
    if x.shape == shape:
        return x
    if x.ndim <= len(shape) and math.prod(shape) * x.itemsize <= tuning.MAX_BYTES_COPIED_FOR_VIEW:
        copy = np.empty(shape, x.dtype)
        copy[...] = x
        return copy
    if x.size == 1 and x.ndim <= len(shape) and x.dtype.isbuiltin == 1:
        # This does what NumPy's function does, in a fraction of the time.
        result = np.ndarray(shape, x.dtype, x, 0, (0,) * len(shape))
        result.setflags(write=False)
        return result
    return np.broadcast_to(x, shape)


@implements("permute_dims", takes_backend=True)
def permute_dims(k: Any, x: Array, /, axes: Shape) -> Array:
    if x.__class__ is QuantizedArray:
        return quantized_moves.permute_dims(k, x, axes)
    return x.transpose(axes)


@implements("concat", takes_backend=True)
def concat(k: Any, tensors: Sequence[Array], /, axis: int) -> Array:
    if tensors[0].__class__ is QuantizedArray:
        return quantized_moves.concat(k, tensors, axis)
    if sum([x.nbytes for x in tensors]) < tuning.MIN_BYTES_FOR_CONCAT:
        return np.concatenate(tensors, axis)
    shape = joined([x.shape for x in tensors], axis=axis)
    out, rows = memory.empty(shape, tensors[0].dtype), math.prod(shape[:axis])
    if rows == 1 or not _concat_rows(out, tensors, axis, rows):
        np.concatenate(tensors, axis, out=out)
    return out


def _concat_rows(out: Array, tensors: Sequence[Array], axis: int, rows: int) -> bool:
    """Fill the rows of ``out`` with those of the tensors by a kernel, in several threads; False if NumPy is to."""
    fast = compiled.kernel("concat")
    if fast is None or any(x.dtype != out.dtype for x in tensors):
        return False
    widths = [x.nbytes // rows for x in tensors]
    strides: list[Any] = [
        n if x.flags.c_contiguous else _row_stride(x, axis) for x, n in zip(tensors, widths, strict=True)
    ]
    if None in strides:
        return False
    numbers, out_stride = c_int64 * len(tensors), out.nbytes // rows
    places = numbers(*map(compiled.address, tensors)), numbers(*strides), numbers(*widths)
    fast(
        compiled.address(out),
        *places,
        len(tensors),
        out_stride,
        rows,
        -(-tuning.MIN_BYTES_FOR_CONCAT // out_stride),
        available(),
    )
    return True


def _row_stride(x: Array, axis: int) -> int | None:
    """The stride of rows, the axes from ``axis`` on, in bytes; None if they are not contiguous and equally spaced."""
    lengths = [*zip(x.shape, x.strides, strict=True)]
    expected, found = x.itemsize, None
    for n, stride in reversed(lengths[axis:]):
        if n > 1 and stride != expected:
            return None
        expected *= n
    for n, stride in reversed(lengths[:axis]):
        if n > 1:
            if found is None:
                found = stride
            elif stride != expected:
                return None
            expected = stride * n
    return found


@implements("stack", takes_backend=True)
def stack(k: Any, tensors: Sequence[Array], /, axis: int) -> Array:
    key = (*(slice(None),) * axis, None)
    return concat(k, [x[key] for x in tensors], axis)


@implements("tile")
def tile(x: Array, /, repeats: Shape) -> Array:
    tiled(x.shape, repeats=repeats)
    if math.prod(max(1, r) for r in repeats) * x.nbytes > sys.maxsize:  # as for repeat
        raise MemoryError(f"{list(repeats)} times the shape {list(x.shape)}")
    return np.tile(x, repeats)


@implements("repeat")
def repeat(x: Array, /, repeats: int, axis: int) -> Array:
    if repeats * x.shape[axis] > sys.maxsize:  # NumPy's own count would overflow, and it would write out of bounds
        raise MemoryError(f"{repeats} times {x.shape[axis]} entries")
    return x.repeat(repeats, axis)


@implements("pad")
def pad(x: Array, /, widths: tuple[tuple[int, int], ...], mode: str = "constant", value: float = 0.0) -> Array:
    shape = padded(x.shape, widths=widths, mode=mode)  # refuses NumPy's other modes, which have no gradients
    if mode != "constant":
        return np.pad(x, widths, mode) if widths else x  # type: ignore[call-overload]
    result = memory.empty(shape, x.dtype)
    result.fill(value)
    result[tuple(slice(b, b + n) for n, (b, _) in zip(x.shape, widths, strict=True))] = x
    return result


@implements("sliding_window")
def sliding_window(x: Array, /, size: Shape, stride: Shape, axis: Shape, dilation: Shape) -> Array:
    shape = windows(x.shape, size=size, stride=stride, axis=axis, dilation=dilation)
    strides = list(x.strides)
    for a, step in zip(axis, stride, strict=True):
        strides[a] *= step
    within = (x.strides[a] * spacing for a, spacing in zip(axis, dilation, strict=True))
    return as_strided(x, shape, (*strides, *within), writeable=False)


@implements("overlap_add")
def overlap_add(x: Array, /, length: Shape, stride: Shape, axis: Shape, dilation: Shape) -> Array:
    shape = overlapped(x.shape, length=length, stride=stride, axis=axis, dilation=dilation)
    total = memory.empty(shape, compute_dtype(x))
    total.fill(0)
    key: list[Any] = [slice(None)] * total.ndim
    for offsets in itertools.product(*(range(n) for n in x.shape[total.ndim :])):
        for a, offset, step, spacing in zip(axis, offsets, stride, dilation, strict=True):
            start = offset * spacing
            key[a] = slice(start, start + (x.shape[a] - 1) * step + 1, step)
        total[tuple(key)] += x[(..., *offsets)]
    return cast_like(total, x)


@implements("diagonal")
def diagonal(x: Array, /, offset: int, axis1: int, axis2: int) -> Array:
    rows, columns = x.shape[axis1], x.shape[axis2]
    return x.diagonal(max(-rows, min(offset, columns)), axis1, axis2)  # NumPy fails for offsets beyond 32 bits
