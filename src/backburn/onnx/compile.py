"""Compiling a model: nodes in execution order, with handlers, attributes, and slots for values.

Functions of the file, and the standard's bodies of operators without a handler, are inlined, so that the later passes
(constants, parameters, liveness) see one graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.errors import ArgumentError, BackburnError, FileFormatError, Unsupported
from backburn.base.foreign import listed, printable, quoted
from backburn.onnx import bodies, naming
from backburn.onnx.attributes import GRAPH, GRAPHS, SPARSE, GraphAttribute, read_attributes, schema_of
from backburn.onnx.dtypes import BY_VALUE, NAMES, NARROW
from backburn.onnx.graph import NOTHING, Graph, Step
from backburn.onnx.limits import Limits
from backburn.onnx.messages import node_words
from backburn.onnx.protos import Model, read_sparse, read_tensor
from backburn.onnx.registry import Call, Handler, handler_of, host_handler_of

#: Constants of up to this many elements stay on the host: of integers and booleans, and of floats.
HOST_INTEGERS, HOST_FLOATS = 4096, 16
#: Operators that pass one tensor on: nodes that read their result count as uses of the constant.
PASSING = frozenset({"Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})
#: Operators that may read data types that are held by value.
_READ_BY_VALUE = PASSING | {"DequantizeLinear", "CastLike", "Gather", "Slice", "Concat", "Split"}
#: Inputs of which only the type matters.
_TYPES = frozenset({("QuantizeLinear", 2)})
#: The oldest opset whose operators are all read; those of older opsets are read if they have not changed since.
_OLDEST = 7
#: How deep functions may call one another.
_DEEPEST = 50


@dataclass
class Use:
    """A node that reads a constant."""

    operator: str
    place: int
    name: str
    metadata: Mapping[str, str]
    #: The operators between the constant and the node.
    through: tuple[str, ...]
    attributes: Mapping[str, Any]
    #: The number of the node.
    order: int
    #: The step, if it is one of the outermost graph.
    step: Step | None = None


@dataclass
class Constant:
    """An initializer, or the value of a node ``Constant``."""

    name: str
    array: NDArray[Any]
    stored: str
    slot: int
    is_initializer: bool
    #: The metadata of an initializer in the file.
    metadata: Mapping[str, str] = field(default_factory=dict)
    uses: list[Use] = field(default_factory=list)
    #: Whether a node reads its values on the host.
    is_read: bool = False

    @property
    def is_float(self) -> bool:
        """Whether it holds floats."""
        return self.array.dtype.kind == "f" or self.array.dtype.name == "bfloat16"


class _Frame:
    """The slots and steps of one graph, and the slots that it captures from the enclosing one."""

    def __init__(self, outside: _Scope | None) -> None:
        self.outside = outside
        self.start: list[Any] = []
        self.steps: list[Step] = []
        self.outer: list[int] = []
        self.captured: list[int] = []
        #: The slots here by slots of the enclosing frame, and the inverse.
        self.inner: dict[int, int] = {}
        self.origin: dict[int, int] = {}

    def slot(self, value: Any = None) -> int:
        self.start.append(value)
        return len(self.start) - 1

    def capture(self, slot: int) -> int:
        """The slot here for a slot of the enclosing frame."""
        if slot not in self.inner:
            self.inner[slot] = self.slot()
            self.origin[self.inner[slot]] = slot
            self.outer.append(slot)
            self.captured.append(self.inner[slot])
        return self.inner[slot]


class _Scope:
    """Names of one graph or function, and the enclosing scope if its names are visible."""

    def __init__(self, frame: _Frame, around: _Scope | None, opsets: Mapping[str, int], stack: tuple[Any, ...]) -> None:
        self.frame = frame
        self.around = around
        self.opsets = opsets
        self.stack = stack
        self.names: dict[str, int] = {}
        self.given: Mapping[str, Any] = {}

    def find(self, name: str) -> int | None:
        """The slot of a name in the frame of this scope."""
        if name in self.names:
            return self.names[name]
        if self.around is None:
            return None
        slot = self.around.find(name)
        if slot is None:
            return None
        if self.around.frame is not self.frame:
            slot = self.frame.capture(slot)
            self.names[name] = slot
        return slot


@dataclass
class Compiled:
    """A compiled model: the graph, its inputs and outputs, and its constants."""

    graph: Graph
    inputs: list[Any]
    outputs: list[str]
    constants: list[Constant]
    operators: Counter[str]
    #: The step of the outermost graph that computes each slot.
    makers: dict[int, Step]
    #: The parameters that an exporter noted at nodes, with underscores for dots, and their enclosing modules.
    noted: dict[str, list[str]]
    noted_buffers: set[str]


class Compiler:
    """Compiles one model, or one function body of the standard."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self.model = model
        self.limits = limits
        self.functions: dict[tuple[str, str, str], Any] = {}
        self.constants: list[Constant] = []
        self.by_slot: dict[int, tuple[Constant, tuple[str, ...]]] = {}
        self.operators: Counter[str] = Counter()
        self.makers: dict[int, Step] = {}
        #: The data types of slots of the outermost graph whose values tensors hold in another dtype.
        self.stored: dict[int, str] = {}
        self.noted: dict[str, list[str]] = {}
        self.noted_buffers: set[str] = set()
        self.nodes = self.added = 0
        self.root = _Frame(None)
        #: Whether this compiles a body of the standard, whose names are not the model's.
        self.is_body = False

    # ---- the model ----

    def compile_model(self) -> Compiled:
        """Compile the model. Errors name the node."""
        proto = self.model.proto
        for function in proto.functions:
            key = (function.domain, function.name, getattr(function, "overload", ""))
            if key in self.functions:
                raise FileFormatError(f"{self.model.where}: the function {printable(function.name)} is there twice")
            self.functions[key] = function
        opsets = self._opsets(proto.opset_import, self.model.where)
        scope = _Scope(self.root, None, opsets, ())
        graph = proto.graph
        initial = {tensor.name for tensor in graph.initializer} | {x.values.name for x in graph.sparse_initializer}
        inputs = [value for value in graph.input if value.name not in initial]
        compiled = self._graph(graph, scope, inputs)
        return Compiled(
            compiled, inputs, [x.name for x in graph.output], self.constants, self.operators, self.makers,
            self.noted, self.noted_buffers,
        )  # fmt: skip

    def compile_body(self, function: Any, given: Mapping[str, Any], opsets: Mapping[str, int]) -> Graph:
        """Compile a function body of the standard as a separate graph."""
        self.is_body = True
        scope = _Scope(self.root, None, {**opsets, **self._opsets(function.opset_import, function.name)}, ())
        scope.given = given
        slots = []
        for name in function.input:
            scope.names[name] = self.root.slot()
            slots.append(scope.names[name])
        self._nodes(function.node, scope)
        # Outputs that the node omits are not computed.
        outputs = [self.root.slot() if (slot := scope.find(name)) is None else slot for name in function.output]
        return self._finished(self.root, slots, outputs)

    def _opsets(self, imports: Iterable[Any], where: str) -> dict[str, int]:
        from onnx.defs import onnx_opset_version

        opsets = {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in imports}
        newest = onnx_opset_version()
        if opsets.get("", 1) > newest:
            raise Unsupported(
                f"{printable(where)}: opset {opsets['']}, and the installed onnx knows those up to {newest}: "
                "pip install -U onnx"
            )
        return opsets

    # ---- graphs ----

    def _graph(self, graph: Any, scope: _Scope, inputs: Sequence[Any]) -> Graph:
        """Compile a graph into the frame of its scope."""
        frame = scope.frame
        slots = []
        for value in inputs:
            slots.append(self._define(value.name, scope, "an input"))
            stored = NAMES.get(value.type.tensor_type.elem_type, "")
            if frame is self.root and (stored in BY_VALUE or stored in NARROW):
                self.stored[slots[-1]] = stored
        for tensor in graph.initializer:
            constant = self._constant(tensor.name, *read_tensor(self.model, tensor), scope, True)
            constant.metadata = {x.key: x.value for x in tensor.metadata_props}
        for sparse in graph.sparse_initializer:
            array, stored = read_sparse(self.model, sparse, self.limits.elements)
            self._constant(sparse.values.name, array, stored, scope, True)
        self._nodes(graph.node, scope)
        outputs = [self._output(value.name, scope) for value in graph.output]
        compiled = self._finished(frame, slots, outputs)
        compiled.types = [_number_and_shape(value.type.tensor_type) for value in graph.output]
        return compiled

    def _define(self, name: str, scope: _Scope, what: str) -> int:
        if not name:
            raise FileFormatError(f"{self.model.where}: {what} has no name")
        if name in scope.names:
            raise FileFormatError(f"{self.model.where}: the name {quoted(name)} of {what} is there twice")
        scope.names[name] = scope.frame.slot()
        return scope.names[name]

    def _output(self, name: str, scope: _Scope) -> int:
        slot = scope.find(name)
        if slot is None:
            if not name:
                return scope.frame.slot()
            raise FileFormatError(f"{self.model.where}: nothing computes the output {quoted(name)}")
        return slot

    def _constant(self, name: str, array: NDArray[Any], stored: str, scope: _Scope, is_initializer: bool) -> Constant:
        """Enter a constant, which belongs to the outermost graph and is captured from there."""
        if name in scope.names:
            raise FileFormatError(f"{self.model.where}: the name {quoted(name)} of an initializer is there twice")
        slot = self.root.slot()
        constant = Constant(name, array, stored, slot, is_initializer)
        self.constants.append(constant)
        self.by_slot[slot] = (constant, ())
        if stored in BY_VALUE or stored in NARROW:
            self.stored[slot] = stored
        scope.names[name] = self._inner(slot, scope.frame)
        return constant

    def _inner(self, slot: int, frame: _Frame) -> int:
        """The slot in a frame for a slot of the outermost graph."""
        if frame is self.root:
            return slot
        assert frame.outside is not None
        return frame.capture(self._inner(slot, frame.outside.frame))

    def _outermost(self, slot: int, frame: _Frame) -> int | None:
        """The slot of the outermost graph that a slot of a frame captures; None for a value computed inside."""
        while frame is not self.root:
            found = frame.origin.get(slot)
            if found is None or frame.outside is None:
                return None
            slot, frame = found, frame.outside.frame
        return slot

    def _finished(self, frame: _Frame, inputs: Sequence[int], outputs: Sequence[int]) -> Graph:
        """The graph of a frame, in which each step frees the values that no later step reads."""
        frame.slot()  # the last one, None
        kept = {*outputs, *frame.captured, *inputs} if frame is not self.root else {*outputs}
        seen: set[int] = kept | {constant.slot for constant in self.constants if frame is self.root}
        for step in reversed(frame.steps):
            reads = {*step.inputs, *(slot for graph in step.graphs.values() for slot in graph.outer), *step.outputs}
            step.frees = tuple(sorted(slot for slot in reads if slot not in seen and slot != NOTHING))
            seen |= reads
        return Graph(tuple(inputs), tuple(outputs), tuple(frame.outer), tuple(frame.captured), frame.start, frame.steps)

    # ---- nodes ----

    def _nodes(self, nodes: Sequence[Any], scope: _Scope) -> None:
        for node in sorted_nodes(nodes, self.model.where):
            self.nodes += 1
            self.added += bool(scope.stack)
            if self.added > self.limits.nodes:
                raise FileFormatError(
                    f"{self.model.where}: functions add more than {self.limits.nodes} nodes; "
                    "load(..., limits=Limits(nodes=...)) allows more"
                )
            opset = scope.opsets.get("" if node.domain == "ai.onnx" else node.domain, 0)
            try:
                self._node(node, scope, opset)
            except (BackburnError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError) as error:
                where = node_words(node.op_type, node.name, node.domain, opset)
                if where in str(error) or (isinstance(error, FileFormatError) and scope.stack):
                    raise
                kind = type(error) if isinstance(error, BackburnError) else FileFormatError
                raise kind(f"{self.model.where}: {where}: {error!s:.2000}") from error

    def _node(self, node: Any, scope: _Scope, opset: int) -> None:
        domain = "" if node.domain == "ai.onnx" else node.domain
        function = self.functions.get((node.domain, node.op_type, getattr(node, "overload", "")))
        if function is not None:
            self._inline(function, node, scope, self._attributes(node, None, scope), self.functions)
            return
        if opset == 0:
            raise FileFormatError(f"the file imports no opset of the domain {quoted(domain or 'ai.onnx')}")
        schema = schema_of(node.op_type, opset, domain)
        if schema is None:
            where = f" of the domain {quoted(domain)}" if domain else ""
            raise Unsupported(
                f"there is no operator {printable(node.op_type)}{where} in the standard at opset {opset}, and the file "
                "has no function of this name"
            )
        if domain not in ("", "ai.onnx.preview") or (schema.deprecated and node.op_type not in ("Upsample", "Scatter")):
            raise Unsupported(f"operators of the domain {quoted(domain)} are not read; those of ONNX are")
        if domain == "" and opset < _OLDEST and schema.since != _since(node.op_type):
            raise Unsupported(
                f"the operator has changed since: it is read from opset {_OLDEST} on. onnx.version_converter converts "
                "the file"
            )
        given = self._attributes(node, schema, scope)
        if node.op_type == "Constant":
            self._constant_node(node, given, scope)
            return
        if not schema.inputs[0] <= len(node.input) <= schema.inputs[1]:
            least, most = schema.inputs
            wanted = f"{least} or more" if len(node.input) < least else f"at most {most}"
            raise ArgumentError(f"{len(node.input)} inputs, where the operator takes {wanted}")
        if not 0 < len(node.output) <= schema.outputs:
            raise ArgumentError(f"{len(node.output)} outputs, where the operator has {schema.outputs} at most")
        implied = schema.implied
        handler = handler_of(node.op_type, opset) if domain == "" else None
        fitting = handler is not None and all(
            name in handler.attributes or (name in implied and implied[name] == value) for name, value in given.items()
        )
        body = (
            bodies.Body(node, schema.proto, scope.opsets, opset, given, self.limits)
            if bodies.has(schema.proto)
            else None
        )
        if not fitting and body is not None and not body.depends_on_types:
            self.operators[node.op_type] += 1
            self._inline(body.function(), node, scope, {**implied, **given}, {})
            return
        if not fitting and body is None:
            if handler is None:
                raise Unsupported("the operator is not supported, and the standard has no function body of it")
            unread = [name for name in given if name not in handler.attributes]
            raise Unsupported(f"the attribute {listed(unread)} is not supported, and the standard has no function body")
        self._step(node, scope, opset, handler if fitting else None, body, given, implied)

    def _attributes(self, node: Any, schema: Any, scope: _Scope) -> dict[str, Any]:
        return read_attributes(self.model, node, schema, scope.given, self.limits.elements)

    def _step(
        self, node: Any, scope: _Scope, opset: int, handler: Handler | None, body: bodies.Body | None,
        given: Mapping[str, Any], implied: Mapping[str, Any],
    ) -> None:  # fmt: skip
        inputs = []
        for name in node.input:
            slot = scope.find(name) if name else NOTHING
            if slot is None:
                raise FileFormatError(f"{self.model.where}: nothing computes the input {quoted(name)}")
            inputs.append(slot)
        handler, given = self._typed(node, handler, inputs, given, opset)
        kinds = ("Value",) * len(inputs) if handler is None else tuple(map(handler.kind, range(len(inputs))))
        uses = self._note_uses(node, scope.frame, inputs, kinds, given)
        graphs: dict[str, Graph] = {}
        for name, value in given.items():
            if isinstance(value, GraphAttribute):
                inner = _Scope(_Frame(scope), scope, scope.opsets, scope.stack)
                inner.given = scope.given
                graphs[name] = self._graph(value.proto, inner, value.proto.input)
        outputs = [self._define(name, scope, "an output") if name else scope.frame.slot() for name in node.output]
        self._note_passing(node, scope.frame, inputs, outputs, given)
        while outputs and not node.output[len(outputs) - 1]:
            outputs.pop()
        plain = {name: value for name, value in {**implied, **given}.items() if not isinstance(value, GraphAttribute)}
        notes = frozenset(entry.key for entry in node.metadata_props)
        call = Call(node.op_type, opset, len(outputs), node.name or (node.output[0] if node.output else ""), notes)
        host = host_handler_of(node.op_type) if node.domain in ("", "ai.onnx") and not graphs else None
        usable = host is not None and all(name in host.attributes or name in implied for name in given)
        self.operators[node.op_type] += 1
        step = Step(
            node.op_type, node.name, node.domain, opset,
            None if handler is None else _bound(handler, plain, call),
            _bound(host, plain, call) if usable and host is not None else None,
            body, tuple(inputs), kinds, _needed(handler, len(inputs)), tuple(outputs),
            handler is not None and handler.wants_run, _needed(host, len(inputs)), graphs,
        )  # fmt: skip
        stored = [self.stored.get(slot, "") for slot in inputs] if scope.frame is self.root else []
        if len(stored) == len(node.input) and self._has_types(node, inputs, outputs) and _is_whole(node):
            written = _unnamed(node) if scope.stack or self.is_body else node
            step.node, step.stored = written.SerializeToString(), tuple(stored)
        scope.frame.steps.append(step)
        if scope.frame is self.root:
            self.makers |= dict.fromkeys(outputs, step)
            for use in uses:
                use.step = step

    def _has_types(self, node: Any, inputs: Sequence[int], outputs: Sequence[int]) -> bool:
        """Whether values have their types in the file, or are constants that are written with those types."""
        others = [slot for slot in (*inputs, *outputs) if slot in self.stored]
        constant = (self.by_slot.get(slot, (None, ("none",)))[1] == () for slot in others)
        return not others or (node.op_type == "DequantizeLinear" and all(constant))

    def _typed(
        self, node: Any, handler: Handler | None, inputs: list[int], given: Mapping[str, Any], opset: int
    ) -> tuple[Handler | None, Mapping[str, Any]]:
        """The handler and the attributes, adjusted for an operand whose type in the file is not that of its tensor."""
        place = {"CastLike": 1, "QuantizeLinear": 2}.get(node.op_type, len(inputs))
        stored = self.stored.get(inputs[place]) if place < len(inputs) else None
        if stored is None:
            return handler, given
        number = next(number for number, name in NAMES.items() if name == stored)
        if node.op_type == "CastLike":
            del inputs[1]
            return handler_of("Cast", opset), {**given, "to": number}
        return handler, {**given, "output_dtype": given.get("output_dtype") or number}

    def _constant_node(self, node: Any, given: Mapping[str, Any], scope: _Scope) -> None:
        if len(given) != 1 or len(node.output) != 1:
            raise FileFormatError("a constant has one value and one output")
        name, value = next(iter(given.items()))
        if name in ("value", "sparse_value"):
            array, stored = value
        elif name in ("value_int", "value_ints"):
            array, stored = np.asarray(value, np.int64), "int64"
        elif name in ("value_float", "value_floats"):
            array, stored = np.asarray(value, np.float32), "float32"
        else:
            raise Unsupported("constants of text are not supported")
        self.operators["Constant"] += 1
        self._constant(node.output[0], array, stored, scope, False)

    # ---- functions ----

    def _inline(
        self, function: Any, node: Any, scope: _Scope, given: Mapping[str, Any], local: Mapping[Any, Any]
    ) -> None:
        """Replace a node by the body of its function."""
        key = (function.domain, function.name, getattr(function, "overload", ""))
        if len(scope.stack) >= _DEEPEST:
            raise FileFormatError(f"{self.model.where}: functions call one another more than {_DEEPEST} deep")
        if key in scope.stack:
            raise FileFormatError(f"{self.model.where}: the function {quoted(function.name)} calls itself")
        if len(node.input) > len(function.input) or len(node.output) > len(function.output):
            raise ArgumentError(
                f"{len(node.input)} inputs and {len(node.output)} outputs, where the function has "
                f"{len(function.input)} and {len(function.output)}"
            )
        inner = _Scope(scope.frame, None, self._opsets(function.opset_import, function.name), (*scope.stack, key))
        values = dict(given)
        for attribute in function.attribute_proto:
            if attribute.name not in values:
                values |= read_attributes(self.model, _Attributes(attribute), None, {}, self.limits.elements)
        inner.given = values
        for i, name in enumerate(function.input):
            outer = node.input[i] if i < len(node.input) else ""
            slot = scope.find(outer) if outer else scope.frame.slot()
            if slot is None:
                raise FileFormatError(f"{self.model.where}: nothing computes the input {quoted(outer)}")
            inner.names[name] = slot
        self._nodes(function.node, inner)
        for theirs, ours in zip(function.output, node.output, strict=False):
            if ours:
                if ours in scope.names:
                    raise FileFormatError(f"{self.model.where}: the name {quoted(ours)} of an output is there twice")
                scope.names[ours] = self._output(theirs, inner)

    # ---- constants ----

    def _note_uses(
        self, node: Any, frame: _Frame, inputs: Sequence[int], kinds: Sequence[str], given: Mapping[str, Any]
    ) -> list[Use]:
        """Note which constants a node reads."""
        uses = []
        metadata = {x.key: x.value for x in node.metadata_props}
        if metadata:
            for name in naming.called_parameters(metadata) or ():
                self.noted.setdefault(name, naming.scopes_of(metadata))
            self.noted_buffers.update(naming.called_buffers(metadata))
        for place, slot in enumerate(inputs):
            outermost = None if slot == NOTHING else self._outermost(slot, frame)
            if outermost is None:
                continue
            stored = self.stored.get(outermost)
            if stored is not None and node.op_type not in _READ_BY_VALUE and (node.op_type, place) not in _TYPES:
                raise Unsupported(
                    f"{stored} is read by value, to be cast or dequantized, and not by {printable(node.op_type)}"
                )
            if outermost not in self.by_slot:
                continue
            constant, through = self.by_slot[outermost]
            constant.is_read = constant.is_read or kinds[place] == "Host"
            if node.op_type in PASSING and place == 0:
                continue
            name = node.name or next(iter(node.output), "")
            uses.append(Use(node.op_type, place, name, metadata, through, given, self.nodes))
            constant.uses.append(uses[-1])
        return uses

    def _note_passing(
        self, node: Any, frame: _Frame, inputs: Sequence[int], outputs: Sequence[int], given: Mapping[str, Any]
    ) -> None:
        """Note which results are a constant passed on, and which have a type that is held by value."""
        if frame is not self.root or not outputs or not inputs:
            return
        if node.op_type in PASSING and inputs[0] in self.by_slot:
            constant, through = self.by_slot[inputs[0]]
            self.by_slot[outputs[0]] = (constant, (*through, node.op_type))
        made = NAMES.get(given.get("to", given.get("output_dtype", 0)), "")
        if made in NARROW:
            self.stored[outputs[0]] = made
        elif node.op_type in _READ_BY_VALUE - {"Cast", "CastLike", "DequantizeLinear"} and inputs[0] in self.stored:
            self.stored[outputs[0]] = self.stored[inputs[0]]


