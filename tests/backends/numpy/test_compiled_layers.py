"""Compiled kernels of layers, at every instruction set of the processor, compared with NumPy."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np
import pytest
from tests.helpers.kernels import BASE, SPECIAL, USABLE, both, needs_kernels, numbers, use_level

import backburn as bb
from backburn.base.errors import OutOfRangeError
from backburn.ops.table import OPERATIONS
from backburn_numpy import compiled, tuning
from backburn_numpy.convolution import kernels
from backburn_numpy.runtime import threads

ELEMENTWISE = ["sigmoid", "log_sigmoid", "softplus", "silu", "gelu"]


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_activations_of_every_length(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (*range(1, 70), 1000):
        x = numbers(count, seed=count)
        got, expected = both(monkeypatch, name, x)
        np.testing.assert_allclose(got[0], expected[0], rtol=2e-6, atol=1e-38)
    strided = numbers(200)[::-3]
    np.testing.assert_array_equal(getattr(BASE, name)(strided), getattr(BASE, name)(strided.copy()))


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_activations_of_special_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.tile(SPECIAL, 5)
    got, expected = both(monkeypatch, name, x)
    np.testing.assert_allclose(got[0], expected[0].astype(np.float32), rtol=2e-5, atol=1e-37)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_and_its_gradient(approximate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, grad = np.linspace(-20, 20, 4001, dtype=np.float32), numbers(4001)
    for name, operands in (("gelu", (x,)), ("gelu_backward", (grad, x))):
        got, expected = both(monkeypatch, name, *operands, approximate=approximate)
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-5, atol=1e-7)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_every_width(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (*range(1, 40), 300):
        x, grad = numbers(5, width, seed=width, spread=20.0), numbers(5, width)
        got, expected = both(monkeypatch, name, x, axis=1)
        np.testing.assert_allclose(got[0], expected[0], rtol=3e-5, atol=1e-6)
        got, expected = both(monkeypatch, f"{name}_backward", grad, expected[0].astype(np.float32), axis=1)
        np.testing.assert_allclose(got[0], expected[0], rtol=3e-5, atol=2e-6)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((5, 1), 0), ((3, 2), 0), ((1, 70), 0), ((4, 7, 3), 1), ((2, 9, 5, 13), 1), ((2, 600, 64), 1), ((3, 4, 130), 0)],
)
def test_softmax_and_cross_entropy_of_columns(
    shape: Any, axis: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, grad = (numbers(*shape, seed=i, spread=8.0).astype(dtype) for i in range(2))
    loose: dict[str, Any] = {"rtol": 3e-5, "atol": 3e-5} if dtype is np.float32 else {"rtol": 3e-3, "atol": 2e-2}
    turned = np.asfortranarray(x)
    for name in ("softmax", "log_softmax"):
        got, expected = both(monkeypatch, name, x, axis=axis)
        np.testing.assert_allclose(got[0], expected[0], **loose)
        np.testing.assert_array_equal(getattr(BASE, name)(turned, axis=axis), got[0])
        got, expected = both(monkeypatch, f"{name}_backward", grad, expected[0].astype(dtype), axis=axis)
        np.testing.assert_allclose(got[0], expected[0], **loose)
    places = (*shape[:axis], *shape[axis + 1 :])
    labels = np.random.default_rng(0).integers(0, shape[axis], places)
    of_losses = numbers(*places, seed=3).astype(dtype)
    got, expected = both(monkeypatch, "label_cross_entropy", x, labels, axis=axis)
    np.testing.assert_allclose(got[0], expected[0], **loose)
    assert got[0].dtype == dtype
    got, expected = both(monkeypatch, "label_cross_entropy_backward", of_losses, x, labels, axis=axis)
    np.testing.assert_allclose(got[0], expected[0], **loose)
    for wrong in (-1, shape[axis]):
        with pytest.raises(OutOfRangeError, match=f"the label {wrong} is none"):
            BASE.label_cross_entropy(x, np.full(places, wrong), axis=axis)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_columns_with_infinities_and_nan_equal_rows() -> None:
    x = numbers(6, 50)
    x[0, 3], x[1, 4], x[2, :], x[3, 5], x[4, :5], x[5, 0] = np.nan, -np.inf, -np.inf, np.inf, -np.inf, np.nan
    labels = np.array([1, 4, 0, 1, 7, 9])
    for name in ("softmax", "log_softmax"):
        rows, columns = getattr(BASE, name)(x, axis=1), getattr(BASE, name)(x.T.copy(), axis=0)
        np.testing.assert_allclose(columns.T, rows, rtol=1e-5, atol=1e-6)
    of_rows, of_columns = (BASE.label_cross_entropy(y, labels, axis=a) for a, y in ((1, x), (0, x.T.copy())))
    np.testing.assert_allclose(of_columns, of_rows, rtol=1e-5)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_small_terms_of_columns_are_not_rounded_away() -> None:
    x = np.full((60_000, 3), -18.0, np.float32)
    x[7] = 0.0
    exact = np.log1p(59_999 * np.exp(-18.0))
    np.testing.assert_allclose(-BASE.log_softmax(x, axis=0)[7], exact, rtol=1e-3)
    np.testing.assert_allclose(BASE.label_cross_entropy(x, np.array([7, 7, 7]), axis=0), exact, rtol=1e-5)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_rows_with_infinities_and_nan() -> None:
    x = numbers(6, 50)
    x[0, 3], x[1, 4], x[2, :], x[3, 5], x[4, :5] = np.nan, -np.inf, -np.inf, np.inf, -np.inf
    y = BASE.softmax(x, axis=1)
    assert np.isnan(y[0]).all()
    assert np.isnan(y[2]).all()
    assert np.isnan(y[3]).any()
    assert y[1, 4] == 0
    assert (y[4, :5] == 0).all()
    np.testing.assert_allclose(y[[1, 4, 5]].sum(1), 1, rtol=1e-6)
    losses = BASE.label_cross_entropy(x, np.array([1, 4, 0, 1, 7, 9]), axis=1)
    assert losses[1] == np.inf
    assert np.isfinite(losses[[4, 5]]).all()
    assert np.isnan(losses[[0, 2]]).all()


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_layer_norm_of_every_width(offset: float, monkeypatch: pytest.MonkeyPatch) -> None:
    for rows, width in ((1, 1), (3, 2), (150, 7), (5, 33), (4, 300)):
        x, grad = numbers(rows, width) + np.float32(offset), numbers(rows, width, seed=1)
        scale, bias = numbers(width, seed=2), numbers(width, seed=3)
        loose: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4 if offset == 0 else 5e-3}
        for operands in ((x,), (x, scale), (x, scale, bias)):
            got, expected = both(monkeypatch, "layer_norm", *operands, axis=(1,), eps=1e-3)
            np.testing.assert_allclose(got[0], expected[0], **loose)
        got, expected = both(monkeypatch, "layer_norm_backward", grad, x, scale, axis=(1,), eps=1e-3)
        for mine, theirs in zip(got, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=2e-2 if offset else 1e-3)
        got, expected = both(monkeypatch, "rms_norm_backward", grad, x, scale, axis=(1,), eps=1e-3)
        for mine, theirs in zip(got, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_layer_norm_with_a_large_mean_is_as_exact_as_its_input() -> None:
    for width in (1000, 8192):
        equal = np.full((3, width), 3.3, np.float32)  # the mean is rounded
        np.testing.assert_array_equal(BASE.layer_norm(equal, axis=(1,), eps=1e-5), 0.0)
        x = numbers(3, width) + np.float32(1e3)
        exact = x.astype(np.float64) - x.mean(1, dtype=np.float64, keepdims=True)
        exact /= np.sqrt(np.square(exact).mean(1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(BASE.layer_norm(x, axis=(1,), eps=1e-5), exact, rtol=1e-5, atol=6e-5)


POOLS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((3, 2, 7, 9), {"size": (2, 2), "stride": (2, 2)}),
    ((3, 2, 7, 9), {"size": (3, 2), "stride": (2, 1), "padding": ((1, 1), (1, 0)), "dilation": (1, 2)}),
    ((3, 2, 7, 9), {"size": (3, 3), "stride": (3, 3), "padding": ((1, 1), (1, 1)), "ceil_mode": True}),
    ((3, 2, 11), {"size": (3,), "stride": (2,), "padding": ((1, 1),)}),
    ((3, 2, 200), {"size": (3,), "padding": ((1, 1),)}),
    ((2, 2, 5, 150), {"size": (2, 3), "stride": (1, 2), "padding": ((1, 0), (1, 1)), "dilation": (2, 1)}),
    ((2, 2, 4, 70), {"size": (2, 3), "stride": (1, 4), "ceil_mode": True}),
    ((2, 2, 5, 6, 20), {"size": (2, 3, 3), "stride": (2, 1, 2), "padding": ((1, 1), (0, 1), (1, 1))}),
    ((2, 2, 4, 5, 30), {"size": (3, 2, 2), "dilation": (1, 2, 3)}),
    ((2, 2, 5, 150), {"size": (3, 4), "stride": (1, 2), "padding": ((2, 2), (3, 3))}),
    ((2, 2, 4, 70), {"size": (2, 3), "padding": ((2, 3), (4, 7)), "dilation": (3, 4), "ceil_mode": True}),
    *(((3, 5, 6, width), {"size": (2, 2), "stride": (2, 2)}) for width in (6, 14, 18, 28, 34)),
    *(((3, 5, 5, width), {"size": (3, 3), "padding": ((1, 1), (1, 1))}) for width in (3, 7, 16, 19)),
]


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize(("shape", "given"), POOLS)
@pytest.mark.parametrize("kind", ["numbers", "ties", "NaN", "minus infinity"])
def test_max_pool_and_its_gradient(shape: Any, given: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = len(shape) - 2
    options = {"stride": (1,) * rank, "padding": ((0, 0),) * rank, "dilation": (1,) * rank, "ceil_mode": False, **given}
    x = numbers(*shape)
    if kind == "ties":
        x = np.round(x)
    elif kind == "NaN":
        x[np.random.default_rng(1).random(shape) < 0.2] = np.nan
    elif kind == "minus infinity":
        x[np.random.default_rng(1).random(shape) < 0.7] = -np.inf
    (values, places), (expected, expected_places) = both(monkeypatch, "max_pool", x, **options)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(places, expected_places)
    grad = numbers(*values.shape[:2], values[0, 0].size, seed=2)
    flat = places.reshape(grad.shape)
    lines = (*shape[:2], int(np.prod(shape[2:])))
    got, wanted = both(monkeypatch, "take_along_axis_backward", grad, flat, shape=lines, axis=2)
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-5, atol=1e-5)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("shape", [(40, 30), (0, 30), (7, 0), (3, 5, 2)])
def test_take_along_axis_backward_with_any_strides(shape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and indices in column order are copied first."""
    count = 9 if shape[-1] else 0
    grad = numbers(count, *shape[:-1]).transpose(*range(1, len(shape)), 0)
    places = np.random.default_rng(0).integers(-shape[-1], max(1, shape[-1]), (count, *shape[:-1]), np.int32)
    places = places.transpose(*range(1, len(shape)), 0)
    got, wanted = both(monkeypatch, "take_along_axis_backward", grad, places, shape=shape, axis=len(shape) - 1)
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-5, atol=1e-5)
    if shape[0] == 0:  # no lines, so no index is out of range
        got, wanted = both(monkeypatch, "take_along_axis_backward", grad, places, shape=(0, 0), axis=1)
        assert got[0].shape == (0, 0)


