"""``Rows``: batches as tensors that are split over a mesh axis; every process reads its own rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from backburn.backend import AnyBackend
from backburn.backend.placing import levels_of
from backburn.base.dtypes import DType
from backburn.base.errors import ArgumentError
from backburn.base.trees import flatten, unflatten
from backburn.data.loader import BatchIterator
from backburn.decorators.sharding import Sharded, Shards, even_cuts
from backburn.decorators.sharding.shards import starts_of
from backburn.tensor.core.defaults import as_backend
from backburn.tensor.core.host import asarray
from backburn.tensor.core.wrapping import is_tensor, wrap

#: The types of Python numbers, which become tensors.
_NUMBERS = (bool, int, float)


class Rows:
    """The batches of a loader on a backend with shards, split along their first axis.

    Can be iterated over repeatedly; length, ``set_epoch``, ``describe`` and the position of iterators are those of the
    loader.
    """

    def __init__(self, data: Any, mesh_axis: str, backend: AnyBackend | None = None, dtype: DType | None = None):
        #: The source of the batches.
        self.loader = data
        self.mesh_axis = mesh_axis
        #: The backend of the tensors; by default the default backend when the iteration begins.
        self.backend = backend
        #: The dtype of floats; by default the float type of the backend.
        self.dtype = dtype

    def __getattr__(self, name: str) -> Any:
        if name in ("set_epoch", "describe", "state_dict", "load_state_dict"):
            return getattr(self.loader, name)
        raise AttributeError(name)

    def __iter__(self) -> RowIterator:
        return self.over(iter(self.loader))

    def over(self, iterator: Iterator[Any]) -> RowIterator:
        """The batches of an iterator as tensors."""
        backend = as_backend(self.backend)
        return RowIterator(iterator, Cutting(backend, self.mesh_axis, self.dtype or backend.float_dtype))


class SizedRows(Rows):
    """:class:`Rows` of a loader with a length."""

    def __len__(self) -> int:
        """The number of batches."""
        return len(self.loader)


class RowIterator(Iterator[Any]):
    """An iterator over :class:`Rows`; its position is that of the loader's iterator."""

    def __init__(self, iterator: Any, cutting: Cutting) -> None:
        self._iterator = iterator
        self._cutting = cutting

    def __getattr__(self, name: str) -> Any:
        if name in ("get_state", "set_state"):
            return getattr(self._iterator, name)
        raise AttributeError(name)

    def __next__(self) -> Any:
        iterator, cutting = self._iterator, self._cutting
        if type(iterator) is not BatchIterator:
            return cutting.cut(next(iterator))
        numbers = iterator.numbers()
        cuts = cutting.cuts(len(numbers))
        return cutting.joined([iterator.read(numbers[rows]) for rows in cutting.own(cuts)], cuts)


class Cutting:
    """Converts batches to tensors of a backend, split along their first axis over one of its levels."""

    def __init__(self, backend: AnyBackend, mesh_axis: str, dtype: DType) -> None:
        self.backend = backend
        self.dtype = dtype
        levels = [level for level in levels_of(backend) if level.mesh_axis == mesh_axis]
        if not levels:
            raise ArgumentError(
                f"batches: {backend.spec} has no mesh axis {mesh_axis!r}; use the backend of the mesh: "
                f"with bb.use_backend(mesh.backend(...))"
            )
        self.level: Sharded = levels[0]
        self._below: AnyBackend = self.level.wrapped

    def cuts(self, count: int) -> tuple[int, ...]:
        """The numbers of rows of all shards, for a batch of ``count``."""
        return even_cuts(count, self.level.size)

    def own(self, cuts: tuple[int, ...]) -> list[slice]:
        """The rows of each shard of this process."""
        rows = [slice(start, start + n) for start, n in zip(starts_of(cuts), cuts, strict=True)]
        return list(self.level.mine(tuple(rows)))

    def cut(self, batch: Any) -> Any:
        """A whole batch as split tensors; numbers, and arrays whose length differs from the first, are replicated."""
        leaves, structure = flatten(batch)
        count = next((len(x) for x in leaves if _has_rows(x)), 0)
        cuts = self.cuts(count)
        own = self.own(cuts)
        made = [
            self._tensor([x[rows] for rows in own], cuts)
            if _has_rows(x) and len(x) == count and not is_tensor(x)
            else self._whole(x)
            for x in leaves
        ]
        return unflatten(structure, made)

    def joined(self, parts: list[Any], cuts: tuple[int, ...]) -> Any:
        """The tensors of a batch from the batches of the shards of this process."""
        flat = [flatten(part) for part in parts]
        made = [self._tensor(list(own), cuts) for own in zip(*(leaves for leaves, _ in flat), strict=True)]
        return unflatten(flat[0][1], made)

    def _tensor(self, rows: list[Any], cuts: tuple[int, ...]) -> Any:
        parts = [asarray(x, dtype=self._dtype_of(x), backend=self._below) for x in rows]
        primitive = self._up(self.backend, [x.primitive for x in parts], cuts, parts[0].dtype.is_floating)
        return wrap(primitive, self.backend)

    def _up(self, k: Any, parts: list[Any], cuts: tuple[int, ...], is_float: bool) -> Any:
        """The primitive of ``k``, which is the level or wraps it, from the level's parts."""
        if k is self.level:
            return Shards(parts, 0, cuts, (sum(cuts), *parts[0].shape[1:]), k.mesh_axis) if k.size > 1 else parts[0]
        below = self._up(getattr(k, "wrapped", None) or k.inner_backend, parts, cuts, is_float)
        return k.from_inner(below) if is_float and hasattr(k, "inner_backend") else below

    def _whole(self, x: Any) -> Any:
        if is_tensor(x) or not (hasattr(x, "__array__") or x.__class__ in _NUMBERS or hasattr(x, "__dlpack__")):
            return x
        return asarray(x, dtype=self._dtype_of(x), backend=self.backend)

    def _dtype_of(self, x: Any) -> DType | None:
        """The dtype for an array: :attr:`dtype` for floats; None keeps all others."""
        if x.__class__ is float:
            return self.dtype
        kind = getattr(getattr(x, "dtype", None), "kind", None)
        return self.dtype if kind == "f" else None


def _has_rows(x: Any) -> bool:
    return hasattr(x, "shape") and len(x.shape) > 0 and hasattr(x, "__getitem__")
