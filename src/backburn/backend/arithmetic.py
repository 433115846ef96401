"""Arithmetic on each element.

Operands broadcast. Either operand of a binary operation may be a Python scalar, never both; operands of one call have
one dtype (promotion happens above the contract). Integers wrap around where a result does not fit their dtype.
"""

from __future__ import annotations

from typing import Any, Protocol, overload

from backburn.backend.kinds import Kinds
from backburn.backend.scalars import both_tensors, is_scalar
from backburn.backend.shapes import broadcast, unchanged
from backburn.backend.table import missing, operation
from backburn.backend.types import B, F, I, Q


class Arithmetic(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
    """Sums, products, quotients, signs and bounds."""

    @overload
    def add(self, x: F, y: F | float, /) -> F: ...
    @overload
    def add(self, x: float, y: F, /) -> F: ...
    @overload
    def add(self, x: I, y: I | int, /) -> I: ...
    @overload
    def add(self, x: int, y: I, /) -> I: ...
    @operation(kinds="FI", shape=broadcast, required=True, differentiable=True)
    def add(self, x: Any, y: Any, /) -> Any:
        """``x + y``."""
        return missing("add")

    @overload
    def sub(self, x: F, y: F | float, /) -> F: ...
    @overload
    def sub(self, x: float, y: F, /) -> F: ...
    @overload
    def sub(self, x: I, y: I | int, /) -> I: ...
    @overload
    def sub(self, x: int, y: I, /) -> I: ...
    @operation(kinds="FI", shape=broadcast, required=True, differentiable=True)
    def sub(self, x: Any, y: Any, /) -> Any:
        """``x - y``."""
        return missing("sub")

    @overload
    def mul(self, x: F, y: F | float, /) -> F: ...
    @overload
    def mul(self, x: float, y: F, /) -> F: ...
    @overload
    def mul(self, x: I, y: I | int, /) -> I: ...
    @overload
    def mul(self, x: int, y: I, /) -> I: ...
    @operation(kinds="FI", shape=broadcast, required=True, differentiable=True)
    def mul(self, x: Any, y: Any, /) -> Any:
        """``x * y``."""
        return missing("mul")

    @overload
    def div(self, x: F, y: F | float, /) -> F: ...
    @overload
    def div(self, x: float, y: F, /) -> F: ...
    @operation(kinds="F", shape=broadcast, required=True, differentiable=True)
    def div(self, x: Any, y: Any, /) -> Any:
        """``x / y``; a zero divisor gives an infinity or NaN."""
        return missing("div")

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
        if self.dtype(x).kind == "float":
            # Between operands of one sign the remainder is exact; copying the sign keeps -0.0.
            return self.copysign(self.remainder(self.abs(x), self.abs(y)), x)
        floored = self.remainder(x, y)
        opposite = self.less(self.bitwise_xor(x, floored), 0)
        return self.where(self.logical_and(opposite, self.not_equal(floored, 0)), self.sub(floored, y), floored)

    @overload
    def neg(self, x: F, /) -> F: ...
    @overload
    def neg(self, x: I, /) -> I: ...
    @operation(kinds="FI", shape=unchanged, required=True, differentiable=True)
    def neg(self, x: Any, /) -> Any:
        """The negative, ``-x``; unsigned integers wrap around."""
        return missing("neg")

    @overload
    def abs(self, x: F, /) -> F: ...
    @overload
    def abs(self, x: I, /) -> I: ...
    @operation(kinds="FI", shape=unchanged, required=True, differentiable=True)
    def abs(self, x: Any, /) -> Any:
        """``|x|``; the derivative at 0 is 0."""
        return missing("abs")

    @overload
    def sign(self, x: F, /) -> F: ...
    @overload
    def sign(self, x: I, /) -> I: ...
    @operation(kinds="FI", shape=unchanged, required=True, differentiable=True)
    def sign(self, x: Any, /) -> Any:
        """-1, 0 or 1; NaN stays NaN. The derivative is 0."""
        return missing("sign")

    @overload
    def maximum(self, x: F, y: F | float, /) -> F: ...
    @overload
    def maximum(self, x: float, y: F, /) -> F: ...
    @overload
    def maximum(self, x: I, y: I | int, /) -> I: ...
    @overload
    def maximum(self, x: int, y: I, /) -> I: ...
    @operation(kinds="FI", shape=broadcast, required=True, differentiable=True)
    def maximum(self, x: Any, y: Any, /) -> Any:
        """The larger of both; NaN if either is. The gradient of a tie is shared equally."""
        return missing("maximum")

    @overload
    def minimum(self, x: F, y: F | float, /) -> F: ...
    @overload
    def minimum(self, x: float, y: F, /) -> F: ...
    @overload
    def minimum(self, x: I, y: I | int, /) -> I: ...
    @overload
    def minimum(self, x: int, y: I, /) -> I: ...
    @operation(kinds="FI", shape=broadcast, required=True, differentiable=True)
    def minimum(self, x: Any, y: Any, /) -> Any:
        """The smaller of both; NaN if either is. The gradient of a tie is shared equally."""
        return missing("minimum")

    @overload
    def square(self, x: F, /) -> F: ...
    @overload
    def square(self, x: I, /) -> I: ...
    @operation(kinds="FI", shape=unchanged, differentiable=True)
    def square(self, x: Any, /) -> Any:
        """``x * x``."""
        return self.mul(x, x)

    @operation(kinds="F", shape=unchanged, differentiable=True)
    def reciprocal(self, x: F, /) -> F:
        """``1 / x``."""
        return self.div(1.0, x)

    @overload
    def clamp(self, x: F, min: F | float | None = None, max: F | float | None = None, /) -> F: ...
    @overload
    def clamp(self, x: I, min: I | int | None = None, max: I | int | None = None, /) -> I: ...
    @operation(kinds="FI", shape=broadcast, differentiable=True)
    def clamp(self, x: Any, min: Any = None, max: Any = None, /) -> Any:
        """``x`` with its values limited to the range from ``min`` to ``max``; None sets no bound.

        Where the bounds cross, ``max`` wins. NaN stays NaN. The gradient goes to ``x`` within the bounds, ends
        included, and to the bound outside.
        """
        above = x if min is None else self.maximum(x, min)
        return above if max is None else self.minimum(above, max)

    @overload
    def lerp(self, x: F, y: F | float, weight: F | float, /) -> F: ...
    @overload
    def lerp(self, x: float, y: F, weight: F | float, /) -> F: ...
    @operation(kinds="F", shape=broadcast, differentiable=True)
    def lerp(self: Any, x: Any, y: Any, weight: Any, /) -> Any:
        """``(1 - weight) * x + weight * y``: exactly ``x`` at weight 0 and ``y`` at weight 1, however far apart.

        At most one of ``x`` and ``y`` may be a scalar.
        """

        def product(weight: Any, end: Any) -> Any:
            return weight * end if is_scalar(weight) and is_scalar(end) else self.mul(weight, end)

        rest = 1.0 - weight if is_scalar(weight) else self.sub(1.0, weight)
        return self.add(product(rest, x), product(weight, y))
