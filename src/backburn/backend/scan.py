"""Running sums, products and extrema along an axis."""

from __future__ import annotations

from typing import Protocol

from backburn.backend.kinds import Kinds
from backburn.backend.types import B, F, I, Q


class Scan(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
    """Running sums, products and extrema along an axis."""