def _is_whole(node: Any) -> bool:
    """Whether a node is self-contained: no graphs, no attributes of a function, no data beside the file."""
    return not any(
        attribute.ref_attr_name or attribute.type in (GRAPH, GRAPHS, SPARSE) or attribute.t.data_location
        for attribute in node.attribute
    )


def _unnamed(node: Any) -> Any:
    """A node of a function, whose names are not the model's."""
    made = type(node)(op_type=node.op_type)
    made.attribute.extend(node.attribute)
    made.metadata_props.extend(node.metadata_props)
    return made


def _needed(handler: Handler | None, count: int) -> int:
    """The number of inputs that must have a value."""
    if handler is None:
        return 0
    return count if handler.variadic and handler.kinds[-1] != "Value" else handler.required


def _since(name: str) -> int:
    """The opset that introduced an operator's version in the oldest opset that is read."""
    schema = schema_of(name, _OLDEST, "")
    return 0 if schema is None else schema.since


def _number_and_shape(kind: Any) -> tuple[int, list[int | None]]:
    """The data type of a tensor's type, and its lengths, None for those that are not numbers."""
    return kind.elem_type, [n.dim_value if n.HasField("dim_value") else None for n in kind.shape.dim]


class _Attributes:
    """One attribute in the form of a node's attributes."""

    def __init__(self, attribute: Any) -> None:
        self.attribute = [attribute]


