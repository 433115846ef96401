"""Samples: decompositions, solutions, inverses and determinants."""

from __future__ import annotations

import itertools
import math

import numpy as np

from backburn.conformance.samples.table import Array, booleans, case, integers, real, samples

CONDITION = "errors grow with the condition of a matrix"


def matrix(*shape: int, seed: int = 0) -> Array:
    """Well-conditioned matrices with well-separated singular values, and eigenvalues if square."""
    n, m = shape[-2:]
    return 0.4 * real(*shape, seed=seed) + np.eye(n, m) * np.arange(2.0, 2.0 + m)


def definite(*shape: int) -> Array:
    """Matrices that are not symmetric, but whose symmetric part is positive definite."""
    x = matrix(*shape)
    return x @ np.matrix_transpose(x) * 0.3 + 0.1 * real(*shape, seed=1)


def symmetric(x: Array) -> Array:
    """The symmetric part."""
    return np.asarray((x + adjoint(x)) / 2)


def adjoint(x: Array) -> Array:
    """The transposed conjugate."""
    return np.conj(np.matrix_transpose(x))


def column_signs(vectors: Array) -> Array:
    """Factors that make, in each column, the first element of at least 0.3 times the largest one's size positive."""
    result = np.ones((*vectors.shape[:-2], 1, vectors.shape[-1]), vectors.dtype)
    if 0 in vectors.shape:
        return result
    for place in np.ndindex(*vectors.shape[:-2]):
        for j, column in enumerate(vectors[place].T):
            result[(*place, 0, j)] = next(np.conj(np.sign(e)) for e in column if abs(e) >= 0.3 * abs(column).max())
    return result


def cholesky(x: Array) -> Array:
    """The factor of the symmetric part."""
    return np.linalg.cholesky(symmetric(x))


samples(
    "cholesky",
    cholesky,
    case(definite(3, 3)),
    case(definite(2, 2, 2)),
    case(definite(1, 1)),
    case(np.eye(3), note="equal eigenvalues"),
    case(np.zeros((0, 0))),
    case(np.zeros((0, 2, 2))),
    tolerance=50.0,
    because=CONDITION,
)


def lu(x: Array) -> tuple[Array, Array, Array]:
    """Gaussian elimination, with the largest element of a column for the pivot."""
    order, y = np.zeros(x.shape[:-1], np.int64), x.copy()
    inner = min(x.shape[-2:])
    for place in np.ndindex(*x.shape[:-2]):
        rows, a = list(range(x.shape[-2])), y[place]
        for c in range(inner):
            best = max(range(c, len(rows)), key=lambda r: abs(a[r, c]))
            a[[c, best]] = a[[best, c]]
            rows[c], rows[best] = rows[best], rows[c]
            for r in range(c + 1, len(rows)):
                a[r, c] /= a[c, c]
                a[r, c + 1 :] -= a[r, c] * a[c, c + 1 :]
        order[place] = rows
    return order, np.tril(y, -1)[..., :inner] + np.eye(y.shape[-2], inner), np.triu(y)[..., :inner, :]


samples(
    "lu",
    lu,
    case(matrix(3, 3)),
    case(matrix(4, 2)),
    case(-matrix(2, 2, 3)),
    case(np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [4.0, -3.0, 8.0]]), note="rows must be exchanged"),
    case(np.array([[2.0, 1.0], [-2.0, 3.0], [2.0, 0.0]]), smooth=0, note="the first of equal pivots"),
    case(matrix(1, 1)),
    case(np.zeros((0, 3))),
    case(np.zeros((3, 0))),
    case(np.zeros((0, 3, 2))),
    tolerance=50.0,
    because=CONDITION,
)


def qr(x: Array, complete: bool = False) -> tuple[Array, Array]:
    """NumPy's decomposition, with a non-negative diagonal of R."""
    q, r = np.linalg.qr(x, mode="complete" if complete else "reduced")
    inner = min(x.shape[-2:])
    signs = column_signs(q)
    diagonal = np.diagonal(r, axis1=-2, axis2=-1)
    signs[..., 0, :inner] = np.where(diagonal == 0, 1, np.sign(diagonal))
    return q * signs, r * adjoint(signs)


