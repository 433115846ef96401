"""Scans: cumulative sums, products and extrema along one axis, linear recurrences, and differences.

``axis`` is a number from 0 to rank - 1. 16-bit floats are accumulated in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, overload

from backburn.base.errors import ArgumentError
from backburn.ops.bodies.half_precision import in_float64, upcast_half
from backburn.ops.bodies.scalars import is_scalar, shape_or_none
from backburn.ops.bodies.slicing import slice_axis
from backburn.ops.primitives import Primitives
from backburn.ops.rules.gradients import Needs, gradient_rule
from backburn.ops.rules.shapes import Shape, along_axis, broadcast, broadcast_to, check_axis
from backburn.ops.rules.tangents import linear_in, tangent
from backburn.ops.table import missing, operation
from backburn.ops.types import B, F, I, Q

Elements = tuple[Any, ...]


def associative_scan(
    k: Any, combine: Callable[[Elements, Elements], Elements], elements: Elements, axis: int
) -> Elements:
    """The result of ``combine`` over all elements up to each position along ``axis``, in about ``2 log2(n)`` calls.

    An element is a tuple of tensors of one length along ``axis``; ``combine(earlier, later)`` is associative and works
    on many at once. Neighbours are combined, the results scanned recursively, and the positions between filled in:
    linear work. (Blelloch, Prefix Sums and Their Applications, 1990)
    """
    length = elements[0].shape[axis]
    if length < 2:
        return elements
    half = length // 2
    even = tuple(slice_axis(k, x, axis, 0, length, 2) for x in elements)
    odd = tuple(slice_axis(k, x, axis, 1, length, 2) for x in elements)
    first = tuple(slice_axis(k, x, axis, 0, half) for x in even)
    at_odd = associative_scan(k, combine, combine(first, odd), axis)
    before = tuple(slice_axis(k, x, axis, 0, (length - 1) // 2) for x in at_odd)
    rest = tuple(slice_axis(k, x, axis, 1, x.shape[axis]) for x in even)
    filled = combine(before, rest) if length > 2 else rest
    at_even = [k.concat([slice_axis(k, e, axis, 0, 1), f], axis) for e, f in zip(even, filled, strict=True)]
    return tuple(_interleaved(k, e, o, axis) for e, o in zip(at_even, at_odd, strict=True))


def _interleaved(k: Any, even: Any, odd: Any, axis: int) -> Any:
    """The elements of ``even`` and ``odd`` alternately; ``even`` may have one more."""
    half = odd.shape[axis]
    pairs = k.stack([slice_axis(k, even, axis, 0, half), odd], axis + 1)
    joined = k.reshape(pairs, (*odd.shape[:axis], 2 * half, *odd.shape[axis + 1 :]))
    return joined if even.shape[axis] == half else k.concat([joined, slice_axis(k, even, axis, half, half + 1)], axis)


def _differences(x: Shape, *, axis: int, n: int = 1) -> Shape:
    along_axis(x, axis=axis)
    if n < 0:
        raise ArgumentError(f"differences are taken 0 or more times, not {n}")
    return (*x[:axis], max(x[axis] - n, 0), *x[axis + 1 :])


def scan_shape(a: Shape, b: Shape | None, x: Shape, h0: Shape | None = None, *, axis: int, **_: Any) -> Shape:
    """The shape of the states, to which ``a``, ``b`` and ``x`` broadcast; a first state lacks ``axis``."""
    states = broadcast(a, b, x)
    check_axis(axis, len(states))
    if h0 is not None:
        broadcast_to(h0, shape=states[:axis] + states[axis + 1 :])
    return states


def _scanned_backward(
    grad: Shape, a: Shape, b: Shape, x: Shape, out: Shape, h0: Shape | None = None, *, axis: int, **_: Any
) -> tuple[Shape, Shape, Shape, Shape]:
    states = scan_shape(a, b, x, h0, axis=axis)
    return states, states, states, states[:axis] + states[axis + 1 :]


def first_state(k: Any, h0: Any, shape: Shape, axis: int) -> Any:
    """``h0`` in the shape of one step along ``axis``."""
    state = k.broadcast_to(h0, (*shape[:axis], *shape[axis + 1 :]))
    return k.reshape(state, (*shape[:axis], 1, *shape[axis + 1 :]))


def shift(k: Any, x: Any, axis: int, fill: Any, back: bool) -> Any:
    """Each element's predecessor along ``axis``, or with ``back`` its successor; ``fill`` where there is none."""
    length = x.shape[axis]
    edge = k.full((*x.shape[:axis], min(1, length), *x.shape[axis + 1 :]), fill, k.dtype(x))
    if back:
        return k.concat([slice_axis(k, x, axis, min(1, length), length), edge], axis)
    return k.concat([edge, slice_axis(k, x, axis, 0, max(length - 1, 0))], axis)


