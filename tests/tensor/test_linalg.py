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


# ---- distances ----


@pytest.mark.parametrize("ord", [2.0, 1.0, 3.5, float("inf"), 0.0])
@pytest.mark.parametrize(("first", "second"), [((4, 3), (5, 3)), ((2, 30, 4), (3, 4)), ((2, 1, 4, 3), (3, 40, 3)),
                                               ((0, 3), (4, 3)), ((4, 3), (0, 3)), ((3, 0), (2, 0))])  # fmt: skip
def test_distances_are_those_of_pytorch(first: Any, second: Any, ord: float) -> None:
    torch = pytest.importorskip("torch")
    x, y = (GENERATOR.normal(size=shape) for shape in (first, second))
    expected = torch.cdist(torch.from_numpy(x), torch.from_numpy(y), p=ord).numpy()
    for method in ("auto", "products", "differences") if ord == 2.0 else ("auto", "differences"):
        got = bb.linalg.cdist(bb.asarray(x), bb.asarray(y), ord=ord, method=method)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-10, atol=1e-12)
        assert got.shape == expected.shape


@pytest.mark.parametrize("method", ["products", "differences"])
def test_gradients_of_distances(method: str) -> None:
    x, y = bb.asarray(GENERATOR.normal(size=(4, 3))), bb.asarray(GENERATOR.normal(size=(5, 3)))
    bb.check_grads(lambda x, y: (bb.linalg.cdist(x, y, method=method) ** 3.0).sum(axis=1), (x, y), order=2)
    weights = bb.asarray(np.cos(np.arange(9.0)).reshape(3, 3))
    points = bb.asarray([[1.0, 2.0], [1.0, 2.0], [4.0, 6.0]], dtype="float64")  # two are the same
    got = bb.grad(lambda t: (bb.linalg.cdist(t, t, method=method) * weights).sum())(points).numpy()
    both = weights.numpy() + weights.numpy().T
    direction = np.array([-0.6, -0.8])
    expected = [direction * both[0, 2], direction * both[1, 2], -direction * (both[0, 2] + both[1, 2])]
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_products_give_distances_far_from_the_origin_and_of_narrow_floats() -> None:
    x, y = GENERATOR.normal(size=(30, 5)), GENERATOR.normal(size=(40, 5))
    expected = np.linalg.norm(x[:, None] - y, axis=-1)
    far = [bb.asarray((z + 1000.0).astype("float32")) for z in (x, y)]
    np.testing.assert_allclose(bb.linalg.cdist(*far).numpy(), expected, atol=2e-3)
    half = [bb.asarray(z, dtype="float16") for z in (x, y)]
    assert bb.linalg.cdist(*half).dtype is bb.float16
    np.testing.assert_allclose(bb.linalg.cdist(*half).numpy(), expected, rtol=5e-3)
    rows = bb.vmap(lambda x: bb.linalg.cdist(x, bb.asarray(y)))(bb.asarray(np.stack([x, -x])))
    np.testing.assert_allclose(rows.numpy()[0], expected, rtol=1e-10)
    assert bb.linalg.cdist(bb.asarray([[1, 2]]), bb.asarray([[4, 6]])).tolist() == [[5.0]]


def test_wrong_distances() -> None:
    x: Any = bb.ones((2, 3))
    wrong: Any = "mm"
    for call, error, words in (
        (lambda: bb.linalg.cdist(x, bb.ones((2, 4))), ShapeError, "cdist: takes rows of one length"),
        (lambda: bb.linalg.cdist(x, bb.ones(3)), ShapeError, "cdist: takes rows of one length"),
        (lambda: bb.linalg.cdist(x, x, method=wrong), ArgumentError, "cdist: method is one of 'auto', 'products'"),
        (lambda: bb.linalg.cdist(x, x, ord=1.0, method="products"), ArgumentError, "cdist: products give"),
        (lambda: bb.linalg.cdist(x, x > 0), DTypeError, "cdist"),
    ):
        with pytest.raises(error, match=words):
            call()


# ---- the exponential of matrices ----


