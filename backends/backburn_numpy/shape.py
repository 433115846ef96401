"""NumPy: operations on the shape."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def reshape(x: Array, /, shape: tuple[int, ...]) -> Array:
    return x.reshape(shape)


def broadcast_to(x: Array, /, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(x, shape)
