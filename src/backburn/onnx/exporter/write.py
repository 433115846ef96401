"""Exporting a model: it runs on the recorder, and the nodes become a file."""

from __future__ import annotations

import inspect
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import backburn.onnx.exporter.sampling  # noqa: F401
from backburn.base.dtypes import DType
from backburn.base.errors import ArgumentError, BackendUnavailableError, Unsupported, hint_for
from backburn.base.module_calls import WATCHERS, Watcher
from backburn.base.trees import flatten, leaves_with_paths, tree_map, unflatten
from backburn.io.atomic import write_atomically
from backburn.nn.module import Module
from backburn.onnx.compile import HOST_FLOATS, HOST_INTEGERS
from backburn.onnx.exporter.copying import Copier
from backburn.onnx.exporter.lengths import Symbolic
from backburn.onnx.exporter.mappings import NUMBERS
from backburn.onnx.exporter.quantized import stored_type, unpacked
from backburn.onnx.exporter.recorder import IR_VERSION, OPSET, Graph, Node, Recorder, Value, used
from backburn.onnx.exporter.recurrent import write_whole
from backburn.onnx.exporter.symbolic import check_values, merged
from backburn.onnx.model import OnnxModel
from backburn.onnx.naming import ALIASES, LAYER, ROLE
from backburn.tensor.arithmetic import negative
from backburn.tensor.core.defaults import use_backend
from backburn.tensor.core.levels import INNER, constant, innermost, lift
from backburn.tensor.core.wrapping import is_tensor, wrap
from backburn.tensor.creation import arange, zeros_like
from backburn.tensor.index import take
from backburn.tensor.logic import logical_not

if TYPE_CHECKING:
    from onnx import ModelProto

#: The most bytes of tensors in a file, which a protocol buffer limits to 2 GB. Beyond that, tensors of at least
#: ``SMALL`` bytes go to a second file.
LARGEST, SMALL = 2**31 - 2**26, 1024
#: The alignment of tensors in the second file.
ALIGNED = 64


@dataclass(frozen=True)
class State:
    """A tensor of the model: its paths in the state, and its role."""

    tensor: Any
    paths: tuple[str, ...]
    role: str


def export(
    model: Module, path: str | os.PathLike[str] | None, /, *examples: Any,
    dynamic: Mapping[str, Mapping[int, str]] | None = None, names: Mapping[str, str] | None = None, opset: int = OPSET,
) -> ModelProto:  # fmt: skip
    """Write a model as a graph of ONNX, and return it.

    The model runs once on ``examples``, tensors or trees of them, in evaluation mode. Every operation becomes one
    operator if the standard has it, and otherwise those of the operations that it consists of. ``model`` does not
    change. Parameters and buffers are initializers under their paths in the state: :func:`load` reads the file as a
    model with the same names. If tensors take more than 2 GB, they are written to a second file, ``path`` with
    ``.data``. ``path=None`` writes no file.

    Inputs are named after the parameters of ``forward``. One output is called ``output``, several ``output_0``,
    ``output_1``, ...; those in a dict are named by their paths. ``names`` renames both.

    ``dynamic`` names axes of inputs whose lengths may vary, as in ``{"x": {0: "batch"}}``; axes with the same name have
    the same length. The model then runs at several lengths, with the examples repeated or truncated, and numbers that
    differ between the runs become formulas of the lengths, which are checked at another length.

    Raises :class:`Unsupported` for an operation that ONNX lacks, with the line of the call, :class:`CaptureError` for
    a model that reads values on the host or computes differently at other lengths, and :class:`ArgumentError` for
    options that do not fit.

        >>> import backburn as bb
        >>> model = bb.nn.Sequential(bb.nn.Linear(3, 4), bb.nn.ReLU(), bb.nn.Linear(4, 2))
        >>> proto = export(model, None, bb.ones((5, 3)))
        >>> [node.op_type for node in proto.graph.node], [x.name for x in proto.graph.initializer]
        (['Gemm', 'Relu', 'Gemm'], ['0.weight', '0.bias', '2.weight', '2.bias'])
    """
    onnx = _onnx()
    if not isinstance(model, Module):
        raise ArgumentError(f"export: writes a model, and not a {type(model).__name__}")
    if opset != OPSET:
        raise ArgumentError(f"export: opset {OPSET} is written, and not {opset!r}")
    state = _state_of(model)
    axes = _axes(dynamic)
    names = dict(names or {})
    lengths = _lengths(_recorded(model, state, examples, names), axes) if axes else {}
    graph = merged(lambda sizes: _recorded(model, state, examples, names, axes, sizes), lengths)
    if graph.is_loose:
        check_values(lambda number: _recorded(model, state, _changed(examples, number), names))
    target = None if path is None else Path(path)
    maker = _Proto(onnx, graph, state, target)
    proto = maker.build()
    if target is not None:
        if maker.beside:
            write_atomically(target.with_name(maker.location), (part for read in maker.beside for part in read()))
        write_atomically(target, proto.SerializeToString(deterministic=True))
    return proto


