"""cuBLAS by its own interface, for products in a step that is being recorded: CuPy's refuses to be recorded.

All else goes through CuPy's. The functions here have the names and the arguments of CuPy's.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import cupy
import numpy as np

from backburn.base.errors import CaptureError

#: Bytes that cuBLAS may use for itself: what NVIDIA recommends for the largest devices.
WORKSPACE = 32 << 20

_I, _L, _P = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
_SIGNATURES = {
    "cublasCreate_v2": (_P,),
    "cublasSetStream_v2": (_P, _P),
    "cublasSetWorkspace_v2": (_P, _P, ctypes.c_size_t),
    "cublasGemmEx": (_P, _I, _I, _I, _I, _I, _P, _P, _I, _I, _P, _I, _I, _P, _P, _I, _I, _I, _I),
    "cublasGemmStridedBatchedEx": (
        _P, _I, _I, _I, _I, _I, _P, _P, _I, _I, _L, _P, _I, _I, _L, _P, _P, _I, _I, _L, _I, _I, _I,
    ),
}  # fmt: skip


@functools.cache
def library() -> Any:
    """The library that CuPy has loaded."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib  # which CuPy brings along

        return ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
    except Exception as cause:  # its errors are of several kinds
        raise CaptureError(f"cuBLAS does not load ({cause})") from cause


def call(name: str, *arguments: Any) -> None:
    """Call a function of the library; a status other than success becomes an error."""
    function = getattr(library(), name)
    function.argtypes, function.restype = _SIGNATURES[name], _I
    status = function(*arguments)
    if status:
        raise CaptureError(f"{name} of cuBLAS fails with status {status}")


@functools.cache
def handle(device: int) -> int:
    """A handle of the device's, apart from CuPy's. It is made before recording, which would forbid it."""
    made = ctypes.c_void_p()
    call("cublasCreate_v2", ctypes.addressof(made))
    assert made.value is not None
    return made.value


def prepare(device: int, stream: Any) -> Any:
    """Let products go to ``stream``, with a workspace that is returned and must live as long as the recording."""
    workspace = cupy.empty((WORKSPACE,), np.uint8)
    call("cublasSetStream_v2", handle(device), stream.ptr)  # which takes any workspace away
    call("cublasSetWorkspace_v2", handle(device), workspace.data.ptr, WORKSPACE)
    return workspace


def gemmEx(_: int, *arguments: Any) -> None:  # noqa: N802 - cuBLAS's name
    call("cublasGemmEx", handle(cupy.cuda.runtime.getDevice()), *arguments)


def gemmStridedBatchedEx(_: int, *arguments: Any) -> None:  # noqa: N802 - cuBLAS's name
    call("cublasGemmStridedBatchedEx", handle(cupy.cuda.runtime.getDevice()), *arguments)
