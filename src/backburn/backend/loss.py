"""Losses."""

from __future__ import annotations

from typing import Protocol

from backburn.backend.kinds import Kinds
from backburn.backend.types import B, F, I, Q


class Loss(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
    """Losses."""
