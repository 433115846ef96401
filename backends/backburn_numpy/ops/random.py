"""NumPy: random numbers. The bits are those of ``numpy.random.Philox``; all else follows the contract's formulas."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np

from backburn.base.dtypes import DType, float32, float64
from backburn.base.errors import ArgumentError
from backburn.ops import random as formulas
from backburn.ops.random import GAMMAS, MANY, POISSONS, TERMS, WORDS, check_range, check_stream, threshold, window_shape
from backburn.ops.table import OPERATIONS
from backburn_numpy import compiled, tuning
from backburn_numpy.elementwise.ufuncs import unary_of_any_size
from backburn_numpy.implements import implements
from backburn_numpy.runtime.memory import empty
from backburn_numpy.runtime.threads import parallel_for

Array = Any
Shape = tuple[int, ...]
#: Gives words of some rows, for the first column and the number of columns.
Columns = Callable[[Any, int, int], list[Array]]

#: The bits of a permutation's keys by which a kernel counts within a part; higher ones select the part.
NEAR = 10
WORD = np.dtype("<u4")
PAIR = np.dtype("<u8")


class _OfAnySize:
    """A backend whose elementary functions do not depend on the number of elements: a short draw begins a long one."""

    def __init__(self, k: Any) -> None:
        self._k = k

    def __getattr__(self, name: str) -> Any:
        return _elementary(name, compiled.level()) or getattr(self._k, name)


@cache
def _elementary(name: str, _level: str | None) -> Callable[[Array], Array] | None:
    """An operation that is one of NumPy's functions of one operand, for any number of elements; None for others.

    It depends on the level of the kernels.
    """
    ufunc = getattr(np, name, None) if name in OPERATIONS else None
    if not isinstance(ufunc, np.ufunc) or not ufunc.nin == ufunc.nout == 1:
        return None
    return unary_of_any_size(ufunc)


class _Stream(threading.local):
    """A generator per thread, repositioned for each call: constructing one takes five times as long."""

    def __init__(self) -> None:
        self.bits = np.random.Philox(key=0)
        self.state: Any = self.bits.state

    def at(self, key: int, block: int) -> np.random.Philox:
        place = self.state["state"]
        place["key"][:] = key % 2**64, key >> 64
        place["counter"][0] = block
        self.bits.state = self.state
        return self.bits


_STREAM = _Stream()


def words(key: int, offset: int, count: int) -> Array:
    """Words ``offset`` to ``offset + count - 1`` of the stream of ``key``."""
    made = run_kernel("random_words", (count,), np.uint32, key, offset)
    if made is not None:
        return made
    block, skipped = divmod(offset, 8)
    raw = _STREAM.at(key, block).random_raw((skipped + count + 1) // 2)
    return raw.astype(PAIR, copy=False).view(WORD)[skipped : skipped + count]


def run_kernel(
    name: str, shape: Shape, dtype: Any, key: int, offset: int, option: int = 0, each: int = 1
) -> Array | None:
    """An array filled by a compiled kernel, ``each`` words per element; None if there is no such kernel."""
    check_stream(key, offset)
    draw, size = compiled.kernel(name), math.prod(shape)
    if draw is None or offset + size * each >= WORDS:
        return None
    result, both = empty(shape, np.dtype(dtype)), _halves(key)
    start, halves = compiled.address(result), compiled.address(both)
    if size <= tuning.RANDOM_BLOCK:
        draw(start, halves, offset, option, size)
        return result

    def work(first: int, last: int) -> None:
        begin, end = first * tuning.RANDOM_BLOCK, min(last * tuning.RANDOM_BLOCK, size)
        draw(start + begin * result.itemsize, halves, offset + begin * each, option, end - begin)

    parallel_for(work, -(-size // tuning.RANDOM_BLOCK), tuning.MIN_RANDOM_BLOCKS_FOR_THREADS)
    return result


@lru_cache(8)
def _halves(key: int) -> Array:
    """The low and the high 64 bits of a key."""
    return np.array([key % 2**64, key >> 64], np.uint64)


@implements("random_bits")
def random_bits(key: int, offset: int, shape: Shape) -> Array:
    made = run_kernel("random_bits", shape, np.int64, key, offset)
    return words(key, offset, math.prod(shape)).astype(np.int64).reshape(shape) if made is None else made


@implements("random_window", takes_backend=True)
def random_window(k: Any, key: int, offset: int, shape: Shape, axis: int, start: int, stop: int) -> Array:
    check_stream(key, offset)
    window_shape(shape=shape, axis=axis, start=start, stop=stop)
    rows, each = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    row, first, run = shape[axis] * each, start * each, (stop - start) * each
    made = empty((rows, run), np.dtype(np.int64))
    if run >= tuning.MIN_RUN_OF_WORDS:
        for i in range(rows):
            made[i] = words(key, offset + i * row + first, run)
    elif run:  # drawing whole rows and keeping a range takes fewer calls
        some = max(1, tuning.RANDOM_BLOCK // row)
        for i in range(0, rows, some):
            count = min(some, rows - i)
            made[i : i + count] = words(key, offset + i * row, count * row).reshape(count, row)[:, first : first + run]
    return made.reshape(*shape[:axis], stop - start, *shape[axis + 1 :])


@implements("uniform", takes_backend=True)
def uniform(k: Any, key: int, offset: int, shape: Shape, dtype: DType) -> Array:
    name, each = ("random_uniform_double", 2) if dtype is float64 else ("random_uniform", 1)
    made = run_kernel(name, shape, dtype.dtype, key, offset, each=each) if dtype in (float32, float64) else None
    return OPERATIONS["uniform"].body(k, key, offset, shape, dtype) if made is None else made


@implements("integers", takes_backend=True)
def integers(k: Any, key: int, offset: int, shape: Shape, low: int, high: int, dtype: DType) -> Array:
    check_range(low, high, dtype)  # type: ignore[arg-type]
    made = run_kernel("random_integers", shape, np.int64, key, offset, high - low, 2) if high - low < 2**63 else None
    if made is None:
        return OPERATIONS["integers"].body(k, key, offset, shape, low, high, dtype)
    return np.add(made, np.array(low % 2**64, np.uint64).view(np.int64), out=made).astype(dtype.dtype, copy=False)


@implements("bernoulli", takes_backend=True)
def bernoulli(k: Any, key: int, offset: int, shape: Shape, p: float) -> Array:
    made = run_kernel("random_below", shape, np.bool_, key, offset, threshold(p))
    return OPERATIONS["bernoulli"].body(k, key, offset, shape, p) if made is None else made


@implements("normal", takes_backend=True)
def normal(k: Any, key: int, offset: int, shape: Shape, dtype: DType) -> Array:
    made = run_kernel("random_normal", shape, np.float32, key, offset) if dtype is float32 else None
    return OPERATIONS["normal"].body(_OfAnySize(k), key, offset, shape, dtype) if made is None else made


@implements("permutation", takes_backend=True)
def permutation(k: Any, key: int, offset: int, n: int) -> Array:
    bits, fast = n.bit_length(), compiled.kernel("order_of_random")
    if fast is None or bits > 30:
        return OPERATIONS["permutation"].body(k, key, offset, n)
    made, order = words(key, offset, 2 * n), empty((n,), np.dtype(np.int64))
    starts, scratch = empty(((1 << max(bits - NEAR, 0)) + 1,), WORD), empty((n, 2), PAIR)
    fast(*compiled.addresses(order, made, starts, scratch), n, bits)
    return order


# New candidates are drawn only for the rejected ones, block by block.


@implements("gamma", takes_backend=True)
def gamma(k: Any, alpha: Array, /, key: int, offset: int, log: bool = False) -> Array:
    each, k = 2 if alpha.dtype == np.float64 else 1, _OfAnySize(k)

    def make(alpha: Array, columns: Columns) -> Array:
        alpha = alpha.astype(np.float64 if each == 2 else np.float32, copy=False)
        d, c = formulas.gamma_scale(k, alpha)
        t, left = np.zeros_like(d), np.arange(d.size)
        for i in range(0, GAMMAS, 2):
            waits = np.ones(left.size, np.bool_)
            for z, u in formulas.gamma_numbers(k, columns(left, 2 * each * i, 4 * each)):
                found, accepted = formulas.gamma_candidate(k, d[left], c[left], z, u)
                accepted &= waits
                t[left[accepted]] = found[accepted]
                waits &= ~accepted
            left = left[waits]
            if not left.size:
                break
        last, small = [np.zeros(d.size, np.int64) for _ in range(each)], np.flatnonzero(alpha < 1)
        for word, found in zip(last, columns(small, 2 * GAMMAS * each, each), strict=True):
            word[small] = found
        return np.asarray(formulas.gamma_result(k, alpha, d, t, last, log))

    return _fill_blocks(alpha, key, offset, (2 * GAMMAS + 1) * each, make)


@implements("poisson", takes_backend=True)
def poisson(k: Any, rate: Array, /, key: int, offset: int) -> Array:
    k = _OfAnySize(k)

    def make(rate: Array, columns: Columns) -> Array:
        rate = rate.astype(np.float64)
        few, many = np.zeros_like(rate), np.floor(rate)
        left = np.flatnonzero(rate < MANY)
        some = rate[left]
        few[left] = _poisson_count(formulas.open_uniform(k, columns(left, 0, 1)), k.exp(-some), some)
        left = np.flatnonzero(rate >= MANY)
        for i in range(POISSONS):
            if not left.size:
                break
            first, second = (formulas.open_uniform(k, [x]) for x in columns(left, 2 * i, 2))
            found, accepted = formulas.poisson_candidate(k, np.minimum(rate[left], 2.0**1000), first, second)
            many[left[accepted]] = found[accepted]
            left = left[~accepted]
        return np.asarray(formulas.poisson_result(k, rate, few, many))

    return _fill_blocks(rate, key, offset, 2 * POISSONS, make)


def _poisson_count(u: Array, term: Array, rate: Array) -> Array:
    """The number of sums of the first terms below ``u``, for the given first term."""
    count, fast = np.zeros(u.size), compiled.kernel("poisson_below")
    if fast is not None:
        fast(*compiled.addresses(count, u, term, rate), TERMS, u.size)
        return count
    found, left, total = count.copy(), np.arange(u.size), term.copy()
    for n in range(1, TERMS + 1):
        waits = u > total
        count += waits
        number = np.count_nonzero(waits)
        if not number or n == TERMS:
            break
        if 2 * number < count.size:  # finished elements stay until they are more than half
            found[left] = count
            left, u, term, total, rate, count = (x[waits] for x in (left, u, term, total, rate, count))
        term *= rate * (1.0 / n)
        total += term
    found[left] = count
    return found


def _fill_blocks(x: Array, key: int, offset: int, count: int, make: Callable[[Array, Columns], Array]) -> Array:
    """``make(elements, columns)`` of each block of ``x``, with ``count`` words in the row of each element."""
    check_stream(key, offset)
    flat, result = x.reshape(-1), empty((x.size,), x.dtype)

    def work(first: int, last: int) -> None:
        for start in range(
            first * tuning.RANDOM_BLOCK, min(last * tuning.RANDOM_BLOCK, result.size), tuning.RANDOM_BLOCK
        ):
            some = flat[start : start + tuning.RANDOM_BLOCK]
            with np.errstate(all="ignore"):
                columns = _columns(key, offset + start * count, count, some.size)
                result[start : start + some.size] = make(some, columns)

    parallel_for(work, -(-result.size // tuning.RANDOM_BLOCK), tuning.MIN_RANDOM_BLOCKS_FOR_THREADS)
    return result.reshape(x.shape)


def _columns(key: int, offset: int, count: int, size: int) -> Columns:
    """A function for the words of ``size`` rows of ``count``; a kernel computes only the words requested."""
    fast = compiled.kernel("random_columns")
    if fast is None or offset + size * count >= WORDS:
        bits = words(key, offset, size * count + size * count % 2)[: size * count].reshape(size, count)
        return lambda rows, first, number: [bits[rows, first + i].astype(np.int64) for i in range(number)]
    every, both = np.arange(size), _halves(key)

    def made(rows: Any, first: int, number: int) -> list[Array]:
        chosen = every[rows]  # contiguous, whatever the rows are
        out = np.empty((number, chosen.size), np.int64)
        places = compiled.address(out), compiled.address(both), offset + first, compiled.address(chosen)
        fast(*places, count, number, chosen.size)
        return [*out]

    return made


@implements("categorical", takes_backend=True)
def categorical(k: Any, logits: Array, /, key: int, offset: int) -> Array:
    """The body, for logits that give probabilities: nothing else checks them in a replayed step."""
    if logits.size and not (np.abs(logits.max(-1)) < np.inf).all():
        raise ArgumentError("a logit is NaN or infinite, or all of a row are minus infinity: they give no probability")
    return OPERATIONS["categorical"].body(_OfAnySize(k), logits, key=key, offset=offset)
