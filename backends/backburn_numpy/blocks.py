"""NumPy: working on large arrays block by block, so that the temporaries stay in the processor's cache.

A kernel gets a result to fill and operands of one shape; 16-bit floats come to it in float32. Large results stand on
recycled memory, and very large ones are computed in several threads. Where :mod:`backburn_numpy.compiled` has a kernel
of the same name (without the underscore), large float32 operands go to that one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from backburn_numpy import compiled
from backburn_numpy.halves import fill, is_half, narrowed, widened
from backburn_numpy.memory import aligned, empty
from backburn_numpy.threads import WORTH_A_THREAD, available, for_parts, num_threads

Array = Any
Kernel = Callable[..., None]

#: Elements of one block: some temporaries of this length fit into the second-level cache.
BLOCK = 1 << 16

#: From this many elements on a second thread pays: a kernel does several times the work of one ufunc.
WORTH = WORTH_A_THREAD >> 2


#: The same for a kernel whose threads the interpreter does not know: work goes to and fro in 5 us.
SHARED = 1 << 15

#: Where blocks are cut from columns, they have at least so many.
WIDE = 256


class _Kept(threading.local):
    """The temporaries of a thread, which are kept for the next block and the next operation."""

    def __init__(self) -> None:
        self.bytes: dict[int, Array] = {}


_kept = _Kept()


def scratch(like: Array, slot: int = 0) -> Array:
    """An uninitialised temporary of the shape and dtype of ``like``, the thread's own until it asks for it again.

    A kernel that needs several at once takes them from different slots.
    """
    size = like.nbytes
    if size > 24 * BLOCK:
        return empty(like.shape, like.dtype)
    kept = _kept.bytes.get(slot)
    if kept is None or kept.size < size:
        kept = _kept.bytes[slot] = aligned(24 * BLOCK)
    return np.ndarray(like.shape, like.dtype, kept)


def block_rows(count: int, width: int) -> int:
    """How many of ``count`` rows of ``width`` elements make a block.

    Three times as many where there are several threads: after each call of NumPy a thread has to wait for the others'
    Python, which takes as long as a call on a block of this size, so that fewer calls pay more than the nearest cache.
    """
    size = BLOCK if num_threads() == 1 or count * width < 6 * BLOCK else 3 * BLOCK
    return max(1, size // max(width, 1))


class Lines:
    """A context in which ufuncs combine rows of ``length`` with a column or a row without copying these.

    A ufunc copies an operand that is broadcast into its buffer, over as many rows as fit into it, which takes longer
    than the arithmetic; it does not where the buffer takes no more than one row. Short rows are better copied.
    """

    __slots__ = ("before", "size")

    def __init__(self, length: int) -> None:
        self.size = min(length // 16 * 16, 8192)

    def __enter__(self) -> None:
        if self.size >= 192:
            self.before = np.setbufsize(self.size)

    def __exit__(self, *_: object) -> None:
        if self.size >= 192:
            np.setbufsize(self.before)


def elementwise(kernel: Kernel, *operands: Array) -> Array:
    """A new array of the operands' common shape, filled by ``kernel(out, *operands)``."""
    first = operands[0]
    if _is_for_kernels(kernel, first):
        return narrowed(elementwise(kernel, *map(widened, operands)), first)
    out = empty(first.shape, first.dtype)
    if in_parts(kernel.__name__[1:], (out, *operands), first.size):
        return out
    if first.size <= BLOCK and first.ndim and not is_half(first):  # of 0-d arrays NumPy would make scalars
        kernel(out, *operands)
    else:
        _in_blocks(kernel, out.reshape(-1), [o.reshape(-1) for o in operands], 1)
    return out


