"""Observers of a reverse pass: watchers of calls, and a backend that reduces gradients once they are final."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from backburn.base.module_calls import reverse_calls

if TYPE_CHECKING:
    from backburn.autodiff.graph import Node

Observer = Callable[[int], None] | None


@contextmanager
def observer(
    k: Any, root: Node, gradients: dict[Node, Any], since: int, saved: Callable[[Any], Iterable[tuple[int, Any]]]
) -> Iterator[Observer]:
    """A context for a reverse pass, with a function to call with the stamp of each node, or None."""
    watching: AbstractContextManager[Observer] = reverse_calls(saved, root)
    with watching as visit:
        if not k.settles:
            yield visit
            return
        reducer = GradientReducer(k, root, gradients, since, visit)
        yield reducer
        reducer.finish()


class GradientReducer:
    """Reduces the gradient of each placed leaf once the last node that adds to it has passed its own gradient on.

    The backend's ``settle`` reduces it. A reverse pass calls the reducer with the stamp of every node before that node
    passes its gradient on.
    """

    def __init__(
        self,
        k: Any,
        root: Node,
        gradients: dict[Node, Any],
        since: int,
        visit: Observer,
    ) -> None:
        self.k = k
        self.gradients = gradients
        self.visit = visit
        self.last = -1
        #: How many nodes have yet to add to the gradient of a leaf.
        self.expected: dict[Node, int] = {}
        #: The leaves that a node adds to, by the node's stamp.
        self.leaves: dict[int, list[Node]] = {}
        seen, waiting = {root}, [root]
        while waiting:
            node = waiting.pop()
            if since and node.stamp < since:
                continue
            for parent in node.parents:
                if parent is not None and parent.like is not None:
                    self.expected[parent] = self.expected.get(parent, 0) + 1
                    self.leaves.setdefault(node.stamp, []).append(parent)
                elif parent is not None and parent not in seen:
                    seen.add(parent)
                    waiting.append(parent)

    def __call__(self, stamp: int) -> None:
        """Reduce the gradients that the previous node made final."""
        self._reduce_last()
        self.last = stamp
        if self.visit is not None:
            self.visit(stamp)

    def _reduce_last(self) -> None:
        for node in self.leaves.pop(self.last, ()):
            self.expected[node] -= 1
            if not self.expected[node]:
                self._reduce(node)

    def _reduce(self, node: Node) -> None:
        del self.expected[node]
        gradient = self.gradients.get(node)
        if gradient is not None and not hasattr(gradient, "assembled"):  # one in slices, or on another backend
            self.gradients[node] = self.k.settle(gradient, node.like)

    def finish(self) -> None:
        """Reduce the rest: gradients of leaves to which some nodes of the graph added nothing."""
        self._reduce_last()
        for node in [*self.expected]:
            self._reduce(node)
