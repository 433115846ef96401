"""Compiles what ``Autodiff`` does for each operation from the operation table and the table of rules.

Every operation of ``Autodiff`` is one generated function: take the inner primitives out, call the inner backend, and,
when an operand is on the graph, make a node with what its rule will need. Three forms cover all operations:

* with a rule: one node, whatever the inner backend does to compute it;
* derived, without a rule: the default body runs on ``Autodiff`` itself and is recorded operation by operation;
* not differentiable: the inner backend is called, and nothing is recorded.

They are made at the first call of each, since most programs use a fraction of the operations.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

from backburn.autodiff.graph import Node, OutputNode, Tracked, next_stamp
from backburn.autodiff.rules import RULES, GradientRule
from backburn.backend.table import Operation
from backburn.base.contexts import RECORDING
from backburn.base.errors import MissingRuleError


def compile_operation(operation: Operation) -> Callable[..., Any]:
    """The method of ``Autodiff`` for ``operation``."""
    source = _Source(operation)
    namespace: dict[str, Any] = {
        "Tracked": Tracked,
        "Node": Node,
        "next_stamp": next_stamp,
        "recording": RECORDING.get,
        "missing_rule": missing_rule,
        "with_outputs": with_outputs,
        "wrap": wrap,
        "dtype_of": dtype_of,
        "body": operation.body,
        "defaults": tuple(operation.parameters[n].default for n in operation.parameters),
        **{f"rule_{i}": r.function for i, r in enumerate(source.rules)},
    }
    text = source.text()
    filename = f"<backburn.autodiff {operation.name}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), namespace)
    function: Callable[..., Any] = namespace[operation.name]
    function.__doc__ = operation.body.__doc__
    function.__qualname__ = f"Autodiff.{operation.name}"
    function.__module__ = "backburn.autodiff"
    return function


def missing_rule(operation: str, operand: str) -> None:
    """Refuse to record an operation that could not be differentiated."""
    raise MissingRuleError(
        f"{operation}: there is no gradient rule for its operand {operand!r}, which is on the graph. "
        f"Attach one with gradient({operation!r}, {operand}=...), or detach the operand"
    )


def wrap(k: Any, value: Any) -> Any:
    """An output whose kind only its dtype tells, as a primitive of ``Autodiff``."""
    return Tracked(value) if k.dtype(value).kind == "float" else value


def dtype_of(k: Any, operand: Any) -> Any:
    """The dtype of an operand that may also be a Python scalar or absent (None)."""
    return None if operand is None or isinstance(operand, (bool, int, float)) else k.dtype(operand)


def with_outputs(node: Node, outputs: tuple[Any, ...], floats: tuple[bool, ...]) -> tuple[Any, ...]:
    """The outputs of an operation that has several, each float one on a node of its own."""
    result: list[Any] = []
    for index, (value, is_float) in enumerate(zip(outputs, floats, strict=True)):
        if is_float:
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


class _Source:
    """The source text of one operation of ``Autodiff``."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.rules: list[GradientRule] = RULES.get(operation.name, [])
        self.served = [o for r in self.rules for o in r.operands]
        self.saved = list(dict.fromkeys(n for r in self.rules for n in r.takes if n not in ("k", "g", "needs")))
        self.lines: list[str] = []

    def text(self) -> str:
        op = self.operation
        self.signature()
        self.emit(1, "k = self.inner_backend")
        if op.differentiable and not op.required and not self.rules:
            self.decomposed()
        else:
            self.unwrap()
            self.emit(1, f"out = k.{op.name}({self.arguments()})")
            self.record()
        return self.backward() + "\n".join(self.lines) + "\n"

    def emit(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def signature(self) -> None:
        op = self.operation
        names = ["self"]
        for index, (name, parameter) in enumerate(op.parameters.items()):
            names.append(name if parameter.default is parameter.empty else f"{name}=defaults[{index}]")
        names.insert(1 + len(op.operands), "/")
        self.emit(0, f"def {op.name}({', '.join(names)}):")

    def arguments(self) -> str:
        return ", ".join(self.operation.parameters)

    @property
    def decides_by_operands(self) -> bool:
        """Whether an output is float only if an operand is, for operations of several kinds."""
        return "same" in self.operation.results and self.operation.kinds != "F"

    def unwrap(self) -> None:
        """Take the inner primitives and the nodes out of the operands."""
        if self.decides_by_operands:
            self.emit(1, "is_float = False")
        note = "; is_float = True" if self.decides_by_operands else ""
        for operand in self.operation.operands:
            if operand in self.operation.lists:
                self.emit(1, f"{operand}_nodes = [t.node if t.__class__ is Tracked else None for t in {operand}]")
                if self.decides_by_operands:
                    self.emit(1, f"is_float = is_float or any(t.__class__ is Tracked for t in {operand})")
                self.emit(1, f"{operand} = [t.value if t.__class__ is Tracked else t for t in {operand}]")
            else:
                self.emit(1, f"if {operand}.__class__ is Tracked:")
                self.emit(2, f"{operand}_node = {operand}.node; {operand} = {operand}.value{note}")
                self.emit(1, "else:")
                self.emit(2, f"{operand}_node = None")

    def on_graph(self, operand: str) -> str:
        """An expression that tells whether an operand is on the graph."""
        if operand in self.operation.lists:
            return f"any(n is not None for n in {operand}_nodes)"
        return f"{operand}_node is not None"

    def wrapped(self, value: str, result: str, node: str = "") -> str:
        """An expression for one output as a primitive of ``Autodiff``."""
        float_value = f"Tracked({value}{node})"
        if result == "same":
            return f"{float_value} if is_float else {value}" if self.decides_by_operands and not node else float_value
        if result == "dtype":
            return f'{float_value} if dtype.kind == "float" else {value}'
        if result == "data":
            return f"wrap(k, {value})"
        if result == "host":
            return value
        return float_value if result.startswith(("float", "bfloat")) else value

    def untracked(self) -> str:
        """The result when nothing is recorded."""
        results = self.operation.results
        if len(results) == 1:
            return self.wrapped("out", results[0])
        return ", ".join(self.wrapped(f"out[{i}]", r) for i, r in enumerate(results))

    def record(self) -> None:
        """Make the node, when an operand is on the graph and recording is on."""
        op = self.operation
        if not op.differentiable:
            self.emit(1, f"return {self.untracked()}")
            return
        tracked = " or ".join(self.on_graph(o) for o in op.operands)
        self.emit(1, f"if not ({tracked}) or not recording():")
        self.emit(2, f"return {self.untracked()}")
        for operand in op.operands:
            if operand not in self.served:
                self.emit(1, f"if {self.on_graph(operand)}:")
                self.emit(2, f"missing_rule({op.name!r}, {operand!r})")
        parents = ", ".join(f"*{o}_nodes" if o in op.lists else f"{o}_node" for o in self.served)
        saved = ", ".join(self.value_to_save(n) for n in self.saved)
        several = len(op.results) > 1
        shape = "()" if several else "out.shape"
        node = f"Node(backward, ({parents},), ({saved}{',' if saved else ''}), {shape}, next_stamp())"
        if several:
            floats = ", ".join(str(r == "same" or r.startswith(("float", "bfloat"))) for r in op.results)
            self.emit(1, f"return with_outputs({node}, out, ({floats},))")
        else:
            self.emit(1, f"return {self.wrapped('out', op.results[0], ', ' + node)}")

    def value_to_save(self, name: str) -> str:
        """What the node keeps under ``name``: None when every rule that takes it serves operands without gradient."""
        op = self.operation
        value = name
        for operand in op.operands:
            if name == f"{operand}_shape":
                value = f"[t.shape for t in {operand}]" if operand in op.lists else f"getattr({operand}, 'shape', None)"
            elif name == f"{operand}_dtype":
                value = f"dtype_of(k, {operand})"
        users = [o for r in self.rules if name in r.takes for o in r.operands]
        if set(users) == set(self.served):
            return value
        return f"({value} if {' or '.join(self.on_graph(o) for o in users)} else None)"

    def decomposed(self) -> None:
        """Without a rule: the inner backend computes what is not on the graph, the default body records the rest."""
        op = self.operation
        self.emit(1, "if recording() and (")
        for index, operand in enumerate(op.operands):
            joint = "    or " if index else "    "
            if operand in op.lists:
                self.emit(1, f"{joint}any(t.__class__ is Tracked and t.node is not None for t in {operand})")
            else:
                self.emit(1, f"{joint}({operand}.__class__ is Tracked and {operand}.node is not None)")
        self.emit(1, "):")
        self.emit(2, f"return body(self, {self.arguments()})")
        self.unwrap()
        self.emit(1, f"out = k.{op.name}({self.arguments()})")
        self.emit(1, f"return {self.untracked()}")

    def backward(self) -> str:
        """The source of the function that applies the rules to a node."""
        if not self.rules:
            return ""
        lines = ["def backward(k, g, node):"]
        if self.saved:
            lines.append(f"    {', '.join(self.saved)}, = node.saved")
        results: list[str] = []
        for index, rule in enumerate(self.rules):
            needs = [self.parents_of(o) for o in rule.operands]
            if "needs" in rule.takes:
                lines.append(f"    needs = ({', '.join(needs)},)")
            arguments = ", ".join(rule.takes)
            call = f"rule_{index}({arguments})"
            if rule.grouped:
                lines.append(f"    result_{index} = {call}")
                results.extend(
                    f"*result_{index}[{i}]" if o in self.operation.lists else f"result_{index}[{i}]"
                    for i, o in enumerate(rule.operands)
                )
            elif rule.operands[0] in self.operation.lists:
                results.append(f"*{call}")
            elif len(self.served) == 1:
                results.append(call)
            else:
                results.append(f"{call} if {needs[0]} else None")
        lines.append(f"    return ({', '.join(results)},)")
        if any("parents" in line for line in lines):
            lines.insert(1, "    parents = node.parents")
        return "\n".join(lines) + "\n"

    def parents_of(self, operand: str) -> str:
        """An expression over ``parents`` that tells whether an operand wants a gradient."""
        position = self.served.index(operand)
        lists = [o for o in self.served if o in self.operation.lists]
        if not lists:
            return f"parents[{position}] is not None"
        if len(lists) > 1:
            raise ValueError(f"{self.operation.name}: two lists of tensors cannot both have gradients")
        after = len(self.served) - 1 - self.served.index(lists[0])
        if operand == lists[0]:
            start, stop = position, f"-{after}" if after else ""
            return f"[p is not None for p in parents[{start}:{stop}]]"
        place = position if position < self.served.index(lists[0]) else position - len(self.served)
        return f"parents[{place}] is not None"
