"""Eigenvectors and singular vectors that are continuous along a tangent of the matrix, also for equal values."""

from __future__ import annotations

from typing import Any

from backburn.ops.bodies.decompositions import (
    columns,
    differences,
    eps_of,
    equal_pairs,
    identity,
    masked_inverse,
    matmul_chain,
    rounding_tolerance,
    symmetric,
)
from backburn.ops.bodies.slicing import slice_axis, transpose


def along(k: Any, moved: Any, values: Any, equal: Any, before: Any) -> Any:
    """The rotation of the vectors of equal values to those continuous along a line, in the order of their slopes.

    These are, within a block of equal values, the eigenvectors of ``moved``, the symmetric tangent of the matrix in the
    basis of its vectors. ``before`` counts the other values before each.
    """
    count = values.shape[-1]
    unit = k.equal(identity(k, count, k.dtype(values)), 1.0)
    block = k.where(k.logical_or(equal, unit), moved, 0.0)
    rank = len(block.shape)
    size = k.max(k.sum(k.abs(block), (rank - 1,), True), (rank - 2,), True)
    apart = k.mul(k.reshape(before, (*before.shape[:-1], 1, count)), k.add(k.mul(size, 2.0), 1.0))
    return k.eigh(k.where(unit, k.add(block, apart), block))[1]


def turned_along_eigh(k: Any, t: Any, out: Any) -> Any:
    """The results of ``eigh`` with the vectors that are continuous along the tangent ``t``."""
    values, vectors = out
    if 0 in vectors.shape:
        return out
    equal, gaps = equal_pairs(k, values, values.shape[-1]), differences(k, values)
    moved = matmul_chain(k, transpose(k, vectors), symmetric(k, t), vectors)
    less = k.logical_and(k.greater(gaps, 0.0), k.logical_not(equal))  # row i is before column j
    ones = k.where(less, 1.0, k.zeros(gaps.shape, k.dtype(values)))
    before = k.sum(ones, (len(gaps.shape) - 2,), False)
    return values, k.matmul(vectors, along(k, moved, values, equal, before))


def turned_along_svd(k: Any, t: Any, out: Any) -> Any:
    """The results of ``svd`` with the vectors that are continuous along the tangent ``t``."""
    u, s, vh = out
    if 0 in s.shape or 0 in u.shape or 0 in vh.shape:
        return out
    inner, (m, n), v = s.shape[-1], (u.shape[-2], vh.shape[-1]), transpose(k, vh)
    first_u, first_v = columns(k, u, 0, inner), columns(k, v, 0, inner)
    moved = matmul_chain(k, transpose(k, first_u), t, first_v)
    equal, gaps = equal_pairs(k, s, max(m, n)), differences(k, s)
    more = k.logical_and(k.less(gaps, 0.0), k.logical_not(equal))
    ones = k.where(more, 1.0, k.zeros(gaps.shape, k.dtype(s)))
    turn = along(k, k.neg(symmetric(k, moved)), s, equal, k.sum(ones, (len(gaps.shape) - 2,), False))
    axis = len(u.shape) - 1
    first_u, first_v = k.matmul(first_u, turn), k.matmul(first_v, turn)
    u = first_u if u.shape[-1] == inner else k.concat([first_u, columns(k, u, inner, u.shape[-1])], axis)
    v = first_v if v.shape[-1] == inner else k.concat([first_v, columns(k, v, inner, v.shape[-1])], axis)
    return u, s, transpose(k, v)


