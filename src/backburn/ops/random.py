"""Random numbers: one stateless source of bits, and fixed formulas over it.

Every draw names its ``key`` (an integer from 0 to ``2**128 - 1``) and its ``offset`` (from 0 to ``2**64 - 1``) in the
key's stream of 32-bit words; there is no state. Equal keys and offsets give equal numbers on every backend: bits,
uniform numbers, integers, booleans and permutations exactly, normal and gamma numbers up to the last few bits. (Where a
choice between candidates depends on rounding, as for one float32 gamma number in ten million, it may differ.)

The stream is that of Philox4x64-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011). Word ``w`` belongs to block ``w // 8``, which is the function of the counter ``(w // 8 + 1, 0, 0, 0)`` under
the key ``(key % 2**64, key // 2**64)``; the block's four 64-bit outputs in order, the low half of each before the high
half, are its eight words. It is the stream of ``numpy.random.Philox(key=key)``.

The elements of a draw are numbered in row-major order. A draw at ``offset`` reads the next :func:`draws` words and no
others, so that draws whose ranges do not overlap are independent; an element's words depend on its number alone, so a
shorter draw is the beginning of a longer one.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from backburn.base.dtypes import DType, FloatDType, IntDType, float32, float64
from backburn.base.errors import ArgumentError
from backburn.ops.bodies import philox
from backburn.ops.bodies.slicing import slice_axis
from backburn.ops.primitives import Primitives
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.rules.tangents import tangent
from backburn.ops.table import operation
from backburn.ops.types import B, F, I, Q

Shape = tuple[int, ...]

#: The numbers of keys and of words in the stream of each.
KEYS, WORDS = 2**128, 2**64
#: The numbers of candidates for a gamma number and for a Poisson number: all are rejected with a probability of
#: 3e-11 and 2e-10.
GAMMAS, POISSONS = 8, 16
#: From this rate on, Poisson numbers are found by rejection; below, by a sum of ``TERMS`` probabilities.
MANY, TERMS = 10.0, 42
#: Significant bits of a uniform number, by dtype: as many as the dtype can hold.
DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def draws(kind: str, shape: Shape, dtype: DType = float32) -> int:
    """The number of words that a draw reads, and so the least distance of the next draw's offset.

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
    if kind == "gamma":
        return (2 * GAMMAS + 1) * words * size
    if kind == "poisson":
        return 2 * POISSONS * size
    raise ArgumentError(f"draws: {kind!r} is not a random operation")


def check_stream(key: int, offset: int) -> None:
    """Raise for a key or an offset out of range."""
    if not (0 <= key < KEYS and 0 <= offset < WORDS):
        raise ArgumentError(f"a key lies in [0, 2**128) and an offset in [0, 2**64): {key}, {offset}")


def check_range(low: int, high: int, dtype: IntDType) -> None:
    """Raise for a range of integers that is empty or that ``dtype`` cannot hold."""
    least, largest = (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1) if dtype.signed else (0, 2**dtype.bits - 1)
    if not least <= low < high <= largest + 1:
        raise ArgumentError(f"integers from {low} up to but excluding {high}: the range is empty or exceeds {dtype}")


def window_shape(*, shape: Shape, axis: int, start: int, stop: int, **_: Any) -> Shape:
    """The shape of a range along an axis of a draw."""
    if not (0 <= axis < len(shape) and 0 <= start <= stop <= shape[axis]):
        raise ArgumentError(f"a draw of shape {list(shape)} has no range from {start} to {stop} along axis {axis}")
    return (*shape[:axis], stop - start, *shape[axis + 1 :])


