"""Decompositions of matrices, and what follows from them: solutions, inverses, determinants.

The matrices are in the last two axes; the axes before them are batch axes and, with two operands, broadcast. 16-bit
floats are computed in float32. Where the definition leaves a choice, it is fixed, so that all backends agree:

* in ``lu`` the pivot is the first of the largest elements;
* in ``qr`` the diagonal of R is not negative;
* in ``eigh``, ``eig`` and ``svd`` (for the left vectors) the sign or phase of each vector is such that the first of its
  elements whose absolute value is at least three tenths of the largest is positive; so functions of complex vectors
  have derivatives even if they depend on the phase.

``cholesky`` and ``eigh`` decompose the symmetric part ``(x + x.T) / 2`` of any matrix, so that gradients are symmetric;
of complex matrices it is the Hermitian part, and ``.T`` means the adjoint.
An operation that has no result for a matrix raises a :class:`LinearAlgebraError`.

Vectors of equal eigenvalues or singular values are not determined, and have no derivative. Where the cotangent of such
a vector is not 0, the gradient is NaN: even if a function of values and vectors is smooth, such as ``v @ diag(f(w)) @
v.T``, its derivative does not follow from its cotangents. Gradients of equal values alone are those of their sum;
vectors of equal values whose cotangents are 0 are ignored. The gradient of the polar factor ``u @ vh`` divides only by
sums of values, and is correct wherever these are not 0.
"""

from __future__ import annotations

from typing import Any, Protocol

from backburn.base.errors import ShapeError
from backburn.ops.bodies.adjoints import (
    adjoint,
    conj,
    directions,
    is_complex,
    scaled,
    sizes,
)
from backburn.ops.bodies.decompositions import (
    eliminated,
    eps_of,
    grad_cholesky,
    grad_eig,
    grad_eigh,
    grad_inv,
    grad_lu,
    grad_pinv,
    grad_qr,
    grad_slogdet,
    grad_solve,
    grad_svd,
    grad_triangular_solve,
    identity,
    matmul_chain,
    near_diagonal,
    pivots,
    tangent_eig,
    tangent_eigh,
    tangent_slogdet,
    tangent_svd,
    tangent_triangular_solve,
)
from backburn.ops.bodies.half_precision import upcast_half
from backburn.ops.bodies.scalars import is_scalar
from backburn.ops.bodies.slicing import slice_axis, transpose
from backburn.ops.complex_numbers import without_complex
from backburn.ops.primitives import Primitives
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.rules.shapes import Shape, broadcast, broadcast_to, sides_of_matrix, square_matrix, unchanged
from backburn.ops.rules.tangents import linear_in, reduction, tangent
from backburn.ops.table import missing, operation
from backburn.ops.types import B, F, I, Q

# ---- shapes ----


def _lu(x: Shape, **_: Any) -> tuple[Shape, Shape, Shape]:
    rows, columns = sides_of_matrix(x)
    inner = min(rows, columns)
    return x[:-1], (*x[:-2], rows, inner), (*x[:-2], inner, columns)


def _qr(x: Shape, *, complete: bool = False, **_: Any) -> tuple[Shape, Shape]:
    rows, columns = sides_of_matrix(x)
    inner = rows if complete else min(rows, columns)
    return (*x[:-2], rows, inner), (*x[:-2], inner, columns)


def _eigh(x: Shape, **_: Any) -> tuple[Shape, Shape]:
    return square_matrix(x)[:-1], x


def _svd(x: Shape, *, full: bool = False, **_: Any) -> tuple[Shape, Shape, Shape]:
    rows, columns = sides_of_matrix(x)
    inner = min(rows, columns)
    left, right = (rows, columns) if full else (inner, inner)
    return (*x[:-2], rows, left), (*x[:-2], inner), (*x[:-2], right, columns)


def solution(x: Shape, y: Shape, **_: Any) -> Shape:
    """The shape of ``solve``."""
    square_matrix(x)
    rows, columns = sides_of_matrix(y)
    if rows != x[-1]:
        raise ShapeError(f"axis -1 of the matrices is {x[-1]}, and axis -2 of the right-hand sides {rows}")
    return (*broadcast(x[:-2], y[:-2], trailing=2), rows, columns)


