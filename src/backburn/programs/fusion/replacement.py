"""The calls of a program with each group of calls that can share a pass replaced by it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from backburn.base.dtypes import DType
from backburn.programs.fusion import limits
from backburn.programs.fusion.formulas import fused_call
from backburn.programs.fusion.partition import Group, Partition, rows_of
from backburn.programs.fusion.plan import (
    ALONG_ROWS,
    PASS,
    Compile,
    Extent,
    Knows,
    Operand,
    Plan,
    Space,
    Step,
    axes_of,
    key_of,
)
from backburn.programs.ir import Call, Program, Variable, ordered, variables_in

#: Operations that a pass recomputes from values of rows and columns, rather than reading their results.
CHEAP = frozenset(("add", "sub", "mul", "div", "neg", "maximum", "minimum"))


@dataclass
class Report:
    """The plans of a program, and for each call in none of them the reason as text."""

    plans: list[Plan] = field(default_factory=list)
    reasons: dict[Call, str] = field(default_factory=dict)


def fuse_calls(
    program: Program, k: Any, compile: Compile | None = None, knows: Knows = lambda name, dtype: True
) -> list[Call]:
    """A program of calls of ``k`` in which each group is one pass, by ``compile`` if it iterates over rows.

    Without it, and where it returns None, groups whose arrays have one shape are formulas. ``knows`` tells which
    operations it supports.
    """
    partition = Partition(program, k, None if compile is None else knows)
    report = program.fusion = Report(reasons=partition.reasons)
    if not partition.homes:
        return program.calls
    replacement = _Replacement(program, k, partition, compile)
    makers = program.makers()
    last: dict[int, list[Variable]] = {}
    for group in sorted(partition.groups(), key=lambda group: -group.steps[-1].place):
        if (calls := replacement.of(group)) is None:
            continue
        for step in group.steps:
            last[id(step.call)] = []
            for v in step.results:
                makers.pop(v, None)
        made = [v for call in calls for v in variables_in([call.results])]
        makers.update({v: call for call in calls for v in call.writes})
        last[id(group.steps[-1].call)] = made
    if not last:
        return program.calls
    wanted = [v for call in program.calls for v in last.get(id(call), variables_in([call.results]))]
    found = ordered(wanted, makers)
    report.plans = [replacement.plans[call] for call in found if call in replacement.plans]
    return found


class _Replacement:
    """The calls that take the place of groups."""

    def __init__(self, program: Program, k: Any, partition: Partition, compile: Compile | None) -> None:
        self._program = program
        self._k = k
        self._partition = partition
        self._compile = compile
        #: The plan of each pass or formula.
        self.plans: dict[Call, Plan] = {}
        self._users, self._returned = program.users(), {*program.returned}
        #: By the identity of a call, the variables that its pass recomputes.
        self._again: dict[int, set[Variable]] = {}
        #: The compiled functions by the keys of their plans.
        self._twins: dict[Hashable, Any] = {}
        #: The calls that convert masks to floats, by mask and dtype.
        self._floats: dict[tuple[Any, DType], Call] = {}

    def of(self, group: Group) -> list[Call] | None:
        """The calls in place of those of a group; None if they stay, for which the report has the reason.

        Groups that read others have to be replaced before these.
        """
        before = [(step, [*step.operands]) for step in group.steps]
        if self._compile is not None and not group.is_update:
            self._make_again(group)
        found = self._of(group)
        if found is None:  # the calls stay, with their old operands
            group.steps = [step for step, _ in before]
            for step, operands in before:
                step.operands = operands
                self._again.pop(id(step.call), None)
        return found

    def _make_again(self, group: Group) -> None:
        """Add steps for values of other groups that are cheaper to recompute from rows and columns than to read."""
        own = {v for step in group.steps for v in step.results}
        copies: dict[Variable, Operand | None] = {}
        if any(v.dtype.kind == "bool" for v in own):
            calls = {id(step.call) for step in group.steps}
            if any(self._is_read(v, calls) for v in own if v.dtype.kind == "bool"):
                return  # such a comparison is also computed separately
        for step in [*group.steps]:
            for i, x in enumerate(step.operands):
                if not isinstance(x, Operand) or not x.is_whole or x.value.__class__ is not Variable:
                    continue
                v = x.value
                if v in own or v not in self._partition.homes:
                    continue
                if v not in copies:
                    copies[v] = self._copy(v, group)
                if (copy := copies[v]) is not None:
                    step.operands[i] = copy
                    self._again.setdefault(id(step.call), set()).add(v)

    def _copy(self, v: Variable, group: Group) -> Operand | None:
        """A value of another group, recomputed by a step of this one; None if reading it is as cheap."""
        home = self._partition.group_of(v)
        maker = next(step for step in home.steps if v in step.made)
        operands = [x for x in maker.operands if isinstance(x, Operand)]
        if home.space != group.space or maker.call.operation not in CHEAP:
            return None
        variables = (x.value for x in operands if x.value.__class__ is Variable)
        if any(x.extent is Extent.FULL for x in operands) or any(x in self._partition.homes for x in variables):
            return None
        made = self._program.variable(v.shape, v.dtype)
        group.steps.append(Step(replace(maker.call, results=made), maker.extent, [*maker.operands], maker.place))
        return Operand(made, Extent.FULL)

    def _of(self, group: Group) -> list[Call] | None:
        group.steps.sort(key=lambda step: step.place)
        steps = group.steps
        mine, made = {id(step.call) for step in steps}, [v for step in steps for v in step.results]
        outputs = [v for v in made if self._is_read(v, mine)]
        # A pass returns floats: a comparison that is also read elsewhere is computed again, separately.
        apart = [step.call for step in steps if step.results[0].dtype.kind == "bool" and step.results[0] in outputs]
        own = {*made}
        again = {x for call in apart for x in variables_in(call.operands)}
        needed = {x if x in own else self._partition.root(x) for x in again}
        outputs = [v for v in made if v.dtype.kind != "bool" and (v in outputs or v in needed)]
        if not outputs and not apart and any(v in found for found in self._again.values() for v in made):
            return []  # others recompute what they read of it
        is_alone = len(steps) - len(apart) < 2
        if is_alone and steps[0].call.operation in ALONG_ROWS and group.space.size <= limits.MAX_ELEMENTS_ALONE:
            is_alone = False
        if is_alone or not outputs or any(v.dtype.kind == "bool" for v in needed & own):
            return self._stay(group, "it is alone: no call that reads or computes its elements joins it")
        is_short = len(steps) <= limits.MAX_CALLS and not group.has_masks and group.space.dtype.bits >= 32
        if is_short and all(step.extent is Extent.FULL and step.is_elementwise for step in steps):
            plan = Plan(group.space, steps, outputs)
            call = self._as_pass(group, plan) or fused_call(steps, outputs, self._k)
            if call is not None:
                self.plans[call] = plan
                return [call, *apart]
        if self._compile is None:
            return self._stay(group, "no array has the shape of the results")
        masks = self._as_floats(group, own) if group.has_masks else []
        plan = Plan(group.space, *_with_totals(group.space, steps, outputs, self._program, self._k))
        pass_call = self._pass_of(plan)
        if pass_call is None:
            return self._stay(group, "the backend has no kernels for the pass")
        self.plans[pass_call] = plan
        return [*masks, pass_call, *plan.totals, *apart]

    def _as_floats(self, group: Group, own: set[Variable]) -> list[Call]:
        """Let the steps of a group read masks as floats; returns the calls that convert masks that are variables."""
        found: dict[Call, None] = {}
        k, dtype = self._k, group.space.dtype
        constants: dict[int, Any] = {}
        for step in group.steps:
            for i, x in enumerate(step.operands):
                if not isinstance(x, Operand) or not self._partition.is_bool(x.value):
                    continue
                v = x.value
                if v.__class__ is not Variable:
                    if id(v) not in constants:
                        constants[id(v)] = k.astype(v, dtype)
                    step.operands[i] = x._replace(value=constants[id(v)])
                elif v not in own:
                    if (v, dtype) not in self._floats:
                        made = self._program.variable(v.shape, dtype)
                        self._floats[v, dtype] = Call("astype", k.astype, [v, dtype], {}, made)
                    found[self._floats[v, dtype]] = None
                    step.operands[i] = x._replace(value=self._floats[v, dtype].results)
        return [*found]

    def _as_pass(self, group: Group, plan: Plan) -> Call | None:
        """A formula as a pass, if the backend compiles it and it is not an update, which is computed in place."""
        if group.is_update or plan.space.size < limits.MIN_ELEMENTS_OF_ROWS:
            return None
        return self._pass_of(plan)

    def _pass_of(self, plan: Plan) -> Call | None:
        """A plan as a pass, with the code of an equal plan if there is one; None if the backend does not compile it."""
        if self._compile is None:
            return None
        try:
            key = key_of(plan)
        except TypeError:  # an option that cannot be hashed
            key = plan.outputs[0]
        function: Any = self._compile(plan, self._twins.get(key))
        if function is None:
            return None
        self._twins.setdefault(key, function)
        return Call(PASS, function, [x.value for x in plan.inputs], {}, [*plan.outputs])

    def _stay(self, group: Group, reason: str) -> list[Call] | None:
        self._partition.reasons.update((step.call, reason) for step in group.steps)
        return None

    def _is_read(self, v: Variable, mine: set[int], root: Variable | None = None) -> bool:
        """Whether anything but the calls ``mine`` needs a variable, also through views and broadcasts of ``root``."""
        if v in self._returned:
            return True
        for call in self._users.get(v, ()):
            if id(call) in mine or (root or v) in self._again.get(id(call), ()):
                continue
            result = call.results
            if result.__class__ is not Variable or result not in self._partition.sources:
                return True
            if self._is_read(result, mine, root or v):
                return True
        return False


def _with_totals(
    space: Space, steps: list[Step], outputs: list[Variable], program: Program, k: Any
) -> tuple[list[Step], list[Variable], list[Call]]:
    """Steps and outputs in which reductions of several rows are reductions of rows, and calls that reduce these.

    A mean is the sum of the rows' sums, each divided by the number of elements.
    """
    found, totals, names = list[Step](), list[Call](), {v: v for v in outputs}
    for step in steps:
        if step.extent is not Extent.ONE:
            found.append(step)
            continue
        x, result, axes = step.call.operands[0], step.call.results, axes_of(step.call)
        rank, depth = len(x.shape), rows_of(x.shape, space.dtype)[1]
        has_rows = space.width == prod(x.shape[rank - depth :])
        shape = (*x.shape[: rank - depth], *[1] * depth) if has_rows else (space.numbers, *[1] * (rank - 1))
        call = step.call if step.call.operation != "mean" else replace(step.call, operation="sum", function=k.sum)
        rows = program.variable(shape, result.dtype)
        names[result] = rows
        partial = replace(call, operands=[x, axes[-depth:], True], attributes={}, results=rows)
        found.append(Step(partial, Extent.ROW, step.operands))
        if call is not step.call:
            shares = program.variable(rows.shape, rows.dtype)
            totals.append(Call("div", k.div, [rows, float(prod(x.shape[i] for i in axes))], {}, shares))
            rows = shares
        totals.append(replace(call, operands=[rows, *step.call.operands[1:]]))
    return found, [names[v] for v in outputs], totals
