"""The CuPy backend on a CUDA device: the conformance suite, parity with NumPy, and checks that need a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.emulation.passes import CASES, close, operands, plain
from tests.backends.cupy.test_capture import train

import backburn as bb
from backburn.autodiff import Autodiff
from backburn.backend.host_numbers import RECORDING_STEP, Recording
from backburn.backend.registry import load_backend
from backburn.base import dtypes
from backburn.base.contexts import scoped
from backburn.base.errors import DeviceMemoryError, OutOfRangeError
from backburn.base.trees import flatten
from backburn.communicators import Local
from backburn.conformance import check_backend

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def k() -> Any:
    from backburn_cupy import CupyBackend

    return CupyBackend()


def test_every_value_that_the_contract_promises(k: Any) -> None:
    report = check_backend(k)
    assert report.ok, report.failures[:20]


@pytest.mark.parametrize("depth", [1, 2])
def test_every_gradient(k: Any, depth: int) -> None:
    backend = Autodiff(k)
    report = check_backend(backend if depth == 1 else Autodiff(backend), quick=depth == 2)
    assert report.ok, report.failures[:20]


def test_an_index_out_of_range_raises_and_the_device_stays_usable(k: Any) -> None:
    k.take(k.ones((3, 2), dtypes.float32), k.from_numpy(np.array([0, 7])), 0)
    with pytest.raises(OutOfRangeError, match="index 7"):
        k.synchronize()
    assert k.to_numpy(k.sum(k.ones((3,), dtypes.float32), (0,))) == 3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_products_of_attention(k: Any, dtype: str) -> None:
    """Strided stacks of heads from (batch, time, heads, width), against float64."""
    values = np.random.default_rng(0).normal(size=(2, 65, 3, 40))
    x = k.permute_dims(k.astype(k.from_numpy(values), dtypes.as_dtype(dtype)), (0, 2, 1, 3))
    got = k.to_numpy(k.astype(k.matmul(x, k.permute_dims(x, (0, 1, 3, 2))), dtypes.float64))
    host = k.to_numpy(k.astype(x, dtypes.float64))
    tolerance = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-13}[dtype]
    np.testing.assert_allclose(got, host @ host.swapaxes(-1, -2), rtol=tolerance, atol=tolerance * 10)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("library", ["cuDNN", "products"])
def test_convolutions_and_attention(k: Any, dtype: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against float64, by cuDNN if it is installed, and by products."""
    from backburn_cupy import cudnn

    if library == "products":
        monkeypatch.setattr(cudnn, "found", lambda: cudnn.Frontend(None, "not asked for"))
    elif cudnn.found().module is None:
        pytest.skip(cudnn.found().words)
    numpy, random, wanted = load_backend("numpy"), np.random.default_rng(2), dtypes.as_dtype(dtype)
    close = {"float16": 1e-2, "bfloat16": 8e-2, "float32": 1e-4, "float64": 1e-11}[dtype]

    def same(name: str, shapes: list[Any], *options: Any) -> None:
        ours = [k.astype(k.from_numpy(random.normal(size=s)), wanted) for s in shapes]
        theirs = [k.to_numpy(k.astype(x, dtypes.float64)) for x in ours]
        got, expected = getattr(k, name)(*ours, *options), getattr(numpy, name)(*theirs, *options)
        for x, y in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, expected)), strict=True):
            scale = float(np.abs(y).max())
            np.testing.assert_allclose(k.to_numpy(k.astype(x, dtypes.float64)), y, rtol=close, atol=close * scale)

    x, w, y = (4, 16, 20, 20), (32, 8, 3, 3), (4, 32, 10, 10)
    window = ((2, 2), ((1, 1), (1, 1)), (1, 1))
    same("conv", [x, w, (32,)], *window, 2)
    same("conv_weight_backward", [x, y], (3, 3), *window, 2)
    same("conv_transpose", [y, w], None, *window[:2], (1, 1), (1, 1), 2)
    heads = [(2, 4, 128, 64)] * 3
    for causal in (False, True):
        same("scaled_dot_product_attention", heads, None, None, causal, 0.125, 0.0)
        same("scaled_dot_product_attention_backward", [heads[0], *heads], None, None, None, causal, 0.125, 0.0)
    if library == "cuDNN":
        refused = {kind: said for kind, said in cudnn.REFUSED.items() if kind.dtype == dtype}
        assert refused == {}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_long_rows_and_large_arrays(k: Any, dtype: str) -> None:
    """Every variant of the row kernels, and the kernels for large arrays, against float64; samples are small."""
    numpy, random, wanted = load_backend("numpy"), np.random.default_rng(5), dtypes.as_dtype(dtype)
    close = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-12}[dtype]

    def given(*shape: int) -> Any:
        return k.astype(k.from_numpy(random.normal(size=shape)), wanted)

    def same(name: str, operands: Any, *options: Any) -> None:
        def host(x: Any) -> Any:
            if isinstance(x, (float, list)):
                return [host(y) for y in x] if isinstance(x, list) else x
            return k.to_numpy(k.astype(x, dtypes.float64) if k.dtype(x).kind == "float" else x)

        theirs = [host(x) for x in operands]
        got, expected = getattr(k, name)(*operands, *options), getattr(numpy, name)(*theirs, *options)
        for x, y in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, expected)), strict=True):
            at_least = close * max(1.0, float(np.abs(y).max()))
            np.testing.assert_allclose(host(x), y, rtol=close, atol=at_least, err_msg=name)

    for length in (30, 300, 1000, 1500, 5000, 20_001):
        x, grad, labels = given(17, length), given(17, length), k.from_numpy(random.integers(0, length, 17))
        scale, bias = given(length), given(length)
        for name in ("softmax", "log_softmax"):
            same(name, [x], 1)
            same(f"{name}_backward", [grad, getattr(k, name)(x, 1)], 1)
        same("label_cross_entropy", [x, labels], 1)
        same("label_cross_entropy_backward", [given(17), x, labels], 1)
        same("layer_norm", [x, scale, bias], (1,), 1e-5)
        same("rms_norm", [x, scale], (1,), 1e-5)
        same("layer_norm_backward", [grad, x, scale], (1,), 1e-5)
    x, y = given(1025, 1024), given(1025, 1024)
    for name in ("add", "sub", "mul", "maximum", "minimum"):
        same(name, [x, y])
    same("div", [x, 3.0])
    for name in ("neg", "abs", "square", "exp", "tanh", "sigmoid", "silu"):
        same(name, [x])
    same("gelu", [x], "tanh")
    for axis in (0, 1):
        same("concat", [[x, y, x]], axis)
    same("sum", [x], (0,))


