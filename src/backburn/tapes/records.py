"""Records and maps as values of a node: trees of tensors, whose gradients are trees of the same structure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from backburn.base.errors import ArgumentError, DTypeError, NoKeyError, OutOfRangeError, hint_for
from backburn.base.trees import NODE_TYPES, register_node
from backburn.tapes.public import published
from backburn.tapes.values import index_of


@published("backburn.tape.Record")
class Record:
    """Named values, in order; read as attributes, by name, or by position.

    >>> point = Record(x=1.0, y=2.0)
    >>> point.y, point["x"], point[0], list(point)
    (2.0, 1.0, 1.0, ['x', 'y'])
    """

    __slots__ = ("_fields",)
    _fields: dict[str, Any]

    def __init__(self, /, **fields: Any) -> None:
        object.__setattr__(self, "_fields", fields)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_fields":
            raise AttributeError(name)
        try:
            return self._fields[name]
        except KeyError:
            raise AttributeError(f"the record has no field {name!r}. {hint_for(name, self._fields)}") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a record is immutable: {name} cannot be set")

    def __getitem__(self, key: str | int) -> Any:
        return self._fields[key] if isinstance(key, str) else list(self._fields.values())[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"Record({', '.join(f'{k}={v!r}' for k, v in self._fields.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Record, **self._fields), ()


register_node(
    Record,
    lambda node: (list(node._fields.values()), list(node._fields), None),
    lambda children, keys, rest: Record(**dict(zip(keys, children, strict=True))),
)


def is_tree(value: Any) -> bool:
    """Whether a value has parts: a record, a map, or another node of a tree."""
    return value is not None and NODE_TYPES[type(value)] is not None


def parts(value: Any) -> tuple[list[Any], list[Any]]:
    """The children of a tree and their keys, in order."""
    node = NODE_TYPES[type(value)]
    assert node is not None
    children, keys, _ = node.flatten(value)
    return list(children), list(keys)


def check_form(value: Any, mapping: bool) -> None:
    """Raise for a look-up in a record, and for a field of a map."""
    if isinstance(value, Mapping) is not mapping:
        raise DTypeError("it is a record: use StructField" if mapping else "it is a map: use MapLookup")


def field_place(node: int, value: Any, name_or_index: str | int) -> tuple[int, int]:
    """The index of a record's field, and the number of fields."""
    if isinstance(value, Mapping) or not is_tree(value):
        what = "a map: use map_lookup" if isinstance(value, Mapping) else "not a record: graph.record(...) makes one"
        raise DTypeError(f"struct_field: node {node} is {what}")
    _, keys = parts(value)
    if isinstance(name_or_index, str):
        if name_or_index not in keys:
            raise ArgumentError(
                f"struct_field: the record of node {node} has no field {name_or_index!r}. "
                f"{hint_for(name_or_index, map(str, keys))}"
            )
        return keys.index(name_or_index), len(keys)
    place = index_of(name_or_index)
    if place is None:
        raise DTypeError(f"struct_field: a field is given by name or index, not {name_or_index!r}")
    if not 0 <= place < len(keys):
        have = f"fields 0 to {len(keys) - 1}"
        raise OutOfRangeError(f"struct_field: the record of node {node} has {have}, not {place}")
    return place, len(keys)


def key_place(node: int, value: Any, key: Any) -> tuple[int, int]:
    """The index of a map's key, in insertion order, and the number of keys."""
    if not isinstance(value, Mapping):
        what = "a record: use struct_field" if is_tree(value) else "not a map: graph.mapping({...}) makes one"
        raise DTypeError(f"map_lookup: node {node} is {what}")
    _, keys = parts(value)
    if key not in keys:
        raise NoKeyError(f"map_lookup: the map of node {node} has no key {key!r}. {hint_for(str(key), map(str, keys))}")
    return keys.index(key), len(keys)
