"""The state and the batch of a captured step, as lists of primitives."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import is_dataclass
from functools import partial
from operator import attrgetter, is_
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import getweakrefcount

from backburn.autodiff import Autodiff
from backburn.autodiff.graph import KeptNode, Tracked
from backburn.backend.contract import is_autodiff
from backburn.backend.host_numbers import HasState
from backburn.base.contexts import ACTIVE
from backburn.base.errors import ArgumentError
from backburn.base.mutable_trees import MutableTree
from backburn.base.trees import NODE_TYPES, Structure, flatten, same, unflatten
from backburn.tensor.classes import Tensor
from backburn.tensor.core.invalidation import STATE, Invalidated, invalidate
from backburn.tensor.core.levels import FROM_INNER, INNER
from backburn.tensor.core.messages import describe

_getrefcount: Callable[[Any], int] | None = getattr(sys, "getrefcount", None)


class State:
    """The distinct tensors of a state: slots, whose primitives a replay reads and writes.

    A replay uses up the tensors and replaces them. A tensor of an earlier replay that only the state refers to, by its
    reference count, stays and gets the new primitive, which cannot be noticed.
    """

    def __init__(self, state: Any) -> None:
        self._box = [state]
        self._leaves = flatten(self._box)
        others = [x for x in self._leaves[0] if not isinstance(x, Tensor | HasState)]
        #: The values whose contents may change while the tree holds the same objects; the contents at the last key.
        self._settings = [*settings_of(self._leaves[1]), *(x for x in others if contents(x) is not x)]
        self._contents: list[Any] = []
        self._tree = MutableTree(self._box, lambda x: isinstance(x, Tensor | HasState))
        self.tensors: list[Tensor] = []
        #: The optimizers and the like, with the names of their tensors, and the index of the first of these.
        self._holders: list[tuple[HasState, list[str], int]] = []
        #: Whether each tensor may stay; not in a tuple, which has to keep the old one for others who refer to it.
        self._may_stay: list[bool] = []
        for leaf in self._tree.leaves:
            if isinstance(leaf.value, HasState):
                held = leaf.value.held_tensors()
                self._holders.append((leaf.value, [*leaf.value.state_tensors()], len(self.tensors)))
                self.tensors += held
                self._may_stay += [True] * len(held)
            else:
                self.tensors.append(leaf.value)
                nodes = [node for node, _ in leaf.parents]
                self._may_stay.append(all(x.kind.containers is not None and x.parent is not None for x in nodes))
        self._depths = [*map(depth_of, self.tensors)]
        self._readers = [*map(_reader, self.tensors, self._depths)]
        self._makers: list[Maker] = []
        #: The tensors that a replay has left and their parts, the index of the tensor to which each belongs, and its
        #: reference count at that time; empty before a replay.
        self._parts: list[Any] = []
        self._owners: list[int] = []
        self._counts: list[int] = []
        #: The reference counts of the parts that stay in the current replay, by identity.
        self._known: dict[int, int] = {}
        #: The holder of each tensor's primitive: the tensor itself, or its innermost box.
        self._homes: list[Any] = []
        #: Which tensors stay in the current replay; None before that is decided.
        self._stays: list[bool] | None = None

    @property
    def state(self) -> Any:
        """The tree, with the current tensors."""
        return self._box[0]

    @property
    def held(self) -> list[Tensor]:
        """The tensors of optimizers and the like."""
        return [x for _, names, first in self._holders for x in self.tensors[first : first + len(names)]]

    def read(self) -> list[Any]:
        """The primitives of the backend that computes. Raises :class:`GraphError` for a tensor that is used up."""
        found = []
        for read, x in zip(self._readers, self.tensors, strict=True):
            primitive = read(x)
            if primitive.__class__ is Invalidated:
                primitive.shape  # noqa: B018 - raises
            found.append(primitive)
        return found

    def put(self, tensors: list[Any], owned: bool = False) -> None:
        """Replace :attr:`tensors`, in order; ``owned`` if nobody else will read the new ones."""
        rest, holders = iter(tensors), iter(self._holders)
        for leaf in self._tree.leaves:
            if isinstance(leaf.value, HasState):
                holder, names, _ = next(holders)
                holder.load_tensors({name: next(rest) for name in names}, owned)
            else:
                leaf.put(next(rest))

    def restore(self, tensors: list[Any]) -> None:
        """Put the tensors, and the containers that a recorded step has replaced, where they were."""
        self._tree.restore()
        self.put(tensors)

    # ---- a replay: release, then commit or rollback ----

    def release(self) -> list[int]:
        """Decide which tensors stay. The others are invalid from now on, and do not refer to their primitives.

        Returns how many references to each primitive the state has.
        """
        if self._stays is None:
            self._stays = stays = self._only_here()
            if not all(stays):
                self._made()
                invalidate((x for x, there in zip(self.tensors, stays, strict=True) if not there), STATE)
                known = zip(self._parts, self._counts, self._owners, strict=True)
                self._known = {id(part): count for part, count, owner in known if stays[owner]}
                self._parts = []
                self._homes = [x if there else None for x, there in zip(self._homes, stays, strict=False)]
        return [*map(int, self._stays)]

    def _only_here(self) -> list[bool]:
        """Whether only the state refers to each tensor and its parts."""
        if not self._parts or _getrefcount is None:
            return [False] * len(self.tensors)
        counts = [*map(_getrefcount, self._parts)]
        if counts == self._counts and not any(map(getweakrefcount, self._parts)):
            return self._may_stay
        shared = {
            owner
            for x, now, then, owner in zip(self._parts, counts, self._counts, self._owners, strict=True)
            if now != then or getweakrefcount(x)
        }
        return [may and i not in shared for i, may in enumerate(self._may_stay)]

    def commit(self, primitives: Sequence[Any]) -> None:
        """Write the primitives that a replay has left into the tensors that stay, and into new ones for the others."""
        self.release()
        assert self._stays is not None
        stays, self._stays = self._stays, None
        self._write(primitives, stays)
        if all(stays):
            return
        self.tensors = [
            x if there else make(p)
            for x, there, make, p in zip(self.tensors, stays, self._made(), primitives, strict=True)
        ]
        self.put(self.tensors)
        self._tree.remember()
        if _getrefcount is not None:
            self._take_apart()
            counts = [*map(_getrefcount, self._parts)]  # nothing else in this frame refers to new parts
            # The caller's list of the old tensors also refers to those that stay.
            own = zip(map(id, self._parts), counts, self._owners, strict=True)
            self._counts = [self._known[part] if stays[owner] else count for part, count, owner in own]

    def _write(self, primitives: Sequence[Any], stays: list[bool]) -> None:
        """Write the primitives of tensors that stay."""
        for home, depth, primitive, there in zip(self._homes, self._depths, primitives, stays, strict=False):
            if there and depth:
                home.value = primitive
            elif there:
                home._primitive = primitive

    def _take_apart(self) -> None:
        """Note the parts of the tensors."""
        self._parts, self._owners, self._homes = [], [], []
        for i, (x, depth) in enumerate(zip(self.tensors, self._depths, strict=True)):
            parts: list[Any] = [x]
            for level in range(depth or 0):
                box = parts[-1].value if level else x._primitive
                if box.node is not None:
                    parts.insert(0, box.node)
                    self._may_stay[i] &= box.node.__class__ is KeptNode
                parts.append(box)
            self._may_stay[i] &= depth is not None
            self._homes.append(parts[-1])
            self._parts += parts
            self._owners += [i] * len(parts)

    def rollback(self, tensors: list[Tensor], primitives: Iterable[Any], is_complete: bool) -> None:
        """Put back the tensors from before an interrupted step, with the primitives that the state has now.

        ``is_complete`` if these are the new ones; else valid tensors are unchanged.
        """
        self.tensors = tensors
        for x, make, primitive in zip(tensors, self._made(), primitives, strict=True):
            if is_complete or x._primitive is STATE:
                x._primitive = make(primitive).primitive
        self.restore(tensors)

    def _made(self) -> list[Maker]:
        """How to make tensors like those of the state."""
        if not self._makers:
            self._makers = [maker(x) for x in self.tensors]
        return self._makers

    # ---- other states ----

    def is_as_left(self, state: Any, primitives: Sequence[Any]) -> bool:
        """Whether ``state``, or a tuple of the same parts, is as the last replay left it, with these primitives."""
        mine = self.state
        if state is not mine:
            if type(state) is not tuple or type(mine) is not tuple or len(state) != len(mine):
                return False
            if not all(map(is_, state, mine)):
                return False
        if not self._tree.unchanged():
            return False
        if self._settings and not same([*map(contents, self._settings)], self._contents):
            return False
        for holder, names, first in self._holders:
            held = holder.held_tensors()
            if len(held) != len(names) or not all(map(is_, held, self.tensors[first : first + len(names)])):
                return False
        return all(map(is_, self.read(), primitives))

    def key(self) -> Any:
        """A key that is equal for two states that one program can serve."""
        leaves, structure = self._leaves
        self._contents = [*map(contents, self._settings)]
        others = [None if isinstance(x, Tensor) else constant_key(x) for x in leaves]  # an optimizer is its own key
        others += self._contents
        paths = [leaf.paths for leaf in self._tree.leaves]
        names = [(first, names) for _, names, first in self._holders]
        return structure, others, paths, names, [description(x) for x in self.tensors]

    def differs(self, key: Any) -> str:
        """The first difference to another key, in words."""
        mine, (structure, others, paths, _, tensors) = self.key(), key
        if mine[0] != structure or mine[2] != paths:
            return "it has other parts"
        if not same(mine[1], others):
            return "a number in it that is not a tensor changed, and would be frozen (use a tensor)"
        pairs = zip(mine[4], tensors, strict=False)
        return next((f"{a} instead of {b}" for a, b in pairs if a != b), "an optimizer has more tensors")


class Batch:
    """The batch: its tensors, and how to replace them."""

    def __init__(self, batch: tuple[Any, ...]) -> None:
        self._leaves, self._structure = flatten(batch)
        self.tensors: list[Tensor] = []
        others: list[Any] = []
        for x in self._leaves:
            if isinstance(x, Tensor):
                self.tensors.append(x)
                others.append(None)
            elif hasattr(x, "__array__"):
                raise ArgumentError(f"capture: the batch must have tensors, not {type(x).__name__}: use bb.asarray")
            else:
                others.append(constant_key(x))
        self.primitives = [primitive_of(x) for x in self.tensors]
        abouts = [description(x) for x in self.tensors]
        first: dict[int, int] = {}
        #: For each tensor, the index of the first one that is the same leaf: shared ones are one parameter.
        self._same = [
            first.setdefault(id(x.primitive), i) if about[-1] else i
            for i, (x, about) in enumerate(zip(self.tensors, abouts, strict=True))
        ]
        others += map(contents, settings_of(self._structure))
        self.key = (self._structure, others, abouts, self._same)

    def is_like(self, key: Any) -> bool:
        """Whether the key of another batch is the same: as by :func:`same`, in less time."""
        structure, others, abouts, equal = self.key
        return bool(abouts == key[2] and equal == key[3] and structure == key[0]) and same(others, key[1])

    def tree(self, primitives: list[Any]) -> Any:
        """The batch with tensors over other primitives."""
        made: list[Tensor] = []
        for i, (x, p) in enumerate(zip(self.tensors, primitives, strict=True)):
            made.append(made[self._same[i]] if self._same[i] < i else maker(x)(p))
        rest = iter(made)
        return unflatten(self._structure, [next(rest) if isinstance(x, Tensor) else x for x in self._leaves])


class PlainBatch:
    """The common properties of batches of tensors without gradients, which are read in one loop.

    The tensors may be in dicts, lists and tuples, which are read as nested batches.
    """

    def __init__(self, batch: Collection[Any]) -> None:
        self._kinds: list[tuple[Any, Any, Any, Any, int | None]] | None = []
        for x in batch:
            if (kind := x.__class__) in (dict, list, tuple):
                keys, parts = ([*x], x.values()) if kind is dict else (None, x)
                self._kinds.append((kind, PlainBatch(parts), None, keys, None))
                continue
            depth = depth_of(x) if isinstance(x, Tensor) and not x.is_tracked else None
            if depth is None:
                self._kinds = None
                return
            self._kinds.append((kind, x._backend, x._dtype, x.shape, depth))

    def read(self, batch: Collection[Any]) -> list[Any] | None:
        """The primitives of a batch of the same kind; None for any other batch."""
        if self._kinds is None or len(batch) != len(self._kinds):
            return None
        found: list[Any] = []
        for x, (kind, backend, dtype, shape, depth) in zip(batch, self._kinds, strict=True):
            if x.__class__ is not kind:
                return None
            if depth is None:
                inner = None if kind is dict and [*x] != shape else backend.read(x.values() if kind is dict else x)
                if inner is None:
                    return None
                found += inner
                continue
            if x._backend is not backend or x._dtype is not dtype:
                return None
            primitive = x._primitive
            for _ in range(depth):
                if primitive.node is not None:
                    return None
                primitive = primitive.value
            if primitive.shape != shape:
                return None
            found.append(primitive)
        return found


# ---- tensors and primitives ----


def constant_key(x: Any) -> tuple[Any, Any]:
    """A key for a value that is not a tensor: its class, and its contents or itself."""
    return x.__class__, contents(x)


#: The most values of one that are compared, and how deep they are nested; the others count as unchanged while they
#: are the same objects.
MOST_CONTENTS, MOST_LEVELS = 1000, 4
#: The types of values that cannot change, and of those whose attributes are not settings.
_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes, slice, type(...)))
_OPAQUE = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType, partial)
#: The packages whose objects have no settings among their attributes.
_UNREAD = frozenset(("backburn", "logging"))


def contents(value: Any) -> Any:
    """The contents of a list, dict, set or object at present, to compare with :func:`same`; else the value itself.

    Tensors, backends and other objects of backburn's classes are returned: changes of these are noticed elsewhere.
    """
    return value if value.__class__ in _PLAIN else _contents(value, [MOST_CONTENTS], 0)


def _contents(value: Any, left: list[int], level: int) -> Any:
    cls = value.__class__
    left[0] -= 1
    if cls in _PLAIN or left[0] < 0 or level == MOST_LEVELS:
        return value
    if cls is list or cls is tuple or isinstance(value, dict | set):
        if len(value) > left[0]:
            return value
        if isinstance(value, set):
            return cls, {*value}
        if isinstance(value, dict):
            return cls, [*value], [_contents(x, left, level + 1) for x in value.values()]
        found = [_contents(x, left, level + 1) for x in value]
        return value if cls is tuple and all(map(is_, found, value)) else (cls, found)
    if isinstance(value, _OPAQUE) or cls.__module__.partition(".")[0] in _UNREAD or hasattr(cls, "capabilities"):
        return value  # a backend has capabilities
    if NODE_TYPES[cls] is not None and not is_dataclass(value):
        return value  # a module, or a type with functions for trees
    fields = getattr(value, "__dict__", None)
    if not fields or len(fields) > left[0]:
        return value
    return cls, id(value), [*fields], [_contents(x, left, level + 1) for x in fields.values()]


def settings_of(structure: Structure) -> list[Any]:
    """The values in nodes of a tree that belong to no child, and whose contents may change."""
    found: list[Any] = []
    left = [structure]
    while left:
        node = left.pop()
        left += node.children
        if (rest := node.rest) is None:
            continue
        if rest.__class__ is tuple and len(rest) == 2 and rest[0] is node.cls:  # a module's other attributes
            if not _PLAIN.issuperset(map(type, rest[1].values())):
                found += [x for x in rest[1].values() if contents(x) is not x]
        elif contents(rest) is not rest:
            found.append(rest)
    return found


def description(x: Tensor) -> tuple[Any, ...]:
    """A key of a tensor, equal for those that one program can serve; raises for a tensor with a history."""
    is_leaf = x.is_require_grad
    if not is_leaf and x.is_tracked:
        if x.backend is ACTIVE.get():
            raise ArgumentError(
                f"capture: {describe((x,))} is what a transform around the captured step differentiates, and a replay "
                f"has no derivatives: take them inside, as in bb.capture(lambda state, x: (state, bb.jvp(f, (x,), "
                f"(x,)))), or call the function that was captured"
            )
        raise ArgumentError(f"capture: {describe((x,))} depends on tracked tensors of another step: detach it")
    return x.dtype, x.shape, x.backend, is_leaf


def computing(k: Any) -> Any:
    """The backend below the levels of autodiff."""
    while is_autodiff(k):
        k = k.inner_backend
    return k


def depth_of(x: Tensor) -> int | None:
    """How many boxes of ``Autodiff`` a tensor's primitive is in; None where another class differentiates."""
    k: Any = x.backend
    depth = 0
    while is_autodiff(k):
        if type(k) is not Autodiff:
            return None
        k, depth = k.inner_backend, depth + 1
    return depth if x.dtype.has_gradient else 0


