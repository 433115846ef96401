"""Trees (pytrees): nested containers with values at their leaves, such as models or the arguments of a function.

Dicts, lists, tuples, named tuples and dataclasses are nodes, and so are types registered with :func:`register_node`;
None is a node without children; everything else is a leaf. :func:`flatten` splits a tree into its leaves and its
:class:`Structure`, and :func:`unflatten` is the inverse::

    >>> leaves, structure = flatten({"w": [1.0, 2.0], "b": None})
    >>> leaves, unflatten(structure, [10.0, 20.0])
    ([1.0, 2.0], {'w': [10.0, 20.0], 'b': None})

A leaf's path is its keys joined by dots, such as ``"layers.0.weight"``. A value may occur at several paths of a tree;
a container that contains itself is refused.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from backburn.base.errors import ArgumentError

T = TypeVar("T")

#: The children of a node, a key for each of them, and what else is needed to rebuild the node.
Parts = tuple[Sequence[Any], Sequence[Any], Any]


@dataclass(frozen=True, slots=True)
class NodeType:
    """The functions that flatten, unflatten and, for mutable types, modify the nodes of one type.

    ``flatten(node)`` is ``(children, keys, rest)``, ``unflatten(children, keys, rest)`` the node. ``put(node, key,
    child)`` replaces a child of a mutable node, and is None for immutable types. ``members(node)`` is a live view of
    the objects that contain the children, whose identity reveals changes; ``containers(node)`` are the lists and dicts
    that hold these for the node's lifetime, so that they can be compared without a call per node. With ``shares``, an
    object that occurs twice below a node is one leaf.
    """

    flatten: Callable[[Any], Parts]
    unflatten: Callable[[Sequence[Any], Sequence[Any], Any], Any]
    put: Callable[[Any, Any, Any], None] | None = None
    members: Callable[[Any], Iterable[Any]] | None = None
    shares: bool = False
    containers: Callable[[Any], tuple[list[Any] | dict[Any, Any], ...]] | None = None


_NODES: dict[type, NodeType] = {}


class _NodeTypes(dict[type, NodeType | None]):
    """The node type of each class, found on first access."""

    def __missing__(self, cls: type) -> NodeType | None:
        return self.setdefault(cls, _find(cls))


#: The node type of the instances of each class; None if they are leaves.
NODE_TYPES = _NodeTypes()


def register_node(
    cls: type,
    flatten: Callable[[Any], Parts],
    unflatten: Callable[[Sequence[Any], Sequence[Any], Any], Any],
    put: Callable[[Any, Any, Any], None] | None = None,
    members: Callable[[Any], Iterable[Any]] | None = None,
    shares: bool = False,
) -> None:
    """Make instances of ``cls`` and of its subclasses nodes of trees; see :class:`NodeType` for the functions.

    Raises :class:`ArgumentError` for a class that is registered already.

        >>> class Interval:
        ...     def __init__(self, low, high):
        ...         self.low, self.high = low, high
        >>> def ends(interval):
        ...     return (interval.low, interval.high), ("low", "high"), None
        >>> register_node(Interval, ends, lambda children, keys, rest: Interval(*children))
        >>> leaves_with_paths([Interval(1, 2)])
        [('0.low', 1), ('0.high', 2)]
    """
    if cls in _NODES:
        raise ArgumentError(f"register_node: {cls.__name__} is registered already")
    add_node_type(cls, NodeType(flatten, unflatten, put, members, shares))


def add_node_type(cls: type, kind: NodeType) -> None:
    """Make instances of ``cls`` and of its subclasses nodes of this type."""
    _NODES[cls] = kind
    NODE_TYPES.clear()


def _find(cls: type) -> NodeType | None:
    if cls not in _NODES and issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _NAMED_TUPLE
    for base in cls.__mro__:
        if base in _NODES:
            return _NODES[base]
    return _dataclass_node(cls) if dataclasses.is_dataclass(cls) else None


# ---- structures ----


class Structure:
    """The structure of a tree without its leaves, for :func:`unflatten`.

    Equal if node types, keys and other data of the nodes are equal; ``len`` is the number of leaves.
    """

    __slots__ = ("children", "cls", "keys", "rest", "size")

    def __init__(self, cls: type | None, keys: tuple[Any, ...], rest: Any, children: tuple[Structure, ...]) -> None:
        """The structure of a node of type ``cls``; that of a leaf when ``cls`` is None."""
        self.cls = cls
        self.keys = keys
        self.rest = rest
        self.children = children
        size = 1 if cls is None else 0
        for child in children:
            size += child.size
        self.size: int = size

    def __len__(self) -> int:
        return self.size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and difference(self, other) is None

    def __hash__(self) -> int:
        return hash((self.cls, self.keys, self.children))

    def __repr__(self) -> str:
        if self.cls is None:
            return "*"
        if self.cls is type(None):
            return "None"
        if self.cls is _Again:
            return f"*{self.keys[0]}"
        if self.cls is _Constant:
            return "constant"
        return f"{self.cls.__name__}({', '.join(f'{k}={c}' for k, c in zip(self.keys, self.children, strict=True))})"


class _Again:
    """The class in the structure of a leaf that occurs again in a node that shares; its key is that leaf's number."""


