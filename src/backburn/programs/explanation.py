"""Explanations of programs: their text, and which recorded call an error of a replay comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from backburn.ops.table import OPERATIONS
from backburn.programs.fusion.plan import PASS
from backburn.programs.ir import Call, Number, Variable, listed
from backburn.programs.passes.epilogues import EPILOGUE
from backburn.programs.passes.in_place import Donated, Place
from backburn.programs.passes.native_programs import NATIVE_PROGRAM

if TYPE_CHECKING:
    from backburn.programs.executable import CompiledProgram


def failed(
    executable: CompiledProgram, update_code: Any, error: BaseException
) -> tuple[str, list[Any], dict[str, Any]] | None:
    """The operation whose call raised ``error`` in a replay, with its operands and attributes; None if unknown.

    ``update_code`` is the code of the method that runs updates.
    """
    trace = error.__traceback__
    codes = executable.source.run.__code__, update_code
    while trace is not None and trace.tb_frame.f_code not in codes:
        trace = trace.tb_next
    if trace is None:
        return None
    values = trace.tb_frame.f_locals
    if trace.tb_frame.f_code is update_code:
        if "operands" not in values:
            return None
        update = executable.updates[values["number"]]
        operands = [_shown(x, executable.state) for x in values["operands"]]
        for i in update.gathered:  # the gradient is rows and their indices: show it like its parameter
            operands[1][i] = operands[0][i]
        name = update.call.operation
        return (name, operands, values["attributes"]) if name in OPERATIONS else None
    call = executable.source.calls.get(trace.tb_lineno)
    if call is not None and call.operation in (NATIVE_PROGRAM, EPILOGUE, PASS):
        call = getattr(call.function, "failed", None)
        if call is not None and call.operation == PASS:  # of a native program
            call = call.function.made[-1]
    if call is None or call.operation not in OPERATIONS:
        return None

    def value(x: Any) -> Any:
        if isinstance(x, list):
            return [*map(value, x)]
        if isinstance(x, Variable):
            if (name := executable.source.names.get(x)) is not None:
                return values[name]
            k = executable.k  # a native program's intermediate value: one like it
            return k.broadcast_to(k.zeros((), x.dtype), x.shape)
        return values["numbers"][x.place] if isinstance(x, Number) else x

    return call.operation, value(call.operands), {n: value(x) for n, x in call.attributes.items()}


def _shown(operand: Any, state: list[Any]) -> Any:
    """An operand of an update, with the primitives of the state."""
    if isinstance(operand, Place):
        return state[operand.number]
    return [_shown(x, state) for x in operand] if isinstance(operand, list) else operand


def text_of(executable: CompiledProgram) -> str:
    """A program as text: a call on each line, and what became of it."""
    program = executable.program
    lines = [f"state: {_variables(program.state)}", f"inputs: {_variables(program.inputs)}"]
    for call in program.calls:
        lines += _call_lines(call, program.notes.get(call, ""))
    for update in executable.updates:
        places = [f"state {i}" for i in update.places if i is not None]
        where = f"in place: {', '.join(places)}" if places else "not in place: its results are read, or not the state"
        rows = ", from gathered rows" if update.gathered else ""
        lines.append(f"{line_of(update.call)}  # update {where}{rows}")
    lines.append("new state: " + ", ".join(map(value_of, program.results[0])))
    lines.append("outputs: " + ", ".join(map(value_of, program.results[1])))
    return "\n".join(lines)


def _call_lines(call: Call, note: str) -> Iterator[str]:
    """The lines of a call, and of those that it joins."""
    if call.operation in (NATIVE_PROGRAM, PASS):
        made = getattr(call.function, "made", ())
        kind = "pass" if call.operation == PASS else call.operation
        yield f"{_results(call)} = {kind} of {len(made)} calls({', '.join(map(value_of, call.operands))})"
        for inner in made:
            yield from (f"    {line}" for line in _call_lines(inner, ""))
        return
    if isinstance(call.attributes.get("donate"), Donated):
        note = "donated: it overwrites the first operand if nothing else refers to it"
    yield line_of(call) + (f"  # {note}" if note else "")


def line_of(call: Call) -> str:
    """A call as text."""
    operands, name = [*call.operands], call.operation
    if name == "fuse":  # the first operand is the formula
        name = f"fuse[{getattr(operands[0], '__name__', 'formula')}]"
        operands = operands[1:]
    elif name == EPILOGUE:
        before: Call = call.function.failed  # type: ignore[attr-defined]  # the call without the pass
        name = f"{before.operation}, then {'relu_backward' if len(operands) > len(before.operands) else 'relu'}"
    given = [*map(value_of, operands), *(f"{n}={value_of(x)}" for n, x in call.attributes.items() if n != "donate")]
    return f"{_results(call)} = {name}({', '.join(given)})"


def _results(call: Call) -> str:
    return ", ".join("_" if v is None else f"{value_of(v)}: {v.dtype}{list(v.shape)}" for v in listed(call.results))


def _variables(variables: list[Variable]) -> str:
    return ", ".join(f"v{v.index}: {v.dtype}{list(v.shape)}" for v in variables) or "none"


def value_of(x: Any) -> str:
    """An operand or a result as text."""
    if isinstance(x, Variable):
        return f"v{x.index}"
    if isinstance(x, Number):
        return f"number {x.place}"
    if isinstance(x, Place):
        return f"state {x.number}"
    if isinstance(x, list):
        return f"[{', '.join(map(value_of, x))}]"
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return f"constant {x.dtype}{list(x.shape)}"
    return repr(x)
