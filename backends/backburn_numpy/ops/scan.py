"""NumPy: scans and linear recurrences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from backburn.ops.table import OPERATIONS
from backburn_numpy import compiled
from backburn_numpy.blocks import BLOCK, WORTH, run_columns, run_rows
from backburn_numpy.compiled import FLOAT32, FLOAT64
from backburn_numpy.half_precision import cast_like, is_half, upcast_half
from backburn_numpy.memory import contiguous, empty
from backburn_numpy.threads import parallel_for

Array = Any


def _accumulate(ufunc: np.ufunc, x: Array, axis: int, reverse: bool = False) -> Array:
    """``ufunc.accumulate`` from either end: sums of float32 in float64, 16-bit floats in float32."""
    backwards = (*(slice(None),) * axis, slice(None, None, -1))
    is_exact = ufunc in (np.maximum, np.minimum)
    wide = FLOAT32 if is_half(x) else FLOAT64 if x.dtype == FLOAT32 and not is_exact else x.dtype
    running = ufunc.accumulate(x[backwards] if reverse else x, axis=axis, dtype=wide)
    return cast_like(running[backwards] if reverse else running, x)


def cumulative_sum(x: Array, /, axis: int, reverse: bool = False) -> Array:
    return _running("cumsum", np.add, x, axis, reverse)


def cumulative_prod(x: Array, /, axis: int, reverse: bool = False) -> Array:
    return _running("cumprod", np.multiply, x, axis, reverse)


def _running(name: str, ufunc: np.ufunc, x: Array, axis: int, reverse: bool = False) -> Array:
    name = f"{name}_reverse" if reverse else name
    if compiled.serving(name, x) is not None:
        out = empty(x.shape, x.dtype)
        if axis == x.ndim - 1:
            served = run_rows(name, (out, x), x.size // x.shape[-1], x.shape[-1])
        else:
            served = run_columns(name, (out, x), x.shape, axis)
        if served:
            return out
    return _accumulate(ufunc, x, axis, reverse)


def cummax(x: Array, /, axis: int) -> Array:
    return _running("cummax", np.maximum, x, axis)


def cummin(x: Array, /, axis: int) -> Array:
    return _running("cummin", np.minimum, x, axis)


def diff(k: Any, x: Array, /, axis: int, n: int = 1) -> Array:
    width = x.shape[axis]
    if n == 1 and axis == x.ndim - 1 and x.size > width > 1 and compiled.serving("diff_rows", x) is not None:
        out = empty((*x.shape[:axis], width - 1), x.dtype)
        if run_rows("diff_rows", (out, x), x.size // width, width):
            return out
    return OPERATIONS["diff"].body(k, x, axis, n)


def logcumsumexp(x: Array, /, axis: int) -> Array:
    return _accumulate(np.logaddexp, x, axis)


def ssm_scan(a: Array, b: Array, x: Array, h0: Array | None = None, /, axis: int = 0, reverse: bool = False) -> Array:
    dtype = x.dtype
    a, x = upcast_half(a), upcast_half(x)
    b = np.asarray(b, x.dtype) if isinstance(b, (int, float)) else upcast_half(b)
    shape = np.broadcast_shapes(a.shape, b.shape, x.shape)
    out = empty(shape, x.dtype)
    if h0 is not None and not shape[axis]:
        np.broadcast_to(h0, shape[:axis] + shape[axis + 1 :])  # an error if it does not fit
    if _run_kernel("scan", (out, a, b, x), (h0,), axis, reverse):
        return out.astype(dtype, copy=False)
    states, a, b, x = (_steps(v, shape, axis, reverse) for v in (out, a, b, x))
    _over_steps(lambda i: np.multiply(b[i], x[i], out=states[i]), states)
    if h0 is not None and len(states):
        states[0] += a[0] * h0
    _recur(a[1:], states)
    return out.astype(dtype, copy=False)


def ssm_scan_backward(
    grad: Array, a: Array, b: Array, x: Array, out: Array, h0: Array | None = None, /, axis: int = 0,
    reverse: bool = False,
) -> tuple[Array, ...]:  # fmt: skip
    dtype, shape = out.dtype, out.shape
    operands = [upcast_half(v) for v in (grad, a, b, x, out)]
    results = [empty(shape, operands[0].dtype) for _ in range(3)]
    grad_h0 = np.zeros(shape[:axis] + shape[axis + 1 :], operands[0].dtype)
    if _run_kernel("scan_backward", (*results, *operands), (grad_h0, h0), axis, reverse):
        return tuple(v.astype(dtype, copy=False) for v in (*results, grad_h0))
    grad_a, grad_b, grad_x, grad, a, b, x, out = (_steps(v, shape, axis, reverse) for v in (*results, *operands))
    states = empty(out.shape, out.dtype)
    _over_steps(lambda i: np.copyto(states[i], grad[i]), states)
    _recur(a[:0:-1], states[::-1])

    def products(i: slice) -> None:
        np.multiply(states[i], x[i], out=grad_b[i])
        np.multiply(states[i], b[i], out=grad_x[i])
        first = max(i.start, 1)
        np.multiply(states[first : i.stop], out[first - 1 : i.stop - 1], out=grad_a[first : i.stop])

    _over_steps(products, states)
    if len(out):
        np.multiply(states[0], 0.0 if h0 is None else h0, out=grad_a[0, ...])
        np.multiply(states[0], a[0], out=grad_h0)
    return tuple(v.astype(dtype, copy=False) for v in (*results, grad_h0))


def _run_kernel(
    name: str, arrays: tuple[Array, ...], states: tuple[Array | None, ...], axis: int, reverse: bool
) -> bool:
    """Call the compiled kernel on arrays that broadcast to the first, and on single states; False if there is none."""
    shape = arrays[0].shape
    fast = compiled.serving(name, arrays[0])
    if fast is None:
        return False
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    step = inner * arrays[0].itemsize
    whole = [contiguous(v if v.shape == shape else np.broadcast_to(v, shape)) for v in arrays]
    without = shape[:axis] + shape[axis + 1 :]
    single = [None if v is None else contiguous(np.broadcast_to(v, without), FLOAT32) for v in states]

    def part(outers: tuple[int, int], inners: tuple[int, int]) -> None:
        fast(
            *(compiled.address(v) + outers[0] * shape[axis] * step for v in whole),
            *(None if v is None else compiled.address(v) + outers[0] * step for v in single),
            *(reverse, outers[1] - outers[0], shape[axis], inner, *inners),
        )

    if outer > 1:
        parallel_for(lambda start, stop: part((start, stop), (0, inner)), outer, max(1, WORTH // (shape[axis] * inner)))
    else:
        parallel_for(lambda start, stop: part((0, 1), (start, stop)), inner, max(1, WORTH // shape[axis]))
    return True


def _steps(v: Array, shape: tuple[int, ...], axis: int, reverse: bool) -> Array:
    """``v`` broadcast to the states' shape, as a view with time first, in the order of the recurrence."""
    return np.moveaxis(v if v.shape == shape else np.broadcast_to(v, shape), axis, 0)[:: -1 if reverse else 1]


