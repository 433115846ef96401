"""Edge cases of dtypes: rounding, exponentials of large matrices, parameters of distributions, bool indices."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError

INF, NAN = math.inf, math.nan


# ---- bfloat16 ----


def nearest_bfloat16(x: float) -> float:
    """Return ``x`` rounded to 8 significant bits, ties to even."""
    _, exponent = math.frexp(abs(x))
    unit = Fraction(2) ** (exponent - 8)
    return math.copysign(float(round(Fraction(abs(x)) / unit) * unit), x)


def test_float64_is_rounded_to_bfloat16_once() -> None:
    generator = np.random.default_rng(3)
    ties = (np.round(generator.uniform(128, 256, 200)) + 0.5) / 256 * 2.0 ** generator.integers(-20, 20, 200)
    values = np.concatenate([ties * (1 + k * 2.0**-45) for k in (-1, 0, 1)] + [generator.normal(size=200)])
    values *= generator.choice([-1.0, 1.0], values.shape)
    expected = [nearest_bfloat16(v) for v in values]
    assert bb.asarray(values).astype("bfloat16").tolist() == expected
    assert bb.asarray(values, dtype="bfloat16").tolist() == expected
    assert bb.asarray(values.tolist(), dtype="bfloat16").tolist() == expected
    assert [bb.full((), v, dtype="bfloat16").item() for v in values[::7]] == expected[::7]
    whole = [257 * 2**30 + 1, 257 * 2**30, 2**24 + 2**16 + 1, -(257 * 2**40) - 1]
    assert bb.asarray(whole).astype("bfloat16").tolist() == [nearest_bfloat16(float(n)) for n in whole]
    special = bb.asarray(np.array([INF, -INF, NAN, 3.4e38, -0.0, 1e-320])).astype("bfloat16").tolist()
    assert special[:2] + special[3:] == [INF, -INF, INF, 0.0, 0.0]
    assert math.isnan(special[2])


# ---- the matrix exponential ----


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([[-1e6, 0.0], [0.0, -2e6]], [[0.0, 0.0], [0.0, 0.0]]),
        ([[0.0, 1e200], [0.0, 0.0]], [[1.0, 1e200], [0.0, 1.0]]),
        ([[-1e308, 1e308], [0.0, -1e308]], [[0.0, 0.0], [0.0, 0.0]]),
        ([[-5e5, 4e5], [1e5, -3e5]], [[0.0, 0.0], [0.0, 0.0]]),
        ([[-1e7, 1e7], [1e7, -1e7]], [[0.5, 0.5], [0.5, 0.5]]),
        ([[0.0, -1e6], [1e6, 0.0]], [[math.cos(1e6), -math.sin(1e6)], [math.sin(1e6), math.cos(1e6)]]),
        ([[0.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]),
    ],
)
def test_exponentials_of_large_matrices(x: list[list[float]], expected: list[list[float]]) -> None:
    found = bb.linalg.matrix_exp(bb.asarray(np.array(x)))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-8, atol=1e-8)
    both = bb.linalg.matrix_exp(bb.asarray(np.array([x, np.eye(2)])))
    np.testing.assert_allclose(both[0].numpy(), expected, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(both[1].numpy(), np.eye(2) * math.e, rtol=1e-13)


def test_the_gradient_of_the_exponential_of_a_large_matrix() -> None:
    """Rows and columns of this Markov generator sum to 0, so only the sum of a perturbation counts."""
    x = bb.asarray(np.array([[-1e7, 1e7], [1e7, -1e7]]))
    gradient = bb.grad(lambda x: bb.linalg.matrix_exp(x).sum())(x)
    np.testing.assert_allclose(gradient.numpy(), np.ones((2, 2)), rtol=1e-6)


def test_exponentials_of_matrices_that_are_not_finite_are_nan() -> None:
    for bad in (INF, NAN, -INF):
        assert np.isnan(bb.linalg.matrix_exp(bb.asarray([[bad, 0.0], [0.0, 1.0]])).numpy()).all()


# ---- random numbers ----

LOGITS = {"NaN": [0.0, NAN], "inf": [0.0, INF], "nothing": [-INF, -INF]}


@pytest.mark.parametrize("why", LOGITS)
def test_logits_without_probabilities(why: str) -> None:
    logits = bb.asarray(LOGITS[why])
    rows = bb.stack([bb.zeros(2), logits])
    for call in (
        lambda: bb.random.categorical(logits),
        lambda: bb.random.categorical(logits, (3,)),
        lambda: bb.random.categorical(rows),
        lambda: bb.vmap(bb.random.categorical, randomness="different")(rows),
    ):
        with pytest.raises(ArgumentError, match="a logit is NaN or infinite, or all of a row"):
            call()


def test_a_recorded_step_refuses_logits_without_probabilities() -> None:
    step = bb.capture(bb.random.categorical, state=False)
    good, bad = (bb.asarray(v, backend="capture(numpy)") for v in ([0.0, -INF], [NAN, 0.0]))
    for _ in range(3):
        assert step(good).item() == 0
    with pytest.raises(ArgumentError, match="a logit is NaN or infinite"):
        step(bad)


WEIGHTS = {"negative": [0.5, -0.5, 1.0], "NaN": [0.5, NAN, 1.0], "infinite": [0.5, INF, 1.0], "zero": [0.0, 0.0, 0.0]}


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("why", WEIGHTS)
def test_weights_that_are_not_probabilities(why: str, replace: bool) -> None:
    with pytest.raises(ArgumentError, match="choice: "):
        bb.random.choice(3, (2,), p=bb.asarray(WEIGHTS[why]), replace=replace)


def test_too_few_weights_above_zero() -> None:
    p = bb.asarray([0.0, 0.0, 1.0])
    with pytest.raises(ArgumentError, match="choice: fewer elements of p are above 0 than 2 different ones"):
        bb.random.choice(3, (2,), p=p, replace=False)
    assert bb.random.choice(3, (1,), p=p, replace=False).tolist() == [2]
    assert bb.random.choice(3, (0,), p=p, replace=False).tolist() == []


def test_parameters_given_as_tensors_are_checked_like_numbers() -> None:
    def tensor(*values: float) -> Any:
        return bb.asarray(list(values))

    random = bb.random
    for call in (
        lambda: random.bernoulli(p=tensor(0.5, 1.5)),
        lambda: random.bernoulli(p=tensor(-0.1)),
        lambda: random.bernoulli(p=tensor(NAN)),
        lambda: random.uniform((2,), low=tensor(1.0, 0.0), high=tensor(0.0, 1.0)),
        lambda: random.uniform((2,), low=tensor(1.0, 0.0), high=0.5),
        lambda: random.normal((2,), std=tensor(-1.0, 1.0)),
        lambda: random.gamma(alpha=tensor(-1.0)),
        lambda: random.gamma((1,), 1.0, tensor(-1.0)),
        lambda: random.beta(a=tensor(-1.0)),
        lambda: random.dirichlet(tensor(-1.0, 1.0)),
        lambda: random.student_t(df=tensor(-1.0)),
        lambda: random.poisson(rate=tensor(-1.0)),
    ):
        with pytest.raises(ArgumentError):
            call()


@pytest.mark.parametrize(("dtype", "tiny"), [("float32", 1e-40), ("bfloat16", 1e-40), ("float64", 5e-324)])
def test_shares_for_parameters_below_the_smallest_floats(dtype: str, tiny: float) -> None:
    """One share is 1 and the others 0; the ratios of the parameters decide which."""
    bb.random.seed(0)
    x = bb.random.beta((4000,), tiny, tiny, dtype=dtype).astype("float64").numpy()
    assert set(x.tolist()) == {0.0, 1.0}
    assert abs(x.mean() - 0.5) < 0.04
    shares = bb.random.dirichlet(bb.full((3,), tiny, dtype=dtype), (500,)).astype("float64").numpy()
    assert set(shares.reshape(-1).tolist()) == {0.0, 1.0}
    assert (shares.sum(1) == 1.0).all()


# ---- single bools among indices ----

PARTS: list[Any] = [True, False, None, ..., 0, slice(1, None), [0, 1], np.array([True, False]), np.True_]


@pytest.mark.parametrize("length", [2, 3])
def test_single_bools_among_indices(length: int) -> None:
    array = np.random.default_rng(0).normal(size=(2, 3, 4))
    x, tried = bb.asarray(array), 0
    for chosen in itertools.product(range(len(PARTS)), repeat=length):
        key = tuple(PARTS[i] for i in chosen)
        if sum(part is ... for part in key) > 1:
            continue
        if not any(isinstance(part, (bool, np.bool_)) for part in key):
            continue
        try:
            expected = array[key]
        except IndexError:
            with pytest.raises((IndexError, ValueError)):
                x[key]
            continue
        tried += 1
        np.testing.assert_array_equal(x[key].numpy(), expected)
        written = array.copy()
        written[key] = 7.0
        np.testing.assert_array_equal(x.at[key].set(7.0).numpy(), written)
    assert tried > 40


def test_gradients_through_single_bools() -> None:
    x = bb.asarray([[1.0, 2.0], [3.0, 4.0]])
    assert x[True, ...].shape == (1, 2, 2)
    assert bb.grad(lambda x: (x[True, ..., 0] * bb.asarray([[1.0, 2.0]])).sum())(x).tolist() == [[1.0, 0.0], [2.0, 0.0]]
