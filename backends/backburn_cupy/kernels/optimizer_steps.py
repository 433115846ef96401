"""Launchers: optimizer steps, for one tensor or many in one launch, and copies of many tensors.

Beyond the contract the steps take 16-bit parameters and gradients with float32 optimizer state.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from backburn.base.errors import ShapeError
from backburn.ops.optimizer_steps import adam_factors
from backburn_cupy.kernels import geometry
from backburn_cupy.kernels.runner import Runner
from backburn_cupy.kernels.sources import c_type

Array = Any
Arrays = Sequence[Any]


def adam_step(
    on: Runner, param: Array, grad: Array, m: Array, v: Array, /, *options: Any, **named: Any
) -> tuple[Array, ...]:
    return adam_steps(on, [param], [grad], [m], [v], *options, **named)


def adam_steps(
    on: Runner,
    params: Arrays,
    grads: Arrays,
    ms: Arrays,
    vs: Arrays,
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
    rate, floor = adam_factors(lr, beta1, beta2, eps, step)
    _check_alike("adam_step", params, grads, ms, vs)
    lists = [[on.xp.ascontiguousarray(a) for a in arrays] for arrays in (params, grads, ms, vs)]
    new_params = list(map(on.successor, params))
    new_m, new_v = (
        [_target(on, given, copy, donate) for given, copy in zip(old, copies, strict=True)]
        for old, copies in zip((ms, vs), lists[2:], strict=True)
    )
    shrink, coupled = (1.0 - lr * weight_decay, 0.0) if decoupled else (1.0, weight_decay)
    decay = weight_decay if decoupled else 0.0
    numbers = (lr, step, eps, decay, rate, floor, shrink, beta1, beta2, coupled)
    replayed = (on.device_number(lr), on.device_number(step))
    types = _types(params, new_m)
    _launch(on, "adam_step", types, [*lists, new_params, new_m, new_v], *replayed, *map(float, numbers))
    return (*new_params, *new_m, *new_v)


def sgd_step(
    on: Runner, param: Array, grad: Array, velocity: Array | None = None, /, *options: Any, **named: Any
) -> tuple[Array, ...]:
    return sgd_steps(on, [param], [grad], [] if velocity is None else [velocity], *options, **named)


def sgd_steps(
    on: Runner,
    params: Arrays,
    grads: Arrays,
    velocities: Arrays,
    /,
    lr: float = 0.01,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    donate: bool = False,
) -> tuple[Array, ...]:
    _check_alike("sgd_step", params, grads, *([velocities] if velocities else []))
    contiguous = on.xp.ascontiguousarray
    velocity_copies = [contiguous(v) for v in velocities] if velocities and momentum else [None] * len(params)
    new = list(map(on.successor, params))
    new_velocities = [
        _target(on, given, last, donate) if last is not None
        else grad if not weight_decay and grad.dtype == given.dtype  # the velocity is the gradient
        else on.xp.ndarray(grad.shape, given.dtype)
        for grad, given, last in zip(grads, velocities or grads, velocity_copies, strict=True)
    ]  # fmt: skip
    written = [None if m is g else m for m, g in zip(new_velocities, grads, strict=True)]
    numbers = (lr, momentum, weight_decay)
    lists = [[*map(contiguous, params)], [*map(contiguous, grads)], velocity_copies, new, written]
    _launch(
        on, "sgd_step", _types(params, new_velocities), lists, on.device_number(lr), *map(float, numbers), int(nesterov)
    )
    return (*new, *new_velocities)


def copy_tensors(on: Runner, sources: Arrays, targets: Arrays) -> None:
    """Copy float arrays to others of the same shapes and dtypes, all of them contiguous."""
    _launch(on, "copy_tensors", list(map(c_type, sources)), [list(sources), list(targets)])


def _target(on: Runner, given: Array, contiguous: Array, donate: bool) -> Array:
    """The array for a new value: the old one if it is donated and contiguous, else a new one."""
    return given if donate and given is contiguous else on.xp.ndarray(given.shape, given.dtype)


def _check_alike(operation: str, params: Arrays, grads: Arrays, *states: Arrays) -> None:
    """Raise for tensors that do not match; the state of a 16-bit parameter may be float32."""
    shapes, dtypes = [p.shape for p in params], [p.dtype for p in params]
    if any([a.shape for a in arrays] != shapes for arrays in (grads, *states)) or [g.dtype for g in grads] != dtypes:
        raise _mismatch(operation, params, grads, *states)
    if states:
        kept = [s.dtype for s in states[0]]
        if any([s.dtype for s in arrays] != kept for arrays in states[1:]) or (
            kept != dtypes and not all(map(_is_state_dtype, dtypes, kept))
        ):
            raise _mismatch(operation, params, grads, *states)


def _is_state_dtype(dtype: Any, kept: Any) -> bool:
    """Whether the state of a parameter may have the dtype ``kept``."""
    return bool(kept == dtype or (dtype.itemsize == 2 and kept.char == "f"))


def _mismatch(operation: str, params: Arrays, grads: Arrays, *states: Arrays) -> ShapeError:
    """The error for the first tensor that does not match its parameter."""
    for others in (grads, *states):
        if len(others) != len(params):
            return ShapeError(f"{operation}s: {len(params)} parameters with {len(others)} other tensors")
    for param, grad, *state in zip(params, grads, *states, strict=True):
        expected = state[0].dtype if state and _is_state_dtype(param.dtype, state[0].dtype) else param.dtype
        for other, dtype in ((grad, param.dtype), *((s, expected) for s in state)):
            if other.shape != param.shape or other.dtype != dtype:
                return ShapeError(
                    f"{operation}: a parameter {param.dtype}{list(param.shape)} with {other.dtype}{list(other.shape)}"
                )
    raise AssertionError("the tensors match")


def _types(params: Arrays, states: Arrays) -> list[str]:
    return [f"{c_type(param)}, {c_type(state)}" for param, state in zip(params, states, strict=True)]


def _launch(on: Runner, kernel: str, types: list[str], lists: list[list[Array | None]], *arguments: Any) -> None:
    """Launch a kernel for each of the tensors' ``types``, with as many tensors at a time as a table holds."""
    by_type: dict[str, list[int]] = {}
    for i, (first, type_) in enumerate(zip(lists[0], types, strict=True)):
        if first is not None and first.size:
            by_type.setdefault(type_, []).append(i)
    for type_, members in by_type.items():
        limit = geometry.table(len(members), on.large_parameters)
        for start in range(0, len(members), limit):
            batch = members[start : start + limit]
            blocks, table = _table(on, [[arrays[i] for i in batch] for arrays in lists], limit)
            on.run("optimizer_steps", f"{kernel}<{type_}, {limit}>", blocks, geometry.THREADS, table, *arguments)


def _table(on: Runner, lists: list[list[Any]], limit: int) -> tuple[int, Any]:
    """The number of blocks, and the structure ``Tensors<limit, lists>`` of optimizer_steps.cu."""
    params = lists[0]
    blocks, blank = _blank_table(tuple([p.size for p in params]), params[0].dtype.itemsize, len(lists), limit)
    table = blank.copy()
    addresses = [0 if a is None else on.address(a) for arrays in lists for a in arrays]
    words = table.view(np.int64)[1 + 2 * limit :].reshape(-1, limit)
    words[:, : len(params)] = np.array(addresses, np.int64).reshape(len(lists), -1)
    return blocks, table


@lru_cache(256)
def _blank_table(sizes: tuple[int, ...], itemsize: int, lists: int, limit: int) -> tuple[int, Any]:
    """The number of blocks, and the structure without addresses."""
    starts, blocks = geometry.steps(sizes, itemsize)
    words = np.zeros(1 + (2 + lists) * limit, np.int64)
    words[0] = len(sizes)
    words[1 : 1 + len(sizes)], words[1 + limit : 1 + limit + len(sizes)] = sizes, starts
    return blocks, words.view(np.dtype((np.void, words.nbytes)))
