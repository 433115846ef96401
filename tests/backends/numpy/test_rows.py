"""Fast paths of the NumPy backend for large arrays, and values for which they do not apply."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from backburn.backend.registry import load_backend
from backburn.ops.table import OPERATIONS
from backburn_numpy import tuning

pytestmark = pytest.mark.usefixtures("way_of_computing")

BASE = load_backend("numpy")
GENERATOR = np.random.default_rng(0)
#: Sizes with several blocks in each of two threads, and a remainder; broadcast rows are not copied.
ROWS, COLUMNS = 2 * tuning.MIN_WORK_FOR_SECOND_THREAD // 300 + 7, 300


def real(*shape: int, dtype: str = "float32") -> Any:
    return GENERATOR.normal(size=shape).astype(dtype)


def body(name: str, *operands: Any, **attributes: Any) -> Any:
    """Return the result of the default body on the operands in float64."""
    wide = [o.astype(np.float64) if o.dtype.kind == "f" else o for o in operands]
    return OPERATIONS[name].body(BASE, *wide, **attributes)


@pytest.mark.parametrize("axis", [(0,), (1,), (0, 1), (1, 2), (0, 1, 2), (2,), (0, 2)])
@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_reductions(axis: tuple[int, ...], offset: float, dtype: str) -> None:
    x = (real(ROWS // 4, 4, COLUMNS) + offset).astype(dtype)
    wide = x.astype(np.float64)
    loose = 2e-3 if dtype == "float16" else 1e-5
    for keepdims in (False, True):
        mean = BASE.mean(x, axis=axis, keepdims=keepdims)
        np.testing.assert_allclose(mean, wide.mean(axis, keepdims=keepdims), rtol=loose, atol=loose)
        variance = BASE.var(x, axis=axis, keepdims=keepdims)
        np.testing.assert_allclose(variance, wide.var(axis, keepdims=keepdims), rtol=10 * loose)
        assert mean.dtype == variance.dtype == x.dtype
        logarithm = BASE.logsumexp(x, axis=axis, keepdims=keepdims)
        expected = np.log(np.exp(wide - offset).sum(axis, keepdims=keepdims)) + offset
        np.testing.assert_allclose(logarithm, expected, rtol=loose, atol=loose)
    if dtype != "float16":
        np.testing.assert_allclose(BASE.sum(x, axis=axis), wide.sum(axis), rtol=1e-5, atol=1e-2)


def test_variances_small_against_the_mean() -> None:
    x = 1000.0 + real(ROWS, COLUMNS) / 8
    for axis in ((0,), (1,), (0, 1)):
        np.testing.assert_allclose(BASE.var(x, axis=axis), x.astype(np.float64).var(axis), rtol=1e-3)
    assert not BASE.var(np.full((ROWS, COLUMNS), 3.0, np.float32), axis=(1,)).any()


def test_logsumexp_of_special_values() -> None:
    x = real(ROWS, COLUMNS)
    x[0], x[1, 5], x[2, 5], x[3] = -math.inf, math.inf, math.nan, -1e30
    for transposed in (False, True):
        got = BASE.logsumexp(np.ascontiguousarray(x.T) if transposed else x, axis=(0 if transposed else 1,))
        np.testing.assert_array_equal(got[:2], [-math.inf, math.inf])
        assert math.isnan(got[2])
        np.testing.assert_allclose(got[3], -1e30)
        np.testing.assert_allclose(got[4:], np.log(np.exp(x[4:].astype(np.float64)).sum(1)), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(70_001, 1), (40_003, 2), (30_011, 5), (521, 130), (1, 70_000), (2, 40_000)])
def test_narrow_columns(shape: tuple[int, int], dtype: str) -> None:
    """Also with a large mean, and if one column has infinities or NaN."""
    x = (real(*shape, dtype="float64") + np.array([0.0, 30.0])[np.arange(shape[1]) % 2]).astype(dtype)
    wide, last = x.astype(np.float64), x.copy()
    loose = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(BASE.var(x, axis=(0,)), wide.var(0), rtol=10 * loose, atol=loose)
    np.testing.assert_allclose(BASE.logsumexp(x, axis=(0,)), np.logaddexp.reduce(wide, axis=0), rtol=loose, atol=loose)
    for number, total in ((-math.inf, None), (math.inf, math.inf), (math.nan, math.nan)):
        last[-1, -1] = number
        found = BASE.logsumexp(last, axis=(0,))
        expected = np.logaddexp.reduce(wide[:, :-1], axis=0)
        np.testing.assert_allclose(found[:-1], expected, rtol=loose, atol=loose)
        expected = np.logaddexp.reduce(last[:-1, -1].astype(np.float64)) if total is None else total
        np.testing.assert_allclose(found[-1], expected, rtol=loose, atol=loose)
    last[:, -1] = -math.inf
    assert BASE.logsumexp(last, axis=(0,))[-1] == -math.inf
    with np.errstate(invalid="ignore"):
        assert math.isnan(BASE.var(last, axis=(0,))[-1])


@pytest.mark.parametrize("factor", [1.0, 30.0, 1e4, 1e30])
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_and_cross_entropy_of_large_logits(factor: float, axis: int) -> None:
    x = real(ROWS, COLUMNS) * np.float32(factor)
    labels = GENERATOR.integers(0, x.shape[axis], x.shape[1 - axis])
    np.testing.assert_allclose(BASE.softmax(x, axis=axis), body("softmax", x, axis=axis), rtol=2e-5, atol=1e-30)
    losses = BASE.label_cross_entropy(x, labels, axis=axis)
    np.testing.assert_allclose(losses, body("label_cross_entropy", x, labels, axis=axis), rtol=1e-5, atol=1e-5)
    grad = real(len(labels))
    got = BASE.label_cross_entropy_backward(grad, x, labels, axis=axis)
    expected = body("label_cross_entropy_backward", grad, x, labels, axis=axis)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)


def test_a_small_loss_keeps_its_digits() -> None:
    x = np.full((ROWS, 300), -2.0, np.float32)
    x[:, 7] = 15.0
    labels = np.full(ROWS, 7)
    expected = math.log1p(299 * math.exp(-17.0))
    for logits, axis in ((x, 1), (x.T, 0)):
        # Without kernels the exponentials are summed in float32, in an order that depends on the processor.
        np.testing.assert_allclose(BASE.label_cross_entropy(logits, labels, axis=axis), expected, rtol=3e-2)
        found = BASE.label_cross_entropy(logits.astype(np.float64), labels, axis=axis)
        np.testing.assert_allclose(found, expected, rtol=1e-9 if axis else 1e-8)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_cross_entropy_of_images(dtype: str) -> None:
    """The class axis need not be last; the loss of a certain pixel is 0, and not -0."""
    x = real(3, 5, 20, 30, dtype=dtype)
    x[0, 2] = 2000.0
    labels, grad = GENERATOR.integers(0, 5, (3, 20, 30)), real(3, 20, 30, dtype=dtype)
    labels[0] = 2
    last, tolerance = np.moveaxis(x, 1, -1), 1e-3 if dtype == "float16" else 1e-5
    losses = BASE.label_cross_entropy(x, labels, axis=1)
    np.testing.assert_allclose(losses, BASE.label_cross_entropy(last, labels, axis=3), rtol=tolerance, strict=True)
    assert not losses[0].any()
    assert not np.signbit(losses).any()
    got = BASE.label_cross_entropy_backward(grad, x, labels, axis=1)
    expected = BASE.label_cross_entropy_backward(grad, last, labels, axis=3)
    np.testing.assert_allclose(np.moveaxis(got, 1, -1), expected, rtol=tolerance, atol=tolerance, strict=True)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_norms_of_rows_with_a_large_mean(offset: float, dtype: str) -> None:
    grad, scale, bias = real(ROWS, COLUMNS, dtype=dtype), real(COLUMNS, dtype=dtype), real(COLUMNS, dtype=dtype)
    x = (real(ROWS, COLUMNS) + offset).astype(dtype)
    x[3], x[4] = 7.0, 0.0
    got = BASE.layer_norm(x, scale, bias, axis=(1,))
    np.testing.assert_allclose(got, body("layer_norm", x, scale, bias, axis=(1,)), rtol=1e-4, atol=1e-3)
    of_x, of_scale = BASE.layer_norm_backward(grad, x, scale, axis=(1,), eps=1e-5)
    rest = np.arange(ROWS) > 4  # constant rows divide by almost 0
    expected = body("layer_norm_backward", grad, x, scale, axis=(1,), eps=1e-5)
    np.testing.assert_allclose(of_x[rest], expected[0][rest], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(of_scale, expected[1], rtol=1e-3, atol=2e-2)


def test_the_slope_of_gelu_for_large_values() -> None:
    x = real(ROWS, COLUMNS)
    x[0, :8] = 8.9, -8.9, 9.1, -9.1, 3e38, -3e38, math.inf, -math.inf
    got = BASE.gelu_backward(np.ones_like(x), x, "tanh")
    np.testing.assert_allclose(got[0, :8], [1, 0, 1, 0, 1, 0, 1, 0], atol=1e-6)
    np.testing.assert_allclose(got[1:], body("gelu_backward", np.ones_like(x), x, approximate="tanh")[1:], atol=2e-6)


def test_large_operands_broadcast() -> None:
    x, row, column = real(ROWS, COLUMNS), real(COLUMNS), real(ROWS, 1)
    for other in (row, column, row[None], real(1, 1)):
        np.testing.assert_array_equal(BASE.add(x, other), x + other)
        np.testing.assert_array_equal(BASE.mul(other, x), x * other)


def test_softmax_of_long_rows_keeps_its_digits() -> None:
    x = np.random.default_rng(0).normal(scale=5.0, size=(1, 1_000_000)).astype(np.float32)
    exact = x - np.log(np.exp(x.astype(np.float64)).sum())
    np.testing.assert_allclose(BASE.log_softmax(x, axis=1), exact, atol=6e-6)
    np.testing.assert_allclose(BASE.softmax(x, axis=1), np.exp(exact), rtol=3e-6)
    loss = BASE.cross_entropy(x, np.zeros(1, np.int64), axis=1, reduction="none")
    np.testing.assert_allclose(loss, -exact[:, 0], rtol=1e-6)


def test_long_rows() -> None:
    x, grad, scale = real(5, 250_000), real(5, 250_000), real(250_000)
    np.testing.assert_allclose(BASE.softmax(x, axis=1), body("softmax", x, axis=1), rtol=1e-4)
    np.testing.assert_allclose(
        BASE.layer_norm(x, scale, axis=(1,)), body("layer_norm", x, scale, axis=(1,)), rtol=1e-3, atol=1e-3
    )
    got, expected = (f(grad, x, scale, axis=(1,), eps=1e-5) for f in (BASE.layer_norm_backward, _norm_backward))
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-3, atol=1e-3)


def _norm_backward(*operands: Any, **attributes: Any) -> Any:
    return body("layer_norm_backward", *operands, **attributes)
