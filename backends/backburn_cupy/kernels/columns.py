"""Launchers: the windows of an array as the columns of a matrix, for convolutions as products."""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

import numpy as np

from backburn.backend.conv import Pairs
from backburn_cupy.kernels import geometry
from backburn_cupy.kernels.runner import Runner
from backburn_cupy.kernels.sources import c_type

Array = Any
Shape = tuple[int, ...]

#: The structure ``Windows`` of columns.cu.
_FORM = struct.Struct("<25q")
_TYPE = np.dtype([("windows", np.uint8, _FORM.size)])


class Windows(NamedTuple):
    """How windows lie on the last one to three axes: the size of one, how many there are, and where."""

    size: Shape
    places: Shape
    stride: Shape
    padding: Pairs
    dilation: Shape


def columns(on: Runner, x: Array, windows: Windows) -> Array:
    """Windows of ``x`` (examples, channels, ...), as a matrix (channels * size, examples * places)."""
    rows, length = x.shape[1] * math.prod(windows.size), x.shape[0] * math.prod(windows.places)
    out = on.xp.empty((rows, length), x.dtype)
    blocks = geometry.ceil_div(length, geometry.THREADS * geometry.pack(x.dtype.itemsize))
    # By its address, since it may have gaps.
    arguments = (on.address(x), out, _table(x, windows), blocks)
    on.run("columns", f"columns<{c_type(x)}>", rows * blocks, geometry.THREADS, *arguments)
    return out


def add_columns(on: Runner, matrix: Array, windows: Windows, out: Array) -> None:
    """Write to ``out``, without gaps, what :func:`columns` does to gradients; ``matrix`` has 32 bits or more."""
    launch = geometry.elements(out.size, 1)
    on.run("columns", f"add_columns<{c_type(out)}>", *launch, matrix, out, _table(out, windows), out.size)


def _table(x: Array, windows: Windows) -> Array:
    """The structure for windows on ``x``."""
    more = 5 - x.ndim
    steps = [s // x.itemsize for s in x.strides]
    numbers = [*steps[:2], *[0] * more, *steps[2:]]
    before = tuple(b for b, _ in windows.padding)
    size, places, stride, _, dilation = windows
    for fill, values in ((1, x.shape[2:]), (1, size), (1, places), (1, stride), (1, dilation), (0, before)):
        numbers += [*[fill] * more, *values]
    return np.frombuffer(_FORM.pack(*numbers, *x.shape[:2]), _TYPE)
