"""The compiled kernels of the NumPy backend, for every instruction set of the processor, against NumPy's own way."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.autodiff import Autodiff
from backburn.backend.quantized import scale_shape
from backburn.backend.quantized_products import depth
from backburn.backend.registry import load_backend
from backburn.backend.table import OPERATIONS
from backburn.base.dtypes import as_dtype, float32, float64
from backburn.base.errors import ArgumentError, NumericalInstabilityError, OutOfRangeError, SingularMatrixError
from backburn.conformance import SAMPLES, checks
from backburn.conformance.behaviour import check_mutation
from backburn.conformance.kinds import VALUE_KINDS
from backburn_numpy import (
    alignment,
    blas,
    choice,
    compiled,
    conv_compiled,
    decompose,
    formulas,
    halves,
    index,
    planes,
    quantize,
    quantized_products,
    random,
    reductions,
    resample,
    scan,
    sequence,
    standardize,
    threads,
    ufuncs,
)
from backburn_numpy import blocks as blocks_module
from backburn_numpy import shape as shape_module
from backburn_numpy.compiled import build

BASE = load_backend("numpy")

needs_kernels = pytest.mark.skipif(compiled.level() is None, reason="the kernels are not compiled here")
#: The instruction sets of this processor that there is a library for.
USABLE = [] if compiled.level() is None else [n for n in build.of_this_processor() if build.library(n).exists()]


def use_level(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setattr(compiled, "_library", (level, ctypes.CDLL(str(build.library(level)))))
    monkeypatch.setattr(compiled, "_kernels", {})


@pytest.fixture(params=[(level, count) for level in USABLE for count in (1, 3)], ids=str)
def everything_compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The smallest arrays go to kernels too, by one or by several threads."""
    level, count = request.param
    use_level(monkeypatch, level)
    monkeypatch.setattr(halves, "SMALL", 1)
    monkeypatch.setattr(compiled, "FEW_PASSES", {})
    for module in (choice, shape_module):
        monkeypatch.setattr(module, "MANY", 1)
    for module in (blocks_module, formulas, sequence):
        monkeypatch.setattr(module, "SHARED", 1)
    modules = alignment, blocks_module, decompose, index, planes, quantized_products, resample, scan, standardize
    for module in modules:
        monkeypatch.setattr(module, "WORTH", 1)
    before = threads.num_threads()
    threads.set_num_threads(count)
    yield
    threads.set_num_threads(before)


@needs_kernels
def test_the_library_tells_the_types_of_parameters() -> None:
    """Those of each kernel that is written out in the sources, and some that macros make."""
    assert compiled.kernel("no such kernel") is None
    sources = "".join(path.read_text() for path in build.SOURCES)
    written = re.findall(r"^KERNEL\((\w+)", sources, re.MULTILINE)
    for name in (*written, "exp", "exp_double", "add_number", "where_double", "cumsum_reverse"):
        assert compiled.kernel(name) is not None, name
    array, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    step: Any = compiled.kernel("momentum_step")
    assert step.argtypes == [array] * 5 + [number] * 3 + [ctypes.c_int, size]
    words: Any = compiled.kernel("random_words")
    assert words.argtypes == [array] * 2 + [ctypes.c_uint64] + [size] * 2


WITH_KERNELS = [name for name in SAMPLES if any(word in name for word in (
    "sigmoid", "soft", "silu", "gelu", "norm", "cross_entropy", "step", "scan", "conv", "take", "index_add",
    "linear", "embedding", "gather", "scatter", "attention", "lstm", "gru", "pool", "ctc", "concat", "stack", "triu",
    "tril",
))]  # fmt: skip


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_samples() -> None:
    """All samples of operations with kernels, at the smallest sizes, zero among them; inputs are left as they were."""
    for check in checks(BASE, ops=WITH_KERNELS, kinds=VALUE_KINDS):
        if check.dtype in ("float32", "float16", "bfloat16"):
            check()
            if not check.sample.attributes.get("donate"):
                replace(check, function=check_mutation)()


def both(monkeypatch: pytest.MonkeyPatch, name: str, *operands: Any, **options: Any) -> tuple[list[Any], list[Any]]:
    """The results of an operation by kernels, and by NumPy in float64."""

    def results(*values: Any) -> list[Any]:
        found = getattr(BASE, name)(*values, **options)
        return list(found) if isinstance(found, tuple) else [found]

    got = results(*operands)
    wide = [o.astype(np.float64) if isinstance(o, np.ndarray) and o.dtype.kind == "f" else o for o in operands]
    with monkeypatch.context() as without:
        without.setattr(compiled, "_library", None)
        without.setattr(compiled, "_kernels", {})
        return got, results(*wide)


def numbers(*shape: int, seed: int = 0, spread: float = 3.0) -> Any:
    return (np.random.default_rng(seed).normal(size=shape) * spread).astype(np.float32)


ELEMENTWISE = ["sigmoid", "log_sigmoid", "softplus", "silu", "gelu"]
SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e38, -1e38, 88.8, -88.8, 104.5, -104.5, 1e-40, 15.0, -15.0], "f"
)


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
def test_columns_that_hold_infinities_and_nan_are_as_rows() -> None:
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
def test_small_terms_of_columns_are_not_lost() -> None:
    x = np.full((60_000, 3), -18.0, np.float32)
    x[7] = 0.0
    exact = np.log1p(59_999 * np.exp(-18.0))
    np.testing.assert_allclose(-BASE.log_softmax(x, axis=0)[7], exact, rtol=1e-3)
    np.testing.assert_allclose(BASE.label_cross_entropy(x, np.array([7, 7, 7]), axis=0), exact, rtol=1e-5)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_rows_that_hold_infinities_and_nan() -> None:
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
def test_layer_norm_far_from_zero_is_as_exact_as_its_input() -> None:
    for width in (1000, 8192):
        equal = np.full((3, width), 3.3, np.float32)  # the mean of which rounds
        np.testing.assert_array_equal(BASE.layer_norm(equal, axis=(1,), eps=1e-5), 0.0)
        x = numbers(3, width) + np.float32(1e3)
        exact = x.astype(np.float64) - x.mean(1, dtype=np.float64, keepdims=True)
        exact /= np.sqrt(np.square(exact).mean(1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(BASE.layer_norm(x, axis=(1,), eps=1e-5), exact, rtol=1e-5, atol=6e-5)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float64, np.int64])
@pytest.mark.parametrize(
    ("shape", "count", "axis"), [((6,), 4, 0), ((3, 5, 7), 9, 2), ((4, 6, 1), 3, 1), ((2, 3), 0, 1)]
)
def test_gather(dtype: Any, shape: Any, count: int, axis: int) -> None:
    x, places = (numbers(*shape) * 100).astype(dtype), (*shape[:axis], count, *shape[axis + 1 :])
    for low in (0, -shape[axis]):
        indices = np.random.default_rng(0).integers(low, shape[axis], places)
        for turned, own in ((x, indices), (np.asfortranarray(x), indices[..., ::-1]), (x, indices.astype(np.int32))):
            got = BASE.gather(turned, own, axis=axis)
            np.testing.assert_array_equal(got, np.take_along_axis(x, own, axis))
            assert got.dtype == dtype
    for wrong in (shape[axis], -shape[axis] - 1) if count else ():
        with pytest.raises(OutOfRangeError, match=f"index {wrong} is out of range for an axis of {shape[axis]}"):
            BASE.gather(x, np.full(places, wrong), axis=axis)


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
    got, wanted = both(monkeypatch, "gather_backward", grad, flat, shape=lines, axis=2)
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-5, atol=1e-5)


