"""Composed functions with NumPy's names: values against NumPy, derivatives, transforms, and errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import (
    ArgumentError,
    AxisError,
    BackendMismatchError,
    DTypeError,
    GraphError,
    ShapeError,
)
from backburn.tensor import sort

DTYPES = ["float64", "float32", "float16", "int64", "int32"]
SHAPES: list[tuple[int, ...]] = [(1,), (2,), (5,), (3, 4), (1, 6), (2, 3, 4), (4, 1, 2)]
EMPTY: list[tuple[int, ...]] = [(0,), (0, 3), (3, 0), (2, 0, 4)]


def numbers(generator: Any, shape: Any, dtype: str, nan: float = 0.0) -> Any:
    """Return random numbers with ties and zeros; the share ``nan`` of the floats is NaN."""
    drawn = generator.integers(-6, 7, size=shape)
    if dtype.startswith("int"):
        return drawn.astype(dtype)
    return np.where(generator.random(shape) < nan, np.nan, drawn / 4).astype(dtype)


def cases(seed: int, nan: float = 0.0, empty: bool = True) -> Iterator[tuple[Any, Any, Any]]:
    """Yield arrays of many shapes and dtypes with each of their axes, and the generator."""
    generator = np.random.default_rng(seed)
    for dtype in DTYPES:
        for shape in SHAPES + EMPTY * empty:
            for axis in range(-len(shape), len(shape)):
                yield numbers(generator, shape, dtype, nan), axis, generator


def same(ours: Any, theirs: Any, dtype: Any = None, rtol: float | None = None) -> None:
    """Compare shapes, dtypes and values; where NumPy gives float64 for integers, we give the default float dtype."""
    assert ours.shape == np.shape(theirs)
    if dtype is not None:
        assert ours.dtype is dtype
    exact = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3}.get(str(ours.dtype), 0.0)
    tolerance = exact if rtol is None else rtol
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=tolerance, atol=tolerance * 8)


def float_of(x: Any) -> Any:
    """Return the dtype of float results for ``x``."""
    return x.dtype if x.dtype.kind == "float" else bb.float32


# ---- convolutions ----


@pytest.mark.parametrize("name", ["convolve", "correlate"])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int32", "int8", "uint8"])
def test_convolutions_are_those_of_numpy(name: str, mode: str, dtype: str) -> None:
    generator = np.random.default_rng(0)
    for n in range(1, 8):
        for m in range(1, 8):
            a, b = (generator.integers(0, 4, size=k).astype(dtype) for k in (n, m))
            got = getattr(bb, name)(bb.asarray(a), bb.asarray(b), mode=mode)
            same(got, getattr(np, name)(a, b, mode=mode), getattr(bb, dtype))
    assert getattr(bb, name)(bb.asarray([1, 2]), bb.asarray([0.5])).dtype is bb.float32


def test_the_default_modes_are_those_of_numpy() -> None:
    a, b = np.array([1.0, 2.0, 4.0, 8.0]), np.array([1.0, -1.0])
    for name in ("convolve", "correlate"):
        same(getattr(bb, name)(bb.asarray(a), bb.asarray(b)), getattr(np, name)(a, b))
        same(getattr(bb, name)(bb.asarray(a), bb.asarray(b), "same"), getattr(np, name)(a, b, "same"))
    same(bb.vander(bb.asarray(a), 3, True), np.vander(a, 3, True))
    same(bb.rot90(bb.asarray(a[None, None]), 1, (1, 2)), np.rot90(a[None, None], 1, (1, 2)))


def test_nan_and_infinity_spread_to_sums_that_include_them() -> None:
    a, b = np.array([1.0, np.nan, 2.0, np.inf, 3.0, 0.0]), np.array([1.0, 2.0])
    for mode in ("full", "same", "valid"):
        same(bb.convolve(bb.asarray(a), bb.asarray(b), mode=mode), np.convolve(a, b, mode))
    same(bb.convolve(bb.asarray(b), bb.asarray(a[:3]), mode="valid"), np.convolve(b, a[:3], "valid"))
    beyond = bb.convolve(bb.asarray([1.0, 2.0, 3.0]), bb.asarray([math.inf, 1.0]))
    assert beyond.tolist()[:3] == [math.inf] * 3
    assert math.isnan(beyond[3].item())  # NumPy gives 3, as the docstring says


# ---- reductions ----


@pytest.mark.parametrize("name", ["nanprod", "ptp"])
def test_reductions_are_those_of_numpy(name: str) -> None:
    for array, axis, _ in cases(1, 0.3, empty=name == "nanprod"):
        for axes in (axis, None, tuple(range(array.ndim))):
            for keepdims in (False, True):
                got = getattr(bb, name)(bb.asarray(array), axis=axes, keepdims=keepdims)
                # NumPy multiplies in float16; we round the product to it once.
                wide = array.astype("float64") if array.dtype == np.float16 else array
                same(got, getattr(np, name)(wide, axis=axes, keepdims=keepdims))
                assert got.dtype is (bb.int64 if name == "nanprod" and array.dtype.kind == "i" else
                                     bb.asarray(array).dtype)  # fmt: skip


@pytest.mark.parametrize("name", ["nanargmax", "nanargmin"])
def test_indices_of_extrema_are_those_of_numpy_and_minus_one_where_all_is_nan(name: str) -> None:
    for array, axis, generator in cases(2, 0.6, empty=False):
        if array.dtype.kind == "f":  # NumPy replaces NaN by infinities
            array[generator.random(array.shape) < 0.3] = -np.inf
            array[generator.random(array.shape) < 0.3] = np.inf
        for along in (axis, None):
            for keepdims in (False, True):
                nothing = np.isnan(array).all(axis=along, keepdims=True)
                # NumPy, which replaces NaN by an infinity, finds it where all others are infinite.
                finite = np.where(nothing, 0, np.clip(array, -100, 100))
                expected = np.where(nothing, -1, getattr(np, name)(finite, axis=along, keepdims=True))
                if not keepdims:
                    expected = expected.reshape(finite.sum(axis=along).shape)
                same(getattr(bb, name)(bb.asarray(array), axis=along, keepdims=keepdims), expected, bb.int64)


def test_averages_are_those_of_numpy() -> None:
    for array, axis, generator in cases(3, 0.1, empty=False):
        for kind in ("float64", "float32", "int64"):
            x = bb.asarray(array)
            for shape, along in ((array.shape, axis), (array.shape, None), (array.shape[axis], axis)):
                weights = generator.integers(1, 5, size=shape).astype(kind)
                for keepdims in (False, True):
                    expected = np.average(array.astype("float64"), axis=along, weights=weights, returned=True,
                                          keepdims=keepdims)  # fmt: skip
                    got = bb.average(x, axis=along, weights=bb.asarray(weights), returned=True, keepdims=keepdims)
                    dtype = bb.result_type(x.astype(float_of(x)), bb.asarray(weights))
                    for ours, theirs in zip(got, expected, strict=True):
                        same(ours, theirs, dtype if "float" in kind or x.dtype.kind == "float" else bb.float32)
        same(bb.average(x, axis=axis), np.mean(array.astype("float64"), axis=axis), float_of(x))
        mean, count = bb.average(x, axis=axis, returned=True)
        assert mean.dtype is count.dtype
        assert (count == float(array.shape[axis])).all()


def test_weights_of_several_axes_are_in_their_order() -> None:
    generator = np.random.default_rng(4)
    x, weights = generator.normal(size=(2, 3, 4)), generator.random((4, 2))
    for axis in ((2, 0), (-1, 0)):
        got = bb.average(bb.asarray(x), axis=axis, weights=bb.asarray(weights))
        same(got, np.average(x.transpose(2, 0, 1).reshape(8, 3), axis=0, weights=weights.ravel()))
    assert bb.average(bb.asarray([1.0, -1.0]), weights=bb.asarray([1.0, -1.0])).item() == math.inf
    assert math.isnan(bb.average(bb.zeros(0), weights=bb.zeros(0)).item())
    assert bb.average(bb.zeros((2, 0)), axis=0).shape == (0,)


# ---- scans and integrals ----


def test_integrals_are_those_of_numpy() -> None:
    for array, axis, generator in cases(5, 0.1):
        x = bb.asarray(array)
        wide = array.astype("float64")
        same(bb.trapezoid(x, axis=axis, dx=0.5), np.trapezoid(wide, axis=axis, dx=0.5), float_of(x))
        for shape in (array.shape, array.shape[axis]):
            places = np.sort(generator.integers(0, 20, size=shape) / 4, axis=axis if shape == array.shape else 0)
            expected = np.trapezoid(wide, places, axis=axis)
            same(bb.trapezoid(x, bb.asarray(places.astype("float32")), axis=axis).astype("float64"), expected,
                 rtol=5e-3 if array.dtype == np.float16 else 1e-5)  # fmt: skip


def test_unwrapped_angles_are_those_of_numpy() -> None:
    for array, axis, generator in cases(6):
        angles = generator.normal(size=array.shape) * 8.0 if array.dtype == np.float64 else array
        for options in ({}, {"period": 3.0}, {"period": 2.0, "discont": 1.75}, {"period": 5.0, "discont": 0.1}):
            got = bb.unwrap(bb.asarray(angles), axis=axis, **options)
            same(got, np.unwrap(angles.astype("float64"), axis=axis, **options), float_of(got))
        if array.dtype.kind == "i":
            periods: tuple[Any, ...] = (2, 3, 6, np.int64(7))
            for period in periods:
                for discont in (None, 4, 2.5):
                    got = bb.unwrap(bb.asarray(array), axis=axis, period=period, discont=discont)
                    same(got, np.unwrap(array, axis=axis, period=period, discont=discont), bb.asarray(array).dtype)
    kept = bb.unwrap(bb.asarray([0.0, 3.0, bb.nan, 1.0])).tolist()
    assert kept[:2] == [0.0, 3.0]
    assert np.isnan(kept[2:]).all()


# ---- shapes ----


def test_rotations_and_transposes_are_those_of_numpy() -> None:
    for array, axis, _ in cases(7):
        x = bb.asarray(array)
        same(bb.transpose(x), array.transpose())
        order = [*range(array.ndim)]
        order.insert(0, order.pop(axis))
        same(bb.transpose(x, order), array.transpose(order))
        for other in range(array.ndim):
            if other == axis % array.ndim:
                continue
            for k in range(-5, 6):
                same(bb.rot90(x, k, axes=(axis, other)), np.rot90(array, k, axes=(axis, other)), x.dtype)
    assert bb.transpose(bb.asarray(2.0)).shape == ()
    assert bb.rot90(bb.asarray([[True, False]])).tolist() == [[False], [True]]
    turned = bb.rot90(bb.asarray([[1.0, -1.0]]).quantize())
    np.testing.assert_allclose(turned.dequantize().numpy(), [[-1.0], [1.0]], atol=0.01)


def test_symmetric_padding_is_that_of_numpy() -> None:
    for array, axis, generator in cases(8):
        widths = [tuple(int(w) for w in generator.integers(0, n + 1, size=2)) for n in array.shape]
        got = bb.pad(bb.asarray(array), widths, mode="symmetric")
        # NumPy refuses axes without elements, even with widths of 0.
        expected = np.pad(array, widths, mode="symmetric") if array.size else np.pad(array, widths)
        same(got, expected, bb.asarray(array).dtype)
        assert axis < array.ndim
    image = bb.asarray(np.arange(6.0).reshape(1, 1, 2, 3))
    same(bb.nn.Pad(2, mode="symmetric")(image), np.pad(image.numpy(), [(0, 0), (0, 0), (2, 2), (2, 2)], "symmetric"))
    assert bb.pad(bb.asarray([True, False]), 2, mode="symmetric").tolist() == [False, True, True, False, False, True]


# ---- heaviside, vander and linspace ----


def test_heaviside_is_that_of_numpy() -> None:
    generator = np.random.default_rng(9)
    for dtype in DTYPES:
        for shape, other in (((3, 4), (4,)), ((2, 1), (1, 3)), ((), (2,)), ((0,), (0,)), ((5,), ())):
            x, y = numbers(generator, shape, dtype, 0.2), numbers(generator, other, "float32", 0.2)
            same(bb.heaviside(bb.asarray(x), bb.asarray(y)), np.heaviside(x.astype("float64"), y),
                 bb.result_type(bb.asarray(x), bb.float32))  # fmt: skip
    x = np.array([-np.inf, -1.0, -0.0, 0.0, np.inf, np.nan])
    same(bb.heaviside(bb.asarray(x), 0.25), np.heaviside(x, 0.25), bb.float64)
    same(bb.heaviside(0.0, bb.asarray(x)), np.heaviside(0.0, x), bb.float64)
    same(bb.heaviside(bb.asarray([-1, 0, 2]), 1), np.array([0.0, 1.0, 1.0]), bb.float32)


def test_vander_is_that_of_numpy() -> None:
    generator = np.random.default_rng(10)
    for dtype in ("float64", "float32", "int64", "int32"):
        for length in (0, 1, 4):
            for n in (None, 0, 1, 2, 6):
                for increasing in (False, True):
                    x = numbers(generator, (length,), dtype, 0.1)
                    got = bb.vander(bb.asarray(x), n, increasing=increasing)
                    expected = np.vander(x, n, increasing=increasing)
                    same(got, expected, bb.int64 if dtype.startswith("int") else getattr(bb, dtype))


@pytest.mark.parametrize("endpoint", [True, False])
def test_linspace_between_tensors_is_that_of_numpy(endpoint: bool) -> None:
    generator = np.random.default_rng(11)
    for num in (0, 1, 2, 7):
        for shapes in (((), ()), ((3,), ()), ((), (2, 3)), ((2, 1), (3,)), ((0,), (0,))):
            a, b = (numbers(generator, shape, dtype) for shape, dtype in zip(shapes, ("float64", "int64"), strict=True))
            same(bb.linspace(bb.asarray(a), bb.asarray(b), num, endpoint=endpoint),
                 np.linspace(a, b, num, endpoint=endpoint), bb.float64)  # fmt: skip
            same(bb.linspace(bb.asarray(a), 2, num, endpoint=endpoint, dtype="float32"),
                 np.linspace(a, 2, num, endpoint=endpoint), bb.float32)  # fmt: skip
            same(bb.linspace(0.5, bb.asarray(b[None]), num, endpoint=endpoint),
                 np.linspace(0.5, b[None], num, endpoint=endpoint), bb.float32)  # fmt: skip
    ends = bb.asarray([0.1, 1e30]), bb.asarray([0.7, 3e38])
    got = bb.linspace(*ends, 11)
    assert got[0].tolist() == ends[0].tolist()
    assert got[-1].tolist() == ends[1].tolist()
    equal = generator.normal(size=50).astype("float32")
    assert (bb.linspace(bb.asarray(equal), bb.asarray(equal), 9) == bb.asarray(equal)).all()
    half = bb.linspace(bb.asarray(0.0, dtype="float16"), 1.0, 4)
    assert half.dtype is bb.float16
    np.testing.assert_array_equal(half.numpy(), np.linspace(0.0, 1.0, 4).astype("float16"))
    assert bb.linspace(bb.asarray(0), bb.asarray(2), 3).tolist() == [0.0, 1.0, 2.0]


def test_periodic_interpolation_is_that_of_numpy() -> None:
    generator = np.random.default_rng(12)
    for count in (1, 2, 5, 9):
        for period in (1.0, -2.5, 7, 0.3):
            xp, fp = generator.normal(size=count) * 3, generator.normal(size=count)
            x = np.concatenate([generator.normal(size=20) * 5, xp])
            same(bb.interp(bb.asarray(x), bb.asarray(xp), bb.asarray(fp), period=period),
                 np.interp(x, xp, fp, period=period), bb.float64, rtol=1e-8)  # fmt: skip
    degrees = bb.interp(bb.asarray([-180, 0, 190]), bb.asarray([190, -190, 350, -350]), bb.asarray([5, 10, 3, 4]),
                        period=360)  # fmt: skip
    np.testing.assert_allclose(degrees.numpy(), np.interp([-180, 0, 190], [190, -190, 350, -350], [5, 10, 3, 4],
                                                          period=360), rtol=1e-6)  # fmt: skip


# ---- quantiles ----


@pytest.mark.parametrize("method", sort._METHODS)
def test_quantiles_are_those_of_numpy(method: Any) -> None:
    generator = np.random.default_rng(13)
    shares = [0.0, 0.1, 0.25, 0.3, 0.5, 2 / 3, 0.75, 0.9, 1.0]
    for length in (1, 2, 3, 4, 5, 8, 10, 11):
        # Float64 data: NumPy does not round the positions of the quantiles.
        x = generator.normal(size=(length, 3))
        x[0, 2] = np.nan
        expected = np.quantile(x, shares, axis=0, method=method)
        same(bb.quantile(bb.asarray(x), shares, axis=0, method=method), expected, bb.float64)
        same(bb.nanquantile(bb.asarray(x[:, :2]), shares, axis=0, method=method), expected[:, :2], bb.float64)
        for keepdims in (False, True):
            same(bb.quantile(bb.asarray(x[:, :2]), 0.4, method=method, keepdims=keepdims),
                 np.quantile(x[:, :2], 0.4, method=method, keepdims=keepdims))  # fmt: skip
    ints = bb.quantile(bb.asarray([4, 1, 3, 2]), 0.5, method=method)
    assert ints.dtype is bb.float32
    assert ints.item() == np.quantile([4, 1, 3, 2], 0.5, method=method)
    ends = bb.asarray([-math.inf, -math.inf, 1.0, math.inf, math.inf])
    assert [bb.quantile(ends, q, method=method).item() for q in (0.0, 0.5, 1.0)][::2] == [-math.inf, math.inf]
    bb.check_grads(lambda t: bb.quantile(t, [0.2, 0.55], axis=0, method=method) ** 2.0,
                   (bb.asarray(generator.normal(size=(6, 2))),))  # fmt: skip


# ---- derivatives and transforms ----

RANDOM = np.random.default_rng(14)
X, Y = bb.asarray(RANDOM.normal(size=(4, 5))), bb.asarray(RANDOM.normal(size=(4, 5)))
V, W = bb.asarray(RANDOM.normal(size=7)), bb.asarray(RANDOM.normal(size=3))
KNOTS = bb.asarray([0.1, 2.3, 0.9, 1.4], dtype="float64")
#: Functions with float64 operands at which they are smooth.
SMOOTH: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    **{f"{name} {mode}": (lambda x, y, name=name, mode=mode: getattr(bb, name)(x, y, mode=mode), (V, W))
       for name in ("convolve", "correlate") for mode in ("full", "same", "valid")},
    "correlate of the shorter": (lambda x, y: bb.correlate(y, x, mode="full"), (V, W)),
    "nanprod": (lambda x: bb.nanprod(bb.where(x > 1.0, bb.nan, x), axis=1), (X,)),
    "ptp": (lambda x: bb.ptp(x, axis=0), (X,)),
    "average": (lambda x, w: bb.average(x, axis=1, weights=bb.exp(w)), (X, Y)),
    "average of axes": (lambda x, w: bb.average(x, axis=(1, 0), weights=bb.exp(w).T), (X, Y)),
    "average and weights": (
        lambda x, w: bb.add(*bb.average(x, axis=0, weights=bb.exp(w[:, 0]), returned=True)), (X, Y)
    ),
    "trapezoid": (lambda y, x: bb.trapezoid(y, x, axis=0), (X, Y)),
    "trapezoid of places": (lambda y, x: bb.trapezoid(y, x, axis=1), (X, Y[0])),
    "unwrap": (lambda x: bb.unwrap(x * 5.0, axis=1), (X,)),
    "heaviside": (lambda x, y: bb.heaviside(bb.where(x > 0.0, 0.0, x), y), (X, Y)),
    "vander": (lambda x: bb.vander(x, 4), (V,)),
    "vander at 0": (lambda x: bb.vander(x - x, 4) + bb.vander(x * 0.0, 3, increasing=True)[:, :1], (V,)),
    "rot90": (lambda x: bb.rot90(x) * bb.rot90(x, 2).T, (X,)),
    "transpose": (lambda x: bb.transpose(x) ** 2.0, (X,)),
    "pad": (lambda x: bb.pad(x, ((2, 0), (1, 5)), mode="symmetric"), (X,)),
    "linspace": (lambda x, y: bb.linspace(x, y, 4), (X, Y[0])),
    "linspace to a number": (lambda x: bb.linspace(x, 3.0, 3, endpoint=False), (X,)),
    "interp": (lambda x, xp, fp: bb.interp(x, xp, fp, period=2.0), (V, KNOTS, X[0, :4])),
}  # fmt: skip


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_are_those_of_central_differences(name: str) -> None:
    function, arguments = SMOOTH[name]
    bb.check_grads(lambda *a: bb.sin(function(*a)), arguments)


@pytest.mark.parametrize("name", SMOOTH)
def test_transforms_give_the_same(name: str) -> None:
    function, arguments = SMOOTH[name]
    batches = [bb.stack([x, x * 1.25, -x]) for x in arguments]
    each = [function(*(x[i] for x in batches)) for i in range(3)]
    mapped = bb.vmap(function)(*batches)
    np.testing.assert_allclose(mapped.numpy(), bb.stack(each).numpy(), rtol=1e-9, atol=1e-12)
    one = bb.vmap(lambda x: function(x, *arguments[1:]))(batches[0])
    np.testing.assert_allclose(one[0].numpy(), each[0].numpy(), rtol=1e-9, atol=1e-12)
    recorded = bb.capture(function, state=False, on_fallback="error")
    for i in (0, 0, 0, 1):
        got = recorded(*(x[i].to("capture(numpy)") for x in batches))
        np.testing.assert_allclose(got.numpy(), each[i].numpy(), rtol=1e-9, atol=1e-12)


def test_derivatives_of_piecewise_constant_functions_and_vmap() -> None:
    x = bb.asarray([-1.0, 0.0, 2.0, bb.nan])
    assert bb.grad(lambda t: bb.heaviside(t, 0.5)[:3].sum())(x).tolist() == [0.0] * 4
    assert bb.grad(lambda t: bb.nanprod(t))(x).tolist() == [0.0, -2.0, 0.0, 0.0]
    found = bb.vmap(lambda t: bb.nanargmax(t, axis=0))(bb.asarray([[1.0, bb.nan, 4.0], [bb.nan] * 3, [-bb.inf] * 3]))
    assert found.tolist() == [2, -1, 0]
    assert bb.vmap(bb.average)(bb.ones((2, 3))).tolist() == [1.0, 1.0]
    shifted = bb.grad(lambda t: (bb.unwrap(t) * bb.asarray([1.0, 2.0, 3.0])).sum())(bb.asarray([0.0, 6.0, 1.0]))
    assert shifted.tolist() == [1.0, 2.0, 3.0]


# ---- errors ----

F, I, M = bb.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), bb.asarray([1, 2, 3]), bb.asarray([True, False])
WRONG: Any = "half"
ERRORS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: bb.convolve(F, F), ShapeError, r"convolve: takes two vectors that have elements.*float32\[2,3\]"),
    (lambda: bb.correlate(I, bb.zeros(0)), ShapeError, r"correlate: takes two vectors.*int64\[3\].*float32\[0\]"),
    (lambda: bb.convolve(I, I, mode=WRONG), ArgumentError, "convolve: mode is one of 'full', 'same', 'valid', not"),
    (lambda: bb.convolve(M, M), DTypeError, r"convolve.*bool\[2\]"),
    (lambda: bb.correlate(F[0], I, mode=WRONG), ArgumentError, "correlate: mode is one of"),
    (lambda: bb.convolve([1.0], F[0]), DTypeError, "convolve: takes a tensor, not list"),  # type: ignore[arg-type]
    (lambda: bb.vander(F), ShapeError, r"vander: takes a vector.*float32\[2,3\]"),
    (lambda: bb.vander(I, -1), ArgumentError, "vander: n is an integer of at least 0, not -1"),
    (lambda: bb.vander(I, 2, increasing=WRONG), ArgumentError, "vander: increasing is True or False"),
    (lambda: bb.nanprod(F, axis=2), AxisError, "nanprod: axis 2"),
    (lambda: bb.nanargmax(F, axis=2), AxisError, "nanargmax: axis 2"),
    (lambda: bb.nanargmin(bb.zeros((0, 2)), axis=0), ShapeError, "no element to choose from"),
    (lambda: bb.nanargmax(M), DTypeError, r"nanargmax.*bool\[2\]"),
    (lambda: bb.ptp(bb.zeros(0)), ShapeError, "no element to choose from"),
    (lambda: bb.ptp(M), DTypeError, r"ptp.*bool\[2\]"),
    (lambda: bb.average(M), DTypeError, r"average.*bool\[2\]"),
    (lambda: bb.average(F, weights=I), ShapeError, r"average: weights have the shape of x.*\[2,3\].*\[3\]"),
    (lambda: bb.average(F, axis=0, weights=I), ShapeError, r"that of its axes \[0\]"),
    (lambda: bb.average(F, 1, returned=WRONG), ArgumentError, "average: returned is True or False"),
    (lambda: bb.average(F, dim=1), TypeError, "here: axis"),  # type: ignore[call-overload]
    (lambda: bb.trapezoid(F, I, axis=0), ShapeError, r"trapezoid: x has 2 places along the axis"),
    (lambda: bb.trapezoid(F, axis=2), AxisError, "trapezoid: axis 2"),
    (lambda: bb.trapezoid(F, dx=WRONG), ArgumentError, "trapezoid: dx is a number"),
    (lambda: bb.trapezoid(bb.asarray(1.0)), AxisError, "trapezoid"),
    (lambda: bb.trapezoid(M), DTypeError, r"trapezoid.*bool\[2\]"),
    (lambda: bb.unwrap(F, period=0.0), ArgumentError, "unwrap: period is a finite number above 0"),
    (lambda: bb.unwrap(F, period=math.inf), ArgumentError, "unwrap: period is a finite number above 0"),
    (lambda: bb.unwrap(F, axis=2), AxisError, "unwrap: axis 2"),
    (lambda: bb.unwrap(F, discont=WRONG), ArgumentError, "unwrap: discont is a number"),
    (lambda: bb.unwrap(bb.asarray([1], dtype="uint8")), DTypeError, r"unwrap: differences of unsigned.*uint8\[1\]"),
    (lambda: bb.heaviside(M, M), DTypeError, r"heaviside.*bool\[2\]"),
    (lambda: bb.heaviside(F, I[:2]), ShapeError, r"heaviside: cannot broadcast.*float32\[2\]"),
    (lambda: bb.heaviside(1.0, 0.5), ArgumentError, "heaviside: at least one operand must be a tensor"),
    (lambda: bb.rot90(F, axes=(0, 0)), AxisError, r"rot90: axes are two different axes, not \[0, 0\]"),
    (lambda: bb.rot90(F, axes=(0, -2)), AxisError, "rot90: axes are two different axes"),
    (lambda: bb.rot90(I), AxisError, "rot90: axis 1"),
    (lambda: bb.rot90(F, WRONG), ArgumentError, "rot90: k is an integer"),
    (lambda: bb.transpose(F, (0, 0)), AxisError, r"transpose: axes are an order of all axes, not \[0, 0\]"),
    (lambda: bb.transpose(F, (0,)), AxisError, "transpose: axes are an order of all axes"),
    (lambda: bb.transpose(F, (0, 2)), AxisError, "transpose: axis 2"),
    (lambda: bb.transpose(F, 0, 1), TypeError, r"several axes are one argument"),  # type: ignore[arg-type]
    (lambda: bb.pad(F, ((3, 0), (0, 0)), mode="symmetric"), ShapeError, "widths from 0 to the 2 elements of axis 0"),
    (lambda: bb.pad(I, -1, mode="symmetric"), ShapeError, "mode 'symmetric' takes widths from 0 to the 3 elements"),
    (lambda: bb.linspace(F, I[:2], 3), ShapeError, r"linspace: .*float32\[2,3\].*int64\[2\]"),
    (lambda: bb.linspace(M, M, 3), DTypeError, r"linspace.*bool\[2\]"),
    (lambda: bb.linspace(F, 1, 3, dtype="int64"), DTypeError, "linspace"),
    (lambda: bb.linspace(F, 1, -1), ShapeError, "linspace"),
    (lambda: bb.linspace(F, 1, 3, backend="null"), BackendMismatchError, "linspace: the numbers are on the backend"),
    (lambda: bb.interp(F, I, I, period=0.0), ArgumentError, "interp: period is a finite number other than 0"),
    (lambda: bb.interp(F, I, I, period=1.0, left=0.0), ArgumentError, "without left and right"),
    (lambda: bb.interp(F, I, I, period=WRONG), ArgumentError, "interp: period is a"),
    (lambda: bb.interp(F, F, F, period=1.0), ShapeError, "interp: xp and fp are vectors"),
    (lambda: bb.quantile(F, 0.5, method=WRONG), ArgumentError, "quantile: method is one of 'linear'"),
    (lambda: bb.quantile(F, 1.5, method="hazen"), ArgumentError, "a quantile lies between 0 and 1, not at 1.5"),
    (lambda: bb.quantile(bb.zeros(0), 0.5, method="weibull"), ShapeError, "quantile: a quantile of no elements"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), ERRORS)
def test_errors_say_what_is_wrong(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


# ---- opt_einsum ----


@pytest.mark.parametrize("equation", ["ij,jk,kl->li", "ij,jk,jl->ikl", "ij,jk,kl->", "ij,jk,ki->k"])
def test_opt_einsum_contracts_tensors(equation: str) -> None:
    opt_einsum = pytest.importorskip("opt_einsum")
    generator = np.random.default_rng(15)
    lengths = {"i": 2, "j": 3, "k": 4, "l": 5}
    arrays = [generator.normal(size=[lengths[c] for c in part]) for part in equation.split("->")[0].split(",")]
    tensors = [bb.asarray(a).require_grad() for a in arrays]
    for optimize in ("auto", "greedy", "optimal"):
        got = opt_einsum.contract(equation, *tensors, optimize=optimize)
        assert isinstance(got, bb.FloatTensor)
        np.testing.assert_allclose(got.numpy(), np.einsum(equation, *arrays), rtol=1e-12)
        grads, expected = got.sum().backward(), bb.einsum(equation, *tensors).sum().backward()
        for x in tensors:
            np.testing.assert_allclose(bb.asarray(x.grad(grads)).numpy(), bb.asarray(x.grad(expected)).numpy())
    with pytest.raises(GraphError, match=r"numpy.einsum makes an array .* write bb.einsum"):
        opt_einsum.contract(equation, *tensors, optimize=False)
    constants = [t.detach() for t in tensors]
    assert not isinstance(opt_einsum.contract(equation, *constants, optimize=False), bb.Tensor)
