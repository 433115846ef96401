"""Decompositions of matrices, and what follows from them: solutions, inverses, determinants.

The matrices are in the last two axes; the axes before them are batch axes and, with two operands, broadcast. 16-bit
floats are computed in float32. Where the definition leaves a choice, it is fixed, so that all backends agree:

* in ``lu`` the pivot is the first of the largest elements;
* in ``qr`` the diagonal of R is not negative;
* in ``eigh`` and ``svd`` (for the left vectors) the sign of each vector is such that the first of its elements whose
  absolute value is at least three tenths of the largest is positive.

``cholesky`` and ``eigh`` decompose the symmetric part ``(x + x.T) / 2`` of any matrix, so that gradients are symmetric.
An operation that has no result for a matrix raises a :class:`LinearAlgebraError`.

Vectors of equal eigenvalues or singular values are not determined, and have no derivative. By convention, a term that
would be divided by a difference of values that are equal up to rounding, or by a singular value of 0, is 0. The
gradient is then finite, and correct for functions of equal values and their vectors as a whole: sums of equal values,
and the projection to the space that their vectors span. It is incomplete for functions that combine each value with its
own vector, such as ``v @ diag(f(w)) @ v.T``: it lacks the effect of a change that makes equal values differ.
"""

from __future__ import annotations

from typing import Any, Protocol

from backburn.backend.index import shape_of
from backburn.backend.kinds import Kinds
from backburn.backend.reduce import widened
from backburn.backend.scalars import is_scalar
from backburn.backend.shapes import Shape, broadcast, broadcast_to, unchanged
from backburn.backend.table import missing, operation
from backburn.backend.types import B, F, I, Q
from backburn.backend.views import part, transposed
from backburn.base.dtypes import DType, int64
from backburn.base.errors import ShapeError

#: The distance from 1 to the next larger number, by dtype.
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
#: A vector's sign is that of its first element of at least this part of the largest.
LEADING = 0.3


# ---- shapes ----


def _matrix(x: Shape, **_: Any) -> tuple[int, int]:
    if len(x) < 2:
        raise ShapeError(f"a matrix has two axes at least, and the shape is {list(x)}")
    return x[-2], x[-1]


def _square(x: Shape, *_: Any, **__: Any) -> Shape:
    rows, columns = _matrix(x)
    if rows != columns:
        raise ShapeError(f"the matrices must be square, and they are {rows} by {columns}")
    return x


def _lu(x: Shape, **_: Any) -> tuple[Shape, Shape, Shape]:
    rows, columns = _matrix(x)
    inner = min(rows, columns)
    return x[:-1], (*x[:-2], rows, inner), (*x[:-2], inner, columns)


def _qr(x: Shape, *, complete: bool = False, **_: Any) -> tuple[Shape, Shape]:
    rows, columns = _matrix(x)
    inner = rows if complete else min(rows, columns)
    return (*x[:-2], rows, inner), (*x[:-2], inner, columns)


def _eigh(x: Shape, **_: Any) -> tuple[Shape, Shape]:
    return _square(x)[:-1], x


def _svd(x: Shape, *, full: bool = False, **_: Any) -> tuple[Shape, Shape, Shape]:
    rows, columns = _matrix(x)
    inner = min(rows, columns)
    left, right = (rows, columns) if full else (inner, inner)
    return (*x[:-2], rows, left), (*x[:-2], inner), (*x[:-2], right, columns)


def solution(x: Shape, y: Shape, **_: Any) -> Shape:
    """The shape of ``solve``."""
    _square(x)
    rows, columns = _matrix(y)
    if rows != x[-1]:
        raise ShapeError(f"axis -1 of the matrices is {x[-1]}, and axis -2 of the right-hand sides {rows}")
    return (*broadcast(x[:-2], y[:-2], trailing=2), rows, columns)


def _number(x: Shape, **_: Any) -> Shape:
    return _square(x)[:-2]


def _inverse(x: Shape, rtol: Shape | None = None, **_: Any) -> Shape:
    rows, columns = _matrix(x)
    if rtol is not None:
        broadcast_to(rtol, shape=x[:-2])
    return (*x[:-2], columns, rows)


