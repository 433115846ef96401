"""Comparisons, predicates, boolean logic and bitwise operations.

Operands broadcast. Either operand of a binary operation may be a Python scalar, never both; operands of one call have
one dtype (promotion happens above the contract).
"""

from __future__ import annotations

import math
from typing import Any, Protocol, overload

from backburn.ops.arithmetic import grad_zero_y
from backburn.ops.bodies.scalars import both_tensors
from backburn.ops.primitives import Primitives
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.rules.shapes import broadcast, unchanged
from backburn.ops.table import missing, operation
from backburn.ops.types import B, F, I, Q


class Logic(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Operations with boolean results, and operations on signs and bits."""

    # ---- comparisons ----

    @overload
    def equal(self, x: F, y: F | float, /) -> B: ...
    @overload
    def equal(self, x: float, y: F, /) -> B: ...
    @overload
    def equal(self, x: I, y: I | int, /) -> B: ...
    @overload
    def equal(self, x: int, y: I, /) -> B: ...
    @overload
    def equal(self, x: B, y: B | bool, /) -> B: ...
    @overload
    def equal(self, x: bool, y: B, /) -> B: ...
    @operation(kinds="FCIB", shape=broadcast, result="bool", required=True)
    def equal(self, x: Any, y: Any, /) -> Any:
        """``x == y``; False where either is NaN."""
        return missing("equal")

    @overload
    def not_equal(self, x: F, y: F | float, /) -> B: ...
    @overload
    def not_equal(self, x: float, y: F, /) -> B: ...
    @overload
    def not_equal(self, x: I, y: I | int, /) -> B: ...
    @overload
    def not_equal(self, x: int, y: I, /) -> B: ...
    @overload
    def not_equal(self, x: B, y: B | bool, /) -> B: ...
    @overload
    def not_equal(self, x: bool, y: B, /) -> B: ...
    @operation(kinds="FCIB", shape=broadcast, result="bool")
    def not_equal(self: Any, x: Any, y: Any, /) -> Any:
        """``x != y``; True where either is NaN."""
        return self.logical_not(self.equal(x, y))

    @overload
    def less(self, x: F, y: F | float, /) -> B: ...
    @overload
    def less(self, x: float, y: F, /) -> B: ...
    @overload
    def less(self, x: I, y: I | int, /) -> B: ...
    @overload
    def less(self, x: int, y: I, /) -> B: ...
    @operation(kinds="FI", shape=broadcast, result="bool", required=True)
    def less(self, x: Any, y: Any, /) -> Any:
        """``x < y``; False where either is NaN."""
        return missing("less")

    @overload
    def less_equal(self, x: F, y: F | float, /) -> B: ...
    @overload
    def less_equal(self, x: float, y: F, /) -> B: ...
    @overload
    def less_equal(self, x: I, y: I | int, /) -> B: ...
    @overload
    def less_equal(self, x: int, y: I, /) -> B: ...
    @operation(kinds="FI", shape=broadcast, result="bool", required=True)
    def less_equal(self, x: Any, y: Any, /) -> Any:
        """``x <= y``; False where either is NaN."""
        return missing("less_equal")

    @overload
    def greater(self, x: F, y: F | float, /) -> B: ...
    @overload
    def greater(self, x: float, y: F, /) -> B: ...
    @overload
    def greater(self, x: I, y: I | int, /) -> B: ...
    @overload
    def greater(self, x: int, y: I, /) -> B: ...
    @operation(kinds="FI", shape=broadcast, result="bool")
    def greater(self: Any, x: Any, y: Any, /) -> Any:
        """``x > y``; False where either is NaN."""
        return self.less(y, x)

    @overload
    def greater_equal(self, x: F, y: F | float, /) -> B: ...
    @overload
    def greater_equal(self, x: float, y: F, /) -> B: ...
    @overload
    def greater_equal(self, x: I, y: I | int, /) -> B: ...
    @overload
    def greater_equal(self, x: int, y: I, /) -> B: ...
    @operation(kinds="FI", shape=broadcast, result="bool")
    def greater_equal(self: Any, x: Any, y: Any, /) -> Any:
        """``x >= y``; False where either is NaN."""
        return self.less_equal(y, x)

    # ---- kinds of floats ----

    @operation(kinds="FC", shape=unchanged, result="bool", required=True)
    def isnan(self, x: F, /) -> B:
        """Whether ``x`` is NaN."""
        return missing("isnan")

    @operation(kinds="FC", shape=unchanged, result="bool", required=True)
    def isinf(self, x: F, /) -> B:
        """Whether ``x`` is infinite, of either sign."""
        return missing("isinf")

    @operation(kinds="FC", shape=unchanged, result="bool")
    def isfinite(self: Any, x: F, /) -> B:
        """Whether ``x`` is neither infinite nor NaN."""
        return self.less(self.abs(x), math.inf)

    @operation(kinds="F", shape=unchanged, result="bool")
    def signbit(self: Any, x: F, /) -> B:
        """Whether ``x`` is negative, -0.0 included; unspecified for NaN."""
        # A zero shows its sign in its reciprocal.
        nonzero = self.where(self.equal(x, 0.0), self.div(1.0, x), x)
        return self.less(nonzero, 0.0)

    @overload
    def copysign(self, x: F, y: F | float, /) -> F: ...
    @overload
    def copysign(self, x: float, y: F, /) -> F: ...
    @operation(kinds="F", shape=broadcast, differentiable=True)
    def copysign(self: Any, x: Any, y: Any, /) -> Any:
        """``|x|`` with the sign of ``y``, also of -0.0. The derivative for ``x`` is 0 at 0, that for ``y`` is 0."""
        x, y = both_tensors(self, x, y)
        return self.where(self.equal(self.signbit(x), self.signbit(y)), x, self.neg(x))

    gradient_rule(copysign, x=lambda k, g, x, out: k.mul(g, k.mul(k.sign(x), k.sign(out))), y=grad_zero_y)

    @overload
    def nextafter(self, x: F, y: F | float, /) -> F: ...
    @overload
    def nextafter(self, x: float, y: F, /) -> F: ...
    @operation(kinds="F", shape=broadcast, required=True, differentiable=True)
    def nextafter(self, x: Any, y: Any, /) -> Any:
        """The next representable number after ``x`` towards ``y``; ``y`` where both are equal.

        The derivative for ``x`` is 1, that for ``y`` is 0.
        """
        return missing("nextafter")

    gradient_rule(nextafter, x=lambda g: g, y=grad_zero_y)

    # ---- booleans ----

    @overload
    def logical_and(self, x: B, y: B | bool, /) -> B: ...
    @overload
    def logical_and(self, x: bool, y: B, /) -> B: ...
    @operation(kinds="B", shape=broadcast, result="bool", required=True)
    def logical_and(self, x: Any, y: Any, /) -> Any:
        """Whether both are true."""
        return missing("logical_and")

    @overload
    def logical_or(self, x: B, y: B | bool, /) -> B: ...
    @overload
    def logical_or(self, x: bool, y: B, /) -> B: ...
    @operation(kinds="B", shape=broadcast, result="bool", required=True)
    def logical_or(self, x: Any, y: Any, /) -> Any:
        """Whether either is true."""
        return missing("logical_or")

    @overload
    def logical_xor(self, x: B, y: B | bool, /) -> B: ...
    @overload
    def logical_xor(self, x: bool, y: B, /) -> B: ...
    @operation(kinds="B", shape=broadcast, result="bool")
    def logical_xor(self: Any, x: Any, y: Any, /) -> Any:
        """Whether exactly one is true."""
        return self.not_equal(x, y)

    # ---- bits ----

    @overload
    def bitwise_and(self, x: I, y: I | int, /) -> I: ...
    @overload
    def bitwise_and(self, x: int, y: I, /) -> I: ...
    @operation(kinds="I", shape=broadcast, required=True)
    def bitwise_and(self, x: Any, y: Any, /) -> Any:
        """The bits set in both."""
        return missing("bitwise_and")

    @overload
    def bitwise_or(self, x: I, y: I | int, /) -> I: ...
    @overload
    def bitwise_or(self, x: int, y: I, /) -> I: ...
    @operation(kinds="I", shape=broadcast, required=True)
    def bitwise_or(self, x: Any, y: Any, /) -> Any:
        """The bits set in either."""
        return missing("bitwise_or")

    @overload
    def bitwise_xor(self, x: I, y: I | int, /) -> I: ...
    @overload
    def bitwise_xor(self, x: int, y: I, /) -> I: ...
    @operation(kinds="I", shape=broadcast, required=True)
    def bitwise_xor(self, x: Any, y: Any, /) -> Any:
        """The bits set in exactly one."""
        return missing("bitwise_xor")

    @overload
    def bitwise_left_shift(self, x: I, y: I | int, /) -> I: ...
    @overload
    def bitwise_left_shift(self, x: int, y: I, /) -> I: ...
    @operation(kinds="I", shape=broadcast, required=True)
    def bitwise_left_shift(self, x: Any, y: Any, /) -> Any:
        """``x`` with its bits shifted left by ``y``, filled with zeros; ``0 <= y < bits``."""
        return missing("bitwise_left_shift")

    @overload
    def bitwise_right_shift(self, x: I, y: I | int, /) -> I: ...
    @overload
    def bitwise_right_shift(self, x: int, y: I, /) -> I: ...
    @operation(kinds="I", shape=broadcast, required=True)
    def bitwise_right_shift(self, x: Any, y: Any, /) -> Any:
        """``floor(x / 2**y)``: the bits shifted right, filled with the sign bit; ``0 <= y < bits``."""
        return missing("bitwise_right_shift")
