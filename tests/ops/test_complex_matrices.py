"""Decompositions, determinants and functions of complex matrices, against NumPy and PyTorch; phases of vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.backend import load_backend
from backburn.base.errors import LinearAlgebraError, ShapeError, SingularMatrixError
from backburn.ops.bodies.decompositions import turned_eig, turned_qr, turned_svd
from backburn_numpy.ops import decompositions as of_numpy

GENERATOR = np.random.default_rng(11)
A, W, T = (GENERATOR.normal(size=(4, 3)) + 1j * GENERATOR.normal(size=(4, 3)) for _ in range(3))
S, V = (GENERATOR.normal(size=(3, 3)) + 1j * GENERATOR.normal(size=(3, 3)) for _ in range(2))
a, w, s, v = (bb.asarray(x) for x in (A, W, S, V))
L = bb.linalg
NUMPY = load_backend("numpy")


def adjoint(x: Any) -> Any:
    return x.conj().swapaxes(-1, -2)


def test_factors_multiply_to_the_matrix() -> None:
    for x in (A, A.T, np.stack([S, V])):
        y = bb.asarray(x)
        u, values, vh = (t.numpy() for t in L.svd(y, full_matrices=False))
        np.testing.assert_allclose((u * values[..., None, :]) @ vh, x, atol=1e-13)
        q, r = (t.numpy() for t in L.qr(y))
        np.testing.assert_allclose(q @ r, x, atol=1e-13)
        diagonal = np.diagonal(r, axis1=-2, axis2=-1)
        assert np.all(diagonal.imag == 0)
        assert np.all(diagonal.real > 0)
        p, lower, upper = (t.numpy() for t in L.lu(y))
        np.testing.assert_allclose(p @ lower @ upper, x, atol=1e-13)
        np.testing.assert_allclose(L.pinv(y).numpy(), np.linalg.pinv(x), atol=1e-13)
    values, vectors = (t.numpy() for t in L.eigh(s))
    np.testing.assert_allclose(vectors * values @ adjoint(vectors), (S + adjoint(S)) / 2, atol=1e-13)
    values, vectors = (t.numpy() for t in L.eig(s))
    np.testing.assert_allclose(S @ vectors, vectors * values, atol=1e-13)
    np.testing.assert_allclose(L.eigvals(s).numpy(), values, atol=1e-13)
    assert np.all(np.diff(values.real) > 0)
    positive = A.T @ A.conj() + np.eye(3)
    for upper in (False, True):
        factor = L.cholesky(bb.asarray(positive), upper=upper)
        np.testing.assert_allclose(adjoint(factor.numpy()) if upper else factor.numpy(), np.linalg.cholesky(positive))
        np.testing.assert_allclose(positive @ L.cholesky_solve(factor, w.mT, upper=upper).numpy(), W.T, atol=1e-13)


def test_functions_of_matrices() -> None:
    torch = pytest.importorskip("torch")
    np.testing.assert_allclose(L.det(s).item(), np.linalg.det(S))
    for got, expected in zip(L.slogdet(s), np.linalg.slogdet(S), strict=True):
        np.testing.assert_allclose(got.numpy(), expected)
    for ord in ("fro", "nuc", 2, -2, 1, -1, np.inf, -np.inf):
        assert L.matrix_norm(a, ord=ord).item() == pytest.approx(np.linalg.norm(A, ord))
    np.testing.assert_allclose(L.matrix_power(s, -3).numpy(), np.linalg.matrix_power(S, -3), atol=1e-12)
    for scale in (0.01, 1.0, 30.0):
        theirs = torch.matrix_exp(torch.tensor(S * scale)).numpy()
        np.testing.assert_allclose(L.matrix_exp(s * scale).numpy(), theirs, rtol=1e-8, atol=1e-12 * abs(theirs).max())
    assert L.matrix_rank(bb.asarray(np.outer(A[0], A[1]))).item() == 1
    found, b = L.lstsq(a, w[:, 0]), np.linalg.lstsq(A, W[:, 0], rcond=None)
    np.testing.assert_allclose(found.solution.numpy(), b[0], atol=1e-13)
    np.testing.assert_allclose(found.residuals.item(), b[1][0])
    assert found.residuals.dtype is bb.float64


def test_dtypes() -> None:
    x = s.astype("complex64")
    assert [t.dtype.name for t in L.svd(x)] == ["complex64", "float32", "complex64"]
    assert [t.dtype.name for t in (*L.eigh(x), *L.slogdet(x))] == ["float32", "complex64", "complex64", "float32"]
    assert [t.dtype.name for t in (*L.eig(x), L.matrix_exp(x), L.det(x), L.pinv(x))] == ["complex64"] * 5
    assert [L.svdvals(x).dtype, L.eigvalsh(x).dtype, L.matrix_norm(x).dtype] == [bb.float32] * 3
    for dtype in ("float16", "float32", "int64"):
        assert L.eig(bb.asarray([[2, 1], [0, 1]], dtype=dtype)).eigenvalues.dtype is bb.complex64
    assert L.eigvals(bb.ones((2, 2), dtype="float64")).dtype is bb.complex128
    solved = L.solve(x, bb.asarray([1, 2, 3]))
    assert solved.dtype is bb.complex64
    np.testing.assert_allclose(solved.numpy(), np.linalg.solve(S, [1, 2, 3]), rtol=1e-5)


def test_eigenvalues_of_a_real_matrix_are_exact_conjugates() -> None:
    x = GENERATOR.normal(size=(2, 7, 7))
    values, vectors = L.eig(bb.asarray(x))
    for row in values.numpy():
        assert {*row.conj()} == {*row}
    np.testing.assert_allclose(x @ vectors.numpy(), vectors.numpy() * values.numpy()[:, None], atol=1e-12)


def test_results_of_other_libraries_are_brought_to_the_contracts_order_and_phases() -> None:
    k: Any = NUMPY
    for x in (np.stack([S, V]), np.roll(np.eye(5), 1, 0) + 0j, np.zeros((0, 2, 2)) + 0j):
        for got, expected in zip(turned_eig(k, *np.linalg.eig(x)), k.eig(x), strict=True):
            np.testing.assert_allclose(got, expected, atol=1e-13)
        for got, expected in zip(turned_svd(k, *np.linalg.svd(x)), k.svd(x, True), strict=True):
            np.testing.assert_allclose(got, expected, atol=1e-13)
        for got, expected in zip(turned_qr(k, *np.linalg.qr(x)), k.qr(x), strict=True):
            np.testing.assert_allclose(got, expected, atol=1e-13)


#: Losses that depend on the phases of vectors, or only on values.
LOSSES: dict[str, Callable[[Any], Any]] = {
    "eigenvectors": lambda x: bb.real(L.eigh(x).eigenvectors * v).sum(),
    "eigenvalues": lambda x: (L.eigvalsh(x) ** 3).sum() + bb.sum(bb.abs(L.eigvals(x)) ** 2),
    "left vectors": lambda x: bb.imag(L.svd(x, full_matrices=False).U * v).sum(),
    "both vectors": lambda x: bb.real(bb.sum(L.svd(x).U * v) * bb.sum(L.svd(x).Vh * v)),
    "factors": lambda x: bb.abs(L.qr(x).Q * v + L.qr(x).R).sum() + bb.real(L.lu(x).L @ v @ L.lu(x).U).sum(),
    "factor": lambda x: bb.abs(L.cholesky(x @ adjoint_of(x) + v @ adjoint_of(v)) * v).sum(),
    "any vectors": lambda x: bb.real(L.eig(x).eigenvectors * v).sum() + bb.imag(L.eig(x).eigenvalues).sum(),
    "determinants": lambda x: bb.imag(L.det(x)) + bb.real(L.slogdet(x).sign * (1 + 2j)) * L.slogdet(x).logabsdet,
    "pseudoinverse": lambda x: bb.abs(L.pinv(x[:, :2]) @ v).sum(),
    "exponential": lambda x: bb.abs(L.matrix_exp(x * 0.5) * v).sum() + L.matrix_norm(x, ord="nuc"),
}


def adjoint_of(x: Any) -> Any:
    return bb.conj(x).mT


def slope(f: Callable[[Any], Any], at: Any, along: Any) -> Any:
    """Return the derivative along a direction, by central differences of the fourth order."""
    one, two = ((f(at + h * along) - f(at - h * along)) / (2 * h) for h in (1e-3, 2e-3))
    return (4 * one - two) / 3


@pytest.mark.parametrize("name", LOSSES)
def test_losses_through_vectors_have_gradients_of_both_orders(name: str) -> None:
    loss, gradient = LOSSES[name], bb.grad(LOSSES[name])
    for along in (V, 1j * V):
        expected = slope(lambda x: loss(bb.asarray(x)).item(), S, along)
        got = np.sum(gradient(s).numpy().conj() * along).real
        assert got == pytest.approx(expected, rel=1e-8, abs=1e-8)
        assert bb.jvp(loss, (s,), (bb.asarray(along),))[1].item() == pytest.approx(got, rel=1e-10)
        second = slope(lambda x: gradient(bb.asarray(x)).numpy(), S, along)
        (found,) = bb.hvp(loss, (s,), (bb.asarray(along),))
        np.testing.assert_allclose(found.numpy(), second, rtol=1e-6, atol=1e-6)


def test_gradients_of_phase_independent_losses_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    t = torch.linalg

    def both(x: Any, b: Any, m: Any, svd: Any) -> dict[str, Any]:
        u, values, vh = svd(x)
        return {
            "eigh": lambda: (b.abs(m.eigh(x + x.conj().mT if m is t else x * 2.0)[1]) ** 3).sum(),
            "svd": lambda: b.abs((u[:, :1] * values[:1]) @ vh[:1] + x).sum(),
            "det": lambda: b.real(m.det(x) * (1 + 2j)) + m.slogdet(x)[1] ** 2,
            "qr": lambda: b.abs(m.qr(x)[0] + m.qr(x)[1]).sum(),
            "eig": lambda: (b.abs(m.eig(x)[1]) ** 3).sum() + b.abs(m.eigvals(x)).sum(),
            "pinv": lambda: b.abs(m.pinv(x[:, :2])).sum(),
        }

    names = both(s, bb, L, lambda x: L.svd(x, full_matrices=False))
    # PyTorch's R has a real diagonal of either sign; for this matrix it is positive.
    q, r = np.linalg.qr(S)
    there = q * (np.diagonal(r) / abs(np.diagonal(r))) @ (r * (abs(np.diagonal(r)) / np.diagonal(r))[:, None])
    np.testing.assert_allclose(there, S, atol=1e-13)
    for name in names:

        def ours(x: Any, name: str = name) -> Any:
            return both(x, bb, L, lambda x: L.svd(x, full_matrices=False))[name]()

        x = torch.tensor(S, requires_grad=True)
        loss = both(x, torch, t, lambda x: t.svd(x, full_matrices=False))[name]()
        if name == "qr":
            q, r = t.qr(x)
            unit = (torch.diagonal(r) / torch.diagonal(r).abs()).detach()
            loss = (q * unit + r * unit.conj()[:, None]).abs().sum()
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        np.testing.assert_allclose(
            bb.grad(ours)(s).numpy(), first.detach().resolve_conj().numpy(), rtol=1e-9, atol=1e-9
        )


def test_phases_of_lapack_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """With vectors multiplied by random phases, as another LAPACK might return them, results are the same."""
    names = ("eigenvectors", "left vectors", "both vectors", "any vectors")
    before = [(LOSSES[name](s).item(), bb.grad(LOSSES[name])(s).numpy()) for name in names]

    def phases(shape: Any) -> Any:
        return np.exp(2j * np.pi * GENERATOR.uniform(size=(*shape[:-2], 1, shape[-1])))

    def turned(function: Callable[..., Any]) -> Callable[..., Any]:
        def found(x: Any, **options: Any) -> Any:
            out = function(x, **options)
            if len(out) == 2:
                return out[0], out[1] * phases(out[1].shape)
            turn = phases(out[0].shape)
            return out[0] * turn, out[1], out[2] * adjoint(turn)

        return found

    for name in ("_eigh", "_svd", "_eig"):
        monkeypatch.setattr(of_numpy, name, turned(getattr(of_numpy, name)))
    for name, (value, gradient) in zip(names, before, strict=True):
        assert LOSSES[name](s).item() == pytest.approx(value, rel=1e-12)
        np.testing.assert_allclose(bb.grad(LOSSES[name])(s).numpy(), gradient, rtol=1e-10, atol=1e-10)


def test_real_matrices_have_real_gradients_through_complex_vectors() -> None:
    x = bb.asarray(S.real)
    found = bb.grad(lambda x: bb.sum(bb.abs(L.eigvals(x)) ** 2))(x)
    assert found.dtype is bb.float64
    bb.check_grads(lambda x: bb.real(L.eig(x).eigenvectors * v).sum(), (x,))


@pytest.mark.parametrize("part", [bb.real, bb.imag])
def test_determinants_of_singular_matrices_have_two_derivatives(part: Callable[[Any], Any]) -> None:
    singular, along = np.outer(S[0], V[0]) + np.outer(S[1], V[1]), w[:3]

    def loss(x: Any) -> Any:
        return part(L.det(x) * (1 + 2j))

    gradient, x = bb.grad(loss), bb.asarray(singular)
    expected = slope(lambda x: loss(bb.asarray(x)).item(), singular, W[:3])
    assert bb.jvp(loss, (x,), (along,))[1].item() == pytest.approx(expected, rel=1e-9)
    (second,) = bb.hvp(loss, (x,), (along,))
    np.testing.assert_allclose(
        second.numpy(), slope(lambda x: gradient(bb.asarray(x)).numpy(), singular, W[:3]), atol=1e-7
    )
    assert np.isnan(bb.grad(lambda x: L.slogdet(x).logabsdet)(x * 0.0).numpy()).all()


def test_vectors_of_equal_values_are_not_differentiable() -> None:
    unit = bb.eye(2, dtype="complex128")
    for loss in (lambda x: bb.real(L.eigh(x).eigenvectors).sum(), lambda x: bb.real(L.eig(x).eigenvectors).sum()):
        assert np.isnan(bb.grad(loss)(unit).numpy()).any()
    np.testing.assert_allclose(bb.grad(lambda x: L.eigvalsh(x).sum())(unit).numpy(), np.eye(2))
    np.testing.assert_allclose(bb.grad(lambda x: bb.real(L.eigvals(x)).sum())(unit).numpy(), np.eye(2))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: L.eig(a), ShapeError, "eig: the matrices must be square"),
        (lambda: L.eigvals(a[0]), ShapeError, "eigvals: a matrix has two axes at least"),
        (lambda: L.eig(s * float("nan")), LinearAlgebraError, "eig: the matrix has no decomposition"),
        (lambda: L.cholesky(-1.0 * bb.eye(2, dtype="complex64")), LinearAlgebraError, "not positive definite"),
        (lambda: L.inv(bb.zeros((2, 2), dtype="complex64")), SingularMatrixError, "inv: the matrix is singular"),
    ],
)
def test_errors(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
