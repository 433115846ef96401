"""Tensor functions: what leaves out NaN, against NumPy."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, AxisError, DTypeError, ShapeError

GAPS = np.array([[[1.0, np.nan, -3.0, 2.0], [np.nan] * 4, [0.5, 2.5, 2.5, -0.25]], [[4.0, np.nan, np.nan, 1.0]] * 3])
NAMES = ["nansum", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin"]
AXES: list[Any] = [None, 0, 1, -1, (0, 2), (0, 1, 2)]


def of_numpy(name: str, x: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of slices that are all NaN
        return getattr(np, name)(x, **options)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("keepdims", [False, True])
def test_values_are_those_of_numpy(name: str, axis: Any, keepdims: bool) -> None:
    infinite = GAPS[:, :1] * np.array([np.inf, 1.0, 1.0, 1.0])
    for array in (GAPS, GAPS[..., ::-2], np.where(np.isnan(GAPS), 7.0, GAPS), infinite):
        expected = of_numpy(name, array, axis=axis, keepdims=keepdims)
        got = getattr(bb, name)(bb.asarray(array), axis=axis, keepdims=keepdims)
        assert got.shape == np.shape(expected)
        assert got.dtype is bb.float64
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["nanvar", "nanstd"])
def test_a_correction_counts_what_is_there(name: str) -> None:
    for correction in (1.0, 0.5, 2.0):
        expected = of_numpy(name, GAPS, axis=-1, correction=correction)
        got = getattr(bb, name)(bb.asarray(GAPS), axis=-1, correction=correction).numpy()
        np.testing.assert_allclose(got[np.isfinite(expected)], expected[np.isfinite(expected)], rtol=1e-12)
        assert not np.isfinite(got[~np.isfinite(expected)]).any()


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_are_those_of_what_is_there(name: str) -> None:
    """Which is the same as without the others, at first and second order, and 0 at NaN."""
    x = np.array([[1.0, np.nan, -3.0, 2.0], [0.5, 2.5, np.nan, -0.25]])
    present = [row[~np.isnan(row)] for row in x]
    plain, skipping = getattr(bb, name[3:]), getattr(bb, name)
    weights = bb.asarray([0.5, -2.0])

    def whole(t: Any) -> Any:
        return (skipping(t, axis=1) ** 2.0 * weights).sum()

    with bb.use_backend("autodiff(autodiff(numpy))"):
        got = bb.grad(whole)(bb.asarray(x)).numpy()
        second = bb.grad(lambda t: (bb.grad(whole)(t) ** 2.0).sum())(bb.asarray(x)).numpy()
        for row, values in enumerate(present):
            one = lambda t, row=row: plain(t) ** 2.0 * weights[row]
            twice = lambda t, one=one: (bb.grad(one)(t) ** 2.0).sum()
            place = ~np.isnan(x[row])
            np.testing.assert_allclose(got[row, place], bb.grad(one)(bb.asarray(values)).numpy(), rtol=1e-12)
            np.testing.assert_allclose(second[row, place], bb.grad(twice)(bb.asarray(values)).numpy(), rtol=1e-12)
    assert (got[np.isnan(x)] == 0.0).all()
    assert (second[np.isnan(x)] == 0.0).all()
    empty = bb.asarray([[np.nan, np.nan], [1.0, 1.0]])
    assert bb.grad(lambda t: skipping(t, axis=1)[1])(empty)[0].tolist() == [0.0, 0.0]
    tangent = bb.jvp(whole, (bb.asarray(x),), (bb.ones((2, 4), dtype="float64"),))[1]
    assert tangent.item() == pytest.approx(got.sum())


@pytest.mark.parametrize("name", NAMES)
def test_batches_and_other_dtypes(name: str) -> None:
    function = getattr(bb, name)
    x = bb.asarray(GAPS)
    got = bb.vmap(lambda t: function(t, axis=0))(x)
    np.testing.assert_allclose(got.numpy(), function(x, axis=1).numpy(), rtol=1e-12)
    many = np.full(70_000, 1.5, np.float16)  # as many as float16 does not count
    many[::7] = np.nan
    assert function(bb.asarray(many)).dtype is bb.float16
    if name != "nansum":
        assert function(bb.asarray(many)).item() == of_numpy(name, many.astype(np.float64))
    ints = bb.asarray([[3, -2, 7], [0, 5, -1]])
    assert function(ints, axis=1).tolist() == getattr(bb, name[3:])(ints, axis=1).tolist()
    assert function(ints, axis=1).dtype is getattr(bb, name[3:])(ints, axis=1).dtype


def test_errors_name_the_function() -> None:
    x: Any = bb.asarray(GAPS)
    for name in NAMES:
        with pytest.raises(AxisError, match=f"{name}: "):
            getattr(bb, name)(x, axis=3)
        quantized = bb.asarray([1.0, 2.0]).quantize()
        assert getattr(bb, name)(quantized).item() == pytest.approx(getattr(bb, name[3:])(quantized).item())
    for name in ("nanmax", "nanmin"):
        with pytest.raises(DTypeError, match=f"{name}: "):
            getattr(bb, name)(x > 0.0)
        with pytest.raises(ShapeError):
            getattr(bb, name)(bb.zeros((0,)))
    with pytest.raises(ArgumentError, match="nanvar: correction is a number"):
        bb.nanvar(x, correction="1")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="nan_to_num: posinf is a number"):
        bb.nan_to_num(x, posinf=x)


def test_numbers_in_the_place_of_nan() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1.5, -0.0])
    for dtype in ("float64", "float32", "float16"):
        cases: list[dict[str, Any]] = [{}, {"nan": 2.0}, {"posinf": 3.0, "neginf": -4.0}]
        for options in cases:
            given = x.astype(dtype)
            got = bb.nan_to_num(bb.asarray(given), **options).numpy()
            assert got.dtype == dtype
            np.testing.assert_array_equal(got, np.nan_to_num(given, **options))
            assert math.copysign(1.0, got[-1]) == -1.0
    assert bb.nan_to_num(bb.asarray(x, dtype=bb.bfloat16)).tolist()[1] == bb.finfo(bb.bfloat16).max
    assert bb.grad(lambda t: bb.nan_to_num(t, posinf=1.0, neginf=1.0).sum())(bb.asarray(x)).tolist() == [0, 0, 0, 1, 1]
    assert bb.nan_to_num(bb.asarray([1, 2])).tolist() == [1, 2]
    assert bb.vmap(bb.nan_to_num)(bb.asarray([[np.nan], [2.0]])).tolist() == [[0.0], [2.0]]
