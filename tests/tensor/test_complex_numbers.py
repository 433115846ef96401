"""Complex tensors: dtypes, parts, refusals, files, and the convention for gradients."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.real_only import RealOnly

import backburn as bb
from backburn import nn, optim
from backburn.backend import load_backend
from backburn.errors import (
    ArgumentError,
    AxisError,
    BackburnError,
    DTypeError,
    NotDifferentiableError,
    ShapeError,
    Unsupported,
)
from backburn.ops.table import OPERATIONS
from backburn.tensor.core import copying

RNG = np.random.default_rng(7)
Z = RNG.normal(size=(2, 3)) + 1j * RNG.normal(size=(2, 3))
W = RNG.normal(size=(2, 3)) + 1j * RNG.normal(size=(2, 3))
z: Any = bb.asarray(Z)
w: Any = bb.asarray(W)


# ---- dtypes, numbers, the host ----

PROMOTED = [
    ("complex64", "complex128", "complex128"), ("float16", "complex64", "complex64"),
    ("float32", "complex64", "complex64"), ("float64", "complex64", "complex128"), ("int64", "complex64", "complex64"),
    ("uint8", "complex128", "complex128"), ("bool", "complex64", "complex64"),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "expected"), PROMOTED)
def test_promotion(a: str, b: str, expected: str) -> None:
    for one, other in ((a, b), (b, a)):
        assert bb.result_type(one, other).name == expected
        made = bb.ones(2, dtype=one) + bb.ones((2, 1), dtype=other)
        assert (made.dtype.name, made.numpy().tolist()) == (expected, [[2, 2], [2, 2]])
    assert bb.can_cast(a, expected)
    assert not bb.can_cast("complex64", "float64")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "bool", "complex64", "complex128"])
def test_python_complex_numbers_are_weak(dtype: str) -> None:
    x = bb.ones(2, dtype=dtype)
    expected = "complex128" if dtype in ("float64", "complex128") else "complex64"
    for made in (x + 1j, 1j + x, x * 2j, 1j - x, x / (1 + 1j), x + np.complex128(1j)):
        assert made.dtype.name == expected
    assert (x - 1j).tolist() == [1 - 1j, 1 - 1j]
    assert (x == 1 + 0j).tolist() == [True, True]
    assert bb.result_type(dtype, 1j).name == expected


def test_dtypes() -> None:
    assert bb.complex64 == np.complex64
    assert np.dtype(bb.complex128) == np.complex128
    assert (bb.complex64.bits, bb.complex128.itemsize, bb.complex128.kind) == (64, 16, "complex")
    assert bb.zeros(2, dtype=complex).dtype is bb.complex64
    assert bb.finfo(bb.complex64) == bb.finfo(bb.float32)
    assert bb.isdtype(bb.complex64, "complex floating")
    assert bb.isdtype(bb.complex64, "numeric")
    assert not bb.isdtype(bb.complex64, "real floating")
    with bb.use_dtype("float64"):
        assert bb.asarray([1j]).dtype is (bb.ones(2) * 1j).dtype is bb.complex128


def test_from_the_host_and_back() -> None:
    for data in ([1j, 2], [[1 + 1j], [2.5]], 3j, np.array([1j], np.complex64), np.complex128(2j), np.clongdouble(1j)):
        x = bb.asarray(data)
        assert isinstance(x, bb.ComplexTensor)
        np.testing.assert_array_equal(x.numpy(), np.asarray(data))
    assert bb.asarray([1j, 2]).dtype is bb.complex64
    assert bb.asarray(np.array([1j])).dtype is bb.complex128
    assert bb.asarray([np.complex64(1j), 2.0]).dtype is bb.complex64
    assert bb.asarray([1, 2], dtype="complex64").tolist() == [1 + 0j, 2 + 0j]
    assert bb.asarray(np.array([1.5]), dtype="complex128").tolist() == [1.5 + 0j]
    assert bb.full((2,), 1j).dtype is bb.complex64
    assert bb.eye(2, dtype="complex128").tolist() == [[1, 0], [0, 1]]
    assert np.from_dlpack(z).tolist() == Z.tolist() == bb.from_dlpack(Z).tolist()
    assert complex(z[0, 0]) == Z[0, 0] == z[0, 0].item()
    assert bool(bb.asarray(1j))
    assert not bool(bb.asarray(0j))
    assert bool(bb.asarray(complex(0.0, float("nan"))))
    for again in (pickle.loads(pickle.dumps(z)), copy.deepcopy(z), z.to("numpy").to("autodiff(numpy)")):
        assert (again.dtype, again.tolist()) == (bb.complex128, Z.tolist())
    assert z.astype("complex64").astype("complex64") is not z
    assert repr(bb.asarray([1 + 2j, -0.5j])) == "Tensor([ 1.+2.j , -0.-0.5j], dtype=complex64, backend=autodiff(numpy))"
    assert f"{bb.asarray(1 + 2j):.1f}" == "1.0+2.0j"


def test_parts() -> None:
    for found, expected in (
        (bb.real(z), Z.real), (bb.imag(z), Z.imag), (bb.conj(z), Z.conj()), (bb.abs(z), np.abs(Z)), (abs(z), np.abs(Z)),
        (bb.angle(z), np.angle(Z)), (bb.sign(z), Z / np.abs(Z)), (bb.view_as_real(z), np.stack([Z.real, Z.imag], -1)),
        (bb.view_as_complex(bb.view_as_real(z)), Z), (bb.complex(bb.real(z), bb.imag(z)), Z),
        (bb.polar(bb.abs(z), bb.angle(z)), Z),
    ):  # fmt: skip
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-15, atol=1e-15)
    assert bb.real(z).dtype is bb.abs(z).dtype is bb.float64
    assert bb.complex(bb.ones(2), 1.0).dtype is bb.complex64
    assert bb.complex(bb.ones(2, dtype="float16"), bb.ones(2, dtype="float64")).dtype is bb.complex128
    assert bb.complex(bb.asarray([1, 2])).tolist() == [1, 2]
    assert bb.angle(bb.asarray([1.0, -1.0, 0.0])).tolist() == pytest.approx([0, np.pi, 0])
    assert bb.abs(bb.asarray(np.array([3e200 + 4e200j, 3e-200 + 4e-200j]))).tolist() == pytest.approx([5e200, 5e-200])
    x = bb.asarray([1.0])
    assert bb.real(x) is bb.conj(x) is x
    assert bb.imag(x).tolist() == [0.0]
    with pytest.raises(ShapeError, match="view_as_complex: the last axis has the length 2"):
        bb.view_as_complex(bb.ones(3))


#: Functions for which the standard fixes branch cuts and special values, and NumPy's, which follow it.
FUNCTIONS: dict[str, Any] = {
    "sqrt": np.sqrt, "exp": np.exp, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_branch_cuts_and_signs_of_zeros(name: str, dtype: str) -> None:
    """Values and signs of both parts, on the axes and on both sides of every cut."""
    ends = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0]
    grid = np.array([complex(a, b) for a in ends for b in ends], dtype)
    with np.errstate(all="ignore"):
        expected = FUNCTIONS[name](grid)
    if name == "expm1":
        expected.real += 0.0  # for -0 + 0j the standard gives 0, NumPy -0
    got = getattr(bb, name)(bb.asarray(grid)).numpy()
    finite = np.isfinite(expected)
    assert got.dtype == expected.dtype
    assert np.array_equal(finite, np.isfinite(got))
    for part in ("real", "imag"):
        ours, theirs = getattr(got, part)[finite], getattr(expected, part)[finite]
        assert np.array_equal(np.signbit(ours), np.signbit(theirs))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=8 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_the_sign_of_zero_is_zero(dtype: str) -> None:
    """Both parts are +0, as in the Array API, on the NumPy backend and from the default body."""
    zeros = np.array([complex(a, b) for a in (0.0, -0.0) for b in (0.0, -0.0)], dtype)
    k = load_backend("numpy")
    for found in (bb.sign(bb.asarray(zeros)).numpy(), OPERATIONS["phase"].body(k, zeros)):
        assert not found.any()
        assert not np.signbit(found.real).any()
        assert not np.signbit(found.imag).any()


def test_both_parts_are_rounded() -> None:
    x = bb.asarray([1.5 + 2.5j, -0.5 - 1.5j, 3.14159 + 2.71828j], dtype="complex128")
    assert bb.round(x).tolist() == [2 + 2j, -2j, 3 + 3j]
    assert x.round(2).tolist() == [1.5 + 2.5j, -0.5 - 1.5j, 3.14 + 2.72j]
    assert not bb.any(bb.vjp(bb.round, x)[1](bb.ones_like(x))[0] != 0)


def test_expm1_of_infinities() -> None:
    """The Array API's special cases, for which NumPy's own function gives NaN."""
    inf, nan = float("inf"), float("nan")
    z = [complex(inf, 0), complex(-inf, inf), complex(inf, inf), complex(-inf, nan), complex(nan, 0), 1e-9 + 0j]
    found = bb.expm1(bb.asarray(np.array(z), backend="numpy")).numpy()
    np.testing.assert_array_equal(found.real, [inf, -1, inf, -1, nan, np.expm1(1e-9)])
    np.testing.assert_array_equal(found.imag, [0, 0, nan, 0, 0, 0])


@pytest.mark.parametrize("name", ["log1p", "expm1", "sigmoid"])
def test_small_results_keep_their_digits(name: str) -> None:
    mp = pytest.importorskip("mpmath")
    formula = {"log1p": lambda x: mp.log(1 + x), "expm1": mp.expm1, "sigmoid": lambda x: 1 / (1 + mp.exp(-x))}[name]
    points = [
        1e-9 + 2e-9j,
        1e-20 + 1e-30j,
        -3e-12 + 1e-5j,
        -0.5 + 1e-9j,
        0.3 - 0.4j,
        3 + 4j,
        -50 + 2j,
        40 - 1j,
        2e5 + 1j,
    ]
    with mp.workdps(50):
        for dtype, eps in (("complex64", 2.0**-23), ("complex128", 2.0**-52)):
            points = [p for p in points if name != "expm1" or p.real < 100]
            for point in np.array(points, dtype).tolist():
                exact, got = formula(mp.mpc(point)), getattr(bb, name)(bb.asarray(point, dtype=dtype))
                assert got.dtype.name == dtype
                assert abs(mp.mpc(got.item()) - exact) <= 4 * eps * abs(exact), (dtype, point)


def test_sigmoid_of_large_numbers_and_its_gradient() -> None:
    far = bb.sigmoid(bb.asarray([1000 + 1j, -1000 + 1j, 0j]))
    assert far.tolist() == [1, 0, 0.5]
    x: Any = bb.asarray([1 + 2j, -3 + 0.5j, 0.1j, -40 + 1j], dtype="complex128")
    bb.check_grads(lambda x: bb.sum(bb.abs(bb.sigmoid(x))), (x,), order=2)
    slope = bb.jvp(bb.sigmoid, (x,), (bb.ones_like(x),))[1]
    np.testing.assert_allclose(slope.numpy(), (bb.sigmoid(x) * bb.sigmoid(-x)).numpy(), rtol=1e-12)


def test_where_of_python_complex_numbers() -> None:
    chosen = bb.asarray([True, False])
    for first, second, expected in ((1j, 0.0, [1j, 0]), (2, 1 - 1j, [2, 1 - 1j]), (1j, 2j, [1j, 2j])):
        found = bb.where(chosen, first, second)
        assert (found.dtype, found.tolist()) == (bb.complex64, expected)
    assert np.asarray(z, np.complex64).dtype == np.complex64


def test_missing_values_and_random_orders() -> None:
    x = bb.asarray([1 + 2j, complex(np.nan, 0), 3j])
    assert (bb.nansum(x).item(), bb.nanprod(x).item(), bb.nanmean(x).item()) == (1 + 5j, -6 + 3j, 0.5 + 2.5j)
    assert bb.nanmean(x).dtype is bb.complex64
    gradient = bb.grad(lambda x: bb.sum(bb.real(bb.nansum(x) * 1j)))(x)
    assert gradient.tolist() == [-1j, 0, -1j]
    shuffled = bb.random.permutation(z, axis=1).numpy()
    assert sorted(shuffled[0].tolist(), key=abs) == sorted(Z[0].tolist(), key=abs)
    assert bb.random.choice(z, (5,), axis=1).shape == (2, 5)


def test_powers_products_and_statistics() -> None:
    for got, expected in (
        (z**2, Z**2), (z**3, Z**3), (z**-1, 1 / Z), (z**0.5, Z**0.5), (z ** (1 + 1j), Z ** (1 + 1j)), (2**z, 2**Z),
        (1j**z, 1j**Z), (z**w, Z**W), (z.prod(), Z.prod()), (z.prod(axis=0), Z.prod(0)), (z.var(), Z.var()),
        (bb.cumulative_sum(z, axis=1), Z.cumsum(1)), (bb.cumulative_prod(z, axis=1), Z.cumprod(1)),
        (bb.diff(z), np.diff(Z)), (z.std(axis=1), Z.std(1)), (z.var(axis=0, correction=1), Z.var(0, ddof=1)),
        (z.norm(), np.linalg.norm(Z)), (bb.vector_norm(z, ord=1, axis=1), np.abs(Z).sum(1)),
        (bb.vector_norm(z, ord=float("inf")), np.abs(Z).max()), (bb.lerp(z, w, 0.25), 0.75 * Z + 0.25 * W),
    ):  # fmt: skip
        assert got.numpy().dtype == np.asarray(expected).dtype
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)
    assert (bb.asarray([0j]) ** 0).tolist() == [1]


def test_composed_functions() -> None:
    x, y, weights, places = z[0], w[0, :2], bb.asarray([1.0, 2.0, 3.0], dtype="float64"), [0.0, 1.0, 3.0]
    for mode in ("full", "same", "valid"):
        for a, b in ((x, y), (y, x)):
            np.testing.assert_allclose(bb.convolve(a, b, mode).numpy(), np.convolve(a.numpy(), b.numpy(), mode))
            np.testing.assert_allclose(bb.correlate(a, b, mode).numpy(), np.correlate(a.numpy(), b.numpy(), mode))
    found: list[tuple[Any, Any]] = [
        (bb.average(z, axis=1, weights=weights), np.average(Z, 1, [1, 2, 3])), (bb.average(z), Z.mean()),
        (bb.trapezoid(z), np.trapezoid(Z)), (bb.trapezoid(x, bb.asarray(places)), np.trapezoid(Z[0], places)),
        (bb.gradient(x), np.gradient(Z[0])), (bb.gradient(x, bb.asarray(places)), np.gradient(Z[0], places)),
        (bb.isclose(z, z + 1e-9j), np.ones((2, 3), bool)), (bb.isclose(z, z + 1e-3j), np.zeros((2, 3), bool)),
    ]  # fmt: skip
    for got, expected in found:
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-13)
    assert bb.allclose(z, bb.asarray(Z))
    assert not bb.allclose(z, bb.conj(z))


def test_products_of_matrices() -> None:
    tall, wide = z.mT, w
    for got, expected in (
        (z @ tall, Z @ Z.T), (tall @ wide, Z.T @ W), (z @ w[0], Z @ W[0]), (bb.vecdot(z, w), (Z.conj() * W).sum(-1)),
        (bb.einsum("ij,kj->ik", z, w), Z @ W.T), (bb.tensordot(z, w), np.tensordot(Z, W)),
        (z @ bb.ones((3, 2), dtype="float64"), Z @ np.ones((3, 2))),
        (nn.functional.linear(z, w, w[:, 0]), Z @ W.T + W[:, 0]),
        (bb.linalg.inv(z[:, :2]), np.linalg.inv(Z[:, :2])),
        (bb.linalg.solve(z[:, :2], w), np.linalg.solve(Z[:, :2], W)),
        (bb.linalg.triangular_solve(z[:, :2], w), np.linalg.solve(np.tril(Z[:, :2]), W)),
        (bb.kron(z, w), np.kron(Z, W)), (bb.linalg.trace(z @ tall), np.trace(Z @ Z.T)),
    ):  # fmt: skip
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-13)
    for size in (64, 600):
        a, b = (RNG.normal(size=(size, size)) + 1j * RNG.normal(size=(size, size)) for _ in range(2))
        for dtype in ("complex64", "complex128"):
            lower = np.tril(a, -1) / size + np.eye(size)  # large enough that BLAS solves real systems
            solved = bb.linalg.triangular_solve(bb.asarray(lower, dtype=dtype), bb.asarray(b[:, :3], dtype=dtype))
            np.testing.assert_allclose(lower @ solved.numpy(), b[:, :3], rtol=0, atol=size * float(np.finfo(dtype).eps))
            got = bb.asarray(a, dtype=dtype) @ bb.asarray(b, dtype=dtype)
            assert got.dtype.name == dtype
            np.testing.assert_allclose(got.numpy(), a @ b, rtol=0, atol=size * float(np.finfo(dtype).eps) * 8)


# ---- what is refused ----

x_real: Any = bb.ones(2)
REAL_ONLY: Any = RealOnly(load_backend("numpy"))
REFUSED: list[tuple[Callable[[], Any], type[BackburnError], str]] = [
    (lambda: z < w, DTypeError, "less: .*no order: compare bb.abs"),
    (lambda: bb.maximum(bb.ones(2), z[0, 0]), DTypeError, "maximum: .*no order"),
    (lambda: bb.sort(z), DTypeError, "sort: .*no order"),
    (lambda: z.max(), DTypeError, "max: .*no order"),
    (lambda: z.at[0].max(1.0), DTypeError, "no order"),
    (lambda: bb.floor(z), DTypeError, "floor: .*not rounded"),
    (lambda: z % 2, DTypeError, "remainder: .*not rounded"),
    (lambda: z & z, DTypeError, "bitwise_and: .*bits"),
    (lambda: int(z[0, 0]), DTypeError, r"int: .*bb.real\(x\)"),
    (lambda: float(z[0, 0]), DTypeError, r"float: .*bb.real\(x\)"),
    (lambda: z.astype("float32"), DTypeError, r"astype: float32 holds no complex numbers: bb.real\(x\)"),
    (lambda: z.astype("bool"), DTypeError, r"bb.real\(x\).astype\('bool'\)"),
    (lambda: bb.asarray([1j], dtype="float32"), DTypeError, "float32 holds no complex numbers"),
    (lambda: bb.asarray(np.array([1j]), dtype="int64"), DTypeError, "int64 holds no complex numbers"),
    (lambda: bb.full(2, 1j, dtype="float32"), ArgumentError, "float32 does not hold 1j"),
    (lambda: bb.ones(2).at[0].set(z[0, 0]), DTypeError, "do not fit"),
    (lambda: bb.arange(3, dtype="complex64"), DTypeError, "arange"),
    (lambda: bb.linspace(0, 1, 3, dtype="complex64"), DTypeError, "linspace"),
    (lambda: bb.random.uniform((2,), dtype="complex64"), DTypeError, "uniform"),
    (lambda: bb.ones(2)[z], DTypeError, "indices are integers"),
    (lambda: bb.where(z, z, w), DTypeError, "the condition is a bool tensor"),
    (lambda: z.sum(axis=1j), AxisError, "an axis is an integer"),
    (lambda: bb.linalg.cdist(z, w), DTypeError, "cdist: takes no complex"),
    (lambda: z.quantize(), DTypeError, "quantize: .*no scheme"),
    (lambda: bb.ones(3).quantize() * z, DTypeError, "do not combine: dequantize"),
    (lambda: bb.relu(z), DTypeError, "relu: .*no order"),
    (lambda: nn.LayerNorm(3)(z), DTypeError, "complex"),
    (lambda: z.backward(), NotDifferentiableError, "a gradient needs a real number.*bb.real or bb.abs"),
    (lambda: bb.grad(lambda z: (z * z).sum())(z), NotDifferentiableError, "a gradient needs a real number.*bb.jvp"),
    (lambda: bb.jacobian(lambda z: z * z)(z), NotDifferentiableError, "a complex result of complex arguments"),
    (lambda: bb.hessian(lambda z: bb.sum(bb.abs(z)))(z), NotDifferentiableError, "a complex result of complex"),
    (lambda: z.to(REAL_ONLY), Unsupported, "has no complex128 tensors"),
    (lambda: bb.asarray([1j], backend=REAL_ONLY), Unsupported, "has no complex64 tensors"),
    (lambda: bb.ones(2, backend=REAL_ONLY) * 1j, Unsupported, "has no complex64 tensors"),
    (lambda: bb.zeros(2, dtype="complex64", backend=REAL_ONLY), Unsupported, "has no complex64 tensors"),
    (lambda: np.asarray(z, np.float32), DTypeError, r"float32 holds no complex numbers: bb.real\(x\)"),
    (lambda: np.asarray(z, int), DTypeError, "int64 holds no complex numbers"),
    (lambda: bb.view_as_real(x_real), DTypeError, "view_as_real: takes complex tensors, not float; cast it with"),
    (lambda: optim.SGD(1j), ArgumentError, "lr"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED)
def test_refused(call: Callable[[], Any], error: type[BackburnError], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


class Model(nn.Module):
    """Complex weights."""

    weight: Any

    def __init__(self, dtype: str = "complex64") -> None:
        self.weight = nn.parameter(bb.asarray([1 + 2j, 3j], dtype=dtype))

    def forward(self, x: bb.Tensor) -> Any:
        return bb.abs(self.weight * x).sum()


@pytest.mark.parametrize("name", ["w.npz", "w.safetensors"])
def test_files(name: str, tmp_path: Path) -> None:
    model, path = Model(), tmp_path / name
    bb.io.save_weights(model, path)
    for dtype in ("complex64", "complex128"):
        other = Model(dtype)
        other.weight = nn.parameter(other.weight.detach() * 0)
        bb.io.load_weights(other, path)
        assert (other.weight.dtype.name, other.weight.tolist()) == (dtype, [1 + 2j, 3j])
    real = Model()
    real.weight = nn.parameter(bb.ones(2))
    with pytest.raises(DTypeError, match="complex64 there and float32 here"):
        bb.io.load_weights(real, path)
    with pytest.raises(DTypeError, match="weight: safetensors hold no complex128"):
        bb.io.save_weights(Model("complex128"), tmp_path / "x.safetensors")
    bb.io.save_npz(path.with_suffix(".arrays.npz"), {"z": z})
    np.testing.assert_array_equal(bb.io.load_npz(path.with_suffix(".arrays.npz"))["z"], Z)


def test_files_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"weight": torch.tensor([2 - 1j, 1j])}, tmp_path / "w.pt")
    model = Model()
    bb.io.load_weights(model, tmp_path / "w.pt")
    assert model.weight.tolist() == [2 - 1j, 1j]


# ---- gradients ----

#: Real losses of a complex matrix.
LOSSES: dict[str, Callable[[Any], Any]] = {
    "square": lambda z: bb.sum(bb.abs(z) ** 2),
    "real": lambda z: bb.sum(bb.real(z * z * w)),
    "imag": lambda z: bb.sum(bb.imag(z / w) * bb.real(w)),
    "conj": lambda z: bb.sum(bb.real(bb.conj(z) * w / (z + 2))),
    "angle": lambda z: bb.sum(bb.angle(z) * bb.real(w)),
    "sign": lambda z: bb.sum(bb.real(bb.sign(z) * w)),
    "moves": lambda z: bb.sum(bb.abs(bb.concat([z.T, z.reshape((3, 2))], axis=1)[::2] * (1 + 2j))),
    "masks": lambda z: bb.sum(bb.abs(bb.where(bb.real(z) > 0, z, w) + z.at[0].add(1j))),
    "parts": lambda z: bb.sum(bb.abs(bb.complex(bb.real(z) ** 2, bb.imag(z) * bb.real(z)))),
    "polar": lambda z: bb.sum(bb.real(bb.polar(bb.abs(z), bb.real(z)) * w)),
    "means": lambda z: bb.abs(bb.mean(z, axis=0)).sum() + bb.abs(bb.sum(z * w)),
    "powers": lambda z: bb.sum(bb.real(z**3 + z ** (1 - 1j) + 2**z + (1 + 1j) ** z + z**w)),
    "circles": lambda z: bb.sum(
        bb.real((bb.sin(z) * bb.cos(z) + bb.tan(z) + bb.atan(z) + bb.asin(z)) * w + bb.acos(z))
    ),
    "hyperbolas": lambda z: bb.sum(bb.real(bb.sinh(z) * bb.cosh(z) + bb.tanh(z) * w + bb.asinh(z) + bb.acosh(z))),
    "sigmoids": lambda z: bb.sum(bb.real(bb.sigmoid(z) * w)),
    "logarithms": lambda z: bb.sum(bb.abs(bb.log(z) * bb.exp(z) + bb.log1p(z) + bb.expm1(z) + bb.log2(z) + bb.sqrt(z))),
    "products": lambda z: (
        bb.abs(z.prod()) + bb.sum(bb.abs(bb.cumulative_prod(z, axis=1) + bb.cumulative_sum(z, axis=0)))
    ),
    "statistics": lambda z: z.norm() + z.var() + bb.sum(z.std(axis=0)) + bb.vector_norm(bb.diff(z), ord=3),
    "matrices": lambda z: bb.sum(bb.abs(z @ w.mT @ z)) + bb.sum(bb.real(bb.vecdot(z, w) * bb.vecdot(w, z, axis=-1))),
    "sums": lambda z: bb.sum(bb.imag(bb.einsum("ij,ik,kl->jl", z, z[:, :2], w))) + bb.abs(bb.tensordot(z, z)),
    "systems": lambda z: bb.sum(bb.abs(bb.linalg.solve(z[:, :2], w) + bb.linalg.inv(w[:, 1:] @ z[:, :2]) @ w)),
    "triangles": lambda z: bb.sum(bb.abs(bb.linalg.triangular_solve(z[:, :2], w) * w)),
    "convolutions": lambda z: (
        bb.abs(nn.functional.conv(z[None], w[None], w[:1, 0], stride=2, padding=1) * (1 + 2j)).sum()
        + bb.sum(bb.abs(nn.functional.conv_transpose(w[None, :, :2], z[:, None], z[0, :1])) ** 2)
    ),
    "views": lambda z: bb.sum(bb.abs(bb.view_as_complex(bb.view_as_real(z) * 2.0) * w) ** 3),
}


def differences(f: Callable[[Any], Any], at: Any, step: float = 1e-6) -> Any:
    """``dL/dx + i dL/dy`` by central differences."""
    found = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        for unit in (1, 1j):
            e = np.zeros_like(at)
            e[place] = unit * step
            ends = [float(f(bb.asarray(at + sign * e))) for sign in (1, -1)]
            found[place] += unit * (ends[0] - ends[1]) / (2 * step)
    return found


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_those_with_respect_to_both_parts(name: str) -> None:
    loss = LOSSES[name]
    leaf = z.require_grad()
    found = leaf.grad(loss(leaf).backward())
    assert found is not None
    assert isinstance(found, bb.ComplexTensor)
    np.testing.assert_allclose(found.numpy(), differences(loss, Z), atol=2e-8)
    np.testing.assert_allclose(bb.grad(loss)(z).numpy(), found.numpy(), rtol=1e-14)
    np.testing.assert_allclose(bb.vjp(loss, z)[1](2.0)[0].numpy(), 2 * found.numpy(), rtol=1e-14)
    along = bb.jvp(loss, (z,), (w,))[1].item()
    assert along == pytest.approx(np.sum(found.numpy().conj() * W).real, rel=1e-12)
    assert bb.linearize(loss, z)[1](w).item() == pytest.approx(along, rel=1e-12)
    bb.check_grads(loss, (z,))
    narrow = bb.grad(loss)(z.astype("complex64"))
    np.testing.assert_allclose(narrow.numpy(), found.numpy(), rtol=1e-4, atol=1e-4)


def test_gradients_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    there = torch.tensor(Z, requires_grad=True)
    weights = torch.tensor(W)
    theirs = {
        "real": lambda z: (z * z * weights).real.sum(),
        "imag": lambda z: ((z / weights).imag * weights.real).sum(),
        "conj": lambda z: (z.conj() * weights / (z + 2)).real.sum(),
        "angle": lambda z: (z.angle() * weights.real).sum(),
        "sign": lambda z: (z.sgn() * weights).real.sum(),
        "powers": lambda z: (z**3 + z ** (1 - 1j) + 2**z + (1 + 1j) ** z + z**weights).real.sum(),
        "circles": lambda z: ((z.sin() * z.cos() + z.tan() + z.atan() + z.asin()) * weights + z.acos()).real.sum(),
        "hyperbolas": lambda z: (z.sinh() * z.cosh() + z.tanh() * weights + z.asinh() + z.acosh()).real.sum(),
        "matrices": lambda z: (
            (z @ weights.mT @ z).abs().sum()
            + (torch.linalg.vecdot(z, weights) * torch.linalg.vecdot(weights, z)).real.sum()
        ),
        "sums": lambda z: torch.einsum("ij,ik,kl->jl", z, z[:, :2], weights).imag.sum() + (z * z).sum().abs(),
        "systems": lambda z: (
            (torch.linalg.solve(z[:, :2], weights) + torch.linalg.inv(weights[:, 1:] @ z[:, :2]) @ weights).abs().sum()
        ),
        "convolutions": lambda z: (
            (torch.conv1d(z[None], weights[None], weights[:1, 0], stride=2, padding=1) * (1 + 2j)).abs().sum()
            + (torch.conv_transpose1d(weights[None, :, :2], z[:, None], z[0, :1]).abs() ** 2).sum()
        ),
        "polar": lambda z: (torch.polar(z.abs(), z.real.contiguous()) * weights).real.sum(),
    }
    for name, loss in theirs.items():
        (first,) = torch.autograd.grad(loss(there), there, create_graph=True)
        second = torch.zeros_like(there)
        if first.requires_grad:
            (second,) = torch.autograd.grad((first.abs() ** 2).sum(), there)
        ours = bb.grad(LOSSES[name])
        np.testing.assert_allclose(ours(z).numpy(), first.detach().numpy(), rtol=1e-10, atol=1e-10)
        twice = bb.grad(lambda z, ours=ours: bb.sum(bb.abs(ours(z)) ** 2))(z)
        np.testing.assert_allclose(twice.numpy(), second.numpy(), rtol=1e-10, atol=1e-10)
    # A complex result with a cotangent.
    (theirs_pulled,) = torch.autograd.grad(there * there * weights, there, grad_outputs=weights)
    pulled = bb.vjp(lambda z: z * z * w, z)[1](w)[0]
    np.testing.assert_allclose(pulled.numpy(), theirs_pulled.numpy(), rtol=1e-12)
    leaf = z.require_grad()
    np.testing.assert_allclose(leaf.grad((leaf * leaf * w).backward(w.inner())).numpy(), pulled.numpy(), rtol=1e-15)


def test_jvp_of_a_holomorphic_function_is_its_derivative_times_the_tangent() -> None:
    for f, slope in ((lambda z: z * z, 2 * Z), (lambda z: 1 / z, -1 / Z**2), (lambda z: z * 3j - 1, 3j)):
        np.testing.assert_allclose(bb.jvp(f, (z,), (w,))[1].numpy(), slope * W, rtol=1e-14)
        np.testing.assert_allclose(bb.linearize(f, z)[1](w).numpy(), slope * W, rtol=1e-14)


def test_gradients_vanish_at_zero_and_have_length_one_at_tiny_numbers() -> None:
    for at in (0j, 1e-23 + 0j, 1e-23j):
        x = bb.asarray(np.array([at]))
        expected = at / abs(at) if at else 0
        np.testing.assert_allclose(bb.grad(lambda z: bb.abs(z).sum())(x).numpy(), [expected], rtol=1e-15)
    zero = bb.asarray([0j])
    assert bb.grad(lambda z: bb.angle(z).sum())(zero).tolist() == [0]
    assert bb.grad(lambda z: bb.real(bb.sign(z)).sum())(zero).tolist() == [0]
    for f in (bb.abs, bb.angle):
        assert bb.jvp(f, (zero,), (zero + 1,))[1].tolist() == [0.0]


def test_jacobians() -> None:
    rows = bb.jacobian(lambda z: bb.abs(z[0]) * bb.real(z[1]))(z).numpy()
    for i in range(3):
        one = bb.grad(lambda z, i=i: (bb.abs(z[0]) * bb.real(z[1]))[i])(z).numpy()
        np.testing.assert_allclose(rows[i], one, rtol=1e-14)
    forward = bb.jacobian(lambda z: bb.abs(z[0]) * bb.real(z[1]), mode="forward")(z).numpy()
    np.testing.assert_allclose(forward, rows, rtol=1e-14)
    x = bb.asarray([0.5, 2.0], dtype="float64")
    for mode in ("reverse", "forward"):
        columns = bb.jacobian(lambda x: bb.complex(x * x, 3.0 * x), mode=mode)(x).numpy()
        np.testing.assert_allclose(columns, np.diag(2 * x.numpy() + 3j), rtol=1e-14)


def test_hessian_vector_products() -> None:
    def loss(z: Any) -> Any:
        return bb.sum(bb.abs(z) ** 4 + bb.real(z * z * z))

    (found,) = bb.hvp(loss, (z,), (w,))
    step = 1e-5
    ends = [bb.grad(loss)(bb.asarray(Z + sign * step * W)).numpy() for sign in (1, -1)]
    np.testing.assert_allclose(found.numpy(), (ends[0] - ends[1]) / (2 * step), rtol=1e-8)


def test_custom_vjps_use_the_users_gradient_convention() -> None:
    @bb.custom_vjp
    def square(z: Any) -> Any:
        return z * z

    square.define(lambda z: (z * z, z), lambda z, g: (g * bb.conj(2.0 * z),))
    for f in (lambda z: bb.sum(bb.abs(square(z))), lambda z: bb.sum(bb.real(square(z) * w))):
        np.testing.assert_allclose(bb.grad(f)(z).numpy(), differences(f, Z), atol=2e-8)
    np.testing.assert_allclose(bb.jvp(square, (z,), (w,))[1].numpy(), 2 * Z * W, rtol=1e-14)
    mapped = bb.vmap(bb.grad(lambda z: bb.sum(bb.real(square(z) * (1 + 2j)))))(z)
    np.testing.assert_allclose(mapped.numpy(), np.conj(2 * Z * (1 + 2j)), rtol=1e-14)


def test_gradients_may_be_replaced() -> None:
    leaf = z.require_grad()
    gradients = LOSSES["square"](leaf).backward()
    leaf.grad_replace(gradients, w.inner())
    found = leaf.grad(gradients)
    assert found is not None
    np.testing.assert_array_equal(found.numpy(), W)
    assert leaf.grad_remove(gradients) is not None
    assert leaf.grad(gradients) is None


def test_steps_against_the_gradient_descend() -> None:
    at, loss = z, LOSSES["conj"]
    for _ in range(5):
        after = at - 1e-3 * bb.grad(loss)(at)
        assert loss(after).item() < loss(at).item()
        at = after


def test_checkpoints_and_stop_gradient() -> None:
    loss = LOSSES["conj"]
    expected = bb.grad(loss)(z).numpy()
    np.testing.assert_array_equal(bb.grad(bb.checkpoint(loss))(z).numpy(), expected)
    leaf = z.require_grad()
    np.testing.assert_array_equal(leaf.grad(bb.checkpoint(loss)(leaf).backward()).numpy(), expected)
    fixed = bb.grad(lambda z: bb.real(z * bb.stop_gradient(z)).sum())(z)
    np.testing.assert_allclose(fixed.numpy(), Z.conj(), rtol=1e-15)


def test_vmap() -> None:
    loss = lambda z: bb.sum(bb.abs(z) ** 2 + bb.real(z * z))
    np.testing.assert_allclose(bb.vmap(loss)(z).numpy(), [loss(z[i]).item() for i in range(2)], rtol=1e-14)
    mapped = bb.vmap(bb.grad(loss))(z).numpy()
    np.testing.assert_allclose(mapped, np.stack([bb.grad(loss)(z[i]).numpy() for i in range(2)]), rtol=1e-14)


def test_real_operands_of_complex_operations_have_real_gradients() -> None:
    x = bb.asarray([0.5, -2.0, 1.5], dtype="float64")
    found = bb.grad(lambda x: bb.sum(bb.abs(x * z)))(x)
    assert found.dtype is bb.float64
    bb.check_grads(lambda x: bb.sum(bb.abs(x * z + 1j)), (x,))
    bb.check_grads(lambda x, z: bb.sum(bb.abs(x * z) + bb.real(z / x)), (x, z))
    bb.check_grads(lambda x: x * z, (x,))  # check_grads reduces complex results to real ones


def test_anomalies_are_found() -> None:
    with bb.detect_anomaly(), pytest.raises(BackburnError, match=r"NaN|infinite"):
        bb.grad(lambda z: bb.abs(z / (z - z)).sum())(z)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_a_tracked_tensor_is_not_copied_out_of_overwritten_memory(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy would be a constant."""
    constant = bb.ones(3, dtype=dtype, backend="autodiff(numpy)")
    leaf = constant.require_grad()
    own = {id(x.inner().primitive) for x in (constant, leaf)}
    monkeypatch.setattr(copying, "overwritten_ids", lambda: own)
    assert copying.copy_if_overwritten(leaf) is leaf
    copied = copying.copy_if_overwritten(constant)
    assert copied is not constant
    assert bool((copied == constant).all())
