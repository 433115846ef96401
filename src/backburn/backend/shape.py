"""Operations on the shape: every kind of tensor, values unchanged."""

from __future__ import annotations

from typing import Any, Protocol, overload

from backburn.backend import shapes
from backburn.backend.kinds import Kinds
from backburn.backend.table import missing, operation
from backburn.backend.types import B, F, I, Q

Shape = tuple[int, ...]


class ShapeOperations(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
    """Operations that move elements and change none."""

    @overload
    def reshape(self, x: F, /, shape: Shape) -> F: ...
    @overload
    def reshape(self, x: I, /, shape: Shape) -> I: ...
    @overload
    def reshape(self, x: B, /, shape: Shape) -> B: ...
    @overload
    def reshape(self, x: Q, /, shape: Shape) -> Q: ...
    @operation(kinds="FIBQ", shape=shapes.reshape, required=True, differentiable=True)
    def reshape(self, x: Any, /, shape: Shape) -> Any:
        """The same elements in row-major order under another shape, which has no -1."""
        return missing("reshape")

    @overload
    def broadcast_to(self, x: F, /, shape: Shape) -> F: ...
    @overload
    def broadcast_to(self, x: I, /, shape: Shape) -> I: ...
    @overload
    def broadcast_to(self, x: B, /, shape: Shape) -> B: ...
    @overload
    def broadcast_to(self, x: Q, /, shape: Shape) -> Q: ...
    @operation(kinds="FIBQ", shape=shapes.broadcast_to, required=True, differentiable=True)
    def broadcast_to(self, x: Any, /, shape: Shape) -> Any:
        """``x`` repeated along axes of length 1 and new leading axes to ``shape``."""
        return missing("broadcast_to")
