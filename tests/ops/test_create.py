"""Creating, reading and casting primitives: cases beyond the samples."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from backburn.autodiff import Autodiff
from backburn.backend.registry import load_backend
from backburn.base.dtypes import FLOATS, INTS, DType, bool_, float16, float32, float64, int8, int64, uint64
from backburn.base.errors import ArgumentError, DTypeError
from backburn.ops.creation import arange_length

K: Any = load_backend("numpy")


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, bool_])
def test_every_dtype_converts_both_ways(dtype: DType) -> None:
    host = np.array([[0, 1], [1, 1]]).astype(dtype.dtype)
    x = K.from_numpy(host)
    assert K.dtype(x) is dtype
    np.testing.assert_array_equal(K.to_numpy(x), host, strict=True)
    for make in (K.zeros, K.ones, K.empty):
        assert K.dtype(make((2,), dtype)) is dtype
    assert K.dtype(K.full((2,), 1, dtype)) is K.dtype(K.eye(2, 2, 0, dtype)) is dtype
    if dtype is not bool_:
        assert K.dtype(K.arange(0, 3, 1, dtype)) is dtype
        assert K.to_numpy(K.arange(0, 3, 1, dtype)).astype(int).tolist() == [0, 1, 2]


def test_host_data_are_copied_both_ways() -> None:
    host = np.arange(6.0).reshape(2, 3)
    for view in (host, host.T, host[:, ::-1]):
        x = K.from_numpy(view)
        out = K.to_numpy(x)
        assert not np.shares_memory(x, host)
        assert not np.shares_memory(out, x)
        np.testing.assert_array_equal(out, view)
    assert K.to_numpy(K.broadcast_to(K.from_numpy(host), (2, 2, 3))).flags.writeable


def test_byte_order_and_subclasses_become_native_arrays() -> None:
    class Sub(np.ndarray):
        pass

    swapped = np.arange(3, dtype=np.dtype(np.float32).newbyteorder())
    for host in (swapped, np.arange(3, dtype=np.float32).view(Sub)):
        x = K.from_numpy(host)
        assert type(x) is np.ndarray
        assert K.dtype(x) is float32
        assert x.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "host", [np.array(["a"]), np.array([None]), np.array(["2020-01-01"], "M8[D]"), np.zeros(2, "i4,i4")]
)
def test_host_data_without_a_dtype_is_refused(host: Any) -> None:
    with pytest.raises(DTypeError, match="not a dtype"):
        K.from_numpy(host)


def test_to_numpy_many() -> None:
    outer: Any = Autodiff(K)
    tracked = outer.set_require_grad(outer.from_inner(np.array([1.0, 2.0])), True)
    read = outer.to_numpy_many([tracked, np.array([True]), K.quantize(np.ones(2)), tracked])
    assert type(read) is tuple
    assert [type(a) for a in read] == [np.ndarray] * 4
    assert [a.tolist() for a in read] == [[1, 2], [True], [1, 1], [1, 2]]
    assert not np.shares_memory(read[0], read[3])
    assert K.to_numpy_many([]) == ()


@pytest.mark.parametrize("start", FLOATS)
@pytest.mark.parametrize("end", FLOATS)
def test_a_cast_between_floats_has_a_gradient(start: DType, end: DType) -> None:
    outer: Any = Autodiff(K)
    x = outer.set_require_grad(outer.from_inner(np.array([1.0, -2.0]).astype(start.dtype)), True)
    y = outer.astype(x, end)
    assert outer.dtype(y) is end
    g = outer.grad(x, outer.backward(y))
    assert K.dtype(g) is start
    assert g.astype(float).tolist() == [1, 1]


def test_a_cast_to_another_kind_ends_the_graph() -> None:
    outer: Any = Autodiff(K)
    x = outer.set_require_grad(outer.from_inner(np.array([1.0, -2.0])), True)
    for dtype in (int64, bool_):
        assert outer.dtype(outer.astype(x, dtype)) is dtype
    assert not outer.is_tracked(outer.astype(np.array([1, 2]), float32))


def test_casts_of_extremes() -> None:
    big = np.array([1e300, -1e300, 1e-300, np.inf, np.nan])
    assert K.astype(big, float32).tolist()[:4] == [np.inf, -np.inf, 0.0, np.inf]
    assert K.astype(big, float16).dtype == np.float16
    assert K.astype(big, bool_).tolist() == [True] * 5
    assert K.astype(big, int8).shape == (5,), "unspecified values, but no error"
    assert K.astype(np.array([2**64 - 1], np.uint64), int64).tolist() == [-1]
    assert K.astype(np.array([-1]), uint64).tolist() == [2**64 - 1]
    assert K.astype(np.array([0.5, 0.0]).astype(ml_dtypes.bfloat16), bool_).tolist() == [True, False]


def test_the_length_of_arange() -> None:
    assert arange_length(0, 10**30, 10**29) == 10
    assert arange_length(0.0, 1.0, 0.1) == 10
    assert arange_length(1, 0, 1) == 0
    for start, stop, step in ((0, 1, 0), (0.0, np.inf, 1.0), (0.0, np.nan, 1.0)):
        with pytest.raises(ArgumentError, match="finite and step not 0"):
            arange_length(start, stop, step)


def test_a_long_float32_range_does_not_drift() -> None:
    x = K.arange(0.0, 100_000.0, 0.1, float32)
    np.testing.assert_array_equal(x, (np.arange(1_000_000) * 0.1).astype(np.float32))


@pytest.mark.parametrize("dtype", [float16, float32, float64])
def test_linspace_ends_exactly(dtype: Any) -> None:
    for start, stop, num in ((0.0, 0.1, 7), (-1.0, 1.0, 49), (1.0, 1.0, 3), (5.0, -0.3, 3000)):
        x = K.linspace(start, stop, num, True, dtype)
        assert x[0] == dtype.dtype.type(start)
        assert x[-1] == dtype.dtype.type(stop)
        assert K.dtype(x) is dtype
