"""Rules of sharding: reductions, random draws and steps of optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from backburn.decorators.sharding.moves import of_addends
from backburn.decorators.sharding.rules import NOWHERE, Plan, Shape, Shapes, along, direct, sharding
from backburn.decorators.sharding.shards import Shards, starts_of
from backburn.ops.optimizer_steps import check_lengths, transpose_results
from backburn.ops.random import apply_dropout, draws, threshold
from backburn.ops.table import OPERATIONS


def summed(shapes: Shapes, index: int, cut: int, *, axis: Shape, keepdims: bool) -> Plan | None:
    """Sums over the cut axis are addends."""
    if cut in axis:
        return Plan((cut,), sums=True, result=NOWHERE)
    return Plan((cut,), result=cut if keepdims else cut - sum(a < cut for a in axis))


def twice(name: str) -> Any:
    """A reduction over the cut axis: of each shard, and then of their results."""

    def function(level: Any, x: Any, *, axis: Shape, keepdims: bool) -> Any:
        if x.axis is None or x.axis not in axis or 0 in x.shape:
            return NotImplemented
        k, cut = level.wrapped, x.axis
        reduce = getattr(k, name)
        none = tuple(0 if a == cut else 1 if a in axis else n for a, n in enumerate(x.shape))
        (dtype,) = OPERATIONS[name].dtypes({"x": level.dtype(x)}, {})
        parts = [
            reduce(p, axis=axis, keepdims=True) if n else k.zeros(none, dtype)
            for p, n in zip(x.parts, level.mine(x.cuts), strict=True)
        ]
        found = reduce(level.joined(parts, cut, tuple(min(n, 1) for n in x.cuts)), axis=(cut,), keepdims=True)
        return found if keepdims else k.reshape(found, tuple(n for a, n in enumerate(found.shape) if a not in axis))

    return function


def dropped(level: Any, x: Any, *, key: int, offset: int, p: float) -> Any:
    """Dropout of parts along an axis other than the first, each with its range of the random words of the whole."""
    k, below = level.wrapped, threshold(1.0 - p)
    places = level.mine(tuple(zip(starts_of(x.cuts), x.cuts, strict=True)))
    kept = [k.less(k.random_window(key, offset, x.shape, x.axis, start, start + n), below) for start, n in places]
    found = [apply_dropout(k, part, keep, p) for part, keep in zip(x.parts, kept, strict=True)]
    return tuple(Shards(parts, x.axis, x.cuts, x.shape, level.mesh_axis) for parts in (found, kept))


def draw(name: str, result: int | None = None) -> Any:
    """A draw for each element; each shard starts at the position of its first element in the random stream."""

    def function(level: Any, x: Any, **attributes: Any) -> Any:
        if name == "dropout" and x.axis:
            return dropped(level, x, **attributes)
        if x.axis != 0 or (name == "categorical" and len(x.shape) == 1):
            return NotImplemented
        words = draws(name, x.shape[1:], level.dtype(x))
        if name in ("gamma", "poisson") and len(x.shape) == 1:
            words = draws(name, (), level.dtype(x))
        offset = attributes["offset"]
        plan = Plan((0,), local=lambda start, stop: {"offset": offset + start * words}, result=0)
        return level.run(OPERATIONS[name], (x,), attributes, plan, x.cuts)

    return function


def step(name: str) -> Any:
    """A step of an optimizer, with all tensors cut as the parameter is or, if it is whole, as the state is.

    A whole parameter with a cut state stays whole: each shard computes its part of the new one. Nothing is donated,
    because parts may be views.
    """

    def function(level: Any, param: Any, grad: Any, *state: Any, **attributes: Any) -> Any:
        operands = (param, grad, *state)
        attributes["donate"] = False
        leader = next((x for x in (param, *state) if level.is_cut(x) and x.axis is not None), None)
        if leader is None:
            return getattr(level.wrapped, name)(*map(level.gathered, operands), **attributes)
        axes = tuple(None if x is None else leader.axis for x in operands)
        plan = Plan(axes, result=leader.axis)
        new, *states = level.run(OPERATIONS[name], operands, attributes, plan, leader.cuts)
        return (new if leader is param else level.whole(new), *states)

    return function


def steps(name: str) -> Any:
    """Steps of many parameters: one call for all that are whole, another for the parts of all that are cut."""
    one = step(name.removesuffix("s"))

    def function(level: Any, params: Any, grads: Any, *states: Any, **attributes: Any) -> Any:
        present = [given for given in states if given]  # velocities may be absent
        check_lengths(params, grads, *present)
        absent: list[Any] = [[]] * (len(states) - len(present))
        rows = list(zip(params, grads, *present, strict=True))
        kinds = [_kind(level, *row) for row in rows]
        found: dict[int, tuple[Any, ...]] = {}
        for kind in ("whole", "cut"):
            chosen = [i for i, k in enumerate(kinds) if k == kind]
            if chosen:
                results = _together(level, name, [rows[i] for i in chosen], kind == "cut", absent, attributes)
                found.update(zip(chosen, results, strict=True))
        found |= {i: one(level, *rows[i], **attributes) for i, kind in enumerate(kinds) if kind == "other"}
        return transpose_results(found[i] for i in range(len(rows)))

    return function


def _together(
    level: Any, name: str, rows: list[tuple[Any, ...]], cut: bool, absent: list[Any], attributes: dict[str, Any]
) -> Iterator[tuple[Any, ...]]:
    """The results of steps for each row of a parameter, its gradient and its state, which are whole or cut alike."""
    each = len(level.own) if cut else 1
    given: list[tuple[Any, ...]] = []
    for row in rows:
        axis, cuts = (row[0].axis, row[0].cuts) if cut else (None, ())
        columns = [level.parts(x, axis, cuts) for x in row] if cut else [[level.whole(x)] for x in row]
        given += zip(*columns, strict=True)
    if cut:
        attributes = {**attributes, "donate": False}  # parts may be views
    results = getattr(level.wrapped, name)(*map(list, zip(*given, strict=True)), *absent, **attributes)
    for i, (param, *_) in enumerate(rows):
        own = [results[at + i * each : at + (i + 1) * each] for at in range(0, len(results), len(given))]
        yield tuple(Shards(list(x), param.axis, param.cuts, param.shape, param.mesh_axis) if cut else x[0] for x in own)


def _kind(level: Any, param: Any, grad: Any, *state: Any) -> str:
    """Whether a parameter and its state are whole, cut alike, or neither; the gradient follows them."""
    if not level.is_cut(param):
        return "other" if any(level.is_cut(x) for x in state) else "whole"
    alike = all(level.is_cut(x) and (x.axis, x.cuts) == (param.axis, param.cuts) for x in state)
    return "cut" if param.axis is not None and alike else "other"


for name in ("sum", "count_nonzero"):
    sharding(name, summed)
direct("sum", of_addends("sum"))
for name in ("max", "min", "max_abs", "any", "all", "prod"):
    direct(name, twice(name))
    sharding(name, along("axis"))
for name in ("dropout", "categorical", "gamma", "poisson"):
    direct(name, draw(name))
for name in ("sgd_step", "adam_step"):
    direct(name, step(name))
    direct(f"{name}s", steps(f"{name}s"))