# ---- parts of bodies, for backends too ----


def symmetric(k: Any, x: Any) -> Any:
    """``(x + x.T) / 2``, which for a symmetric matrix is that matrix to the last digit."""
    _square(x.shape)  # the sum below would broadcast a row and a column
    half = k.mul(x, 0.5)
    return k.add(half, transposed(k, half))


def signs(k: Any, vectors: Any) -> Any:
    """1 or -1 for each column, as a row: the factors that give columns the signs of the contract."""
    shape, axis = vectors.shape, len(vectors.shape) - 2
    if 0 in shape:
        return k.ones((*shape[:-2], 1, shape[-1]), k.dtype(vectors))
    size = k.abs(vectors)
    leading = k.greater_equal(size, k.mul(k.max(size, (axis,), True), LEADING))
    first = k.argmax(k.where(leading, 1.0, k.zeros(shape, k.dtype(vectors))), axis, True)
    return k.where(k.less(k.gather(vectors, first, axis), 0.0), -1.0, k.ones(first.shape, k.dtype(vectors)))


def turned_qr(k: Any, q: Any, r: Any) -> tuple[Any, Any]:
    """``q`` and ``r`` with the signs of the contract."""
    inner = min(r.shape[-2:])
    diagonal = k.diagonal(r, 0, len(r.shape) - 2, len(r.shape) - 1)
    own = k.where(k.less(diagonal, 0.0), -1.0, k.ones(diagonal.shape, k.dtype(r)))
    own = k.reshape(own, (*own.shape[:-1], 1, inner))
    if q.shape[-1] > inner:
        rest = signs(k, part(k, q, len(q.shape) - 1, inner, q.shape[-1]))
        own = k.concat([own, rest], len(own.shape) - 1)
    # A turned row has negative zeros left of the diagonal, which are not part of a triangle.
    return k.mul(q, own), k.triu(k.mul(r, transposed(k, own)), 0)


def turned_eigh(k: Any, values: Any, vectors: Any) -> tuple[Any, Any]:
    """``values`` and ``vectors`` with the signs of the contract."""
    return values, k.mul(vectors, signs(k, vectors))


def turned_svd(k: Any, u: Any, s: Any, vh: Any) -> tuple[Any, Any, Any]:
    """``u``, ``s`` and ``vh`` with the signs of the contract."""
    left, inner, axis = signs(k, u), s.shape[-1], len(u.shape) - 1
    right = part(k, left, axis, 0, inner)
    if vh.shape[-2] > inner:
        rest = part(k, vh, axis - 1, inner, vh.shape[-2])
        right = k.concat([right, signs(k, transposed(k, rest))], axis)
    return k.mul(u, left), s, k.mul(vh, transposed(k, right))


def eps_of(k: Any, x: Any) -> float:
    """The distance from 1 to the next larger number in the dtype of ``x``."""
    return EPS[k.dtype(x).name]


def identity(k: Any, n: int, dtype: DType) -> Any:
    """The identity matrix."""
    return k.eye(n, n, 0, dtype)


def pivots(k: Any, x: Any) -> tuple[Any, Any]:
    """The diagonal that Gaussian elimination with row exchanges leaves, and the sign of the exchanges.

    A pivot is 0 if its whole column is, in which case nothing is left to eliminate.
    """
    batch, rank = x.shape[:-2], len(x.shape)
    sign, found = k.ones(batch, k.dtype(x)), []
    while n := x.shape[-1]:
        column = part(k, x, rank - 1, 0, 1)
        best = k.argmax(k.abs(column), rank - 2, True)
        row = k.gather(x, k.broadcast_to(best, (*batch, 1, n)), rank - 2)
        pivot = part(k, row, rank - 1, 0, 1)
        found.append(k.reshape(pivot, (*batch, 1)))
        sign = k.where(k.equal(k.reshape(best, batch), 0), sign, k.neg(sign))
        # The first row takes the place of the one that was chosen.
        x = k.scatter(x, k.broadcast_to(best, (*batch, 1, n)), part(k, x, rank - 2, 0, 1), rank - 2, "assign")
        below = part(k, x, rank - 2, 1, n)
        nothing = k.equal(pivot, 0.0)
        factor = k.where(nothing, 0.0, k.div(part(k, below, rank - 1, 0, 1), k.where(nothing, 1.0, pivot)))
        x = k.sub(part(k, below, rank - 1, 1, n), k.mul(factor, part(k, row, rank - 1, 1, n)))
    return (k.concat(found, len(batch)) if found else k.ones((*batch, 0), k.dtype(x))), sign


