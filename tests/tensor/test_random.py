"""Random tensors: the state, its scopes, and draws."""

from __future__ import annotations

import contextvars
import copy
import json
import math
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, AxisError, BackendMismatchError, DTypeError, ShapeError
from backburn.ops.random import draws

random = bb.random
K: Any = bb.load_backend("numpy")

#: Every function with some arguments, and the number of words it reads.
DRAWS: list[tuple[Any, int]] = [
    (lambda **o: random.uniform((3, 5), **o), 15),
    (lambda **o: random.uniform(7, dtype="float64", low=-1.0, **o), 14),
    (lambda **o: random.normal((3,), **o), 4),
    (lambda **o: random.normal((2, 2), mean=3.0, std=0.5, dtype="float16", **o), 4),
    (lambda **o: random.integers((4,), 10, **o), 8),
    (lambda **o: random.bernoulli((6,), 0.3, **o), 6),
    (lambda **o: random.bernoulli(p=bb.asarray([0.5, 0.1]), **o), 2),
    (lambda **o: random.permutation(5, **o), 10),
    (lambda **o: random.permutation(bb.eye(3), axis=1, **o), 6),
    (lambda **o: random.categorical(bb.zeros((2, 3)), **o), 6),
    (lambda **o: random.choice(9, (2, 2), **o), 8),
    (lambda **o: random.choice(bb.eye(5), 2, replace=False, **o), 10),
    (lambda **o: random.choice(3, (2,), p=bb.asarray([0.5, 0.25, 0.25]), **o), 6),
    (lambda **o: random.choice(3, (2,), p=bb.asarray([0.5, 0.25, 0.25]), replace=False, **o), 3),
    (lambda **o: random.categorical(bb.zeros(3), (4,), **o), 12),
    (lambda **o: random.gamma((3,), 2.0, 0.5, **o), 51),
    (lambda **o: random.gamma(alpha=bb.asarray([0.5, 3.0], dtype="float64"), **o), 68),
    (lambda **o: random.beta((2,), 0.5, bb.asarray(3.0), **o), 68),
    (lambda **o: random.dirichlet(bb.ones((2, 3)), **o), 102),
    (lambda **o: random.student_t((3,), 4.0, **o), 55),
    (lambda **o: random.poisson((2, 1), 4.0, **o), 64),
]


@pytest.mark.parametrize(("draw", "words"), DRAWS)
def test_every_draw_depends_on_the_state_and_advances_it(draw: Any, words: int) -> None:
    g = random.Generator(11, offset=4)
    first = draw(generator=g)
    assert g.state() == {"key": 11, "offset": 4 + words}
    second = draw(generator=g)
    again = random.Generator(11, offset=4)
    for expected in (first, second):
        np.testing.assert_array_equal(draw(generator=again).numpy(), expected.numpy())
    with random.fork(random.Generator(11, offset=4)):
        np.testing.assert_array_equal(draw().numpy(), first.numpy())
    assert first.dtype.kind != "float" or not first.is_tracked


def test_functions_draw_the_backends_numbers() -> None:
    g = random.Generator(5)
    np.testing.assert_array_equal(random.normal((2, 3), generator=g).numpy(), K.normal(5, 0, (2, 3), bb.float32))
    np.testing.assert_array_equal(
        random.integers((4,), -3, 9, dtype="int8", generator=g).numpy(), K.integers(5, 6, (4,), -3, 9, bb.int8)
    )
    assert g.offset == 6 + draws("integers", (4,))


def test_seed_and_state() -> None:
    with random.fork(0):
        random.seed(3)
        first = random.normal(4).tolist()
        saved = json.loads(json.dumps(random.get_state()))
        second = random.normal(4).tolist()
        random.set_state(saved)
        assert random.normal(4).tolist() == second != first
        random.seed(3)
        assert random.normal(4).tolist() == first
        random.seed(2**128 - 1)
        assert random.default_generator().state() == {"key": 2**128 - 1, "offset": 0}
        random.seed(np.int64(3))  # type: ignore[arg-type]
        assert random.normal(4).tolist() == first