def along(kernel: Kernel, axis: int, *operands: Array) -> Array:
    """Like :func:`elementwise`, for ``kernel(out, *operands, axis)`` that needs whole lines of an axis.

    Lines of the last axis become the rows of a matrix. Otherwise what lies behind the axis is one axis as well, the
    last of three, and is cut into blocks if it is long.
    """
    first = operands[0]
    if _is_for_kernels(kernel, first):
        return narrowed(along(kernel, axis, *map(widened, operands)), first)
    out = empty(first.shape, first.dtype)
    if not first.size:
        return out
    length, inner = first.shape[axis], math.prod(first.shape[axis + 1 :])
    if axis == first.ndim - 1:
        if in_parts(kernel.__name__[1:], (out, *operands), first.size // length, length):
            return out
        if first.size <= BLOCK and not is_half(first):
            kernel(out, *operands, -1)
        else:
            lines = [o.reshape(-1, length) for o in operands]
            _in_blocks(lambda *pieces: kernel(*pieces, -1), out.reshape(-1, length), lines, length)
        return out
    target, *sources = (o.reshape(-1, length, inner) for o in (out, *operands))

    def over_lines(*pieces: Array) -> None:
        kernel(*pieces, 1)

    if length * inner <= BLOCK or inner < WIDE:
        _in_blocks(over_lines, target, sources, length * inner)
        return out
    step = max(WIDE, BLOCK // length)

    def part(start: int, stop: int) -> None:
        with Lines(step):
            for i in range(len(target)):
                for begin in range(start, stop, step):
                    piece = (slice(i, i + 1), slice(None), slice(begin, min(begin + step, stop)))
                    _fill(over_lines, target[piece], [s[piece] for s in sources])

    for_parts(part, inner, max(1, WORTH * inner // first.size))
    return out


def _is_for_kernels(kernel: Kernel, x: Array) -> bool:
    """Whether ``x`` is of 16-bit floats, for which a compiled kernel of float32 serves."""
    return is_half(x) and x.size >= compiled.SMALL and compiled.kernel(kernel.__name__[1:]) is not None


def in_parts(name: str, arrays: Sequence[Array], rows: int, width: int | None = None, *options: Any) -> bool:
    """Call the compiled kernel of that name, in several threads if it pays. Says no where there is none for ``arrays``.

    It gets the addresses of the arrays, of which the first is filled; ``options``, of which arrays go to every thread
    as a whole; and the sizes: all have ``rows`` rows of ``width`` elements, or so many elements without one (and one of
    a single number is the same for all). What is read need not be contiguous.
    """
    fast = compiled.serving(name, arrays[0])
    if fast is None:
        return False
    whole = [a if a.flags.c_contiguous else np.ascontiguousarray(a) for a in arrays]
    starts = [compiled.address(a) for a in whole]
    rest, kept = [], []
    for option in options:
        if isinstance(option, np.ndarray):
            kept.append(np.ascontiguousarray(option))
            option = compiled.address(kept[-1])
        rest.append(option)
    sizes = () if width is None else (width,)
    if rows * (width or 1) < SHARED:
        fast(*starts, *rest, rows, *sizes)
        return True
    threads, steps = available(), [a.nbytes // rows for a in whole]
    if not options and len(starts) < (4 if width is None else 5):
        compiled.share(fast, starts, steps, rows, width or 0, threads)
        return True
    if (shared_by_itself := compiled.kernel(f"share_{name}")) is not None:
        shared_by_itself(*starts, *rest, rows, *sizes, compiled.portion(width or 0), threads)
        return True

    def part(start: int, stop: int) -> None:
        at = [address + start * step for address, step in zip(starts, steps, strict=True)]
        fast(*at, *rest, stop - start, *sizes)

    for_parts(part, rows, max(1, WORTH // (width or 1)))
    return True


def _fill(kernel: Kernel, target: Array, pieces: list[Array]) -> None:
    """Let ``kernel`` fill one block; 16-bit floats in float32."""
    if is_half(target):
        buffer = np.empty(target.shape, np.float32)
        kernel(buffer, *map(widened, pieces))
        fill(target, buffer)
    else:
        kernel(target, *pieces)


def _in_blocks(kernel: Kernel, target: Array, sources: list[Array], width: int) -> None:
    """Fill ``target``, whose entries along the first axis have ``width`` elements, a block of entries at a time."""
    rows = block_rows(len(target), width)

    def part(start: int, stop: int) -> None:
        with Lines(target.shape[-1] if target.ndim > 1 else 0):
            for first in range(start, stop, rows):
                last = min(first + rows, stop)
                _fill(kernel, target[first:last], [s[first:last] for s in sources])

    for_parts(part, len(target), max(1, WORTH // width))
