"""Decompositions, solutions, determinants, norms and products of tensors, against NumPy and closed forms."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import (
    ArgumentError,
    AxisError,
    DTypeError,
    LinearAlgebraError,
    NumericalInstabilityError,
    ShapeError,
    SingularMatrixError,
)
from backburn.ops.table import OPERATIONS

Array = Any
GENERATOR = np.random.default_rng(5)
SQUARE = GENERATOR.normal(size=(2, 4, 4)) + 3 * np.eye(4)
TALL, WIDE = GENERATOR.normal(size=(2, 5, 3)), GENERATOR.normal(size=(3, 5))
DEFINITE = SQUARE @ SQUARE.mT + np.eye(4)
VECTOR = GENERATOR.normal(size=4)


def tensor(array: Array, dtype: str | None = None) -> Any:
    return bb.asarray(np.asarray(array), dtype=dtype, backend="autodiff(numpy)")


def close(got: Any, expected: Array, rtol: float = 1e-10) -> None:
    host = got.numpy()
    assert host.shape == np.shape(expected)
    np.testing.assert_allclose(host, expected, rtol=rtol, atol=rtol)


def gradient(function: Callable[[Any], Any], x: Array) -> Array:
    """Return the gradient of the sum of ``function`` at the array ``x``."""
    leaf = tensor(x).require_grad()
    found = leaf.grad(function(leaf).sum().backward())
    assert found is not None
    return found.numpy()


def difference(function: Callable[[Any], Any], x: Array, step: float = 1e-6) -> Array:
    """Return the gradient of the sum of ``function`` by central differences."""
    result = np.zeros(x.shape)
    for place in np.ndindex(x.shape):
        moved = np.zeros(x.shape)
        moved[place] = step
        ends = [function(tensor(x + sign * moved)).sum().item() for sign in (1, -1)]
        result[place] = (ends[0] - ends[1]) / (2 * step)
    return result


# ---- values ----


def test_the_namespace_has_the_names_of_the_standard() -> None:
    standard = """cholesky cross det diagonal eigh eigvalsh inv matmul matrix_norm matrix_power matrix_rank
        matrix_transpose outer pinv qr slogdet solve svd svdvals tensordot trace vecdot vector_norm"""
    assert set(re.findall(r"\w+", standard)) <= set(bb.linalg.__all__)
    assert all(callable(getattr(bb.linalg, name)) for name in bb.linalg.__all__)


SINGLE: list[tuple[Callable[[Any], Any], Callable[[Array], Array], Array]] = [
    (bb.linalg.cholesky, np.linalg.cholesky, DEFINITE),
    (lambda x: bb.linalg.cholesky(x, upper=True), lambda x: np.linalg.cholesky(x).mT, DEFINITE),
    (bb.linalg.inv, np.linalg.inv, SQUARE),
    (bb.linalg.det, np.linalg.det, SQUARE),
    (bb.linalg.eigvalsh, np.linalg.eigvalsh, DEFINITE),
    (bb.linalg.svdvals, np.linalg.svdvals, TALL),
    (bb.linalg.pinv, np.linalg.pinv, TALL),
    (bb.linalg.pinv, np.linalg.pinv, WIDE),
    (lambda x: bb.linalg.matrix_power(x, 5), lambda x: np.linalg.matrix_power(x, 5), SQUARE),
    (lambda x: bb.linalg.matrix_power(x, -3), lambda x: np.linalg.matrix_power(x, -3), SQUARE),
    (lambda x: bb.linalg.matrix_power(x, 0), lambda x: np.linalg.matrix_power(x, 0), SQUARE),
    (bb.linalg.matrix_norm, lambda x: np.linalg.norm(x, axis=(-2, -1)), TALL),
    (bb.cov, np.cov, WIDE),
    (bb.cov, np.cov, VECTOR),
    (lambda x: bb.cov(x, correction=0), lambda x: np.cov(x, ddof=0), WIDE),
    (bb.corrcoef, np.corrcoef, WIDE),
    (bb.corrcoef, np.corrcoef, VECTOR),
]


@pytest.mark.parametrize(("ours", "theirs", "x"), SINGLE)
def test_values(ours: Callable[[Any], Any], theirs: Callable[[Array], Array], x: Array) -> None:
    close(ours(tensor(x)), theirs(x))
    assert ours(tensor(x, "float32")).dtype is bb.float32
    close(ours(tensor(x, "float32")), theirs(x), 2e-2)
    close(ours(tensor(x, "float16")), theirs(x.astype(np.float16).astype(np.float64)), 2e-1)


@pytest.mark.parametrize("x", [SQUARE, TALL, WIDE, WIDE[:, :0], WIDE[:0]])
def test_products_of_decompositions_are_the_matrix(x: Array) -> None:
    y = tensor(x)
    for mode in ("reduced", "complete"):
        q, r = bb.linalg.qr(y, mode=mode)
        close(q @ r, x)
        close(q.mT @ q, np.broadcast_to(np.eye(q.shape[-1]), q.mT.shape[:-1] + q.shape[-1:]))
        close(r, np.triu(r.numpy()))
        assert (np.diagonal(r.numpy(), axis1=-2, axis2=-1) >= 0).all()
    rows, columns = x.shape[-2:]
    for full in (False, True):
        u, s, vh = bb.linalg.svd(y, full_matrices=full)
        inner = min(rows, columns)
        assert u.shape[-2:] == (rows, rows if full else inner)
        assert vh.shape[-2:] == (columns if full else inner, columns)
        close((u[..., :inner] * s[..., None, :]) @ vh[..., :inner, :], x)
        close(vh @ vh.mT, np.broadcast_to(np.eye(vh.shape[-2]), vh.shape[:-1] + vh.shape[-2:-1]))


SINGULAR = np.array([[0.0, 4, 2, 1], [0, 2, 1, 1], [0, -4, -2, 3]])


@pytest.mark.parametrize("x", [SQUARE, TALL, WIDE, WIDE[:, :0], WIDE[:0], SINGULAR, SINGULAR.T, np.ones((3, 3))])
def test_factors_of_lu(x: Array) -> None:
    """Factors from the NumPy backend and from the default body."""
    p, lower, upper = bb.linalg.lu(tensor(x))
    close(p @ lower @ upper, x)
    rows, inner = x.shape[-2], min(x.shape[-2:])
    assert (lower.shape[-2:], upper.shape[-2:]) == ((rows, inner), (inner, x.shape[-1]))
    np.testing.assert_array_equal(lower.numpy(), np.tril(lower.numpy(), -1) + np.eye(rows, inner))
    np.testing.assert_array_equal(upper.numpy(), np.triu(upper.numpy()))
    assert (abs(lower.numpy()) <= 1).all()
    k = bb.load_backend("numpy")
    order, *factors = OPERATIONS["lu"].body(k, k.from_numpy(x))
    np.testing.assert_array_equal(np.matrix_transpose(np.eye(rows)[order]), p.numpy())
    for ours, body in zip((lower, upper), factors, strict=True):
        close(ours, body)


@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5), (2, 4, 4), (2, 1, 3)])
def test_gradients_of_lu(shape: tuple[int, ...]) -> None:
    """Gradients of both factors, and of each alone, equal torch's."""
    torch = pytest.importorskip("torch", reason="torch is the reference, and it is not installed")
    x = np.random.default_rng(5).normal(size=shape)
    for weights in ((1.0, 1.0), (0.0, 1.0), (1.0, 0.0)):
        y = tensor(x).require_grad()
        ours = [w * (f**3 + f).sum() for w, f in zip(weights, bb.linalg.lu(y)[1:], strict=True) if w]
        z = torch.from_numpy(x).requires_grad_()
        theirs = [w * (f**3 + f).sum() for w, f in zip(weights, torch.linalg.lu(z)[1:], strict=True)]
        sum(theirs).backward()
        close(y.grad(sum(ours[1:], ours[0]).backward()), z.grad.numpy(), 1e-8)