def test_generators_without_a_seed_differ() -> None:
    assert random.Generator().key != random.Generator().key


def test_fork_does_not_change_the_state_outside() -> None:
    with random.fork(9):
        before = random.get_state()
        with random.fork() as inner:
            inside = random.uniform(3).tolist()
            assert inner.offset == before["offset"] + 3
        assert random.get_state() == before
        assert random.uniform(3).tolist() == inside, "a fork begins at the current state"
        with random.fork(before):
            assert random.uniform(3).tolist() == inside
        with pytest.raises(KeyError), random.fork(1):
            raise KeyError
        assert random.default_generator().key == 9
        shared = random.Generator(2)
        with random.fork(shared) as same:
            random.uniform(3)
            assert same is shared
        assert shared.offset == 3


def test_a_fork_affects_one_context_only() -> None:
    outside = random.default_generator()
    inherits = getattr(sys.flags, "thread_inherit_context", False)  # true by default without the GIL
    with random.fork(1) as inside, ThreadPoolExecutor(1) as pool:
        assert pool.submit(random.default_generator).result() is (inside if inherits else outside)
        context = contextvars.copy_context()
        assert pool.submit(context.run, random.default_generator).result() is random.default_generator()


def test_threads_never_share_words() -> None:
    g = random.Generator(1)
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: g.take(3)[1], range(2000)))
    assert sorted(taken) == list(range(0, 6000, 3))


def test_a_seed_affects_the_process_and_a_fork_its_thread() -> None:
    state = random.get_state()

    def draw(seed: int) -> Any:
        with random.fork(seed):
            return random.get_state(), random.uniform(3).tolist()

    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(random.seed, 12).result()
            assert random.get_state() == {"key": 12, "offset": 0}
            assert pool.submit(random.uniform, 3).result().shape == (3,)
            assert random.get_state() == {"key": 12, "offset": 3}
            assert pool.submit(draw, 5).result() == draw(5)
            assert random.get_state() == {"key": 12, "offset": 3}
    finally:
        random.set_state(state)


def test_a_seed_of_another_thread_comes_before_a_draw_or_after_it() -> None:
    """A draw uses a matching key and offset: the first words of the new key, or the next ones of the old key."""
    g = random.Generator(1, offset=40)

    class Seeding:
        """A lock whose previous holder, another thread, has set a new seed."""

        def __enter__(self) -> None:
            g.key, g.offset = 2, 0

        def __exit__(self, *error: object) -> None:
            pass

    g._lock = Seeding()  # type: ignore[assignment]
    assert g.take(3) == (2, 0)


def test_spawned_generators_are_independent_and_follow_from_the_state() -> None:
    a, b = random.Generator(4), random.Generator(4)
    first, second = a.spawn(3), a.spawn(2)
    keys = [g.key for g in (*first, *second)]
    assert len({*keys, 4}) == 6
    assert [g.key for g in (*b.spawn(3), *b.spawn(2))] == keys
    assert random.uniform(4, generator=first[0]).tolist() != random.uniform(4, generator=first[1]).tolist()
    for count in (-1, 2.0, None):
        with pytest.raises(ArgumentError, match=r"^Generator.spawn: the number of generators is"):
            a.spawn(count)  # type: ignore[arg-type]
    assert a.state() == b.state()


def test_generators_are_copied_and_pickled_with_their_state() -> None:
    g = random.Generator(6, offset=10)
    for other in (pickle.loads(pickle.dumps(g)), copy.deepcopy(g)):
        assert other.state() == g.state()
        random.uniform(3, generator=other)
        assert g.offset == 10
    assert repr(g) == "Generator(6, offset=10)"


