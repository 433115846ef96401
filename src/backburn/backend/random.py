"""Random numbers: one stateless source of bits, and fixed formulas over it.

Every draw names its ``key`` (an integer from 0 to ``2**128 - 1``) and its ``offset`` (from 0 to ``2**64 - 1``) in the
key's stream of 32-bit words; nothing is remembered. Equal keys and offsets give equal numbers on every backend: bits,
uniform numbers, integers, booleans and permutations to the last bit, normal numbers to the last few.

The stream is that of Philox4x64-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011). Word ``w`` belongs to block ``w // 8``, which is the function of the counter ``(w // 8 + 1, 0, 0, 0)`` under
the key ``(key % 2**64, key // 2**64)``; the block's four 64-bit outputs in order, the low half of each before the high
half, are its eight words. It is the stream of ``numpy.random.Philox(key=key)``.

The elements of a draw are numbered in row-major order. A draw at ``offset`` reads the next :func:`draws` words and no
others, so that draws whose ranges do not overlap are independent; an element's words are given by its number alone,
and a shorter draw is the beginning of a longer one.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from backburn.backend import philox
from backburn.backend.index import shape_of
from backburn.backend.kinds import Kinds
from backburn.backend.table import operation
from backburn.backend.types import B, F, I, Q
from backburn.backend.views import part
from backburn.base.dtypes import DType, FloatDType, IntDType, float32, float64
from backburn.base.errors import ArgumentError

Shape = tuple[int, ...]

#: The numbers of keys and of words in the stream of each.
KEYS, WORDS = 2**128, 2**64
#: Significant bits of a uniform number, by dtype: as many as the dtype can hold.
DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def draws(kind: str, shape: Shape, dtype: DType = float32) -> int:
    """How many words a draw reads, and so how far the next draw's offset must be from this one's.

    ``kind`` is the name of the operation, ``shape`` that of its result (of the logits for ``"categorical"``), and
    ``dtype`` the dtype of the result (of the logits). Raises :class:`ArgumentError` for an unknown kind.

        >>> draws("uniform", (2, 3)), draws("normal", (5,)), draws("uniform", (5,), float64), draws("integers", ())
        (6, 6, 10, 2)
    """
    size = math.prod(shape)
    words = 2 if dtype is float64 else 1
    if kind in ("random_bits", "bernoulli", "dropout"):
        return size
    if kind in ("integers", "permutation"):
        return 2 * size
    if kind in ("uniform", "categorical"):
        return words * size
    if kind == "normal":
        return 2 * words * ((size + 1) // 2)
    raise ArgumentError(f"draws: {kind!r} is no random operation")


def check_stream(key: int, offset: int) -> None:
    """Refuse a key or an offset that there is not."""
    if not (0 <= key < KEYS and 0 <= offset < WORDS):
        raise ArgumentError(f"a key lies in [0, 2**128) and an offset in [0, 2**64): {key}, {offset}")


def check_range(low: int, high: int, dtype: IntDType) -> None:
    """Refuse a range of integers that is empty or that ``dtype`` does not hold."""
    least, largest = (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1) if dtype.signed else (0, 2**dtype.bits - 1)
    if not least <= low < high <= largest + 1:
        raise ArgumentError(f"integers from {low} up to and without {high}: none, or beyond {dtype}")


class Random(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
    """Random numbers, as functions of a key and an offset."""

    @operation(kinds="I", shape=lambda *, shape, **_: shape, result="int64")
    def random_bits(self: Any, key: int, offset: int, shape: Shape) -> Any:
        """Words of the stream as integers in ``[0, 2**32)``: element ``i`` is word ``offset + i``."""
        check_stream(key, offset)
        return philox.words(self, key, offset, shape)

    @operation(kinds="F", shape=lambda *, shape, **_: shape, result="dtype")
    def uniform(self: Any, key: int, offset: int, shape: Shape, dtype: FloatDType) -> Any:
        """Uniform numbers in ``[0, 1)``, multiples of ``2**-24`` in float32 and of ``2**-53`` in float64.

        Element ``i`` is the ``d`` highest bits of word ``offset + i`` times ``2**-d``, with ``d`` the significant bits
        of the dtype; in float64 the 53 highest of the 64 bits whose low half is word ``offset + 2 * i`` and whose high
        half is the word after it.
        """
        digits = DIGITS[dtype.name]
        if dtype is float64:
            bits = highest_bits(self, *words(self, key, offset, shape, 2))
        else:
            bits = self.bitwise_right_shift(self.random_bits(key, offset, shape), 32 - digits)
        return self.mul(self.cast(bits, dtype), 2.0**-digits)

    @operation(kinds="I", shape=lambda *, shape, **_: shape, result="dtype")
    def integers(self: Any, key: int, offset: int, shape: Shape, low: int, high: int, dtype: IntDType) -> Any:
        """Integers from ``low`` up to but excluding ``high``, uniform up to one part in ``2**64 / (high - low)``.

        Element ``i`` is ``low + (u * (high - low) >> 64)``, where ``u`` has word ``offset + 2 * i`` as its low and the
        word after it as its high half: nothing is rejected. Raises :class:`ArgumentError` for an empty range or one
        beyond the dtype.
        """
        check_range(low, high, dtype)
        first, second = words(self, key, offset, shape, 2)
        value = multiply_high(self, first, second, high - low)
        return self.cast(self.add(value, low if low < 2**63 else low - 2**64), dtype)

    @operation(kinds="B", shape=lambda *, shape, **_: shape, result="bool")
    def bernoulli(self: Any, key: int, offset: int, shape: Shape, p: float) -> B:
        """True with probability ``p``: element ``i`` is whether word ``offset + i`` is below ``round(p * 2**32)``.

        Raises :class:`ArgumentError` unless ``0 <= p <= 1``.
        """
        return self.less(self.random_bits(key, offset, shape), threshold(p))

    @operation(kinds="F", shape=lambda x, **_: (x, x), result=("same", "bool"), differentiable=True)
    def dropout(self: Any, x: F, /, key: int, offset: int, p: float) -> tuple[F, B]:
        """Each element of ``x`` 0 with probability ``p`` and divided by ``1 - p`` otherwise, and which were kept.

        Those are kept for which :meth:`bernoulli` of ``1 - p`` is true. After Srivastava et al., Dropout: a simple way
        to prevent neural networks from overfitting, 2014. Raises :class:`ArgumentError` unless ``0 <= p <= 1``.
        """
        keep = self.bernoulli(key, offset, shape_of(x), 1.0 - p)
        return self.where(keep, self.mul(x, dropout_scale(p)), 0.0), keep

    @operation(kinds="F", shape=lambda *, shape, **_: shape, result="dtype")
    def normal(self: Any, key: int, offset: int, shape: Shape, dtype: FloatDType) -> Any:
        """Numbers of mean 0 and variance 1, normally distributed (Box and Muller, 1958).

        Elements ``2 * j`` and ``2 * j + 1`` are ``r * cos(t)`` and ``r * sin(t)`` with ``r = sqrt(-2 * log(u))`` and
        ``t = v * (2 * pi / 2**32)``. In float32 ``u`` is ``(w + 1) * 2**-32``, where ``w`` is word ``offset + 2 * j``,
        and ``v`` the word after it, both rounded to float32; 16-bit dtypes are rounded from float32. In float64 the
        pair takes four words: the highest 53 bits of the first two plus 1, times ``2**-53``, are ``u``, and the
        highest 53 bits of the others times ``2**-21`` are ``v``. Magnitudes reach 6.7 (8.6 in float64).
        """
        pairs = ((math.prod(shape) + 1) // 2,)
        if dtype is float64:
            first, second, third, fourth = words(self, key, offset, pairs, 4)
            u = self.mul(self.cast(self.add(highest_bits(self, first, second), 1), float64), 2.0**-53)
            v = self.mul(self.cast(highest_bits(self, third, fourth), float64), 2.0**-21)
        else:
            first, second = words(self, key, offset, pairs, 2)
            u = self.mul(self.cast(self.add(first, 1), float32), 2.0**-32)
            v = self.cast(second, float32)
        radius, angle = self.sqrt(self.mul(self.log(u), -2.0)), self.mul(v, 2.0 * math.pi / 2.0**32)
        both = self.stack([self.mul(radius, self.cos(angle)), self.mul(radius, self.sin(angle))], 1)
        flat = self.slice(self.reshape(both, (2 * pairs[0],)), (slice(0, math.prod(shape), 1),))
        return self.cast(self.reshape(flat, shape), dtype)

    @operation(kinds="I", shape=lambda *, n, **_: (n,), result="int64")
    def permutation(self: Any, key: int, offset: int, n: int) -> I:
        """The numbers from 0 to ``n - 1`` in random order: the stable order of ``n`` random integers.

        Integer ``i`` has the highest 63 of the 64 bits whose low half is word ``offset + 2 * i`` and whose high half is
        the word after it.
        """
        low, high = words(self, key, offset, (n,), 2)
        keys = self.add(self.bitwise_left_shift(high, 31), self.bitwise_right_shift(low, 1))
        return self.argsort(keys, 0)

    @operation(kinds="F", shape=lambda logits, **_: logits[:-1], result="int64")
    def categorical(self: Any, logits: F, /, key: int, offset: int) -> I:
        """An index along the last axis, with probabilities ``softmax(logits)``; minus infinity excludes an index.

        It is that of the largest ``logits - log(e)``, with independent exponential numbers ``e = -log1p(-u)`` (Gumbel,
        1954). For logit ``i`` in row-major order, ``u`` is ``(w + 0.5) * 2**-32`` of word ``w`` at ``offset + i``, but
        at most ``1 - 2**-24``; with float64 logits ``(w + 0.5) * 2**-53`` of the 53 bits ``w`` that :meth:`uniform`
        takes for element ``i``, but at most ``1 - 2**-53``. 16-bit logits are computed in float32.
        """
        dtype = float64 if self.dtype(logits) is float64 else float32
        shape = logits.shape  # type: ignore[attr-defined]
        if dtype is float64:
            bits, digits = highest_bits(self, *words(self, key, offset, shape, 2)), 53
        else:
            bits, digits = self.random_bits(key, offset, shape), 32
        u = self.mul(self.add(self.cast(bits, dtype), 0.5), 2.0**-digits)
        u = self.minimum(u, 1.0 - 2.0 ** -DIGITS[dtype.name])
        noise = self.neg(self.log(self.neg(self.log1p(self.neg(u)))))
        return self.argmax(self.add(self.cast(logits, dtype), noise), len(shape) - 1, False)


def words(k: Any, key: int, offset: int, shape: Shape, count: int) -> list[Any]:
    """The first, second, ... of the ``count`` consecutive words that each element of ``shape`` has."""
    size = math.prod(shape)
    bits = k.random_bits(key, offset, (size, count))
    return [k.reshape(part(k, bits, 1, i, i + 1), shape) for i in range(count)]


def highest_bits(k: Any, low: Any, high: Any) -> Any:
    """The 53 highest bits of the 64 in two words."""
    return k.add(k.bitwise_left_shift(high, 21), k.bitwise_right_shift(low, 11))


def multiply_high(k: Any, low: Any, high: Any, factor: int) -> Any:
    """The 64 highest bits of ``(high * 2**32 + low) * factor``, modulo ``2**64``, in int64."""
    small = 2**31
    if factor <= small:  # no sum or product leaves the 63 bits of a positive integer
        carried = k.bitwise_right_shift(k.mul(low, factor), 32)
        return k.bitwise_right_shift(k.add(k.mul(high, factor), carried), 32)
    if factor == 2**64:
        return k.add(k.bitwise_left_shift(high, 32), low)
    lower, upper = factor % 2**32, factor // 2**32
    carry, _ = product(k, low, lower)
    middle, right = product(k, high, lower), product(k, low, upper)
    column = k.add(k.add(carry, middle[1]), right[1])
    left = product(k, high, upper)
    second = k.add(k.add(middle[0], right[0]), k.add(left[1], k.bitwise_right_shift(column, 32)))
    top = k.add(left[0], k.bitwise_right_shift(second, 32))
    return k.add(k.bitwise_left_shift(top, 32), k.bitwise_and(second, 2**32 - 1))


def product(k: Any, x: Any, y: int) -> tuple[Any, Any]:
    """The high and the low word of the product of two words, of which the second is one number."""
    low = k.mul(k.bitwise_and(x, 2**16 - 1), y)
    high = k.add(k.mul(k.bitwise_right_shift(x, 16), y), k.bitwise_right_shift(low, 16))
    word = k.add(k.bitwise_left_shift(k.bitwise_and(high, 2**16 - 1), 16), k.bitwise_and(low, 2**16 - 1))
    return k.bitwise_right_shift(high, 16), word


def dropout_scale(p: float) -> float:
    """What dropout multiplies by where it keeps an element; 0 where it keeps none."""
    return 1.0 / (1.0 - p) if p < 1.0 else 0.0


def threshold(p: float) -> int:
    """The number below which a word lies with probability ``p``."""
    if not 0 <= p <= 1:
        raise ArgumentError(f"a probability lies between 0 and 1, and this is {p}")
    return round(p * 2**32)
