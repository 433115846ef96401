"""Reductions, and operators that sort elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from backburn.onnx.host import axes_of
from backburn.onnx.registry import Host, operator
from backburn.tensor import arithmetic, creation, elementwise, rearrange, reduce, sort
from backburn.tensor.classes import Tensor


def _extreme(function: Callable[..., Any], least: bool) -> Callable[..., Any]:
    """The maximum or minimum; that of no elements is the bound of the dtype."""

    def compute(x: Any, axis: Any, keepdims: bool) -> Any:
        if x.dtype.kind == "bool":
            return creation.astype(compute(creation.astype(x, "uint8"), axis, keepdims), "bool")
        if math.prod(x.shape[i] for i in axis):
            return function(x, axis=axis, keepdims=keepdims)
        if x.dtype.is_floating:
            bound = -math.inf if least else math.inf
        else:
            limits = np.iinfo(x.dtype.name)
            bound = int(limits.min if least else limits.max)
        return function(x, axis=axis, keepdims=keepdims, initial=bound)

    return compute


def _in_dtype(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axis, keepdims: function(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


def _mean(x: Any, axis: Any, keepdims: bool) -> Any:
    if x.dtype.is_floating:
        return reduce.mean(x, axis=axis, keepdims=keepdims)
    count = math.prod(x.shape[i] for i in axis)
    total = reduce.sum(x, axis=axis, keepdims=keepdims)
    return creation.astype(elementwise.trunc(arithmetic.divide(total, count)), x.dtype)


def _norm(x: Any, axis: Any, keepdims: bool) -> Any:
    if x.dtype.is_floating:
        return reduce.vector_norm(x, axis=axis, keepdims=keepdims)
    return creation.astype(
        elementwise.sqrt(creation.astype(_sum_of(arithmetic.square(x), axis, keepdims), "float64")), x.dtype
    )


_sum_of = _in_dtype(reduce.sum)
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceSum": _sum_of,
    "ReduceProd": _in_dtype(reduce.prod),
    "ReduceMean": _mean,
    "ReduceMax": _extreme(reduce.max, True),
    "ReduceMin": _extreme(reduce.min, False),
    "ReduceL1": lambda x, axis, keepdims: _sum_of(arithmetic.abs(x), axis, keepdims),
    "ReduceL2": _norm,
    "ReduceSumSquare": lambda x, axis, keepdims: _sum_of(arithmetic.square(x), axis, keepdims),
    "ReduceLogSum": lambda x, axis, keepdims: elementwise.log(_sum_of(x, axis, keepdims)),
    "ReduceLogSumExp": lambda x, axis, keepdims: reduce.logsumexp(x, axis=axis, keepdims=keepdims),
}


def _enter(name: str, function: Callable[..., Any]) -> None:
    @operator(name)
    def compute(
        x: Tensor, given: Host | None = None, /, *, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Any:
        found = axes_of(axes, given, x.ndim)
        if not found:
            found = () if noop_with_empty_axes else tuple(range(x.ndim))
        if not found and x.ndim and name in ("ReduceSum", "ReduceProd", "ReduceMean", "ReduceMax", "ReduceMin"):
            return x
        return function(x, found, bool(keepdims))


for _name, _function in _REDUCTIONS.items():
    _enter(_name, _function)


@operator("ArgMax")
def argmax(x: Tensor, /, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
    """The index of the largest element."""
    return _place(reduce.argmax, x, axis, keepdims, select_last_index)


@operator("ArgMin")
def argmin(x: Tensor, /, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
    """The index of the smallest element."""
    return _place(reduce.argmin, x, axis, keepdims, select_last_index)


def _place(function: Callable[..., Any], x: Any, axis: int, keepdims: int, last: int) -> Any:
    if not last:
        return function(x, axis=axis, keepdims=bool(keepdims))
    found = function(rearrange.flip(x, axis), axis=axis, keepdims=bool(keepdims))
    return arithmetic.subtract(x.shape[axis] - 1, found)


@operator("TopK", since=10)
def topk(x: Tensor, k: Host, /, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    """The largest or smallest elements along an axis, always sorted, and their indices."""
    return sort.topk(x, int(k.reshape(())), axis=axis, largest=bool(largest))


@operator("TopK")
def _older_topk(x: Tensor, /, *, axis: int = -1, k: int) -> Any:
    return sort.topk(x, k, axis=axis)