def test_exhausted_memory_raises(k: Any) -> None:
    with pytest.raises(DeviceMemoryError, match="is exhausted"):
        k.zeros((1 << 50,), dtypes.float32)
    k.memory_cleanup()
    assert k.memory_stats()["free"] > 0


def test_deterministic_calls_are_bitwise_equal() -> None:
    from backburn_cupy import CupyBackend

    k = CupyBackend(deterministic=True)
    random = np.random.default_rng(1)
    values = k.from_numpy(random.normal(size=(100_000, 8)).astype(np.float32))
    indices = k.from_numpy(random.integers(0, 10, 100_000))
    first, *others = (k.to_numpy(k.index_add(k.zeros((10, 8), dtypes.float32), indices, values, 0)) for _ in range(5))
    for other in others:
        np.testing.assert_array_equal(first, other)


def test_random_numbers_equal_numpy_s(k: Any) -> None:
    numpy = load_backend("numpy")
    for name, more in (
        ("random_bits", ()),
        ("uniform", (dtypes.float32,)),
        ("uniform", (dtypes.float64,)),
        ("bernoulli", (0.3,)),
    ):
        for offset in (0, 5, 2**33 + 1):
            ours, theirs = (getattr(b, name)(2**100 + 7, offset, (10_001,), *more) for b in (k, numpy))
            np.testing.assert_array_equal(k.to_numpy(ours), theirs)


def test_a_model_learns_the_same_as_on_the_cpu() -> None:
    def losses(spec: str) -> list[float]:
        backend = bb.load_backend(spec)
        bb.random.seed(3)
        with bb.use_backend(backend):
            model = bb.nn.Sequential(bb.nn.Linear(8, 32), bb.nn.GELU(), bb.nn.LayerNorm(32), bb.nn.Linear(32, 3))
            optimizer = bb.optim.Adam(0.01)
            x = bb.random.normal((64, 8))
            labels = bb.argmax(x[:, :3], axis=1)
            found = []
            for _ in range(30):
                loss = bb.nn.functional.cross_entropy(model(x), labels)
                optimizer.step(model, loss.backward())
                found.append(float(loss))
            return found

    np.testing.assert_allclose(losses("autodiff(cupy)"), losses("autodiff(numpy)"), rtol=2e-3)


def test_a_recorded_step_learns_like_an_unrecorded_one() -> None:
    """It also has no hidden waits: a call that waits for the device cannot be recorded."""
    losses, run = train("autodiff(cupy)", captured=True)
    assert run.reason == ""
    np.testing.assert_allclose(losses, train("autodiff(cupy)", captured=False)[0], rtol=1e-4)


