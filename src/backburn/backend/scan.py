"""Scans: cumulative sums, products and extrema along one axis, linear recurrences, and differences.

``axis`` is a number from 0 to rank - 1. 16-bit floats are accumulated in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, overload

from backburn.backend.index import shape_of
from backburn.backend.kinds import Kinds
from backburn.backend.reduce import widened
from backburn.backend.scalars import is_scalar
from backburn.backend.shapes import Shape, along_axis, broadcast, broadcast_to, check_axis
from backburn.backend.table import missing, operation
from backburn.backend.types import B, F, I, Q
from backburn.backend.views import part
from backburn.base.errors import ArgumentError

Elements = tuple[Any, ...]


def associative_scan(
    k: Any, combine: Callable[[Elements, Elements], Elements], elements: Elements, axis: int
) -> Elements:
    """For each position, ``combine`` over all elements up to it along ``axis``, by about ``2 log2(n)`` calls of it.

    An element is a tuple of tensors of one length along ``axis``; ``combine(earlier, later)`` is associative and works
    on many at once. Neighbours are combined, the results scanned recursively, and the positions between filled in:
    linear work. (Blelloch, Prefix Sums and Their Applications, 1990)
    """
    length = elements[0].shape[axis]
    if length < 2:
        return elements
    half = length // 2
    even = tuple(part(k, x, axis, 0, length, 2) for x in elements)
    odd = tuple(part(k, x, axis, 1, length, 2) for x in elements)
    first = tuple(part(k, x, axis, 0, half) for x in even)
    at_odd = associative_scan(k, combine, combine(first, odd), axis)
    before = tuple(part(k, x, axis, 0, (length - 1) // 2) for x in at_odd)
    rest = tuple(part(k, x, axis, 1, x.shape[axis]) for x in even)
    filled = combine(before, rest) if length > 2 else rest
    at_even = [k.concat([part(k, e, axis, 0, 1), f], axis) for e, f in zip(even, filled, strict=True)]
    return tuple(_interleaved(k, e, o, axis) for e, o in zip(at_even, at_odd, strict=True))


def _interleaved(k: Any, even: Any, odd: Any, axis: int) -> Any:
    """The elements of ``even`` and ``odd`` in turns; ``even`` may have one more."""
    half = odd.shape[axis]
    pairs = k.stack([part(k, even, axis, 0, half), odd], axis + 1)
    joined = k.reshape(pairs, (*odd.shape[:axis], 2 * half, *odd.shape[axis + 1 :]))
    return joined if even.shape[axis] == half else k.concat([joined, part(k, even, axis, half, half + 1)], axis)


def _differences(x: Shape, *, axis: int, n: int = 1) -> Shape:
    along_axis(x, axis=axis)
    if n < 0:
        raise ArgumentError(f"differences are taken 0 or more times, not {n}")
    return (*x[:axis], max(x[axis] - n, 0), *x[axis + 1 :])


def scanned(a: Shape, b: Shape | None, x: Shape, h0: Shape | None = None, *, axis: int, **_: Any) -> Shape:
    """The shape of the states, that of ``a``, ``b`` and ``x`` together; a first state fits to it without ``axis``."""
    states = broadcast(a, b, x)
    check_axis(axis, len(states))
    if h0 is not None:
        broadcast_to(h0, shape=states[:axis] + states[axis + 1 :])
    return states


def _scanned_backward(
    grad: Shape, a: Shape, b: Shape, x: Shape, out: Shape, h0: Shape | None = None, *, axis: int, **_: Any
) -> tuple[Shape, Shape, Shape, Shape]:
    states = scanned(a, b, x, h0, axis=axis)
    return states, states, states, states[:axis] + states[axis + 1 :]


def first_state(k: Any, h0: Any, shape: Shape, axis: int) -> Any:
    """``h0`` in the shape of one step along ``axis``."""
    state = k.broadcast_to(h0, (*shape[:axis], *shape[axis + 1 :]))
    return k.reshape(state, (*shape[:axis], 1, *shape[axis + 1 :]))


def shifted(k: Any, x: Any, axis: int, fill: Any, back: bool) -> Any:
    """Each element's predecessor along ``axis``, or with ``back`` its successor; ``fill`` where there is none."""
    length = x.shape[axis]
    edge = k.full((*x.shape[:axis], min(1, length), *x.shape[axis + 1 :]), fill, k.dtype(x))
    if back:
        return k.concat([part(k, x, axis, min(1, length), length), edge], axis)
    return k.concat([edge, part(k, x, axis, 0, max(length - 1, 0))], axis)