def test_dtypes_shapes_and_backends() -> None:
    assert random.uniform().shape == random.normal().shape == random.integers(high=3).shape == ()
    assert random.uniform(3).dtype is random.normal(3).dtype is bb.float32
    assert random.integers(3, 5).dtype is random.permutation(3).dtype is bb.int64
    assert random.bernoulli(3).dtype is bb.bool
    assert random.categorical(bb.zeros((4, 2))).shape == (4,)
    assert random.categorical(bb.zeros((4, 2)), 3).shape == (3, 4)
    assert random.categorical(bb.zeros((4, 2), dtype="int64"), (5, 3)).shape == (5, 3, 4)
    with bb.use_dtype("float64"):
        assert random.uniform(3).dtype is random.normal(3).dtype is bb.float64
    for where in ({"backend": "numpy"}, {"device": "numpy"}):
        for draw, _ in DRAWS[:6]:
            assert draw(**where).backend.spec == "numpy"
    assert random.permutation(bb.asarray([1, 2], backend="numpy")).backend.spec == "numpy"


def test_ranges() -> None:
    x = random.uniform((1000,), low=-2.0, high=5.0, generator=random.Generator(1)).numpy()
    assert -2.0 <= x.min() < -1.9
    assert 4.9 < x.max() <= 5.0
    y = random.normal((100_000,), mean=2.0, std=3.0, generator=random.Generator(1)).numpy()
    assert abs(y.mean() - 2.0) < 4 * 3 / math.sqrt(100_000)
    assert abs(y.std() - 3.0) < 0.04
    assert set(random.integers((1000,), 2, 5, generator=random.Generator(1)).tolist()) == {2, 3, 4}
    assert random.bernoulli((5,), 0.0).tolist() == [False] * 5
    assert random.bernoulli((5,), 1).tolist() == [True] * 5
    p = bb.asarray([[0.0], [1.0]])
    assert random.bernoulli((3, 2, 2), p).tolist() == [[[False] * 2, [True] * 2]] * 3


def test_permutation_of_a_tensor_moves_whole_entries() -> None:
    x = bb.asarray(np.arange(12.0).reshape(3, 4)).require_grad()
    y = random.permutation(x, axis=-1, generator=random.Generator(2))
    order = random.permutation(4, generator=random.Generator(2)).numpy()
    np.testing.assert_array_equal(y.numpy(), x.numpy()[:, order])
    assert y.is_tracked


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_small_probabilities_in_16_bit_floats(dtype: str) -> None:
    """Uniform numbers of these dtypes are multiples of 1/2048 or 1/256: 0 alone would come up more often than 1e-4."""
    chances = bb.full((100_000,), 1e-4, dtype=dtype)
    drawn = random.bernoulli(p=chances, generator=random.Generator(8)).numpy()
    assert 0 < drawn.sum() < 30  # 10 are expected


def test_choices_are_integers_permutations_and_categories() -> None:
    """``choice`` draws the same numbers as these functions; a tensor is indexed by them."""
    generator = lambda: random.Generator(4)
    p = bb.asarray([0.1, 0.0, 0.6, 0.3])
    numbers = random.choice(4, (2, 3), generator=generator())
    assert numbers.tolist() == random.integers((2, 3), 4, generator=generator()).tolist()
    few = random.choice(7, (2, 3), replace=False, generator=generator())
    assert few.flatten().tolist() == random.permutation(7, generator=generator()).tolist()[:6]
    weighted = random.choice(4, (5,), p=p, generator=generator())
    assert weighted.tolist() == random.categorical(bb.log(p), (5,), generator=generator()).tolist()
    x = bb.asarray(np.arange(24.0).reshape(2, 4, 3))
    for options in ({}, {"replace": False}, {"p": p}):
        shape = (3,) if "replace" in options else (3, 2)
        drawn: Any = random.choice(4, shape, generator=generator(), **options)
        entries = random.choice(x, shape, axis=1, generator=generator(), **options)
        np.testing.assert_array_equal(entries.numpy(), x.numpy()[:, drawn.numpy()])
    assert random.choice(x).shape == (4, 3)
    assert bb.grad(lambda t: random.choice(t, (1,), p=bb.asarray([0.0, 2.0])).sum())(bb.ones(2)).tolist() == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_weighted_choices_without_replacement_are_drawn_one_after_another(dtype: str) -> None:
    """The second of a pair is drawn from the rest in proportion to ``p``; an element with p = 0 is never drawn."""
    random.seed(3)
    p, count = np.array([0.5, 0.0, 0.125, 0.375]), 6000
    found = np.zeros((4, 4))
    for _ in range(count):
        first, second = random.choice(4, (2,), p=bb.asarray((2.0 * p).astype(dtype)), replace=False).tolist()
        found[first, second] += 1
    expected = p[:, None] * p / (1.0 - p[:, None])
    np.fill_diagonal(expected, 0.0)
    assert abs(found / count - expected).max() < 0.03
    assert not found[expected == 0.0].any()
    choose = bb.vmap(lambda p: random.choice(3, (2,), p=p, replace=False), randomness="different")
    rows = choose(bb.asarray([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]))
    assert [sorted(row) for row in rows.tolist()] == [[0, 2], [0, 1]]


