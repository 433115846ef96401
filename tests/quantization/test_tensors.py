"""Tensor functions on quantized tensors: schemes, shapes, printing, pickles and backends."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import (
    ArgumentError,
    AxisError,
    DTypeError,
    NotDifferentiableError,
    NumericalInstabilityError,
    ShapeError,
)
from backburn.nn import functional
from backburn.ops import quantized_products
from backburn.tensor.core import dispatch

X = bb.asarray(np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32))
SCHEMES = [
    "qint8", "qint2_affine_block4_float16",
    "qint4_symmetric_block4_float16", "quint8_affine_channel0_float32", "qint4_affine_channel-1_float32",
]  # fmt: skip


def made(name: str) -> bb.QuantizedTensor:
    return X.quantize(dtype=bb.qint8 if name == "qint8" else name)


@pytest.mark.parametrize("name", SCHEMES)
def test_slices_and_joins_stay_quantized(name: str) -> None:
    q = made(name)
    plain = q.numpy()
    for got, expected in (
        (q[2:5], plain[2:5]),
        (q[1], plain[1]),
        (q[:, 4:], plain[:, 4:]),
        (q[None], plain[None]),
        (q.flip(axis=0), plain[::-1]),
        (q.take(bb.asarray([3, 0]), axis=0), plain[[3, 0]]),
        (bb.concat([q, q]), np.concatenate([plain, plain])),
        (q.reshape(1, 6, 8), plain[None]),
    ):
        assert type(got) is bb.QuantizedTensor
        np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.parametrize("name", SCHEMES)
def test_copies_are_exact(name: str) -> None:
    q = made(name)
    for again in (pickle.loads(pickle.dumps(q)), q.to("numpy").to(q.backend), q.inner()):
        assert again.dtype is q.dtype
        np.testing.assert_array_equal(again.numpy(), q.numpy())


def test_size_repr_and_error() -> None:
    q = X.quantize(dtype="qint4_symmetric_block8_float16")
    assert q.nbytes == 24 + 12
    assert "qint4_symmetric_block8_float16" in repr(q)
    assert "nbytes=36" in repr(q)
    assert q.error(X) == pytest.approx(np.abs(q.numpy() - X.numpy()).max())
    assert "..." in repr(bb.ones((100, 100)).quantize())
    assert bb.zeros((0, 3)).quantize().error(bb.zeros((0, 3))) == 0.0


def test_unsupported_uses_are_refused() -> None:
    q = X.quantize()
    with pytest.raises(AxisError, match=r"quantize: qint8_symmetric_channel2_float32 .*axis 2.*float32\[6,8\]"):
        X.quantize(dtype="qint8_symmetric_channel2_float32")
    for x, y in ((q, q), (q, X.T), (X.T, q)):
        with pytest.raises(DTypeError, match=r"quantized_matmul: .*float.*int32"):
            bb.quantized_matmul(x, y, dtype="int32")
    with pytest.raises(ArgumentError, match=r"concat: .*\[6, 8\], \[6, 8\].*different steps"):
        bb.concat([q, (X * 2).quantize()])
    with pytest.raises(ShapeError, match=r"quantize: .*qint8_symmetric_block2_float32"):
        bb.asarray(1.0).quantize(dtype="qint8_symmetric_block2_float32")
    with pytest.raises(ShapeError, match=r"reshape: .*qint8_symmetric_channel0_float32.*dequantize"):
        X.quantize(dtype="qint8_symmetric_channel0_float32").reshape(48)
    for bad in (lambda: q[q.dequantize() > 0], lambda: q[[0, 1], [1, 2]], lambda: q.at[0].set(1.0)):
        with pytest.raises(DTypeError, match="dequantize"):
            bad()


def test_a_given_range() -> None:
    x = bb.asarray([[-4.0, 0.4, 3.0], [1.0, 2.0, 9.0]])
    q = x.quantize(low=-2.0, high=bb.asarray(2.0), dtype="qint8_symmetric_tensor_float32")
    np.testing.assert_allclose(q.numpy(), np.clip(x.numpy(), -2, 2), atol=1 / 127)
    name = "quint8_affine_channel0_float32"
    by_row = x.quantize(dtype=name, low=bb.asarray([-4.0, 0.0]), high=bb.asarray([3.0, 9.0]))
    np.testing.assert_array_equal(by_row.numpy(), x.quantize(dtype=name).numpy())
    leaf = x.require_grad()
    y = bb.fake_quantize(leaf, low=-2.0, high=2.0)
    np.testing.assert_array_equal(np.asarray(leaf.grad(y.sum().backward())), [[0, 1, 0], [1, 1, 0]])
    again = leaf.quantize(low=-2.0, high=2.0, straight_through=True)
    np.testing.assert_array_equal(again.detach().numpy(), y.detach().numpy())
    for options, error, words in (
        ({"low": 1.0}, ArgumentError, "give both"),
        ({"low": 2.0, "high": -2.0}, ArgumentError, r"above.*qint8_symmetric_tensor_float32.*\[2, 3\]"),
        ({"low": bb.zeros(2), "high": bb.ones(2)}, ShapeError, r"quantize.*float32\[2,3\]"),
        ({"low": -1.0, "high": leaf.sum()}, NotDifferentiableError, "no gradient"),
        ({"low": "a", "high": 1.0}, ArgumentError, "number"),
        ({"low": -1.0, "high": float("nan")}, NumericalInstabilityError, r"\[2, 3\].*qint8_symmetric_tensor_float32"),
    ):
        with pytest.raises(error, match=words):
            x.quantize(**options)


def test_tracked_tensors_are_not_silently_quantized() -> None:
    leaf = X.require_grad()
    for bad in (lambda: leaf.quantize(), lambda: bb.grad(lambda x: x.quantize().dequantize().sum())(X)):
        with pytest.raises(NotDifferentiableError, match=r"quantize: x, float32\[6,8\].*detach"):
            bad()
    with pytest.raises(NotDifferentiableError, match="tangent"):
        bb.jvp(lambda x: x.quantize().dequantize(), (X,), (X,))
    with bb.no_grad():
        np.testing.assert_array_equal(leaf.quantize().numpy(), X.quantize().numpy())
        q = leaf.quantize(low=-1.0, high=leaf.max())
    assert q.dequantize().max().item() == pytest.approx(X.max().item())


@pytest.mark.parametrize("name", SCHEMES)
def test_the_error_is_computed_in_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_products, "BLOCK", 9)
    q = made(name)
    largest = np.abs(q.dequantize(dtype="float64").numpy() - X.numpy()).max()
    assert q.error(X) == largest
    assert q.error(X.require_grad()) == q.error(X)
    row = X[0].quantize(dtype="qint4_symmetric_block3_float32")
    assert row.error(X[0]) == pytest.approx(np.abs(row.numpy() - X[0].numpy()).max())
    assert bb.asarray(3.0).quantize().error(bb.asarray(3.5)) == pytest.approx(0.5)
    assert np.isnan(q.error(bb.where(X[1, 2] == X, float("nan"), X)))
    for other in (X[:1], X[0], X[0, 0]):
        with pytest.raises(ShapeError, match=r"error: .*\[6,8\]"):
            q.error(other)


@pytest.mark.parametrize("name", [*SCHEMES, "qint4_affine_block4_float16", "qint4_affine_block4x4_float16"])
def test_a_product_never_expands_a_quantized_matrix(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q = made(name)
    plain = q.numpy()
    rows = bb.asarray(np.random.default_rng(1).standard_normal((2, 3, 6)).astype(np.float32))
    leaf, columns = rows.require_grad(), X.require_grad()
    expected = rows.numpy() @ plain
    monkeypatch.setattr(dispatch, "dequantize_operand", None)
    for x, y in ((rows, expected), (rows[1], expected[1]), (rows[0, 0], expected[0, 0]), (rows[:0], expected[:0])):
        np.testing.assert_allclose((x @ q).numpy(), y, atol=1e-5)
        np.testing.assert_allclose(bb.matmul(x, q).numpy(), y, atol=1e-5)
    np.testing.assert_allclose(
        np.asarray(leaf.grad((leaf @ q).sum().backward())), np.ones((2, 3, 8)) @ plain.T, atol=1e-5
    )
    assert (rows.astype("float16") @ q).dtype == "float16"
    np.testing.assert_allclose(bb.vmap(lambda x: x @ q)(rows).numpy(), expected, atol=1e-5)
    _, pushed = bb.jvp(lambda x: x @ q, (rows,), (rows,))
    np.testing.assert_allclose(pushed.numpy(), expected, atol=1e-5)
    np.testing.assert_allclose((columns @ q.T).detach().numpy(), X.numpy() @ plain.T, atol=1e-5)
    y, column = bb.asarray(plain.T.copy()), bb.asarray(plain[:, :3]).require_grad()
    np.testing.assert_allclose((q @ y[:, :2]).numpy(), plain @ plain.T[:, :2], atol=1e-5)
    assert (q @ y.astype("float16")).dtype == "float16"
    np.testing.assert_allclose(
        np.asarray(column.grad((q.T @ column).sum().backward())), plain @ np.ones((8, 3)), atol=1e-5
    )
    with pytest.raises(ShapeError, match=r"matmul: .*\[6,8\].*float32\[3,6\]"):
        q @ rows[0]
    with pytest.raises(ShapeError, match=r"matmul: .*float32\[2,3,6\].*\[4,8\]"):
        rows @ made(name)[:4]


def test_products_that_dequantize_the_matrix() -> None:
    q = made("qint8")
    stack, whole = bb.ones((1, 8, 2)).quantize(), bb.ones((3, 6), dtype=int)
    for x, y in ((q, X.T[None]), (X[None], stack), (q, q.T), (q, X[0]), (X, q[0]), (whole, q)):
        np.testing.assert_allclose((x @ y).numpy(), x.numpy() @ y.numpy(), atol=1e-5)
    with pytest.raises(ShapeError, match="matmul"):
        bb.asarray(1.0) @ q


def test_functions_that_take_every_kind() -> None:
    q = made("qint8")
    for got, expected in zip(bb.nonzero(q), np.nonzero(q.numpy()), strict=True):
        np.testing.assert_array_equal(got.numpy(), expected)
    targets = bb.softmax(X, axis=1).quantize()
    for x in (X, q):
        np.testing.assert_array_equal(
            functional.cross_entropy(x, targets).numpy(),
            functional.cross_entropy(x.dequantize() if x is q else x, targets.dequantize()).numpy(),
        )
    for other in (X, X.astype("float16"), bb.ones(8, dtype=int), 1.0, 2, made(SCHEMES[1])):
        assert bb.result_type(q, other) == bb.result_type(other, q) == (q + other).dtype
    assert bb.result_type(q, q) is q.dtype
    assert bb.result_type(q, X, bb.float64) == "float64"
    with bb.use_dtype("float64"):
        assert bb.result_type(q, 1) == (q + 1).dtype == "float64"


@pytest.mark.parametrize("backend", ["autodiff(numpy)", "autodiff(numpy(quantized=propagate))"])
@pytest.mark.parametrize("name", SCHEMES)
def test_moves_of_whole_steps_stay_quantized(name: str, backend: str) -> None:
    q: Any = made(name).to(backend)
    plain = q.numpy()
    last = "channel1" in q.dtype.name or q.dtype.granularity == "tensor"  # axis 1 can be cut anywhere
    both = [q, q]
    stays: list[tuple[object, object]] = [
        (bb.stack(both), np.stack([plain, plain])), (bb.tile(q, (3, 2)), np.tile(plain, (3, 2))),
        (bb.tile(q, (2, 1, 1)), plain[None].repeat(2, 0)), (bb.tile(q, (0, 1)), plain[:0]),
        (bb.repeat(q, 2, axis=0), plain.repeat(2, 0)), (bb.repeat(q, [0, 1, 2, 0, 1, 1], axis=0),
         plain.repeat([0, 1, 2, 0, 1, 1], 0)), (bb.roll(q, 4, axis=1), np.roll(plain, 4, 1)),
        (bb.roll(q, (2, -4), axis=(0, 1)), np.roll(plain, (2, -4), (0, 1))),
        (bb.split(q, 4)[1], plain[4:]), (bb.split(q, [4, 4], axis=1)[1], plain[:, 4:]),
        (bb.chunk(q, 3)[2], plain[4:]), (bb.unstack(q)[5], plain[5]),
    ]  # fmt: skip
    if q.dtype.block is None:
        stays += [(bb.stack(both, axis=-1), np.stack([plain, plain], -1)), (bb.unstack(q, axis=1)[3], plain[:, 3])]
    if last:
        stays += [(bb.roll(q, 3, axis=1), np.roll(plain, 3, 1)), (bb.repeat(q, 2, axis=1), plain.repeat(2, 1)),
                  (bb.split(q, 3, axis=1)[1], plain[:, 3:6])]  # fmt: skip
    for got, expected in stays:
        assert type(got) is bb.QuantizedTensor
        np.testing.assert_array_equal(got.numpy(), expected, strict=True)
    if q.dtype.block is not None and "propagate" not in backend:
        for got, expected in (
            (bb.roll(q, 3, axis=1), np.roll(plain, 3, 1)), (bb.repeat(q, 2, axis=1), plain.repeat(2, 1)),
            (bb.split(q, 3, axis=1)[1], plain[:, 3:6]), (bb.unstack(q, axis=1)[3], plain[:, 3]),
            (bb.repeat(q, 2), plain.repeat(2)),
        ):  # fmt: skip
            assert got.dtype == "float32"
            np.testing.assert_array_equal(got.numpy(), expected, strict=True)


def test_stacking_tensors_with_different_steps() -> None:
    q, other = made("qint8"), (X * 3).quantize()
    expected = np.stack([q.numpy(), other.numpy()])
    assert bb.stack([q, other]).dtype == "float32"
    np.testing.assert_array_equal(bb.stack([q, other]).numpy(), expected)
    np.testing.assert_array_equal(bb.stack([q, other.dequantize()]).numpy(), expected)
    a, b = (x.to("autodiff(numpy(quantized=propagate))") for x in (made("qint4_affine_channel-1_float32"), other))
    channels = bb.stack([a, b], axis=1)
    assert channels.dtype == "qint4_affine_tensor_float32"  # the channel axes do not match an axis of the result
    for bad in (lambda: bb.stack([q, q], axis=4), lambda: bb.split(q, 3, axis=2), lambda: bb.roll(q, 1, axis=5)):
        with pytest.raises(AxisError, match="out of range"):
            bad()
    with pytest.raises(ShapeError, match="stack"):
        bb.stack([q, q[:2]])
