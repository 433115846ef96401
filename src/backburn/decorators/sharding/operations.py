"""The methods of ``Sharded`` for operations: which way each call is computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from backburn.backend.wrapper import make_operations
from backburn.decorators.sharding.decorator import Sharded, shapes_of
from backburn.decorators.sharding.rules import DIRECT, elementwise, rule_of
from backburn.decorators.sharding.shards import Cuts, Shards
from backburn.ops.table import Operation


def compile_operation(entry: Operation) -> Callable[..., Any]:
    """The method of ``Sharded`` for an operation."""
    name, count = entry.name, len(entry.operands)
    names, defaults = tuple(entry.attributes), entry.defaults
    padding = (None,) * count
    rule, own = rule_of(name), DIRECT.get(name)

    def method(self: Sharded, /, *given: Any, **options: Any) -> Any:
        operands = given[:count]
        if not _takes_part(self, operands):
            return getattr(self._inner, name)(*given, **options)
        attributes = {**defaults, **dict(zip(names, given[count:], strict=False)), **options} if names else {}
        if len(operands) < count:
            operands += padding[len(operands) :]
        if rule is elementwise and (like := _alike(self, operands)) is not None:
            columns = [x.parts if x.__class__ is Shards else [x] * len(self.own) for x in operands]
            function = getattr(self._inner, name)
            parts = [function(*own_parts, **attributes) for own_parts in zip(*columns, strict=True)]
            return Shards(parts, like.axis, like.cuts, like.shape, like.mesh_axis)
        checked = entry.result_shape(operands, attributes)  # raises for operands that do not fit
        if own is not None:
            found = own(self, *operands, **attributes)
            if found is not NotImplemented:
                return found
        operands = tuple(self.settled(x, addends_only=True) for x in operands)
        leaders = _leaders(self, operands)
        if not leaders:
            return getattr(self._inner, name)(*operands, **attributes)
        if rule is not None:
            shapes = shapes_of(operands)
            for size, index, axis, cuts in leaders:
                if size < leaders[0][0] and not entry.required:
                    break  # the body moves less than the largest operand cut otherwise
                plan = rule(shapes, index, axis, **attributes)
                if plan is not None:
                    return self.run(entry, operands, attributes, plan, cuts, checked)
        if entry.required or entry.shape is None or _is_quantized(self, entry, operands, attributes):
            return self.on_whole(entry, operands, attributes)
        return entry.body(self, *operands, **attributes)

    method.__name__ = name
    method.__qualname__ = f"Sharded.{name}"
    method.__doc__ = entry.body.__doc__
    return method


def _takes_part(level: Sharded, operands: Any) -> bool:
    """Whether an operand, or one of a list of them, is in parts."""
    for x in operands:
        if x.__class__ is Shards:
            if x.mesh_axis == level.mesh_axis:
                return True
        elif (x.__class__ is list or x.__class__ is tuple) and _takes_part(level, x):
            return True
    return False


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


def _leaders(level: Sharded, operands: Sequence[Any]) -> list[tuple[int, int, int, Cuts]]:
    """The operands that are cut: size, number, axis and lengths of the parts, the largest first."""
    found: list[tuple[int, int, int, Cuts]] = []
    for i, given in enumerate(operands):
        for x in given if isinstance(given, (list, tuple)) else (given,):
            if level.is_cut(x) and x.axis is not None:
                found.append((math.prod(x.shape), i, x.axis, x.cuts))
    return sorted(found, key=lambda leader: -leader[0])


def _is_quantized(level: Sharded, entry: Operation, operands: Sequence[Any], attributes: dict[str, Any]) -> bool:
    """Whether an operand or the result is quantized."""
    if "dtype" in entry.results and getattr(attributes.get("dtype"), "kind", "") == "quantized":
        return True
    return any(hasattr(x, "shape") and level.dtype(x).kind == "quantized" for x in operands)


make_operations(Sharded, compile_operation, written=("from_numpy", "to_numpy", "to_numpy_many"))