def test_gradients_flow_through_location_and_scale() -> None:
    mean, std = bb.asarray(1.0).require_grad(), bb.asarray([2.0, 3.0]).require_grad()
    z = random.normal((4, 2), generator=random.Generator(1)).numpy()
    grads = random.normal((4, 2), mean=mean, std=std, generator=random.Generator(1)).sum().backward()
    found = mean.grad(grads), std.grad(grads)
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].item() == 8.0
    np.testing.assert_allclose(found[1].numpy(), z.sum(0), rtol=1e-5)
    low = bb.asarray(0.0).require_grad()
    u = random.uniform((3,), generator=random.Generator(1)).numpy()
    g = low.grad(random.uniform((3,), low=low, high=2.0, generator=random.Generator(1)).sum().backward())
    assert g is not None
    np.testing.assert_allclose(g.numpy(), (1 - u).sum(), rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: random.seed(-1), ArgumentError, r"seed is an integer from 0 to 2\*\*128 - 1, not -1"),
        (lambda: random.seed(2**128), ArgumentError, "seed"),
        (lambda: random.seed(1.5), ArgumentError, r"not 1\.5"),  # type: ignore[arg-type]
        (lambda: random.Generator(1, offset=-1), ArgumentError, "offset"),
        (lambda: random.Generator(1).set_state({"key": 1}), ArgumentError, "'key' and an 'offset'"),
        (lambda: random.uniform((2, -1)), ShapeError, "uniform: "),
        (lambda: random.uniform(2, dtype="int8"), DTypeError, "uniform: draws floats, not int8.*integers"),
        (lambda: random.uniform(2, low="a"), DTypeError, "uniform: .*str"),  # type: ignore[arg-type]
        (lambda: random.uniform(2, low=-3e38, high=3e38), ArgumentError, "wider than the largest number of float32"),
        (lambda: random.uniform(2, high=7e4, dtype="float16"), ArgumentError, "wider than the .* of float16"),
        (lambda: random.uniform(2, low=-bb.inf), ArgumentError, "uniform: -inf to 1.0 is wider"),
        (lambda: random.normal(2, generator=3), ArgumentError, "normal: the generator .* not int"),  # type: ignore[arg-type]
        (lambda: random.integers(2, 5, 5), ArgumentError, "integers: .*from 5 up to but excluding 5"),
        (lambda: random.integers(10), ArgumentError, r"integers: the shape comes first, then .*\(\(\), 10\) is one"),
        (lambda: random.choice([1, 2]), ArgumentError, "choice: x, unless it is a tensor, is an integer"),  # type: ignore[arg-type]
        (lambda: random.integers(2, 0, 300, dtype="uint8"), ArgumentError, "integers: .*exceeds uint8"),
        (lambda: random.integers(2, 0, 2.5), DTypeError, r"integers: the bounds are integers, not 0 and 2\.5"),  # type: ignore[arg-type]
        (lambda: random.integers(2, 3, dtype="float32"), DTypeError, "integers: draws integers, not float32"),
        (lambda: random.bernoulli(2, 1.5), ArgumentError, r"bernoulli: .*1\.5"),
        (lambda: random.bernoulli(2, math.nan), ArgumentError, "bernoulli: "),
        (lambda: random.bernoulli((3,), bb.zeros(2)), ShapeError, "bernoulli: .*3 and 2"),
        (lambda: random.permutation(-1), ShapeError, "permutation: "),
        (lambda: random.permutation(bb.zeros(()), axis=0), AxisError, "permutation: axis 0"),
        (lambda: random.choice(3, (2, 2), replace=False), ArgumentError, "choice: 4 are .* from 3, none of them twice"),
        (lambda: random.choice(0, (2,)), ArgumentError, "choice: 2 are to be drawn from 0"),
        (lambda: random.choice(3, p=bb.ones(2)), ShapeError, r"choice: p has one probability for each of 3.*\[2\]"),
        (lambda: random.choice(bb.ones(()), (2,)), AxisError, "choice: axis 0"),
        (lambda: random.choice(bb.ones(3), backend="forward(numpy)"), BackendMismatchError, "choice: entries"),
        (lambda: random.choice(3, replace=1), ArgumentError, "choice: replace"),  # type: ignore[arg-type]
        (lambda: random.categorical(bb.zeros(())), ShapeError, "categorical: there is nothing to choose from"),
        (lambda: random.categorical(bb.zeros((2, 0))), ShapeError, "categorical: "),
        (lambda: random.categorical(bb.zeros(2) > 0), DTypeError, "categorical: "),
    ],
)
def test_bad_input(call: Any, error: type[Exception], words: str) -> None:
    before = random.get_state()
    with pytest.raises(error, match=words):
        call()
    assert random.get_state()["key"] == before["key"]