def test_lu_at_a_zero_pivot_has_no_gradient() -> None:
    for x in (SINGULAR, SINGULAR.T, np.zeros((2, 2))):
        with pytest.raises(SingularMatrixError, match=r"the gradient of lu needs pivots .*float64\[\d,\d\]"):
            gradient(lambda t: bb.linalg.lu(t).U, x)
    assert np.isnan(bb.linalg.lu(tensor([[np.nan, 1.0], [1.0, 1.0]])).U.numpy()).any()


def test_eigenvectors() -> None:
    values, vectors = bb.linalg.eigh(tensor(DEFINITE))
    close(tensor(DEFINITE) @ vectors, vectors.numpy() * values.numpy()[..., None, :])
    assert (np.diff(values.numpy()) > 0).all()


def test_signs_of_eigenvectors_are_fixed_where_magnitudes_tie() -> None:
    _, vectors = bb.linalg.eigh(tensor([[0.0, 1.0], [1.0, 0.0]]))
    assert (vectors.numpy()[0] > 0).all()
    _, turned = bb.linalg.eigh(-tensor([[0.0, 1.0], [1.0, 0.0]]))
    close(turned[:, ::-1], vectors.numpy())


@pytest.mark.parametrize(("x", "y"), [(SQUARE, VECTOR), (SQUARE, TALL[:, :4]), (SQUARE[0], TALL[:, :4])])
def test_solve(x: Array, y: Array) -> None:
    close(bb.linalg.solve(tensor(x), tensor(y)), np.linalg.solve(x, y))
    for upper, triangle in ((False, np.tril(x)), (True, np.triu(x))):
        found = bb.linalg.triangular_solve(tensor(x), tensor(y), upper=upper)
        close(found, np.linalg.solve(triangle, y))


@pytest.mark.parametrize("y", [VECTOR, WIDE[:, :4], TALL.mT[:, :2, :4]])
def test_solve_from_the_right(y: Array) -> None:
    expected = np.linalg.solve(SQUARE.mT, y) if y.ndim == 1 else np.linalg.solve(SQUARE.mT, y.mT).mT
    close(bb.linalg.solve(tensor(SQUARE), tensor(y), left=False), expected)
    bb.check_grads(partial(bb.linalg.solve, left=False), (tensor(SQUARE), tensor(y)), order=2)
    with pytest.raises(ShapeError, match=r"solve: with left=False, axis -1 is 4 in the matrices, and 5 in .*64\[3,5\]"):
        bb.linalg.solve(tensor(SQUARE), tensor(WIDE), left=False)


@pytest.mark.parametrize("y", [VECTOR, SQUARE[0] * 2])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("unitriangular", [False, True])
def test_options_of_triangular_solve(y: Array, upper: bool, left: bool, unitriangular: bool) -> None:
    whole, triangle = np.triu(SQUARE) if upper else np.tril(SQUARE), np.triu if upper else np.tril
    if unitriangular:
        whole = triangle(SQUARE, 1 if upper else -1) + np.eye(4)
    if left or y.ndim == 1:
        expected = np.linalg.solve(whole if left else whole.mT, y)
    else:
        expected = np.linalg.solve(whole.mT, y.T).mT
    options = {"upper": upper, "left": left, "unitriangular": unitriangular}
    read = triangle(np.ones((4, 4), dtype=bool), (1 if upper else -1) if unitriangular else 0)
    close(bb.linalg.triangular_solve(tensor(np.where(read, SQUARE, np.nan)), tensor(y), **options), expected, 1e-8)

    def solved(a: Any, b: Any) -> Any:
        return bb.linalg.triangular_solve(a / 8.0 + bb.eye(4, dtype="float64"), b, **options)

    bb.check_grads(solved, (tensor(SQUARE), tensor(y)), order=2)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("n", [8, 40])
