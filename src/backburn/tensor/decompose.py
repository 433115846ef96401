"""Tensor functions: decompositions of matrices, and what is found by them.

They are in the namespace ``backburn.linalg``, under the names of the Array API's extension where it has them. The
matrices are in the last two axes, before which any axes may count them. Integers become the default float type; 16-bit
floats are computed in float32. Shapes that do not fit raise :class:`ShapeError`, other kinds of tensors
:class:`DTypeError`, and a matrix that has no result :class:`LinearAlgebraError`, of which :class:`SingularMatrixError`
is one kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from backburn.backend.decompose import EPS
from backburn.base.dtypes import int64
from backburn.base.errors import ArgumentError, AxisError, ShapeError
from backburn.tensor.dispatch import call, cast, float_operand, kind_operand, made, promoted, tensor_operand
from backburn.tensor.index import one_hot
from backburn.tensor.linalg import matrix_transpose
from backburn.tensor.messages import describe
from backburn.tensor.options import axes_of, integers_of, number, one_of
from backburn.tensor.shape import expand_dims, moveaxis
from backburn.tensor.wrapping import is_tensor

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, IntTensor, Tensor


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


class EighResult(NamedTuple):
    """Each eigenvalue belongs to a column of the eigenvectors."""

    eigenvalues: FloatTensor
    eigenvectors: FloatTensor


class SlogdetResult(NamedTuple):
    """``sign * exp(logabsdet)`` is the determinant."""

    sign: FloatTensor
    logabsdet: FloatTensor


class LstsqResult(NamedTuple):
    """The solution, the sum of squares that it leaves for each right-hand side, and what tells how sure it is."""

    solution: FloatTensor
    residuals: FloatTensor
    rank: IntTensor
    singular_values: FloatTensor


def _square(name: str, x: Any) -> None:
    """Refuse matrices that are not square."""
    if x.shape[-2] != x.shape[-1]:
        raise ShapeError(f"{name}: the matrices must be square. Operand: {describe((x,))}")


def _matrices(name: str, value: Any) -> Any:
    """``value`` as a float tensor of matrices."""
    x = float_operand(name, value)
    if x.ndim < 2:
        raise ShapeError(f"{name}: a matrix has two axes at least. Operand: {describe((value,))}")
    return x


# ---- decompositions ----


def cholesky(x: Tensor, /, *, upper: bool = False) -> FloatTensor:
    """The lower triangular L whose product ``L @ L.T`` is the symmetric matrix ``x``, or its transpose with ``upper``.

    Of a matrix that is not symmetric, the symmetric part ``(x + x.T) / 2`` counts; the gradient is symmetric. Raises
    :class:`LinearAlgebraError` for a matrix that is not positive definite.

        >>> import backburn as bb
        >>> bb.linalg.cholesky(bb.asarray([[4.0, 2.0], [2.0, 5.0]])).tolist()
        [[2.0, 0.0], [1.0, 2.0]]
    """
    lower = call("cholesky", _matrices("cholesky", x))
    return _transposed(lower) if upper else lower


def _transposed(x: Any) -> Any:
    rank = x.ndim
    return call("permute_dims", x, axes=(*range(rank - 2), rank - 1, rank - 2))


def lu(x: Tensor, /) -> LUResult:
    """``x`` as a product of a permutation P, a lower triangular L and an upper triangular U.

    L has ones on its diagonal and no element beyond 1, as many columns as the shorter side of ``x``, and U as many
    rows. Every matrix has these factors; their gradient needs pivots, the diagonal of U, that are not 0, and raises
    :class:`SingularMatrixError` where one is.

        >>> import backburn as bb
        >>> p, l, u = bb.linalg.lu(bb.asarray([[1.0, 2.0], [4.0, 4.0]]))
        >>> p.tolist(), l.tolist(), u.tolist()
        ([[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.25, 1.0]], [[4.0, 4.0], [0.0, 1.0]])
    """
    order, lower, upper = call("lu", _matrices("lu", x))
    rows: Any = one_hot(order, order.shape[-1], dtype=lower.dtype)
    return LUResult(matrix_transpose(rows), lower, upper)


def qr(x: Tensor, /, *, mode: str = "reduced") -> QRResult:
    """``x`` as a product of a matrix Q with orthonormal columns and an upper triangular R.

    Q has as many columns as the shorter side of ``x``, with ``mode="complete"`` as many as rows. The diagonal of R has
    no negative element. The gradient needs independent columns, of a wide matrix the first ones, and raises
    :class:`SingularMatrixError` where an element of R's diagonal is not above rounding beside the largest. Raises
    :class:`ArgumentError` for another ``mode``.

        >>> import backburn as bb
        >>> q, r = bb.linalg.qr(bb.asarray([[3.0], [4.0]]))
        >>> bb.allclose(q @ r, bb.asarray([[3.0], [4.0]])), round(r.item(), 5)
        (True, 5.0)
    """
    one_of("qr", "mode", mode, ("reduced", "complete"), of=(x,))
    return QRResult(*call("qr", _matrices("qr", x), complete=mode == "complete"))


def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVDResult:
    """The singular value decomposition: ``U``, the values ``S`` in falling order, and ``Vh``.

    U and Vh are square, without ``full_matrices`` only as large as the shorter side of ``x``. The first large element
    of a column of U is positive. Gradients are right where the values are distinct and not 0. Where values are equal to
    rounding, or 0, vectors have no derivative: gradients are finite, and right for functions of the sum of equal values
    and of the space that their vectors span, but not for others. (Townsend, Differentiating the singular value
    decomposition, 2016)

        >>> import backburn as bb
        >>> x = bb.asarray([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0]])
        >>> u, s, vh = bb.linalg.svd(x, full_matrices=False)
        >>> s.tolist(), vh.shape, bb.allclose((u * s) @ vh, x)
        ([2.0, 1.0], (2, 3), True)
    """
    return SVDResult(*call("svd", _matrices("svd", x), full=bool(full_matrices)))


def svdvals(x: Tensor, /) -> FloatTensor:
    """The singular values in falling order.

    >>> import backburn as bb
    >>> bb.linalg.svdvals(bb.asarray([[0.0, 2.0], [1.0, 0.0]])).tolist()
    [2.0, 1.0]
    """
    return call("svdvals", _matrices("svdvals", x))


def eigh(x: Tensor, /, *, UPLO: str | None = None) -> EighResult:
    """The eigenvalues of symmetric matrices in rising order, and their eigenvectors as columns.

    Of a matrix that is not symmetric, the symmetric part counts, or with ``UPLO`` the lower (``"L"``) or upper
    (``"U"``) triangle, beside which no element is read; gradients go to what counts. The first large element of a
    vector is positive. Equal eigenvalues are as equal singular values in :func:`svd`.

        >>> import backburn as bb
        >>> values, vectors = bb.linalg.eigh(bb.asarray([[2.0, 0.0], [0.0, 1.0]]))
        >>> values.tolist(), vectors.tolist()
        ([1.0, 2.0], [[0.0, 1.0], [1.0, 0.0]])
    """
    return EighResult(*call("eigh", _by_triangle("eigh", _matrices("eigh", x), UPLO)))


def eigvalsh(x: Tensor, /, *, UPLO: str | None = None) -> FloatTensor:
    """The eigenvalues of symmetric matrices in rising order; ``UPLO`` is that of :func:`eigh`.

    >>> import backburn as bb
    >>> bb.linalg.eigvalsh(bb.asarray([[2.0, 0.0], [0.0, 1.0]])).tolist()
    [1.0, 2.0]
    """
    return call("eigvalsh", _by_triangle("eigvalsh", _matrices("eigvalsh", x), UPLO))


def _by_triangle(name: str, x: Any, UPLO: str | None) -> Any:
    """The symmetric matrices that have a triangle of ``x``; ``x`` itself where no triangle is told."""
    if UPLO is None:
        return x
    triangle, inside = ("tril", -1) if one_of(name, "UPLO", UPLO, ("L", "U"), of=(x,)) == "L" else ("triu", 1)
    _square(name, x)
    return call(triangle, x, offset=0) + _transposed(call(triangle, x, offset=inside))


# ---- solutions and inverses ----


def solve(x1: Tensor, x2: Tensor, /, *, left: bool = True) -> FloatTensor:
    """The solution of ``x1 @ x = x2`` for square matrices ``x1`` and a vector or matrices ``x2``.

    ``x2`` is a vector if it has one axis, else it has matrices in its last two, and axes before them broadcast.
    Without ``left`` it is the solution of ``x @ x1 = x2``.
    Raises :class:`SingularMatrixError` where there is no solution, or no single one.

        >>> import backburn as bb
        >>> bb.linalg.solve(bb.asarray([[2.0, 0.0], [0.0, 4.0]]), bb.asarray([2.0, 2.0])).tolist()
        [1.0, 0.5]
    """
    return _solution("solve", x1, x2, left)


def triangular_solve(
    x1: Tensor, x2: Tensor, /, *, upper: bool = False, left: bool = True, unitriangular: bool = False
) -> FloatTensor:
    """:func:`solve` with the lower or ``upper`` triangle of ``x1``; its other elements are not read.

    With ``unitriangular`` the diagonal is not read either, and counts as ones.

        >>> import backburn as bb
        >>> bb.linalg.triangular_solve(bb.asarray([[2.0, 9.0], [1.0, 1.0]]), bb.asarray([2.0, 3.0])).tolist()
        [1.0, 2.0]
    """
    if unitriangular:
        y = _matrices("triangular_solve", x1)
        _square("triangular_solve", y)
        inside = call("triu", y, offset=1) if upper else call("tril", y, offset=-1)
        x1 = inside + made("eye", y.backend, n=y.shape[-1], m=y.shape[-1], offset=0, dtype=y.dtype)
    return _solution("triangular_solve", x1, x2, left, upper=bool(upper))


def cholesky_solve(x1: Tensor, x2: Tensor, /, *, upper: bool = False) -> FloatTensor:
    """The solution of ``a @ x = x2`` for the matrices ``a`` whose factor ``x1`` is ``cholesky(a, upper=upper)``.

    One factor serves for several ``x2``, which are as in :func:`solve`. The other triangle of ``x1`` is not read.

        >>> import backburn as bb
        >>> factor = bb.linalg.cholesky(bb.asarray([[4.0, 2.0], [2.0, 5.0]]))
        >>> bb.linalg.cholesky_solve(factor, bb.asarray([8.0, 4.0])).tolist()
        [2.0, 0.0]
    """
    factor, right = _matrices("cholesky_solve", x1), tensor_operand("cholesky_solve", x2)
    if right.ndim == 1:
        column = cholesky_solve(factor, call("reshape", right, shape=(*right.shape, 1)), upper=upper)
        return call("reshape", column, shape=column.shape[:-1])
    lower, higher = (_transposed(factor), factor) if upper else (factor, _transposed(factor))
    half = _solution("triangular_solve", lower, right, upper=False)
    return _solution("triangular_solve", higher, half, upper=True)


def _solution(name: str, x1: Any, x2: Any, left: bool = True, **options: Any) -> Any:
    """A vector on the right is a column, whose added axis the solution does not have.

    What stands left of the matrices is found transposed, by their transposes.
    """
    x, y = promoted(name, tensor_operand(name, x1), tensor_operand(name, x2))
    _matrices(name, x1)
    if not left:
        _square(name, x)
        if y.ndim and y.shape[-1] != x.shape[-1]:
            raise ShapeError(
                f"{name}: with left=False, axis -1 is {x.shape[-1]} in the matrices, and {y.shape[-1]} in the "
                f"right-hand sides. Operands: {describe((x1, x2))}"
            )
        turned = {option: not value for option, value in options.items()}  # the other triangle
        if y.ndim < 2:
            return _solution(name, _transposed(x), y, **turned)
        return _transposed(_solution(name, _transposed(x), _transposed(y), **turned))
    if y.ndim != 1:
        if y.ndim == 0:
            raise ShapeError(f"{name}: the right-hand side is a vector or matrices. Operands: {describe((x1, x2))}")
        return call(name, x, y, **options)
    result = call(name, x, call("reshape", y, shape=(*y.shape, 1)), **options)
    return call("reshape", result, shape=result.shape[:-1])


def inv(x: Tensor, /) -> FloatTensor:
    """The inverse. Raises :class:`SingularMatrixError` for a matrix that has none.

    >>> import backburn as bb
    >>> bb.linalg.inv(bb.asarray([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    return call("inv", _matrices("inv", x))


def pinv(x: Tensor, /, *, rtol: float | Tensor | None = None, hermitian: bool = False) -> FloatTensor:
    """The pseudo-inverse of Moore and Penrose, for matrices of every shape and rank.

    Singular values up to ``rtol`` times the largest count as 0; it is one number or one for each matrix, and without
    it the longer side times the dtype's eps. With ``hermitian`` the symmetric part of square matrices counts. The
    gradient is that at constant rank.

        >>> import backburn as bb
        >>> bb.linalg.pinv(bb.asarray([[2.0, 0.0], [0.0, 0.0], [0.0, 0.0]])).tolist()
        [[0.5, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    y = _symmetric("pinv", _matrices("pinv", x), hermitian)
    return call("pinv", y, _tolerance("pinv", y, rtol))


def _symmetric(name: str, x: Any, hermitian: bool) -> Any:
    """The symmetric part of ``x``, or ``x`` itself where it is not said to be symmetric."""
    if not hermitian:
        return x
    _square(name, x)
    return x * 0.5 + _transposed(x) * 0.5


def _tolerance(name: str, x: Any, rtol: Any, option: str = "rtol") -> Any:
    """``rtol`` as a number, or as a tensor in the dtype of ``x``."""
    if rtol is None:
        return max(x.shape[-2:]) * EPS[x.dtype.name]
    return cast(kind_operand(name, rtol, "FI"), x.dtype) if is_tensor(rtol) else float(number(name, option, rtol))


def matrix_rank(
    x: Tensor,
    /,
    *,
    rtol: float | Tensor | None = None,
    atol: float | Tensor | None = None,
    hermitian: bool = False,
) -> IntTensor:
    """How many singular values are more than ``rtol`` times the largest; see :func:`pinv`.

    With ``atol`` they must be more than that, too, and ``rtol`` is 0 unless it is given; each is one number or one for
    each matrix.

        >>> import backburn as bb
        >>> x = bb.asarray([[1.0, 2.0], [2.0, 4.0]])
        >>> bb.linalg.matrix_rank(x).item(), bb.linalg.matrix_rank(x, atol=6.0).item()
        (1, 0)
    """
    y = _symmetric("matrix_rank", _matrices("matrix_rank", x), hermitian)
    return _rank(y, svdvals(y), 0.0 if rtol is None and atol is not None else rtol, atol)


def _rank(x: Any, values: Any, rtol: Any, atol: Any = None) -> IntTensor:
    last = values.ndim - 1
    if 0 in values.shape:
        return made("zeros", values.backend, shape=values.shape[:-1], dtype=int64)
    least = call("max", values, axis=(last,), keepdims=True) * _for_each("rtol", x, rtol)
    if atol is not None:
        least = call("maximum", least, _for_each("atol", x, atol))
    return call("count_nonzero", call("greater", values, least), axis=(last,))


def _for_each(option: str, x: Any, tolerance: Any) -> Any:
    """A tolerance of :func:`matrix_rank`, before the singular values of each matrix."""
    found = _tolerance("matrix_rank", x, tolerance, option)
    return call("reshape", found, shape=(*found.shape, 1)) if is_tensor(found) else found


def lstsq(x1: Tensor, x2: Tensor, /, *, rtol: float | Tensor | None = None) -> LstsqResult:
    """The shortest of the vectors that leave least squares ``sum((x1 @ x - x2) ** 2)``, by the pseudo-inverse.

    ``x2`` is a vector or has matrices in its last two axes, whose columns are right-hand sides. ``rtol`` is that of
    :func:`pinv`. Returns the solution, the sums of squares that are left, the rank and the singular values.

        >>> import backburn as bb
        >>> x = bb.asarray([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
        >>> found = bb.linalg.lstsq(x, bb.asarray([3.0, 4.0, 5.0]))
        >>> found.solution.tolist(), found.residuals.item(), found.rank.item()
        ([3.0, 2.0], 25.0, 2)
    """
    x, y = promoted("solve", tensor_operand("lstsq", x1), tensor_operand("lstsq", x2))
    _matrices("lstsq", x1)
    vector = y.ndim == 1
    y = call("reshape", y, shape=(*y.shape, 1)) if vector else y
    if y.ndim < 2 or y.shape[-2] != x.shape[-2]:
        raise ShapeError(
            f"lstsq: the right-hand sides have as many elements as the matrices rows. Operands: {describe((x1, x2))}"
        )
    solution = call("matmul", pinv(x, rtol=rtol), y)
    left = call("square", call("sub", call("matmul", x, solution), y))
    residuals = call("sum", left, axis=(left.ndim - 2,))
    if vector:
        solution = call("reshape", solution, shape=solution.shape[:-1])
        residuals = call("reshape", residuals, shape=residuals.shape[:-1])
    values = svdvals(x)
    return LstsqResult(solution, residuals, _rank(x, values, rtol), values)


# ---- determinants, powers and norms ----


def det(x: Tensor, /) -> FloatTensor:
    """The determinant; its gradient is right at singular matrices too.

    >>> import backburn as bb
    >>> bb.linalg.det(bb.asarray([[2.0, 0.0], [0.0, 4.0]])).item()
    8.0
    """
    return call("det", _matrices("det", x))


def slogdet(x: Tensor, /) -> SlogdetResult:
    """The sign of the determinant and the logarithm of its absolute value, which does not overflow.

    They are 0 and -inf for a singular matrix, whose gradient is NaN.

        >>> import backburn as bb
        >>> sign, logarithm = bb.linalg.slogdet(bb.asarray([[0.0, 1.0], [1.0, 0.0]]))
        >>> sign.item(), logarithm.item()
        (-1.0, 0.0)
    """
    return SlogdetResult(*call("slogdet", _matrices("slogdet", x)))


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """The product of ``n`` times ``x``, of its inverse for a negative ``n``; the unit matrix for 0.

    Raises :class:`ArgumentError` for an ``n`` that is no integer.

        >>> import backburn as bb
        >>> bb.linalg.matrix_power(bb.asarray([[1, 1], [0, 1]]), 5).tolist()
        [[1, 5], [0, 1]]
    """
    base = kind_operand("matrix_power", x, "FI")
    if isinstance(n, bool) or not isinstance(n, int):
        raise ArgumentError(f"matrix_power: the exponent is an integer, not {n!r}. Operand: {describe((x,))}")
    _matrices("matrix_power", x)
    _square("matrix_power", base)
    if n == 0:
        unit = made("eye", base.backend, n=base.shape[-1], m=base.shape[-1], offset=0, dtype=base.dtype)
        return call("broadcast_to", unit, shape=base.shape)
    if n < 0:
        base, n = inv(base), -n
    result = None
    while n:
        if n % 2:
            result = base if result is None else call("matmul", result, base)
        n //= 2
        base = call("matmul", base, base) if n else base
    return result  # type: ignore[return-value]


def matrix_norm(
    x: Tensor, /, *, axis: Sequence[int] = (-2, -1), keepdims: bool = False, ord: float | str = "fro"
) -> FloatTensor:
    """A norm of the matrices whose rows and columns lie along the two axes ``axis``.

    ``ord`` is ``"fro"`` (the root of the sum of squares), ``"nuc"`` (the sum of the singular values), 2 or -2 (the
    largest or smallest of them), 1 or -1 (the largest or smallest column sum of absolute values), inf or -inf (that of
    rows); the largest of none is 0. The gradient at a zero matrix is 0. Raises :class:`ArgumentError` for another
    ``ord``, :class:`AxisError` for other than two axes.

        >>> import backburn as bb
        >>> x = bb.asarray([[3.0, 0.0], [0.0, -4.0]])
        >>> bb.linalg.matrix_norm(x).item(), bb.linalg.matrix_norm(x, ord="nuc").item()
        (5.0, 7.0)
    """
    y = _matrices("matrix_norm", x)
    pair = integers_of("matrix_norm", "axis", axis)
    if pair != (-2, -1):
        if len(pair) != 2:
            raise AxisError(f"matrix_norm: axis is a pair, rows and columns, not {axis!r}. Operand: {describe((x,))}")
        axes_of("matrix_norm", y, pair)
        y = moveaxis(y, pair, (-2, -1))
    rows, columns = y.ndim - 2, y.ndim - 1

    def largest(norms: Any, axis: int) -> Any:
        return call("max" if norms.shape[axis] else "sum", norms, axis=(axis,), keepdims=True)

    def sums(axis: int) -> Any:
        return call("sum", call("abs", y), axis=(axis,), keepdims=True)

    def values() -> Any:
        """The singular values; constants of a zero matrix, which would have a gradient by its arbitrary vectors."""
        some = call("any", call("not_equal", y, 0.0), axis=(rows, columns), keepdims=True)
        return svdvals(call("where", some, y, 0.0))

    norms: dict[Any, Callable[[], Any]] = {
        "fro": lambda: call("norm", y, axis=(rows, columns), ord=2.0, keepdims=True),
        "nuc": lambda: call("sum", values(), axis=(rows,)),
        2: lambda: largest(values(), rows),
        -2: lambda: call("min", values(), axis=(rows,)),
        1: lambda: largest(sums(rows), columns),
        -1: lambda: call("min", sums(rows), axis=(columns,)),
        math.inf: lambda: largest(sums(columns), rows),
        -math.inf: lambda: call("min", sums(columns), axis=(rows,)),
    }
    one_of("matrix_norm", "ord", ord, norms, of=(x,))
    result = call("reshape", norms[ord](), shape=y.shape[:-2])
    return expand_dims(result, [a % y.ndim for a in pair]) if keepdims else result
