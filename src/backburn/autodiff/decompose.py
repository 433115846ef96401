"""Gradient rules: decompositions, solutions, inverses and determinants.

Rules of decompositions follow Giles, Collected matrix derivative results for forward and reverse mode algorithmic
differentiation (2008); Walter and Lehmann, Algorithmic differentiation of linear algebra functions (2010); and
Townsend, Differentiating the singular value decomposition (2016). Between values that are equal to rounding nothing
flows (:mod:`backburn.backend.decompose`).
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import linear, reduction, tangent
from backburn.backend.decompose import eps_of, identity, symmetric
from backburn.backend.totals import total
from backburn.backend.views import part, transposed
from backburn.base.errors import SingularMatrixError


def product(k: Any, *matrices: Any) -> Any:
    """The product of several matrices, from the left."""
    return reduce(k.matmul, matrices)


def added(k: Any, x: Any, y: Any) -> Any:
    """The sum of what is there."""
    return total(k, (x, y))


def columns(k: Any, x: Any, start: int, stop: int) -> Any:
    """Some columns of the matrices."""
    return part(k, x, len(x.shape) - 1, start, stop)


def on_diagonal(k: Any, values: Any) -> Any:
    """Matrices with ``values`` on the diagonal."""
    unit = identity(k, values.shape[-1], k.dtype(values))
    return k.mul(k.reshape(values, (*values.shape[:-1], 1, values.shape[-1])), unit)


def inverse_where(k: Any, mask: Any, x: Any) -> Any:
    """``1 / x`` where ``mask`` holds, else 0, with finite derivatives."""
    return k.where(mask, k.div(1.0, k.where(mask, x, 1.0)), 0.0)


def size_of(k: Any, values: Any, n: int) -> Any:
    """Below what a difference of values counts as rounding."""
    return k.mul(k.max(k.abs(values), (len(values.shape) - 1,), True), n * eps_of(k, values))


def gaps(k: Any, values: Any, n: int) -> Any:
    """``1 / (values[j] - values[i])`` for row i and column j; 0 where they are equal to rounding."""
    batch, count = values.shape[:-1], values.shape[-1]
    difference = k.sub(k.reshape(values, (*batch, 1, count)), k.reshape(values, (*batch, count, 1)))
    tiny = k.reshape(size_of(k, values, n), (*batch, 1, 1))
    return inverse_where(k, k.greater(k.abs(difference), tiny), difference)


# ---- decompositions ----


def cholesky_gradient(k: Any, g: Any, out: Any) -> Any:
    """``L^-T P L^-1`` made symmetric, with P the lower triangle of ``L^T g``, its diagonal halved."""
    upper = transposed(k, out)
    half = k.sub(1.0, k.mul(identity(k, out.shape[-1], k.dtype(out)), 0.5))
    lower = k.mul(k.tril(k.matmul(upper, k.tril(g, 0)), 0), half)
    left = k.triangular_solve(upper, lower, True)
    return symmetric(k, k.triangular_solve(upper, transposed(k, left), True))


def lu_gradient(k: Any, g: Any, out: Any) -> Any:
    """With square factors, the rows in order: ``L^-T (tril(L^T g_l, -1) + triu(g_u U^T)) U^-T``.

    Further columns of U are ``L^-1`` times those of the matrix, further rows of L those of the matrix times ``U^-1``.
    """
    (_, g_l, g_u), (order, l, u) = g, out
    (*stack, m, inner), n, axis = l.shape, u.shape[-1], len(l.shape) - 2
    if 0 in (*stack, m, n):
        return k.zeros((*stack, m, n), k.dtype(l))
    g_l, g_u = (k.zeros(f.shape, k.dtype(f)) if d is None else d for f, d in ((l, g_l), (u, g_u)))
    lower, upper = part(k, l, axis, 0, inner), columns(k, u, 0, inner)

    def by_lower(y: Any) -> Any:
        return k.triangular_solve(transposed(k, lower), y, True)

    def by_upper(y: Any) -> Any:
        try:
            return transposed(k, k.triangular_solve(upper, transposed(k, y), True))
        except SingularMatrixError as cause:
            raise SingularMatrixError(
                f"lu: the gradient needs pivots that are not 0. Operand: "
                f"{k.dtype(l)}[{','.join(map(str, (*stack, m, n)))}] ({k.spec})"
            ) from cause

    of_lower = k.matmul(transposed(k, lower), part(k, g_l, axis, 0, inner))
    of_upper = k.matmul(columns(k, g_u, 0, inner), transposed(k, upper))
    further = columns(k, g_u, inner, n) if n > inner else part(k, g_l, axis, inner, m)
    if n > inner:
        of_lower = k.sub(of_lower, k.matmul(further, transposed(k, columns(k, u, inner, n))))
    if m > inner:
        of_upper = k.sub(of_upper, k.matmul(transposed(k, part(k, l, axis, inner, m)), further))
    result = by_upper(by_lower(k.add(k.tril(of_lower, -1), k.triu(of_upper, 0))))
    if n > inner:
        result = k.concat([result, by_lower(further)], axis + 1)
    if m > inner:
        result = k.concat([result, by_upper(further)], axis)
    places = k.reshape(k.argsort(order, axis), (*stack, m, 1))
    return k.gather(result, k.broadcast_to(places, (*stack, m, n)), axis)


def tall_qr_gradient(k: Any, g_q: Any, g_r: Any, q: Any, r: Any, x_shape: Any) -> Any:
    """The gradient where Q has as many columns as the matrix and R is square."""
    inner = None if g_r is None else k.matmul(r, transposed(k, k.triu(g_r, 0)))
    if g_q is not None:
        inner = added(k, inner, k.neg(k.matmul(transposed(k, g_q), q)))
    if inner is None:
        return None
    lower = k.add(k.tril(inner, 0), transposed(k, k.tril(inner, -1)))
    total = added(k, g_q, k.matmul(q, lower))
    # Rows of R that rounding alone has made different from 0 would make the gradient huge; for zeros solving raises.
    diagonal = k.abs(k.diagonal(r, 0, len(r.shape) - 2, len(r.shape) - 1))
    counts = k.greater(diagonal, size_of(k, diagonal, q.shape[-2]))
    safe = k.where(k.reshape(counts, (*counts.shape, 1)), r, 0.0)
    try:
        return transposed(k, k.triangular_solve(safe, transposed(k, total), True))
    except SingularMatrixError as cause:
        first = "columns" if q.shape[-2] > q.shape[-1] else f"first {q.shape[-1]} columns"
        raise SingularMatrixError(
            f"qr: the gradient needs independent {first}, and to rounding they are not. Operand: "
            f"{k.dtype(r)}[{','.join(map(str, x_shape))}] ({k.spec})"
        ) from cause


def qr_gradient(k: Any, g: Any, x_shape: Any, out: Any) -> Any:
    """Columns of a wide matrix beyond its rows are ``Q^T x``; those of Q beyond a tall one's complement the others."""
    (g_q, g_r), (q, r), (m, n) = g, out, x_shape[-2:]
    if 0 in x_shape:
        return k.zeros(x_shape, k.dtype(r))
    if m < n:
        square = columns(k, r, 0, m)
        if g_r is None:
            rest = k.zeros((*x_shape[:-1], n - m), k.dtype(r))
            first = tall_qr_gradient(k, g_q, None, q, square, x_shape)
        else:
            of_rest = columns(k, g_r, m, n)
            rest = k.matmul(q, of_rest)
            from_rest = product(k, q, columns(k, r, m, n), transposed(k, of_rest))
            first = tall_qr_gradient(k, added(k, g_q, from_rest), columns(k, g_r, 0, m), q, square, x_shape)
        return k.concat([first, rest], len(x_shape) - 1)
    if q.shape[-1] > n:
        axis = len(x_shape) - 2
        q, g_q = first_vectors(k, q, g_q, n)
        r, g_r = part(k, r, axis, 0, n), None if g_r is None else part(k, g_r, axis, 0, n)
    return tall_qr_gradient(k, g_q, g_r, q, r, x_shape)


