"""CuPy: reductions. 16-bit floats are accumulated in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from backburn.backend.reduce import count, extremum
from backburn_cupy.create import converted

Array = Any
Axes = tuple[int, ...]


def is_narrow(x: Array) -> bool:
    """Whether ``x`` holds 16-bit floats."""
    return bool(x.dtype.itemsize == 2 and x.dtype.kind not in "iu")


def widened_dtype(x: Array) -> Any:
    """The dtype to sum in: float32 for 16-bit floats, else that of ``x``."""
    return np.dtype(np.float32) if is_narrow(x) else x.dtype


def widened(x: Array) -> Array:
    """``x``, with 16-bit floats as float32."""
    return x.astype(np.float32) if is_narrow(x) else x


def _combined(function: Callable[..., Array], x: Array, axis: Axes, keepdims: bool) -> Array:
    if not axis:
        return x
    # CuPy converts while reading: nothing of the size of x is allocated.
    return converted(function(x, axis, widened_dtype(x), None, keepdims), x.dtype)


def sum(k: Any, x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    return _combined(cupy.sum, x, axis, keepdims)


def prod(k: Any, x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    return _combined(cupy.prod, x, axis, keepdims)


def mean(k: Any, x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    total = cupy.sum(x, axis, widened_dtype(x), None, keepdims) if axis else widened(x)
    return converted(cupy.true_divide(total, float(count(x, axis))), x.dtype)


def any(k: Any, x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    return cupy.any(x, axis, None, keepdims) if axis else x


def all(k: Any, x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    return cupy.all(x, axis, None, keepdims) if axis else x


# CuPy's CUB reductions start with the smallest finite number, and return it if all elements are minus infinity.
_PREAMBLE = """
template <typename T> struct Chosen {
  T value;
  bool is_set;
  __device__ Chosen() : is_set(false) {}
  __device__ Chosen(T v) : value(v), is_set(true) {}
};
template <typename T> __device__ Chosen<T> larger(const Chosen<T>& a, const Chosen<T>& b) {
  if (!a.is_set || !b.is_set) return a.is_set ? a : b;
  return a.value != a.value || !(a.value < b.value || b.value != b.value) ? a : b;
}
template <typename T> __device__ Chosen<T> smaller(const Chosen<T>& a, const Chosen<T>& b) {
  if (!a.is_set || !b.is_set) return a.is_set ? a : b;
  return a.value != a.value || !(b.value < a.value || b.value != b.value) ? a : b;
}
"""


def _extremum(choose: str) -> Callable[[Array, Axes, bool], Array]:
    # For CUB, CuPy substitutes other names for x and y, wherever these letters occur in the expressions.
    kernel = cupy.ReductionKernel(
        "T x", "T y", "Chosen<T>(x)", f"{choose}(a, b)", "y = a.value", None, f"backburn_{choose}", "Chosen<T>",
        preamble=_PREAMBLE,
    )  # fmt: skip

    def reduction(x: Array, axis: Axes, keepdims: bool) -> Array:
        extremum(x.shape, axis=axis, keepdims=keepdims)
        return kernel(x, axis=axis, keepdims=keepdims) if axis and x.size else _nothing(x, axis, keepdims)

    return reduction


def _nothing(x: Array, axis: Axes, keepdims: bool) -> Array:
    """The result of a reduction over no axes, or of no elements."""
    return x if not axis else cupy.ndarray(extremum(x.shape, axis=axis, keepdims=keepdims), x.dtype)


_largest, _smallest = _extremum("larger"), _extremum("smaller")


def max(k: Any, x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    return _largest(x, axis, keepdims)


def min(k: Any, x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    return _smallest(x, axis, keepdims)


def argmax(k: Any, x: Array, /, axis: int, keepdims: bool = False) -> Array:
    return _place(cupy.argmax, order(x, nan_first=False), axis, keepdims)


def argmin(k: Any, x: Array, /, axis: int, keepdims: bool = False) -> Array:
    return _place(cupy.argmin, order(x, nan_first=True), axis, keepdims)


def _place(function: Callable[..., Array], x: Array, axis: int, keepdims: bool) -> Array:
    extremum(x.shape, axis=axis, keepdims=keepdims)
    if not x.size:
        return cupy.ndarray(extremum(x.shape, axis=axis, keepdims=keepdims), np.int64)
    return function(x, axis, np.int64, None, keepdims)


# The bits of floats are ordered like their values, except that negative ones are reversed.
_order32, _order64 = (
    cupy.ElementwiseKernel(
        "T x, bool falling, bool nan_first",
        f"int{bits} key",
        f"""
        typedef {wide} C;
        const C value = static_cast<C>(x);
        if (value != value) {{
          key = nan_first ? {least} : {most};
        }} else {{
          long long bits = value == C(0) ? 0 : {as_bits}(value);
          if (bits < 0) bits ^= {most};
          key = falling ? ~bits : bits;
        }}
        """,
        f"backburn_order{bits}",
    )
    for bits, wide, as_bits, least, most in (
        (32, "float", "__float_as_int", "-2147483647 - 1", "2147483647"),
        (64, "double", "__double_as_longlong", "-9223372036854775807ll - 1", "9223372036854775807ll"),
    )
)


def order(x: Array, falling: bool = False, nan_first: bool = False) -> Array:
    """Integers ordered like ``x``, or reversed: equal for equal values, the largest or smallest for NaN."""
    if x.dtype.kind in "iu":
        return cupy.invert(x) if falling else x
    if x.dtype.kind == "b":
        return cupy.logical_xor(x, falling).view(np.uint8)
    return (_order64 if x.dtype.itemsize == 8 else _order32)(x, falling, nan_first)
