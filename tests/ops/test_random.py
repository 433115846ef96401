"""Random numbers: words against an independent generator, layout, ranges, moments and tails."""

from __future__ import annotations

import math
import operator
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from tests.helpers.kernels import needs_kernels

from backburn.autodiff import Autodiff
from backburn.backend.registry import load_backend
from backburn.base.dtypes import bfloat16, float16, float32, float64, int8, int64, uint8, uint64
from backburn.base.errors import ArgumentError
from backburn.conformance.samples import random as references
from backburn.conformance.samples.random import pair, philox, word
from backburn.ops import random as formulas
from backburn.ops.random import draws
from backburn.ops.table import OPERATIONS

K: Any = load_backend("numpy")
MANY = 200_000


def test_philox_gives_the_published_numbers() -> None:
    """The test vectors of Random123, the authors' library."""
    ones = 2**64 - 1
    assert philox((0, 0, 0, 0), (0, 0)) == (
        0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B,
    )  # fmt: skip
    assert philox((ones, ones, ones, ones), (ones, ones)) == (
        0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0,
    )  # fmt: skip
    digits = (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89)
    assert philox(digits, (0x452821E638D01377, 0xBE5466CF34E90C6C)) == (
        0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6,
    )  # fmt: skip


@pytest.mark.parametrize("key", [0, 1, 2**64, 2**128 - 1])
@pytest.mark.parametrize("offset", [0, 1, 7, 8, 2**33 + 5, 2**63 + 5])
def test_words_are_those_of_the_stream(key: int, offset: int) -> None:
    got = K.random_bits(key, offset, (3, 5))
    assert K.dtype(got) is int64
    assert got.ravel().tolist() == [word(key, offset + i) for i in range(15)]


def test_the_stream_is_that_of_numpy() -> None:
    """Uniform numbers equal those of NumPy's generator with the same key."""
    generator = np.random.Generator(np.random.Philox(key=42))
    np.testing.assert_array_equal(K.uniform(42, 0, (40_001,), float32), generator.random(40_001, np.float32))
    generator = np.random.Generator(np.random.Philox(key=42))
    np.testing.assert_array_equal(K.uniform(42, 0, (40_001,), float64), generator.random(40_001))


DRAWS: list[tuple[str, dict[str, Any]]] = [
    ("random_bits", {}),
    *(("uniform", {"dtype": d}) for d in (float16, bfloat16, float32, float64)),
    *(("normal", {"dtype": d}) for d in (float16, float32, float64)),
    ("integers", {"low": -7, "high": 1000, "dtype": int64}),
    ("bernoulli", {"p": 0.25}),
]


def draw(name: str, offset: int, shape: tuple[int, ...], options: dict[str, Any], key: int = 11) -> Any:
    return getattr(K, name)(key, offset, shape, **options)


@pytest.mark.parametrize(("name", "options"), DRAWS)
def test_a_draw_is_a_function_of_key_and_offset(name: str, options: dict[str, Any]) -> None:
    first, again = draw(name, 5, (40, 50), options), draw(name, 5, (40, 50), options)
    np.testing.assert_array_equal(first, again)
    assert np.mean(first == draw(name, 5, (40, 50), options, key=12)) < 0.7
    assert np.mean(first == draw(name, 2**40 + 5, (40, 50), options)) < 0.7


@pytest.mark.parametrize(("name", "options"), DRAWS)
def test_a_short_draw_begins_a_long_one_of_any_shape(name: str, options: dict[str, Any]) -> None:
    long = draw(name, 3, (140_000,), options)
    for size in (0, 1, 7, 700, 16_384, 16_385, 32_769):
        np.testing.assert_array_equal(draw(name, 3, (size,), options), long[:size])
    np.testing.assert_array_equal(draw(name, 3, (350, 400), options), long.reshape(350, 400))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["gamma", "poisson", "categorical"])
def test_few_elements_get_the_numbers_of_the_first_of_many(name: str, dtype: str) -> None:
    x = np.random.default_rng(0).uniform(0.1, 20.0, (70_000, 2) if name == "categorical" else 140_000).astype(dtype)
    long = getattr(K, name)(x, 11, 3)
    for size in (1, 7, 700, 16_385):
        np.testing.assert_array_equal(getattr(K, name)(x[:size], 11, 3), long[:size])


