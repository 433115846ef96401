"""Linear equations, inverses, ranks and least squares; see :mod:`backburn.tensor.linalg.decompositions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from backburn.base.dtypes import int64
from backburn.base.errors import ShapeError
from backburn.hints.arguments import explained
from backburn.ops.bodies.decompositions import EPS
from backburn.tensor.core.dispatch import call, cast, create, kind_operand, promote_operands, tensor_operand
from backburn.tensor.core.integers import has_wide_integers, in_float64
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import number
from backburn.tensor.core.wrapping import is_tensor
from backburn.tensor.linalg.decompositions import adjoint, check_square, matrices, svdvals
from backburn.tensor.linalg.products import matrix_transpose

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, IntTensor, Tensor


class LstsqResult(NamedTuple):
    """The solution, the sum of squared residuals of each right-hand side, the rank and the singular values."""

    solution: FloatTensor
    residuals: FloatTensor
    rank: IntTensor
    singular_values: FloatTensor


def solve(x1: Tensor, x2: Tensor, /, *, left: bool = True) -> FloatTensor:
    """The solution of ``x1 @ x = x2`` for square matrices ``x1`` and a vector or matrices ``x2``.

    ``x2`` is a vector if it has one axis; otherwise its last two axes are matrices, and the axes before them broadcast.
    With ``left=False``, the solution of ``x @ x1 = x2``. Raises :class:`SingularMatrixError` for a singular matrix.

        >>> import backburn as bb
        >>> bb.linalg.solve(bb.asarray([[2.0, 0.0], [0.0, 4.0]]), bb.asarray([2.0, 2.0])).tolist()
        [1.0, 0.5]
    """
    if has_wide_integers(x1, x2):
        return in_float64(solve, x1, x2, left=left)
    return _solution("solve", x1, x2, left)


def triangular_solve(
    x1: Tensor, x2: Tensor, /, *, upper: bool = False, left: bool = True, unitriangular: bool = False
) -> FloatTensor:
    """:func:`solve` with the lower or ``upper`` triangle of ``x1``; the other elements are not read.

    With ``unitriangular`` the diagonal is not read either, and is taken to be 1.

        >>> import backburn as bb
        >>> bb.linalg.triangular_solve(bb.asarray([[2.0, 9.0], [1.0, 1.0]]), bb.asarray([2.0, 3.0])).tolist()
        [1.0, 2.0]
    """
    if has_wide_integers(x1, x2):
        return in_float64(triangular_solve, x1, x2, upper=upper, left=left, unitriangular=unitriangular)
    if unitriangular:
        y = matrices("triangular_solve", x1)
        check_square("triangular_solve", y)
        inside = call("triu", y, offset=1) if upper else call("tril", y, offset=-1)
        x1 = inside + create("eye", y.backend, n=y.shape[-1], m=y.shape[-1], offset=0, dtype=y.dtype)
    return _solution("triangular_solve", x1, x2, left, upper=bool(upper))


def cholesky_solve(x1: Tensor, x2: Tensor, /, *, upper: bool = False) -> FloatTensor:
    """The solution of ``a @ x = x2``, given the factor ``x1 = cholesky(a, upper=upper)``.

    One factor serves several ``x2``, whose shapes are as in :func:`solve`. The other triangle of ``x1`` is not read.

        >>> import backburn as bb
        >>> factor = bb.linalg.cholesky(bb.asarray([[4.0, 2.0], [2.0, 5.0]]))
        >>> bb.linalg.cholesky_solve(factor, bb.asarray([8.0, 4.0])).tolist()
        [2.0, 0.0]
    """
    factor, right = matrices("cholesky_solve", x1), tensor_operand("cholesky_solve", x2)
    if right.ndim == 1:
        column = cholesky_solve(factor, call("reshape", right, shape=(*right.shape, 1)), upper=upper)
        return call("reshape", column, shape=column.shape[:-1])
    lower, higher = (adjoint(factor), factor) if upper else (factor, adjoint(factor))
    half = _solution("triangular_solve", lower, right, upper=False)
    return _solution("triangular_solve", higher, half, upper=True)


def _solution(name: str, x1: Any, x2: Any, left: bool = True, **options: Any) -> Any:
    """The solution of ``x1 @ x = x2``, or without ``left`` of ``x @ x1 = x2``, from the transposed equations.

    A vector ``x2`` is solved as a column.
    """
    x, y = promote_operands(name, tensor_operand(name, x1), tensor_operand(name, x2))
    matrices(name, x1)
    if not left:
        check_square(name, x)
        if y.ndim and y.shape[-1] != x.shape[-1]:
            raise ShapeError(
                f"{name}: with left=False, axis -1 is {x.shape[-1]} in the matrices, and {y.shape[-1]} in the "
                f"right-hand sides. Operands: {describe((x1, x2))}"
            )
        turned = {option: not value for option, value in options.items()}  # the other triangle
        if y.ndim < 2:
            return _solution(name, matrix_transpose(x), y, **turned)
        return matrix_transpose(_solution(name, matrix_transpose(x), matrix_transpose(y), **turned))
    if y.ndim != 1:
        if y.ndim == 0:
            raise ShapeError(f"{name}: the right-hand side is a vector or matrices. Operands: {describe((x1, x2))}")
        return call(name, x, y, **options)
    result = call(name, x, call("reshape", y, shape=(*y.shape, 1)), **options)
    return call("reshape", result, shape=result.shape[:-1])


def inv(x: Tensor, /) -> FloatTensor:
    """The inverse. Raises :class:`SingularMatrixError` for a singular matrix.

    >>> import backburn as bb
    >>> bb.linalg.inv(bb.asarray([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    if has_wide_integers(x):
        return in_float64(inv, x)
    return call("inv", matrices("inv", x))


@explained
def pinv(x: Tensor, /, *, rtol: float | Tensor | None = None, hermitian: bool = False) -> FloatTensor:
    """The Moore-Penrose pseudoinverse, of matrices of any shape and rank.

    Singular values up to ``rtol`` times the largest are taken to be 0. ``rtol`` is one number, or one for each matrix;
    by default it is the longer side times the dtype's eps. With ``hermitian`` the symmetric part of square matrices is
    used. The gradient is that at constant rank.

        >>> import backburn as bb
        >>> bb.linalg.pinv(bb.asarray([[2.0, 0.0], [0.0, 0.0], [0.0, 0.0]])).tolist()
        [[0.5, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    if has_wide_integers(x):
        return in_float64(pinv, x, rtol=rtol, hermitian=hermitian)
    y = _symmetric("pinv", matrices("pinv", x), hermitian)
    return call("pinv", y, _tolerance("pinv", y, rtol))


def _symmetric(name: str, x: Any, hermitian: bool) -> Any:
    """The symmetric (Hermitian) part of ``x``, or ``x`` itself unless ``hermitian``."""
    if not hermitian:
        return x
    check_square(name, x)
    return x * 0.5 + adjoint(x) * 0.5


def _tolerance(name: str, x: Any, rtol: Any, option: str = "rtol") -> Any:
    """``rtol`` as a number, or as a tensor in the dtype of ``x`` or its parts."""
    if rtol is None:
        return max(x.shape[-2:]) * EPS[x.dtype.name]
    part = x.dtype.part if x.dtype.kind == "complex" else x.dtype
    return cast(kind_operand(name, rtol, "FI"), part) if is_tensor(rtol) else float(number(name, option, rtol))


def matrix_rank(
    x: Tensor,
    /,
    *,
    rtol: float | Tensor | None = None,
    atol: float | Tensor | None = None,
    hermitian: bool = False,
) -> IntTensor:
    """The number of singular values that exceed ``rtol`` times the largest; see :func:`pinv`.

    With ``atol`` they must also exceed ``atol``, and the default of ``rtol`` is 0. Each is one number, or one for each
    matrix.

        >>> import backburn as bb
        >>> x = bb.asarray([[1.0, 2.0], [2.0, 4.0]])
        >>> bb.linalg.matrix_rank(x).item(), bb.linalg.matrix_rank(x, atol=6.0).item()
        (1, 0)
    """
    if has_wide_integers(x):
        return in_float64(matrix_rank, x, rtol=rtol, atol=atol, hermitian=hermitian)
    y = _symmetric("matrix_rank", matrices("matrix_rank", x), hermitian)
    return _rank(y, svdvals(y), 0.0 if rtol is None and atol is not None else rtol, atol)


def _rank(x: Any, values: Any, rtol: Any, atol: Any = None) -> IntTensor:
    last = values.ndim - 1
    if 0 in values.shape:
        return create("zeros", values.backend, shape=values.shape[:-1], dtype=int64)
    least = call("max", values, axis=(last,), keepdims=True) * _per_matrix_tolerance("rtol", x, rtol)
    if atol is not None:
        least = call("maximum", least, _per_matrix_tolerance("atol", x, atol))
    return call("count_nonzero", call("greater", values, least), axis=(last,))


def _per_matrix_tolerance(option: str, x: Any, tolerance: Any) -> Any:
    """A tolerance of :func:`matrix_rank` that broadcasts to the singular values of each matrix."""
    found = _tolerance("matrix_rank", x, tolerance, option)
    return call("reshape", found, shape=(*found.shape, 1)) if is_tensor(found) else found


@explained
def lstsq(x1: Tensor, x2: Tensor, /, *, rtol: float | Tensor | None = None) -> LstsqResult:
    """The least-squares solution: the shortest ``x`` that minimizes ``sum((x1 @ x - x2) ** 2)``.

    ``x2`` is a vector, or has matrices in its last two axes whose columns are right-hand sides. For ``rtol``, see
    :func:`pinv`. Returns the solution, the sums of squared residuals, the rank and the singular values.

        >>> import backburn as bb
        >>> x = bb.asarray([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
        >>> found = bb.linalg.lstsq(x, bb.asarray([3.0, 4.0, 5.0]))
        >>> found.solution.tolist(), found.residuals.item(), found.rank.item()
        ([3.0, 2.0], 25.0, 2)
    """
    if has_wide_integers(x1, x2):
        return in_float64(lstsq, x1, x2, rtol=rtol)
    x, y = promote_operands("solve", tensor_operand("lstsq", x1), tensor_operand("lstsq", x2))
    matrices("lstsq", x1)
    vector = y.ndim == 1
    y = call("reshape", y, shape=(*y.shape, 1)) if vector else y
    if y.ndim < 2 or y.shape[-2] != x.shape[-2]:
        raise ShapeError(
            f"lstsq: right-hand sides need as many elements as the matrices have rows. Operands: {describe((x1, x2))}"
        )
    solution = call("matmul", pinv(x, rtol=rtol), y)
    left = call("sub", call("matmul", x, solution), y)
    left = call("square", call("modulus", left) if left.dtype.kind == "complex" else left)
    residuals = call("sum", left, axis=(left.ndim - 2,))
    if vector:
        solution = call("reshape", solution, shape=solution.shape[:-1])
        residuals = call("reshape", residuals, shape=residuals.shape[:-1])
    values = svdvals(x)
    return LstsqResult(solution, residuals, _rank(x, values, rtol), values)
