"""Arithmetic on each element.

Operands broadcast. Either operand of a binary operation may be a Python scalar, never both; operands of one call have
one dtype (promotion happens above the contract). Integers wrap around where a result does not fit their dtype.
"""

from __future__ import annotations

from typing import Any, Protocol, overload

from backburn.ops.bodies.scalars import both_tensors, is_scalar
from backburn.ops.primitives import Primitives
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.rules.shapes import broadcast, unchanged
from backburn.ops.table import missing, operation
from backburn.ops.types import B, F, I, Q

# ---- gradients ----


def grad_zero_x(k: Any, x_shape: tuple[int, ...], x_dtype: Any) -> Any:
    """The gradient of ``x`` in an operation that is piecewise constant in it: 0."""
    return k.zeros(x_shape, x_dtype)


def grad_zero_y(k: Any, y_shape: tuple[int, ...], y_dtype: Any) -> Any:
    """The gradient of ``y`` in an operation that is piecewise constant in it: 0."""
    return k.zeros(y_shape, y_dtype)


def grad_winner(k: Any, g: Any, loses: Any, ties: Any) -> Any:
    """``g`` for the larger (or smaller) operand, half of it for ties, else 0."""
    return k.where(loses, 0.0, k.where(ties, k.mul(g, 0.5), g))


def numbers_first(k: Any, choose: Any, x: Any, y: Any) -> Any:
    """``choose(x, y)``, with an operand that is NaN replaced by the other."""
    x, y = both_tensors(k, x, y)
    if k.dtype(x).kind == "int":
        return choose(x, y)
    return choose(k.where(k.equal(x, x), x, y), k.where(k.equal(y, y), y, x))


def grad_number(k: Any, g: Any, x: Any, y: Any, loses: Any) -> Any:
    """:func:`grad_winner` for an operand that also loses where it is NaN."""
    x, y = both_tensors(k, x, y)
    return grad_winner(k, g, k.logical_or(loses(x, y), k.not_equal(x, x)), k.equal(x, y))


def grad_clip_x(k: Any, g: Any, x: Any, min: Any, max: Any) -> Any:
    """The gradient of the clipped operand: ``g`` within the bounds, ends included, and 0 where it is NaN."""
    if min is not None:
        g = k.where(k.less_equal(min, x), g, 0.0)
    return g if max is None else k.where(k.less_equal(x, max), g, 0.0)


def grad_clip_min(k: Any, g: Any, x: Any, min: Any, max: Any) -> Any:
    """The gradient of the lower bound: ``g`` where the result is the lower bound."""
    if max is not None:
        g = k.where(k.less(max, min), 0.0, g)
    return k.where(k.less(x, min), g, 0.0)


def grad_clip_max(k: Any, g: Any, x: Any, min: Any, max: Any) -> Any:
    """The gradient of the upper bound: ``g`` where the result is the upper bound."""
    above = x if min is None else k.maximum(x, min)
    return k.where(k.less(max, above), g, 0.0)


