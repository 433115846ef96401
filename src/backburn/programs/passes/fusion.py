"""Fusion of a program's element-wise calls into formulas, for backends that compute these in one pass over memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from backburn.programs.ir import Call, Number, Program, Variable, varies
from backburn.programs.source import ProgramSource

#: Element-wise operations of one or a few steps; others have separate kernels, which are as fast.
FUSABLE = frozenset((
    *("add", "sub", "mul", "div", "neg", "abs", "sign", "square", "sqrt", "rsqrt", "reciprocal", "floor", "round"),
    *("exp", "expm1", "log", "log1p", "sin", "cos", "tan", "tanh", "sigmoid", "silu", "log_sigmoid"),
    *("maximum", "minimum", "clip", "where", "masked_fill", "relu", "leaky_relu"),
    *("relu_backward", "tanh_backward", "sigmoid_backward", "silu_backward", "sigmoid_slope", "tanh_slope"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("logical_and", "logical_or", "logical_not"),
))  # fmt: skip

#: The fewest elements for which calls are fused, and the most calls in a group.
MIN_ELEMENTS, MAX_CALLS = 1 << 12, 16


class _Group:
    """Calls to fuse, of one shape and float dtype; a group is open until another call reads a result of it."""

    def __init__(self, place: int, like: Any, calls: list[Call]) -> None:
        self.place = place
        self.like = like
        self.calls = calls
        self.is_open = True


def fuse_calls(program: Program, k: Any) -> list[Call]:
    """A program of calls of ``k`` in which dependent element-wise ones are fused."""
    calls = program.calls
    if not hasattr(k, "fuse"):
        return calls
    order: dict[int, _Group | Call] = {}
    makers: dict[Variable, _Group] = {}
    for place, call in enumerate(calls):
        like = _group_key(call, makers, k)
        if like is None and not makers:
            order[place] = call
            continue
        before = {id(group): group for v in call.reads if (group := makers.get(v)) is not None}.values()
        mine = [group for group in before if group.is_open and group.like == like]
        if sum(len(group.calls) for group in mine) >= MAX_CALLS:
            mine = []
        for group in before:
            group.is_open = group in mine
        if like is None:
            order[place] = call
            continue
        for group in mine:
            del order[group.place]
        # The group takes the place of its last call: an earlier reader of another result would have closed it.
        order[place] = group = _Group(place, like, [*(x for group in mine for x in group.calls), call])
        makers.update({member.results: group for member in group.calls})
    if not makers:
        return calls
    uses = Counter([*{*program.returned}, *(v for call in calls for v in call.reads)])
    return [x for part in order.values() for x in ([part] if isinstance(part, Call) else _fuse_group(part, uses, k))]


def _group_key(call: Call, makers: dict[Variable, _Group], k: Any) -> tuple[Any, Any] | None:
    """The shape and the dtype of an element-wise call that may be fused with others; else None."""
    result = call.results
    if call.operation not in FUSABLE and call.operation != "fuse":
        return None
    if not isinstance(result, Variable) or prod(result.shape) < MIN_ELEMENTS or varies([*call.attributes.values()]):
        return None
    dtypes = set()
    for x in call.operands[1:] if call.operation == "fuse" else call.operands:  # after the formula
        if x is None or isinstance(x, Number | list):
            return None
        if not hasattr(x, "shape"):
            continue
        dtype = x.dtype if isinstance(x, Variable) else k.dtype(x)
        if dtype.kind == "bool":  # in a formula a bool is a float: it may only come from there
            maker = makers.get(x) if isinstance(x, Variable) else None
            if maker is None or not maker.is_open:
                return None
            dtype = maker.like[1]
        if tuple(x.shape) != result.shape and prod(x.shape) != 1:
            return None
        dtypes.add(dtype)
    # A formula rounds 16-bit floats once, at its end: an intermediate overflow would be lost.
    if len(dtypes) != 1 or not (dtype := dtypes.pop()).is_floating or dtype.bits < 32:
        return None
    return result.shape, dtype


def _fuse_group(group: _Group, uses: Counter[Variable], k: Any) -> list[Call]:
    """A group as one call, or its calls if they cannot be one."""
    calls = sorted(group.calls, key=lambda call: call.results.index)
    made = [call.results for call in calls]
    own = {id(v) for v in made}
    inside = Counter(v for call in calls for v in call.reads)
    outputs = [v for v in made if uses[v] > inside[v]]
    operands = {id(x): x for call in calls for x in call.operands if hasattr(x, "shape") and id(x) not in own}
    whole = next((x for x in operands.values() if tuple(x.shape) == group.like[0]), None)
    # A formula returns floats: a comparison that is also read elsewhere is computed once more on its own.
    apart = [call for call in calls if call.results in outputs and call.results.dtype.kind == "bool"]
    outputs = [v for v in made if v in {*outputs, *(v for call in apart for v in call.reads)}]
    outputs = [v for v in outputs if v.dtype.kind != "bool"]
    if len(calls) - len(apart) < 2 or whole is None or any(v.dtype.kind == "bool" for c in apart for v in c.reads):
        return calls
    inputs = [whole, *(x for x in operands.values() if x is not whole)]
    formula = _formula(calls, inputs, outputs)
    results = outputs if len(outputs) > 1 else outputs[0]
    return [Call("fuse", k.fuse, [formula, *inputs], {}, results), *apart]


def _formula(calls: list[Call], inputs: list[Any], outputs: list[Variable]) -> Callable[..., Any]:
    """The calls as a function of a backend and the inputs."""
    source = ProgramSource(f"formula(k, {', '.join(f'x{i}' for i in range(len(inputs)))})")
    source.names = {id(_K): "k", **{id(x): f"x{i}" for i, x in enumerate(inputs)}}
    for call in calls:
        if call.operation == "fuse":  # the first operand is a formula itself
            inner = source.expression(call.operands[0])
            source.call(replace(call, operands=[_K, *call.operands[1:]]), inner)
        else:
            source.call(call, f"k.{call.operation}")
    source.line(f"return {', '.join(map(source.expression, outputs))}")
    formula = source.compiled()
    formula.__name__ = " ".join(call.operation for call in calls)
    return formula


#: Stands for the backend that a formula is given.
_K = object()
