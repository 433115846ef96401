"""The position of an iteration over data, as plain values: read from loaders by either of two protocols.

Iterators of Grain, and those of :func:`backburn.data.batches`, have ``get_state`` and ``set_state``; loaders of
``torchdata`` have ``state_dict`` and ``load_state_dict``. Nothing else can be resumed in the middle of an epoch.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

#: Keys of the tables that represent values that JSON lacks.
_BYTES, _TUPLE, _ITEMS = "$bytes", "$tuple", "$items"


def has_position(data: Any, iterator: Any) -> bool:
    """Whether the position of an iteration over ``data`` can be read and set."""
    return _asks(iterator, "get_state", "set_state") or _asks(data, "state_dict", "load_state_dict")


def position_of(data: Any, iterator: Any) -> Any:
    """The position of an iteration, as a tree of plain values; None if it cannot be read."""
    if _asks(iterator, "get_state", "set_state"):
        return {"iterator": plain(iterator.get_state())}
    if _asks(data, "state_dict", "load_state_dict"):
        return {"loader": plain(data.state_dict())}
    return None


def iterator_at(data: Any, begin: Any, position: Any) -> Iterator[Any]:
    """An iterator, created by ``begin``, that continues at a position of :func:`position_of`."""
    if position is not None and "loader" in position:
        data.load_state_dict(of_plain(position["loader"]))
        found: Iterator[Any] = begin()
        return found
    iterator: Any = begin()
    if position is not None:
        iterator.set_state(of_plain(position["iterator"]))
    return iterator


def plain(value: Any) -> Any:
    """A tree with bytes, tuples and keys of any type as one for JSON."""
    if isinstance(value, (bytes, bytearray)):
        return {_BYTES: base64.b64encode(value).decode("ascii")}
    if isinstance(value, tuple):
        return {_TUPLE: [plain(x) for x in value]}
    if isinstance(value, list):
        return [plain(x) for x in value]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: plain(x) for key, x in value.items()}
        return {_ITEMS: [[plain(key), plain(x)] for key, x in value.items()]}
    return value


def of_plain(value: Any) -> Any:
    """The inverse of :func:`plain`."""
    if isinstance(value, list):
        return [of_plain(x) for x in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_BYTES}:
        return base64.b64decode(value[_BYTES])
    if value.keys() == {_TUPLE}:
        return tuple(of_plain(x) for x in value[_TUPLE])
    if value.keys() == {_ITEMS}:
        return {of_plain(key): of_plain(x) for key, x in value[_ITEMS]}
    return {key: of_plain(x) for key, x in value.items()}


def _asks(thing: Any, *names: str) -> bool:
    return all(hasattr(thing, name) for name in names)