class _Constant:
    """The class in the structure of a leaf, in a node that shares, that is part of the structure (``is_constant``)."""


LEAF = Structure(None, (), None, ())
NONE = Structure(type(None), (), None, ())


def difference(a: Structure, b: Structure, path: str = "") -> str | None:
    """The first difference of two structures, in words; None if they are equal."""
    if _equal(a, b):
        return None
    where = f"at {path!r}" if path else "at the root"
    if a.cls is not b.cls:
        return f"{where}, one tree has {_called(a)} and the other {_called(b)}"
    if a.keys != b.keys:
        if a.cls is _Again:
            return f"{where}, the trees repeat different leaves"
        if len(a.keys) != len(b.keys) and a.cls is not None and issubclass(a.cls, (list, tuple)):
            return f"{where}, one {a.cls.__name__} has the length {len(a.keys)} and the other {len(b.keys)}"
        only = [[k for k in x.keys if k not in y.keys] for x, y in ((a, b), (b, a))]
        if not any(only):
            return f"{where}, the keys come in another order: {list(a.keys)} and {list(b.keys)}"
        return f"{where}, only one tree has {', '.join(repr(k) for k in [*only[0], *only[1]])}"
    for key, x, y in zip(a.keys, a.children, b.children, strict=True):
        if found := difference(x, y, joined(path, key)):
            return found
    return f"{where}, what is not a leaf differs: {a.rest!r} and {b.rest!r}"


def _equal(a: Structure, b: Structure) -> bool:
    if a is b:
        return True
    if a.cls is not b.cls or a.keys != b.keys:
        return False
    if a.cls is _Again or a.cls is _Constant:
        return True
    return all(map(_equal, a.children, b.children)) and same(a.rest, b.rest)


def same_constants(a: Structure, b: Structure) -> bool:
    """Whether the same leaves belong to both structures (``is_constant`` of :func:`flatten`), at the same paths."""
    if a.cls is not b.cls or len(a.children) != len(b.children):
        return False
    return a.rest is b.rest if a.cls is _Constant else all(map(same_constants, a.children, b.children))


def _called(structure: Structure) -> str:
    if structure.cls is None:
        return "a leaf"
    if structure.cls is _Again:
        return "a leaf that also occurs elsewhere"
    if structure.cls is _Constant:
        return "a constant"
    return "None" if structure.cls is type(None) else f"a {structure.cls.__name__}"


_NUMBERS = (int, float, complex)


