"""Operands of launchers: the types that kernels take, structures passed by value."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from backburn_cupy.kernels.runner import Runner

Array = Any


def int64(on: Runner, indices: Array) -> Array:
    """Indices or labels as contiguous int64."""
    return on.xp.ascontiguousarray(indices.astype("int64", copy=False))


def sum_dtype(x: Array) -> str:
    """The dtype in which floats are computed and summed: float32 for 16 bits, else their own."""
    return "float64" if x.dtype.itemsize == 8 else "float32"


def structure(form: struct.Struct, *numbers: float) -> Array:
    """A structure of a kernel's source, with these numbers; of one field, since CuPy takes longer for more."""
    return np.frombuffer(form.pack(*numbers), np.dtype((np.void, form.size)))
