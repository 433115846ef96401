"""Operations along axes that they name, and those on the last axes: other axes do not see one another."""

from __future__ import annotations

from typing import Any

from backburn.batching.rules import Rule, along, batching, front, is_mapped, moved, rank_of, size_of

# Reductions and running results.
for name in (
    "sum", "prod", "max", "min", "max_abs", "any", "all", "argmax", "argmin", "max_with_indices", "min_with_indices",
    "count_nonzero", "mean", "var", "std", "median", "norm", "logsumexp", "normalize",
    "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "diff",
    "softmax", "softmax_backward", "log_softmax", "log_softmax_backward", "softmin", "glu",
    "softmax_cross_entropy", "softmax_cross_entropy_backward", "label_cross_entropy", "label_cross_entropy_backward",
):  # fmt: skip
    batching(name, along(name, "axis"))

# Orders, Fourier transforms, and positions of which there is one for each element.
for name in (
    "argsort", "sort", "sort_with_indices", "topk", "kthvalue", "rfft", "irfft", "gather", "scatter", "scatter_reduce",
):  # fmt: skip
    batching(name, along(name, "axis"))

# Matrices, which are the last two axes, and a new last axis.
for name in (
    "triu", "tril", "cholesky", "qr", "svd", "svdvals", "eigh", "eigvalsh", "inv", "det", "slogdet", "cofactors",
    "one_hot",
):  # fmt: skip
    batching(name, along(name))


def quantile(level: Any, x: Any, *, q: Any, axis: Any, keepdims: bool) -> Any:
    """Several fractions make a first axis, before that of the examples."""
    k = level.inner_backend
    found = k.quantile(front(level, x), q, tuple(a + 1 for a in axis), keepdims)
    return moved(k, found, 1, 0) if isinstance(q, tuple) else found


def ssm_scan(level: Any, a: Any, b: Any, x: Any, h0: Any, *, axis: int, reverse: bool) -> Any:
    """Coefficients and input broadcast to the states, and a first state to those without the axis of time."""
    rank = max(map(rank_of, (a, b, x)))

    def fitted(t: Any, rank: int) -> Any:
        missing = rank - rank_of(t)
        return level.inner_backend.reshape(front(level, t), (level.size, *(1,) * missing, *t.shape))

    def given(t: Any) -> Any:
        return fitted(t, rank) if hasattr(t, "shape") else t

    first = None if h0 is None else fitted(h0, rank - 1)
    return level.inner_backend.ssm_scan(given(a), given(b), given(x), first, axis + 1, reverse)


def searchsorted(level: Any, x: Any, values: Any, *, right: bool) -> Any:
    """One row is searched for all values; rows are searched for the values at their places."""
    k = level.inner_backend
    if len(x.shape) > 1:
        return k.searchsorted(front(level, x), front(level, values), right)
    if not is_mapped(level, x):
        return k.searchsorted(x, values.value, right)
    flat = k.reshape(front(level, values), (level.size, size_of(values.shape)))
    return k.reshape(k.searchsorted(x.value, flat, right), (level.size, *values.shape))


def isin(level: Any, x: Any, values: Any) -> Any:
    """At once where all examples look among the same values."""
    return NotImplemented if is_mapped(level, values) else level.inner_backend.isin(x.value, values)


RULES: dict[str, Rule] = {"quantile": quantile, "ssm_scan": ssm_scan, "searchsorted": searchsorted, "isin": isin}
for name, rule in RULES.items():
    batching(name, rule)
