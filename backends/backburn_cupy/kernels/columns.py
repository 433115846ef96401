"""Launchers: im2col and col2im, for convolutions as products."""

from __future__ import annotations

import math
from typing import Any

from backburn_cupy.kernels import geometry
from backburn_cupy.kernels.runner import Runner
from backburn_cupy.kernels.sources import c_type
from backburn_cupy.kernels.windows import Windows, table

Array = Any


def columns(on: Runner, x: Array, windows: Windows) -> Array:
    """Windows of ``x`` (examples, channels, ...), as a matrix (channels * size, examples * positions)."""
    rows, length = x.shape[1] * math.prod(windows.size), x.shape[0] * math.prod(windows.places)
    out = on.xp.ndarray((rows, length), x.dtype)
    blocks = geometry.ceil_div(length, geometry.THREADS * geometry.pack(x.dtype.itemsize))
    # Passed by address, since it may be strided.
    arguments = (on.address(x), out, table(x, windows), blocks)
    on.run("columns", f"columns<{c_type(x)}>", rows * blocks, geometry.THREADS, *arguments)
    return out


def add_columns(on: Runner, matrix: Array, windows: Windows, out: Array) -> None:
    """Write the gradient of :func:`columns` to ``out``, which is contiguous; ``matrix`` has 32 bits or more."""
    launch = geometry.elements(out.size, 1)
    on.run("columns", f"add_columns<{c_type(out)}>", *launch, matrix, out, table(out, windows), out.size)
