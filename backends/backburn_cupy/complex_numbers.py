"""CuPy: complex numbers and their parts. Complex arrays are computed by CuPy, never by our kernels for floats."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from backburn_cupy.creation import NUMBERS, cast_scalar
from backburn_cupy.elementwise import unary

Array = Any

#: The dtype of complex numbers by that of their parts.
_COMPLEX = {"f": np.dtype(np.complex64), "d": np.dtype(np.complex128)}

conj = unary(cupy.conjugate)


def complex(k: Any, x: Array, y: Array, /) -> Array:
    parts = [part for part in (x, y) if part.__class__ not in NUMBERS]
    dtype = parts[0].dtype
    out = cupy.ndarray(np.broadcast_shapes(*(part.shape for part in parts)), _COMPLEX[dtype.char])
    for place, part in ((out.real, x), (out.imag, y)):
        place[...] = cast_scalar(part, dtype) if part.__class__ in NUMBERS else part
    return out


def real(k: Any, x: Array, /) -> Array:
    return x.real


def imag(k: Any, x: Array, /) -> Array:
    return x.imag
