"""CuPy: element-wise operations: arithmetic, functions, comparisons, logic and bits.

Most are CuPy's ufuncs, with Python numbers first converted to the array's dtype: 0-d results are arrays, and nothing
warns. Where their values or dtypes differ from the contract's, our own kernel replaces them. The most frequent ones of
large arrays are formulas of one operation (:mod:`backburn_cupy.kernels.fused`): CuPy's kernels access one element at a
time, and so have too few bytes in flight for the memory bandwidth, or for half of it with 16-bit elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy

from backburn.ops.bodies.complex_numbers import expm1 as complex_expm1
from backburn.ops.bodies.complex_numbers import log1p as complex_log1p
from backburn.programs.lowering import method_of
from backburn_cupy.creation import NUMBERS, cast, cast_scalar, check_scalar, is_bfloat16
from backburn_cupy.kernels.fused import fuse

Array = Any

#: The elements of an array from which on the device takes longer than the host.
LARGE = 1 << 20


def _fused(name: str) -> Callable[..., Array]:
    """An operation of large floats; NotImplemented for others, and for arrays that would have to be copied first."""
    formula = method_of(name)

    def operation(k: Any, *operands: Any) -> Array:
        contiguous = all(x.flags.c_contiguous for x in operands if isinstance(x, cupy.ndarray))
        return fuse(k.runner, formula, *operands) if contiguous and k.runner is not None else NotImplemented

    return operation


def unary(function: Callable[..., Array], formula: str = "") -> Callable[..., Array]:
    """A unary function as an operation; large arrays by the operation named ``formula``, if any."""
    fused = _fused(formula)

    def operation(k: Any, x: Array, /) -> Array:
        if formula and x.size >= LARGE and (found := fused(k, x)) is not NotImplemented:
            return found
        return function(x)

    return operation


def binary(function: Callable[..., Array], formula: str = "") -> Callable[..., Array]:
    """A binary function as an operation; one operand may be a Python number. Large arrays as in :func:`unary`."""
    fused = _fused(formula)

    def operation(k: Any, x: Array, y: Array, /) -> Array:
        if formula:
            size = getattr(y if x.__class__ in NUMBERS else x, "size", 0)
            if size >= LARGE and (found := fused(k, x, y)) is not NotImplemented:
                return found
        if y.__class__ in NUMBERS:
            return function(x, cast_scalar(y, x.dtype))
        if x.__class__ in NUMBERS:
            return function(cast_scalar(x, y.dtype), y)
        return function(x, y)

    return operation


def or_for_complex(operation: Callable[..., Array], formula: Callable[..., Array]) -> Callable[..., Array]:
    """An operation that is ``formula`` of complex arrays."""

    def either(k: Any, x: Array, /) -> Array:
        return formula(k, x) if x.dtype.kind == "c" else operation(k, x)

    return either


def binary_kernel(name: str, body: str) -> Callable[[Array, Array], Array]:
    """A kernel for two operands of one dtype, either of which may be a Python number."""
    kernel = cupy.ElementwiseKernel("T x, T y", "T z", body, f"backburn_{name}")

    def function(x: Array, y: Array) -> Array:
        if x.__class__ in NUMBERS:
            x = check_scalar(x, y.dtype)
        elif y.__class__ in NUMBERS:
            y = check_scalar(y, x.dtype)
        return kernel(x, y)

    return function


# ---- arithmetic ----

add = binary(cupy.add, "add")
sub = binary(cupy.subtract, "sub")
mul = binary(cupy.multiply, "mul")
div = binary(cupy.true_divide, "div")
neg = unary(cupy.negative, "neg")
abs = unary(cupy.absolute, "abs")
sign = unary(cupy.sign)
maximum = binary(cupy.maximum, "maximum")
minimum = binary(cupy.minimum, "minimum")
square = unary(cupy.square, "square")
reciprocal = unary(cupy.reciprocal)

# CuPy's float remainder is x - floor(x / y) * y, which is NaN for infinite y, and wrong if x / y is rounded.
_C = "typedef {wide} C; const C a = static_cast<C>(x), b = static_cast<C>(y); "
_REMAINDER = """
  C rest = fmod(a, b);
  if (rest != C(0)) {
    if ((b < C(0)) != (rest < C(0))) rest += b;
  } else {
    rest = copysign(C(0), b);
  }
"""
_QUOTIENT = """
  C whole;
  if (b == C(0)) {
    whole = a / b;
  } else {
    C rest = fmod(a, b);
    C exact = (a - rest) / b;
    if (rest != C(0) && (b < C(0)) != (rest < C(0))) exact -= C(1);
    if (exact != C(0)) {
      whole = floor(exact);
      if (exact - whole > C(0.5)) whole += C(1);
    } else {
      whole = copysign(C(0), a / b);
    }
  }
