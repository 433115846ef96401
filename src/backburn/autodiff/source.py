"""The common part of the source code that ``Autodiff`` and ``Forward`` generate for each operation.

An operation of a decorator unwraps the inner primitives, calls the inner backend, and wraps float results again. A
wrapper holds a value and a note: a node of the graph or a tangent. All names in the code except the reserved ones begin
with an underscore, so that operands and attributes may have any other names.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from typing import Any

from backburn.autodiff.rules import CONSTANTS, FUSABLE, RULES, GradientRule
from backburn.backend.table import Operation
from backburn.base.contexts import RECORDING
from backburn.base.errors import NotDifferentiableError


class Source:
    """The source text of one operation of a decorator, line by line.

    ``box`` names the class of its float primitives and ``note`` their slot beside the value.
    """

    box = "_Tracked"
    note = "node"

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.rules: list[GradientRule] = RULES.get(operation.name, [])
        self.served = [o for r in self.rules for o in r.operands]
        self.lines: list[str] = []

    def emit(self, depth: int, line: str) -> None:
        """Add a line."""
        self.lines.append("    " * depth + line)

    def signature(self) -> None:
        """The ``def`` line: the operands, positional-only, and the attributes with their defaults."""
        op = self.operation
        names = ["self"]
        for index, (name, parameter) in enumerate(op.parameters.items()):
            names.append(name if parameter.default is parameter.empty else f"{name}=_defaults[{index}]")
        names.insert(1 + len(op.operands), "/")
        self.emit(0, f"def {op.name}({', '.join(names)}):")

    def arguments(self) -> str:
        """All operands and attributes, to pass on."""
        return ", ".join(self.operation.parameters)

    @property
    def decides_by_operands(self) -> bool:
        """Whether an output is float only if an operand is, for operations of several kinds."""
        return "same" in self.operation.results and self.operation.kinds != "F"

    def unwrap(self) -> None:
        """Extract the inner primitives and their notes from the operands."""
        if self.decides_by_operands:
            self.emit(1, "_is_float = False")
        flag = "; _is_float = True" if self.decides_by_operands else ""
        for operand in self.operation.operands:
            if operand in self.operation.lists:
                self.emit(1, f"_{operand}_{self.note}s, _values, _{operand}_noted = [], [], False")
                self.emit(1, f"for _t in {operand}:")
                self.emit(2, "_note = None")
                self.emit(2, f"if _t.__class__ is {self.box}:")
                self.emit(3, f"_note = _t.{self.note}; _t = _t.value{flag}")
                self.emit(3, f"_{operand}_noted = _{operand}_noted or _note is not None")
                self.emit(2, f"_{operand}_{self.note}s.append(_note)")
                self.emit(2, "_values.append(_t)")
                self.emit(1, f"{operand} = _values")
            else:
                self.emit(1, f"if {operand}.__class__ is {self.box}:")
                self.emit(2, f"_{operand}_{self.note} = {operand}.{self.note}; {operand} = {operand}.value{flag}")
                self.emit(1, "else:")
                self.emit(2, f"_{operand}_{self.note} = None")
        for operand in CONSTANTS.get(self.operation.name, ()):
            self.emit(1, f"if {self.noted(operand)} and _recording():")
            self.emit(2, f"_refuse(k, {self.operation.name!r}, {operand!r}, {operand})")

    def noted(self, operand: str) -> str:
        """An expression that tells whether an operand is on the graph, or has a tangent."""
        if operand in self.operation.lists:
            return f"_{operand}_noted"
        return f"_{operand}_{self.note} is not None"

    def wrapped(self, value: str, result: str, note: str = "") -> str:
        """An expression for one output as a primitive of the decorator."""
        float_value = f"{self.box}({value}{note})"
        if result == "same":
            return f"{float_value} if _is_float else {value}" if self.decides_by_operands and not note else float_value
        if result == "dtype":
            return f'{float_value} if dtype.kind == "float" else {value}'
        if result == "data":
            return f"{self.box}({value}) if k.dtype({value}).kind == 'float' else {value}"
        if result == "host":
            return value
        return float_value if result.startswith(("float", "bfloat")) else value

    def plain(self) -> str:
        """The result if there is nothing to note."""
        results = self.operation.results
        if len(results) == 1:
            return self.wrapped("out", results[0])
        if results[-1] == "...":
            return f"tuple({self.wrapped('x', results[0])} for x in out)"
        return ", ".join(self.wrapped(f"out[{i}]", r) for i, r in enumerate(results))

    def rule_call(self, function: str, arguments: Sequence[str]) -> str:
        """A call of a rule, which a backend may compute in one pass over memory if it is one of several steps."""
        call = f"{function}({', '.join(arguments)})"
        if self.operation.name not in FUSABLE or arguments[0] != "k":
            return call
        return f"(k.one_pass({function}, {', '.join(arguments[1:])}) if hasattr(k, 'one_pass') else {call})"

    def value_of(self, name: str) -> str:
        """An expression for what a rule takes under ``name``, which may be the shape or dtype of an operand."""
        if name == "kept":
            return "out[1:]"
        for operand in self.operation.operands:
            if name == f"{operand}_shape":
                several = operand in self.operation.lists
                return f"[t.shape for t in {operand}]" if several else f"getattr({operand}, 'shape', None)"
            if name == f"{operand}_dtype":
                return f"_dtype_of(k, {operand})"
        return name

    def decomposed(self) -> None:
        """Run the default body on the decorator if an operand has a note; else call the inner backend."""
        op = self.operation
        self.emit(1, "if _recording() and (")
        for index, operand in enumerate(op.operands):
            joint = "    or " if index else "    "
            if operand in op.lists:
                noted = f"t.__class__ is {self.box} and t.{self.note} is not None"
                self.emit(1, f"{joint}any([{noted} for t in {operand}])")
            else:
                self.emit(1, f"{joint}({operand}.__class__ is {self.box} and {operand}.{self.note} is not None)")
        self.emit(1, "):")
        self.emit(2, f"return _body(self, {self.arguments()})")
        self.unwrap()
        self.emit(1, f"out = k.{op.name}({self.arguments()})")
        self.emit(1, f"return {self.plain()}")


def compiled(operation: Operation, text: str, decorator: str, names: dict[str, Any]) -> Callable[..., Any]:
    """The function that ``text`` defines, which may use ``names`` and what all texts use; tracebacks show its lines."""
    namespace: dict[str, Any] = {
        "_recording": RECORDING.get,
        "_dtype_of": dtype_of,
        "_refuse": refuse,
        "_body": operation.body,
        "_defaults": tuple(operation.parameters[n].default for n in operation.parameters),
        **{f"_rule_{i}": r.function for i, r in enumerate(RULES.get(operation.name, []))},
        **names,
    }
    filename = f"<backburn.{decorator.lower()} {operation.name}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), namespace)
    function: Callable[..., Any] = namespace[operation.name]
    function.__doc__ = operation.body.__doc__
    function.__qualname__ = f"{decorator}.{operation.name}"
    function.__module__ = "backburn.autodiff"
    if (backward := namespace.get("_backward")) is not None:
        backward.__qualname__ = operation.name  # for the error of a rule that returns another shape
    return function


def refuse(k: Any, operation: str, operand: str, value: Any) -> None:
    """Refuse an operand that must be a constant."""
    what = f"{operand}, {k.dtype(value)}[{','.join(map(str, value.shape))}],"
    raise NotDifferentiableError(
        f"{operation}: {what} is on the graph or has a tangent, which would be lost. {CONSTANTS[operation][operand]}"
    )


def dtype_of(k: Any, operand: Any) -> Any:
    """The dtype of an operand that may also be a Python scalar or absent (None)."""
    return None if operand is None or isinstance(operand, (bool, int, float)) else k.dtype(operand)
