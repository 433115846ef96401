"""Tensor functions: choosing between values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import DTypeError, ShapeError

MASK = np.array([[True, False, True], [False, False, True]])
NUMBERS = np.arange(6).reshape(2, 3)
ARRAYS = {"float32": NUMBERS.astype(np.float32) - 2.5, "int64": NUMBERS, "bool": ~MASK}


@pytest.mark.parametrize("dtype", ARRAYS)
def test_values_are_numpys(dtype: str) -> None:
    a = ARRAYS[dtype]
    x, mask = bb.asarray(a), bb.asarray(MASK)
    other = a[:, ::-1].copy()
    np.testing.assert_array_equal(bb.where(mask, x, bb.asarray(other)).numpy(), np.where(MASK, a, other), strict=True)
    np.testing.assert_array_equal(x.masked_fill(mask, x[0, 0]).numpy(), np.where(MASK, a[0, 0], a), strict=True)
    np.testing.assert_array_equal(x.masked_select(mask).numpy(), a[MASK], strict=True)
    np.testing.assert_array_equal(bb.masked_select(x, mask[0]).numpy(), a[:, MASK[0]].ravel(), strict=True)
    for k in (-1, 0, 1):
        np.testing.assert_array_equal(bb.triu(x, k=k).numpy(), np.triu(a, k), strict=True)
        np.testing.assert_array_equal(x.tril(k).numpy(), np.tril(a, k), strict=True)


@pytest.mark.parametrize(
    ("first", "second", "dtype"),
    [
        (bb.asarray([1, 2]), 0.5, "float32"),
        (0.5, bb.asarray([1, 2]), "float32"),
        (bb.asarray([1.0, 2.0], dtype="float16"), 1, "float16"),
        (bb.asarray([1, 2], dtype="int8"), bb.asarray([1, 2], dtype="uint8"), "int16"),
        (bb.asarray([True, False]), 3, "int64"),
        (True, bb.asarray([True, False]), "bool"),
        (1.0, 0, "float32"),
        (1, 0, "int64"),
        (True, False, "bool"),
        (True, 2, "int64"),
    ],
)
def test_where_promotes(first: Any, second: Any, dtype: str) -> None:
    got = bb.where(bb.asarray([True, False]), first, second)
    assert got.dtype is getattr(bb, dtype)
    a, b = (x.numpy() if isinstance(x, bb.Tensor) else x for x in (first, second))
    np.testing.assert_array_equal(got.astype("float64").numpy(), np.where([True, False], a, b).astype(float))


def test_where_with_numbers_alone_follows_the_default_dtype() -> None:
    with bb.use_dtype("float64"):
        assert bb.where(bb.asarray([True]), 1.0, 0.0).dtype is bb.float64


def test_gradients_go_to_the_selected_values() -> None:
    x = bb.asarray([4.0, -1.0, 0.0]).require_grad()
    safe = bb.where(x > 0, x, 1.0).sqrt()
    g = x.grad(bb.where(x > 0, safe, 0.0).sum().backward())
    assert g is not None
    assert g.tolist() == [0.25, 0.0, 0.0]
    y = bb.asarray(2.0).require_grad()
    grads = x.masked_fill(x <= 0, y).sum().backward()
    for leaf, expected in ((x, [1.0, 0.0, 0.0]), (y, 2.0)):
        found = leaf.grad(grads)
        assert found is not None
        assert found.tolist() == expected
    g = x.grad((x.masked_select(x < 1) * bb.asarray([2.0, 3.0])).sum().backward())
    assert g is not None
    assert g.tolist() == [0.0, 2.0, 3.0]


def test_a_condition_of_a_lower_level_is_lifted() -> None:
    x = bb.asarray([1.0, 2.0]).require_grad()
    inner = x.inner() > 1.5
    y = bb.where(inner, x, 0.0)
    assert y.is_tracked
    assert y.tolist() == [0.0, 2.0]


X = bb.zeros((2, 3))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: bb.where(X, X, X), DTypeError, r"where: the condition is a bool tensor, not float32\[2,3\].*x != 0"),
        (lambda: bb.where(True, X, X), DTypeError, "where: takes a tensor, not bool"),  # type: ignore[arg-type]
        (lambda: bb.where(X > 0, X, bb.zeros(2)), ShapeError, r"where: .*3 and 2.*bool\[2,3\].*float32\[2\]"),
        (lambda: bb.where(X > 0, X, "a"), DTypeError, "where: takes tensors and Python numbers, not str"),  # type: ignore[arg-type]
        (lambda: X.masked_fill(X, 0.0), DTypeError, "masked_fill: the condition is a bool tensor"),
        (lambda: X.masked_fill(bb.zeros(2) > 0, 0.0), ShapeError, "masked_fill: .*3 and 2"),
        (lambda: X.masked_select(bb.zeros((2, 3), dtype="int8")), DTypeError, "masked_select: .*int8"),
        (lambda: X.masked_select(bb.zeros(2) > 0), ShapeError, "masked_select: cannot broadcast: axis -1 is 3 and 2"),
        (lambda: bb.zeros(3).triu(), ShapeError, r"triu: a matrix has at least two dimensions.*float32\[3\]"),
        (lambda: bb.tril(bb.zeros(())), ShapeError, "tril: "),
    ],
)
def test_bad_input(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
