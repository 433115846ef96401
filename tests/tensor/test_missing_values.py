"""Tensor functions that ignore NaN, against NumPy."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, AxisError, DTypeError, ShapeError
from backburn.tensor import sort

GAPS = np.array([[[1.0, np.nan, -3.0, 2.0], [np.nan] * 4, [0.5, 2.5, 2.5, -0.25]], [[4.0, np.nan, np.nan, 1.0]] * 3])
NAMES = ["nansum", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin"]
ALL = [*NAMES, "nanmedian"]
AXES: list[Any] = [None, 0, 1, -1, (0, 2), (0, 1, 2)]


def of_numpy(name: str, x: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about slices that are all NaN
        return getattr(np, name)(x, **options)


@pytest.mark.parametrize("name", ALL)
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
def test_a_correction_is_subtracted_from_the_count_of_numbers(name: str) -> None:
    for correction in (1.0, 0.5, 2.0):
        expected = of_numpy(name, GAPS, axis=-1, correction=correction)
        got = getattr(bb, name)(bb.asarray(GAPS), axis=-1, correction=correction).numpy()
        np.testing.assert_allclose(got[np.isfinite(expected)], expected[np.isfinite(expected)], rtol=1e-12)
        assert not np.isfinite(got[~np.isfinite(expected)]).any()


@pytest.mark.parametrize("name", ALL)
def test_derivatives_ignore_nan(name: str) -> None:
    """First and second derivatives equal those without the NaN elements, and are 0 at NaN."""
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


@pytest.mark.parametrize("name", ALL)
def test_batches_and_other_dtypes(name: str) -> None:
    function = getattr(bb, name)
    x = bb.asarray(GAPS)
    got = bb.vmap(lambda t: function(t, axis=0))(x)
    np.testing.assert_allclose(got.numpy(), function(x, axis=1).numpy(), rtol=1e-12)
    many = np.full(70_000, 1.5, np.float16)  # more than float16 can count
    many[::7] = np.nan
    assert function(bb.asarray(many)).dtype is bb.float16
    if name != "nansum":
        assert function(bb.asarray(many)).item() == of_numpy(name, many.astype(np.float64))
    ints = bb.asarray([[3, -2, 7], [0, 5, -1]])
    plain = getattr(bb, name[3:])(ints, axis=1)
    np.testing.assert_array_max_ulp(function(ints, axis=1).numpy(), plain.numpy(), maxulp=1)
    assert function(ints, axis=1).dtype is plain.dtype


_METHODS = [*sort._METHODS]


@pytest.mark.parametrize("method", _METHODS)
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("q", [0.0, 0.3, 1.0, (0.1, 0.5, 0.75), ()])
def test_quantiles_are_those_of_numpy(q: Any, axis: Any, method: str) -> None:
    generator = np.random.default_rng(0)
    many = np.where(generator.random((4, 5, 6)) < 0.4, np.nan, generator.normal(size=(4, 5, 6)))
    for array in (GAPS, many, many[..., ::-2]):
        for keepdims in (False, True):
            expected = of_numpy("nanquantile", array, q=q, axis=axis, keepdims=keepdims, method=method)
            got = bb.nanquantile(bb.asarray(array), q, axis=axis, keepdims=keepdims, method=method)
            assert got.shape == np.shape(expected)
            np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("method", _METHODS)
def test_quantiles_have_the_derivatives_of_those_without_nan(method: str) -> None:
    x = np.array([[1.0, np.nan, -3.0, 2.0, 0.75], [0.5, 2.5, np.nan, np.nan, -0.25]])

    def loss(function: Any, t: Any) -> Any:
        return (function(t, [0.2, 0.6], axis=-1, method=method) ** 2.0 * bb.asarray([1.0, -2.0])).sum()

    got = bb.grad(lambda t: sum(loss(bb.nanquantile, t[row]) for row in (0, 1)))(bb.asarray(x)).numpy()
    for row in (0, 1):
        place = ~np.isnan(x[row])
        expected = bb.grad(lambda t: loss(bb.quantile, t))(bb.asarray(x[row, place]))
        np.testing.assert_allclose(got[row, place], expected.numpy(), rtol=1e-12)
        assert (got[row, ~place] == 0.0).all()
    present = bb.asarray([3.0, -1.0, 0.5, 2.0])
    bb.check_grads(lambda t: bb.nanquantile(bb.concat([t, bb.asarray([bb.nan])]), 0.3, method=method) ** 2.0,
                   (present.astype("float64"),))  # fmt: skip


def test_quantiles_between_infinities_and_of_other_dtypes() -> None:
    ends = np.array([-np.inf, -np.inf, 1.0, np.nan, np.inf, np.inf])
    for q in (0.0, 0.1, 0.25, 0.5, 0.75, 0.9):
        np.testing.assert_array_equal(bb.nanquantile(bb.asarray(ends), q).item(), bb.quantile(
            bb.asarray(ends[~np.isnan(ends)]), q).item())  # fmt: skip
    half = bb.nanquantile(bb.asarray([1.0, bb.nan, 2.0], dtype="float16"), 0.25)
    assert half.dtype is bb.float16
    assert half.item() == 1.25
    assert bb.nanquantile(bb.asarray([4, 1, 2]), 0.5).item() == 2.0
    rows = bb.vmap(lambda t: bb.nanquantile(t, [0.5, 0.75], axis=0))(bb.asarray(GAPS))
    expected = of_numpy("nanquantile", GAPS, q=[0.5, 0.75], axis=1).swapaxes(0, 1)
    np.testing.assert_allclose(rows.numpy(), expected)
    x: Any = bb.asarray(GAPS)
    wrong: Any = "half"
    for call, error, words in (
        (lambda: bb.nanquantile(x, 1.5), ArgumentError, "nanquantile: a quantile lies between 0 and 1, not at 1.5"),
        (lambda: bb.nanquantile(x, wrong), ArgumentError, "nanquantile: q is a number from 0 to 1 or a sequence"),
        (lambda: bb.nanquantile(x, 0.5, method=wrong), ArgumentError, "nanquantile: method is one of 'linear'"),
        (lambda: bb.nanquantile(bb.zeros((0, 2)), 0.5, axis=0), ShapeError, "nanquantile: a quantile of no elements"),
        (lambda: bb.nanmedian(bb.zeros(0)), ShapeError, "nanmedian: a quantile of no elements"),
        (lambda: bb.nanmedian(x > 0), DTypeError, "nanmedian"),
        (lambda: bb.nanmedian(x, axis=3), AxisError, "nanmedian"),
    ):
        with pytest.raises(error, match=words):
            call()


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


def test_nan_to_num() -> None:
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
