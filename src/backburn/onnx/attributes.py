"""Attributes of nodes as Python values, checked against the standard's schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from backburn.base.errors import ArgumentError, FileFormatError, Unsupported
from backburn.base.foreign import printable
from backburn.onnx.protos import Model, read_sparse, read_tensor

#: ``AttributeProto.AttributeType``.
FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS, STRINGS = 1, 2, 3, 4, 5, 6, 7, 8
GRAPHS, SPARSE, TYPE = 10, 11, 13


class GraphAttribute:
    """An attribute that is a graph, which is compiled with its node."""

    __slots__ = ("proto",)

    def __init__(self, proto: Any) -> None:
        self.proto = proto


class TypeAttribute:
    """An attribute that is the type of a tensor, a sequence or an optional."""

    __slots__ = ("proto",)

    def __init__(self, proto: Any) -> None:
        self.proto = proto


def read_attribute(model: Model, attribute: Any, most: int) -> Any:
    """The value of an ``AttributeProto``. Raises :class:`Unsupported` for attribute types that no operator here has."""
    kind = attribute.type
    if kind == FLOAT:
        return attribute.f
    if kind == INT:
        return attribute.i
    if kind == STRING:
        return _text(attribute.s, attribute.name)
    if kind == TENSOR:
        return read_tensor(model, attribute.t, f"the attribute {printable(attribute.name)}")
    if kind == GRAPH:
        return GraphAttribute(attribute.g)
    if kind == FLOATS:
        return tuple(attribute.floats)
    if kind == INTS:
        return tuple(attribute.ints)
    if kind == STRINGS:
        return tuple(_text(s, attribute.name) for s in attribute.strings)
    if kind == SPARSE:
        return read_sparse(model, attribute.sparse_tensor, most)
    if kind == TYPE:
        return TypeAttribute(attribute.tp)
    raise Unsupported(f"the attribute {printable(attribute.name)} has a type ({kind}) that no operator here takes")


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FileFormatError(f"the attribute {printable(name)} is not text") from error


@dataclass(frozen=True)
class Schema:
    """The standard's schema of an operator at an opset, read once."""

    name: str
    since: int
    inputs: tuple[int, int]
    outputs: int
    deprecated: bool
    #: The types of attributes, the required ones, and the defaults of the others.
    kinds: Mapping[str, int]
    required: tuple[str, ...]
    implied: Mapping[str, Any]
    #: The schema from ``onnx``, for the body.
    proto: Any


@lru_cache(4096)
def schema_of(name: str, opset: int, domain: str) -> Schema | None:
    """The schema of an operator; None if there is none."""
    from onnx import defs

    try:
        proto = defs.get_schema(name, opset, domain)
    except defs.SchemaError:
        return None
    nothing = Model(None, "the standard", None)
    known: Any = proto.attributes
    return Schema(
        name, proto.since_version, (proto.min_input, proto.max_input), proto.max_output, proto.deprecated,
        {key: int(each.type.value) for key, each in known.items()},
        tuple(key for key, each in known.items() if each.required),
        {key: read_attribute(nothing, each.default_value, 1) for key, each in known.items() if each.default_value.type},
        proto,
    )  # fmt: skip


def read_attributes(
    model: Model, node: Any, schema: Schema | None, given: Mapping[str, Any], most: int
) -> dict[str, Any]:
    """The attributes of a node; those that refer to attributes of its function have the ``given`` values.

    Raises :class:`ArgumentError` for attributes that are unknown to the schema, of the wrong type, or missing.
    """
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        name = attribute.name
        if name in found:
            raise ArgumentError(f"the attribute {printable(name)} is there twice")
        if schema is not None:
            if name not in schema.kinds:
                raise ArgumentError(f"there is no attribute {printable(name)}")
            if attribute.type != schema.kinds[name]:
                raise ArgumentError(f"the attribute {printable(name)} has another type than in the standard")
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in given:
                found[name] = given[attribute.ref_attr_name]
            continue
        found[name] = read_attribute(model, attribute, most)
    if schema is not None:
        for name in schema.required:
            if name not in found:
                raise ArgumentError(f"the attribute {printable(name)} is missing")
    return found
