"""Rectifiers next to products and pools: ``relu`` and its gradient, on fewer elements or without a separate pass.

A backend may have functions that apply them to the results of a product or a convolution while these are in cache. The
gradient of a rectifier before a max pool is computed before that of the pool, on fewer elements: a value of the pool is
above 0 where the element that it came from is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from backburn.programs.ir import Call, Program, Variable, arguments

#: The operation of a call that has an epilogue; its function's attribute ``failed`` is the call without one.
EPILOGUE = "epilogue"


#: From a backend, a call and the name of a pass over its result: the function that computes both, or None. The pass is
#: the operation ``relu``, or ``relu_backward``, whose second operand comes before those of the call.
WithEpilogue = Callable[[Any, Call, str], Callable[..., Any] | None]


def join_epilogues(program: Program, k: Any, with_epilogue: WithEpilogue) -> list[Call]:
    """A program of calls of ``k`` in which calls also compute such passes, if nothing else reads their results."""
    calls = program.calls
    if {"relu", "relu_backward"}.isdisjoint(call.operation for call in calls):
        return calls
    makers, uses = program.makers(), program.uses()
    made: set[int] = set()
    joined: dict[int, Call] = {}
    for call in calls:
        if call.operation not in ("relu", "relu_backward"):
            continue
        x, *mask = call.operands
        before = _maker(x, makers)
        if before is None or before.results is not x or uses[x] > 1:
            continue
        function: Any = with_epilogue(k, before, call.operation)
        if function is not None:
            function.failed = before
            made.add(id(before))
            operands = [*mask, *before.operands]
            joined[id(call)] = Call(EPILOGUE, function, operands, before.attributes, call.results)
    return [joined.get(id(call), call) for call in calls if id(call) not in made]


def mask_before_pools(program: Program, k: Any) -> list[Call]:
    """A program of calls of ``k`` in which gradients of rectifiers come before those of max pools of their results."""
    calls = program.calls
    if not {"relu_backward", "max_pool", "take_along_axis_backward"} <= {call.operation for call in calls}:
        return calls
    makers, uses = program.makers(), program.uses()
    replaced: dict[int, list[Call]] = {}
    #: The masked gradients of pools' values, by the masked gradients of the pools' operands.
    small: dict[Variable, Variable] = {}
    for call in calls:
        if call.operation == "relu_backward" and (found := _spread(call, makers, uses)) is not None:
            spread, views, values = found
            grad = spread.operands[0]
            view = program.variable(grad.shape, values.dtype)
            masked = small[call.results] = program.variable(grad.shape, grad.dtype)
            last = [*views, spread][0]  # the call before the mask, which now computes its result
            replaced[id(call)] = []
            replaced[id(last)] = [replace(last, results=call.results)]
            [after] = replaced.get(id(spread), [spread])
            replaced[id(spread)] = [
                Call("reshape", k.reshape, [values, grad.shape], {}, view),
                replace(call, operands=[grad, view], results=masked),
                replace(after, operands=[masked, *spread.operands[1:]]),
            ]
        elif call.operation == "sum" and not small.keys().isdisjoint(call.reads):
            x, axes, keepdims = arguments(call)
            if not keepdims and {*range(2, len(x.shape))} <= {*axes}:
                replaced[id(call)] = [replace(call, operands=[small[x], (*(i for i in axes if i < 2), 2), False])]
    return [new for call in calls for new in replaced.get(id(call), [call])]


def _spread(
    call: Call, makers: Mapping[Variable, Call], uses: Mapping[Variable, int]
) -> tuple[Call, list[Call], Variable] | None:
    """The gradient of a max pool whose result ``call`` masks with the pool's operand, and views in between.

    The views come in the order from the mask to the gradient; after them, the pool's values. None for other calls.
    """
    grad, mask = call.operands
    views = []
    maker = _maker(grad, makers)
    while maker is not None and maker.operation == "reshape" and uses[maker.results] == 1:
        views.append(maker)
        maker = _maker(maker.operands[0], makers)
    if maker is None or maker.operation != "take_along_axis_backward" or uses[maker.results] > 1:
        return None
    values, index, shape, axis = arguments(maker)
    if len(shape) != 3 or axis != 2 or (*grad.shape[:2], prod(grad.shape[2:])) != tuple(shape):
        return None
    if values.__class__ is not Variable or prod(values.shape) >= prod(grad.shape):
        return None
    pool = _maker(index, makers)
    while pool is not None and pool.operation == "reshape":
        index = pool.operands[0]
        pool = _maker(index, makers)
    if pool is None or pool.operation != "max_pool" or pool.operands[0] is not mask:
        return None
    results = pool.results
    return None if results[1] is not index or results[0] is None else (maker, views, results[0])


def _maker(x: Any, makers: Mapping[Variable, Call]) -> Call | None:
    """The call that computes an operand; None for inputs and constants."""
    return makers.get(x) if x.__class__ is Variable else None
