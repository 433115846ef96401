"""NumPy: working on large arrays block by block, so that the temporaries stay in the processor's cache.

A kernel gets a result to fill and operands of one shape; 16-bit floats come to it in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from backburn_numpy.memory import empty

Array = Any

# Elements of one block: some temporaries of this length fit into the second-level cache.
BLOCK = 1 << 15


def is_half(x: Array) -> bool:
    """Whether ``x`` is a 16-bit float, which is computed in float32."""
    return x.dtype.itemsize == 2 and x.dtype.kind not in "iu"


def elementwise(kernel: Callable[..., None], *operands: Array) -> Array:
    """A new array of the operands' common shape, filled by ``kernel(out, *operands)``."""
    first = operands[0]
    half = is_half(first)
    out = empty(first.shape, first.dtype)
    if first.size <= BLOCK and not half and first.ndim:  # of 0-d arrays NumPy would make scalars
        kernel(out, *operands)
        return out
    flat, sources = out.reshape(-1), [o.reshape(-1) for o in operands]
    wide = np.empty(min(flat.size, BLOCK), np.float32) if half else None
    for start in range(0, flat.size, BLOCK):
        target = flat[start : start + BLOCK]
        parts = [s[start : start + BLOCK] for s in sources]
        if wide is None:
            kernel(target, *parts)
        else:
            kernel(wide[: target.size], *(p.astype(np.float32) for p in parts))
            target[...] = wide[: target.size]
    return out


def along(kernel: Callable[..., None], axis: int, *operands: Array) -> Array:
    """Like :func:`elementwise`, for a ``kernel`` that needs whole lines of ``axis``, which is the last for it."""
    first = operands[0]
    half = is_half(first)
    out = empty(first.shape, first.dtype)
    if not first.size:
        return out
    if first.size <= BLOCK and not half:
        if axis == first.ndim - 1:
            kernel(out, *operands)
        else:
            kernel(np.moveaxis(out, axis, -1), *(np.moveaxis(o, axis, -1) for o in operands))
        return out
    length = first.shape[axis]
    if axis == first.ndim - 1:
        target, sources = out.reshape(-1, length), [o.reshape(-1, length) for o in operands]
    else:
        # Blocks are cut from the first axis that is not the kernel's.
        target, sources = np.moveaxis(out, axis, -1), [np.moveaxis(o, axis, -1) for o in operands]
        if first.ndim == 1:
            target, sources = target[None], [s[None] for s in sources]
    rows = max(1, BLOCK * len(target) // first.size)
    for start in range(0, len(target), rows):
        part = target[start : start + rows]
        parts = [s[start : start + rows] for s in sources]
        if half:
            wide = np.empty(part.shape, np.float32)
            kernel(wide, *(p.astype(np.float32) for p in parts))
            part[...] = wide
        else:
            kernel(part, *parts)
    return out
