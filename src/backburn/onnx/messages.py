"""Descriptions of nodes and values in errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from backburn.base.foreign import printable, quoted
from backburn.tensor.core.wrapping import is_tensor


def shown(value: Any) -> str:
    """A value of a graph in a message: a tensor's dtype and shape, or its type."""
    if value is None:
        return "none"
    if is_tensor(value):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, np.ndarray):
        numbers = f" = {value.tolist()}" if value.size <= 8 else ""
        return f"{value.dtype}{list(value.shape)}{numbers}"
    if isinstance(value, list):
        return f"a sequence of {len(value)}"
    return type(value).__name__


def shown_all(values: Iterable[Any]) -> str:
    """The inputs of a node in a message."""
    return ", ".join(map(shown, values)) or "none"


def node_words(kind: str, name: str, domain: str, opset: int) -> str:
    """A node in a message: its name, operator and opset."""
    operator = f"{domain}.{kind}" if domain else kind
    return f"node {quoted(name) if name else 'without a name'} ({printable(operator)}, opset {opset})"
