"""Loading a model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import backburn.onnx.operators  # noqa: F401 (enters the handlers)
from backburn.base.errors import ArgumentError, BackendUnavailableError, FileFormatError
from backburn.nn.module import Module, name_buffers, parameter
from backburn.onnx.compile import Compiled, Compiler
from backburn.onnx.graph import Kept
from backburn.onnx.limits import Limits
from backburn.onnx.model import InputSpec, OnnxModel, OnnxPart, Program
from backburn.onnx.parameters import Plan, Planner, segments
from backburn.onnx.protos import Model, read_model
from backburn.onnx.report import Entry, OnnxReport
from backburn.tensor.core.defaults import BackendLike, as_backend
from backburn.tensor.core.host import asarray

#: After reading this many bytes of tensors, the pages of mapped files are released.
_KEPT = 1 << 26

if TYPE_CHECKING:
    from onnx import ModelProto

    from backburn.backend.contract import AnyBackend


def load(
    model: str | os.PathLike[str] | bytes | ModelProto,
    *,
    backend: BackendLike = None,
    trainable: str | Sequence[str] | None = None,
    ties: str | Sequence[tuple[str, str]] = "auto",
    limits: Limits = Limits(),  # noqa: B008 (it is immutable)
) -> OnnxModel:
    """An ONNX graph as a module that computes, trains and can be captured on any backend.

    ``model`` is a path, the bytes of a file, or a ``ModelProto``; external data is read only from the file's folder.
    Opsets from 7 to the newest of the installed ``onnx`` are read, with control flow, sequences and functions. Shapes
    that the graph computes are computed on the host.

    Floats are parameters if they are used as weights of convolutions, products, embeddings, recurrent layers and norms,
    or as biases. Weights that an exporter merged, copied or stacked are separated, under the paths that it noted, and
    copies of a shared weight stay tied. ``model.report`` shows each decision. ``trainable`` selects the parameters
    instead, by patterns of paths or initializers; ``ties`` selects the ties: ``"none"``, or pairs of paths.

    Raises :class:`FileFormatError` for damaged files, :class:`Unsupported` for operators, attributes and data types
    that are not computed here, with the name of the node, and :class:`ArgumentError` for options that do not fit.

        >>> import backburn as bb
        >>> from onnx import parser
        >>> text = '<ir_version: 10, opset_import: ["": 20]> g (float[n, 2] x) => (float[n, 2] y)'
        >>> text += " <float[2, 2] w = {1, 2, 3, 4}, float s = {0.5}> { h = MatMul(x, w)  y = Mul(h, s) }"
        >>> model = load(parser.parse_model(text), backend="autodiff(numpy)")
        >>> model(bb.asarray([[1.0, 1.0]])).tolist(), [path for path, _ in model.named_parameters()]
        ([[2.0, 3.0]], ['w'])
        >>> [path for path, _ in load(parser.parse_model(text), trainable="s").named_parameters()]
        ['s']
    """
    _need_onnx()
    patterns = [trainable] if isinstance(trainable, str) else trainable
    if patterns is not None and not all(isinstance(pattern, str) for pattern in patterns):
        raise ArgumentError(f"load: trainable takes patterns of paths, not {trainable!r}")
    given: object = limits
    if not isinstance(given, Limits):
        raise ArgumentError(f"load: limits is a Limits, not {limits!r}")
    if isinstance(ties, str) and ties not in ("auto", "none"):
        raise ArgumentError(f"load: ties is 'auto', 'none' or pairs of paths, not {ties!r}")
    where = as_backend(backend)
    source = read_model(model)
    try:
        compiled = Compiler(source, limits).compile_model()
        plan = Planner(compiled, patterns, ties).run()
        return _built(source, compiled, plan, where, limits)
    finally:
        source.close()


def _need_onnx() -> None:
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise BackendUnavailableError(
            "load: reading ONNX needs the package onnx: pip install 'backburn[onnx]'"
        ) from error


def _built(source: Model, compiled: Compiled, plan: Plan, where: AnyBackend, limits: Limits) -> OnnxModel:
    """The module of a compiled graph, with its tensors."""
    graph = compiled.graph
    for constant in plan.host:
        graph.start[constant.slot] = constant.array
    root = OnnxModel.__new__(OnnxModel)
    places = _places(plan, root)
    bindings = tuple(
        (binding.slot, tuple(places[path] for path in binding.paths), binding.assemble) for binding in plan.bindings
    )
    kept = Kept(constant.array for constant in plan.host)
    inputs = tuple(_spec(value) for value in compiled.inputs)
    program = Program(graph, bindings, inputs, tuple(compiled.outputs), limits, kept)
    report = _report(compiled, plan, places)
    OnnxModel.__init__(root, program, report, where)
    made: dict[str, Any] = {}
    order: list[tuple[float, str]] = [(found.order, path) for path, found in plan.tensors.items()]
    order += [(number, alias) for alias, (_, number) in plan.aliases.items() if alias in places]
    buffers: dict[int, tuple[Module, set[str]]] = {}
    read = 0
    for _, path in sorted(order, key=lambda entry: entry[0]):
        path, place = plan.aliases.get(path, (path, 0))[0], places[path]
        found = plan.tensors[path]
        is_parameter = found.role == "parameter"
        if path not in made:
            tensor = asarray(found.array, backend=where)
            made[path] = parameter(tensor) if is_parameter else tensor
        module = _put(root, place, made[path])
        if not is_parameter:
            buffers.setdefault(id(module), (module, set()))[1].add(place[-1])
        read += found.array.nbytes
        if read > _KEPT:
            read = 0
            for file in source.files.values():
                file.give_back(0, file.size)
    for module, names in buffers.values():
        name_buffers(module, names)
    return root


def _places(plan: Plan, root: OnnxModel) -> dict[str, tuple[str, ...]]:
    """The attributes on the way to each path, renamed so that no tensor is on the way to another one."""
    own = set(dir(root)) | {"_program", "_backend", "_buffers", "_results", "report"}
    places: dict[str, tuple[str, ...]] = {}
    taken: dict[tuple[str, ...], str] = {}
    for path in (*plan.tensors, *(alias for alias in plan.aliases if alias not in plan.tensors)):
        way = list(segments(path, own.__contains__))
        while True:
            ends = tuple(way)
            above = any(taken.get(ends[:i]) == "tensor" for i in range(1, len(ends)))
            if not above and ends not in taken:
                break
            way[-1] += "_"
            if above:
                way = ["_".join(way)]
        for i in range(1, len(ends)):
            taken[ends[:i]] = "part"
        taken[ends] = "tensor"
        places[path] = ends
    return places


def _put(root: Module, way: Sequence[str], tensor: Any) -> Module:
    """Set a tensor at its path, and create the modules on the way; returns the last of them."""
    module = root
    for name in way[:-1]:
        part = vars(module).get(name)
        if part is None:
            part = OnnxPart()
            setattr(module, name, part)
        module = part
    setattr(module, way[-1], tensor)
    return module


def _spec(value: Any) -> InputSpec:
    """The graph's description of an input."""
    kind, proto = "tensor", value.type
    if proto.HasField("optional_type"):
        kind, proto = "optional", proto.optional_type.elem_type
    if proto.HasField("sequence_type"):
        kind, proto = ("sequence" if kind == "tensor" else "optional sequence"), proto.sequence_type.elem_type
    if proto.HasField("map_type") or proto.HasField("sparse_tensor_type"):
        raise FileFormatError(f"the input {value.name!r} is a map or a sparse tensor, which is not supported")
    tensor = proto.tensor_type
    lengths: list[int | str | None] | None = None
    if tensor.HasField("shape"):
        lengths = [int(n.dim_value) if n.HasField("dim_value") else str(n.dim_param) or None for n in tensor.shape.dim]
    return InputSpec(value.name, tensor.elem_type, None if lengths is None else tuple(lengths), kind)


def _report(compiled: Compiled, plan: Plan, places: dict[str, tuple[str, ...]]) -> OnnxReport:
    entries = [
        Entry(
            ".".join(places[path]), tuple(found.names), found.role, tuple(map(int, found.array.shape)),
            found.array.dtype.name, found.change, found.reason,
        )
        for path, found in plan.tensors.items()
    ]  # fmt: skip
    entries += [
        Entry(c.name, (c.name,), "constant", tuple(map(int, c.array.shape)), c.array.dtype.name, "", "on the host")
        for c in plan.host
    ]

    def of(role: str) -> tuple[Entry, ...]:
        return tuple(entry for entry in entries if entry.role == role)

    named = {path: ".".join(place) for path, place in places.items()}
    renamed = [(name, entry.path) for entry in entries for name in entry.names if name != entry.path]
    return OnnxReport(
        of("parameter"), of("buffer"), of("constant"),
        tuple((named[path], name) for path, name in plan.ties)
        + tuple((named[path], named[alias]) for alias, (path, _) in plan.aliases.items() if alias in named),
        tuple((name, tuple(named[path] for path in paths)) for name, paths in plan.splits),
        tuple(plan.missing), tuple(renamed), dict(compiled.operators),
    )  # fmt: skip
