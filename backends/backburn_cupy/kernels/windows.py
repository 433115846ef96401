"""Windows over the last axes of an array, as passed to kernels."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from backburn.ops.conv import Pairs
from backburn_cupy.kernels.operands import structure

Array = Any
Shape = tuple[int, ...]

#: The structure ``Windows`` of windows.cuh.
_FORM = struct.Struct("<25q")


class Windows(NamedTuple):
    """Windows over the last one to three axes: their size, number and positions."""

    size: Shape
    places: Shape
    stride: Shape
    padding: Pairs
    dilation: Shape


def table(x: Array, windows: Windows) -> Array:
    """The structure for windows on ``x`` (examples, channels, ...), with its strides."""
    more = 5 - x.ndim
    steps = [s // x.itemsize for s in x.strides]
    numbers = [*steps[:2], *[0] * more, *steps[2:]]
    before = tuple(b for b, _ in windows.padding)
    size, places, stride, _, dilation = windows
    for fill, values in ((1, x.shape[2:]), (1, size), (1, places), (1, stride), (1, dilation), (0, before)):
        numbers += [*[fill] * more, *values]
    return structure(_FORM, *numbers, *x.shape[:2])
