"""Large arrays, which the NumPy backend computes in blocks and threads, compared with the default bodies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backburn.backend.registry import load_backend
from backburn.ops.table import OPERATIONS
from backburn_numpy import NumpyBackend, tuning

pytestmark = pytest.mark.usefixtures("way_of_computing")

BASE = load_backend("numpy")
GENERATOR = np.random.default_rng(0)
#: Sizes with several blocks in each of two threads, and a remainder.
ROWS, COLUMNS = 2 * tuning.MIN_WORK_FOR_SECOND_THREAD // 300 + 7, 300


def real(*shape: int, dtype: str = "float32") -> Any:
    return GENERATOR.normal(size=shape).astype(dtype)


def check(name: str, *operands: Any, rtol: float = 2e-5, atol: float = 2e-5, **attributes: Any) -> None:
    """Compare the backend's result with that of the default body, computed in float64 for float operands."""
    got = getattr(BASE, name)(*operands, **attributes)
    wide = [o.astype(np.float64) if isinstance(o, np.ndarray) and o.dtype.kind == "f" else o for o in operands]
    expected = OPERATIONS[name].body(BASE, *wide, **attributes)
    for mine, theirs in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, expected)), strict=True):
        assert mine.dtype == next(o.dtype for o in operands if isinstance(o, np.ndarray) and o.dtype.kind == "f")
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine.astype(np.float64), theirs, rtol=rtol, atol=atol)


TOLERANCE: dict[str, dict[str, float]] = {"float32": {}, "float64": {}, "float16": {"rtol": 2e-3, "atol": 2e-3}}