"""
_ENDS = {"remainder": (_REMAINDER, "rest"), "floor_divide": (_QUOTIENT, "whole"), "fmod": ("", "fmod(a, b)")}


def _float_division(name: str) -> Callable[[Array, Array], Array]:
    """A float remainder or quotient as in NumPy; 16-bit ones are computed in float."""
    steps, result = _ENDS[name]
    kernels = {
        wide: binary_kernel(f"{name}_{wide}", f"{_C.format(wide=wide)}{steps} z = static_cast<T>({result});")
        for wide in ("float", "double")
    }

    def function(x: Array, y: Array) -> Array:
        array = x if isinstance(x, cupy.ndarray) else y
        return kernels["double" if array.dtype.itemsize == 8 else "float"](x, y)

    return function


def _division(name: str, integers: Callable[..., Array]) -> Callable[..., Array]:
    floats = _float_division(name)

    def divide(x: Array, y: Array) -> Array:
        kind = (x if isinstance(x, cupy.ndarray) else y).dtype.kind
        return (integers if kind in "iu" else floats)(x, y)

    return binary(divide)


floor_divide = _division("floor_divide", cupy.floor_divide)
remainder = _division("remainder", cupy.remainder)
# CuPy's converts integers to double, of 53 bits; -1 is excluded since the smallest integer % -1 overflows.
_FMOD = """
bool minus_one = T(-1) < T(0) && y == T(-1);
z = y == T(0) || minus_one ? T(0) : static_cast<T>(x % y);
"""
fmod = _division("fmod", binary_kernel("fmod_int", _FMOD))

# ---- functions ----

_power = binary(cupy.power)

#: The largest integer exponent of complex numbers that is computed by multiplications: CuPy always takes logarithms.
MOST_FACTORS = 16


def pow(k: Any, x: Array, y: Array, /) -> Array:
    if y.__class__ in NUMBERS and x.dtype.kind == "c" and y == (whole := _whole(y)) and whole:
        found = x
        for digit in f"{whole if whole > 0 else -whole:b}"[1:]:
            found = cupy.square(found)
            found = cupy.multiply(found, x) if digit == "1" else found
        return found if whole > 0 else cupy.reciprocal(found)
    return _power(k, x, y)


def _whole(number: complex) -> int:
    """A number without its fraction and imaginary part; 0 if it is larger than ``MOST_FACTORS``."""
    return int(number.real) if -MOST_FACTORS <= number.real <= MOST_FACTORS else 0


sqrt = unary(cupy.sqrt, "sqrt")
exp = unary(cupy.exp, "exp")
exp2 = unary(cupy.exp2)
# CuPy's complex expm1 and log1p lose the digits near 0 that these functions exist to keep.
expm1 = or_for_complex(unary(cupy.expm1), complex_expm1)
log = unary(cupy.log, "log")
log2 = unary(cupy.log2)
log1p = or_for_complex(unary(cupy.log1p), complex_log1p)
hypot = binary(cupy.hypot)
sin = unary(cupy.sin)
cos = unary(cupy.cos)
tan = unary(cupy.tan)
asin = unary(cupy.arcsin)
acos = unary(cupy.arccos)
atan = unary(cupy.arctan)
atan2 = binary(cupy.arctan2)
sinh = unary(cupy.sinh)
cosh = unary(cupy.cosh)
tanh = unary(cupy.tanh, "tanh")
asinh = unary(cupy.arcsinh)
acosh = unary(cupy.arccosh)
atanh = unary(cupy.arctanh)
floor = unary(cupy.floor)
ceil = unary(cupy.ceil)
round = unary(cupy.rint)
trunc = unary(cupy.trunc)


def _logaddexp(x: Array, y: Array) -> Array:
    dtype = (x if isinstance(x, cupy.ndarray) else y).dtype
    if not is_bfloat16(dtype):
        return cupy.logaddexp(x, y)
    wide = (o.astype("f") if isinstance(o, cupy.ndarray) else float(o) for o in (x, y))
    return cast(cupy.logaddexp(*wide), dtype)


logaddexp = binary(_logaddexp)


# ---- comparisons, logic and bits ----

equal = binary(cupy.equal)
not_equal = binary(cupy.not_equal)
less = binary(cupy.less)
less_equal = binary(cupy.less_equal)
greater = binary(cupy.greater)
greater_equal = binary(cupy.greater_equal)
isnan = unary(cupy.isnan)
isinf = unary(cupy.isinf)
isfinite = unary(cupy.isfinite)
signbit = unary(cupy.signbit)
copysign = binary(cupy.copysign)

# CuPy's for float16 gives NaN when starting from infinity.
_NEXT_HALF = """
const float from = static_cast<float>(x), to = static_cast<float>(y);
z = from - from == 0.0f || from != from || to != to ? next : from == to ? x : static_cast<T>(copysignf(65504.0f, from));
"""
_next_half = cupy.ElementwiseKernel("T x, T y, T next", "T z", _NEXT_HALF, "backburn_next_half")


def _nextafter(x: Array, y: Array) -> Array:
    result = cupy.nextafter(x, y)
    return _next_half(x, y, result) if result.dtype.char == "e" else result


nextafter = binary(_nextafter)
logical_and = binary(cupy.logical_and)
logical_or = binary(cupy.logical_or)
logical_xor = binary(cupy.logical_xor)
logical_not = unary(cupy.logical_not)
bitwise_and = binary(cupy.bitwise_and)
bitwise_or = binary(cupy.bitwise_or)
bitwise_xor = binary(cupy.bitwise_xor)
bitwise_invert = unary(cupy.invert)
bitwise_left_shift = binary(cupy.left_shift)
bitwise_right_shift = binary(cupy.right_shift)
