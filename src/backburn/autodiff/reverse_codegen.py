"""Generates the methods of ``Autodiff`` from the operation table and the table of gradient rules.

Every operation of ``Autodiff`` is one generated function: it unwraps the inner primitives, calls the inner backend,
and, if an operand is on the graph, adds a node with the values that its rule needs. Three forms cover all operations:

* with a rule: one node, however the inner backend computes the operation;
* derived, without a rule: the default body runs on ``Autodiff`` itself and is recorded operation by operation;
* not differentiable: the inner backend is called, and nothing is recorded.

Each is generated at its first call, since most programs use a fraction of the operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backburn.autodiff.codegen import OperationSource, compiled, is_float
from backburn.autodiff.graph import Node, OutputNode, Tracked, next_stamp
from backburn.base.errors import MissingRuleError
from backburn.ops.table import Operation


def compile_operation(operation: Operation) -> Callable[..., Any]:
    """The method of ``Autodiff`` for ``operation``."""
    names = {
        "_Tracked": Tracked,
        "_Node": Node,
        "_next_stamp": next_stamp,
        "_missing_rule": missing_rule,
        "_with_outputs": with_outputs,
    }
    return compiled(operation, _ReverseSource(operation).text(), "Autodiff", names)


def missing_rule(operation: str, operand: str) -> None:
    """Raise :class:`MissingRuleError` for an operand that the rules of an operation leave out."""
    raise MissingRuleError(
        f"{operation}: there is no gradient rule for its operand {operand!r}, which is on the graph or has a tangent. "
        f"Attach one with bb.gradient_rule({operation!r}, {operand}=...), or detach the operand"
    )


def with_outputs(node: Node, outputs: tuple[Any, ...], floats: tuple[bool, ...]) -> tuple[Any, ...]:
    """The outputs of an operation that has several, each float one on a separate node."""
    result: list[Any] = []
    for index, (value, has_node) in enumerate(zip(outputs, floats, strict=True)):
        if has_node:
            part = OutputNode(_to_place, (node,), (len(outputs),), value.shape, next_stamp())
            part.index = index
            result.append(Tracked(value, part))
        else:
            result.append(value)
    return tuple(result)


def _to_place(k: Any, g: Any, node: Any) -> tuple[list[Any]]:
    places: list[Any] = [None] * node.saved[0]
    places[node.index] = g
    return (places,)


class _ReverseSource(OperationSource):
    """The source text of one operation of ``Autodiff``."""

    def __init__(self, operation: Operation) -> None:
        super().__init__(operation)
        self.saved = list(dict.fromkeys(n for r in self.rules for n in r.takes if n not in ("k", "g", "needs")))

    def text(self) -> str:
        op = self.operation
        self.signature()
        if op.differentiable and not op.required and not self.rules:
            self.decomposed()
        else:
            self.unwrap()
            self.call_inner()
            self.record()
        return self.backward() + "\n".join(self.lines) + "\n"

    def record(self) -> None:
        """Create the node, when an operand is on the graph and recording is on."""
        op = self.operation
        if not op.differentiable:
            self.emit(f"return {self.plain()}")
            return
        tracked = " or ".join(self.noted(o) for o in op.operands)
        self.emit(f"if not ({tracked}) or not _recording():\n    return {self.plain()}")
        self.refuse_missing(self.served)
        parents = ", ".join(f"*_{o}_nodes" if o in op.lists else f"_{o}_node" for o in self.served)
        saved = ", ".join(self.value_to_save(n) for n in self.saved)
        several = len(op.results) > 1
        shape = "()" if several else "out.shape"
        node = f"_Node(_backward, ({parents},), ({saved}{',' if saved else ''}), {shape}, _next_stamp())"
        if several:
            floats = ", ".join(str(r == "same" or is_float(r)) for r in op.results)
            self.emit(f"return _with_outputs({node}, out, ({floats},))")
        else:
            self.emit(f"return {self.wrapped('out', op.results[0], ', ' + node)}")

    def value_to_save(self, name: str) -> str:
        """The value that the node saves under ``name``: None if no operand whose rule takes it is on the graph."""
        value = self.value_of(name)
        users = [o for r in self.rules if name in r.takes for o in r.operands]
        if set(users) == set(self.served):
            return value
        return f"({value} if {' or '.join(self.noted(o) for o in users)} else None)"

    def backward(self) -> str:
        """The source of the function that applies the rules to a node."""
        if not self.rules:
            return ""
        lines = ["def _backward(k, g, _node):"]
        if self.saved:
            lines.append(f"    {', '.join(self.saved)}, = _node.saved")
        results: list[str] = []
        for index, rule in enumerate(self.rules):
            needs = [self.parents_of(o) for o in rule.operands]
            if "needs" in rule.takes:
                lines.append(f"    needs = ({', '.join(needs)},)")
            call = self.rule_call(f"_rule_{index}", rule.takes)
            if rule.grouped:
                lines.append(f"    _result_{index} = {call}")
                results.extend(
                    f"*_result_{index}[{i}]" if o in self.operation.lists else f"_result_{index}[{i}]"
                    for i, o in enumerate(rule.operands)
                )
            elif rule.operands[0] in self.operation.lists:
                results.append(f"*{call}")
            elif len(self.served) == 1:
                results.append(call)
            else:
                results.append(f"{call} if {needs[0]} else None")
        lines.append(f"    return ({', '.join(results)},)")
        if any("_parents" in line for line in lines):
            lines.insert(1, "    _parents = _node.parents")
        return "\n".join(lines) + "\n"

    def parents_of(self, operand: str) -> str:
        """An expression over ``_parents`` that tells whether an operand wants a gradient."""
        position = self.served.index(operand)
        lists = [o for o in self.served if o in self.operation.lists]
        if not lists:
            return f"_parents[{position}] is not None"
        if len(lists) > 1:
            raise ValueError(f"{self.operation.name}: two lists of tensors cannot both have gradients")
        after = len(self.served) - 1 - self.served.index(lists[0])
        if operand == lists[0]:
            start, stop = position, f"-{after}" if after else ""
            return f"[p is not None for p in _parents[{start}:{stop}]]"
        place = position if position < self.served.index(lists[0]) else position - len(self.served)
        return f"_parents[{place}] is not None"