@pytest.mark.parametrize("name", ["sigmoid", "log_sigmoid", "softplus", "silu", "gelu"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_activations(name: str, dtype: str) -> None:
    check(name, real(ROWS, COLUMNS, dtype=dtype), **TOLERANCE[dtype])


def test_gradients_of_activations() -> None:
    grad, x = real(ROWS, COLUMNS), real(ROWS, COLUMNS)
    check("silu_backward", grad, x)
    for slope in (0.01, 1.0, 0.0, -0.5, 3.0):
        check("leaky_relu", x, slope=slope)
    check("relu_backward", grad, BASE.relu(x))
    check("sigmoid_backward", grad, BASE.sigmoid(x))
    check("tanh_backward", grad, BASE.tanh(x))
    check("gelu_backward", grad, x, approximate="none")
    check("gelu_backward", grad.T, x.T, approximate="tanh")
    check("gelu", x, approximate="tanh")


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_softmax(name: str, axis: int, dtype: str) -> None:
    x = real(ROWS // 4, 4, COLUMNS, dtype=dtype)
    check(name, x, axis=axis, **TOLERANCE[dtype])
    y = getattr(BASE, name)(x, axis=axis)
    check(f"{name}_backward", x, y, axis=axis, **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_norms(dtype: str) -> None:
    x, grad = real(ROWS, 4, COLUMNS // 4, dtype=dtype), real(ROWS, 4, COLUMNS // 4, dtype=dtype)
    last, two, first = (real(*s, dtype=dtype) for s in ((75,), (4, 75), (4, 1)))
    # The error of a sum over all rows grows with their number.
    sums = {"rtol": 1e-3, "atol": 1e-3 * ROWS} if dtype == "float16" else {"rtol": 1e-4, "atol": 2e-3}
    for scale, axis in ((last, (2,)), (two, (1, 2)), (first, (0, 2))):
        check("layer_norm", x, scale, scale, axis=axis, eps=1e-5, **TOLERANCE[dtype])
        check("rms_norm", x, scale, axis=axis, eps=1e-5, **TOLERANCE[dtype])
        check("layer_norm_backward", grad, x, scale, axis=axis, eps=1e-5, **sums)
        check("rms_norm_backward", grad, x, scale, axis=axis, eps=1e-5, **sums)


def test_repeated_calls_are_bitwise_equal() -> None:
    grad, x, scale = real(ROWS, COLUMNS), real(ROWS, COLUMNS), real(COLUMNS)
    first = BASE.layer_norm_backward(grad, x, scale, axis=(1,), eps=1e-5)
    for _ in range(3):
        for mine, theirs in zip(first, BASE.layer_norm_backward(grad, x, scale, axis=(1,), eps=1e-5), strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("axis", [0, 1])
def test_cross_entropy(axis: int) -> None:
    x = real(ROWS, COLUMNS)
    labels = GENERATOR.integers(0, x.shape[axis], x.shape[1 - axis])
    check("label_cross_entropy", x, labels, axis=axis)
    check("label_cross_entropy_backward", real(len(labels)), x, labels, axis=axis)


def test_take_and_index_updates() -> None:
    x = real(50, 7, COLUMNS)
    indices = GENERATOR.integers(-7, 7, 60)
    np.testing.assert_array_equal(BASE.take(x, indices, axis=1), np.take(x, indices, 1))
    with pytest.raises(IndexError):
        BASE.take(x, np.full(60, 7), axis=1)
    values = real(50, 60, COLUMNS)
    check("index_add", x, indices, values, axis=1, rtol=1e-4, atol=1e-4)
    check("take_backward", values, indices, length=7, axis=1, rtol=1e-4, atol=1e-4)
    check("index_copy", x, np.arange(7), real(50, 7, COLUMNS), axis=1)


def test_products() -> None:
    x, y, bias = real(3, 200, 64), real(64, 700), real(700)
    np.testing.assert_allclose(BASE.matmul(x, y), x.astype(np.float64) @ y, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(BASE.linear(x, y.T.copy(), bias), x.astype(np.float64) @ y + bias, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        BASE.matmul(x[:, None], x.transpose(0, 2, 1)), x[:, None].astype(np.float64) @ x.transpose(0, 2, 1), 1e-3, 1e-4
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int8, np.int64])
@pytest.mark.parametrize("rows", [0, 3, 700])
def test_products_of_columns_and_rows(dtype: Any, rows: int) -> None:
    """Without a sum, products equal NumPy's exactly in every layout."""
    column, row = ((real(*shape) * 9).astype(dtype) for shape in ((rows, 1), (1, 600)))
    np.testing.assert_array_equal(BASE.matmul(column, row), column * row, strict=True)
    np.testing.assert_array_equal(BASE.matmul(column[::-1], row), column[::-1] * row, strict=True)
    stack, one = (real(2, 5, rows, 1) * 9).astype(dtype), (real(5, 600, 1) * 9).astype(dtype).swapaxes(1, 2)
    np.testing.assert_array_equal(BASE.matmul(stack, one), stack * one, strict=True)
    np.testing.assert_array_equal(BASE.matmul(stack, row), stack * row, strict=True)
    np.testing.assert_array_equal(BASE.matmul(np.ones(1, dtype), row), row[0], strict=True)
    for x, y in ((column, row[:0]), (stack, one[:3]), (column, row[0])):
        with pytest.raises(ValueError, match=r"shape|dimension"):
            BASE.matmul(x, y)


@pytest.mark.parametrize("name", ["equal", "less", "less_equal"])
def test_large_comparisons_return_bools(name: str) -> None:
    x = np.ones((512, 512))
    for other in (0.5, x):
        assert getattr(NumpyBackend(), name)(x, other).dtype == np.bool_


@pytest.mark.parametrize("reverse", [False, True])
def test_scans(reverse: bool) -> None:
    shape = (tuning.MIN_WORK_FOR_SECOND_THREAD // 600 + 5, 20, 30)
    a = GENERATOR.uniform(-0.9, 0.9, shape).astype(np.float32)
    grad, b, x, h0 = real(*shape), real(*shape), real(*shape), real(20, 30)
    out = BASE.ssm_scan(a, b, x, h0, 0, reverse)
    check("ssm_scan", a, b, x, h0, axis=0, reverse=reverse)
    check("ssm_scan_backward", grad, a, b, x, out, h0, axis=0, reverse=reverse, rtol=1e-4, atol=1e-4)
    check("ssm_scan", a[:50], b[:50, :1], x[:50], None, axis=0, reverse=reverse)
    check("ssm_scan_backward", grad[:, :5], a[:, :1], b[:, :5], x[0, 0], out[:, :5], axis=1, reverse=reverse)


@pytest.mark.parametrize("length", [5, 5000])
@pytest.mark.parametrize("width", [3, 64])
def test_rows_of_repeated_indices_are_added(length: int, width: int) -> None:
    indices = GENERATOR.integers(-length, length, 700)
    grad, x = real(700, width), real(length, width)
    expected = x.astype(np.float64)
    np.add.at(expected, indices, grad.astype(np.float64))
    np.testing.assert_allclose(BASE.index_add(x, indices, grad, 0), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(BASE.index_add(x.T, indices, grad.T, 1), expected.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(BASE.take_backward(grad, indices, length, 0), expected - x, rtol=1e-4, atol=1e-4)
    counts = np.bincount(indices % length, minlength=length)[:, None]
    np.testing.assert_allclose(BASE.index_add(x, indices, 0.5, 0), x + 0.5 * counts, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("nesterov", [False, True])
def test_gradient_descent(momentum: float, decay: float, nesterov: bool) -> None:
    shape = (tuning.MIN_ELEMENTS_FOR_SECOND_THREAD // 300 + 7, 300)
    attributes = {"lr": 0.1, "momentum": momentum, "weight_decay": decay, "nesterov": nesterov and momentum > 0}
    check("sgd_step", real(*shape), real(*shape), real(*shape) if momentum else None, **attributes)
