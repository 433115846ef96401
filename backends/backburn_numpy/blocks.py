"""NumPy: processing large arrays in cache blocks, so that the temporaries stay in the processor's cache.

A kernel gets a result to fill and operands of the same shape; 16-bit floats are passed to it as float32. Large results
use recycled memory, and very large ones several threads. Where :mod:`backburn_numpy.compiled` has a kernel for the same
work, under the name that is passed, large float32 operands go to that one instead.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from backburn_numpy import compiled
from backburn_numpy.fused import fuse_kernel
from backburn_numpy.half_precision import cast_like, fill, is_half, upcast_half
from backburn_numpy.memory import aligned, contiguous, empty, memory_ordered
from backburn_numpy.threads import WORTH_A_THREAD, available, num_threads, parallel_for

Array = Any
Kernel = Callable[..., None]

#: Elements per block: a few temporaries of this size fit in the L2 cache.
BLOCK = 1 << 16

#: From this many elements on, a second thread pays: a kernel does several times the work of a ufunc.
WORTH = WORTH_A_THREAD >> 2


#: From this many elements on, a second native thread pays for a kernel: handing over work takes 5 us.
SHARED = 1 << 15

#: The fewest columns of a block that is cut along columns.
WIDE = 256


class _Scratch(threading.local):
    """A thread's temporaries, reused by the next block and the next operation."""

    def __init__(self) -> None:
        self.bytes: dict[int, Array] = {}


_scratch = _Scratch()


def scratch(like: Array, slot: int = 0) -> Array:
    """An uninitialised thread-local temporary of the shape and dtype of ``like``, valid until the next call.

    A kernel that needs several at once uses different slots.
    """
    size = like.nbytes
    if size > 24 * BLOCK:
        return empty(like.shape, like.dtype)
    kept = _scratch.bytes.get(slot)
    if kept is None or kept.size < size:
        kept = _scratch.bytes[slot] = aligned(24 * BLOCK)
    return np.ndarray(like.shape, like.dtype, kept)


