"""Placing primitives: cutting them on the levels of a mesh, below the decorators that differentiate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backburn.backend.contract import is_autodiff
from backburn.base.dtypes import DType
from backburn.base.errors import ArgumentError, GraphError, hint_for
from backburn.decorators.sharding import collectives
from backburn.decorators.sharding.decorator import Sharded
from backburn.decorators.sharding.shards import Shards


def levels_of(backend: Any) -> list[Sharded]:
    """The levels of ``Sharded`` in a backend, from the outside in.

    >>> import backburn as bb
    >>> [level.mesh_axis for level in levels_of(bb.load_backend("autodiff(sharded(sharded(numpy, tp=2), dp=4))"))]
    ['dp', 'tp']
    """
    found: list[Sharded] = []
    k: Any = backend
    while k is not None:
        if type(k) is Sharded:
            found.append(k)
        k = getattr(k, "wrapped", None) or getattr(k, "inner_backend", None)
    return found


def spec_without_shards(backend: Any) -> str:
    """The expression of a backend without its levels of shards, which compute the same in another way.

    >>> import backburn as bb
    >>> spec_without_shards(bb.load_backend("autodiff(sharded(sharded(numpy, tp=2), dp=4, timeout=8))"))
    'autodiff(numpy)'
    """
    found: str = backend.spec
    for level in levels_of(backend):
        found = found.replace(level.spec, level.wrapped.spec)
    return found


def check_mesh_axes(backend: Any, names: Any) -> None:
    """Raise :class:`ArgumentError` for a name that no level of ``backend`` has."""
    known = [level.mesh_axis for level in levels_of(backend)]
    for name in names:
        if name not in known:
            raise ArgumentError(
                f"place: {backend.spec} has no mesh axis {name!r}, but "
                f"{', '.join(map(repr, known)) or 'none'}. {hint_for(str(name), known)}"
            )


def place_primitive(backend: Any, x: Any, placement: Mapping[str, int | None]) -> Any:
    """``x`` cut over each mesh axis in ``placement`` along the axis given there, or whole for None.

    Mesh axes without an entry keep what they have. A leaf becomes a new leaf. Raises :class:`ArgumentError` for a mesh
    axis that ``backend`` does not have, :class:`AxisError` for an axis that ``x`` does not have, and
    :class:`GraphError` for the result of an operation that is differentiated.

        >>> import backburn as bb
        >>> k = bb.load_backend("sharded(sharded(numpy, tp=2), dp=4)")
        >>> placement_of(k, place_primitive(k, k.zeros((8, 6), k.float_dtype), {"dp": 0, "tp": 1}))
        {'dp': 0, 'tp': 1}
    """
    check_mesh_axes(backend, placement)
    return _placed(backend, x, placement)


def _placed(k: Any, x: Any, placement: Mapping[str, int | None]) -> Any:
    if type(k) is Sharded:
        if k.mesh_axis in placement:
            axis = placement[k.mesh_axis]
            x = k.whole(x) if axis is None else _owned(k, k.cut(x, axis))
        if not k.is_cut(x):
            return _placed(k.wrapped, x, placement)
        parts = [_placed(k.wrapped, p, placement) for p in x.parts]
        return Shards(parts, x.axis, x.cuts, x.shape, x.mesh_axis)
    if hasattr(k, "wrapped"):
        return _placed(k.wrapped, x, placement)
    if not hasattr(k, "inner_backend"):
        return x
    if not k.dtype(x).has_gradient:
        return _placed(k.inner_backend, x, placement)
    is_leaf = is_autodiff(k) and k.is_require_grad(x)
    if not is_leaf and k.is_tracked(x):
        raise GraphError(
            "place: takes data and parameters, and this tensor is the result of a differentiated operation"
        )
    below = _placed(k.inner_backend, k.inner(x), placement)
    return k.new_leaf(below) if is_leaf else k.from_inner(below)


def _owned(k: Sharded, x: Any) -> Any:
    """A cut primitive whose parts keep no other process's elements in memory, as views of the whole would.

    The layout of the parts does not depend on the number of processes.
    """
    if not k.is_cut(x):
        return x
    parts = [collectives.dense(p) for p in x.parts]
    if len(k.own) < k.size:
        parts = [
            collectives.rebuilt(p, (k.leaf_backend.concat([leaf], x.axis) for leaf in collectives.leaves(p)), {})
            for p in parts
        ]
    return Shards(parts, x.axis, x.cuts, x.shape, x.mesh_axis)


def placement_of(backend: Any, x: Any) -> dict[str, int | str | None]:
    """The axis along which a primitive is cut over each mesh axis: None if it is whole, ``"addends"`` for a sum.

    >>> import backburn as bb
    >>> k = bb.load_backend("sharded(numpy, dp=2)")
    >>> placement_of(k, k.zeros((3,), k.float_dtype))
    {'dp': None}
    """
    found: dict[str, int | str | None] = {}
    k: Any = backend
    while k is not None:
        if type(k) is Sharded:
            cut = k.is_cut(x)
            found[k.mesh_axis] = ("addends" if x.axis is None else x.axis) if cut else None
            x = x.parts[0] if cut else x
        elif hasattr(k, "inner_backend") and k.dtype(x).has_gradient:
            x = k.inner(x)
        k = getattr(k, "wrapped", None) or getattr(k, "inner_backend", None)
    return found


def place_like(backend: Any, x: Any, like: Any) -> Any:
    """``x`` placed as ``like``, a primitive of the same shape, is; as a whole where ``like`` is a sum of addends.

    >>> import backburn as bb
    >>> k = bb.load_backend("sharded(numpy, dp=2)")
    >>> x = k.cut(k.zeros((4,), k.float_dtype), 0)
    >>> placement_of(k, place_like(k, k.ones((4,), k.float_dtype), x)), placement_of(k, place_like(k, x, k.whole(x)))
    ({'dp': 0}, {'dp': None})
    """
    k: Any = backend
    if placement_of(k, x) == placement_of(k, like):
        return x
    if type(k) is Sharded:
        if not k.is_cut(like) or like.axis is None:
            return place_like(k.wrapped, k.whole(x), k.whole(like))
        cut = _owned(k, Shards(k.parts(x, like.axis, like.cuts), like.axis, like.cuts, like.shape, like.mesh_axis))
        parts = [place_like(k.wrapped, part, one) for part, one in zip(cut.parts, like.parts, strict=True)]
        return Shards(parts, like.axis, like.cuts, like.shape, like.mesh_axis)
    if hasattr(k, "wrapped"):
        return place_like(k.wrapped, x, like)
    if not hasattr(k, "inner_backend"):
        return x
    if not k.dtype(x).has_gradient:
        return place_like(k.inner_backend, x, like)
    return k.from_inner(place_like(k.inner_backend, k.inner(x), k.inner(like)))


def full_like(backend: Any, like: Any, value: float, dtype: DType) -> Any:
    """A primitive of one value that has the shape and the placement of ``like``; no part of it is ever whole.

    >>> import backburn as bb
    >>> k = bb.load_backend("sharded(numpy, dp=2)")
    >>> full_like(k, k.cut(k.zeros((5,), k.float_dtype), 0), 1.0, k.float_dtype)
    Shards([5], dp: axis 0 cut into [3, 2])
    """
    k: Any = backend
    if type(k) is Sharded and k.is_cut(like) and like.axis is not None:
        parts = [full_like(k.wrapped, part, value, dtype) for part in like.parts]
        return Shards(parts, like.axis, like.cuts, like.shape, like.mesh_axis)
    if type(k) is Sharded or (hasattr(k, "wrapped") and levels_of(k)):
        return full_like(k.wrapped, like, value, dtype)
    return k.full(tuple(like.shape), value, dtype)
