"""Embeddings and their gradient: the CUDA kernels, run on the CPU, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.cupy.emulation.emulated import EmulatedRunner
from tests.backends.cupy.emulation.operands import NUMPY, check, operand

from backburn_cupy.kernels import index

WIDTHS = [(), (1,), (31,), (32,), (33,), (2, 300), (0,)]


@pytest.mark.parametrize("rest", WIDTHS, ids=str)
def test_embedding(on: EmulatedRunner, dtype: str, rest: tuple[int, ...]) -> None:
    weight = operand((6, *rest), dtype)
    for indices in (np.array([[0, 5, -1], [-6, 2, 2]]), np.array(3, np.int16), np.zeros((0, 4), np.int64)):
        check(index.embedding(on, weight, indices), NUMPY.embedding(weight, indices))
    assert not on.fault.any()


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 300])
@pytest.mark.parametrize("rest", WIDTHS, ids=str)
def test_gradient(on: EmulatedRunner, dtype: str, rest: tuple[int, ...], count: int, deterministic: bool) -> None:
    on.deterministic = deterministic
    # Many repetitions, so that runs of equal indices lie in a chunk, cross its end, and span several chunks.
    indices = np.random.default_rng(count).integers(-9, 9, count) // 2
    indices[count // 4 : count // 2] = 7
    grad = operand((count, *rest), dtype)
    check(index.take_backward(on, grad, indices, 9, 0), NUMPY.take_backward(grad, indices, 9, 0), 8)


@pytest.mark.parametrize("deterministic", [True, False])
def test_gradient_of_one_row_and_of_strided_operands(on: EmulatedRunner, dtype: str, deterministic: bool) -> None:
    on.deterministic = deterministic
    grad, indices = operand((200, 6), dtype)[::2, ::-1], np.full((10, 20), 1)[:, ::2]
    grad = grad.reshape(10, 10, 6)
    check(index.take_backward(on, grad, indices, 2, 0), NUMPY.take_backward(grad, indices, 2, 0), 8)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("wrong", [6, -7, 10**15])
def test_an_index_out_of_range_is_reported(on: EmulatedRunner, dtype: str, wrong: int, deterministic: bool) -> None:
    on.deterministic = deterministic
    weight, indices = operand((6, 40), dtype), np.array([1, wrong, 0])
    right = np.array([0, 2])
    out = index.embedding(on, weight, indices)
    assert on.fault.tolist() == [1, wrong, 6]
    check(out[right], NUMPY.embedding(weight, indices[right]))
    assert not out[1].any()
    on.fault[:] = 0
    actual = index.take_backward(on, operand((3, 40), dtype), indices, 6, 0)
    assert on.fault.tolist() == [1, wrong, 6]
    check(actual, NUMPY.take_backward(operand((3, 40), dtype)[right], indices[right], 6, 0), 8)


def test_other_axes_are_not_implemented(on: EmulatedRunner, dtype: str) -> None:
    assert index.take_backward(on, operand((2, 3), dtype), np.arange(3), 3, 1) is NotImplemented