SCALES: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
    ((3, 4, 5, 9), (0, 2, 3), (1, 4, 1, 1)),  # over a batch
    ((3, 4, 5, 9), (0, 2, 3), (1, 1, 1, 1)),
    ((3, 2, 4, 10), (2, 3), (2, 4, 1)),  # over groups
    ((3, 2, 4, 10), (2, 3), (2, 1, 1)),
    ((3, 2, 1, 10), (2, 3), (2, 1, 1)),
    ((3, 2, 4, 10), (2, 3), (4, 1)),
    ((3, 2, 4, 10), (2, 3), (3, 2, 1, 1)),
    ((3, 2, 4, 10), (2, 3), (1, 1)),
    ((3, 2, 4, 10), (2, 3), (3, 1, 1, 1)),  # NumPy computes these
    ((3, 2, 4, 10), (1, 3), (2, 1, 1)),
    ((3, 2, 4, 3), (2, 3), (2, 4, 1)),
]


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize(("shape", "axis", "scaled"), SCALES)
def test_norms_over_planes(shape: Any, axis: Any, scaled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, grad = numbers(*shape) + np.float32(2.0), numbers(*shape, seed=1)
    scale, bias = numbers(*scaled, seed=2), numbers(*scaled, seed=3)
    for operands in ((x,), (x, scale), (x, scale, bias)):
        got, expected = both(monkeypatch, "layer_norm", *operands, axis=axis, eps=1e-3)
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=1e-4)
    for name in ("layer_norm_backward", "rms_norm_backward"):
        got, expected = both(monkeypatch, name, grad, x, scale, axis=axis, eps=1e-3)
        for mine, theirs in zip(got, expected, strict=True):
            assert mine.shape == theirs.shape
            np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_batch_norm_and_its_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    x = numbers(5, 3, 4, 7) + np.float32(100.0)
    scale, bias = numbers(3, seed=1), numbers(3, seed=2)
    for operands in ((x,), (x, scale), (x, scale, bias), (x, None, bias)):
        got, expected = both(monkeypatch, "batch_norm_training", *operands, axis=1, eps=1e-5)
        for mine, theirs in zip(got, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_batch_norm_with_given_statistics(axis: int, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = numbers(5, 3, 4, 7).astype(dtype)
    mean, scale, bias = (numbers(x.shape[axis], seed=seed).astype(dtype) for seed in (1, 2, 3))
    variance = np.square(numbers(x.shape[axis], seed=4)).astype(dtype)
    for turned in (x, x.transpose(1, 2, 3, 0).copy().transpose(3, 0, 1, 2)):
        for operands in ((), (scale,), (scale, bias), (None, bias)):
            got, expected = both(monkeypatch, "batch_norm", turned, mean, variance, *operands, axis=axis, eps=1e-3)
            assert got[0].shape == x.shape
            assert got[0].dtype == dtype
            loose = 1e-5 if dtype is np.float32 else 2e-3
            np.testing.assert_allclose(got[0], expected[0], rtol=loose, atol=loose)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (7, 7), (5, 9), (9, 5), (600, 500)])
