"""NumPy: 16-bit floats, which are computed in float32.

NumPy converts elements one at a time, even within its float16 functions; the compiled kernels use SIMD instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from backburn_numpy import compiled, tuning
from backburn_numpy.compiled import FLOAT32
from backburn_numpy.runtime.memory import empty
from backburn_numpy.runtime.threads import available

Array = Any

FLOAT16 = np.dtype(np.float16)


def is_half(x: Array) -> bool:
    """Whether ``x`` holds 16-bit floats; bfloat16 has no NumPy kind."""
    return x.itemsize == 2 and x.dtype.kind not in "iu"


def compute_dtype(x: Array) -> np.dtype[Any]:
    """The dtype to compute in: float32 for 16-bit floats, else that of ``x``."""
    return FLOAT32 if is_half(x) else x.dtype


def upcast_half(x: Array) -> Array:
    """``x``, with 16-bit floats as float32; None stays None."""
    return x if x is None or not is_half(x) else convert(x, FLOAT32)


def cast_like(result: Array, like: Array) -> Array:
    """``result`` in the dtype of ``like``."""
    if result.dtype is like.dtype:
        return result
    if is_half(like) and result.dtype == FLOAT32:
        return convert(result, like.dtype)
    return result.astype(like.dtype, copy=False)


def in_float32(operation: Callable[..., Any], *values: Any) -> Any:
    """The result of an operation on 16-bit floats, or its results, computed in float32."""
    arrays = [x for x in values if isinstance(x, np.ndarray | np.generic) and is_half(x)]
    found = operation(*(upcast_half(x) if isinstance(x, np.ndarray | np.generic) else x for x in values))
    return tuple(cast_like(x, arrays[0]) for x in found) if found.__class__ is tuple else cast_like(found, arrays[0])


def convert(x: Array, dtype: np.dtype[Any]) -> Array:
    """``x`` converted between 16-bit floats and float32, or from booleans."""
    if x.dtype == dtype:
        return x
    if x.dtype == np.bool_ and dtype.itemsize == 2 and dtype.kind not in "iu":
        return np.multiply(x, np.ones((), dtype).view(np.uint16), out=...).view(dtype)
    if _kernel(x, dtype) is None and (x.size < tuning.MIN_HALVES_FOR_KERNEL or not x.flags.c_contiguous):
        return x.astype(dtype)
    out = empty(x.shape, dtype)
    fill(out, x)
    return out


def fill(out: Array, x: Array) -> None:
    """Write ``x`` into ``out``, of the same shape; both hold 16-bit floats or float32."""
    fast = _kernel(x, out.dtype) if out.flags.c_contiguous and out.shape == x.shape else None
    if fast is None:
        np.copyto(out, x, casting="unsafe")
        return
    x = np.asarray(x)  # NumPy's scalars, whose values lie elsewhere
    places = [compiled.address(out), compiled.address(x)]
    if x.size < tuning.MIN_HALVES_FOR_NATIVE_THREADS:
        fast(*places, x.size)
    else:
        compiled.parallel_for(fast, places, [out.itemsize, x.itemsize], x.size, 0, available())


def upcast_kernel(x: Array) -> Any:
    """The kernel that converts ``x``, 16-bit floats, to float32; None if there is none or it does not pay."""
    if x.size < tuning.MIN_HALVES_FOR_KERNEL or not x.flags.c_contiguous or not is_half(x):
        return None
    return compiled.kernel("half_to_float" if x.dtype == FLOAT16 else "bfloat16_to_float")


def _kernel(x: Array, dtype: np.dtype[Any]) -> Any:
    """The kernel that converts ``x``; None if there is none or it does not pay."""
    if dtype == FLOAT32:
        return upcast_kernel(x)
    if x.size < tuning.MIN_HALVES_FOR_KERNEL or not x.flags.c_contiguous:
        return None
    if x.dtype == FLOAT32 and dtype.itemsize == 2 and dtype.kind not in "iu":
        return compiled.kernel("float_to_half" if dtype == FLOAT16 else "float_to_bfloat16")
    return None
