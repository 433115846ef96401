"""Replacing leaves of a tree in place.

:class:`MutableTree` walks over a tree once and records, for each leaf, its path and the container that holds it. It can
also check, with a few comparisons, whether the tree has changed since, so that an optimizer need not walk over its
model at every step.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from operator import is_
from typing import Any

from backburn.base.errors import ArgumentError
from backburn.base.trees import NODE_TYPES, NodeType, check_distinct, cyclic, joined, same


class TreeNode:
    """A node of a tree and its parent.

    It is ``fixed`` if it and its ancestors are of immutable types, so that nothing in it can be replaced.
    """

    __slots__ = ("fixed", "key", "kind", "parent", "path", "value")

    def __init__(self, value: Any, kind: NodeType, path: str, key: Any, parent: TreeNode | None) -> None:
        """``value``, which ``parent`` holds under ``key``."""
        self.value = value
        self.kind = kind
        self.path = path
        self.key = key
        self.parent = parent
        self.fixed: bool = kind.put is None and (parent is None or parent.fixed)

    def put(self, key: Any, child: Any) -> None:
        """Put ``child`` under ``key``: into the node, or into a new node if its type is immutable."""
        if self.kind.put is not None:
            self.kind.put(self.value, key, child)
            return
        if self.parent is None:
            raise ArgumentError(f"a {type(self.value).__name__} cannot be changed in place: use a list or a dict")
        children, keys, rest = self.kind.flatten(self.value)
        changed = [child if k == key else c for k, c in zip(keys, children, strict=True)]
        self.value = self.kind.unflatten(changed, tuple(keys), rest)
        self.parent.put(self.key, self.value)


class Leaf:
    """A leaf, with the nodes that hold it and its key in each; ``fixed`` is the first fixed node of these, if any."""

    __slots__ = ("fixed", "parents", "paths", "value")

    def __init__(self, value: Any) -> None:
        """A leaf that no node holds yet."""
        self.value = value
        self.paths: list[str] = []
        self.parents: list[tuple[TreeNode, Any]] = []
        self.fixed: TreeNode | None = None

    @property
    def path(self) -> str:
        """The first of its paths."""
        return self.paths[0]

    def put(self, value: Any) -> None:
        """Put ``value`` into each of the nodes."""
        self.value = value
        for node, key in self.parents:
            node.put(key, value)


class MutableTree:
    """The leaves of a tree that satisfy ``wanted``, each once, in order, and all nodes.

    Raises :class:`ArgumentError` if a container contains itself, or two leaves have the same path.

        >>> tree = {"a": [1.5, "x"]}
        >>> mutable = MutableTree(tree, lambda leaf: isinstance(leaf, float))
        >>> mutable.leaves[0].path
        'a.0'
        >>> mutable.leaves[0].put(2.5)
        >>> tree
        {'a': [2.5, 'x']}
    """

    __slots__ = ("_held", "_others", "leaves", "nodes", "root")

    def __init__(self, root: Any, wanted: Callable[[Any], bool]) -> None:
        self.root = root
        self.nodes: list[TreeNode] = []
        found: dict[int, Leaf] = {}
        self._visit(root, "", None, None, wanted, found, set())
        self.leaves = list(found.values())
        check_distinct(path for leaf in self.leaves for path in leaf.paths)
        self.remember()

    def _visit(
        self,
        value: Any,
        path: str,
        key: Any,
        parent: TreeNode | None,
        wanted: Callable[[Any], bool],
        found: dict[int, Leaf],
        active: set[int],
    ) -> None:
        """Record the leaves and nodes at ``value`` and below; ``active`` are the ids of its ancestors."""
        kind = None if value is None else NODE_TYPES[value.__class__]
        if kind is None:
            if wanted(value):
                leaf = found.setdefault(id(value), Leaf(value))
                if parent is None:
                    raise ArgumentError("a tree that is a single leaf cannot be changed in place: put it into a list")
                leaf.paths.append(path)
                leaf.parents.append((parent, key))
                if parent.fixed and leaf.fixed is None:
                    leaf.fixed = parent
            return
        if id(value) in active:
            raise cyclic(value)
        active.add(id(value))
        node = TreeNode(value, kind, path, key, parent)
        self.nodes.append(node)
        children, keys, _ = kind.flatten(value)
        for name, child in zip(keys, children, strict=True):
            self._visit(child, joined(path, name), name, node, wanted, found, active)
        active.discard(id(value))

    def remember(self) -> None:
        """Take the present tree as the reference of :meth:`unchanged`; call it after replacing leaves."""
        #: The lists and dicts that hold children, each with its keys (None for a list) and values.
        self._held: list[tuple[Any, tuple[Any, ...] | None, tuple[Any, ...]]] = []
        #: Nodes of other types, with their children and other data.
        self._others: list[tuple[TreeNode, tuple[Any, ...], Any]] = []
        for node in self.nodes:
            if node.kind.containers is None:
                if node.value.__class__ is not tuple:  # which never changes
                    self._others.append((node, *_contents(node)))
                continue
            for held in node.kind.containers(node.value):
                if isinstance(held, dict):
                    self._held.append((held, tuple(held), tuple(held.values())))
                else:
                    self._held.append((held, None, tuple(held)))

    def restore(self) -> None:
        """Restore the contents of lists and dicts, and put back nodes that were replaced.

        Leaves in other nodes are not restored.
        """
        own = {id(node.value) for node in self.nodes}
        for held, keys, values in self._held:
            if id(held) not in own:  # the attributes of an object
                continue
            if keys is None:
                held[:] = values
            else:
                held.clear()
                held.update(zip(keys, values, strict=True))
        present = {}
        for node in self.nodes:
            children, names, _ = node.kind.flatten(node.value)
            present[id(node)] = dict(zip(names, children, strict=True))
        for node in self.nodes:
            above = node.parent
            if above is not None and above.kind.put is not None and present[id(above)].get(node.key) is not node.value:
                above.put(node.key, node.value)

    def unchanged(self) -> bool:
        """Whether every node still holds the same objects as at the last :meth:`remember`."""
        for held, keys, values in self._held:  # no Python call per node: this runs before every replay
            now = held
            if keys is not None:
                if len(held) != len(keys) or not all(map(is_, held, keys)):
                    return False
                now = held.values()
            if len(held) != len(values) or not all(map(is_, now, values)):
                return False
        for node, known, rest in self._others:
            children, about = _contents(node)
            if len(children) != len(known) or not all(map(is_, children, known)) or not same(about, rest):
                return False
        return True


def _contents(node: TreeNode) -> tuple[tuple[Any, ...], Any]:
    """The children of a node; for a type without a live view of them, also its keys and other data."""
    if node.kind.members is not None:
        return tuple(node.kind.members(node.value)), None
    children, keys, rest = node.kind.flatten(node.value)
    return tuple(children), (tuple(keys), rest)


def path_matches(path: str, pattern: str) -> bool:
    """Whether a path matches a pattern of shell wildcards, or is below one that does."""
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}.*")