def eigh_gradient(k: Any, g: Any, out: Any) -> Any:
    """``V (diag(g_values) + gaps * V^T g_vectors) V^T``, made symmetric."""
    (g_values, g_vectors), (values, vectors) = g, out
    if 0 in vectors.shape:
        return k.zeros(vectors.shape, k.dtype(vectors))
    back = transposed(k, vectors)
    inner = None if g_values is None else on_diagonal(k, g_values)
    if g_vectors is not None:
        inner = added(k, inner, k.mul(gaps(k, values, values.shape[-1]), k.matmul(back, g_vectors)))
    return symmetric(k, product(k, vectors, inner, back))


def svd_gradient(k: Any, g: Any, x_shape: Any, out: Any) -> Any:
    """Rotations among the vectors, divided by differences of squares, and what leaves their space, by the values."""
    (g_u, g_s, g_vh), (u, s, vh), (m, n) = g, out, x_shape[-2:]
    if 0 in x_shape:
        return k.zeros(x_shape, k.dtype(s))
    batch, inner = s.shape[:-1], s.shape[-1]
    u, g_u = first_vectors(k, u, g_u, inner)
    v, g_v = first_vectors(k, transposed(k, vh), None if g_vh is None else transposed(k, g_vh), inner)
    middle = None if g_s is None else on_diagonal(k, g_s)
    if g_u is None and g_v is None:
        return product(k, u, middle, transposed(k, v))
    row, column = k.reshape(s, (*batch, 1, inner)), k.reshape(s, (*batch, inner, 1))
    total = k.add(row, column)
    by_squares = k.mul(gaps(k, s, max(m, n)), inverse_where(k, k.greater(total, 0.0), total))
    inverse = k.reshape(inverse_where(k, k.greater(s, size_of(k, s, max(m, n))), s), row.shape)
    result = None
    if g_u is not None:
        middle = added(k, middle, k.mul(k.mul(rotation(k, u, g_u), by_squares), row))
        if m > inner:
            result = k.matmul(k.mul(outside(k, u, g_u), inverse), transposed(k, v))
    if g_v is not None:
        middle = added(k, middle, k.mul(k.mul(rotation(k, v, g_v), by_squares), column))
        if n > inner:
            result = added(k, result, k.matmul(k.mul(u, inverse), transposed(k, outside(k, v, g_v))))
    return added(k, result, product(k, u, middle, transposed(k, v)))


