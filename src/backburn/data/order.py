"""Orders of an epoch's elements: shuffled by seed and epoch, and computed a block at a time where there are many."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from backburn.base.errors import ArgumentError

Indices: TypeAlias = NDArray[np.intp]

#: From this number of elements an order is computed, not stored: a permutation takes 8 bytes for each.
MANY = 1 << 20
#: The number of positions that are computed together.
BLOCK = 1 << 14
#: The rounds of :class:`Bijection`. Three leave traces in the statistics of neighbours, four do not.
ROUNDS = 5


class Order:
    """The elements of one epoch, ``order[i:j]`` those from position ``i`` to ``j``; in sequence without a ``seed``."""

    def __init__(self, length: int, seed: int | None, epoch: int) -> None:
        self._length = length
        self._stored: Indices | None = None
        self._computed: Bijection | None = None
        if seed is not None and length < MANY:
            self._stored = generator(seed, epoch).permutation(length)
        elif seed is not None:
            self._computed = Bijection(length, generator(seed, epoch))
        self._start = self._stop = 0
        self._block: Indices = np.empty(0, np.intp)

    def __getitem__(self, part: slice) -> Indices:
        start, stop, _ = part.indices(self._length)
        if self._stored is not None:
            return self._stored[start:stop]
        if self._computed is None:
            return np.arange(start, stop)
        if start < self._start or stop > self._stop:
            self._start, self._stop = start, min(max(stop, start + BLOCK), self._length)
            self._block = self._computed(np.arange(self._start, self._stop))
        return self._block[start - self._start : stop - self._start]


class Bijection:
    """A random one-to-one map of the integers below ``length``, each image computed independently.

    On the integers of as many bits as ``length`` needs, adding a number, multiplying by an odd one and folding the high
    bits into the low ones are one-to-one; several rounds of them mix all bits. An image that is too large is mapped
    again until it is not, at most twice on average. Only integers are used, so that the map is the same on every
    machine. The method is the cycle walking of Black and Rogaway (2002), *Ciphers with Arbitrary Finite Domains*,
    CT-RSA, section 4, around a mixing function instead of a cipher.

        >>> Bijection(10, np.random.default_rng(0))(np.arange(10)).tolist()
        [1, 4, 3, 9, 2, 8, 5, 6, 7, 0]
    """

    def __init__(self, length: int, random: np.random.Generator) -> None:
        bits = max((length - 1).bit_length(), 2)
        self._kind: Any = np.uint32 if bits <= 32 else np.uint64
        mask = (1 << bits) - 1
        drawn = random.integers(0, 1 << 64, (ROUNDS, 2), dtype=np.uint64).tolist()
        self._keys = [(self._kind(added & mask), self._kind((factor | 1) & mask)) for added, factor in drawn]
        self._mask, self._fold, self._length = self._kind(mask), self._kind((bits + 1) // 2), length

    def __call__(self, positions: Indices) -> Indices:
        """The images of ``positions``, which are below the length."""
        found = self._mixed(positions.astype(self._kind))
        while len(outside := np.flatnonzero(found >= self._length)):
            found[outside] = self._mixed(found[outside])
        return found.astype(np.intp)

    def _mixed(self, x: NDArray[Any]) -> NDArray[Any]:
        for added, factor in self._keys:
            x += added  # the mask below drops overflow
            x *= factor
            x &= self._mask
            x ^= x >> self._fold
        return x


def generator(seed: int, epoch: int, stream: int = 0) -> np.random.Generator:
    """A random generator for one epoch; different ``stream`` numbers give independent generators.

    NumPy's Philox, a counter-based generator, seeded with the three numbers. Raises :class:`ArgumentError` where one
    of them is negative.
    """
    if not all(is_whole(n, 0) for n in (seed, epoch, stream)):
        raise ArgumentError(f"random numbers: seed and epoch are integers from 0 on, not {seed!r} and {epoch!r}")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch, stream])))


def is_whole(value: Any, least: int) -> bool:
    """Whether ``value`` is an integer, of Python or NumPy, of at least ``least``."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= least
