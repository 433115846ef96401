"""Convolutions and attention of the CuPy backend by cuDNN: on a stand-in that computes, and plans of the real cuDNN."""

from __future__ import annotations

import ctypes
import doctest
import importlib
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.emulation import cudnn_plans
from tests.backends.cupy.stand_in import compiled
from tests.backends.cupy.stand_in.use import forget

import backburn as bb
from backburn.autodiff import Autodiff
from backburn.backend.registry import load_backend
from backburn.base import dtypes
from backburn.base.errors import DeviceError, ShapeError
from backburn.conformance import check_backend
from backburn.conformance.checks.kinds import KINDS, LARGE_KINDS

pytestmark = pytest.mark.skipif(compiled.COMPILER is None, reason="running the kernels needs g++")

CONVOLUTIONS = ["conv", "conv_transpose", "conv_weight_backward"]
ATTENTION = ["scaled_dot_product_attention", "scaled_dot_product_attention_backward"]
HALVES = ("float16", "bfloat16")


@pytest.fixture
def k(cupy: Any) -> Any:
    from backburn_cupy import CupyBackend

    return CupyBackend()


@pytest.fixture
def dnn(k: Any) -> Iterator[Any]:
    """The stand-in for cuDNN, with its calls and its settings."""
    module = importlib.import_module("cudnn")
    before = {name: set(value) if isinstance(value, set) else value for name, value in module.SETTINGS.items()}
    module.CALLS.clear()
    forget()
    yield module
    module.SETTINGS.update(before)
    forget()


def made(k: Any, shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> tuple[Any, Any]:
    """Small integers, whose sums are exact, on the device and on the host."""
    values = np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)
    return k.astype(k.from_numpy(values), dtypes.as_dtype(dtype)), values


def back(k: Any, x: Any) -> Any:
    return k.to_numpy(k.astype(x, dtypes.float64))


def channels_last(k: Any, x: Any) -> Any:
    """A copy of ``x`` with channels last in memory."""
    rank = len(x.shape)
    host = back(k, x).transpose(0, *range(2, rank), 1)
    return k.permute_dims(
        k.astype(k.from_numpy(np.ascontiguousarray(host)), k.dtype(x)), (0, rank - 1, *range(1, rank - 1))
    )


# ---- the contract ----


@pytest.mark.parametrize("way", ["installed", "without plans", "missing"])
def test_every_value_and_gradient(k: Any, dnn: Any, way: str) -> None:
    if way == "without plans":
        dnn.SETTINGS["refused"] = {"conv_fprop", "conv_dgrad", "conv_wgrad", "sdpa", "sdpa_backward"}
    elif way == "missing":
        dnn.SETTINGS["version"] = None
    report = check_backend(Autodiff(k), ops=CONVOLUTIONS + ATTENTION, quick=True)
    assert report.ok, report.failures[:5]
    assert bool(dnn.CALLS) == (way == "installed")


@pytest.mark.parametrize("dtype", [*HALVES, "float32", "float64"])
@pytest.mark.parametrize("last", [False, True])
def test_convolutions_equal_numpy_s(k: Any, dnn: Any, dtype: str, last: bool) -> None:
    numpy = load_backend("numpy")
    rng = np.random.default_rng(3)
    for _ in range(25):
        rank, groups = int(rng.integers(1, 4)), int(rng.integers(1, 3))
        size, stride, dilation = (tuple(int(n) for n in rng.integers(1, 3, rank)) for _ in range(3))
        padding = tuple((int(a), int(b)) for a, b in rng.integers(0, 3, (rank, 2)))
        places = tuple(int(n) for n in rng.integers(3, 7, rank))
        options = (stride, padding, dilation, groups)
        (x, a), (w, b), (c, d) = (
            made(k, shape, dtype, i)
            for i, shape in enumerate([(2, 2 * groups, *places), (3 * groups, 2, *size), (3 * groups,)])
        )
        if last:
            x, w = channels_last(k, x), channels_last(k, w)
        y = k.conv(x, w, c, *options)
        expected = numpy.conv(a, b, d, *options)
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(back(k, y), expected)
        g, e = made(k, expected.shape, dtype, 9)
        np.testing.assert_array_equal(
            back(k, k.conv_weight_backward(x, g, size, *options)),
            numpy.astype(numpy.conv_weight_backward(a, e, size, *options), dtypes.as_dtype(dtype)).astype(np.float64),
        )
        rest = tuple(int(rng.integers(0, n)) for n in stride)
        try:
            back_to = numpy.conv_transpose(e, b, None, stride, padding, rest, dilation, groups)
        except ShapeError:
            continue
        got = k.conv_transpose(g, w, None, stride, padding, rest, dilation, groups)
        np.testing.assert_array_equal(back(k, got), back_to)
    assert {call.operation for call in dnn.CALLS} == {"conv_fprop", "conv_dgrad", "conv_wgrad"}