def previous_states(k: Any, out: Any, h0: Any, axis: int, reverse: bool) -> Any:
    """The state that each step of a scan started from."""
    if h0 is None or out.shape[axis] == 0:
        return shift(k, out, axis, 0.0, reverse)
    first, length = first_state(k, h0, out.shape, axis), out.shape[axis]
    if reverse:
        return k.concat([slice_axis(k, out, axis, 1, length), first], axis)
    return k.concat([first, slice_axis(k, out, axis, 0, length - 1)], axis)


def grad_states(k: Any, grad: Any, a: Any, axis: int, reverse: bool) -> Any:
    """The gradient of each state of a scan: the recurrence run backwards with the next step's ``a``."""
    return k.ssm_scan(shift(k, a, axis, 0.0, not reverse), 1.0, grad, None, axis, not reverse)


def grad_first_state(k: Any, grad_state: Any, a: Any, axis: int, reverse: bool) -> Any:
    """The gradient of the first state, from the gradients of all states."""
    length = grad_state.shape[axis]
    start, stop = (max(length - 1, 0), length) if reverse else (0, min(1, length))
    return k.sum(
        k.mul(slice_axis(k, a, axis, start, stop), slice_axis(k, grad_state, axis, start, stop)), (axis,), False
    )


# ---- gradients ----


def recurrence(k: Any, a: Any, b: Any, axis: int, back: bool) -> Any:
    """``h[t] = a[t] h[t-1] + b[t]`` along ``axis`` from zero, or with ``back`` from the other end."""
    if k.dtype(b).kind != "complex" and _computes(k, "ssm_scan"):
        return k.ssm_scan(a, 1.0, b, None, axis, back)
    if back:
        return k.flip(recurrence(k, k.flip(a, (axis,)), k.flip(b, (axis,)), axis, False), (axis,))

    def combine(earlier: tuple[Any, ...], later: tuple[Any, ...]) -> tuple[Any, ...]:
        return k.mul(earlier[0], later[0]), k.add(k.mul(later[0], earlier[1]), later[1])

    return associative_scan(k, combine, (a, b), axis)[1]


def _computes(k: Any, name: str) -> bool:
    """Whether the innermost backend has an implementation of an operation, rather than its body."""
    while (inner := getattr(k, "inner_backend", None)) is not None:
        k = inner
    return getattr(type(k), name, None) is not getattr(Scan, name)


def grad_cumprod(k: Any, g: Any, x: Any, out: Any, axis: int, reverse: bool) -> Any:
    """The product of all factors before an element, times the later gradients, each times the factors between."""
    next_factor, before = shift(k, x, axis, 1.0, not reverse), shift(k, out, axis, 1.0, reverse)

    def wide(k: Any, g: Any, next_factor: Any, before: Any) -> Any:
        return k.mul(before, recurrence(k, next_factor, g, axis, not reverse))

    return in_float64(k, wide, g, next_factor, before)


