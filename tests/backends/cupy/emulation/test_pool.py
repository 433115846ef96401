"""Pooling: the CUDA kernels, run on the CPU, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.emulation.emulated import EmulatedRunner
from tests.backends.cupy.emulation.operands import NUMPY, check, operand

from backburn.base.errors import ArgumentError, ShapeError
from backburn_cupy.kernels import pool

# Shape, window size, stride, padding.
CASES: list[tuple[Any, ...]] = [
    ((2, 3, 9), (2,), (2,), ((0, 0),)),
    ((1, 2, 50), (5,), (3,), ((2, 1),)),
    ((3, 2, 7, 9), (3, 3), (2, 2), ((1, 1), (1, 1))),
    ((2, 1, 8, 5), (2, 3), (1, 2), ((1, 0), (0, 1))),
    ((1, 2, 4, 5, 6), (2, 3, 2), (1, 2, 2), ((0, 1), (1, 0), (1, 1))),
    ((1, 2, 8, 5), (3, 2), (2, 1), ((2, 2), (1, 1))),
]


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_max_pool(on: EmulatedRunner, dtype: str, case: Any, ceil_mode: bool) -> None:
    shape, *ways = case
    x = operand(shape, dtype)
    x[0, 0] = np.round(x[0, 0])  # ties: the first is chosen
    rank = len(shape) - 2
    for dilation in ((1,) * rank, (2, *(1,) * (rank - 1))):
        more: Any = {"dilation": dilation, "ceil_mode": ceil_mode}
        check(pool.max_pool(on, x, *ways, **more), NUMPY.max_pool(x, *ways, **more))


def test_nan_infinity_and_strided_arrays(on: EmulatedRunner, dtype: str) -> None:
    x = np.moveaxis(operand((2, 6, 8, 3), dtype), -1, 1)[:, :, ::-1]
    x[0, 0, 2, 3], x[0, 0, 3, 3], x[0, 1], x[1, 0, 0, 0] = np.nan, np.nan, -np.inf, np.inf
    ways = ((3, 2), (2, 2), ((1, 1), (1, 0)))
    check(pool.max_pool(on, x, *ways, (1, 1)), NUMPY.max_pool(x, *ways, (1, 1)))
    check(pool.avg_pool(on, x, *ways), NUMPY.avg_pool(x, *ways))


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_avg_pool_and_its_gradient(on: EmulatedRunner, dtype: str, case: Any, ceil_mode: bool, counted: bool) -> None:
    shape, *ways = case
    x = operand(shape, dtype)
    rank = len(shape) - 2
    for dilation in ((), (2, *(1,) * (rank - 1)), (1,) * (rank - 1) + (2,)):
        more: Any = {"ceil_mode": ceil_mode, "count_include_pad": counted, "dilation": dilation}
        y = NUMPY.avg_pool(x, *ways, **more)
        check(pool.avg_pool(on, x, *ways, **more), y)
        grad = operand(y.shape, dtype, 1).swapaxes(0, 1).copy().swapaxes(0, 1)
        expected = NUMPY.avg_pool_backward(grad, shape[2:], *ways, **more)
        check(pool.avg_pool_backward(on, grad, shape[2:], *ways, **more), expected)


def test_an_axis_too_long_for_32_bits_is_not_implemented(on: EmulatedRunner, dtype: str) -> None:
    x = np.broadcast_to(operand((1, 1, 1), dtype), (1, 1, 2**31))
    ways: tuple[Any, ...] = ((2,), (2,), ((0, 0),))
    assert pool.max_pool(on, x, *ways) is NotImplemented
    assert pool.avg_pool(on, x, *ways) is NotImplemented
    assert pool.avg_pool_backward(on, x[..., : 2**30], (2**31,), *ways) is NotImplemented


def test_empty_arrays_and_invalid_windows(on: EmulatedRunner, dtype: str) -> None:
    empty = operand((0, 3, 4), dtype)
    check(pool.max_pool(on, empty, (2,), (2,), ((0, 0),), (1,)), NUMPY.max_pool(empty, (2,), (2,), ((0, 0),), (1,)))
    with pytest.raises(ShapeError, match="does not fit into axis 2"):
        pool.max_pool(on, operand((1, 3, 4), dtype), (5,), (2,), ((0, 0),), (1,))
    with pytest.raises(ShapeError, match="lies in the padding alone"):
        pool.max_pool(on, operand((1, 3, 4), dtype), (3,), (2,), ((3, 0),), (1,))
    with pytest.raises(ArgumentError, match="padding is 0 or more"):
        pool.avg_pool(on, operand((1, 3, 4), dtype), (3,), (2,), ((-1, 0),))
    with pytest.raises(ShapeError, match=r"\[1, 3, 3\] is not of the windows \[2\]"):
        pool.avg_pool_backward(on, operand((1, 3, 3), dtype), (4,), (2,), (2,), ((0, 0),))
    with pytest.raises(ShapeError, match="has 3 to 5 axes"):
        pool.avg_pool(on, operand((3, 4), dtype), (), (), ())