# ---- convolutions ----


def test_operands_in_both_layouts_are_not_copied(k: Any, dnn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from backburn_cupy import conv

    x, w = made(k, (2, 4, 5, 6), "bfloat16")[0], made(k, (8, 4, 3, 3), "bfloat16")[0]
    both = (x, w), (channels_last(k, x), channels_last(k, w))
    results: list[Any] = []
    sizes: list[Any] = []
    new = conv.new_array

    def counting(shape: Any, *more: Any) -> Any:
        sizes.append(shape)
        return new(shape, *more)

    monkeypatch.setattr(conv, "new_array", counting)
    for image, weight in both:
        results.append(k.conv(image, weight, None, (1, 1), ((1, 1), (1, 1)), (1, 1), 1))
    assert sizes == [(2, 8, 5, 6)] * 2  # only the results
    plain, last = results
    assert (plain.strides, last.strides) == ((480, 60, 12, 2), (480, 2, 96, 16))
    np.testing.assert_array_equal(back(k, plain), back(k, last))
    assert [call.strides[1] for call in dnn.CALLS] == [(120, 30, 6, 1), (120, 1, 24, 4)]


def test_operands_in_other_layouts(k: Any, dnn: Any) -> None:
    x, values = made(k, (2, 3, 5, 12))
    w, weights = made(k, (2, 3, 2, 2))
    numpy, options = load_backend("numpy"), ((1, 1), ((0, 0), (0, 0)), (1, 1), 1)
    everything = (slice(0, 2, 1), slice(0, 3, 1), slice(0, 5, 1))
    for step in (slice(1, 11, 1), slice(0, 12, 2), slice(3, 4, 1)):
        part = k.slice(x, (*everything, step))
        if step.stop == 4:
            part = k.concat([part, part], 3)
        host = numpy.slice(values, (*everything, step))
        host = np.concatenate([host, host], 3) if step.stop == 4 else host
        expected = numpy.conv(host, weights, None, *options)
        np.testing.assert_array_equal(back(k, k.conv(part, w, None, *options)), expected)
    row = k.slice(made(k, (1, 1, 9))[0], (slice(0, 1, 1), slice(0, 1, 1), slice(1, 9, 1)))  # packed
    assert row.data.ptr % 16 == 4
    k.conv(row, made(k, (1, 1, 2))[0], None, (1,), ((0, 0),), (1,), 1)
    wide = k.broadcast_to(made(k, (1, 3, 5, 5))[0], (2, 3, 5, 5))
    k.conv(wide, w, None, *options)
    assert len(dnn.CALLS) == 5


def test_a_bias_is_added_before_the_result_is_rounded(k: Any, dnn: Any) -> None:
    x, w = k.full((1, 1, 1, 1), 1024.0, dtypes.float16), k.full((1, 1, 1, 1), 1.5, dtypes.float16)
    bias = k.full((1,), 0.5, dtypes.float16)
    options = ((1, 1), ((0, 0), (0, 0)), (1, 1), 1)
    assert float(back(k, k.conv(x, w, bias, *options))[0, 0, 0, 0]) == 1536.0  # 1536.5 is a tie
    assert [call.has_bias for call in dnn.CALLS] == [True]
    dnn.SETTINGS["refused"] = {"bias"}
    forget()
    x, values = made(k, (2, 3, 4, 4))
    w, weights = made(k, (2, 3, 2, 2))
    c, biases = made(k, (2,), seed=4)
    expected = load_backend("numpy").conv(values, weights, biases, *options)
    np.testing.assert_array_equal(back(k, k.conv(x, w, c, *options)), expected)
    assert [call.has_bias for call in dnn.CALLS] == [True, False]


def test_deselected_properties_of_algorithms(k: Any, dnn: Any) -> None:
    from backburn_cupy import CupyBackend

    transforms = {"FFT", "WINOGRAD", "WINOGRAD_TILE_4x4", "WINOGRAD_TILE_6x6", "WINOGRAD_TILE_13x13"}
    always = transforms | {"REDUCED_PRECISION_REDUCTION"}
    exact = {"TENSOR_CORE", "DOWN_CONVERT_INPUTS"}
    for backend, dtype, notes in [
        (k, "float32", always | exact), (k, "float64", always | exact), (k, "bfloat16", always),
        (CupyBackend(allow_tf32=True), "float32", always),
        (CupyBackend(deterministic=True), "float16", always | {"NONDETERMINISTIC"}),
    ]:  # fmt: skip
        dnn.CALLS.clear()
        x = backend.ones((1, 1, 2, 2), dtypes.as_dtype(dtype))
        backend.conv(x, x, None, (1, 1), ((0, 0), (0, 0)), (1, 1), 1)
        assert [call.deselected for call in dnn.CALLS] == [notes]


def test_plans_are_cached_and_refusals_are_recorded(k: Any, dnn: Any) -> None:
    from backburn_cupy import cudnn

    x = k.ones((1, 1, 2, 2), dtypes.float32)
    for _ in range(3):
        k.conv(x, x, None, (1, 1), ((0, 0), (0, 0)), (1, 1), 1)
    assert (cudnn.plan.cache_info().misses, len(dnn.CALLS), cudnn.REFUSED) == (1, 3, {})
    dnn.SETTINGS["refused"] = {"conv_fprop"}
    forget()
    assert back(k, k.conv(x, x, None, (1, 1), ((0, 0), (0, 0)), (1, 1), 1)).tolist() == [[[[4.0]]]]
    (kind,), (reason,) = cudnn.REFUSED, cudnn.REFUSED.values()
    assert (kind.which, reason) == ("forward", "No valid engine configs for")  # type: ignore[attr-defined]
    assert len(dnn.CALLS) == 3


@pytest.mark.parametrize(("where", "words"), [("broken", "cuDNN makes no plan"), ("running", "cuDNN fails")])
def test_failures_raise_device_errors(k: Any, dnn: Any, where: str, words: str) -> None:
    dnn.SETTINGS["refused"] = {where}
    x = k.ones((1, 1, 2, 2), dtypes.float32)
    with pytest.raises(DeviceError, match=rf"^conv: {words}: CUDNN_STATUS_EXECUTION_FAILED \(cuda:0\)"):
        k.conv(x, x, None, (1, 1), ((0, 0), (0, 0)), (1, 1), 1)


def test_mismatched_shapes_raise_before_cudnn_is_called(k: Any, dnn: Any) -> None:
    x = k.ones((1, 2, 4, 4), dtypes.float32)
    with pytest.raises(ShapeError):
        k.conv(x, k.ones((1, 3, 2, 2), dtypes.float32), None, (1, 1), ((0, 0), (0, 0)), (1, 1), 1)
    nothing = k.conv(k.ones((0, 2, 4, 4), dtypes.float32), x, None, (1, 1), ((0, 0), (0, 0)), (1, 1), 1)
    assert nothing.shape == (0, 1, 1, 1)
    assert dnn.CALLS == []


# ---- attention ----


def heads(k: Any, dtype: str, places: int, size: int, seed: int, way: str = "sliced") -> tuple[Any, Any]:
    """(examples, heads, positions, size), strided as after one projection of all heads, and a copy on the host."""
    values = np.random.default_rng(seed).normal(size=(2, places, 3, size)).astype(np.float32)
    wanted = dtypes.as_dtype(dtype)
    if way == "plain":
        x = k.astype(k.from_numpy(np.ascontiguousarray(values.transpose(0, 2, 1, 3))), wanted)
    else:
        x = k.permute_dims(k.astype(k.from_numpy(values), wanted), (0, 2, 1, 3))
    return x, back(k, x)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys", "width"), [(5, 5, 8), (7, 4, 16), (1, 6, 8)])
def test_attention_and_its_gradient(
    k: Any, dnn: Any, dtype: str, causal: bool, queries: int, keys: int, width: int
) -> None:
    numpy = load_backend("numpy")
    (q, a), (key, b), (v, c), (g, d) = (
        heads(k, dtype, *of) for of in ((queries, 8, 1), (keys, 8, 2), (keys, width, 3), (queries, width, 4))
    )
    y = k.scaled_dot_product_attention(q, key, v, None, None, causal, 0.4, 0.0)
    expected = numpy.scaled_dot_product_attention(a, b, c, None, None, causal, 0.4, 0.0)
    close: dict[str, Any] = {"rtol": 2e-2, "atol": 2e-2 if dtype == "bfloat16" else 3e-3}
    np.testing.assert_allclose(back(k, y), expected, **close)
    got = k.scaled_dot_product_attention_backward(g, q, key, v, None, None, y, causal, 0.4, 0.0)
    wanted = numpy.scaled_dot_product_attention_backward(d, a, b, c, None, None, expected, causal, 0.4, 0.0)
    for x, of, right in zip(got, (q, key, v), wanted, strict=True):
        assert (x.shape, x.dtype) == (of.shape, of.dtype)
        np.testing.assert_allclose(back(k, x), right, **{**close, "atol": 2 * close["atol"]})
    assert [call.operation for call in dnn.CALLS] == ["sdpa", "sdpa_backward"]
    assert all(call.options["causal"] is causal for call in dnn.CALLS)


def test_unknown_results_are_recomputed_and_statistics_freed(k: Any, dnn: Any) -> None:
    from backburn_cupy import attention_fused

    (q, _), (key, _), (v, _), (g, _) = (heads(k, "float16", 5, 8, seed) for seed in range(4))
    y = k.scaled_dot_product_attention(q, key, v, None, None, True, 0.4, 0.0)
    found = []
    for of in (y, k.add(y, 0.0), None):
        dnn.CALLS.clear()
        found.append(k.scaled_dot_product_attention_backward(g, q, key, v, None, None, of, True, 0.4, 0.0))
        assert [call.operation for call in dnn.CALLS] == ["sdpa"] * (of is not y) + ["sdpa_backward"]
    for again in found[1:]:
        assert all((back(k, a) == back(k, b)).all() for a, b in zip(found[0], again, strict=True))
    assert id(y) in attention_fused._SAVED
    name = id(y)
    del y, of
    assert name not in attention_fused._SAVED


def test_heads_are_not_copied_and_the_result_has_their_layout(k: Any, dnn: Any) -> None:
    for way, steps in (("sliced", (120, 8, 24, 1)), ("plain", (120, 40, 8, 1))):
        dnn.CALLS.clear()
        (q, _), (key, _), (v, _) = (heads(k, "bfloat16", 5, 8, seed, way) for seed in range(3))
        y = k.scaled_dot_product_attention(q, key, v, None, None, True, 1.0, 0.0)
        assert [dnn.CALLS[0].strides[n] for n in (1, 2, 3, 4)] == [steps] * 4
        assert y.strides == tuple(2 * step for step in steps)


@pytest.mark.parametrize("shape", [(5, 8), (3, 5, 8), (2, 3, 5, 8), (2, 2, 3, 5, 8)])
def test_attention_of_any_rank_and_layout(k: Any, dnn: Any, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).normal(size=(*shape[:-1], 2 * shape[-1] + 2)).astype(np.float16)
    x = k.from_numpy(values)
    key = (*(slice(0, n, 1) for n in shape[:-1]), slice(1, 2 * shape[-1] + 1, 2))
    numpy = load_backend("numpy")
    part, host = k.slice(x, key), values[key].astype(np.float64)
    y = k.scaled_dot_product_attention(part, part, part, None, None, False, 0.5, 0.0)
    assert y.shape == shape
    expected = numpy.scaled_dot_product_attention(host, host, host, None, None, False, 0.5, 0.0)
    np.testing.assert_allclose(back(k, y), expected, rtol=1e-2, atol=3e-3)
    assert len(dnn.CALLS) == 1


def test_attention_without_cudnn(k: Any, dnn: Any) -> None:
    def attend(dtype: str = "float16", size: int = 8, mask: Any = None, keep: Any = None, places: int = 4) -> None:
        x = k.ones((1, 2, places, size), dtypes.as_dtype(dtype))
        y = k.scaled_dot_product_attention(x, x, x, mask, keep, False, 1.0, 0.0)
        grads = k.scaled_dot_product_attention_backward(x, x, x, x, mask, keep, y, False, 1.0, 0.0)
        assert [t.shape for t in (y, *grads)] == [x.shape] * 4

    everywhere = k.from_numpy(np.ones((4, 4), bool))
    for options in ({"dtype": "float32"}, {"size": 12}, {"size": 264}, {"mask": everywhere}, {"places": 0}):
        attend(**options)
    attend(keep=k.from_numpy(np.ones((1, 2, 4, 4), bool)))
    assert dnn.CALLS == []
    dnn.SETTINGS["refused"] = {"sdpa_backward"}
    attend()
    assert [call.operation for call in dnn.CALLS] == ["sdpa"]  # and not again for a gradient that it does not compute


@pytest.mark.parametrize("dtype", [*HALVES, "float32", "float64"])
@pytest.mark.parametrize("way", ["plain", "causal", "bool mask", "float mask", "dropped", "nothing to attend to"])
def test_attention_by_products(k: Any, dnn: Any, cupy: Any, dtype: str, way: str) -> None:
    """Products of 16-bit floats have 16-bit operands; scores and their gradients are in float32."""
    dnn.SETTINGS["version"] = None
    lt = importlib.import_module("fake_cublaslt")
    numpy, rng, wanted = load_backend("numpy"), np.random.default_rng(0), dtypes.as_dtype(dtype)
    (q, a), (key, b), (v, c), (g, d) = (heads(k, dtype, *of) for of in ((5, 4, 1), (6, 4, 2), (6, 3, 3), (5, 3, 4)))
    mask = keep = None
    if way == "bool mask":
        mask = rng.random((2, 1, 5, 6)) < 0.7
    elif way == "float mask":
        mask = rng.normal(size=(5, 6)).astype(np.float32)
    elif way == "dropped":
        keep = rng.random((2, 3, 5, 6)) < 0.5
    elif way == "nothing to attend to":
        mask = np.arange(5)[:, None] > np.zeros(6)
    ours = [None if t is None else k.from_numpy(t) for t in (mask, keep)]
    if way == "float mask":
        ours[0] = k.astype(ours[0], wanted)
        mask = back(k, ours[0])
    lt.CALLS.clear()
    y = k.scaled_dot_product_attention(q, key, v, *ours, way == "causal", 0.5, 0.5)
    forward, lt.CALLS[:] = [(call.type, call.compute) for call in lt.CALLS], []
    got = k.scaled_dot_product_attention_backward(g, q, key, v, *ours, y, way == "causal", 0.5, 0.5)
    expected = numpy.scaled_dot_product_attention(a, b, c, mask, keep, way == "causal", 0.5, 0.5)
    wanted_gradients = numpy.scaled_dot_product_attention_backward(
        d, a, b, c, mask, keep, expected, way == "causal", 0.5, 0.5
    )
    tolerance = {"float16": 5e-3, "bfloat16": 4e-2, "float32": 1e-5, "float64": 1e-13}[dtype]
    for x, right in zip((y, *got), (expected, *wanted_gradients), strict=True):
        assert x.dtype == q.dtype
        np.testing.assert_allclose(back(k, x), right, rtol=tolerance, atol=tolerance)
    if way == "nothing to attend to":
        assert not back(k, y)[:, :, 0].any()
    made_of = {"float16": 2, "bfloat16": 14, "float32": 0, "float64": 1}[dtype]
    scores, compute = (1, 70) if dtype == "float64" else (0, 68)
    assert set(forward) == {(scores, compute), (made_of, compute)}
    assert {(call.type, call.compute) for call in lt.CALLS} == {(scores, compute), (made_of, compute)}
    assert dnn.CALLS == []


def test_a_deterministic_gradient_of_attention(k: Any, dnn: Any) -> None:
    from backburn_cupy import CupyBackend

    for backend, wanted in ((k, False), (CupyBackend(deterministic=True), True)):
        dnn.CALLS.clear()
        x = backend.ones((1, 1, 4, 8), dtypes.bfloat16)
        backend.scaled_dot_product_attention_backward(x, x, x, x, None, None, x, False, 1.0, 0.0)
        assert dnn.CALLS[-1].options["deterministic"] is wanted


# ---- the library ----


def test_libraries_are_described(k: Any, dnn: Any, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from backburn_cupy import cublaslt, cudnn

    def words() -> str:
        forget()
        return str(k.libraries["cuDNN"])

    assert words() == "9.19.0, frontend 1.22.1"
    assert k.libraries["cuBLASLt"].startswith("12.")
    dnn.SETTINGS["version"] = None
    unknown = "cuDNN does not load (Unable to find symbol cudnnGetVersion): pip install 'backburn[cudnn12]'"
    assert words() == unknown
    dnn.SETTINGS["version"] = 90800
    assert words().startswith("cuDNN is too old (90800, where 91000 is needed)")
    dnn.SETTINGS["version"] = 91900
    monkeypatch.setattr(cudnn, "_cuda_of_library", lambda: 13)
    assert words().startswith("cuDNN is for CUDA 13, and CuPy for CUDA 12")
    monkeypatch.undo()
    dnn.SETTINGS["starts"] = False
    assert words() == "cuDNN does not start on this device (cudnnHandle Create failed)"
    x = k.ones((1, 1, 2, 2), dtypes.float32)
    assert k.to_numpy(k.conv(x, x, stride=(1, 1), padding=((0, 0),) * 2, dilation=(1, 1))).tolist() == [[[[4.0]]]]
    dnn.SETTINGS["starts"] = True
    monkeypatch.setattr(cublaslt, "library", lambda: None)
    assert words() == "cuDNN needs cuBLASLt, which is missing"
    assert k.libraries["cuBLASLt"].startswith("missing: CuPy's cuBLAS does the products")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "cudnn", None)
    assert words().startswith("the frontend of cuDNN is not installed: pip install 'backburn[cudnn12]'")


def test_the_version_of_cuda_that_cudnn_is_for(k: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from backburn_cupy import cudnn

    class Function:
        restype: Any = None

        def __call__(self) -> int:
            return 13010

    for library, expected in ((SimpleNamespace(cudnnGetCudartVersion=Function()), 13), (SimpleNamespace(), None)):
        monkeypatch.setattr(ctypes, "CDLL", lambda name, library=library: library)
        assert cudnn._cuda_of_library() == expected


def test_each_thread_has_its_own_handle(k: Any, dnn: Any) -> None:
    from backburn_cupy import cudnn

    found = [cudnn.handle(0), cudnn.handle(0)]
    thread = threading.Thread(target=lambda: found.append(cudnn.handle(0)))
    thread.start()
    thread.join()
    assert found[0] == found[1] != found[2]


def test_convolutions_and_attention_are_recorded(cupy: Any, dnn: Any) -> None:
    """A replayed step with both and their gradients learns like the unrecorded step."""

    def losses(captured: bool) -> list[float]:
        with bb.use_backend(bb.load_backend("autodiff(cupy)")):
            bb.random.seed(0)
            weight = bb.random.normal((8, 8, 3), dtype=bb.float16) * 0.1
            x = bb.random.normal((2, 8, 6), dtype=bb.float16)

            def step(weight: Any) -> Any:
                def loss(weight: Any) -> Any:
                    h = bb.nn.functional.conv(x, weight, padding=1)
                    h = bb.reshape(bb.permute_dims(h, (0, 2, 1)), (2, 1, 6, 8))
                    mixed = bb.nn.functional.scaled_dot_product_attention(h, h, h)
                    return bb.mean(bb.square(bb.astype(mixed, bb.float32)))

                value, gradient = bb.value_and_grad(loss)(weight)
                return weight - gradient * 0.5, value

            run: Any = bb.capture(step) if captured else step
            found = []
            for _ in range(4):
                weight, value = run(weight)
                found.append(float(value))
            if captured:
                assert run.reason == ""
            return found

    plain = losses(False)
    assert plain[-1] < plain[0]
    np.testing.assert_allclose(losses(True), plain, rtol=1e-5)
    assert {c.operation for c in dnn.CALLS} == {"conv_fprop", "conv_wgrad", "sdpa", "sdpa_backward"}


def test_doctests_pass(cupy: Any) -> None:
    from backburn_cupy import conv

    results = doctest.testmod(conv)
    assert (results.attempted, results.failed) == (1, 0)


# ---- the real library ----


def asked(kinds: list[Any]) -> dict[str, Any]:
    """The real cuDNN's answer for these calls; skips if cuDNN cannot be used."""
    root = Path(__file__).parents[3]
    program = [sys.executable, "-m", "tests.backends.cupy.emulation.cudnn_plans"]
    done = subprocess.run(program, input=pickle.dumps(kinds), capture_output=True, cwd=root, check=False, timeout=200)
    assert done.returncode == 0, done.stderr.decode()
    answer: dict[str, Any] = json.loads(done.stdout)
    if "skipped" in answer:
        pytest.skip(answer["skipped"])
    return answer


def kinds_of(k: Any, module: Any, *calls: Any) -> list[Any]:
    """The plans requested during some calls."""
    kinds: list[Any] = []
    plan = module.plan

    def listening(kind: Any) -> Any:
        kinds.append(kind)
        return plan(kind)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "plan", listening)
        for call in calls:
            call()
    return list(dict.fromkeys(kinds))


@pytest.mark.skipif(cudnn_plans.missing() is not None, reason=str(cudnn_plans.missing()))
def test_plans_for_an_h200(k: Any, dnn: Any) -> None:
    """Every convolution of the conformance suite, and those of a ResNet in both layouts."""
    from backburn_cupy import cudnn
    from backburn_cupy.conv import Convolution

    small = [kind for kind in KINDS if kind not in LARGE_KINDS]
    kinds = kinds_of(k, cudnn, lambda: check_backend(Autodiff(k), ops=CONVOLUTIONS, kinds=small))
    assert len(kinds) > 100
    shapes = [((64, 3, 224, 224), (64, 3, 7, 7), 2, 3), ((64, 64, 56, 56), (64, 64, 3, 3), 1, 1),
              ((64, 64, 56, 56), (128, 64, 1, 1), 2, 0), ((64, 512, 7, 7), (512, 512, 3, 3), 1, 1)]  # fmt: skip
    large = []
    for (x, weight, stride, around), dtype, last in (
        (of, dtype, last) for of in shapes for dtype in ("float32", *HALVES) for last in (False, True)
    ):
        y = (x[0], weight[0], *((n + 2 * around - weight[-1]) // stride + 1 for n in x[2:]))
        orders = {"forward": (x, weight, y), "input": (y, weight, x), "weight": (x, y, weight)}
        for which, order in orders.items():
            for tf32, deterministic in ((False, False), (True, True)):
                large.append(
                    Convolution(0, dtype, tf32, deterministic, which, *order, ((around, around),) * 2, (stride,) * 2,
                                (1, 1), last, which == "forward")
                )  # fmt: skip
    answer = asked([*kinds, *large])
    plans = zip([*kinds, *large], answer["plans"], strict=True)
    refused = [(kind, plan) for kind, plan in plans if isinstance(plan, str)]
    assert refused == []
    # With channels last, 16-bit operands are used directly; otherwise they are converted in a workspace.
    sizes = dict(zip(large, answer["plans"][len(kinds) :], strict=True))
    for kind, size in sizes.items():
        if kind.dtype in HALVES and kind.which == "forward" and kind.first[1] == 64 and kind.second[2:] == (3, 3):
            assert (size > 1 << 20) == (not kind.channels_last)


@pytest.mark.skipif(cudnn_plans.missing() is not None, reason=str(cudnn_plans.missing()))
def test_graphs_of_attention_for_an_h200(k: Any, dnn: Any) -> None:
    """cuDNN accepts the graphs and builds their operations; plans would need a driver."""
    from backburn_cupy import cudnn

    def call(way: str, size: int) -> None:
        (q, _), (key, _), (v, _) = (heads(k, "bfloat16", 16, size, seed, way) for seed in range(3))
        k.scaled_dot_product_attention(q, key, v, None, None, True, 0.125, 0.0)
        k.scaled_dot_product_attention_backward(v, q, key, v, None, None, q, False, 0.125, 0.0)

    kinds = kinds_of(k, cudnn, lambda: call("sliced", 64), lambda: call("plain", 128))
    assert len(kinds) == 6
    answer = asked(kinds)
    if any("CUDA driver" in said for said in answer["described"]):
        pytest.skip("this frontend takes no graph of attention without a driver")
    assert answer["described"] == [""] * 6
