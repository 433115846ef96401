"""Random numbers: one stateless source of bits, and fixed formulas over it."""

from __future__ import annotations

from typing import Protocol

from backburn.backend.kinds import Kinds
from backburn.backend.types import B, F, I, Q


class Random(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
    """Random numbers: one stateless source of bits, and fixed formulas over it."""
