"""The backend that writes: its operations compute on another backend, and record nodes of ONNX.

So everything that runs on a backend can be exported. A mapping (:mod:`backburn.onnx.exporter.mappings`) writes the
nodes of an operation; an operation without one runs its default body, whose operations are recorded in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from backburn.backend.contract import Backend, Capabilities
from backburn.backend.opaque import Opaque
from backburn.backend.wrapper import DecoratorBase, make_operations
from backburn.base.call_site import call_site
from backburn.base.dtypes import DType
from backburn.base.errors import BackendMismatchError, CaptureError, Unsupported
from backburn.base.module_calls import CALL
from backburn.onnx.exporter.lengths import Length, Symbolic, formula_of, integers, number_of
from backburn.ops.table import OPERATIONS, Operation

#: A function from the recorder, the operands and the attributes of a call to the names of its results, or to
#: NotImplemented for options that only the default body supports.
Mapped: TypeAlias = Callable[..., Any]
MAPPINGS: dict[str, Mapped] = {}
#: The operations that take quantized tensors.
OF_QUANTIZED = frozenset({"dequantize", "quantized_linear", "quantized_matmul"})
#: The opset that is written, and the version of the format.
OPSET, IR_VERSION = 23, 11
_REAL = "operators take real numbers: compute with the real and the imaginary part"


@dataclass(eq=False)
class Node:
    """A node of the graph: its inputs and outputs, and the call that wrote it."""

    operator: str
    #: The name of a value, numbers, numbers with formulas (:class:`backburn.onnx.exporter.lengths.Symbolic`), or None.
    inputs: list[Any]
    outputs: list[str]
    attributes: dict[str, Any]
    #: The path of the module, and a description of the call for errors.
    layer: str
    call: str
    #: The key of a note for :func:`backburn.onnx.load`; empty for none.
    note: str = ""


class Value(Opaque):
    """A primitive of the recorder: that of the inner backend, and the name of the value in the graph.

    A constant has its array in place of a name. A value ``varies`` if it depends on the inputs or on the model's state.
    A quantized tensor has ``parts``: the names of its integers, steps and zero points, if any. A value is ``loose`` if
    its lengths depend on values: they are formulas (:class:`backburn.onnx.exporter.lengths.Length`).
    """

    __slots__ = ("__weakref__", "dtype", "loose", "name", "parts", "primitive", "shape", "varies")

    def __init__(
        self, name: str | NDArray[Any], primitive: Any, dtype: DType, varies: bool, parts: tuple[Any, ...] = (),
        loose: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.primitive = primitive
        self.loose = loose and isinstance(name, str)
        self.shape: tuple[int, ...] = tuple(primitive.shape)
        if self.loose:
            self.shape = tuple(
                Length.of(n, {((str(name), axis),): Fraction(1)}) for axis, n in enumerate(primitive.shape)
            )
        self.dtype = dtype
        self.varies = varies
        self.parts = parts

    def __repr__(self) -> str:
        return f"<{self.dtype}{list(self.shape)}>"


@dataclass
class Graph:
    """A recorded model: nodes, inputs, outputs, and the tensors of its state by name."""

    nodes: list[Node]
    inputs: list[Value]
    outputs: list[tuple[str, Value]]
    state: dict[str, Any]
    backend: Any
    #: The shapes of inputs and outputs, with names for lengths that vary, and the input and axis of each name.
    shapes: dict[str, list[int | str | None]]
    places: dict[str, tuple[str, int]]
    #: Whether lengths depend on values.
    is_loose: bool = False
    #: The data types of tensors of the state that are written with another type than their dtype.
    stored: dict[str, str] = field(default_factory=dict)


@dataclass
class _Calls:
    """The running calls, the outermost first, and the names that are taken."""

    stack: list[str] = field(default_factory=list)
    site: str = ""
    used: Counter[str] = field(default_factory=Counter)


class Recorder(DecoratorBase, Backend[Value, Value, Value, Value]):
    """A backend around another one that writes nodes of ONNX. Tensors of the other one are constants here."""

    def __init__(self, wrapped: Any, taken: Iterable[str] = ()) -> None:
        """Around a backend; ``taken`` are names that values must not have."""
        self._inner = wrapped
        self._calls = _Calls(used=Counter(dict.fromkeys(taken, 1)))
        self.nodes: list[Node] = []
        #: The data types of the model's tensors in a loaded file, if no tensor can have them.
        self.stored: dict[str, str] = {}
        #: Copies the nodes of loaded graphs (:class:`backburn.onnx.exporter.copying.Copier`).
        self.writer: Any = None
        #: Whether lengths depend on values.
        self.has_loose = False
        #: The operands of products with weights by the names of their results, for recurrent layers.
        self.products: dict[str, tuple[Any, Any, Any]] = {}
        #: Names of the last entries along axis 0 of values of which the operator returns only that entry.
        self.last_of: dict[str, str] = {}

    @property
    def spec(self) -> str:
        """A name that is in no registry: a recorder lives for one export."""
        return f"onnx({self._inner.spec})"

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the wrapped backend, without capture."""
        return replace(self._inner.capabilities, capture=False)

    @property
    def inner_backend(self) -> Any:
        """The wrapped backend, whose tensors are lifted as constants."""
        return self._inner

    def dtype(self, x: Any, /) -> DType:
        """The dtype of a value."""
        if x.__class__ is not Value:
            raise BackendMismatchError(f"{type(x).__name__} is not a primitive of {self.spec}")
        return x.dtype

    def from_inner(self, primitive: Any, /) -> Value:
        """A tensor of the wrapped backend as a constant."""
        return self._constant(self._inner.to_numpy(primitive), primitive)

    int_from_inner = bool_from_inner = from_inner

    def inner(self, x: Value, /) -> Any:
        """The primitive of the wrapped backend."""
        return x.primitive

    int_inner = bool_inner = q_inner = inner

    def q_from_inner(self, primitive: Any, /) -> Value:
        """Refused: quantized tensors are exported as parts of the model only."""
        raise Unsupported("export: a quantized tensor outside of the model has no name: register it as a buffer")

    def quantized_parts(self, x: Value, /) -> Any:
        """The stored values, steps and zero points of a quantized tensor."""
        return self._inner.quantized_parts(x.primitive)

    def quantized_from_parts(self, values: Any, scale: Any, zero: Any, /, dtype: Any, shape: Any) -> Any:
        """Refused: quantized tensors are exported as parts of the model only."""
        raise Unsupported("export: the model builds a quantized tensor from its parts, which no operator does")

    def value(self, name: str, primitive: Any) -> Value:
        """An input or a tensor of the model, under its name; names of quantized parts derive from it."""
        dtype = self._inner.dtype(primitive)
        _refuse_complex(dtype, name)
        parts = (name, f"{name}_scale", f"{name}_zero_point" if getattr(dtype, "has_zero", False) else None)
        return Value(name, primitive, dtype, True, parts if dtype.kind == "quantized" else ())

    def _constant(self, array: Any, primitive: Any) -> Value:
        dtype = self._inner.dtype(primitive)
        _refuse_complex(dtype, f"a constant at {call_site()}")
        return Value(np.array(array), primitive, dtype, False)

    # ---- for mappings ----

    @property
    def operation(self) -> str:
        """The operation whose nodes are being written."""
        return self._calls.stack[-1]

    def node(self, operator: str, *inputs: Any, outputs: int = 1, note: str = "", **attributes: Any) -> Any:
        """Write a node, and return the name of its output, or a list of names.

        Inputs are values, names, arrays, integers and lists of integers for shapes, or None; attributes that are None
        are left out.
        """
        call = CALL.get()
        layer = (call.layer if call is not None else None) or ""
        name = self.free(f"{layer}/{operator}" if layer else operator or "nothing")
        names = [name, *(self.free(f"{name}_{i}") for i in range(1, outputs))]
        given = [_input(operator, x) for x in inputs]
        while given and given[-1] is None:
            given.pop()
        kept = {key: value for key, value in attributes.items() if value is not None}
        words = f"{self._calls.stack[0] if self._calls.stack else operator} at {self._calls.site}"
        self.nodes.append(Node(operator, given, names, kept, layer, words, note))
        return names[0] if outputs == 1 else names

    def made(self, name: str, primitive: Any, loose: bool) -> Value:
        """A result of a node, with the value ``primitive``."""
        return Value(name, primitive, self._inner.dtype(primitive), True, loose=loose)

    def missing(self, what: str) -> str:
        """A result that no operator returns: an error if anything reads it."""
        return str(self.node("", note=what))

    def free(self, name: str) -> str:
        """An unused name that begins with ``name``."""
        used = self._calls.used
        used[name] += 1
        return name if used[name] == 1 else self.free(f"{name}_{used[name] - 1}")

    # ---- calls ----

    def call(self, entry: Operation, operands: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
        """Compute a call, and write its nodes."""
        calls, name = self._calls, entry.name
        if name == "from_numpy":
            return self._constant(operands[0], self._inner.from_numpy(*operands))
        if entry.results[0] == "host":
            return self._read(name, operands)
        if entry.needs_complex:
            raise Unsupported(f"export: {name} computes with complex numbers at {call_site()}; {_REAL}")
        if entry.family == "random":
            raise Unsupported(
                f"export: {name} draws random numbers at {call_site()}; a graph has none. Pass them as an input"
            )
        count = len(entry.operands)
        options = {**entry.defaults, **dict(zip(entry.attributes, operands[count:], strict=False)), **attributes}
        options.pop("donate", None)
        given = [*operands[:count], *[None] * (count - len(operands[:count]))]
        if not calls.stack:
            calls.site = call_site()
        calls.stack.append(name)
        try:
            if name not in OF_QUANTIZED and any(x.__class__ is Value and x.parts for x in given):
                raise Unsupported(f"export: ONNX has no {name} of quantized tensors; it was called at {calls.site}")
            mapped = MAPPINGS.get(name)
            found = NotImplemented if mapped is None else mapped(self, *given, **options)
            if found is NotImplemented:
                return self._by_body(entry, operands, attributes)
            values = [_inner_of(x) for x in given]
            result = getattr(self._inner, name)(*values, **options)
        finally:
            calls.stack.pop()
        loose = entry.shape is None or any(x.__class__ is Value and x.loose for x in flat(given))
        self.has_loose = self.has_loose or loose
        if not isinstance(result, tuple | list):
            return self._result(name, found, result, loose)
        return tuple(self._result(name, x, r, loose) for x, r in zip(found, result, strict=True))

    def _result(self, operation: str, found: Any, primitive: Any, loose: bool) -> Value:
        """A result, under the name of a node's output, or of an operand that is returned as it is."""
        name, parts = (found.name, found.parts) if found.__class__ is Value else (found, ())
        dtype = self._inner.dtype(primitive)
        _refuse_complex(dtype, f"the result of {operation} at {self._calls.site}")
        return Value(name, primitive, dtype, True, parts, loose)

    def _by_body(self, entry: Operation, operands: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
        if entry.required:
            calls = self._calls
            inside = f", inside of {calls.stack[0]}," if len(calls.stack) > 1 else ""
            raise Unsupported(
                f"export: {entry.name}{inside} has no counterpart in ONNX"
                f"{' with these options' if entry.name in MAPPINGS else ''}; it was called at {calls.site}"
            )
        return entry.body(self, *operands, **attributes)

    def _read(self, name: str, operands: Sequence[Any]) -> Any:
        """Read constants. Raises :class:`CaptureError` for values that vary."""
        tensors = operands[0] if isinstance(operands[0], list | tuple) else [operands[0]]
        if any(x.varies for x in tensors):
            raise CaptureError(
                f"export: the model reads values on the host at {call_site()}. A graph contains no Python: compute "
                "what depends on an input or a parameter with tensors"
            )
        return getattr(self._inner, name)(_inner_of(operands[0]))


def _refuse_complex(dtype: DType, what: str) -> None:
    if dtype.kind == "complex":
        raise Unsupported(f"export: {what} is {dtype}; {_REAL}")


def used(nodes: Sequence[Node], outputs: Iterable[tuple[str, Value]]) -> list[Node]:
    """The nodes that outputs are computed from, without optional results that nothing reads."""
    from onnx.defs import get_schema

    read = {value.name for _, value in outputs if isinstance(value.name, str)}
    found = []
    for node in reversed(nodes):
        if read.isdisjoint(node.outputs):
            continue
        least = get_schema(node.operator).min_output if len(node.outputs) > 1 else 1
        while len(node.outputs) > max(least, 1) and node.outputs[-1] not in read:
            node.outputs.pop()
        for given in node.inputs:
            read |= {given} if isinstance(given, str) else given.names if isinstance(given, Symbolic) else set()
        found.append(node)
    return found[::-1]


def _input(operator: str, x: Any) -> Any:
    """An input of a node."""
    if x.__class__ is Value:
        return x.name
    if x is None or isinstance(x, str | np.ndarray):
        return x
    numbers = [x] if isinstance(x, int) else [*x]
    formulas = [formula_of(number) for number in numbers]
    if any(formula is None for formula in formulas):
        raise CaptureError(
            f"export: a length that depends on values is divided at {call_site()}; a graph allows sums and products"
        )
    return integers(operator, (number_of(f) for f in formulas if f is not None), not isinstance(x, int))


def flat(operands: Iterable[Any]) -> list[Any]:
    """Operands, with lists flattened."""
    return [x for part in operands for x in (part if isinstance(part, list | tuple) else (part,))]


def _inner_of(x: Any) -> Any:
    if isinstance(x, list | tuple):
        return [_inner_of(part) for part in x]
    return x.primitive if x.__class__ is Value else x


def _recorded(entry: Operation) -> Callable[..., Any]:
    def operation(self: Recorder, /, *operands: Any, **attributes: Any) -> Any:
        return self.call(OPERATIONS[entry.name], operands, attributes)

    return operation


make_operations(Recorder, _recorded)
