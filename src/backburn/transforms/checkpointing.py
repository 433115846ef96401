"""``checkpoint``: recompute instead of store."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import copy_context
from typing import Any, cast

from backburn.autodiff.graph import Node, next_stamp, outputs_node, reverse
from backburn.autodiff.reverse_codegen import with_outputs
from backburn.backend.contract import is_autodiff
from backburn.base.contexts import ACTIVE, RECORDING
from backburn.base.errors import GraphError
from backburn.base.module_calls import CALL
from backburn.base.trees import NODE_TYPES, NodeType, flatten, unflatten
from backburn.batching import Batched, is_mapped, levels_of_vmap
from backburn.hints.arguments import explained
from backburn.tensor.classes import DIFFERENTIABLE, FloatTensor
from backburn.tensor.core.levels import common_backend
from backburn.tensor.core.wrapping import tensor_of
from backburn.tensor.generators import Draws
from backburn.transforms.levels import check_function, lift_nodes, retain_graphs


@explained
def checkpoint(f: Callable[..., Any]) -> Callable[..., Any]:
    """``f`` with its intermediate values recomputed in the reverse pass instead of stored.

    Only the arguments and what ``f`` captures are stored: containers among the arguments with their contents at the
    call, modules by reference. ``f`` must return the same when called again; it draws the same random numbers, from any
    generator. Parameters that ``f`` captures (a module's, say) receive their gradients. It can be nested in transforms
    and in itself; values are recomputed at the level of the outermost derivative, and stored as usual at the levels
    below.

        >>> import backburn as bb
        >>> block = checkpoint(lambda x: bb.tanh(x * x))
        >>> x = bb.asarray([0.5]).require_grad()
        >>> x.grad(block(x).backward()).tolist() == x.grad(bb.tanh(x * x).backward()).tolist()
        True
    """
    check_function("checkpoint", f)

    @functools.wraps(f)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        context, draws = copy_context(), Draws()
        since = next_stamp()
        levels = levels_of_vmap(ACTIVE.get())
        given, form = flatten((args, kwargs), is_leaf=_has_state)  # before anybody changes a container
        out = draws.first(functools.partial(f, *args, **kwargs))
        del args, kwargs
        leaves, structure = flatten(out)
        bare = [_unbatch(x) for x in leaves]
        recorded = [x for x in bare if isinstance(x, DIFFERENTIABLE) and is_autodiff(x.backend) and x.is_tracked]
        if not recorded or not RECORDING.get():
            return out
        outer = common_backend("checkpoint", recorded)
        if ACTIVE.get() is not outer:  # the reverse pass may come after the transforms that run above it
            retain_graphs()
        recorded = [x for x in recorded if x.backend is outer]
        parents = _entry_nodes(recorded, since)

        def again() -> list[Any]:
            with ExitStack() as stack:
                for level in levels:
                    stack.enter_context(level.reopened())
                same, named = unflatten(form, given)
                found = map(_unbatch, flatten(draws.again(functools.partial(f, *same, **named)))[0])
            return [x for x in found if isinstance(x, DIFFERENTIABLE) and x.backend is outer and x.is_tracked]

        def run_again() -> list[Any]:
            """Run it in the context of the first run, inside the same transforms."""
            there = context.copy()
            there.run(CALL.set, CALL.get())  # what is computed again belongs to this reverse pass
            return there.run(again)

        node = Node(_recompute, parents, (run_again,), (), next_stamp())
        parts = iter(with_outputs(node, tuple(x.primitive.value for x in recorded), (True,) * len(recorded)))
        ids = {id(x) for x in recorded}
        replaced = [
            _rebatch(tensor_of(next(parts), x.backend, x.dtype), shown) if id(x) in ids else shown
            for x, shown in zip(bare, leaves, strict=True)
        ]
        return unflatten(structure, replaced)

    return checkpointed


def _has_state(x: Any) -> bool:
    """Whether a node is an object that a function may change for good, such as a module, and not a container."""
    return cast(NodeType, NODE_TYPES[x.__class__]).shares


def _unbatch(x: Any) -> Any:
    """``x`` below the levels of ``vmap``, which have no graph: the tensor of all examples."""
    while isinstance(x, DIFFERENTIABLE) and isinstance(x.backend, Batched):
        x = tensor_of(x.backend.unmapped(x.primitive), x.backend.inner_backend, x.dtype)
    return x


def _rebatch(x: FloatTensor, shown: FloatTensor) -> FloatTensor:
    """The inverse: ``x`` on the levels of ``vmap`` of ``shown``."""
    if not isinstance(shown.backend, Batched):
        return x
    level: Batched = shown.backend
    below = _rebatch(x, tensor_of(level.unmapped(shown.primitive), level.inner_backend, x.dtype))
    mapped = is_mapped(level, shown.primitive)
    return tensor_of(level.mapped(below.primitive) if mapped else below.primitive, level, x.dtype)


def _entry_nodes(outputs: list[Any], since: int) -> tuple[Node, ...]:
    """The nodes through which the graph behind ``outputs`` was entered: those older than ``since``, and leaves."""
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = [x.primitive.node for x in outputs]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.stamp < since or node.backward is None:
            found[node] = None
        else:
            stack.extend(p for p in node.parents if p is not None)
    return tuple(found)


def _recompute(k: Any, g: list[Any], node: Any) -> tuple[Any, ...]:
    """Run the function again, recorded, and backpropagate through the recording."""
    (again,) = node.saved
    since = next_stamp()
    recorded = again()
    outputs = [x.primitive.node for x in recorded]
    if len(outputs) != len(g):
        raise GraphError(
            f"checkpoint: the function returned {len(g)} tracked tensors, and {len(outputs)} when it was called again "
            f"in the reverse pass: it must do the same both times"
        )
    reached = [(x, cotangent) for x, cotangent in zip(outputs, g, strict=True) if cotangent is not None]
    nodes = lift_nodes([x for x, _ in reached], recorded[0].backend.inner_backend, k)
    root = outputs_node(nodes, [c for _, c in reached])
    del recorded, outputs, reached, nodes
    gradients = reverse(k, root, None, retain_graph=False, since=since)
    # By their stamps, which a node shares with its copies on higher levels.
    entered = {found.stamp: gradient for found, gradient in gradients.items() if found.stamp < since}
    if not entered.keys() <= {parent.stamp for parent in node.parents}:
        raise GraphError(
            "checkpoint: when it was called again in the reverse pass, the function used a tracked tensor that it did "
            "not use before, such as a parameter that a step has replaced: call backward before the step"
        )
    return tuple(entered.get(parent.stamp) for parent in node.parents)
