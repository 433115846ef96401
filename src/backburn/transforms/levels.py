"""The levels of ``Autodiff`` and ``Forward`` on which transforms run, and moving arguments and results between them.

A transform runs one level above all transforms that are active around it, above its arguments and above the default
backend, so that everything that its function captures is a constant to it: ``d/dx [x * d/dy (x * y)]`` does not confuse
the two variables (perturbation confusion).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from operator import is_
from types import NoneType
from typing import Any

from backburn.autodiff import Autodiff
from backburn.autodiff.graph import Node, Tracked, leaf_of
from backburn.backend.contract import AnyBackend
from backburn.base.contexts import ACTIVE, RECORDING, TRANSFORMS, scoped
from backburn.base.errors import ArgumentError, DTypeError, GraphError, NotDifferentiableError
from backburn.base.mutable_trees import MutableTree, TreeNode
from backburn.base.trees import Structure, flatten, leaves_with_paths, paths, same_constants
from backburn.batching import Batched, is_mapped
from backburn.tensor.classes import DIFFERENTIABLE, FloatTensor, Tensor
from backburn.tensor.core.defaults import default_backend
from backburn.tensor.core.host import asarray
from backburn.tensor.core.levels import as_constant, common_backend, constant, inner_of, levels_between, lift
from backburn.tensor.core.messages import describe
from backburn.tensor.core.wrapping import tensor_of
from backburn.tensor.gradients import complex_loss


def check_function(name: str, f: Any) -> None:
    """Raise :class:`ArgumentError` unless ``f`` is callable; a common mistake is to pass its value."""
    if not callable(f):
        raise ArgumentError(f"{name}: takes a function, not {type(f).__name__}: the function itself, not its value")


def float_leaves(name: str, args: Any) -> tuple[list[FloatTensor], Any]:
    """The leaves of arguments to differentiate for, as float tensors, and their structure.

    Python floats become tensors. Tensors of a module that are not of floats belong to the structure. Raises for ints
    ("use 2.0"), other int and bool tensors, and anything else, and names its path in its argument.
    """
    leaves, structure = flatten(args, is_constant=is_no_float)
    return [_float_leaf(name, x, args) for x in leaves], structure


def is_no_float(x: Any) -> bool:
    """Whether ``x`` is a tensor of a kind without gradients."""
    return isinstance(x, Tensor) and not isinstance(x, DIFFERENTIABLE)


def _float_leaf(name: str, x: Any, args: Any) -> Any:
    if isinstance(x, DIFFERENTIABLE):
        return x
    if isinstance(x, (float, complex)):
        return asarray(x)
    inside = (path.partition(".")[2] for path, leaf in leaves_with_paths(args) if leaf is x)
    place = next((f", at {path!r}" for path in inside if path), "")
    if isinstance(x, int):
        raise NotDifferentiableError(
            f"{name}: differentiates for floats, and {x!r} is an integer{place}: use {float(x)!r} (or, for a field of "
            f'a dataclass that is not a leaf, field(metadata={{"static": True}}))'
        )
    if isinstance(x, Tensor):
        raise NotDifferentiableError(f"{name}: only float tensors have gradients, and this is {describe((x,))}{place}")
    advice = ". bb.asarray(...) makes a tensor" if hasattr(x, "__array__") else ""
    if isinstance(x, str):
        advice = '. A field of a dataclass that is not a leaf is declared field(metadata={"static": True})'
    raise DTypeError(f"{name}: differentiates for float tensors and floats, not {type(x).__name__}{place}{advice}")


def level_below(name: str, tensors: list[Any]) -> AnyBackend:
    """The backend that a transform of ``tensors`` computes its results on: the highest level around it."""
    below = common_backend(name, tensors) if tensors else default_backend()
    for other in (ACTIVE.get(), default_backend()):
        if other is not None and levels_between(below, other) is not None:
            below = other
    return below


#: A list for each active transform, filled by :func:`retain_graphs`.
_RUNNING: ContextVar[tuple[list[bool], ...]] = ContextVar("backburn_running", default=())


@contextmanager
def transform_scope(outer: AnyBackend) -> Iterator[list[bool]]:
    """A scope in which the function of a transform runs: other transforms run above ``outer``, and gradients are on.

    A transform inside ``no_grad`` differentiates all the same; its results are constants (:func:`as_recorded`). The
    list is not empty if the function may be called again after the transform: its arguments stay valid then.
    """
    retained: list[bool] = []
    with (
        scoped(ACTIVE, outer),
        scoped(RECORDING, True),
        scoped(TRANSFORMS, (*TRANSFORMS.get(), outer)),
        scoped(_RUNNING, (*_RUNNING.get(), retained)),
    ):
        yield retained


def retain_graphs() -> None:
    """Tell the active transforms that a part of their functions will be called again after them."""
    for retained in _RUNNING.get():
        retained.append(True)


def as_recorded(x: Any) -> Any:
    """A result of a transform: a constant inside ``no_grad``."""
    return x if RECORDING.get() or not isinstance(x, DIFFERENTIABLE) else constant(x)


def lift_nodes(nodes: Iterable[Node], below: Any, k: Any) -> list[Node]:
    """``nodes``, recorded above ``below``, and all their ancestors, with the saved values as constants of ``k``.

    ``k`` is ``below`` or a level above it, on which a reverse pass then runs. Leaves are not copied.
    """
    nodes = list(nodes)
    path = levels_between(below, k)
    if not path:
        return nodes
    found: dict[Node, Node] = {}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found[node] = node if node.backward is None else copy.copy(node)
        waiting.extend(p for p in node.parents if p is not None)

    def lifted(x: Any) -> Any:
        if x.__class__ in (list, tuple):
            return x.__class__(map(lifted, x))
        if x is None or isinstance(x, (bool, int, float, complex, str)):
            return x
        try:
            kind = below.dtype(x).kind
        except Exception:  # anything but a primitive: a dtype, an operation
            return x
        return as_constant(x, kind, path)

    for made in found.values():
        if made.backward is not None:
            made.saved = lifted(made.saved)
            made.parents = tuple(None if p is None else found[p] for p in made.parents)
    return [found[node] for node in nodes]


def variables(outer: Autodiff[Any], tensors: list[FloatTensor]) -> list[FloatTensor]:
    """The tensors as leaves of ``outer``."""
    k = outer.inner_backend
    values = [lift(x, k) for x in tensors]
    return [tensor_of(Tracked(v, leaf_of(k, v)), outer, x.dtype) for v, x in zip(values, tensors, strict=True)]


def lower(x: Any, target: AnyBackend) -> Any:
    """A tensor on a lower level: below those at which it is a constant, but not below ``target``."""
    while isinstance(x, Tensor) and x.backend is not target and inner_of(x.backend) is not None and not x.is_tracked:
        if isinstance(x.backend, Batched) and is_mapped(x.backend, x.primitive):
            return x
        inner = x.inner()
        if levels_between(target, inner.backend) is None:
            return x
        x = inner
    return x


def sync_module_state(primals: Any, structure: Structure, given: Any, inputs: list[FloatTensor]) -> None:
    """Copy state that a function changed (running statistics) from the modules in ``given`` to those in ``primals``.

    The copies had ``inputs`` for float leaves before the call, and the ``structure`` that :func:`float_leaves` gave.
    """
    if not _has_object(structure):
        return
    leaves, now = flatten(given, is_constant=is_no_float)
    if len(leaves) == len(inputs) and all(map(is_, leaves, inputs)) and same_constants(structure, now):
        return
    remaining = iter(inputs)
    before = [x if is_no_float(x) else next(remaining) for x in flatten(primals)[0]]
    restore_state(primals, structure, given, before, lambda path, new, old: to_level(new, old.backend))


def restore_state(
    primals: Any, structure: Structure, given: Any, before: list[Any], outside: Callable[[str, Tensor, Tensor], Tensor]
) -> None:
    """Copy state that a function changed from the modules in ``given``, copies, back to those in ``primals``.

    The copies had the leaves ``before`` when the function began. A changed tensor is stored as the constant
    ``outside(path, new, old)``, and requires a gradient if the old one did. Lists and dicts outside of modules stay as
    they are: a function may change those that it was given.
    """
    if not _has_object(structure):
        return
    leaves, now = flatten(given)
    if len(leaves) == len(before) and all(map(is_, leaves, before)):
        return
    known = dict(zip(paths(flatten(primals)[1]), before, strict=True))
    changed = {p: x for p, x in zip(paths(now), leaves, strict=True) if p in known and x is not known[p]}
    for held in MutableTree(list(primals), lambda x: isinstance(x, Tensor)).leaves:
        path = next((p for p in held.paths if isinstance(changed.get(p), Tensor)), None)
        if path is not None and _is_in_object(held.parents[0][0]):
            old = held.value
            try:
                value = outside(path, changed[path], old)
            except GraphError as error:
                if isinstance(old, DIFFERENTIABLE) and old.is_tracked and not old.is_require_grad:
                    continue  # a value computed by an earlier call is not state, so nothing is lost
                raise GraphError(
                    f"the function has stored in {path!r} of its arguments a tensor that differs between the examples "
                    f"of vmap, but outside there is one for all. If BatchNorm updates its statistics, model.eval() "
                    f"keeps them; GroupNorm and LayerNorm have none"
                ) from error
            value = constant(value) if isinstance(value, DIFFERENTIABLE) else value
            held.put(value.require_grad() if old.is_require_grad and old.backend is not ACTIVE.get() else value)


#: Nodes of these types have no attributes that a function could have set.
_PLAIN = (list, tuple, dict)


def _has_object(structure: Structure) -> bool:
    """Whether a node of a tree is more than a plain container."""
    cls = structure.cls
    if cls is None or cls is NoneType:
        return False
    return cls not in _PLAIN or any(map(_has_object, structure.children))


def _is_in_object(node: TreeNode | None) -> bool:
    """Whether a node or one above it is more than a plain container."""
    while node is not None and type(node.value) in _PLAIN:
        node = node.parent
    return node is not None


def as_output(name: str, x: Any, level: AnyBackend) -> Any:
    """An output of a function that ran on ``level``, on that level or one below.

    Raises for an output with a history elsewhere, which would be lost: it was computed from a tensor that leaked out of
    an inner transform.
    """
    x = lower(x, level)
    if isinstance(x, DIFFERENTIABLE) and levels_between(x.backend, level) is None and x.is_tracked:
        raise GraphError(
            f"{name}: the function returned {describe((x,))}, whose history is not on {level.spec}, the level of the "
            f"transform: it was computed from a tensor that another transform gave to its function, which kept "
            f"it beyond the transform, or it was moved to another backend. Return what is needed from the function "
            f"(has_aux=True lets grad do so), or detach it"
        )
    return x


def to_level(x: Any, target: AnyBackend) -> Any:
    """A tensor of a level above ``target`` as its value there; anything else as it is."""
    while isinstance(x, Tensor) and x.backend is not target and levels_between(target, x.backend):
        x = x.inner()
    return x


def check_leaves_are_ours(outer: Any, gradients: Iterable[Node], inputs: list[Node]) -> None:
    """Raise for a captured variable of another transform on the same level, whose gradient would be lost.

    A gradient requested by ``retain_grad`` between them is not lost: no transform returns it.
    """
    if any(node.backward is None for node in set(gradients).difference(inputs)):
        raise foreign_graph_error(outer)


def foreign_graph_error(outer: Any) -> GraphError:
    """The error for a tensor with a history of another transform on the same level."""
    return GraphError(
        f"vjp: the function uses a tensor that is tracked on {outer.spec}, the level of the transform itself. "
        f"Pass the tensor as an argument, or detach it"
    )


def scalar_output(out: Any) -> FloatTensor:
    """The value of a function, which must be a float scalar."""
    if not isinstance(out, Tensor):
        raise ArgumentError(f"grad: the function must return a float scalar tensor, not {type(out).__name__}")
    if out.dtype.kind == "complex":
        raise complex_loss("grad", out)
    if not out.dtype.is_floating or out.ndim:
        raise ArgumentError(
            f"grad: the function must return a float scalar, and returned {describe((out,))}. "
            f"Reduce it with sum() or mean(), or use jacobian or vjp"
        )
    return out  # type: ignore[return-value]
