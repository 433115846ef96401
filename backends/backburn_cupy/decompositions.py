"""CuPy: matrix decompositions, by cuSOLVER in 32 and 64 bits.

cuSOLVER reports a matrix without a result on the device, where a kernel records it without synchronizing: see
:mod:`backburn_cupy.faults`.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import cupy
import numpy as np

from backburn.base.errors import Unsupported
from backburn.ops.bodies import decompositions as contract
from backburn.ops.table import shape_rule
from backburn_cupy.creation import cast
from backburn_cupy.reduce import is_half, upcast_half

Array = Any


def _is_finite(*arrays: Array) -> Array:
    """Whether all elements are finite, as one bool on the device."""
    return cupy.all(cupy.stack([cupy.all(cupy.isfinite(x)) for x in arrays]))


def _report_failure(k: Any, operation: str, operands: tuple[Array, ...], results: tuple[Array, ...]) -> None:
    """Have the device report non-finite results of finite operands."""
    k.faults.report(operation, cupy.logical_and(_is_finite(*operands), cupy.logical_not(_is_finite(*results))))


def _shape(operation: str, *operands: Array) -> Any:
    """The shapes by an operation's shape rule."""
    return shape_rule(operation)(*(x.shape for x in operands))


def _cast_results(x: Array, results: tuple[Array, ...]) -> tuple[Array, ...]:
    """The results of 16-bit floats, computed in float32, in their dtype; others as they are, which may be real."""
    return tuple(cast(result, x.dtype) for result in results) if is_half(x) else results


#: CUBLAS_FILL_MODE_UPPER. cuSOLVER is column-major: its upper triangle is the row-major lower one.
UPPER = 1
#: The letters of cuSOLVER's functions, by dtype: complex64 is as wide as float64.
LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}


@functools.cache
def cusolver() -> Any:
    """CuPy's bindings; imported when first needed, so that a machine without cuSOLVER has all else."""
    return importlib.import_module("cupy_backends.cuda.libs.cusolver")


def cholesky(k: Any, x: Array, /) -> Array:
    # CuPy hides cuSOLVER's report, and a matrix without a factor may still yield finite numbers.
    factor = contract.symmetric(k, upcast_half(x)).copy(order="C")
    if not x.size:
        return cast(factor, x.dtype)
    n = x.shape[-1]
    count = x.size // (n * n)
    info = cupy.zeros((count,), np.int32)
    handle = cupy.cuda.device.get_cusolver_handle()
    letter = LETTERS[factor.dtype.char]
    if count == 1:
        size = getattr(cusolver(), f"{letter}potrf_bufferSize")(handle, UPPER, n, factor.data.ptr, n)
        workspace = cupy.ndarray((size,), factor.dtype)
        getattr(cusolver(), f"{letter}potrf")(
            handle, UPPER, n, factor.data.ptr, n, workspace.data.ptr, size, info.data.ptr
        )
    else:
        places = cupy.multiply(cupy.arange(count, dtype=np.uint64), n * n * factor.itemsize)
        pointers = cupy.add(places, factor.data.ptr)
        getattr(cusolver(), f"{letter}potrfBatched")(handle, UPPER, n, pointers.data.ptr, n, info.data.ptr, count)
    k.faults.report("cholesky", cupy.not_equal(info, 0))
    return cast(cupy.tril(factor), x.dtype)


def qr(k: Any, x: Array, /, complete: bool = False) -> tuple[Array, ...]:
    _shape("qr", x)
    wide = upcast_half(x)
    factors = tuple(cupy.linalg.qr(wide, mode="complete" if complete else "reduced"))
    _report_failure(k, "qr", (wide,), factors)
    return _cast_results(x, contract.turned_qr(k, *factors))


def svd(k: Any, x: Array, /, full: bool = False) -> tuple[Array, ...]:
    _shape("svd", x)
    wide = upcast_half(x)
    factors = tuple(cupy.linalg.svd(wide, full_matrices=full))
    _report_failure(k, "svd", (wide,), factors)
    return _cast_results(x, contract.turned_svd(k, *factors))


def eigh(k: Any, x: Array, /) -> tuple[Array, ...]:
    operands = contract.symmetric(k, upcast_half(x))
    values, vectors = cupy.linalg.eigh(operands)
    _report_failure(k, "eigh", (operands,), (values, vectors))
    return _cast_results(x, contract.turned_eigh(k, values, vectors))


def eig(k: Any, x: Array, /) -> tuple[Array, ...]:
    _shape("eig", x)
    try:
        values, vectors = cupy.linalg.eig(x)
    except (AttributeError, RuntimeError) as cause:
        if isinstance(cause, AttributeError) or "not available" in str(cause):
            raise Unsupported("eig: needs CuPy 14 and a cuSOLVER with geev, that of CUDA 12.6 or newer") from cause
        raise
    _report_failure(k, "eig", (x,), (values, vectors))
    return contract.turned_eig(k, values, vectors)


def solve(k: Any, x: Array, y: Array, /) -> Array:
    shape = _shape("solve", x, y)
    # With one axis fewer than the matrices it would be taken for vectors, and leading axes do not broadcast.
    leading = shape[:-2]
    matrices = cupy.broadcast_to(upcast_half(x), (*leading, *x.shape[-2:]))
    right = cupy.broadcast_to(upcast_half(y), (*leading, *shape[-2:]))
    if not right.size:
        return cupy.zeros(shape, x.dtype)
    result = cupy.linalg.solve(matrices, right)
    _report_failure(k, "solve", (matrices, right), (result,))
    return _cast_results(x, (result,))[0]