def is_carried(k: Any, x: Any, out: Any) -> Any:
    """A mask of the positions that keep the previous running extremum, since ``x`` is less extreme; False for NaN."""
    return k.logical_and(k.not_equal(x, out), k.equal(x, x))


def grad_running_extremum(k: Any, g: Any, x: Any, out: Any, axis: int) -> Any:
    """Each gradient, passed to the element that last set or equalled the running extremum."""
    kept = is_carried(k, x, out)
    passed_on = k.astype(shift(k, kept, axis, False, True), k.dtype(g))
    return k.where(kept, 0.0, recurrence(k, passed_on, g, axis, True))


def logcumsumexp_shares(k: Any, x: Any, out: Any, axis: int) -> tuple[Any, Any, Any]:
    """The share of each element in the sum up to it, the logarithms of the sums, and the counts of infinite elements.

    Infinite elements have equal shares. A logarithm that is infinite is replaced by 0.
    """
    infinite = k.where(k.equal(x, math.inf), 1.0, k.zeros(x.shape, k.dtype(x)))
    count = k.cumulative_sum(infinite, axis)
    total = k.where(k.isinf(out), 0.0, out)
    finite = k.where(k.greater(count, 0.0), 0.0, k.exp(k.sub(k.where(k.greater(infinite, 0.0), 0.0, x), total)))
    return k.add(finite, k.div(infinite, k.maximum(count, 1.0))), total, count


def logcumsumexp_left(k: Any, before: Any, total: Any, count_before: Any, count: Any) -> Any:
    """The share of a sum in a later one, from their logarithms, or from the counts of infinite elements."""
    finite = k.exp(k.sub(k.where(k.equal(before, math.inf), 0.0, before), total))
    return k.where(k.greater(count, 0.0), k.div(count_before, k.maximum(count, 1.0)), finite)


def grad_logcumsumexp(k: Any, g: Any, x: Any, out: Any, axis: int) -> Any:
    """Each element's share of the sum up to it, times the later gradients, weighted by that sum's share in each sum."""
    share, total, count = logcumsumexp_shares(k, x, out, axis)
    later = shift(k, total, axis, math.inf, True)
    left = logcumsumexp_left(k, out, later, count, shift(k, count, axis, 0.0, True))
    return k.mul(share, recurrence(k, left, g, axis, True))


def grad_ssm_scan(
    k: Any, g: Any, a: Any, b: Any, x: Any, h0: Any, out: Any, axis: int, reverse: bool, needs: Needs
) -> tuple[Any, ...]:
    """The gradients of all operands in one operation, or of some, from the gradient of each state."""
    if all(needs[:3]) and not is_scalar(b):
        return k.ssm_scan_backward(g, a, b, x, out, h0, axis, reverse)
    a = k.broadcast_to(a, out.shape)
    grad_state = grad_states(k, g, a, axis, reverse)
    return (
        k.mul(grad_state, previous_states(k, out, h0, axis, reverse)) if needs[0] else None,
        k.mul(grad_state, x) if needs[1] else None,
        k.mul(grad_state, b) if needs[2] else None,
        grad_first_state(k, grad_state, a, axis, reverse) if needs[3] else None,
    )


def tangent_cumprod(k: Any, t: Any, x: Any, out: Any, axis: int, reverse: bool) -> Any:
    """The product rule, step by step."""
    return in_float64(k, partial(_tangent_cumprod_wide, axis=axis, reverse=reverse), t, x, out)


def _tangent_cumprod_wide(k: Any, t: Any, x: Any, out: Any, axis: int, reverse: bool) -> Any:
    return recurrence(k, x, k.mul(shift(k, out, axis, 1.0, reverse), t), axis, reverse)


def tangent_running_extremum(k: Any, t: Any, x: Any, out: Any, axis: int) -> Any:
    """The tangent of the element that last set or equalled the running extremum."""
    kept = is_carried(k, x, out)
    return recurrence(k, k.astype(kept, k.dtype(t)), k.where(kept, 0.0, t), axis, False)


