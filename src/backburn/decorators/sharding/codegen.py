"""The source code that ``Sharded`` generates for each operation, which repeats known calls by routes.

How a call is computed shard by shard depends only on the shapes and placements of its operands and on its attributes.
The first such call applies the rules (:mod:`backburn.decorators.sharding.operations`) and stores a :class:`Route`,
which later ones take. All names in the code but those of operands and attributes begin with an underscore.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from backburn.decorators.sharding.creation import CONSTANTS, CREATED, DRAWS, create
from backburn.decorators.sharding.shards import Cuts, Shards
from backburn.ops.table import Operation

#: The most routes that a level keeps; to add one more it forgets all.
MOST_ROUTES = 4096


class Route(NamedTuple):
    """How calls of one kind are computed shard by shard.

    ``ways`` says what the shards take of each operand: ``True`` stands for its parts as they are, ``False`` for all of
    an operand that is not in parts, None for all of one that is, and a number for the axis along which it is cut anew,
    with the lengths ``cuts``. ``local`` are the attributes that differ between the shards of this process, or None.
    ``placed`` has for each result its axis, cuts and shape, or None where it is equal on all shards; ``several`` says
    whether the operation returns a tuple.
    """

    ways: tuple[Any, ...]
    cuts: Cuts
    local: list[dict[str, Any]] | None
    placed: tuple[tuple[int | None, Cuts, tuple[int, ...]] | None, ...]
    several: bool


def source(entry: Operation, elementwise: bool) -> str:
    """The text of an operation's method."""
    name, operands = entry.name, entry.operands
    attributes = list(entry.attributes)
    passed = ", ".join([*operands, *attributes])
    options = ", ".join(f"{a!r}: {a}" for a in attributes)
    begin = [_signature(entry)]
    if not operands:
        lines = begin
        if name in CONSTANTS | DRAWS:
            lines += ["    if _created() is not None:", f"        return _create(self, {name!r}, {{{options}}})"]
        return "\n".join([*lines, f"    return self._inner.{name}({passed})", ""])
    lines = [*begin, "    _axis = self.mesh_axis"]
    for x in operands:
        if x in entry.lists:
            lines.append(f"    _in_{x} = _takes_part(self, {x})")
        else:
            lines.append(f"    _in_{x} = {x}.__class__ is _Shards and {x}.mesh_axis == _axis")
    lines.append(f"    if not ({' or '.join(f'_in_{x}' for x in operands)}):")
    lines.append(f"        return self._inner.{name}({passed})")
    if elementwise:
        lines += _elementwise(entry, attributes)
    given = f"self, ({', '.join(operands)},), {{{options}}}"
    key = ", ".join([repr(name), *(_key_of(x, x in entry.lists) for x in operands), *attributes])
    if "Q" in entry.kinds or "quantize" in name:  # quantization schemes decide
        key += "".join(f", {'_dtypes' if x in entry.lists else '_dtype'}(self, {x})" for x in operands)
    lines.append(f"    _key = ({key})")
    lines += [
        "    try:",
        "        _route = self.routes.get(_key)",
        "    except TypeError:  # attributes without a hash",
    ]
    lines += ["        _key = _route = None", "    if _route is None:", f"        return _compute({given}, _key)"]
    lines += ["    if _route is _BODY:", f"        return _body(self, {passed})"]
    lines.append("    _ways, _cuts, _local, _placed, _several = _route")
    columns = [f"_all_{x}" for x in operands]
    for i, (x, column) in enumerate(zip(operands, columns, strict=True)):
        lines.append(f"    _way = _ways[{i}]")
        if x in entry.lists:
            lines.append(f"    {column} = _columns(self, {x}, _way, _cuts)")
            continue
        lines.append(
            f"    {column} = {x}.parts if _way is True else [{x}] * len(self.own) if _way is False "
            f"else self.parts({x}, _way, _cuts)"
        )
    lines.append(f"    _function = self._inner.{name}")
    found = f"_found = {_each(operands, passed, columns)}"
    if attributes:
        each = ", ".join(operands)
        rows = f"zip({', '.join([*columns, '_local'])})"
        differing = f"_function({each}, **{{{options}}} | _own)"
        lines += ["    if _local is None:", f"        {found}", "    else:"]
        lines.append(f"        _found = [{differing} for {each}, _own in {rows}]")
    else:
        lines.append(f"    {found}")
    lines += ["    if _several:", "        return _placed_results(_found, _placed, _axis)", "    _place = _placed[0]"]
    lines.append("    return _found[0] if _place is None else _Shards(_found, _place[0], _place[1], _place[2], _axis)")
    return "\n".join([*lines, ""])


