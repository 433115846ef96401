"""Groups whose arrays have one shape as formulas, which any backend computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from backburn.programs.fusion.plan import Extent, Operand, Step
from backburn.programs.ir import Call, Variable
from backburn.programs.source import ProgramSource


def fused_call(steps: Sequence[Step], outputs: Sequence[Variable], k: Any) -> Call | None:
    """Element-wise calls of ``k`` as one; None if arrays differ in shape, or none is as large as a result."""
    calls = [step.call for step in steps]
    shape = outputs[0].shape
    own = {id(v) for step in steps for v in step.results}
    operands: dict[int, Any] = {}
    for step in steps:
        if step.results[0].shape != shape:
            return None
        for x, given in zip(step.operands, step.call.operands, strict=True):
            if not isinstance(x, Operand):
                continue
            if x.value is not given or (x.extent is Extent.FULL and tuple(given.shape) != shape):
                return None
            if x.extent not in (Extent.FULL, Extent.ONE) or x.repeat is not None:
                return None
            if id(given) not in own:
                operands[id(given)] = given
    whole = next((x for x in operands.values() if tuple(x.shape) == shape), None)
    if whole is None:
        return None
    inputs = [whole, *(x for x in operands.values() if x is not whole)]
    formula = _formula(calls, inputs, outputs)
    results = [*outputs] if len(outputs) > 1 else outputs[0]
    return Call("fuse", k.fuse, [formula, *inputs], {}, results)


def _formula(calls: Sequence[Call], inputs: Sequence[Any], outputs: Sequence[Variable]) -> Callable[..., Any]:
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
