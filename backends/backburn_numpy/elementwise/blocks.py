"""NumPy: kernels over the rows and columns of large arrays, and bodies over blocks of them.

An operation is computed by the kernel of :mod:`backburn_numpy.compiled` that takes its operands, in several threads if
it pays. Otherwise the contract's body computes it: if it takes many passes over large arrays, one block after another,
so that intermediate results stay in the processor's cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from backburn.ops.bodies.shapes import check_not_negative
from backburn.ops.table import OPERATIONS
from backburn_numpy import compiled, tuning
from backburn_numpy.compiled import FLOAT32, FLOAT64, addresses_of, kernel
from backburn_numpy.elementwise.half_precision import cast_like, is_half, upcast_half
from backburn_numpy.runtime.memory import contiguous, empty
from backburn_numpy.runtime.threads import available, parallel_for

Array = Any


class RowBuffer:
    """A context in which ufuncs combine rows of ``length`` with a broadcast column or row without buffering it.

    A ufunc copies a broadcast operand into its buffer, for as many rows as fit, which takes longer than the arithmetic;
    it does not if the buffer holds only one row. For short rows the copy is faster.
    """

    __slots__ = ("before", "size")

    def __init__(self, length: int) -> None:
        self.size = min(length // 16 * 16, tuning.MAX_ROW_BUFFER)

    def __enter__(self) -> None:
        if self.size >= tuning.MIN_ROW_BUFFER:
            self.before = np.setbufsize(self.size)

    def __exit__(self, *_: object) -> None:
        if self.size >= tuning.MIN_ROW_BUFFER:
            np.setbufsize(self.before)


def for_blocks(
    work: Callable[[tuple[slice, ...]], None], shape: tuple[int, ...], axis: int, size: int = tuning.BLOCK_ELEMENTS
) -> None:
    """Call ``work`` with keys of blocks of an array, split along ``axis``, in several threads if it pays."""
    width = max(1, math.prod(shape) // (shape[axis] or 1))
    step, before = max(1, size // width), (slice(None),) * axis

    def part(start: int, stop: int) -> None:
        with RowBuffer(shape[-1] if len(shape) > 1 else 0):
            for first in range(start, stop, step):
                work((*before, slice(first, min(first + step, stop))))

    parallel_for(part, shape[axis], each=width)


def longest_axis(shape: tuple[int, ...], axis: tuple[int, ...]) -> int | None:
    """The longest of the axes that are not in ``axis``; None if there is none."""
    return max((i for i in range(len(shape)) if i not in axis), key=shape.__getitem__, default=None)


def elementwise(formula: Callable[..., Any], *values: Any, results: int = 1) -> Any:
    """``formula(*values)`` of arrays of one shape and numbers, with one result or several; large ones in blocks."""
    arrays = [x for x in values if x.__class__ is np.ndarray and x.ndim]
    first: Any = arrays[0] if arrays else np.empty(0)
    if first.nbytes <= tuning.MIN_BYTES_FOR_BLOCKS or any(
        x.shape != first.shape or not x.flags.c_contiguous for x in arrays
    ):
        return formula(*values)
    outs = [empty(first.shape, first.dtype) for _ in range(results)]
    flat = [x.reshape(-1) if x.__class__ is np.ndarray and x.ndim else x for x in values]
    targets = [out.reshape(-1) for out in outs]

    def work(key: tuple[slice, ...]) -> None:
        found = formula(*(x[key] if x.__class__ is np.ndarray and x.ndim else x for x in flat))
        for target, result in zip(targets, found if results > 1 else (found,), strict=True):
            target[key] = result

    for_blocks(work, (first.size,), 0, tuning.BLOCK_BYTES // first.itemsize)
    return outs[0] if results == 1 else tuple(outs)


def along(k: Any, name: str, axis: int, *operands: Array) -> Array:
    """An operation on lines along an axis, whose result is like the operands: by a kernel of that name, or its body.

    Lines along the last axis are rows for the kernel ``name``, others columns of matrices for ``name_columns``.
    """
    check_not_negative(name, axis)
    first = operands[0]
    if is_half(first) and compiled.kernel(name) is not None:
        return cast_like(along(k, name, axis, *map(upcast_half, operands)), first)
    if compiled.serving(name, first) is None or not compiled.are_alike(*operands):
        return OPERATIONS[name].body(k, *operands, axis)
    out = empty(first.shape, first.dtype)
    if first.size and axis == first.ndim - 1:
        run_rows(name, (out, *operands), first.size // first.shape[axis], first.shape[axis])
    elif first.size:
        run_columns(name, (out, *operands), first.shape, axis)
    return out


def run_small(name: str, x: Array, *others: Array) -> Array | None:
    """The result of an element-wise kernel in this thread, with the least overhead; None for large or other operands.

    It takes contiguous float32 or float64 arrays of one shape.
    """
    if x.__class__ is not ndarray:  # NumPy's scalars have no address
        return None
    dtype, shape, size = x.dtype, x.shape, x.size
    fast = kernel(name) if dtype is FLOAT32 else kernel(f"{name}_double") if dtype is FLOAT64 else None
    if fast is None or size >= tuning.MIN_ELEMENTS_FOR_NATIVE_THREADS or not x.flags.c_contiguous:
        return None
    for y in others:
        if y.__class__ is not ndarray or y.dtype is not dtype or y.shape != shape or not y.flags.c_contiguous:
            return None
    out = empty(shape, dtype)
    fast(*addresses_of((out, x, *others)), size)
    return out


def run_rows(name: str, arrays: Sequence[Array], rows: int, width: int | None = None, *options: Any) -> bool:
    """Call the compiled kernel of that name, in several threads if it pays; False if there is none for ``arrays``.

    It gets the addresses of ``arrays``; ``options``, in which arrays are passed whole to every thread; and the sizes:
    ``rows`` rows of ``width`` elements, or ``rows`` elements if there is no width (a scalar array is shared by all).
    Input arrays need not be contiguous.
    """
    fast = compiled.serving(name, arrays[0])
    if fast is None:
        return False
    whole = [contiguous(a) for a in arrays]
    starts = [compiled.address(a) for a in whole]
    rest, kept = [], []
    for option in options:
        if isinstance(option, np.ndarray):
            kept.append(contiguous(option))
            option = compiled.address(kept[-1])
        rest.append(option)
    sizes = () if width is None else (width,)
    if rows * (width or 1) < tuning.MIN_ELEMENTS_FOR_NATIVE_THREADS:
        fast(*starts, *rest, rows, *sizes)
        return True
    threads, strides = available(), [a.nbytes // rows for a in whole]
    if not options and len(starts) < 5:
        compiled.parallel_for(fast, starts, strides, rows, width or 0, threads)
        return True
    if (parallel := compiled.serving(f"parallel_{name}", arrays[0])) is not None:
        parallel(*starts, *rest, rows, *sizes, compiled.portion(width or 0), threads)
        return True

    def part(start: int, stop: int) -> None:
        at = [address + start * stride for address, stride in zip(starts, strides, strict=True)]
        fast(*at, *rest, stop - start, *sizes)

    parallel_for(part, rows, each=width or 1)
    return True


def run_columns(name: str, arrays: Sequence[Array], shape: tuple[int, ...], axis: int) -> bool:
    """Call the kernel of that name for lines along an axis that is not the last; False if there is none for ``arrays``.

    It gets the addresses of ``arrays``, which have the ``shape`` or that without the axis, and are not empty. A result
    is contiguous.
    """
    fast = compiled.serving(f"{name}_columns", arrays[0])
    if fast is None:
        return False
    whole = [contiguous(a) for a in arrays]
    starts = [compiled.address(a) for a in whole]
    number, length, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    if number == 1:
        worth = max(1, tuning.MIN_WORK_FOR_SECOND_THREAD // length)
        parallel_for(lambda first, last: fast(*starts, 1, length, inner, first, last), inner, worth)
        return True
    strides = [a.nbytes // number for a in whole]

    def part(first: int, last: int) -> None:
        at = (start + first * stride for start, stride in zip(starts, strides, strict=True))
        fast(*at, last - first, length, inner, 0, inner)

    parallel_for(part, number, each=length * inner)
    return True
