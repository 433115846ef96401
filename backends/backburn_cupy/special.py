"""CuPy: special functions, by CUDA's math library; 16-bit floats are computed in float.

CuPy's own return float64 for float16 and do not support bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy

from backburn.ops.table import OPERATIONS
from backburn_cupy.elementwise import or_for_complex

Array = Any


def special(name: str, in_float: str = "", in_double: str = "") -> Callable[..., Array]:
    """An operation by the expression ``in_float`` or ``in_double`` of ``a``, or by CUDA's function of its name."""
    kernels = {
        wide: cupy.ElementwiseKernel(
            "T x",
            "T y",
            f"const {wide} a = static_cast<{wide}>(x); y = static_cast<T>({body});",
            f"backburn_{name}_{wide}",
        )
        for wide, body in (("float", in_float or f"{name}f(a)"), ("double", in_double or f"{name}(a)"))
    }

    def operation(k: Any, x: Array, /) -> Array:
        return kernels["double" if x.dtype.itemsize == 8 else "float"](x)

    return operation


_PI = "3.14159265358979323846"

erf = special("erf")
erfc = special("erfc")
erfcx = special("erfcx")
erfinv = special("erfinv")
lgamma = special("lgamma")
ndtr = special("ndtr", "normcdff(a)", "normcdf(a)")
ndtri = special("ndtri", "normcdfinvf(a)", "normcdfinv(a)")
i0 = special("i0", "cyl_bessel_i0f(a)", "cyl_bessel_i0(a)")
i1 = special("i1", "cyl_bessel_i1f(a)", "cyl_bessel_i1(a)")
sinc = special("sinc", f"a == 0.0f ? 1.0f : sinpif(a) / ({_PI}f * a)", f"a == 0.0 ? 1.0 : sinpi(a) / ({_PI} * a)")
rsqrt = or_for_complex(special("rsqrt"), OPERATIONS["rsqrt"].body)
# CUDA's float logarithm is off by up to 2 ulp, even at powers of 10, where the contract is exact.
log10 = or_for_complex(
    special("log10", "static_cast<float>(log10(static_cast<double>(a)))", "log10(a)"), OPERATIONS["log10"].body
)
