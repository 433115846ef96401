"""Samples: scans."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn.conformance.samples.table import INF, NAN, Array, case, integers, real, samples, unit

ALONG = (
    case(real(2, 3), axis=0),
    case(real(2, 5), axis=1),
    case(real(2, 4, 2), axis=1),
    case(real(1), axis=0),
    case(real(0, 2), axis=0),
    case(real(2, 0), axis=0),
    case(real(9), axis=0),
)
INTS = (case(integers(2, 3), axis=1), case(integers(5).astype(np.int8), axis=0))
SPECIAL = np.array([[1.0, 2.0, NAN, 3.0], [-INF, 0.0, INF, 1.0], [-INF, -INF, 1.0, 2.0]])


def both_ways(ufunc: Any) -> Any:
    """``ufunc.accumulate`` from either end."""

    def reference(x: Array, axis: int, reverse: bool = False) -> Array:
        ordered = np.flip(x, axis) if reverse else x
        running = ufunc.accumulate(ordered, axis=axis, dtype=x.dtype)
        return np.flip(running, axis) if reverse else running

    return reference


samples(
    "cumulative_sum",
    both_ways(np.add),
    *ALONG,
    *INTS,
    case(real(2, 3), axis=1, reverse=True),
    case(integers(4, low=100, high=120).astype(np.int8), axis=0, reverse=True, note="wraps"),
    case(SPECIAL, axis=1, smooth=0),
    case(np.full(300, 0.1), axis=0, smooth=1),
    case(np.array([[2**63 - 2, 2**63 - 2, 5], [3, 2**63 - 2, 2**63 - 2]]), axis=1, reverse=False, note="wraps"),
)
samples(
    "cumulative_prod",
    both_ways(np.multiply),
    *ALONG,
    *INTS,
    case(real(2, 3), axis=1, reverse=True),
    case(np.array([[2.0, 0.0, 3.0, 4.0], [0.0, 0.5, 0.0, 2.0], [0.0, 0.0, 0.0, 1.0]]), axis=1, note="zeros"),
    case(np.array([[2.0, 0.0, 3.0], [0.0, 0.5, 0.0]]), axis=1, reverse=True, note="zeros"),
    case(SPECIAL, axis=1, smooth=0),
)
RISES = np.array([[1.0, 3.0, 2.0, 3.0], [2.0, 2.0, 1.0, 2.5]])
LAST = np.array([[1.0, 2.0, 0.0, 1.0], [1.0, 2.0, 0.0, 1.0]])
samples(
    "cummax",
    np.maximum.accumulate,
    *ALONG,
    *INTS,
    case(SPECIAL, axis=1, smooth=0),
    case(RISES, axis=1, smooth=0, gradients=(LAST,)),
)
samples(
    "cummin",
    np.minimum.accumulate,
    *ALONG,
    *INTS,
    case(SPECIAL, axis=1, smooth=0),
    case(-RISES, axis=1, smooth=0, gradients=(LAST,)),
)
samples(
    "logcumsumexp",
    np.logaddexp.accumulate,
    *ALONG,
    case(np.array([1000.0, -1000.0, 1001.0, 0.0]), axis=0),
    case(np.array([-3000.0, -3001.0, 0.5]), axis=0),
    case(SPECIAL, axis=1, smooth=0),
    case(
        np.array([[-INF, 0.0, 0.0, -INF], [-INF, -INF, -INF, 2.0]]),
        axis=1,
        smooth=0,
        gradients=(np.array([[0.0, 2.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]),),
    ),
)
samples(
    "diff",
    lambda x, axis, n=1: np.diff(x, n, axis),
    *ALONG,
    *INTS,
    case(real(2, 5), axis=1, n=2),
    case(real(2, 5), axis=1, n=0),
    case(real(2, 3), axis=1, n=4, note="more often than there are elements"),
    case(integers(4, low=0, high=9).astype(np.uint8), axis=0, note="wraps"),
)


def ssm_reference(a: Array, b: Any, x: Array, h0: Array | None = None, axis: int = 0, reverse: bool = False) -> Array:
    """The recurrence, step by step."""
    a, fed = (np.moveaxis(v, axis, 0) for v in np.broadcast_arrays(a, b * x))
    out, state = np.empty(fed.shape), 0.0 if h0 is None else h0
    for t in range(len(out))[:: -1 if reverse else 1]:
        state = fed[t] if h0 is None and t == (len(out) - 1 if reverse else 0) else a[t] * state + fed[t]
        out[t] = state
    return np.moveaxis(out, 0, axis)


SCANS = (
    case(real(4, seed=1), real(4, seed=2), real(4, seed=3), np.array(0.7)),
    case(unit(3, 2, seed=1), real(3, 2, seed=2), real(3, 2, seed=3), real(2), reverse=True),
    case(unit(2, 3, seed=1), real(2, 3, seed=2), real(2, 3, seed=3), None, axis=1),
    case(unit(2, 3, 2, seed=1), real(3, 1), real(2, 3, 2, seed=3), real(2, 2), axis=1, reverse=True),
    case(unit(2), 1.0, real(5, 2), note="the same factors at every step, and no second ones"),
    case(unit(4, 3), real(4, 1), real(3), real(1), note="everything broadcasts"),
    case(real(1, 2), real(1, 2, seed=1), real(1, 2, seed=2), real(2)),
    case(real(0, 2), real(0, 2), real(0, 2), real(2), note="no steps"),
    case(real(3, 0), real(3, 0), real(3, 0), real(0)),
    case(np.array([2.0, 0.0, -1.0, 0.5]), real(4, seed=2), real(4, seed=3), np.array(0.7), note="a zero forgets"),
    case(unit(300), real(300), real(300, seed=1), np.array(0.5), smooth=1, note="long and narrow"),
    case(unit(290, 1, seed=1), real(1), real(290, 2, seed=2), None, smooth=1, reverse=True, note="long and narrow"),
    case(np.full(400, 1e9), np.ones(400), np.zeros(400), np.array(0.0), smooth=0, note="products overflow"),
    case(np.array([INF, 1.0]), np.array([1.0, 2.0]), np.array([NAN, 1.0]), smooth=0),
)

samples("ssm_scan", ssm_reference, *SCANS)


def ssm_gradients(
    grad: Array, a: Array, b: Array, x: Array, out: Array, h0: Array | None = None, axis: int = 0, reverse: bool = False
) -> tuple[Array, ...]:
    """The gradients of each step, from the last to the first."""
    g, a, b, x, out = (np.moveaxis(np.broadcast_to(v, grad.shape), axis, 0) for v in (grad, a, b, x, out))
    order = range(len(g))[:: -1 if reverse else 1]
    grad_a, grad_b, grad_x, grad_state = (np.zeros(g.shape) for _ in range(4))
    grad_h = np.zeros(g.shape[1:])
    for i in reversed(range(len(g))):
        t = order[i]
        grad_state[t] = g[t] + grad_h
        grad_h = a[t] * grad_state[t]
        before: Any = out[order[i - 1]] if i else (0.0 if h0 is None else h0)
        grad_a[t], grad_b[t], grad_x[t] = grad_state[t] * before, grad_state[t] * x[t], grad_state[t] * b[t]
    return (*(np.moveaxis(v, 0, axis) for v in (grad_a, grad_b, grad_x)), grad_h)


def _backward_case(scan: Any) -> Any:
    """A case of the backward operation from one of the scan; ``out`` may be any array."""
    a, b, x, *rest = scan.operands
    h0 = rest[0] if rest else None
    states = np.broadcast_shapes(a.shape, b.shape, x.shape)
    operands = (real(*states, seed=5), a, b, x, real(*states, seed=6), h0)
    return case(*operands, smooth=scan.smooth, **scan.attributes)


samples(
    "ssm_scan_backward",
    ssm_gradients,
    *(_backward_case(s) for s in SCANS if not isinstance(s.operands[1], float) and s.smooth != 0),
)