def _onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise BackendUnavailableError(
            "export: writing ONNX needs the package onnx: pip install 'backburn[onnx]'"
        ) from error
    return onnx


def _axes(dynamic: Any) -> dict[str, dict[Any, Any]]:
    """The names of axes by input. Raises :class:`ArgumentError` for anything but a dict of dicts."""
    if isinstance(dynamic, Mapping | None) and all(isinstance(found, Mapping) for found in (dynamic or {}).values()):
        return {name: dict(found) for name, found in (dynamic or {}).items()}
    raise ArgumentError(f"export: dynamic names axes of inputs, as in {{'x': {{0: 'batch'}}}}, not {dynamic!r:.100}")


# ---- running the model ----


def _state_of(model: Module) -> list[State]:
    """The tensors of the state, each once with all its paths."""
    paths: dict[int, list[str]] = {}
    for path, leaf in leaves_with_paths(model):
        if is_tensor(leaf):
            paths.setdefault(id(leaf), []).append(path)
    parameters = [State(x, tuple(paths[id(x)]), "parameter") for _, x in model.named_parameters()]
    return parameters + [State(x, tuple(paths[id(x)]), "buffer") for _, x in model.named_buffers()]


def _lengths(graph: Graph, axes: Mapping[str, Mapping[Any, Any]]) -> dict[str, int]:
    """The lengths of the axes that may vary, in the examples."""
    found: dict[str, int] = {}
    shapes = {str(x.name): x.shape for x in graph.inputs}
    for name, named in axes.items():
        if name not in shapes:
            raise ArgumentError(f"export: dynamic: there is no input {name!r}. {hint_for(name, shapes)}")
        for axis, symbol in named.items():
            if not isinstance(symbol, str) or not symbol.isidentifier():
                raise ArgumentError(f"export: dynamic: the name of an axis is an identifier, not {symbol!r}")
            if not isinstance(axis, int) or not -len(shapes[name]) <= axis < len(shapes[name]):
                raise ArgumentError(f"export: dynamic: {name} has no axis {axis!r}: {list(shapes[name])}")
            if not shapes[name][axis]:
                raise ArgumentError(f"export: dynamic: {name} is empty, {list(shapes[name])}: it has nothing to repeat")
            length = found.setdefault(symbol, shapes[name][axis])
            if length != shapes[name][axis]:
                raise ArgumentError(
                    f"export: dynamic: the examples have {length} and {shapes[name][axis]} for the length {symbol!r}"
                )
    return found


def _changed(examples: Sequence[Any], number: int) -> list[Any]:
    """The examples, or others of the same shapes: zeros (1), and negated floats and inverted booleans (2)."""

    def changed(x: Any) -> Any:
        if not is_tensor(x) or number == 0:
            return x
        if number == 1 or x.dtype.kind == "int":
            return zeros_like(x)
        return logical_not(x) if x.dtype.kind == "bool" else negative(x)

    return tree_map(changed, list(examples))


