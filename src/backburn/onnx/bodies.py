"""The standard's function bodies of operators, which compute operators without a handler from other operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from backburn.onnx.dtypes import NAMES
from backburn.onnx.limits import Limits
from backburn.tensor.core.wrapping import is_tensor

if TYPE_CHECKING:
    from backburn.onnx.graph import Graph

_NUMBERS = {name: number for number, name in NAMES.items()}


def has(schema: Any) -> bool:
    """Whether the standard has a function body of an operator."""
    return bool(schema.has_function or schema.has_context_dependent_function)


class Body:
    """The body of one node, compiled at the first call with each combination of input types."""

    def __init__(
        self, node: Any, schema: Any, opsets: Mapping[str, int], opset: int, given: Mapping[str, Any], limits: Limits
    ) -> None:
        #: The node's bytes, since the node would keep the whole file in memory.
        self.node = _with_values(node, given).SerializeToString()
        self.schema = schema
        self.opsets = opsets
        self.opset = opset
        self.given = given
        self.limits = limits
        self._graphs: dict[Any, Graph | None] = {}

    @property
    def depends_on_types(self) -> bool:
        """Whether the body differs between input types."""
        return not self.schema.has_function

    def function(self, types: Sequence[bytes] = ()) -> Any:
        """The body as a ``FunctionProto``; None if there is none for these types."""
        import onnx

        if self.schema.has_function:
            body = self.schema.get_function_with_opset_version(self.opset) or self.schema.function_body
            return onnx.FunctionProto.FromString(body) if isinstance(body, bytes) else body
        versions = [v for v in self.schema.context_dependent_function_opset_versions if v <= self.opset]
        for version in sorted(versions or self.schema.context_dependent_function_opset_versions, reverse=True):
            data = self.schema.get_context_dependent_function_with_opset_version(version, self.node, list(types))
            if data:
                return onnx.FunctionProto.FromString(data)
        return None

    def __call__(self, values: Sequence[Any]) -> Graph | None:
        """The graph of the body for inputs."""
        key = tuple(_type_of(value) for value in values)
        if key not in self._graphs:
            self._graphs[key] = self._compiled(key)
        return self._graphs[key]

    def _compiled(self, types: Sequence[bytes]) -> Graph | None:
        from backburn.onnx.attributes import schema_of
        from backburn.onnx.compile import Compiler
        from backburn.onnx.protos import Model

        function = self.function(types)
        if function is None:
            return None
        model = Model(None, f"the standard's body of {self.schema.name}", None)
        compiler = Compiler(model, self.limits)
        schema = schema_of(self.schema.name, self.opset, self.schema.domain)
        given = {**(schema.implied if schema else {}), **self.given}
        graph = compiler.compile_body(function, given, self.opsets)
        for constant in compiler.constants:
            graph.start[constant.slot] = constant.array
        return graph


def _with_values(node: Any, given: Mapping[str, Any]) -> Any:
    """A node whose references to attributes of a function are replaced by the values that the function was given."""
    if not any(attribute.ref_attr_name for attribute in node.attribute):
        return node
    import onnx

    made = onnx.NodeProto()
    made.CopyFrom(node)
    del made.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            made.attribute.append(attribute)
        elif isinstance(given.get(attribute.name), (int, float, str, tuple)):
            made.attribute.append(onnx.helper.make_attribute(attribute.name, given[attribute.name]))
    return made


def _type_of(value: Any) -> bytes:
    """The serialized type of an input for the standard's functions; empty for an omitted input."""
    import onnx

    proto = onnx.TypeProto()
    if isinstance(value, list):
        if value:
            proto.sequence_type.elem_type.tensor_type.elem_type = _number_of(value[0])
    elif value is not None:
        proto.tensor_type.elem_type = _number_of(value)
        for n in value.shape:
            proto.tensor_type.shape.dim.add().dim_value = int(n)
    return bytes(proto.SerializeToString(deterministic=True))


def _number_of(value: Any) -> int:
    if is_tensor(value):
        return _NUMBERS[value.dtype.name]
    return _NUMBERS[np.asarray(value).dtype.name]
