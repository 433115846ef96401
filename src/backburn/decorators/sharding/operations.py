"""The methods of ``Sharded`` for operations: how each call is computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from backburn.backend.wrapper import make_operations
from backburn.decorators.sharding import codegen
from backburn.decorators.sharding.decorator import Sharded, shapes_of
from backburn.decorators.sharding.rules import DIRECT, EXAMPLES, LOCAL, Plan, elementwise, rule_of
from backburn.decorators.sharding.shards import Cuts, Shards, even_cuts, starts_of
from backburn.ops.table import Operation

#: Stands for a route where the default body runs on the level.
BODY = object()


def compile_operation(entry: Operation) -> Callable[..., Any]:
    """The method of ``Sharded`` for an operation."""
    rule, own = rule_of(entry.name), DIRECT.get(entry.name)
    alike = rule is elementwise and "Q" not in entry.kinds
    # `complex` and `eig` have none: backends with complex dtypes implement them.
    has_body = not entry.required and entry.name not in ("complex", "eig")

    def run(level: Sharded, operands: Any, attributes: Any, plan: Plan, cuts: Cuts, shapes: Any, key: Any) -> Any:
        found = level.run(entry, operands, attributes, plan, cuts, shapes)
        if key is not None:
            _keep(level, key, _route(level, operands, plan, cuts, found))
        return found

    def compute(level: Sharded, operands: tuple[Any, ...], attributes: dict[str, Any], key: Any) -> Any:
        """Compute a call by the rules, and keep its route under ``key``, if there is one."""
        if any(_has_sums(level, x) for x in operands):
            operands = tuple(level.closed(x) for x in operands)
            key = None  # placements may differ from those of the key
            if not _takes_part(level, operands):
                return getattr(level.wrapped, entry.name)(*operands, **attributes)
        if rule is elementwise and (like := _alike(level, operands)) is not None:
            columns = [x.parts if x.__class__ is Shards else [x] * len(level.own) for x in operands]
            function = getattr(level.wrapped, entry.name)
            parts = [function(*own_parts, **attributes) for own_parts in zip(*columns, strict=True)]
            return Shards(parts, like.axis, like.cuts, like.shape, like.mesh_axis)
        checked = entry.result_shape(operands, attributes)  # raises for operands that do not fit
        if own is not None:
            found = own(level, *operands, **attributes)
            if found is not NotImplemented:
                if key is not None and entry.name in LOCAL and found.axis is not None:
                    local, placed = LOCAL[entry.name](found), (found.axis, found.cuts, found.shape)
                    _keep(level, key, codegen.Route((True,), (), local, (placed,), False))
                return found
        operands = tuple(level.gathered(x, addends_only=True) for x in operands)
        leaders = _leaders(level, operands, EXAMPLES.get(entry.name))
        if not leaders:
            return getattr(level.wrapped, entry.name)(*operands, **attributes)
        if level._agrees(entry):
            key = None  # processes agree on errors
        if rule is not None:
            shapes = shapes_of(operands)
            for size, index, axis, cuts in leaders:
                if size < leaders[0][0] and has_body:
                    break  # the body moves less than cutting the largest operand anew
                plan = rule(shapes, index, axis, **attributes)
                if plan is not None:
                    return run(level, operands, attributes, plan, cuts, checked, key)
            if not has_body and not _is_quantized(level, entry, operands, attributes):
                for index, axis, length in _other_axes(shapes, leaders):
                    plan = rule(shapes, index, axis, **attributes)
                    if plan is not None:
                        return run(level, operands, attributes, plan, even_cuts(length, level.size), checked, key)
        if not has_body or entry.shape is None or _is_quantized(level, entry, operands, attributes):
            return level.on_whole(entry, operands, attributes)
        if key is not None:
            _keep(level, key, BODY)
        return entry.body(level, *operands, **attributes)

    text = codegen.source(entry, alike)
    return codegen.compiled(entry, text, {"_compute": compute, "_takes_part": _takes_part, "_BODY": BODY})


def _keep(level: Sharded, key: Any, route: Any) -> None:
    """Keep a route, if there is one."""
    if route is not None:
        if len(level.routes) >= codegen.MOST_ROUTES:
            level.routes.clear()
        level.routes[key] = route


def _route(level: Sharded, operands: Sequence[Any], plan: Plan, cuts: Cuts, found: Any) -> codegen.Route | None:
    """The route of a call that gave ``found``; None if an empty shard's results have to be replaced."""
    several = isinstance(found, tuple)
    if plan.sums and 0 in cuts:
        return None
    ways: list[Any] = []
    for x, axis in zip(operands, plan.axes, strict=True):
        if isinstance(x, (list, tuple)):
            ways.append(axis)
        elif level.is_cut(x):
            ways.append(True if x.axis == axis and x.cuts == cuts else axis)
        else:
            ways.append(False if axis is None or not hasattr(x, "shape") else axis)
    placed = tuple((x.axis, x.cuts, x.shape) if level.is_cut(x) else None for x in (found if several else (found,)))
    local = None
    if plan.local is not None:
        places = level.mine(tuple(zip(starts_of(cuts), cuts, strict=True)))
        local = [plan.local(start, start + length) for start, length in places]
    return codegen.Route(tuple(ways), cuts, local, placed, several)