def test_attention(queries: int, keys: int, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = numbers(2, 2, queries, 8), numbers(2, 2, keys, 8, seed=1), numbers(2, 2, keys, 6, seed=2)
    options: dict[str, Any] = {"causal": causal, "scale": 0.4}
    got, expected = both(monkeypatch, "scaled_dot_product_attention", q, k, v, **options)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=1e-4)
    grad = numbers(2, 2, queries, 6, seed=3)
    got, expected = both(monkeypatch, "scaled_dot_product_attention_backward", grad, q, k, v, **options)
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3)
    mask = np.random.default_rng(0).random((queries, keys)) < 0.3
    got, expected = both(monkeypatch, "scaled_dot_product_attention", q, k, v, mask, **options)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=1e-4)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize(
    "shape", [(5, 8), (3, 5, 8), (2, 3, 5, 8), (2, 2, 3, 5, 8), (2, 3, 1, 8), (2, 3, 5, 1)], ids=str
)
@pytest.mark.parametrize("way", ["after a projection", "by columns", "backwards", "the same for all", "in 16 bits"])
def test_attention_of_heads_with_any_strides(shape: tuple[int, ...], way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def operand(seed: int) -> Any:
        if way == "after a projection" and len(shape) > 2:
            return np.moveaxis(numbers(*shape[:-3], *shape[-2:-1], *shape[-3:-2], shape[-1], seed=seed), -2, -3)
        if way == "by columns":
            return numbers(*shape[:-2], shape[-1], shape[-2], seed=seed).swapaxes(-1, -2)
        if way == "backwards":
            return numbers(*shape, seed=seed)[..., ::-1, :]
        if way == "the same for all":
            return np.broadcast_to(numbers(*shape[-1:], seed=seed), shape)
        return numbers(*shape, seed=seed).astype(np.float16) if way == "in 16 bits" else numbers(*shape, seed=seed)

    grad, q, k, v = map(operand, range(4))
    options: dict[str, Any] = {"causal": True, "scale": 0.4}
    close: dict[str, Any] = {"rtol": 2e-2, "atol": 2e-2} if way == "in 16 bits" else {"rtol": 1e-4, "atol": 1e-4}
    got, expected = both(monkeypatch, "scaled_dot_product_attention", q, k, v, **options)
    assert got[0].dtype == q.dtype
    np.testing.assert_allclose(got[0], expected[0], **close)
    got, expected = both(monkeypatch, "scaled_dot_product_attention_backward", grad, q, k, v, **options)
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.dtype == q.dtype
        np.testing.assert_allclose(mine, theirs, **close)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("kind", ["truth", "numbers", "bits backwards"])
@pytest.mark.parametrize(
    "mask", [(9,), (1, 9), (7, 1), (7, 9), (3, 7, 9), (3, 1, 9), (2, 1, 1, 9), (2, 3, 7, 9)], ids=str
)
def test_attention_with_masks(mask: tuple[int, ...], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(len(mask))
    q, k, v, grad = (numbers(2, 3, n, size, seed=n) for n, size in ((7, 8), (9, 8), (9, 6), (7, 6)))
    hidden = random.random(mask) < 0.4
    given: Any = ~hidden
    if kind == "numbers":
        given = np.where(hidden, -np.inf, random.normal(size=mask)).astype(np.float32)
    if kind == "bits backwards":
        given = np.ascontiguousarray(given[..., ::-1])[..., ::-1]
    keep = random.random((2, 3, 7, 9) if kind == "truth" else (3, 7, 9)) < 0.7
    for kept, causal in ((None, False), (None, True), (keep, False), (keep, True)):
        options: dict[str, Any] = {"causal": causal, "scale": 0.4, "dropout": 0.0 if kept is None else 0.3}
        got, expected = both(monkeypatch, "scaled_dot_product_attention", q, k, v, given, kept, **options)
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=1e-4)
        operands = (grad, q, k, v, given, kept)
        got, expected = both(monkeypatch, "scaled_dot_product_attention_backward", *operands, **options)
        for mine, theirs in zip(got, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("scale", [0.0, 1e-50, -0.5])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_attention_with_nan(place: int, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    operands = [numbers(2, n, 8, seed=n) for n in (7, 9, 9)]
    operands[place][1, 3, 2] = math.nan
    for name, given in (("", operands), ("_backward", [numbers(2, 7, 8, seed=1), *operands])):
        got, expected = both(monkeypatch, f"scaled_dot_product_attention{name}", *given, scale=scale)
        assert any(np.isnan(theirs).any() for theirs in expected)
        for mine, theirs in zip(got, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def test_attention_rejects_gradients_of_another_shape() -> None:
    q, k, v = (numbers(2, n, 8, seed=n) for n in (50, 9, 9))
    for shape in ((2, 9, 8), (2, 50, 1), (50, 8)):
        with pytest.raises(bb.errors.ShapeError, match=r"a result of the shape \[2, 50, 8\] has the shape"):
            BASE.scaled_dot_product_attention_backward(np.ones(shape, np.float32), q, k, v)


@needs_kernels
def test_attention_without_memory_for_its_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tuning, "SCORES_PER_BLOCK", 1 << 46
    )  # four times as many bytes are more than a processor can address
    x = bb.asarray(np.zeros((1 << 23, 1), np.float32))
    with pytest.raises(bb.errors.DeviceMemoryError, match="attention: the memory of cpu is exhausted"):
        bb.nn.functional.scaled_dot_product_attention(x, x, x)


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 8, 9), (4, 3, 3, 3), {"padding": ((1, 1), (1, 1))}),
    ((2, 3, 8, 9), (4, 3, 3, 3), {"padding": ((0, 2), (2, 1)), "stride": (2, 3)}),
    ((1, 4, 11, 10), (6, 2, 3, 2), {"dilation": (2, 3), "groups": 2, "padding": ((3, 3), (1, 0))}),
    ((70, 3, 5, 5), (4, 3, 3, 3), {"padding": ((1, 1), (1, 1))}),
    ((70, 6, 4, 5), (9, 2, 2, 3), {"groups": 3}),
    ((3, 5, 40), (7, 5, 4), {"padding": ((2, 1),), "stride": (3,)}),
    ((2, 5, 60, 60), (130, 5, 1, 1), {}),
    ((2, 5, 9, 9), (3, 5, 1, 1), {"stride": (2, 2)}),
    ((6, 3, 15, 14), (9, 3, 3, 3), {"stride": (2, 2), "padding": ((1, 1), (1, 1))}),
    ((5, 4, 19, 22), (16, 2, 3, 4), {"groups": 2, "stride": (2, 3), "padding": ((1, 2), (0, 3)), "dilation": (1, 2)}),
    ((9, 6, 80), (8, 6, 5), {"stride": (2,)}),
    ((6, 3, 33, 34), (8, 3, 8, 8), {"stride": (4, 4)}),
    ((1, 8, 2), (9, 8, 1), {"stride": (2,), "padding": ((0, 1),)}),  # as many windows as elements, but different ones
    ((1, 3, 4, 4), (5, 3, 1, 1), {"stride": (2, 2), "padding": ((0, 4), (0, 4))}),
    ((4, 6, 8, 7), (8, 3, 1, 1), {"groups": 2}),
    ((4, 6, 48), (3, 6, 1), {}),
    ((4, 6, 8, 7), (4, 6, 1, 1), {"padding": ((0, 0), (0, 1))}),
    ((2, 2, 3, 3), (2, 2, 5, 5), {"padding": ((4, 4), (4, 4))}),
    ((3, 4, 9, 8), (4, 1, 3, 3), {"groups": 4, "padding": ((1, 1), (1, 1))}),
    ((3, 4, 9, 8), (8, 1, 3, 2), {"groups": 4, "padding": ((0, 2), (1, 0)), "dilation": (2, 3)}),
    ((3, 4, 9, 8), (4, 1, 3, 3), {"groups": 4, "padding": ((1, 1), (0, 1)), "stride": (2, 3)}),
    ((1, 2, 300, 70), (2, 1, 5, 5), {"groups": 2, "padding": ((2, 2), (2, 2))}),
    ((3, 1, 40), (3, 1, 4), {"padding": ((3, 0),)}),
    ((3, 4, 5, 5), (4, 1, 1, 1), {"groups": 4}),
    ((2, 3, 13, 12), (6, 1, 3, 3), {"groups": 3, "stride": (2, 2), "padding": ((1, 1), (1, 1))}),
    ((2, 3, 30, 31), (3, 1, 2, 3), {"groups": 3, "stride": (2, 3), "dilation": (9, 12), "padding": ((5, 0), (3, 9))}),
    ((2, 2, 11, 9), (4, 1, 2, 2), {"groups": 2, "stride": (4, 3), "padding": ((0, 5), (4, 0))}),
    ((1, 2, 300, 601), (2, 1, 4, 3), {"groups": 2, "stride": (2, 2), "padding": ((3, 2), (2, 2))}),
    ((7, 6, 4, 4), (8, 3, 3, 3), {"groups": 2, "padding": ((1, 1), (1, 1))}),
    ((5, 3, 2, 5), (4, 3, 5, 3), {"padding": ((2, 2), (0, 2))}),
    ((5, 3, 3, 4), (4, 3, 3, 3), {"padding": ((9, 9), (5, 5)), "dilation": (9, 5)}),
    ((6, 2, 9), (3, 2, 4), {"padding": ((3, 0),)}),
    ((3, 12, 19, 22), (70, 6, 3, 3), {"groups": 2, "stride": (2, 3), "padding": ((1, 2), (0, 3)), "dilation": (1, 2)}),
    ((40, 9, 7, 6), (9, 9, 2, 2), {}),
    ((1, 9, 250, 240), (9, 9, 1, 4), {"stride": (2, 2), "padding": ((3, 0), (9, 5))}),
    ((2, 14, 50), (49, 14, 3), {"stride": (4,), "padding": ((2, 2),)}),
    ((250, 5, 4, 4), (35, 5, 3, 3), {"padding": ((1, 1), (1, 1))}),  # small images
    ((40, 12, 4, 5), (34, 6, 3, 3), {"groups": 2, "padding": ((1, 1), (2, 1)), "dilation": (1, 2)}),
    ((200, 18, 5), (20, 18, 5), {"padding": ((2, 2),)}),
    ((7, 1, 28, 28), (16, 1, 3, 3), {"padding": ((1, 1), (1, 1))}),  # few inputs
    ((3, 6, 21, 34), (26, 3, 3, 4), {"groups": 2, "stride": (2, 3), "padding": ((1, 2), (0, 3)), "dilation": (1, 2)}),
    ((1, 2, 210, 160), (5, 2, 5, 2), {"padding": ((4, 0), (0, 1)), "dilation": (2, 1)}),
    ((9, 3, 7, 70), (11, 3, 1, 7), {"stride": (3, 2)}),
]


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize(("image", "window", "given"), CONVOLUTIONS)
def test_convolutions(image: Any, window: Any, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    rank = len(image) - 2
    options: dict[str, Any] = {
        "stride": (1,) * rank,
        "padding": ((0, 0),) * rank,
        "dilation": (1,) * rank,
        "groups": 1,
        **given,
    }
    monkeypatch.setattr(tuning, "CONV_ROW_ELEMENTS", int(np.prod(image[3:])) * 80)  # a few rows at a time
    x, weight, bias = numbers(*image, spread=1.0), numbers(*window, seed=1, spread=1.0), numbers(window[0], seed=2)
    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
    got, expected = both(monkeypatch, "conv", x, weight, bias, **options)
    np.testing.assert_allclose(got[0], expected[0], **close)
    grad = numbers(*expected[0].shape, seed=3, spread=1.0)
    got, expected = both(monkeypatch, "conv_weight_backward", x, grad, size=window[2:], **options)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-3, atol=1e-3)
    # The transposed convolution maps gradients to images; extra output is what no window reaches.
    for extra in (0, 1):
        if extra and max(options["stride"]) == 1:
            continue
        more = {**options, "output_padding": (extra,) * rank}
        channels = numbers(window[1] * options["groups"], seed=4)
        got, expected = both(monkeypatch, "conv_transpose", grad, weight, channels, **more)
        np.testing.assert_allclose(got[0], expected[0], **close)


