"""NumPy: selection by conditions and masks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from backburn.ops.rules.shapes import broadcast
from backburn.ops.table import OPERATIONS
from backburn_numpy import compiled, tuning
from backburn_numpy.implements import implements
from backburn_numpy.runtime.memory import contiguous, empty
from backburn_numpy.runtime.threads import available, parallel_for

Array = Any

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@implements("where")
def where(condition: Array, x: Array, y: Array, /) -> Array:
    if y.__class__ is not np.ndarray:
        if x.size >= tuning.MIN_ELEMENTS_FOR_MASKS and _is_zero(y) and x.itemsize in UNSIGNED:
            return _mask(x, condition)
        y = np.asarray(y, x.dtype)
    elif x.__class__ is not np.ndarray:
        if y.size >= tuning.MIN_ELEMENTS_FOR_MASKS and _is_zero(x) and y.itemsize in UNSIGNED:
            return _mask(y, np.logical_not(condition))
        x = np.asarray(x, y.dtype)
    if max(condition.size, x.size, y.size) < tuning.MIN_ELEMENTS_FOR_MASKS or x.dtype != y.dtype:
        return np.where(condition, x, y)
    if (unsigned := UNSIGNED.get(x.itemsize)) is None:  # complex128
        return np.where(condition, x, y)

    def select(condition: Array, x: Array, y: Array, out: Array) -> None:
        np.bitwise_xor(x, y, out=out)
        np.multiply(out, condition, out=out)
        np.bitwise_xor(out, y, out=out)

    return _fill_parallel(select, condition, x.view(unsigned), y.view(unsigned)).view(x.dtype)


def _is_zero(scalar: Any) -> bool:
    """Whether a Python scalar is all zero bits in every dtype; negative zero is not."""
    return bool(scalar == 0 and scalar.__class__ is not complex and math.copysign(1.0, scalar) > 0)


def _mask(x: Array, condition: Array) -> Array:
    """``x`` where ``condition`` is true, else 0, also in place of infinity and NaN."""

    def keep(condition: Array, x: Array, out: Array) -> None:
        np.multiply(x, condition, out=out)

    return _fill_parallel(keep, condition, x.view(UNSIGNED[x.itemsize])).view(x.dtype)


def _fill_parallel(work: Callable[..., None], *operands: Array) -> Array:
    """An array of the last operand's dtype, filled by ``work(*operands, out)``; a large one in several threads."""
    shape = np.broadcast_shapes(*(x.shape for x in operands))
    result = empty(shape, operands[-1].dtype)
    if result.size < tuning.MIN_ELEMENTS_FOR_SECOND_THREAD or any(
        x.shape != shape or not x.flags.c_contiguous for x in operands
    ):
        work(*operands, result)
    else:
        flat = [x.reshape(-1) for x in (*operands, result)]
        parallel_for(lambda start, stop: work(*(x[start:stop] for x in flat)), result.size)
    return result


@implements("triu", takes_backend=True)
def triu(k: Any, x: Array, /, offset: int = 0) -> Array:
    found = triangle(x, offset, True)
    return OPERATIONS["triu"].body(k, x, offset) if found is None else found


@implements("tril", takes_backend=True)
def tril(k: Any, x: Array, /, offset: int = 0) -> Array:
    found = triangle(x, offset + 1, False)
    return OPERATIONS["tril"].body(k, x, offset) if found is None else found


def triangle(x: Array, offset: int, upper: bool) -> Array | None:
    """The part on and above a diagonal, or that below it, by a kernel; None if there is none."""
    if not x.size or (fast := compiled.kernel("triangle")) is None:
        return None
    (height, width), out = x.shape[-2:], empty(x.shape, x.dtype)
    offset = min(max(offset, -height), width)  # a larger one has the same effect, and may not fit 64 bits
    whole = contiguous(x)
    sizes = x.itemsize, height, width, offset, upper, x.size // width, tuning.ELEMENTS_PER_TASK // width or 1
    fast(compiled.address(out), compiled.address(whole), *sizes, available())
    return out


@implements("masked_select")
def masked_select(x: Array, mask: Array, /) -> Array:
    if x.shape != mask.shape:
        shape = broadcast(x.shape, mask.shape)
        x, mask = np.broadcast_to(x, shape), np.broadcast_to(mask, shape)
    return x[mask]
