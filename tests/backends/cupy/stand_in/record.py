"""Writes ``surface.json``: the real CuPy's signatures of functions and loops of ufuncs that the backend uses.

Run ``python tests/backends/cupy/stand_in/record.py`` where CuPy is installed, with or without a GPU. The stand-in
offers nothing else, takes no other arguments, and resolves dtypes by these loops; a test compares the file with the
installed CuPy.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "surface.json"

_UFUNCS = """
    absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and bitwise_or bitwise_xor ceil conjugate
    copysign cos cosh equal exp exp2 expm1 floor floor_divide greater greater_equal hypot invert isfinite isinf
    isnan left_shift less less_equal log log1p log2 logaddexp logical_and logical_not logical_or logical_xor maximum
    minimum multiply negative nextafter not_equal power reciprocal remainder right_shift rint sign signbit sin sinh
    sqrt square subtract tan tanh true_divide trunc
"""
_FUNCTIONS = """
    all any arange argmax argmin argsort argwhere array ascontiguousarray broadcast_arrays broadcast_to
    concatenate cumprod cumsum flip full moveaxis prod stack sum take tril zeros fft.irfft fft.rfft
    lib.stride_tricks.as_strided linalg.eig linalg.eigh linalg.qr linalg.solve linalg.svd
"""
_MEMBERS = """
    dtype ndarray ElementwiseKernel ReductionKernel RawModule matmul get_default_memory_pool
    get_default_pinned_memory_pool show_config cuda.Device cuda.Stream cuda.get_current_stream
    cuda.device.get_cublas_handle cuda.device.get_cusolver_handle cuda.runtime.getDeviceCount
    cuda.runtime.memGetInfo cuda.runtime.driverGetVersion cuda.runtime.runtimeGetVersion
    cuda.runtime.CUDARuntimeError cuda.memory.OutOfMemoryError cuda.compiler.CompileException cuda.Device.attributes
    ndarray.astype ndarray.copy ndarray.data ndarray.device ndarray.diagonal ndarray.dtype ndarray.fill
    ndarray.flags ndarray.get ndarray.imag ndarray.itemsize ndarray.nbytes ndarray.ndim ndarray.real ndarray.reshape
    ndarray.shape ndarray.size ndarray.strides ndarray.transpose ndarray.view cuda.MemoryPool cuda.using_allocator
    cuda.Stream.begin_capture cuda.Stream.end_capture cuda.Event cuda.alloc_pinned_memory cuda.Graph.debug_dot_str
    cuda.Graph.launch cuda.Event.done cuda.Event.record cuda.Event.synchronize cuda.MemoryPool.total_bytes ndarray.set
    cuda.Memory cuda.MemoryPointer cuda.MemoryPool.set_limit cuda.MemoryPool.free_all_blocks cuda.MemoryPool.malloc
    cuda.Device.compute_capability fft.config.get_plan_cache fft.config.get_plan_cache_size
"""
UFUNCS, FUNCTIONS, MEMBERS = _UFUNCS.split(), _FUNCTIONS.split(), _MEMBERS.split()


def member(module: Any, path: str) -> Any:
    """The object with a dotted name in CuPy."""
    for part in path.split("."):
        module = getattr(module, part)
    return module


def surface() -> dict[str, Any]:
    """The part of the installed CuPy that the backend uses."""
    import cupy
    import ml_dtypes  # noqa: F401 - makes CuPy know bfloat16

    def parameters(name: str) -> list[list[Any]]:
        found = inspect.signature(member(cupy, name)).parameters.values()
        return [[p.name, p.kind.name, None if p.default is p.empty else repr(p.default)] for p in found]

    return {
        "version": cupy.__version__,
        "ufuncs": {name: list(member(cupy, name).types) for name in UFUNCS},
        "functions": {name: parameters(name) for name in FUNCTIONS},
        "members": [name for name in MEMBERS if member(cupy, name) is not None],
    }


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose cupy is the stand-in
    FILE.write_text(json.dumps(surface(), indent=1).replace("\n   ", " ").replace("\n  ]", " ]") + "\n")