def test_a_large_weight_is_packed_by_threads_that_have_many_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    pads = ((1, 1), (1, 1))
    g = kernels.Geometry((8, 16, 4, 4), (8, 32, 4, 4), (3, 3), (1, 1), pads, (1, 1), 1)
    x, weight = numbers(8, 16, 4, 4), numbers(32, 16, 3, 3, seed=1)
    options: dict[str, Any] = {"stride": (1, 1), "padding": pads, "dilation": (1, 1), "groups": 1}
    expected = BASE.conv(x, weight, None, **options)
    assert g.is_small
    before = threads.num_threads()
    try:
        for count, large in ((1, False), (3, False), (1, True), (3, True)):
            threads.set_num_threads(count)
            monkeypatch.setattr(tuning, "CONV_MAX_PACKED_WEIGHT", 0 if large else 1 << 20)
            assert g.packing_pays() == (count == 1 or not large)
            np.testing.assert_allclose(BASE.conv(x, weight, None, **options), expected, rtol=1e-4, atol=1e-4)
    finally:
        threads.set_num_threads(before)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_nan_stays_in_its_image() -> None:
    """Small images are copied with adjacent memory, which must not affect results."""
    x, weight = numbers(5, 3, 4, 4), numbers(4, 3, 3, 3, seed=1)
    grad, padding = numbers(5, 4, 4, 4, seed=2), {"padding": ((1, 1), (1, 1)), "stride": (1, 1), "dilation": (1, 1)}
    x[2], grad[2] = np.nan, np.inf
    for name, image in (("conv", x), ("conv_transpose", grad)):
        more = {"output_padding": (0, 0)} if name == "conv_transpose" else {}
        got = getattr(BASE, name)(image, weight, None, **padding, **more)
        assert np.isfinite(got[[0, 1, 3, 4]]).all()
        assert not np.isfinite(got[2]).any()


