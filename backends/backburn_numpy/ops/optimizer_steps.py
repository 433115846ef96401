"""NumPy: optimizer steps, in cache blocks.

A step is a dozen passes over four arrays. Over whole arrays, each pass reads and writes memory; over blocks, all passes
but the first find their operands in the processor's cache. 16-bit floats are computed in float32. New parameters use
recycled memory: those of the step before last are usually free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backburn.base.errors import ShapeError
from backburn.ops.optimizer_steps import adam_factors, check_lengths, transpose_results
from backburn_numpy import compiled
from backburn_numpy.blocks import SHARED, run_rows
from backburn_numpy.half_precision import compute_dtype, upcast_half
from backburn_numpy.memory import empty
from backburn_numpy.quiet import quietly
from backburn_numpy.threads import parallel_for

Array = Any

# Elements per block. Five such arrays fit in the L2 cache, and one is long enough to hide the overhead of the calls.
BLOCK = 1 << 15

#: For fewer bytes two calls of NumPy are faster than one of a kernel, which has their addresses to find.
SMALL = 1 << 16

# Elements per block of the plain step, whose few passes are so short that on smaller blocks threads would wait for the
# GIL.
PLAIN_BLOCK = 1 << 17


def sgd_step(
    param: Array,
    grad: Array,
    velocity: Array | None = None,
    /,
    lr: float = 0.01,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    donate: bool = False,
) -> tuple[Array, Array]:
    _check_alike(param, grad, *(() if velocity is None else (velocity,)))
    before = None if velocity is None or momentum == 0.0 else _flat(velocity)
    if before is None and weight_decay == 0.0 and param.nbytes < SMALL and param.itemsize > 2:
        return np.subtract(param, np.multiply(grad, lr, out=...), out=...), grad
    result = empty(param.shape, param.dtype)
    moving: Array | None = None  # without momentum and decay it is the gradient
    if before is not None or weight_decay != 0.0:
        moving = velocity if donate and _writable(velocity) else empty(param.shape, param.dtype)
    new, p, g = _flat(result), _flat(param), _flat(grad)
    new_velocity = None if moving is None else _flat(moving)
    if new_velocity is None and run_rows("plain_step", (new, p, g), new.size, None, lr):
        return result, grad
    options = lr, momentum, weight_decay, nesterov
    if before is not None and run_rows("momentum_step", (new, new_velocity, p, g, before), new.size, None, *options):
        return result, moving
    block = PLAIN_BLOCK if moving is None else BLOCK

    @quietly
    def work(start: int, stop: int) -> None:
        change, moved = np.empty((2, min(block, stop - start)), compute_dtype(param))
        for i in range(start, stop, block):
            n = min(block, stop - i)
            part, t, s = slice(i, i + n), change[:n], moved[:n]
            along = slope = upcast_half(g[part])
            if weight_decay:
                along = slope = np.add(along, np.multiply(upcast_half(p[part]), weight_decay, out=s), out=s)
            if before is not None:
                along = np.add(np.multiply(upcast_half(before[part]), momentum, out=t), slope, out=t)
            if new_velocity is not None:
                new_velocity[part] = along
            if nesterov:
                along = np.add(np.multiply(along, momentum, out=t), slope, out=t)
            np.subtract(p[part], np.multiply(along, lr, out=t), out=new[part], casting="same_kind")

    parallel_for(work, result.size)
    return result, grad if moving is None else moving


def adam_step(
    param: Array,
    grad: Array,
    m: Array,
    v: Array,
    /,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    step: int = 1,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    donate: bool = False,
) -> tuple[Array, Array, Array]:
    _check_alike(param, grad, m, v)
    numbers = _adam_numbers(lr, beta1, beta2, eps, step, weight_decay, decoupled)
    new = _adam_results(param, m, v, donate)
    arrays = *new, param, grad, m, v
    if run_rows("adam_step", arrays, param.size, None, *numbers):
        return new
    rate, floor, *_, coupled, shrink = numbers
    width = compute_dtype(param)
    flat = [_flat(a) for a in arrays]

    @quietly
    def work(start: int, stop: int) -> None:
        t, s = np.empty((2, min(BLOCK, stop - start)), width)
        for i in range(start, stop, BLOCK):
            n = min(BLOCK, stop - i)
            if n < len(t):
                t, s = t[:n], s[:n]
            new_p, new_m, new_v, p, g, old_m, old_v = [a[i : i + n] for a in flat]
            if width is not param.dtype:
                p, g, old_m, old_v = map(upcast_half, (p, g, old_m, old_v))
                out_m, out_v = old_m, old_v
            else:
                out_m, out_v = new_m, new_v
            if coupled:
                np.multiply(p, coupled, out=s)
                g = np.add(s, g, out=s)
            np.multiply(g, 1.0 - beta1, out=t)
            np.multiply(old_m, beta1, out=out_m)
            np.add(out_m, t, out=out_m)
            np.multiply(g, 1.0 - beta2, out=t)
            np.multiply(t, g, out=t)
            np.multiply(old_v, beta2, out=out_v)
            np.add(out_v, t, out=out_v)
            np.sqrt(out_v, out=t)
            np.add(t, floor, out=t)
            np.divide(out_m, t, out=t)
            np.multiply(t, rate, out=t)
            if shrink != 1.0:
                p = np.multiply(p, shrink, out=s)
            np.subtract(p, t, out=new_p, casting="same_kind")
            if width is not param.dtype:
                new_m[...], new_v[...] = out_m, out_v

    parallel_for(work, param.size)
    return new


def adam_steps(
    params: Sequence[Array],
    grads: Sequence[Array],
    ms: Sequence[Array],
    vs: Sequence[Array],
    /,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    step: int = 1,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    donate: bool = False,
) -> tuple[Array, ...]:
    check_lengths(params, grads, ms, vs)
    at_once = compiled.kernel("adam_steps")
    numbers = _adam_numbers(lr, beta1, beta2, eps, step, weight_decay, decoupled)
    results, rows = [], []
    for operands in zip(params, grads, ms, vs, strict=True):
        param, _, m, v = operands
        is_small = param.dtype == np.float32 and param.size < SHARED
        if at_once is None or not is_small or not all(map(_is_contiguous, operands)):
            results.append(adam_step(*operands, lr, beta1, beta2, eps, step, weight_decay, decoupled, donate))
            continue
        _check_alike(*operands)
        results.append(_adam_results(param, m, v, donate))
        rows += [*map(compiled.address, (*results[-1], *operands)), param.size]
    if rows:
        assert at_once is not None
        table = np.array(rows, np.int64)
        at_once(compiled.address(table), len(rows) // 8, *numbers)
    return transpose_results(results)


def _adam_numbers(
    lr: float, beta1: float, beta2: float, eps: float, step: int, weight_decay: float, decoupled: bool
) -> tuple[float, ...]:
    """The numbers that the kernels of Adam take."""
    rate, floor = adam_factors(lr, beta1, beta2, eps, step)
    coupled, shrink = (0.0, 1.0 - lr * weight_decay) if decoupled else (weight_decay, 1.0)
    return rate, floor, beta1, 1.0 - beta1, beta2, 1.0 - beta2, coupled, shrink


def _adam_results(param: Array, m: Array, v: Array, donate: bool) -> tuple[Array, Array, Array]:
    """Memory for the new parameter and moments."""
    first, second = (a if donate and _writable(a) else empty(param.shape, param.dtype) for a in (m, v))
    return empty(param.shape, param.dtype), first, second


def _check_alike(param: Array, *others: Array) -> None:
    for other in others:
        if other.shape != param.shape or other.dtype != param.dtype:
            raise ShapeError(f"a step of {param.dtype}{param.shape} with {other.dtype}{other.shape}")


def _flat(a: Array) -> Array:
    """``a`` flattened; a view if contiguous."""
    return a.reshape(-1)


def _is_contiguous(a: Array) -> bool:
    """Whether the elements of an array lie in a row; False for a scalar of NumPy's."""
    return type(a) is np.ndarray and a.flags.c_contiguous


def _writable(a: Array | None) -> bool:
    """Whether results may be written into ``a``: C-contiguous and writable."""
    return a is not None and a.flags.c_contiguous and a.flags.writeable
