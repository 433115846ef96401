"""NumPy: Fourier transforms, by its pocketfft in 32 and 64 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn.backend.fft import _irfft as check_shapes
from backburn_numpy.halves import narrowed, widened
from backburn_numpy.ufuncs import quietly

Array = Any


@quietly
def rfft(x: Array, /, axis: int) -> tuple[Array, Array]:
    result = np.fft.rfft(widened(x), axis=axis)
    return narrowed(result.real, x), narrowed(result.imag, x)


@quietly
def irfft(real: Array, imag: Array, /, length: int, axis: int) -> Array:
    check_shapes(real.shape, imag.shape, length=length, axis=axis)  # NumPy would truncate or zero-pad
    numbers = np.empty(real.shape, np.complex128 if real.dtype.itemsize == 8 else np.complex64)
    numbers.real, numbers.imag = real, imag
    return narrowed(np.fft.irfft(numbers, length, axis=axis), real)
