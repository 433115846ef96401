"""Samples: random numbers, with a reference generator in plain Python integers."""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import Any

import numpy as np

from backburn.base.dtypes import DType, as_dtype, float16, float32, float64, int8, int32, int64, uint8, uint64
from backburn.conformance.samples.references import digamma
from backburn.conformance.samples.table import Array, Sample, case, real, samples
from backburn.ops.random import DIGITS

Shape = tuple[int, ...]

MASK = 2**64 - 1
MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B


@lru_cache(4096)  # a block has eight words, and large samples share their first ones
def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """One block of Philox4x64-10: four 64-bit numbers for a counter under a key."""
    for _ in range(10):
        low, high = counter[0] * MULTIPLIERS[0], counter[2] * MULTIPLIERS[1]
        counter = (
            high >> 64 ^ counter[1] ^ key[0],
            high & MASK,
            low >> 64 ^ counter[3] ^ key[1],
            low & MASK,
        )
        key = (key[0] + WEYL[0] & MASK, key[1] + WEYL[1] & MASK)
    return counter


def word(key: int, number: int) -> int:
    """One 32-bit word of the stream of ``key``."""
    block, place = divmod(number, 8)
    output = philox((block + 1, 0, 0, 0), (key & MASK, key >> 64))[place // 2]
    return output >> 32 * (place % 2) & 0xFFFFFFFF


def pair(key: int, number: int) -> int:
    """The 64-bit number in words ``number`` (the low half) and ``number + 1``."""
    return word(key, number + 1) << 32 | word(key, number)


def random_bits(key: int, offset: int, shape: Shape) -> Array:
    """The words of the stream."""
    size = math.prod(shape)
    return np.array([word(key, offset + i) for i in range(size)], np.int64).reshape(shape)


def uniform(key: int, offset: int, shape: Shape, dtype: DType) -> Array:
    """The highest bits of each word, or pair of words."""
    digits, size = DIGITS[dtype.name], math.prod(shape)
    if dtype is float64:
        bits = [pair(key, offset + 2 * i) >> 11 for i in range(size)]
    else:
        bits = [word(key, offset + i) >> 32 - digits for i in range(size)]
    return np.array([b / 2**digits for b in bits], np.float64).reshape(shape)


def integers(key: int, offset: int, shape: Shape, low: int, high: int, dtype: DType) -> Array:
    """A 64-bit fraction of the range for each element."""
    size = math.prod(shape)
    values = [low + (pair(key, offset + 2 * i) * (high - low) >> 64) for i in range(size)]
    return np.array(values, dtype.dtype).reshape(shape)


def normal(key: int, offset: int, shape: Shape, dtype: DType) -> Array:
    """The method of Box and Muller, on numbers that are rounded as in the contract."""
    values: list[float] = []
    size = math.prod(shape)
    for j in range((size + 1) // 2):
        if dtype is float64:
            u = ((pair(key, offset + 4 * j) >> 11) + 1) * 2.0**-53
            angle = (pair(key, offset + 4 * j + 2) >> 11) * 2.0**-21 * (2 * math.pi / 2**32)
        else:
            u = float(np.float32(word(key, offset + 2 * j) + 1)) * 2.0**-32
            angle = float(np.float32(word(key, offset + 2 * j + 1)) * np.float32(2 * math.pi / 2**32))
        radius = math.sqrt(-2 * math.log(u))
        values += [radius * math.cos(angle), radius * math.sin(angle)]
    return np.array(values[:size], np.float64).reshape(shape)


def dropout(x: Array, key: int, offset: int, p: float) -> tuple[Array, Array]:
    """The elements with a word below the limit, divided by their probability, and the mask."""
    keep = random_bits(key, offset, x.shape) < round((1 - p) * 2**32)
    return np.where(keep, x / (1 - p if p < 1 else 1), 0.0), keep


def categorical(logits: Array, key: int, offset: int) -> Array:
    """The index of the largest logit plus noise, correct if no two are closer than rounding errors."""
    size = logits.size
    u = np.array([(word(key, offset + i) + 0.5) * 2.0**-32 for i in range(size)]).reshape(logits.shape)
    return np.asarray(np.argmax(logits - np.log(-np.log1p(-u)), axis=-1))


def gamma(alpha: Array, key: int, offset: int, log: bool = False, dtype: DType = float32) -> Array:
    """The first of eight candidates that Marsaglia and Tsang's condition accepts, for each shape parameter."""
    words = 2 if dtype is float64 else 1
    found = [_gamma(float(a), key, offset + 17 * words * i, words) for i, a in enumerate(alpha.ravel())]
    values = np.array([low if log else math.exp(low) for low in found]).reshape(alpha.shape)
    return np.where(alpha < 0, np.nan, values)


@np.errstate(under="ignore")  # this module may be imported where NumPy raises on underflow
@partial(np.vectorize, otypes=[float])
def gamma_slope(alpha: float, log_x: float) -> float:
    """The derivative of a gamma number's logarithm, from the series of the incomplete gamma function (DLMF 8.11.4).

    The terms omit the factor ``x**alpha * exp(-x) / gamma(alpha)``, since dividing by the density cancels it.
    """
    x, term, inverses, total, slope, n = math.exp(log_x), 1.0, 0.0, 0.0, 0.0, 0
    while term > 0.0:
        term *= x / (alpha + n) if n else 1.0 / alpha
        inverses += 1.0 / (alpha + n)
        total, slope, n = total + term, slope - term * inverses, n + 1
    return -(total * (log_x - float(digamma(np.array(alpha)))) + slope)


def _gamma(alpha: float, key: int, offset: int, words: int) -> float:
    """The logarithm of one gamma number."""

    def u(number: int) -> float:
        at = offset + number * words
        return (word(key, at) + 0.5) * 2.0**-32 if words == 1 else ((pair(key, at) >> 11) + 0.5) * 2.0**-53

    d = max(alpha, 0.0) + (alpha < 1.0) - 1 / 3
    best = math.log(d)
    for i in range(8):
        block = offset + i // 2 * 4 * words
        z = float(normal(key, block, (2,), float64 if words == 2 else float32)[i % 2])
        v = (1 + z / math.sqrt(9 * d)) ** 3
        if v > 0 and math.log(u(i // 2 * 4 + 2 + i % 2)) < z * z / 2 + d - d * v + d * math.log(v):
            best = math.log(d * v)
            break
    if alpha < 1.0:
        best += math.log(u(16)) / alpha if alpha else -math.inf
    return best


def poisson(rate: Array, key: int, offset: int) -> Array:
    """By inversion, or the first of 16 candidates that is accepted, for each rate."""
    values = [_poisson(float(r), key, offset + 32 * i) for i, r in enumerate(rate.ravel())]
    return np.array(values).reshape(rate.shape)


def _poisson(rate: float, key: int, offset: int) -> float:
    if not 0 <= rate < math.inf:
        return rate if rate > 0 else math.nan
    u = [(word(key, offset + i) + 0.5) * 2.0**-32 for i in range(32)]
    if rate < 10:
        chances = [math.exp(-rate) * rate**n / math.factorial(n) for n in range(42)]
        return float(sum(u[0] > math.fsum(chances[: n + 1]) for n in range(42)))
    b = 0.931 + 2.53 * math.sqrt(rate)
    a = -0.059 + 0.02483 * b
    for i in range(16):
        across, v = u[2 * i] - 0.5, u[2 * i + 1]
        near = 0.5 - abs(across)
        k = math.floor((2 * a / near + b) * across + rate + 0.43)
        if near >= 0.07 and v <= 0.9277 - 3.6224 / (b - 2):
            return float(k)
        if k >= 0 and (near >= 0.013 or v <= near):
            inverse = 1.1239 + 1.1328 / (b - 3.4)
            if math.log(v * inverse / (a / near**2 + b)) <= k * math.log(rate) - rate - math.lgamma(k + 1):
                return float(k)
    return float(math.floor(rate))


KEY = 2**100 + 12345

samples(
    "random_bits",
    random_bits,
    case(key=0, offset=0, shape=(20,)),
    case(key=KEY, offset=5, shape=(3, 7)),
    case(key=2**128 - 1, offset=2**40 + 3, shape=(9,)),
    case(key=1, offset=1, shape=()),
    case(key=1, offset=3, shape=(0, 2)),
)
samples(
    "random_window",
    lambda key, offset, shape, axis, start, stop: np.moveaxis(
        np.moveaxis(random_bits(key, offset, shape), axis, 0)[start:stop], 0, axis
    ),
    case(key=KEY, offset=5, shape=(3, 7), axis=1, start=2, stop=6),
    case(key=KEY, offset=2**40 + 3, shape=(2, 5, 3), axis=1, start=1, stop=5),
    case(key=2**128 - 1, offset=0, shape=(4, 3), axis=0, start=1, stop=3),
    case(key=1, offset=7, shape=(20,), axis=0, start=0, stop=20),
    case(key=1, offset=3, shape=(2, 6), axis=1, start=3, stop=3),
    case(key=1, offset=3, shape=(0, 2), axis=1, start=0, stop=1),
)
samples(
    "uniform",
    uniform,
    *(case(key=KEY, offset=3, shape=(3, 5), dtype=d) for d in (float16, float32, float64)),
    case(key=1, offset=0, shape=(), dtype=float32),
    case(key=1, offset=0, shape=(0, 3), dtype=float64),
)
samples(
    "integers",
    integers,
    case(key=KEY, offset=3, shape=(3, 5), low=0, high=10, dtype=int64),
    case(key=KEY, offset=2, shape=(20,), low=-128, high=128, dtype=int8),
    case(key=1, offset=0, shape=(20,), low=-3, high=2**31 - 1, dtype=int32),
    case(key=1, offset=0, shape=(20,), low=0, high=3 * 2**40 + 17, dtype=int64),
    case(key=1, offset=0, shape=(20,), low=-(2**63), high=2**63, dtype=int64),
    case(key=1, offset=0, shape=(20,), low=2**62, high=2**64 - 5, dtype=uint64),
    case(key=1, offset=9, shape=(), low=255, high=256, dtype=uint8),
    case(key=1, offset=0, shape=(2, 0), low=0, high=2, dtype=int64),
    *(case(key=3, offset=1, shape=(6,), low=2, high=120, dtype=as_dtype(n)) for n in ("int16", "uint16", "uint32")),
)
samples(
    "bernoulli",
    lambda key, offset, shape, p: random_bits(key, offset, shape) < round(p * 2**32),
    *(case(key=KEY, offset=3, shape=(3, 5), p=p) for p in (0.0, 0.3, 1.0)),
    case(key=1, offset=0, shape=(), p=0.5),
    case(key=1, offset=0, shape=(0,), p=0.5),
    case(key=7, offset=0, shape=(20,), p=0.5),
)
samples(
    "dropout",
    dropout,
    *(case(real(3, 5), key=KEY, offset=3, p=p) for p in (0.0, 0.3, 0.5, 1.0)),
    case(real(2, 20), key=2**128 - 1, offset=2**40 + 8, p=0.25),
    case(real(), key=1, offset=0, p=0.5),
    case(real(0, 3), key=1, offset=0, p=0.5),
    case(np.array([np.inf, -np.inf, np.nan, -0.0, 1.0, 2.0]), smooth=0, key=KEY, offset=3, p=0.5),
)
samples(
    "normal",
    normal,
    *(case(key=KEY, offset=3, shape=(3, 5), dtype=d) for d in (float16, float32, float64)),
    case(key=1, offset=0, shape=(), dtype=float32),
    case(key=1, offset=0, shape=(0, 3), dtype=float64),
)
samples(
    "permutation",
    lambda key, offset, n: np.argsort([pair(key, offset + 2 * i) >> 1 for i in range(n)], kind="stable"),
    case(key=KEY, offset=3, n=20),
    case(key=1, offset=0, n=1),
    case(key=7, offset=5, n=11),
)
samples(
    "categorical",
    categorical,
    case(real(4, 5), key=KEY, offset=3),
    case(real(2, 3, 4), key=7, offset=0),
    case(real(6), key=1, offset=2),
    case(np.array([[-np.inf, 0.0, -np.inf], [1.0, -np.inf, -np.inf]]), key=1, offset=2),
    case(real(0, 3), key=1, offset=0),
    dtypes=("float32", "float16"),
)


def gamma_case(alpha: Array, key: int, offset: int, **options: Any) -> Sample:
    """A case of gamma numbers with their derivative."""
    slopes = gamma_slope(alpha, gamma(alpha, key, offset, log=True))
    scale = 1.0 if options else gamma(alpha, key, offset)
    return case(alpha, smooth=0, gradients=(slopes * scale,), key=key, offset=offset, **options)


samples(
    "gamma",
    gamma,
    gamma_case(np.array([[0.5, 1.0, 2.5], [0.25, 10.0, 100.0]]), KEY, 3),
    gamma_case(np.array([[0.5, 1.0, 2.5], [0.125, 10.0, 100.0]]), KEY, 3, log=True),
    gamma_case(np.linspace(0.3, 3.0, 30), 7, 0),
    gamma_case(np.array(4.0), 1, 2),
    case(np.array([[0.5, 0.0], [0.0, 10.0]]), smooth=0, key=KEY, offset=3, log=True),
    case(np.array([np.nan, -1.0, 0.0]), smooth=0, key=1, offset=2),
    case(np.zeros((0, 3)), smooth=0, key=1, offset=0),
    dtypes=("float32", "float16"),
)
samples(
    "poisson",
    poisson,
    case(np.array([[0.5, 1.0, 2.5], [0.0, 10.0, 100.0]]), key=KEY, offset=3),
    case(np.linspace(9.0, 30.0, 30), key=7, offset=0),
    case(np.array(4.0), key=1, offset=2),
    case(np.array([np.nan, -1.0, np.inf, 0.0]), key=1, offset=2),
    case(np.zeros((0, 3)), key=1, offset=0),
)
