"""Graphs compiled to steps, and their execution.

The values of a graph are in a list of slots. A step reads slots, computes, writes slots, and frees the values that no
later step reads. A value is a tensor, a NumPy array (numbers on the host, such as shapes), a list of tensors (a
sequence), or None (an optional without a value).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from backburn.backend.contract import AnyBackend
from backburn.base.errors import (
    ArgumentError,
    AxisError,
    BackburnError,
    DTypeError,
    OutOfRangeError,
    ShapeError,
    Unsupported,
)
from backburn.onnx.limits import Limits
from backburn.onnx.messages import node_words, shown_all
from backburn.onnx.registry import UseBody
from backburn.tensor.core.host import asarray, to_host
from backburn.tensor.core.wrapping import is_tensor

#: The last slot of each graph holds None, the value of an omitted input.
NOTHING = -1
#: The standard's body of an operator for the types of values: a graph of its inputs.
Body: TypeAlias = "Callable[[Sequence[Any]], Graph | None]"


class Kept:
    """The constants of a model on the host, and a tensor of each per backend that used it."""

    def __init__(self, arrays: Iterable[NDArray[Any]]) -> None:
        self.arrays = {id(array): array for array in arrays}
        self._tensors: dict[tuple[int, AnyBackend], Any] = {}

    def tensor(self, array: NDArray[Any], backend: AnyBackend) -> Any:
        """An array as a tensor, always the same one if it is a constant."""
        if id(array) not in self.arrays:
            return asarray(array, backend=backend)
        key = id(array), backend
        if key not in self._tensors:
            self._tensors[key] = asarray(array, backend=backend)
        return self._tensors[key]


class Run:
    """One call of a model: its backend, its limits, and the iterations so far."""

    __slots__ = ("_kept", "backend", "iterations", "limits", "writer")

    def __init__(self, backend: AnyBackend, limits: Limits, kept: Kept, writer: Any = None) -> None:
        self.backend = backend
        self.limits = limits
        self._kept = kept
        self.iterations = 0
        #: Writes the graph into another file (:class:`backburn.onnx.exporter.copying.Copier`); None otherwise.
        self.writer = writer

    def constant(self, array: NDArray[Any]) -> Any:
        """An array on the host as a tensor, which is created once for a constant of the model."""
        written = None if self.writer is None else self.writer.tensor_of(array)
        return self._kept.tensor(array, self.backend) if written is None else written

    def tensor(self, array: Any, dtype: Any = None) -> Any:
        """An array on the host as a new tensor."""
        written = None if self.writer is None or dtype is not None else self.writer.tensor_of(array)
        return asarray(array, dtype=dtype, backend=self.backend) if written is None else written

    def count_iteration(self) -> None:
        """Count a step of a loop. Raises :class:`ArgumentError` beyond the limit."""
        self.iterations += 1
        if self.iterations > self.limits.iterations:
            raise ArgumentError(
                f"the loops of the graph take more than {self.limits.iterations} steps in one call; "
                "load(..., limits=Limits(iterations=...)) allows more"
            )

    def check_broadcast(self, *shapes: tuple[int, ...]) -> None:
        """:meth:`check_elements` of the broadcast shape, if the shapes broadcast."""
        try:
            self.check_elements(np.broadcast_shapes(*shapes))
        except ValueError as error:
            if isinstance(error, ShapeError):
                raise

    def check_elements(self, shape: Sequence[int]) -> None:
        """Raise :class:`ShapeError` for a shape with negative lengths or of more elements than the limit."""
        count = 1
        for n in shape:
            if n < 0:
                raise ShapeError(f"a tensor of shape {list(map(int, shape))} has a negative length")
            count *= int(n)
        if count > self.limits.elements:
            raise ShapeError(
                f"a tensor of shape {list(map(int, shape))} has more than {self.limits.elements} elements; "
                "load(..., limits=Limits(elements=...)) allows more"
            )


@dataclass(slots=True)
class Step:
    """A node that is ready to run."""

    operator: str
    name: str
    domain: str
    opset: int
    function: Callable[..., Any] | None
    host: Callable[..., Any] | None
    body: Body | None
    inputs: tuple[int, ...]
    #: How the function takes each input: ``"Tensor"``, ``"Host"`` or ``"Value"``.
    kinds: tuple[str, ...]
    required: int
    outputs: tuple[int, ...]
    wants_run: bool
    #: The number of inputs that the function on the host requires.
    host_required: int
    #: Attributes that are graphs.
    graphs: dict[str, Graph] = field(default_factory=dict)
    frees: tuple[int, ...] = ()
    #: The bytes of the node in the file, since the node would keep the whole file in memory; empty if its attributes or
    #: types differ from the file.
    node: bytes = b""
    #: For each input its data type in the file if no tensor can have it, else empty.
    stored: tuple[str, ...] = ()

    def __call__(self, values: list[Any], run: Run) -> None:
        """Compute, and write the results to their slots."""
        given = [values[slot] for slot in self.inputs]
        try:
            result = (
                self._result(given, values, run)
                if run.writer is None
                else run.writer(self, given, lambda inputs: self._result(inputs, values, run))
            )
        except (BackburnError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, MemoryError) as error:
            if error in _NAMED:
                raise
            raise self._error(error, given) from error
        outputs = self.outputs
        if len(outputs) == 1 and result.__class__ is not tuple:
            values[outputs[0]] = result
        else:
            if result.__class__ is not tuple:
                raise self._error(ArgumentError(f"{len(outputs)} outputs, but it computes one"), given)
            for slot, value in zip(outputs, result, strict=False):
                values[slot] = value
        for slot in self.frees:
            values[slot] = None

    def _result(self, given: list[Any], values: list[Any], run: Run) -> Any:
        if self.host is not None and self._is_on_host(given):
            with np.errstate(all="ignore"):
                result = self.host(*given)
            if result is not NotImplemented:
                return result
        if self.function is not None:
            try:
                return self._called(self.function, given, values, run)
            except UseBody as why:
                if self.body is None:
                    raise Unsupported(f"{why}") from None
        assert self.body is not None
        graph = self.body(given)
        if graph is None:
            raise Unsupported("this cannot be computed here, and the standard has no function body of it")
        inputs = [run.tensor(x) if x.__class__ is np.ndarray and x.dtype.kind == "f" else x for x in given]
        return tuple(graph.run([*inputs, *(None,) * (len(graph.inputs) - len(inputs))], (), run))

    def _is_on_host(self, given: list[Any]) -> bool:
        """Whether all inputs are arrays on the host, and the required ones are present."""
        for i, x in enumerate(given):
            if x.__class__ is not np.ndarray and (x is not None or i < self.host_required):
                return False
        return True

    def _called(self, function: Callable[..., Any], given: list[Any], values: list[Any], run: Run) -> Any:
        taken = given[:]
        for i, kind in enumerate(self.kinds):
            value = taken[i]
            if value is None:
                if i < self.required:
                    raise ArgumentError(f"input {i} is required, but has no value")
            elif kind != "Value":
                taken[i] = _taken(i, value, kind, run)
        if self.graphs:
            closures = {
                name: Closure(graph, [values[slot] for slot in graph.outer], run) for name, graph in self.graphs.items()
            }
            return function(*taken, **closures, run=run) if self.wants_run else function(*taken, **closures)
        return function(*taken, run=run) if self.wants_run else function(*taken)

    def _error(self, error: Exception, given: Sequence[Any]) -> Exception:
        """The error with the node's name and inputs; of the same class if it is a :class:`BackburnError`."""
        kind = type(error) if isinstance(error, BackburnError) else _CLASSES.get(type(error), ArgumentError)
        where = node_words(self.operator, self.name, self.domain, self.opset)
        said = f"{error!s:.2000}" or type(error).__name__
        named = kind(f"{where}: {said}. Inputs: {shown_all(given)}")
        _NAMED.add(named)
        return named