SCALES: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
    ((3, 4, 5, 9), (0, 2, 3), (1, 4, 1, 1)),  # over a batch
    ((3, 4, 5, 9), (0, 2, 3), (1, 1, 1, 1)),
    ((3, 2, 4, 10), (2, 3), (2, 4, 1)),  # over groups
    ((3, 2, 4, 10), (2, 3), (2, 1, 1)),
    ((3, 2, 1, 10), (2, 3), (2, 1, 1)),
    ((3, 2, 4, 10), (2, 3), (4, 1)),
    ((3, 2, 4, 10), (2, 3), (3, 2, 1, 1)),
    ((3, 2, 4, 10), (2, 3), (1, 1)),
    ((3, 2, 4, 10), (2, 3), (3, 1, 1, 1)),  # these are NumPy's
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
def test_batch_norm_by_given_statistics(axis: int, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_attention_of_heads_as_they_lie(shape: tuple[int, ...], way: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_attention_to_what_is_not_a_number(place: int, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    operands = [numbers(2, n, 8, seed=n) for n in (7, 9, 9)]
    operands[place][1, 3, 2] = math.nan
    for name, given in (("", operands), ("_backward", [numbers(2, 7, 8, seed=1), *operands])):
        got, expected = both(monkeypatch, f"scaled_dot_product_attention{name}", *given, scale=scale)
        assert any(np.isnan(theirs).any() for theirs in expected)
        for mine, theirs in zip(got, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def test_a_gradient_that_is_not_like_the_result_of_attention_is_refused() -> None:
    q, k, v = (numbers(2, n, 8, seed=n) for n in (50, 9, 9))
    for shape in ((2, 9, 8), (2, 50, 1), (50, 8)):
        with pytest.raises(bb.errors.ShapeError, match=r"a result of the shape \[2, 50, 8\] has the shape"):
            BASE.scaled_dot_product_attention_backward(np.ones(shape, np.float32), q, k, v)


@needs_kernels
def test_attention_without_memory_for_its_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence, "SCORES", 1 << 46)  # four times as many bytes are more than a processor can address
    x = bb.asarray(np.zeros((1 << 23, 1), np.float32))
    with pytest.raises(bb.errors.DeviceMemoryError, match="attention: the memory of cpu is exhausted"):
        bb.nn.functional.scaled_dot_product_attention(x, x, x)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("reverse", [False, True])
def test_recurrences_over_every_axis(axis: int, reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (4, 5, 19)
    a, b, x, grad = (numbers(*shape, seed=s, spread=1.0) for s in range(4))
    h0 = numbers(*(n for i, n in enumerate(shape) if i != axis), seed=5)
    for first in (None, h0):
        got, expected = both(monkeypatch, "ssm_scan", a, b, x, first, axis=axis, reverse=reverse)
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=1e-4)
        out = expected[0].astype(np.float32)
        options: dict[str, Any] = {"axis": axis, "reverse": reverse}
        got, expected = both(monkeypatch, "ssm_scan_backward", grad, a, b, x, out, first, **options)
        for mine, theirs in zip(got, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3)
    got, expected = both(monkeypatch, "ssm_scan", a[:1, :1, :1], b[:1], x, None, axis=axis, reverse=reverse)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=1e-4)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize(("shape", "axis"), [((3, 40, 5), 1), ((3, 5, 40), 2), ((3, 40, 1), 1), ((2100, 40), 1)])
def test_rows_are_added_where_an_index_comes_twice(
    shape: tuple[int, ...], axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    indices = np.random.default_rng(0).integers(-7, 7, 40)
    for dtype, near in ((np.float32, 1e-5), (np.float64, 1e-12)):
        grad = numbers(*shape).astype(dtype)
        got, expected = both(monkeypatch, "take_backward", grad, indices, length=7, axis=axis)
        assert got[0].dtype == dtype
        np.testing.assert_allclose(got[0], expected[0], rtol=near, atol=near)


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
    ((1, 8, 2), (9, 8, 1), {"stride": (2,), "padding": ((0, 1),)}),  # as many windows as elements, but others
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
    monkeypatch.setattr(conv_compiled, "ROWS", 1)  # a few rows at a time
    x, weight, bias = numbers(*image, spread=1.0), numbers(*window, seed=1, spread=1.0), numbers(window[0], seed=2)
    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
    got, expected = both(monkeypatch, "conv", x, weight, bias, **options)
    np.testing.assert_allclose(got[0], expected[0], **close)
    grad = numbers(*expected[0].shape, seed=3, spread=1.0)
    got, expected = both(monkeypatch, "conv_weight_backward", x, grad, size=window[2:], **options)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-3, atol=1e-3)
    # The transposed convolution makes images of gradients; what the windows do not reach is extra output.
    for extra in (0, 1):
        if extra and max(options["stride"]) == 1:
            continue
        more = {**options, "output_padding": (extra,) * rank}
        channels = numbers(window[1] * options["groups"], seed=4)
        got, expected = both(monkeypatch, "conv_transpose", grad, weight, channels, **more)
        np.testing.assert_allclose(got[0], expected[0], **close)


def test_a_large_weight_is_packed_by_threads_that_have_many_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    pads = ((1, 1), (1, 1))
    g = conv_compiled.Geometry((8, 16, 4, 4), (8, 32, 4, 4), (3, 3), (1, 1), pads, (1, 1), 1)
    x, weight = numbers(8, 16, 4, 4), numbers(32, 16, 3, 3, seed=1)
    options: dict[str, Any] = {"stride": (1, 1), "padding": pads, "dilation": (1, 1), "groups": 1}
    expected = BASE.conv(x, weight, None, **options)
    assert g.is_small
    before = threads.num_threads()
    try:
        for count, large in ((1, False), (3, False), (1, True), (3, True)):
            threads.set_num_threads(count)
            monkeypatch.setattr(conv_compiled, "SOON", 0 if large else 1 << 20)
            assert g.is_packed_in_time() == (count == 1 or not large)
            np.testing.assert_allclose(BASE.conv(x, weight, None, **options), expected, rtol=1e-4, atol=1e-4)
    finally:
        threads.set_num_threads(before)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_images_beside_one_that_is_not_a_number() -> None:
    """Small images are copied together with what lies beside them, which must not be seen."""
    x, weight = numbers(5, 3, 4, 4), numbers(4, 3, 3, 3, seed=1)
    grad, padding = numbers(5, 4, 4, 4, seed=2), {"padding": ((1, 1), (1, 1)), "stride": (1, 1), "dilation": (1, 1)}
    x[2], grad[2] = np.nan, np.inf
    for name, image in (("conv", x), ("conv_transpose", grad)):
        more = {"output_padding": (0, 0)} if name == "conv_transpose" else {}
        got = getattr(BASE, name)(image, weight, None, **padding, **more)
        assert np.isfinite(got[[0, 1, 3, 4]]).all()
        assert not np.isfinite(got[2]).any()


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("inputs", [1, 7, 32, 100])
@pytest.mark.parametrize("name", [
    "qint8_symmetric_tensor_float32", "quint8_affine_channel0_float16", "qint8_symmetric_block32_float32",
    "qint4_symmetric_channel0_float32", "qint4_affine_block32_float16", "qint4_symmetric_block6_float32",
    "qint2_symmetric_block32_float16",
])  # fmt: skip
def test_products_with_quantized_weights(name: str, inputs: int) -> None:
    weight = BASE.quantize(numbers(13, inputs), dtype=as_dtype(name))  # type: ignore[arg-type]
    plain = BASE.dequantize(weight, float32).astype(np.float64)
    for batch in (1, 2, 4, 5, 9, 40):
        x = numbers(batch, inputs, seed=batch)
        got = BASE.q_linear(x, weight, transposed=True)
        np.testing.assert_allclose(got, x.astype(np.float64) @ plain.T, rtol=1e-5, atol=2e-4)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("width", [1, 2, 10, 15, 16, 17, 31, 100])
def test_short_rows_of_classes(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than are computed at a time, of fewer classes than a vector has, and of more."""
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
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_poisson_numbers_have_the_bits_of_numpy_s(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    special = np.resize([0.0, 1e-300, 9.999, -1.0, np.nan, np.inf, -np.inf, 4.0, 10.0, 30.0], 201)
    for rates in (rng.uniform(0, 12, 40_001), special, np.zeros(0), np.array(3.0)):
        rate = rates.astype(dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            found = BASE.poisson(rate, 7, 3)
            with monkeypatch.context() as without:
                without.setattr(compiled, "_library", None)
                without.setattr(compiled, "_kernels", {})
                expected = BASE.poisson(rate, 7, 3)
        assert (found.dtype, found.shape) == (dtype, rate.shape)
        np.testing.assert_array_equal(found, expected)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_permutations_are_the_stable_order_of_their_keys() -> None:
    for n in (0, 1, 2, 3, 8, 100, 1023, 1024, 5000, 70_000):
        low, high = random.words(9, 5, 2 * n).astype(np.uint64).reshape(n, 2).T
        keys = (high << np.uint64(31)) | (low >> np.uint64(1))
        np.testing.assert_array_equal(BASE.permutation(9, 5, n), np.argsort(keys, kind="stable"), strict=True)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("inputs", [1, 63, 64, 129, 520])
@pytest.mark.parametrize("right", [
    "qint8_symmetric_channel0_float32", "qint8_affine_tensor_float16", "quint8_affine_channel0_bfloat16",
])  # fmt: skip
@pytest.mark.parametrize("left", ["qint8_affine_tensor_float32", "quint8_affine_channel0_float32"])
def test_products_of_integers(left: str, right: str, inputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are exact: what is rounded is the product with both scales, once."""
    monkeypatch.setattr(quantized_products, "SHARE", 1)
    for rows, columns in ((1, 1), (3, 4), (4, 7), (135, 9)):
        x = BASE.quantize(numbers(rows, inputs) + np.float32(0.5), dtype=as_dtype(left))  # type: ignore[arg-type]
        y = BASE.quantize(numbers(columns, inputs, seed=1), dtype=as_dtype(right))  # type: ignore[arg-type]
        expected = BASE.dequantize(x, float64) @ BASE.dequantize(y, float64).T
        np.testing.assert_allclose(BASE.q_matmul(x, y, transposed=True), expected, rtol=1e-7, atol=1e-12)
        if y.dtype.axis is None:
            np.testing.assert_array_equal(
                BASE.q_matmul(x, BASE.permute_dims(y, (1, 0))), BASE.q_matmul(x, y, transposed=True)
            )


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_the_largest_sums_of_integers() -> None:
    """Of as many products as int32 holds, and of more, which NumPy adds up."""
    scheme = as_dtype("quint8_affine_tensor_float32")
    for inputs in (quantized_products.DEEPER * depth(scheme, scheme), 1 << 16):  # type: ignore[arg-type]
        parts = np.full((1, inputs), 255, np.uint8), np.array(1.0, np.float32), np.array(0, np.uint8)
        x = BASE.quantized_from_parts(*parts, dtype=scheme, shape=(1, inputs))  # type: ignore[arg-type]
        assert BASE.q_matmul(x, x, transposed=True) == np.float32(255**2 * inputs)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("name", [
    "qint8_symmetric_tensor_float32", "quint8_affine_tensor_float32", "qint8_affine_channel0_float32",
    "qint4_affine_block6_float32", "qint4_symmetric_block32_float32", "qint2_symmetric_block32_float32",
    "qint2_affine_channel0_float32",
])  # fmt: skip
def test_quantization_has_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NumPy's: halves of a step and their neighbours, subnormal and the largest values, zeros."""
    scheme: Any = as_dtype(name)
    halves_of_steps = np.random.default_rng(0).integers(-254, 255, (7, 40)).astype(np.float32) / 2
    some = [numbers(5, 13), abs(numbers(3, 70)), numbers(1, 1), np.zeros((3, 5), "f"), halves_of_steps]
    for step in (0.3, 7e-30, 1e-42):
        ties = halves_of_steps * np.float32(step)
        some += [ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))]
    some += [numbers(4, 6).T, np.float32(1e38) * numbers(2, 9).clip(-3, 3), numbers(6, 10).astype(np.float16)]
    for x in some:
        steps = scale_shape(x.shape, scheme)
        ends = np.full(steps, -0.7, x.dtype), np.full(steps, 2.0, x.dtype)
        for given in ((), ends, (ends[1], ends[1]), (np.zeros_like(ends[0]),) * 2):
            function: Any = BASE.quantize_between if given else BASE.quantize
            got = function(x, *given, dtype=scheme)
            with monkeypatch.context() as without:
                without.setattr(quantize, "_by_kernel", lambda *operands: None)
                expected = function(x, *given, dtype=scheme)
            for part in ("values", "scale", "zero"):
                np.testing.assert_array_equal(getattr(got, part), getattr(expected, part), strict=True)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_quantization_refuses_what_numpy_refuses() -> None:
    x, low, high = numbers(3, 40), *(np.array(end, np.float32) for end in (-1, 1))
    for bad in (np.nan, np.inf, -np.inf):
        wrong = x.copy()
        wrong[1, 37] = bad
        with pytest.raises(NumericalInstabilityError, match="finite"):
            BASE.quantize(wrong)
        with pytest.raises(NumericalInstabilityError, match="finite"):
            BASE.quantize_between(wrong, low, high)
    with pytest.raises(NumericalInstabilityError, match="finite"):
        BASE.quantize_between(x, low, np.array(np.nan, np.float32))
    with pytest.raises(ArgumentError, match="above its high end"):
        BASE.quantize_between(x, high, low)


@needs_kernels
@pytest.mark.parametrize("level", USABLE)
@pytest.mark.parametrize("name", ["sigmoid", "gelu", "softplus"])
def test_nothing_is_written_beside_the_result(level: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_level(monkeypatch, level)
    kernel = compiled.kernel(name)
    assert kernel is not None
    for count in range(1, 70):
        out, x = np.full(count + 64, 7.0, np.float32), numbers(count)
        kernel(compiled.address(out) + 4 * 32, compiled.address(x), count)
        assert (out[:32] == 7).all()
        assert (out[32 + count :] == 7).all()


@needs_kernels
@pytest.mark.parametrize("name", ["gelu", "silu", "softplus"])
def test_a_scalar_of_numpy_is_computed_like_an_array(name: str) -> None:
    function = getattr(BASE, name)
    np.testing.assert_array_equal(function(np.float32(0.5)), function(np.array(0.5, np.float32)))


def test_many_threads_at_once() -> None:
    x, weight = numbers(8, 4, 20, 20), numbers(6, 4, 3, 3, seed=1)
    options: dict[str, Any] = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
    expected = BASE.conv(x, weight, **options), BASE.softmax(x, axis=3), BASE.gelu(x)
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(20):
            got = BASE.conv(x, weight, **options), BASE.softmax(x, axis=3), BASE.gelu(x)
            wrong.extend(a for a, b in zip(got, expected, strict=True) if not np.allclose(a, b, rtol=1e-5, atol=1e-5))

    workers = [threading.Thread(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_one_row_is_one_thread_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread has an empty part, whose sum would take the place of another's."""
    x, grad, scale = (numbers(1, 300_000, seed=s) for s in range(3))
    before = threads.num_threads()
    threads.set_num_threads(3)
    try:
        for _ in range(20):
            options: dict[str, Any] = {"axis": (1,), "eps": 1e-5}
            got, expected = both(monkeypatch, "layer_norm_backward", grad, x, scale[0], **options)
            np.testing.assert_allclose(got[1], expected[1], rtol=1e-3, atol=1e-4)
        parts: list[tuple[int, int]] = []
        threads.for_parts(lambda start, stop: parts.append((start, stop)), 2, worth=1)
        assert sorted(parts) == [(0, 1), (1, 2)]
    finally:
        threads.set_num_threads(before)


def test_an_interrupt_waits_for_the_other_threads() -> None:
    """They write into memory that the error would free."""
    ended: list[int] = []

    def work(start: int, stop: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.2)
            ended.append(start)

    before, handler = threads.num_threads(), signal.signal(signal.SIGINT, signal.default_int_handler)
    threads.set_num_threads(2)
    try:
        with pytest.raises(KeyboardInterrupt):
            threads.for_parts(work, 2, worth=1)
        assert ended == [1]
    finally:
        signal.signal(signal.SIGINT, handler)
        threads.set_num_threads(before)


def test_a_system_without_threads_to_spare_computes_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = threads.num_threads()
    threads.set_num_threads(3)
    monkeypatch.setattr(threading.Thread, "start", refused)
    try:
        parts: list[tuple[int, int]] = []
        threads.for_parts(lambda start, stop: parts.append((start, stop)), 5, worth=1)
    finally:
        threads.set_num_threads(before)
    assert parts == [(0, 5)]


RESIZED = """
import faulthandler, sys, threading, time
from backburn_numpy import threads
faulthandler.dump_traceback_later(30, exit=True)
sys.setswitchinterval(1e-5)
stop = time.monotonic() + 2

def compute():
    while time.monotonic() < stop:
        parts = []
        threads.for_parts(lambda start, end: parts.append(end - start), 8, worth=1)
        assert sum(parts) == 8

computing = [threading.Thread(target=compute) for _ in range(2)]
for thread in computing:
    thread.start()
while time.monotonic() < stop:
    for count in (2, 3, 1):
        threads.set_num_threads(count)
for thread in computing:
    thread.join()
"""


def test_the_number_of_threads_changes_while_others_compute() -> None:
    """Nobody waits for parts that a closed pool was given."""
    done = _python("-c", RESIZED)
    assert done.returncode == 0, done.stderr


INHERITED = """
from contextvars import ContextVar
from backburn_numpy import threads
setting, found = ContextVar("setting", default=False), []
threads.set_num_threads(2)
setting.set(True)
threads.for_parts(lambda start, stop: found.append(setting.get()), 2, worth=1)
assert sorted(found) == [False, True], found
"""


def test_the_pool_keeps_no_settings_of_the_caller_that_started_it() -> None:
    """Not even where new threads inherit them: from Python 3.14 on, with this option or without the GIL."""
    done = _python("-X", "thread_inherit_context=1", "-c", INHERITED)
    assert done.returncode == 0, done.stderr


# ---- without kernels ----


def test_the_backend_says_what_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    level = compiled.level()
    assert BASE.libraries["kernels"] == (f"compiled for {level}" if level else BASE.libraries["kernels"])
    monkeypatch.setattr(compiled, "_library", None)
    assert "python -m backburn_numpy.compiled" in BASE.libraries["kernels"]
    assert Autodiff(BASE).libraries == BASE.libraries
    monkeypatch.setattr(blas, "product", lambda: None)
    assert BASE.libraries["OpenBLAS"] == "not found: NumPy does some of their work"


def test_without_kernels_numpy_does_their_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_library", None)
    monkeypatch.setattr(compiled, "_kernels", {})
    assert compiled.level() is None
    assert compiled.kernel("gelu") is None
    x = numbers(100, 100)
    np.testing.assert_allclose(BASE.softmax(x, axis=1).sum(1), 1, rtol=1e-5)
    got, expected = both(monkeypatch, "layer_norm", x, axis=(1,), eps=1e-5)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=1e-4)


def test_without_a_known_library_of_products_numpy_convolves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "product", lambda: None)
    x, weight = numbers(8, 4, 20, 20), numbers(6, 4, 3, 3, seed=1)
    options: dict[str, Any] = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
    got, expected = both(monkeypatch, "conv", x, weight, **options)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=1e-4)


@needs_kernels
def test_few_rows_times_a_quantized_weight_need_no_library_of_products(monkeypatch: pytest.MonkeyPatch) -> None:
    scheme: Any = as_dtype("qint4_symmetric_block32_float32")
    weight = BASE.quantize(numbers(20, 70), scheme)
    few = quantized_products.FEW_ROWS
    several = [numbers(count, 70, seed=1) for count in (1, few, few + 1)]
    expected = [BASE.q_linear(x, weight, transposed=True) for x in several]
    monkeypatch.setattr(blas, "product", lambda: None)
    taken: list[bool] = []
    by_kernel = quantized_products._by_kernel

    def told(*operands: Any) -> bool:
        taken.append(by_kernel(*operands))
        return taken[-1]

    monkeypatch.setattr(quantized_products, "_by_kernel", told)
    for x, product in zip(several, expected, strict=True):
        np.testing.assert_allclose(BASE.q_linear(x, weight, transposed=True), product, rtol=1e-4, atol=1e-4)
    assert taken == [True, True, False]


def _python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


def test_the_environment_leaves_them_out() -> None:
    show = "from backburn_numpy import compiled; print(compiled.level())"
    assert _python("-c", show, BACKBURN_COMPILED="0").stdout.strip() == "None"
    for unset in ("", "1"):
        assert _python("-c", show, BACKBURN_COMPILED=unset).stdout.strip() == str(compiled.level())
    refused = _python("-c", show, BACKBURN_COMPILED="yes")
    assert "BACKBURN_COMPILED='yes': 0 leaves the compiled kernels out, 1 uses them" in refused.stderr


def test_a_compiler_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    with pytest.raises(build.NoCompilerError, match="/nowhere/cc"):
        build.build(tmp_path)
    monkeypatch.setenv("CC", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.NoCompilerError, match="neither cc nor gcc is on the PATH"):
        build.build(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_compiler_is_named_as_the_system_writes_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    monkeypatch.setenv("CC", r'"C:\My tools\gcc.exe" -m64')
    with pytest.raises(build.NoCompilerError, match=r"'C:\\My tools\\gcc\.exe' -m64 -std=c11"):
        build.build(tmp_path)


def test_sources_that_are_refused_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tmp_path / "wrong.c"
    wrong.write_text("this is not C")
    monkeypatch.setattr(build, "SOURCES", [wrong])
    with pytest.raises(build.NoCompilerError, match=r"wrong\.c"):
        build.build(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([wrong, build.library("processor", tmp_path)])


@pytest.mark.skipif(os.name != "posix", reason="the compilers of this test are shell scripts")
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 0", "sh .*processor.c"),
        (r"printf '\377' >&2; exit 1", "\ufffd"),
        ('for last; do [ "$before" = -o ] && echo text > "$last"; before=$last; done', "cannot be loaded"),
    ],
    ids=["makes nothing", "writes another encoding", "compiles for another machine"],
)
def test_a_compiler_that_makes_nothing_to_load_is_as_good_as_none(
    script: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cc").write_text(script)
    monkeypatch.setenv("CC", f"sh {tmp_path / 'cc'}")
    with pytest.raises(build.NoCompilerError, match=message):
        build.build(tmp_path, only_best=True)


def test_windows_has_no_vectors_wider_than_its_stack_is_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "AMD64")
    assert list(build.levels()) == ["x86-64", "x86-64-v3", "x86-64-v4"]
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    assert list(build.levels()) == ["x86-64"]


def test_the_command_says_why_nothing_is_compiled() -> None:
    result = _python("-m", "backburn_numpy.compiled", CC="/nowhere/cc")
    assert result.returncode == 1
    assert "The kernels are not compiled: /nowhere/cc" in result.stderr


@pytest.fixture
def one_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single source, which is compiled soon: it is which libraries there are that is tested."""
    monkeypatch.setattr(build, "SOURCES", [build.FOLDER / "pool.c"])


@needs_kernels
@pytest.mark.usefixtures("one_source")
def test_an_installed_wheel_has_libraries_and_no_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are found by their names, of whatever sources they were made; there is nothing to compile."""
    made = build.build(tmp_path, only_best=True)
    monkeypatch.setattr(build, "SOURCES", [])
    monkeypatch.setattr(build, "edition", lambda: pytest.fail("there is nothing to sum up"))
    assert [build.library(path.name.rpartition("-")[0], tmp_path) for path in made] == made
    assert not build.library("another", tmp_path).exists()
    with pytest.raises(build.NoCompilerError, match="no sources to compile"):
        build.build(tmp_path)


@needs_kernels
@pytest.mark.usefixtures("one_source")
def test_libraries_of_other_sources_are_removed_and_never_loaded(tmp_path: Path) -> None:
    old = tmp_path / f"x86-64-00000000{build.SUFFIX}"
    old.touch()
    best = build.build(tmp_path, only_best=True)
    assert best == [build.library(n, tmp_path) for n in ("processor", build.of_this_processor(tmp_path)[-1])]
    assert sorted(tmp_path.iterdir()) == sorted(best)
    made = build.build(tmp_path)
    assert made == [build.library(name, tmp_path) for name in ("processor", *build.levels())]
    assert sorted(tmp_path.iterdir()) == sorted(made)


@pytest.mark.skipif(os.name == "nt", reason="a shell script is no compiler there")
def test_after_a_failure_the_rest_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, script = tmp_path / "log", tmp_path / "my cc"
    script.write_text(f"#!/bin/sh\necho >> '{log}'\nsleep 0.05\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CC", f"'{script}' -m64")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with pytest.raises(build.NoCompilerError, match="my cc' -m64"):
        build._compiled({"base": ()}, build.SOURCES, tmp_path)
    assert len(log.read_text()) < len(build.SOURCES)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(build.NoCompilerError, match="no folder for what the compiler makes"):
        build._compiled({"base": ()}, build.SOURCES, tmp_path)


@needs_kernels
@pytest.mark.parametrize("level", USABLE)
def test_gradients_of_few_outputs_are_laid_out_beside_the_images(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """17 outputs are three tiles of the smallest vectors: the width, 32, would have a fourth, with no output."""
    use_level(monkeypatch, level)
    x, grad = numbers(1, 4, 4, 5), numbers(1, 17, 3, 4, seed=1)
    g = conv_compiled.Geometry(x.shape, grad.shape, (2, 2), (1, 1), ((0, 0), (0, 0)), (1, 1), 1)
    blocks = np.array([[0, 1, 0, 3]], np.int64)
    total, memory = np.zeros((1, 16, 32), np.float32), np.zeros(g.padded(blocks), np.float32)
    kernel = compiled.kernel("conv_weight_direct")
    assert kernel is not None
    kernel(*compiled.addresses(total, x, grad, memory, g.numbers), 32, compiled.address(blocks), 1)
    np.testing.assert_array_equal(memory[: x.size], x.ravel())
    assert (total[..., 17:] == 0).all()


@needs_kernels
def test_the_best_library_that_is_there_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    names = build.of_this_processor()
    monkeypatch.setattr(compiled, "of_this_processor", lambda: [*names, "x86-64-v9"])
    found = compiled._load()
    assert found is not None
    assert found[0] == USABLE[-1]
    monkeypatch.setattr(compiled, "of_this_processor", lambda: ["x86-64-v9"])
    assert compiled._load() is None


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("size", [1, 7, 33])
@pytest.mark.parametrize("bias", [True, False])
def test_long_short_term_memories(size: int, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, rows = 4, 3
    projected, weight = numbers(steps, rows, 4 * size), numbers(size, 4 * size, seed=1, spread=0.3)
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
def test_alignments(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of labels with repetitions, of all lengths, some of which fit into no alignment."""
    generator = np.random.default_rng(steps)
    examples, classes, labels = 7, 5, 17
    log_probs = numbers(steps, examples, classes)
    log_probs -= np.logaddexp.reduce(log_probs, 2, keepdims=True)
    targets = generator.integers(0, 4, (examples, labels))
    input_lengths, target_lengths = generator.integers(0, steps + 1, examples), generator.integers(0, labels, examples)
    input_lengths[0], target_lengths[:2] = steps, (min(steps, labels) // 2, 0)
    operands = log_probs, targets, input_lengths, target_lengths
    got, expected = both(monkeypatch, "ctc", *operands, blank=4)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5, atol=1e-4)
    got, expected = both(monkeypatch, "ctc_backward", numbers(examples, seed=1), *operands, blank=4)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-3, atol=1e-4)
    log_probs[steps // 2, 0] = np.nan
    assert np.isnan(BASE.ctc(*operands, blank=4)[0])


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("size", [1, 7, 33])
@pytest.mark.parametrize("bias", [True, False])
def test_gated_recurrent_units(size: int, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, rows = 4, 3
    projected, weight = numbers(steps, rows, 3 * size), numbers(size, 3 * size, seed=1, spread=0.3)
    hidden = numbers(rows, size, seed=2)
    projected[0, 0] = 120.0  # saturated
    got, expected = both(
        monkeypatch, "gru", projected, hidden, weight, numbers(3 * size, seed=4) if bias else None
    )
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    states, gates = numbers(steps, rows, size, seed=5), expected[1].astype(np.float32)
    for given in ((states, None), (None, numbers(*gates.shape, seed=6)), (states, numbers(*gates.shape, seed=6))):
        got, expected = both(monkeypatch, "gru_backward", weight, hidden, states, gates, *given)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_hyperbolic_tangents_within_gates() -> None:
    """The candidate of a gate is the tangent itself, since a weight of 0 adds nothing; within 2 ulp."""
    x = np.concatenate([np.linspace(-12, 12, 4001), [0.0, -0.0, 1e-30, 0.625, -0.625, 200.0, np.inf, -np.inf, np.nan]])
    projected = np.zeros((1, len(x), 4), np.float32)
    projected[0, :, 2] = x
    state = np.zeros((len(x), 1), np.float32)
    _, _, gates = BASE.lstm(projected, state, state, np.zeros((1, 4), np.float32))
    expected = np.tanh(projected[0, :, 2].astype(np.float64))
    np.testing.assert_allclose(gates[0, :, 2], expected, rtol=2.5e-7, atol=0)


# ---- functions of NumPy, in threads of their own ----

MANY = 70_001
EXACT = ["negative", "absolute", "square", "sqrt", "reciprocal"]


def ends(count: int) -> Any:
    """Ordinary and special numbers, in an order that puts all pairs beside each other."""
    x = numbers(count, seed=7)
    x[::3] = np.resize(SPECIAL, len(x[::3]))
    return x


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_functions_of_one_array() -> None:
    x = ends(MANY)
    for ufunc, name in ufuncs.KERNELS.items():
        if ufunc.nin == 2:
            continue
        found = ufuncs.large(ufunc, x)
        with np.errstate(all="ignore"):
            same, expected = ufunc(x), ufunc(x.astype(np.float64)).astype(np.float32)
        if name in EXACT:
            np.testing.assert_array_equal(found, same, err_msg=name)
        np.testing.assert_allclose(found, expected, rtol=3e-7, atol=1e-44, err_msg=name)
        some = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(found[some]), np.signbit(expected[some]), err_msg=name)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_functions_of_doubles() -> None:
    x = ends(MANY).astype(np.float64)
    x[1::3] *= 10.0 ** np.arange(-5, 5)[np.arange(len(x[1::3])) % 10]
    x[4::9] = np.arange(len(x[4::9])) * (math.pi / 2)
    near = x[np.abs(x) < 1e5]  # the only ones that programs compute by themselves
    for name in ("log", "log1p", "sin", "cos", "tan"):
        ufunc = getattr(np, name)
        for part, dtype, wide in ((x, "f8", np.longdouble), (near, "f8", np.longdouble), (near, "f4", np.float64)):
            narrow = part.astype(dtype)
            found: Any = formulas.kernel_in_one_pass(name, narrow)
            with np.errstate(all="ignore"):
                expected = ufunc(narrow.astype(wide))
                unit = np.spacing(np.abs(expected).astype(dtype))
            some = np.isfinite(unit)
            np.testing.assert_array_equal(found[~some], expected[~some].astype(dtype))
            found, expected, unit = (a[some] for a in (found, expected, unit))
            assert (np.abs(found - expected) <= 3 * unit).all(), name
            np.testing.assert_array_equal(np.signbit(found), np.signbit(expected), err_msg=name)
    for ufunc in ufuncs.OF_DOUBLES:
        if ufunc.nin == 2:
            continue
        found = ufuncs.large(ufunc, x)
        with np.errstate(all="ignore"):
            expected = ufunc(x)
        np.testing.assert_array_max_ulp(found[np.isfinite(x)], expected[np.isfinite(x)], 3)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize(("name", "units"), [("lgamma", 5), ("digamma", 11)])
def test_gamma_functions(name: str, units: int) -> None:
    """In rounding units of the result or, below 0, of what it is a difference of."""
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 2.0, -1.0, -2.0, 1e38, -1e38, 1e-40, -8388606.5, -8388608.0]
    runs = [np.linspace(a, b, 5000) for a, b in ((-0.48, 0.52), (0.4, 7.0), (-40.3, -0.4), (5.0, 1e6))]
    for x in (*(run.astype(np.float32) for run in (*runs, *(runs[1][:n] for n in (1, 9, 255, 257)))),):
        function = getattr(BASE, name)
        with np.errstate(invalid="ignore"):
            got, expected, of_size = function(x), function(x.astype(np.float64)), function(np.abs(x.astype(np.float64)))
        near = (x > 0) | (x < -0.5)
        scale = np.where(x > 0, np.abs(expected), np.maximum(1.0, np.maximum(np.abs(expected), np.abs(of_size))))
        error = np.abs(got - expected) / (scale * 2.0**-24 + 1e-45)
        assert error[near & np.isfinite(expected)].max(initial=0.0) < 2 * units
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=3e-5)
    x = np.array(special * 50, np.float32)
    with np.errstate(over="ignore"):
        expected = function(np.array(special, np.float32).astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(function(x), np.tile(expected, 50), rtol=1e-6)
    out = function(x.reshape(-1, 2)[:, 0])
    np.testing.assert_array_equal(out, function(x)[::2])


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_functions_of_two() -> None:
    """To the bit, of arrays and of numbers on either side; which zero is the larger one is nobody's rule."""
    x, y = ends(MANY), ends(MANY)[::-1].copy()
    for ufunc, name in ufuncs.KERNELS.items():
        if ufunc.nin == 1:
            continue
        operation = ufuncs.binary(ufunc)
        pairs: list[tuple[Any, Any]] = [(x, y)]
        pairs += [(x, number) for number in (0.3, 3, 1e39, math.nan)] + [(number, x) for number in (0.3, -2, math.inf)]
        for a, b in pairs:
            with np.errstate(all="ignore"):
                expected = ufunc(a, b, dtype=np.float32)
            np.testing.assert_array_equal(operation(a, b), expected, err_msg=f"{name} {a} {b}")


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_quotients_and_remainders_have_the_bits_of_numpy_s(dtype: str) -> None:
    """Of numbers of all sizes, of about the same size, and beside multiples; of numbers and their negatives."""
    bits, digits = np.finfo(dtype).bits, np.finfo(dtype).nmant
    of_bits = np.dtype(f"i{bits // 8}")
    rng, exponents = np.random.default_rng(3), (1 << (bits - 1 - digits)) - 1
    x, y = (rng.integers(-(1 << bits - 1), (1 << bits - 1) - 1, MANY, of_bits) for _ in range(2))
    near = np.clip((x >> digits & exponents) - rng.integers(-3, 60, MANY), 0, exponents - 1).astype(of_bits)
    of_size = ((y & ~(exponents << digits)) | near << digits).view(dtype)
    divisors = rng.standard_normal(MANY).astype(dtype)
    multiples = (divisors * rng.integers(-(10**6), 10**6, MANY)).astype(dtype)
    special = np.array([*SPECIAL, np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal, 3.0, -0.5], dtype)
    pairs: list[tuple[Any, Any]] = [(x.view(dtype), y.view(dtype)), (x.view(dtype), of_size), (multiples, divisors)]
    pairs += [(np.nextafter(multiples, np.array(end, dtype)), divisors) for end in (np.inf, -np.inf)]
    pairs += [(np.repeat(special, 99), np.resize(special, 99 * len(special))), (multiples[::2], divisors[::2])]
    pairs += [(of_size, number) for number in (0.3, -7, 0.0, -0.0, np.inf, np.nan, 1e-30)]
    for ufunc in ufuncs.DIVISIONS:
        for a, b in pairs:
            with np.errstate(all="ignore"):
                found, expected = ufuncs.binary(ufunc)(a, b), ufunc(a, b)
            assert found.dtype == expected.dtype == dtype
            np.testing.assert_array_equal(found, expected, err_msg=f"{ufunc} {a} {b}")
            some = ~np.isnan(expected)
            np.testing.assert_array_equal(np.signbit(found[some]), np.signbit(expected[some]))


SAMPLED: list[tuple[tuple[int, ...], int]] = [
    ((3, 2, 7), 1), ((2, 3, 5, 6), 300), ((1, 5, 9, 4), 129), ((2, 1, 3, 4, 5), 257), ((1, 2, 1, 6), 128),
    ((1, 1, 2, 3, 2, 2), 9), ((2, 0, 3, 3), 5), ((2, 3, 4, 4), 0), ((0, 2, 3), 4),
]  # fmt: skip


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("shape", "wanted"), SAMPLED)
def test_sampling(shape: tuple[int, ...], wanted: int, dtype: str) -> None:
    """As by the bodies, of positions inside, outside, far away and not numbers, and beside infinities."""
    rng, rank = np.random.default_rng(5), len(shape) - 2
    x, grad = numbers(*shape).astype(dtype), numbers(*shape[:2], wanted, seed=1).astype(dtype)
    inside = rng.uniform(0, 1, (shape[0], wanted, rank)) * (np.array(shape[2:]) - 1)
    around = rng.uniform(-0.6, 1.6, inside.shape) * np.array(shape[2:])
    around[:, 1::9] = np.round(around[:, 1::9])
    around[:, 2::9] = rng.choice([np.nan, np.inf, -np.inf, 6e4, -0.0, -1.0], around[:, 2::9].shape)
    unlimited = x.copy()
    unlimited[..., 0] = np.inf
    at = [np.moveaxis(p.astype(dtype), 1, 2) for p in (inside, around)]
    error = {"float16": 2e-3, "float32": 2e-5, "float64": 1e-13}[dtype]
    slopes: tuple[Any, ...] = ((), (rank - 1,), tuple(range(rank))) if rank < 4 else ((), (1,))
    for positions, values, along in itertools.product(at, (x, unlimited, x[::-1, :, ::-1]), slopes):
        for padding, mode in itertools.product(("zeros", "border"), ("linear", "nearest")):
            given = {"mode": mode, "padding": padding, "slopes": along}
            with np.errstate(invalid="ignore"):
                found = BASE.sample(values, positions, **given)
                expected = OPERATIONS["sample"].body(BASE, values, positions, **given)
            assert found.dtype == values.dtype
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=error, atol=error, err_msg=str(given))
            given["places"] = shape[2:]
            found = BASE.sample_backward(grad, positions, **given)
            expected = OPERATIONS["sample_backward"].body(BASE, grad, positions, **given)
            assert found.dtype == grad.dtype
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=error, atol=error, err_msg=str(given))


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("shape", "size"), [
    ((3, 2, 7), (20,)), ((2, 3, 9, 34), (9, 5)), ((2, 3, 5, 6), (11, 70)), ((1, 2, 30, 3), (1, 3)),
    ((1, 2, 3, 4, 5), (5, 2, 9)), ((0, 2, 3), (4,)), ((2, 0, 3, 3), (4, 2)), ((1, 1, 1, 1), (3, 2)),
])  # fmt: skip
def test_resizing(shape: tuple[int, ...], size: tuple[int, ...], dtype: str) -> None:
    """As by the bodies, also of what lies otherwise and beside infinities."""
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


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("rows", range(1, 9))
def test_many_small_systems(rows: int, dtype: str) -> None:
    """Also those whose rows have to be exchanged; one that is singular, or of no numbers, is left to LAPACK."""
    rng = np.random.default_rng(rows)
    size = {"float16": 3e-3, "float32": 2e-5, "float64": 1e-12}[dtype]
    x = rng.integers(-4, 5, (3, 29, rows, rows)) + 6.0 * rng.permuted(np.eye(rows)[None].repeat(87, 0), axis=1).reshape(
        3, 29, rows, rows
    )
    x = np.where((np.linalg.cond(x) < 50)[..., None, None], x, np.eye(rows)[::-1]).astype(dtype)
    scale = rng.choice([1.0, 2.0**-9, 2.0**5], (3, 29, rows, 1)).astype(dtype)
    for a, y in (
        (x, rng.normal(size=(3, 29, rows, 2)).astype(dtype)), (x, rng.normal(size=(rows, 8)).astype(dtype)),
        (x[0], rng.normal(size=(2, 1, rows, 1)).astype(dtype)), (x[:, ::2].mT, x[:, ::2]), (x * scale, x * scale),
        (x[0, 0], rng.normal(size=(20, rows, 1)).astype(dtype)), (x, np.zeros((rows, 0), dtype)),
    ):  # fmt: skip
        wide, right = a.astype(np.float64), y.astype(np.float64)
        np.testing.assert_allclose(BASE.solve(a, y), np.linalg.solve(wide, right), rtol=size, atol=50 * size)
    wide = x.astype(np.float64)
    for name in ("inv", "det", "slogdet"):
        found, expected = getattr(BASE, name)(x), getattr(np.linalg, name)(wide)
        for one, other in zip(*((found, expected) if name == "slogdet" else ([found], [expected])), strict=True):
            assert (one.dtype, one.shape) == (dtype, other.shape)
            with np.errstate(over="ignore"):  # determinants of 16 bits
                np.testing.assert_allclose(one, other.astype(dtype), rtol=100 * size, atol=size)
    x[1, 7] = 0
    assert BASE.det(x)[1, 7] == 0
    np.testing.assert_array_equal([a[1, 7] for a in BASE.slogdet(x)], [0, -np.inf])
    for call in (lambda: BASE.inv(x), lambda: BASE.solve(x, x)):
        with pytest.raises(SingularMatrixError, match=r"the matrix at \[1, 7\] is singular"):
            call()
    x[1, 7], x[2, 3, 0, -1] = 1.5 * np.eye(rows), np.nan
    found = BASE.det(x)
    assert np.isnan(found).sum() == np.isnan(found[2, 3]) == 1


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["bool", "float16", "float32", "int64"])
def test_rows_side_by_side(dtype: str) -> None:
    """Rows of every width, and of operands that are no contiguous arrays, in the place of NumPy's."""
    for width in (*range(1, 20), 31, 32, 33, 64, 100, 5000):
        x, y = ((numbers(9, n, 2, seed=n) * 99).astype(dtype) for n in (width, 3))
        of_one, turned = np.broadcast_to(y[:1], y.shape), x.swapaxes(0, 1).copy().swapaxes(0, 1)
        ways = [x, y], [x[:, 1:], y[:, :2]], [y[::-1], x], [of_one, y], [y, x[:, ::-1], y], [turned, y[:, :0], y]
        for tensors in ways:
            np.testing.assert_array_equal(BASE.concat(tensors, 1), np.concatenate(tensors, 1), strict=True)
        last = [x[..., 1:], x[..., :1], x[:, ::-1], np.asfortranarray(x)]
        np.testing.assert_array_equal(BASE.concat(last, 2), np.concatenate(last, 2), strict=True)
        np.testing.assert_array_equal(BASE.stack([x, x], 2), np.stack([x, x], 2), strict=True)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["bool", "float16", "float32", "int64"])
