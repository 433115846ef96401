"""Gradient rules: products with quantized operands, which are constants, and rounding, through which gradients pass."""

from __future__ import annotations

from typing import Any

from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import elementwise, linear, tangent
from backburn.backend.quantized import spread
from backburn.base.dtypes import QuantizedDType

gradient(
    "q_linear",
    x=lambda k, g, weight, transposed: k.q_linear(g, weight, None, not transposed),
    bias=lambda k, g: g,
)


gradient("fake_quantize", x=lambda k, g: g)


def _within(k: Any, g: Any, x: Any, low: Any, high: Any, dtype: QuantizedDType) -> tuple[Any, ...]:
    """``g`` where ``x`` lies in the range, to which 0 belongs, and which is as wide on both sides if symmetric.

    The range itself is a constant.
    """
    low, high = k.minimum(low, 0.0), k.maximum(high, 0.0)
    if dtype.mode == "symmetric":
        high = k.maximum(k.neg(low), high)
        low = k.neg(high)
    low, high = (spread(k, end, x.shape, dtype) for end in (low, high))
    return k.where(k.logical_and(k.less_equal(low, x), k.less_equal(x, high)), g, 0.0), None, None


gradient("fake_quantize_between", ("x", "low", "high"), _within)

linear("q_linear", groups=("x",))
tangent("q_linear", bias=lambda t: t)
elementwise("fake_quantize")
