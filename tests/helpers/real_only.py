"""A backend without complex dtypes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from backburn.backend import Capabilities
from backburn.backend.wrapper import Wrapper


class RealOnly(Wrapper):
    """What is inside, without its complex dtypes."""

    name = "real_only"

    @property
    def capabilities(self) -> Capabilities:
        found = super().capabilities
        return replace(found, dtypes={d: uses for d, uses in found.dtypes.items() if d.kind != "complex"})

    def call(self, operation: str, /, *operands: Any, **attributes: Any) -> Any:
        dtype = attributes.get("dtype")
        assert getattr(dtype, "kind", "") != "complex", operation
        assert operation not in ("complex", "real", "imag"), operation
        return super().call(operation, *operands, **attributes)