def test_triangles(dtype: str) -> None:
    """Of matrices of every form, with the diagonal everywhere, and what is left out not a number."""
    for shape in ((1, 1), (5, 5), (3, 7), (2, 3, 9, 4), (1, 70), (300, 200)):
        x = (numbers(*shape) * 99).astype(dtype)
        if dtype.startswith("float"):
            x[..., 0], x[..., 1:2] = np.nan, np.inf
        for operand in (x, np.asfortranarray(x), x[..., ::-1]):
            for offset in (*range(-8, 9), -(2**70), 2**70):
                near = min(max(offset, -1000), 1000)
                np.testing.assert_array_equal(BASE.triu(operand, offset), np.triu(operand, near), strict=True)
                np.testing.assert_array_equal(BASE.tril(operand, offset), np.tril(operand, near), strict=True)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 70_001), (7, 10_001), (70_001, 1), (30_003, 3), (4_001, 24), (300, 300)])
def test_reductions_of_rows(shape: tuple[int, int], dtype: str) -> None:
    x = numbers(*shape).astype(dtype)
    near_one = 1 + x / 1000
    for axis in ((0, 1), (1,), (0,)):
        expected = np.prod(near_one.astype(np.float64), axis=axis)
        np.testing.assert_allclose(BASE.prod(near_one, axis), expected, rtol=1e-3)
        for scale in (1e-30, 1.0, 1e30):
            expected = np.sqrt(np.square(x * scale, dtype=np.float64).sum(axis))
            np.testing.assert_allclose(BASE.norm(x * x.dtype.type(scale), axis), expected, rtol=1e-5)
    for axis in ((0, 1), (1,), (0,)):
        for name in ("sum", "max", "min"):
            expected = getattr(np, name)(x.astype(np.float64), axis=axis)
            np.testing.assert_allclose(getattr(BASE, name)(x, axis), expected, rtol=1e-6, atol=1e-3, err_msg=name)
            assert getattr(BASE, name)(x, axis, True).shape == getattr(np, name)(x, axis=axis, keepdims=True).shape
    x[0, shape[1] // 2], x[-1, -1] = np.inf, np.nan
    wide = x.astype(np.float64)
    for name in ("sum", "max", "min"):
        for axis in ((0, 1), (1,)):
            np.testing.assert_array_equal(
                np.isnan(getattr(BASE, name)(x, axis)), np.isnan(getattr(np, name)(wide, axis=axis)), err_msg=name
            )
    np.testing.assert_allclose(BASE.norm(x, (1,)), np.sqrt(np.square(wide).sum(1)), rtol=1e-6)
    assert np.isnan(BASE.prod(x, (1,))[-1])
    x = -np.inf * np.ones(shape, dtype)
    np.testing.assert_array_equal(BASE.max(x, (1,)), x.max(1))


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(40, 11, 13), (1, 700, 7), (3, 2, 150, 70), (2, 300, 1), (1, 1, 4200)])
def test_reductions_of_stacks(shape: tuple[int, ...], dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SMALL", "LARGE", "ROWS"):
        monkeypatch.setattr(reductions, name, 1)
    for special in ((), (np.inf,), (np.nan,), (np.nan, -np.inf, np.inf)):
        x = numbers(*shape).astype(dtype)
        x.reshape(-1)[: 5 * len(special) : 5] = special
        for first, last in ((0, 0), (0, 1), (1, 1), (1, 2), (0, len(shape) - 2), (len(shape) - 1, len(shape) - 1)):
            axis = tuple(range(first, last + 1))
            for name in ("sum", "max", "min"):
                with np.errstate(invalid="ignore"):
                    expected = getattr(np, name)(x.astype(np.float64), axis=axis)
                got = getattr(BASE, name)(x, axis)
                assert got.shape == expected.shape
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4, err_msg=f"{name} {axis}")
            with np.errstate(invalid="ignore"):
                near_one = 1 + x / 1000
                expected = near_one.astype(np.float64).prod(axis)
            np.testing.assert_allclose(BASE.prod(near_one, axis), expected, rtol=1e-3)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "float16"])