def test_triangular_systems_that_are_empty_or_tiny(n: int, upper: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """No right-hand side, and pivots whose reciprocals are infinite."""
    empty = bb.linalg.triangular_solve(tensor(np.eye(n)), tensor(np.zeros((n, 0))), upper=upper)
    assert (empty.shape, capfd.readouterr()) == ((n, 0), ("", ""))
    tiny = np.full((n, 1), 1e-310)
    close(bb.linalg.triangular_solve(tensor(np.diag(tiny[:, 0])), tensor(tiny), upper=upper), np.ones((n, 1)))
    with pytest.raises(SingularMatrixError):
        bb.linalg.triangular_solve(tensor(np.zeros((n, n))), tensor(tiny), upper=upper)


def test_large_matrices() -> None:
    """Matrices have enough rows for direct calls of LAPACK and BLAS, in row-major and column-major order."""
    large = GENERATOR.normal(size=(2, 40, 40)) / 9 + 3 * np.eye(40)
    definite, y = large @ large.mT, GENERATOR.normal(size=(40, 3))
    for dtype, rtol in (("float64", 1e-10), ("float32", 1e-4), ("float16", 2e-2)):
        for x in (definite[0], definite):
            close(bb.linalg.cholesky(tensor(x, dtype)).astype("float64"), np.linalg.cholesky(x), rtol)
        for upper, triangle in ((False, np.tril(large)), (True, np.triu(large))):
            read = np.where(triangle == 0, np.nan, large)
            for a, exact in ((tensor(read, dtype), triangle), (tensor(read[0].T.copy(), dtype).T, triangle[0])):
                found = bb.linalg.triangular_solve(a, tensor(y, dtype), upper=upper)
                expected = np.linalg.solve(exact, np.broadcast_to(y, (*exact.shape[:-2], 40, 3)))
                close(found.astype("float64"), expected, rtol)
            of_all = bb.linalg.triangular_solve(a, tensor(np.stack([y, y]), dtype), upper=upper)
            np.testing.assert_array_equal(of_all.numpy(), np.stack([found.numpy()] * 2))
    bb.check_grads(bb.linalg.cholesky, (tensor(definite[0]),), order=2)
    bb.check_grads(bb.linalg.triangular_solve, (tensor(large), tensor(y)), order=2)
    with pytest.raises(LinearAlgebraError, match="cholesky: the matrix is not positive definite"):
        bb.linalg.cholesky(tensor(definite[0] - 10 * np.eye(40)))
    with pytest.raises(SingularMatrixError, match=r"triangular_solve: .* at \[1\] is singular"):
        bb.linalg.triangular_solve(tensor(large * np.arange(1, -1, -1)[:, None, None]), tensor(y))


def test_eigenvalues_by_a_triangle() -> None:
    for UPLO, read in (("L", np.tri(4)), ("U", np.tri(4).T)):
        x = tensor(np.where(read == 1, SQUARE, np.nan))
        values, vectors = np.linalg.eigh(SQUARE, UPLO=UPLO)  # type: ignore[call-overload]
        close(bb.linalg.eigvalsh(x, UPLO=UPLO), values)
        found = bb.linalg.eigh(x, UPLO=UPLO)
        close(found.eigenvalues, values)
        close(abs(found.eigenvectors), abs(vectors), 1e-8)
        slope = gradient(lambda t, UPLO=UPLO: bb.linalg.eigvalsh(t, UPLO=UPLO)[..., 0], SQUARE)  # type: ignore[misc]
        assert (slope[:, read == 0] == 0).all()
        bb.check_grads(partial(bb.linalg.eigvalsh, UPLO=UPLO), (tensor(SQUARE),), order=2)
    with pytest.raises(ArgumentError, match=r"eigh: UPLO is one of 'L', 'U', not 'l'. Operand: float64\[2,4,4\]"):
        bb.linalg.eigh(tensor(SQUARE), UPLO="l")
    with pytest.raises(ShapeError, match=r"eigvalsh: the matrices must be square"):
        bb.linalg.eigvalsh(tensor(TALL), UPLO="U")


@pytest.mark.parametrize("y", [VECTOR, TALL[:, :4], TALL[0, :4]])
@pytest.mark.parametrize("upper", [False, True])
def test_solve_by_a_factor(upper: bool, y: Array) -> None:
    factor = bb.linalg.cholesky(tensor(DEFINITE), upper=upper)
    expected = np.linalg.solve(DEFINITE, y[..., None])[..., 0] if y.ndim == 1 else np.linalg.solve(DEFINITE, y)
    close(bb.linalg.cholesky_solve(factor, tensor(y), upper=upper), expected)
    unread = np.full_like(DEFINITE, np.nan)
    filled = factor.numpy() + (np.tril(unread, -1) if upper else np.triu(unread, 1))
    close(bb.linalg.cholesky_solve(tensor(filled), tensor(y), upper=upper), expected)

    def solved(a: Any, b: Any) -> Any:
        return bb.linalg.cholesky_solve(bb.linalg.cholesky(a, upper=upper), b, upper=upper)

    a, b = tensor(DEFINITE), tensor(y)
    bb.check_grads(solved, (a, b), order=2)
    symmetric = lambda a, b: bb.linalg.solve((a + a.mT) / 2.0, b)
    weights = tensor(np.cos(np.arange(expected.size)).reshape(expected.shape))
    for place in (0, 1):
        ours, theirs = (bb.grad(lambda a, b, f=f: (f(a, b) * weights).sum(), place)(a, b) for f in (solved, symmetric))
        close(ours, theirs.numpy())


def test_integers_become_floats() -> None:
    x = bb.asarray([[2, 1], [1, 1]])
    assert bb.linalg.inv(x).dtype is bb.float32
    assert bb.linalg.solve(x, bb.asarray([1, 2])).tolist() == pytest.approx([-1.0, 3.0])
    assert bb.linalg.solve(x, bb.asarray([1.0, 2.0], dtype="float64")).dtype is bb.float64
    assert bb.linalg.matrix_power(x, 2).dtype is bb.int64


def test_the_logarithm_of_a_determinant_does_not_overflow() -> None:
    sign, logarithm = bb.linalg.slogdet(tensor(-1e200 * np.eye(3)))
    assert sign.item() == -1.0
    assert logarithm.item() == pytest.approx(600 * np.log(10.0))
    assert [part.item() for part in bb.linalg.slogdet(tensor(np.zeros((2, 2))))] == [0.0, -np.inf]


@pytest.mark.parametrize("x", [SQUARE, TALL, WIDE])
@pytest.mark.parametrize("ord", ["fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
def test_matrix_norms(x: Array, ord: Any) -> None:
    expected = [np.linalg.norm(m, ord) for m in x.reshape(-1, *x.shape[-2:])]
    close(bb.linalg.matrix_norm(tensor(x), ord=ord), np.reshape(expected, x.shape[:-2]))
    assert bb.linalg.matrix_norm(tensor(x), ord=ord, keepdims=True).shape == (*x.shape[:-2], 1, 1)


@pytest.mark.parametrize("ord", ["fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
@pytest.mark.parametrize("axis", [(0, 1), (1, 0), (-1, 0), (1, 2)])
def test_norms_of_matrices_along_two_axes(axis: tuple[int, int], ord: Any) -> None:
    x = GENERATOR.normal(size=(2, 3, 4))
    for keepdims in (False, True):
        expected = np.linalg.norm(x, ord, axis=axis, keepdims=keepdims)
        close(bb.linalg.matrix_norm(tensor(x), axis=axis, ord=ord, keepdims=keepdims), expected)
    bb.check_grads(partial(bb.linalg.matrix_norm, axis=axis, ord=ord), (tensor(x),), order=2)


@pytest.mark.parametrize("axis", [0, (0,), (0, 1, 2), (1, 1), (0, 3)])
def test_matrix_norm_needs_two_different_axes(axis: Any) -> None:
    with pytest.raises(AxisError, match=r"matrix_norm: .*Operand: float64\[2,5,3\]"):
        bb.linalg.matrix_norm(tensor(TALL), axis=axis)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 0, 3)])
def test_norms_of_matrices_without_elements(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape)
    for order in ("fro", "nuc", 1, 2, np.inf):
        close(bb.linalg.matrix_norm(tensor(x), ord=order), np.zeros(shape[:-2]))
        assert gradient(partial(bb.linalg.matrix_norm, ord=order), x).shape == shape
    with pytest.raises(ShapeError, match=r"matrix_norm: axis . has no element to choose from"):
        bb.linalg.matrix_norm(tensor(x), ord=-2)


def test_ranks() -> None:
    low = np.stack([np.outer([1.0, 2, 3], [1.0, 1]), np.array([[1.0, 0], [0, 1e-3], [0, 0]]), np.zeros((3, 2))])
    assert bb.linalg.matrix_rank(tensor(low)).tolist() == [1, 2, 0]
    assert bb.linalg.matrix_rank(tensor(low), rtol=1e-2).tolist() == [1, 1, 0]
    assert bb.linalg.matrix_rank(tensor(low), rtol=tensor([0.1, 1e-4, 0.1])).tolist() == [1, 2, 0]
    assert bb.linalg.matrix_rank(tensor(np.zeros((2, 0, 3)))).tolist() == [0, 0]
    close(bb.linalg.pinv(tensor(low), rtol=tensor([0.1, 0.1, 0.1])), np.linalg.pinv(low, rcond=0.1))
    assert bb.linalg.pinv(tensor(np.zeros((2, 0, 3)))).shape == (2, 3, 0)
    for tolerances in ({"atol": 1e-2}, {"atol": 10.0}, {"atol": 1e-9, "rtol": 1e-2}, {"atol": 0.0}):
        highest = [max(tolerances.get("atol", 0), tolerances.get("rtol", 0) * s[0]) for s in np.linalg.svdvals(low)]
        expected = np.linalg.matrix_rank(low, tol=np.array(highest))
        assert bb.linalg.matrix_rank(tensor(low), **tolerances).tolist() == expected.tolist()  # type: ignore[arg-type]
    assert bb.linalg.matrix_rank(tensor(low), atol=tensor([0.1, 1e-4, 0.1])).tolist() == [1, 2, 0]


def test_hermitian_functions_read_the_symmetric_part() -> None:
    x = np.array([[[1.0, 2.0], [2.0, 4.0]], [[3.0, 1.0], [1.0, -2.0]]])
    close(bb.linalg.pinv(tensor(x), hermitian=True), np.linalg.pinv(x, hermitian=True))
    assert bb.linalg.matrix_rank(tensor(x), hermitian=True).tolist() == [1, 2]
    skew = np.array([[0.0, 1.0], [-1.0, 0.0]])
    close(bb.linalg.pinv(tensor(x + skew), hermitian=True), np.linalg.pinv(x, hermitian=True))
    assert bb.linalg.matrix_rank(tensor(skew), hermitian=True).item() == 0
    bb.check_grads(partial(bb.linalg.pinv, hermitian=True), (tensor(x[1] + skew),), order=2)
    for function in (bb.linalg.pinv, bb.linalg.matrix_rank):
        with pytest.raises(ShapeError, match=r"the matrices must be square. Operand: float64\[2,5,3\]"):
            function(tensor(TALL), hermitian=True)


@pytest.mark.parametrize("x", [TALL[0], WIDE, np.outer([1.0, 2, 3], [1.0, 2])])
def test_least_squares(x: Array) -> None:
    y = GENERATOR.normal(size=(x.shape[0], 2))
    solution, _, rank, values = np.linalg.lstsq(x, y, rcond=None)
    found = bb.linalg.lstsq(tensor(x), tensor(y))
    close(found.solution, solution, 1e-9)
    close(found.residuals, ((x @ solution - y) ** 2).sum(0), 1e-9)
    close(found.singular_values, values)
    assert found.rank.item() == rank
    one = bb.linalg.lstsq(tensor(x), tensor(y[:, 0]))
    close(one.solution, solution[:, 0], 1e-9)
    assert one.residuals.shape == ()


def test_products() -> None:
    a, b = GENERATOR.normal(size=(2, 3)), GENERATOR.normal(size=(4, 1, 3))
    close(bb.linalg.cross(tensor(a), tensor(b)), np.cross(a, b))
    close(bb.linalg.cross(tensor(a.T), tensor(a[::-1].T), axis=0), np.cross(a.T, a[::-1].T, axis=0))
    close(bb.linalg.outer(tensor(a[0]), tensor(VECTOR)), np.outer(a[0], VECTOR))
    for first, second in ((a, b), (b, a), (VECTOR, a), (np.array(2.0), a)):
        close(bb.kron(tensor(first), tensor(second)), np.kron(first, second))
    assert bb.kron(bb.asarray([1, 2]), bb.asarray([1.5])).dtype is bb.float32


def test_weighted_covariances() -> None:
    often, much = np.array([1, 3, 0, 2, 1]), np.array([0.5, 1.0, 2.0, 0.1, 0.7])
    for weights in ({"fweights": often}, {"aweights": much}, {"fweights": often, "aweights": much}):
        ours: dict[str, Any] = {name: tensor(w) for name, w in weights.items()}
        theirs: dict[str, Any] = {**weights}
        close(bb.cov(tensor(WIDE), **ours), np.cov(WIDE, **theirs))
        close(bb.cov(tensor(WIDE[0]), **ours), np.cov(WIDE[0], **theirs))
        close(bb.cov(tensor(WIDE[:1]), **ours), np.cov(WIDE[:1], **theirs))
    for given in (WIDE[0], WIDE[:1], WIDE[:0]):
        close(bb.cov(tensor(given)), np.cov(given))
    close(bb.corrcoef(tensor(WIDE[:1])), np.corrcoef(WIDE[:1]))
    bb.check_grads(bb.cov, (tensor(WIDE[:1]),), order=2)
    for wrong in ({"fweights": tensor(-often)}, {"aweights": tensor(much - 0.2)}):
        with pytest.raises(ArgumentError, match=r"cov: weights are 0 or more, .*float64\[3,5\]"):
            bb.cov(tensor(WIDE), **wrong)
    rows = bb.stack([tensor(much), tensor(much - 0.2)])
    with pytest.raises(ArgumentError, match="cov: weights are 0 or more"):
        bb.vmap(lambda w: bb.cov(tensor(WIDE), aweights=w))(rows)
    close(bb.vmap(lambda w: bb.cov(tensor(WIDE), aweights=w))(rows[:1])[0], np.cov(WIDE, aweights=much))
    bb.check_grads(lambda x, w: bb.cov(x, aweights=w), (tensor(WIDE), tensor(much)), order=2)
    with pytest.raises(DTypeError, match="cov: takes int tensors, not float"):
        bb.cov(tensor(WIDE), fweights=tensor(much))


def test_weights_of_covariances_take_part_in_promotion() -> None:
    x, often, much = np.round(WIDE * 8.0), np.array([1, 3, 0, 2, 1]), np.array([0.5, 1.0, 2.0, 0.1, 0.7])
    found = bb.cov(tensor(x, "float32"), aweights=tensor(much))
    assert found.dtype is bb.float64
    close(found, np.cov(x, aweights=much))
    close(bb.cov(tensor(x.astype(int)), aweights=tensor(much)), np.cov(x, aweights=much))
    assert bb.cov(tensor(x.astype(int)), aweights=tensor(much)).dtype is bb.float64
    assert bb.cov(tensor(x), aweights=tensor(much, "float32")).dtype is bb.float64
    assert bb.cov(tensor(x, "float16"), aweights=tensor(much, "float32")).dtype is bb.float32
    for whole in ({"fweights": tensor(often)}, {"aweights": tensor(often)}):
        assert bb.cov(tensor(x, "float32"), **whole).dtype is bb.float32


def test_covariances_of_narrow_floats_do_not_overflow() -> None:
    x = np.array([[100.0, 200, 300], [-200, 0, 300]]) * np.ones((2, 3))
    for dtype in ("float16", "float32"):
        narrow = tensor(np.tile(x, 4), dtype)
        assert bb.cov(narrow).dtype is narrow.dtype
        close(bb.cov(narrow, correction=0), np.cov(np.tile(x, 4), bias=True), rtol=1e-3)
        close(bb.corrcoef(narrow * 100.0), np.corrcoef(x), rtol=1e-3)


# ---- gradients in closed form ----


def test_gradients_in_closed_form() -> None:
    x, inverse = SQUARE[0], np.linalg.inv(SQUARE[0])
    u, _, vh = np.linalg.svd(x)
    expected: list[tuple[Callable[[Any], Any], Array]] = [
        (bb.linalg.det, np.linalg.det(x) * inverse.T),
        (lambda t: bb.linalg.slogdet(t).logabsdet, inverse.T),
        (lambda t: bb.trace(bb.linalg.inv(t)), -(inverse @ inverse).T),
        (lambda t: bb.linalg.matrix_norm(t, ord="nuc"), u @ vh),
        (lambda t: bb.linalg.matrix_norm(t, ord=2), np.outer(u[:, 0], vh[0])),
        (lambda t: bb.linalg.matrix_norm(t), x / np.linalg.norm(x)),
        (lambda t: bb.trace(bb.linalg.matrix_power(t, 3)), 3 * (x @ x).T),
        (lambda t: bb.linalg.pinv(t) * tensor(x), -(inverse.T @ x @ inverse.T)),
        (lambda t: bb.linalg.solve(t, tensor(VECTOR)), -np.outer(inverse.T.sum(1), inverse @ VECTOR)),
    ]
    for function, gradient_of in expected:
        np.testing.assert_allclose(gradient(function, x), gradient_of, rtol=1e-9, atol=1e-10)


def test_half_the_logarithm_of_the_determinant_by_cholesky() -> None:
    def function(t: Any) -> Any:
        return bb.log(bb.diagonal(bb.linalg.cholesky(t)))

    np.testing.assert_allclose(gradient(function, DEFINITE[0]), np.linalg.inv(DEFINITE[0]) / 2, rtol=1e-9)


@pytest.mark.parametrize("x", [TALL[0], WIDE, SQUARE[0]])
def test_a_matrix_rebuilt_from_its_factors_has_the_gradient_of_the_matrix(x: Array) -> None:
    weights = tensor(GENERATOR.normal(size=x.shape))

    def by_svd(t: Any) -> Any:
        u, s, vh = bb.linalg.svd(t, full_matrices=False)
        return (u * s) @ vh * weights

    def by_qr(t: Any) -> Any:
        q, r = bb.linalg.qr(t)
        return q @ r * weights

    for function in (by_svd, by_qr):
        np.testing.assert_allclose(gradient(function, x), weights.numpy(), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("x", [TALL[0], WIDE])
def test_vectors_that_complete_a_space_have_the_gradient_of_their_projection(x: Array) -> None:
    rows, columns = x.shape
    inner = min(rows, columns)
    by_rows, by_columns = (tensor(GENERATOR.normal(size=(n, n))) for n in (rows, columns))

    def by_svd(t: Any) -> Any:
        u, _, vh = bb.linalg.svd(t)
        left, right = u[:, inner:], vh[inner:]
        return (left @ left.mT * by_rows).sum() + (right.mT @ right * by_columns).sum()

    def by_qr(t: Any) -> Any:
        q, _ = bb.linalg.qr(t, mode="complete")
        left = q[:, inner:]
        return (left @ left.mT * by_rows).sum()

    for function in (by_svd, by_qr):
        np.testing.assert_allclose(gradient(function, x), difference(function, x), rtol=1e-5, atol=1e-7)


# ---- where eigenvectors and singular vectors are not unique ----


EQUAL = [np.eye(3), np.diag([1.0, 2.0, 2.0]), np.zeros((3, 3))]
WEIGHTS = GENERATOR.normal(size=(3, 3))


def rebuilt(f: Any) -> Any:
    """``v @ diag(f(w)) @ v.T``, weighted."""

    def function(t: Any) -> Any:
        values, vectors = bb.linalg.eigh(t)
        return ((vectors * f(values)) @ vectors.mT * tensor(WEIGHTS)).sum()

    return function


@pytest.mark.parametrize("x", EQUAL)
@pytest.mark.parametrize("f", [lambda w: w, bb.exp, bb.softmax])
def test_functions_of_matrices_with_equal_eigenvalues(x: Array, f: Any) -> None:
    """Transforms find the derivatives in forward mode; ``backward`` gives NaN rather than a partial result."""
    expected = difference(rebuilt(f), x)
    np.testing.assert_allclose(bb.grad(rebuilt(f))(tensor(x)).numpy(), expected, rtol=1e-5, atol=1e-7)
    direction = GENERATOR.normal(size=x.shape)
    slope = bb.jvp(rebuilt(f), (tensor(x),), (tensor(direction),))[1].item()
    assert bb.linearize(rebuilt(f), tensor(x))[1](tensor(direction)).item() == pytest.approx(
        slope, rel=1e-12, abs=1e-12
    )
    assert slope == pytest.approx((expected * direction).sum(), rel=1e-5, abs=1e-7)
    both = tensor(np.stack([x, np.diag([1.0, 2.0, 4.0])]))
    mapped = bb.vmap(bb.grad(rebuilt(f)))(both)
    np.testing.assert_allclose(mapped[0].numpy(), expected, rtol=1e-5, atol=1e-7)
    leaf = tensor(x).require_grad()
    assert np.isnan(leaf.grad(rebuilt(f)(leaf).backward()).numpy()).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_the_jacobian_of_a_rebuilt_matrix_is_that_of_its_symmetric_part(dtype: str, mode: str) -> None:
    def whole(t: Any) -> Any:
        values, vectors = bb.linalg.eigh(t)
        return (vectors * values) @ vectors.mT

    unit = np.eye(3)
    expected = (np.einsum("ik,jl->ijkl", unit, unit) + np.einsum("il,jk->ijkl", unit, unit)) / 2
    for x in EQUAL:
        found = bb.jacobian(whole, mode=mode)(bb.asarray(x, dtype=dtype)).astype("float64")
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-6 if dtype != "bfloat16" else 0.02)


ROTATION = np.linalg.qr(GENERATOR.normal(size=(3, 3)))[0]


@pytest.mark.parametrize("x", [np.eye(3), ROTATION, 2 * ROTATION, ROTATION @ np.diag([2.0, 2.0, 1.0]) @ ROTATION.T])
def test_the_polar_factor_at_equal_singular_values(x: Array) -> None:
    """Its derivative divides by sums of singular values, so it is finite at equal ones, also with ``backward``."""

    def polar(t: Any) -> Any:
        u, _, vh = bb.linalg.svd(t, full_matrices=False)
        return (u @ vh * tensor(WEIGHTS)).sum()

    expected = difference(polar, x)
    np.testing.assert_allclose(gradient(polar, x), expected, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(bb.grad(polar)(tensor(x)).numpy(), expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("x", [np.eye(3), ROTATION, np.ones((3, 2)) + np.eye(3)[:, :2]])
def test_a_matrix_from_its_singular_values(x: Array) -> None:
    def whole(t: Any) -> Any:
        u, s, vh = bb.linalg.svd(t, full_matrices=False)
        return ((u * s) @ vh * tensor(WEIGHTS[:, : x.shape[1]])).sum()

    np.testing.assert_allclose(bb.grad(whole)(tensor(x)).numpy(), WEIGHTS[:, : x.shape[1]], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    "f",
    [
        lambda t: bb.linalg.eigh(t).eigenvectors[0, 0],
        lambda t: bb.linalg.eigh(t).eigenvectors.sum(),
        lambda t: (bb.linalg.eigh(t).eigenvectors[:, 0] * tensor([1.0, 2.0, 3.0])).sum(),
        lambda t: sum(x.sum() for x in bb.linalg.svd(t)),
    ],
)
def test_vectors_of_equal_values_have_no_derivative(f: Any) -> None:
    x = tensor(np.eye(3))
    assert np.isnan(bb.grad(f)(x).numpy()).all()
    assert math.isnan(bb.jvp(f, (x,), (tensor(WEIGHTS),))[1].item())
    leaf = x.require_grad()
    with bb.detect_anomaly(), pytest.raises(NumericalInstabilityError, match=r"backward of (eigh|svd).*not determined"):
        f(leaf).backward()


def test_gradients_of_a_simple_eigenvector_beside_equal_eigenvalues() -> None:
    turn = np.linalg.qr(SQUARE[0])[0]
    x = turn @ np.diag([1.0, 1.0, 1.0, 3.0]) @ turn.T
    weights = GENERATOR.normal(size=(4, 4))

    def top(t: Any) -> Any:
        _, vectors = bb.linalg.eigh(t)
        return vectors[:, 3:] @ vectors[:, 3:].mT * tensor(weights)

    np.testing.assert_allclose(gradient(top, x), difference(top, x), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(gradient(lambda t: bb.linalg.eigh(t).eigenvalues, x), np.eye(4), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("x", [np.eye(3) * 2, np.diag([2.0, 2.0, 1.0])])
def test_second_derivatives_of_functions_of_equal_values(x: Array) -> None:
    unit = np.eye(9).reshape(3, 3, 3, 3)
    hessian = bb.hessian(lambda t: (bb.linalg.svdvals(t) ** 2).sum())(tensor(x))
    np.testing.assert_allclose(hessian.numpy(), 2 * unit, atol=1e-12)
    np.testing.assert_allclose(gradient(lambda t: bb.linalg.svdvals(t) ** 2, x), 2 * x, atol=1e-12)
    squares = lambda t: (bb.linalg.eigvalsh(t) ** 2).sum()
    expected = unit + unit.transpose(0, 1, 3, 2)
    np.testing.assert_allclose(bb.hessian(squares)(tensor(x)).numpy(), expected, atol=1e-12)
    twice = bb.jacobian(bb.grad(squares))(tensor(x))
    np.testing.assert_allclose(twice.numpy(), expected, atol=1e-12)


def singular(f: Any) -> Any:
    """``u @ diag(f(s)) @ vh``."""

    def function(t: Any) -> Any:
        u, s, vh = bb.linalg.svd(t, full_matrices=False)
        return (u * f(s)) @ vh

    return function


def spectral(f: Any) -> Any:
    """``v @ diag(f(w)) @ v.T``."""

    def function(t: Any) -> Any:
        values, vectors = bb.linalg.eigh(t)
        return (vectors * f(values)) @ vectors.mT

    return function


def symmetric_part(t: Any) -> Any:
    return (t + t.mT) * 0.5


TURNED = ROTATION @ np.diag([1.0, 2.0, 2.0]) @ ROTATION.T
#: Twice differentiable functions from decompositions, and the same from matrix products.
TWO_WAYS = [
    (spectral(lambda w: w), symmetric_part),
    (spectral(bb.exp), lambda t: bb.linalg.matrix_exp(symmetric_part(t))),
    (spectral(lambda w: 1.0 / (w + 3.0)), lambda t: bb.linalg.inv(symmetric_part(t) + 3.0 * tensor(np.eye(3)))),
    (lambda t: spectral(bb.exp)(t @ t), lambda t: bb.linalg.matrix_exp(symmetric_part(t @ t))),
    (singular(lambda s: s**3), lambda t: t @ t.mT @ t),
]


@pytest.mark.parametrize("x", [2.0 * np.eye(3), TURNED])
@pytest.mark.parametrize(("decomposed", "plain"), TWO_WAYS)
def test_second_derivatives_of_functions_of_matrices_with_equal_values(decomposed: Any, plain: Any, x: Array) -> None:
    """With every composition of transforms, and through ``vmap``."""
    weights, first, second = tensor(WEIGHTS), tensor(GENERATOR.normal(size=(3, 3))), tensor(ROTATION)

    def f(t: Any) -> Any:
        return (decomposed(t) * weights).sum()

    def g(t: Any) -> Any:
        return (plain(t) * weights).sum()

    both = tensor(np.stack([x, 3.0 * np.eye(3)]))
    ways: list[Any] = [
        lambda h: bb.hessian(h)(tensor(x)),
        lambda h: bb.jacobian(bb.grad(h))(tensor(x)),
        lambda h: bb.grad(lambda t: (bb.grad(h)(t) ** 2).sum())(tensor(x)),
        lambda h: bb.jvp(lambda t: bb.jvp(h, (t,), (t @ first,))[1], (tensor(x),), (second * 1e3,))[1],
        lambda h: bb.jvp(bb.vmap(bb.grad(h)), (both,), (bb.stack([first, second]),))[1],
        lambda h: bb.jacobian(lambda t: bb.grad(lambda y: h(y + t))(tensor(x)))(tensor(np.zeros((3, 3)))),
    ]
    for way in ways:
        expected = way(g).numpy()
        np.testing.assert_allclose(way(f).numpy(), expected, atol=1e-11 * (1.0 + np.abs(expected).max()))


@pytest.mark.parametrize(("dtype", "atol"), [("float32", 3e-6), ("bfloat16", 0.05)])
def test_second_derivatives_of_functions_of_equal_values_in_narrow_floats(dtype: Any, atol: float) -> None:
    x, weights = bb.asarray(np.eye(3), dtype=dtype), bb.asarray(WEIGHTS, dtype=dtype)
    found = bb.hessian(lambda t: (spectral(bb.exp)(t) * weights).sum())(x).astype("float64").numpy()
    wide = bb.asarray(WEIGHTS, dtype=dtype).astype("float64")
    plain = lambda t: (bb.linalg.matrix_exp(symmetric_part(t)) * wide).sum()
    np.testing.assert_allclose(found, bb.hessian(plain)(tensor(np.eye(3))).numpy(), atol=atol)


def test_second_derivatives_of_spaces_of_equal_values() -> None:
    """The projector onto the complement of a tall matrix's column space, at equal singular values."""
    x = np.linalg.qr(GENERATOR.normal(size=(4, 2)))[0]
    weights = tensor(GENERATOR.normal(size=(4, 4)))

    def by_vectors(t: Any) -> Any:
        rest = bb.linalg.svd(t).U[:, 2:]
        return (rest @ rest.mT * weights).sum()

    def by_inverse(t: Any) -> Any:
        return ((tensor(np.eye(4)) - t @ bb.linalg.inv(t.mT @ t) @ t.mT) * weights).sum()

    found, expected = (bb.hessian(f)(tensor(x)).numpy() for f in (by_vectors, by_inverse))
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(
    "f",
    [
        lambda t: bb.linalg.eigh(t).eigenvectors[0, 0],
        lambda t: (bb.linalg.eigh(t).eigenvalues * tensor([1.0, 2.0, 3.0])).sum(),
        lambda t: (spectral(lambda w: w * tensor([1.0, 2.0, 3.0]))(t) * tensor(WEIGHTS)).sum(),
        lambda t: (spectral(bb.exp)(t) * t.detach()).sum(),  # the detached part cannot be told apart
    ],
)
def test_second_derivatives_that_do_not_exist_or_are_not_known_are_nan(f: Any) -> None:
    assert np.isnan(bb.hessian(f)(tensor(np.eye(3))).numpy()).any()
    assert np.isnan(bb.jvp(bb.grad(f), (tensor(np.eye(3)),), (tensor(WEIGHTS),))[1].numpy()).any()


def test_third_derivatives_at_equal_values_are_nan() -> None:
    f = lambda t: (spectral(bb.exp)(t) * tensor(WEIGHTS[:2, :2])).sum()
    assert np.isnan(bb.jacobian(bb.hessian(f))(tensor(np.eye(2))).numpy()).all()


@pytest.mark.parametrize("f", [spectral(lambda w: w), spectral(bb.exp), singular(lambda s: s), singular(bb.exp)])
@pytest.mark.parametrize("x", [np.eye(3), np.zeros((3, 3)), np.diag([1.0, 1.0, 0.0])])
def test_a_cotangent_of_0_gives_0_at_equal_values(f: Any, x: Array) -> None:
    leaf = tensor(x).require_grad()
    np.testing.assert_array_equal(leaf.grad((f(leaf) * 0.0).sum().backward()).numpy(), np.zeros((3, 3)))


@pytest.mark.parametrize("values", [[1.0, 1.0, 2.0], [2.0, 2.0, 2.0]])
def test_norms_of_matrices_with_equal_singular_values(values: list[float]) -> None:
    x = ROTATION @ np.diag(values)
    for ord, expected in (("nuc", ROTATION), ("fro", x / np.linalg.norm(x))):
        found = gradient(partial(bb.linalg.matrix_norm, ord=ord), x)
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_gradients_of_determinants_of_singular_matrices() -> None:
    x = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    cofactors = np.array([[-3.0, 6.0, -3.0], [6.0, -12.0, 6.0], [-3.0, 6.0, -3.0]])
    np.testing.assert_allclose(gradient(bb.linalg.det, x), cofactors, atol=1e-12)
    np.testing.assert_allclose(gradient(bb.linalg.det, np.zeros((2, 2))), np.zeros((2, 2)))
    both = np.stack([x, np.eye(3)])
    np.testing.assert_allclose(gradient(bb.linalg.det, both), [cofactors, np.eye(3)], atol=1e-12)


def test_determinants_of_nan() -> None:
    x = tensor([[[np.nan, 1.0], [1.0, 1.0]], [[1.0, 1.0], [1.0, np.nan]], [[2.0, 0.0], [0.0, 1.0]]])
    np.testing.assert_array_equal(bb.linalg.det(x).numpy(), [np.nan, np.nan, 2.0])
    sign, logarithm = bb.linalg.slogdet(x)
    np.testing.assert_array_equal(sign.numpy(), [np.nan, np.nan, 1.0])
    np.testing.assert_array_equal(np.isnan(logarithm.numpy()), [True, True, False])


def test_gradients_of_determinants_of_nan() -> None:
    both = np.stack([np.full((2, 2), np.nan), np.diag([np.inf, 1.0]), np.eye(2)])
    found = gradient(bb.linalg.det, both)
    assert np.isnan(found[:2]).any(axis=(1, 2)).all()
    np.testing.assert_array_equal(found[2], np.eye(2))
    logarithm = gradient(lambda t: bb.linalg.slogdet(t).logabsdet, np.stack([np.zeros((2, 2)), np.eye(2)]))
    assert np.isnan(logarithm[0]).all()
    np.testing.assert_allclose(logarithm[1], np.eye(2))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_determinants_have_the_gradients_of_each_matrix_alone(dtype: str) -> None:
    """Nearly singular matrices in the batch, whose inverses lose their digits, do not affect the others."""
    x = np.random.default_rng(0).normal(size=(2, 20, 4, 4))
    x[0, 3, 0] = x[0, 3, 1] + 1e-7 * x[0, 3, 2]
    x[1, 5, :, 2] = x[1, 5, :, 0] + 1e-14
    found = gradient(bb.linalg.det, x.astype(dtype))
    for place in np.ndindex(2, 20):
        np.testing.assert_allclose(found[place], gradient(bb.linalg.det, x[place].astype(dtype)), rtol=1e-5, atol=1e-6)
    rest = np.delete(np.delete(x[0, 3].astype(dtype), 2, 0), 0, 1)
    np.testing.assert_allclose(found[0, 3, 2, 0], np.linalg.det(rest.astype("float64")), atol=2e-6)


def test_the_pseudo_inverse_at_constant_rank() -> None:
    """Along matrices of rank one the pseudo-inverse is smooth: ``(c a b^T)^+ = (a b^T)^+ / c``."""
    x = np.outer([1.0, 2.0, -1.0], [0.5, 3.0])
    inverse = np.linalg.pinv(x)
    found = gradient(lambda t: bb.linalg.pinv(t, rtol=1e-6) * tensor(inverse), x)
    assert (found * x).sum() == pytest.approx(-(inverse**2).sum())


# ---- what is refused ----


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: bb.linalg.inv(tensor(TALL)), ShapeError, r"inv: .*square, and they are 5 by 3.*float64\[2,5,3\]"),
        (lambda: bb.linalg.det(tensor(VECTOR)), ShapeError, r"det: a matrix has two axes"),
        (lambda: bb.linalg.solve(tensor(SQUARE), tensor(WIDE)), ShapeError, r"solve: axis -1 .* is 4, .* axis -2 .* 3"),
        (lambda: bb.linalg.solve(tensor(SQUARE), tensor(1.0)), ShapeError, r"solve: .*vector or matrices"),
        (lambda: bb.linalg.cholesky(tensor(-DEFINITE)), LinearAlgebraError, r"cholesky: .*at \[0\] is not positive"),
        (lambda: bb.linalg.inv(tensor(np.ones((3, 3)))), SingularMatrixError, r"inv: the matrix is singular"),
        (
            lambda: bb.linalg.solve(tensor(np.stack([np.eye(2), np.ones((2, 2))])), tensor(np.eye(2))),
            SingularMatrixError,
            r"solve: the matrix at \[1\] is singular.*float64\[2,2,2\]",
        ),
        (
            lambda: bb.linalg.triangular_solve(tensor([[1.0, 1.0], [1.0, 0.0]]), tensor([1.0, 1.0])),
            SingularMatrixError,
            "triangular_solve: .*singular",
        ),
        (
            lambda: bb.linalg.cholesky_solve(tensor([[1.0, 0.0], [1.0, 0.0]]), tensor([1.0, 1.0])),
            SingularMatrixError,
            "cholesky_solve: .*singular",
        ),
        (
            lambda: bb.linalg.cholesky_solve(tensor([1.0]), tensor([1.0])),
            ShapeError,
            "cholesky_solve: a matrix has two axes at least",
        ),
        (lambda: bb.linalg.svd(tensor(np.full((2, 2), np.nan))), LinearAlgebraError, "svd: .*NaN or infinite"),
        (lambda: bb.linalg.svd(tensor(np.full((2, 2), np.inf))), LinearAlgebraError, "svd: .*NaN or infinite"),
        (lambda: bb.linalg.svdvals(tensor(np.full((2, 2), np.inf))), LinearAlgebraError, "svdvals: .*NaN or infinite"),
        (lambda: bb.linalg.pinv(tensor(np.full((2, 2), np.inf))), LinearAlgebraError, "pinv: .*NaN or infinite"),
        (
            lambda: bb.linalg.matrix_rank(tensor([np.eye(2), [[1, np.nan], [0, 1]]])),
            LinearAlgebraError,
            r"matrix_rank: the matrix at \[1\] .*NaN or infinite",
        ),
        (lambda: bb.linalg.eigh(tensor(np.full((2, 2), np.inf))), LinearAlgebraError, "eigh: .*NaN or infinite"),
        (lambda: bb.linalg.svd(bb.asarray([[True]])), DTypeError, "svd: takes float tensors, not bool"),
        (lambda: bb.linalg.inv(np.eye(2)), DTypeError, "inv: takes a tensor, not ndarray"),  # type: ignore[arg-type]
        (lambda: bb.linalg.qr(tensor(TALL), mode="raw"), ArgumentError, "qr: mode is .*, not 'raw'"),
        (lambda: bb.linalg.matrix_norm(tensor(TALL), ord=3), ArgumentError, r"matrix_norm: ord is one of 'fro'.*not 3"),
        (lambda: bb.linalg.matrix_power(tensor(SQUARE), 0.5), ArgumentError, "matrix_power: .*integer, not 0.5"),  # type: ignore[arg-type]
        (lambda: bb.linalg.matrix_power(tensor(TALL), 2), ShapeError, "matrix_power: .*square"),
        (lambda: bb.linalg.lstsq(tensor(TALL), tensor(VECTOR)), ShapeError, "lstsq: .*rows"),
        (lambda: bb.linalg.pinv(tensor(TALL), rtol="a"), ArgumentError, "pinv: rtol is a number"),  # type: ignore[arg-type]
        (lambda: bb.linalg.cross(tensor(VECTOR), tensor(VECTOR)), ShapeError, "cross: axis -1 has three elements"),
        (lambda: bb.linalg.cross(tensor(WIDE), tensor(VECTOR), axis=0), AxisError, "cross: axis 0"),
        (lambda: bb.linalg.outer(tensor(WIDE), tensor(VECTOR)), ShapeError, "outer: takes two vectors"),
        (lambda: bb.cov(tensor(TALL)), ShapeError, "cov: takes a vector or a matrix"),
        (lambda: bb.cov(tensor(WIDE), aweights=tensor(VECTOR)), ShapeError, "cov: each observation needs a weight"),
    ],
)
def test_errors(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_a_qr_of_dependent_columns_has_no_gradient() -> None:
    for x in (np.outer([1.0, 2, 3], [0.0, 1]), np.ones((3, 2)), np.ones((2, 3)), np.zeros((2, 2))):
        with pytest.raises(SingularMatrixError, match=r"the gradient of qr needs .*independent .*float64\[\d,\d\]"):
            gradient(lambda t: bb.linalg.qr(t).Q, x)
        with pytest.raises(SingularMatrixError, match=r"qr: .* independent"):
            bb.jvp(lambda t: bb.linalg.qr(t).Q, (tensor(x),), (tensor(np.eye(*x.shape)),))
    small = np.diag([1.0, 1e-10]) @ np.array([[1.0, 2], [3, 4]])  # ill-conditioned but independent
    assert np.isfinite(gradient(lambda t: bb.linalg.qr(t).R, small)).all()


@pytest.mark.parametrize("ord", ["fro", "nuc", 2, -2, 1, -1, math.inf, -math.inf])
def test_norms_of_a_zero_matrix_have_the_gradient_zero(ord: Any) -> None:
    pair = np.stack([np.zeros((2, 2)), np.diag([3.0, -2.0])])
    slope = gradient(lambda t: bb.linalg.matrix_norm(t, ord=ord), pair)
    assert not slope[0].any()
    assert slope[1].any()


def test_errors_name_the_axis_of_the_operands() -> None:
    for name in ("matmul", "solve"):
        with pytest.raises(ShapeError, match=rf"{name}: cannot broadcast: axis -3 is 2 and 4"):
            getattr(bb.linalg, name)(bb.ones((2, 3, 3)), bb.ones((4, 3, 2)))
    with pytest.raises(ShapeError, match="matmul: cannot broadcast: axis -4 is 5 and 4"):
        bb.ones((5, 2, 1, 3)) @ bb.ones((4, 1, 3, 2))
