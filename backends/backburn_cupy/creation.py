"""CuPy: host transfers, array creation and dtype conversion."""

from __future__ import annotations

import math
from typing import Any

import cupy
import numpy as np

from backburn.backend.host_numbers import HOST_CONSTANTS, LARGEST_CONSTANT, RECORDING_STEP, contents
from backburn.base.dtypes import DType, as_dtype
from backburn.ops.bodies.quantized import Quantized
from backburn.ops.creation import arange_length

Array = Any
Shape = tuple[int, ...]


def from_numpy(k: Any, array: Any) -> Array:
    host = np.asarray(array, dtype=as_dtype(array.dtype).dtype)  # raises for unknown dtypes; in native byte order
    if RECORDING_STEP.get() is not None:
        from backburn_cupy.capture import constant

        return constant(host)
    if (constants := HOST_CONSTANTS.get()) is not None and host.nbytes <= LARGEST_CONSTANT:
        constants.add(contents(host))
    return cupy.array(host, order="C")


def to_numpy(k: Any, x: Array, /) -> Any:
    result = (k.dequantize(x) if isinstance(x, Quantized) else x).get()
    k.faults.check()
    return result


def to_numpy_many(k: Any, tensors: Any, /) -> tuple[Any, ...]:
    # Copies are queued together, and awaited once.
    arrays = [k.dequantize(x) if isinstance(x, Quantized) else x for x in tensors]
    results = tuple(x.get(blocking=False) for x in arrays)
    cupy.cuda.get_current_stream().synchronize()
    k.faults.check()
    return results


def astype(k: Any, x: Array, /, dtype: DType) -> Array:
    return cast(x, dtype.dtype)


def cast(x: Array, dtype: Any) -> Array:
    """``x`` in a NumPy dtype; ``x`` itself if it has that dtype."""
    if x.dtype == dtype:
        return x
    if dtype.kind == "b":
        return cupy.not_equal(x, 0)
    if is_bfloat16(x.dtype) and dtype != np.float32:
        x = x.astype(np.float32)  # bfloat16 converts only from and to float32
    elif is_bfloat16(dtype) and x.dtype != np.float32:
        x = x.astype(np.float32)
    return x.astype(dtype, copy=False)


def is_bfloat16(dtype: Any) -> bool:
    """Whether a dtype is bfloat16, for which NumPy has no kind."""
    return bool(dtype.char == "E")


#: The numbers from which on a dtype rounds to infinity: half an ulp beyond its largest value.
_ENDS = {"e": 65520.0, "f": 2.0**128 - 2.0**103, "E": 2.0**128 - 2.0**119, "F": 2.0**128 - 2.0**103}


#: The Python numbers that CuPy takes beside arrays; bool is not one of them.
NUMBERS = (float, int, complex)


def cast_scalar(number: complex, dtype: Any) -> Any:
    """A number for a CuPy call with arrays of ``dtype``: infinite on overflow, rounded if CuPy would not do it.

    CuPy warns about overflow, and promotes bfloat16 with a float to float32.

        >>> cast_scalar(-1e300, np.dtype(np.float32)), cast_scalar(1e300, np.dtype(np.float64))
        (-inf, 1e+300)
    """
    end = _ENDS.get(dtype.char)
    if end is None:
        return number
    if isinstance(number, complex):
        return complex(*(cast_scalar(part, np.dtype(np.float32)) for part in (number.real, number.imag)))
    if not -end < number < end and number == number:
        number = math.inf if number > 0 else -math.inf
    return dtype.type(number) if dtype.char == "E" else number


def check_scalar(number: complex, dtype: Any) -> Any:
    """:func:`cast_scalar` for our own kernels, which would wrap an integer out of range: raises OverflowError.

    >>> check_scalar(-1, np.dtype(np.uint8))
    Traceback (most recent call last):
        ...
    OverflowError: Python integer -1 out of bounds for uint8
    """
    return np.asarray(number, dtype).item() if dtype.kind in "iu" else cast_scalar(number, dtype)


def full(k: Any, shape: Shape, value: complex, dtype: DType) -> Array:
    host = dtype.dtype
    if value == 0 and str(value)[0] not in "-(":  # as -0.0 or a complex number with such a zero begins
        return cupy.zeros(shape, host)
    result = cupy.ndarray(shape, host)
    result.fill(value if value == 1 else _rounded(value, dtype))  # 1, where every gradient starts, needs no rounding
    return result


def _rounded(value: complex, dtype: DType) -> Any:
    """``value`` rounded to a dtype, as a Python number."""
    with np.errstate(over="ignore"):  # overflow to infinity in narrow dtypes
        wide = np.complex128 if dtype.kind == "complex" else np.float64 if dtype.is_floating else dtype.dtype
        return np.asarray(value, wide).astype(dtype.dtype).item()


def zeros(k: Any, shape: Shape, dtype: DType) -> Array:
    return cupy.zeros(shape, dtype.dtype)


def empty(k: Any, shape: Shape, dtype: DType) -> Array:
    return cupy.ndarray(shape, dtype.dtype)


def arange(k: Any, start: float, stop: float, step: float, dtype: DType) -> Array:
    wide = np.dtype(np.int64 if dtype.kind == "int" else np.float64)
    places = cupy.arange(arange_length(start, stop, step), dtype=wide)
    if step != 1:
        places = cupy.multiply(places, step)
    if start != 0:
        places = cupy.add(places, start)
    return cast(places, dtype.dtype)