@pytest.mark.parametrize("shape", [(5, 1000), (3, 4, 2), (1, 300), (2, 1), (0, 3), (3, 0)])
def test_differences(shape: tuple[int, ...], dtype: str) -> None:
    x = (10 * numbers(*shape)).astype(dtype)
    for operand in (x, np.asfortranarray(x)):
        for axis in range(x.ndim):
            for n in (0, 1, 2):
                np.testing.assert_array_equal(BASE.diff(operand, axis, n), np.diff(x, n, axis), strict=True)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("axis", [(0, 2, 3), (0, 3), (1, 3), (0, 1, 3), (0, 2), (0, 2, 3, 4)])
def test_sums_over_axes_that_are_not_neighbours(axis: tuple[int, ...]) -> None:
    for shape in ((5, 6, 70, 40), (2, 3, 4, 5000), (3, 2, 5, 7, 600)):
        if axis[-1] >= len(shape):
            continue
        x = numbers(*shape)
        for keepdims in (False, True):
            expected = x.sum(axis, dtype=np.float64, keepdims=keepdims)
            got = BASE.sum(x, axis, keepdims)
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-2)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_sums_of_many_rows_do_not_drift() -> None:
    x = np.full((1 << 20, 3), 0.1, np.float32)
    np.testing.assert_allclose(BASE.sum(x, (0,)), x.sum(0, dtype=np.float64), rtol=1e-5)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("shape", [(300, 257), (70, 1027), (1, 70_001), (2, 35_000, 1), (90_000, 3)])
