"""cuBLAS on host memory, which reads and writes by address, leading dimension and stride like the real library."""

from __future__ import annotations

import ctypes
from typing import Any

import cupy
import ml_dtypes
import numpy as np

TYPES = {
    2: np.dtype(np.float16), 14: np.dtype(ml_dtypes.bfloat16), 0: np.dtype(np.float32), 1: np.dtype(np.float64),
    4: np.dtype(np.complex64), 5: np.dtype(np.complex128),
}  # fmt: skip
#: The types with float64 parts, and the complex types.
DOUBLE, COMPLEX = (1, 5), (4, 5)
#: The dtype in which each cublasComputeType_t multiplies and accumulates.
COMPUTE = {68: np.float32, 77: np.float32, 70: np.float64}
#: The calls since the list was last emptied.
CALLS: list[tuple[Any, ...]] = []


def columns(address: int, dtype: np.dtype[Any], rows: int, count: int, leading: int) -> Any:
    """A column-major matrix at an address, as a view."""
    assert leading >= max(1, rows), f"CUBLAS_STATUS_INVALID_VALUE: leading dimension {leading} of {rows} rows"
    size = (count - 1) * leading + rows
    memory = (ctypes.c_char * (size * dtype.itemsize)).from_address(address)
    flat = np.frombuffer(memory, np.dtype(f"V{dtype.itemsize}")).view(dtype)
    return np.lib.stride_tricks.as_strided(flat, (rows, count), (dtype.itemsize, leading * dtype.itemsize))


def factor(address: int, compute: int, type_: int) -> complex:
    """The number at an address, complex for complex operands."""
    kind = ctypes.c_double if compute == 70 else ctypes.c_float
    real, imag = (kind * 2).from_address(address) if type_ in COMPLEX else (kind.from_address(address).value, 0.0)
    return complex(real, imag)


def gemmEx(  # noqa: N802 - CuPy's name
    handle, transa, transb, m, n, k, alpha, A, Atype, lda, B, Btype, ldb, beta, C, Ctype, ldc, computeType, algo
) -> None:
    gemmStridedBatchedEx(
        handle, transa, transb, m, n, k, alpha, A, Atype, lda, 0, B, Btype, ldb, 0, beta, C, Ctype, ldc, 0, 1,
        computeType, algo,
    )  # fmt: skip


def gemmStridedBatchedEx(  # noqa: N802 - CuPy's name
    handle, transa, transb, m, n, k, alpha, A, Atype, lda, strideA, B, Btype, ldb, strideB, beta, C, Ctype, ldc,
    strideC,
    batchCount, computeType, algo,
) -> None:  # fmt: skip
    cupy.Tape.refuse("cuBLAS")
    assert (computeType == 70) == (Ctype in DOUBLE)
    assert (Atype in COMPLEX) == (Btype in COMPLEX) == (Ctype in COMPLEX)
    assert computeType != 77 or Ctype == 0
    assert algo == -1
    CALLS.append((m, n, k, transa, transb, batchCount, Ctype, computeType))
    types, wide = (TYPES[t] for t in (Atype, Btype, Ctype)), TYPES[Ctype] if Ctype in COMPLEX else COMPUTE[computeType]
    a_type, b_type, c_type = types
    assert factor(alpha, computeType, Ctype) == 1.0
    assert factor(beta, computeType, Ctype) == 0.0
    for place in range(batchCount):
        a = columns(A + place * strideA * a_type.itemsize, a_type, *((k, m) if transa else (m, k)), lda)
        b = columns(B + place * strideB * b_type.itemsize, b_type, *((n, k) if transb else (k, n)), ldb)
        c = columns(C + place * strideC * c_type.itemsize, c_type, m, n, ldc)
        a, b = (o.T if turned else o for o, turned in ((a, transa), (b, transb)))
        with np.errstate(all="ignore"):
            c[...] = np.matmul(a.astype(wide), b.astype(wide)).astype(c_type)