def eliminated(k: Any, x: Any) -> tuple[Any, Any]:
    """The order of rows in Gaussian elimination with row exchanges, and the result, with factors below the diagonal."""
    shape, rank = x.shape, len(x.shape)
    rows = k.reshape(k.arange(0, shape[-2], 1, int64), (shape[-2], 1))
    columns = k.arange(0, shape[-1], 1, int64)
    order = k.broadcast_to(k.reshape(rows, shape[-2:-1]), shape[:-1])
    for c in range(min(shape[-2:])):
        size = k.abs(part(k, x, rank - 1, c, c + 1))
        best = k.argmax(k.where(k.less(rows, c), -1.0, size), rank - 2, True)
        source = k.where(k.equal(rows, c), best, k.where(k.equal(rows, best), c, rows))
        x = k.gather(x, k.broadcast_to(source, shape), rank - 2)
        order = k.gather(order, k.reshape(source, shape[:-1]), rank - 2)
        row, column = part(k, x, rank - 2, c, c + 1), part(k, x, rank - 1, c, c + 1)
        pivot, below = part(k, row, rank - 1, c, c + 1), k.greater(rows, c)
        # Below a pivot of 0 are zeros alone.
        factor = k.where(below, k.div(column, k.where(k.equal(pivot, 0.0), 1.0, pivot)), 0.0)
        rest = k.sub(x, k.mul(factor, k.where(k.greater(columns, c), row, 0.0)))
        x = k.where(k.logical_and(below, k.equal(columns, c)), factor, rest)
    return order, x


def near_diagonal(k: Any, x: Any) -> Any:
    """The cofactors of nearly diagonal matrices, to first order in what is off their diagonal."""
    n, rank = x.shape[-1], len(x.shape)
    unit, last = identity(k, n, k.dtype(x)), (rank - 1,)
    diagonal = k.reshape(k.diagonal(x, 0, rank - 2, rank - 1), (*x.shape[:-1], 1))
    row = transposed(k, diagonal)
    # Row i holds the diagonal with 1 at place i, so that what is left out besides place j is place i.
    rows = k.broadcast_to(row, x.shape)
    without_two = k.prod_of_others(k.where(k.equal(unit, 1.0), 1.0, rows), last)
    off_diagonal = k.neg(k.mul(transposed(k, x), without_two))
    return k.where(k.equal(unit, 1.0), k.prod_of_others(rows, last), off_diagonal)


