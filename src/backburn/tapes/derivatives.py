"""Derivatives of a typed graph beyond the gradient: Jacobians, and Hessians on one more level of ``Autodiff``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from backburn.autodiff.graph import reverse
from backburn.autodiff.reverse import Autodiff
from backburn.base.contexts import RECORDING, scoped
from backburn.base.trees import flatten, tree_map, unflatten
from backburn.ops.bodies.slicing import index_axis
from backburn.tapes.evaluate import evaluate
from backburn.tapes.nodes import AnyGradOp, GradOp
from backburn.tapes.records import is_tree


def flatten_vector(k: Any, x: Any) -> Any:
    """``x`` as a vector."""
    return k.reshape(x, (math.prod(x.shape),))


def slices(k: Any, x: Any) -> Iterator[Any]:
    """The entries of ``x`` along its first axis, without that axis."""
    return (index_axis(k, x, 0, i) for i in range(x.shape[0]))


def gradient_rows(k: Any, output: Any, leaves: Sequence[Any]) -> list[list[Any]]:
    """The gradients of each element of ``output`` for all leaves, with one reverse pass for each."""
    size, dtype = math.prod(output.shape), k.dtype(output.value)
    zeros = [k.zeros(tuple(x.shape), dtype) for x in leaves]
    if output.node is None or size == 0:
        return [zeros] * size
    found = []
    for seed in slices(k, k.eye(size, size, 0, dtype)):
        gradients = reverse(k, output.node, k.reshape(seed, tuple(output.shape)), retain_graph=True)
        by_leaf = [gradients.get(x.node) for x in leaves]
        found.append([zero if g is None else g for g, zero in zip(by_leaf, zeros, strict=True)])
    return found


def joined_rows(k: Any, rows: Sequence[Sequence[Any]], leaves: Sequence[Any]) -> Any:
    """The rows of gradients as one matrix."""
    size = sum(math.prod(x.shape) for x in leaves)
    if not rows or not size:
        return k.zeros((len(rows), size), k.dtype(leaves[0].value))
    return k.stack([k.concat([flatten_vector(k, g) for g in row], 0) for row in rows], 0)


def jacobian(k: Any, output: Any, leaves: Sequence[Any]) -> Any:
    """The matrix of first derivatives of ``output`` with respect to the elements of ``leaves``."""
    return joined_rows(k, gradient_rows(k, output, leaves), leaves)


def diagonal(k: Any, rows: Sequence[Sequence[Any]], leaves: Sequence[Any]) -> list[Any]:
    """The second derivative with respect to each element, in the leaves' shapes."""
    result, start = [], 0
    for place, leaf in enumerate(leaves):
        size = math.prod(leaf.shape)
        own = [k.slice(flatten_vector(k, rows[start + i][place]), (slice(i, i + 1, 1),)) for i in range(size)]
        joined = k.concat(own, 0) if own else k.zeros((0,), k.dtype(leaf.value))
        result.append(k.reshape(joined, tuple(leaf.shape)))
        start += size
    return result


def second_derivatives(
    level: Any, ops: Sequence[AnyGradOp], values: Sequence[Any], loss: int, param: int
) -> tuple[list[list[Any]], list[Any]]:
    """The rows of the Hessian of ``loss`` with respect to ``param``, and the parameter's leaves.

    The nodes up to ``loss`` are evaluated one level higher, where the parameter's leaves are leaves again; ``level``
    records the gradient computed there.
    """
    k, above = level.inner_backend, Autodiff(level)
    leaves, form = flatten(values[param])
    with scoped(RECORDING, True):
        raised: list[Any] = [above.set_require_grad(above.from_inner(x), True) for x in leaves]
        at: list[Any] = [None] * (loss + 1)
        for node in path(ops, None, loss):
            op = ops[node]
            if node == param:
                at[node] = unflatten(form, raised)
            elif isinstance(op, (GradOp.Input, GradOp.Parameter)):
                at[node] = tree_map(lambda x: _constant(level, above, x), values[node])
            else:
                shape = None if is_tree(values[node]) else tuple(values[node].shape)
                at[node] = evaluate(above, op, at, shape)
        gradients: list[Any] = [None for _ in leaves]
        if above.is_tracked(at[loss]):
            found = above.backward(at[loss])
            gradients = [above.grad(x, found) for x in raised]
    rows: list[list[Any]] = []
    for gradient, leaf in zip(gradients, leaves, strict=True):
        known = level.zeros(tuple(leaf.shape), k.dtype(leaf.value)) if gradient is None else gradient
        rows.extend(gradient_rows(k, known, leaves))
    return rows, leaves


def _constant(level: Any, above: Any, x: Any) -> Any:
    """A value of ``level`` as one of the level above through which no gradient flows."""
    return above.from_inner(level.detach(x)) if level.dtype(x).has_gradient else x


def path(ops: Sequence[AnyGradOp], source: int | None, target: int) -> list[int]:
    """The nodes that depend on ``source`` and on which ``target`` depends, itself included, in order."""
    needed, waiting = {target}, [target]
    while waiting:
        for operand in ops[waiting.pop()].operands:
            if operand not in needed:
                needed.add(operand)
                waiting.append(operand)
    if source is None:
        return sorted(needed)
    reached, result = {source}, []
    for node in sorted(needed):
        if node != source and any(i in reached for i in ops[node].operands):
            reached.add(node)
            result.append(node)
    return result