def test_permutation_of_a_tensor_stays_on_its_backend() -> None:
    x = bb.asarray([1.0, 2.0, 3.0])
    for where in ({"backend": x.backend}, {"backend": "autodiff(numpy)"}, {"device": x.device}):
        assert sorted(bb.random.permutation(x, **where).tolist()) == [1.0, 2.0, 3.0]
    with pytest.raises(BackendMismatchError, match=r"permutation: .*Write permutation\(x\.to\('numpy'\)\)"):
        bb.random.permutation(x, backend="numpy")


def test_integers_refuses_bounds_in_place_of_the_shape() -> None:
    """NumPy's argument order would silently give an empty result; explicitly empty shapes still work."""
    with pytest.raises(ArgumentError, match=r"^integers: the shape comes first, .* integers\(\(\), 0, 10\) is one"):
        bb.random.integers(0, 10)
    assert bb.random.integers((0,), 10).shape == bb.random.integers(0, 0, 10).shape == (0,)
    assert bb.random.integers(3, 10).shape == (3,)


def test_a_draw_beyond_the_stream_is_refused_and_does_not_advance_the_state() -> None:
    generator = bb.random.Generator(7)
    with pytest.raises(ArgumentError, match="more than the stream of a key has"):
        bb.random.uniform((10**15, 10**15), generator=generator)
    assert generator.offset == 0
    assert bb.random.uniform((2,), generator=generator).shape == (2,)


# ---- gamma, beta, Dirichlet, Student's t and Poisson ----

WRONG: Any = "a"


def test_distributions_have_their_moments() -> None:
    n = 200_000
    with random.fork(5):
        cases: list[tuple[Any, float, float]] = [
            (random.gamma((n,), 2.5, 3.0), 7.5, 22.5),
            (random.gamma((n,), 0.25), 0.25, 0.25),
            (random.beta((n,), 0.5, 2.0), 0.2, 1.0 / 6.25 / 3.5),
            (random.student_t((n,), 6.0), 0.0, 1.5),
            (random.poisson((n,), 3.5), 3.5, 3.5),
            (random.poisson((n,), 350.0), 350.0, 350.0),
        ]
        for x, mean, variance in cases:
            assert x.shape == (n,)
            assert x.dtype is bb.float32
            assert x.mean().item() == pytest.approx(mean, abs=4.5 * math.sqrt(variance / n))
            assert x.var().item() == pytest.approx(variance, rel=0.04)
        parts = random.dirichlet(bb.asarray([0.1, 2.0, 5.9]), (n,)).numpy().astype("float64")
    np.testing.assert_allclose(parts.sum(1), 1.0, rtol=1e-5)
    p = np.array([0.1, 2.0, 5.9]) / 8.0
    np.testing.assert_allclose(parts.mean(0), p, atol=0.002)
    np.testing.assert_allclose(np.cov(parts.T), (np.diag(p) - np.outer(p, p)) / 9.0, atol=0.001)


