"""Tensor functions: order."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, AxisError, DTypeError, ShapeError

REAL = np.array([[0.5, -2.0, 3.0], [1.5, 0.25, -1.0]])
INTS = np.array([[3, -2, 3, 7], [0, 5, -1, 0]])
TRUTHS = np.array([[True, False, True], [False, False, True]])
INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("array", [REAL, REAL.astype(np.float32), INTS, TRUTHS], ids=lambda a: a.dtype.name)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_sorting(array: Any, axis: int) -> None:
    x = bb.asarray(array)
    np.testing.assert_array_equal(bb.sort(x, axis=axis).numpy(), np.sort(array, axis=axis))
    rising = bb.argsort(x, axis=axis)
    assert rising.dtype is bb.int64
    np.testing.assert_array_equal(rising.numpy(), np.argsort(array, axis=axis, kind="stable"))
    falling = x.argsort(axis=axis, descending=True, stable=False)
    np.testing.assert_array_equal(falling.numpy(), np.argsort(-array.astype(np.float64), axis=axis, kind="stable"))
    values, indices = x.sort_with_indices(axis=axis, descending=True)
    assert (values.dtype, type(values)) == (x.dtype, type(x))
    np.testing.assert_array_equal(values.numpy(), np.flip(np.sort(array, axis=axis), axis))
    np.testing.assert_array_equal(indices.numpy(), falling.numpy())
    np.testing.assert_array_equal(x.sort(axis=axis, descending=True).numpy(), values.numpy())


def test_nan_is_last_in_both_directions() -> None:
    x = bb.asarray([2.0, NAN, -math.inf, 1.0])
    np.testing.assert_array_equal(bb.sort(x).numpy(), [-math.inf, 1.0, 2.0, NAN])
    np.testing.assert_array_equal(bb.sort(x, descending=True).numpy(), [2.0, 1.0, -math.inf, NAN])
    np.testing.assert_array_equal(bb.topk(x, 2)[0].numpy(), [2.0, 1.0])


def test_topk_and_kthvalue() -> None:
    x = bb.asarray(INTS)
    values, indices = bb.topk(x, 2)
    assert (values.tolist(), indices.tolist()) == ([[7, 3], [5, 0]], [[3, 0], [1, 0]])
    values, indices = x.topk(np.int64(1), axis=0, largest=False)  # type: ignore[arg-type]
    assert (values.tolist(), indices.tolist()) == ([[0, -2, -1, 0]], [[1, 0, 1, 1]])
    values, indices = bb.kthvalue(x, 3)
    assert (values.tolist(), indices.tolist()) == ([3, 0], [2, 3])
    assert x.kthvalue(1, axis=0, keepdims=True)[0].tolist() == [[0, -2, -1, 0]]
    with pytest.raises(ArgumentError, match=r"topk: axis 1 has 4 elements: 5 cannot be .*int64\[2,4\].*Options: k=5"):
        bb.topk(x, 5)
    with pytest.raises(ArgumentError, match=r"kthvalue: axis 0 has 2 elements, .* element 0.*Options: k=0"):
        bb.kthvalue(x, 0, axis=0)
    k: Any = 1.5
    with pytest.raises(ArgumentError, match=r"topk: k is an integer, not 1.5"):
        bb.topk(x, k)


@pytest.mark.parametrize("shape", [(1,), (4,), (5,), (3, 4, 5), (4, 3, 2)])
@pytest.mark.parametrize("axis", [0, -1])
def test_medians_with_indices_are_those_of_torch(torch: Any, shape: tuple[int, ...], axis: int) -> None:
    random = np.random.default_rng(len(shape))
    ties = random.integers(0, 3, shape)
    missing = np.where(random.random(shape) < 0.1, NAN, ties)
    for host in (random.normal(size=shape), ties.astype(np.float32), ties, missing):
        expected = torch.median(torch.from_numpy(host), axis)
        for keepdims in (False, True):
            values, indices = bb.asarray(host).median_with_indices(axis, keepdims=keepdims)
            shape_kept = np.expand_dims(expected.values, axis).shape if keepdims else tuple(expected.values.shape)
            assert values.shape == indices.shape == shape_kept
            assert (values.dtype.name, indices.dtype) == (host.dtype.name, bb.int64)
            np.testing.assert_array_equal(values.numpy().reshape(expected.values.shape), expected.values.numpy())
            at = np.expand_dims(indices.numpy(), axis) if not keepdims else indices.numpy()
            np.testing.assert_array_equal(np.take_along_axis(host, at, axis).reshape(values.shape), values.numpy())


def test_the_gradient_of_a_median_goes_to_its_element() -> None:
    x = bb.asarray(np.random.default_rng(1).permutation(24).reshape(4, 6) / 7.0)
    for axis in (0, 1):
        bb.check_grads(lambda x, axis=axis: bb.median_with_indices(x, axis)[0] ** 3, (x,), order=2)
        each = bb.vmap(lambda row: bb.median_with_indices(row)[0])(x)
        assert each.tolist() == bb.median_with_indices(x, 1)[0].tolist()
    ties = bb.asarray([2.0, 1.0, 2.0, 2.0, 9.0])
    assert bb.grad(lambda x: bb.median_with_indices(x)[0])(ties).tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]
    with pytest.raises(ShapeError, match=r"median_with_indices: there are no elements.*float32\[2,0\]"):
        bb.median_with_indices(bb.zeros((2, 0)))
    assert bb.median_with_indices(bb.zeros((0, 2)))[1].shape == (0,)
    with pytest.raises(DTypeError, match=r"median_with_indices: .*bool"):
        bb.median_with_indices(bb.asarray([True]))


def test_gradients_return_to_the_original_positions() -> None:
    weights = bb.asarray([1.0, 10.0, 100.0], dtype="float64")
    x = bb.asarray([3.0, 1.0, 2.0], dtype="float64").require_grad()
    expected = {
        "sort": [100.0, 1.0, 10.0],
        "sort_with_indices": [100.0, 1.0, 10.0],
        "topk": [1.0, 100.0, 10.0],
    }
    for name, places in expected.items():
        result = getattr(bb, name)(x, *([3] if name == "topk" else []))
        values = result[0] if isinstance(result, tuple) else result
        grad = x.grad((values * weights).sum().backward())
        assert grad is not None
        assert grad.tolist() == places, name
    grad = x.grad(bb.kthvalue(x, 2)[0].backward())
    assert grad is not None
    assert grad.tolist() == [0.0, 0.0, 1.0]


def test_searchsorted() -> None:
    line, values = np.array([1.0, 2.0, 2.0, 5.0]), np.array([[2.0, 0.0], [9.0, 5.0]])
    for side in ("left", "right"):
        got = bb.searchsorted(bb.asarray(line), bb.asarray(values), side=side)
        assert got.dtype is bb.int64
        np.testing.assert_array_equal(got.numpy(), np.searchsorted(line, values, side=side))
    mixed = np.array([5.0, 2.0, 1.0, 2.0])
    order = np.argsort(mixed)
    got = bb.searchsorted(bb.asarray(mixed), bb.asarray([2, 6]), sorter=bb.asarray(order), side="right")
    assert got.tolist() == [3, 4]
    for number in (2, 2.0, 9, -math.inf, math.nan):
        for side in ("left", "right"):
            got = bb.searchsorted(bb.asarray(line), number, side=side)
            expected: Any = np.searchsorted(line, np.float64(number), side=side)  # type: ignore[call-overload]
            assert (got.dtype, got.shape, got.item()) == (bb.int64, (), expected)
    assert bb.searchsorted(bb.asarray(mixed), 2.0, sorter=bb.asarray(order), side="right").item() == 3
    assert bb.searchsorted(bb.asarray([1, 3]), 2.5).item() == 1
    assert bb.vmap(lambda row: bb.searchsorted(row, 2))(bb.asarray([[1, 3], [2, 4]])).tolist() == [1, 0]
    for wrong in ("2", None):
        with pytest.raises(DTypeError, match="searchsorted: takes tensors and Python numbers"):
            bb.searchsorted(bb.asarray(line), wrong)  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="searchsorted"):
        bb.searchsorted(2.0, bb.asarray(line))  # type: ignore[arg-type]
    rows = bb.searchsorted(bb.asarray([[1, 3], [2, 4]]), bb.asarray([[3, 0, 9], [3, 4, 5]]))
    assert rows.tolist() == [[1, 0, 2], [1, 1, 2]]
    with pytest.raises(ArgumentError, match=r"searchsorted: side is one of 'left', 'right', not 'middle'"):
        bb.searchsorted(bb.asarray(line), bb.asarray(values), side="middle")
    with pytest.raises(ShapeError, match=r"searchsorted: .*alike in every axis but the last.*int64\[2,2\]"):
        bb.searchsorted(bb.asarray([[1, 3], [2, 4]]), bb.asarray([1]))
    with pytest.raises(ShapeError, match=r"searchsorted: .*at least one axis"):
        bb.searchsorted(bb.asarray(1), bb.asarray([1]))
    with pytest.raises(DTypeError, match=r"searchsorted: sorter holds an int index for each element"):
        bb.searchsorted(bb.asarray(line), bb.asarray(values), sorter=bb.asarray([0.0]))


PLACES, HEIGHTS = np.array([-1.0, 0.5, 2.0, 5.0]), np.array([3.0, -1.0, 0.0, 1e9])
BETWEEN = np.array([[-2.0, -1.0, 0.0, 0.5, 1.7], [2.0, 4.999, 5.0, 7.0, np.nan]])


@pytest.mark.parametrize("ends", [{}, {"left": -5.0}, {"right": 7}, {"left": np.nan, "right": 2.0}])
def test_interpolation_is_that_of_numpy(ends: Any) -> None:
    x, xp, fp = (bb.asarray(a) for a in (BETWEEN, PLACES, HEIGHTS))
    for given, host in ((x, BETWEEN), (x.T, BETWEEN.T), (x[0, 2], BETWEEN[0, 2]), (x[:0], BETWEEN[:0])):
        got = bb.interp(given, xp, fp, **ends)
        assert got.shape == host.shape
        np.testing.assert_allclose(got.numpy(), np.interp(host, PLACES, HEIGHTS, **ends), rtol=1e-12, atol=1e-12)
        two = bb.interp(given, xp[:2], fp[:2], **ends).numpy()
        np.testing.assert_allclose(two, np.interp(host, PLACES[:2], HEIGHTS[:2], **ends), rtol=1e-12, atol=1e-12)
    there = x[0]
    one = bb.interp(there, xp[:1], fp[:1], **ends).numpy()
    np.testing.assert_array_equal(one, np.interp(BETWEEN[0], PLACES[:1], HEIGHTS[:1], **ends))
    assert bb.interp(bb.asarray([1, 2]), bb.asarray([0, 4]), bb.asarray([0, 1])).tolist() == [0.25, 0.5]
    assert bb.interp(bb.asarray([5.0]), xp, fp).item() == 1e9


def test_interpolation_between_infinite_values_is_that_of_numpy() -> None:
    """At a given point the result is its value, even where the line to the next one is infinite or NaN."""
    places, x = np.arange(4.0), np.array([-1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, np.nan])
    for heights in itertools.product((1.0, -np.inf, np.inf, np.nan), repeat=4):
        got = bb.interp(*(bb.asarray(a, dtype="float64") for a in (x, places, heights)))
        np.testing.assert_array_equal(got.numpy(), np.interp(x, places, heights))


def test_derivatives_of_interpolation() -> None:
    """Gradients of all three operands between the points; 0 beyond the ends."""
    x, fp = bb.asarray([[-0.25, 0.1], [1.7, 3.0]], dtype="float64"), bb.asarray([3.0, -1.0, 0.0, 2.0], dtype="float64")
    bb.check_grads(lambda *args: bb.interp(*args).square(), (x, bb.asarray(PLACES), fp), order=2)
    beyond = bb.asarray([-3.0, 9.0], dtype="float64")
    for i, expected in enumerate(([0.0, 0.0], [0.0] * 4, [1.0, 0.0, 0.0, 1.0])):
        gradient = bb.grad(lambda *args: bb.interp(*args).sum(), argnums=i)(beyond, bb.asarray(PLACES), fp)
        assert gradient.tolist() == expected
    lines = bb.vmap(bb.interp)(x, bb.stack([bb.asarray(PLACES)] * 2), bb.stack([fp, 2.0 * fp]))
    expected = [np.interp(x[i].numpy(), PLACES, (1.0 + i) * fp.numpy()) for i in range(2)]
    np.testing.assert_allclose(lines.numpy(), expected, rtol=1e-12)


def test_invalid_interpolation_points_are_refused() -> None:
    x: Any = bb.asarray(BETWEEN)
    for xp, fp in (([0.0, 1.0], [1.0]), ([], []), ([[0.0, 1.0]], [[0.0, 1.0]])):
        with pytest.raises(ShapeError, match="interp: xp and fp are vectors of one length, not float64"):
            bb.interp(x, bb.asarray(xp, dtype="float64"), bb.asarray(fp, dtype="float64"))
    with pytest.raises(DTypeError, match="interp: takes a tensor, not list"):
        bb.interp(x, [0.0, 1.0], x[0, :2])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="interp: left is a number"):
        bb.interp(x, bb.asarray(PLACES), bb.asarray(HEIGHTS), left=x)


@pytest.mark.parametrize("name", ["sort", "argsort", "sort_with_indices", "topk", "kthvalue", "median_with_indices"])
def test_bad_input(name: str) -> None:
    more = [1] if name in ("topk", "kthvalue") else []
    with pytest.raises(AxisError, match=rf"{name}: axis 2 is out of range.*float64\[2,3\]"):
        getattr(bb, name)(bb.asarray(REAL), *more, axis=2)
    with pytest.raises(AxisError, match=rf"{name}: axis -1 is out of range for 0 dimensions"):
        getattr(bb, name)(bb.asarray(1.0), *more)
    with pytest.raises(DTypeError, match=rf"{name}: takes a tensor, not list"):
        getattr(bb, name)([1.0], *more)


@pytest.mark.parametrize("method", ["linear", "lower", "higher", "nearest", "midpoint"])
def test_methods_of_quantiles(method: Any) -> None:
    values = np.random.default_rng(0).normal(size=(3, 4, 5))
    x, wanted = bb.asarray(values), [0.0, 0.1, 0.25, 1 / 3, 0.5, 0.625, 0.9, 1.0]
    axes: list[Any] = [None, 0, -1, (0, 2), (1, 2)]
    for axis in axes:
        for q in (wanted, 0.5, (0.375,), []):
            for keepdims in (False, True):
                got = bb.quantile(x, q, axis=axis, keepdims=keepdims, method=method)
                expected = np.quantile(values, q, axis=axis, keepdims=keepdims, method=method)
                np.testing.assert_allclose(got.numpy(), expected, rtol=1e-14, strict=True)
    assert x.astype("float16").quantile(0.3, method=method).dtype is bb.float16
    assert bb.quantile(bb.asarray([3, 1, 2]), 0.5, method=method).item() == 2.0
    lost = bb.quantile(bb.asarray([[1.0, NAN, 2.0], [1.0, 5.0, 2.0]]), [0.0, 0.5], axis=1, method=method)
    np.testing.assert_array_equal(lost.numpy(), [[NAN, 1.0], [NAN, 2.0]])
    for q in (0.3, [0.0, 0.5, 0.9]):
        bb.check_grads(lambda t, q=q: t.quantile(q, axis=(0, 2), method=method), (x,), order=2)


def test_gradients_of_quantiles_go_to_the_selected_elements() -> None:
    x = bb.asarray([4.0, 1.0, 3.0, 2.0]).require_grad()
    shares = {"lower": [0, 0, 0, 1], "higher": [0, 0, 1, 0], "midpoint": [0, 0, 0.5, 0.5]}
    for method, expected in shares.items():
        gradients = x.quantile(0.5, method=method).backward()
        assert x.grad(gradients).tolist() == expected  # type: ignore[union-attr]


@pytest.mark.parametrize("function", [bb.quantile, bb.nanquantile])
@pytest.mark.parametrize("method", ["linear", "hazen", "weibull", "median_unbiased", "interpolated_inverted_cdf"])
def test_derivatives_with_respect_to_q(function: Any, method: str) -> None:
    x = bb.asarray(np.random.default_rng(3).normal(size=(5, 4)))
    for q in (bb.asarray([0.13, 0.31, 0.77], dtype="float64"), bb.asarray(0.437, dtype="float64")):
        for axis in (None, 0, 1):
            bb.check_grads(lambda t, p, a=axis: function(t, p, axis=a, method=method) ** 2.0, (x, q), order=2)


@pytest.mark.parametrize("function", [bb.quantile, bb.nanquantile])
def test_quantiles_of_a_tensor_q(function: Any) -> None:
    """Tracked ones, whose values cannot be read, give the same results."""
    values = np.array([[4.0, 1.0, 3.0, 2.0], [0.5, -1.0, 9.0, 2.0]])
    x, places = bb.asarray(values), bb.asarray([[0.0, 0.25], [0.5, 1.0]], dtype="float64")
    tracked, expected = places.require_grad(), np.quantile(values, places.numpy(), axis=1)
    for q in (places, tracked):
        np.testing.assert_allclose(function(x, q, axis=1).numpy(), expected, rtol=1e-15)
        assert function(x, q, axis=(0, 1), keepdims=True).shape == (2, 2, 1, 1)
    for method in ("lower", "nearest", "midpoint", "inverted_cdf", "averaged_inverted_cdf", "closest_observation"):
        of_tensor = function(x, tracked, axis=1, method=method).numpy()
        np.testing.assert_array_equal(of_tensor, np.quantile(values, places.numpy(), axis=1, method=method))
    assert function(x[0], [tracked[0, 1], 0.5]).tolist() == [1.75, 2.5]
    singles: list[Any] = [places[1, 0], np.float32(0.5), np.array(0.5), [0.5]]
    for one in singles:
        assert function(x[0], one).sum().item() == 2.5
    slope = bb.grad(lambda q: function(x[0], q).sum())(places)
    assert slope.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    by_row = bb.vmap(lambda t, q: function(t, q))(x, bb.asarray([0.5, 1.0]))
    assert by_row.tolist() == [2.5, 9.0]
    slopes = bb.vmap(bb.grad(lambda q: function(x[1], q)))(bb.asarray([0.1, 0.9], dtype="float64"))
    np.testing.assert_allclose(slopes.numpy(), [4.5, 21.0])
    _, tangent = bb.jvp(lambda q: function(x[0], q), (bb.asarray([0.5]),), (bb.ones(1),))
    assert tangent.tolist() == [3.0]
    outside = function(x[0], bb.asarray([-0.1, 1.1, NAN, 0.5]).require_grad())
    np.testing.assert_array_equal(outside.numpy(), [NAN, NAN, NAN, 2.5])
    with pytest.raises(ArgumentError, match=r"quantile: .*between 0 and 1, not at 1.5"):
        function(x, bb.asarray([1.5]))
    with pytest.raises(ShapeError, match=r"quantile: a quantile of no elements"):
        function(bb.zeros(0), tracked)


def test_quantiles_of_a_tensor_q_among_infinities_and_nan() -> None:
    x = bb.asarray([-INF, 1.0, 2.0, INF, INF])
    q = bb.asarray([0.0, 0.1, 0.25, 0.5, 0.6, 0.75, 0.9, 1.0]).require_grad()
    np.testing.assert_array_equal(bb.quantile(x, q).numpy(), [-INF, -INF, 1.0, 2.0, INF, INF, INF, INF])
    lost = bb.asarray([[1.0, NAN, 3.0], [NAN, NAN, NAN]])
    np.testing.assert_array_equal(bb.quantile(lost, q[3], axis=1).numpy(), [NAN, NAN])
    np.testing.assert_array_equal(bb.nanquantile(lost, q[3], axis=1).numpy(), [2.0, NAN])
    one = bb.asarray([7.0], dtype="float16").quantile(q)
    assert one.tolist() == [7.0] * 8
    assert one.dtype is bb.float16


def test_invalid_quantiles_are_refused() -> None:
    x = bb.asarray([[1.0, 2.0]])
    with pytest.raises(ArgumentError, match=r"quantile: method is one of 'linear', .*'midpoint', .*, not 'middle'"):
        bb.quantile(x, 0.5, method="middle")
    with pytest.raises(ArgumentError, match=r"quantile: .*between 0 and 1, not at 1.5. Operand: float32\[1,2\]"):
        bb.quantile(x, 1.5, method="lower")
    with pytest.raises(ShapeError, match=r"quantile: a quantile of no elements has no value. Operand: float32\[0,2\]"):
        bb.quantile(bb.zeros((0, 2)), 0.5, axis=0, method="lower")


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), ()])
@pytest.mark.parametrize("keepdims", [False, True])
def test_modes(axis: Any, keepdims: Any) -> None:
    stats = pytest.importorskip("scipy.stats")
    for values in (np.random.default_rng(1).integers(-2, 3, (3, 4, 5)), np.round(REAL.repeat(20).reshape(4, 5, 6))):
        moved = values.reshape(-1) if axis is None else values
        if axis == ():
            expected, counts = values, np.ones(values.shape)
        else:
            expected, counts = stats.mode(moved, axis=axis, keepdims=False)
        shape = np.sum(values, axis=axis, keepdims=keepdims).shape
        found = bb.asarray(values).mode(axis=axis, keepdims=keepdims)
        assert (found.values.shape, found.counts.shape, found.counts.dtype) == (shape, shape, bb.int64)
        np.testing.assert_array_equal(found.values.numpy(), np.reshape(expected, shape), strict=True)
        np.testing.assert_array_equal(found.counts.numpy(), np.reshape(counts, shape))


def test_gradients_and_limits_of_modes() -> None:
    x = bb.asarray([[1.0, 2.0, 2.0], [5.0, 3.0, 4.0]], dtype="float64").require_grad()
    gradient = x.grad(bb.mode(x, axis=1).values.backward())
    assert gradient is not None
    assert gradient.sum(axis=1).tolist() == [1.0, 1.0]
    assert gradient[:, 0].tolist() == [0.0, 0.0]
    found = bb.mode(bb.asarray([NAN, 2.0, NAN, NAN, 2.0]))
    assert (found.values.item(), found.counts.item()) == (2.0, 2)
    assert bb.mode(bb.asarray(7)).values.item() == 7
    assert bb.mode(bb.zeros((2, 0)), axis=0).values.shape == (0,)
    each = bb.vmap(lambda row: bb.mode(row).values)(bb.asarray([[1, 1, 0], [2, 3, 3]]))
    assert each.tolist() == [1, 3]
    with pytest.raises(ShapeError, match=r"mode: there is no element to choose from. Operand: float32\[2,0\]"):
        bb.mode(bb.zeros((2, 0)), axis=1)
    with pytest.raises(DTypeError, match=r"mode: takes float and int tensors, not bool"):
        bb.mode(bb.asarray(TRUTHS))