def started_from(k: Any, out: Any, h0: Any, axis: int, reverse: bool) -> Any:
    """The state that each step of a scan started from."""
    if h0 is None or out.shape[axis] == 0:
        return shifted(k, out, axis, 0.0, reverse)
    first, length = first_state(k, h0, out.shape, axis), out.shape[axis]
    if reverse:
        return k.concat([part(k, out, axis, 1, length), first], axis)
    return k.concat([first, part(k, out, axis, 0, length - 1)], axis)


def of_states(k: Any, grad: Any, a: Any, axis: int, reverse: bool) -> Any:
    """The gradient of each state of a scan: the recurrence run backwards with the next step's ``a``."""
    return k.ssm_scan(shifted(k, a, axis, 0.0, not reverse), 1.0, grad, None, axis, not reverse)


def of_first_state(k: Any, of_state: Any, a: Any, axis: int, reverse: bool) -> Any:
    """The gradient of what the first step started from, given those of all states."""
    length = of_state.shape[axis]
    start, stop = (max(length - 1, 0), length) if reverse else (0, min(1, length))
    return k.sum(k.mul(part(k, a, axis, start, stop), part(k, of_state, axis, start, stop)), (axis,), False)


class Scan(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
    """Cumulative results along an axis."""

    @overload
    def cumsum(self, x: F, /, axis: int, reverse: bool = False) -> F: ...
    @overload
    def cumsum(self, x: I, /, axis: int, reverse: bool = False) -> I: ...
    @operation(kinds="FI", shape=along_axis, required=True, differentiable=True)
    def cumsum(self, x: Any, /, axis: int, reverse: bool = False) -> Any:
        """The cumulative sum along ``axis``, from the end with ``reverse``."""
        return missing("cumsum")

    @overload
    def cumprod(self, x: F, /, axis: int, reverse: bool = False) -> F: ...
    @overload
    def cumprod(self, x: I, /, axis: int, reverse: bool = False) -> I: ...
    @operation(kinds="FI", shape=along_axis, required=True, differentiable=True)
    def cumprod(self, x: Any, /, axis: int, reverse: bool = False) -> Any:
        """The cumulative product along ``axis``, from the end with ``reverse``.

        The gradient is also correct at zeros, at every order.
        """
        return missing("cumprod")

    @overload
    def cummax(self, x: F, /, axis: int) -> F: ...
    @overload
    def cummax(self, x: I, /, axis: int) -> I: ...
    @operation(kinds="FI", shape=along_axis, differentiable=True)
    def cummax(self: Any, x: Any, /, axis: int) -> Any:
        """The largest element so far along ``axis``; NaN from the first NaN on.

        The gradient goes to the element that set it, of several equal ones to the last so far.
        """
        return associative_scan(self, lambda a, b: (self.maximum(a[0], b[0]),), (x,), axis)[0]

    @overload
    def cummin(self, x: F, /, axis: int) -> F: ...
    @overload
    def cummin(self, x: I, /, axis: int) -> I: ...
    @operation(kinds="FI", shape=along_axis, differentiable=True)
    def cummin(self: Any, x: Any, /, axis: int) -> Any:
        """The smallest element so far along ``axis``; NaN from the first NaN on.

        The gradient goes to the element that set it, of several equal ones to the last so far.
        """
        return associative_scan(self, lambda a, b: (self.minimum(a[0], b[0]),), (x,), axis)[0]

    @operation(kinds="F", shape=along_axis, differentiable=True)
    def logcumsumexp(self: Any, x: F, /, axis: int) -> F:
        """``log(cumsum(exp(x)))`` along ``axis`` without overflow; -inf while every element is."""
        wide = widened(self, x)
        running = associative_scan(self, lambda a, b: (self.logaddexp(a[0], b[0]),), (wide,), axis)[0]
        return self.cast(running, self.dtype(x))

    @overload
    def diff(self, x: F, /, axis: int, n: int = 1) -> F: ...
    @overload
    def diff(self, x: I, /, axis: int, n: int = 1) -> I: ...
    @operation(kinds="FI", shape=_differences, differentiable=True)
    def diff(self: Any, x: Any, /, axis: int, n: int = 1) -> Any:
        """The difference of each element along ``axis`` and the one before it, taken ``n`` times; shorter by ``n``."""
        _differences(x.shape, axis=axis, n=n)
        for _ in range(min(n, x.shape[axis])):  # then nothing is left
            length = x.shape[axis]
            x = self.sub(part(self, x, axis, min(1, length), length), part(self, x, axis, 0, max(length - 1, 0)))
        return x

    @operation(kinds="F", shape=scanned, differentiable=True)
    def ssm_scan(
        self: Any, a: F, b: F | float, x: F, h0: F | None = None, /, axis: int = 0, reverse: bool = False
    ) -> F:
        """The states ``h[t] = a[t] h[t-1] + b[t] x[t]`` of a linear recurrence along ``axis``, from ``h0`` or from 0.

        ``a``, ``b`` and ``x`` broadcast to the states' shape, ``axis`` is one of the states' axes, and ``h0``
        broadcasts to a state, which does not have ``axis``. With ``reverse`` it runs from the end: ``h[t] = a[t] h[t+1]
        + b[t] x[t]``. This is the scan of diagonal state space models (Gu and Dao, Mamba, 2023).
        """
        dtype, a, x = self.dtype(x), widened(self, a), widened(self, x)
        fed = self.mul(b if is_scalar(b) else widened(self, b), x)
        shape = broadcast(shape_of(a), shape_of(fed))
        if shape[axis] == 0:
            return self.zeros(shape, dtype)
        a, fed = self.broadcast_to(a, shape), self.broadcast_to(fed, shape)
        state = None if h0 is None else first_state(self, widened(self, h0), shape, axis)
        states = []
        # One turn for each step: products of many ``a``, as in logarithmic schemes, overflow where no state does.
        for t in reversed(range(shape[axis])) if reverse else range(shape[axis]):
            now = part(self, fed, axis, t, t + 1)
            state = now if state is None else self.add(self.mul(part(self, a, axis, t, t + 1), state), now)
            states.append(state)
        return self.cast(self.concat(states[::-1] if reverse else states, axis), dtype)

    @operation(kinds="F", shape=_scanned_backward, result=("same",) * 4, differentiable=True)
    def ssm_scan_backward(
        self: Any, grad: F, a: F, b: F, x: F, out: F, h0: F | None = None, /, axis: int = 0, reverse: bool = False
    ) -> tuple[F, F, F, F]:
        """The gradients of :meth:`ssm_scan`, whose result was ``out``, for ``a``, ``b``, ``x`` and ``h0``.

        The first three have the shape of the states and the last that of a state: broadcasting is not undone.
        """
        a, b, x = (self.broadcast_to(v, shape_of(out)) for v in (a, b, x))
        of_state = of_states(self, grad, a, axis, reverse)
        return (
            self.mul(of_state, started_from(self, out, h0, axis, reverse)),
            self.mul(of_state, x),
            self.mul(of_state, b),
            of_first_state(self, of_state, a, axis, reverse),
        )
