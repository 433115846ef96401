"""Launchers: linear recurrences."""

from __future__ import annotations

import math
from typing import Any

from backburn.ops.bodies.scalars import is_scalar
from backburn.ops.scan import scan_shape
from backburn_cupy.kernels import geometry
from backburn_cupy.kernels.runner import Runner
from backburn_cupy.kernels.sources import c_type

Array = Any

#: Threads per block, one line each.
BLOCK = 128


def ssm_scan(
    on: Runner, a: Array, b: Array | float, x: Array, h0: Array | None = None, /, axis: int = 0, reverse: bool = False
) -> Array:
    factor = float(b) if is_scalar(b) else 1.0
    array_b = None if is_scalar(b) else b
    shape = scan_shape(
        a.shape, None if array_b is None else array_b.shape, x.shape, None if h0 is None else h0.shape, axis=axis
    )
    if 0 in shape:
        return on.xp.ndarray(shape, x.dtype)
    operands: list[Array] = [None if o is None else on.xp.broadcast_to(o, shape) for o in (a, array_b, x)]
    state = (*shape[:axis], *shape[axis + 1 :])
    # For coalesced reads, time goes first unless the axes after it are long enough.
    to = axis if math.prod(shape[axis + 1 :]) >= geometry.WARP else 0
    operands = [None if o is None else on.xp.ascontiguousarray(on.xp.moveaxis(o, axis, to)) for o in operands]
    first = None if h0 is None else on.xp.ascontiguousarray(on.xp.broadcast_to(h0, state))
    moved = operands[0].shape
    out = on.xp.ndarray(moved, x.dtype)
    outer, inner = math.prod(moved[:to]), math.prod(moved[to + 1 :])
    on.run(
        "scan", f"ssm_scan<{c_type(x)}>", geometry.ceil_div(outer * inner, BLOCK), BLOCK,
        *operands, first, out, outer, moved[to], inner, factor, int(reverse),
    )  # fmt: skip
    return on.xp.moveaxis(out, to, axis)
