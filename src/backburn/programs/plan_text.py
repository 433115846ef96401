"""Plans as text: each pass, what it reads and writes, and what became of every other call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from backburn.programs.explanation import line_of, value_of
from backburn.programs.fusion.plan import PASS, Operand, Plan
from backburn.programs.fusion.replacement import Report
from backburn.programs.passes.native_programs import NATIVE_PROGRAM

if TYPE_CHECKING:
    from backburn.programs.executable import CompiledProgram


def plan_of(executable: CompiledProgram) -> str:
    """The passes of a program, and the calls that are in none, as text."""
    program = executable.program
    report = program.fusion
    if not isinstance(report, Report):
        return "no passes: calls are not joined"
    programs = [call.function for call in program.calls if call.operation == NATIVE_PROGRAM]
    inside = [call for function in programs for call in getattr(function, "made", ())]
    passes: list[Any] = [call.function for call in (*program.calls, *inside) if call.operation == PASS]
    generators = {id(f.made[0]): getattr(f, "generator", "") for f in passes}
    lines = [line for number, plan in enumerate(report.plans) for line in _pass_lines(number, plan, generators)]
    native = {*map(id, inside)}
    kept = {id(call) for call in program.calls}
    updates = {id(update.call) for update in executable.updates}
    others = [*_other_lines(report, native, kept, updates)]
    return "\n".join([*lines, *(["calls in no pass"] if others else []), *others]) or "no calls"


def _pass_lines(number: int, plan: Plan, generators: Mapping[int, str]) -> Iterator[str]:
    """The lines of a pass; ``generators`` tell how it is computed, by the id of its first call."""
    space = plan.space
    shorter = f" and one of {space.rest}" if space.rest else ""
    yield f"pass {number}: {space.rows} rows of {space.width}{shorter} {space.dtype}, {len(plan.steps)} calls"
    yield f"  reads {', '.join(f'{value_of(x.value)} ({_extent_of(x)})' for x in plan.inputs)}"
    for step in plan.steps:
        operands = [x.value if isinstance(x, Operand) else x for x in step.operands]
        rest = step.call.operands[len(operands) :]
        yield f"    {line_of(replace(step.call, operands=[*operands, *rest]))}"
    yield f"  writes {', '.join(f'{value_of(v)} ({plan.extents[v].value})' for v in plan.outputs)}"
    moved = _megabytes(plan.bytes_read + plan.bytes_written)
    yield (
        f"  {_megabytes(plan.bytes_read)} read, {_megabytes(plan.bytes_written)} written: {moved} in place of "
        f"{_megabytes(plan.bytes_apart)} by its calls one after the other"
    )
    if generator := generators.get(id(plan.steps[0].call)):
        yield f"  computed by {generator}"
    for call in plan.totals:
        yield f"  then {line_of(call)}"


def _extent_of(x: Operand) -> str:
    """How an operand varies, in words."""
    if x.repeat is None:
        return x.extent.value
    return f"{x.extent.value} in blocks of {x.repeat.block} rows, {_sides(x.repeat.shape)} to {_sides(x.repeat.whole)}"


def _sides(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _other_lines(report: Report, native: set[int], kept: set[int], updates: set[int]) -> Iterator[str]:
    """The lines of calls that are in no pass."""
    for call, reason in report.reasons.items():
        if id(call) in native:
            where = "in a native program"
        elif id(call) in updates:
            where = "an update of the state"
        elif id(call) in kept:
            where = "by itself"
        else:
            continue
        yield f"  {line_of(call)}: {where}; {reason}"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
