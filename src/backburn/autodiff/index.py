"""Gradient rules: reading and writing by position."""

from __future__ import annotations

from typing import Any

from backburn.autodiff.rules import gradient
from backburn.autodiff.scan import recurrence
from backburn.autodiff.slices import SliceGradient
from backburn.autodiff.tangents import linear
from backburn.backend.scalars import is_scalar
from backburn.backend.scan import shifted
from backburn.base.dtypes import int64

gradient("slice", x=lambda g, key: SliceGradient(g, key))  # the engine assembles the gradients of slices
gradient("slice_backward", grad=lambda k, g, key: k.slice(g, key))
gradient(
    "slice_assign",
    x=lambda k, g, key: k.slice_assign(g, 0.0, key),
    value=lambda k, g, key: k.slice(g, key),
)

gradient("gather", x=lambda k, g, x_shape, indices, axis: k.gather_backward(g, indices, x_shape, axis))
gradient("gather_backward", grad=lambda k, g, indices, axis: k.gather(g, indices, axis))


def scatter_values(k: Any, g: Any, indices: Any, axis: int, mode: str) -> Any:
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


def scatter_reduce(
    k: Any, g: Any, x: Any, indices: Any, values: Any, out: Any, axis: int, mode: str, needs: tuple[bool, ...]
) -> tuple[Any, Any]:
    """Ties share; a factor's gradient is the product of the others."""
    if is_scalar(values):
        values = k.full(indices.shape, values, k.dtype(x))
    if mode == "mul":
        of_x = of_values = None
        if needs[0]:
            of_x = k.mul(g, k.scatter_reduce(k.ones(x.shape, k.dtype(x)), indices, values, axis, "mul"))
        if needs[1]:
            others = k.mul(k.gather(x, indices, axis), others_at(k, indices, values, x.shape[axis], axis))
            of_values = k.mul(k.gather(g, indices, axis), others)
        return of_x, of_values
    at = k.gather(out, indices, axis)
    best, own = k.cast(k.equal(values, at), k.dtype(g)), k.cast(k.equal(x, out), k.dtype(g))
    share = k.div(g, k.scatter(own, indices, best, axis, "add"))
    return k.mul(share, own), k.mul(k.gather(share, indices, axis), best)


def others_at(k: Any, indices: Any, values: Any, length: int, axis: int) -> Any:
    """For each value, the product of all other values with its index along ``axis``.

    In the order of the indices these are those before it and those behind it: no division, so zeros are like others.
    """
    values = k.broadcast_to(values, indices.shape)
    places = k.remainder(indices, length) if length else indices
    order = k.argsort(places, axis)
    ordered, sorted_places = k.gather(values, order, axis), k.gather(places, order, axis)
    product = None
    for back in (False, True):
        same = k.cast(k.equal(sorted_places, shifted(k, sorted_places, axis, -1, back)), k.dtype(values))
        neighbour = k.mul(same, shifted(k, ordered, axis, 1.0, back))
        side = recurrence(k, neighbour, k.sub(1.0, same), axis, back)
        product = side if product is None else k.mul(product, side)
    return k.gather(product, k.argsort(order, axis), axis)


gradient("scatter_reduce", ("x", "values"), scatter_reduce)

gradient("take", x=lambda k, g, x_shape, indices, axis: k.take_backward(g, indices, x_shape[axis], axis))
gradient("take_backward", grad=lambda k, g, indices, axis: k.take(g, indices, axis))
gradient("index_add", x=lambda k, g: g, values=lambda k, g, indices, axis: k.take(g, indices, axis))

linear("slice", "slice_assign", "slice_backward", "gather", "gather_backward", "scatter")
linear("take", "take_backward", "index_add")
