"""The arithmetic of decompositions: bodies for backends without a library, gradients and tangents.

:mod:`backburn.ops.decompositions` describes what they compute, and where they have no derivative.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from backburn.base.dtypes import DType, int64
from backburn.base.errors import SingularMatrixError
from backburn.ops.bodies.adjoints import (
    adjoint,
    alike,
    conj,
    is_complex,
    phase_tangent,
    real_part,
    scaled,
    signs,
    sizes,
    turning,
    units,
    with_phase,
)
from backburn.ops.bodies.reductions import sum_terms
from backburn.ops.bodies.slicing import slice_axis, transpose
from backburn.ops.rules.shapes import square_matrix

#: The distance from 1 to the next larger number, by dtype.
EPS = {
    "float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52, "complex64": 2.0**-23,
    "complex128": 2.0**-52,
}  # fmt: skip


# ---- bodies ----


def symmetric(k: Any, x: Any) -> Any:
    """``(x + x.T) / 2``, exactly ``x`` for a symmetric ``x``; for a complex ``x``, the Hermitian part."""
    square_matrix(x.shape)  # the sum below would broadcast a row and a column
    half = k.mul(x, 0.5)
    return k.add(half, adjoint(k, half))


def turned_qr(k: Any, q: Any, r: Any) -> tuple[Any, Any]:
    """``q`` and ``r`` with the signs of the contract."""
    inner = min(r.shape[-2:])
    diagonal = k.diagonal(r, 0, len(r.shape) - 2, len(r.shape) - 1)
    own = k.reshape(units(k, diagonal), (*diagonal.shape[:-1], 1, inner))
    if q.shape[-1] > inner:
        rest = signs(k, slice_axis(k, q, len(q.shape) - 1, inner, q.shape[-1]))
        own = k.concat([own, rest], len(own.shape) - 1)
    # A negated row has negative zeros left of the diagonal, where a triangle has zeros.
    return k.mul(q, own), k.triu(k.mul(r, adjoint(k, own)), 0)


def turned_eigh(k: Any, values: Any, vectors: Any) -> tuple[Any, Any]:
    """``values`` and ``vectors`` with the signs of the contract."""
    return values, k.mul(vectors, signs(k, vectors))


def turned_eig(k: Any, values: Any, vectors: Any) -> tuple[Any, Any]:
    """``values`` and ``vectors`` with the phases and in the order of the contract."""
    axis = len(values.shape) - 1
    order = k.argsort(k.imag(values), axis, False)
    later = k.argsort(k.take_along_axis(k.real(values), order, axis), axis, False)
    order = k.take_along_axis(order, later, axis)
    places = k.broadcast_to(k.reshape(order, (*order.shape[:-1], 1, order.shape[-1])), vectors.shape)
    vectors = k.take_along_axis(vectors, places, axis + 1)
    return k.take_along_axis(values, order, axis), k.mul(vectors, signs(k, vectors))


def turned_svd(k: Any, u: Any, s: Any, vh: Any) -> tuple[Any, Any, Any]:
    """``u``, ``s`` and ``vh`` with the signs of the contract."""
    left, inner, axis = signs(k, u), s.shape[-1], len(u.shape) - 1
    right = slice_axis(k, left, axis, 0, inner)
    if vh.shape[-2] > inner:
        rest = slice_axis(k, vh, axis - 1, inner, vh.shape[-2])
        right = k.concat([right, signs(k, adjoint(k, rest))], axis)
    return k.mul(u, left), s, k.mul(vh, adjoint(k, right))


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
        column = slice_axis(k, x, rank - 1, 0, 1)
        best = k.argmax(sizes(k, column), rank - 2, True)
        row = k.take_along_axis(x, k.broadcast_to(best, (*batch, 1, n)), rank - 2)
        pivot = slice_axis(k, row, rank - 1, 0, 1)
        found.append(k.reshape(pivot, (*batch, 1)))
        sign = k.where(k.equal(k.reshape(best, batch), 0), sign, k.neg(sign))
        # The first row replaces the chosen one.
        x = k.scatter(x, k.broadcast_to(best, (*batch, 1, n)), slice_axis(k, x, rank - 2, 0, 1), rank - 2, "assign")
        below = slice_axis(k, x, rank - 2, 1, n)
        nothing = k.equal(pivot, 0.0)
        factor = k.where(nothing, 0.0, k.div(slice_axis(k, below, rank - 1, 0, 1), k.where(nothing, 1.0, pivot)))
        x = k.sub(slice_axis(k, below, rank - 1, 1, n), k.mul(factor, slice_axis(k, row, rank - 1, 1, n)))
    return (k.concat(found, len(batch)) if found else k.ones((*batch, 0), k.dtype(x))), sign


def eliminated(k: Any, x: Any) -> tuple[Any, Any]:
    """The order of rows in Gaussian elimination with row exchanges, and the result, with factors below the diagonal."""
    shape, rank = x.shape, len(x.shape)
    rows = k.reshape(k.arange(0, shape[-2], 1, int64), (shape[-2], 1))
    columns = k.arange(0, shape[-1], 1, int64)
    order = k.broadcast_to(k.reshape(rows, shape[-2:-1]), shape[:-1])
    for c in range(min(shape[-2:])):
        size = sizes(k, slice_axis(k, x, rank - 1, c, c + 1))
        best = k.argmax(k.where(k.less(rows, c), -1.0, size), rank - 2, True)
        source = k.where(k.equal(rows, c), best, k.where(k.equal(rows, best), c, rows))
        x = k.take_along_axis(x, k.broadcast_to(source, shape), rank - 2)
        order = k.take_along_axis(order, k.reshape(source, shape[:-1]), rank - 2)
        row, column = slice_axis(k, x, rank - 2, c, c + 1), slice_axis(k, x, rank - 1, c, c + 1)
        pivot, below = slice_axis(k, row, rank - 1, c, c + 1), k.greater(rows, c)
        # Below a pivot of 0 there are only zeros.
        factor = k.where(below, k.div(column, k.where(k.equal(pivot, 0.0), 1.0, pivot)), 0.0)
        rest = k.sub(x, k.mul(factor, k.where(k.greater(columns, c), row, 0.0)))
        x = k.where(k.logical_and(below, k.equal(columns, c)), factor, rest)
    return order, x


def near_diagonal(k: Any, x: Any) -> Any:
    """The cofactors of nearly diagonal matrices, to first order in the off-diagonal elements."""
    n, rank = x.shape[-1], len(x.shape)
    unit, last = identity(k, n, k.dtype(x)), (rank - 1,)
    diagonal = k.reshape(k.diagonal(x, 0, rank - 2, rank - 1), (*x.shape[:-1], 1))
    row = transpose(k, diagonal)
    # Row i holds the diagonal with 1 at index i, so that a product without element j also omits element i.
    rows = k.broadcast_to(row, x.shape)
    without_two = k.prod_of_others(k.where(k.equal(unit, 1.0), 1.0, rows), last)
    off_diagonal = k.neg(k.mul(transpose(k, x), without_two))
    return k.where(k.equal(unit, 1.0), k.prod_of_others(rows, last), off_diagonal)


# ---- gradients ----


def matmul_chain(k: Any, *matrices: Any) -> Any:
    """The product of several matrices, from the left."""
    return reduce(k.matmul, matrices)


def columns(k: Any, x: Any, start: int, stop: int) -> Any:
    """The columns ``start`` to ``stop`` of the matrices."""
    return slice_axis(k, x, len(x.shape) - 1, start, stop)


def diagonal_matrices(k: Any, values: Any) -> Any:
    """Matrices with ``values`` on the diagonal."""
    unit = identity(k, values.shape[-1], k.dtype(values))
    return k.mul(k.reshape(values, (*values.shape[:-1], 1, values.shape[-1])), unit)


def masked_inverse(k: Any, mask: Any, x: Any) -> Any:
    """``1 / x`` where ``mask`` holds, else 0, with finite derivatives."""
    return k.where(mask, k.div(1.0, k.where(mask, x, 1.0)), 0.0)


def rounding_tolerance(k: Any, values: Any, n: int) -> Any:
    """The difference up to which values count as equal."""
    return k.mul(k.max(sizes(k, values), (len(values.shape) - 1,), True), n * eps_of(k, values))


def differences(k: Any, values: Any) -> Any:
    """``values[j] - values[i]`` for row i and column j."""
    batch, count = values.shape[:-1], values.shape[-1]
    return k.sub(k.reshape(values, (*batch, 1, count)), k.reshape(values, (*batch, count, 1)))


def equal_pairs(k: Any, values: Any, n: int) -> Any:
    """Where two of the values are equal up to rounding, of the matrix and of its decomposition; False on the diagonal.

    16-bit floats are computed in float32, and equal values are rounded alike. Values that are not finite equal no
    others, since their vectors are NaN already.
    """
    batch, count = values.shape[:-1], values.shape[-1]
    factor = 2.0 / n if k.dtype(values).bits == 16 else 16.0
    tiny = k.reshape(k.mul(rounding_tolerance(k, values, n), factor), (*batch, 1, 1))
    close = k.less_equal(sizes(k, differences(k, values)), tiny)
    return k.logical_and(close, k.equal(identity(k, count, k.dtype(values)), 0.0))


def over_gaps(k: Any, numerator: Any, values: Any, equal: Any, instead: Any) -> Any:
    """``numerator`` over the differences of values; ``instead`` where they are ``equal``, and 0 on the diagonal."""
    unit = k.equal(identity(k, values.shape[-1], k.dtype(values)), 1.0)
    undefined = k.logical_or(equal, unit)
    quotient = scaled(k, numerator, masked_inverse(k, k.logical_not(undefined), differences(k, values)))
    return k.where(equal, alike(k, instead, numerator), quotient)


def unknown_where(k: Any, equal: Any, vectors: tuple[Any, ...], values: Any) -> Any:
    """A matrix for pairs of equal values: NaN where one of the two has a cotangent that is not 0, else 0.

    ``vectors`` are cotangents of vectors, as columns, ``values`` that of the values; each may be None.
    """
    rows = [k.max(sizes(k, g), (len(g.shape) - 2,), True) for g in vectors if g is not None]
    if values is not None:
        rows.append(k.reshape(sizes(k, values), (*values.shape[:-1], 1, values.shape[-1])))
    used = k.not_equal(sum_terms(k, rows), 0.0)
    either = k.logical_or(used, transpose(k, used))
    zeros = k.zeros(equal.shape, k.dtype(rows[0]))
    return k.where(k.logical_and(equal, either), float("nan"), zeros)


def half_diagonal(k: Any, x: Any) -> Any:
    """The lower triangle of ``x``, its diagonal halved."""
    return k.mul(k.tril(x, 0), k.sub(1.0, k.mul(identity(k, x.shape[-1], k.dtype(x)), 0.5)))


def grad_cholesky(k: Any, g: Any, out: Any) -> Any:
    """``L^-T P L^-1`` made symmetric, with P the lower triangle of ``L^T g``, its diagonal halved."""
    upper = adjoint(k, out)
    lower = half_diagonal(k, k.matmul(upper, k.tril(conj(k, g), 0)))
    left = k.triangular_solve(upper, lower, True)
    return conj(k, symmetric(k, k.triangular_solve(upper, adjoint(k, left), True)))


def grad_lu(k: Any, g: Any, out: Any) -> Any:
    """For square factors and ordered rows: ``L^-T (tril(L^T g_l, -1) + triu(g_u U^T)) U^-T``.

    Further columns of U are ``L^-1`` times columns of the matrix, further rows of L rows of the matrix times ``U^-1``.
    """
    (_, g_l, g_u), (order, l, u) = g, out
    (*stack, m, inner), n, axis = l.shape, u.shape[-1], len(l.shape) - 2
    if 0 in (*stack, m, n):
        return k.zeros((*stack, m, n), k.dtype(l))
    g_l, g_u = (k.zeros(f.shape, k.dtype(f)) if d is None else d for f, d in ((l, g_l), (u, g_u)))
    lower, upper = slice_axis(k, l, axis, 0, inner), columns(k, u, 0, inner)

    def by_lower(y: Any) -> Any:
        return k.triangular_solve(transpose(k, lower), y, True)

    def by_upper(y: Any) -> Any:
        try:
            return transpose(k, k.triangular_solve(upper, transpose(k, y), True))
        except SingularMatrixError as cause:
            raise SingularMatrixError(
                f"lu: the gradient of lu needs pivots that are not 0. Operand: "
                f"{k.dtype(l)}[{','.join(map(str, (*stack, m, n)))}] ({k.spec})"
            ) from cause

    grad_lower = k.matmul(transpose(k, lower), slice_axis(k, g_l, axis, 0, inner))
    grad_upper = k.matmul(columns(k, g_u, 0, inner), transpose(k, upper))
    further = columns(k, g_u, inner, n) if n > inner else slice_axis(k, g_l, axis, inner, m)
    if n > inner:
        grad_lower = k.sub(grad_lower, k.matmul(further, transpose(k, columns(k, u, inner, n))))
    if m > inner:
        grad_upper = k.sub(grad_upper, k.matmul(transpose(k, slice_axis(k, l, axis, inner, m)), further))
    result = by_upper(by_lower(k.add(k.tril(grad_lower, -1), k.triu(grad_upper, 0))))
    if n > inner:
        result = k.concat([result, by_lower(further)], axis + 1)
    if m > inner:
        result = k.concat([result, by_upper(further)], axis)
    places = k.reshape(k.argsort(order, axis), (*stack, m, 1))
    return k.take_along_axis(result, k.broadcast_to(places, (*stack, m, n)), axis)


def grad_tall_qr(k: Any, g_q: Any, g_r: Any, q: Any, r: Any, x_shape: Any) -> Any:
    """The gradient where Q has as many columns as the matrix and R is square."""
    inner = None if g_r is None else k.matmul(r, adjoint(k, k.triu(g_r, 0)))
    if g_q is not None:
        inner = sum_terms(k, (inner, k.neg(k.matmul(adjoint(k, g_q), q))))
    if inner is None:
        return None
    lower = half_diagonal(k, inner)
    total = sum_terms(k, (g_q, k.matmul(q, k.add(lower, adjoint(k, lower)))))
    # Rows of R that are not 0 only by rounding would make the gradient huge; with zeros, solving raises.
    diagonal = sizes(k, k.diagonal(r, 0, len(r.shape) - 2, len(r.shape) - 1))
    counts = k.greater(diagonal, rounding_tolerance(k, diagonal, q.shape[-2]))
    safe = k.where(k.reshape(counts, (*counts.shape, 1)), r, 0.0)
    try:
        return adjoint(k, k.triangular_solve(safe, adjoint(k, total), True))
    except SingularMatrixError as cause:
        first = "columns" if q.shape[-2] > q.shape[-1] else f"first {q.shape[-1]} columns"
        raise SingularMatrixError(
            f"qr: the gradient of qr needs independent {first}, and up to rounding they are not. Operand: "
            f"{k.dtype(r)}[{','.join(map(str, x_shape))}] ({k.spec})"
        ) from cause


def grad_qr(k: Any, g: Any, x_shape: Any, out: Any) -> Any:
    """The gradient of QR; further columns of a wide R are ``Q^T x``, those of Q for a tall matrix its complement."""
    if 0 in x_shape:
        return k.zeros(x_shape, k.dtype(out[1]))
    return conj(k, grad_any_qr(k, tuple(conj(k, d) for d in g), x_shape, out))


def grad_any_qr(k: Any, g: Any, x_shape: Any, out: Any) -> Any:
    """:func:`grad_qr` for conjugate cotangents."""
    (g_q, g_r), (q, r), (m, n) = g, out, x_shape[-2:]
    if m < n:
        square = columns(k, r, 0, m)
        if g_r is None:
            rest = k.zeros((*x_shape[:-1], n - m), k.dtype(r))
            first = grad_tall_qr(k, g_q, None, q, square, x_shape)
        else:
            grad_rest = columns(k, g_r, m, n)
            rest = k.matmul(q, grad_rest)
            from_rest = matmul_chain(k, q, columns(k, r, m, n), adjoint(k, grad_rest))
            first = grad_tall_qr(k, sum_terms(k, (g_q, from_rest)), columns(k, g_r, 0, m), q, square, x_shape)
        return k.concat([first, rest], len(x_shape) - 1)
    if q.shape[-1] > n:
        axis = len(x_shape) - 2
        q, g_q = first_vectors(k, q, g_q, n)
        r, g_r = slice_axis(k, r, axis, 0, n), None if g_r is None else slice_axis(k, g_r, axis, 0, n)
    return grad_tall_qr(k, g_q, g_r, q, r, x_shape)


def grad_eigh(k: Any, g: Any, out: Any) -> Any:
    """``V (diag(g_values) + V^T g_vectors over gaps) V^T``, made symmetric."""
    (g_values, g_vectors), (values, vectors) = (g[0], conj(k, g[1])), out
    if 0 in vectors.shape:
        return k.zeros(vectors.shape, k.dtype(vectors))
    back = adjoint(k, vectors)
    inner = None if g_values is None else alike(k, diagonal_matrices(k, g_values), vectors)
    if g_vectors is not None:
        equal = equal_pairs(k, values, values.shape[-1])
        unknown = unknown_where(k, equal, (g_vectors,), g_values)
        if is_complex(k, vectors):
            g_vectors = with_phase(k, g_vectors, vectors, turning(k, vectors, g_vectors))
        inner = sum_terms(k, (inner, over_gaps(k, k.matmul(back, g_vectors), values, equal, unknown)))
    return conj(k, symmetric(k, matmul_chain(k, vectors, inner, back)))


def tangent_eigh(k: Any, t: Any, out: Any) -> Any:
    """The diagonal of ``V^T t V`` for the values; for the vectors ``V`` times the rest of it over the gaps."""
    return eigh_tangents(k, t, out, float("nan"))


def eigh_tangents(k: Any, t: Any, out: Any, instead: Any) -> Any:
    """The tangents of ``eigh``, with ``instead`` for what would be divided by the difference of two equal values."""
    values, vectors = out
    if 0 in vectors.shape:
        return values, vectors
    moved = matmul_chain(k, adjoint(k, vectors), symmetric(k, t), vectors)
    rank = len(moved.shape)
    turn = over_gaps(k, moved, values, equal_pairs(k, values, values.shape[-1]), instead)
    pushed = k.matmul(vectors, turn)
    if is_complex(k, vectors):
        pushed = k.add(pushed, k.mul(vectors, phase_tangent(k, pushed, vectors)))
    return real_part(k, k.diagonal(moved, 0, rank - 2, rank - 1)), pushed


def grad_eig(k: Any, g: Any, out: Any) -> Any:
    """``V^-T (diag(g_values) + V^T g_vectors over gaps) V^T``, less the parts along fixed lengths and phases.

    It takes no conjugates: except for length and phase, ``eig`` is holomorphic.
    """
    (g_values, g_vectors), (values, vectors) = g, out
    if 0 in vectors.shape:
        return k.zeros(vectors.shape, k.dtype(vectors))
    back = transpose(k, vectors)
    inner = None if g_values is None else diagonal_matrices(k, g_values)
    if g_vectors is not None:
        equal = equal_pairs(k, values, values.shape[-1])
        unknown = unknown_where(k, equal, (g_vectors,), g_values)
        turned = k.conj(g_vectors)
        growth = k.real(k.sum(k.mul(k.conj(vectors), turned), (len(vectors.shape) - 2,), True))
        turned = with_phase(k, turned, vectors, turning(k, vectors, turned))
        g_vectors = k.conj(k.sub(turned, scaled(k, vectors, growth)))
        inner = sum_terms(k, (inner, over_gaps(k, k.matmul(back, g_vectors), values, equal, unknown)))
    return k.matmul(k.solve(back, inner), back)


def tangent_eig(k: Any, t: Any, out: Any) -> Any:
    """The diagonal of ``V^-1 t V`` for the values; for the vectors ``V`` times the rest of it over the gaps."""
    values, vectors = out
    if 0 in vectors.shape:
        return values, vectors
    moved, rank = k.solve(vectors, k.matmul(t, vectors)), len(vectors.shape)
    turn = over_gaps(k, moved, values, equal_pairs(k, values, values.shape[-1]), float("nan"))
    pushed = k.matmul(vectors, turn)
    growth = k.real(k.sum(k.mul(k.conj(vectors), pushed), (rank - 2,), True))
    pushed = k.add(k.sub(pushed, scaled(k, vectors, growth)), k.mul(vectors, phase_tangent(k, pushed, vectors)))
    return k.diagonal(moved, 0, rank - 2, rank - 1), pushed


def grad_svd(k: Any, g: Any, x_shape: Any, out: Any) -> Any:
    """Rotations among the vectors over sums and differences of values, and parts outside their space over the values.

    For left and right vectors that rotate together, the divisor is the difference of two values; for those that rotate
    in opposite directions, it is the sum.
    """
    (g_u, g_s, g_vh), (u, s, vh), (m, n) = (conj(k, g[0]), g[1], conj(k, g[2])), out, x_shape[-2:]
    if 0 in x_shape:
        return k.zeros(x_shape, k.dtype(u))
    inner = s.shape[-1]
    u, g_u = first_vectors(k, u, g_u, inner)
    v, g_v = first_vectors(k, adjoint(k, vh), None if g_vh is None else adjoint(k, g_vh), inner)
    middle = None if g_s is None else alike(k, diagonal_matrices(k, g_s), u)
    if g_u is None and g_v is None:
        return conj(k, matmul_chain(k, u, middle, adjoint(k, v)))
    equal = equal_pairs(k, s, max(m, n))
    unknown, sums = unknown_where(k, equal, (g_u, g_v), g_s), inverse_sums(k, s, max(m, n))
    if is_complex(k, u):  # the phases of the right vectors follow those of the left ones
        turn = sum_terms(k, (turning(k, x, d) for x, d in ((u, g_u), (v, g_v)) if d is not None))
        g_u = with_phase(k, k.zeros(u.shape, k.dtype(u)) if g_u is None else g_u, u, turn)
    turn_u, turn_v = (None if d is None else rotation(k, x, d) for x, d in ((u, g_u), (v, g_v)))
    against = turn_u if turn_v is None else sum_terms(k, (turn_u, k.neg(turn_v)))
    together = sum_terms(k, (turn_u, turn_v))
    if g_u is not None and g_v is not None and g_s is None:
        known = k.logical_and(turns_against(k, u, g_u, v, g_v, together), k.greater(sums, 0.0))
        unknown = k.where(known, 0.0, unknown)
    halves = k.add(over_gaps(k, together, s, equal, unknown), scaled(k, against, sums))
    middle = sum_terms(k, (middle, k.mul(halves, 0.5)))
    result = None
    if g_u is not None and m > inner:
        result = k.matmul(over_values(k, complement(k, u, g_u), s, g_u, g_s, max(m, n)), adjoint(k, v))
    if g_v is not None and n > inner:
        outside = over_values(k, complement(k, v, g_v), s, g_v, g_s, max(m, n))
        result = sum_terms(k, (result, k.matmul(u, adjoint(k, outside))))
    return conj(k, sum_terms(k, (result, matmul_chain(k, u, middle, adjoint(k, v)))))


def turns_against(k: Any, u: Any, g_u: Any, v: Any, g_v: Any, together: Any) -> Any:
    """Where left and right vectors do not rotate together, up to rounding: as for functions of ``u @ vh``."""
    parts = [k.matmul(transpose(k, sizes(k, x)), sizes(k, d)) for x, d in ((u, g_u), (v, g_v))]
    size = k.add(*parts)
    bound = k.mul(k.add(size, transpose(k, size)), 4 * max(u.shape[-2], v.shape[-2]) * eps_of(k, u))
    return k.less_equal(sizes(k, together), bound)


def inverse_sums(k: Any, s: Any, n: int) -> Any:
    """``1 / (s[i] + s[j])``, and 0 where both values are 0."""
    batch, inner = s.shape[:-1], s.shape[-1]
    total = k.add(k.reshape(s, (*batch, 1, inner)), k.reshape(s, (*batch, inner, 1)))
    positive = k.greater(total, k.reshape(rounding_tolerance(k, s, n), (*batch, 1, 1)))
    return masked_inverse(k, positive, total)


def over_values(k: Any, outside: Any, s: Any, g: Any, g_s: Any, n: int) -> Any:
    """``outside``, a part of the cotangent ``g`` of vectors, over their values.

    Where a value is 0 it is NaN, or 0 if the cotangents of the value and its vector are 0.
    """
    row = (*s.shape[:-1], 1, s.shape[-1])
    positive = k.reshape(k.greater(s, rounding_tolerance(k, s, n)), row)
    used = k.max(sizes(k, g), (len(g.shape) - 2,), True)
    if g_s is not None:
        used = k.add(used, k.reshape(k.abs(g_s), row))
    unknown = k.where(k.not_equal(used, 0.0), float("nan"), k.zeros(row, k.dtype(s)))
    inverse = masked_inverse(k, positive, k.reshape(s, row))
    return k.where(positive, scaled(k, outside, inverse), alike(k, unknown, outside))


def tangent_svd(k: Any, t: Any, out: Any, x_shape: Any) -> Any:
    """The diagonal of ``U^T t V`` for values; for vectors, rotations among themselves and out of their space."""
    return svd_tangents(k, t, out, x_shape, float("nan"))


def svd_tangents(k: Any, t: Any, out: Any, x_shape: Any, instead: Any) -> Any:
    """The tangents of ``svd``, with ``instead`` for what would be divided by the difference of two equal values.

    For two values of 0, whose left and right vectors rotate freely, it is NaN.
    """
    (u, s, vh), (m, n) = out, x_shape[-2:]
    if 0 in x_shape:
        return tuple(k.zeros(x.shape, k.dtype(x)) for x in out)
    inner = s.shape[-1]
    v = adjoint(k, vh)
    first_u, first_v = columns(k, u, 0, inner), columns(k, v, 0, inner)
    moved = matmul_chain(k, adjoint(k, first_u), t, first_v)
    rank, turned = len(moved.shape), adjoint(k, moved)
    inverse_sum = inverse_sums(k, s, max(m, n))
    unknown = k.where(k.greater(inverse_sum, 0.0), k.add(k.mul(inverse_sum, 0.0), instead), float("nan"))
    gaps = over_gaps(k, k.add(moved, turned), s, equal_pairs(k, s, max(m, n)), unknown)
    sums = scaled(k, k.sub(moved, turned), inverse_sum)
    halves = (k.mul(k.add(gaps, sums), 0.5), k.mul(k.sub(gaps, sums), 0.5))
    positive = k.reshape(k.greater(s, rounding_tolerance(k, s, max(m, n))), (*s.shape[:-1], 1, inner))
    inverse = k.where(positive, masked_inverse(k, positive, k.reshape(s, (*s.shape[:-1], 1, inner))), float("nan"))

    def outside(first: Any, pushed: Any) -> Any:
        """The part that rotates vectors out of their span; None if they span the whole space."""
        return None if first.shape[-2] == inner else scaled(k, complement(k, first, pushed), inverse)

    def all_vectors(x: Any, first: Any, tangent: Any, out_of: Any) -> Any:
        """The tangents of the first vectors, and of those that only ``full`` adds, which rotate the other way."""
        if x.shape[-1] == inner:
            return tangent
        rest = columns(k, x, inner, x.shape[-1])
        back = k.neg(matmul_chain(k, first, adjoint(k, out_of), rest))
        if is_complex(k, x):
            back = k.add(back, k.mul(rest, phase_tangent(k, back, rest)))
        return k.concat([tangent, back], rank - 1)

    out_u, out_v = outside(first_u, k.matmul(t, first_v)), outside(first_v, k.matmul(adjoint(k, t), first_u))
    du, dv = (
        sum_terms(k, (k.matmul(x, turn), out_of))
        for x, turn, out_of in ((first_u, halves[0], out_u), (first_v, halves[1], out_v))
    )
    if is_complex(k, u):
        turn = phase_tangent(k, du, first_u)
        du, dv = (k.add(d, k.mul(x, turn)) for d, x in ((du, first_u), (dv, first_v)))
    values = real_part(k, k.diagonal(moved, 0, rank - 2, rank - 1))
    return all_vectors(u, first_u, du, out_u), values, adjoint(k, all_vectors(v, first_v, dv, out_v))


def first_vectors(k: Any, vectors: Any, g: Any, count: int) -> tuple[Any, Any]:
    """The first vectors, and their gradient, including that of the space spanned by the others."""
    if vectors.shape[-1] == count:
        return vectors, g
    first, rest = columns(k, vectors, 0, count), columns(k, vectors, count, vectors.shape[-1])
    if g is None:
        return first, None
    grad_rest = columns(k, g, count, vectors.shape[-1])
    if is_complex(k, rest):
        grad_rest = with_phase(k, grad_rest, rest, turning(k, rest, grad_rest))
    return first, k.sub(columns(k, g, 0, count), matmul_chain(k, rest, adjoint(k, grad_rest), first))


def rotation(k: Any, vectors: Any, g: Any) -> Any:
    """The part of ``g`` that rotates the vectors among themselves."""
    inner = k.matmul(adjoint(k, vectors), g)
    return k.sub(inner, adjoint(k, inner))


def complement(k: Any, vectors: Any, g: Any) -> Any:
    """The part of ``g`` outside the space of the vectors."""
    return k.sub(g, matmul_chain(k, vectors, k.matmul(adjoint(k, vectors), g)))


def grad_solve(k: Any, g: Any, x: Any, out: Any) -> tuple[Any, Any]:
    """``x^-T g`` for the right-hand side, and its product with the solution for the matrix."""
    grad_y = k.solve(transpose(k, x), g)
    return k.neg(k.matmul(grad_y, transpose(k, out))), grad_y


def grad_triangular_solve(k: Any, g: Any, x: Any, out: Any, upper: bool) -> tuple[Any, Any]:
    """The gradients of ``solve``, the matrix's limited to its triangle."""
    grad_y = k.triangular_solve(transpose(k, x), g, not upper)
    grad_x = k.neg(k.matmul(grad_y, transpose(k, out)))
    return k.triu(grad_x, 0) if upper else k.tril(grad_x, 0), grad_y


