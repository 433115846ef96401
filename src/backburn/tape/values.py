"""Tensors for primitives."""

from __future__ import annotations

from typing import Any

from backburn.backend.contract import AnyBackend
from backburn.base.trees import tree_map
from backburn.tensor import classes as _classes  # noqa: F401 - the classes of what is wrapped
from backburn.tensor.wrapping import wrap


def tensors(tree: Any, backend: AnyBackend) -> Any:
    """A tree of primitives of ``backend`` as one of tensors."""
    return tree_map(lambda x: wrap(x, backend), tree)
