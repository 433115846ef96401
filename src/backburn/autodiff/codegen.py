"""The common part of the source code that ``Autodiff`` and ``Forward`` generate for each operation.

An operation of a decorator unwraps the inner primitives, calls the inner backend, and wraps float results again. A
wrapper holds a value and a note: a node of the graph or a tangent. All names in the code except the reserved ones begin
with an underscore, so that operands and attributes may have any other names.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Collection, Sequence
from textwrap import indent
from typing import Any

from backburn.base.contexts import RECORDING
from backburn.base.errors import NotDifferentiableError
from backburn.ops.rules.gradients import GradientRule
from backburn.ops.table import OPERATIONS, Operation

#: Extraction of the inner primitives and their notes from a list of tensors, and from one tensor.
UNWRAP_LIST = """
_{operand}_{note}s, _values, _{operand}_noted = [], [], False
for _t in {operand}:
    _note = None
    if _t.__class__ is {box}:
        _note = _t.{note}; _t = _t.value{flag}
        _{operand}_noted = _{operand}_noted or _note is not None
    _{operand}_{note}s.append(_note)
    _values.append(_t)
{operand} = _values
"""
UNWRAP = """
if {operand}.__class__ is {box}:
    _{operand}_{note} = {operand}.{note}; {operand} = {operand}.value{flag}
else:
    _{operand}_{note} = None
"""
#: Refusal of an operand that must be a constant.
REFUSE = """
if {noted} and _recording():
    _refuse(k, {operation!r}, {operand!r}, {operand})
"""
#: Refusal of an operand that no rule serves.
MISSING = """
if {noted}:
    _missing_rule({operation!r}, {operand!r})
"""
#: An operation without a rule: its default body runs on the decorator if an operand has a note.
RUN_BODY = """
if _recording() and (
    {noted}
):
    return _body(self, {arguments})
"""


class OperationSource:
    """The source text of one operation of a decorator, template by template.

    ``box`` names the class of its float primitives and ``note`` the slot of their note.
    """

    box = "_Tracked"
    note = "node"

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.rules: list[GradientRule] = operation.gradients
        self.served = [o for r in self.rules for o in r.operands]
        self.lines: list[str] = []

    def emit(self, template: str, **names: Any) -> None:
        """Add the lines of a template to the body of the function, with ``names`` filled in."""
        text = template.strip("\n").format(**names) if names else template
        self.lines.append(indent(text, "    "))

    def signature(self) -> None:
        """The ``def`` line: the operands, positional-only, and the attributes with their defaults."""
        op = self.operation
        names = ["self"]
        for index, (name, parameter) in enumerate(op.parameters.items()):
            names.append(name if parameter.default is parameter.empty else f"{name}=_defaults[{index}]")
        names.insert(1 + len(op.operands), "/")
        self.lines.append(f"def {op.name}({', '.join(names)}):")
        self.emit("k = self._inner")

    def arguments(self) -> str:
        """All operands and attributes, to pass on."""
        return ", ".join(self.operation.parameters)

    @property
    def decides_by_operands(self) -> bool:
        """Whether an output is float only if an operand is, for operations of several kinds."""
        return "same" in self.operation.results and not set(self.operation.kinds) <= {"F", "C"}

    def unwrap(self) -> None:
        """Extract the inner primitives and their notes from the operands."""
        flag = "; _is_float = True" if self.decides_by_operands else ""
        if flag:
            self.emit("_is_float = False")
        for operand in self.operation.operands:
            template = UNWRAP_LIST if operand in self.operation.lists else UNWRAP
            self.emit(template, operand=operand, box=self.box, note=self.note, flag=flag)
        for operand in self.operation.constants:
            self.emit(REFUSE, noted=self.noted(operand), operation=self.operation.name, operand=operand)

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
            return f"{float_value} if dtype.has_gradient else {value}"
        if result == "data":
            return f"{self.box}({value}) if k.dtype({value}).has_gradient else {value}"
        if result == "host":
            return value
        return float_value if is_float(result) else value

    def plain(self) -> str:
        """The result if there is nothing to note."""
        results = self.operation.results
        if len(results) == 1:
            return self.wrapped("out", results[0])
        if results[-1] == "...":
            return f"tuple({self.wrapped('x', results[0])} for x in out)"
        return ", ".join(self.wrapped(f"out[{i}]", r) for i, r in enumerate(results))

    def rule_call(self, function: str, arguments: Sequence[str]) -> str:
        """A call of a rule; a rule of several steps is fused by backends that can."""
        if not self.operation.fuse or arguments[0] != "k":
            return f"{function}({', '.join(arguments)})"
        return f"k.fuse({function}, {', '.join(arguments[1:])})"

    def value_of(self, name: str) -> str:
        """An expression for the argument ``name`` of a rule, which may be the shape or dtype of an operand."""
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
        noted = []
        for operand in self.operation.operands:
            several = operand in self.operation.lists
            tensor = "t" if several else operand
            boxed = f"{tensor}.__class__ is {self.box} and {tensor}.{self.note} is not None"
            noted.append(f"any([{boxed} for t in {operand}])" if several else f"({boxed})")
        self.emit(RUN_BODY, noted="\n    or ".join(noted), arguments=self.arguments())
        self.unwrap()
        self.call_inner()
        self.emit(f"return {self.plain()}")

    def call_inner(self) -> None:
        """Call the operation of the inner backend."""
        self.emit(f"out = k.{self.operation.name}({self.arguments()})")

    def refuse_missing(self, served: Collection[str]) -> None:
        """Refuse an operand that has a note and no rule."""
        for operand in self.operation.operands:
            if operand not in served:
                self.emit(MISSING, noted=self.noted(operand), operation=self.operation.name, operand=operand)


def is_float(result: str) -> bool:
    """Whether an output with this description in the table, other than "same", is a float primitive."""
    return result.startswith(("float", "bfloat", "real", "complex"))


def compiled(operation: Operation, text: str, decorator: str, names: dict[str, Any]) -> Callable[..., Any]:
    """The function that ``text`` defines; it may use ``names`` and the common names, and tracebacks show its lines."""
    namespace: dict[str, Any] = {
        "_recording": RECORDING.get,
        "_dtype_of": dtype_of,
        "_refuse": refuse,
        "_body": operation.body,
        "_defaults": tuple(operation.parameters[n].default for n in operation.parameters),
        **{f"_rule_{i}": r.function for i, r in enumerate(operation.gradients)},
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
        f"{operation}: {what} is on the graph or has a tangent, which would be lost. "
        f"{OPERATIONS[operation].constants[operand]}"
    )


def dtype_of(k: Any, operand: Any) -> Any:
    """The dtype of an operand that may also be a Python scalar or absent (None)."""
    return None if operand is None or isinstance(operand, (bool, int, float, complex)) else k.dtype(operand)
