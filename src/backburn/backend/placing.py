"""Placement: how a primitive is sharded, for modules that do not know the decorator that shards it."""

from __future__ import annotations

from typing import Any

from backburn.base.dtypes import DType
from backburn.ops.table import missing


class Placing:
    """A decorator whose primitives may be sharded along a mesh axis: the base class of ``Sharded``."""

    mesh_axis: str

    def place_like(self, x: Any, like: Any) -> Any:
        """``x`` sharded like ``like``, a primitive of the same shape; ``x`` itself if it already is."""
        return missing("place_like")

    def full_like(self, like: Any, value: float, dtype: DType) -> Any:
        """A primitive filled with ``value``, sharded like ``like``."""
        return missing("full_like")


def levels_of(backend: Any) -> list[Any]:
    """The decorators in a backend whose primitives may be sharded, the outermost first.

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
    """``x`` placed like ``like``, a primitive of the same shape; whole where ``like`` is a partial sum.

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
    """A primitive filled with ``value``, with the shape and placement of ``like``, without allocating the whole.

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