def test_sums_and_products_of_doubles(shape: tuple[int, ...]) -> None:
    x = numbers(*shape).astype(np.float64)
    near_one, axis = 1 + x / 1000, len(shape) - 1
    for given, axes in ((x, (axis,)), (x, tuple(range(len(shape)))), (x - 7e5, (axis,))):
        np.testing.assert_allclose(BASE.sum(given, axes), given.sum(axes, np.longdouble), rtol=1e-13, atol=1e-11)
    np.testing.assert_allclose(BASE.prod(near_one, (axis,)), near_one.prod(axis, np.longdouble), rtol=1e-12)
    x.reshape(-1)[-1] = np.nan
    for name in ("sum", "prod"):
        with np.errstate(all="ignore"):
            found = getattr(BASE, name)(x, (axis,))
        np.testing.assert_array_equal(np.isnan(found), np.isnan(x).any(axis))


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_kernels_leave_the_registers_of_long_doubles() -> None:
    for _ in range(8):
        BASE.quantize(numbers(64, 100), dtype=as_dtype("qint8_symmetric_tensor_float32"))  # type: ignore[arg-type]
    assert np.sin(np.longdouble(0.5)) == pytest.approx(0.479425538604203)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 70_001), (9, 1500), (3, 2, 5, 77), (17, 1)])
