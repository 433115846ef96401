"""LSTMs and GRUs: the CUDA kernels of their steps, run on the CPU, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.emulation.emulated import EmulatedRunner
from tests.backends.cupy.emulation.operands import NUMPY, check, operand

from backburn.base.errors import ShapeError
from backburn_cupy import recurrent


class Products:
    """NumPy's backend with a runner of kernels."""

    def __init__(self, runner: EmulatedRunner) -> None:
        self.runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(NUMPY, name)


SHAPES = [(1, 1, 1), (3, 2, 5), (2, 9, 33), (4, 3, 100)]


def operands(shape: tuple[int, int, int], dtype: str, gates: int, states: int, bias: bool) -> list[Any]:
    """The projected input, the initial states, the weight and the bias."""
    steps, rows, size = shape
    firsts = [operand((rows, size), dtype, 1 + i) for i in range(states)]
    weight = operand((gates * size, size), dtype, 3)
    weight *= np.asarray(0.5 / size**0.5, weight.dtype)
    of_bias = operand((gates * size,), dtype, 4, 1) if bias else None
    return [operand((steps, rows, gates * size), dtype, 5), *firsts, weight, of_bias]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_lstm(on: EmulatedRunner, dtype: str, shape: tuple[int, int, int], bias: bool) -> None:
    given = operands(shape, dtype, 4, 2, bias)
    results = NUMPY.lstm(*given)
    check(recurrent.lstm(Products(on), *given), results, 4)
    _, _, cell, weight, _ = given
    g_states, g_gates = operand(shape, dtype, 6, 3), operand(results[2].shape, dtype, 7)
    for grads in ((g_states, None, None), (None, g_states, None), (None, None, g_gates), (g_states, g_states, g_gates)):
        expected = NUMPY.lstm_backward(weight, cell, *results[1:], *grads)
        check(recurrent.lstm_backward(Products(on), weight, cell, *results[1:], *grads), expected, 16)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_gru(on: EmulatedRunner, dtype: str, shape: tuple[int, int, int], bias: bool) -> None:
    given = operands(shape, dtype, 3, 1, bias)
    results = NUMPY.gru(*given)
    check(recurrent.gru(Products(on), *given), results, 4)
    _, hidden, weight, _ = given
    g_states, g_gates = operand(shape, dtype, 6, 3), operand(results[1].shape, dtype, 7)
    for grads in ((g_states, None), (None, g_gates), (g_states, g_gates)):
        expected = NUMPY.gru_backward(weight, hidden, *results, *grads)
        check(recurrent.gru_backward(Products(on), weight, hidden, *results, *grads), expected, 16)


def test_a_step_is_a_product_and_a_launch(on: EmulatedRunner, dtype: str) -> None:
    given = operands((5, 2, 3), dtype, 4, 2, True)
    on.launched.clear()
    results = recurrent.lstm(Products(on), *given)
    recurrent.lstm_backward(Products(on), given[3], given[2], *results[1:], results[0])
    assert [name.partition("<")[0] for name in on.launched] == ["lstm_step"] * 5 + ["lstm_step_backward"] * 5


def test_saturated_gates_and_bad_shapes(on: EmulatedRunner, dtype: str) -> None:
    for function, gates, states in ((recurrent.lstm, 4, 2), (recurrent.gru, 3, 1)):
        given = operands((2, 3, 4), dtype, gates, states, False)
        given[0][0, 0], given[0][1, 0] = 1e4, -1e4
        check(function(Products(on), *given), getattr(NUMPY, function.__name__)(*given), 4)
        for projected in (given[0][:0], given[0][0], given[0][..., 1:]):
            with pytest.raises(ShapeError, match="projected input"):
                function(Products(on), projected, *given[1:])
        nothing = operands((2, 0, 4), dtype, gates, states, True)
        assert function(Products(on), *nothing)[0].shape == (2, 0, 4)
