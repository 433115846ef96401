"""Batches of a trainer, trees of host arrays or tensors: converted to tensors, counted and described."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from backburn.backend import AnyBackend
from backburn.base.dtypes import DType
from backburn.base.errors import ArgumentError
from backburn.base.mutable_trees import MutableTree
from backburn.base.trees import leaves_with_paths, tree_map
from backburn.distributed import Cutting
from backburn.tensor.core.host import asarray
from backburn.tensor.core.wrapping import TENSORS, is_tensor
from backburn.tensor.index import nonzero
from backburn.tensor.logic import isfinite, isinf


class Place:
    """The backend and the float dtype of a model, to which host data are converted."""

    __slots__ = ("_host", "backend", "cutting", "dtype")

    def __init__(self, backend: AnyBackend, dtype: DType) -> None:
        self.backend = backend
        self.dtype = dtype
        #: How batches are split over the shards of a mesh, if they are.
        self.cutting: Cutting | None = None
        #: The dtype of arrays that need no cast.
        self._host = None if dtype.name == "bfloat16" else dtype.dtype

    @classmethod
    def of(cls, model: Any) -> Place:
        """The place of the first float tensor of ``model``. Raises :class:`ArgumentError` for a model without one."""
        for leaf in MutableTree([model], is_tensor).leaves:
            if leaf.value.dtype.is_floating:
                return cls(leaf.value.backend, leaf.value.dtype)
        raise ArgumentError(f"Trainer: the model, of type {type(model).__name__}, has no float tensors to train")

    def tensors(self, batch: Any) -> Any:
        """``batch`` with a tensor for each array and number: host floats in the model's dtype, all else as it is."""
        if self.cutting is not None:
            return self.cutting.cut(batch)
        if batch.__class__ is dict:  # the common kinds, without a walk over the tree
            return {key: self._tensor(x) if hasattr(x, "__array__") else self.tensors(x) for key, x in batch.items()}
        if batch.__class__ is tuple:
            return tuple([self._tensor(x) if hasattr(x, "__array__") else self.tensors(x) for x in batch])
        return tree_map(self._tensor, batch)

    def _tensor(self, x: Any) -> Any:
        cls = x.__class__
        if cls in TENSORS or not (hasattr(x, "__array__") or cls in _NUMBERS or hasattr(x, "__dlpack__")):
            return x
        dtype = getattr(x, "dtype", None)
        kind = getattr(dtype, "kind", None)
        if cls is float or (kind == "f" and dtype != self._host):
            return asarray(x, dtype=self.dtype, backend=self.backend)
        found = asarray(x, backend=self.backend)
        return found if kind is not None or not found.dtype.is_floating else found.astype(self.dtype)


#: Any iterable of batches, or a function from the number of an epoch to one.
Data = Iterable[Any] | Callable[[int], Iterable[Any]]

_NUMBERS = (bool, int, float)


def examples(batch: Any) -> int:
    """The number of examples of a batch of tensors: the length of its first tensor that has an axis, else 1."""
    for x in batch.values() if batch.__class__ is dict else batch if batch.__class__ is tuple else (batch,):
        if is_tensor(x):
            if x.shape:
                return int(x.shape[0])
        else:
            for _, leaf in leaves_with_paths(x):
                if is_tensor(leaf) and leaf.shape:
                    return int(leaf.shape[0])
    return 1


def described(batch: Any) -> str:
    """Every array of a batch by its key, dtype and shape: ``x: float32[64,3], y: int64[64]``."""
    words = []
    for path, x in leaves_with_paths(batch):
        shape = getattr(x, "shape", None)
        kind = type(x).__name__ if shape is None else f"{x.dtype}[{','.join(map(str, shape))}]"
        words.append(f"{path}: {kind}" if path else kind)
    return ", ".join(words) or f"nothing ({batch!r:.60})"


def not_finite(data: Any, epoch: int, count: int) -> str | None:
    """A description of the first array with NaN or infinities among ``count`` batches of an epoch.

    None if all are finite, and for data that can be iterated over only once.
    """
    if hasattr(data, "__iter__") and iter(data) is data:
        return None
    for number, batch in enumerate(islice(batches_of(data, epoch), count), 1):
        if (found := _not_finite(batch)) is not None:
            return f"in batch {number} {found}"
    return None


def _not_finite(batch: Any) -> str | None:
    """A description of the first array of a batch with NaN or infinities; None if all are finite."""
    for path, x in leaves_with_paths(batch):
        if not hasattr(x, "shape"):
            continue
        values = x.detach() if is_tensor(x) else asarray(x)
        if values.dtype.is_floating and (bad := ~isfinite(values)).any().item():
            words = "NaN" if not isinf(values).any().item() else "NaN or infinite"
            row = f", the first in row {nonzero(bad)[0][0].item()}" if values.ndim else ""
            return f"{path or 'the array'}: {int(bad.sum().item())} of {values.size} elements are {words}{row}"
    return None


def layout(batch: Any) -> dict[str, str]:
    """The dtype, and the shape without the first axis, of each key of a batch, to compare the data of two runs."""
    found = {}
    for path, x in leaves_with_paths(batch):
        shape = getattr(x, "shape", None)
        found[path] = type(x).__name__ if shape is None else f"{x.dtype}[{','.join(['n', *map(str, shape[1:])])}]"
    return found


def batches_of(data: Any, epoch: int) -> Iterator[Any]:
    """An iterator over the batches of an epoch of :data:`Data`."""
    if not hasattr(data, "__iter__"):
        return iter(data(epoch))
    if hasattr(data, "set_epoch"):
        data.set_epoch(epoch)
    return iter(data)


def host_examples(batch: Any) -> int:
    """The number of examples of a batch before its conversion to tensors."""
    for x in batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (tuple, list)) else (batch,):
        if isinstance(x, (dict, tuple, list)):
            return host_examples(x)
        shape = getattr(x, "shape", None)
        if shape:
            return int(shape[0])
    return 1