def first_vectors(k: Any, vectors: Any, g: Any, count: int) -> tuple[Any, Any]:
    """The first vectors, and their gradient with that of the space which the others span."""
    if vectors.shape[-1] == count:
        return vectors, g
    first, rest = columns(k, vectors, 0, count), columns(k, vectors, count, vectors.shape[-1])
    if g is None:
        return first, None
    of_rest = columns(k, g, count, vectors.shape[-1])
    return first, k.sub(columns(k, g, 0, count), product(k, rest, transposed(k, of_rest), first))


def rotation(k: Any, vectors: Any, g: Any) -> Any:
    """What of ``g`` turns the vectors among themselves."""
    inner = k.matmul(transposed(k, vectors), g)
    return k.sub(inner, transposed(k, inner))


def outside(k: Any, vectors: Any, g: Any) -> Any:
    """What of ``g`` leaves the space of the vectors."""
    return k.sub(g, product(k, vectors, k.matmul(transposed(k, vectors), g)))


gradient("cholesky", x=cholesky_gradient)
gradient("lu", x=lu_gradient)
gradient("qr", x=qr_gradient)
gradient("eigh", x=eigh_gradient)
gradient("svd", x=svd_gradient)


# ---- solutions and inverses ----


def solve_gradients(k: Any, g: Any, x: Any, out: Any) -> tuple[Any, Any]:
    """``x^-T g`` for the right-hand side, and its product with the solution for the matrix."""
    of_y = k.solve(transposed(k, x), g)
    return k.neg(k.matmul(of_y, transposed(k, out))), of_y


