"""NumPy: max pooling, by a kernel or the contract's body."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backburn.ops.conv import Pairs
from backburn.ops.pool import pool_windows
from backburn.ops.table import OPERATIONS
from backburn_numpy import compiled, tuning
from backburn_numpy.elementwise.half_precision import cast_like, upcast_half
from backburn_numpy.implements import implements
from backburn_numpy.runtime.memory import contiguous, empty
from backburn_numpy.runtime.threads import parallel_for

Array = Any
Shape = tuple[int, ...]


@implements("max_pool", takes_backend=True)
def max_pool(
    k: Any,
    x: Array,
    /,
    size: Shape = (1,),
    stride: Shape = (1,),
    padding: Pairs = ((0, 0),),
    dilation: Shape = (1,),
    ceil_mode: bool = False,
) -> tuple[Array, Array]:
    places = x.shape[2:]
    counts, widths = pool_windows(places, size, stride, padding, dilation, ceil_mode, False)
    images = contiguous(upcast_half(x))
    kernel: Any = compiled.serving("max_pool", images)
    if kernel is None or 0 in counts or math.prod(places) >= 2**31:
        return OPERATIONS["max_pool"].body(k, x, size, stride, padding, dilation, ceil_mode)
    lead = (1,) * (3 - len(size))  # a sequence is a volume of one line
    before = tuple(first for first, _ in widths)
    numbers = [n for sizes in (places, counts, size, stride) for n in (*lead, *sizes)]
    geometry = np.array([*numbers, *(0 for _ in lead), *before, *lead, *dilation], np.int64)
    shape = (*x.shape[:2], *counts)
    out, index = empty(shape, images.dtype), empty(shape, np.dtype(np.int64))
    at = compiled.addresses(out, index, images, geometry)
    worth = max(1, tuning.MIN_WORK_FOR_SECOND_THREAD // math.prod(places))
    parallel_for(lambda first, last: kernel(*at, first, last), x.shape[0] * x.shape[1], worth)
    return cast_like(out, x), index