def _number(x: Shape, **_: Any) -> Shape:
    return square_matrix(x)[:-2]


def _inverse(x: Shape, rtol: Shape | None = None, **_: Any) -> Shape:
    rows, columns = sides_of_matrix(x)
    if rtol is not None:
        broadcast_to(rtol, shape=x[:-2])
    return (*x[:-2], columns, rows)


class Decompositions(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Decompositions of matrices, solutions, inverses and determinants."""

    # ---- decompositions ----

    @operation(kinds="FC", shape=square_matrix, required=True, differentiable=True)
    def cholesky(self, x: F, /) -> F:
        """The lower triangular matrix whose product with its transpose is the symmetric part of ``x``.

        Its diagonal is positive. Raises where the symmetric part is not positive definite.
        """
        return missing("cholesky")

    gradient_rule(cholesky, x=grad_cholesky)

    @operation(kinds="FC", shape=_lu, result=("int64", "same", "same"), differentiable=True)
    def lu(self: Any, x: F, /) -> tuple[I, F, F]:
        """An order of the rows of ``x`` in which it is the product of a lower triangular L and an upper triangular U.

        Row ``i`` of the product is row ``order[i]`` of ``x``. L has ones on its diagonal and no element of absolute
        value above 1: each step takes the first of the largest elements as its pivot. The gradient needs the leading
        square part of U, as large as the shorter side of ``x``, to be invertible, and raises otherwise.
        """
        shape, dtype = x.shape, self.dtype(x)
        rows, inner = shape[-2], min(sides_of_matrix(shape))
        order, factors = eliminated(self, upcast_half(self, x))
        last = len(shape) - 1
        lower = slice_axis(self, self.tril(factors, -1), last, 0, inner)
        lower = self.add(lower, self.eye(rows, inner, 0, self.dtype(lower)))
        upper = slice_axis(self, self.triu(factors, 0), last - 1, 0, inner)
        return order, self.astype(lower, dtype), self.astype(upper, dtype)

    gradient_rule(lu, x=grad_lu)

    @operation(kinds="FC", shape=_qr, result=("same", "same"), required=True, differentiable=True)
    def qr(self, x: F, /, complete: bool = False) -> tuple[F, F]:
        """``x`` as the product of a matrix Q with orthonormal columns and an upper triangular R.

        Q has as many columns as the shorter side of ``x``, or with ``complete`` as many as ``x`` has rows. The diagonal
        of R is not negative. The gradient needs the first columns of ``x``, as many as its shorter side, to be linearly
        independent, and raises if an element of R's diagonal is 0 relative to the largest, up to rounding. For the
        columns of Q that only ``complete`` adds, it is correct for functions of the space that they span.
        """
        return missing("qr")

    gradient_rule(qr, x=grad_qr)

    @operation(kinds="FC", shape=_svd, result=("same", "real", "same"), required=True, differentiable=True)
    def svd(self, x: F, /, full: bool = False) -> tuple[F, F, F]:
        """``u``, ``s`` and ``vh`` whose product ``(u * s) @ vh`` is ``x``; ``s`` is in descending order.

        ``u`` has as many columns, and ``vh`` as many rows, as the shorter side of ``x``; with ``full`` they are square.
        In each column of ``u`` the first element of at least three tenths of the largest one's size is positive, which
        fixes the sign or phase of the row of ``vh``. The same holds for the rows of ``vh`` that only ``full`` adds.
        The gradient of the sum of equal values is correct; for that of their vectors, see the module. For the vectors
        that only ``full`` adds, it is correct for functions of the space that they span.
        """
        return missing("svd")

    gradient_rule(svd, x=grad_svd)
    tangent(svd, x=tangent_svd)

    @operation(kinds="FC", shape=_eigh, result=("real", "same"), required=True, differentiable=True)
    def eigh(self, x: F, /) -> tuple[F, F]:
        """The eigenvalues of the symmetric part of ``x`` in ascending order, and its eigenvectors, the columns.

        In each column the first element of at least three tenths of the largest one's size is positive.
        """
        return missing("eigh")

    gradient_rule(eigh, x=grad_eigh)
    tangent(eigh, x=tangent_eigh)

    @operation(kinds="FC", shape=lambda x: _svd(x)[1], result="real", differentiable=True)
    def svdvals(self: Any, x: F, /) -> F:
        """The singular values in descending order."""
        return self.svd(x)[1]

    @operation(kinds="FC", shape=lambda x: square_matrix(x)[:-1], result="real", differentiable=True)
    def eigvalsh(self: Any, x: F, /) -> F:
        """The eigenvalues of the symmetric part in ascending order."""
        return self.eigh(x)[0]

    @operation(kinds="C", shape=_eigh, result=("same", "same"), differentiable=True)
    def eig(self, x: F, /) -> tuple[F, F]:
        """The eigenvalues of ``x``, in ascending order of their real and then their imaginary parts, and eigenvectors.

        Each vector, a column, has length 1, and its first element of at least three tenths of the largest one's size is
        real and positive. The gradient needs a basis of eigenvectors, and is huge or NaN if there is none.
        """
        return without_complex("eig")

    gradient_rule(eig, x=grad_eig)
    tangent(eig, x=tangent_eig)

    @operation(kinds="C", shape=lambda x: square_matrix(x)[:-1], differentiable=True)
    def eigvals(self: Any, x: F, /) -> F:
        """The eigenvalues, in the order of :meth:`eig`."""
        return self.eig(x)[0]

    # ---- solutions and inverses ----

    @operation(kinds="FC", shape=solution, required=True, differentiable=True)
    def solve(self, x: F, y: F, /) -> F:
        """The matrix ``z`` with ``x @ z = y``. Raises for a singular ``x``."""
        return missing("solve")

    gradient_rule(solve, ("x", "y"), grad_solve)
    linear_in(solve, "y")
    tangent(solve, x=lambda k, t, x, out: k.neg(k.solve(x, k.matmul(t, out))))

    @operation(kinds="FC", shape=solution, differentiable=True)
    def triangular_solve(self: Any, x: F, y: F, /, upper: bool = False) -> F:
        """``solve`` with the lower or upper triangle of ``x``; the other elements are not read.

        Raises if an element of the diagonal is 0.
        """
        return self.solve(self.triu(x, 0) if upper else self.tril(x, 0), y)

    gradient_rule(triangular_solve, ("x", "y"), grad_triangular_solve)
    linear_in(triangular_solve, "y")
    tangent(triangular_solve, x=tangent_triangular_solve)

    @operation(kinds="FC", shape=square_matrix, differentiable=True)
    def inv(self: Any, x: F, /) -> F:
        """The inverse. Raises for a singular ``x``."""
        return self.solve(x, identity(self, square_matrix(x.shape)[-1], self.dtype(x)))

    gradient_rule(inv, x=grad_inv)
    tangent(inv, x=lambda k, t, out: k.neg(matmul_chain(k, out, t, out)))

    @operation(kinds="FC", shape=_inverse, like=("x",), differentiable=True)
    def pinv(self: Any, x: F, rtol: F | float, /) -> F:
        """The Moore-Penrose pseudoinverse; singular values up to ``rtol`` times the largest are taken to be 0.

        ``rtol``, one number or one for each matrix, is a constant. The gradient is that at constant rank, also where
        singular values are equal. (Golub and Pereyra, The differentiation of pseudo-inverses and nonlinear least
        squares problems whose variables separate, 1973)
        """
        shape = _inverse(x.shape, None if is_scalar(rtol) else rtol.shape)
        u, s, vh = self.svd(x)
        if 0 in s.shape:
            return self.zeros(shape, self.dtype(x))
        part_of_largest = rtol if is_scalar(rtol) else self.reshape(rtol, (*rtol.shape, 1))
        counts = self.greater(s, self.mul(self.max(s, (len(s.shape) - 1,), True), part_of_largest))
        inverse = self.where(counts, self.div(1.0, self.where(counts, s, 1.0)), 0.0)
        inverse = self.reshape(inverse, (*inverse.shape, 1))
        return self.matmul(adjoint(self, vh), scaled(self, adjoint(self, u), inverse))

    gradient_rule(pinv, x=grad_pinv, rtol=lambda k, g: None)

    # ---- determinants ----

    @operation(kinds="FC", shape=_number, differentiable=True)
    def det(self: Any, x: F, /) -> F:
        """The determinant; 1 for an empty matrix.

        Its first two derivatives are correct everywhere, including singular matrices.
        """
        diagonal, sign = pivots(self, upcast_half(self, _checked(x)))
        return self.astype(self.mul(sign, self.prod(diagonal, (len(sign.shape),))), self.dtype(x))

    gradient_rule(det, x=lambda k, g, x: k.mul(k.reshape(g, (*g.shape, 1, 1)), k.cofactors(x)))
    reduction(det, axes=(-2, -1))

    @operation(kinds="FC", shape=lambda x: (_number(x), _number(x)), result=("same", "real"), differentiable=True)
    def slogdet(self: Any, x: F, /) -> tuple[F, F]:
        """The sign of the determinant and the logarithm of its absolute value: 0 and -inf for a singular matrix.

        The gradient of the logarithm is NaN there.
        """
        diagonal, sign = pivots(self, upcast_half(self, _checked(x)))
        axis, dtype = (len(sign.shape),), self.dtype(x)
        sign = self.mul(sign, self.prod(directions(self, diagonal), axis))
        logarithm = self.sum(self.log(sizes(self, diagonal)), axis)
        return self.astype(sign, dtype), logarithm if is_complex(self, x) else self.astype(logarithm, dtype)

    gradient_rule(slogdet, x=grad_slogdet)
    tangent(slogdet, x=tangent_slogdet)

    @operation(kinds="FC", shape=square_matrix, differentiable=True)
    def cofactors(self: Any, x: F, /) -> F:
        """The derivatives of ``det``: for each element, the determinant without its row and column.

        For an invertible ``x`` they are ``det(x) * inv(x).T``. Otherwise the singular vectors, held constant, make
        ``x`` diagonal: the cofactors are then products of the other singular values, to first order in each element.
        """
        n, dtype = square_matrix(x.shape)[-1], self.dtype(x)
        if 0 in x.shape:
            return x
        wide = upcast_half(self, x)
        held = self.stop_gradient(wide)
        u, s, vh = self.svd(self.where(self.isfinite(held), held, 0.0))  # for NaN the products below are NaN
        axis = len(s.shape) - 1
        largest, smallest = slice_axis(self, s, axis, 0, 1), slice_axis(self, s, axis, n - 1, n)
        singular = self.less_equal(smallest, self.mul(largest, n * eps_of(self, wide)))
        singular = self.reshape(singular, (*singular.shape, 1))
        unit = identity(self, n, self.dtype(wide))
        regular = self.where(singular, unit, wide)
        regular = self.mul(self.reshape(self.det(regular), singular.shape), transpose(self, self.inv(regular)))
        around = self.matmul(self.matmul(adjoint(self, u), wide), adjoint(self, vh))
        sign = directions(self, self.mul(self.det(u), self.det(vh)))
        inner = near_diagonal(self, self.where(singular, around, unit))
        singular_cofactors = self.matmul(self.matmul(conj(self, u), inner), conj(self, vh))
        singular_cofactors = self.mul(singular_cofactors, self.reshape(sign, singular.shape))
        return self.astype(self.where(singular, singular_cofactors, regular), dtype)

    @operation(kinds="FCIB", shape=unchanged)
    def stop_gradient(self, x: Any, /) -> Any:
        """``x`` as a constant at every level of differentiation."""
        return x


def _checked(x: Any) -> Any:
    square_matrix(x.shape)
    return x
