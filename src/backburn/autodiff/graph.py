"""The graph of recorded operations, and the reverse pass over it.

There is no global tape: a node refers to its parents, so dropping the last tensor frees the graph. Nodes are numbered
in the order of their creation, in which every parent precedes its children. The reverse pass follows this order
backwards with a heap, which holds only the nodes still to be visited.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Iterable
from typing import Any

from backburn.autodiff.differentiating import Box
from backburn.autodiff.slices import SliceGradient, assemble
from backburn.backend.contract import BK
from backburn.base.contexts import RECORDING, scoped
from backburn.base.errors import ConsumedGraphError, GraphError
from backburn.base.quiet import RAISED, quietly, silence

next_stamp = itertools.count().__next__


class Node:
    """One recorded operation: where its gradient goes, and what its rule needs.

    ``backward(k, g, node)`` returns a gradient (or None) for each of ``parents``; a leaf has none. ``saved`` are inner
    primitives. ``keep`` is true if ``backward`` returns the node's gradient: for leaves, and where it was requested.
    """

    __slots__ = ("__weakref__", "backward", "parents", "saved", "shape", "stamp")
    keep = False

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
    """A root from which a reverse pass starts at several outputs with these cotangents; its own is ignored."""
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


def passed_on(k: Any, g: Any, node: Node) -> tuple[Any]:
    """The rule of the identity."""
    return (g,)


def leaf(shape: tuple[int, ...]) -> Node:
    """A leaf: a node that receives a gradient and passes none on."""
    return KeptNode(None, (), (), shape, next_stamp())


def consumed(k: Any, g: Any, node: Node) -> Any:
    """Takes the place of a rule after a reverse pass has released what the rule had saved."""
    raise ConsumedGraphError(
        "backward: the graph was consumed by an earlier backward, and what it had saved is released. "
        "Pass retain_graph=True to the first backward, or compute the loss again"
    )


class MovedGradient:
    """A gradient on another backend than the node that it came from; the reverse pass continues there."""

    __slots__ = ("backend", "gradient")

    def __init__(self, gradient: Any, backend: Any) -> None:
        self.gradient = gradient
        self.backend = backend


#: Gradients that are no primitives: those of an operation's several outputs, one on another backend, one of a slice.
_SPECIAL = frozenset({list, MovedGradient, SliceGradient})


def reverse(
    k: Any,
    root: Node,
    seed: Any,
    *,
    retain_graph: bool,
    keep: Collection[Node] = (),
    since: int = 0,
    homes: dict[Node, Any] | None = None,
) -> dict[Node, Any]:
    """Differentiate the value of ``root`` with cotangent ``seed``; the gradient of each kept node, by node.

    ``k`` is the inner backend, which computes the gradients; ``keep`` names further nodes whose gradients are wanted.
    The pass stops at nodes with a stamp before ``since``, whose gradients are then returned too. Time and memory are
    linear in the part of the graph that receives a gradient. ``homes`` is filled with the backend of each node whose
    gradient is on a backend other than ``k``.
    """
    homes = {} if homes is None else homes
    first = k
    gradients: dict[Node, Any] = {root: seed}
    slices: dict[Node, list[SliceGradient]] = {}
    heap = [(-root.stamp, root)]
    push, pop = heapq.heappush, heapq.heappop
    with scoped(RECORDING, True):
        while heap:
            node = pop(heap)[1]
            if slices and node in slices:
                _settle(homes.get(node, first), node, slices.pop(node), gradients)
            parents, backward = node.parents, node.backward  # in this order: a pass in another thread clears them last
            if backward is None or (since and node.stamp < since):
                continue
            if homes:
                k = homes.get(node, first)
                if k is not first:
                    homes.update((parent, k) for parent in parents if parent is not None)
            g = gradients[node] if node.keep or (keep and node in keep) else gradients.pop(node)
            try:
                found = backward(k, g, node)
            except RAISED as raised:
                with silence(raised, k):
                    found = backward(k, g, node)
            for parent, gradient in zip(parents, found):  # noqa: B905 - one for each parent
                if gradient is None or parent is None:
                    continue
                if gradient.__class__ in _SPECIAL:
                    if gradient.__class__ is SliceGradient:
                        if parent not in slices and parent not in gradients:
                            push(heap, (-parent.stamp, parent))
                        slices.setdefault(parent, []).append(gradient)
                        continue
                    known = gradients.get(parent)
                    if gradient.__class__ is list:
                        gradient = gradient if known is None else merged(k, known, gradient)
                    else:
                        gradient = _moved(known, gradient, parent, homes)
                else:
                    if gradient.shape != parent.shape:
                        gradient = sum_to(k, gradient, parent.shape, backward)
                    known = gradients.get(parent)
                    if known is not None:
                        try:
                            gradient = k.add(known, gradient)
                        except RAISED as raised:
                            with silence(raised, k):
                                gradient = k.add(known, gradient)
                gradients[parent] = gradient
                if known is None and not (slices and parent in slices):
                    push(heap, (-parent.stamp, parent))
            del found
            if not retain_graph:
                node.backward, node.saved, node.parents = consumed, (), ()
    return gradients


def _moved(known: Any, gradient: Any, node: Node, homes: dict[Node, Any]) -> Any:
    """The sum of what is known of a node's gradient and what comes from another backend, which is then its home."""
    k = homes[node] = gradient.backend
    return gradient.gradient if known is None else quietly(k, k.add, known, gradient.gradient)


def _settle(k: Any, node: Node, slices: list[SliceGradient], gradients: dict[Node, Any]) -> None:
    """Add what came from slices of a tensor to its gradient."""
    gradient, known = quietly(k, assemble, k, slices, node.shape), gradients.get(node)
    gradients[node] = gradient if known is None else quietly(k, k.add, known, gradient)


def sum_to(k: Any, gradient: Any, shape: tuple[int, ...], backward: Callable[..., Any]) -> Any:
    """Undo broadcasting: sum what ``backward`` returned to ``shape``; what is not from broadcasting is an error."""
    extra = len(gradient.shape) - len(shape)
    ones = range(len(shape)) if extra >= 0 else ()
    axes = (*range(extra), *(extra + i for i in ones if shape[i] == 1 and gradient.shape[extra + i] != 1))
    result = k.reshape(quietly(k, k.sum, gradient, axes, False), shape) if axes else gradient
    if result.shape != shape:
        rule = getattr(backward, "__qualname__", "an operation")
        raise GraphError(
            f"the gradient rule of {rule} returned shape {list(gradient.shape)} for an operand of shape {list(shape)}. "
            f"Return the operand's shape, or one that it broadcasts to"
        )
    return result


def merged(k: Any, known: list[Any], more: list[Any]) -> list[Any]:
    """The sums of the gradients of an operation's outputs, output by output; None where there is no gradient."""
    return [b if a is None else a if b is None else quietly(k, k.add, a, b) for a, b in zip(known, more, strict=True)]