def _resized(x: Any, axes: Mapping[int, str], sizes: Mapping[str, int]) -> Any:
    """A tensor with other lengths: its entries are repeated or truncated."""
    for axis, symbol in axes.items():
        if x.shape[axis] != sizes[symbol]:
            order = arange(sizes[symbol], backend=x.backend) % x.shape[axis]
            x = take(x, order, axis=axis)
    return x


def _recorded(
    model: Module, state: Sequence[State], examples: Sequence[Any], names: dict[str, str],
    axes: Mapping[str, Mapping[int, str]] = MappingProxyType({}), sizes: Mapping[str, int] = MappingProxyType({}),
) -> Graph:  # fmt: skip
    """The graph of one run."""
    tensors = [part.tensor for part in state] + [x for _, x in leaves_with_paths(examples) if is_tensor(x)]
    if not tensors:
        raise ArgumentError("export: neither the model nor the examples have a tensor")
    backend = innermost(tensors[0].backend)
    #: The result names of a loaded graph.
    own = model.output_names if isinstance(model, OnnxModel) else ()
    recorder = Recorder(backend, (*(path for part in state for path in part.paths), *own))
    recorder.writer = Copier(recorder, own)
    moved = {id(part.tensor): _on(recorder, part.tensor, part.paths[0]) for part in state}
    inputs: list[Value] = []
    renamed = set[str]()

    def named(default: str) -> str:
        renamed.add(default)
        return recorder.free(names.get(default, default))

    def taken(path: str, x: Any) -> Any:
        name = named(path)
        found = _on(recorder, _resized(x, axes.get(name, {}), sizes), name)
        inputs.append(found.primitive)
        return found

    given = []
    for name, tree in _named(model, examples):
        leaves, structure = flatten(tree)
        paths = [f"{name}.{path}" if path else name for path, _ in leaves_with_paths(tree)]
        moved_leaves = [taken(path, x) if is_tensor(x) else x for path, x in zip(paths, leaves, strict=True)]
        given.append(unflatten(structure, moved_leaves))
    copy = model._copied(lambda x: moved.get(id(x), x)).eval()
    write_whole(copy, recorder)
    watcher = Watcher()
    WATCHERS.append(watcher)
    try:
        with use_backend(recorder):
            found = copy(*given)
    finally:
        WATCHERS.remove(watcher)
    results = [(path, x) for path, x in leaves_with_paths(found) if is_tensor(x)]
    if not results:
        raise ArgumentError("export: the model returns no tensor")
    keyed = isinstance(found, dict)
    outputs = []
    for i, (path, x) in enumerate(results):
        default = path if keyed else "output" if len(results) == 1 else f"output_{i}"
        if len(own) == len(results):
            renamed.add(own[i])
        name = names.get(own[i], own[i]) if len(own) == len(results) else named(default)
        value = lift(constant(x), recorder)
        if not isinstance(value.name, str):  # a constant in one recording may vary with lengths
            value = recorder.made(recorder.node("Identity", value.name), value.primitive, False)
        outputs.append((name, value))
    for name in names:
        if name not in renamed:
            raise ArgumentError(f"export: names: there is no input or output {name!r}. {hint_for(name, renamed)}")
    shapes: dict[str, list[int | str | None]] = {str(x.name): [*x.shape] for x in inputs}
    shapes |= {name: [None] * len(x.shape) if x.loose else [*x.shape] for name, x in outputs}
    places = {symbol: (name, axis % len(shapes[name])) for name, a in axes.items() for axis, symbol in a.items()}
    by_name = {x.primitive.name: x for x in moved.values()}
    nodes = used(recorder.nodes, outputs)
    return Graph(nodes, inputs, outputs, by_name, backend, shapes, places, recorder.has_loose, recorder.stored)


