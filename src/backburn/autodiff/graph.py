"""The graph of recorded operations, and the reverse pass over it.

There is no global tape: a node refers to its parents, so dropping the last tensor frees the graph. Nodes are numbered
in the order of their creation, in which every parent precedes its children. The reverse pass follows this order
backwards with a heap, which holds only the nodes still to be visited.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import heappop, heappush
from typing import Any

from backburn.autodiff.base import Box
from backburn.autodiff.observers import observer
from backburn.backend.contract import BK
from backburn.base.contexts import RECORDING, scoped
from backburn.base.errors import ConsumedGraphError, GraphError
from backburn.base.module_calls import WATCHERS
from backburn.base.module_calls import next_stamp as next_stamp
from backburn.ops.bodies.reductions import sum_terms, sum_to
from backburn.ops.rules.slices import EntryGradient, SlicedGradient, SliceGradient


class Node:
    """One recorded operation: the nodes of its operands, its gradient rule, and the values that the rule needs.

    ``backward(k, g, node)`` returns a gradient (or None) for each of ``parents``; a leaf has none. ``saved`` are inner
    primitives. ``keep`` is true if ``backward`` returns the node's gradient: for leaves, and where it was requested.
    ``like`` is the value of a leaf whose gradient is to be placed like it.
    """

    __slots__ = ("__weakref__", "backward", "parents", "saved", "shape", "stamp")
    keep = False
    like: Any = None

    def __init__(
        self,
        backward: Callable[[Any, Any, Node], Any] | None,
        parents: tuple[Node | None, ...],
        saved: tuple[Any, ...],
        shape: tuple[int, ...],
        stamp: int,
    ) -> None:
        self.backward = backward
        self.parents = parents
        self.saved = saved
        self.shape = shape
        self.stamp = stamp


class KeptNode(Node):
    """A node whose gradient ``backward`` returns."""

    __slots__ = ()
    keep = True


class OutputNode(Node):
    """One of several outputs of an operation: passes its gradient on to the node of the operation."""

    __slots__ = ("index",)
    index: int


def outputs_node(nodes: Iterable[Node], cotangents: Iterable[Any]) -> Node:
    """A root from which a reverse pass starts at several outputs with these cotangents; the root's own is ignored."""
    return Node(lambda k, g, node: node.saved, tuple(nodes), tuple(cotangents), (), next_stamp())


class Tracked(Box[BK]):
    """The float primitive of ``Autodiff[BK]``: an inner float primitive, and its node when it is on the graph."""

    __slots__ = ("node",)

    def __init__(self, value: Any, node: Node | None = None) -> None:
        self.value = value
        self.node = node

    def __repr__(self) -> str:
        state = "" if self.node is None else ", leaf" if self.node.backward is None else ", recorded"
        return f"Tracked({self.value!r}{state})"


class PlacedLeaf(KeptNode):
    """A leaf whose gradient is placed like its value, ``like``, as soon as it is final."""

    __slots__ = ("like",)

    def __init__(self, like: Any) -> None:
        super().__init__(None, (), (), like.shape, next_stamp())
        self.like = like


def identity_rule(k: Any, g: Any, node: Node) -> tuple[Any]:
    """The rule of the identity."""
    return (g,)


def leaf(shape: tuple[int, ...]) -> Node:
    """A leaf: a node that receives a gradient and passes none on."""
    return KeptNode(None, (), (), shape, next_stamp())


def leaf_of(k: Any, value: Any) -> Node:
    """A leaf for an inner primitive of ``k``, whose gradient is settled if ``k`` settles gradients."""
    return PlacedLeaf(value) if k.settles else KeptNode(None, (), (), value.shape, next_stamp())


def consumed(k: Any, g: Any, node: Node) -> Any:
    """Replacement for a rule after a reverse pass has released the values that the rule had saved."""
    raise ConsumedGraphError(
        "backward: the graph was consumed by an earlier backward, and what it had saved is released. "
        "Pass retain_graph=True to the first backward, or compute the loss again"
    )


class MovedGradient:
    """A gradient on another backend than the pass, which continues there from the node that receives it."""

    __slots__ = ("backend", "gradient")

    def __init__(self, gradient: Any, backend: Any) -> None:
        self.gradient = gradient
        self.backend = backend

    def assembled(self, k: Any, shape: tuple[int, ...]) -> MovedGradient:
        """This gradient, with its slices joined."""
        if self.gradient.__class__ is SlicedGradient:
            self.gradient = self.gradient.assembled(self.backend, shape)
        return self

    def passed_on(self, rule: Callable[..., Any], node: Node) -> list[Any]:
        """The gradients that the rule of a node returns on this backend."""
        found = rule(self.backend, self.gradient, node)
        return [g if g is None or g.__class__ is MovedGradient else MovedGradient(g, self.backend) for g in found]


