"""Quantized tensors in parts: valid cuts, their scales, their products, and operations that gather."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backburn.base.dtypes import QuantizedDType, float32
from backburn.base.errors import ArgumentError, NumericalInstabilityError, Unsupported
from backburn.decorators.sharding import Sharded, Shards, placement_of
from backburn_numpy import NumpyBackend

INNER = NumpyBackend()
TENSOR = QuantizedDType("int8", mode="affine")
ROWS = QuantizedDType("int8", granularity="channel", axis=0)
BLOCKS = QuantizedDType("int4", "float16", granularity="block", block=4)


@pytest.fixture
def k() -> Sharded:
    return Sharded(NumpyBackend(), dp=3, on_fallback="error")


def array(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("scheme", [TENSOR, ROWS, BLOCKS])
@pytest.mark.parametrize("axis", [0, 1])
def test_values_and_scales_are_those_of_the_whole(k: Sharded, scheme: QuantizedDType, axis: int) -> None:
    x = array(7, 18)
    found = k.quantize(k.cut(k.from_numpy(x), axis), scheme)
    assert isinstance(found, Shards)
    assert (found.axis, found.shape) == (axis, (7, 18))
    for own, expected in zip(k.quantized_parts(found), INNER.quantized_parts(INNER.quantize(x, scheme)), strict=True):
        np.testing.assert_array_equal(own, expected)


def test_cuts_are_between_blocks(k: Sharded) -> None:
    weight = INNER.quantize(array(2, 18), BLOCKS)
    assert k.cut(weight, 1).cuts == (8, 8, 2)
    assert k.quantize(k.cut(k.from_numpy(array(2, 18)), 1, (7, 1, 10)), BLOCKS).cuts == (8, 8, 2)
    assert k.cut(weight, 1, (16, 2, 0)).cuts == (16, 2, 0)
    with pytest.raises(ArgumentError, match=r"\[6, 6, 6\] split the blocks of 4"):
        k.cut(weight, 1, (6, 6, 6))


@pytest.mark.parametrize("cuts", [(18, 0, 0), (0, 18, 0), (8, 10, 0)])
def test_empty_parts_of_blocks(k: Sharded, cuts: tuple[int, ...]) -> None:
    weight = INNER.quantize(array(2, 18), BLOCKS)
    np.testing.assert_array_equal(k.to_numpy(k.cut(weight, 1, cuts)), INNER.to_numpy(weight))


@pytest.mark.parametrize("scheme", [TENSOR, ROWS, BLOCKS])
def test_given_ranges_are_cut_with_their_values(k: Sharded, scheme: QuantizedDType) -> None:
    x = array(6, 12)
    steps = {TENSOR: (), ROWS: (6,), BLOCKS: (6, 3)}[scheme]
    low, high = np.full(steps, -1.0, np.float32), np.full(steps, 1.5, np.float32)
    for axis in (0, 1):
        found = k.quantize_between(k.cut(k.from_numpy(x), axis), low, k.cut(high, 0) if steps else high, scheme)
        assert found.axis == axis
        np.testing.assert_array_equal(k.to_numpy(found), INNER.to_numpy(INNER.quantize_between(x, low, high, scheme)))
    whole = k.quantize_between(x, low, k.cut(high, 0) if steps else high, scheme)
    np.testing.assert_array_equal(k.to_numpy(whole), INNER.to_numpy(INNER.quantize_between(x, low, high, scheme)))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nonfinite_values_are_refused(k: Sharded, bad: float) -> None:
    x = array(6, 3)
    x[5, 0] = bad
    for scheme in (TENSOR, ROWS):
        with pytest.raises(NumericalInstabilityError, match="quantize"):
            k.quantize(k.cut(k.from_numpy(x), 0), scheme)


@pytest.mark.parametrize("scheme", [TENSOR, ROWS, BLOCKS])
@pytest.mark.parametrize(
    ("x_axis", "weight_axis", "where"),
    [(0, None, 0), (None, 0, 1), (1, 1, None), (None, 1, None), (1, None, None), (0, 0, 0)],
)
@pytest.mark.parametrize("bias", [False, True])
def test_products(k: Sharded, scheme: QuantizedDType, x_axis: Any, weight_axis: Any, where: Any, bias: bool) -> None:
    x, weight, b = array(13, 12), INNER.quantize(array(6, 12), scheme), array(6) if bias else None
    placed_x = x if x_axis is None else k.cut(x, x_axis, (4, 4, 4) if x_axis else None)
    placed = weight if weight_axis is None else k.cut(weight, weight_axis)
    found = k.quantized_linear(placed_x, placed, b)
    if not (bias and where is None) and (x_axis, weight_axis) != (0, 0):
        assert found.axis == where
    expected = INNER.quantized_linear(x, weight, b)
    np.testing.assert_allclose(k.to_numpy(found), expected, rtol=1e-4, atol=1e-5)
    gradient = array(13, 6)
    for axis in (None, 0, 1):
        given = gradient if axis is None else k.cut(gradient, axis)
        back = k.quantized_linear_backward(given, placed)
        expected = INNER.quantized_linear_backward(gradient, weight)
        np.testing.assert_allclose(k.to_numpy(back), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("x_axis", "y_axis", "where"), [(0, None, 0), (None, 1, 1), (1, 0, None), (1, None, None)])
def test_products_of_two(k: Sharded, transposed: bool, x_axis: Any, y_axis: Any, where: Any) -> None:
    x = INNER.quantize(array(5, 12), ROWS)
    y = INNER.quantize(array(12, 7), TENSOR)
    if transposed:
        y, y_axis = INNER.permute_dims(y, (1, 0)), None if y_axis is None else 1 - y_axis
    left, right = (t if a is None else k.cut(t, a) for t, a in ((x, x_axis), (y, y_axis)))
    found = k.quantized_matmul(left, right, float32, transposed)
    assert found.axis == where
    expected = INNER.quantized_matmul(x, y, float32, transposed)
    np.testing.assert_allclose(k.to_numpy(found), expected, rtol=1e-4, atol=1e-5)


def test_operations_that_would_separate_values_from_scales_gather(k: Sharded) -> None:
    rows, blocks = (k.cut(INNER.quantize(array(6, 12), scheme), 1) for scheme in (ROWS, BLOCKS))
    with pytest.raises(Unsupported, match="reshape: no rule of sharding"):
        k.reshape(rows, (6, 3, 4))
    with pytest.raises(Unsupported, match="slice: no rule of sharding"):
        k.slice(blocks, (slice(0, 6, 1), slice(4, 8, 1)))
    assert k.slice(blocks, (slice(1, 3, 1), slice(0, 12, 1))).axis == 1
    assert k.permute_dims(rows, (1, 0)).axis == 0


def test_two_layers_cut_by_outputs_and_by_inputs() -> None:
    x, weights = array(5, 12), (array(8, 12), array(4, 8))

    def run(k: Any, axes: tuple[int | None, ...]) -> Any:
        y: Any = k.from_numpy(x)
        for weight, axis in zip(weights, axes, strict=True):
            q = k.quantize(k.from_numpy(weight), ROWS)
            y = k.quantized_linear(k.relu(y), q if axis is None else k.cut(q, axis), None)
        return y

    k = Sharded(NumpyBackend(), tp=2, on_fallback="error")
    found = run(k, (0, 1))
    assert placement_of(k, found) == {"tp": "addends"}
    np.testing.assert_allclose(k.to_numpy(found), run(INNER, (None, None)), rtol=1e-4, atol=1e-5)
