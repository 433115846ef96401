"""Tensors for primitives, and back."""

from __future__ import annotations

from typing import Any

from backburn.backend.contract import AnyBackend
from backburn.base.trees import flatten, tree_map
from backburn.tensor import classes as _classes  # noqa: F401 - the classes of what is wrapped
from backburn.tensor.dispatch import wrap
from backburn.tensor.host import asarray


def tensors(tree: Any, backend: AnyBackend) -> Any:
    """A tree of primitives of ``backend`` as one of tensors."""
    return tree_map(lambda x: wrap(x, backend), tree)


def from_lists(x: Any, backend: AnyBackend) -> Any:
    """Nested lists and tuples of numbers as a tensor; anything else as it is."""
    if x.__class__ not in (list, tuple) or not all(isinstance(leaf, (bool, int, float)) for leaf in flatten(x)[0]):
        return x
    return asarray(x, backend=backend)