def _over_steps(work: Callable[[slice], Any], steps: Array) -> None:
    """``work`` on all steps, which are independent, in blocks and several threads."""
    if not steps.size:
        return
    size = steps.size // len(steps)
    block = max(1, BLOCK // size)

    def part(start: int, stop: int) -> None:
        for first in range(start, stop, block):
            work(slice(first, min(first + block, stop)))

    parallel_for(part, len(steps), max(1, WORTH // size))


#: From this many steps on, states of fewer than ``NARROW`` elements are scanned in chunks, all at once.
CHUNKED, NARROW = 256, 64


def _recur(a: Array, states: Array) -> None:
    """``states[t + 1] += a[t] states[t]`` from the first to the last."""
    if len(states) > CHUNKED and 0 < states[0].size < NARROW and _recur_in_chunks(a, states):
        return
    product = np.empty((*states.shape[1:], 1), states.dtype)
    # The extra axis keeps states arrays, not scalars.
    for factor, before, state in zip(a[..., None], states[:-1, ..., None], states[1:, ..., None], strict=True):
        np.multiply(factor, before, product)
        np.add(state, product, state)


def _recur_in_chunks(a: Array, states: Array) -> bool:
    """The recurrence in about ``2 sqrt(n)`` steps: within all chunks at once, then from chunk to chunk.

    The state entering a chunk reaches its steps through products of ``a``. False if any product is not finite: only
    the sequential scan is right then.
    """
    size = math.isqrt(len(states) - 1) + 1
    whole = len(states) // size * size
    factors = np.concatenate([np.zeros_like(a[:1]), a])[:whole].reshape(-1, size, *states.shape[1:])
    inner, products = states[:whole].reshape(factors.shape).copy(), factors.copy()
    for t in range(1, size):
        products[:, t] *= products[:, t - 1]
        inner[:, t] += factors[:, t] * inner[:, t - 1]
    if not np.isfinite(products).all():
        return False
    entering = np.zeros_like(inner[:, 0])
    for chunk in range(1, len(inner)):
        entering[chunk] = products[chunk - 1, -1] * entering[chunk - 1] + inner[chunk - 1, -1]
    states[:whole] = (inner + products * entering[:, None]).reshape(-1, *states.shape[1:])
    if whole < len(states):
        _recur(a[whole - 1 :], states[whole - 1 :])
    return True
