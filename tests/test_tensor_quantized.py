"""Tensor functions on quantized tensors: schemes, shapes, what they print, pickles and places."""

from __future__ import annotations

import pickle

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

X = bb.asarray(np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32))
SCHEMES = [
    "qint8", "qint4_symmetric_block4_float16", "quint8_affine_channel0_float32", "qint4_affine_channel-1_float32",
]  # fmt: skip


def made(name: str) -> bb.QuantizedTensor:
    return X.quantize(dtype=bb.qint8 if name == "qint8" else name)


@pytest.mark.parametrize("name", SCHEMES)
def test_what_stays_quantized(name: str) -> None:
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


def test_what_is_visible() -> None:
    q = X.quantize(dtype="qint4_symmetric_block8_float16")
    assert q.nbytes == 24 + 12
    assert "qint4_symmetric_block8_float16" in repr(q)
    assert "nbytes=36" in repr(q)
    assert q.error(X) == pytest.approx(np.abs(q.numpy() - X.numpy()).max())
    assert "..." in repr(bb.ones((100, 100)).quantize())
    assert bb.zeros((0, 3)).quantize().error(bb.zeros((0, 3))) == 0.0


def test_what_is_refused() -> None:
    q = X.quantize()
    with pytest.raises(AxisError, match=r"quantize: qint8_symmetric_channel2_float32 .*axis 2.*float32\[6,8\]"):
        X.quantize(dtype="qint8_symmetric_channel2_float32")
    for x, y in ((q, q), (q, X.T), (X.T, q)):
        with pytest.raises(DTypeError, match="quantized_matmul: .*float.*int32"):
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


def test_what_is_being_differentiated_is_not_rounded_without_a_word() -> None:
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
