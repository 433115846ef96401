"""Batching rules: operations along given axes, or on the last axes, that are independent along all others."""

from __future__ import annotations

import math
from typing import Any

from backburn.batching.rules import Rule, along, batching, front, is_mapped, moved, rank_of, sharing

# Reductions and running results.
for name in (
    "sum", "prod", "max", "min", "max_abs", "any", "all", "argmax", "argmin", "max_with_indices", "min_with_indices",
    "prod_of_others", "count_nonzero", "mean", "var", "std", "median", "vector_norm", "logsumexp", "normalize",
    "cumulative_sum", "cumulative_prod", "cummax", "cummin", "logcumsumexp", "diff",
    "softmax", "softmax_backward", "log_softmax", "log_softmax_backward", "softmin", "glu",
    "softmax_cross_entropy", "softmax_cross_entropy_backward", "label_cross_entropy", "label_cross_entropy_backward",
):  # fmt: skip
    batching(name, along(name, "axis"))

# Sorting, Fourier transforms, and operations with one index for each element.
for name in (
    "argsort", "sort", "sort_with_indices", "topk", "kthvalue", "rfft", "irfft", "fft", "take_along_axis", "scatter",
    "scatter_reduce",
):  # fmt: skip
    batching(name, along(name, "axis"))

# Operations on matrices (the last two axes), and one that adds a last axis.
for name in (
    "triu", "tril", "cholesky", "lu", "qr", "svd", "svdvals", "eig", "eigvals", "eigh", "eigvalsh", "inv",
    "det", "slogdet", "cofactors", "one_hot",
):  # fmt: skip
    batching(name, along(name))


def quantile(level: Any, x: Any, *, q: Any, axis: Any, keepdims: bool) -> Any:
    """Several fractions form a first axis, before the batch axis."""
    k = level.inner_backend
    found = k.quantile(front(level, x), q, tuple(a + 1 for a in axis), keepdims)
    return moved(k, found, 1, 0) if isinstance(q, tuple) else found


def scan(name: str) -> Rule:
    """The rule of a scan: operands broadcast to the states; the last one, the first state, has no time axis."""

    def rule(level: Any, *operands: Any, axis: int, reverse: bool) -> Any:
        *over_time, first = operands
        rank = max(map(rank_of, over_time))
        fitted = [front_with_rank(level, t, rank) for t in over_time]
        return getattr(level.inner_backend, name)(*fitted, front_with_rank(level, first, rank - 1), axis + 1, reverse)

    return rule


def front_with_rank(level: Any, x: Any, rank: int) -> Any:
    """An operand with ``rank`` axes after the batch axis; anything but a tensor is returned unchanged."""
    if not hasattr(x, "shape"):
        return x
    shape = (level.size, *(1,) * (rank - len(x.shape)), *x.shape)
    return level.inner_backend.reshape(front(level, x), shape)


def searchsorted(level: Any, x: Any, values: Any, *, right: bool) -> Any:
    """A shared row is searched for the values of all examples; otherwise each row is searched for its own values."""
    k = level.inner_backend
    if len(x.shape) > 1:
        return k.searchsorted(front(level, x), front(level, values), right)
    if not is_mapped(level, x):
        return k.searchsorted(x, values.value, right)
    flat = k.reshape(front(level, values), (level.size, math.prod(values.shape)))
    return k.reshape(k.searchsorted(x.value, flat, right), (level.size, *values.shape))


batching("quantile", quantile)
batching("ssm_scan", scan("ssm_scan"))
batching("ssm_scan_backward", scan("ssm_scan_backward"))
batching("searchsorted", searchsorted)
batching("isin", sharing("isin"))
