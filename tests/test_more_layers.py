"""Layers and options of layers that are rarer, against torch in float64, with all gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.against_torch import agrees

import backburn as bb
from backburn import nn
from backburn.base.errors import ArgumentError

GENERATOR = np.random.default_rng(0)
ANY: Any = nn


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is the reference, and it is not installed")


def normal(*shape: int) -> Any:
    return GENERATOR.normal(size=shape)


class First(bb.nn.Module):
    """The first of a module's results."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)[0]


# ---- recurrent layers ----


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_activations_of_recurrent_layers(torch: Any, activation: str, bidirectional: bool) -> None:
    model = nn.RNN(3, 4, layers=2, bidirectional=bidirectional, activation=activation).astype("float64")
    directions = 2 if bidirectional else 1

    def theirs(p: Any, x: Any, state: Any) -> Any:
        other = torch.nn.RNN(3, 4, 2, activation, bidirectional=bidirectional, dtype=torch.float64)
        names = {"input_weight": "weight_ih", "weight": "weight_hh", "input_bias": "bias_ih", "bias": "bias_hh"}
        weights = {}
        for index in range(2 * directions):
            end = f"_l{index // directions}" + ("_reverse" if index % directions else "")
            for part, name in names.items():
                given = p[f"module.layers.{index}.{part}"]
                weights[name + end] = given.T if given.ndim == 2 else given
        return torch.func.functional_call(other, weights, (x, state))[0]

    agrees(First(model), theirs, normal(5, 2, 3), normal(2 * directions, 2, 4))


def test_activations_that_recurrent_layers_do_not_have() -> None:
    with pytest.raises(ArgumentError, match="RNN: the activation is one of 'tanh', 'relu', not 'gelu'"):
        nn.RNN(3, 4, activation="gelu")
    with pytest.raises(TypeError, match=r"RNN\(\) got an unexpected .*'nonlinearity'; here: activation"):
        ANY.RNN(3, 4, nonlinearity="relu")
