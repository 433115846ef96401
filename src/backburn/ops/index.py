"""Reading and writing by position.

Indices are integers in ``[-n, n)`` for an axis of length ``n``, negative ones counted from the end; one out of range
raises IndexError, and never reads or writes another element. Ranges are Python slices, one for each axis, in the form
that :func:`canonical_slice` gives them.
"""

from __future__ import annotations

import math
from typing import Any, Protocol, TypeAlias, overload

from backburn.base.dtypes import DType, int64
from backburn.base.errors import ArgumentError, ShapeError
from backburn.ops.bodies.scalars import is_scalar, shape_or_none
from backburn.ops.bodies.slicing import index_axis
from backburn.ops.primitives import Primitives
from backburn.ops.rules.gradients import Needs, gradient_rule
from backburn.ops.rules.shapes import broadcast_to, check_axis
from backburn.ops.rules.slices import EntryGradient, SliceGradient
from backburn.ops.rules.tangents import linear_in
from backburn.ops.scan import recurrence, shift
from backburn.ops.table import missing, operation
from backburn.ops.types import B, F, I, Q

Shape: TypeAlias = tuple[int, ...]
Key: TypeAlias = tuple[slice, ...]


def canonical_slice(key: slice, length: int) -> slice:
    """``key`` on an axis of ``length`` elements as three plain numbers, in range and without wrapping.

    The stop is None if a negative step goes down to the first element, which no number expresses. An empty range
    is always ``slice(0, 0, 1)``.

        >>> canonical_slice(slice(None, None, -2), 5), canonical_slice(slice(-3, 99), 5)
        (slice(4, None, -2), slice(2, 5, 1))
        >>> canonical_slice(slice(4, 2), 5)
        slice(0, 0, 1)
    """
    start, stop, step = key.indices(length)
    if not range(start, stop, step):
        return slice(0, 0, 1)
    return slice(start, None if stop < 0 else stop, step)


def sliced(x: Shape, *, key: Key, **_: Any) -> Shape:
    """The shape of ``x[key]``."""
    if len(key) != len(x):
        raise ShapeError(f"{len(key)} slices for {len(x)} axes")
    return tuple(len(range(*s.indices(n))) for s, n in zip(key, x, strict=True))


def selected(x: Shape, *, axis: int, index: int) -> Shape:
    """The shape of the entry ``index`` along ``axis``."""
    axis = check_axis(axis, len(x))
    if not 0 <= index < x[axis]:
        raise ShapeError(f"there is no entry {index} of {x[axis]} along axis {axis}")
    return x[:axis] + x[axis + 1 :]


def _assigned(x: Shape, value: Shape | None, *, key: Key) -> Shape:
    if value is not None:
        broadcast_to(value, shape=sliced(x, key=key))
    return x


def _same_but_for(x: Shape, indices: Shape, axis: int) -> None:
    axis = check_axis(axis, len(x))
    if indices[:axis] + indices[axis + 1 :] != x[:axis] + x[axis + 1 :] or len(indices) != len(x):
        raise ShapeError(f"the indices {list(indices)} must have the shape {list(x)} in every axis but {axis}")


def gathered(x: Shape, indices: Shape, *, axis: int) -> Shape:
    """The shape of ``indices``, which read one element each along ``axis``."""
    _same_but_for(x, indices, axis)
    return indices


def scattered(x: Shape, indices: Shape, values: Shape | None, *, axis: int, **_: Any) -> Shape:
    """The shape of ``x``, whose elements are written one at a time along ``axis``."""
    _same_but_for(x, indices, axis)
    if values is not None and values != indices:
        raise ShapeError(f"there are {list(indices)} indices and {list(values)} values")
    return x


def _taken(x: Shape, indices: Shape, *, axis: int) -> Shape:
    axis = check_axis(axis, len(x))
    return x[:axis] + indices + x[axis + 1 :]