@needs_kernels
@pytest.mark.parametrize("level", USABLE)
def test_weight_gradients_ignore_elements_outside_the_windows(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The windows' first element is never in the image's last row, but vectors of its last positions extend there."""
    use_level(monkeypatch, level)
    x, grad = numbers(3, 1, 9, 7), numbers(3, 5, 8, 5, seed=1)
    x[:, :, -1] = np.inf
    options: dict[str, Any] = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1)}
    got = BASE.conv_weight_backward(x, grad, size=(2, 3), **options)
    assert np.isfinite(got[:, :, 0]).all()
    assert not np.isfinite(got[:, :, 1]).any()


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("width", [1, 2, 10, 15, 16, 17, 31, 100])
def test_short_rows_of_classes(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than one block, with fewer and more classes than a vector has lanes."""
    x = numbers(600, width, spread=20.0)
    x[5], x[6, 0], x[7, -1], x[8, 0] = -np.inf, np.inf, np.nan, -np.inf
    labels, grad = np.random.default_rng(1).integers(0, width, 600), numbers(600)
    calls: list[tuple[str, Any]] = [
        ("softmax", (x,)), ("log_softmax", (x,)), ("label_cross_entropy", (x, labels)),
        ("label_cross_entropy_backward", (grad, x, labels)),
    ]  # fmt: skip
    for name, operands in calls:
        got, expected = both(monkeypatch, name, *operands, axis=1)
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-5, atol=2e-5, err_msg=name)


