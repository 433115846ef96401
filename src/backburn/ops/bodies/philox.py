"""Philox4x64-10 with the contract's operations, for backends without such a generator.

Unsigned 64-bit numbers are held in int64, whose sums and products wrap around in the same way.
"""

from __future__ import annotations

import math
from typing import Any

from backburn.base.dtypes import int64

Shape = tuple[int, ...]

# The constants of the generator: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
ROUNDS = 10
WORD = 2**32 - 1


def words(k: Any, key: int, offset: int, shape: Shape) -> Any:
    """Words of the stream of ``key`` from word ``offset`` on. See :mod:`backburn.ops.random`."""
    size, skipped = math.prod(shape), offset % 8
    first, count = offset // 8 + 1, (skipped + size + 7) // 8
    outputs = blocks(k, k.arange(first, first + count, 1, int64), (key % 2**64, key // 2**64))
    halves = [half for output in outputs for half in (k.bitwise_and(output, WORD), high_word(k, output))]
    stream = k.reshape(k.stack(halves, 1), (8 * count,))
    return k.reshape(k.slice(stream, (slice(skipped, skipped + size, 1),)), shape)


def window(k: Any, key: int, offset: int, shape: Shape, axis: int, start: int, stop: int) -> Any:
    """The range from ``start`` to ``stop`` along ``axis`` of words in ``shape``: a run of the stream for each row."""
    rows, each = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    run, result = (stop - start) * each, (*shape[:axis], stop - start, *shape[axis + 1 :])
    if not rows * run:
        return k.zeros(result, int64)
    first = k.arange(0, rows, 1, int64)  # counted from the block of the first word
    first = k.reshape(k.add(k.mul(first, shape[axis] * each), offset % 8 + start * each), (rows, 1))
    count = (run + 14) // 8  # blocks that hold a run, wherever it begins in the first
    counter = k.add(k.add(k.bitwise_right_shift(first, 3), offset // 8 + 1), k.arange(0, count, 1, int64))
    outputs = blocks(k, counter, (key % 2**64, key // 2**64))
    halves = [half for output in outputs for half in (k.bitwise_and(output, WORD), high_word(k, output))]
    stream = k.reshape(k.stack(halves, 2), (rows, 8 * count))
    places = k.add(k.bitwise_and(first, 7), k.arange(0, run, 1, int64))
    return k.reshape(k.take_along_axis(stream, places, 1), result)


def blocks(k: Any, counter: Any, key: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """For each counter below ``2**64`` the block of four numbers under ``key``."""
    zero = k.zeros(counter.shape, int64)
    a, b, c, d = counter, zero, zero, zero
    for number in range(ROUNDS):
        keys = (k_ + number * step for k_, step in zip(key, WEYL, strict=True))
        (low_high, low), (high_high, high) = (product(k, x, m) for x, m in zip((a, c), MULTIPLIERS, strict=True))
        first, second = (signed(k_) for k_ in keys)
        a, c = k.bitwise_xor(k.bitwise_xor(high_high, b), first), k.bitwise_xor(k.bitwise_xor(low_high, d), second)
        b, d = high, low
    return a, b, c, d


def product(k: Any, x: Any, factor: int) -> tuple[Any, Any]:
    """The high and the low 64 bits of a product of 64-bit numbers, computed from the products of their halves."""
    lower, upper = k.bitwise_and(x, WORD), high_word(k, x)
    m_lower, m_upper = factor & WORD, factor >> 32
    right = k.add(k.mul(upper, m_lower), high_word(k, k.mul(lower, m_lower)))
    left = k.add(k.mul(lower, m_upper), k.bitwise_and(right, WORD))
    high = k.add(k.mul(upper, m_upper), k.add(high_word(k, right), high_word(k, left)))
    return high, k.mul(x, signed(factor))


def high_word(k: Any, x: Any) -> Any:
    """The high 32 bits of 64; an arithmetic shift alone would fill up with the sign bit."""
    return k.bitwise_and(k.bitwise_right_shift(x, 32), WORD)


def signed(number: int) -> int:
    """The int64 that has the lowest 64 bits of a number."""
    return (number + 2**63) % 2**64 - 2**63
