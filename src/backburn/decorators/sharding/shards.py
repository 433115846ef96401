"""``Shards``: the primitive of ``Sharded`` that is in parts, and how an axis is cut."""

from __future__ import annotations

from typing import Any

from backburn.backend.opaque import Opaque
from backburn.base.dtypes import DType, QuantizedDType
from backburn.ops.bodies.quantized import block_shape

Shape = tuple[int, ...]
Cuts = tuple[int, ...]


class Shards(Opaque):
    """A primitive in parts, one for each shard: cut along an axis, or the addends of a sum.

    ``parts`` are inner primitives, those of the shards of this process (:attr:`Sharded.own`); the other fields describe
    the whole. Cut along ``axis``, the shards have ``cuts`` elements there, which may differ or be 0; with ``axis`` None
    each has the whole ``shape``, and the value is their sum. ``mesh_axis`` names the level. ``total`` is that sum once
    it is computed; ``reduction`` is a pending one, whose ``finish`` sets ``total`` or turns the addends into cut
    parts.
    """

    #: Recordings refer to primitives weakly, to find those that a step still holds.
    __slots__ = ("__weakref__", "axis", "cuts", "mesh_axis", "parts", "reduction", "shape", "total")

    def __init__(self, parts: list[Any], axis: int | None, cuts: Cuts, shape: Shape, mesh_axis: str) -> None:
        self.parts = parts
        self.axis = axis
        self.cuts = cuts
        self.shape = shape
        self.mesh_axis = mesh_axis
        self.total: Any = None
        self.reduction: Any = None

    @property
    def dtype(self) -> Any:
        """The dtype object of the innermost primitive, as its library has it."""
        return self.parts[0].dtype

    def __repr__(self) -> str:
        how = "addends" if self.axis is None else f"axis {self.axis} cut into {list(self.cuts)}"
        return f"Shards({list(self.shape)}, {self.mesh_axis}: {how})"


def neutral(dtype: DType) -> complex:
    """The zero that changes no number it is added to, not even the sign of a zero.

    >>> from backburn.base.dtypes import complex64, float32, int8
    >>> neutral(int8), neutral(float32), neutral(complex64)
    (0, -0.0, (-0-0j))
    """
    return complex(-0.0, -0.0) if dtype.kind == "complex" else -0.0 if dtype.is_floating else 0


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


def block_length(dtype: DType, shape: Shape, axis: int) -> int:
    """The number of neighbouring values along an axis that a cut must not split; 1 for plain dtypes.

    >>> block_length(QuantizedDType("int8", granularity="block", block=32), (8, 64), 1)
    32
    """
    if not isinstance(dtype, QuantizedDType) or not dtype.block_shape or len(dtype.block_shape) > len(shape):
        return 1
    return block_shape(dtype, len(shape))[axis]


def cuts_between(length: int, block: int, count: int) -> Cuts:
    """The lengths of ``count`` parts of whole blocks, as equal as possible; the last block may be shorter.

    >>> cuts_between(10, 4, 2), cuts_between(10, 1, 2)
    ((8, 2), (5, 5))
    """
    stops = [min(length, block * stop) for stop in _stops(even_cuts(-(-length // block), count))]
    return tuple(stop - start for start, stop in zip([0, *stops], stops, strict=False))


def _stops(cuts: Cuts) -> list[int]:
    return [start + n for start, n in zip(starts_of(cuts), cuts, strict=True)]


def are_between(cuts: Cuts, block: int) -> bool:
    """Whether an axis is cut between blocks, or at its end."""
    return all(stop % block == 0 or stop == sum(cuts) for stop in _stops(cuts))
