"""NumPy: matrix decompositions, solve, inverses and determinants, by LAPACK in 32 and 64 bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int64, c_void_p
from typing import Any

import numpy as np

from backburn.base.errors import LinearAlgebraError, ShapeError, SingularMatrixError
from backburn.ops.bodies.adjoints import LEADING
from backburn.ops.bodies.decompositions import EPS
from backburn.ops.decompositions import solution
from backburn.ops.table import OPERATIONS
from backburn_numpy import compiled, tuning
from backburn_numpy.compiled import FLOAT32, FLOAT64, address
from backburn_numpy.elementwise.half_precision import cast_like, upcast_half
from backburn_numpy.implements import implements
from backburn_numpy.ops.complex_numbers import phase
from backburn_numpy.ops.selection import triangle
from backburn_numpy.runtime import blas
from backburn_numpy.runtime.memory import contiguous, empty
from backburn_numpy.runtime.quiet import quietly
from backburn_numpy.runtime.threads import parallel_for

Array = Any

#: BLAS's codes for the forms of operands.
ROW_MAJOR, NO_TRANS, TRANS, UPPER, LOWER, NON_UNIT, LEFT = 101, 111, 112, 121, 122, 131, 141


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
    """The factors, signs or phases, that normalize the columns as the contract requires, as a row."""
    if 0 in vectors.shape:
        return np.ones((*vectors.shape[:-2], 1, vectors.shape[-1]), vectors.dtype)
    size = np.abs(vectors)
    first = np.argmax(size >= LEADING * size.max(-2, keepdims=True), axis=-2, keepdims=True)
    return np.conj(_units(np.take_along_axis(vectors, first, -2)))


def _units(x: Array) -> Array:
    """``x / |x|``, and 1 at 0."""
    if x.dtype.kind == "c":
        return np.where(x == 0, x.dtype.type(1), phase(x))
    return np.where(x < 0, x.dtype.type(-1), x.dtype.type(1))


def _adjoint(x: Array) -> Array:
    return np.matrix_transpose(np.conj(x) if x.dtype.kind == "c" else x)


def _values(found: Array, x: Array) -> Array:
    """Singular values or eigenvalues, which are real, in the dtype of ``x`` or of its parts."""
    return found if x.dtype.kind == "c" else cast_like(found, x)


def _symmetric(x: Array) -> Array:
    if x.shape[-2] != x.shape[-1]:  # the sum below would broadcast a row and a column
        raise ShapeError(f"the matrices must be square, and they are {x.shape[-2]} by {x.shape[-1]}")
    half = np.multiply(upcast_half(x), 0.5)
    return np.add(half, _adjoint(half))


@implements("cholesky")
def cholesky(x: Array, /) -> Array:
    why = "is not positive definite"
    return cast_like(_attempt(_cholesky, _symmetric(x), why=why, error=LinearAlgebraError), x)


def _cholesky(x: Array) -> Array:
    """``np.linalg.cholesky`` of symmetric matrices, without its copies of a large one."""
    rows = x.shape[-1]
    number, text = POINTER(c_int64), c_char_p
    name = f"scipy_{_letter(x)}potrf_64_"
    if (
        x.ndim > 2
        or x.dtype not in (FLOAT32, FLOAT64)
        or rows < tuning.MIN_ROWS_FOR_LAPACK
        or (fast := blas.function(name, text, number, c_void_p, number, number)) is None
    ):
        return np.linalg.cholesky(x)
    size, failed, factor = c_int64(rows), c_int64(0), x.copy()
    fast(b"L", size, address(factor), size, failed)  # by columns
    if failed.value:
        raise np.linalg.LinAlgError
    return _triangle(factor.T, False)


def _triangle(x: Array, upper: bool) -> Array:
    """The upper or the lower triangle, with the diagonal."""
    found = triangle(x, 0 if upper else 1, upper)
    return (np.triu if upper else np.tril)(x) if found is None else found


def _letter(x: Array) -> str:
    """The letter by which BLAS names the dtype."""
    return "d" if x.dtype == np.float64 else "s"


@implements("lu")
def lu(x: Array, /) -> tuple[Array, Array, Array]:
    (*stack, rows, columns), inner = x.shape, min(x.shape[-2:])
    y = np.array(upcast_half(x)).reshape(math.prod(stack), rows, columns)
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
    return order.reshape(x.shape[:-1]), cast_like(lower, x), cast_like(np.triu(y)[..., :inner, :], x)


@implements("qr")
@quietly
def qr(x: Array, /, complete: bool = False) -> tuple[Array, Array]:
    q, r = np.linalg.qr(upcast_half(x), mode="complete" if complete else "reduced")
    inner = min(x.shape[-2:])
    diagonal = np.diagonal(r, axis1=-2, axis2=-1)[..., None, :]
    signs = _signs(q)
    signs[..., :inner] = _units(diagonal)
    # Adding 0 turns the negative zeros of flipped rows into zeros.
    q, r = q * signs, r * _adjoint(signs) + 0.0
    if r.dtype.kind == "c":
        np.einsum("...ii->...i", r.imag[..., :inner, :inner])[...] = 0  # which it is but for rounding
    return cast_like(q, x), cast_like(r, x)


def _check_finite(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which raises for non-finite elements: LAPACK may return NaN, or print to standard output."""

    def checked(x: Array, **options: Any) -> Any:
        if not np.isfinite(x).all():
            raise np.linalg.LinAlgError
        return function(x, **options)

    return checked


