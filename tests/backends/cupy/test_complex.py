"""Complex numbers on the CuPy backend, on the stand-in: values, derivatives, and that no float kernel runs on them."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.stand_in import compiled

import backburn as bb
from backburn import nn, optim
from backburn.backend.registry import load_backend
from backburn.base import dtypes
from backburn.base.errors import DTypeError, LinearAlgebraError, Unsupported
from backburn.conformance import check_backend
from backburn.conformance.checks.kinds import COMPLEX_KINDS
from backburn.conformance.samples.calls import call, operands_of, to_primitives
from backburn.conformance.samples.derived.complex_operands import complex_samples
from backburn.ops.table import OPERATIONS

pytestmark = pytest.mark.skipif(compiled.COMPILER is None, reason="running the kernels needs g++")

CUPY = "autodiff(cupy)"


@pytest.fixture
def k(cupy: Any) -> Any:
    backend: Any = load_backend("cupy")
    backend.faults.check()
    return backend


def close(got: Any, expected: Any, factor: float = 1.0) -> None:
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    np.testing.assert_allclose(got, expected, rtol=0, atol=factor * 8 * np.finfo(got.dtype).eps * scale)


@pytest.mark.parametrize("deterministic", [False, True])
def test_values_and_derivatives(cupy: Any, deterministic: bool) -> None:
    from backburn_cupy import CupyBackend

    kinds = COMPLEX_KINDS[:2] if deterministic else COMPLEX_KINDS
    ops = ["scatter", "index_add", "take_backward", "scatter_nd"] if deterministic else None
    report = check_backend(CupyBackend(deterministic=deterministic), kinds=kinds, ops=ops)
    assert report.ok, report.failures[:5]
    if not deterministic:
        assert {r.id.partition("-")[0] for r in report.results} > {"mul", "eig", "conv", "take", "matmul", "where"}


def test_float_kernels_get_no_complex_arrays(k: Any, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every operation that takes complex operands, with the thresholds for large arrays removed."""
    for name in ("elementwise", "shape"):
        monkeypatch.setattr(importlib.import_module(f"backburn_cupy.{name}"), "LARGE", 1)
    monkeypatch.setattr(importlib.import_module("backburn_cupy.kernels.normalization"), "MANY", 1)
    run, launched = k.runner.run, []

    def running(family: str, kernel: str, *arguments: Any) -> None:
        assert not any(getattr(a, "dtype", np.dtype("f")).kind == "c" for a in arguments), kernel
        launched.append(kernel)
        run(family, kernel, *arguments)

    monkeypatch.setattr(k.runner, "run", running)
    tried = 0
    for name in OPERATIONS:
        for _, sample in complex_samples(name)[:2]:
            for dtype in ("complex64", "complex128"):
                operands = to_primitives(k, operands_of(name, sample, dtype))
                for result in call(k, name, operands, sample.attributes):
                    tried += isinstance(result, cupy.ndarray)
    assert tried > 300
    x = k.full((4, 3), 1.5, dtypes.float32)
    assert not launched or all("complex" not in name for name in launched)
    k.sum(x, (0,))
    k.add(x, x)
    assert launched  # launches of float kernels are observed


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("library", ["cuBLASLt", "cuBLAS"])
def test_products(k: Any, cupy: Any, dtype: str, library: str, request: pytest.FixtureRequest) -> None:
    from backburn_cupy import cublaslt

    fake = importlib.import_module("fake_cublaslt")
    if library == "cuBLAS":
        fake.HIDDEN.append(True)
        request.addfinalizer(cublaslt.library.cache_clear)
        request.addfinalizer(fake.HIDDEN.clear)
        cublaslt.library.cache_clear()
    generator = np.random.default_rng(0)

    def numbers(*shape: int) -> Any:
        return (generator.normal(size=shape) + 1j * generator.normal(size=shape)).astype(dtype)

    shapes = (((3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (3, 4, 5)), ((4,), (4, 2)), ((3, 0), (0, 2)))
    for x, y in ((numbers(*a), numbers(*b)) for a, b in shapes):
        close(k.to_numpy(k.matmul(k.from_numpy(x), k.from_numpy(y))), x @ y, 4)
        if x.ndim > 1 and x.size:
            turned = np.swapaxes(np.ascontiguousarray(np.swapaxes(x, -1, -2)), -1, -2)
            axes = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
            swapped = k.permute_dims(k.from_numpy(np.ascontiguousarray(np.swapaxes(x, -1, -2))), axes)
            close(k.to_numpy(k.matmul(swapped, k.from_numpy(y))), turned @ y, 4)
    x, weight, bias = numbers(6, 4), numbers(5, 4), numbers(5)
    expected = x @ weight.T + bias
    close(k.to_numpy(k.linear(*map(k.from_numpy, (x, weight, bias)))), expected, 4)
    grad = numbers(6, 5)
    found = k.linear_weight_backward(k.from_numpy(grad), k.from_numpy(x))
    for got, wanted in zip(found, (grad.T @ x, grad.sum(0)), strict=True):
        close(k.to_numpy(got), wanted, 4)


def test_expm1_and_log1p_keep_the_digits_of_small_numbers(k: Any) -> None:
    x = np.array([1e-9 + 2e-9j, -3e-12 + 1e-20j, 1e-30j, 0.3 - 0.4j, 3 + 4j, -1.5 + 1e-3j])
    mp = pytest.importorskip("mpmath")
    with mp.workdps(60):
        for name in ("expm1", "log1p"):
            got = k.to_numpy(getattr(k, name)(k.from_numpy(x)))
            exact = [mp.expm1(mp.mpc(z)) if name == "expm1" else mp.log(1 + mp.mpc(z)) for z in x]
            for g, e in zip(got, exact, strict=True):
                assert abs(mp.mpc(complex(g)) - e) <= 4e-16 * abs(e), (name, g, e)
    for values, expected in (
        (k.expm1(k.from_numpy(np.array([complex(np.inf, 0), complex(-np.inf, 2)]))), [complex(np.inf, 0), -1]),
        (k.log1p(k.from_numpy(np.array([complex(-1, 0), complex(np.inf, 1)]))), [complex(-np.inf, 0), np.inf]),
    ):
        np.testing.assert_array_equal(k.to_numpy(values), expected)


def test_integer_powers_are_products(k: Any) -> None:
    x = np.array([1 + 2j, -3 + 1j, 2j])
    for power in (2, -1, 3.0, 4 + 0j, 1):
        assert k.to_numpy(k.pow(k.from_numpy(x), power)).tolist() == (x**power).tolist()
    for power in (0, 0.5, 1 + 1j, 40, -17, 13):
        close(k.to_numpy(k.pow(k.from_numpy(x), power)) / x**power, np.ones(3), 40)
    close(k.to_numpy(k.pow(2.0, k.from_numpy(x))), 2.0**x, 4)


def test_numbers_with_arrays(k: Any) -> None:
    x = k.from_numpy(np.array([1 + 2j], np.complex64))
    for number in (2, 0.5, 1 - 1j):
        for name in ("add", "sub", "mul", "div", "pow"):
            for operands in ((x, number), (number, x)):
                assert k.dtype(getattr(k, name)(*operands)) is dtypes.complex64
    assert k.to_numpy(k.add(x, complex(1e300, -1e300))).tolist() == [complex(np.inf, -np.inf)]
    condition = k.from_numpy(np.array([True]))
    assert k.to_numpy(k.where(condition, 1j, x)).tolist() == [1j]
    made = k.to_numpy(k.full((2,), complex(-0.0, -0.0), dtypes.complex64))
    assert np.signbit(made.real).all()
    assert np.signbit(made.imag).all()
    written = k.slice_assign(x, 3j, (slice(0, 1, 1),))
    assert k.to_numpy(written).tolist() == [3j]
    assert k.to_numpy(k.complex(1e300, k.ones((1,), dtypes.float32))).tolist() == [complex(np.inf, 1)]


def test_a_failed_decomposition_raises_later(k: Any) -> None:
    indefinite = np.array([[1, 2j], [-2j, 1]])
    for matrices in (indefinite, np.stack([np.eye(2), indefinite]).astype(np.complex64)):
        k.cholesky(k.from_numpy(matrices))
        with pytest.raises(LinearAlgebraError, match="not positive definite"):
            k.synchronize()
    exact = np.array([[2, 1j], [-1j, 2]])
    factor = k.to_numpy(k.cholesky(k.from_numpy(exact)))
    close(factor @ factor.conj().T, exact)


@pytest.mark.parametrize("error", [RuntimeError("geev is not available"), AttributeError("no attribute 'eig'")])
def test_eigenvalues_need_a_new_cusolver(k: Any, cupy: Any, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(x: Any) -> Any:
        raise error

    monkeypatch.setattr(cupy.linalg, "eig", missing)
    for name in ("eig", "eigvals"):
        with pytest.raises(Unsupported, match="eig: needs CuPy 14 and a cuSOLVER with geev"):
            getattr(k, name)(k.from_numpy(np.eye(2) + 0j))


def test_operations_without_complex_support_raise(k: Any) -> None:
    z = bb.asarray([1 + 2j, 3.0], backend=CUPY)
    for refused in (lambda: bb.sort(z), lambda: z < z, lambda: nn.functional.relu(z), lambda: bb.floor(z)):
        with pytest.raises(DTypeError, match="takes no complex tensors"):
            refused()


def test_a_recorded_step_learns_like_an_unrecorded_one(k: Any) -> None:
    def run(captured: bool) -> list[float]:
        with bb.use_backend(CUPY):
            bb.random.seed(3)
            layer = nn.Linear(3, 2).astype("complex64")
            optimizer = optim.Adam(0.05)
            x = bb.random.normal((5, 3), dtype="complex64")

            def step(state: Any, x: Any) -> Any:
                layer, optimizer = state
                loss = bb.mean(bb.abs(layer(x) - 1j) ** 2)
                optimizer.step(layer, loss.backward())
                return state, loss

            doing = bb.capture(step, on_fallback="error") if captured else step
            state, found = (layer, optimizer), []
            for _ in range(6):
                state, loss = doing(state, x)
                found.append(loss.item())
            return found

    plain, replayed = run(False), run(True)
    assert replayed == plain
    assert plain[-1] < plain[0]


def test_user_programs_equal_numpy(k: Any) -> None:
    generator = np.random.default_rng(1)
    x = (generator.normal(size=(4, 4)) + 1j * generator.normal(size=(4, 4))).astype(np.complex64)

    def program(z: Any) -> list[Any]:
        gradient = bb.grad(lambda z: bb.sum(bb.abs(bb.fft.fft(z @ z)) ** 2))(z)
        values, vectors = bb.linalg.eigh(z + bb.conj(z.mT))
        return [
            gradient, values, vectors, bb.vmap(bb.linalg.inv)(bb.stack([z, z * 2])), z.at[0].set(1j), bb.tanh(z),
            bb.angle(z), bb.einsum("ij,kj->ik", z, z), bb.cumulative_sum(z, axis=1), bb.linalg.eig(z).eigenvalues,
            bb.jvp(lambda z: bb.exp(z), (z,), (z,))[1], bb.polar(bb.abs(z), bb.angle(z)),
        ]  # fmt: skip

    pairs = zip(*(program(bb.asarray(x, backend=b)) for b in (CUPY, "autodiff(numpy)")), strict=True)
    for number, (got, expected) in enumerate(pairs):
        assert got.dtype is expected.dtype
        close(got.numpy(), expected.numpy(), 64 if number else 4096)


def test_large_arrays(k: Any) -> None:
    for size, dtype in itertools.product((3, 600, 70_000), ("complex64", "complex128")):
        x = np.linspace(0.5, 1.0, size) * np.exp(1j * np.arange(size))
        x = x.astype(dtype)
        z = k.from_numpy(x)
        for name, expected in (("sum", x.sum()), ("mean", x.mean())):
            close(k.to_numpy(getattr(k, name)(z, (0,))), expected, size**0.5)
        for name, function in (("exp", np.exp), ("sqrt", np.sqrt), ("neg", np.negative), ("conj", np.conj)):
            close(k.to_numpy(getattr(k, name)(z)), function(x))