def same(a: Any, b: Any) -> bool:
    """Equality, by identity first, since a node's data may refuse comparison; 1, 1.0 and True are different."""
    if a is b:
        return True
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return False
        for k, x in a.items():  # noqa: SIM110 (most are identical, which needs no call)
            if x is not b[k] and not same(x, b[k]):
                return False
        return True
    if isinstance(a, (tuple, list)) and type(a) is type(b):
        return len(a) == len(b) and all(map(same, a, b))
    try:
        if isinstance(a, _NUMBERS) or isinstance(b, _NUMBERS):
            return a.__class__ is b.__class__ and repr(a) == repr(b)  # also distinguishes 0.0 from -0.0
        return bool(a == b)
    except Exception:
        return False


# ---- taking apart and putting together ----


def joined(path: str, key: Any) -> str:
    """``path`` with one more key."""
    return f"{path}.{key}" if path else str(key)


def flatten(
    tree: Any, is_leaf: Callable[[Any], bool] | None = None, is_constant: Callable[[Any], bool] | None = None
) -> tuple[list[Any], Structure]:
    """The leaves of ``tree`` in order, and its structure.

    ``is_leaf`` makes further values leaves, even nodes; ``is_constant`` makes leaves of a node that shares part of the
    structure. Raises :class:`ArgumentError` if a container contains itself.
    """
    leaves: list[Any] = []
    return leaves, _visit(tree, leaves, is_leaf, is_constant)


#: Equal leaves of these types may be the same object by chance.
_PLAIN = (int, float, complex, str, bytes)


def _visit(
    value: Any,
    leaves: list[Any],
    is_leaf: Callable[[Any], bool] | None,
    is_constant: Callable[[Any], bool] | None = None,
    sharing: bool = True,
) -> Structure:
    """The structure of ``value``, whose leaves are appended to ``leaves``."""
    if value is None:
        return NONE
    node = NODE_TYPES[value.__class__]
    if node is None or (is_leaf is not None and is_leaf(value)):
        leaves.append(value)
        return LEAF
    return _visit_node(value, node, leaves, set(), is_leaf, None, sharing, is_constant)


def _visit_node(
    value: Any,
    node: NodeType,
    leaves: list[Any],
    active: set[int],
    is_leaf: Callable[[Any], bool] | None,
    known: dict[int, int] | None,
    sharing: bool,
    is_constant: Callable[[Any], bool] | None,
) -> Structure:
    """The structure of a node.

    Inside a node that shares, ``known`` maps the id of an object to the number of its leaf.
    """
    # Not a closure of flatten: a recursive closure is a reference cycle, which would keep the leaves alive.
    if id(value) in active:
        raise cyclic(value)
    active.add(id(value))
    try:
        children, keys, rest = node.flatten(value)
        keys = tuple(keys)
    except ArgumentError:
        raise
    except (TypeError, ValueError) as error:
        raise _ill_registered(value) from error
    if known is None and node.shares and sharing:
        known = {0: len(leaves)}  # 0 is no object's id: the number of its first leaf
    visited = []
    for child in children:
        kind = NODE_TYPES[child.__class__]
        if kind is not None and (is_leaf is None or not is_leaf(child)):
            found = _visit_node(child, kind, leaves, active, is_leaf, known, sharing, is_constant)
        elif child is None:
            found = NONE
        elif known is None:
            leaves.append(child)
            found = LEAF
        elif is_constant is not None and is_constant(child):
            found = Structure(_Constant, (), child, ())
        elif isinstance(child, _PLAIN) or (place := known.setdefault(id(child), len(leaves))) == len(leaves):
            leaves.append(child)
            found = LEAF
        else:
            found = Structure(_Again, (place - known[0],), None, ())
        visited.append(found)
    if len(keys) != len(visited):
        raise _ill_registered(value)
    active.discard(id(value))
    return Structure(value.__class__, keys, rest, tuple(visited))


def _ill_registered(value: Any) -> ArgumentError:
    return ArgumentError(
        f"register_node: the function that takes a {type(value).__name__} apart returns three things: its children, a "
        f"key for each of them, and what else is needed to put one together (None if nothing)"
    )