def test_dirichlet_and_beta_numbers_of_tiny_parameters() -> None:
    """Gamma numbers with such small shapes underflow to 0; their ratios must not be NaN."""
    with random.fork(5):
        parts = random.dirichlet(bb.full((1000, 4), 1e-3))
        assert bb.all(bb.abs(bb.sum(parts, axis=1) - 1.0) < 1e-6).item()
        share = random.beta((1000,), 1e-3, 1e-3)
        assert bb.all((share >= 0.0) & (share <= 1.0)).item()
        assert 0.4 < share.mean().item() < 0.6


def test_parameters_broadcast_and_decide_dtype_and_backend() -> None:
    a, b = bb.ones((3, 1), dtype="float64", backend="numpy"), bb.ones((2,), dtype="float64", backend="numpy")
    for x, shape in (
        (random.gamma(None, a, b), (3, 2)),
        (random.gamma((4, 1, 1), a, 2.0), (4, 3, 1)),
        (random.gamma((2,), 1.0, bb.ones((3, 1), dtype="float64", backend="numpy"), dtype="float64",
                      backend="numpy"), (3, 2)),
        (random.beta(None, a, b), (3, 2)),
        (random.dirichlet(b, (5,)), (5, 2)),
        (random.student_t(2, a), (3, 2)),
        (random.poisson(2, a), (3, 2)),
    ):  # fmt: skip
        assert x.shape == shape
        assert x.dtype is bb.float64
        assert x.backend is K
        assert np.unique(x.numpy()).size > 2 or x.numpy().max() < 9.0
    assert random.gamma(3, 2.0, dtype="float16").dtype is bb.float16
    assert random.gamma().shape == ()
    with bb.use_dtype("float64"):
        assert random.poisson((2,), 3.0).dtype is bb.float64
    rows = random.gamma(None, bb.asarray([2.0, 2.0, 2.0])).tolist()
    assert len(set(rows)) == 3, "elements differ"


def test_both_parameters_of_gamma_numbers_have_a_gradient() -> None:
    alpha, scale = bb.asarray([2.0, 3.0]).require_grad(), bb.asarray([0.5, 2.0]).require_grad()
    with random.fork(1):
        x = random.gamma(None, alpha, scale)
    with random.fork(1):
        unit = random.gamma(None, alpha.detach())
    gradients = x.sum().backward()
    np.testing.assert_allclose(bb.asarray(scale.grad(gradients)).numpy(), unit.numpy())
    assert np.all(bb.asarray(alpha.grad(gradients)).numpy() > 0.0), "numbers grow with the parameter"
    assert not random.poisson(None, alpha).is_tracked


N = 20_000


