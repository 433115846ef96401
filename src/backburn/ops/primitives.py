"""Tracking and quantization: the members that tie the four kinds of primitive together.

Every family of the contract extends :class:`Primitives`. Its members use each kind as an argument and as a result, so
that a type checker can infer the four types of any backend, also of one that satisfies the contract structurally.
"""

from __future__ import annotations

from typing import Any, Protocol

from backburn.base.dtypes import DType, QuantizedDType, float32, float64, qint8
from backburn.base.errors import ShapeError
from backburn.ops.bodies import quantized
from backburn.ops.bodies.reductions import all_true
from backburn.ops.rules.gradients import constant
from backburn.ops.rules.shapes import Shape, unchanged
from backburn.ops.table import missing, operation
from backburn.ops.types import B, F, I, Q


def quantizable(x: Shape, *, dtype: QuantizedDType = qint8) -> Shape:
    """The shape of a quantized tensor. Raises if its scheme does not fit."""
    quantized.scale_shape(x, dtype)
    return x


def between(x: Shape, low: Shape, high: Shape, *, dtype: QuantizedDType = qint8) -> Shape:
    """The shape of a tensor that is quantized for a range. Raises if its scheme or the range does not fit."""
    steps = quantized.scale_shape(x, dtype)
    for end in (low, high):
        if end != steps:
            raise ShapeError(f"the steps of {dtype} have the shape {list(steps)}, and the range {list(end)}")
    return x


_ROUNDED = (
    "Rounding has no gradient: detach it first, or take fake_quantize (straight_through=True of a tensor's quantize), "
    "whose gradient passes as if nothing had been rounded"
)


_RANGE = "A range has no gradient: detach it first"


class Primitives(Protocol[F, I, B, Q]):
    """The members of the contract that concern all kinds of primitives."""

    def set_require_grad(self, x: F, /, flag: bool) -> F:
        """``x`` as a leaf that requires a gradient, or not; a plain backend tracks nothing and returns ``x``."""
        return x

    def is_require_grad(self, x: F, /) -> bool:
        """Whether ``backward`` returns a gradient for ``x``; always False on a plain backend."""
        return False

    def is_tracked(self, x: F, /) -> bool:
        """Whether operations on ``x`` are recorded; always False on a plain backend."""
        return False

    def detach(self, x: F, /) -> F:
        """``x`` without its history; ``x`` itself on a plain backend."""
        return x

    def dtype(self, x: F | I | B | Q, /) -> DType:
        """The dtype of a primitive, whose kind is the primitive's kind."""
        return missing("dtype")

    @operation(kinds="I", shape=unchanged, required=True)
    def bitwise_invert(self, x: I, /) -> I:
        """All bits flipped: ``-x - 1`` for signed integers."""
        return missing("bitwise_invert")

    @operation(kinds="B", shape=unchanged, required=True)
    def logical_not(self, x: B, /) -> B:
        """The negated boolean."""
        return missing("logical_not")

    @operation(kinds="F", shape=quantizable, result="dtype")
    def quantize(self: Any, x: F, /, dtype: QuantizedDType = qint8) -> Q:
        """``x`` as multiples of stored steps, in the scheme ``dtype``, whose channel axis is not negative.

        Symmetric steps are ``max(abs(x)) / 127`` for int8, ``/ 7`` for int4 and ``/ 1`` for int2; affine ones span the
        values and 0. The error is at most half a step. Raises for NaN and infinite values.
        """
        low, high = quantized.extremes(self, x, dtype)
        return quantized.quantize(self, x, low, high, dtype)  # type: ignore[return-value]

    constant(quantize, x=_ROUNDED)

    @operation(kinds="F", shape=between, result="dtype")
    def quantize_between(self: Any, x: F, low: F, high: F, /, dtype: QuantizedDType = qint8) -> Q:
        """:meth:`quantize` with steps that span 0 and the range from ``low`` to ``high``, of the shape of the steps.

        Values outside are clamped. Raises for NaN and infinite values, and if ``low`` is above ``high``.
        """
        values: Any = x
        if not all_true(self, self.isfinite(values)):
            raise quantized.infinite_values_error(values.shape, dtype)
        if not all_true(self, self.logical_not(self.greater(low, high))):
            raise quantized.empty_range_error(values.shape, dtype)
        wide_low, wide_high = (
            self.minimum(self.astype(low, float64), 0.0),
            self.maximum(self.astype(high, float64), 0.0),
        )
        reaches = self.logical_or(self.less(wide_low, 0.0), self.greater(wide_high, 0.0))
        if not all_true(self, reaches):  # values whose range is only 0 become 0, whatever their step
            x = self.where(quantized.broadcast_steps(self, reaches, values.shape, dtype), x, 0.0)
        return quantized.quantize(self, x, wide_low, wide_high, dtype)  # type: ignore[return-value]

    constant(quantize_between, x=_ROUNDED, low=_RANGE, high=_RANGE)

    @operation(kinds="Q", shape=unchanged, result="dtype", elementwise=False)
    def dequantize(self: Any, x: Q, /, dtype: DType = float32) -> F:
        """The stored integers, minus their zero points, times their steps.

        A multiple of a step that is larger than every finite number of ``dtype`` becomes the largest of them.
        """
        return quantized.dequantize(self, x, dtype)  # type: ignore[arg-type]

    def quantized_parts(self: Any, x: Q, /) -> tuple[Any, Any, Any]:
        """Stored values (packed if they are), steps, and zero points or None, as host arrays."""
        q: Any = x
        return self.to_numpy(q.values), self.to_numpy(q.scale), None if q.zero is None else self.to_numpy(q.zero)

    def quantized_from_parts(
        self: Any, values: Any, scale: Any, zero: Any, /, dtype: QuantizedDType, shape: tuple[int, ...]
    ) -> Q:
        """The quantized primitive whose :meth:`quantized_parts` are given as host arrays."""
        stored, steps, points = (None if part is None else self.from_numpy(part) for part in (values, scale, zero))
        return quantized.Quantized(stored, steps, dtype, points, shape)  # type: ignore[return-value]

    @operation(kinds="FCIB", shape=None, result="data", required=True)
    def from_numpy(self, array: Any) -> Any:
        """A primitive with a copy of a host array's shape, dtype and values."""
        return missing("from_numpy")
