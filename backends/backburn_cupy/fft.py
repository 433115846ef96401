"""CuPy: Fourier transforms, by cuFFT in 32 and 64 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy

from backburn.backend.host_numbers import RECORDING_STEP
from backburn.base.errors import CaptureError
from backburn.ops.table import shape_rule
from backburn_cupy.capture import keep
from backburn_cupy.creation import cast
from backburn_cupy.reduce import upcast_half

Array = Any

#: The cufftType of a transform, by input dtype.
TYPES = {"f": 0x2A, "d": 0x6A, "F": 0x2C, "D": 0x6C}


def rfft(k: Any, x: Array, /, axis: int) -> tuple[Array, Array]:
    if not x.size:  # cuFFT has no plan for it
        if not x.shape[axis]:
            raise ValueError("a Fourier transform of no elements")
        nothing = cupy.zeros((*x.shape[:axis], x.shape[axis] // 2 + 1, *x.shape[axis + 1 :]), x.dtype)
        return nothing, nothing
    result = _transform(cupy.fft.rfft, upcast_half(x), axis=axis)
    return cast(result.real, x.dtype), cast(result.imag, x.dtype)


def irfft(k: Any, real: Array, imag: Array, /, length: int, axis: int) -> Array:
    shape_rule("irfft")(real.shape, imag.shape, length=length, axis=axis)  # CuPy would truncate or zero-pad
    if not real.size:
        return cupy.zeros((*real.shape[:axis], length, *real.shape[axis + 1 :]), real.dtype)
    numbers = cupy.ndarray(real.shape, "D" if real.dtype.itemsize == 8 else "F")
    numbers.real[...] = real
    numbers.imag[...] = imag
    return cast(_transform(cupy.fft.irfft, numbers, length, axis=axis), real.dtype)


def _transform(transform: Callable[..., Array], x: Array, *length: int, axis: int) -> Array:
    """A transform by CuPy, which keeps a per-thread LRU cache of plans.

    A graph needs its plans' memory kept alive; and creating a plan during recording may abort the process.
    """
    if (recording := RECORDING_STEP.get()) is not None:
        size = x.shape[axis]
        kind = (*(length or (size,)), TYPES[x.dtype.char], x.size // size)
        plans = [node.plan for key, node in cupy.fft.config.get_plan_cache() if key[:3] == kind]
        if not plans:
            why = (
                f"CuPy keeps no plan for one of its Fourier transforms, of {kind[0]} elements: does the step have more "
                f"kinds of them than cupy.fft.config.get_plan_cache_size(), or has it run in another thread?"
            )
            raise recording.refuse(CaptureError(why))
        keep(plans)
    return transform(x, *length, axis=axis)
