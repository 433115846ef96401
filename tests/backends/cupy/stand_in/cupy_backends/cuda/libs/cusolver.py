"""The part of cuSOLVER that is called directly: in-place column-major Cholesky, with its status in memory."""

from __future__ import annotations

import ctypes
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.libs.cublas import columns


def _factorize(kind: Any, uplo: int, n: int, address: int, lda: int, info: int) -> None:
    cupy.Tape.refuse("cuSOLVER")
    assert uplo == 1  # the upper triangle in column-major order
    matrix = columns(address, np.dtype(kind), n, n, lda)
    report = 0
    for j in range(n):
        pivot = matrix[j, j].real - (np.abs(matrix[:j, j]) ** 2).sum()
        if not pivot > 0:
            report = j + 1  # the rest is unchanged, and may look like a factor
            break
        matrix[j, j] = np.sqrt(pivot)
        for i in range(j + 1, n):
            matrix[j, i] = (matrix[j, i] - (np.conj(matrix[:j, j]) * matrix[:j, i]).sum()) / matrix[j, j]
    ctypes.c_int.from_address(info).value = report


def _single(kind: Any) -> Any:
    def potrf(handle, uplo, n, A, lda, work, lwork, devInfo) -> None:
        assert lwork > 0
        _factorize(kind, uplo, n, A, lda, devInfo)

    return potrf


def _batched(kind: Any) -> Any:
    def potrf(handle, uplo, n, Aarray, lda, infoArray, batchSize) -> None:
        for place in range(batchSize):
            address = ctypes.c_uint64.from_address(Aarray + 8 * place).value
            _factorize(kind, uplo, n, address, lda, infoArray + 4 * place)

    return potrf


def _size(handle, uplo, n, A, lda) -> int:
    return int(n)


spotrf, dpotrf = _single(np.float32), _single(np.float64)
cpotrf, zpotrf = _single(np.complex64), _single(np.complex128)
spotrfBatched, dpotrfBatched = _batched(np.float32), _batched(np.float64)  # noqa: N816 - CuPy's names
cpotrfBatched, zpotrfBatched = _batched(np.complex64), _batched(np.complex128)  # noqa: N816 - CuPy's names
spotrf_bufferSize = dpotrf_bufferSize = cpotrf_bufferSize = zpotrf_bufferSize = _size  # noqa: N816 - CuPy's names
