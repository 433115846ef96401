"""NumPy: matrix decompositions, solve, inverses and determinants, by LAPACK in 32 and 64 bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from backburn.backend.decompose import EPS, LEADING
from backburn.backend.table import OPERATIONS
from backburn.base.errors import LinearAlgebraError, ShapeError, SingularMatrixError
from backburn_numpy.halves import narrowed, widened
from backburn_numpy.ufuncs import quietly

Array = Any


@quietly
def _attempt(
    function: Callable[..., Any], x: Array, *others: Any, why: str, error: type[LinearAlgebraError], **options: Any
) -> Any:
    """``function(x, *others)``; if LAPACK fails, our error, which names the first matrix it fails on."""
    try:
        return function(x, *others, **options)
    except np.linalg.LinAlgError as cause:
        for place in np.ndindex(x.shape[:-2]):
            try:
                function(x[place], *(o[(0,) * (o.ndim - 2)] for o in others), **options)
            except np.linalg.LinAlgError:
                which = f"the matrix at {list(place)}" if place else "the matrix"
                raise error(f"{which} {why}") from cause
        raise


_DIVERGES = "has no decomposition that LAPACK finds, as with NaN or infinite elements"


def _signs(vectors: Array) -> Array:
    """The signs that normalize the columns as the contract requires, as a row."""
    if 0 in vectors.shape:
        return np.ones((*vectors.shape[:-2], 1, vectors.shape[-1]), vectors.dtype)
    size = np.abs(vectors)
    first = np.argmax(size >= LEADING * size.max(-2, keepdims=True), axis=-2, keepdims=True)
    leading = np.take_along_axis(vectors, first, -2)
    return np.where(leading < 0, vectors.dtype.type(-1), vectors.dtype.type(1))


def _symmetric(x: Array) -> Array:
    if x.shape[-2] != x.shape[-1]:  # the sum below would broadcast a row and a column
        raise ShapeError(f"the matrices must be square, and they are {x.shape[-2]} by {x.shape[-1]}")
    half = np.multiply(widened(x), 0.5)
    return np.add(half, np.matrix_transpose(half))


def cholesky(x: Array, /) -> Array:
    why = "is not positive definite"
    return narrowed(_attempt(np.linalg.cholesky, _symmetric(x), why=why, error=LinearAlgebraError), x)


def lu(x: Array, /) -> tuple[Array, Array, Array]:
    (*stack, rows, columns), inner = x.shape, min(x.shape[-2:])
    y = np.array(widened(x)).reshape(math.prod(stack), rows, columns)
    order = np.tile(np.arange(rows), (len(y), 1))
    every = np.arange(len(y))
    for c in range(inner):
        best = c + np.argmax(np.abs(y[:, c:, c]), axis=1)
        for a in (y, order):
            a[every, best], a[:, c] = a[:, c].copy(), a[every, best]
        row, below = y[:, c, None], y[:, c + 1 :]
        below[..., c] /= np.where(row[..., c] == 0, 1, row[..., c])  # a zero pivot has only zeros below
        below[..., c + 1 :] -= below[..., c, None] * row[..., c + 1 :]
    y = y.reshape(x.shape)
    lower = np.tril(y, -1)[..., :inner] + np.eye(rows, inner, dtype=y.dtype)
    return order.reshape(x.shape[:-1]), narrowed(lower, x), narrowed(np.triu(y)[..., :inner, :], x)


@quietly
def qr(x: Array, /, complete: bool = False) -> tuple[Array, Array]:
    q, r = np.linalg.qr(widened(x), mode="complete" if complete else "reduced")
    inner = min(x.shape[-2:])
    diagonal = np.diagonal(r, axis1=-2, axis2=-1)[..., None, :]
    signs = _signs(q)
    signs[..., :inner] = np.where(diagonal < 0, -1, 1)
    # Adding 0 turns the negative zeros of flipped rows into zeros.
    return narrowed(q * signs, x), narrowed(r * np.matrix_transpose(signs) + 0.0, x)


def _of_finite(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which raises for non-finite elements: LAPACK may return NaN, or print to standard output."""

    def checked(x: Array, **options: Any) -> Any:
        if not np.isfinite(x).all():
            raise np.linalg.LinAlgError
        return function(x, **options)

    return checked


_svd, _svdvals = _of_finite(np.linalg.svd), _of_finite(np.linalg.svdvals)
_eigh, _eigvalsh = _of_finite(np.linalg.eigh), _of_finite(np.linalg.eigvalsh)


def svd(x: Array, /, full: bool = False) -> tuple[Array, Array, Array]:
    u, s, vh = _attempt(_svd, widened(x), full_matrices=full, why=_DIVERGES, error=LinearAlgebraError)
    left, inner = _signs(u), s.shape[-1]
    right = left[..., :inner]
    if vh.shape[-2] > inner:
        right = np.concat([right, _signs(np.matrix_transpose(vh)[..., inner:])], axis=-1)
    return narrowed(u * left, x), narrowed(s, x), narrowed(vh * np.matrix_transpose(right), x)


def eigh(x: Array, /) -> tuple[Array, Array]:
    values, vectors = _attempt(_eigh, _symmetric(x), why=_DIVERGES, error=LinearAlgebraError)
    return narrowed(values, x), narrowed(vectors * _signs(vectors), x)


def svdvals(x: Array, /) -> Array:
    return narrowed(_attempt(_svdvals, widened(x), why=_DIVERGES, error=LinearAlgebraError), x)


def eigvalsh(x: Array, /) -> Array:
    return narrowed(_attempt(_eigvalsh, _symmetric(x), why=_DIVERGES, error=LinearAlgebraError), x)


def solve(x: Array, y: Array, /) -> Array:
    y = widened(y)[None] if y.ndim == 1 else widened(y)
    return narrowed(_attempt(np.linalg.solve, widened(x), y, why="is singular", error=SingularMatrixError), x)


def inv(x: Array, /) -> Array:
    return narrowed(_attempt(np.linalg.inv, widened(x), why="is singular", error=SingularMatrixError), x)


def _of_numbers(x: Array, found: Array) -> Array:
    """What was found of each matrix, and NaN of one that has NaN in it, which LAPACK may take for a singular one."""
    return np.asarray(np.where(np.isnan(x).any((-2, -1)), math.nan, found), x.dtype)


@quietly
def det(x: Array, /) -> Array:
    return _of_numbers(x, np.linalg.det(widened(x)))


@quietly
def slogdet(x: Array, /) -> tuple[Array, Array]:
    sign, logarithm = np.linalg.slogdet(widened(x))
    return _of_numbers(x, sign), _of_numbers(x, logarithm)


@quietly
def cofactors(x: Array, /) -> Array:
    from backburn_numpy.backend import NumpyBackend

    wide, body = widened(x), OPERATIONS["cofactors"].body
    try:
        inverse = np.linalg.inv(wide)
    except np.linalg.LinAlgError:
        return body(NumpyBackend(), x)
    result = det(wide)[..., None, None] * np.matrix_transpose(inverse)
    # Singular values are needed only for nearly singular matrices, by their condition number.
    condition = np.linalg.norm(wide, axis=(-2, -1)) * np.linalg.norm(inverse, axis=(-2, -1))
    if (near := np.logical_not(condition * EPS[wide.dtype.name] < 0.001)).any():
        result[near] = body(NumpyBackend(), wide[near])
    return narrowed(result, x)