def block_rows(count: int, width: int) -> int:
    """The number of rows per block, for ``count`` rows of ``width`` elements.

    Three times as many with several threads: after each NumPy call a thread waits for the GIL, about as long as a call
    on a block of the normal size takes, so fewer calls matter more than a closer cache.
    """
    size = BLOCK if num_threads() == 1 or count * width < 6 * BLOCK else 3 * BLOCK
    return max(1, size // max(width, 1))


class RowBuffer:
    """A context in which ufuncs combine rows of ``length`` with a broadcast column or row without buffering it.

    A ufunc copies a broadcast operand into its buffer, for as many rows as fit, which takes longer than the arithmetic;
    it does not if the buffer holds only one row. For short rows the copy is faster.
    """

    __slots__ = ("before", "size")

    def __init__(self, length: int) -> None:
        self.size = min(length // 16 * 16, 8192)

    def __enter__(self) -> None:
        if self.size >= 320:
            self.before = np.setbufsize(self.size)

    def __exit__(self, *_: object) -> None:
        if self.size >= 320:
            np.setbufsize(self.before)


def elementwise(name: str | None, kernel: Kernel, *operands: Array) -> Array:
    """A new array of the operands' shape, filled by the compiled kernel ``name`` or by ``kernel(out, *operands)``."""
    first = operands[0]
    if not first.flags.c_contiguous and (in_order := memory_ordered(*operands)) is not None:
        views, back = in_order
        return elementwise(name, kernel, *views).transpose(back)
    if name is not None and _upcasts(name, first):
        found = fuse_kernel(name, *operands)
        return cast_like(elementwise(name, kernel, *map(upcast_half, operands)), first) if found is None else found
    out = empty(first.shape, first.dtype)
    if name is not None and run_rows(name, (out, *operands), first.size):
        return out
    if first.size <= BLOCK and first.ndim and not is_half(first):  # NumPy would turn 0-d arrays into scalars
        kernel(out, *operands)
    else:
        _in_blocks(kernel, out.reshape(-1), [o.reshape(-1) for o in operands], 1)
    return out


def along(name: str, kernel: Kernel, axis: int, *operands: Array) -> Array:
    """A new array, filled as by :func:`elementwise`, by a kernel of whole lines along an axis, its last argument.

    Lines along the last axis become the rows of a matrix. Otherwise the axes after it are merged into one, the last of
    three, and split into blocks if that is long.
    """
    first = operands[0]
    if _upcasts(name, first):
        return cast_like(along(name, kernel, axis, *map(upcast_half, operands)), first)
    out = empty(first.shape, first.dtype)
    if not first.size:
        return out
    length = first.shape[axis]
    if axis == first.ndim - 1:
        if run_rows(name, (out, *operands), first.size // length, length):
            return out
        if first.size <= BLOCK and not is_half(first):
            kernel(out, *operands, -1)
        else:
            lines = [o.reshape(-1, length) for o in operands]
            _in_blocks(lambda *pieces: kernel(*pieces, -1), out.reshape(-1, length), lines, length)
        return out
    if run_columns(name, (out, *operands), first.shape, axis):
        return out
    inner = math.prod(first.shape[axis + 1 :])
    target, *sources = (o.reshape(-1, length, inner) for o in (out, *operands))

    def over_lines(*pieces: Array) -> None:
        kernel(*pieces, 1)

    if length * inner <= BLOCK or inner < WIDE:
        _in_blocks(over_lines, target, sources, length * inner)
        return out
    step = max(WIDE, BLOCK // length)

    def part(start: int, stop: int) -> None:
        with RowBuffer(step):
            for i in range(len(target)):
                for begin in range(start, stop, step):
                    piece = (slice(i, i + 1), slice(None), slice(begin, min(begin + step, stop)))
                    _fill(over_lines, target[piece], [s[piece] for s in sources])

    parallel_for(part, inner, max(1, WORTH * inner // first.size))
    return out


def _upcasts(name: str, x: Array) -> bool:
    """Whether ``x`` holds 16-bit floats that the compiled kernel ``name`` computes in float32."""
    return is_half(x) and compiled.kernel(name) is not None


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
    if rows * (width or 1) < SHARED:
        fast(*starts, *rest, rows, *sizes)
        return True
    threads, steps = available(), [a.nbytes // rows for a in whole]
    if not options and len(starts) < (4 if width is None else 5):
        compiled.parallel_for(fast, starts, steps, rows, width or 0, threads)
        return True
    if (parallel := compiled.kernel(f"parallel_{name}")) is not None:
        parallel(*starts, *rest, rows, *sizes, compiled.portion(width or 0), threads)
        return True

    def part(start: int, stop: int) -> None:
        at = [address + start * step for address, step in zip(starts, steps, strict=True)]
        fast(*at, *rest, stop - start, *sizes)

    parallel_for(part, rows, max(1, WORTH // (width or 1)))
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
        worth = max(1, WORTH // length)
        parallel_for(lambda first, last: fast(*starts, 1, length, inner, first, last), inner, worth)
        return True
    steps = [a.nbytes // number for a in whole]

    def part(first: int, last: int) -> None:
        at = (start + first * step for start, step in zip(starts, steps, strict=True))
        fast(*at, last - first, length, inner, 0, inner)

    parallel_for(part, number, max(1, WORTH // (length * inner)))
    return True


def _fill(kernel: Kernel, target: Array, pieces: list[Array]) -> None:
    """Fill one block by ``kernel``; 16-bit floats in float32."""
    if is_half(target):
        buffer = np.empty(target.shape, np.float32)
        kernel(buffer, *map(upcast_half, pieces))
        fill(target, buffer)
    else:
        kernel(target, *pieces)


def _in_blocks(kernel: Kernel, target: Array, sources: list[Array], width: int) -> None:
    """Fill ``target`` in blocks of entries along the first axis, of ``width`` elements each."""
    rows = block_rows(len(target), width)

    def part(start: int, stop: int) -> None:
        with RowBuffer(target.shape[-1] if target.ndim > 1 else 0):
            for first in range(start, stop, rows):
                last = min(first + rows, stop)
                _fill(kernel, target[first:last], [s[first:last] for s in sources])

    parallel_for(part, len(target), max(1, WORTH // width))
