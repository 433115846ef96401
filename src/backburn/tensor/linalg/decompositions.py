"""Tensor functions: decompositions of matrices, in the namespace ``backburn.linalg``.

Names are those of the Array API's extension where it has them. Matrices are in the last two axes; the axes before them
are batch axes. Integers become the default float dtype; 16-bit floats are computed in float32. Raises
:class:`ShapeError` for shapes that do not fit, :class:`DTypeError` for other kinds of tensors, and
:class:`LinearAlgebraError` for a matrix that has no result; :class:`SingularMatrixError` is a subclass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from backburn.base.contexts import DECOMPOSED
from backburn.base.dtypes import complex_of
from backburn.base.errors import ShapeError
from backburn.hints.arguments import explained
from backburn.ops.table import OPERATIONS
from backburn.tensor.complex_numbers import conj
from backburn.tensor.core.complex_numbers import converted
from backburn.tensor.core.dispatch import call, float_operand, inexact_operand, upcast_half
from backburn.tensor.core.integers import has_wide_integers, in_float64
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import one_of
from backburn.tensor.index import one_hot
from backburn.tensor.linalg.products import matrix_transpose

if TYPE_CHECKING:
    from backburn.tensor.classes import ComplexTensor, FloatTensor, Tensor


class LUResult(NamedTuple):
    """``P @ L @ U`` is the matrix."""

    P: FloatTensor
    L: FloatTensor
    U: FloatTensor


class QRResult(NamedTuple):
    """``Q @ R`` is the matrix."""

    Q: FloatTensor
    R: FloatTensor


class SVDResult(NamedTuple):
    """``(U * S) @ Vh`` is the matrix."""

    U: FloatTensor
    S: FloatTensor
    Vh: FloatTensor


class EigResult(NamedTuple):
    """Each eigenvalue belongs to a column of the eigenvectors."""

    eigenvalues: ComplexTensor
    eigenvectors: ComplexTensor


class EighResult(NamedTuple):
    """Each eigenvalue belongs to a column of the eigenvectors."""

    eigenvalues: FloatTensor
    eigenvectors: FloatTensor


def check_square(name: str, x: Any) -> None:
    """Raise :class:`ShapeError` unless the matrices are square."""
    if x.shape[-2] != x.shape[-1]:
        raise ShapeError(f"{name}: the matrices must be square. Operand: {describe((x,))}")


def matrices(name: str, value: Any) -> Any:
    """``value`` as a float or complex tensor of at least two axes; only float if that is all ``name`` takes."""
    is_open = name not in OPERATIONS or "C" in OPERATIONS[name].kinds
    x = inexact_operand(name, value) if is_open else float_operand(name, value)
    if x.ndim < 2:
        raise ShapeError(f"{name}: a matrix has two axes at least. Operand: {describe((value,))}")
    return x


def adjoint(x: Any) -> Any:
    """The transposed conjugate."""
    return matrix_transpose(conj(x))


# ---- decompositions ----


def cholesky(x: Tensor, /, *, upper: bool = False) -> FloatTensor:
    """The lower triangular L with ``L @ L.T`` equal to the symmetric matrix ``x``; with ``upper``, its transpose.

    If a matrix is not symmetric, its symmetric part ``(x + x.T) / 2`` is factored; the gradient is symmetric. For
    complex matrices, here and below, read Hermitian for symmetric, and adjoint for transpose. Raises
    :class:`LinearAlgebraError` for a matrix that is not positive definite.

        >>> import backburn as bb
        >>> bb.linalg.cholesky(bb.asarray([[4.0, 2.0], [2.0, 5.0]])).tolist()
        [[2.0, 0.0], [1.0, 2.0]]
    """
    if has_wide_integers(x):
        return in_float64(cholesky, x, upper=upper)
    lower = call("cholesky", matrices("cholesky", x))
    return adjoint(lower) if upper else lower


def lu(x: Tensor, /) -> LUResult:
    """``x`` as the product of a permutation P, a lower triangular L and an upper triangular U.

    L has ones on its diagonal, no element of absolute value above 1, and as many columns as the shorter side of ``x``;
    U has as many rows. Every matrix has these factors. Their gradient needs nonzero pivots (the diagonal of U), and
    raises :class:`SingularMatrixError` otherwise.

        >>> import backburn as bb
        >>> p, l, u = bb.linalg.lu(bb.asarray([[1.0, 2.0], [4.0, 4.0]]))
        >>> p.tolist(), l.tolist(), u.tolist()
        ([[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.25, 1.0]], [[4.0, 4.0], [0.0, 1.0]])
    """
    if has_wide_integers(x):
        return in_float64(lu, x)
    order, lower, upper = call("lu", matrices("lu", x))
    rows: Any = one_hot(order, order.shape[-1], dtype=lower.dtype)
    return LUResult(matrix_transpose(rows), lower, upper)


def qr(x: Tensor, /, *, mode: str = "reduced") -> QRResult:
    """``x`` as the product of a matrix Q with orthonormal columns and an upper triangular R.

    Q has as many columns as the shorter side of ``x``, or with ``mode="complete"`` as many as ``x`` has rows. The
    diagonal of R is not negative. The gradient needs linearly independent columns (of a wide matrix, the first ones),
    and raises :class:`SingularMatrixError` if an element of R's diagonal is 0 relative to the largest, up to rounding.
    Raises :class:`ArgumentError` for any other ``mode``.

        >>> import backburn as bb
        >>> q, r = bb.linalg.qr(bb.asarray([[3.0], [4.0]]))
        >>> bb.allclose(q @ r, bb.asarray([[3.0], [4.0]])), round(r.item(), 5)
        (True, 5.0)
    """
    if has_wide_integers(x):
        return in_float64(qr, x, mode=mode)
    one_of("qr", "mode", mode, ("reduced", "complete"), of=(x,))
    return QRResult(*call("qr", matrices("qr", x), complete=mode == "complete"))


@explained
def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVDResult:
    """The singular value decomposition: ``U``, the values ``S`` in descending order, and ``Vh``.

    U and Vh are square; with ``full_matrices=False`` they are only as large as the shorter side of ``x``. The first
    large element of each column of U is positive, which fixes the phases of complex vectors. Gradients are correct
    where the values are distinct and nonzero. Vectors of zero values, and of values that are equal up to rounding, have
    no derivative: there ``backward`` gives NaN, unless no gradient reaches them. Functions of values and vectors that
    have a first or second derivative, such as ``(U * f(S)) @ Vh``, get it from transforms (:func:`backburn.grad`,
    :func:`backburn.hessian` and others) of real matrices, the second one where no value is 0. (Townsend,
    Differentiating the singular value decomposition, 2016)

        >>> import backburn as bb
        >>> x = bb.asarray([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0]])
        >>> u, s, vh = bb.linalg.svd(x, full_matrices=False)
        >>> s.tolist(), vh.shape, bb.allclose((u * s) @ vh, x)
        ([2.0, 1.0], (2, 3), True)
    """
    if has_wide_integers(x):
        return in_float64(svd, x, full_matrices=full_matrices)
    y = matrices("svd", x)
    result = SVDResult(*call("svd", y, full=bool(full_matrices)))
    note_decomposition(result.S, y, vectors=True)
    return result


def svdvals(x: Tensor, /) -> FloatTensor:
    """The singular values in descending order.

    >>> import backburn as bb
    >>> bb.linalg.svdvals(bb.asarray([[0.0, 2.0], [1.0, 0.0]])).tolist()
    [2.0, 1.0]
    """
    if has_wide_integers(x):
        return in_float64(svdvals, x)
    y = matrices("svdvals", x)
    result: Any = call("svdvals", y)
    note_decomposition(result, y)
    return result


def eigh(x: Tensor, /, *, UPLO: str | None = None) -> EighResult:
    """The eigenvalues of symmetric matrices in ascending order, and their eigenvectors as columns.

    If a matrix is not symmetric, its symmetric part is decomposed. ``UPLO`` selects the lower (``"L"``) or upper
    (``"U"``) triangle instead; the other elements are not read. Gradients go to the elements that are used. The first
    large element of each vector is positive. For equal eigenvalues, see equal singular values in :func:`svd`.

        >>> import backburn as bb
        >>> values, vectors = bb.linalg.eigh(bb.asarray([[2.0, 0.0], [0.0, 1.0]]))
        >>> values.tolist(), vectors.tolist()
        ([1.0, 2.0], [[0.0, 1.0], [1.0, 0.0]])
    """
    if has_wide_integers(x):
        return in_float64(eigh, x, UPLO=UPLO)
    y = _symmetric_from_triangle("eigh", matrices("eigh", x), UPLO)
    result = EighResult(*call("eigh", y))
    note_decomposition(result.eigenvalues, y, vectors=True)
    return result


def eigvalsh(x: Tensor, /, *, UPLO: str | None = None) -> FloatTensor:
    """The eigenvalues of symmetric matrices in ascending order; for ``UPLO``, see :func:`eigh`.

    >>> import backburn as bb
    >>> bb.linalg.eigvalsh(bb.asarray([[2.0, 0.0], [0.0, 1.0]])).tolist()
    [1.0, 2.0]
    """
    if has_wide_integers(x):
        return in_float64(eigvalsh, x, UPLO=UPLO)
    y = _symmetric_from_triangle("eigvalsh", matrices("eigvalsh", x), UPLO)
    result: Any = call("eigvalsh", y)
    note_decomposition(result, y)
    return result


def eig(x: Tensor, /) -> EigResult:
    """The eigenvalues of square matrices and their eigenvectors as columns, which are complex.

    The values are in ascending order of their real parts, then of their imaginary parts. Each vector has length 1, and
    its first large element is real and positive, so that any function of vectors has a gradient; it is NaN where values
    are equal, unless no gradient reaches their vectors. A matrix without a basis of eigenvectors has no derivative: the
    gradient is huge or NaN. For symmetric and Hermitian matrices, use :func:`eigh`.

        >>> import backburn as bb
        >>> values, vectors = bb.linalg.eig(bb.asarray([[0.0, -1.0], [1.0, 0.0]]))
        >>> values.tolist(), bb.imag(vectors[1] * 2.0**0.5).numpy().round(4).tolist()
        ([-1j, 1j], [1.0, -1.0])
    """
    if has_wide_integers(x):
        return in_float64(eig, x)
    return EigResult(*call("eig", _complex_matrices("eig", x)))


def eigvals(x: Tensor, /) -> ComplexTensor:
    """The eigenvalues of square matrices, in the order of :func:`eig`.

    >>> import backburn as bb
    >>> bb.linalg.eigvals(bb.asarray([[0.0, -1.0], [1.0, 0.0]])).tolist()
    [-1j, 1j]
    """
    if has_wide_integers(x):
        return in_float64(eigvals, x)
    return call("eigvals", _complex_matrices("eigvals", x))


def _complex_matrices(name: str, x: Any) -> Any:
    """Matrices in the complex dtype of at least 32 bits for each part."""
    y = upcast_half(matrices(name, x))
    return y if y.dtype.kind == "complex" else converted(y, complex_of(y.dtype))


def note_decomposition(values: Any, of: Any, vectors: bool = False) -> None:
    """Report the values of real matrices ``of``, some of which may be equal, to the running derivatives."""
    if of.dtype.is_floating:
        for found in DECOMPOSED.get():
            found.append((values, vectors))


def _symmetric_from_triangle(name: str, x: Any, UPLO: str | None) -> Any:
    """The symmetric matrices with a triangle of ``x``; ``x`` itself if ``UPLO`` is None."""
    if UPLO is None:
        return x
    triangle, inside = ("tril", -1) if one_of(name, "UPLO", UPLO, ("L", "U"), of=(x,)) == "L" else ("triu", 1)
    check_square(name, x)
    return call(triangle, x, offset=0) + adjoint(call(triangle, x, offset=inside))
