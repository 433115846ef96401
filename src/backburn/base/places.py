"""Replacing leaves of a tree in place.

:class:`Places` walks over a tree once and records, for each leaf, its path and the container that holds it. It can also
check, with a few comparisons, whether the tree has changed since, so that an optimizer need not walk over its model at
every step.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from operator import is_
from typing import Any

from backburn.base.errors import ArgumentError
from backburn.base.trees import NodeType, check_distinct, cyclic, joined, node_type, same


class Holder:
    """A node of a tree and its parent.

    It is ``fixed`` if it and its ancestors are of immutable types, so that nothing in it can be replaced.
    """

    __slots__ = ("fixed", "key", "kind", "node", "parent", "path")

    def __init__(self, node: Any, kind: NodeType, path: str, key: Any, parent: Holder | None) -> None:
        """``node``, which ``parent`` holds under ``key``."""
        self.node = node
        self.kind = kind
        self.path = path
        self.key = key
        self.parent = parent
        self.fixed: bool = kind.put is None and (parent is None or parent.fixed)

    def put(self, key: Any, child: Any) -> None:
        """Put ``child`` under ``key``: into the node, or into a new node if its type is immutable."""
        if self.kind.put is not None:
            self.kind.put(self.node, key, child)
            return
        if self.parent is None:
            raise ArgumentError(f"a {type(self.node).__name__} cannot be changed in place: use a list or a dict")
        children, keys, rest = self.kind.flatten(self.node)
        changed = [child if k == key else c for k, c in zip(keys, children, strict=True)]
        self.node = self.kind.unflatten(changed, tuple(keys), rest)
        self.parent.put(self.key, self.node)


class Shared:
    """A leaf and all its places in the tree."""

    __slots__ = ("paths", "places", "value")

    def __init__(self, value: Any) -> None:
        """A leaf without a place yet."""
        self.value = value
        self.paths: list[str] = []
        self.places: list[tuple[Holder, Any]] = []

    @property
    def path(self) -> str:
        """The first of its paths."""
        return self.paths[0]

    @property
    def fixed(self) -> Holder | None:
        """The first holder that is fixed, if there is one."""
        return next((holder for holder, _ in self.places if holder.fixed), None)

    def put(self, value: Any) -> None:
        """Put ``value`` into each of the places."""
        self.value = value
        for holder, key in self.places:
            holder.put(key, value)


class Places:
    """The leaves of ``tree`` that satisfy ``wanted``, each once, in order, and all nodes above them.

    Raises :class:`ArgumentError` if a container contains itself, or two places have the same path.

        >>> tree = {"a": [1.5, "x"]}
        >>> places = Places(tree, lambda leaf: isinstance(leaf, float))
        >>> places.leaves[0].path
        'a.0'
        >>> places.leaves[0].put(2.5)
        >>> tree
        {'a': [2.5, 'x']}
    """

    __slots__ = ("_snapshots", "holders", "leaves", "tree")

    def __init__(self, tree: Any, wanted: Callable[[Any], bool]) -> None:
        self.tree = tree
        self.holders: list[Holder] = []
        found: dict[int, Shared] = {}
        self._visit(tree, "", None, None, wanted, found, set())
        self.leaves = list(found.values())
        check_distinct(path for leaf in self.leaves for path in leaf.paths)
        self.remember()

    def _visit(
        self,
        value: Any,
        path: str,
        key: Any,
        parent: Holder | None,
        wanted: Callable[[Any], bool],
        found: dict[int, Shared],
        active: set[int],
    ) -> None:
        """Note the leaves and nodes at ``value`` and below; ``active`` are the nodes on the way down."""
        kind = None if value is None else node_type(value.__class__)
        if kind is None:
            if wanted(value):
                shared = found.setdefault(id(value), Shared(value))
                if parent is None:
                    raise ArgumentError("a tree that is only one leaf has no place for another: put it into a list")
                shared.paths.append(path)
                shared.places.append((parent, key))
            return
        if id(value) in active:
            raise cyclic(value)
        active.add(id(value))
        holder = Holder(value, kind, path, key, parent)
        self.holders.append(holder)
        children, keys, _ = kind.flatten(value)
        for name, child in zip(keys, children, strict=True):
            self._visit(child, joined(path, name), name, holder, wanted, found, active)
        active.discard(id(value))

    def remember(self) -> None:
        """Record the present tree as unchanged; called after leaves have been replaced."""
        self._snapshots = [(holder, *_contents(holder)) for holder in self.holders]

    def unchanged(self) -> bool:
        """Whether every node still holds the same objects as at the last :meth:`remember`."""
        for holder, known, rest in self._snapshots:
            now, about = _contents(holder)
            if len(now) != len(known) or not all(map(is_, now, known)) or not same(about, rest):
                return False
        return True


def _contents(holder: Holder) -> tuple[tuple[Any, ...], Any]:
    """What a node holds, and, where it has no live view of that, its keys and what else it is made of."""
    if holder.kind.members is not None:
        return tuple(holder.kind.members(holder.node)), None
    children, keys, rest = holder.kind.flatten(holder.node)
    return tuple(children), (tuple(keys), rest)


def path_matches(path: str, pattern: str) -> bool:
    """Whether a path matches a pattern of shell wildcards, or is below one that does."""
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}.*")
