"""CuPy's and CUDA's errors as backburn's: with the operation, the memory state, and what to do."""

from __future__ import annotations

import os
from typing import Any

import cupy
import numpy as np

from backburn.base.errors import (
    BackburnError,
    BackendMismatchError,
    BackendUnavailableError,
    DeviceError,
    DeviceMemoryError,
)
from backburn_cupy.capture import flatten, refusal
from backburn_cupy.detect import DISTRIBUTIONS, LIBRARIES, first_line, installed

#: The exceptions of CUDA's libraries, looked up by name, since importing them may fail.
LIBRARY_ERRORS = (
    "CUDARuntimeError",
    "CUDADriverError",
    "CUBLASError",
    "CUDNNError",
    "CUSOLVERError",
    "CuFFTError",
    "CURANDError",
    "NVRTCError",
)


def translate_error(name: str, operands: tuple[Any, ...], error: Exception, *, device: int, process: int) -> Exception:
    """Our error for ``error`` in operation ``name``, or ``error`` itself if there is nothing to add.

    ``process`` is the one that created the backend.
    """
    if isinstance(error, BackburnError):
        return error
    if process != os.getpid():
        return DeviceError(
            f"{name}: CUDA was used before this process was forked, and cannot be used in it. Start processes with "
            f"multiprocessing.get_context('spawn'), or make the backend in them only"
        )
    if (refused := refusal(name, error)) is not None:
        return refused
    if name != "from_numpy" and (mixed := find_misplaced(operands, device)) is not None:
        return BackendMismatchError(f"{name}: {mixed}")
    if isinstance(error, MemoryError):
        what = f"{name}: the memory of cuda:{device} is exhausted"
        return DeviceMemoryError(f"{what}: {first_line(error)}. {memory(device)}")
    if isinstance(error, cupy.cuda.compiler.CompileException):
        return DeviceError(f"{name}: a kernel does not compile: {first_line(error)}. {versions()}")
    if type(error).__name__ in LIBRARY_ERRORS:
        return DeviceError(
            f"{name}: {first_line(error)} (cuda:{device}). An error of the device may stem from an earlier call: "
            f"BACKBURN_CUPY_DEBUG=1 waits for each. After an illegal access the process has to be started anew"
        )
    if isinstance(error, ImportError) or "CUDA_PATH" in str(error) or "DynamicLib" in type(error).__name__:
        distribution = next(iter(installed()), DISTRIBUTIONS[0])
        advice = LIBRARIES.format(distribution=distribution)
        return BackendUnavailableError(f"{name}: a part of CUDA is missing: {first_line(error)}. {advice}")
    return error


def find_misplaced(operands: tuple[Any, ...], device: int) -> str | None:
    """A message if the operands are not all on ``device``, or None."""
    for x in flatten(operands):
        if isinstance(x, (np.ndarray, np.generic)):
            return (
                f"an operand {x.dtype}{list(x.shape)} is in host memory. "
                "Nothing is copied implicitly: from_numpy (bb.asarray) copies it to the device"
            )
        if isinstance(x, cupy.ndarray) and x.device.id != device:
            return (
                f"an operand {x.dtype}{list(x.shape)} is on cuda:{x.device.id} and the backend on cuda:{device}. "
                f"Nothing is copied implicitly: write .to('cupy:{device}')"
            )
    return None


def memory(device: int) -> str:
    """The state of a device's memory in words, and what may help."""
    used, held = pool_bytes()
    try:
        free, total = cupy.cuda.runtime.memGetInfo()
        device_words = f"Of {gigabytes(total)} on the device {gigabytes(free)} are free; "
    except Exception:  # the query may fail like the operation did
        device_words = ""
    return (
        f"{device_words}arrays of this process take {gigabytes(used)}, and {gigabytes(held - used)} more are held for "
        f"reuse. A smaller batch, checkpoint(...), or memory_cleanup() of the backend may help"
    )


def pool_bytes() -> tuple[int, int]:
    """Bytes in use and held by CuPy's pool on the current device."""
    pool = cupy.get_default_memory_pool()
    return int(pool.used_bytes()), int(pool.total_bytes())


def gigabytes(count: int) -> str:
    """A number of bytes in words."""
    return f"{count / 2**30:.2f} GiB"


def versions() -> str:
    """The versions that matter to a kernel that does not compile."""
    return (
        f"CuPy {cupy.__version__}, CUDA {cupy.cuda.runtime.runtimeGetVersion()}: the headers must be those of the "
        f"compiler's version, see cupy.show_config()"
    )
