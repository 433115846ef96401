"""Gradient rules: products with quantized operands, which are constants, and rounding, through which gradients pass."""

from __future__ import annotations

from backburn.autodiff.rules import gradient

gradient(
    "q_linear",
    x=lambda k, g, weight, transposed: k.q_linear(g, weight, None, not transposed),
    bias=lambda k, g: g,
)

gradient("fake_quantize", x=lambda k, g: g)
