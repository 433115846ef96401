"""Reductions and scans."""

from __future__ import annotations

from typing import Any, Protocol, overload

from backburn.backend.shapes import reduced
from backburn.backend.kinds import Kinds
from backburn.backend.table import missing, operation
from backburn.backend.types import B, F, I, Q

Axes = tuple[int, ...]


class Reduce(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
    """Operations that combine elements along axes. ``axis`` holds distinct numbers from 0 to rank - 1."""

    @overload
    def sum(self, x: F, /, axis: Axes, keepdims: bool = False) -> F: ...
    @overload
    def sum(self, x: I, /, axis: Axes, keepdims: bool = False) -> I: ...
    @operation(kinds="FI", shape=reduced, required=True, differentiable=True)
    def sum(self, x: Any, /, axis: Axes, keepdims: bool = False) -> Any:
        """The sum over ``axis``; 0 where there is nothing to add."""
        return missing("sum")
