"""Placement: where a primitive is in parts, for modules that do not know the decorator that divides it."""

from __future__ import annotations

from typing import Any

from backburn.base.dtypes import DType
from backburn.ops.table import missing


class Placing:
    """A decorator whose primitives may be in parts along a mesh axis: the base class of ``Sharded``."""

    mesh_axis: str

    def place_like(self, x: Any, like: Any) -> Any:
        """``x`` in the parts in which ``like`` is, a primitive of the same shape; ``x`` itself if it is so placed."""
        return missing("place_like")

    def full_like(self, like: Any, value: float, dtype: DType) -> Any:
        """A primitive of one value in the parts in which ``like`` is."""
        return missing("full_like")


def levels_of(backend: Any) -> list[Any]:
    """The decorators in a backend whose primitives may be in parts, from the outside in.

    >>> import backburn as bb
    >>> [level.mesh_axis for level in levels_of(bb.load_backend("autodiff(sharded(sharded(numpy, tp=2), dp=4))"))]
    ['dp', 'tp']
    """
    found: list[Any] = []
    k: Any = backend
    while k is not None:
        if isinstance(k, Placing):
            found.append(k)
        k = getattr(k, "wrapped", None) or getattr(k, "inner_backend", None)
    return found


def place_like(backend: Any, x: Any, like: Any) -> Any:
    """``x`` placed as ``like``, a primitive of the same shape, is; as a whole where ``like`` is a sum of addends.

    >>> import backburn as bb
    >>> k = bb.load_backend("sharded(numpy, dp=2)")
    >>> place_like(k, k.ones((4,), k.float_dtype), k.cut(k.zeros((4,), k.float_dtype), 0))
    Shards([4], dp: axis 0 cut into [2, 2])
    """
    k: Any = backend
    if isinstance(k, Placing):
        return k.place_like(x, like)
    if hasattr(k, "wrapped"):
        return place_like(k.wrapped, x, like)
    if not hasattr(k, "inner_backend"):
        return x
    if not k.dtype(x).has_gradient:
        return place_like(k.inner_backend, x, like)
    inner = k.inner(x)
    made = place_like(k.inner_backend, inner, k.inner(like))
    return x if made is inner else k.from_inner(made)


def full_like(backend: Any, like: Any, value: float, dtype: DType) -> Any:
    """A primitive of one value that has the shape and the placement of ``like``; no part of it is ever whole.

    >>> import backburn as bb
    >>> k = bb.load_backend("sharded(numpy, dp=2)")
    >>> full_like(k, k.cut(k.zeros((5,), k.float_dtype), 0), 1.0, k.float_dtype)
    Shards([5], dp: axis 0 cut into [3, 2])
    """
    k: Any = backend
    if isinstance(k, Placing):
        return k.full_like(like, value, dtype)
    if hasattr(k, "wrapped") and levels_of(k):
        return full_like(k.wrapped, like, value, dtype)
    return k.full(tuple(like.shape), value, dtype)
