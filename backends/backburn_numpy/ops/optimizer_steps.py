"""NumPy: optimizer steps, by kernels, as formulas in one pass, or by the contract's bodies in blocks.

New parameters use recycled memory: that of the step before last is usually free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from backburn.base.errors import ShapeError
from backburn.ops.optimizer_steps import adam_numbers, adam_update, check_lengths, sgd_update, transpose_results
from backburn_numpy import compiled, tuning
from backburn_numpy.elementwise.blocks import elementwise, run_rows
from backburn_numpy.elementwise.fused import fuse
from backburn_numpy.elementwise.half_precision import in_float32, is_half
from backburn_numpy.implements import implements
from backburn_numpy.runtime.memory import empty

Array = Any


@implements("sgd_step", takes_backend=True)
def sgd_step(
    k: Any,
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
    if is_half(param):
        found = in_float32(sgd_step, k, param, grad, velocity, lr, momentum, nesterov, weight_decay)
        return _reused(found, velocity if donate else None)
    before = None if momentum == 0.0 else velocity
    is_plain = before is None and weight_decay == 0.0
    if is_plain and (param.nbytes < tuning.MIN_BYTES_FOR_PLAIN_STEP or compiled.serving("plain_step", param) is None):
        return np.subtract(param, np.multiply(grad, lr, out=...), out=...), grad
    if not is_plain and (before is None or compiled.serving("momentum_step", param) is None):
        options = *_numbers(param, lr, momentum), nesterov, *_numbers(param, weight_decay)
        return _by_formula(k, sgd_update, (param, grad, before), options, int(donate))
    new = empty(param.shape, param.dtype)
    if is_plain:
        run_rows("plain_step", (new, param, grad), new.size, None, lr)
        return new, grad
    moving = velocity if donate and _writable(velocity) else empty(param.shape, param.dtype)
    run_rows("momentum_step", (new, moving, param, grad, before), new.size, None, lr, momentum, weight_decay, nesterov)
    return new, moving


@implements("adam_step", takes_backend=True)
def adam_step(
    k: Any,
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
    options = lr, beta1, beta2, eps, step, weight_decay, decoupled
    if is_half(param):
        found = in_float32(adam_step, k, param, grad, m, v, *options)
        return _reused(found, *(m, v) if donate else ())
    numbers = adam_numbers(*options)
    if compiled.serving("adam_step", param) is None:
        return _by_formula(k, adam_update, (param, grad, m, v), _numbers(param, *numbers), 2 if donate else 0)
    new = _adam_results(param, m, v, donate)
    run_rows("adam_step", (*new, param, grad, m, v), param.size, None, *numbers)
    return new


def _numbers(like: Array, *numbers: float) -> list[Any]:
    """The numbers as arrays, so that one program takes all values but 0 and 1, for which terms drop out."""
    return [x if x in (0.0, 1.0) else np.array(x, like.dtype) for x in numbers]


def _by_formula(
    k: Any, formula: Callable[..., Any], arrays: tuple[Array | None, ...], options: Sequence[Any], donated: int
) -> Any:
    """The results of a formula, in one pass over memory if there are kernels for it; the last arrays may be donated."""
    places = tuple(range(len(arrays) - donated, len(arrays))) if arrays[-1] is not None else ()
    found = fuse(formula, *arrays, *options, donate=places)
    if found is None:
        found = elementwise(partial(formula, k), *arrays, *options, results=max(2, len(arrays) - 1))
    return _reused(found, *(arrays[i] for i in places))


def _reused(results: tuple[Array, ...], *donated: Array | None) -> tuple[Array, ...]:
    """The results, all but the first in the memory of what they replace, if that can be written to."""
    kept = [x if y is None or not _writable(y) else y for x, y in zip_longest(results[1:], donated)]
    for x, y in zip(results[1:], kept, strict=True):
        if x is not y:
            np.copyto(y, x)
    return (results[0], *kept)


@implements("adam_steps", takes_backend=True)
def adam_steps(
    k: Any,
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
    numbers = adam_numbers(lr, beta1, beta2, eps, step, weight_decay, decoupled)
    results, rows = [], []
    for operands in zip(params, grads, ms, vs, strict=True):
        param, _, m, v = operands
        is_small = param.dtype == np.float32 and param.size < tuning.MIN_ELEMENTS_FOR_NATIVE_THREADS
        if at_once is None or not is_small or not all(map(_is_contiguous, operands)):
            results.append(adam_step(k, *operands, lr, beta1, beta2, eps, step, weight_decay, decoupled, donate))
            continue
        _check_alike(*operands)
        results.append(_adam_results(param, m, v, donate))
        rows += [*map(compiled.address, (*results[-1], *operands)), param.size]
    if rows:
        assert at_once is not None
        table = np.array(rows, np.int64)
        at_once(compiled.address(table), len(rows) // 8, *numbers)
    return transpose_results(results)


def _adam_results(param: Array, m: Array, v: Array, donate: bool) -> tuple[Array, Array, Array]:
    """Memory for the new parameter and moments."""
    first, second = (a if donate and _writable(a) else empty(param.shape, param.dtype) for a in (m, v))
    return empty(param.shape, param.dtype), first, second


def _check_alike(param: Array, *others: Array) -> None:
    for other in others:
        if other.shape != param.shape or other.dtype != param.dtype:
            raise ShapeError(
                f"an optimizer step takes arrays like its parameter, {param.dtype}{list(param.shape)}, "
                f"not {other.dtype}{list(other.shape)}"
            )


def _is_contiguous(a: Array) -> bool:
    """Whether an array is contiguous; False for a NumPy scalar."""
    return type(a) is np.ndarray and a.flags.c_contiguous


def _writable(a: Array | None) -> bool:
    """Whether results may be written into ``a``: C-contiguous and writable."""
    return a is not None and a.flags.c_contiguous and a.flags.writeable