def _taken(place: int, value: Any, kind: str, run: Run) -> Any:
    """An input converted to what the handler takes."""
    if value.__class__ is np.ndarray:
        return run.constant(value) if kind == "Tensor" else value
    if is_tensor(value):
        return to_host(value) if kind == "Host" else value
    raise DTypeError(f"input {place} is a tensor, not {shown_all([value])}")


#: Errors that already name their node.
_NAMED: WeakSet[Exception] = WeakSet()
#: backburn's errors for Python's errors that values in a file can cause.
_CLASSES: dict[type[Exception], type[BackburnError]] = {
    IndexError: OutOfRangeError,
    TypeError: DTypeError,
    MemoryError: ShapeError,
    np.exceptions.AxisError: AxisError,
}


@dataclass(slots=True)
class Graph:
    """A graph of steps."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    #: The slots of values captured from the enclosing graph: there, and here.
    outer: tuple[int, ...]
    captured: tuple[int, ...]
    #: The initial values of the slots; the last is None.
    start: list[Any]
    steps: list[Step]
    #: The data types of the outputs, and their lengths as far as the file states them.
    types: list[tuple[int, list[int | None]]] = field(default_factory=list)

    def run(self, inputs: Sequence[Any], outer: Sequence[Any], run: Run) -> list[Any]:
        """The outputs for inputs and the values captured from the enclosing graph."""
        return self.run_from(self.start[:], inputs, outer, run)

    def run_from(self, values: list[Any], inputs: Sequence[Any], outer: Sequence[Any], run: Run) -> list[Any]:
        """The outputs, with ``values`` as slots; the list is overwritten."""
        for slot, value in zip(self.inputs, inputs, strict=True):
            values[slot] = value
        for slot, value in zip(self.captured, outer, strict=True):
            values[slot] = value
        for step in self.steps:
            step(values, run)
        return [values[slot] for slot in self.outputs]


class Closure:
    """A graph that is an attribute, with the values that it captures."""

    __slots__ = ("_outer", "graph", "run")

    def __init__(self, graph: Graph, outer: Sequence[Any], run: Run) -> None:
        self.graph = graph
        self._outer = outer
        self.run = run

    def __call__(self, *inputs: Any) -> list[Any]:
        """The outputs for inputs. Raises :class:`ArgumentError` for a wrong number of inputs."""
        if len(inputs) != len(self.graph.inputs):
            raise ArgumentError(f"the body takes {len(self.graph.inputs)} values, and is given {len(inputs)}")
        return self.graph.run(inputs, self._outer, self.run)