def _reader(x: Tensor, depth: int | None) -> Callable[[Tensor], Any]:
    """A function that reads the primitive of tensors like ``x``, in C if it can."""
    return primitive_of if depth is None else attrgetter("_primitive" + ".value" * depth)


def primitive_of(x: Tensor) -> Any:
    """The primitive of the backend that computes."""
    k: Any = x.backend
    primitive = x.primitive
    while is_autodiff(k):
        primitive = getattr(k, INNER[x.dtype.kind])(primitive)
        k = k.inner_backend
    return primitive


Maker = Callable[[Any], Tensor]


def maker(x: Tensor, require_grad: bool = True) -> Maker:
    """A function that makes tensors like ``x`` over primitives of the backend that computes.

    They have the backend and the kind of ``x``, and with ``require_grad`` require gradients if ``x`` does.
    """
    kind, backend, dtype = type(x), x.backend, x.dtype
    differentiating: Any = backend
    is_leaf, depth = require_grad and x.is_require_grad, depth_of(x)
    levels: list[Any] = []
    k: Any = backend
    while depth is None and is_autodiff(k):
        levels.insert(0, getattr(k, FROM_INNER[x.dtype.kind]))
        k = k.inner_backend
    boxes = 0 if depth is None else depth - is_leaf

    def made(primitive: Any) -> Tensor:
        for _ in range(boxes):
            primitive = Tracked(primitive)
        for up in levels:
            primitive = up(primitive)
        if is_leaf and depth:
            primitive = differentiating.new_leaf(primitive)
        elif is_leaf:
            primitive = differentiating.set_require_grad(primitive, True)
        return kind(primitive, backend, dtype)

    return made