class Decompose(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
    """Decompositions of matrices, solutions, inverses and determinants."""

    # ---- decompositions ----

    @operation(kinds="F", shape=_square, required=True, differentiable=True)
    def cholesky(self, x: F, /) -> F:
        """The lower triangular matrix whose product with its transpose is the symmetric part of ``x``.

        Its diagonal is positive. Raises where the symmetric part is not positive definite.
        """
        return missing("cholesky")

    @operation(kinds="F", shape=_lu, result=("int64", "same", "same"), differentiable=True)
    def lu(self: Any, x: F, /) -> tuple[I, F, F]:
        """An order of the rows of ``x`` in which it is the product of a lower triangular L and an upper triangular U.

        Row ``i`` of the product is row ``order[i]`` of ``x``. L has ones on its diagonal and no element of absolute
        value above 1: each step takes the first of the largest elements as its pivot. The gradient needs the leading
        square part of U, as large as the shorter side of ``x``, to be invertible, and raises otherwise.
        """
        shape, dtype = shape_of(x), self.dtype(x)
        rows, inner = shape[-2], min(_matrix(shape))
        order, factors = eliminated(self, widened(self, x))
        last = len(shape) - 1
        lower = part(self, self.tril(factors, -1), last, 0, inner)
        lower = self.add(lower, self.eye(rows, inner, 0, self.dtype(lower)))
        upper = part(self, self.triu(factors, 0), last - 1, 0, inner)
        return order, self.cast(lower, dtype), self.cast(upper, dtype)

    @operation(kinds="F", shape=_qr, result=("same", "same"), required=True, differentiable=True)
    def qr(self, x: F, /, complete: bool = False) -> tuple[F, F]:
        """``x`` as the product of a matrix Q with orthonormal columns and an upper triangular R.

        Q has as many columns as the shorter side of ``x``, or with ``complete`` as many as ``x`` has rows. The diagonal
        of R is not negative. The gradient needs the first columns of ``x``, as many as its shorter side, to be linearly
        independent, and raises if an element of R's diagonal is 0 relative to the largest, up to rounding. For the
        columns of Q that only ``complete`` adds, it is correct for functions of the space that they span.
        """
        return missing("qr")

    @operation(kinds="F", shape=_svd, result=("same", "same", "same"), required=True, differentiable=True)
    def svd(self, x: F, /, full: bool = False) -> tuple[F, F, F]:
        """``u``, ``s`` and ``vh`` whose product ``(u * s) @ vh`` is ``x``; ``s`` is in descending order.

        ``u`` has as many columns, and ``vh`` as many rows, as the shorter side of ``x``; with ``full`` they are square.
        In each column of ``u`` the first element of at least three tenths of the largest one's size is positive, and
        the row of ``vh`` turns with it; so it is in the rows of ``vh`` that only ``full`` adds.
        The gradient of the sum of equal values is correct; for that of their vectors, see the module. For the vectors
        that only ``full`` adds, it is correct for functions of the space that they span.
        """
        return missing("svd")

    @operation(kinds="F", shape=_eigh, result=("same", "same"), required=True, differentiable=True)
    def eigh(self, x: F, /) -> tuple[F, F]:
        """The eigenvalues of the symmetric part of ``x`` in ascending order, and its eigenvectors, the columns.

        In each column the first element of at least three tenths of the largest one's size is positive.
        """
        return missing("eigh")

    @operation(kinds="F", shape=lambda x: _svd(x)[1], differentiable=True)
    def svdvals(self: Any, x: F, /) -> F:
        """The singular values in descending order."""
        return self.svd(x)[1]

    @operation(kinds="F", shape=lambda x: _square(x)[:-1], differentiable=True)
    def eigvalsh(self: Any, x: F, /) -> F:
        """The eigenvalues of the symmetric part in ascending order."""
        return self.eigh(x)[0]

    # ---- solutions and inverses ----

    @operation(kinds="F", shape=solution, required=True, differentiable=True)
    def solve(self, x: F, y: F, /) -> F:
        """The matrix ``z`` with ``x @ z = y``. Raises for a singular ``x``."""
        return missing("solve")

    @operation(kinds="F", shape=solution, differentiable=True)
    def triangular_solve(self: Any, x: F, y: F, /, upper: bool = False) -> F:
        """``solve`` with the lower or upper triangle of ``x``; the other elements are not read.

        Raises if an element of the diagonal is 0.
        """
        return self.solve(self.triu(x, 0) if upper else self.tril(x, 0), y)

    @operation(kinds="F", shape=_square, differentiable=True)
    def inv(self: Any, x: F, /) -> F:
        """The inverse. Raises for a singular ``x``."""
        return self.solve(x, identity(self, _square(shape_of(x))[-1], self.dtype(x)))

    @operation(kinds="F", shape=_inverse, like=("x",), differentiable=True)
    def pinv(self: Any, x: F, rtol: F | float, /) -> F:
        """The Moore-Penrose pseudoinverse; singular values up to ``rtol`` times the largest are taken to be 0.

        ``rtol``, one number or one for each matrix, is a constant. The gradient is that at constant rank, also where
        singular values are equal. (Golub and Pereyra, The differentiation of pseudo-inverses and nonlinear least
        squares problems whose variables separate, 1973)
        """
        shape = _inverse(shape_of(x), None if is_scalar(rtol) else shape_of(rtol))
        u, s, vh = self.svd(x)
        if 0 in s.shape:
            return self.zeros(shape, self.dtype(x))
        part_of_largest = rtol if is_scalar(rtol) else self.reshape(rtol, (*shape_of(rtol), 1))
        counts = self.greater(s, self.mul(self.max(s, (len(s.shape) - 1,), True), part_of_largest))
        inverse = self.where(counts, self.div(1.0, self.where(counts, s, 1.0)), 0.0)
        inverse = self.reshape(inverse, (*inverse.shape, 1))
        return self.matmul(transposed(self, vh), self.mul(inverse, transposed(self, u)))

    # ---- determinants ----

    @operation(kinds="F", shape=_number, differentiable=True)
    def det(self: Any, x: F, /) -> F:
        """The determinant; 1 for an empty matrix.

        Its first two derivatives are correct everywhere, including singular matrices.
        """
        diagonal, sign = pivots(self, widened(self, _checked(x)))
        return self.cast(self.mul(sign, self.prod(diagonal, (len(sign.shape),))), self.dtype(x))

    @operation(kinds="F", shape=lambda x: (_number(x), _number(x)), result=("same", "same"), differentiable=True)
    def slogdet(self: Any, x: F, /) -> tuple[F, F]:
        """The sign of the determinant and the logarithm of its absolute value: 0 and -inf for a singular matrix.

        The gradient of the logarithm is NaN there.
        """
        diagonal, sign = pivots(self, widened(self, _checked(x)))
        axis, dtype = (len(sign.shape),), self.dtype(x)
        sign = self.mul(sign, self.prod(self.sign(diagonal), axis))
        return self.cast(sign, dtype), self.cast(self.sum(self.log(self.abs(diagonal)), axis), dtype)

    @operation(kinds="F", shape=_square, differentiable=True)
    def cofactors(self: Any, x: F, /) -> F:
        """The derivatives of ``det``: for each element, the determinant without its row and column.

        For an invertible ``x`` it is ``det(x) * inv(x).T``. Otherwise ``x`` is made diagonal by its singular vectors,
        which are held constant: the cofactors are then products of the other singular values, known to first order in
        each element.
        """
        n, dtype = _square(shape_of(x))[-1], self.dtype(x)
        if 0 in shape_of(x):
            return x
        wide = widened(self, x)
        held = self.stop_gradient(wide)
        u, s, vh = self.svd(self.where(self.isfinite(held), held, 0.0))  # of NaN the products below are NaN
        axis = len(s.shape) - 1
        largest, smallest = part(self, s, axis, 0, 1), part(self, s, axis, n - 1, n)
        singular = self.less_equal(smallest, self.mul(largest, n * eps_of(self, wide)))
        singular = self.reshape(singular, (*singular.shape, 1))
        unit = identity(self, n, self.dtype(wide))
        regular = self.where(singular, unit, wide)
        of_regular = self.mul(self.reshape(self.det(regular), singular.shape), transposed(self, self.inv(regular)))
        around = self.matmul(self.matmul(transposed(self, u), wide), transposed(self, vh))
        sign = self.sign(self.mul(self.det(u), self.det(vh)))
        of_singular = self.matmul(self.matmul(u, near_diagonal(self, self.where(singular, around, unit))), vh)
        of_singular = self.mul(of_singular, self.reshape(sign, singular.shape))
        return self.cast(self.where(singular, of_singular, of_regular), dtype)

    @operation(kinds="FIB", shape=unchanged)
    def stop_gradient(self, x: Any, /) -> Any:
        """``x`` as a constant at every level of differentiation."""
        return x


def _checked(x: Any) -> Any:
    _square(x.shape)
    return x