def _takes_part(level: Sharded, operands: Any) -> bool:
    """Whether an operand, or one of a list of them, is in parts."""
    for x in operands:
        if x.__class__ is Shards:
            if x.mesh_axis == level.mesh_axis:
                return True
        elif (x.__class__ is list or x.__class__ is tuple) and _takes_part(level, x):
            return True
    return False


def _has_sums(level: Sharded, x: Any) -> bool:
    """Whether an operand, or one of a list of them, is in addends."""
    if isinstance(x, (list, tuple)):
        return any(_has_sums(level, t) for t in x)
    return level.is_cut(x) and x.axis is None


def _alike(level: Sharded, operands: Sequence[Any]) -> Shards | None:
    """The first operand in parts, if all others are scalars, absent, or of its shape and cut as it is."""
    like: Shards | None = None
    for x in operands:
        if x.__class__ is Shards and x.mesh_axis == level.mesh_axis:
            if like is None:
                if x.axis is None:
                    return None
                like = x
            elif x.axis != like.axis or x.cuts != like.cuts or x.shape != like.shape:
                return None
        elif hasattr(x, "shape"):
            return None
    return like


def _leaders(
    level: Sharded, operands: Sequence[Any], examples: tuple[int, int] | None
) -> list[tuple[int, int, int, Cuts]]:
    """The cut operands: size, index, axis and lengths of the parts; one with examples first, then the largest."""
    found: list[tuple[int, int, int, Cuts]] = []
    for i, given in enumerate(operands):
        for x in given if isinstance(given, (list, tuple)) else (given,):
            if level.is_cut(x) and x.axis is not None:
                found.append((math.prod(x.shape), i, x.axis, x.cuts))
    if examples is None:
        return sorted(found, key=lambda leader: -leader[0])
    first, trailing = examples
    last = len(operands[first].shape) - trailing if hasattr(operands[first], "shape") else 0
    return sorted(found, key=lambda leader: (leader[1] != first or leader[2] >= last, -leader[0]))


def _other_axes(shapes: Sequence[Any], leaders: list[tuple[int, int, int, Cuts]]) -> list[tuple[int, int, int]]:
    """Where the first leader could be cut instead: its index, an axis and the length, the longest first."""
    _, index, cut, _ = leaders[0]
    shape = shapes[index][0] if isinstance(shapes[index], list) else shapes[index]
    axes = [(index, axis, length) for axis, length in enumerate(shape) if axis != cut and length > 1]
    return sorted(axes, key=lambda place: -place[2])


def _is_quantized(level: Sharded, entry: Operation, operands: Sequence[Any], attributes: dict[str, Any]) -> bool:
    """Whether an operand or the result is quantized."""
    if "dtype" in entry.results and getattr(attributes.get("dtype"), "kind", "") == "quantized":
        return True
    return any(hasattr(x, "shape") and level.dtype(x).kind == "quantized" for x in operands)


make_operations(Sharded, compile_operation, written=("from_numpy", "to_numpy", "to_numpy_many"))
