"""Creation in parts: constants and random draws, of which each shard computes only its part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from backburn.base.contexts import Block, scoped
from backburn.base.dtypes import float32
from backburn.base.errors import ArgumentError
from backburn.decorators.sharding.shards import Shape, Shards, even_cuts, starts_of
from backburn.ops.random import draws

#: The axis along which new tensors are cut over each mesh axis; None outside of :func:`created_in_parts`.
CREATED: ContextVar[Mapping[str, int] | None] = ContextVar("backburn_created_in_parts", default=None)
#: The operations that create in parts: constants, and draws, whose elements are numbered.
CONSTANTS = frozenset({"full", "zeros", "ones", "empty"})
DRAWS = frozenset({"random_bits", "uniform", "integers", "bernoulli", "normal"})


def created_in_parts(placement: Mapping[str, int]) -> Block[Any]:
    """New tensors within the block are cut over mesh axes, along the axes that ``placement`` maps their names to.

    Each shard fills or draws only its part, with the values of the whole: no process needs memory for a whole new
    model. It is a context manager and a decorator. Tensors with fewer axes stay whole, as do those from the host,
    ranges and permutations; draws that are cut along an axis other than the first are drawn whole, then cut. Raises
    :class:`ArgumentError` for an axis that is not a number from 0 on.

        >>> import backburn as bb
        >>> from backburn import nn
        >>> k = bb.load_backend("sharded(numpy, dp=2)")
        >>> with bb.use_backend(k), created_in_parts({"dp": 0}):
        ...     nn.Linear(3, 4).weight.primitive
        Shards([4, 3], dp: axis 0 cut into [2, 2])
    """
    for name, axis in placement.items():
        given: object = axis
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            raise ArgumentError(
                f"created_in_parts: {name} is cut along an axis of new tensors, from 0 on, not {axis!r}"
            )
    return Block("created_in_parts", lambda: scoped(CREATED, dict(placement)))


def create(level: Any, name: str, attributes: dict[str, Any]) -> Any:
    """The result of an operation without operands, in parts if there is a placement for it."""
    axis, shape = (CREATED.get() or {}).get(level.mesh_axis), attributes["shape"]
    function = getattr(level.wrapped, name)
    if axis is None or axis >= len(shape) or level.size == 1:
        return function(**attributes)
    if name in DRAWS and axis > 0:
        return level.cut(function(**attributes), axis)
    cuts = even_cuts(shape[axis], level.size)
    parts = []
    for start, length in level.mine(tuple(zip(starts_of(cuts), cuts, strict=True))):
        own = (*shape[:axis], length, *shape[axis + 1 :])
        if name in DRAWS:
            parts.append(draw(level.wrapped, name, attributes, start * math.prod(shape[1:]), own))
        else:
            parts.append(function(**{**attributes, "shape": own}))
    return Shards(parts, axis, cuts, tuple(shape), level.mesh_axis)


def draw(k: Any, name: str, attributes: dict[str, Any], first: int, shape: Shape) -> Any:
    """The elements of a draw from number ``first`` on, in ``shape``."""
    pair = first % 2 if name == "normal" else 0  # normal numbers are drawn in pairs
    words = draws(name, (first - pair,), attributes.get("dtype", float32))
    given = {**attributes, "offset": attributes["offset"] + words}
    del given["shape"]
    if not pair:
        return getattr(k, name)(**given, shape=shape)
    size = math.prod(shape)
    found = k.normal(**given, shape=(size + 1,))
    return k.reshape(k.slice(found, (slice(1, size + 1, 1),)), shape)
