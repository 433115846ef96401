"""Joining element-wise calls of a program into formulas, for backends that compute these in one pass over memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from math import prod
from typing import Any

from backburn.backend.programs import Call, Number, Source, Variable, changes

#: Element-wise operations that are a step or a few; others have kernels of their own, which take as long.
SIMPLE = frozenset((
    *("add", "sub", "mul", "div", "neg", "abs", "sign", "square", "sqrt", "rsqrt", "reciprocal", "floor", "round"),
    *("exp", "expm1", "log", "log1p", "sin", "cos", "tan", "tanh", "sigmoid", "silu", "log_sigmoid"),
    *("maximum", "minimum", "clamp", "where", "mask_fill", "relu", "leaky_relu"),
    *("relu_backward", "tanh_backward", "sigmoid_backward", "silu_backward"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("logical_and", "logical_or", "logical_not"),
))  # fmt: skip

#: The fewest elements for which calls are joined, and the most calls that are.
FEWEST, MOST = 1 << 12, 16


class _Group:
    """Calls to join, of one shape and float dtype; it is open until another call reads what one of them makes."""

    def __init__(self, place: int, like: Any, calls: list[Call]) -> None:
        self.place = place
        self.like = like
        self.calls = calls
        self.is_open = True


def joined(calls: list[Call], returned: Collection[Variable], k: Any) -> list[Call]:
    """A program of calls of ``k``, in which the element-wise ones that follow from one another are joined."""
    order: dict[int, _Group | Call] = {}
    makers: dict[Variable, _Group] = {}
    for place, call in enumerate(calls):
        like = _like(call, makers, k)
        before = {id(group): group for v in call.reads if (group := makers.get(v)) is not None}.values()
        mine = [group for group in before if group.is_open and group.like == like]
        if sum(len(group.calls) for group in mine) >= MOST:
            mine = []
        for group in before:
            group.is_open = group in mine
        if like is None:
            order[place] = call
            continue
        for group in mine:
            del order[group.place]
        # At the place of the last one: what has read what the others make before would have closed their group.
        order[place] = group = _Group(place, like, [*(x for group in mine for x in group.calls), call])
        makers.update({member.results: group for member in group.calls})
    uses = Counter([*returned, *(v for call in calls for v in call.reads)])
    return [x for part in order.values() for x in ([part] if isinstance(part, Call) else _in_one(part, uses, k))]


def _like(call: Call, makers: dict[Variable, _Group], k: Any) -> tuple[Any, Any] | None:
    """The shape and the dtype of an element-wise call that may be joined with others; else None."""
    result = call.results
    if call.operation not in SIMPLE and call.operation != "one_pass":
        return None
    if not isinstance(result, Variable) or prod(result.shape) < FEWEST or changes([*call.attributes.values()]):
        return None
    dtypes = set()
    for x in call.operands[1:] if call.operation == "one_pass" else call.operands:  # after the formula
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
    # A formula rounds 16-bit floats once, at its end: what overflows on the way would be finite.
    if len(dtypes) != 1 or (dtype := dtypes.pop()).kind != "float" or dtype.bits < 32:
        return None
    return result.shape, dtype


def _in_one(group: _Group, uses: Counter[Variable], k: Any) -> list[Call]:
    """A group as one call, or its calls if they cannot be one."""
    calls = sorted(group.calls, key=lambda call: call.results.index)
    made = [call.results for call in calls]
    own = {id(v) for v in made}
    inside = Counter(v for call in calls for v in call.reads)
    outputs = [v for v in made if uses[v] > inside[v]]
    operands = {id(x): x for call in calls for x in call.operands if hasattr(x, "shape") and id(x) not in own}
    whole = next((x for x in operands.values() if tuple(x.shape) == group.like[0]), None)
    # What a formula returns is float: comparisons that are read elsewhere, too, are made on their own once more.
    apart = [call for call in calls if call.results in outputs and call.results.dtype.kind == "bool"]
    outputs = [v for v in made if v in {*outputs, *(v for call in apart for v in call.reads)}]
    outputs = [v for v in outputs if v.dtype.kind != "bool"]
    if len(calls) - len(apart) < 2 or whole is None or any(v.dtype.kind == "bool" for c in apart for v in c.reads):
        return calls
    inputs = [whole, *(x for x in operands.values() if x is not whole)]
    formula = _formula(calls, inputs, outputs)
    results = outputs if len(outputs) > 1 else outputs[0]
    return [Call("one_pass", k.one_pass, [formula, *inputs], {}, results), *apart]


def _formula(calls: list[Call], inputs: list[Any], outputs: list[Variable]) -> Callable[..., Any]:
    """The calls as a function of a backend and the inputs."""
    source = Source(f"formula(k, {', '.join(f'x{i}' for i in range(len(inputs)))})")
    source.names = {id(_K): "k", **{id(x): f"x{i}" for i, x in enumerate(inputs)}}
    for call in calls:
        if call.operation == "one_pass":  # the first operand is a formula itself
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
