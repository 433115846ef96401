"""Tensor functions: products of matrices and vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, AxisError, DTypeError, ShapeError

GENERATOR = np.random.default_rng(0)


def real(*shape: int) -> Any:
    return GENERATOR.normal(size=shape).astype(np.float32)


SHAPES = [((2, 3), (3, 4)), ((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((2, 1, 2, 3), (4, 3, 2)), ((0, 3), (3, 2))]


@pytest.mark.parametrize(("first", "second"), SHAPES)
def test_matmul_is_numpys(first: Any, second: Any) -> None:
    x, y = real(*first), real(*second)
    got = bb.matmul(bb.asarray(x), bb.asarray(y))
    np.testing.assert_allclose(got.numpy(), x @ y, rtol=1e-5, atol=1e-6)
    for other in (bb.asarray(x) @ bb.asarray(y), bb.asarray(x).matmul(bb.asarray(y))):
        np.testing.assert_array_equal(other.numpy(), got.numpy())


def test_matmul_promotes_and_keeps_integers() -> None:
    x = bb.asarray([[1, 2], [3, 4]])
    assert (x @ x).dtype is bb.int64
    assert (x @ bb.asarray([1.0, 0.5])).dtype is bb.float32
    assert (x @ bb.asarray([1, 2], dtype="int8")).tolist() == [5, 11]


def test_gradients_of_matmul() -> None:
    x, y = bb.asarray(real(2, 3)).require_grad(), bb.asarray(real(3, 4)).require_grad()
    gradients = bb.matmul(x, y).backward()
    np.testing.assert_allclose(x.grad(gradients).numpy(), np.ones((2, 4)) @ y.numpy().T, rtol=1e-5)
    np.testing.assert_allclose(y.grad(gradients).numpy(), x.numpy().T @ np.ones((2, 4)), rtol=1e-5)


def test_what_matmul_refuses() -> None:
    with pytest.raises(
        ShapeError, match=r"matmul: the inner dimensions differ: axis -1 is 3 and axis -2 is 2.*float32\[2,3\]"
    ):
        bb.matmul(bb.asarray(real(2, 3)), bb.asarray(real(2, 3)))
    with pytest.raises(ShapeError, match=r"matmul: .*write x \* y for a scalar"):
        bb.matmul(bb.asarray(1.0), bb.asarray([1.0]))
    with pytest.raises(ShapeError, match=r"matmul: .*write x \* y for a scalar"):
        _ = bb.asarray([1.0]) @ 2.0  # type: ignore[operator]
    with pytest.raises(DTypeError, match=r"matmul: takes float and int tensors, not bool"):
        bb.matmul(bb.asarray([True]), bb.asarray([True]))


def test_transposes() -> None:
    x = real(2, 3, 4)
    np.testing.assert_array_equal(bb.matrix_transpose(bb.asarray(x)).numpy(), np.swapaxes(x, 1, 2))
    np.testing.assert_array_equal(bb.asarray(x).mT.numpy(), np.swapaxes(x, 1, 2))
    np.testing.assert_array_equal(bb.asarray(x[0]).T.numpy(), x[0].T)
    with pytest.raises(ShapeError, match=r"T: only a matrix .*x\.mT.*float32\[2,3,4\]"):
        _ = bb.asarray(x).T
    with pytest.raises(ShapeError, match="matrix_transpose: a matrix has two axes"):
        _ = bb.asarray([1.0]).mT


def test_vecdot() -> None:
    x, y = real(2, 3, 4), real(4)
    np.testing.assert_allclose(bb.vecdot(bb.asarray(x), bb.asarray(y)).numpy(), (x * y).sum(-1), rtol=1e-5)
    other = real(3, 1)
    got = bb.vecdot(bb.asarray(x), bb.asarray(other), axis=-2)
    np.testing.assert_allclose(got.numpy(), (x * other).sum(-2), rtol=1e-5, atol=1e-6)
    assert bb.vecdot(bb.asarray([1, 2], dtype="int8"), bb.asarray([3, 4], dtype="int8")).dtype is bb.int8
    with pytest.raises(ShapeError, match="vecdot: axis -1 is 4 and 1"):
        bb.vecdot(bb.asarray(x), bb.asarray(other))
    for axis in (0, -3):
        with pytest.raises(AxisError, match=f"vecdot: axis {axis} "):
            bb.vecdot(bb.asarray(x), bb.asarray(real(3, 4)), axis=axis)


@pytest.mark.parametrize("axes", [0, 1, 2, ([0], [1]), ([0, 2], [2, 0]), ((-1,), (-3,)), ([], [])])
def test_tensordot_is_numpys(axes: Any) -> None:
    x, y = real(2, 3, 4), real(4, 2, 2) if axes != 2 else real(3, 4, 2)
    got = bb.tensordot(bb.asarray(x), bb.asarray(y), axes=axes)
    expected = np.tensordot(x, y, axes=axes)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_what_tensordot_refuses() -> None:
    x = bb.asarray(real(2, 3))
    with pytest.raises(ShapeError, match="tensordot: the paired axes"):
        bb.tensordot(x, x, axes=1)
    with pytest.raises(AxisError, match="tensordot: axis 2 is out of range"):
        bb.tensordot(x, x, axes=([2], [0]))
    with pytest.raises(AxisError, match="tensordot: there are no 3 axes"):
        bb.tensordot(x, x, axes=3)
    for axes in (([0, 1], [0]), ([0, 0], [0, 0]), "ab", None):
        with pytest.raises(ArgumentError, match="tensordot"):
            bb.tensordot(x, x, axes=axes)  # type: ignore[arg-type]
