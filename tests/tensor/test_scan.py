"""Tensor functions: scans."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, AxisError, DTypeError, ShapeError

REAL = np.array([[0.5, -2.0, 3.0], [1.5, 0.25, -1.0]])
INTS = np.array([[3, -2, 7], [0, 5, -1]])
SCANS: dict[str, Any] = {
    "cumulative_sum": np.cumulative_sum,
    "cumulative_prod": np.cumulative_prod,
    "cummax": lambda x, axis: np.maximum.accumulate(x, axis),
    "cummin": lambda x, axis: np.minimum.accumulate(x, axis),
    "logcumsumexp": lambda x, axis: np.logaddexp.accumulate(x.astype(np.float64), axis),
    "diff": lambda x, axis: np.diff(x, axis=axis),
}
METHODS = {"cumulative_sum": "cumsum", "cumulative_prod": "cumprod"}


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("array", [REAL, REAL.astype(np.float32), INTS], ids=["float64", "float32", "int64"])
def test_values_and_methods(name: str, axis: int, array: Any) -> None:
    x = bb.asarray(array)
    got = getattr(bb, name)(x, axis=axis)
    assert got.dtype is (x.dtype if array is not INTS or name != "logcumsumexp" else bb.float32)
    np.testing.assert_allclose(got.numpy(), SCANS[name](array, axis=axis), rtol=1e-6)
    method = getattr(x, METHODS.get(name, name))
    np.testing.assert_array_equal(method(axis=axis).numpy(), got.numpy())


@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
def test_dtypes_and_initial_values(name: str) -> None:
    function, reference = getattr(bb, name), getattr(np, name)
    for dtype, widened in [("int8", "int64"), ("uint16", "uint64"), ("bool", "int64"), ("float16", "float16")]:
        array = np.array([2, 1, 3]).astype(dtype)
        got = function(bb.asarray(array), include_initial=True)
        assert got.dtype is getattr(bb, widened)
        np.testing.assert_array_equal(got.numpy(), reference(array.astype(widened), include_initial=True))
    assert function(bb.asarray(INTS), axis=0, dtype="float64").dtype is bb.float64
    np.testing.assert_allclose(
        function(bb.asarray(REAL), axis=-1, include_initial=True).numpy(),
        reference(REAL, axis=-1, include_initial=True),
    )
    with pytest.raises(ArgumentError, match=rf"{name}: say along which axis.*float64\[2,3\]"):
        function(bb.asarray(REAL))


def test_differences() -> None:
    x = bb.asarray(INTS)
    assert bb.diff(x, n=2**63 - 1).shape == np.diff(INTS, n=5).shape
    for n in (0, 1, 2, 5):
        np.testing.assert_array_equal(bb.diff(x, n=n).numpy(), np.diff(INTS, n=n))
    around = np.array([[1.5], [2.5]])
    got = bb.diff(x, prepend=bb.asarray(around), append=bb.asarray(around), axis=1)
    assert got.dtype is bb.float64
    np.testing.assert_array_equal(got.numpy(), np.diff(INTS, prepend=around, append=around))
    assert bb.diff(x, n=0, prepend=bb.asarray(INTS), append=bb.asarray(INTS)).tolist() == INTS.tolist()
    with pytest.raises(ArgumentError, match=r"diff: differences are taken 0 or more times, not -1"):
        bb.diff(x, n=-1)
    with pytest.raises(ShapeError, match=r"int64\[3\]"):
        bb.diff(x, prepend=bb.asarray([1, 2, 3]))


@pytest.mark.parametrize("name", SCANS)
def test_gradients_flow(name: str) -> None:
    function = getattr(bb, name)
    weights = np.cos(np.arange(6.0)).reshape(2, 3)[:, : 2 if name == "diff" else 3]
    x = bb.asarray(REAL).require_grad()
    grad = x.grad((function(x, axis=1) * bb.asarray(weights)).sum().backward())
    assert grad is not None
    step, direction = 1e-6, np.sin(np.arange(6.0) + 1).reshape(2, 3)
    ends = [np.sum(function(bb.asarray(REAL + s * step * direction), axis=1).numpy() * weights) for s in (1, -1)]
    assert np.sum(grad.numpy() * direction) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("name", SCANS)
def test_bad_input(name: str) -> None:
    function = getattr(bb, name)
    with pytest.raises(AxisError, match=rf"{name}: axis 2 is out of range.*float64\[2,3\]"):
        function(bb.asarray(REAL), axis=2)
    with pytest.raises(AxisError, match=rf"{name}: axis 0 is out of range for 0 dimensions"):
        function(bb.asarray(1.0), axis=0)
    with pytest.raises(DTypeError, match=rf"{name}: takes a tensor, not list"):
        function([1.0], axis=0)
    if not name.startswith("cumulative"):
        with pytest.raises(DTypeError, match=rf"{name}: takes .*not bool; cast it with astype"):
            function(bb.asarray([True, False]), axis=0)


@pytest.mark.parametrize("backend", ["numpy", "null"])
def test_a_first_state_that_does_not_fit_is_refused_also_without_steps(backend: str) -> None:
    x = bb.ones((0, 2), backend=backend)
    with pytest.raises(ShapeError, match="ssm_scan: cannot broadcast"):
        bb.nn.functional.ssm_scan(x, x, x, bb.ones(3, backend=backend))
    assert bb.nn.functional.ssm_scan(x, x, x, bb.ones(2, backend=backend)).shape == (0, 2)


@pytest.mark.parametrize("shape", [(300_000,), (2, 100_001), (100_001, 2)], ids=str)
@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
def test_derivatives_of_long_running_results_keep_their_digits(name: str, shape: tuple[int, ...]) -> None:
    """The roundings of as many factors do not add up."""
    random, axis = np.random.default_rng(0), int(np.argmax(shape))
    x, weight = (random.normal(size=shape).astype(np.float32) for _ in range(2))
    x = (1 + x / 1000).astype(np.float32) if name == "cumulative_prod" else x
    wide, slope = x.astype(np.float64), weight.astype(np.float64)

    def sums(values: Any, step: int) -> Any:
        way = (*(slice(None),) * axis, slice(None, None, step))
        return np.cumsum(values[way], axis)[way]

    if name == "cumulative_sum":
        expected = sums(slope, -1), sums(slope, 1)
    else:
        out = np.cumprod(wide, axis)
        expected = sums(slope * out, -1) / wide, out * sums(slope / wide, 1)
    function = partial(getattr(bb, name), axis=axis)
    leaf = bb.asarray(x).require_grad()
    gradient = leaf.grad((function(leaf) * bb.asarray(weight)).sum().backward())
    _, tangent = bb.jvp(function, (bb.asarray(x),), (bb.asarray(weight),))
    for got, exact in zip((gradient, tangent), expected, strict=True):
        assert got.dtype is bb.float32
        np.testing.assert_allclose(got.numpy(), exact, atol=2 * np.finfo(np.float32).eps * np.abs(exact).max(), rtol=0)
