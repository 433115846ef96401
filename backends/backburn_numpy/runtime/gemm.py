"""Matrix products by our own kernels, in the threads of all other kernels.

A library multiplies in its own threads, which wait for one another on the processors that the kernels' threads need,
and which can be limited to one only for the whole process. Our kernels sum in an order that depends on the number of
elements alone: results are bitwise equal on any number of threads. If the user asks for it
(:mod:`backburn_numpy.runtime.mkl`), MKL multiplies in the same threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from backburn_numpy import compiled, tuning
from backburn_numpy.runtime import mkl
from backburn_numpy.runtime.memory import contiguous, empty
from backburn_numpy.runtime.threads import available

Array = Any
Shape = tuple[int, ...]


_NAMES = {compiled.FLOAT32: "gemm", compiled.FLOAT64: "gemm_double"}


class Epilogue(NamedTuple):
    """The pass that follows a product or a convolution: ``relu``, or the gradient of one with the result ``mask``.

    Kernels apply it to what they have just computed; elsewhere ``function`` is called.
    """

    function: Callable[..., Array]
    mask: Array | None = None

    def __call__(self, x: Array) -> Array:
        """The pass over ``x``."""
        return self.function(x) if self.mask is None else self.function(x, self.mask)


def multiply(
    x: Array, y: Array, bias: Array | None = None, out: Array | None = None, epilogue: Epilogue | None = None
) -> Array | None:
    """``x @ y + bias`` for matrices or stacks of them, in ``out`` if given; None where the kernel does not pay.

    ``out`` is C-contiguous. ``epilogue`` is applied, too.
    """
    height, depth = x.shape[-2:]
    width, dtype = y.shape[-1], x.dtype
    work = max(x.size * width, y.size * height)
    if work < tuning.MIN_TRANSPOSED_GEMM_PRODUCTS or height == 1 or width == 1:
        return None
    least = tuning.MIN_GEMM_PRODUCTS.get(compiled.level(), math.inf)
    pays = work >= least or (y.strides[-2] == dtype.itemsize and least < math.inf)
    by_library = mkl.in_use() is not None
    if not pays and not by_library:
        return None
    if (name := _NAMES.get(dtype)) is None or y.dtype != dtype or y.shape[-2] != depth:
        return None
    lead: Shape = ()
    products, x_next, y_next = 1, 0, 0
    if x.ndim > 2 or y.ndim > 2:
        lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        a_stride, b_stride = _batch_stride(x, lead), _batch_stride(y, lead)
        if a_stride is None or b_stride is None:
            return None
        products, x_next, y_next = math.prod(lead), a_stride, b_stride
    x_row, x_column = x.strides[-2:]
    y_row, y_column = y.strides[-2:]
    size = dtype.itemsize
    if (x_row | x_column | x_next | y_row | y_column | y_next) & (size - 1):
        return None
    left = _blas_layout(x_row // size, x_column // size, height, depth) if by_library else None
    right = _blas_layout(y_row // size, y_column // size, depth, width) if by_library else None
    if left is None or right is None:
        if not pays:
            return None
        strides: list[int] = [x_row // size, x_column // size, y_row // size, y_column // size]
    else:
        name, strides = f"blas_{name}", [*left, *right]
    if out is None:
        out = empty((*lead, height, width), dtype)
    bias, mask = contiguous(bias, dtype), None if epilogue is None else contiguous(epilogue.mask, dtype)
    kernel: Any = compiled.kernel(name)
    kernel(
        *compiled.addresses(out, x, y, bias, mask), epilogue is not None, height, width, depth, *strides, products,
        x_next // size, y_next // size, available(),
    )  # fmt: skip
    return out


def multiply_small_m(x: Array, y: Array) -> Array | None:
    """``x @ y`` for a few rows of float32 and a matrix that is transposed in memory; None where it does not pay.

    Each column is read once, by one thread: a library's threads wait for one another at the end.
    """
    count, inputs = x.shape
    outputs, size = y.shape[1], y.itemsize
    kernel = compiled.kernel("gemm_small_m")
    if (
        count > tuning.MAX_SMALL_M
        or kernel is None
        or y.size < tuning.MIN_SMALL_M_ELEMENTS
        or x.dtype != compiled.FLOAT32
        or y.dtype != x.dtype
    ):
        return None
    if y.strides[0] != size or y.strides[1] % size or y.strides[1] < size * inputs or y.shape[0] != inputs:
        return None
    x, out = contiguous(x), empty((count, outputs), x.dtype)
    grain = max(1, tuning.ELEMENTS_PER_TASK // inputs)
    at = compiled.addresses(out, x, y)
    kernel(*at, count, outputs, inputs, y.strides[1] // size, grain, available())
    return out


def sgemm_address() -> int | None:
    """The address of a single-threaded ``cblas_sgemm`` for other kernels; None where NumPy's is faster."""
    if mkl.in_use() is None and compiled.level() not in tuning.MIN_GEMM_PRODUCTS:
        return None
    kernel: Any = compiled.kernel("sgemm" if mkl.in_use() is None else "blas_sgemm")
    return int(kernel.where)


def library_pays() -> bool:
    """Whether OpenBLAS has kernels for small products that pack nothing, for a right operand in row-major order."""
    return compiled.level() == "x86-64-v4" and mkl.in_use() is None


def _blas_layout(row: int, column: int, rows: int, columns: int) -> tuple[bool, int] | None:
    """Whether BLAS reads a matrix with these strides as transposed, and its leading dimension; None if it cannot."""
    if column == 1 and row >= columns:
        return False, row
    return (True, column) if row == 1 and column >= rows else None


def _batch_stride(x: Array, lead: Shape) -> int | None:
    """The stride in bytes between matrices of a stack broadcast to the leading axes; None if there is no single one."""
    strides = np.broadcast_to(x, (*lead, *x.shape[-2:])).strides
    found, expected = 0, None
    for stride, count in zip(strides[len(lead) - 1 :: -1], lead[::-1], strict=False):
        if count == 1:
            continue
        if expected is None:
            found = stride
        elif stride != expected:
            return None
        expected = stride * count
    return found
