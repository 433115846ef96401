"""NumPy: scans and linear recurrences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backburn_numpy.reduce import is_narrow

Array = Any


def _accumulate(ufunc: np.ufunc, x: Array, axis: int, reverse: bool = False) -> Array:
    """``ufunc.accumulate`` in the dtype of ``x``, 16-bit floats by way of float32, from either end."""
    backwards = (*(slice(None),) * axis, slice(None, None, -1))
    narrow = is_narrow(x)
    running = ufunc.accumulate(x[backwards] if reverse else x, axis=axis, dtype=np.float32 if narrow else x.dtype)
    if narrow:
        running = running.astype(x.dtype)
    return running[backwards] if reverse else running


def cumsum(x: Array, /, axis: int, reverse: bool = False) -> Array:
    return _accumulate(np.add, x, axis, reverse)


def cumprod(x: Array, /, axis: int, reverse: bool = False) -> Array:
    return _accumulate(np.multiply, x, axis, reverse)


def cummax(x: Array, /, axis: int) -> Array:
    return np.maximum.accumulate(x, axis=axis)


def cummin(x: Array, /, axis: int) -> Array:
    return np.minimum.accumulate(x, axis=axis)


def logcumsumexp(x: Array, /, axis: int) -> Array:
    return _accumulate(np.logaddexp, x, axis)


def ssm_scan(
    a: Array, b: Array, x: Array, h0: Array | None = None, /, axis: int = 0, reverse: bool = False
) -> Array:
    narrow = is_narrow(x)
    dtype = np.float32 if narrow else x.dtype
    fed = np.multiply(b, x, dtype=dtype, out=...)
    shape = np.broadcast_shapes(a.shape, fed.shape)
    out = np.empty(shape, dtype)
    backwards = slice(None, None, -1 if reverse else 1)
    # Views with time as the first axis, in the order of the recurrence.
    steps, factors, inputs = (
        np.moveaxis(v, axis, 0)[backwards] for v in (out, np.broadcast_to(a, shape), np.broadcast_to(fed, shape))
    )
    if len(steps):
        scan = _scan_in_chunks if len(steps) > CHUNKED and steps[0].size < NARROW else _scan
        scan(factors, inputs, h0, steps)
    return out.astype(x.dtype) if narrow else out


#: From this many steps on, states of fewer than ``NARROW`` elements are scanned in chunks, many at a time.
CHUNKED, NARROW = 256, 64


def _scan(a: Array, fed: Array, h0: Array | None, out: Array) -> None:
    """``out[t] = a[t] out[t-1] + fed[t]``, a step at a time, without an array of its own for any."""
    out[0] = fed[0] if h0 is None else a[0] * h0 + fed[0]
    for t in range(1, len(out)):
        state = out[t : t + 1]
        np.multiply(a[t : t + 1], out[t - 1 : t], out=state)
        np.add(state, fed[t : t + 1], out=state)


def _scan_in_chunks(a: Array, fed: Array, h0: Array | None, out: Array) -> None:
    """The same in about two roots of as many steps: within all chunks at once, then from chunk to chunk.

    What comes into a chunk reaches its steps by products of ``a``; where one is not finite, the plain scan is right.
    """
    size = math.isqrt(len(out) - 1) + 1
    whole = len(out) // size * size
    factors, states = (np.ascontiguousarray(v[:whole]).reshape(-1, size, *v.shape[1:]) for v in (a, fed))
    states, products = states.copy(), factors.copy()
    for t in range(1, size):
        products[:, t] *= products[:, t - 1]
        states[:, t] += factors[:, t] * states[:, t - 1]
    if not np.isfinite(products).all():
        return _scan(a, fed, h0, out)
    entering = np.zeros_like(states[:, 0]) if h0 is None else np.broadcast_to(h0, states[:, 0].shape).astype(out.dtype)
    for chunk in range(1, len(states)):
        entering[chunk] = products[chunk - 1, -1] * entering[chunk - 1] + states[chunk - 1, -1]
    out[:whole] = (states + products * entering[:, None]).reshape(-1, *out.shape[1:])
    if whole < len(out):
        _scan(a[whole:], fed[whole:], out[whole - 1], out[whole:])
    return None
