"""``Shards``: the primitive of ``Sharded`` that is in parts, and how an axis is cut."""

from __future__ import annotations

from typing import Any

Shape = tuple[int, ...]
Cuts = tuple[int, ...]


class Shards:
    """A primitive in parts, one for each shard: cut along an axis, or the addends of a sum.

    ``parts`` are inner primitives, those of the shards of this process (:attr:`Sharded.own`); the other fields describe
    the whole. Cut along ``axis``, all shards have ``cuts`` elements there, which may differ and be 0; with ``axis``
    None each has the whole ``shape``, and their sum is the value. ``mesh_axis`` names the level. ``total`` is that sum
    once it has been computed; ``settling`` is what is computing it meanwhile, whose ``finish`` sets ``total``, or turns
    the addends into parts that are cut.
    """

    __slots__ = ("axis", "cuts", "mesh_axis", "parts", "settling", "shape", "total")

    def __init__(self, parts: list[Any], axis: int | None, cuts: Cuts, shape: Shape, mesh_axis: str) -> None:
        self.parts = parts
        self.axis = axis
        self.cuts = cuts
        self.shape = shape
        self.mesh_axis = mesh_axis
        self.total: Any = None
        self.settling: Any = None

    @property
    def is_open(self) -> bool:
        """Whether the primitive is addends that nobody has begun to sum."""
        return self.axis is None and self.total is None and self.settling is None

    @property
    def dtype(self) -> Any:
        """The dtype object of the innermost primitive, as its library has it."""
        return self.parts[0].dtype

    def __repr__(self) -> str:
        how = "addends" if self.axis is None else f"axis {self.axis} cut into {list(self.cuts)}"
        return f"Shards({list(self.shape)}, {self.mesh_axis}: {how})"


def even_cuts(length: int, count: int) -> Cuts:
    """The lengths of ``count`` parts of an axis, the first ones longer by one where they cannot be equal.

    >>> even_cuts(7, 3), even_cuts(1, 3)
    ((3, 2, 2), (1, 0, 0))
    """
    least, longer = divmod(length, count)
    return tuple(least + (i < longer) for i in range(count))


def starts_of(cuts: Cuts) -> tuple[int, ...]:
    """The first position of each part.

    >>> starts_of((3, 2, 2))
    (0, 3, 5)
    """
    found, total = [], 0
    for length in cuts:
        found.append(total)
        total += length
    return tuple(found)
