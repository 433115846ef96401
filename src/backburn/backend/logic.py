"""Comparisons and predicates, logic of truth values, and bits of integers.

Operands broadcast. Either operand of a binary operation may be a Python scalar, never both; operands of one call have
one dtype (promotion happens above the contract).
"""

from __future__ import annotations

from typing import Any, Protocol, overload

from backburn.backend.kinds import Kinds
from backburn.backend.shapes import broadcast, unchanged
from backburn.backend.table import missing, operation
from backburn.backend.types import B, F, I, Q


class Logic(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
    """Operations whose result is a truth value, or that see integers as bits."""

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
    @operation(kinds="FIB", shape=broadcast, result="bool", required=True)
    def equal(self, x: Any, y: Any, /) -> Any:
        """``x == y``; False where either is NaN."""
        return missing("equal")

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
