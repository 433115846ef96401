"""The module that runs an ONNX graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from backburn.backend.contract import AnyBackend
from backburn.base.errors import ArgumentError, DTypeError, ShapeError, hint_for
from backburn.base.foreign import listed, printable, quoted
from backburn.nn.module import Module
from backburn.onnx.dtypes import BY_VALUE, NAMES, NARROW, held, named
from backburn.onnx.graph import Graph, Kept, Run
from backburn.onnx.limits import Limits
from backburn.onnx.messages import shown
from backburn.onnx.report import OnnxReport
from backburn.tensor.core.host import asarray
from backburn.tensor.core.levels import innermost
from backburn.tensor.core.wrapping import is_tensor

#: A slot, the attributes on the way to each of its tensors, and the function that combines these.
Binding = tuple[int, tuple[tuple[str, ...], ...], Callable[..., Any] | None]


@dataclass(frozen=True)
class InputSpec:
    """The graph's description of an input: its data type and lengths; a length that may vary has a name, or None."""

    name: str
    data_type: int
    shape: tuple[int | str | None, ...] | None
    kind: str

    def __str__(self) -> str:
        if self.kind != "tensor":
            return self.kind
        lengths = "..." if self.shape is None else ", ".join("?" if n is None else str(n) for n in self.shape)
        return f"{named(self.data_type)}[{printable(lengths)}]"


class Program:
    """The constant data of a loaded model, outside of its tree: the graph, and the sources of its slots."""

    def __init__(
        self,
        graph: Graph,
        bindings: tuple[Binding, ...],
        inputs: tuple[InputSpec, ...],
        outputs: tuple[str, ...],
        limits: Limits,
        kept: Kept,
    ) -> None:
        self.graph, self.bindings, self.inputs, self.outputs = graph, bindings, inputs, outputs
        self.limits, self.kept = limits, kept

    def __repr__(self) -> str:
        count = len(self.graph.steps)
        return f"<graph of {count} node{'s' if count != 1 else ''}>"

    def __deepcopy__(self, memo: object) -> Program:
        return self

    def __copy__(self) -> Program:
        return self


class OnnxPart(Module):
    """A part of an :class:`OnnxModel`: the parameters and buffers whose paths begin with its path."""