def test_running_maxima_and_minima(shape: tuple[int, ...], dtype: str) -> None:
    x = numbers(*shape).astype(dtype)
    late, early = x.copy(), np.full_like(x, -np.inf)
    late[..., shape[-1] // 2] = np.nan
    for values in (x, late, early, -early):
        for axis in range(x.ndim):
            np.testing.assert_array_equal(BASE.cummax(values, axis), np.maximum.accumulate(values, axis))
            np.testing.assert_array_equal(BASE.cummin(values, axis), np.minimum.accumulate(values, axis))


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 70_001), (9, 1500), (3, 2, 5, 77), (17, 1)])
def test_running_sums_and_products(shape: tuple[int, ...], dtype: str) -> None:
    x = numbers(*shape).astype(dtype)
    for values, operation, expected in ((x, BASE.cumsum, np.cumsum), (1 + x / 1000, BASE.cumprod, np.cumprod)):
        for axis in range(x.ndim):
            np.testing.assert_array_equal(operation(values, axis), expected(values, axis))
            backwards = np.flip(expected(np.flip(values, axis), axis), axis)
            np.testing.assert_array_equal(operation(values, axis, True), backwards)



@needs_kernels
def test_several_threads_of_python_share_the_team() -> None:
    """One of them has it at a time, the others do their work alone; nothing is lost, and nobody waits for ever."""
    before, wrong = threads.num_threads(), []
    threads.set_num_threads(4)

    def work(seed: int) -> None:
        x = numbers(150_000, seed=seed)
        expected = x + x
        for _ in range(60):
            if not np.array_equal(ufuncs.large(np.add, x, x), expected):
                wrong.append(seed)

    running = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(120)
        assert not thread.is_alive()
    threads.set_num_threads(before)
    assert not wrong