def replayed(k: Any, program: Any, inputs: list[Any]) -> tuple[list[Any], Any]:
    """Results of ``program`` unrecorded, and a recording of it."""
    plain = [k.to_numpy(x) for x in program(inputs)]
    with scoped(RECORDING_STEP, Recording()):
        return plain, k.capture(lambda state, given: (state, program(given)), [], inputs)


@pytest.mark.parametrize("shape", [(70, 33), (4096, 1000), (300, 4096)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_passes(k: Any, name: str, shape: tuple[int, int]) -> None:
    """Joined calls equal NumPy in float64, and replays are bitwise equal."""
    function, has_gradients = CASES[name]
    arrays = operands(shape, np.float32)
    if has_gradients:
        function = bb.value_and_grad(function, argnums=(0, 1, 2, 3))
    captured = bb.capture(function, state=False, on_fallback="error")
    given = [bb.asarray(x, backend="capture(cupy)") for x in arrays]
    replays = [[x.numpy() for x in flatten(captured(*given))[0]] for _ in range(4)][2:]
    assert "computed by CUDA" in str(captured.plan())
    close(replays[0], plain(function, *arrays), "float32")
    for one, other in zip(*replays, strict=True):
        np.testing.assert_array_equal(one, other)


def test_library_calls_are_recorded(k: Any) -> None:
    """CUB, Thrust and cuFFT, on arrays for which CuPy uses them."""
    x = k.from_numpy(np.random.default_rng(4).normal(size=(8, 50_000)).astype(np.float32))

    def program(given: list[Any]) -> list[Any]:
        (x,) = given
        sums = [k.sum(x, (1,)), k.sum(x, (0,)), k.sum(x, (0, 1)), k.max(x, (1,)), k.max(x, (0, 1)), k.argmax(x, 1)]
        return [*sums, k.cumulative_sum(x, 1), k.argsort(x, 1), k.argsort(k.reshape(x, (400_000,)), 0), *k.rfft(x, 1)]

    plain, replay = replayed(k, program, [x])
    for _ in range(2):
        for value, expected in zip(replay([x], []), plain, strict=True):
            np.testing.assert_allclose(k.to_numpy(value), expected, rtol=1e-5, atol=1e-3)


def test_memory_that_a_recording_uses_is_not_reused(k: Any) -> None:
    """That of an external array, and of a plan for Fourier transforms, of which CuPy keeps only the most recent."""
    x, tables = k.from_numpy(np.linspace(0, 1, 131, dtype=np.float32)), [k.full((131,), 3.0, dtypes.float32)]

    def program(given: list[Any]) -> list[Any]:
        return [k.irfft(*k.rfft(k.mul(given[0], tables[0]), 0), 131, 0)]

    (plain,), replay = replayed(k, program, [x])
    tables.clear()
    others = [k.rfft(k.full((n,), 7.0, dtypes.float32), 0) for n in range(132, 172)]
    (value,) = replay([x], [])
    np.testing.assert_allclose(k.to_numpy(value), plain, rtol=1e-5, atol=1e-5)
    assert len(others) == 40


def test_a_group_of_one_rank() -> None:
    """NCCL refuses two ranks on one GPU; with one, its calls, dtypes and streams are the same."""
    from backburn_cupy.nccl import Nccl

    cupy = pytest.importorskip("cupy")
    if not getattr(pytest.importorskip("cupy.cuda.nccl"), "available", False):
        pytest.skip("CuPy finds no NCCL")
    comm = Nccl(Local())
    for dtype in ("bool", "int64", "float16", "bfloat16", "float32"):
        x = cupy.ones((5,), dtypes.as_dtype(dtype).dtype)
        received = [comm.empty(None, (5,), dtypes.as_dtype(dtype))]
        comm.all_gather(x, received)
        comm.start_all_to_all(received, received).wait()
        if comm.can_reduce(received[0]):
            comm.all_reduce(received[0])
        comm.broadcast(received[0], 0)
        comm.barrier()
        assert (received[0] == x).all()


def test_exchanges_through_the_host(k: Any) -> None:
    """A host communicator exchanges arrays on the device."""
    comm = Local()
    x = k.from_numpy(np.arange(6.0, dtype=np.float32))
    received = [comm.empty(k, (6,), dtypes.float32)]
    comm.all_gather(comm.to_buffer(k, x), received)
    np.testing.assert_array_equal(k.to_numpy(comm.from_buffer(k, received[0])), np.arange(6.0))
