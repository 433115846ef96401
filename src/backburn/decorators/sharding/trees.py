"""The binary tree over neighbours that fixes the order of adding the shards' addends, in any number of processes.

A node is a height and a number: ``(0, i)`` is the addend of shard ``i``, and ``(h, i)`` the sum of ``(h - 1, 2 * i)``
and ``(h - 1, 2 * i + 1)``, or the first of these where there is no second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Node = tuple[int, int]


def subtrees(start: int, stop: int, count: int) -> list[Node]:
    """The largest nodes whose addends are all among shards ``start`` up to but excluding ``stop``, of ``count``.

    >>> subtrees(0, 4, 8), subtrees(3, 6, 6)
    ([(2, 0)], [(0, 3), (2, 1)])
    """
    found: list[Node] = []

    def visit(height: int, number: int) -> None:
        first, last = number << height, min((number + 1) << height, count)
        if first >= stop or last <= start:
            return
        if start <= first and last <= stop:
            found.append((height, number))
            return
        visit(height - 1, 2 * number)
        visit(height - 1, 2 * number + 1)

    visit(*root(count))
    return found


def root(count: int) -> Node:
    """The node of the sum of ``count`` addends.

    >>> root(1), root(5)
    ((0, 0), (3, 0))
    """
    return (count - 1).bit_length(), 0


def node_sum(node: Node, known: Mapping[Node, Any], count: int, add: Callable[[Any, Any], Any]) -> Any:
    """The sum of a node, from those of nodes below it.

    >>> node_sum((3, 0), {(0, i): x for i, x in enumerate("abcde")}, 5, lambda x, y: f"({x}{y})")
    '(((ab)(cd))e)'
    """
    found = known.get(node)
    if found is not None:
        return found
    height, number = node
    left = node_sum((height - 1, 2 * number), known, count, add)
    if (2 * number + 1) << (height - 1) >= count:
        return left
    return add(left, node_sum((height - 1, 2 * number + 1), known, count, add))
