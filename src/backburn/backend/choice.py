"""Choosing between values by truth values."""

from __future__ import annotations

from typing import Protocol

from backburn.backend.kinds import Kinds
from backburn.backend.types import B, F, I, Q


class Choice(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
    """Choosing between values by truth values."""
