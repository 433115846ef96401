"""Layer norm, RMS norm and batch norm: the CUDA kernels, run on the CPU, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.emulation.emulated import EmulatedRunner
from tests.backends.cupy.emulation.operands import NUMPY, check, operand

from backburn_cupy.kernels import normalization, reduce

EPS = 1e-5


@pytest.mark.parametrize("count", [1, 3, 70])
@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 256, 1000, 1024])
def test_rows(on: EmulatedRunner, dtype: str, length: int, count: int) -> None:
    _check_rows(on, dtype, count, length)


@pytest.mark.parametrize("length", [6000, 8193, 16390])
def test_long_rows(on: EmulatedRunner, dtype: str, length: int) -> None:
    _check_rows(on, dtype, 2, length)


def _check_rows(on: EmulatedRunner, dtype: str, count: int, length: int) -> None:
    x, grad = operand((count, length), dtype), operand((count, length), dtype, 1)
    scale, bias = operand((length,), dtype, 2), operand((length,), dtype, 3)
    check(normalization.layer_norm(on, x, scale, bias, (1,), EPS), NUMPY.layer_norm(x, scale, bias, (1,), EPS), 4)
    check(normalization.rms_norm(on, x, scale, (1,), EPS), NUMPY.rms_norm(x, scale, (1,), EPS), 4)
    for name in ("layer_norm_backward", "rms_norm_backward"):
        actual = getattr(normalization, name)(on, grad, x, scale, (1,), EPS)
        check(actual, getattr(NUMPY, name)(grad, x, scale, (1,), EPS), 16, least=1)


def test_several_axes_absent_parameters_and_strides(on: EmulatedRunner, dtype: str) -> None:
    x = operand((6, 5, 8), dtype)[::2, :, ::-1]
    scale = operand((1, 5, 8), dtype, 1)
    check(normalization.layer_norm(on, x, None, None, (1, 2), 0.5), NUMPY.layer_norm(x, None, None, (1, 2), 0.5), 4)
    check(normalization.layer_norm(on, x, scale, None, (1, 2), 0.5), NUMPY.layer_norm(x, scale, None, (1, 2), 0.5), 4)
    check(normalization.layer_norm(on, x, None, scale, (1, 2), 0.5), NUMPY.layer_norm(x, None, scale, (1, 2), 0.5), 4)
    actual = normalization.layer_norm_backward(on, x, x, scale, (1, 2), 0.5)
    check(actual, NUMPY.layer_norm_backward(x, x, scale, (1, 2), 0.5), 16, least=1)


def test_scales_that_broadcast(on: EmulatedRunner, dtype: str) -> None:
    if dtype not in ("float32", "float64"):
        pytest.skip("16-bit results would be rounded before scaling")
    x, grad = operand((3, 2, 4, 5), dtype), operand((3, 2, 4, 5), dtype, 1)
    for shape in ((2, 4, 1), (4, 1), (5,), (1, 1, 1, 1), (3, 1, 1, 5), ()):
        for axis in ((2, 3), (1, 2, 3), (3,)):
            scale, bias = operand(shape, dtype, 2), operand(shape, dtype, 3)
            actual = normalization.layer_norm(on, x, scale, bias, axis, EPS)
            check(actual, NUMPY.layer_norm(x, scale, bias, axis, EPS), 4)
            check(normalization.rms_norm(on, x, scale, axis, EPS), NUMPY.rms_norm(x, scale, axis, EPS), 4)
            for name in ("layer_norm_backward", "rms_norm_backward"):
                actual = getattr(normalization, name)(on, grad, x, scale, axis, EPS)
                check(actual, getattr(NUMPY, name)(grad, x, scale, axis, EPS), 16, least=1)


@pytest.mark.parametrize("offset", [1, 3])
def test_rows_that_are_not_aligned(on: EmulatedRunner, dtype: str, offset: int) -> None:
    x, grad, scale = (operand(s, dtype, i, offset + i) for i, s in enumerate([(5, 40), (5, 40), (40,)]))
    check(normalization.layer_norm(on, x, scale, scale, (1,), EPS), NUMPY.layer_norm(x, scale, scale, (1,), EPS), 4)
    actual = normalization.layer_norm_backward(on, grad, x, scale, (1,), EPS)
    check(actual, NUMPY.layer_norm_backward(grad, x, scale, (1,), EPS), 16, least=1)


def test_nan_and_infinity(on: EmulatedRunner, dtype: str) -> None:
    x = operand((4, 40), dtype)
    x[0, 3], x[1, 2], x[2, :] = np.nan, np.inf, 7
    check(normalization.layer_norm(on, x, None, None, (1,), EPS), NUMPY.layer_norm(x, None, None, (1,), EPS), 4)
    check(normalization.rms_norm(on, x, None, (1,), EPS), NUMPY.rms_norm(x, None, (1,), EPS), 4)


def test_unsupported_operands_are_not_implemented(on: EmulatedRunner, dtype: str) -> None:
    x = operand((3, 4, 5), dtype)
    assert normalization.layer_norm(on, x, None, None, (0,), EPS) is NotImplemented
    if x.dtype.itemsize == 2:
        assert normalization.layer_norm(on, x, operand((5,), dtype), None, (1, 2), EPS) is NotImplemented
        assert normalization.rms_norm_backward(on, x, x, operand((4, 1), dtype), (1, 2), EPS) is NotImplemented
    assert normalization.batch_norm_training(on, x, operand((3,), dtype), None, 1, EPS) is NotImplemented
    check(normalization.layer_norm(on, x[:0], None, None, (2,), EPS), x[:0])


SHAPES = [(2, 3, 5, 7), (4, 5), (33, 17), (3, 2, 49), (1, 4, 1000), (70, 1), (150, 300), (6, 3, 8, 8), (40, 3, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_norm(on: EmulatedRunner, dtype: str, shape: tuple[int, ...]) -> None:
    _check_batch(on, operand(shape, dtype), operand(shape, dtype, 1), 1)


@pytest.mark.parametrize("axis", [0, 2])
def test_batch_norm_of_other_axes(on: EmulatedRunner, dtype: str, axis: int) -> None:
    _check_batch(on, operand((4, 6, 10), dtype)[:, ::2], operand((4, 3, 10), dtype, 1), axis)


def _check_batch(on: EmulatedRunner, x: Any, grad: Any, axis: int) -> None:
    channels = x.shape[axis]
    scale, bias = (operand((channels,), x.dtype.name, seed) for seed in (2, 3))
    actual = normalization.batch_norm_training(on, x, scale, bias, axis, EPS)
    check(actual, NUMPY.batch_norm_training(x, scale, bias, axis, EPS), 16)
    actual = normalization.batch_norm(on, x, bias, abs(scale), scale, bias, axis, EPS)
    check(actual, NUMPY.batch_norm(x, bias, abs(scale), scale, bias, axis, EPS), 16)
    check(normalization.batch_norm(on, x, bias, abs(scale), None, None, axis, EPS),
          NUMPY.batch_norm(x, bias, abs(scale), None, None, axis, EPS), 16)  # fmt: skip
    others = tuple(i for i in range(x.ndim) if i != axis)
    shaped = scale.reshape(tuple(channels if i == axis else 1 for i in range(x.ndim)))
    actual = normalization.layer_norm_backward(on, grad, x, shaped, others, EPS)
    assert "finish_products" in " ".join(on.launched)
    check(actual, NUMPY.layer_norm_backward(grad, x, shaped, others, EPS), 32, least=1)


def test_batch_norm_with_a_large_mean(on: EmulatedRunner, dtype: str) -> None:
    """Sums of squares would cancel; sums of differences from one of a channel's elements do not."""
    x = operand((300, 2), dtype) + operand((1,), dtype).dtype.type(500 if dtype != "bfloat16" else 8)
    actual = normalization.batch_norm_training(on, x, None, None, 1, EPS)
    check(actual, NUMPY.batch_norm_training(x, None, None, 1, EPS), 64)


