"""NumPy: scans and linear recurrences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backburn.ops.bodies.scalars import is_scalar
from backburn.ops.bodies.shapes import check_not_negative
from backburn.ops.table import OPERATIONS
from backburn_numpy import compiled, tuning
from backburn_numpy.compiled import FLOAT32, FLOAT64
from backburn_numpy.elementwise.blocks import run_columns, run_rows
from backburn_numpy.elementwise.half_precision import cast_like, in_float32, is_half
from backburn_numpy.implements import implements
from backburn_numpy.runtime.memory import contiguous, empty
from backburn_numpy.runtime.threads import parallel_for

Array = Any


#: The wider dtypes in which sums and products are accumulated.
WIDE = {FLOAT32: FLOAT64, np.dtype(np.complex64): np.dtype(np.complex128)}


def _accumulate(ufunc: np.ufunc, x: Array, axis: int, reverse: bool = False) -> Array:
    """``ufunc.accumulate`` from either end: sums of 32 bits in 64, 16-bit floats in float32."""
    backwards = (*(slice(None),) * axis, slice(None, None, -1))
    is_exact = ufunc in (np.maximum, np.minimum)
    wide = FLOAT32 if is_half(x) else x.dtype if is_exact else WIDE.get(x.dtype, x.dtype)
    running = ufunc.accumulate(x[backwards] if reverse else x, axis=axis, dtype=wide)
    return cast_like(running[backwards] if reverse else running, x)


@implements("cumulative_sum")
def cumulative_sum(x: Array, /, axis: int, reverse: bool = False) -> Array:
    return _running("cumulative_sum", "cumsum", np.add, x, axis, reverse)


@implements("cumulative_prod")
def cumulative_prod(x: Array, /, axis: int, reverse: bool = False) -> Array:
    return _running("cumulative_prod", "cumprod", np.multiply, x, axis, reverse)


def _running(operation: str, name: str, ufunc: np.ufunc, x: Array, axis: int, reverse: bool = False) -> Array:
    check_not_negative(operation, axis)
    name = f"{name}_reverse" if reverse else name
    if (fast := compiled.serving(name, x)) is not None:
        width = x.shape[axis]
        if (
            x.size < tuning.MIN_ELEMENTS_FOR_NATIVE_THREADS and x.flags.c_contiguous
        ):  # few elements: the checks below would take longer than the kernel
            out = np.empty(x.shape, x.dtype)
            if axis == x.ndim - 1:
                fast(compiled.address(out), compiled.address(x), x.size // width, width)
                return out
            inner = math.prod(x.shape[axis + 1 :])
            columns: Any = compiled.serving(f"{name}_columns", x)
            columns(compiled.address(out), compiled.address(x), x.size // (width * inner), width, inner, 0, inner)
            return out
        out = empty(x.shape, x.dtype)
        if axis == x.ndim - 1:
            served = run_rows(name, (out, x), x.size // width, width)
        else:
            served = run_columns(name, (out, x), x.shape, axis)
        if served:
            return out
    return _accumulate(ufunc, x, axis, reverse)


@implements("cummax")
def cummax(x: Array, /, axis: int) -> Array:
    return _running("cummax", "cummax", np.maximum, x, axis)


@implements("cummin")
def cummin(x: Array, /, axis: int) -> Array:
    return _running("cummin", "cummin", np.minimum, x, axis)


@implements("diff", takes_backend=True)
def diff(k: Any, x: Array, /, axis: int, n: int = 1) -> Array:
    width = x.shape[axis]
    if n == 1 and axis == x.ndim - 1 and x.size > width > 1 and compiled.serving("diff_rows", x) is not None:
        out = empty((*x.shape[:axis], width - 1), x.dtype)
        if run_rows("diff_rows", (out, x), x.size // width, width):
            return out
    return OPERATIONS["diff"].body(k, x, axis, n)


@implements("logcumsumexp")
def logcumsumexp(x: Array, /, axis: int) -> Array:
    return _accumulate(np.logaddexp, x, axis)


@implements("ssm_scan", takes_backend=True)
def ssm_scan(
    k: Any, a: Array, b: Array, x: Array, h0: Array | None = None, /, axis: int = 0, reverse: bool = False
) -> Array:
    is_number = is_scalar(b)
    _check("ssm_scan", axis, h0, a, x, *() if is_number else (b,))
    if is_half(x):
        return in_float32(ssm_scan, k, a, b, x, h0, axis, reverse)
    out = empty(np.broadcast_shapes(a.shape, () if is_number else b.shape, x.shape), x.dtype)
    if out.size and _run_kernel("scan", (out, a, b, x), (h0,), axis, reverse, is_number):
        return out
    return OPERATIONS["ssm_scan"].body(k, a, b, x, h0, axis, reverse)


@implements("ssm_scan_backward", takes_backend=True)
def ssm_scan_backward(
    k: Any, grad: Array, a: Array, b: Array, x: Array, out: Array, h0: Array | None = None, /, axis: int = 0,
    reverse: bool = False,
) -> tuple[Array, ...]:  # fmt: skip
    operands = grad, a, b, x, out
    _check("ssm_scan_backward", axis, h0, *operands)
    if is_half(out):
        return in_float32(ssm_scan_backward, k, *operands, h0, axis, reverse)
    results = [empty(out.shape, out.dtype) for _ in range(3)]
    grad_h0 = np.zeros(out.shape[:axis] + out.shape[axis + 1 :], out.dtype)
    if out.size and _run_kernel("scan_backward", (*results, *operands), (grad_h0, h0), axis, reverse):
        return (*results, grad_h0)
    return OPERATIONS["ssm_scan_backward"].body(k, *operands, h0, axis, reverse)


def _check(name: str, axis: int, state: Array | None, *arrays: Array) -> None:
    """Raise for an axis or operands that a scan does not take."""
    check_not_negative(name, axis)
    compiled.check_arrays(name, *arrays, *() if state is None else (state,))


def _run_kernel(
    name: str, arrays: tuple[Array, ...], states: tuple[Array | None, ...], axis: int, *options: bool
) -> bool:
    """Call the compiled kernel on arrays that broadcast to the first, and on single states; False if there is none.

    Numbers become arrays of the size of a state, which all steps share.
    """
    shape, dtype = arrays[0].shape, arrays[0].dtype
    fast = compiled.serving(name, arrays[0])
    if fast is None:
        return False
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    stride = inner * dtype.itemsize
    whole = [
        contiguous(v if v.shape == shape else np.broadcast_to(v, shape), dtype)
        if isinstance(v, np.ndarray)
        else np.full(inner, v, dtype)
        for v in arrays
    ]
    strides = [shape[axis] * stride if isinstance(v, np.ndarray) else 0 for v in arrays]
    without = shape[:axis] + shape[axis + 1 :]
    single = [None if v is None else contiguous(np.broadcast_to(v, without), dtype) for v in states]

    def part(outers: tuple[int, int], inners: tuple[int, int]) -> None:
        fast(
            *(compiled.address(v) + outers[0] * each for v, each in zip(whole, strides, strict=True)),
            *(None if v is None else compiled.address(v) + outers[0] * stride for v in single),
            *(*options, outers[1] - outers[0], shape[axis], inner, *inners),
        )

    if outer > 1:
        parallel_for(
            lambda start, stop: part((start, stop), (0, inner)),
            outer,
            each=shape[axis] * inner,
        )
    else:
        parallel_for(
            lambda start, stop: part((0, 1), (start, stop)),
            inner,
            each=shape[axis],
        )
    return True