class Arithmetic(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Sums, products, quotients, signs and bounds."""

    @overload
    def add(self, x: F, y: F | float, /) -> F: ...
    @overload
    def add(self, x: float, y: F, /) -> F: ...
    @overload
    def add(self, x: I, y: I | int, /) -> I: ...
    @overload
    def add(self, x: int, y: I, /) -> I: ...
    @operation(kinds="FCI", shape=broadcast, required=True, differentiable=True)
    def add(self, x: Any, y: Any, /) -> Any:
        """``x + y``."""
        return missing("add")

    gradient_rule(add, x=lambda g: g, y=lambda g: g)

    @overload
    def sub(self, x: F, y: F | float, /) -> F: ...
    @overload
    def sub(self, x: float, y: F, /) -> F: ...
    @overload
    def sub(self, x: I, y: I | int, /) -> I: ...
    @overload
    def sub(self, x: int, y: I, /) -> I: ...
    @operation(kinds="FCI", shape=broadcast, required=True, differentiable=True)
    def sub(self, x: Any, y: Any, /) -> Any:
        """``x - y``."""
        return missing("sub")

    gradient_rule(sub, x=lambda g: g, y=lambda k, g: k.neg(g))

    @overload
    def mul(self, x: F, y: F | float, /) -> F: ...
    @overload
    def mul(self, x: float, y: F, /) -> F: ...
    @overload
    def mul(self, x: I, y: I | int, /) -> I: ...
    @overload
    def mul(self, x: int, y: I, /) -> I: ...
    @operation(kinds="FCI", shape=broadcast, required=True, differentiable=True)
    def mul(self, x: Any, y: Any, /) -> Any:
        """``x * y``."""
        return missing("mul")

    gradient_rule(mul, x=lambda k, g, y: k.mul(g, y), y=lambda k, g, x: k.mul(g, x))

    @overload
    def div(self, x: F, y: F | float, /) -> F: ...
    @overload
    def div(self, x: float, y: F, /) -> F: ...
    @operation(kinds="FC", shape=broadcast, required=True, differentiable=True, fuse=True)
    def div(self, x: Any, y: Any, /) -> Any:
        """``x / y``; a zero divisor gives an infinity or NaN."""
        return missing("div")

    gradient_rule(div, x=lambda k, g, y: k.div(g, y), y=lambda k, g, out, y: k.neg(k.mul(k.div(g, y), out)))

    @overload
    def floor_divide(self, x: F, y: F | float, /) -> F: ...
    @overload
    def floor_divide(self, x: float, y: F, /) -> F: ...
    @overload
    def floor_divide(self, x: I, y: I | int, /) -> I: ...
    @overload
    def floor_divide(self, x: int, y: I, /) -> I: ...
    @operation(kinds="FI", shape=broadcast, required=True, differentiable=True)
    def floor_divide(self, x: Any, y: Any, /) -> Any:
        """The largest integral value not above ``x / y``; an integer zero divisor gives 0. The derivative is 0."""
        return missing("floor_divide")

    gradient_rule(floor_divide, x=grad_zero_x, y=grad_zero_y)

    @overload
    def remainder(self, x: F, y: F | float, /) -> F: ...
    @overload
    def remainder(self, x: float, y: F, /) -> F: ...
    @overload
    def remainder(self, x: I, y: I | int, /) -> I: ...
    @overload
    def remainder(self, x: int, y: I, /) -> I: ...
    @operation(kinds="FI", shape=broadcast, required=True, differentiable=True)
    def remainder(self, x: Any, y: Any, /) -> Any:
        """``x - floor(x / y) * y``, with the sign of ``y``; an integer zero divisor gives 0."""
        return missing("remainder")

    gradient_rule(remainder, x=lambda g: g, y=lambda k, g, x, y: k.neg(k.mul(g, k.floor_divide(x, y))))

    @overload
    def fmod(self, x: F, y: F | float, /) -> F: ...
    @overload
    def fmod(self, x: float, y: F, /) -> F: ...
    @overload
    def fmod(self, x: I, y: I | int, /) -> I: ...
    @overload
    def fmod(self, x: int, y: I, /) -> I: ...
    @operation(kinds="FI", shape=broadcast, differentiable=True)
    def fmod(self: Any, x: Any, y: Any, /) -> Any:
        """The remainder of truncated division, with the sign of ``x``; an integer zero divisor gives 0."""
        x, y = both_tensors(self, x, y)
        if self.dtype(x).is_floating:
            # Between operands of one sign the remainder is exact; copying the sign keeps -0.0.
            return self.copysign(self.remainder(self.abs(x), self.abs(y)), x)
        floored = self.remainder(x, y)
        opposite = self.less(self.bitwise_xor(x, floored), 0)
        return self.where(self.logical_and(opposite, self.not_equal(floored, 0)), self.sub(floored, y), floored)

    gradient_rule(fmod, x=lambda g: g, y=lambda k, g, x, y, out: k.neg(k.mul(g, k.round(k.div(k.sub(x, out), y)))))

    @overload
    def neg(self, x: F, /) -> F: ...
    @overload
    def neg(self, x: I, /) -> I: ...
    @operation(kinds="FCI", shape=unchanged, required=True, differentiable=True)
    def neg(self, x: Any, /) -> Any:
        """The negative, ``-x``; unsigned integers wrap around."""
        return missing("neg")

    gradient_rule(neg, x=lambda k, g: k.neg(g))

    @overload
    def abs(self, x: F, /) -> F: ...
    @overload
    def abs(self, x: I, /) -> I: ...
    @operation(kinds="FI", shape=unchanged, required=True, differentiable=True, fuse=True)
    def abs(self, x: Any, /) -> Any:
        """``|x|``; the derivative at 0 is 0."""
        return missing("abs")

    gradient_rule(abs, x=lambda k, g, x: k.mul(g, k.sign(x)))

    @overload
    def sign(self, x: F, /) -> F: ...
    @overload
    def sign(self, x: I, /) -> I: ...
    @operation(kinds="FI", shape=unchanged, required=True, differentiable=True)
    def sign(self, x: Any, /) -> Any:
        """-1, 0 or 1; NaN stays NaN. The derivative is 0."""
        return missing("sign")

    gradient_rule(sign, x=grad_zero_x)

    @overload
    def maximum(self, x: F, y: F | float, /) -> F: ...
    @overload
    def maximum(self, x: float, y: F, /) -> F: ...
    @overload
    def maximum(self, x: I, y: I | int, /) -> I: ...
    @overload
    def maximum(self, x: int, y: I, /) -> I: ...
    @operation(kinds="FI", shape=broadcast, required=True, differentiable=True, fuse=True)
    def maximum(self, x: Any, y: Any, /) -> Any:
        """The larger of both; NaN if either is. The gradient of a tie is shared equally."""
        return missing("maximum")

    gradient_rule(
        maximum,
        x=lambda k, g, x, y: grad_winner(k, g, k.less(x, y), k.equal(x, y)),
        y=lambda k, g, x, y: grad_winner(k, g, k.less(y, x), k.equal(x, y)),
    )

    @overload
    def minimum(self, x: F, y: F | float, /) -> F: ...
    @overload
    def minimum(self, x: float, y: F, /) -> F: ...
    @overload
    def minimum(self, x: I, y: I | int, /) -> I: ...
    @overload
    def minimum(self, x: int, y: I, /) -> I: ...
    @operation(kinds="FI", shape=broadcast, required=True, differentiable=True, fuse=True)
    def minimum(self, x: Any, y: Any, /) -> Any:
        """The smaller of both; NaN if either is. The gradient of a tie is shared equally."""
        return missing("minimum")

    gradient_rule(
        minimum,
        x=lambda k, g, x, y: grad_winner(k, g, k.less(y, x), k.equal(x, y)),
        y=lambda k, g, x, y: grad_winner(k, g, k.less(x, y), k.equal(x, y)),
    )

    @overload
    def fmax(self, x: F, y: F | float, /) -> F: ...
    @overload
    def fmax(self, x: float, y: F, /) -> F: ...
    @overload
    def fmax(self, x: I, y: I | int, /) -> I: ...
    @overload
    def fmax(self, x: int, y: I, /) -> I: ...
    @operation(kinds="FI", shape=broadcast, differentiable=True, fuse=True)
    def fmax(self: Any, x: Any, y: Any, /) -> Any:
        """The larger of both, or the one that is not NaN. The gradient of a tie is shared equally."""
        return numbers_first(self, self.maximum, x, y)

    gradient_rule(
        fmax,
        x=lambda k, g, x, y: grad_number(k, g, x, y, k.less),
        y=lambda k, g, x, y: grad_number(k, g, y, x, k.less),
    )

    @overload
    def fmin(self, x: F, y: F | float, /) -> F: ...
    @overload
    def fmin(self, x: float, y: F, /) -> F: ...
    @overload
    def fmin(self, x: I, y: I | int, /) -> I: ...
    @overload
    def fmin(self, x: int, y: I, /) -> I: ...
    @operation(kinds="FI", shape=broadcast, differentiable=True, fuse=True)
    def fmin(self: Any, x: Any, y: Any, /) -> Any:
        """The smaller of both, or the one that is not NaN. The gradient of a tie is shared equally."""
        return numbers_first(self, self.minimum, x, y)

    gradient_rule(
        fmin,
        x=lambda k, g, x, y: grad_number(k, g, x, y, k.greater),
        y=lambda k, g, x, y: grad_number(k, g, y, x, k.greater),
    )

    @overload
    def square(self, x: F, /) -> F: ...
    @overload
    def square(self, x: I, /) -> I: ...
    @operation(kinds="FCI", shape=unchanged, differentiable=True)
    def square(self, x: Any, /) -> Any:
        """``x * x``."""
        return self.mul(x, x)

    gradient_rule(square, x=lambda k, g, x: k.mul(g, k.mul(x, 2.0)))

    @operation(kinds="FC", shape=unchanged, differentiable=True, fuse=True)
    def reciprocal(self, x: F, /) -> F:
        """``1 / x``."""
        return self.div(1.0, x)

    gradient_rule(reciprocal, x=lambda k, g, out: k.neg(k.mul(g, k.square(out))))

    @overload
    def clip(self, x: F, min: F | float | None = None, max: F | float | None = None, /) -> F: ...
    @overload
    def clip(self, x: I, min: I | int | None = None, max: I | int | None = None, /) -> I: ...
    @operation(kinds="FI", shape=broadcast, differentiable=True, fuse=True)
    def clip(self, x: Any, min: Any = None, max: Any = None, /) -> Any:
        """``x`` with its values limited to the range from ``min`` to ``max``; None sets no bound.

        Where the bounds cross, ``max`` wins. NaN stays NaN. The gradient goes to ``x`` within the bounds, ends
        included, and to the bound outside.
        """
        above = x if min is None else self.maximum(x, min)
        return above if max is None else self.minimum(above, max)

    gradient_rule(clip, x=grad_clip_x, min=grad_clip_min, max=grad_clip_max)

    @overload
    def lerp(self, x: F, y: F | float, weight: F | float, /) -> F: ...
    @overload
    def lerp(self, x: float, y: F, weight: F | float, /) -> F: ...
    @operation(kinds="FC", shape=broadcast, differentiable=True)
    def lerp(self: Any, x: Any, y: Any, weight: Any, /) -> Any:
        """``(1 - weight) * x + weight * y``: exactly ``x`` at weight 0 and ``y`` at weight 1, however far apart.

        At most one of ``x`` and ``y`` may be a scalar.
        """

        def product(weight: Any, end: Any) -> Any:
            return weight * end if is_scalar(weight) and is_scalar(end) else self.mul(weight, end)

        rest = 1.0 - weight if is_scalar(weight) else self.sub(1.0, weight)
        return self.add(product(rest, x), product(weight, y))

    gradient_rule(
        lerp,
        x=lambda k, g, weight: k.mul(g, 1.0 - weight if is_scalar(weight) else k.sub(1.0, weight)),
        y=lambda k, g, weight: k.mul(g, weight),
        weight=lambda k, g, x, y: k.mul(g, k.sub(y, x)),
    )