def test_batch_norm_of_nan_and_infinity(on: EmulatedRunner, dtype: str) -> None:
    x = operand((50, 4, 3), dtype)
    x[3, 0, 1], x[0, 1, 0], x[45, 2, 0] = np.nan, np.inf, -np.inf
    for layout in (x, np.ascontiguousarray(x[:, :, 0])):
        actual = normalization.batch_norm_training(on, layout, None, None, 1, EPS)
        check(actual, NUMPY.batch_norm_training(layout, None, None, 1, EPS), 32)


@pytest.mark.parametrize("shape", [(140, 97), (8, 6, 300), (3, 5, 31, 67), (2, 4000), (2000, 1), (1, 3, 6000)])
def test_sums_of_all_axes_but_one(
    on: EmulatedRunner, dtype: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(normalization, "MANY", 1)
    x = operand(shape, dtype)
    for kept in range(1, len(shape)):
        axis = tuple(i for i in range(len(shape)) if i != kept)
        for keepdims in (False, True):
            expected = x.astype(np.float64).sum(axis, keepdims=keepdims).astype(x.dtype)
            check(reduce.sum(on, x, axis, keepdims), expected, 16)
    assert on.launched


@pytest.mark.parametrize("shape", [(1,), (33,), (128,), (5, 7), (1024,), (3, 1025), (2, 8192)])
def test_sums_and_means_of_small_arrays(on: EmulatedRunner, dtype: str, shape: tuple[int, ...]) -> None:
    x, axis = operand(shape, dtype), tuple(range(len(shape)))
    for keepdims in (False, True):
        wide = x.astype(np.float64)
        check(reduce.sum(on, x, axis, keepdims), np.asarray(wide.sum(axis, keepdims=keepdims)).astype(x.dtype), 16)
        check(reduce.mean(on, x, axis, keepdims), np.asarray(wide.mean(axis, keepdims=keepdims)).astype(x.dtype), 16)
    x[-1] = np.nan
    assert np.isnan(reduce.mean(on, x, axis).astype(np.float64))
    assert len(on.launched) == 5


def test_sums_that_cupy_computes(on: EmulatedRunner, dtype: str) -> None:
    x = operand((300, 300), dtype)
    for given, axis in (
        *((x, (1,)), (x, (0, 1)), (x, ()), (x.T, (0,)), (x[:5], (0,)), (x[0], ())),
        *((np.ones((300, 300), np.int64), (0,)), (x.reshape(2, 150, 300), (0,))),
    ):
        assert reduce.sum(on, given, axis) is NotImplemented
        assert reduce.mean(on, given, axis) is NotImplemented
    assert not on.launched
