"""Tensors created in parts: the values of the whole, and no allocation larger than a part."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn
from backburn.backend import load_backend
from backburn.backend.wrapper import Wrapper
from backburn.base.dtypes import float32, float64, int64
from backburn.base.errors import ArgumentError
from backburn.decorators.sharding import Sharded, created_in_parts, placement_of
from backburn_numpy import NumpyBackend

INNER = NumpyBackend()


class Largest(Wrapper):
    """Records the number of elements of the largest result."""

    name, most = "largest", 0

    def call(self, operation: str, /, *operands: Any, **attributes: Any) -> Any:
        found = super().call(operation, *operands, **attributes)
        if hasattr(found, "shape"):
            self.most = max(self.most, math.prod(found.shape))
        return found


@pytest.mark.parametrize("shards", [2, 3, 5])
@pytest.mark.parametrize("shape", [(7, 3), (4, 5, 3), (5,), (1, 2), (0, 3)])
@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("uniform", {"dtype": float32}),
        ("uniform", {"dtype": float64}),
        ("normal", {"dtype": float32}),
        ("normal", {"dtype": float64}),
        ("random_bits", {}),
        ("bernoulli", {"p": 0.3}),
        ("integers", {"low": 3, "high": 9000, "dtype": int64}),
    ],
)
def test_random_parts_equal_the_whole(shards: int, shape: Any, name: str, attributes: dict[str, Any]) -> None:
    k = Sharded(NumpyBackend(), dp=shards)
    expected = getattr(INNER, name)(key=5, offset=11, shape=shape, **attributes)
    for axis in range(len(shape)):
        with created_in_parts({"dp": axis}):
            found = getattr(k, name)(key=5, offset=11, shape=shape, **attributes)
        assert found.axis == axis
        np.testing.assert_array_equal(k.to_numpy(found), expected, strict=True)


def test_placements_of_new_constants() -> None:
    k = load_backend("sharded(sharded(numpy, tp=2), dp=2)")
    with created_in_parts({"dp": 0, "tp": 1}):
        made = k.ones((4, 3), float32), k.full((4,), 2.0, float32), k.zeros((), float32), k.arange(0, 4, 1, int64)
    placed = [placement_of(k, x) for x in made]
    assert placed[:2] == [{"dp": 0, "tp": 1}, {"dp": 0, "tp": None}]
    assert placed[2:] == [{"dp": None, "tp": None}] * 2
    np.testing.assert_array_equal(k.to_numpy(made[0]), np.ones((4, 3), np.float32))
    assert placement_of(k, k.ones((4, 3), float32)) == {"dp": None, "tp": None}


def test_invalid_axes_are_refused() -> None:
    for axis in (-1, True, "rows"):
        with pytest.raises(ArgumentError, match="dp is cut along an axis of new tensors, from 0 on"):
            created_in_parts({"dp": axis})  # type: ignore[dict-item]


def test_no_shard_of_a_model_is_larger_than_its_part() -> None:
    def build() -> nn.Sequential:
        bb.random.seed(3)
        return nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 16))

    with bb.use_backend("numpy"):
        expected = build().state_dict()
    inner = Largest(NumpyBackend())
    with bb.use_backend(Sharded(inner, dp=4, on_fallback="error")):
        with created_in_parts({"dp": 0}):
            model = build()
        assert inner.most == 64 * 16 // 4
        for name, value in model.state_dict().items():
            np.testing.assert_array_equal(value.numpy(), expected[name].numpy())