samples(
    "qr",
    qr,
    case(matrix(4, 3)),
    case(matrix(3, 3), complete=True),
    case(matrix(2, 4)),
    case(matrix(2, 4), complete=True),
    case(-matrix(2, 3, 2)),
    case(matrix(2, 2, 3)),
    case(matrix(3, 1)),
    case(matrix(3, 2), complete=True, note="one more vector is determined but for its sign"),
    case(np.eye(3)),
    case(np.zeros((0, 3))),
    case(np.zeros((3, 0))),
    case(np.zeros((0, 3, 2))),
    tolerance=50.0,
    because=CONDITION,
)


def svd(x: Array, full: bool = False) -> tuple[Array, Array, Array]:
    """NumPy's decomposition, with signs determined by the left vectors."""
    u, s, vh = np.linalg.svd(x, full_matrices=full)
    left, inner = column_signs(u), s.shape[-1]
    right = np.concat([left[..., :inner], column_signs(adjoint(vh))[..., inner:]], axis=-1)
    return u * left, s, vh * adjoint(right)


samples(
    "svd",
    svd,
    case(matrix(3, 3)),
    case(matrix(4, 3)),
    case(matrix(2, 4)),
    case(matrix(2, 3, 2)),
    case(matrix(3, 2), full=True),
    case(matrix(2, 3), full=True),
    case(matrix(3, 3), full=True),
    case(matrix(1, 1)),
    case(np.zeros((0, 2, 3))),
    tolerance=100.0,
    gradient_tolerance=20.0,
    because=CONDITION,
)


def eigh(x: Array) -> tuple[Array, Array]:
    """The eigenvalues and eigenvectors of the symmetric part."""
    values, vectors = np.linalg.eigh(symmetric(x))
    return values, vectors * column_signs(vectors)


samples(
    "eigh",
    eigh,
    case(matrix(3, 3)),
    case(matrix(2, 2, 2)),
    case(-matrix(4, 4)),
    case(matrix(1, 1)),
    case(np.zeros((0, 0))),
    case(np.zeros((0, 2, 2))),
    tolerance=100.0,
    gradient_tolerance=20.0,
    because=CONDITION,
)


def eig(x: Array) -> tuple[Array, Array]:
    """NumPy's decomposition, with phases and order of the contract."""
    values, vectors = np.linalg.eig(x)
    order = np.lexsort((np.imag(values), np.real(values)), axis=-1)
    vectors = np.take_along_axis(vectors, order[..., None, :], -1)
    return np.take_along_axis(values, order, -1), vectors * column_signs(vectors)