def cyclic(node: Any) -> ArgumentError:
    """The error for a container that contains itself."""
    return ArgumentError(
        f"the tree is cyclic: a {type(node).__name__} contains itself, so that its leaves have no end. "
        f"Keep references to ancestors out of the tree"
    )


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """A new tree of this structure with these leaves. Raises :class:`ArgumentError` for a wrong number of leaves."""
    leaves = list(leaves)
    if len(leaves) != structure.size:
        raise ArgumentError(f"unflatten: the structure has {structure.size} leaves, and {len(leaves)} are given")
    remaining = iter(leaves)
    return next(remaining) if structure.cls is None else _build(structure, remaining, None)


def _build(structure: Structure, remaining: Iterator[Any], known: list[Any] | None) -> Any:
    """A tree of this structure with the next leaves; ``known`` are the previous ones of a node that shares."""
    cls = structure.cls
    if cls is type(None):
        return None
    if cls is _Again:
        assert known is not None
        return known[structure.keys[0]]
    if cls is _Constant:
        return structure.rest
    node = NODE_TYPES[cls]  # type: ignore[index]
    assert node is not None
    if known is None and node.shares:
        known = []
    children = []
    for child in structure.children:
        if child.cls is not None:
            children.append(_build(child, remaining, known))
            continue
        leaf = next(remaining)
        children.append(leaf)
        if known is not None:
            known.append(leaf)
    return node.unflatten(children, structure.keys, structure.rest)


def tree_map(f: Callable[..., Any], tree: T, *rest: Any, is_leaf: Callable[[Any], bool] | None = None) -> T:
    """A tree of the same structure with ``f`` applied to each leaf (and to the corresponding leaves of ``rest``).

    Raises :class:`ArgumentError`, which names the path, if the structure of one of ``rest`` differs.

        >>> tree_map(lambda x, y: x + y, {"a": 1, "b": (2,)}, {"a": 10, "b": (20,)})
        {'a': 11, 'b': (22,)}
    """
    leaves, structure = flatten(tree, is_leaf)
    others = [flatten_like(structure, other, "tree_map", is_leaf) for other in rest]
    return unflatten(structure, map(f, leaves, *others))


def flatten_like(
    structure: Structure,
    tree: Any,
    operation: str,
    is_leaf: Callable[[Any], bool] | None = None,
    is_constant: Callable[[Any], bool] | None = None,
) -> list[Any]:
    """The leaves of ``tree``, which must have ``structure``; else the error, for ``operation``, names the path.

    The entries of a dict may be in any order; the leaves are in that of ``structure``.
    """
    leaves, found = flatten(tree, is_leaf, is_constant)
    if difference(structure, found):
        found, leaves = _reorder_like(structure, found, leaves)
        if words := difference(structure, found):
            raise ArgumentError(f"{operation}: the trees differ: {words}")
    return leaves


def _reorder_like(like: Structure, found: Structure, leaves: list[Any]) -> tuple[Structure, list[Any]]:
    """A tree with the entries of its dicts in the order of ``like``."""
    if found.cls is not like.cls or found.cls in (None, _Again, _Constant) or set(found.keys) != set(like.keys):
        return found, leaves
    start, parts = 0, {}
    for key, child in zip(found.keys, found.children, strict=True):
        parts[key] = child, leaves[start : start + child.size]
        start += child.size
    ordered = [_reorder_like(x, *parts[key]) for key, x in zip(like.keys, like.children, strict=True)]
    structure = Structure(found.cls, like.keys, found.rest, tuple(child for child, _ in ordered))
    return structure, [leaf for _, part in ordered for leaf in part]


