"""Reductions: operations that combine the elements along axes.

``axis`` holds distinct numbers from 0 to rank - 1 in ascending order, or is one number for a single axis; with
``keepdims`` the reduced axes stay at length 1. 16-bit floats are accumulated in float32.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Protocol, overload

from backburn.base.dtypes import int64, largest
from backburn.base.errors import ArgumentError, ShapeError
from backburn.ops.bodies.half_precision import in_float32, upcast_half
from backburn.ops.bodies.slicing import slice_axis
from backburn.ops.primitives import Primitives
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.rules.shapes import Axes, Shape, check_axes, flipped, reduced
from backburn.ops.rules.tangents import linear_in, reduction
from backburn.ops.table import missing, operation
from backburn.ops.types import B, F, I, Q


def count(x: Any, axis: Axes) -> int:
    """The number of elements of ``x`` that a reduction over ``axis`` combines into one."""
    return math.prod(map(x.shape.__getitem__, axis))


def result_shape(x: Any, axis: Axes | int, keepdims: bool) -> Shape:
    """The shape of ``x`` reduced over ``axis``."""
    return reduced(x.shape, axis=axis, keepdims=keepdims)


def merge_axes(k: Any, x: Any, axis: Axes) -> Any:
    """``x`` with the axes ``axis`` merged into one, which is the last."""
    rank = len(x.shape)
    kept = tuple(a for a in range(rank) if a not in axis)
    if kept + axis != tuple(range(rank)):
        x = k.permute_dims(x, kept + axis)
    return k.reshape(x, (*x.shape[: len(kept)], math.prod(x.shape[len(kept) :])))


def products_of_others(k: Any, x: Any) -> Any:
    """The product of all other elements, for each element along the last axis.

    Elements are multiplied in pairs, and the pairs recursively; each element is then multiplied by its partner's
    result. Without division, zeros are no special case.
    """
    axis, length = len(x.shape) - 1, x.shape[-1]
    if length < 2:
        return k.pow(x, 0.0)  # 1, with a derivative
    half = length // 2
    left, right = slice_axis(k, x, axis, 0, half), slice_axis(k, x, axis, half, 2 * half)
    rest = [slice_axis(k, x, axis, 2 * half, length)] if length % 2 else []
    outside = products_of_others(k, k.concat([k.mul(left, right), *rest], axis))
    both = slice_axis(k, outside, axis, 0, half)
    rest = [slice_axis(k, outside, axis, half, half + 1)] if length % 2 else []
    return k.concat([k.mul(both, right), k.mul(both, left), *rest], axis)


def take_extremum(k: Any, x: Any, index: Any, axis: int, keepdims: bool) -> Any:
    """The elements of ``x`` at ``index``, which has length 1 along ``axis``, and ``index``."""
    values, shape = k.take_along_axis(x, index, axis), result_shape(x, axis, keepdims)
    return k.reshape(values, shape), k.reshape(index, shape)


def quantile_positions(q: float | tuple[float, ...], length: int) -> list[tuple[int, float]]:
    """The position in sorted order below each of ``q``, and the fraction of the way to the next.

    Raises :class:`ArgumentError` for a ``q`` outside 0 to 1 and :class:`ShapeError` when there is no element.
    """
    if length == 0:
        raise ShapeError("a quantile of no elements has no value")
    result = []
    for one in q if isinstance(q, tuple) else (q,):
        if not 0.0 <= one <= 1.0:
            raise ArgumentError(f"a quantile lies between 0 and 1, not at {one}")
        below = math.floor(one * (length - 1))
        result.append((below, one * (length - 1) - below))
    return result


def quantile_shape(shape: Shape, *, q: float | tuple[float, ...], axis: Axes, keepdims: bool = False) -> Shape:
    """The reduced shape; a tuple ``q`` adds a leading axis."""
    result = reduced(shape, axis=axis, keepdims=keepdims)
    quantile_positions(q, math.prod(shape[a] for a in axis))
    return (len(q), *result) if isinstance(q, tuple) else result


def extremum(shape: Shape, *, axis: Axes | int, keepdims: bool = False) -> Shape:
    """The reduced shape; raises if there is no element to choose from."""
    result = reduced(shape, axis=axis, keepdims=keepdims)
    for a in check_axes(axis, len(shape)):
        if shape[a] == 0:
            raise ShapeError(f"axis {a} has no element to choose from")
    return result


def extremum_and_index(shape: Shape, *, axis: int, keepdims: bool = False, **_: Any) -> tuple[Shape, Shape]:
    """The reduced shape for values and for indices."""
    result = extremum(shape, axis=axis, keepdims=keepdims)
    return result, result


# ---- gradients ----


def keepdims_shape(shape: Shape, axis: Axes) -> Shape:
    """``shape`` with the reduced axes kept at length 1."""
    kept = list(shape)
    for a in axis:
        kept[a] = 1
    return tuple(kept)


def broadcast_back(k: Any, g: Any, x_shape: Shape, axis: Axes) -> Any:
    """The gradient of a reduction, repeated along the reduced axes."""
    return k.broadcast_to(k.reshape(g, keepdims_shape(x_shape, axis)), x_shape)


def div_by_count(k: Any, x: Any, n: Any) -> Any:
    """``x / n`` for a count ``n``, or a tensor of counts, which may exceed the largest float16."""
    wide = upcast_half(k, x)
    return k.div(x, n) if wide is x else k.astype(k.div(wide, n), k.dtype(x))


def split_ties(k: Any, g: Any, x: Any, out: Any, axis: Axes) -> Any:
    """The gradient of an extremum ``out``, divided equally among all elements equal to it."""
    chosen = k.astype(k.equal(x, k.reshape(out, keepdims_shape(x.shape, axis))), k.dtype(x))
    number = k.sum(upcast_half(k, chosen), axis, True)
    return k.mul(chosen, div_by_count(k, k.reshape(g, keepdims_shape(x.shape, axis)), number))


def safe_div(k: Any, x: Any, y: Any) -> Any:
    """``x / y``, and 0 where ``y`` is 0; its derivatives are finite there."""
    zero = k.equal(y, 0.0)
    return k.where(zero, 0.0, k.div(x, k.where(zero, 1.0, y)))


def grad_prod(k: Any, g: Any, x: Any, axis: Axes) -> Any:
    """The gradient times the product of the other elements."""
    return k.mul(k.reshape(g, keepdims_shape(x.shape, axis)), k.prod_of_others(x, axis))


def grad_mean(k: Any, g: Any, x_shape: Shape, axis: Axes) -> Any:
    """An equal part of the gradient to each element."""
    return broadcast_back(k, div_by_count(k, g, float(math.prod(x_shape[a] for a in axis))), x_shape, axis)


def grad_var(k: Any, g: Any, x: Any, axis: Axes, correction: float) -> Any:
    """Twice the distance from the mean, over the degrees of freedom."""
    scale = div_by_count(
        k, k.reshape(k.mul(g, 2.0), keepdims_shape(x.shape, axis)), max(count(x, axis) - correction, 0.0)
    )
    return k.mul(k.sub(x, k.mean(x, axis, True)), scale)


def grad_std(k: Any, g: Any, x: Any, out: Any, axis: Axes, correction: float) -> Any:
    """The distance from the mean in standard deviations, over the degrees of freedom; 0 where there is no deviation."""
    scale = div_by_count(k, k.reshape(g, keepdims_shape(x.shape, axis)), max(count(x, axis) - correction, 0.0))
    return k.mul(scale, safe_div(k, k.sub(x, k.mean(x, axis, True)), k.reshape(out, keepdims_shape(x.shape, axis))))


def grad_norm(k: Any, g: Any, x: Any, out: Any, axis: Axes, ord: float) -> Any:
    """``sign(x) (|x| / norm) ** (ord - 1)``; 0 where the norm or ``x`` is 0, even at a corner of the norm."""
    if ord == 0:
        return None
    if ord in (math.inf, -math.inf):
        return k.mul(k.sign(x), split_ties(k, g, k.abs(x), out, axis))
    g, out = (k.reshape(t, keepdims_shape(x.shape, axis)) for t in (g, out))
    if ord == 1:
        return k.mul(g, k.sign(x))
    if ord == 2:
        return k.mul(g, safe_div(k, x, out))
    return in_float32(k, partial(_grad_norm_of_powers, ord=ord), g, x, out)


def _grad_norm_of_powers(k: Any, g: Any, x: Any, out: Any, ord: float) -> Any:
    part_of_norm = safe_div(k, k.abs(x), out)  # may underflow to 0, so x itself is tested for 0
    powers = k.pow(k.where(k.equal(x, 0.0), 1.0, part_of_norm), ord - 1.0)
    return k.mul(g, k.mul(k.sign(x), powers))


def grad_logsumexp(k: Any, g: Any, x: Any, out: Any, axis: Axes) -> Any:
    """Each element's share of the sum; 0 where all are -inf. Infinite elements have equal shares."""
    kept, bound = keepdims_shape(x.shape, axis), largest(k.dtype(x))
    g, terms = k.reshape(k.where(k.equal(out, -math.inf), 0.0, g), kept), k.clip(x, -bound, bound)
    if len(axis) == 1:  # softmax has an accurate derivative even if one element dominates
        return k.mul(k.softmax(terms, axis[0] % len(x.shape)), g)
    return k.mul(k.exp(k.sub(terms, k.logsumexp(terms, axis, True))), g)