class Random(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Random numbers, as functions of a key and an offset."""

    @operation(kinds="I", shape=lambda *, shape, **_: shape, result="int64")
    def random_bits(self: Any, key: int, offset: int, shape: Shape) -> Any:
        """Words of the stream as integers in ``[0, 2**32)``: element ``i`` is word ``offset + i``."""
        check_stream(key, offset)
        return philox.words(self, key, offset, shape)

    @operation(kinds="I", shape=window_shape, result="int64")
    def random_window(self: Any, key: int, offset: int, shape: Shape, axis: int, start: int, stop: int) -> Any:
        """The range from ``start`` up to but excluding ``stop`` along ``axis`` of ``random_bits(key, offset, shape)``.

        The rest of that draw is not computed: a shard of a tensor draws only its own words.
        """
        check_stream(key, offset)
        window_shape(shape=shape, axis=axis, start=start, stop=stop)
        return philox.window(self, key, offset, shape, axis, start, stop)

    @operation(kinds="F", shape=lambda *, shape, **_: shape, result="dtype")
    def uniform(self: Any, key: int, offset: int, shape: Shape, dtype: FloatDType) -> Any:
        """Uniform numbers in ``[0, 1)``, multiples of ``2**-24`` in float32 and of ``2**-53`` in float64.

        Element ``i`` is the ``d`` highest bits of word ``offset + i`` times ``2**-d``, with ``d`` the significant bits
        of the dtype; in float64 the 53 highest of the 64 bits whose low half is word ``offset + 2 * i`` and whose high
        half is the word after it.
        """
        digits = DIGITS[dtype.name]
        if dtype is float64:
            bits = highest_bits(self, *draw_words(self, key, offset, shape, 2))
        else:
            bits = self.bitwise_right_shift(self.random_bits(key, offset, shape), 32 - digits)
        return self.mul(self.astype(bits, dtype), 2.0**-digits)

    @operation(kinds="I", shape=lambda *, shape, **_: shape, result="dtype")
    def integers(self: Any, key: int, offset: int, shape: Shape, low: int, high: int, dtype: IntDType) -> Any:
        """Integers from ``low`` up to but excluding ``high``, uniform up to one part in ``2**64 / (high - low)``.

        Element ``i`` is ``low + (u * (high - low) >> 64)``, where ``u`` has word ``offset + 2 * i`` as its low and the
        word after it as its high half: nothing is rejected. Raises :class:`ArgumentError` for an empty range or one
        beyond the dtype.
        """
        check_range(low, high, dtype)
        first, second = draw_words(self, key, offset, shape, 2)
        value = multiply_high(self, first, second, high - low)
        return self.astype(self.add(value, low if low < 2**63 else low - 2**64), dtype)

    @operation(kinds="B", shape=lambda *, shape, **_: shape, result="bool")
    def bernoulli(self: Any, key: int, offset: int, shape: Shape, p: float) -> B:
        """True with probability ``p``: element ``i`` is whether word ``offset + i`` is below ``round(p * 2**32)``.

        Raises :class:`ArgumentError` unless ``0 <= p <= 1``.
        """
        return self.less(self.random_bits(key, offset, shape), threshold(p))

    @operation(kinds="F", shape=lambda x, **_: (x, x), result=("same", "bool"), differentiable=True)
    def dropout(self: Any, x: F, /, key: int, offset: int, p: float) -> tuple[F, B]:
        """Each element of ``x`` 0 with probability ``p`` and divided by ``1 - p`` otherwise, and which were kept.

        Elements are kept where :meth:`bernoulli` of ``1 - p`` is true. After Srivastava et al., Dropout: a simple way
        to prevent neural networks from overfitting, 2014. Raises :class:`ArgumentError` unless ``0 <= p <= 1``.
        """
        keep = self.bernoulli(key, offset, x.shape, 1.0 - p)
        return apply_dropout(self, x, keep, p), keep

    gradient_rule(dropout, x=lambda k, g, kept, p: None if g[0] is None else apply_dropout(k, g[0], kept[0], p))
    tangent(dropout, x=lambda k, t, kept, p: (apply_dropout(k, t, kept[0], p), None))

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
        found = draw_words(self, key, offset, pairs, 4 if dtype is float64 else 2)
        both = self.stack(normal_pair(self, found), 1)
        flat = self.slice(self.reshape(both, (2 * pairs[0],)), (slice(0, math.prod(shape), 1),))
        return self.astype(self.reshape(flat, shape), dtype)

    @operation(kinds="I", shape=lambda *, n, **_: (n,), result="int64")
    def permutation(self: Any, key: int, offset: int, n: int) -> I:
        """The numbers from 0 to ``n - 1`` in random order: the stable order of ``n`` random integers.

        Integer ``i`` has the highest 63 of the 64 bits whose low half is word ``offset + 2 * i`` and whose high half is
        the word after it.
        """
        low, high = draw_words(self, key, offset, (n,), 2)
        keys = self.add(self.bitwise_left_shift(high, 31), self.bitwise_right_shift(low, 1))
        return self.argsort(keys, 0)

    @operation(kinds="F", shape=lambda logits, **_: logits[:-1], result="int64")
    def categorical(self: Any, logits: F, /, key: int, offset: int) -> I:
        """An index along the last axis, with probabilities ``softmax(logits)``; minus infinity excludes an index.

        The largest ``logits - log(e)`` has this index, with independent exponential numbers ``e = -log1p(-u)`` (Gumbel,
        1954). For logit ``i`` in row-major order, ``u`` is ``(w + 0.5) * 2**-32`` of word ``w`` at ``offset + i``, but
        at most ``1 - 2**-24``; with float64 logits ``(w + 0.5) * 2**-53`` of the 53 bits ``w`` that :meth:`uniform`
        takes for element ``i``, but at most ``1 - 2**-53``. 16-bit logits are computed in float32.
        """
        dtype = float64 if self.dtype(logits) is float64 else float32
        shape = logits.shape
        bits = draw_words(self, key, offset, shape, 2) if dtype is float64 else [self.random_bits(key, offset, shape)]
        u = self.minimum(open_uniform(self, bits, dtype), 1.0 - 2.0 ** -DIGITS[dtype.name])
        noise = self.neg(self.log(self.neg(self.log1p(self.neg(u)))))
        return self.argmax(self.add(self.astype(logits, dtype), noise), len(shape) - 1, False)

    @operation(kinds="F", shape=lambda alpha, **_: alpha, result="same", differentiable=True, elementwise=True)
    def gamma(self: Any, alpha: F, /, key: int, offset: int, log: bool = False) -> F:
        """Gamma numbers with shape parameter ``alpha`` and scale 1, or their logarithms; NaN for a negative ``alpha``.

        The method is that of Marsaglia and Tsang ("A simple method for generating gamma variables", 2000). With ``a =
        alpha`` (``alpha + 1`` below 1), ``d = a - 1 / 3`` and ``c = 1 / sqrt(9 * d)``, a normal number ``z`` gives the
        candidate ``d * v`` with ``v = (1 + c * z)**3``, which is accepted if ``v`` is above 0 and ``log(u) < z**2 / 2 +
        d - d * v + d * log(v)``. The first accepted one of eight candidates is the result, or ``d`` if there is none;
        for ``alpha`` below 1, it is multiplied by ``w ** (1 / alpha)``.

        Element ``i`` has the 17 words from ``offset + 17 * i`` on: of each four, the first two give two normal numbers
        as in :meth:`normal`, and each of the others a ``u = (word + 0.5) * 2**-32``; the last word gives ``w`` in the
        same way. In float64 each word is replaced by the 53 highest bits of two: 34 words in all. 16-bit dtypes are
        rounded from float32.

        The derivative is taken at a constant quantile, ``-(dP / dalpha) / (dP / dx)`` for the distribution function
        ``P`` (Figurnov, Mohamed and Mnih, "Implicit reparameterization gradients", 2018). The formula above would not
        do: it jumps where another candidate is accepted. So the gradient of a mean is unbiased.
        """
        dtype = self.dtype(alpha)
        wide = self.astype(alpha, float64 if dtype is float64 else float32)
        a, each = self.reshape(wide, (math.prod(alpha.shape),)), 2 if dtype is float64 else 1
        bits = draw_words(self, key, offset, a.shape, (2 * GAMMAS + 1) * each)
        d, c = gamma_scale(self, a)
        t = self.full(a.shape, 0.0, self.dtype(a))
        for i in reversed(range(0, GAMMAS, 2)):
            for z, u in reversed(gamma_numbers(self, bits[2 * i * each :][: 4 * each])):
                found, accepted = gamma_candidate(self, d, c, z, u)
                t = self.where(accepted, found, t)
        return self.astype(self.reshape(gamma_result(self, a, d, t, bits[-each:], log), alpha.shape), dtype)

    gradient_rule(gamma, alpha=lambda k, g, alpha, out, log: k.mul(g, grad_gamma(k, alpha, out, log)))

    @operation(kinds="F", shape=lambda rate, **_: rate, result="same")
    def poisson(self: Any, rate: F, /, key: int, offset: int) -> F:
        """Poisson numbers with mean ``rate``, as floats of its dtype; NaN for a negative rate, inf for inf.

        For a rate below 10 it is the count of the ``n`` for which ``u`` is above the probability of at most ``n``.
        From 10 on, the method is transformed rejection (Hoermann, "The transformed rejection method for generating
        Poisson random variables", 1993, algorithm PTRS) with numbers ``u`` and ``v``: the first of 16 candidates that
        is accepted, or the rate rounded down if none is. Everything is computed in float64.

        Element ``i`` has the 32 words from ``offset + 32 * i`` on, each of which gives a number ``(word + 0.5) *
        2**-32``. Candidate ``j`` takes words ``2 * j`` and ``2 * j + 1``; for rates below 10, ``u`` is the first.
        """
        mean = self.reshape(self.astype(rate, float64), (math.prod(rate.shape),))
        bits = draw_words(self, key, offset, mean.shape, 2 * POISSONS)
        few, many = poisson_few(self, self.minimum(mean, MANY), open_uniform(self, bits[:1])), self.floor(mean)
        wide = self.minimum(self.maximum(mean, MANY), 2.0**1000)
        for i in reversed(range(POISSONS)):
            u, v = (open_uniform(self, [bits[j]]) for j in (2 * i, 2 * i + 1))
            found, accepted = poisson_candidate(self, wide, u, v)
            many = self.where(accepted, found, many)
        return self.astype(self.reshape(poisson_result(self, mean, few, many), rate.shape), self.dtype(rate))


# ---- parts of the formulas ----


def normal_pair(k: Any, words: list[Any]) -> list[Any]:
    """Two normal numbers from two words in float32, or from four in float64."""
    if len(words) == 4:
        u = k.mul(k.astype(k.add(highest_bits(k, words[0], words[1]), 1), float64), 2.0**-53)
        v = k.mul(k.astype(highest_bits(k, words[2], words[3]), float64), 2.0**-21)
    else:
        u = k.mul(k.astype(k.add(words[0], 1), float32), 2.0**-32)
        v = k.astype(words[1], float32)
    radius, angle = k.sqrt(k.mul(k.log(u), -2.0)), k.mul(v, 2.0 * math.pi / 2.0**32)
    return [k.mul(radius, k.cos(angle)), k.mul(radius, k.sin(angle))]


def open_uniform(k: Any, words: list[Any], dtype: DType = float64) -> Any:
    """A number between 0 and 1, from one word, or in float64 from the 53 highest bits of two; it may round to 1."""
    bits, digits = (words[0], 32) if len(words) == 1 else (highest_bits(k, *words), 53)
    return k.mul(k.add(k.astype(bits, dtype), 0.5), 2.0**-digits)


def gamma_numbers(k: Any, words: list[Any]) -> list[tuple[Any, Any]]:
    """The normal and uniform numbers of two candidates, from four words in float32, or from eight in float64."""
    each, dtype = (2, float64) if len(words) == 8 else (1, float32)
    uniform = [open_uniform(k, words[i : i + each], dtype) for i in (2 * each, 3 * each)]
    return [*zip(normal_pair(k, words[: 2 * each]), uniform, strict=True)]


def gamma_scale(k: Any, alpha: Any) -> tuple[Any, Any]:
    """``d`` and ``c``."""
    d = k.sub(k.add(alpha, k.astype(k.less(alpha, 1.0), k.dtype(alpha))), 1.0 / 3.0)
    return d, k.div(1.0, k.sqrt(k.mul(k.abs(d), 9.0)))


def gamma_candidate(k: Any, d: Any, c: Any, z: Any, u: Any) -> tuple[Any, Any]:
    """``t = c * z``, so that ``d * (1 + t)**3`` is the candidate, and whether it is accepted.

    With ``log1p(t)`` in place of ``log(v)``, the bound keeps its digits for a large ``d``.
    """
    t = k.mul(c, z)
    inside = k.greater(t, -1.0)
    t = k.where(inside, t, 0.0)
    powers = k.mul(t, k.add(k.mul(k.add(k.mul(t, 1.0 / 3.0), 1.0), t), 1.0))  # t + t**2 + t**3 / 3
    bound = k.add(k.mul(k.square(z), 0.5), k.mul(k.mul(d, 3.0), k.sub(k.log1p(t), powers)))
    return t, k.logical_and(inside, k.less(k.log(u), bound))


def gamma_result(k: Any, alpha: Any, d: Any, t: Any, words: list[Any], log: bool) -> Any:
    """The numbers, or their logarithms, from the candidates that were accepted."""
    small = k.less(alpha, 1.0)
    w = open_uniform(k, words, k.dtype(alpha))
    share = k.where(small, k.div(k.log(w), k.where(small, k.abs(alpha), 1.0)), 0.0)
    if log:
        found = k.add(k.add(k.log(k.abs(d)), k.mul(k.log1p(t), 3.0)), share)
    else:
        found = k.mul(k.mul(d, k.mul(k.square(k.add(t, 1.0)), k.add(t, 1.0))), k.exp(share))
    return k.where(k.less(alpha, 0.0), math.nan, found)


def grad_gamma(k: Any, alpha: Any, x: Any, log: bool) -> Any:
    """The derivative of the numbers ``x``, or logarithms of numbers, by ``alpha``, each at its quantile; in float64."""
    dtype = k.dtype(alpha)
    a, x = k.astype(alpha, float64), k.astype(x, float64)
    if log:
        slope = _grad_log_gamma(k, a, x, k.exp(x), dtype)
    else:
        above = k.greater(x, 0.0)  # a number that is too small for the dtype stays 0
        z = k.where(above, x, 1.0)
        slope = k.where(above, k.mul(z, _grad_log_gamma(k, a, k.log(z), z, dtype)), k.mul(x, 0.0))
    return k.astype(slope, dtype)


def _grad_log_gamma(k: Any, a: Any, log_z: Any, z: Any, dtype: DType) -> Any:
    """The derivative of ``log_z`` by ``a``, with relative error 2e-7, in float64 4e-13 (for ``a`` up to 10,000).

    With ``t = z * exp(y)``, ``-(dP / da) / (z * dP / dz)`` is the integral of ``exp(a * y - z * (exp(y) - 1)) * (log_z
    + y - digamma(a))`` over ``y``, from 0 away from the bulk of the distribution: ``y = -step`` below ``a``, and ``y =
    log1p(step)`` above. It decays exponentially with ``step``, for which ``step = exp(t - exp(-t))`` and equal
    weights converge fast (Takahasi and Mori, "Double exponential formulas for numerical integration", 1974). This is
    done for ``a + 1``, where ``z`` is of one scale; ``P(a, z) - P(a + 1, z)`` leads back.
    """
    b = k.add(a, 1.0)
    above, offset = k.greater(z, b), k.sub(log_z, k.digamma(b))
    scale = k.div(1.0, k.sqrt(k.add(k.square(k.sub(z, b)), z)))
    scale, power = k.where(above, scale, k.neg(scale)), k.where(above, a, b)
    total = k.mul(z, 0.0)
    count, end = (64, 3.6) if dtype is float64 else (24, 2.8)
    width = 2.0 * end / (count - 1)
    for t in (width * i - end for i in range(count)):
        step = math.exp(t - math.exp(-t))
        values = total, scale, power, z, offset, step, width * step * (1.0 + math.exp(-t))
        total = k.fuse(_add_integrand, *values)
    return k.div(k.sub(k.mul(z, k.mul(total, scale)), offset), a)


def _add_integrand(k: Any, total: Any, scale: Any, power: Any, z: Any, offset: Any, step: float, weight: float) -> Any:
    """The sum with the integrand at one more step; ``scale`` is negative below the bulk of the distribution."""
    y = k.mul(scale, step)
    y = k.where(k.greater(scale, 0.0), k.log1p(k.abs(y)), y)
    density = k.exp(k.sub(k.mul(power, y), k.mul(z, k.sub(k.exp(y), 1.0))))
    return k.add(total, k.mul(k.mul(density, k.add(offset, y)), weight))


def poisson_few(k: Any, rate: Any, u: Any) -> Any:
    """The number of ``n`` for which the probability of at most ``n`` is below ``u``."""
    p = total = k.exp(k.neg(rate))
    count = k.astype(k.greater(u, total), float64)
    for n in range(1, TERMS):
        p = k.mul(p, k.mul(rate, 1.0 / n))
        total = k.add(total, p)
        count = k.add(count, k.astype(k.greater(u, total), float64))
    return count


def poisson_candidate(k: Any, rate: Any, u: Any, v: Any) -> tuple[Any, Any]:
    """A candidate from two uniform numbers, and whether it is accepted. The constants are from PTRS."""
    b = k.add(k.mul(k.sqrt(rate), 2.53), 0.931)
    a = k.sub(k.mul(b, 0.02483), 0.059)
    inverse = k.add(k.div(1.1328, k.sub(b, 3.4)), 1.1239)
    limit = k.sub(0.9277, k.div(3.6224, k.sub(b, 2.0)))
    u = k.sub(u, 0.5)
    near = k.sub(0.5, k.abs(u))
    found = k.floor(k.add(k.add(k.mul(k.add(k.div(k.mul(a, 2.0), near), b), u), rate), 0.43))
    at_once = k.logical_and(k.greater_equal(near, 0.07), k.less_equal(v, limit))
    out = k.logical_or(k.less(found, 0.0), k.logical_and(k.less(near, 0.013), k.greater(v, near)))
    found = k.maximum(found, 0.0)
    left = k.log(k.div(k.mul(v, inverse), k.add(k.div(a, k.square(near)), b)))
    right = k.sub(k.sub(k.mul(found, k.log(rate)), rate), k.lgamma(k.add(found, 1.0)))
    return found, k.logical_or(at_once, k.logical_and(k.logical_not(out), k.less_equal(left, right)))


def poisson_result(k: Any, rate: Any, few: Any, many: Any) -> Any:
    """The numbers for small, large and infinite rates; NaN for others."""
    found = k.where(k.less(rate, MANY), few, k.where(k.isinf(rate), math.inf, many))
    return k.where(k.greater_equal(rate, 0.0), found, math.nan)


# ---- words ----


def draw_words(k: Any, key: int, offset: int, shape: Shape, count: int) -> list[Any]:
    """The first, second, ... of the ``count`` consecutive words that each element of ``shape`` has."""
    size = math.prod(shape)
    bits = k.random_bits(key, offset, (size, count))
    return [k.reshape(slice_axis(k, bits, 1, i, i + 1), shape) for i in range(count)]


def highest_bits(k: Any, low: Any, high: Any) -> Any:
    """The 53 highest bits of the 64 in two words."""
    return k.add(k.bitwise_left_shift(high, 21), k.bitwise_right_shift(low, 11))


def multiply_high(k: Any, low: Any, high: Any, factor: int) -> Any:
    """The 64 highest bits of ``(high * 2**32 + low) * factor``, modulo ``2**64``, in int64."""
    small = 2**31
    if factor <= small:  # no sum or product exceeds the 63 bits of a positive integer
        carried = k.bitwise_right_shift(k.mul(low, factor), 32)
        return k.bitwise_right_shift(k.add(k.mul(high, factor), carried), 32)
    if factor == 2**64:
        return k.add(k.bitwise_left_shift(high, 32), low)
    lower, upper = factor % 2**32, factor // 2**32
    carry, _ = multiply_words(k, low, lower)
    middle, right = multiply_words(k, high, lower), multiply_words(k, low, upper)
    column = k.add(k.add(carry, middle[1]), right[1])
    left = multiply_words(k, high, upper)
    second = k.add(k.add(middle[0], right[0]), k.add(left[1], k.bitwise_right_shift(column, 32)))
    top = k.add(left[0], k.bitwise_right_shift(second, 32))
    return k.add(k.bitwise_left_shift(top, 32), k.bitwise_and(second, 2**32 - 1))


def multiply_words(k: Any, x: Any, y: int) -> tuple[Any, Any]:
    """The high and low words of the products of words ``x`` and the word ``y``, a Python integer."""
    low = k.mul(k.bitwise_and(x, 2**16 - 1), y)
    high = k.add(k.mul(k.bitwise_right_shift(x, 16), y), k.bitwise_right_shift(low, 16))
    word = k.add(k.bitwise_left_shift(k.bitwise_and(high, 2**16 - 1), 16), k.bitwise_and(low, 2**16 - 1))
    return k.bitwise_right_shift(high, 16), word


def apply_dropout(k: Any, x: Any, keep: Any, dropout: float) -> Any:
    """``x`` divided by the probability of keeping it, and 0 where it is not kept; ``x`` itself without ``keep``."""
    return x if keep is None else k.where(keep, k.mul(x, dropout_scale(dropout)), 0.0)


def dropout_scale(p: float) -> float:
    """The factor of the elements that dropout keeps; 0 if it keeps none."""
    return 1.0 / (1.0 - p) if p < 1.0 else 0.0


def threshold(p: float) -> int:
    """The number below which a word lies with probability ``p``."""
    if not 0 <= p <= 1:
        raise ArgumentError(f"a probability lies between 0 and 1, and this is {p}")
    return round(p * 2**32)
