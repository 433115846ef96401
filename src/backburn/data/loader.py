"""Splitting arrays, and iterating over them in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from backburn.base.errors import ArgumentError, DTypeError, ShapeError
from backburn.hints.arguments import explained
from backburn.tensor.core.options import flags

Arrays: TypeAlias = tuple[NDArray[Any], ...]


@explained
def hold_out(*arrays: NDArray[Any], parts: int = 5) -> tuple[Arrays, Arrays]:
    """Split arrays of one length into a training set and the last of ``parts`` equal parts, which is held out.

    Where the length is not a multiple of ``parts``, the held-out part is rounded up: of 1,797 images it has 360. The
    results are views. Raises :class:`ShapeError` for arrays of several lengths, :class:`ArgumentError` for less than
    two parts or fewer elements than parts.

        >>> kept, held_out = hold_out(np.arange(11))
        >>> kept[0], held_out[0]
        (array([0, 1, 2, 3, 4, 5, 6, 7]), array([ 8,  9, 10]))
    """
    length = _common_length("hold_out", arrays)
    if not _is_whole(parts, 2) or parts > length:
        words = f"{length} elements cannot be split into {parts!r} parts, of which one is held out"
        raise ArgumentError(f"hold_out: {words}")
    kept = length - -(-length // parts)
    return tuple(a[:kept] for a in arrays), tuple(a[kept:] for a in arrays)


@explained
def batches(
    *arrays: NDArray[Any], batch_size: int, seed: int | None = None, epoch: int = 0, drop_last: bool = False
) -> Batches:
    """Iterate over arrays of one length in batches of ``batch_size`` elements.

    The last batch may be smaller; ``drop_last`` omits it then, which captured steps and BatchNorm may need. With a
    ``seed``, the order is shuffled for each ``epoch``: the same ``seed`` and ``epoch`` give the same order on every
    machine, independently of any other state. The result can be iterated over again, in the same order, and ``len`` is
    its number of batches. Raises :class:`ShapeError` for arrays of several lengths, :class:`DTypeError` for lists and
    :class:`ArgumentError` for a batch size below 1.

        >>> for x, y in batches(np.arange(5), np.arange(5) ** 2, batch_size=2):
        ...     print(x, y)
        [0 1] [0 1]
        [2 3] [4 9]
        [4] [16]
        >>> [x for x, in batches(np.arange(5), batch_size=5, seed=0, epoch=1)]
        [array([...])]
        >>> len(batches(np.arange(5), batch_size=2))
        3
    """
    length = _common_length("batches", arrays)
    if not _is_whole(batch_size, 1):
        raise ArgumentError(f"batches: batch_size is an integer from 1 on, not {batch_size!r}")
    flags("batches", drop_last=drop_last)
    order = np.arange(length) if seed is None else generator(seed, epoch).permutation(length)
    end = length - length % batch_size if drop_last else length
    return Batches(arrays, [order[i : i + batch_size] for i in range(0, end, batch_size)])


class Batches(Iterable[Arrays]):
    """The result of :func:`batches`; its length is the number of batches."""

    def __init__(self, arrays: Arrays, parts: list[NDArray[Any]]) -> None:
        """Over the elements of ``arrays`` in each of the ``parts``."""
        self._arrays = arrays
        self._parts = parts

    def __iter__(self) -> Iterator[Arrays]:
        return (tuple(a[part] for a in self._arrays) for part in self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def generator(seed: int, epoch: int, stream: int = 0) -> np.random.Generator:
    """A random generator for one epoch; different ``stream`` numbers give independent generators.

    NumPy's Philox, a counter-based generator, seeded with the three numbers. Raises :class:`ArgumentError` where one
    of them is negative.
    """
    if not all(_is_whole(n, 0) for n in (seed, epoch, stream)):
        raise ArgumentError(f"random numbers: seed and epoch are integers from 0 on, not {seed!r} and {epoch!r}")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch, stream])))


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= least


def _common_length(name: str, arrays: Arrays) -> int:
    for a in arrays:
        given: object = a
        if isinstance(given, (list, tuple)):
            hint = "np.asarray(...) makes it an array"
            raise DTypeError(f"{name}: takes arrays one after another, not a {type(given).__name__}: {hint}")
        if not np.ndim(a):
            what = f"{a!r}" if isinstance(given, (int, float, np.generic)) else f"a {type(given).__name__}"
            raise ShapeError(f"{name}: takes arrays with a first axis, one after another, not {what}")
    lengths = [len(a) for a in arrays]
    if not lengths:
        raise ArgumentError(f"{name}: takes at least one array")
    if len(set(lengths)) > 1:
        raise ShapeError(f"{name}: the arrays have one length, not {', '.join(map(str, lengths))}")
    return lengths[0]
