"""Making tensors, and moving them between host and device."""

from __future__ import annotations

from typing import Any, Protocol

from backburn.backend.kinds import Kinds
from backburn.backend.table import missing, operation
from backburn.backend.types import B, F, I, Q
from backburn.base.dtypes import DType

Shape = tuple[int, ...]


class Create(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
    """Operations that make a tensor, or hand it to the host."""


    @operation(kinds="FIBQ", shape=None, required=True, result="data")
    def to_numpy(self, x: F | I | B | Q, /) -> Any:
        """The values as a NumPy array that nobody else changes; a quantized tensor is dequantized."""
        return missing("to_numpy")

    @operation(kinds="FIB", shape=lambda *, shape, **_: shape, result="dtype", required=True)
    def full(self, shape: Shape, value: float, dtype: DType) -> Any:
        """``value`` in every place."""
        return missing("full")

    @operation(kinds="FIB", shape=lambda *, shape, **_: shape, result="dtype")
    def ones(self, shape: Shape, dtype: DType) -> Any:
        """1 in every place."""
        return self.full(shape, 1, dtype)