@pytest.mark.parametrize("scale", [0.0, 1e-3, 0.5, 4.0, 30.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 3e-5)])
def test_exponentials_are_those_of_pytorch(scale: float, dtype: str, tolerance: float) -> None:
    torch = pytest.importorskip("torch")
    x = scale * GENERATOR.normal(size=(2, 3, 5, 5)) / 5.0
    x[0, 0] = 0.0  # each matrix gets its own number of squarings
    expected = torch.linalg.matrix_exp(torch.from_numpy(x)).numpy()
    got = bb.linalg.matrix_exp(bb.asarray(x.astype(dtype)))
    assert str(got.dtype) == dtype
    size = abs(expected).max(axis=(-2, -1), keepdims=True)
    np.testing.assert_allclose(got.numpy() / size, expected / size, atol=tolerance * max(scale, 1.0))
    batch = bb.vmap(bb.linalg.matrix_exp)(bb.asarray(x.astype(dtype)))
    np.testing.assert_allclose(batch.numpy(), got.numpy(), rtol=1e-5)


def test_exponentials_in_closed_form() -> None:
    for angle in (0.3, 100.0, 30_000.0):
        turn = bb.asarray([[0.0, -angle], [angle, 0.0]], dtype="float64")
        c, s = np.cos(angle), np.sin(angle)
        np.testing.assert_allclose(bb.linalg.matrix_exp(turn).numpy(), [[c, -s], [s, c]], atol=1e-14 * (angle + 1.0))
    nilpotent = bb.asarray([[0.0, 2.0, 4.0], [0.0, 0.0, 6.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(bb.linalg.matrix_exp(nilpotent).numpy(), [[1, 2, 10], [0, 1, 6], [0, 0, 1]], rtol=1e-6)
    assert bb.linalg.matrix_exp(bb.zeros((2, 0, 0))).shape == (2, 0, 0)
    half = bb.linalg.matrix_exp(bb.asarray([[1.0]], dtype="float16"))
    assert half.dtype is bb.float16
    assert half.item() == pytest.approx(np.e, rel=1e-3)
    both = bb.linalg.matrix_exp(bb.asarray([[[100.0]], [[1.0]]]), max_squarings=2).tolist()
    assert both[0][0][0] == np.inf  # exp(100) overflows float32
    assert both[1][0][0] == pytest.approx(np.e)
    assert np.isnan(bb.linalg.matrix_exp(bb.asarray([[bb.nan]])).item())
    assert np.isnan(bb.linalg.matrix_exp(bb.asarray([[bb.inf]])).item())
    for bad, words in ((bb.ones((2, 3)), "must be square"), (bb.ones(3), "a matrix has two axes")):
        with pytest.raises(ShapeError, match=f"matrix_exp: .*{words}"):
            bb.linalg.matrix_exp(bad)
    with pytest.raises(ArgumentError, match="matrix_exp: max_squarings is an integer of at least 0"):
        bb.linalg.matrix_exp(bb.ones((2, 2)), max_squarings=-1)


@pytest.mark.parametrize("scale", [0.1, 3.0, 8.0])
def test_derivatives_of_exponentials(scale: float) -> None:
    torch = pytest.importorskip("torch")
    x, weights = scale * GENERATOR.normal(size=(3, 3)) / 3.0, GENERATOR.normal(size=(3, 3))
    theirs = torch.from_numpy(x).requires_grad_()
    (torch.linalg.matrix_exp(theirs) * torch.from_numpy(weights)).sum().backward()
    got = bb.grad(lambda t: (bb.linalg.matrix_exp(t) * bb.asarray(weights)).sum())(bb.asarray(x))
    np.testing.assert_allclose(got.numpy(), theirs.grad.numpy(), rtol=1e-9, atol=1e-10)
    if scale < 8.0:
        bb.check_grads(bb.linalg.matrix_exp, (bb.asarray(x),), order=2)


@pytest.mark.parametrize("backend", ["numpy", "null"])
@pytest.mark.parametrize("weight", [(3,), (2, 3, 4)])
def test_linear_refuses_a_weight_that_is_not_a_matrix(backend: str, weight: Any) -> None:
    with pytest.raises(ShapeError, match=f"linear: the weight must have two axes, .* not {len(weight)}"):
        bb.nn.functional.linear(bb.ones((2, 3), backend=backend), bb.ones(weight, backend=backend))
