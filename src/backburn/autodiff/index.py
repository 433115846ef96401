"""Gradient rules: reading and writing by position."""

from __future__ import annotations

from typing import Any

from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import linear
from backburn.base.dtypes import int64

gradient("slice", x=lambda k, g, x_shape, key: k.slice_backward(g, x_shape, key))
gradient("slice_backward", grad=lambda k, g, key: k.slice(g, key))
gradient(
    "slice_assign",
    x=lambda k, g, key: k.slice_assign(g, 0.0, key),
    value=lambda k, g, key: k.slice(g, key),
)

gradient("gather", x=lambda k, g, x_shape, indices, axis: k.gather_backward(g, indices, x_shape, axis))
gradient("gather_backward", grad=lambda k, g, indices, axis: k.gather(g, indices, axis))


def scatter_values(k: Any, g: Any, indices: Any, values_shape: tuple[int, ...], axis: int, mode: str) -> Any:
    """What was added was added as it is; of what was assigned, only the last value for a place was kept."""
    g_values = k.gather(g, indices, axis)
    count = indices.shape[axis]
    if mode == "add" or count <= 1:
        return g_values
    numbers = k.reshape(k.arange(0, count, 1, int64), tuple(count if i == axis else 1 for i in range(len(g.shape))))
    numbers = k.broadcast_to(numbers, indices.shape)
    kept = k.scatter(k.full(g.shape, -1, int64), indices, numbers, axis, "assign")
    return k.where(k.equal(k.gather(kept, indices, axis), numbers), g_values, 0.0)


gradient(
    "scatter",
    x=lambda k, g, indices, axis, mode: g if mode == "add" else k.scatter(g, indices, 0.0, axis, "assign"),
    values=scatter_values,
)


def scatter_reduce(k: Any, g: Any, x: Any, indices: Any, values: Any, out: Any, axis: int, mode: str) -> Any:
    """Ties share; a factor's gradient is the product of the others, which are counted where some are 0."""
    if mode != "mul":
        at = k.gather(out, indices, axis)
        best, own = k.cast(k.equal(values, at), k.dtype(g)), k.cast(k.equal(x, out), k.dtype(g))
        share = k.div(g, k.scatter(own, indices, best, axis, "add"))
        return k.mul(share, own), k.mul(k.gather(share, indices, axis), best)
    x_zero, zero = k.equal(x, 0.0), k.equal(values, 0.0)
    x_factor, factor = k.where(x_zero, 1.0, x), k.where(zero, 1.0, values)
    zeros = k.scatter(k.cast(x_zero, int64), indices, k.cast(zero, int64), axis, "add")
    product = k.mul(g, k.scatter_reduce(x_factor, indices, factor, axis, "mul"))

    def without(zeros: Any, is_zero: Any, product: Any, factor: Any) -> Any:
        others = k.sub(zeros, k.cast(is_zero, int64))
        return k.where(k.equal(others, 0), k.div(product, factor), 0.0)

    return (
        without(zeros, x_zero, product, x_factor),
        without(k.gather(zeros, indices, axis), zero, k.gather(product, indices, axis), factor),
    )


gradient("scatter_reduce", ("x", "values"), scatter_reduce)

gradient("take", x=lambda k, g, x_shape, indices, axis: k.take_backward(g, indices, x_shape[axis], axis))
gradient("take_backward", grad=lambda k, g, indices, axis: k.take(g, indices, axis))
gradient("index_add", x=lambda k, g: g, values=lambda k, g, indices, axis: k.take(g, indices, axis))

linear("slice", "slice_assign", "slice_backward", "gather", "gather_backward", "scatter")
linear("take", "take_backward", "index_add")
