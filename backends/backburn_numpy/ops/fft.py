"""NumPy: Fourier transforms, by its pocketfft in 32 and 64 bits."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from backburn.ops.fft import _fft as check_pair
from backburn.ops.fft import _irfft as check_shapes
from backburn_numpy.elementwise.half_precision import cast_like, upcast_half
from backburn_numpy.implements import implements
from backburn_numpy.runtime.quiet import quietly

Array = Any


def _ufuncs() -> Any:
    """The ufuncs behind ``np.fft``; None if this NumPy has other ones."""
    try:
        module = import_module("numpy.fft._pocketfft_umath")
        return module if all(hasattr(module, name) for name in NAMES) else None
    except ImportError:
        return None


NAMES = ("rfft_n_even", "rfft_n_odd", "irfft", "fft")
UFUNCS = _ufuncs()


@implements("rfft")
@quietly
def rfft(x: Array, /, axis: int) -> tuple[Array, Array]:
    result = _spectrum(upcast_half(x), axis)
    return cast_like(result.real, x), cast_like(result.imag, x)


def _spectrum(x: Array, axis: int) -> Array:
    """``np.fft.rfft``, but float32 in 32 bits: NumPy passes its factor of 1 as an int, which selects 64."""
    if UFUNCS is None or x.dtype != np.float32 or not (length := x.shape[axis]):
        return np.fft.rfft(x, axis=axis)
    out = np.empty((*x.shape[:axis], length // 2 + 1, *x.shape[axis + 1 :]), np.complex64)
    return _along(UFUNCS.rfft_n_odd if length % 2 else UFUNCS.rfft_n_even, x, 1, out, axis)


def _along(ufunc: Any, x: Array, factor: float, out: Array, axis: int) -> Array:
    return ufunc(x, out.real.dtype.type(factor), out=out, axes=[(axis,), (), (axis,)])


def _complex(real: Array, imag: Array) -> Array:
    numbers = np.empty(real.shape, np.complex128 if real.dtype.itemsize == 8 else np.complex64)
    numbers.real, numbers.imag = real, imag
    return numbers


@implements("irfft")
@quietly
def irfft(real: Array, imag: Array, /, length: int, axis: int) -> Array:
    check_shapes(real.shape, imag.shape, length=length, axis=axis)  # NumPy would truncate or zero-pad
    numbers = _complex(real, imag)
    if UFUNCS is None:
        return cast_like(np.fft.irfft(numbers, length, axis=axis), real)
    out = np.empty((*real.shape[:axis], length, *real.shape[axis + 1 :]), numbers.real.dtype)
    return cast_like(_along(UFUNCS.irfft, numbers, 1 / length, out, axis), real)


@implements("fft")
@quietly
def fft(real: Array, imag: Array, /, axis: tuple[int, ...]) -> tuple[Array, Array]:
    check_pair(real.shape, imag.shape, axis=axis)
    numbers = _complex(real, imag)
    for a in axis:
        numbers = np.fft.fft(numbers, axis=a) if UFUNCS is None else _along(UFUNCS.fft, numbers, 1, numbers, a)
    return cast_like(numbers.real, real), cast_like(numbers.imag, real)
