"""Products of the CuPy backend, on a stand-in for cuBLASLt that checks and computes, and on one for cuBLAS."""

from __future__ import annotations

import ctypes
import doctest
import importlib
import importlib.util
import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.stand_in import compiled

from backburn.base import dtypes
from backburn.base.errors import DeviceError, ShapeError

pytestmark = pytest.mark.skipif(compiled.COMPILER is None, reason="the stand-in libraries need g++")

FLOATS = ("float16", "bfloat16", "float32", "float64")


@pytest.fixture
def k(cupy: Any) -> Any:
    from backburn_cupy import CupyBackend

    return CupyBackend()


@pytest.fixture
def lt(k: Any) -> Any:
    """The stand-in for cuBLASLt, with its calls."""
    fake_cublaslt = importlib.import_module("fake_cublaslt")
    fake_cublaslt.CALLS.clear()
    return fake_cublaslt


@pytest.fixture(params=["cuBLASLt", "cuBLAS"])
def calls(k: Any, lt: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The calls of the library that computes products: cuBLASLt, or cuBLAS with cuBLASLt hidden."""
    from cupy_backends.cuda.libs import cublas

    from backburn_cupy import cublaslt

    if request.param == "cuBLASLt":
        yield lt.CALLS
        return
    lt.HIDDEN.append(True)
    cublaslt.library.cache_clear()
    cublas.CALLS.clear()
    yield cublas.CALLS
    lt.HIDDEN.clear()
    cublaslt.library.cache_clear()


def test_products_do_not_copy_operands_in_supported_layouts(
    k: Any, cupy: Any, calls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(x: Any) -> Any:
        raise AssertionError(f"a copy of {x.shape} with strides {x.strides}")

    monkeypatch.setattr(cupy, "ascontiguousarray", refuse)
    values = np.random.default_rng(0).normal(size=(2, 5, 3, 8)).astype(np.float32)
    x = k.from_numpy(values)  # as in attention: (batch, time, heads, width)
    heads = k.permute_dims(x, (0, 2, 1, 3))
    host = values.transpose(0, 2, 1, 3)
    calls.clear()
    scores = k.matmul(heads, k.permute_dims(heads, (0, 1, 3, 2)))
    np.testing.assert_allclose(k.to_numpy(scores), host @ host.transpose(0, 1, 3, 2), rtol=1e-5, atol=1e-6)
    assert len(calls) == 2  # one per example, each for three heads
    calls.clear()
    rows = k.slice(x, (slice(0, 2, 1), slice(0, 5, 1), slice(1, 2, 1), slice(0, 8, 1)))
    k.matmul(k.reshape(rows, (2, 5, 8)), k.permute_dims(k.ones((4, 8), dtypes.float32), (1, 0)))
    assert len(calls) == 1
    (m, n, length, *_), *_ = calls
    assert (m, n, length) == (4, 10, 8)


def operand(k: Any, random: Any, dtype: str, shape: tuple[int, ...], way: str) -> tuple[Any, Any]:
    """Small integers on the device in some layout, and the same in NumPy."""
    rank, wanted = len(shape), dtypes.as_dtype(dtype)

    def given(shape: tuple[int, ...]) -> tuple[Any, Any]:
        values = random.integers(-4, 5, shape).astype(np.float32)
        return k.astype(k.from_numpy(values), wanted), values

    if way == "transposed":
        x, values = given((*shape[:-2], shape[-1], shape[-2]))
        return k.permute_dims(x, (*range(rank - 2), rank - 1, rank - 2)), np.swapaxes(values, -1, -2)
    if way == "sliced":
        x, values = given((*shape[:-1], 2 * shape[-1] + 1))
        key = (*(slice(0, n, 1) for n in shape[:-1]), slice(1, 1 + 2 * shape[-1], 2))
        return k.slice(x, key), values[key]
    if way == "within":  # an unaligned part of a larger matrix
        x, values = given((*shape[:-2], shape[-2] + 2, shape[-1] + 3))
        key = (*(slice(0, n, 1) for n in shape[:-2]), slice(1, 1 + shape[-2], 1), slice(3, 3 + shape[-1], 1))
        return k.slice(x, key), values[key]
    if way == "reversed":
        x, values = given(shape)
        return k.flip(x, (rank - 1,)), values[..., ::-1]
    if way == "turned" and rank > 2:  # the stack
        x, values = given(shape)
        return k.flip(x, (0,)), values[::-1]
    return given(shape)


WAYS = ("plain", "transposed", "sliced", "within", "reversed", "turned")


@pytest.mark.parametrize("dtype", FLOATS)
def test_products_of_every_layout(k: Any, calls: Any, dtype: str) -> None:
    """All stacks, transpositions, slices and broadcasts of small matrices, against NumPy."""
    random = np.random.default_rng(1)
    shapes = [((2, 3), (3, 4)), ((1, 3), (3, 1)), ((2, 2, 3), (3, 4)), ((2, 3), (5, 3, 1)), ((4, 1, 2, 3), (2, 3, 2)),
              ((3, 1), (1, 1)), ((2, 0), (0, 3)), ((0, 2), (2, 3)), ((2, 1, 3), (2, 3, 1))]  # fmt: skip
    for (left, right), first, second in itertools.product(shapes, WAYS, WAYS):
        x, a = operand(k, random, dtype, left, first)
        y, b = operand(k, random, dtype, right, second)
        got = k.to_numpy(k.astype(k.matmul(x, y), dtypes.float32))
        np.testing.assert_array_equal(got, a @ b, err_msg=f"{left} {first}, {right} {second}")
    assert calls


@pytest.mark.parametrize("dtype", FLOATS)
def test_products_of_random_shapes(k: Any, calls: Any, dtype: str) -> None:
    random = np.random.default_rng(2)
    for _ in range(150):
        m, n, length = (int(v) for v in random.integers(1, 9, 3))
        stack = tuple(int(v) for v in random.integers(1, 4, random.integers(0, 4)))
        kept = [tuple(1 if random.random() < 0.3 else v for v in stack[int(random.integers(0, len(stack) + 1)) :])
                for _ in range(2)]  # fmt: skip
        first, second = random.choice(WAYS, 2)
        x, a = operand(k, random, dtype, (*kept[0], m, length), first)
        y, b = operand(k, random, dtype, (*kept[1], length, n), second)
        got = k.matmul(x, y)
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(k.to_numpy(k.astype(got, dtypes.float32)), a @ b)


@pytest.mark.parametrize("dtype", FLOATS)
def test_linear_layers_of_every_layout(k: Any, calls: Any, dtype: str) -> None:
    random = np.random.default_rng(3)
    shapes: list[tuple[Any, Any]] = [
        ((2, 3), (4, 3)), ((3,), (2, 3)), ((2, 2, 3), (1, 3)), ((1, 1), (1, 1)), ((2, 0), (3, 0)), ((0, 2), (3, 2))
    ]  # fmt: skip
    for (left, right), first, second in itertools.product(shapes, ("plain", "sliced"), WAYS):
        x, a = operand(k, random, dtype, left, first)
        weight, b = operand(k, random, dtype, right, second)
        bias, c = operand(k, random, dtype, right[:1], first)
        for given, expected in ((None, a @ b.T), (bias, a @ b.T + c)):
            got = k.linear(x, weight, given)
            assert got.dtype == x.dtype
            np.testing.assert_array_equal(k.to_numpy(k.astype(got, dtypes.float32)), expected)


def test_many_irregularly_strided_matrices_are_copied(k: Any, calls: Any) -> None:
    values = np.arange(100 * 2 * 3 * 2, dtype=np.float64).reshape(100, 2, 3, 2)
    x = k.permute_dims(k.from_numpy(values), (0, 2, 1, 3))
    calls.clear()
    got = k.matmul(x, k.permute_dims(x, (0, 1, 3, 2)))
    host = values.transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(k.to_numpy(got), host @ host.transpose(0, 1, 3, 2))
    assert len(calls) == 1


def test_tf32_is_opt_in_and_only_for_float32(k: Any, lt: Any) -> None:
    from backburn_cupy import CupyBackend, cublaslt

    fast = CupyBackend(allow_tf32=True)
    by_float, by_tf32 = cublaslt.COMPUTE_FLOAT, cublaslt.COMPUTE_FLOAT_BY_TF32
    for backend, dtype, compute in [
        (k, "float32", by_float), (fast, "float32", by_tf32), (fast, "float16", by_float),
        (fast, "bfloat16", by_float), (fast, "float64", cublaslt.COMPUTE_DOUBLE),
    ]:  # fmt: skip
        lt.CALLS.clear()
        x = backend.ones((2, 2), dtypes.as_dtype(dtype))
        backend.matmul(x, x)
        assert [call.compute for call in lt.CALLS] == [compute]
    x = np.full((1, 1), 1 + 2.0**-12, np.float32)
    exact, narrow = (b.to_numpy(b.matmul(b.from_numpy(x), b.from_numpy(x)))[0, 0] for b in (k, fast))
    assert exact > 1.0 == narrow


def test_16_bit_products_accumulate_in_float32(k: Any, calls: Any) -> None:
    """Sums of 4,096, 1 and -4,096: in float16 every 1 would be lost."""
    x = np.tile(np.array([[4096.0, 1.0, -4096.0]], np.float16), (1, 50))
    got = k.matmul(k.from_numpy(x), k.ones((150, 1), dtypes.float16))
    assert k.to_numpy(got).tolist() == [[50.0]]


def test_a_bias_is_added_in_the_epilogue(k: Any, lt: Any, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from backburn_cupy import cublaslt

    x, weight = (k.from_numpy(np.ones(shape, np.float32)) for shape in ((4, 3), (5, 3)))
    biases = [k.from_numpy(np.full(5, value, np.float32)) for value in (1.0, 2.0)]
    monkeypatch.setattr(cupy, "add", None)
    for bias, value in zip(biases, (4.0, 5.0), strict=True):
        lt.CALLS.clear()
        assert k.to_numpy(k.linear(x, weight, bias)).tolist() == [[value] * 5] * 4
        assert [call.epilogue for call in lt.CALLS] == [cublaslt.ADD_BIAS]
    k.linear(x, weight)
    assert lt.CALLS[-1].epilogue == 1
    with pytest.raises(ShapeError, match="the bias must have the 5 outputs"):
        k.linear(x, weight, k.ones((4,), dtypes.float32))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("refused", [0, 1, 2])
def test_the_gradient_of_a_bias_is_summed_in_the_epilogue(k: Any, lt: Any, dtype: str, refused: int) -> None:
    from backburn_cupy import cublaslt, linalg

    values = [np.random.default_rng(i).integers(-4, 5, (2, 6, n)).astype(dtype) for i, n in enumerate((5, 3))]
    expected = np.einsum("abo,abi->oi", *values), values[0].sum((0, 1))
    grad, x = map(k.from_numpy, values)
    for of_grad, of_x in ((grad, x), (k.permute_dims(k.permute_dims(grad, (2, 0, 1)), (1, 2, 0)), x)):
        linalg.kind.cache_clear()
        lt.library().fake_refuse(refused)
        lt.CALLS.clear()
        try:
            got = k.linear_weight_backward(of_grad, of_x)
        finally:
            lt.library().fake_refuse(0)
            linalg.kind.cache_clear()
        for one, right in zip(got, expected, strict=True):
            assert one.dtype == dtype
            assert k.to_numpy(one).tolist() == right.tolist()
        assert [call.epilogue for call in lt.CALLS] == [[cublaslt.SUM_RIGHT], [cublaslt.NO_EPILOGUE], []][refused]
    with pytest.raises(ShapeError, match="must agree in all but the last axis"):
        k.linear_weight_backward(grad, x[:1])


def test_long_sums_with_a_small_weight_use_a_separate_kernel(k: Any, lt: Any) -> None:
    from backburn_cupy import cublaslt
    from backburn_cupy.linalg import LONG, RESULTS

    size = k.runner.processors * RESULTS
    for length, width, epilogue in ((LONG, 3, cublaslt.NO_EPILOGUE), (LONG - 1, 3, cublaslt.SUM_RIGHT)):
        grad, x = k.ones((length, width), dtypes.float32), k.ones((length, 2), dtypes.float32)
        lt.CALLS.clear()
        of_weight, of_bias = k.linear_weight_backward(grad, x)
        assert [call.epilogue for call in lt.CALLS] == [epilogue]
        assert k.to_numpy(of_weight).tolist() == [[length] * 2] * width
        assert k.to_numpy(of_bias).tolist() == [length] * width
    grad, x = k.zeros((LONG, 1), dtypes.float32), k.broadcast_to(k.zeros((1,), dtypes.float32), (LONG, size))
    lt.CALLS.clear()
    k.linear_weight_backward(grad, x)
    assert lt.CALLS[-1].epilogue == cublaslt.SUM_RIGHT


def feed_forward_and_gradient(k: Any, dtype: str, hidden: int = 8, lay: Any = None, **options: Any) -> list[Any]:
    """Results of a feed-forward block and its gradient operation, in float32."""
    random = np.random.default_rng(4)
    shapes = ((2, 3, 5), (hidden, 5), (6, hidden), (hidden,), (6,), (2, 3, 6))
    arrays = [random.normal(size=s).astype(np.float32) for s in shapes]
    x, weight1, weight2, bias1, bias2, grad = (
        (lay or (lambda t: t))(k.astype(k.from_numpy(a), dtypes.as_dtype(dtype))) for a in arrays
    )
    if options.pop("without_bias", False):
        bias1 = None
    y, before, after = k.feed_forward(x, weight1, weight2, bias1, bias2, **options)
    found = [y, before, after, *k.feed_forward_backward(grad, x, weight2, before, **options)]
    assert {str(t.dtype) for t in found} == {dtype}
    return [k.to_numpy(k.astype(t, dtypes.float32)) for t in found]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("way", ["plain", "backwards"])
def test_gelu_and_its_gradient_are_epilogues(k: Any, lt: Any, dtype: str, way: str) -> None:
    from backburn_cupy import cublaslt

    def backwards(t: Any) -> Any:
        return k.flip(k.flip(t, (t.ndim - 1,)).copy(), (t.ndim - 1,))

    got = feed_forward_and_gradient(k, dtype, lay=backwards if way == "backwards" else None, approximate="tanh")
    assert [call.epilogue for call in lt.CALLS] == [
        cublaslt.ADD_BIAS_AND_GELU, cublaslt.ADD_BIAS, cublaslt.GELU_GRADIENT_AND_SUMS, cublaslt.NO_EPILOGUE
    ]  # fmt: skip
    expected = feed_forward_and_gradient(k, "float32", approximate="tanh")
    for one, right in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, right, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("dtype", "capability", "refused", "options"),
    [
        ("float32", 90, 0, {}), ("float64", 90, 0, {}), ("float16", 80, 0, {}), ("float16", 120, 0, {}),
        ("float16", 90, 1, {}), ("float16", 90, 2, {}), ("float16", 90, 0, {"hidden": 9}),
        ("float16", 90, 0, {"approximate": "none"}),
    ],
)  # fmt: skip
def test_gelu_is_a_separate_kernel_if_no_epilogue_applies(
    k: Any, lt: Any, monkeypatch: pytest.MonkeyPatch, dtype: str, capability: int, refused: int, options: Any
) -> None:
    from backburn_cupy import cublaslt, linalg

    options = {"approximate": "tanh", **options}
    expected = feed_forward_and_gradient(k, "float64", **options)
    monkeypatch.setattr(k.runner, "capability", capability)
    linalg.kind.cache_clear()
    lt.library().fake_refuse(refused)
    lt.CALLS.clear()
    try:
        got = feed_forward_and_gradient(k, dtype, **options)
    finally:
        lt.library().fake_refuse(0)
        linalg.kind.cache_clear()
    if not refused:
        assert [call.epilogue for call in lt.CALLS] == [
            cublaslt.ADD_BIAS, cublaslt.ADD_BIAS, cublaslt.NO_EPILOGUE, cublaslt.SUM_RIGHT
        ]  # fmt: skip
    for one, right in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, right, rtol=0.01, atol=0.02)


def test_without_a_bias_only_the_gradient_of_gelu_is_an_epilogue(k: Any, lt: Any) -> None:
    from backburn_cupy import cublaslt

    got = feed_forward_and_gradient(k, "float16", approximate="tanh", without_bias=True)
    epilogues = [call.epilogue for call in lt.CALLS]
    assert epilogues == [cublaslt.NO_EPILOGUE, cublaslt.ADD_BIAS, cublaslt.GELU_GRADIENT_AND_SUMS, cublaslt.NO_EPILOGUE]
    expected = feed_forward_and_gradient(k, "float64", approximate="tanh", without_bias=True)
    for one, right in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, right, rtol=0.01, atol=0.02)


def test_unaligned_features_are_read_by_a_kernel(k: Any, lt: Any) -> None:
    from backburn_cupy import cublaslt

    grad, x, weight2 = (k.ones(shape, dtypes.float16) for shape in ((3, 2), (3, 4), (2, 8)))
    part = k.slice(k.full((25,), 0.5, dtypes.float16), (slice(1, 25, 1),))
    before = k.reshape(part, (3, 8))
    got = k.feed_forward_backward(grad, x, weight2, before, "tanh")
    assert [call.epilogue for call in lt.CALLS] == [cublaslt.NO_EPILOGUE, cublaslt.SUM_RIGHT]
    lt.CALLS.clear()
    expected = k.feed_forward_backward(grad, x, weight2, before.copy(), "tanh")
    assert lt.CALLS[0].epilogue == cublaslt.GELU_GRADIENT_AND_SUMS
    for one, right in zip(got, expected, strict=True):
        np.testing.assert_allclose(k.to_numpy(one), k.to_numpy(right), rtol=2e-3)


def test_a_step_of_the_gpt_has_no_kernels_for_gelu(cupy: Any, lt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.gpu.frameworks import our_step
    from benchmarks.gpu.models import gpt

    from backburn_cupy import cublaslt
    from backburn_cupy.kernels.runner import CupyRunner

    launched: list[str] = []
    run = CupyRunner.run

    def seen(self: Any, family: str, kernel: str, *arguments: Any) -> None:
        launched.append(kernel)
        run(self, family, kernel, *arguments)

    monkeypatch.setattr(CupyRunner, "run", seen)
    our_step(gpt(small=True), "autodiff(cupy)", False)[0]()
    assert launched
    assert not [kernel for kernel in launched if "gelu" in kernel]
    blocks = 2
    epilogues = [call.epilogue for call in lt.CALLS]
    assert epilogues.count(cublaslt.ADD_BIAS_AND_GELU) == epilogues.count(cublaslt.GELU_GRADIENT_AND_SUMS) == blocks


def test_products_without_an_algorithm_in_cublaslt(k: Any, lt: Any) -> None:
    """The bias is then added afterwards; products that cuBLASLt cannot compute at all go to cuBLAS."""
    from cupy_backends.cuda.libs import cublas

    from backburn_cupy import linalg

    x, weight, bias = (k.from_numpy(np.ones(shape, np.float32)) for shape in ((2, 7), (3, 7), (3,)))
    for refused, by_lt, by_cublas in ((1, 1, 0), (2, 0, 1), (3, 0, 1)):
        linalg.kind.cache_clear()
        lt.library().fake_refuse(refused)
        lt.CALLS.clear()
        cublas.CALLS.clear()
        try:
            assert k.to_numpy(k.linear(x, weight, bias)).tolist() == [[8.0] * 3] * 2
        finally:
            lt.library().fake_refuse(0)
            linalg.kind.cache_clear()
        assert (len(lt.CALLS), len(cublas.CALLS)) == (by_lt, by_cublas)


def test_plans_are_cached_and_freed(k: Any, lt: Any) -> None:
    from backburn_cupy import linalg

    x = k.ones((3, 3), dtypes.float32)
    k.matmul(x, x)
    before = linalg.kind.cache_info()
    k.matmul(x, x)
    after = linalg.kind.cache_info()
    assert (after.misses, after.hits) == (before.misses, before.hits + 1)
    linalg.kind.cache_clear()
    alive = lt.library().fake_alive()  # handles
    k.matmul(x, x)
    assert lt.library().fake_alive() == alive + 4  # a descriptor, and the layouts of three matrices
    linalg.kind.cache_clear()
    assert lt.library().fake_alive() == alive


def test_library_failures_raise_device_errors(k: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from backburn_cupy import cublaslt, linalg

    x = k.ones((2, 2), dtypes.float32)
    linalg.kind.cache_clear()
    monkeypatch.setattr(cublaslt.library(), "cublasLtMatmul", lambda *_: 13)
    with pytest.raises(DeviceError, match=r"matmul: cublasLtMatmul fails with cublasStatus_t 13 \(cuda:0\)"):
        k.matmul(x, x)
    linalg.kind.cache_clear()


def test_libraries_of_other_versions_are_not_used(monkeypatch: pytest.MonkeyPatch, cupy: Any) -> None:
    from backburn_cupy import cublaslt

    def of_version(number: int) -> Any:
        return SimpleNamespace(cublasLtGetVersion=type("Function", (), {"__call__": lambda self: number})())

    for found in ([], [SimpleNamespace()], [of_version(110901), of_version(130100)]):
        monkeypatch.setattr(cublaslt, "_candidates", lambda _, found=found: iter(found))
        cublaslt.library.cache_clear()
        assert cublaslt.library() is None
    monkeypatch.undo()
    monkeypatch.setattr(cupy.cuda.runtime, "runtimeGetVersion", lambda: 14010)
    cublaslt.library.cache_clear()
    assert cublaslt.library() is None
    monkeypatch.undo()
    cublaslt.library.cache_clear()
    assert cublaslt.library() is not None


def test_mismatched_shapes_are_rejected(k: Any) -> None:
    with pytest.raises(ShapeError):
        k.matmul(k.ones((2, 3), dtypes.float32), k.ones((2, 3), dtypes.float32))


def test_doctests_pass(cupy: Any) -> None:
    from backburn_cupy import creation, cublaslt, linalg

    for module, count in ((linalg, 3), (cublaslt, 2), (creation, 2)):
        results = doctest.testmod(module)
        assert (results.attempted, results.failed) == (count, 0)


# ---- the constants of the interface ----

#: Names of the constants of ``cublaslt`` in NVIDIA's headers.
NAMES = {
    "SUCCESS": "CUBLAS_STATUS_SUCCESS", "INVALID_VALUE": "CUBLAS_STATUS_INVALID_VALUE",
    "ARCH_MISMATCH": "CUBLAS_STATUS_ARCH_MISMATCH", "NOT_SUPPORTED": "CUBLAS_STATUS_NOT_SUPPORTED",
    "COMPUTE_FLOAT": "CUBLAS_COMPUTE_32F", "COMPUTE_FLOAT_BY_TF32": "CUBLAS_COMPUTE_32F_FAST_TF32",
    "COMPUTE_DOUBLE": "CUBLAS_COMPUTE_64F", "TRANSPOSE_A": "CUBLASLT_MATMUL_DESC_TRANSA",
    "TRANSPOSE_B": "CUBLASLT_MATMUL_DESC_TRANSB", "EPILOGUE": "CUBLASLT_MATMUL_DESC_EPILOGUE",
    "BIAS_POINTER": "CUBLASLT_MATMUL_DESC_BIAS_POINTER", "BATCH_COUNT": "CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT",
    "BATCH_STEP": "CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET",
    "MAX_WORKSPACE": "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES",
    "REDUCTION_SCHEMES": "CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK",
    "ALIGNMENT_A": "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES",
    "ALIGNMENT_B": "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES",
    "ALIGNMENT_C": "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES",
    "ALIGNMENT_D": "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES",
    "NO_EPILOGUE": "CUBLASLT_EPILOGUE_DEFAULT", "ADD_BIAS": "CUBLASLT_EPILOGUE_BIAS",
    "SUM_RIGHT": "CUBLASLT_EPILOGUE_BGRADB", "ADD_BIAS_AND_GELU": "CUBLASLT_EPILOGUE_GELU_AUX_BIAS",
    "GELU_GRADIENT_AND_SUMS": "CUBLASLT_EPILOGUE_DGELU_BGRAD",
    "AUX_POINTER": "CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER",
    "AUX_LEADING": "CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD",
    "REDUCE_COMPUTE_TYPE": "CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE", "REDUCE_ANY": "CUBLASLT_REDUCTION_SCHEME_MASK",
}  # fmt: skip
OF_TYPES = {"float16": "CUDA_R_16F", "bfloat16": "CUDA_R_16BF", "float32": "CUDA_R_32F", "float64": "CUDA_R_64F"}


def headers() -> list[Path]:
    """The folders of NVIDIA's headers: those of a toolkit, and of NVIDIA's Python packages."""
    found = [Path("/usr/local/cuda/include")]
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        found += Path(folder).glob("*/include")
    return found


def test_constants_and_sizes_equal_the_headers(cupy: Any, tmp_path: Path) -> None:
    """A compiled program prints each constant, and the sizes of each function's arguments."""
    from backburn_cupy import cublaslt

    folders = headers()
    if not any((folder / "cublasLt.h").exists() for folder in folders):
        pytest.skip("the headers of cuBLASLt are not installed")
    words = {**NAMES, **{f"TYPES {k}": v for k, v in OF_TYPES.items()}}
    lines = "".join(f'std::printf("%s=%lld\\n", "{ours}", (long long)({theirs}));\n' for ours, theirs in words.items())
    fields = {"algorithm": "algo", "workspace": "workspaceSize", "state": "state", "waves": "wavesCount",
              "reserved": "reserved"}  # fmt: skip
    for ours, theirs in fields.items():
        lines += f'std::printf("at {ours}=%zu\\n", offsetof(cublasLtMatmulHeuristicResult_t, {theirs}));\n'
    lines += 'std::printf("size=%zu\\n", sizeof(cublasLtMatmulHeuristicResult_t));\n'
    c_names = {ctypes.c_void_p: 8, ctypes.c_int: 4, ctypes.c_size_t: 8, ctypes.c_int64: 8, ctypes.c_uint64: 8}
    for name in cublaslt._SIGNATURES:
        lines += f'std::printf("of {name}="); sizes({name});\n'
    source = f"""
    #include <cstddef>
    #include <cstdio>
    #include <cublasLt.h>
    template <class... A> void sizes(cublasStatus_t (*)(A...)) {{
      ((std::printf("%zu ", sizeof(A))), ...);
      std::printf("\\n");
    }}
    int main() {{ {lines} }}
    """
    text, program = tmp_path / "ask.cpp", tmp_path / "ask"
    text.write_text(source)
    # Only types of functions are used, so that the library need not be linked.
    command = [str(compiled.COMPILER), "-std=c++17", "-w", "-o", str(program), str(text)]
    command += [f"-I{folder}" for folder in folders] + ["-Wl,--unresolved-symbols=ignore-all"]
    subprocess.run(command, check=True, capture_output=True)
    told = dict(line.split("=") for line in subprocess.run(
        [str(program)], check=True, capture_output=True, text=True).stdout.splitlines())  # fmt: skip
    for ours in NAMES:
        assert int(told[ours]) == getattr(cublaslt, ours), ours
    for ours in OF_TYPES:
        assert int(told[f"TYPES {ours}"]) == cublaslt.TYPES[ours]
    assert int(told["size"]) == ctypes.sizeof(cublaslt.Heuristic) == 96
    for ours in fields:
        assert int(told[f"at {ours}"]) == getattr(cublaslt.Heuristic, ours).offset
    for name, arguments in cublaslt._SIGNATURES.items():
        assert [int(n) for n in told[f"of {name}"].split()] == [c_names[a] for a in arguments], name


def test_the_real_library_accepts_the_descriptors(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If installed: without a GPU there is no handle, but it checks all attributes set before."""
    from backburn_cupy import cublaslt

    found = sorted(lib for folder in headers() for lib in folder.parent.glob("lib/libcublasLt.so.1*"))
    if not found:
        pytest.skip("cuBLASLt is not installed")
    version = int(found[0].name.rpartition(".")[2])
    monkeypatch.setattr(cublaslt, "_candidates", lambda _: iter([ctypes.CDLL(str(found[0]))]))
    monkeypatch.setattr(cupy.cuda.runtime, "runtimeGetVersion", lambda: 1000 * version)
    monkeypatch.setattr(cublaslt, "handle", lambda device: 0)
    taken: list[None] = []
    assign = cublaslt._set
    monkeypatch.setattr(cublaslt, "_set", lambda *of: taken.append(assign(*of)))
    cublaslt.library.cache_clear()
    try:
        for dtype, compute, count, epilogue, attributes in (
            ("bfloat16", cublaslt.COMPUTE_FLOAT, 3, cublaslt.ADD_BIAS, 16),
            ("bfloat16", cublaslt.COMPUTE_FLOAT, 1, cublaslt.SUM_RIGHT, 10),
            ("bfloat16", cublaslt.COMPUTE_FLOAT, 1, cublaslt.ADD_BIAS_AND_GELU, 12),
            ("bfloat16", cublaslt.COMPUTE_FLOAT, 1, cublaslt.GELU_GRADIENT_AND_SUMS, 12),
            ("float64", cublaslt.COMPUTE_DOUBLE, 1, cublaslt.NO_EPILOGUE, 8),
        ):  # fmt: skip
            taken.clear()
            matrices = cublaslt.Layout(4, 24, False), cublaslt.Layout(6, 0, True)
            alignments = (256, 128, 64, 4, 16)[: 5 if attributes == 12 else 4]
            kind = cublaslt.Kind(0, 4, 5, 6, count, *matrices, dtype, compute, epilogue, alignments, dtype)
            with pytest.raises(cublaslt.CUBLASError, match=r"AlgoGetHeuristic fails with cublasStatus_t 1$"):
                cublaslt.Plan(kind)
            assert len(taken) == attributes
    finally:
        monkeypatch.undo()
        cublaslt.library.cache_clear()
