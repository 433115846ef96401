"""The CuPy backend on a stand-in for CuPy: the whole conformance suite, and behaviour outside the contract.

``tests/backends/cupy/stand_in`` computes with NumPy, rejects what CuPy rejects, and compiles the backend's kernels with
g++.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import itertools
import os
import pickle
from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.stand_in import compiled

import backburn as bb
from backburn.autodiff import Autodiff
from backburn.backend.registry import load_backend
from backburn.base import dtypes
from backburn.base.errors import (
    ArgumentError,
    BackendMismatchError,
    DTypeError,
    LinearAlgebraError,
    OutOfRangeError,
    SingularMatrixError,
)
from backburn.conformance import check_backend
from backburn.conformance.checks.kinds import KINDS, LARGE_KINDS
from backburn.ops.table import OPERATIONS
from backburn.programs.lowering import is_formula
from backburn_cupy.kernels.attach import LAUNCHERS

pytestmark = pytest.mark.skipif(compiled.COMPILER is None, reason="running the kernels needs g++")


@pytest.fixture
def k(cupy: Any) -> Any:
    from backburn_cupy import CupyBackend

    backend = CupyBackend()
    backend.faults.check()
    cupy.cuda.READS.clear()
    return backend


@pytest.fixture
def deterministic(cupy: Any) -> Any:
    from backburn_cupy import CupyBackend

    return CupyBackend(deterministic=True)


# ---- the contract ----


#: The stand-in is slow for large arrays and single-threaded; the other kinds of checks need a device.
SMALL = [kind for kind in KINDS if kind not in LARGE_KINDS]


@pytest.mark.slow
def test_every_value_that_the_contract_promises(k: Any) -> None:
    report = check_backend(k, kinds=SMALL)
    assert report.ok, report.failures[:5]
    assert {result.id.partition("-")[0] for result in report.results} >= set(OPERATIONS)


@pytest.mark.slow
def test_every_gradient(k: Any) -> None:
    report = check_backend(Autodiff(k), quick=True, kinds=SMALL)
    assert report.ok, report.failures[:5]


@pytest.mark.slow
def test_every_value_without_the_fused_kernels(k: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from backburn_cupy.kernels.attach import LAUNCHERS

    monkeypatch.setattr(k, "runner", None)
    report = check_backend(k, ops=list(LAUNCHERS), kinds=SMALL)
    assert report.ok, report.failures[:5]


@pytest.mark.slow
def test_values_of_large_arrays(k: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from backburn_cupy import elementwise

    monkeypatch.setattr(elementwise, "LARGE", 1)
    run, launched = k.runner.run, set()

    def running(family: str, kernel: str, *arguments: Any) -> None:
        launched.add(kernel)
        run(family, kernel, *arguments)

    monkeypatch.setattr(k.runner, "run", running)
    report = check_backend(k, ops=["add", "div", "maximum", "exp"], kinds=SMALL)
    assert report.ok, report.failures[:5]
    assert len(launched) > 8
    launched.clear()
    x: Any = k.ones((4, 3), dtypes.float32)
    for y in (x, k.ones((3,), dtypes.float32), k.permute_dims(k.ones((3, 4), dtypes.float32), (1, 0))):
        assert k.to_numpy(k.add(x, y)).tolist() == [[2.0] * 3] * 4
    assert len(launched) == 1  # CuPy computes broadcast and non-contiguous operands


@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums_and_products_accumulate_in_float64(k: Any, reverse: bool) -> None:
    x = np.random.default_rng(0).normal(size=200_000).astype(np.float32)
    for apply, exact, values in (
        (k.cumulative_sum, np.cumsum, x),
        (k.cumulative_prod, np.cumprod, (1 + x / 1000).astype(np.float32)),
    ):
        way = slice(None, None, -1 if reverse else 1)
        got = k.to_numpy(apply(k.from_numpy(values), 0, reverse))
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, exact(values.astype(np.float64)[way])[way], rtol=6.1e-8, atol=1e-11)


def test_numbers_out_of_an_integer_dtype_s_range_raise(k: Any) -> None:
    x = k.from_numpy(np.array([1, 5, 9], np.uint8))
    places = k.from_numpy(np.array([0, 1]))
    calls: list[Any] = [
        lambda n: k.where(k.less(x, 5), n, x),
        lambda n: k.where(k.less(x, 5), x, n),
        lambda n: k.fmod(x, n),
        lambda n: k.fmod(n, x),
        lambda n: k.scatter(x, places, n, 0),
        lambda n: k.slice_assign(x, n, (slice(0, 2, 1),)),
    ]
    for answer in calls:
        assert k.dtype(answer(255)) is dtypes.uint8
        for number in (256, -1):
            with pytest.raises(OverflowError):
                answer(number)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "bool"])
def test_large_arrays_are_joined_by_64_bits(k: Any, cupy: Any, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = importlib.import_module("backburn_cupy.shape")
    monkeypatch.setattr(shape, "LARGE", 1)
    join, joined = cupy.concatenate, list[Any]()

    def joining(arrays: Any, axis: int) -> Any:
        joined.append(arrays[0].dtype)
        return join(arrays, axis)

    monkeypatch.setattr(cupy, "concatenate", joining)

    def of(*sizes: int) -> Any:
        return k.from_numpy(np.arange(np.prod(sizes)).reshape(sizes).astype(dtypes.as_dtype(dtype).dtype))

    whole = [of(2, 3, 8), of(2, 1, 8)]
    for tensors, axis, by_words in (
        (whole, 1, True), (whole[:1] * 2, 2, True), (whole[:1] * 3, 0, True), ([of(2, 3), of(2, 2)], 1, False),
        ([k.permute_dims(of(8, 8), (1, 0)), of(8, 8)], 0, False), ([of(0, 8), of(2, 8)], 0, False),
    ):  # fmt: skip
        joined.clear()
        expected = np.concatenate([k.to_numpy(x) for x in tensors], axis)
        result = k.concat(tensors, axis)
        assert k.dtype(result).name == dtype
        np.testing.assert_array_equal(k.to_numpy(result), expected)
        assert (joined == [np.dtype(np.uint64)]) is (by_words and dtype != "float64")


@pytest.mark.slow
def test_every_value_of_deterministic_scatters(deterministic: Any) -> None:
    writing = ["scatter", "index_add", "take_backward", "take_along_axis_backward", "scatter_nd", "scatter_reduce"]
    report = check_backend(deterministic, ops=writing, kinds=SMALL)
    assert report.ok, report.failures[:5]


def test_every_required_operation_is_implemented(k: Any) -> None:
    for name, entry in OPERATIONS.items():
        if entry.required:
            assert getattr(type(k), name) is not entry.body, name


# ---- the object ----


def test_equal_options_give_one_object_and_specs_round_trip(k: Any) -> None:
    from backburn_cupy import CupyBackend

    assert CupyBackend() is k
    assert (k.spec, k.device, k.float_dtype, k.int_dtype) == ("cupy:0", "cuda:0", dtypes.float32, dtypes.int64)
    other = CupyBackend(0, "bfloat16", allow_tf32=True, deterministic=True)
    assert other.spec == "cupy:0(float_dtype=bfloat16, allow_tf32=true, deterministic=true)"
    assert other != k
    assert other.float_dtype is bb.ones(2, backend=other).dtype is dtypes.bfloat16
    assert (k.capabilities.deterministic, other.capabilities.deterministic) == (False, True)
    assert load_backend(other.spec) is other
    assert load_backend("cupy") is load_backend("cupy:0") is k
    assert pickle.loads(pickle.dumps(other)) is other
    assert load_backend("autodiff(cupy:0)").device == "cuda:0"
    assert CupyBackend.devices() == ["cuda:0"]


@pytest.mark.parametrize("device", [-1, 1.0, "0", None, True])
def test_a_device_is_a_number(cupy: Any, device: Any) -> None:
    from backburn_cupy import CupyBackend

    with pytest.raises(ArgumentError, match="the device is a number from 0 on, not"):
        CupyBackend(device)


def test_a_float_dtype_is_a_float(cupy: Any) -> None:
    from backburn_cupy import CupyBackend

    with pytest.raises(ArgumentError, match="float_dtype is a float dtype, not int8"):
        CupyBackend(float_dtype="int8")
    with pytest.raises(DTypeError, match="float33"):
        CupyBackend(float_dtype="float33")


def test_memory_stats(k: Any) -> None:
    assert k.memory_stats() == {"used": 3 << 30, "held": 4 << 30, "free": 1 << 30, "total": 8 << 30}
    k.memory_cleanup()


def test_host_arrays_are_rejected(k: Any) -> None:
    with pytest.raises(BackendMismatchError, match=r"ndarray is not a primitive of the cupy backend: from_numpy"):
        k.dtype(np.zeros(2))
    x = k.zeros((2,), dtypes.float32)
    host = np.zeros(2)
    for call in (lambda: k.add(x, host), lambda: k.concat([x, host], 0), lambda: k.where(host, x, x)):
        with pytest.raises(BackendMismatchError, match=r": an operand \w+\[2\] is in host memory.*from_numpy"):
            call()


# ---- errors found on the device ----


def out_of_range(k: Any, index: int) -> dict[str, Any]:
    """Calls with one index; each is out of range for an axis of 3 if ``index`` is."""
    x, one = k.from_numpy(np.arange(6.0).reshape(2, 3)), k.from_numpy(np.array([0, index]))
    each = k.from_numpy(np.array([[0], [index]]))
    place = k.from_numpy(np.array([[0, 1], [0, index]]))
    new = k.ones((2, 1), dtypes.float64)
    return {
        "take_along_axis": lambda: k.take_along_axis(x, each, 1),
        "take_along_axis_backward": lambda: k.take_along_axis_backward(new, each, (2, 3), 1),
        "scatter": lambda: k.scatter(x, each, new, 1),
        "scatter+add": lambda: k.scatter(x, each, new, 1, "add"),
        "scatter_reduce": lambda: k.scatter_reduce(x, each, new, 1, "max"),
        "take": lambda: k.take(x, one, 1),
        "take_backward": lambda: k.take_backward(k.ones((2, 2), dtypes.float64), one, 3, 1),
        "index_add": lambda: k.index_add(x, one, k.ones((2, 2), dtypes.float64), 1),
        "index_copy": lambda: k.index_copy(x, one, k.ones((2, 2), dtypes.float64), 1),
        "gather_nd": lambda: k.gather_nd(x, place),
        "scatter_nd": lambda: k.scatter_nd(x, place, k.ones((2,), dtypes.float64)),
        "one_hot": lambda: k.one_hot(one, 3, dtypes.int64),
    }


BY_INDEX = (
    "take_along_axis", "take_along_axis_backward", "scatter", "scatter+add", "scatter_reduce", "take", "take_backward",
    "index_add",
    "index_copy", "gather_nd", "scatter_nd", "one_hot",
)  # fmt: skip


@pytest.mark.parametrize("name", BY_INDEX)
def test_an_index_out_of_range_raises_when_the_host_next_waits(k: Any, cupy: Any, name: str) -> None:
    sound = k.zeros((), dtypes.float32)
    for index in (3, -4, 99):
        out_of_range(k, index)[name]()  # does not wait, and so cannot raise
        assert not cupy.cuda.READS
        with pytest.raises(OutOfRangeError, match=r"index -?\d+ is out of range for an axis of \d+ \(in \w+, called"):
            k.to_numpy(sound)
        cupy.cuda.READS.clear()
        assert k.to_numpy(sound) == 0  # raised once
        cupy.cuda.READS.clear()
    out_of_range(k, -3)[name]()
    out_of_range(k, 2)[name]()
    k.synchronize()


def test_every_wait_raises_found_errors(k: Any) -> None:
    fault = out_of_range(k, 3)["take"]
    for wait in (
        k.synchronize,
        lambda: k.nonzero(k.ones((2,), dtypes.float32)),
        lambda: k.to_numpy_many([k.zeros((2,), dtypes.float32)]),
        lambda: k.to_numpy(k.zeros((), dtypes.int64)),
    ):
        fault()
        with pytest.raises(OutOfRangeError, match="index 3"):
            wait()


def test_debugging_raises_immediately(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from backburn_cupy import CupyBackend

    monkeypatch.setenv("BACKBURN_CUPY_DEBUG", "1")
    monkeypatch.setattr(CupyBackend, "_instances", {})
    k = CupyBackend()
    with pytest.raises(OutOfRangeError, match="index 3"):
        out_of_range(k, 3)["take"]()
    assert Autodiff(k).to_numpy(k.zeros((), dtypes.int64)) == 0


def test_failed_decompositions_raise_when_the_host_next_waits(k: Any, cupy: Any) -> None:
    one = np.array([[1.0, 2.0], [2.0, 1.0]])
    several = np.stack([np.eye(2), one])
    cases = [
        (lambda: k.cholesky(k.from_numpy(one)), LinearAlgebraError, "not positive definite"),
        (lambda: k.cholesky(k.from_numpy(several.astype(np.float32))), LinearAlgebraError, "not positive definite"),
        (lambda: k.solve(k.from_numpy(np.ones((2, 2))), k.from_numpy(np.eye(2))), SingularMatrixError, "singular"),
    ]
    for call, error, words in cases:
        cupy.cuda.READS.clear()
        call()
        assert not cupy.cuda.READS
        with pytest.raises(error, match=words):
            k.synchronize()
    k.cholesky(k.from_numpy(np.eye(3)))
    k.synchronize()


def test_no_operation_waits_unless_its_shape_depends_on_data(k: Any, cupy: Any) -> None:
    """The first samples of every operation: the host reads values only where the operation requires it."""
    from backburn.conformance import SAMPLES
    from backburn.conformance.samples.calls import operands_of, to_primitives
    from backburn.conformance.samples.derived.complex_operands import complex_samples

    may = {name for name, entry in OPERATIONS.items() if entry.shape is None} | {"to_numpy", "to_numpy_many"}
    # Quantization reads values on the host, to name those that are not finite.
    may |= {"quantize", "quantize_between", "fake_quantize_between", "fake_quantize"}
    waited = set()
    for name, samples in SAMPLES.items():
        every = [(sample, "float32") for sample in samples.cases[:4]]
        every += [(sample, "complex64") for _, sample in complex_samples(name)[:4]]
        for sample, dtype in every:
            operands = to_primitives(k, operands_of(name, sample, dtype))
            cupy.cuda.READS.clear()
            getattr(k, name)(*operands, **sample.attributes)
            if cupy.cuda.READS:
                waited.add(name)
    k.faults.pending = False
    assert waited - may == set()
    assert "nonzero" in waited


# ---- random numbers, scatter ----


def test_random_numbers_equal_those_of_numpy(k: Any) -> None:
    numpy = load_backend("numpy")
    key = 2**127 + 12345678901234567890
    for offset, size in itertools.product((0, 1, 7, 8, 9, 1000003, 2**40 + 5), (0, 1, 2, 7, 8, 9, 33)):
        for name, more in (
            ("random_bits", ()),
            ("uniform", (dtypes.float32,)),
            ("uniform", (dtypes.float64,)),
            ("uniform", (dtypes.float16,)),
            ("uniform", (dtypes.bfloat16,)),
            ("bernoulli", (0.3,)),
            ("bernoulli", (1.0,)),
        ):
            got, expected = (getattr(b, name)(key, offset, (size,), *more) for b in (k, numpy))
            np.testing.assert_array_equal(k.to_numpy(got), numpy.to_numpy(expected), err_msg=f"{name} {offset} {size}")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integer_sums_wrap_around(k: Any, dtype: str) -> None:
    numpy = load_backend("numpy")
    random = np.random.default_rng(2)
    limits = np.iinfo(dtype)
    x, values = (random.integers(limits.min, limits.max, (3, n), dtype, endpoint=True) for n in (4, 9))
    indices = random.integers(-4, 4, (3, 9))
    got = k.scatter(*map(k.from_numpy, (x, indices, values)), 1, "add")
    np.testing.assert_array_equal(k.to_numpy(got), numpy.scatter(x, indices, values, 1, "add"))


# ---- the process ----


def test_addresses_and_the_process_id(k: Any) -> None:
    x = k.ones((2, 2), dtypes.float64)
    assert ctypes.c_double.from_address(x.data.ptr).value == 1.0
    assert k.process == os.getpid()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "RMSprop"])
def test_parameters_of_16_bits_are_updated_without_casts(
    k: Any, name: str, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optimizer's state is in float32, and values equal those of an update with casts around it."""
    options = {"SGD": {"momentum": 0.9, "weight_decay": 0.1}, "RMSprop": {"momentum": 0.9}}.get(name, {})
    backend: Any = Autodiff(k) if depth == 1 else Autodiff(Autodiff(k))

    def trained() -> tuple[list[Any], int]:
        model = {"w": bb.asarray([3.0, -2.0], dtype=bb.bfloat16, backend=backend).require_grad(),
                 "b": bb.asarray([0.5], dtype=bb.float32, backend=backend).require_grad()}  # fmt: skip
        optimizer = getattr(bb.optim, name)(0.01, **options)
        casts: list[Any] = []
        cast = k.astype

        def listening(x: Any, dtype: Any) -> Any:
            casts.append(x.dtype)
            return cast(x, dtype)

        with monkeypatch.context() as patch:
            patch.setattr(k, "astype", listening)
            for _ in range(3):
                gradients = {"w": bb.asarray([1.0, 2.0], dtype=bb.bfloat16, backend=backend), "b": model["b"] * 2.0}
                casts.clear()
                optimizer.step(model, gradients)
        state = optimizer.state_dict()
        assert {x.dtype for key, x in state.items() if isinstance(x, bb.Tensor)} == {bb.float32}, state
        return [model[key].astype(bb.float32).numpy().tolist() for key in "wb"], len(casts)

    plain, without = trained()
    with monkeypatch.context() as patch:
        patch.setattr(k, "_capabilities", dataclasses.replace(k.capabilities, wide_steps=False))
        expected, with_casts = trained()
    assert plain == expected
    assert with_casts == 3
    assert without == (3 if name == "RMSprop" else 0)


def test_operations_without_a_function_are_formulas(cupy: Any) -> None:
    """They are exactly the formulas that the emulation compiles."""
    from tests.backends.cupy.emulation.formulas import FORMULAS

    import backburn_cupy.backend as made

    own = {name for family in made.FAMILIES for name in vars(importlib.import_module(f"backburn_cupy.{family}"))}
    assert len(FORMULAS) == 43
    assert own.isdisjoint(FORMULAS)
    assert {name for name in OPERATIONS if is_formula(name)} <= {*own, *LAUNCHERS, *FORMULAS}


def test_each_operation_is_in_one_family(cupy: Any) -> None:
    """A helper with an operation's name would replace the operation."""
    import backburn_cupy.backend as made

    found: dict[str, str] = {}
    for family in made.FAMILIES:
        for name, function in vars(importlib.import_module(f"backburn_cupy.{family}")).items():
            if name in OPERATIONS and getattr(function, "__module__", "") == f"backburn_cupy.{family}":
                assert name not in found, (name, family, found[name])
                found[name] = family
    assert found["empty"] == "creation"
