"""A backend without complex dtypes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from backburn.backend import Capabilities
from backburn.backend.wrapper import Wrapper
from backburn.base.errors import Unsupported


class RealOnly(Wrapper):
    """The wrapped backend without its complex dtypes."""

    name = "real_only"

    @property
    def capabilities(self) -> Capabilities:
        found = super().capabilities
        return replace(found, dtypes={d: uses for d, uses in found.dtypes.items() if d.kind != "complex"})

    def call(self, operation: str, /, *operands: Any, **attributes: Any) -> Any:
        kinds = {getattr(x, "kind", "") for x in (*operands, *attributes.values())}
        arrays = [x for x in (*operands, *attributes.values()) if isinstance(x, np.ndarray)]
        if kinds & {"complex"} or operation in ("complex", "real", "imag") or any(x.dtype.kind == "c" for x in arrays):
            raise Unsupported(f"{operation}: real_only has no complex numbers")
        return super().call(operation, *operands, **attributes)
