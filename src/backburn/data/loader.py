"""Splitting data, and iterating over them in batches, with a state to continue from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from backburn.base.errors import ArgumentError, DTypeError, ShapeError
from backburn.data.order import Indices, Order, generator, is_whole
from backburn.data.sources import Source
from backburn.hints.arguments import explained
from backburn.tensor.core.options import flags, integer

Arrays: TypeAlias = tuple[NDArray[Any], ...]
B_co = TypeVar("B_co", covariant=True)


@overload
def hold_out(*arrays: NDArray[Any], parts: int = 5, seed: int | None = None) -> tuple[Arrays, Arrays]: ...
@overload
def hold_out(*arrays: Any, parts: int = 5, seed: int | None = None) -> tuple[Any, Any]: ...
@explained
def hold_out(*arrays: Any, parts: int = 5, seed: int | None = None) -> tuple[Any, Any]:
    """Split data of equal length into a training set and the last of ``parts`` equal parts, which is held out.

    Data are what :func:`batches` takes, and both results have their structure. Where the length is not a multiple of
    ``parts``, the held-out part is rounded up: of 1,797 images it has 360. The results are views. With a ``seed`` the
    elements are drawn at random instead, and copied: for data that are sorted by class. Raises :class:`ShapeError` for
    arrays of different lengths, :class:`ArgumentError` for less than two parts or fewer elements than parts.

        >>> kept, held_out = hold_out(np.arange(11))
        >>> kept[0], held_out[0]
        (array([0, 1, 2, 3, 4, 5, 6, 7]), array([ 8,  9, 10]))
        >>> kept, held_out = hold_out({"x": np.arange(10), "y": np.arange(10) ** 2}, parts=10, seed=0)
        >>> held_out
        {'x': array([9]), 'y': array([81])}
    """
    source = Source("hold_out", arrays)
    length = source.length
    if not is_whole(parts, 2) or parts > length:
        words = f"{length} elements cannot be split into {parts!r} parts with one of them held out"
        raise ArgumentError(f"hold_out: {words}")
    kept = length - -(-length // parts)
    if seed is None:
        return source.parts(slice(0, kept), slice(kept, length))
    order = generator(seed, 0).permutation(length)
    return source.parts(order[:kept], order[kept:])


@overload
def batches(
    tree: Mapping[str, Any],
    /,
    *,
    batch_size: int,
    seed: int | None = None,
    epoch: int = 0,
    drop_last: bool = False,
) -> Batches[dict[str, Any]]: ...
@overload
def batches(
    *arrays: NDArray[Any], batch_size: int, seed: int | None = None, epoch: int = 0, drop_last: bool = False
) -> Batches[Arrays]: ...
@overload
def batches(
    *arrays: Any, batch_size: int, seed: int | None = None, epoch: int = 0, drop_last: bool = False
) -> Batches[Any]: ...
@explained
def batches(
    *arrays: Any, batch_size: int, seed: int | None = None, epoch: int = 0, drop_last: bool = False
) -> Batches[Any]:
    """Iterate over data of equal length in batches of ``batch_size`` elements.

    Data are several arrays, which give tuples of arrays; or one dict, named tuple or dataclass of arrays, nested or
    not, which gives batches of its structure; or a data frame of pandas, polars or pyarrow, which gives dicts of
    columns. From memory maps only the elements of a batch are read, with at most 16 MiB resident. An object with a
    length that can be indexed by an array, such as an :func:`image_folder` or a Hugging Face dataset, gives what it
    returns.

    The last batch may be smaller; ``drop_last`` then omits it, which captured steps and BatchNorm may need. With a
    ``seed``, the order is shuffled for each ``epoch``, which :meth:`Batches.set_epoch` changes: the same ``seed`` and
    ``epoch`` give the same order on every machine, independently of any other state. From 2**20 elements on the order
    is computed a block at a time, and takes no memory.

    The result can be iterated over again, in the same order, and ``len`` is its number of batches. Its iterator has
    ``get_state`` and ``set_state``. Raises :class:`ShapeError` for arrays of different lengths, :class:`DTypeError` for
    lists and :class:`ArgumentError` for a batch size below 1.

        >>> for x, y in batches(np.arange(5), np.arange(5) ** 2, batch_size=2):
        ...     print(x, y)
        [0 1] [0 1]
        [2 3] [4 9]
        [4] [16]
        >>> [batch["x"].tolist() for batch in batches({"x": np.arange(5)}, batch_size=3, seed=0, epoch=1)]
        [[3, 1, 4], [2, 0]]
        >>> len(batches(np.arange(5), batch_size=2))
        3
    """
    source = Source("batches", arrays)
    if not is_whole(batch_size, 1):
        raise ArgumentError(f"batches: batch_size is an integer from 1 on, not {batch_size!r}")
    if not (seed is None or is_whole(seed, 0)):
        raise ArgumentError(f"batches: seed and epoch are integers from 0 on, not {seed!r} and {epoch!r}")
    flags("batches", drop_last=drop_last)
    return Batches(source, int(batch_size), seed, epoch, drop_last)


class Batches(Iterable[B_co], Generic[B_co]):
    """The result of :func:`batches`; its length is the number of batches."""

    def __init__(self, source: Source, batch_size: int, seed: int | None, epoch: int, drop_last: bool) -> None:
        """Batches of the elements of a source."""
        self._source = source
        self.batch_size = batch_size
        self.seed = None if seed is None else int(seed)
        self.drop_last = drop_last
        self._end = source.length - source.length % batch_size if drop_last else source.length
        self.set_epoch(epoch)

    def __iter__(self) -> BatchIterator[B_co]:
        return BatchIterator(self)

    def __len__(self) -> int:
        return -(-self._end // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, and so the order, of new iterators. Raises :class:`ArgumentError` for a negative number."""
        if not is_whole(epoch, 0):
            raise ArgumentError(f"batches: epoch is an integer from 0 on, not {epoch!r}")
        self.epoch = int(epoch)

    def describe(self) -> dict[str, Any]:
        """The settings that determine the order and contents of batches: plain values by name, to compare two runs.

        >>> batches(np.zeros((5, 2)), batch_size=2, seed=0).describe()
        {'elements': 5, 'batch_size': 2, 'seed': 0, 'drop_last': False, 'arrays': {'0': 'float64[5,2]'}}
        """
        return {
            "elements": self._source.length,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "drop_last": self.drop_last,
            "arrays": self._source.describe(),
        }