def _signature(entry: Operation) -> str:
    """The ``def`` line: the operands, positional-only, and the attributes with their defaults."""
    names = ["self"]
    for index, (name, parameter) in enumerate(entry.parameters.items()):
        names.append(name if parameter.default is parameter.empty else f"{name}=_defaults[{index}]")
    names.insert(1 + len(entry.operands), "/")
    return f"def {entry.name}({', '.join(names)}):"


def _each(names: Sequence[str], call: str, columns: list[str]) -> str:
    """The list of a function's results for each row of ``columns``, whose entries are ``names``."""
    if ", ".join(names) == call:
        return f"list(map(_function, {', '.join(columns)}))"
    rows = f"zip({', '.join(columns)})" if len(columns) > 1 else columns[0]
    return f"[_function({call}) for {', '.join(names)} in {rows}]"


def _key_of(x: str, is_list: bool) -> str:
    """Properties of an operand on which a route depends, as members of a key."""
    if is_list:
        return f"_placements(self, {x})"
    return f"*(({x}.axis, {x}.cuts, {x}.shape) if _in_{x} else (None, None, getattr({x}, 'shape', None)))"


def _elementwise(entry: Operation, attributes: list[str]) -> list[str]:
    """The lines for operands that are cut alike, or are numbers."""
    rest = "".join(f", {a}" for a in attributes)
    if len(entry.operands) == 1:
        (x,) = entry.operands
        return [
            f"    if {x}.axis is not None:",
            f"        _function = self._inner.{entry.name}",
            f"        _found = {_each(['_part'], f'_part{rest}', [f'{x}.parts'])}",
            f"        return _Shards(_found, {x}.axis, {x}.cuts, {x}.shape, _axis)",
        ]
    if len(entry.operands) != 2:
        return []
    x, y = entry.operands
    same = " and ".join([f"{x}.axis is not None", *(f"{x}.{a} == {y}.{a}" for a in ("axis", "cuts", "shape"))])
    lines = [
        f"    if _in_{x} and _in_{y}:",
        f"        if {same}:",
        f"            _function = self._inner.{entry.name}",
        f"            _found = {_each(['_a', '_b'], f'_a, _b{rest}', [f'{x}.parts', f'{y}.parts'])}",
        f"            return _Shards(_found, {x}.axis, {x}.cuts, {x}.shape, _axis)",
    ]
    for cut, number, call in ((x, y, f"_part, {y}"), (y, x, f"{x}, _part")):
        lines += [
            f"    elif _in_{cut} and {cut}.axis is not None and {number}.__class__ in _numbers:",
            f"        _function = self._inner.{entry.name}",
            f"        _found = [_function({call}{rest}) for _part in {cut}.parts]",
            f"        return _Shards(_found, {cut}.axis, {cut}.cuts, {cut}.shape, _axis)",
        ]
    return lines


def placements(level: Any, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Properties of a list of tensors on which a route depends."""
    return tuple((x.axis, x.cuts, x.shape) if level.is_cut(x) else getattr(x, "shape", None) for x in tensors)


def columns(level: Any, tensors: Sequence[Any], axis: int | None, cuts: Cuts) -> list[list[Any]]:
    """The primitives of a list of tensors for each shard of this process."""
    found = [level.parts(x, axis, cuts) for x in tensors]
    return [list(own) for own in zip(*found, strict=True)] if found else [[]] * len(level.own)


def dtype_of(level: Any, x: Any) -> Any:
    """The dtype of an operand; None for a number and an absent one."""
    return level.dtype(x) if hasattr(x, "shape") else None


def dtypes_of(level: Any, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """The dtypes of a list of tensors."""
    return tuple(dtype_of(level, x) for x in tensors)


def placed_results(found: list[tuple[Any, ...]], placed: tuple[Any, ...], mesh_axis: str) -> tuple[Any, ...]:
    """The results of an operation that has several, from those of each shard."""
    return tuple(
        parts[0] if place is None else Shards(list(parts), place[0], place[1], place[2], mesh_axis)
        for parts, place in zip(zip(*found, strict=True), placed, strict=True)
    )


def compiled(entry: Operation, text: str, names: dict[str, Any]) -> Callable[..., Any]:
    """The function that ``text`` defines; it may use ``names`` and the common names, and tracebacks show its lines."""
    namespace: dict[str, Any] = {
        "__name__": "backburn.decorators.sharding",
        "_Shards": Shards,
        "_numbers": (float, int, bool, complex),
        "_body": entry.body,
        "_defaults": tuple(p.default for p in entry.parameters.values()),
        "_placed_results": placed_results,
        "_placements": placements,
        "_columns": columns,
        "_dtype": dtype_of,
        "_dtypes": dtypes_of,
        "_created": CREATED.get,
        "_create": create,
        **names,
    }
    filename = f"<backburn.sharded {entry.name}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), namespace)
    function: Callable[..., Any] = namespace[entry.name]
    function.__doc__ = entry.body.__doc__
    function.__qualname__ = f"Sharded.{entry.name}"
    return function