def leaves_with_paths(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[tuple[str, Any]]:
    """Each leaf with its path; the path of a tree that is one leaf is empty.

    Raises :class:`ArgumentError` when two leaves have one path, as in ``{"a.b": 1, "a": {"b": 2}}``.

        >>> leaves_with_paths({"layers": [{"weight": 1}, {"weight": 2}]})
        [('layers.0.weight', 1), ('layers.1.weight', 2)]
    """
    leaves: list[Any] = []
    structure = _visit(tree, leaves, is_leaf, sharing=False)
    result = list(zip(paths(structure), leaves, strict=True))
    check_distinct(path for path, _ in result)
    return result


def paths(structure: Structure, path: str = "") -> Iterator[str]:
    """The paths of the leaves, in order."""
    if structure.cls is None:
        yield path
    elif structure.cls not in (_Again, _Constant):
        for key, child in zip(structure.keys, structure.children, strict=True):
            yield from paths(child, joined(path, key))


def check_distinct(found: Iterable[str]) -> None:
    """Raise :class:`ArgumentError` for a path that occurs twice."""
    seen: set[str] = set()
    for path in found:
        if path in seen:
            raise ArgumentError(f"two leaves of the tree have the path {path!r}: rename one of the keys")
        seen.add(path)


# ---- the built-in nodes ----


def _flatten_dict(node: dict[Any, Any]) -> Parts:
    return list(node.values()), list(node), type(node)


def _unflatten_dict(children: Sequence[Any], keys: Sequence[Any], rest: Any) -> Any:
    items = dict(zip(keys, children, strict=True))
    return items if rest is dict else rest(items)  # not from pairs, which a Counter would count


def _put_item(node: Any, key: Any, child: Any) -> None:
    node[key] = child


def _flatten_sequence(node: Sequence[Any]) -> Parts:
    return node, range(len(node)), node.__class__


def _dataclass_node(cls: type) -> NodeType:
    """Fields are children, except those declared ``field(metadata={"static": True})``. Other attributes are kept."""
    fields = dataclasses.fields(cls)
    static = tuple(f.name for f in fields if f.metadata.get("static"))
    names = tuple(f.name for f in fields if f.name not in static)
    known = {f.name for f in fields}

    def flatten_fields(node: Any) -> Parts:
        kept = {n: getattr(node, n) for n in static}
        held = getattr(node, "__dict__", None)
        if held is not None and not held.keys() <= known:
            kept.update(_extra_attributes(node, known))
        return [getattr(node, n) for n in names], names, (type(node), kept)

    def unflatten_fields(children: Sequence[Any], keys: Sequence[Any], rest: Any) -> Any:
        # Not through __init__: it may not take every field, and may refuse other types of leaves.
        made = object.__new__(rest[0])
        for name, value in [*zip(keys, children, strict=True), *rest[1].items()]:
            object.__setattr__(made, name, value)
        return made

    frozen: bool = cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return NodeType(flatten_fields, unflatten_fields, None if frozen else setattr)


def _extra_attributes(node: Any, fields: set[str]) -> dict[str, Any]:
    """The attributes that are not fields, except those that Python sets or recomputes. Arrays are refused."""
    others: dict[str, Any] = {}
    for name, value in vars(node).items():
        if name in fields or name.startswith("__") or isinstance(getattr(type(node), name, None), cached_property):
            continue
        if any(hasattr(leaf, "__array__") for leaf in flatten(value)[0]):
            raise ArgumentError(
                f"{type(node).__name__}.{name} has a tensor and is not a field of the dataclass, so it would not be "
                f"replaced with the others: declare it, {name}: ... = field(init=False), or make it a "
                f"property"
            )
        others[name] = value
    return others


_NAMED_TUPLE = NodeType(
    lambda node: (node, node._fields, type(node)), lambda children, keys, rest: rest._make(children)
)


def _remake(children: Sequence[Any], keys: Sequence[Any], rest: Any) -> Any:
    return rest(children)


def _itself(node: Any) -> tuple[Any]:
    return (node,)


add_node_type(tuple, NodeType(_flatten_sequence, _remake))
add_node_type(list, NodeType(_flatten_sequence, _remake, _put_item, containers=_itself))
add_node_type(dict, NodeType(_flatten_dict, _unflatten_dict, _put_item, containers=_itself))
add_node_type(
    defaultdict,
    NodeType(
        lambda node: (list(node.values()), list(node), node.default_factory),
        lambda children, keys, rest: defaultdict(rest, zip(keys, children, strict=True)),
        _put_item,
        containers=_itself,
    ),
)
