"""Exporting loaded graphs again: their nodes are written as they were in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from backburn.base.module_calls import CALL
from backburn.onnx.attributes import schema_of
from backburn.onnx.exporter.mappings import NUMBERS
from backburn.onnx.exporter.recorder import OPSET, Node, Recorder, Value
from backburn.onnx.graph import Step
from backburn.onnx.messages import node_words
from backburn.onnx.naming import LAYER, STOP
from backburn.tensor.core.wrapping import is_tensor, wrap

#: Operators that, since this opset, have only gained data types or options.
_ONLY_WIDENED = {
    "Cast": 13, "ConstantOfShape": 9, "DequantizeLinear": 19, "Flatten": 13, "Identity": 14, "Pad": 18,
    "QuantizeLinear": 19, "Reshape": 14, "Shape": 15, "Size": 13, "Squeeze": 13, "Transpose": 13, "Unsqueeze": 13,
}  # fmt: skip
#: Operators whose results have lengths that depend on values.
_LOOSE = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})


class Copier:
    """Runs the steps of loaded graphs on a recorder, and writes the node of each.

    Results are computed on the recorder's inner backend. Arrays on the host have names as well, so that the written
    graph still computes shapes. The rest is recorded as operations instead: bodies of loops and branches, nodes of an
    opset in which the operator was different, and types that tensors do not have.
    """

    def __init__(self, recorder: Recorder, results: Iterable[str]) -> None:
        """For a recorder, and a graph with names for its results."""
        self._recorder = recorder
        self._results = set(results)
        #: Arrays on the host that nodes have computed, by identity, with their names.
        self._host: dict[int, tuple[Any, str]] = {}
        self._is_inside = False

    def __call__(self, step: Step, given: Sequence[Any], compute: Callable[[list[Any]], Any]) -> Any:
        """The results of a step, which ``compute`` computes from its inputs."""
        w = self._recorder
        if self._is_inside or not self._can_copy(step, given):
            return compute([*given])
        self._is_inside = True
        try:
            result = compute([self._outside(x) for x in given])
        finally:
            self._is_inside = False
        parts = result if isinstance(result, tuple) else (result,)
        if not all(x.__class__ is np.ndarray or is_tensor(x) for x in parts):
            return compute([*given])
        names = self._write(step, given)
        loose = step.operator in _LOOSE or any(is_tensor(x) and x.backend is w and x.primitive.loose for x in given)
        w.has_loose = w.has_loose or loose
        made = tuple(self._made(name, x, given, loose) for name, x in zip(names, parts, strict=False))
        return made if isinstance(result, tuple) else made[0]

    def tensor_of(self, array: Any) -> Any:
        """An array on the host that a node has computed, as a tensor; None for other arrays."""
        if self._is_inside or id(array) not in self._host:
            return None
        w = self._recorder
        primitive = w.inner_backend.from_numpy(array)
        return wrap(w.made(self._host[id(array)][1], primitive, False), w)

    def _can_copy(self, step: Step, given: Sequence[Any]) -> bool:
        if not step.node or not _is_same(step.operator, step.opset):
            return False
        for x, kind in zip(given, step.kinds, strict=False):
            if x is None or x.__class__ is np.ndarray:
                continue
            if not is_tensor(x) or kind == "Host" or x.backend not in (self._recorder, self._recorder.inner_backend):
                return False
            if x.primitive.__class__ is Value and x.primitive.parts:
                return False
        return True

    def _outside(self, x: Any) -> Any:
        """An input on the recorder's inner backend."""
        is_here = is_tensor(x) and x.backend is self._recorder
        return wrap(x.primitive.primitive, self._recorder.inner_backend) if is_here else x

    def _input(self, x: Any, stored: str) -> Any:
        """An input for a node, of the data type ``stored`` if that is not the tensor's."""
        w = self._recorder
        if x is None:
            return None
        name: Any = self._host.get(id(x), (None, x))[1]
        if is_tensor(x):
            name = x.primitive.name if x.backend is w else np.array(w.inner_backend.to_numpy(x.primitive))
        if not stored:
            return name
        from onnx.helper import tensor_dtype_to_np_dtype

        if isinstance(name, str):
            w.stored[name] = stored
            return name
        return name.astype(tensor_dtype_to_np_dtype(NUMBERS[stored]))

    def _write(self, step: Step, given: Sequence[Any]) -> list[str]:
        """Write the node of a step, and return the names of its results."""
        from onnx import NodeProto

        w, node = self._recorder, NodeProto.FromString(step.node)
        call = CALL.get()
        outer = (call.layer if call is not None else None) or ""
        notes = {entry.key: entry.value for entry in node.metadata_props}
        first = next(iter(node.output), "")
        wanted = "/".join(filter(None, (outer, node.name or first or step.operator)))
        is_result = wanted == first and first in self._results
        name = wanted if is_result else w.free(wanted)
        names = [name, *(w.free(f"{name}_{i}") for i in range(1, len(step.outputs)))]
        inputs = [self._input(x, stored) for x, stored in zip(given, step.stored, strict=True)]
        while inputs and inputs[-1] is None:
            inputs.pop()
        layer = ".".join(filter(None, (outer, notes.get(LAYER, ""))))
        words = node_words(step.operator, step.name, step.domain, step.opset)
        attributes = {attribute.name: attribute for attribute in node.attribute}
        w.nodes.append(Node(step.operator, inputs, names, attributes, layer, words, STOP if STOP in notes else ""))
        return names

    def _made(self, name: str, x: Any, given: Sequence[Any], loose: bool) -> Any:
        """A result under its name."""
        if x.__class__ is np.ndarray:
            made = x.view() if any(x is y for y in given) else x
            self._host[id(made)] = made, name
            return made
        return wrap(self._recorder.made(name, x.primitive, loose), self._recorder)


@lru_cache(4096)
def _is_same(operator: str, opset: int) -> bool:
    """Whether an operator is the same in this opset and in the one that is written."""
    there, here = schema_of(operator, opset, ""), schema_of(operator, OPSET, "")
    if there is None or here is None:
        return False
    return there.since == here.since or _ONLY_WIDENED.get(operator, OPSET) <= there.since <= OPSET