def reverse(
    k: Any,
    root: Node,
    seed: Any,
    *,
    retain_graph: bool,
    keep: Collection[Node] = (),
    since: int = 0,
    others: set[Any] | None = None,
) -> dict[Node, Any]:
    """Differentiate the value of ``root`` with cotangent ``seed``; the gradient of each kept node, by node.

    ``k`` is the inner backend, which computes the gradients; ``keep`` names further nodes whose gradients are wanted.
    The pass stops at nodes with a stamp before ``since``, whose gradients are then returned too. Time and memory are
    linear in the part of the graph that receives a gradient. ``others`` is filled with the backends, other than ``k``,
    that gradients are on.
    """
    gradients: dict[Node, Any] = {root: seed}
    moved: set[Any] = set() if others is None else others
    if RECORDING.get() and not WATCHERS and not k.settles:
        _reverse(k, root, gradients, retain_graph, keep, since, moved, None)
    else:
        with scoped(RECORDING, True), observer(k, root, gradients, since, saved_in) as observe:
            _reverse(k, root, gradients, retain_graph, keep, since, moved, observe)
    if moved:
        for node, g in gradients.items():
            gradients[node] = g.gradient if g.__class__ is MovedGradient else g
    return gradients


def _reverse(
    k: Any,
    root: Node,
    gradients: dict[Node, Any],
    retain_graph: bool,
    keep: Collection[Node],
    since: int,
    moved: set[Any],
    observe: Callable[[int], None] | None,
) -> None:
    """The pass: each node, the latest first, passes its gradient on to its parents by its rule.

    ``observe`` is called with the stamp of every node before that.
    """
    # Stamps are compared many times, and numbers faster than tuples.
    heap, waiting = [-root.stamp], {-root.stamp: root}
    while heap:
        node = waiting.pop(heappop(heap))
        if observe is not None:
            observe(node.stamp)
        g = gradients[node]
        if g.__class__ in _COLLECTED:
            g = gradients[node] = g.assembled(k, node.shape)
            if g.__class__ is MovedGradient:
                moved.add(g.backend)
        parents, backward = node.parents, node.backward  # in this order: a pass in another thread clears them last
        if backward is None or (since and node.stamp < since):
            continue
        if not node.keep and node not in keep:
            del gradients[node]
        found = backward(k, g, node) if g.__class__ is not MovedGradient else g.passed_on(backward, node)
        for parent, new in zip(parents, found):  # noqa: B905 - one for each parent
            if new is None or parent is None:
                continue
            known = gradients.get(parent)
            if known is None:
                stamp = -parent.stamp
                heappush(heap, stamp)
                waiting[stamp] = parent
            if known is not None or new.__class__ in _SPECIAL or new.shape != parent.shape:
                new = accumulate(k, known, new, parent, backward)
            gradients[parent] = new
        if not retain_graph:
            node.backward, node.saved, node.parents = consumed, (), ()


def saved_in(root: Node) -> Iterator[tuple[int, Any]]:
    """The values saved by the nodes of a graph, from the last node to the first, each with the stamp of its node."""
    heap, seen = [(-root.stamp, root)], {root}
    while heap:
        node = heappop(heap)[1]
        for value in node.saved:
            yield from ((node.stamp, x) for x in (value if isinstance(value, (list, tuple)) else (value,)))
        for parent in node.parents:
            if parent is not None and parent not in seen:
                seen.add(parent)
                heappush(heap, (-parent.stamp, parent))


#: Gradients of a part of a tensor, which are collected until all have arrived.
_OF_PARTS = frozenset({SliceGradient, EntryGradient})
#: Gradients that are not primitives: those of an operation's several outputs, one of a part, one on another backend.
_SPECIAL = frozenset({list, SliceGradient, EntryGradient, MovedGradient})
#: Sums of gradients that are collected: of parts of a tensor, and on another backend.
_COLLECTED: frozenset[Any] = frozenset({SlicedGradient, MovedGradient})


def accumulate(k: Any, known: Any, new: Any, node: Node, rule: Callable[..., Any]) -> Any:
    """The sum of the ``known`` gradient of ``node``, None at first, and the ``new`` one that ``rule`` has returned.

    The gradients of an operation's several outputs are a list, and those of slices are collected. Gradients on another
    backend are added there.
    """
    kind = new.__class__
    if kind is list:
        return new if known is None else [sum_terms(k, both) for both in zip(known, new, strict=True)]
    if kind is MovedGradient or known.__class__ is MovedGradient:
        home = (new if kind is MovedGradient else known).backend
        known, new = (x.gradient if x.__class__ is MovedGradient else x for x in (known, new))
        return MovedGradient(accumulate(home, known, new, node, rule), home)
    if kind in _OF_PARTS or known.__class__ is SlicedGradient:
        sliced = known if known.__class__ is SlicedGradient else SlicedGradient(known)
        if kind in _OF_PARTS:
            sliced.slices.append(new)
        else:
            sliced.rest = accumulate(k, sliced.rest, new, node, rule)
        return sliced
    if new.shape != node.shape:
        new = unbroadcast(k, new, node.shape, rule)
    return new if known is None else k.add(known, new)


def unbroadcast(k: Any, gradient: Any, shape: tuple[int, ...], rule: Callable[..., Any]) -> Any:
    """The gradient that ``rule`` returned, summed to the shape of an operand that was broadcast.

    Raises :class:`GraphError` for a shape that the operand does not broadcast to.
    """
    result = sum_to(k, gradient, shape)
    if result.shape != shape:
        name = getattr(rule, "__qualname__", "an operation")
        raise GraphError(
            f"the gradient rule of {name} returned shape {list(gradient.shape)} for an operand of shape {list(shape)}. "
            f"Return the operand's shape, or one that it broadcasts to"
        )
    return result