def grad_inv(k: Any, g: Any, out: Any) -> Any:
    """``-x^-T g x^-T``."""
    back = transpose(k, out)
    return k.neg(matmul_chain(k, back, g, back))


def grad_pinv(k: Any, g: Any, x: Any, out: Any) -> Any:
    """The gradient of the inverse, and the parts outside the spaces of rows and of columns."""
    g = conj(k, g)
    back, turned = adjoint(k, out), adjoint(k, g)
    result = k.neg(matmul_chain(k, back, g, back))
    outside_columns = k.sub(turned, matmul_chain(k, x, out, turned))
    inside_rows = matmul_chain(k, back, out, turned)
    outside_rows = k.sub(inside_rows, matmul_chain(k, inside_rows, out, x))
    return conj(k, k.add(k.add(result, matmul_chain(k, outside_columns, out, back)), outside_rows))


def grad_slogdet(k: Any, g: Any, x: Any, out: Any) -> Any:
    """The transposed inverse; NaN where there is none. A real sign is constant, a complex one rotates."""
    g_log = g[1]
    if is_complex(k, x):
        zeros = k.zeros(out[1].shape, k.dtype(out[1]))
        g_log = k.complex(zeros if g_log is None else g_log, zeros if g[0] is None else k.imag(k.mul(g[0], out[0])))
    elif g_log is None:
        return k.zeros(x.shape, k.dtype(x))
    grad_log = k.reshape(g_log, (*g_log.shape, 1, 1))
    regular = k.reshape(k.not_equal(out[0], 0.0), grad_log.shape)
    safe = k.where(regular, x, identity(k, x.shape[-1], k.dtype(x)))
    return k.where(regular, k.mul(grad_log, transpose(k, k.inv(safe))), float("nan"))


def tangent_triangular_solve(k: Any, t: Any, x: Any, out: Any, upper: bool) -> Any:
    """The tangent of the solution: the solution for the triangle's tangent times the solution, negated."""
    moved = k.triu(t, 0) if upper else k.tril(t, 0)
    return k.neg(k.triangular_solve(x, k.matmul(moved, out), upper))


def tangent_slogdet(k: Any, t: Any, x: Any, out: Any) -> Any:
    """The sum of the tangent times the gradient; a real sign is constant."""
    gradient = grad_slogdet(k, (None, k.ones(out[1].shape, k.dtype(out[1]))), x, out)
    rank = len(x.shape)
    moved = k.sum(k.mul(t, gradient), (rank - 2, rank - 1), False)
    if not is_complex(k, x):
        return None, moved
    turn = k.imag(moved)
    return k.mul(out[0], k.complex(k.zeros(turn.shape, k.dtype(turn)), turn)), k.real(moved)