FORKED = """
import os, sys
import numpy as np
from backburn_numpy import threads, ufuncs
threads.set_num_threads(3)
x = np.ones(200_000, np.float32)
add = ufuncs.binary(np.add)
assert add(x, x).sum() == 400_000
child = os.fork()
if not child:
    os._exit(0 if add(x, x).sum() == 400_000 and add(x, 1.0).sum() == 400_000 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert add(x, x).sum() == 400_000
"""


@needs_kernels
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
def test_a_forked_child_has_a_team_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED],
        capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


# ---- 16-bit floats ----


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_conversions_of_16_bits_are_those_of_numpy(name: str) -> None:
    dtype = as_dtype(name).dtype
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    with np.errstate(all="ignore"):
        floats = every.astype(np.float32)
        finite = floats[np.isfinite(floats)]
        between = (finite[:-1] + finite[1:]) / 2
        bits = np.random.default_rng(0).integers(0, 1 << 32, 300_000, dtype=np.uint64).astype(np.uint32)
        numbers_32 = (bits.view(np.float32), finite, np.nextafter(finite, np.float32(np.inf)), between, floats[:33])
        np.testing.assert_array_equal(halves.widened(every), floats)
        np.testing.assert_array_equal(np.signbit(halves.widened(every)), np.signbit(floats))
        for x in numbers_32:
            got, expected = halves.converted(x, dtype), x.astype(dtype)
            is_nan = np.isnan(x)
            np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), is_nan)
            np.testing.assert_array_equal(got.view(np.uint16)[~is_nan], expected.view(np.uint16)[~is_nan])
    strided = every[100:40_000:3]
    np.testing.assert_array_equal(halves.widened(strided), floats[100:40_000:3])
    column = np.zeros((300, 2), dtype)
    halves.fill(column[:, 0], np.arange(300, dtype=np.float32))
    np.testing.assert_array_equal(column[:, 0], np.arange(300).astype(dtype))


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(5000,), (3, 70_001)], ids=str)
def test_arithmetic_of_16_bits_is_that_of_numpy(name: str, shape: tuple[int, ...]) -> None:
    dtype = as_dtype(name).dtype
    x, y = numbers(*shape).astype(dtype), numbers(*shape, seed=1).astype(dtype)
    row = numbers(shape[-1], seed=2).astype(dtype)
    pairs = (BASE.add, np.add), (BASE.sub, np.subtract), (BASE.mul, np.multiply), (BASE.div, np.divide)
    for operation, ufunc in pairs:
        with np.errstate(all="ignore"):
            expected = [ufunc(x, y), ufunc(x, row), ufunc(x, dtype.type(0.1)), ufunc(dtype.type(0.1), x)]
        got = operation(x, y), operation(x, row), operation(x, 0.1), operation(0.1, x)
        for mine, theirs in zip(got, expected, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(BASE.sqrt(BASE.abs(x)), np.sqrt(np.abs(x)))
    np.testing.assert_array_equal(BASE.maximum(x.T, y.T), np.maximum(x, y).T)
    np.testing.assert_array_equal(BASE.less(x, 0.1), x < dtype.type(0.1))
    np.testing.assert_array_equal(BASE.greater_equal(0.1, x), dtype.type(0.1) >= x)
    either = np.where(y > 0, x, y)
    np.testing.assert_array_equal(BASE.equal(x, either), x == either)
    np.testing.assert_array_equal(BASE.pow(x, 3.0), np.power(x.astype(np.float32), 3).astype(dtype))
    for function in (BASE.gelu, BASE.sigmoid, BASE.tanh):
        got, expected = function(x), function(x.astype(np.float64))
        assert got.dtype == dtype
        np.testing.assert_allclose(got.astype(np.float64), expected, rtol=2e-2, atol=2e-2)
    got, expected = BASE.sum(x, (len(shape) - 1,)), x.astype(np.float64).sum(-1)
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=1e-2)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 9_001), (3, 4_097), (700, 9), (5, 1030), (1, 1), (4, 1, 3)], ids=str)
def test_reductions_of_16_bits(name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whole arrays, rows and columns: summed in float32, which keeps what 16 bits would lose, and rounded once."""
    monkeypatch.setattr(reductions, "SMALL", 1)
    dtype = as_dtype(name).dtype
    x = numbers(*shape).astype(dtype)
    near_one = (1 + numbers(*shape) / 3000).astype(dtype)
    for axis in (tuple(range(len(shape))), (len(shape) - 1,), (0,), tuple(range(len(shape) - 1)), (len(shape) - 2,)):
        for operation in ("sum", "mean", "max", "min", "prod", "max_abs"):
            operand = near_one if operation == "prod" else x
            wide = operand.astype(np.float64)
            expected = np.abs(wide).max(axis) if operation == "max_abs" else getattr(np, operation)(wide, axis=axis)
            for keepdims in (False, True):
                got = getattr(BASE, operation)(operand, axis, keepdims=keepdims)
                assert got.dtype == dtype
                assert got.shape == np.sum(wide, axis, keepdims=keepdims).shape
                rounded = expected.astype(dtype).astype(np.float64).reshape(got.shape)
                error, rtol = np.abs(got.astype(np.float64) - rounded), 1e-2 if operation == "prod" else 2.0**-7
                assert (error <= 1e-3 + rtol * np.abs(rounded)).all(), f"{operation} {axis}"
        for operation in ("max", "min"):  # which are no sums: to the bit
            got = getattr(BASE, operation)(x, axis).astype(np.float64)
            np.testing.assert_array_equal(got, getattr(np, operation)(x.astype(np.float64), axis=axis))
    ones = np.ones((3000, 3), dtype)
    np.testing.assert_array_equal(BASE.sum(ones, (0,)).astype(np.float64), np.float64(3000).astype(dtype))
    x[..., -1] = np.nan
    with np.errstate(invalid="ignore"):
        for operation in ("sum", "max", "min"):
            assert np.isnan(getattr(BASE, operation)(x, (len(shape) - 1,)).astype(np.float64)).all()
    np.testing.assert_array_equal(BASE.argmax(x, len(shape) - 1), shape[-1] - 1)


# ---- random numbers ----


@needs_kernels
@pytest.mark.parametrize("offset", [0, 3, 2**40 + 1, 2**64 - 50_000])
@pytest.mark.parametrize("count", [1, 2, 511, 513, 40_001])
def test_draws_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch, offset: int, count: int) -> None:
    """Bit for bit, but for normal numbers; and none beyond the end of the stream."""
    from backburn_numpy import random

    key = 0x0123456789ABCDEF << 64 | 0xFEDCBA9876543210
    early = min(offset, 2**63)  # where several words for each number are left

    def draws() -> list[Any]:
        return [
            random.words(key, offset, count),
            random.uniform(key, offset, (count,), float32),
            random.bernoulli(key, offset, (count,), 0.3),
            random.bernoulli(key, offset, (count,), 1.0),
            random.poisson(np.linspace(0.0, 30.0, count), key=key, offset=early),
            *random._columns(key, early, 17, count)(slice(None), 0, 17),
            *random._columns(key, early, 32, count)(np.arange(0, count, 3)[::-1], 5, 2),
            random.normal(key, offset, (count,), float32),
        ]

    *exact, normal = draws()
    monkeypatch.setattr(compiled, "kernel", lambda name: None)
    *expected, other = draws()
    for got, right in zip(exact, expected, strict=True):
        assert got.dtype == right.dtype
        np.testing.assert_array_equal(got, right)
    np.testing.assert_allclose(normal, other, rtol=0, atol=1.5e-6)