def tangent_logcumsumexp(k: Any, t: Any, x: Any, out: Any, axis: int) -> Any:
    """The tangent of each element times its share, plus the earlier ones times what is left of their shares."""
    share, total, count = logcumsumexp_shares(k, x, out, axis)
    before = shift(k, out, axis, -math.inf, False)
    left = logcumsumexp_left(k, before, total, shift(k, count, axis, 0.0, False), count)
    return recurrence(k, left, k.mul(share, t), axis, False)


def tangent_ssm_scan(k: Any, t: Any, a: Any, h0: Any, out: Any, axis: int, reverse: bool) -> Any:
    """The recurrence, driven by the factor's tangent times the previous state."""
    return k.ssm_scan(a, 1.0, k.mul(t, previous_states(k, out, h0, axis, reverse)), None, axis, reverse)


class Scan(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Cumulative results along an axis."""

    @overload
    def cumulative_sum(self, x: F, /, axis: int, reverse: bool = False) -> F: ...
    @overload
    def cumulative_sum(self, x: I, /, axis: int, reverse: bool = False) -> I: ...
    @operation(kinds="FCI", shape=along_axis, required=True, differentiable=True)
    def cumulative_sum(self, x: Any, /, axis: int, reverse: bool = False) -> Any:
        """The cumulative sum along ``axis``, from the end with ``reverse``."""
        return missing("cumulative_sum")

    gradient_rule(cumulative_sum, x=lambda k, g, axis, reverse: k.cumulative_sum(g, axis, not reverse))
    linear_in(cumulative_sum)

    @overload
    def cumulative_prod(self, x: F, /, axis: int, reverse: bool = False) -> F: ...
    @overload
    def cumulative_prod(self, x: I, /, axis: int, reverse: bool = False) -> I: ...
    @operation(kinds="FCI", shape=along_axis, required=True, differentiable=True)
    def cumulative_prod(self, x: Any, /, axis: int, reverse: bool = False) -> Any:
        """The cumulative product along ``axis``, from the end with ``reverse``.

        The gradient is also correct at zeros, at every order.
        """
        return missing("cumulative_prod")

    gradient_rule(cumulative_prod, x=grad_cumprod)
    tangent(cumulative_prod, x=tangent_cumprod)

    @overload
    def cummax(self, x: F, /, axis: int) -> F: ...
    @overload
    def cummax(self, x: I, /, axis: int) -> I: ...
    @operation(kinds="FI", shape=along_axis, differentiable=True)
    def cummax(self: Any, x: Any, /, axis: int) -> Any:
        """The largest element so far along ``axis``; NaN from the first NaN on.

        The gradient goes to the element that set it, or to the last that equalled it.
        """
        return associative_scan(self, lambda a, b: (self.maximum(a[0], b[0]),), (x,), axis)[0]

    gradient_rule(cummax, x=grad_running_extremum)
    tangent(cummax, x=tangent_running_extremum)

    @overload
    def cummin(self, x: F, /, axis: int) -> F: ...
    @overload
    def cummin(self, x: I, /, axis: int) -> I: ...
    @operation(kinds="FI", shape=along_axis, differentiable=True)
    def cummin(self: Any, x: Any, /, axis: int) -> Any:
        """The smallest element so far along ``axis``; NaN from the first NaN on.

        The gradient goes to the element that set it, or to the last that equalled it.
        """
        return associative_scan(self, lambda a, b: (self.minimum(a[0], b[0]),), (x,), axis)[0]

    gradient_rule(cummin, x=grad_running_extremum)
    tangent(cummin, x=tangent_running_extremum)

    @operation(kinds="F", shape=along_axis, differentiable=True)
    def logcumsumexp(self: Any, x: F, /, axis: int) -> F:
        """``log(cumsum(exp(x)))`` along ``axis`` without overflow; -inf while every element is."""
        wide = upcast_half(self, x)
        running = associative_scan(self, lambda a, b: (self.logaddexp(a[0], b[0]),), (wide,), axis)[0]
        return self.astype(running, self.dtype(x))

    gradient_rule(logcumsumexp, x=grad_logcumsumexp)
    tangent(logcumsumexp, x=tangent_logcumsumexp)

    @overload
    def diff(self, x: F, /, axis: int, n: int = 1) -> F: ...
    @overload
    def diff(self, x: I, /, axis: int, n: int = 1) -> I: ...
    @operation(kinds="FCI", shape=_differences, differentiable=True)
    def diff(self: Any, x: Any, /, axis: int, n: int = 1) -> Any:
        """The difference of each element along ``axis`` and the one before it, taken ``n`` times; shorter by ``n``."""
        _differences(x.shape, axis=axis, n=n)
        for _ in range(min(n, x.shape[axis])):  # then nothing is left
            length = x.shape[axis]
            x = self.sub(
                slice_axis(self, x, axis, min(1, length), length), slice_axis(self, x, axis, 0, max(length - 1, 0))
            )
        return x

    @operation(kinds="F", shape=scan_shape, differentiable=True)
    def ssm_scan(
        self: Any, a: F, b: F | float, x: F, h0: F | None = None, /, axis: int = 0, reverse: bool = False
    ) -> F:
        """The states ``h[t] = a[t] h[t-1] + b[t] x[t]`` of a linear recurrence along ``axis``, from ``h0`` or from 0.

        ``a``, ``b`` and ``x`` broadcast to the states' shape, ``axis`` is one of the states' axes, and ``h0``
        broadcasts to a state, which does not have ``axis``. With ``reverse`` it runs from the end: ``h[t] = a[t] h[t+1]
        + b[t] x[t]``. This is the scan of diagonal state space models (Gu and Dao, Mamba, 2023).
        """
        dtype, a, x = self.dtype(x), upcast_half(self, a), upcast_half(self, x)
        fed = self.mul(b if is_scalar(b) else upcast_half(self, b), x)
        shape = scan_shape(a.shape, fed.shape, x.shape, shape_or_none(h0), axis=axis)
        if shape[axis] == 0:
            return self.zeros(shape, dtype)
        a, fed = self.broadcast_to(a, shape), self.broadcast_to(fed, shape)
        state = None if h0 is None else first_state(self, upcast_half(self, h0), shape, axis)
        states = []
        # Step by step: products of many ``a``, as in logarithmic schemes, overflow where no state does.
        for t in reversed(range(shape[axis])) if reverse else range(shape[axis]):
            now = slice_axis(self, fed, axis, t, t + 1)
            state = now if state is None else self.add(self.mul(slice_axis(self, a, axis, t, t + 1), state), now)
            states.append(state)
        return self.astype(self.concat(states[::-1] if reverse else states, axis), dtype)

    gradient_rule(ssm_scan, ("a", "b", "x", "h0"), grad_ssm_scan)
    linear_in(ssm_scan, "b", ("x", "h0"))
    tangent(ssm_scan, a=tangent_ssm_scan)

    @operation(kinds="F", shape=_scanned_backward, result=("same",) * 4, differentiable=True)
    def ssm_scan_backward(
        self: Any, grad: F, a: F, b: F, x: F, out: F, h0: F | None = None, /, axis: int = 0, reverse: bool = False
    ) -> tuple[F, F, F, F]:
        """The gradients of :meth:`ssm_scan`, whose result was ``out``, for ``a``, ``b``, ``x`` and ``h0``.

        The first three have the shape of the states and the last that of a state: broadcasting is not undone.
        """
        a, b, x = (self.broadcast_to(v, out.shape) for v in (a, b, x))
        grad_state = grad_states(self, grad, a, axis, reverse)
        return (
            self.mul(grad_state, previous_states(self, out, h0, axis, reverse)),
            self.mul(grad_state, x),
            self.mul(grad_state, b),
            grad_first_state(self, grad_state, a, axis, reverse),
        )