_svd, _svdvals = _check_finite(np.linalg.svd), _check_finite(np.linalg.svdvals)
_eigh, _eigvalsh = _check_finite(np.linalg.eigh), _check_finite(np.linalg.eigvalsh)


def _of_real(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of the real part if the imaginary part is 0: faster, with exact pairs of conjugates."""

    def found(x: Array) -> Any:
        return function(x if x.imag.any() else x.real)

    return _check_finite(found)


_eig, _eigvals = _of_real(np.linalg.eig), _of_real(np.linalg.eigvals)


@implements("svd")
def svd(x: Array, /, full: bool = False) -> tuple[Array, Array, Array]:
    u, s, vh = _attempt(_svd, upcast_half(x), full_matrices=full, why=_DIVERGES, error=LinearAlgebraError)
    left, inner = _signs(u), s.shape[-1]
    right = left[..., :inner]
    if vh.shape[-2] > inner:
        right = np.concat([right, _signs(_adjoint(vh)[..., inner:])], axis=-1)
    return cast_like(u * left, x), _values(s, x), cast_like(vh * _adjoint(right), x)


@implements("eigh")
def eigh(x: Array, /) -> tuple[Array, Array]:
    values, vectors = _attempt(_eigh, _symmetric(x), why=_DIVERGES, error=LinearAlgebraError)
    return _values(values, x), cast_like(vectors * _signs(vectors), x)


def _in_order(values: Array) -> Array:
    """The order of eigenvalues by their real, then by their imaginary parts."""
    return np.lexsort((values.imag, values.real), axis=-1)


@implements("eig")
def eig(x: Array, /) -> tuple[Array, Array]:
    values, vectors = _attempt(_eig, x, why=_DIVERGES, error=LinearAlgebraError)
    values, order = np.asarray(values, x.dtype), _in_order(values)
    vectors = np.take_along_axis(np.asarray(vectors, x.dtype), order[..., None, :], -1)
    return np.take_along_axis(values, order, -1), vectors * _signs(vectors)


@implements("eigvals")
def eigvals(x: Array, /) -> Array:
    values = _attempt(_eigvals, x, why=_DIVERGES, error=LinearAlgebraError)
    return np.take_along_axis(np.asarray(values, x.dtype), _in_order(values), -1)


@implements("svdvals")
def svdvals(x: Array, /) -> Array:
    return _values(_attempt(_svdvals, upcast_half(x), why=_DIVERGES, error=LinearAlgebraError), x)


@implements("eigvalsh")
def eigvalsh(x: Array, /) -> Array:
    return _values(_attempt(_eigvalsh, _symmetric(x), why=_DIVERGES, error=LinearAlgebraError), x)


def _solve_small(x: Array, y: Array | None = None, columns: int = 0) -> tuple[Array, Array] | None:
    """The solutions for ``y``, or for columns of the identity, and the sign of the row permutation with the pivots.

    None if LAPACK is to solve: for few or large matrices, and where a pivot is 0 or not finite.
    """
    rows, stack = x.shape[-1], x.shape[:-2]
    if y is not None and x.shape[-2:] == (rows, *y.shape[-2:-1]) and x.dtype == y.dtype:
        stack, columns = np.broadcast_shapes(stack, y.shape[:-2]), y.shape[-1]
    elif y is not None:
        return None
    if (
        x.shape[-2] != rows
        or not 0 < rows <= tuning.MAX_SMALL_MATRIX_SIDE
        or columns > tuning.MAX_SMALL_MATRIX_SIDE
        or (number := math.prod(stack)) < tuning.MIN_SMALL_MATRICES
    ):
        return None
    if (fast := compiled.serving("solve_small", x)) is None:
        return None
    out, pivots = empty((*stack, rows, columns), x.dtype), empty((rows + 1, number), x.dtype)
    x, y = (a if a is None else contiguous(np.broadcast_to(a, (*stack, *a.shape[-2:]))) for a in (x, y))
    at = compiled.addresses(out, x, y, pivots)
    parallel_for(lambda first, last: fast(*at, rows, columns, number, first, last), number, each=rows**2)
    return (out, pivots.reshape(-1, *stack)) if pivots.all() and np.isfinite(pivots).all() else None


@implements("solve")
def solve(x: Array, y: Array, /) -> Array:
    y = upcast_half(y)[None] if y.ndim == 1 else upcast_half(y)
    if (found := _solve_small(upcast_half(x), y)) is not None:
        return cast_like(found[0], x)
    return cast_like(_attempt(np.linalg.solve, upcast_half(x), y, why="is singular", error=SingularMatrixError), x)


@implements("triangular_solve")
def triangular_solve(x: Array, y: Array, /, upper: bool = False) -> Array:
    if x.dtype.kind == "c":
        return solve(_triangle(x, upper), y)
    a, b = upcast_half(x), upcast_half(y)
    real = c_double if a.dtype == np.float64 else c_float
    types = (*[c_int] * 5, c_int64, c_int64, real, c_void_p, c_int64, c_void_p, c_int64)
    pays = a.shape[-1] >= tuning.MIN_ROWS_FOR_LAPACK and a.dtype in (FLOAT32, FLOAT64) and a.dtype == b.dtype
    fast = blas.function(f"scipy_cblas_{_letter(a)}trsm64_", *types) if pays else None
    shape = solution(a.shape, b.shape)
    rows, columns = shape[-2:]
    if fast is None or not columns:
        return solve(_triangle(x, upper), y)
    pivots = np.abs(np.diagonal(a, axis1=-2, axis2=-1))  # BLAS multiplies by their reciprocals
    if not (pivots >= np.finfo(a.dtype).tiny).all():
        return solve(_triangle(x, upper), y)
    a, out = np.broadcast_to(a, (*shape[:-2], rows, rows)), np.array(np.broadcast_to(b, shape), order="C")
    for place in np.ndindex(shape[:-2]):
        one, transposed = a[place], a[place].T
        by_rows = one.flags.c_contiguous or not transposed.flags.c_contiguous
        whole = contiguous(one if by_rows else transposed)
        form = UPPER if upper == by_rows else LOWER, NO_TRANS if by_rows else TRANS
        fast(ROW_MAJOR, LEFT, *form, NON_UNIT, rows, columns, 1.0, address(whole), rows, address(out[place]), columns)
    return cast_like(out, x)


@implements("inv")
def inv(x: Array, /) -> Array:
    if (found := _solve_small(upcast_half(x), None, x.shape[-1])) is not None:
        return cast_like(found[0], x)
    return cast_like(_attempt(np.linalg.inv, upcast_half(x), why="is singular", error=SingularMatrixError), x)


def _keep_nan(x: Array, found: Array) -> Array:
    """The results ``found`` for matrices, with NaN for those that contain NaN, which LAPACK may take for singular."""
    return _values(np.asarray(np.where(np.isnan(x).any((-2, -1)), math.nan, found), found.dtype), x)


@implements("det")
@quietly
def det(x: Array, /) -> Array:
    if (found := _solve_small(upcast_half(x))) is not None:
        return cast_like(np.multiply.reduce(found[1], out=...), x)
    return _keep_nan(x, np.linalg.det(upcast_half(x)))


@implements("slogdet")
@quietly
def slogdet(x: Array, /) -> tuple[Array, Array]:
    if (found := _solve_small(upcast_half(x))) is not None:
        logarithm = np.add.reduce(np.log(np.abs(found[1])), out=...)
        return cast_like(np.multiply.reduce(np.sign(found[1]), out=...), x), cast_like(logarithm, x)
    sign, logarithm = np.linalg.slogdet(upcast_half(x))
    return _keep_nan(x, sign), _keep_nan(x, logarithm)


@implements("cofactors", takes_backend=True)
@quietly
def cofactors(k: Any, x: Array, /) -> Array:
    wide = upcast_half(x)
    found = _solve_small(wide, None, wide.shape[-1])
    try:
        inverse = np.linalg.inv(wide) if found is None else found[0]
    except np.linalg.LinAlgError:
        return OPERATIONS["cofactors"].body(k, x)
    result = det(wide)[..., None, None] * np.matrix_transpose(inverse)
    # Singular values are needed only for nearly singular matrices, by their condition number.
    condition = np.linalg.norm(wide, axis=(-2, -1)) * np.linalg.norm(inverse, axis=(-2, -1))
    if (near := np.logical_not(condition * EPS[wide.dtype.name] < 0.001)).any():
        result[near] = OPERATIONS["cofactors"].body(k, wide[near])
    return cast_like(result, x)