class Reduce(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Operations that combine elements along axes."""

    # ---- sums and products ----

    @overload
    def sum(self, x: F, /, axis: Axes, keepdims: bool = False) -> F: ...
    @overload
    def sum(self, x: I, /, axis: Axes, keepdims: bool = False) -> I: ...
    @operation(kinds="FCI", shape=reduced, required=True, differentiable=True)
    def sum(self, x: Any, /, axis: Axes, keepdims: bool = False) -> Any:
        """The sum over ``axis``, in the dtype of ``x``; 0 if there are no elements."""
        return missing("sum")

    gradient_rule(sum, x=broadcast_back)
    linear_in(sum)

    @overload
    def prod(self, x: F, /, axis: Axes, keepdims: bool = False) -> F: ...
    @overload
    def prod(self, x: I, /, axis: Axes, keepdims: bool = False) -> I: ...
    @operation(kinds="FCI", shape=reduced, required=True, differentiable=True)
    def prod(self, x: Any, /, axis: Axes, keepdims: bool = False) -> Any:
        """The product over ``axis``, in the dtype of ``x``; 1 if there are no elements.

        The gradient is also correct at zeros, at every order.
        """
        return missing("prod")

    gradient_rule(prod, x=lambda k, g, x, axis: in_float32(k, partial(grad_prod, axis=axis), g, x))
    reduction(prod)

    @operation(kinds="FC", shape=flipped, differentiable=True)
    def prod_of_others(self: Any, x: F, /, axis: Axes) -> F:
        """For each element, the product of all others over ``axis``: the derivative of :meth:`prod`."""
        wide = upcast_half(self, x)
        shape = wide.shape
        moved = (*(a for a in range(len(shape)) if a not in axis), *axis)
        found = self.reshape(products_of_others(self, merge_axes(self, wide, axis)), tuple(shape[a] for a in moved))
        return self.astype(self.permute_dims(found, tuple(moved.index(a) for a in range(len(shape)))), self.dtype(x))

    @overload
    def count_nonzero(self, x: F, /, axis: Axes, keepdims: bool = False) -> I: ...
    @overload
    def count_nonzero(self, x: I, /, axis: Axes, keepdims: bool = False) -> I: ...
    @overload
    def count_nonzero(self, x: B, /, axis: Axes, keepdims: bool = False) -> I: ...
    @operation(kinds="FCIB", shape=reduced, result="int64")
    def count_nonzero(self: Any, x: Any, /, axis: Axes, keepdims: bool = False) -> Any:
        """The number of elements over ``axis`` that are not 0; NaN counts as not 0."""
        nonzero = x if self.dtype(x).kind == "bool" else self.not_equal(x, 0)
        return self.sum(self.astype(nonzero, int64), axis, keepdims)

    # ---- extrema ----

    @overload
    def max(self, x: F, /, axis: Axes, keepdims: bool = False) -> F: ...
    @overload
    def max(self, x: I, /, axis: Axes, keepdims: bool = False) -> I: ...
    @operation(kinds="FI", shape=extremum, required=True, differentiable=True)
    def max(self, x: Any, /, axis: Axes, keepdims: bool = False) -> Any:
        """The largest element over ``axis``; NaN if one is NaN. Elements that tie share the gradient equally.

        Raises ValueError if there is no element to choose from.
        """
        return missing("max")

    gradient_rule(max, x=split_ties)
    reduction(max)

    @overload
    def min(self, x: F, /, axis: Axes, keepdims: bool = False) -> F: ...
    @overload
    def min(self, x: I, /, axis: Axes, keepdims: bool = False) -> I: ...
    @operation(kinds="FI", shape=extremum, required=True, differentiable=True)
    def min(self, x: Any, /, axis: Axes, keepdims: bool = False) -> Any:
        """The smallest element over ``axis``; NaN if one is NaN. Elements that tie share the gradient equally.

        Raises ValueError if there is no element to choose from.
        """
        return missing("min")

    gradient_rule(min, x=split_ties)
    reduction(min)

    @overload
    def max_abs(self, x: F, /, axis: Axes, keepdims: bool = False) -> F: ...
    @overload
    def max_abs(self, x: I, /, axis: Axes, keepdims: bool = False) -> I: ...
    @operation(kinds="FI", shape=reduced, differentiable=True)
    def max_abs(self: Any, x: Any, /, axis: Axes, keepdims: bool = False) -> Any:
        """The largest absolute value over ``axis``; NaN if one is NaN. Elements that tie share the gradient.

        The absolute value of the smallest integer, which its dtype cannot hold, becomes the largest. Without elements
        it is 0.
        """
        dtype = self.dtype(x)
        if 0 in [x.shape[a] for a in axis]:
            return self.sum(x, axis, keepdims)
        if dtype.is_floating or not dtype.signed:
            return self.max(self.abs(x), axis, keepdims)
        below = self.minimum(self.bitwise_invert(self.min(x, axis, keepdims)), 2 ** (dtype.bits - 1) - 2)
        return self.maximum(self.max(x, axis, keepdims), self.add(below, 1))

    @overload
    def argmax(self, x: F, /, axis: int, keepdims: bool = False) -> I: ...
    @overload
    def argmax(self, x: I, /, axis: int, keepdims: bool = False) -> I: ...
    @operation(kinds="FI", shape=extremum, result="int64", required=True)
    def argmax(self, x: Any, /, axis: int, keepdims: bool = False) -> Any:
        """The index of the first largest element along ``axis``; NaN counts as larger than every number.

        Raises ValueError if there is no element to choose from.
        """
        return missing("argmax")

    @overload
    def argmin(self, x: F, /, axis: int, keepdims: bool = False) -> I: ...
    @overload
    def argmin(self, x: I, /, axis: int, keepdims: bool = False) -> I: ...
    @operation(kinds="FI", shape=extremum, result="int64", required=True)
    def argmin(self, x: Any, /, axis: int, keepdims: bool = False) -> Any:
        """The index of the first smallest element along ``axis``; NaN counts as smaller than every number.

        Raises ValueError if there is no element to choose from.
        """
        return missing("argmin")

    @overload
    def max_with_indices(self, x: F, /, axis: int, keepdims: bool = False) -> tuple[F, I]: ...
    @overload
    def max_with_indices(self, x: I, /, axis: int, keepdims: bool = False) -> tuple[I, I]: ...
    @operation(kinds="FI", shape=extremum_and_index, result=("same", "int64"), differentiable=True)
    def max_with_indices(self: Any, x: Any, /, axis: int, keepdims: bool = False) -> Any:
        """The first largest element along ``axis``, which gets the whole gradient, and its index."""
        return take_extremum(self, x, self.argmax(x, axis, True), axis, keepdims)

    @overload
    def min_with_indices(self, x: F, /, axis: int, keepdims: bool = False) -> tuple[F, I]: ...
    @overload
    def min_with_indices(self, x: I, /, axis: int, keepdims: bool = False) -> tuple[I, I]: ...
    @operation(kinds="FI", shape=extremum_and_index, result=("same", "int64"), differentiable=True)
    def min_with_indices(self: Any, x: Any, /, axis: int, keepdims: bool = False) -> Any:
        """The first smallest element along ``axis``, which gets the whole gradient, and its index."""
        return take_extremum(self, x, self.argmin(x, axis, True), axis, keepdims)

    # ---- booleans ----

    @operation(kinds="B", shape=reduced, required=True)
    def any(self, x: B, /, axis: Axes, keepdims: bool = False) -> B:
        """Whether any element over ``axis`` is true; False if there are none."""
        return missing("any")

    @operation(kinds="B", shape=reduced, required=True)
    def all(self, x: B, /, axis: Axes, keepdims: bool = False) -> B:
        """Whether all elements over ``axis`` are true; True if there are none."""
        return missing("all")

    # ---- statistics ----

    @operation(kinds="FC", shape=reduced, differentiable=True)
    def mean(self: Any, x: F, /, axis: Axes, keepdims: bool = False) -> F:
        """The mean over ``axis``; NaN if there are no elements."""
        total = self.sum(upcast_half(self, x), axis, keepdims)
        return self.astype(self.div(total, float(count(x, axis))), self.dtype(x))

    gradient_rule(mean, x=grad_mean)
    linear_in(mean)

    @operation(kinds="F", shape=reduced, differentiable=True)
    def var(self: Any, x: F, /, axis: Axes, correction: float = 0.0, keepdims: bool = False) -> F:
        """The variance over ``axis``: the sum of squared deviations from the mean, divided by ``n - correction``.

        It takes two passes, to avoid cancellation. Infinite or NaN unless ``n > correction``.
        """
        wide = upcast_half(self, x)
        squares = self.square(self.sub(wide, self.mean(wide, axis, True)))
        freedom = max(count(x, axis) - correction, 0.0)
        return self.astype(self.div(self.sum(squares, axis, keepdims), freedom), self.dtype(x))

    gradient_rule(var, x=grad_var)
    reduction(var)

    @operation(kinds="F", shape=reduced, differentiable=True)
    def std(self: Any, x: F, /, axis: Axes, correction: float = 0.0, keepdims: bool = False) -> F:
        """The square root of :meth:`var`; where it is 0, so is the gradient."""
        return self.astype(self.sqrt(self.var(upcast_half(self, x), axis, correction, keepdims)), self.dtype(x))

    gradient_rule(std, x=grad_std)
    reduction(std)

    @operation(kinds="F", shape=quantile_shape, differentiable=True)
    def quantile(self: Any, x: F, /, q: float | tuple[float, ...], axis: Axes, keepdims: bool = False) -> F:
        """The quantile ``q`` of the elements over ``axis``, interpolated linearly between two elements.

        A tuple ``q`` adds a leading axis. NaN if one element is NaN. The gradient goes to the two elements. Raises
        ValueError for a ``q`` outside 0 to 1, and if there are no elements.
        """
        line = merge_axes(self, x, axis)
        length, last = line.shape[-1], len(line.shape) - 1
        positions = quantile_positions(q, length)
        line = self.sort(line, last)

        def at(place: int) -> Any:
            return self.take(line, self.full((1,), place, int64), last)

        bad = self.isnan(at(length - 1))
        found = [_interpolate(self, at(below), at(below + 1), part) if part else at(below) for below, part in positions]
        values = [self.reshape(self.where(bad, math.nan, value), (1, *line.shape[:-1])) for value in found]
        joined = self.concat(values, 0) if values else self.full((0, *line.shape[:-1]), 0.0, self.dtype(x))
        shape = result_shape(x, axis, keepdims)
        return self.reshape(joined, (len(q), *shape) if isinstance(q, tuple) else shape)

    @operation(kinds="F", shape=lambda x, **a: quantile_shape(x, q=0.5, **a), differentiable=True)
    def median(self: Any, x: F, /, axis: Axes, keepdims: bool = False) -> F:
        """The middle of the sorted elements over ``axis``, or the mean of the two in the middle; NaN if one is NaN.

        Raises ValueError if there are no elements.
        """
        return self.quantile(x, 0.5, axis, keepdims)

    # ---- norms ----

    @operation(kinds="F", shape=reduced, differentiable=True)
    def vector_norm(self: Any, x: F, /, axis: Axes, ord: float = 2.0, keepdims: bool = False) -> F:
        """The vector norm ``sum(|x| ** ord) ** (1 / ord)`` over ``axis``; where it is 0, so is the gradient.

        ``ord`` may be any number: 0 counts the elements that are not 0, ``inf`` is the largest and ``-inf`` the
        smallest absolute value. The norm of no elements is 0, except for ``-inf``, which raises. Squares and powers
        neither overflow nor underflow unless the norm does.
        """
        size = upcast_half(self, self.abs(x))
        root = self.reshape(_norm(self, size, axis, ord), result_shape(x, axis, keepdims))
        return self.astype(root, self.dtype(x))

    gradient_rule(vector_norm, x=grad_norm)
    reduction(vector_norm)

    @operation(kinds="F", shape=reduced, differentiable=True)
    def logsumexp(self: Any, x: F, /, axis: Axes, keepdims: bool = False) -> F:
        """``log(sum(exp(x)))`` over ``axis`` without overflow; -inf if all elements are, or there are none."""
        shape = result_shape(x, axis, keepdims)
        if count(x, axis) == 0:
            return self.full(shape, -math.inf, self.dtype(x))
        wide = upcast_half(self, x)
        top = self.max(wide, axis, True)
        top = self.where(self.isinf(top), 0.0, top)
        total = self.sum(self.exp(self.sub(wide, top)), axis, True)
        return self.astype(self.reshape(self.add(self.log(total), top), shape), self.dtype(x))

    gradient_rule(logsumexp, x=grad_logsumexp)
    reduction(logsumexp)


def _interpolate(k: Any, below: Any, above: Any, part: float) -> Any:
    """The value at ``part`` of the way from ``below`` to ``above``, never outside the two."""
    weighted = k.add(k.mul(below, 1.0 - part), k.mul(above, part))
    if part == 0.5:  # halves are exact
        return weighted
    gap = k.sub(above, below)
    near = k.add(below, k.mul(gap, part)) if part < 0.5 else k.sub(above, k.mul(gap, 1.0 - part))
    return k.where(k.isfinite(gap), near, weighted)


def _norm(k: Any, size: Any, axis: Axes, ord: float) -> Any:
    """The norm of the absolute values ``size``, with the reduced axes kept."""
    if ord == math.inf and count(size, axis) > 0:
        return k.max(size, axis, True)
    if ord == -math.inf:
        if not count(size, axis):
            raise ShapeError("no elements have no smallest absolute value")
        return k.min(size, axis, True)
    if ord == 0:
        size = k.astype(k.not_equal(size, 0.0), k.dtype(size))
    if ord in (0, 1, math.inf) or 0 in size.shape:
        return k.sum(size, axis, True)
    # After division by the dominant element, powers lie between 0 and 1.
    scale = k.max(size, axis, True) if ord > 0 else k.min(size, axis, True)
    scale = k.where(k.logical_or(k.equal(scale, 0.0), k.isinf(scale)), 1.0, scale)
    ratio = k.div(size, scale)
    if ord == 2:
        return k.mul(k.sqrt(k.sum(k.square(ratio), axis, True)), scale)
    return k.mul(k.pow(k.sum(k.pow(ratio, ord), axis, True), 1.0 / ord), scale)