SPECTRA = (
    case(matrix(3, 3) + 0.3j * real(3, 3, seed=1)),
    case(matrix(2, 2, 2) + 0.3j * real(2, 2, 2, seed=1)),
    case(np.array([[2j]])),
    case(np.zeros((0, 0), np.complex128)),
    case(np.zeros((0, 2, 2), np.complex128)),
)
samples("eig", eig, *SPECTRA, tolerance=100.0, gradient_tolerance=20.0, because=CONDITION)
samples("eigvals", lambda x: eig(x)[0], *SPECTRA, tolerance=50.0, gradient_tolerance=20.0, because=CONDITION)
TWIN = np.array([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
samples(
    "svdvals",
    lambda x: np.linalg.svdvals(x),
    case(matrix(3, 3)),
    case(matrix(2, 4)),
    case(matrix(2, 3, 2)),
    case(np.zeros((0, 3))),
    case(TWIN, smooth=0, gradients=(np.eye(3),), note="equal singular values: their sum has a derivative"),
    case(np.diag([2.0, 1.0, 0.0]) @ np.eye(3, 3), smooth=0, note="a singular value of 0, which has a corner there"),
    tolerance=50.0,
    gradient_tolerance=20.0,
    because=CONDITION,
)
samples(
    "eigvalsh",
    lambda x: np.linalg.eigvalsh(symmetric(x)),
    case(matrix(3, 3)),
    case(matrix(2, 2, 2)),
    case(np.zeros((0, 0))),
    case(TWIN, smooth=0, gradients=(np.eye(3),), note="equal eigenvalues: their sum has a derivative"),
    tolerance=50.0,
    gradient_tolerance=20.0,
    because=CONDITION,
)


def solve(x: Array, y: Array) -> Array:
    """The product with the inverse."""
    return np.matmul(np.linalg.inv(x), y)


samples(
    "solve",
    solve,
    case(matrix(3, 3), real(3, 2)),
    case(matrix(2, 2, 2), real(2, 3)),
    case(matrix(2, 2), real(2, 2, 1)),
    case(matrix(2, 1, 2, 2), real(3, 2, 1)),
    case(matrix(3, 3), real(3, 0)),
    case(np.zeros((0, 0)), np.zeros((0, 2))),
    case(np.zeros((0, 2, 2)), real(2, 2)),
    tolerance=100.0,
    because=CONDITION,
)
samples(
    "triangular_solve",
    lambda x, y, upper=False: solve(np.triu(x) if upper else np.tril(x), y),
    case(matrix(3, 3), real(3, 2)),
    case(matrix(3, 3), real(3, 2), upper=True),
    case(matrix(2, 2, 2), real(2, 3)),
    case(matrix(2, 2), real(2, 2, 1), upper=True),
    case(np.zeros((0, 0)), np.zeros((0, 2))),
    tolerance=100.0,
    because=CONDITION,
)
samples(
    "inv",
    np.linalg.inv,
    case(matrix(3, 3)),
    case(matrix(2, 2, 2)),
    case(matrix(1, 1)),
    case(np.zeros((0, 0))),
    case(np.zeros((0, 2, 2))),
    tolerance=50.0,
    because=CONDITION,
)
LOW_RANK = np.array([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]])
samples(
    "pinv",
    lambda x, rtol: np.linalg.pinv(x, rcond=rtol),
    case(matrix(3, 3), 1e-6),
    case(matrix(4, 2), 1e-6),
    case(matrix(2, 3), 1e-6),
    case(matrix(2, 3, 2), np.array([1e-3, 1e-2]), smooth=0),
    case(np.eye(3)[:, :2] * 2.0, 1e-6, note="equal singular values"),
    case(LOW_RANK, 1e-2, smooth=0),
    case(np.zeros((2, 2)), 1e-2, smooth=0),
    case(np.zeros((0, 3)), 1e-2),
    tolerance=50.0,
    because=CONDITION,
)


def det(x: Array) -> Array:
    """The sum over all permutations."""
    n = x.shape[-1]
    total = np.zeros(x.shape[:-2], x.dtype)
    for order in itertools.permutations(range(n)):
        crossed = sum(order[i] > order[j] for i in range(n) for j in range(i + 1, n))
        factors = [x[..., i, j] for i, j in enumerate(order)]
        total = total + (-1) ** crossed * (math.prod(factors) if n else 1.0)
    return total


def cofactors(x: Array) -> Array:
    """The signed determinants of the matrix without one row and column."""
    n = x.shape[-1]
    result = np.zeros(x.shape, x.dtype)
    for i, j in np.ndindex(n, n):
        left = np.delete(np.delete(x, i, -2), j, -1)
        result[..., i, j] = (-1) ** (i + j) * det(left)
    return result


def slogdet(x: Array) -> tuple[Array, Array]:
    """The sign and the logarithm of the determinant."""
    return np.sign(det(x)), np.log(np.abs(det(x)))


RANK_TWO = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]) / 4
RANK_ONE = np.outer([1.0, -2.0, 0.5], [1.0, 0.5, 2.0])
REGULAR = (
    case(matrix(3, 3)),
    case(matrix(2, 2, 2)),
    case(-matrix(3, 3)),
    case(np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [4.0, -3.0, 8.0]]), note="rows must be exchanged"),
    case(np.eye(3)[[1, 2, 0]] * 2.0, note="equal singular values"),
    case(matrix(1, 1)),
)
EMPTY = (case(np.zeros((0, 0))), case(np.zeros((0, 2, 2))), case(np.zeros((2, 0, 0))))
SINGULAR = tuple(
    case(x, smooth=2, note="singular")
    for x in (
        RANK_TWO,
        RANK_ONE,
        np.zeros((3, 3)),
        np.array([[0.0]]),
        np.diag([2.0, 2.0, 0.0]),
        np.diag([2.0, 2.0, 0.0, 0.0]),
        np.stack([RANK_TWO, np.eye(3), np.zeros((3, 3))]),
    )
)
samples("det", det, *REGULAR, *SINGULAR, *EMPTY, tolerance=50.0, because=CONDITION)
samples(
    "slogdet",
    slogdet,
    *REGULAR,
    *EMPTY,
    case(RANK_ONE, smooth=0),
    case(np.zeros((2, 2)), smooth=0),
    tolerance=50.0,
    because=CONDITION,
)
samples(
    "cofactors",
    cofactors,
    *REGULAR,
    *(case(s.operands[0], smooth=1, note="singular") for s in SINGULAR),
    *EMPTY,
    tolerance=50.0,
    because=CONDITION,
)
samples("stop_gradient", lambda x: x, case(real(2, 3)), case(real(0)), case(integers(3)), case(booleans(3)))
