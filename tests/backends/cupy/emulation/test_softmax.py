"""Softmax and cross entropy: the CUDA kernels, run on the CPU, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.cupy.emulation.emulated import EmulatedRunner
from tests.backends.cupy.emulation.operands import NUMPY, check, operand

from backburn.base.errors import ShapeError
from backburn_cupy.kernels import softmax

LENGTHS = (1, 2, 31, 32, 33, 256, 1000, 1024, 8192, 9001)


# ---- softmax ----


@pytest.mark.parametrize("length", LENGTHS)
def test_softmax(on: EmulatedRunner, dtype: str, length: int) -> None:
    x, grad = operand((3, length), dtype), operand((3, length), dtype, 1)
    y, z = NUMPY.softmax(x, 1), NUMPY.log_softmax(x, 1)
    check(softmax.softmax(on, x, 1), y)
    check(softmax.log_softmax(on, x, 1), z)
    check(softmax.softmax_backward(on, grad, y, 1), NUMPY.softmax_backward(grad, y, 1), 4)
    check(softmax.log_softmax_backward(on, grad, z, 1), NUMPY.log_softmax_backward(grad, z, 1), 4)


@pytest.mark.parametrize("count", [1, 16, 17, 70])
@pytest.mark.parametrize("length", [5, 200, 700])
def test_softmax_of_many_rows(on: EmulatedRunner, dtype: str, count: int, length: int) -> None:
    x = operand((count, length), dtype)
    check(softmax.softmax(on, x, 1), NUMPY.softmax(x, 1))


@pytest.mark.parametrize(("count", "length"), [(17, 700), (2, 17000)])
def test_gradients_and_logarithms_of_many_and_of_long_rows(
    on: EmulatedRunner, dtype: str, count: int, length: int
) -> None:
    x, grad = operand((count, length), dtype), operand((count, length), dtype, 1)
    y, z = NUMPY.softmax(x, 1), NUMPY.log_softmax(x, 1)
    check(softmax.log_softmax(on, x, 1), z)
    check(softmax.softmax_backward(on, grad, y, 1), NUMPY.softmax_backward(grad, y, 1), 8)
    check(softmax.log_softmax_backward(on, grad, z, 1), NUMPY.log_softmax_backward(grad, z, 1), 8)


@pytest.mark.parametrize("offset", [1, 3])
@pytest.mark.parametrize("length", [4, 37, 1024])
def test_operands_that_are_not_aligned(on: EmulatedRunner, dtype: str, offset: int, length: int) -> None:
    grad, y = operand((2, length), dtype, 0, offset), NUMPY.softmax(operand((2, length), dtype, 1), 1)
    check(softmax.softmax(on, grad, 1), NUMPY.softmax(grad, 1))
    check(softmax.softmax_backward(on, grad, y, 1), NUMPY.softmax_backward(grad, y, 1), 4)


def test_softmax_along_other_axes_and_of_strided_operands(on: EmulatedRunner, dtype: str) -> None:
    x = operand((5, 6, 14), dtype)[::2, :, ::-2]
    for axis in range(3):
        check(softmax.softmax(on, x, axis), NUMPY.softmax(x, axis))
        check(softmax.log_softmax(on, x, axis), NUMPY.log_softmax(x, axis))


def test_softmax_of_empty_arrays(on: EmulatedRunner, dtype: str) -> None:
    for shape in ((0, 5), (5, 0), (0, 0)):
        check(softmax.softmax(on, operand(shape, dtype), 1), NUMPY.softmax(operand(shape, dtype), 1))


@pytest.mark.parametrize("length", [6, 300, 9001, 17000])
def test_softmax_of_nan_and_infinity(on: EmulatedRunner, dtype: str, length: int) -> None:
    x = operand((6, length), dtype)
    x[0, 3], x[1, 2], x[2, :], x[3, 1] = np.nan, np.inf, -np.inf, -np.inf
    x[4, :] = np.inf
    x[5, 4], x[5, 5] = np.inf, np.nan
    check(softmax.softmax(on, x, 1), NUMPY.softmax(x, 1))
    check(softmax.log_softmax(on, x, 1), NUMPY.log_softmax(x, 1), 4)
    labels = np.zeros(6, np.int64)
    check(softmax.label_cross_entropy(on, x, labels, 1), NUMPY.label_cross_entropy(x, labels, 1), 4)


def test_rows_that_rise_and_fall(on: EmulatedRunner, dtype: str) -> None:
    """The largest element seen by a thread changes at each step, or never."""
    for length in (9000, 17001):
        rising = np.linspace(-90, 90, length)
        x = np.stack([rising, -rising, np.where(np.arange(length) == 4000, 60, -60)]).astype(operand((1,), dtype).dtype)
        check(softmax.softmax(on, x, 1), NUMPY.softmax(x, 1), 4)
        check(softmax.log_softmax(on, x, 1), NUMPY.log_softmax(x, 1), 4)


@pytest.mark.parametrize("length", [2, 300, 9001])
def test_gradients_with_a_dominant_element(on: EmulatedRunner, dtype: str, length: int) -> None:
    """The gradient of a share that rounds to 1 comes from the others, and is exact relative to its size."""
    x, grad = np.zeros((2, length), operand((1,), dtype).dtype), operand((2, length), dtype, 1)
    x[:, 1] = 30
    y, z = NUMPY.softmax(x, 1), NUMPY.log_softmax(x, 1)
    targets, labels, ones = np.zeros_like(x), np.ones(2, np.int64), np.ones(2, x.dtype)
    targets[:, 1] = 1
    pairs = [
        (softmax.softmax_backward(on, grad, y, 1), NUMPY.softmax_backward(grad, y, 1)),
        (softmax.log_softmax_backward(on, grad, z, 1), NUMPY.log_softmax_backward(grad, z, 1)),
        (softmax.label_cross_entropy_backward(on, ones, x, labels, 1),
         NUMPY.label_cross_entropy_backward(ones, x, labels, 1)),
        (softmax.softmax_cross_entropy_backward(on, ones, x, targets, 1),
         NUMPY.softmax_cross_entropy_backward(ones, x, targets, 1)),
    ]  # fmt: skip
    for found, expected in pairs:
        check(found[:, 1], expected[:, 1], 64)
    if dtype in ("float32", "float64"):
        shares = np.exp(-30.0)
        others = ((grad[:, 1:2] - np.delete(grad, 1, 1)).astype(np.float64) * shares).sum(1)
        np.testing.assert_allclose(pairs[0][0][:, 1], others, rtol=1e-4)
        np.testing.assert_allclose(pairs[2][0][:, 1], -shares * (length - 1), rtol=1e-5)


def test_mismatched_shapes_are_rejected(on: EmulatedRunner, dtype: str) -> None:
    with pytest.raises(ShapeError, match=r"softmax_backward: .*\[2, 3\] and \[2, 4\]"):
        softmax.softmax_backward(on, operand((2, 3), dtype), operand((2, 4), dtype), 1)


# ---- cross entropy ----


@pytest.mark.parametrize(("count", "length"), [*((3, n) for n in LENGTHS), (17, 700), (2, 17000)])
def test_cross_entropy(on: EmulatedRunner, dtype: str, count: int, length: int) -> None:
    x, targets = operand((count, length), dtype), abs(operand((count, length), dtype, 2))
    grad = operand((count,), dtype, 1)
    targets[:, ::3] = 0
    labels = np.resize(np.array([0, length - 1, length // 2], np.int32), count)
    check(softmax.label_cross_entropy(on, x, labels, 1), NUMPY.label_cross_entropy(x, labels, 1), least=1)
    check(softmax.softmax_cross_entropy(on, x, targets, 1), NUMPY.softmax_cross_entropy(x, targets, 1), 4, least=1)
    for name, other in (("label_cross_entropy_backward", labels), ("softmax_cross_entropy_backward", targets)):
        check(getattr(softmax, name)(on, grad, x, other, 1), getattr(NUMPY, name)(grad, x, other, 1), 4, least=1)
    assert not on.fault.any()


def test_a_broadcast_gradient_is_not_copied(on: EmulatedRunner, dtype: str) -> None:
    x, labels = operand((9, 5), dtype), np.array([0, 4, 2, 1, 1, 3, 0, 0, 2])
    shared = np.broadcast_to(operand((), dtype, 1), (9,))
    for name, other in (("label_cross_entropy_backward", labels), ("softmax_cross_entropy_backward", abs(x))):
        check(getattr(softmax, name)(on, shared, x, other, 1), getattr(NUMPY, name)(shared, x, other, 1), 4, least=1)


def test_cross_entropy_along_other_axes(on: EmulatedRunner, dtype: str) -> None:
    x, grad, labels = operand((2, 5, 3), dtype), operand((2, 3), dtype, 1), np.array([[0, 4, 2], [1, 1, 3]])
    check(softmax.label_cross_entropy(on, x, labels, 1), NUMPY.label_cross_entropy(x, labels, 1), least=1)
    expected = NUMPY.label_cross_entropy_backward(grad, x, labels, 1)
    check(softmax.label_cross_entropy_backward(on, grad, x, labels, 1), expected, 4, least=1)


def test_a_target_of_0_contributes_0(on: EmulatedRunner, dtype: str) -> None:
    x, targets = operand((2, 6), dtype), abs(operand((2, 6), dtype, 1))
    x[0, 2], targets[0, 2], targets[1, :] = -np.inf, 0, 0
    check(softmax.softmax_cross_entropy(on, x, targets, 1), NUMPY.softmax_cross_entropy(x, targets, 1), 4, least=1)


@pytest.mark.parametrize("label", [-1, 7, 10**12])
def test_a_label_out_of_range_is_reported(on: EmulatedRunner, dtype: str, label: int) -> None:
    x, labels = operand((4, 7), dtype), np.array([1, label, 0, 6])
    out = softmax.label_cross_entropy(on, x, labels, 1)
    assert on.fault.tolist() == [1, label, 7]
    assert np.isnan(out.astype(np.float64)).tolist() == [False, True, False, False]
    on.fault[:] = 0
    softmax.label_cross_entropy_backward(on, out, x, labels, 1)
    assert on.fault.tolist() == [1, label, 7]
