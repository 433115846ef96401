"""Types in signatures of tensor functions: type variable, axes, and named tuples of results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, IntTensor, Tensor

#: A tensor of one kind.
T = TypeVar("T", bound="Tensor")
#: One axis, several, or all.
Axis = int | Sequence[int] | None
#: The shape of a new tensor; one integer for one axis.
Shape = int | tuple[int, ...]


class ModeResult(NamedTuple, Generic[T]):
    """The most frequent elements, and their counts."""

    values: T
    counts: IntTensor


class UniqueAllResult(NamedTuple, Generic[T]):
    """The distinct values, their first indices, the index of each element among them, and their counts."""

    values: T
    indices: IntTensor
    inverse_indices: IntTensor
    counts: IntTensor


class UniqueCountsResult(NamedTuple, Generic[T]):
    """The distinct values and their counts."""

    values: T
    counts: IntTensor


class UniqueInverseResult(NamedTuple, Generic[T]):
    """The distinct values, and the index of each element among them."""

    values: T
    inverse_indices: IntTensor


class HistogramResult(NamedTuple):
    """The number of elements in each bin, and the edges of the bins, one more."""

    counts: Tensor
    edges: FloatTensor