@pytest.mark.parametrize(
    ("draw", "mean"),
    [
        (lambda a: random.gamma(None, bb.broadcast_to(a, (N,))), lambda a: a),
        (lambda a: random.gamma(None, bb.broadcast_to(a, (N,))) ** 2.0, lambda a: a * (a + 1.0)),
        (lambda a: random.beta(None, bb.broadcast_to(a, (N,)), 2.0), lambda a: a / (a + 2.0)),
        (lambda a: random.beta(None, 2.0, bb.broadcast_to(a, (N,))), lambda a: 2.0 / (a + 2.0)),
        (lambda a: random.dirichlet(bb.stack([a, 2.0 * a, bb.full((), 3.0)]), N)[:, 1], lambda a: 2 * a / (3 * a + 3)),
        (lambda a: abs(random.student_t(None, bb.broadcast_to(a + 4.0, (N,)))),
         lambda a: 2.0 * np.sqrt(a + 4.0) / ((a + 3.0) * special_beta((a + 4.0) / 2.0))),
    ],
    ids=["gamma", "its square", "beta", "beta, second", "dirichlet", "student_t"],
)  # fmt: skip
@pytest.mark.parametrize("a", [0.4, 3.0])
def test_the_gradient_of_a_sample_mean_is_that_of_the_distributions_mean(draw: Any, mean: Any, a: float) -> None:
    with bb.use_dtype("float64"):
        at = bb.asarray(a)

        def sampled(a: Any) -> Any:
            with random.fork(7):
                return draw(a).mean()

        first, second = bb.grad(sampled)(at).item(), bb.grad(bb.grad(sampled))(at).item()
        tangent = bb.jvp(sampled, (at,), (bb.ones(()),))[1].item()
    h = 1e-3
    low, here, high = mean(a - h), mean(a), mean(a + h)
    assert first == pytest.approx((high - low) / (2 * h), rel=0.05)
    assert tangent == pytest.approx(first, rel=1e-9)
    assert second == pytest.approx((high - 2 * here + low) / h**2, rel=0.1, abs=0.05)


def special_beta(x: float) -> float:
    """Return the beta function of ``x`` and 1/2."""
    return math.exp(math.lgamma(x) + math.lgamma(0.5) - math.lgamma(x + 0.5))


def test_distributions_inside_vmap_and_captured_steps() -> None:
    alphas = bb.asarray([[0.5, 3.0], [20.0, 0.1], [1.0, 1.0]])
    for draw in (random.gamma, random.poisson):
        with random.fork(2) as generator:
            each = bb.vmap(lambda a, draw=draw: draw(None, a), randomness="different")(alphas)
            taken = generator.offset
        with random.fork(2) as generator:
            np.testing.assert_array_equal(each.numpy(), draw(None, alphas).numpy())
            assert generator.offset == taken
        with random.fork(2):
            same = bb.vmap(lambda a, draw=draw: draw(None, a), randomness="same")(bb.ones((3, 2)) * 7.0)
        assert bb.all(same == same[0]).item()
    found = []
    for backend, wrap in (("autodiff(numpy)", lambda f: f), ("autodiff(capture(numpy))", bb.capture)):
        random.seed(4)
        state, step = bb.zeros((3,), backend=backend), wrap(lambda s, a: (s + random.gamma(None, a), None))
        for _ in range(4):
            state, _ = step(state, bb.asarray([0.5, 2.0, 9.0], backend=backend))
        found.append(state.tolist())
    assert found[0] == found[1]
    assert step.reason == ""


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: random.gamma((2,), -1.0), ArgumentError, "gamma: alpha is a number of at least 0, not -1.0"),
        (lambda: random.gamma((2,), 1.0, -1.0), ArgumentError, "gamma: scale is a number of at least 0, not -1.0"),
        (lambda: random.beta((2,), 1.0, float("nan")), ArgumentError, "beta: b is a number of at least 0, not nan"),
        (lambda: random.poisson((2,), -0.5), ArgumentError, "poisson: rate is a number of at least 0, not -0.5"),
        (lambda: random.poisson((2,), 1.0, dtype="int64"), DTypeError, "poisson: draws floats, not int64"),
        (lambda: random.gamma((2,), bb.ones(3)), ShapeError, "gamma"),
        (lambda: random.gamma((2,), WRONG), DTypeError, "gamma: takes tensors and Python numbers, not str"),
        (lambda: random.dirichlet(bb.asarray(1.0)), ShapeError, "dirichlet: alpha needs a last axis with elements"),
    ],
)
def test_bad_parameters(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize(("name", "option"), [("dirichlet", "alpha"), ("categorical", "logits")])
@pytest.mark.parametrize("shape", [(3,), 3, [3]])
def test_a_shape_before_the_parameters_is_refused(name: str, option: str, shape: Any) -> None:
    with pytest.raises(DTypeError, match=rf"^{name}: {option}, a tensor, comes first and the shape after it"):
        getattr(random, name)(shape, bb.ones(3))
