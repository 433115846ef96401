"""Placing primitives on the levels of a mesh, below the decorators that differentiate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backburn.backend.contract import is_autodiff
from backburn.backend.placing import Placing, full_like, levels_of, place_like
from backburn.base.dtypes import DType
from backburn.base.errors import ArgumentError, GraphError, hint_for
from backburn.decorators.sharding import collectives
from backburn.decorators.sharding.shards import Shards


class PlacesShards(Placing):
    """The placement of primitives on one level of a mesh."""

    wrapped: Any

    def place_like(self: Any, x: Any, like: Any) -> Any:
        """``x`` sharded like ``like``; replicated where ``like`` is partial."""
        if placement_of(self, x) == placement_of(self, like):
            return x
        if not self.is_cut(like) or like.axis is None:
            return place_like(self.wrapped, self.whole(x), self.whole(like))
        axis, cuts = like.axis, like.cuts
        cut = _owned(self, Shards(self.parts(x, axis, cuts), axis, cuts, like.shape, like.mesh_axis))
        parts = [place_like(self.wrapped, part, one) for part, one in zip(cut.parts, like.parts, strict=True)]
        return Shards(parts, axis, cuts, like.shape, like.mesh_axis)

    def full_like(self: Any, like: Any, value: float, dtype: DType) -> Any:
        """A constant sharded like ``like``, without ever allocating the whole."""
        if not self.is_cut(like) or like.axis is None:
            return full_like(self.wrapped, like, value, dtype)
        parts = [full_like(self.wrapped, part, value, dtype) for part in like.parts]
        return Shards(parts, like.axis, like.cuts, like.shape, like.mesh_axis)


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

    Other mesh axes stay as they are. A leaf becomes a new leaf. Raises :class:`ArgumentError` for a mesh
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
    if _is_level(k):
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


def _is_level(k: Any) -> bool:
    return isinstance(k, Placing)


def _owned(k: Any, x: Any) -> Any:
    """A cut primitive whose parts own their memory: views of the whole would keep other processes' elements.

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
        if _is_level(k):
            cut = k.is_cut(x)
            found[k.mesh_axis] = ("addends" if x.axis is None else x.axis) if cut else None
            x = x.parts[0] if cut else x
        elif hasattr(k, "inner_backend") and k.dtype(x).has_gradient:
            x = k.inner(x)
        k = getattr(k, "wrapped", None) or getattr(k, "inner_backend", None)
    return found