def _bound(handler: Handler, attributes: Mapping[str, Any], call: Call) -> Any:
    """A handler with the attributes of a node."""
    known: dict[str, Any] = {name: value for name, value in attributes.items() if name in handler.attributes}
    if handler.wants_call:
        known["call"] = call
    return partial(handler.function, **known) if known else handler.function


def sorted_nodes(nodes: Sequence[Any], where: str) -> Sequence[Any]:
    """Nodes in topological order; unchanged if they are already in one.

    Raises :class:`FileFormatError` for a cycle, with the nodes in it.
    """
    makers: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for name in node.output:
            if name:
                makers.setdefault(name, i)
    needs = [{makers[name] for name in _read(node) if name in makers} for node in nodes]
    if all(max(wanted, default=-1) < i for i, wanted in enumerate(needs)):
        return nodes
    readers: list[list[int]] = [[] for _ in nodes]
    for i, wanted in enumerate(needs):
        for j in wanted:
            readers[j].append(i)
    waits = [len(wanted) for wanted in needs]
    ready = [i for i in reversed(range(len(nodes))) if waits[i] == 0]
    order = []
    while ready:
        i = ready.pop()
        order.append(i)
        for j in reversed(readers[i]):
            waits[j] -= 1
            if waits[j] == 0:
                ready.append(j)
    if len(order) < len(nodes):
        stuck = [nodes[i].name or nodes[i].op_type for i in range(len(nodes)) if waits[i]]
        raise FileFormatError(f"{where}: the graph has a cycle among the nodes {listed(stuck)}")
    return [nodes[i] for i in order]


def _read(node: Any) -> list[str]:
    """The names that a node reads, including those that its graphs capture."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
            made = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
            for inner in graph.node:
                made |= set(inner.output)
            names += [name for inner in graph.node for name in _read(inner) if name not in made]
            names += [value.name for value in graph.output if value.name not in made]
    return names