def triangular_solve_gradients(k: Any, g: Any, x: Any, out: Any, upper: bool) -> tuple[Any, Any]:
    """That of ``solve``, of which the triangle counts."""
    of_y = k.triangular_solve(transposed(k, x), g, not upper)
    of_x = k.neg(k.matmul(of_y, transposed(k, out)))
    return k.triu(of_x, 0) if upper else k.tril(of_x, 0), of_y


def inv_gradient(k: Any, g: Any, out: Any) -> Any:
    """``-x^-T g x^-T``."""
    back = transposed(k, out)
    return k.neg(product(k, back, g, back))


def pinv_gradient(k: Any, g: Any, x: Any, out: Any) -> Any:
    """That of the inverse, and what leaves the spaces of rows and of columns."""
    back, turned = transposed(k, out), transposed(k, g)
    result = k.neg(product(k, back, g, back))
    outside_columns = k.sub(turned, product(k, x, out, turned))
    inside_rows = product(k, back, out, turned)
    outside_rows = k.sub(inside_rows, product(k, inside_rows, out, x))
    return k.add(k.add(result, product(k, outside_columns, out, back)), outside_rows)


gradient("solve", ("x", "y"), solve_gradients)
gradient("triangular_solve", ("x", "y"), triangular_solve_gradients)
gradient("inv", x=inv_gradient)
gradient("pinv", x=pinv_gradient, rtol=lambda k, g: None)


# ---- determinants ----


def slogdet_gradient(k: Any, g: Any, x: Any, out: Any) -> Any:
    """The transposed inverse; NaN where there is none."""
    if g[1] is None:
        return k.zeros(x.shape, k.dtype(x))
    of_log = k.reshape(g[1], (*g[1].shape, 1, 1))
    regular = k.reshape(k.not_equal(out[0], 0.0), of_log.shape)
    safe = k.where(regular, x, identity(k, x.shape[-1], k.dtype(x)))
    return k.where(regular, k.mul(of_log, transposed(k, k.inv(safe))), float("nan"))


gradient("det", x=lambda k, g, x: k.mul(k.reshape(g, (*g.shape, 1, 1)), k.cofactors(x)))
gradient("slogdet", x=slogdet_gradient)

# ---- tangents; the decompositions and pinv have their rules transposed ----


def triangular_solve_tangent(k: Any, t: Any, x: Any, out: Any, upper: bool) -> Any:
    """The solution for what the moved triangle makes of the solution."""
    moved = k.triu(t, 0) if upper else k.tril(t, 0)
    return k.neg(k.triangular_solve(x, k.matmul(moved, out), upper))


def slogdet_tangent(k: Any, t: Any, x: Any, out: Any) -> Any:
    """The sum of the tangent times the gradient; the sign is constant."""
    gradient = slogdet_gradient(k, (None, k.ones(out[1].shape, k.dtype(x))), x, out)
    rank = len(x.shape)
    return None, k.sum(k.mul(t, gradient), (rank - 2, rank - 1), False)


linear("solve", "triangular_solve", groups=("y",))
tangent("solve", x=lambda k, t, x, out: k.neg(k.solve(x, k.matmul(t, out))))
tangent("triangular_solve", x=triangular_solve_tangent)
tangent("inv", x=lambda k, t, out: k.neg(product(k, out, t, out)))
reduction("det", axes=(-2, -1))
tangent("slogdet", x=slogdet_tangent)
