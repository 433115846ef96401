"""Rules of sharding: reductions, random draws and steps of optimizers."""

from __future__ import annotations

from typing import Any

from backburn.decorators.sharding.moves import of_addends
from backburn.decorators.sharding.rules import NOWHERE, Plan, Shape, Shapes, along, direct, sharding
from backburn.decorators.sharding.shards import Shards
from backburn.ops.optimizer_steps import check_lengths, transpose_results
from backburn.ops.random import draws
from backburn.ops.table import OPERATIONS


def summed(shapes: Shapes, index: int, cut: int, *, axis: Shape, keepdims: bool) -> Plan | None:
    """Sums over the cut axis are addends."""
    if cut in axis:
        return Plan((cut,), sums=True, result=NOWHERE)
    return Plan((cut,), result=cut if keepdims else cut - sum(a < cut for a in axis))


def twice(name: str) -> Any:
    """A reduction of the shards' own results, where the cut axis is reduced."""

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


def draw(name: str, result: int | None = None) -> Any:
    """A draw for each element, of shards that take up the stream where their first element stands."""

    def function(level: Any, x: Any, **attributes: Any) -> Any:
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
    """A step of an optimizer, in which all tensors are cut as the parameter is. Nothing is donated: parts are views."""

    def function(level: Any, param: Any, *others: Any, **attributes: Any) -> Any:
        attributes["donate"] = False
        if not level.is_cut(param) or param.axis is None:
            return getattr(level.wrapped, name)(*map(level.settled, (param, *others)), **attributes)
        axes = tuple(None if x is None else param.axis for x in (param, *others))
        plan = Plan(axes, result=param.axis)
        return level.run(OPERATIONS[name], (param, *others), attributes, plan, param.cuts)

    return function


def steps(name: str) -> Any:
    """Steps of many parameters: all that are cut in one call for their parts, and all that are whole in another."""
    one = step(name.removesuffix("s"))

    def function(level: Any, params: Any, grads: Any, *states: Any, **attributes: Any) -> Any:
        check_lengths(params, grads, *(given for given in states if given or name != "sgd_steps"))
        absent = [i for i, given in enumerate(states) if not given]
        rows = [*zip(params, grads, *(given or params for given in states), strict=True)]
        found: list[Any] = [None] * len(rows)
        groups: dict[str, list[int]] = {"whole": [], "cut": [], "other": []}
        for i, row in enumerate(rows):
            groups[_kind(level, [x for j, x in enumerate(row) if j - 2 not in absent])].append(i)
        function = getattr(level.wrapped, name)

        def columns(made: list[Any]) -> list[Any]:
            lists = [list(column) for column in zip(*made, strict=True)]
            return [[] if j - 2 in absent else column for j, column in enumerate(lists)]

        if groups["whole"]:
            made = [[level.whole(x) for x in rows[i]] for i in groups["whole"]]
            results = function(*columns(made), **attributes)
            for place, i in enumerate(groups["whole"]):
                found[i] = results[place :: len(made)]
        if groups["cut"]:
            each = len(level.own)
            made = []
            for i in groups["cut"]:
                axis, cuts = rows[i][0].axis, rows[i][0].cuts
                made += zip(*(level.parts(x, axis, cuts) for x in rows[i]), strict=True)
            results = function(*columns(made), **{**attributes, "donate": False})
            for place, i in enumerate(groups["cut"]):
                x, start = rows[i][0], place * each
                found[i] = [
                    Shards(list(results[at + start : at + start + each]), x.axis, x.cuts, x.shape, x.mesh_axis)
                    for at in range(0, len(results), len(made))
                ]
        for i in groups["other"]:
            row = [None if j - 2 in absent else x for j, x in enumerate(rows[i])]
            found[i] = one(level, *row, **attributes)
        return transpose_results(found)

    return function


def _kind(level: Any, row: list[Any]) -> str:
    """Whether a parameter, its gradient and its state are whole, or cut alike, but for a gradient in addends."""
    param, _grad, *state = row
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