def eigh_to_second(k: Any, path: tuple[Any, Any, Any]) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Eigenvalues and eigenvectors of a matrix on a line, each with its first and second derivative.

    ``path`` holds the matrix and its first and second derivative along the line.
    """
    matrix, *moves = (symmetric(k, x) for x in path)
    values, vectors = k.eigh(matrix)
    return to_second(k, moves, values, vectors, equal_pairs(k, values, values.shape[-1]))


def svd_to_second(
    k: Any, path: tuple[Any, Any, Any], full: bool
) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """``u``, ``s`` and ``vh`` of a matrix on a line, each with its first and second derivative.

    They are eigenvectors of ``[[0, x], [x.T, 0]]``, whose eigenvalues are the singular values, their negatives and
    zeros. Where a singular value is 0 they are NaN: then the three kinds mix. (Golub and Kahan, Calculating the
    singular values and pseudo-inverse of a matrix, 1965)
    """
    u, s, vh = k.svd(path[0], True)
    (m, n), inner, rank, dtype = path[0].shape[-2:], s.shape[-1], len(path[0].shape), k.dtype(s)
    v, batch = transpose(k, vh), path[0].shape[:-2]
    half = 0.5**0.5
    first = [k.mul(columns(k, x, 0, inner), half) for x in (u, v)]
    rest = [columns(k, x, inner, x.shape[-1]) for x in (u, v)]
    zeros = [k.zeros((*batch, rows, m + n - 2 * inner), dtype) for rows in (m, n)]
    blocks = [(first[0], first[0], rest[0], zeros[0]), (first[1], k.neg(first[1]), zeros[1], rest[1])]
    sizes = (inner, inner, m - inner, n - inner)
    rows = [
        k.concat([columns(k, x, 0, size) for x, size in zip(row, sizes, strict=True) if size], rank - 1)
        for row in blocks
    ]
    parts = [s, k.neg(s), *([k.zeros((*batch, m + n - 2 * inner), dtype)] if m != n else [])]
    values = k.concat(parts, rank - 2)

    def doubled(x: Any) -> Any:
        above = k.concat([k.zeros((*batch, m, m), dtype), x], rank - 1)
        below = k.concat([transpose(k, x), k.zeros((*batch, n, n), dtype)], rank - 1)
        return k.concat([above, below], rank - 2)

    equal = equal_pairs(k, values, m + n)
    moved = [doubled(x) for x in path[1:]]
    found_values, found = to_second(k, moved, values, k.concat(rows, rank - 2), equal)
    positive = k.greater(k.min(s, (rank - 2,), True), rounding_tolerance(k, s, m + n))
    unknown = k.where(positive, k.zeros(positive.shape, dtype), float("nan"))
    unknown_matrix = k.reshape(unknown, (*batch, 1, 1))

    def vectors(x: Any, start: int, stop: int, others: int) -> Any:
        """The vectors of one side: rows ``start`` to ``stop``, and with ``full`` those of the value 0 as well."""
        x = k.add(slice_axis(k, x, rank - 2, start, stop), unknown_matrix)
        kept = k.mul(columns(k, x, 0, inner), 2**0.5)
        if not (full and others):
            return kept
        return k.concat([kept, columns(k, x, 2 * inner, m + n)], rank - 1)

    lefts = tuple(vectors(x, 0, m, m - inner) for x in found)
    rights = tuple(transpose(k, vectors(x, m, m + n, n - inner)) for x in found)
    singular = tuple(k.add(slice_axis(k, x, rank - 2, 0, inner), unknown) for x in found_values)
    return lefts, singular, rights


def to_second(
    k: Any, moves: list[Any], values: Any, vectors: Any, equal: Any
) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Eigenvalues and eigenvectors with their derivatives, for the ``moves`` of a matrix: first and second derivative.

    The vectors of equal values are chosen by the first derivative, or by the second where that has equal eigenvalues.
    The line does not determine their second derivatives within a space; these are set so that the vectors stay
    orthonormal, which does not affect functions of the matrix alone. (Kato, Perturbation theory for linear operators,
    1976)
    """
    rank, count, dtype = len(vectors.shape), values.shape[-1], k.dtype(values)
    unit = k.equal(identity(k, count, dtype), 1.0)
    outside = k.logical_not(k.logical_or(equal, unit))
    inverse = masked_inverse(k, outside, differences(k, values))

    def between(x: Any) -> Any:
        return matmul_chain(k, transpose(k, vectors), x, vectors)

    def reduced() -> tuple[Any, Any, Any, Any]:
        """Both derivatives in the basis of the vectors, the rotation to other spaces, and the rest to second order."""
        first, second = map(between, moves)
        turn = k.mul(first, inverse)
        return first, second, turn, symmetric(k, k.add(second, k.mul(k.matmul(first, turn), 2.0)))

    vectors = k.matmul(vectors, along(k, between(moves[0]), values, equal, places(k, equal, dtype)))
    first, second, turn, left = reduced()
    slopes = k.diagonal(first, 0, rank - 2, rank - 1)
    size = k.max(k.max(k.abs(first), (rank - 1,), True), (rank - 2,), True)
    tiny = k.mul(size, 1e3 * count * eps_of(k, values))
    still = k.logical_and(equal, k.less_equal(k.abs(differences(k, slopes)), tiny))
    vectors = k.matmul(vectors, along(k, left, values, still, places(k, still, dtype)))
    first, second, turn, left = reduced()
    slopes = k.diagonal(first, 0, rank - 2, rank - 1)
    parting = k.logical_and(equal, k.logical_not(still))
    turn = k.add(turn, k.mul(k.mul(left, 0.5), masked_inverse(k, parting, differences(k, slopes))))
    row = k.reshape(slopes, (*slopes.shape[:-1], 1, count))
    rest = k.add(second, k.mul(k.sub(k.matmul(first, turn), k.mul(turn, row)), 2.0))
    bend = k.where(outside, k.mul(rest, inverse), k.matmul(turn, turn))
    curves = k.diagonal(left, 0, rank - 2, rank - 1)
    return (values, slopes, curves), (vectors, k.matmul(vectors, turn), k.matmul(vectors, bend))


def places(k: Any, equal: Any, dtype: Any) -> Any:
    """The number of columns before each that are not ``equal`` to it; equal ones are side by side."""
    others = k.where(equal, 0.0, k.ones(equal.shape, dtype))
    return k.sum(k.triu(others, 1), (len(equal.shape) - 2,), False)
