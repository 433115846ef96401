"""NumPy: Fourier transforms, by its pocketfft in 32 and 64 bits."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from backburn.backend.fft import _irfft as check_shapes
from backburn_numpy.halves import narrowed, widened
from backburn_numpy.ufuncs import quietly

Array = Any


def _ufuncs() -> tuple[Any, Any] | None:
    """The ufuncs behind ``np.fft.rfft`` for an even and an odd length; None if NumPy has others by now."""
    try:
        module = import_module("numpy.fft._pocketfft_umath")
        return module.rfft_n_even, module.rfft_n_odd
    except (ImportError, AttributeError):
        return None


_RFFT = _ufuncs()


@quietly
def rfft(x: Array, /, axis: int) -> tuple[Array, Array]:
    result = _spectrum(widened(x), axis)
    return narrowed(result.real, x), narrowed(result.imag, x)


def _spectrum(x: Array, axis: int) -> Array:
    """``np.fft.rfft``, which passes an int for a factor of 1, so that all of float32 is computed in 64 bits."""
    if _RFFT is None or x.dtype != np.float32 or not (length := x.shape[axis]):
        return np.fft.rfft(x, axis=axis)
    out = np.empty((*x.shape[:axis], length // 2 + 1, *x.shape[axis + 1 :]), np.complex64)
    return _RFFT[length % 2](x, np.float32(1), out=out, axes=[(axis,), (), (axis,)])


@quietly
def irfft(real: Array, imag: Array, /, length: int, axis: int) -> Array:
    check_shapes(real.shape, imag.shape, length=length, axis=axis)  # NumPy would truncate or zero-pad
    numbers = np.empty(real.shape, np.complex128 if real.dtype.itemsize == 8 else np.complex64)
    numbers.real, numbers.imag = real, imag
    return narrowed(np.fft.irfft(numbers, length, axis=axis), real)
