"""CuPy: special functions, by CUDA's math library; 16-bit floats are computed in float.

CuPy's own return float64 for float16 and do not support bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy

Array = Any


def special(name: str, of_float: str, of_double: str) -> Callable[..., Array]:
    """An operation computed by the expression ``of_float`` or ``of_double`` of ``a``."""
    kernels = {
        wide: cupy.ElementwiseKernel(
            "T x",
            "T y",
            f"const {wide} a = static_cast<{wide}>(x); y = static_cast<T>({body});",
            f"backburn_{name}_{wide}",
        )
        for wide, body in (("float", of_float), ("double", of_double))
    }

    def operation(k: Any, x: Array, /) -> Array:
        return kernels["double" if x.dtype.itemsize == 8 else "float"](x)

    return operation


_PI = "3.14159265358979323846"

erf = special("erf", "erff(a)", "erf(a)")
erfc = special("erfc", "erfcf(a)", "erfc(a)")
erfinv = special("erfinv", "erfinvf(a)", "erfinv(a)")
lgamma = special("lgamma", "lgammaf(a)", "lgamma(a)")
i0 = special("i0", "cyl_bessel_i0f(a)", "cyl_bessel_i0(a)")
i1 = special("i1", "cyl_bessel_i1f(a)", "cyl_bessel_i1(a)")
sinc = special("sinc", f"a == 0.0f ? 1.0f : sinpif(a) / ({_PI}f * a)", f"a == 0.0 ? 1.0 : sinpi(a) / ({_PI} * a)")
rsqrt = special("rsqrt", "rsqrtf(a)", "rsqrt(a)")
# CUDA's float logarithm is off by up to 2 ulp, even at powers of 10, where the contract is exact.
log10 = special("log10", "static_cast<float>(log10(static_cast<double>(a)))", "log10(a)")