def added(x: Shape, indices: Shape, values: Shape | None, *, axis: int, **_: Any) -> Shape:
    """The shape of ``x``, whose entries along ``axis`` are written whole."""
    if len(indices) != 1:
        raise ShapeError(f"the indices must have one axis, not {len(indices)}")
    if values is not None and values != _taken(x, indices, axis=axis):
        raise ShapeError(f"the values {list(values)} must have the shape {list(_taken(x, indices, axis=axis))}")
    return x


def untaken(grad: Shape, indices: Shape, *, length: int, axis: int) -> Shape:
    """The shape of what :meth:`take` read, from that of its gradient."""
    if grad[axis : axis + len(indices)] != indices:  # a kernel would read past the gradient
        raise ShapeError(
            f"the gradient {list(grad)} must have the shape {list(indices)} of the indices from axis {axis} on"
        )
    return (*grad[:axis], length, *grad[axis + len(indices) :])


def _gathered_nd(x: Shape, indices: Shape, **_: Any) -> Shape:
    if not indices or indices[-1] > len(x):
        raise ShapeError(f"the last axis of the indices {list(indices)} must index at most {len(x)} axes")
    return indices[:-1] + x[indices[-1] :]


def _scattered_nd(x: Shape, indices: Shape, values: Shape | None, **_: Any) -> Shape:
    places = _gathered_nd(x, indices)
    if values is not None and values != places:
        raise ShapeError(f"the values {list(values)} must have the shape {list(places)}")
    return x


def grad_scatter_values(k: Any, g: Any, indices: Any, axis: int, mode: str) -> Any:
    """The gradient of the values: ``g`` at their indices; of values assigned to one element, only the last gets it."""
    g_values = k.take_along_axis(g, indices, axis)
    count = indices.shape[axis]
    if mode == "add" or count <= 1:
        return g_values
    numbers = k.reshape(k.arange(0, count, 1, int64), tuple(count if i == axis else 1 for i in range(len(g.shape))))
    numbers = k.broadcast_to(numbers, indices.shape)
    kept = k.scatter(k.full(g.shape, -1, int64), indices, numbers, axis, "assign")
    return k.where(k.equal(k.take_along_axis(kept, indices, axis), numbers), g_values, 0.0)


def grad_scatter_reduce(
    k: Any, g: Any, x: Any, indices: Any, values: Any, out: Any, axis: int, mode: str, needs: Needs
) -> tuple[Any, Any]:
    """The gradients of elements and values: ties share it; a factor's is ``g`` times the product of the others."""
    if is_scalar(values):
        values = k.full(indices.shape, values, k.dtype(x))
    if mode == "mul":
        grad_x = grad_values = None
        if needs[0]:
            grad_x = k.mul(g, k.scatter_reduce(k.ones(x.shape, k.dtype(x)), indices, values, axis, "mul"))
        if needs[1]:
            others = k.mul(
                k.take_along_axis(x, indices, axis), products_of_others_at(k, indices, values, x.shape[axis], axis)
            )
            grad_values = k.mul(k.take_along_axis(g, indices, axis), others)
        return grad_x, grad_values
    at = k.take_along_axis(out, indices, axis)
    best, own = k.astype(k.equal(values, at), k.dtype(g)), k.astype(k.equal(x, out), k.dtype(g))
    share = k.div(g, k.scatter(own, indices, best, axis, "add"))
    return k.mul(share, own), k.mul(k.take_along_axis(share, indices, axis), best)


def products_of_others_at(k: Any, indices: Any, values: Any, length: int, axis: int) -> Any:
    """For each value, the product of all other values with its index along ``axis``.

    Values are sorted by index and multiplied from both sides. Without division, zeros are no special case.
    """
    values = k.broadcast_to(values, indices.shape)
    places = k.remainder(indices, length) if length else indices
    order = k.argsort(places, axis)
    ordered, sorted_places = k.take_along_axis(values, order, axis), k.take_along_axis(places, order, axis)
    product = None
    for back in (False, True):
        same = k.astype(k.equal(sorted_places, shift(k, sorted_places, axis, -1, back)), k.dtype(values))
        neighbour = k.mul(same, shift(k, ordered, axis, 1.0, back))
        side = recurrence(k, neighbour, k.sub(1.0, same), axis, back)
        product = side if product is None else k.mul(product, side)
    return k.take_along_axis(product, k.argsort(order, axis), axis)