class OnnxModel(Module):
    """An ONNX graph as a module, created by :func:`backburn.onnx.load`.

    Call it with the inputs of the graph, in order or by name; it returns the output, or a tuple of outputs. Parameters
    and buffers have the paths of the exported model, if the file has them. ``report`` shows how the tensors of the file
    are used.

        >>> import backburn as bb
        >>> from onnx import parser
        >>> text = '<ir_version: 10, opset_import: ["": 20]> g (float[n, 2] x) => (float[n, 1] y)'
        >>> text += " <float[1, 2] w = {1, 2}> { y = Gemm <transB = 1> (x, w) }"
        >>> model = bb.onnx.load(parser.parse_model(text))
        >>> model(bb.ones((3, 2))).shape, [path for path, _ in model.named_parameters()]
        ((3, 1), ['w'])
    """

    report: OnnxReport
    _program: Program

    def __init__(self, program: Program, report: OnnxReport, backend: AnyBackend) -> None:
        self._program = program
        self._backend = backend
        self.report = report

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the graph's inputs."""
        return tuple(spec.name for spec in self._program.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the graph's outputs."""
        return self._program.outputs

    @property
    def input_specs(self) -> tuple[InputSpec, ...]:
        """The graph's descriptions of its inputs."""
        return self._program.inputs

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        """The outputs for inputs: tensors, arrays, or lists of them for sequences.

        Raises :class:`ArgumentError` for unknown or missing inputs, :class:`ShapeError` and :class:`DTypeError` for
        those that do not fit, and errors that name the node if a node fails.
        """
        program = self._program
        given = self._bound(inputs, named_inputs)
        tensors = []
        for _, paths, _ in program.bindings:
            tensors.append([self._at(path) for path in paths])
        backend = self._where(given, tensors)
        values = [_checked(x, spec, backend) for x, spec in zip(given, program.inputs, strict=True)]
        run = Run(backend, program.limits, program.kept, self._writer(given, tensors))
        graph = program.graph
        start = graph.start[:]
        for (slot, _, assemble), found in zip(program.bindings, tensors, strict=True):
            start[slot] = found[0] if assemble is None else assemble(*found)
        results = [_result(value, run) for value in graph.run_from(start, values, (), run)]
        return results[0] if len(results) == 1 else tuple(results)

    def _at(self, path: Sequence[str]) -> Any:
        found: Any = self
        for name in path:
            found = vars(found)[name] if isinstance(found, Module) else found[name]
        return found

    def _where(self, given: Sequence[Any], tensors: Sequence[Sequence[Any]]) -> AnyBackend:
        """The backend for constants: the innermost one, from which they are lifted to any level."""
        for x in (*(t for group in tensors for t in group), *given):
            if is_tensor(x):
                return innermost(x.backend)
        return self._backend

    def _writer(self, given: Sequence[Any], tensors: Sequence[Sequence[Any]]) -> Any:
        """The writer that copies nodes if the model is being exported; else None."""
        found = (getattr(x.backend, "writer", None) for x in (*(t for g in tensors for t in g), *given) if is_tensor(x))
        return next((writer for writer in found if writer is not None), None)

    def _bound(self, inputs: Sequence[Any], by_name: dict[str, Any]) -> list[Any]:
        """The inputs in the order of the graph."""
        specs = self._program.inputs
        if len(inputs) > len(specs):
            raise ArgumentError(f"the graph takes {self._signature()}, and {len(inputs)} inputs are given")
        given: dict[str, Any] = dict(zip((spec.name for spec in specs), inputs, strict=False))
        for name, value in by_name.items():
            if name in given:
                raise ArgumentError(f"the input {quoted(name)} is given twice")
            if all(name != spec.name for spec in specs):
                hint = hint_for(name, [spec.name for spec in specs])
                raise ArgumentError(f"the graph has no input {quoted(name)}. {hint}")
            given[name] = value
        missing = [spec.name for spec in specs if spec.name not in given and not spec.kind.startswith("optional")]
        if missing:
            raise ArgumentError(f"the graph takes {self._signature()}; missing: {listed(missing)}")
        return [given.get(spec.name) for spec in specs]

    def _signature(self) -> str:
        return ", ".join(f"{printable(spec.name)}: {spec}" for spec in self._program.inputs) or "no input"


def _checked(value: Any, spec: InputSpec, backend: AnyBackend) -> Any:
    """An input as the graph takes it."""
    if value is None and spec.kind.startswith("optional"):
        return None
    if isinstance(value, (list, tuple)) and "sequence" in spec.kind:
        return [x if is_tensor(x) else asarray(x, backend=backend) for x in value]
    if "sequence" in spec.kind:
        raise DTypeError(f"the input {quoted(spec.name)} is a sequence: a list of tensors, not {shown(value)}")
    kind = held(spec.data_type)
    if kind is None:
        raise DTypeError(f"the input {quoted(spec.name)} holds {named(spec.data_type)}, which tensors cannot hold")
    given: Any = value
    if not is_tensor(given):
        dtype = None if hasattr(given, "dtype") else kind
        name = NAMES[spec.data_type]
        if (name in BY_VALUE or name in NARROW) and hasattr(given, "dtype"):
            given = np.asarray(given).astype(kind.dtype)
        given = asarray(given, dtype=dtype, backend=backend)
    if given.dtype is not kind and not (given.dtype.is_floating and kind.is_floating):
        raise DTypeError(
            f"the input {quoted(spec.name)} is {spec}, and is given {shown(given)}: astype({kind.name!r}) casts it"
        )
    if spec.shape is not None and spec.kind == "tensor":
        fits = len(spec.shape) == given.ndim and all(
            not isinstance(n, int) or n == m for n, m in zip(spec.shape, given.shape, strict=True)
        )
        if not fits:
            raise ShapeError(f"the input {quoted(spec.name)} is {spec}, and is given {shown(given)}")
    return given


def _result(value: Any, run: Run) -> Any:
    """An output of the graph as tensors."""
    if isinstance(value, np.ndarray):
        return run.tensor(value)
    return [_result(part, run) for part in value] if isinstance(value, list) else value
