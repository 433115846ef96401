"""CuPy: reductions. 16-bit floats are accumulated in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from backburn.ops.reduce import count, extremum
from backburn_cupy.creation import cast

Array = Any
Axes = tuple[int, ...]


def is_half(x: Array) -> bool:
    """Whether ``x`` holds 16-bit floats."""
    return bool(x.dtype.itemsize == 2 and x.dtype.kind not in "iu")


def compute_dtype(x: Array) -> Any:
    """The dtype to sum in: float32 for 16-bit floats, else that of ``x``."""
    return np.dtype(np.float32) if is_half(x) else x.dtype


def upcast_half(x: Array) -> Array:
    """``x``, with 16-bit floats as float32."""
    return x.astype(np.float32) if is_half(x) else x


def _reduce(function: Callable[..., Array], x: Array, axis: Axes, keepdims: bool) -> Array:
    # CuPy converts while reading: nothing of the size of x is allocated.
    return cast(function(x, axis, compute_dtype(x), None, keepdims), x.dtype) if axis else x


def sum(k: Any, x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    return _reduce(cupy.sum, x, axis, keepdims)


def prod(k: Any, x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    return _reduce(cupy.prod, x, axis, keepdims)


def mean(k: Any, x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    total = cupy.sum(x, axis, compute_dtype(x), None, keepdims) if axis else upcast_half(x)
    return cast(cupy.true_divide(total, float(count(x, axis))), x.dtype)


def _logical(function: Callable[..., Array]) -> Callable[..., Array]:
    def operation(k: Any, x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
        return function(x, axis, None, keepdims) if axis else x

    return operation


any, all = _logical(cupy.any), _logical(cupy.all)

# CuPy's CUB reductions start with the smallest finite number, and return it if all elements are minus infinity.
_PREAMBLE = """
template <typename T> struct Candidate {
  T value;
  bool is_set;
  __device__ Candidate() : is_set(false) {}
  __device__ Candidate(T v) : value(v), is_set(true) {}
};
template <typename T> __device__ Candidate<T> larger(const Candidate<T>& a, const Candidate<T>& b) {
  if (!a.is_set || !b.is_set) return a.is_set ? a : b;
  return a.value != a.value || !(a.value < b.value || b.value != b.value) ? a : b;
}
template <typename T> __device__ Candidate<T> smaller(const Candidate<T>& a, const Candidate<T>& b) {
  if (!a.is_set || !b.is_set) return a.is_set ? a : b;
  return a.value != a.value || !(b.value < a.value || b.value != b.value) ? a : b;
}
"""


def _extremum(choose: str) -> Callable[..., Array]:
    # For CUB, CuPy substitutes other names for x and y, wherever these letters occur in the expressions.
    kernel = cupy.ReductionKernel(
        "T x", "T y", "Candidate<T>(x)", f"{choose}(a, b)", "y = a.value", None, f"backburn_{choose}", "Candidate<T>",
        preamble=_PREAMBLE,
    )  # fmt: skip

    def operation(k: Any, x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
        shape = extremum(x.shape, axis=axis, keepdims=keepdims)
        if not axis:
            return x
        return kernel(x, axis=axis, keepdims=keepdims) if x.size else cupy.ndarray(shape, x.dtype)

    return operation


max, min = _extremum("larger"), _extremum("smaller")


def argmax(k: Any, x: Array, /, axis: int, keepdims: bool = False) -> Array:
    return _arg_extremum(cupy.argmax, sort_keys(x, nan_first=False), axis, keepdims)


def argmin(k: Any, x: Array, /, axis: int, keepdims: bool = False) -> Array:
    return _arg_extremum(cupy.argmin, sort_keys(x, nan_first=True), axis, keepdims)


def _arg_extremum(function: Callable[..., Array], x: Array, axis: int, keepdims: bool) -> Array:
    shape = extremum(x.shape, axis=axis, keepdims=keepdims)
    return function(x, axis, np.int64, None, keepdims) if x.size else cupy.ndarray(shape, np.int64)


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


def sort_keys(x: Array, falling: bool = False, nan_first: bool = False) -> Array:
    """Integers ordered like ``x``, or reversed: equal for equal values, the largest or smallest for NaN."""
    if x.dtype.kind in "iu":
        return cupy.invert(x) if falling else x
    if x.dtype.kind == "b":
        return cupy.logical_xor(x, falling).view(np.uint8)
    return (_order64 if x.dtype.itemsize == 8 else _order32)(x, falling, nan_first)
