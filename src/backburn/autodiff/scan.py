"""Gradient rules: scans.

Most gradients of scans are themselves running results from the other end, of the form ``h[t] = a[t] h[t-1] + b[t]``.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from backburn.autodiff.functions import in_float32
from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import linear, tangent
from backburn.backend.scalars import is_scalar
from backburn.backend.scan import associative_scan, of_first_state, of_states, shifted, started_from


def recurrence(k: Any, a: Any, b: Any, axis: int, back: bool) -> Any:
    """``h[t] = a[t] h[t-1] + b[t]`` along ``axis`` from zero, or with ``back`` from the other end."""
    if back:
        return k.flip(recurrence(k, k.flip(a, (axis,)), k.flip(b, (axis,)), axis, False), (axis,))

    def combine(earlier: tuple[Any, ...], later: tuple[Any, ...]) -> tuple[Any, ...]:
        return k.mul(earlier[0], later[0]), k.add(k.mul(later[0], earlier[1]), later[1])

    return associative_scan(k, combine, (a, b), axis)[1]


def cumprod_gradient(k: Any, g: Any, x: Any, out: Any, axis: int, reverse: bool) -> Any:
    """The product of all factors before an element, times what later factors make of each later gradient."""
    return in_float32(k, partial(_around, axis=axis, reverse=reverse), g, x, out)


def _around(k: Any, g: Any, x: Any, out: Any, axis: int, reverse: bool) -> Any:
    before = shifted(k, out, axis, 1.0, reverse)
    return k.mul(before, recurrence(k, shifted(k, x, axis, 1.0, not reverse), g, axis, not reverse))


def carried(k: Any, x: Any, out: Any) -> Any:
    """Where a running extremum is that of the place before: where ``x`` is less extreme. A NaN is a new one."""
    return k.logical_and(k.not_equal(x, out), k.equal(x, x))


def extremum_gradient(k: Any, g: Any, x: Any, out: Any, axis: int) -> Any:
    """Each gradient to the element that set the running extremum, or equalled it last."""
    kept = carried(k, x, out)
    passed_on = k.cast(shifted(k, kept, axis, False, True), k.dtype(g))
    return k.where(kept, 0.0, recurrence(k, passed_on, g, axis, True))


def logcumsumexp_gradient(k: Any, g: Any, x: Any, out: Any, axis: int) -> Any:
    """Each element's part of the sum up to it, times what of that sum is left in each later one."""
    total = k.where(k.equal(out, -math.inf), 0.0, out)
    left = k.exp(k.sub(out, shifted(k, total, axis, math.inf, True)))
    return k.mul(k.exp(k.sub(x, total)), recurrence(k, left, g, axis, True))


def ssm_scan_gradients(
    k: Any, g: Any, a: Any, b: Any, x: Any, h0: Any, out: Any, axis: int, reverse: bool, needs: tuple[bool, ...]
) -> tuple[Any, ...]:
    """One operation where all operands want theirs; else the gradient of each state serves those that do."""
    if all(needs[:3]) and not is_scalar(b):
        return k.ssm_scan_backward(g, a, b, x, out, h0, axis, reverse)
    a = k.broadcast_to(a, out.shape)
    of_state = of_states(k, g, a, axis, reverse)
    return (
        k.mul(of_state, started_from(k, out, h0, axis, reverse)) if needs[0] else None,
        k.mul(of_state, x) if needs[1] else None,
        k.mul(of_state, b) if needs[2] else None,
        of_first_state(k, of_state, a, axis, reverse) if needs[3] else None,
    )


gradient("ssm_scan", ("a", "b", "x", "h0"), ssm_scan_gradients)
gradient("cumsum", x=lambda k, g, axis, reverse: k.cumsum(g, axis, not reverse))
gradient("cumprod", x=cumprod_gradient)
gradient("cummax", x=extremum_gradient)
gradient("cummin", x=extremum_gradient)
gradient("logcumsumexp", x=logcumsumexp_gradient)

# ---- tangents ----


def cumprod_tangent(k: Any, t: Any, x: Any, out: Any, axis: int, reverse: bool) -> Any:
    """The product rule, step by step."""
    return recurrence(k, x, k.mul(shifted(k, out, axis, 1.0, reverse), t), axis, reverse)


def extremum_tangent(k: Any, t: Any, x: Any, out: Any, axis: int) -> Any:
    """That of the element which set the running extremum, or equalled it last."""
    kept = carried(k, x, out)
    return recurrence(k, k.cast(kept, k.dtype(t)), k.where(kept, 0.0, t), axis, False)


def logcumsumexp_tangent(k: Any, t: Any, x: Any, out: Any, axis: int) -> Any:
    """Each element's part of the sum up to it, and what is left of the parts before."""
    total = k.where(k.equal(out, -math.inf), 0.0, out)
    left = k.exp(k.sub(shifted(k, out, axis, -math.inf, False), total))
    return recurrence(k, left, k.mul(k.exp(k.sub(x, total)), t), axis, False)


def ssm_scan_tangent(k: Any, t: Any, a: Any, h0: Any, out: Any, axis: int, reverse: bool) -> Any:
    """The same recurrence, driven by what the moved factor makes of each state."""
    return k.ssm_scan(a, 1.0, k.mul(t, started_from(k, out, h0, axis, reverse)), None, axis, reverse)


linear("cumsum")
linear("ssm_scan", groups=("b", ("x", "h0")))
tangent("ssm_scan", a=ssm_scan_tangent)
tangent("cumprod", x=cumprod_tangent)
for _name in ("cummax", "cummin"):
    tangent(_name, x=extremum_tangent)
tangent("logcumsumexp", x=logcumsumexp_tangent)