@needs_kernels
@pytest.mark.parametrize("level", USABLE)
def test_gradients_of_few_outputs_stay_beside_the_images(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """17 outputs are three tiles of the smallest vectors; the width 32 would have a fourth without outputs."""
    use_level(monkeypatch, level)
    x, grad = numbers(1, 4, 4, 5), numbers(1, 17, 3, 4, seed=1)
    g = kernels.Geometry(x.shape, grad.shape, (2, 2), (1, 1), ((0, 0), (0, 0)), (1, 1), 1)
    blocks = np.array([[0, 1, 0, 3]], np.int64)
    total, memory = np.zeros((1, 16, 32), np.float32), np.zeros(g.padded(blocks), np.float32)
    kernel = compiled.kernel("conv_weight_direct")
    assert kernel is not None
    kernel(*compiled.addresses(total, x, grad, memory, g.numbers, blocks), 1, memory.size, 32, 1, 32, 1)
    np.testing.assert_array_equal(memory[: x.size], x.ravel())
    assert (total[..., 17:] == 0).all()


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("size", [1, 7, 33])
@pytest.mark.parametrize("bias", [True, False])
def test_lstm(size: int, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, rows = 4, 3
    projected, weight = numbers(steps, rows, 4 * size), numbers(4 * size, size, seed=1, spread=0.3)
    hidden, cell = numbers(rows, size, seed=2), numbers(rows, size, seed=3)
    projected[0, 0] = 120.0  # saturated
    operands = projected, hidden, cell, weight, numbers(4 * size, seed=4) if bias else None
    got, expected = both(monkeypatch, "lstm", *operands)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    states, gates = numbers(steps, rows, size, seed=5), expected[2].astype(np.float32)
    for given in ((states, None, None), (None, states, None), (states, states, numbers(*gates.shape, seed=6))):
        got, expected = both(monkeypatch, "lstm_backward", weight, cell, states, gates, *given)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("steps", [1, 2, 90])
def test_ctc_loss(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels have repetitions and all lengths; some have no alignment."""
    generator = np.random.default_rng(steps)
    examples, classes, labels = 7, 5, 17
    log_probs = numbers(steps, examples, classes)
    log_probs -= np.logaddexp.reduce(log_probs, 2, keepdims=True)
    targets = generator.integers(0, 4, (examples, labels))
    input_lengths, target_lengths = generator.integers(0, steps + 1, examples), generator.integers(0, labels, examples)
    input_lengths[0], target_lengths[:2] = steps, (min(steps, labels) // 2, 0)
    operands = log_probs, targets, input_lengths, target_lengths
    got, expected = both(monkeypatch, "ctc_loss", *operands, blank=4)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5, atol=1e-4)
    got, expected = both(monkeypatch, "ctc_loss_backward", numbers(examples, seed=1), *operands, blank=4)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-3, atol=1e-4)
    log_probs[steps // 2, 0] = np.nan
    assert np.isnan(BASE.ctc_loss(*operands, blank=4)[0])


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("size", [1, 7, 33])
@pytest.mark.parametrize("bias", [True, False])
def test_gru(size: int, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, rows = 4, 3
    projected, weight = numbers(steps, rows, 3 * size), numbers(3 * size, size, seed=1, spread=0.3)
    hidden = numbers(rows, size, seed=2)
    projected[0, 0] = 120.0  # saturated
    got, expected = both(monkeypatch, "gru", projected, hidden, weight, numbers(3 * size, seed=4) if bias else None)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    states, gates = numbers(steps, rows, size, seed=5), expected[1].astype(np.float32)
    for given in ((states, None), (None, numbers(*gates.shape, seed=6)), (states, numbers(*gates.shape, seed=6))):
        got, expected = both(monkeypatch, "gru_backward", weight, hidden, states, gates, *given)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize(("steps", "rows", "size"), [(9, 1, 7), (8, 29, 61), (8, 3, 128), (9, 66, 113), (8, 15, 330)])
@pytest.mark.parametrize("gates", [4, 3])
def test_all_steps_in_one_call(steps: int, rows: int, size: int, gates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands have any strides; a NaN in a late step of the last row stays in it."""
    states = [numbers(size, rows, seed=seed).T for seed in range(6 - gates, 4)][::-1]
    weight = numbers(size, gates * size, seed=1, spread=0.5 / size**0.5).T
    projected = numbers(rows, steps, 2 * gates * size, spread=1.0)[:, :, ::2].swapaxes(0, 1)
    projected[-2, -1, 0] = np.nan
    before = states[0] if gates == 3 else states[1]
    name = "lstm" if gates == 4 else "gru"
    got, expected = both(monkeypatch, name, projected, *states, weight, numbers(gates * size, seed=4))
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    assert np.isnan(got[0][-1, -1]).any()
    assert not np.isnan(got[0][:, :-1]).any()
    after, opened = (x.astype(np.float32) for x in expected[-2:])
    absent = [None][: gates - 3]  # an LSTM's gradients of cell states
    got, expected = both(monkeypatch, f"{name}_backward", weight, before, after, opened, after, *absent, opened)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert np.isnan(got[0][0, -1]).any()
    assert not np.isnan(got[0][:, :-1]).any()


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_sequences_without_examples_or_units() -> None:
    base: Any = BASE
    for dtype in ("float32", "float64"):
        for rows, size in ((0, 7), (3, 0)):
            weight, state = np.zeros((4 * size, size), dtype), np.zeros((rows, size), dtype)
            gates = np.zeros((9, rows, 4 * size), dtype)
            results = base.lstm(gates, state, state, weight)
            assert [x.shape for x in results] == [(9, rows, size)] * 2 + [gates.shape]
            results = base.lstm_backward(weight, state, *results[1:], results[0])
            assert [x.shape for x in results] == [gates.shape, state.shape, state.shape]
            sums = gates[:, :, size:]
            results = base.gru(sums, state, weight[size:])
            assert [x.shape for x in results] == [(9, rows, size), gates.shape]
            results = base.gru_backward(weight[size:], state, *results, results[0])
            assert [x.shape for x in results] == [sums.shape, sums.shape, state.shape]


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_tanh_in_gates() -> None:
    """With a weight of 0, the candidate gate is tanh itself; within 2 ulp."""
    x = np.concatenate([np.linspace(-12, 12, 4001), [0.0, -0.0, 1e-30, 0.625, -0.625, 200.0, np.inf, -np.inf, np.nan]])
    projected = np.zeros((1, len(x), 4), np.float32)
    projected[0, :, 2] = x
    state = np.zeros((len(x), 1), np.float32)
    _, _, gates = BASE.lstm(projected, state, state, np.zeros((4, 1), np.float32))
    expected = np.tanh(projected[0, :, 2].astype(np.float64))
    np.testing.assert_allclose(gates[0, :, 2], expected, rtol=2.5e-7, atol=0)


SAMPLED: list[tuple[tuple[int, ...], int]] = [
    ((3, 2, 7), 1), ((2, 3, 5, 6), 300), ((1, 5, 9, 4), 129), ((2, 1, 3, 4, 5), 257), ((1, 2, 1, 6), 128),
    ((1, 1, 2, 3, 2, 2), 9), ((2, 0, 3, 3), 5), ((2, 3, 4, 4), 0), ((0, 2, 3), 4),
]  # fmt: skip


@functools.cache
def sampled(shape: tuple[int, ...], wanted: int, dtype: str) -> list[tuple[str, tuple[Any, ...], dict[str, Any], Any]]:
    """Calls of ``sample`` and its gradient, with the bodies' results, cached for all levels and threads.

    Positions are inside, outside, far outside and NaN; some arrays have infinities, and some are views.
    """
    rng, rank = np.random.default_rng(5), len(shape) - 2
    x, grad = numbers(*shape).astype(dtype), numbers(*shape[:2], wanted, seed=1).astype(dtype)
    inside = rng.uniform(0, 1, (shape[0], wanted, rank)) * (np.array(shape[2:]) - 1)
    around = rng.uniform(-0.6, 1.6, inside.shape) * np.array(shape[2:])
    around[:, 1::9] = np.round(around[:, 1::9])
    around[:, 2::9] = rng.choice([np.nan, np.inf, -np.inf, 6e4, -0.0, -1.0], around[:, 2::9].shape)
    unlimited = x.copy()
    unlimited[..., 0] = np.inf
    at = [np.moveaxis(p.astype(dtype), 1, 2) for p in (inside, around)]
    slopes: tuple[Any, ...] = ((), (rank - 1,), tuple(range(rank))) if rank < 4 else ((), (1,))
    arrays = ((x, ()), (unlimited, ()), (x[::-1, :, ::-1], slopes[-1]), *((x, along) for along in slopes[1:]))
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    for positions, (values, along) in itertools.product(at, arrays):
        for padding, mode in itertools.product(("zeros", "border"), ("linear", "nearest", "cubic")):
            often = 3 if mode == "cubic" and rank < 3 else 1
            given: dict[str, Any] = {"mode": mode, "padding": padding, "slopes": along * often}
            calls.append(("sample", (values, positions), given))
            calls.append(("sample_backward", (grad, positions), given | {"places": shape[2:]}))
    with np.errstate(invalid="ignore"):
        return [(name, x, given, OPERATIONS[name].body(BASE, *x, **given)) for name, x, given in calls]


@needs_kernels
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("shape", "wanted"), SAMPLED)
@pytest.mark.usefixtures("everything_compiled")
def test_sampling(shape: tuple[int, ...], wanted: int, dtype: str) -> None:
    """Results equal the default bodies'."""
    error = {"float16": 2e-3, "float32": 2e-5, "float64": 1e-13}[dtype]
    for name, operands, given, expected in sampled(shape, wanted, dtype):
        slopes = given["slopes"]
        often = 3 if given["mode"] == "cubic" and len(shape) < 5 else 1
        far = error * 7.5 ** (len(slopes) // 3) if often == 3 else error  # third derivatives of cubics are this large
        with np.errstate(invalid="ignore"):
            found = getattr(BASE, name)(*operands, **given)
        assert found.dtype == operands[0].dtype
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=error, atol=far, err_msg=str(given))


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("shape", "size"), [
    ((3, 2, 7), (20,)), ((2, 3, 9, 34), (9, 5)), ((2, 3, 5, 6), (11, 70)), ((1, 2, 30, 3), (1, 3)),
    ((1, 2, 3, 4, 5), (5, 2, 9)), ((0, 2, 3), (4,)), ((2, 0, 3, 3), (4, 2)), ((1, 1, 1, 1), (3, 2)),
])  # fmt: skip
def test_resizing(shape: tuple[int, ...], size: tuple[int, ...], dtype: str) -> None:
    """Results equal the default bodies', also with other layouts and with infinities."""
    x, grad = numbers(*shape).astype(dtype), numbers(*shape[:2], *size, seed=1).astype(dtype)
    unlimited = x.copy()
    unlimited[..., 0] = np.inf
    error = {"float16": 4e-3, "float32": 2e-5, "float64": 1e-13}[dtype]
    for mode, align in itertools.product(("linear", "cubic", "lanczos3", "nearest"), (False, True)):
        given = {"mode": mode, "align_corners": align and mode != "nearest"}
        calls = [("interpolate", y, {"size": size}) for y in (x, unlimited, x[:, ::-1, ..., ::-1])]
        calls += [("interpolate_backward", y, {"places": shape[2:]}) for y in (grad, grad[..., ::-1])]
        for name, y, options in calls:
            with np.errstate(invalid="ignore"):
                found = getattr(BASE, name)(y, **options, **given)
                expected = OPERATIONS[name].body(BASE, y, **options, **given)
            assert found.dtype == dtype
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=error, atol=error, err_msg=f"{name} {given}")
