"""Compiles the backend's element-wise kernels and reductions with NVRTC; needs no GPU.

Run ``python tests/backends/cupy/stand_in/compile_kernels.py sm_90`` where CuPy, NVRTC and CUDA's headers are
installed. It prints one line per kernel and dtype, and exits with status 1 if one does not compile. CuPy generates the
sources, through private functions that only this test uses.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
EVERY = (*FLOATS, *INTS, "bool")
COMPLEX = ("complex64", "complex128")
#: The kernels that move elements of every dtype.
MOVING = ("backburn_where", "backburn_read_32", "backburn_read_64", "backburn_write")
MODULES = ("selection", "creation", "elementwise", "faults", "index", "reduce", "special")


def dtype(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def widths(name: str) -> tuple[str, ...]:
    """The dtypes that a kernel is used for."""
    if name.startswith("backburn_add_"):
        return (name.split("_")[2],)
    if "combine" in name:
        return ("float32", "float64", "int32", "uint32", "int64", "uint64")
    if name.endswith("_float") or name == "backburn_order32":
        return ("float16", "bfloat16", "float32")
    if name.endswith("_double") or name == "backburn_order64":
        return ("float64",)
    if name == "backburn_next_half":
        return ("float16",)
    if "fmod_int" in name:
        return INTS
    if name in ("backburn_larger", "backburn_smaller"):
        return (*FLOATS, *INTS)
    return (*EVERY, *COMPLEX) if name in MOVING else EVERY


def kernels() -> dict[str, Any]:
    """Every kernel of the backend's modules."""
    import cupy

    for module in MODULES:
        importlib.import_module(f"backburn_cupy.{module}")
    import backburn_cupy.index as index

    made = []
    for long in (False, True):
        made += [index._kernel(*parts, long) for parts in (index._READ, index._PLACE)]
        made += [index._kernel(f"add_{t}", "T x", "raw T out", code, "", long) for t, code in index._ADD.items()]
    import gc

    kinds = (cupy.ElementwiseKernel, cupy.ReductionKernel)
    made += [o for o in gc.get_objects() if isinstance(o, kinds) and o.name.startswith("backburn_")]
    found: dict[str, Any] = {}
    for kernel in made:
        found.setdefault(kernel.name, kernel)
    return found


def source(kernel: Any, variable: np.dtype[Any], index: str = "int64", contiguous: bool = True) -> str:
    """The text that CuPy compiles for a kernel whose type variables are ``variable`` (and ``I`` an index type)."""
    import cupy
    from cupy._core import _carray, _kernel, _reduction, _scalar

    array, indexer, scalar = 1, 2, 3
    pairs: dict[str, Any] = {}
    infos = []
    for p in (*kernel.in_params, *kernel.out_params):
        if p.dtype is None:
            pairs[p.ctype] = np.dtype(index).type if p.ctype == "I" else variable.type
        kind = np.dtype(pairs[p.ctype]) if p.dtype is None else np.dtype(p.dtype)
        is_number = not p.raw and p.dtype is not None and p.name in NUMBERS
        rank = 1 if contiguous else 3
        infos.append(
            _kernel._ArgInfo(scalar, _scalar.CScalar, kind, 0, True, True)
            if is_number
            else _kernel._ArgInfo(array, cupy.ndarray, kind, rank, contiguous, True)
        )
    rank = 1 if contiguous else 3
    if isinstance(kernel, cupy.ReductionKernel):
        pairs["IndexT"] = np.int64
    types = _kernel._TypeMap(tuple(sorted(pairs.items())))
    if isinstance(kernel, cupy.ReductionKernel):
        more = "CIndexer _in_ind, CIndexer _out_ind"
        infos += [_kernel._ArgInfo(indexer, _carray.Indexer, None, rank, True, True)] * 2
        more += ", int32 _block_stride"
        infos.append(_kernel._ArgInfo(scalar, _scalar.CScalar, np.dtype(np.int32), 0, True, True))
        params = (*kernel.in_params, *kernel.out_params, *_kernel._get_param_info(more, False))
        return _reduction._ReductionKernel_get_cached_function_code(
            kernel.nin, kernel.nout, params, tuple(infos), types, kernel.name, 512, kernel.reduce_type, "",
            kernel.map_expr, kernel.reduce_expr, kernel.post_map_expr, kernel.preamble, (),
        )  # fmt: skip
    infos.append(_kernel._ArgInfo(indexer, _carray.Indexer, None, rank, True, True))
    params = (*kernel.in_params, *kernel.out_params, *_kernel._get_param_info("CIndexer _ind", False))
    return _kernel._get_elementwise_kernel_code(
        tuple(infos), types, params, kernel.operation, kernel.name, kernel.preamble
    )


#: The parameters that are scalars in every call.
NUMBERS = {
    "kind", "length", "count", "after", "nothing", "size", "falling", "nan_first",
}  # fmt: skip


def compile_all(architecture: str) -> int:
    """Compile every kernel for an architecture such as ``sm_90``; returns how many fail."""
    from cupy._core import core
    from cupy.cuda import compiler

    header = "".join(f"#include <{name}>\n" for name in core._cupy_header_list)
    options = (*core.assemble_cupy_compiler_options(()), f"-arch={architecture}", "-ftz=true", *headers())
    failed = 0
    for name, kernel in kernels().items():
        for width in widths(name):
            for contiguous in (True, False):
                text = source(kernel, dtype(width), contiguous=contiguous)
                program = compiler._NVRTCProgram(header + text, f"{name}.cu", method="cubin")
                try:
                    program.compile(options)
                except Exception as error:
                    failed += 1
                    print(f"FAIL {name} {width}: {str(error)[:1500]}")
                else:
                    print(f"ok {name} {width}")
    return failed


def headers() -> list[str]:
    """Options with the folders of CUDA's headers from pip packages."""
    nvidia = importlib.import_module("nvidia")
    folders = [folder for root in nvidia.__path__ for folder in Path(root).glob("*/include")]
    return [f"-I{folder}" for folder in folders if (folder / "cuda_fp16.h").exists()]


if __name__ == "__main__":
    sys.exit(1 if compile_all(sys.argv[1] if len(sys.argv) > 1 else "sm_90") else 0)