@pytest.mark.parametrize(("name", "options"), DRAWS)
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_a_draw_reads_its_own_words_and_no_others(
    name: str, options: dict[str, Any], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default bodies read exactly the words that `draws` counts."""
    read: set[int] = set()
    bits = type(K).random_bits

    def spy(key: int, offset: int, shape: tuple[int, ...]) -> Any:
        read.update(range(offset, offset + math.prod(shape)))
        return bits(key, offset, shape)

    monkeypatch.setattr(type(K), "random_bits", staticmethod(spy))
    if name == "random_bits":
        draw(name, 100, (size,), options)
    else:
        OPERATIONS[name].body(K, 11, 100, (size,), **options)
    count = draws(name, (size,), options.get("dtype", float32))
    assert read == set(range(100, 100 + count))


def test_consecutive_draws_do_not_overlap() -> None:
    """Consecutive draws concatenate to one draw, in whole pairs for normal numbers."""
    for name, options in DRAWS:
        whole = draw(name, 0, (30,), options)
        sizes = [2, 6, 22]
        offsets = accumulate((draws(name, (n,), options.get("dtype", float32)) for n in sizes), operator.add, initial=0)
        parts = [draw(name, offset, (n,), options) for offset, n in zip(offsets, sizes, strict=False)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_draws_of_an_unknown_kind_are_refused() -> None:
    with pytest.raises(ArgumentError, match="'zeta'"):
        draws("zeta", (3,))
    assert draws("permutation", (5,)) == 10
    assert draws("categorical", (5, 3)) == 15
    assert draws("categorical", (5, 3), float64) == 30


@pytest.mark.parametrize(("dtype", "digits"), [(float16, 11), (bfloat16, 8), (float32, 24), (float64, 53)])
def test_uniform_numbers(dtype: Any, digits: int) -> None:
    x = K.uniform(3, 0, (MANY,), dtype)
    assert K.dtype(x) is dtype
    scaled = x.astype(np.float64) * 2.0**digits
    assert (scaled == np.floor(scaled)).all()
    assert (np.floor(scaled).astype(np.int64) % 2 == 1).any(), "the last digit is used"
    assert scaled.min() >= 0
    assert scaled.max() < 2.0**digits
    wide = x.astype(np.float64)
    assert abs(wide.mean() - 0.5) < 4 / math.sqrt(12 * MANY) + 2.0**-digits
    assert abs(wide.var() - 1 / 12) < 4 * math.sqrt(1 / 180 / MANY) + 2.0**-digits


def test_uniform_float64_takes_two_words() -> None:
    x = K.uniform(3, 4, (50,), float64)
    assert x.tolist() == [(pair(3, 4 + 2 * i) >> 11) / 2**53 for i in range(50)]


@pytest.mark.parametrize(("dtype", "reach"), [(float16, 4.0), (float32, 4.0), (float64, 4.0)])
def test_normal_numbers(dtype: Any, reach: float) -> None:
    """Moments, tails and independence, each within four standard errors."""
    x = K.normal(5, 0, (MANY,), dtype)
    assert K.dtype(x) is dtype
    x = x.astype(np.float64)
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(np.mean(x**power) - expected) < 4 * math.sqrt(variance / MANY), power
    for bound in (0.5, 1.0, 2.0, 3.0, reach):
        tail = math.erfc(bound / math.sqrt(2))
        assert abs(np.mean(np.abs(x) > bound) - tail) < 4 * math.sqrt(tail / MANY)
    for other in (x[1:], x[2:]):
        assert abs(np.mean(x[: other.size] * other)) < 4 / math.sqrt(MANY)
    assert abs(np.mean(x[::2] ** 2 * x[1::2] ** 2) - 1) < 4 * math.sqrt(8 / (MANY / 2))


def test_normal_numbers_stay_finite_at_the_ends_of_the_words() -> None:
    """Combine the smallest and the largest word in every position, with the default body."""
    from backburn.ops.table import OPERATIONS

    class Fixed(type(K)):  # type: ignore[misc]
        def random_bits(self, key: int, offset: int, shape: tuple[int, ...]) -> Any:
            ends = [0, 2**32 - 1]
            return np.array([[a, b, c, d] for a in ends for b in ends for c in ends for d in ends]).reshape(shape)

    for dtype, largest in ((float16, 6.67), (float32, 6.67), (float64, 8.58)):
        count = 32 if dtype is float64 else 64
        x = OPERATIONS["normal"].body(object.__new__(Fixed), 0, 0, (count,), dtype)
        assert np.isfinite(x).all()
        assert largest - 0.02 < np.abs(x).max() < largest
    fixed = object.__new__(Fixed)
    logits = np.zeros((16, 4), np.float32)
    chosen = OPERATIONS["categorical"].body(fixed, np.where(np.arange(4) == 2, logits, -np.inf), 0, 0)
    assert (chosen == 2).all()


@pytest.mark.parametrize(
    ("low", "high", "dtype"), [(0, 10, int64), (-128, 128, int8), (250, 256, uint8), (-(2**63), 2**63, int64)]
)
def test_integers(low: int, high: int, dtype: Any) -> None:
    x = K.integers(9, 0, (MANY,), low, high, dtype)
    assert K.dtype(x) is dtype
    assert low <= int(x.min()) <= int(x.max()) < high
    bins = high - low if high - low <= 256 else 10
    place = (x.astype(object) - low) * bins // (high - low)
    counts = np.bincount(place.astype(np.int64), minlength=bins)
    chance = sum((c - MANY / bins) ** 2 / (MANY / bins) for c in counts)
    assert chance < bins - 1 + 4 * math.sqrt(2 * (bins - 1))


@pytest.mark.parametrize(
    ("low", "high", "dtype"), [(3, 3, int64), (5, 2, int64), (-1, 5, uint8), (0, 257, uint8), (0, 2**64 + 1, uint64)]
)
def test_empty_and_impossible_ranges_are_refused(low: int, high: int, dtype: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{low} up to but excluding {high}"):
        K.integers(1, 0, (2,), low, high, dtype)


def test_bernoulli() -> None:
    for p in (0.0, 0.1, 0.5, 1.0):
        x = K.bernoulli(2, 0, (MANY,), p)
        assert x.dtype == np.bool_
        assert abs(x.mean() - p) <= 4 * math.sqrt(p * (1 - p) / MANY)
    for p in (-0.1, 1.1, math.nan):
        with pytest.raises(ArgumentError, match="between 0 and 1"):
            K.bernoulli(2, 0, (3,), p)


def test_permutation_contains_every_index_once() -> None:
    for n in (0, 1, 2, 1000):
        x = K.permutation(4, 0, n)
        assert x.dtype == np.int64
        np.testing.assert_array_equal(np.sort(x), np.arange(n))
    counts: dict[tuple[int, ...], int] = {}
    for i in range(6000):
        order = tuple(K.permutation(4, 6 * i, 3).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert all(abs(c - 1000) < 4 * math.sqrt(1000) for c in counts.values())


@needs_kernels
def test_permutation_breaks_ties_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    from backburn_numpy.ops import random

    keys = np.array([5, 3, 5, 3, 0, 0], np.uint64) << np.uint64(1)
    monkeypatch.setattr(random, "words", lambda key, offset, count: keys.view(np.uint32))
    assert random.permutation(K, 0, 0, 6).tolist() == [4, 5, 1, 3, 0, 2]


@needs_kernels
def test_permutation_is_the_stable_order_of_keys_that_share_their_highest_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    from backburn_numpy.ops import random

    keys = np.random.default_rng(0).integers(0, 3000, 2000).astype(np.uint64) << np.uint64(1)
    monkeypatch.setattr(random, "words", lambda key, offset, count: keys.view(np.uint32))
    np.testing.assert_array_equal(random.permutation(K, 0, 0, 2000), np.argsort(keys, kind="stable"))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_categorical_has_the_probabilities_of_softmax(dtype: str) -> None:
    logits = np.array([0.0, 1.0, -1.0, -np.inf, 2.0])
    p = np.exp(logits) / np.exp(logits).sum()
    x = K.categorical(np.broadcast_to(logits, (MANY, 5)).astype(dtype), 6, 0)
    assert x.dtype == np.int64
    counts = np.bincount(x, minlength=5)
    assert counts[3] == 0
    assert (np.abs(counts / MANY - p) <= 4 * np.sqrt(p * (1 - p) / MANY)).all()


def test_autodiff_draws_the_same_untracked() -> None:
    outer = Autodiff(K)
    x = outer.normal(1, 2, (3,), float32)
    assert not outer.is_tracked(x)
    np.testing.assert_array_equal(outer.inner(x), K.normal(1, 2, (3,), float32))
    np.testing.assert_array_equal(outer.integers(1, 2, (3,), 0, 5, int64), K.integers(1, 2, (3,), 0, 5, int64))


@pytest.mark.parametrize(("key", "offset"), [(-1, 0), (2**128, 0), (0, -1), (0, 2**64)])
def test_keys_and_offsets_out_of_range_are_refused(key: int, offset: int) -> None:
    with pytest.raises(ArgumentError, match=rf"{key}, {offset}$"):
        K.random_bits(key, offset, (3,))


# ---- gamma and Poisson numbers ----

SHAPES = np.concatenate([np.geomspace(1e-3, 1e6, 40_000), [0.0, -1.0, np.nan, np.inf]])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("name", "options"), [("gamma", {}), ("gamma", {"log": True}), ("poisson", {})], ids=["gamma", "log", "poisson"]
)
def test_gamma_and_poisson_equal_their_default_bodies(name: str, options: dict[str, Any], dtype: str) -> None:
    x = SHAPES.clip(None, 6e4 if dtype == "float16" else np.inf).astype(dtype)
    info = np.finfo(dtype)
    # Both compute in float32 at least; its errors may carry a number across a rounding boundary of float16.
    rtol, atol = (0.0, 0.0) if name == "poisson" else (max(1e-6, float(info.eps)), 4.0 * float(info.smallest_subnormal))
    near = partial(np.testing.assert_allclose, rtol=rtol, atol=atol, strict=True)
    expected = OPERATIONS[name].body(K, x, key=9, offset=5, **options)
    got = getattr(K, name)(x, key=9, offset=5, **options)
    near(got, expected)
    turned = getattr(K, name)(x.reshape(4, -1).T, key=9, offset=5, **options)
    near(turned[0], getattr(K, name)(x[::10_001], key=9, offset=5, **options))
    near(getattr(K, name)(x[:777], key=9, offset=5, **options), expected[:777])
    assert draws(name, x.shape, K.dtype(x)) == x.size * {"poisson": 32}.get(name, 34 if dtype == "float64" else 17)


def test_gamma_numbers_of_float64_use_two_words_per_candidate() -> None:
    alpha = np.array([0.05, 0.3, 0.9, 1.0, 1.7, 40.0, 1e5])
    for log in (False, True):
        expected = references.gamma(alpha, 3, 11, log, float64)
        np.testing.assert_allclose(K.gamma(alpha, key=3, offset=11, log=log), expected, rtol=1e-9)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("alpha", [0.01, 0.3, 1.0, 2.5, 70.0, 1e4])
def test_gamma_numbers_move_with_their_quantiles(alpha: float, log: bool) -> None:
    """First and second derivatives at fixed quantiles over the whole range, against 40 digits of mpmath."""
    mp = pytest.importorskip("mpmath").mp.clone()
    mp.dps = 40
    shapes = np.full(60, alpha)
    found = K.gamma(shapes, key=5, offset=0, log=True)
    some = [int(np.argmin(found)), 0, 1, int(np.argmax(found))]

    def slope(a: Any, y: Any) -> Any:
        """Return the slope of the logarithm ``y``, by differences of the smaller incomplete gamma function."""
        x, d = mp.exp(y), a * mp.mpf(10) ** -12
        low, sign = ((0, x), -1) if x < a else ((x, mp.inf), 1)
        change = mp.gammainc(a + d, *low, regularized=True) - mp.gammainc(a - d, *low, regularized=True)
        return sign * change / (2 * d) / mp.exp(a * y - x - mp.loggamma(a))

    inner = Autodiff(K)
    outer = Autodiff(inner)
    a = outer.set_require_grad(outer.from_inner(inner.set_require_grad(inner.from_inner(shapes), True)), True)
    first: Any = outer.grad(a, outer.backward(outer.gamma(a, key=5, offset=0, log=log)))
    second: Any = inner.grad(outer.inner(a), inner.backward(first))
    for i in some:
        at, y, d = mp.mpf(alpha), mp.mpf(float(found[i])), mp.mpf(alpha) * mp.mpf(10) ** -6
        here = slope(at, y)
        bend = (slope(at + d, y + d * here) - slope(at - d, y - d * here)) / (2 * d)
        if not log:
            here, bend = mp.exp(y) * here, mp.exp(y) * (bend + here**2)
        assert float(inner.inner(first)[i]) == pytest.approx(float(here), rel=1e-11, abs=1e-300)
        assert float(second[i]) == pytest.approx(float(bend), rel=1e-7, abs=1e-290)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("alpha", [0.05, 0.4, 1.0, 2.5, 60.0, 1e6])
def test_gamma_numbers_have_their_distribution(alpha: float, dtype: str) -> None:
    """Kolmogorov-Smirnov: the largest distance times sqrt(n) exceeds 1.95 for one key in a thousand."""
    torch = pytest.importorskip("torch")
    n = 100_000
    low = K.gamma(np.full(n, alpha, dtype), key=21, offset=0, log=True).astype("float64")
    chances = torch.special.gammainc(torch.tensor(alpha, dtype=torch.float64), torch.tensor(np.exp(low))).numpy()
    distance = abs(np.sort(chances) - (np.arange(n) + 0.5) / n).max()
    assert distance * math.sqrt(n) < 1.95


@pytest.mark.parametrize("rate", [0.05, 1.0, 9.99, 10.0, 35.0, 1e4, 1e9])
def test_poisson_numbers_have_their_distribution(rate: float) -> None:
    torch = pytest.importorskip("torch")
    n = 100_000
    found = np.sort(K.poisson(np.full(n, rate), key=21, offset=0))
    values = np.unique(found)
    upto = torch.special.gammaincc(torch.tensor(values + 1.0), torch.tensor(rate, dtype=torch.float64)).numpy()
    distance = abs(np.searchsorted(found, values, "right") / n - upto).max()
    assert distance * math.sqrt(n) < 1.95


def test_gamma_and_poisson_return_a_number_if_no_candidate_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(original: Any) -> Any:
        def candidate(*args: Any) -> Any:
            found, accepted = original(*args)
            return found, np.zeros_like(accepted)

        return candidate

    for name in ("gamma_candidate", "poisson_candidate"):
        monkeypatch.setattr(formulas, name, never(getattr(formulas, name)))
    for gamma, poisson in ((K.gamma, K.poisson), (partial(OPERATIONS["gamma"].body, K),
                                                   partial(OPERATIONS["poisson"].body, K))):  # fmt: skip
        assert gamma(np.array([4.0]), key=1, offset=0)[0] == pytest.approx(4.0 - 1 / 3)
        assert poisson(np.array([12.75]), key=1, offset=0)[0] == 12.0


@pytest.mark.parametrize("shape", [(3, 7), (2, 5, 3), (1, 5000), (40, 2000), (20,), (0, 3)])
def test_windows_are_ranges_of_the_whole_draw(shape: tuple[int, ...]) -> None:
    for axis, length in enumerate(shape):
        for start, stop in ((0, length), (length // 3, length), (length // 2, length // 2)):
            where = (*(slice(None) for _ in range(axis)), slice(start, stop))
            expected = K.random_bits(2**90 + 7, 2**40 + 5, shape)[where]
            for made in (K.random_window, partial(OPERATIONS["random_window"].body, K)):
                found = made(2**90 + 7, 2**40 + 5, shape, axis, start, stop)
                np.testing.assert_array_equal(found, expected, strict=True)


def test_windows_outside_of_the_draw() -> None:
    for axis, start, stop in ((2, 0, 1), (0, 2, 1), (1, 0, 5), (1, -1, 2)):
        with pytest.raises(ArgumentError, match=r"a draw of shape \[3, 4\] has no range"):
            K.random_window(0, 0, (3, 4), axis, start, stop)