class Index(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Reading and writing by position."""

    # ---- ranges ----

    @overload
    def slice(self, x: F, /, key: Key) -> F: ...
    @overload
    def slice(self, x: I, /, key: Key) -> I: ...
    @overload
    def slice(self, x: B, /, key: Key) -> B: ...
    @overload
    def slice(self, x: Q, /, key: Key) -> Q: ...
    @operation(kinds="FCIBQ", shape=sliced, required=True, differentiable=True)
    def slice(self, x: Any, /, key: Key) -> Any:
        """``x[key]`` for one slice per axis; steps may be negative."""
        return missing("slice")

    gradient_rule(slice, x=lambda g, key: SliceGradient(g, key))  # the engine assembles the gradients of slices
    linear_in(slice)

    @overload
    def select(self, x: F, /, axis: int, index: int) -> F: ...
    @overload
    def select(self, x: I, /, axis: int, index: int) -> I: ...
    @overload
    def select(self, x: B, /, axis: int, index: int) -> B: ...
    @overload
    def select(self, x: Q, /, axis: int, index: int) -> Q: ...
    @operation(kinds="FCIBQ", shape=selected, differentiable=True)
    def select(self: Any, x: Any, /, axis: int, index: int) -> Any:
        """The entry ``index``, 0 or more, along ``axis``, which the result lacks."""
        selected(x.shape, axis=axis, index=index)
        return index_axis(self, x, axis, index)

    gradient_rule(select, x=lambda g, axis, index: EntryGradient(g, axis, index))
    linear_in(select)

    @overload
    def slice_assign(self, x: F, value: F | float, /, key: Key) -> F: ...
    @overload
    def slice_assign(self, x: I, value: I | int, /, key: Key) -> I: ...
    @overload
    def slice_assign(self, x: B, value: B | bool, /, key: Key) -> B: ...
    @operation(kinds="FCIB", shape=_assigned, required=True, differentiable=True)
    def slice_assign(self, x: Any, value: Any, /, key: Key) -> Any:
        """``x`` with ``value`` at ``x[key]``, to whose shape ``value`` broadcasts."""
        return missing("slice_assign")

    gradient_rule(
        slice_assign,
        x=lambda k, g, key: k.slice_assign(g, 0.0, key),
        value=lambda k, g, key: k.slice(g, key),
    )
    linear_in(slice_assign)

    @operation(kinds="FC", shape=lambda grad, *, shape, key: shape, differentiable=True)
    def slice_backward(self: Any, grad: F, /, shape: Shape, key: Key) -> F:
        """The gradient of :meth:`slice`: ``grad`` at ``key``, and 0 elsewhere in ``shape``."""
        return self.slice_assign(self.zeros(shape, self.dtype(grad)), grad, key)

    gradient_rule(slice_backward, grad=lambda k, g, key: k.slice(g, key))
    linear_in(slice_backward)

    # ---- along one axis, an index for each element ----

    @overload
    def take_along_axis(self, x: F, indices: I, /, axis: int) -> F: ...
    @overload
    def take_along_axis(self, x: I, indices: I, /, axis: int) -> I: ...
    @overload
    def take_along_axis(self, x: B, indices: I, /, axis: int) -> B: ...
    @overload
    def take_along_axis(self, x: Q, indices: I, /, axis: int) -> Q: ...
    @operation(kinds="FCIBQ", shape=gathered, like=("x",), required=True, differentiable=True)
    def take_along_axis(self, x: Any, indices: Any, /, axis: int) -> Any:
        """The elements of ``x`` at ``indices`` along ``axis``.

        ``indices`` has the shape of ``x`` in every other axis. With ``axis=1``, ``out[i, j] = x[i, indices[i, j]]``.
        """
        return missing("take_along_axis")

    gradient_rule(
        take_along_axis, x=lambda k, g, x_shape, indices, axis: k.take_along_axis_backward(g, indices, x_shape, axis)
    )
    linear_in(take_along_axis)

    @operation(kinds="FC", shape=lambda grad, indices, *, shape, axis: shape, like=("grad",), differentiable=True)
    def take_along_axis_backward(self: Any, grad: F, indices: I, /, shape: Shape, axis: int) -> F:
        """The gradient of :meth:`take_along_axis`: zeros of ``shape``, with ``grad`` added at the indices."""
        return self.scatter(self.zeros(shape, self.dtype(grad)), indices, grad, axis, "add")

    gradient_rule(take_along_axis_backward, grad=lambda k, g, indices, axis: k.take_along_axis(g, indices, axis))
    linear_in(take_along_axis_backward)

    @overload
    def scatter(self, x: F, indices: I, values: F | float, /, axis: int, mode: str = "assign") -> F: ...
    @overload
    def scatter(self, x: I, indices: I, values: I | int, /, axis: int, mode: str = "assign") -> I: ...
    @overload
    def scatter(self, x: B, indices: I, values: B | bool, /, axis: int, mode: str = "assign") -> B: ...
    @operation(kinds="FCIB", shape=scattered, like=("x",), required=True, differentiable=True)
    def scatter(self, x: Any, indices: Any, values: Any, /, axis: int, mode: str = "assign") -> Any:
        """``x`` with ``values`` written at ``indices`` along ``axis``.

        ``indices`` has the shape of ``x`` in every other axis, and ``values`` that of ``indices``. ``mode`` is
        ``"assign"``, for which the last value of repeated indices wins, or ``"add"``, which adds all.
        """
        return missing("scatter")

    gradient_rule(
        scatter,
        x=lambda k, g, indices, axis, mode: g if mode == "add" else k.scatter(g, indices, 0.0, axis, "assign"),
        values=grad_scatter_values,
    )
    linear_in(scatter)

    @overload
    def scatter_reduce(self, x: F, indices: I, values: F, /, axis: int, mode: str) -> F: ...
    @overload
    def scatter_reduce(self, x: I, indices: I, values: I, /, axis: int, mode: str) -> I: ...
    @operation(kinds="FI", shape=scattered, like=("x",), differentiable=True)
    def scatter_reduce(self: Any, x: Any, indices: Any, values: Any, /, axis: int, mode: str) -> Any:
        """:meth:`scatter` that multiplies (``mode="mul"``) or takes the smallest or largest (``"min"``, ``"max"``).

        Ties of ``"min"`` and ``"max"`` share the gradient. With ``"mul"``, derivatives are also correct where factors
        are 0.
        """
        if mode not in _REDUCE:
            raise ArgumentError(f"scatter_reduce: the mode is one of {', '.join(_REDUCE)}, not {mode!r}")
        scattered(x.shape, indices.shape, shape_or_none(values), axis=axis)
        self.take_along_axis(
            x, indices, axis
        )  # raises for an index out of range, which the comparison below would not see
        length, rank = x.shape[axis], len(x.shape)
        order = (*range(axis), *range(axis + 1, rank), axis)
        lines, places, new = (self.permute_dims(t, order) for t in (x, indices, values))
        own = self.reshape(lines, (*lines.shape, 1))
        places, new = (self.reshape(t, (*t.shape[:-1], 1, t.shape[-1])) for t in (places, new))
        places = self.where(self.less(places, 0), self.add(places, length), places)
        here = self.equal(places, self.reshape(self.arange(0, length, 1, self.dtype(indices)), (length, 1)))
        # Values for other positions are replaced by the element itself, which does not change the extremum.
        each = self.where(here, new, 1 if mode == "mul" else own)
        reduce = {"mul": self.prod, "min": self.min, "max": self.max}[mode]
        joint = reduce(self.concat([own, each], rank), (rank,), False)
        return self.permute_dims(joint, tuple(order.index(i) for i in range(rank)))

    gradient_rule(scatter_reduce, ("x", "values"), grad_scatter_reduce)

    # ---- along one axis, whole rows ----

    @overload
    def take(self, x: F, indices: I, /, axis: int) -> F: ...
    @overload
    def take(self, x: I, indices: I, /, axis: int) -> I: ...
    @overload
    def take(self, x: B, indices: I, /, axis: int) -> B: ...
    @overload
    def take(self, x: Q, indices: I, /, axis: int) -> Q: ...
    @operation(kinds="FCIBQ", shape=_taken, like=("x",), required=True, differentiable=True)
    def take(self, x: Any, indices: Any, /, axis: int) -> Any:
        """The entries of ``x`` at ``indices`` (of any shape) along ``axis``, which the axes of ``indices`` replace."""
        return missing("take")

    gradient_rule(take, x=lambda k, g, x_shape, indices, axis: k.take_backward(g, indices, x_shape[axis], axis))
    linear_in(take)

    @operation(kinds="FC", shape=untaken, like=("grad",), differentiable=True)
    def take_backward(self: Any, grad: F, indices: I, /, length: int, axis: int) -> F:
        """The gradient of :meth:`take` for ``length`` entries along ``axis``: entries of ``grad`` added by index."""
        indices_shape = indices.shape
        shape = untaken(grad.shape, indices_shape, length=length, axis=axis)
        count = math.prod(indices_shape)
        grad = self.reshape(grad, (*shape[:axis], count, *shape[axis + 1 :]))
        indices = self.reshape(indices, (count,))
        return self.index_add(self.zeros(shape, self.dtype(grad)), indices, grad, axis)

    gradient_rule(take_backward, grad=lambda k, g, indices, axis: k.take(g, indices, axis))
    linear_in(take_backward)

    @overload
    def index_add(self, x: F, indices: I, values: F | float, /, axis: int) -> F: ...
    @overload
    def index_add(self, x: I, indices: I, values: I | int, /, axis: int) -> I: ...
    @operation(kinds="FCI", shape=added, like=("x",), differentiable=True)
    def index_add(self: Any, x: Any, indices: Any, values: Any, /, axis: int) -> Any:
        """``x`` with the entries of ``values`` along ``axis`` added at ``indices`` (1-d)."""
        added(x.shape, indices.shape, shape_or_none(values), axis=axis)
        return self.scatter(x, _for_each(self, x, indices, axis), values, axis, "add")

    gradient_rule(index_add, x=lambda k, g: g, values=lambda k, g, indices, axis: k.take(g, indices, axis))
    linear_in(index_add)

    @overload
    def index_copy(self, x: F, indices: I, values: F | float, /, axis: int, donate: bool = False) -> F: ...
    @overload
    def index_copy(self, x: I, indices: I, values: I | int, /, axis: int, donate: bool = False) -> I: ...
    @overload
    def index_copy(self, x: B, indices: I, values: B | bool, /, axis: int, donate: bool = False) -> B: ...
    @operation(kinds="FCIB", shape=added, like=("x",), differentiable=True)
    def index_copy(self: Any, x: Any, indices: Any, values: Any, /, axis: int, donate: bool = False) -> Any:
        """``x`` with its entries at ``indices`` (1-d) along ``axis`` replaced by the entries of ``values``.

        For repeated indices, the last entry wins. ``donate`` allows the backend to write into the memory of ``x``,
        which is then lost.
        """
        added(x.shape, indices.shape, shape_or_none(values), axis=axis)
        return self.scatter(x, _for_each(self, x, indices, axis), values, axis, "assign")

    # ---- several axes at once ----

    @overload
    def gather_nd(self, x: F, indices: I, /) -> F: ...
    @overload
    def gather_nd(self, x: I, indices: I, /) -> I: ...
    @overload
    def gather_nd(self, x: B, indices: I, /) -> B: ...
    @operation(kinds="FCIB", shape=_gathered_nd, like=("x",), differentiable=True)
    def gather_nd(self: Any, x: Any, indices: Any, /) -> Any:
        """The entries of ``x`` at positions along its first m axes: ``indices`` has shape (..., m).

        The result has the shape of ``indices`` without its last axis, and then that of one entry.
        """
        _gathered_nd(x.shape, indices.shape)
        return self.take(*_flat(self, x, indices), 0)

    @overload
    def scatter_nd(self, x: F, indices: I, values: F | float, /, mode: str = "assign") -> F: ...
    @overload
    def scatter_nd(self, x: I, indices: I, values: I | int, /, mode: str = "assign") -> I: ...
    @overload
    def scatter_nd(self, x: B, indices: I, values: B | bool, /, mode: str = "assign") -> B: ...
    @operation(kinds="FCIB", shape=_scattered_nd, like=("x",), differentiable=True)
    def scatter_nd(self: Any, x: Any, indices: Any, values: Any, /, mode: str = "assign") -> Any:
        """``x`` with entries written at positions; the writing counterpart of :meth:`gather_nd`.

        ``mode`` is ``"assign"``, for which the last value of repeated indices wins, ``"add"``, or a mode of
        :meth:`scatter_reduce`, ``"mul"``, ``"min"`` and ``"max"``, for floats and ints.
        """
        _scattered_nd(x.shape, indices.shape, shape_or_none(values))
        if mode not in ("assign", "add", *_REDUCE):
            raise ArgumentError(f"scatter_nd: the mode is one of assign, add, {', '.join(_REDUCE)}, not {mode!r}")
        entries, flat = _flat(self, x, indices)
        count = math.prod(flat.shape)
        flat, shape = self.reshape(flat, (count,)), (count, *entries.shape[1:])
        if not is_scalar(values):
            values = self.reshape(values, shape)
        if mode in _REDUCE:
            values = self.full(shape, values, self.dtype(x)) if is_scalar(values) else values
            written = self.scatter_reduce(entries, _for_each(self, entries, flat, 0), values, 0, mode)
        else:
            written = (self.index_add if mode == "add" else self.index_copy)(entries, flat, values, 0)
        return self.reshape(written, x.shape)

    # ---- indices from values, and values from indices ----

    @operation(kinds="FCIB", shape=None, result="int64", required=True)
    def nonzero(self, x: F | I | B, /) -> I:
        """The positions of the elements that are not 0, in row-major order, as an int64 tensor (count, rank)."""
        return missing("nonzero")

    @operation(kinds="I", shape=lambda x, *, depth, **_: (*x, depth), result="dtype")
    def one_hot(self: Any, x: I, /, depth: int, dtype: DType = int64) -> Any:
        """A new last axis of length ``depth`` that is 1 at the index given by ``x`` and 0 elsewhere."""
        shape = x.shape
        one: Any = {"bool": True, "int": 1}.get(dtype.kind, 1.0)
        return self.scatter(self.zeros((*shape, depth), dtype), self.reshape(x, (*shape, 1)), one, len(shape))


_REDUCE = ("mul", "min", "max")


def _for_each(k: Any, x: Any, indices: Any, axis: int) -> Any:
    """Indices of entries along ``axis``, repeated for every element of the entries."""
    count = indices.shape[0]
    shape = tuple(count if i == axis else 1 for i in range(len(x.shape)))
    return k.broadcast_to(k.reshape(indices, shape), (*x.shape[:axis], count, *x.shape[axis + 1 :]))


def _flat(k: Any, x: Any, indices: Any) -> tuple[Any, Any]:
    """``x`` with the indexed axes merged into one, and the indices of entries along it."""
    axes = x.shape[: indices.shape[-1]]
    size = math.prod(axes)
    entries = k.reshape(x, (size, *x.shape[len(axes) :]))
    rank = len(indices.shape)
    if not axes:  # no axis is indexed: every entry is x itself
        return entries, k.zeros(indices.shape[:-1], k.dtype(indices))
    flat, outside = None, None
    for number, length in enumerate(axes):
        part = index_axis(k, indices, rank - 1, number)
        part = k.where(k.less(part, 0), k.add(part, length), part)
        # An index out of range in one axis must not become another entry: it stays out of range for all.
        wrong = k.logical_or(k.less(part, 0), k.less_equal(length, part))
        flat = part if flat is None else k.add(k.mul(flat, length), part)
        outside = wrong if outside is None else k.logical_or(outside, wrong)
    return entries, k.where(outside, size, flat)