class BatchIterator(Iterator[B_co], Generic[B_co]):
    """The iterator over :class:`Batches`, whose state is a dict of plain values, as that of Grain's iterators is.

    >>> loader = batches(np.arange(6), batch_size=2, seed=0)
    >>> iterator = iter(loader)
    >>> first = next(iterator)
    >>> state = iterator.get_state()
    >>> rest = [x.tolist() for x, in iterator]
    >>> again = iter(loader)
    >>> again.set_state(state)
    >>> [x.tolist() for x, in again] == rest
    True
    """

    def __init__(self, loader: Batches[B_co]) -> None:
        """At the beginning of the epoch that ``loader`` has now."""
        self._loader = loader
        self._epoch = loader.epoch
        self._batch = 0
        self._order: Order | None = None

    def __next__(self) -> B_co:
        found = self.read(self._numbers())
        self._batch += 1
        return found

    def numbers(self) -> Indices:
        """The indices of the next batch, which then counts as handed out; :meth:`read` reads its elements."""
        found = self._numbers()
        self._batch += 1
        return found

    def read(self, numbers: Indices) -> B_co:
        """The elements at these indices, as a batch."""
        found: B_co = self._loader._source[numbers]
        return found

    def _numbers(self) -> Indices:
        loader = self._loader
        start = self._batch * loader.batch_size
        if start >= loader._end:
            self._order = None
            raise StopIteration
        if self._order is None:
            self._order = Order(loader._source.length, loader.seed, self._epoch)
        return self._order[start : min(start + loader.batch_size, loader._end)]

    def get_state(self) -> dict[str, Any]:
        """The epoch and the number of batches handed out, with the settings that give them meaning."""
        return {"epoch": self._epoch, "batch": self._batch, **self._facts()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue after the batch at which :meth:`get_state` was called, also in another process.

        Raises :class:`ArgumentError` for a state of other data, or of another seed or size of batches.
        """
        facts = self._facts()
        given: object = state
        if not isinstance(given, Mapping) or set(given) != {"epoch", "batch", *facts}:
            raise ArgumentError(f"batches: set_state takes what get_state has returned, not {state!r:.100}")
        different = [f"{key} (was {state[key]!r}, is {ours!r})" for key, ours in facts.items() if state[key] != ours]
        if different:
            raise ArgumentError(f"batches: the state is of other batches, which differ in {', '.join(different)}")
        self._batch = integer("batches", "batch", state["batch"], least=0)
        self._epoch = integer("batches", "epoch", state["epoch"], least=0)
        self._order = None

    def _facts(self) -> dict[str, Any]:
        loader = self._loader
        return {
            "elements": loader._source.length,
            "batch_size": loader.batch_size,
            "seed": loader.seed,
            "drop_last": loader.drop_last,
        }


@explained
def windows(x: NDArray[Any], length: int, *, stride: int | None = None) -> NDArray[Any]:
    """Windows of ``length`` elements along the first axis, each ``stride`` after the one before, as rows of a view.

    The result has shape (number, length, ...) and copies nothing: of a memory map, :func:`batches` reads only the
    windows of each batch. By default windows do not overlap; elements left over at the end are in none. Rows one token
    longer than the stride have inputs and targets of a language model:

        >>> tokens = np.arange(10)  # or np.memmap("tokens.bin", np.uint16, mode="r")
        >>> rows = windows(tokens, 4, stride=3)
        >>> rows[:, :-1].tolist(), rows[:, 1:].tolist()
        ([[0, 1, 2], [3, 4, 5], [6, 7, 8]], [[1, 2, 3], [4, 5, 6], [7, 8, 9]])

    Raises :class:`DTypeError` for anything but a NumPy array, :class:`ShapeError` where it is shorter than a window and
    :class:`ArgumentError` for lengths and strides below 1.
    """
    given: object = x
    if not isinstance(given, np.ndarray):
        raise DTypeError(f"windows: takes a NumPy array, not a {type(given).__name__}: np.asarray(...) makes it one")
    length = integer("windows", "length", length, least=1)
    stride = length if stride is None else integer("windows", "stride", stride, least=1)
    if not x.ndim or len(x) < length:
        raise ShapeError(f"windows: {list(x.shape)} has no window of {length} elements along its first axis")
    return np.moveaxis(np.lib.stride_tricks.sliding_window_view(x, length, axis=0), -1, 1)[::stride]
