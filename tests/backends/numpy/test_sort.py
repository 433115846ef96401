"""Sorting of many elements on NumPy: the fast methods give the stable order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from backburn_numpy import NumpyBackend, tuning

K = NumpyBackend()
FLOATS = ["float16", "float32", "float64"]
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]
LAYOUTS = [((40, 60), 1), ((40, 60), 0), ((2000,), 0), ((11, 10, 12), 1), ((90, 100), 1), ((7, 40, 60), 1)]
LAYOUTS += [((9001,), 0), ((3, 4000), 1), ((9000, 2), 0)]


def stable(x: Any, axis: int, descending: bool) -> Any:
    """The stable order, by the ranks of the values; NaN last."""
    values = x.astype(np.float64) if x.dtype.kind == "f" else x
    rank = np.unique(values, return_inverse=True, equal_nan=True)[1].reshape(x.shape)
    last = np.isnan(values) if x.dtype.kind == "f" else np.zeros(x.shape, bool)
    return np.argsort(np.where(last, x.size, -rank if descending else rank), axis=axis, kind="stable")


def check(x: Any, axis: int) -> None:
    assert x.size >= tuning.MIN_ELEMENTS_FOR_KEY_SORT
    for descending in (False, True):
        order = K.argsort(x, axis, descending)
        assert order.dtype == np.int64
        np.testing.assert_array_equal(order, stable(x, axis, descending))
        in_order = np.take_along_axis(x, order, axis)
        np.testing.assert_array_equal(K.sort(x, axis, descending), in_order, strict=True)
        for count in (0, 1, 4, 9, x.shape[axis]):
            values, indices = K.topk(x, count, axis, descending)
            first = (*(slice(None),) * axis, slice(count))
            np.testing.assert_array_equal(indices, order[first])
            np.testing.assert_array_equal(values, in_order[first], strict=True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "axis"), LAYOUTS)
def test_floats(dtype: str, shape: tuple[int, ...], axis: int) -> None:
    generator = np.random.default_rng(0)
    distinct = generator.normal(size=shape).astype(dtype)
    check(distinct, axis)
    check(np.round(distinct * 3), axis)
    special = distinct.copy()
    special.flat[:8] = [-0.0, 0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan, math.inf]
    check(special, axis)
    for end in (-math.inf, math.inf):
        check(np.where(distinct > 1, distinct, end).astype(dtype), axis)


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize(("shape", "axis"), LAYOUTS)
def test_integers(dtype: str, shape: tuple[int, ...], axis: int) -> None:
    generator = np.random.default_rng(1)
    if dtype == "bool":
        check(generator.random(shape) > 0.5, axis)
        return
    limits = np.iinfo(dtype)
    wide = generator.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    wide.flat[:2] = [limits.min, limits.max]
    check(wide, axis)
    check(generator.integers(0, 4, shape, dtype=dtype), axis)
    for least in (limits.min, limits.max - 99, limits.max - (1 << 16) + 1):
        if least >= limits.min:
            check(generator.integers(least, min(least + (1 << 16), limits.max), shape, dtype=dtype), axis)


def test_bfloat16_nan_sorts_last() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x = np.array([1.0, math.nan, -2.0, 3.0, math.nan]).astype(bfloat16)
    assert K.argsort(x, 0).tolist() == [2, 0, 3, 1, 4]
    assert K.sort(x, 0, True).astype(np.float32).tolist()[:3] == [3.0, 1.0, -2.0]
    assert K.searchsorted(K.sort(x, 0), np.array([2.0, math.nan]).astype(bfloat16)).tolist() == [2, 3]
    assert math.isnan(K.quantile(x, 0.0, (0,)))
