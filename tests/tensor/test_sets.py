"""Distinct elements, membership, counts and histograms, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, DTypeError, OutOfRangeError, ShapeError

NAN = np.nan
ARRAYS = [
    np.array([3, 1, 3, -2, 1]),
    np.array([[0.5, 2.0], [0.5, -1.0]]),
    np.array([NAN, 1.0, NAN, 1.0]),
    np.array([0.0, -0.0]),
    np.array([], np.int32),
    np.zeros((2, 0), np.float32),
    np.array(7),
    np.array([True, False, True]),
    np.array([255, 0, 255], np.uint8),
]


@pytest.mark.parametrize("array", ARRAYS)
def test_distinct_elements(array: Any) -> None:
    x = bb.asarray(array)
    expected = np.unique(array, return_index=True, return_inverse=True, return_counts=True, equal_nan=False)
    found = bb.unique_all(x)
    for got, wanted in zip(found, expected, strict=True):
        assert got.shape == wanted.shape
        np.testing.assert_array_equal(got.numpy(), wanted)
    assert found.values.dtype is x.dtype
    assert found.indices.dtype is found.inverse_indices.dtype is found.counts.dtype is bb.int64
    np.testing.assert_array_equal(bb.unique_values(x).numpy(), expected[0])
    np.testing.assert_array_equal(bb.unique_counts(x).counts.numpy(), expected[3])
    np.testing.assert_array_equal(bb.unique_inverse(x).inverse_indices.numpy(), expected[2])


def test_the_gradient_of_a_value_goes_to_its_first_occurrence() -> None:
    x = bb.asarray([2.0, 1.0, 2.0], backend="autodiff(numpy)").require_grad()
    gradient = x.grad((bb.unique_values(x) * bb.asarray([10.0, 1.0])).sum().backward())
    assert gradient.tolist() == [1.0, 10.0, 0.0]  # type: ignore[union-attr]


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("others", [np.array([1, 3]), np.array([[0.5, NAN]]), np.array([], np.float32), np.array(255)])
def test_membership(array: Any, others: Any) -> None:
    got = bb.isin(bb.asarray(array), bb.asarray(others))
    assert got.shape == array.shape
    assert got.dtype == "bool"
    np.testing.assert_array_equal(got.numpy(), np.isin(array, others))
    assert (bb.isin(bb.asarray(array), bb.asarray(others), invert=True) == ~got).all()


def test_membership_of_numbers() -> None:
    assert bb.isin(bb.asarray([1, 2]), 2).tolist() == [False, True]
    assert bb.isin(2, bb.asarray([1, 2])).item() is True
    assert bb.isin(bb.asarray([True, False]), bb.asarray([True])).tolist() == [True, False]


def test_counts() -> None:
    array = np.array([3, 1, 3, 0], np.uint8)
    x, weights = bb.asarray(array), np.array([0.5, 1.0, 2.0, 4.0])
    assert bb.bincount(x).tolist() == np.bincount(array).tolist()
    assert bb.bincount(x, minlength=6).tolist() == np.bincount(array, minlength=6).tolist()
    assert bb.bincount(x, weights=bb.asarray(weights)).tolist() == np.bincount(array, weights).tolist()
    assert bb.bincount(bb.asarray(array[:0]), minlength=2).tolist() == [0, 0]
    assert bb.bincount(x).dtype is bb.int64
    many = bb.asarray([100, 100, 100], dtype="int8")
    for narrow, dtype in ((many, bb.int64), (many.astype("uint8"), bb.uint64)):
        counts = bb.bincount(bb.asarray([0, 0, 0]), weights=narrow)
        assert (counts.tolist(), counts.dtype) == ([300], dtype)
        assert bb.histogram(bb.zeros(3), bins=1, weights=narrow).counts.tolist() == [300]
    w = bb.asarray(weights, backend="autodiff(numpy)").require_grad()
    total = (bb.bincount(x.to("autodiff(numpy)"), weights=w) * bb.asarray([1.0, 2.0, 3.0, 4.0], dtype="float64")).sum()
    assert w.grad(total.backward()).tolist() == [4.0, 2.0, 4.0, 1.0]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bins": 3},
        {"bins": 4, "range": (-1.0, 1.0)},
        {"bins": 3, "density": True},
        {"bins": np.array([-1.0, 0.0, 0.5, 2.0])},
        {"bins": np.array([-1.0, 0.0, 0.5, 2.0]), "density": True},
        {"bins": 2, "weights": np.arange(8.0).reshape(2, 4)},
    ],
)
def test_histograms(options: dict[str, Any]) -> None:
    array = np.array([[-1.0, 0.0, 0.5, 0.7], [2.0, 2.0, 1.5, -3.0]])
    ours = {n: bb.asarray(v) if isinstance(v, np.ndarray) else v for n, v in options.items()}
    found, expected = bb.histogram(bb.asarray(array), **ours), np.histogram(array, **options)  # type: ignore[arg-type]
    np.testing.assert_allclose(found.counts.numpy(), expected[0], rtol=1e-14)
    np.testing.assert_allclose(found.edges.numpy(), expected[1], rtol=1e-14)


def test_histograms_of_few_elements() -> None:
    assert bb.histogram(bb.asarray([2.0, 2.0]), bins=2).edges.tolist() == [1.5, 2.0, 2.5]
    assert bb.histogram(bb.asarray([], dtype="float32"), bins=2).counts.tolist() == [0, 0]
    assert bb.histogram(bb.asarray([0.5, NAN]), bins=2, range=(0, 1)).counts.tolist() == [0, 1]
    assert bb.histogram(bb.asarray([1, 2, 2]), bins=2).counts.tolist() == [1, 2]


def test_densities_of_many_elements_of_16_bits() -> None:
    x = bb.concat([bb.zeros((70_000,)), bb.ones((70_000,))]).astype("float16")
    density, edges = bb.histogram(x, bins=2, density=True)
    assert (density.tolist(), edges.tolist()) == ([1.0, 1.0], [0.0, 0.5, 1.0])
    assert density.dtype is bb.float16


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: bb.bincount(bb.asarray([1, -1])), OutOfRangeError, r"bincount: .*negative.*int64\[2\]"),
        (lambda: bb.bincount(bb.asarray([1.0])), DTypeError, "bincount: counts integers"),
        (lambda: bb.bincount(bb.asarray([[1]])), ShapeError, "bincount: takes a vector"),
        (lambda: bb.bincount(bb.asarray([1]), minlength=-1), ArgumentError, "minlength is an integer of at least 0"),
        (lambda: bb.bincount(bb.asarray([1]), weights=bb.ones(2)), ShapeError, "each element needs a weight"),
        (lambda: bb.histogram(bb.ones(2), bins=0), ArgumentError, "bins is an integer of at least 1"),
        (lambda: bb.histogram(bb.ones(2), bins=bb.asarray([2.0, 1.0])), ArgumentError, "rising order"),
        (lambda: bb.histogram(bb.ones(2), range=(2, 1)), ArgumentError, "from 2.0 to 1.0|from 2 to 1"),
        (lambda: bb.histogram(bb.ones(2), range=3), ArgumentError, "range is two numbers"),  # type: ignore[arg-type]
        (lambda: bb.histogram(bb.asarray([NAN])), ArgumentError, "cannot go from nan to nan"),
        (lambda: bb.histogram(bb.ones(2), weights=bb.ones(3)), ShapeError, "each element needs a weight"),
        (lambda: bb.unique_all([1, 2]), DTypeError, "unique_all: takes a tensor, not list"),  # type: ignore[type-var]
        (lambda: bb.isin([1], bb.asarray([1])), DTypeError, "isin: takes tensors and Python numbers, not list"),  # type: ignore[arg-type]
    ],
)
def test_errors(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