def _named(model: Module, examples: Sequence[Any]) -> Iterable[tuple[str, Any]]:
    """The examples with the names of the parameters of ``forward``."""
    parameters = inspect.signature(model.forward).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [*getattr(model, "input_names", names)]
    names += [f"input_{i}" for i in range(len(names), len(examples))]
    return zip(names, examples, strict=False)


def _on(recorder: Recorder, x: Any, name: str) -> Any:
    """A tensor on the recorder, under a name."""
    k, primitive = x.backend, constant(x).primitive if x.dtype.has_gradient else x.primitive
    while (inner := getattr(k, "inner_backend", None)) is not None:
        primitive, k = getattr(k, INNER[x.dtype.kind])(primitive), inner
    if k is not recorder.inner_backend:
        raise ArgumentError(f"export: {name} is on {k.spec}, and other tensors on {recorder.inner_backend.spec}")
    return wrap(recorder.value(name, primitive), recorder)


# ---- the file ----


class _Proto:
    """Builds the protocol buffer of a graph."""

    def __init__(self, onnx: Any, graph: Graph, state: Sequence[State], path: Path | None) -> None:
        self.onnx, self.helper = onnx, onnx.helper
        self.graph = graph
        self.state = state
        #: The second file, functions that read its parts, and the bytes so far; empty if all fits into the model's
        #: file.
        self.location = ""
        self.beside: list[Callable[[], list[bytes | memoryview]]] = []
        self.written = 0
        if sum(-(-x.size * x.dtype.bits // 8) for x in graph.state.values()) > LARGEST:
            if path is None:
                raise ArgumentError("export: a model of more than 2 GB is written to two files: give a path")
            self.location = f"{path.name}.data"
        self.constants: dict[Any, Any] = {}
        self.numbers = Counter[str]()
        #: The names of values in formulas of lengths, by operator, inputs and attributes.
        self.lengths: dict[Any, str] = {}
        self.taken = {name for node in graph.nodes for name in node.outputs} | {*graph.state}
        self.taken |= {x.name for x in graph.inputs if isinstance(x.name, str)} | {name for name, _ in graph.outputs}

    def build(self) -> ModelProto:
        """The model."""
        graph, helper = self.graph, self.helper
        renamed = self._outputs()
        nodes = [found for node in graph.nodes for found in self._node(node, renamed)]
        read = {name for node in nodes for name in node.input}
        made = {name for node in nodes for name in node.output}
        nodes += self._copies(renamed, made)
        read |= {name for node in nodes for name in node.input}
        tensors = [tensor for part in self.state for tensor in self._initializers(part) if tensor.name in read]
        inputs = [self._info(x.name, x) for x in graph.inputs]
        outputs = [self._info(name, x) for name, x in graph.outputs]
        held = sorted(self.constants.values(), key=lambda tensor: not tensor.metadata_props)  # buffers first
        made_graph = helper.make_graph(nodes, "backburn", inputs, outputs, [*tensors, *held])
        return helper.make_model(
            made_graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="backburn"
        )  # fmt: skip

    def _outputs(self) -> dict[str, str]:
        """The names of results, by the recorded names of the nodes' outputs."""
        made = {name for node in self.graph.nodes for name in node.outputs}
        renamed: dict[str, str] = {}
        for name, value in self.graph.outputs:
            if isinstance(value.name, str) and value.name in made:
                renamed.setdefault(value.name, name)
        return renamed

    def _copies(self, renamed: Mapping[str, str], made: Iterable[str]) -> list[Any]:
        """Nodes for results that are inputs, tensors of the model or another result's value."""
        there = set(made)
        return [
            self.helper.make_node("Identity", [self._name(value.name, renamed)], [name], name)
            for name, value in self.graph.outputs
            if name not in there
        ]

    def _name(self, given: Any, renamed: Mapping[str, str]) -> str:
        if given is None:
            return ""
        return self._constant(given) if isinstance(given, np.ndarray) else renamed.get(given, given)

    def _node(self, node: Node, renamed: Mapping[str, str]) -> list[Any]:
        """A node, after those that compute formulas of lengths for it."""
        if not node.operator:
            raise Unsupported(f"export: {node.call} returns {node.note}, which ONNX does not")
        before: list[Any] = []
        # In the order of nodes, so that names stay the same when a file is loaded and exported again.
        lengths = {i: self._symbolic(x, renamed, before) for i, x in enumerate(node.inputs) if isinstance(x, Symbolic)}
        inputs = [lengths[i] if i in lengths else self._name(x, renamed) for i, x in enumerate(node.inputs)]
        found = self.helper.make_node(
            node.operator, inputs, [renamed.get(x, x) for x in node.outputs], node.outputs[0],
            **{key: value for key, value in node.attributes.items() if not isinstance(value, self.onnx.AttributeProto)},
        )  # fmt: skip
        found.attribute.extend(x for x in node.attributes.values() if isinstance(x, self.onnx.AttributeProto))
        for key, value in ((LAYER, node.layer), (node.note, node.note)):
            if key and value:
                _note(found, key, value)
        return [*before, found]

    def _symbolic(self, given: Symbolic, renamed: Mapping[str, str], before: list[Any]) -> str:
        """The name of integers, some of which are formulas; nodes that compute them are added to ``before``."""
        runs = [(is_formula, [*run]) for is_formula, run in groupby(given.numbers, lambda n: not isinstance(n, int))]
        formulas = iter([self._formula(n, renamed, before) for is_formula, run in runs if is_formula for n in run])
        parts: list[str] = []
        for is_formula, run in runs:
            parts += [next(formulas) for _ in run] if is_formula else [self._constant(np.array(run, np.int64))]
        if not given.is_vector:
            return self._made("Squeeze", [*parts, self._constant(np.array([0], np.int64))], before)
        return parts[0] if len(parts) == 1 else self._made("Concat", parts, before, axis=0)

    def _formula(self, terms: Any, renamed: Mapping[str, str], before: list[Any]) -> str:
        """The name of a formula's value, which has one element."""
        total = ""
        for symbols, factor in terms:
            part = ""
            for symbol in symbols:
                name, axis = symbol if isinstance(symbol, tuple) else self.graph.places[symbol]
                name = renamed.get(name, name)
                length = self._made("Shape", [name], before, start=axis, end=axis + 1)
                part = self._made("Mul", [part, length], before) if part else length
            for operator, number in (("Mul", factor.numerator), ("Div", factor.denominator)):
                if not part or number != 1:
                    value = self._constant(np.array([number], np.int64))
                    part = self._made(operator, [part, value], before) if part else value
            total = self._made("Add", [total, part], before) if total else part
        return total

    def _made(self, operator: str, inputs: Sequence[str], before: list[Any], **attributes: Any) -> str:
        """The name of the result of a node in a formula; equal nodes are shared."""
        key = operator, *inputs, *attributes.items()
        if key not in self.lengths:
            name = self.lengths[key] = self._free(f"lengths/{operator}")
            before.append(self.helper.make_node(operator, [*inputs], [name], name, **attributes))
        return self.lengths[key]

    def _free(self, word: str) -> str:
        """An unused name that begins with a word."""
        while (name := f"{word}_{self.numbers[word]}") in self.taken:
            self.numbers[word] += 1
        self.taken.add(name)
        return name

    def _constant(self, array: NDArray[Any]) -> str:
        """The name of a constant's initializer; equal ones are shared. Large ones are noted as buffers."""
        key = array.dtype.name, array.shape, array.tobytes()
        if key not in self.constants:
            is_small = array.size <= (HOST_INTEGERS if array.dtype.kind in "iub" else HOST_FLOATS)
            self.constants[key] = self._tensor(array, self._free("constant" if is_small else "table"))
            if not is_small:
                _note(self.constants[key], ROLE, "buffer")
        return str(self.constants[key].name)

    def _initializers(self, part: State) -> list[Any]:
        """The initializers of a tensor of the state: one, or the parts of a quantized one."""
        value: Value = self.graph.state[part.paths[0]].primitive
        k, stored_as = self.graph.backend, self.graph.stored.get(part.paths[0])
        if stored_as is not None:
            array = k.to_numpy(value.primitive)
            narrow = array.astype(self.helper.tensor_dtype_to_np_dtype(NUMBERS[stored_as]))
            if not np.array_equal(narrow.astype(array.dtype), array, equal_nan=array.dtype.kind == "f"):
                raise ArgumentError(
                    f"export: {part.paths[0]} is {stored_as} in the loaded file, which cannot hold its values now"
                )
            found = [self._tensor(narrow, part.paths[0])]
        elif not value.parts:
            number, primitive = NUMBERS[value.dtype.name], value.primitive
            nbytes = math.prod(value.shape) * value.dtype.bits // 8
            found = [self._held(part.paths[0], number, value.shape, nbytes, lambda: _bytes(k.to_numpy(primitive)))]
        else:
            arrays = k.quantized_parts(value.primitive)
            number, stored = stored_type(value.dtype), unpacked(arrays[0], value.dtype, value.shape)
            kinds = (number, NUMBERS[arrays[1].dtype.name], number)
            given = zip(value.parts, (stored, *arrays[1:]), kinds, strict=True)
            found = [self._tensor(array, name, kind) for name, array, kind in given if name is not None]
        for tensor in found:
            _note(tensor, ROLE, part.role)
            if len(part.paths) > 1:
                _note(tensor, ALIASES, json.dumps(part.paths[1:]))
        return found

    def _tensor(self, array: NDArray[Any], name: str, number: int = 0) -> Any:
        """A tensor of an array's data type, or of the data type ``number``, whose values the array holds."""
        data, number = array, number or NUMBERS[array.dtype.name]
        if number in (NUMBERS["int4"], NUMBERS["uint4"]):
            array = array.astype(np.int8)
            low, high = (np.pad(array.reshape(-1) & 15, (0, array.size % 2))[i::2] for i in range(2))
            data = (low | high << 4).astype(np.uint8)
        return self._held(name, number, array.shape, data.nbytes, lambda: _bytes(data))

    def _held(self, name: str, number: int, shape: Sequence[int], nbytes: int, read: Callable[[], memoryview]) -> Any:
        """A tensor whose bytes are read now, or when the second file is written."""
        if not self.location or nbytes < SMALL:
            return self.helper.make_tensor(name, number, shape, read().tobytes(), raw=True)
        found = self.onnx.TensorProto(name=name, data_type=number, dims=shape, data_location="EXTERNAL")
        for key, value in (("location", self.location), ("offset", self.written), ("length", nbytes)):
            found.external_data.add(key=key, value=str(value))
        padding = bytes(-nbytes % ALIGNED)
        self.beside.append(lambda: [read(), padding])
        self.written += nbytes + len(padding)
        return found

    def _info(self, name: Any, value: Value) -> Any:
        return self.helper.make_tensor_value_info(name, _number(value.dtype), self.graph.shapes[name])


def _bytes(array: NDArray[Any]) -> memoryview:
    """The bytes of an array, little-endian."""
    little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
    return little.reshape(-1).view(np.uint8).data


def _number(dtype: DType) -> int:
    if dtype.name not in NUMBERS:
        raise Unsupported(f"export: a graph has no inputs and outputs of {dtype}")
    return NUMBERS[dtype.name]


def _note(proto: Any, key: str, value: str) -> None:
    entry = proto.metadata_props.add()
    entry.key, entry.value = key, value
