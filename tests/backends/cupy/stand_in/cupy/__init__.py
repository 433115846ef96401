"""A stand-in for CuPy on NumPy, for tests on machines without a GPU.

It offers only what ``surface.json`` records of the real CuPy, with the recorded signatures and loops. It is as strict
as CuPy: arrays are not converted to NumPy's or mixed with them, indices out of range wrap around, new memory holds
garbage, and calls that CuPy rejects raise. User-defined kernels are compiled by g++.
"""

from __future__ import annotations

import sys

import numpy as np
from cupy import _functions, _nccl, _ufuncs
from cupy._arrays import ndarray
from cupy._device import cuda, get_default_memory_pool, get_default_pinned_memory_pool, show_config
from cupy._functions import argwhere, ascontiguousarray, broadcast_arrays, fft, lib, linalg, matmul
from cupy._kernels import ElementwiseKernel, RawModule, ReductionKernel
from cupy._recording import Tape

__all__ = [
    "argwhere", "ascontiguousarray", "broadcast_arrays", "cuda", "dtype", "fft", "get_default_memory_pool",
    "get_default_pinned_memory_pool", "lib", "linalg", "matmul", "ndarray", "show_config", "ElementwiseKernel",
    "RawModule", "ReductionKernel", "Tape",
]  # fmt: skip
__version__ = _ufuncs.SURFACE["version"]
dtype = np.dtype
sys.modules["cupy.cuda.nccl"] = _nccl
for _name in _ufuncs.SURFACE["ufuncs"]:
    globals()[_name] = getattr(_ufuncs, _name)
for _name in _functions.BODIES:
    globals().setdefault(_name, getattr(_functions, _name))
