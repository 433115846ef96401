"""Gradient rules: what crosses from one kind to another.

``quantize`` has none: rounding to steps is a constant almost everywhere, and a model that should learn through it
says so with a straight-through estimator; what is being differentiated is refused. A quantized tensor has no gradient,
so ``dequantize`` is a constant.
"""

from backburn.autodiff.rules import constant

_ROUNDED = (
    "Rounding has no gradient: detach it first, or take fake_quantize (straight_through=True of a tensor's quantize), "
    "whose gradient passes as if nothing had been rounded"
)
_RANGE = "A range has no gradient: detach it first"

constant("quantize", x=_ROUNDED)
constant("quantize_between", x=_ROUNDED, low=_RANGE, high=_RANGE)
