"""NumPy: complex numbers and their parts. Complex arrays are computed by NumPy's functions, never by kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn_numpy.elementwise.ufuncs import unary
from backburn_numpy.implements import implements, register
from backburn_numpy.runtime.memory import empty

Array = Any

COMPLEX: dict[Any, Any] = {np.dtype(np.float32): np.dtype(np.complex64), np.dtype(np.float64): np.dtype(np.complex128)}

register("conj", unary(np.conjugate))


@implements("complex")
def complex(x: Array, y: Array, /) -> Array:
    parts = [part for part in (x, y) if part.__class__ is np.ndarray]
    out = empty(np.broadcast_shapes(*(part.shape for part in parts)), COMPLEX[parts[0].dtype])
    out.real, out.imag = x, y
    return out


@implements("real")
def real(x: Array, /) -> Array:
    return x.real


@implements("imag")
def imag(x: Array, /) -> Array:
    return x.imag


@implements("modulus")
def modulus(x: Array, /) -> Array:
    return np.hypot(x.real, x.imag, out=...)  # NumPy's absolute value of complex64 overflows on some processors


@implements("phase")
def phase(x: Array, /) -> Array:
    size = modulus(x)
    none = size == 0
    size[none] = 1
    out = empty(x.shape, x.dtype)
    np.divide(x.real, size, out=out.real)
    np.divide(x.imag, size, out=out.imag)
    out[none] = 0
    return out


@implements("angle")
def angle(x: Array, /) -> Array:
    return np.arctan2(x.imag, x.real, out=...)
