"""Eigenvectors and singular vectors that are continuous along a tangent of the matrix, also for equal values."""

from __future__ import annotations

from typing import Any

from backburn.ops.bodies.slicing import transpose
from backburn.ops.decompositions import columns, differences, equal_pairs, identity, matmul_chain, symmetric


def along(k: Any, moved: Any, values: Any, equal: Any, before: Any) -> Any:
    """The turn of equal values' vectors to those that are continuous along a line, in the order of their slopes.

    ``moved`` is the symmetric tangent of the matrix between its vectors: within a block of equal values, its own
    eigenvectors. ``before`` counts the other values before each.
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
