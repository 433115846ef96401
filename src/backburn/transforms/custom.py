"""Derivatives by hand: ``custom_vjp`` and ``stop_gradient``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from backburn.autodiff.graph import Node, next_stamp
from backburn.autodiff.recorder import with_outputs
from backburn.backend.contract import is_autodiff
from backburn.base.contexts import RECORDING
from backburn.base.errors import ArgumentError, GraphError, ShapeError
from backburn.base.trees import flatten, tree_map, unflatten
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.dispatch import common_backend, describe, lift


def stop_gradient(tree: Any) -> Any:
    """The tensors of ``tree`` as constants on every level: nothing flows through them.

    >>> import backburn as bb
    >>> bb.transforms.grad(lambda x: x * stop_gradient(x))(3.0).item()
    3.0
    """
    return tree_map(lambda x: _constant(x) if isinstance(x, FloatTensor) else x, tree)


def _constant(x: FloatTensor) -> FloatTensor:
    k: Any = x.backend
    primitive, path = x.primitive, []
    while is_autodiff(k):
        path.append(k)
        primitive, k = k.inner(primitive), k.inner_backend
    for level in reversed(path):
        primitive = level.from_inner(primitive)
    return FloatTensor(primitive, x.backend, x.dtype)


class custom_vjp:  # noqa: N801 - a decorator
    """A function whose reverse-mode derivative the user gives.

    ``forward(*args)`` returns the function's value and residuals, ``backward(residuals, cotangent)`` a tuple of the
    cotangents of ``args`` (None for those without one); both are ordinary functions of tensors and may be
    differentiated in turn. The value is one float tensor.

        >>> import backburn as bb
        >>> @custom_vjp
        ... def clipped(x):
        ...     return x * 1.0
        >>> clipped.define(lambda x: (x * 1.0, None), lambda _, g: (bb.clip(g, -1.0, 1.0),))
        >>> x = bb.asarray([1.0]).require_grad()
        >>> x.grad((clipped(x) * 100.0).backward()).tolist()
        [1.0]
    """

    def __init__(self, f: Callable[..., Any]) -> None:
        self.f = f
        self.forward: Callable[..., Any] | None = None
        self.backward: Callable[..., Any] | None = None
        functools.update_wrapper(self, f)

    def define(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """Attach the two halves of the derivative."""
        self.forward, self.backward = forward, backward

    def __call__(self, *args: Any) -> Any:
        """The function's value; recorded with the given derivative where an argument is tracked."""
        leaves, structure = flatten(args)
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        outer: Any = common_backend(self.f.__name__, tensors) if tensors else None
        on_graph = [
            x.backend is outer and x.is_tracked for x in leaves if isinstance(x, Tensor)
        ]
        if outer is None or not is_autodiff(outer) or not any(on_graph) or not RECORDING.get():
            return self.f(*args)
        if self.forward is None or self.backward is None:
            name = self.f.__name__
            raise GraphError(f"{name}: no derivative was given: call {name}.define(forward, backward)")
        below = outer.inner_backend
        lifted = [type(x)(lift(x, outer), outer, x.dtype) if isinstance(x, Tensor) else x for x in leaves]
        inner = [x.inner() if isinstance(x, Tensor) else x for x in lifted]
        out, residuals = self.forward(*unflatten(structure, inner))
        if not isinstance(out, FloatTensor):
            what = type(out).__name__
            raise ArgumentError(f"{self.f.__name__}: forward must return a float tensor and residuals, not {what}")
        tracked = [x for x in lifted if isinstance(x, FloatTensor) and x.is_tracked]
        parents = tuple(x.primitive.node for x in tracked)

        def pull(k: Any, g: list[Any], node: Node) -> tuple[Any, ...]:
            cotangents = self.backward(residuals, FloatTensor(g[0], below, out.dtype))  # type: ignore[misc]
            found = _like_arguments(self.f.__name__, args, cotangents)
            pairs = [(x, c) for x, c in zip(lifted, found, strict=True) if isinstance(x, FloatTensor) and x.is_tracked]
            return tuple(_checked(self.f.__name__, x, c, below) for x, c in pairs)

        node = Node(pull, parents, (), (), next_stamp())
        (result,) = with_outputs(node, (lift(out, below),), (True,))
        return FloatTensor(result, outer, out.dtype)


def _like_arguments(name: str, args: tuple[Any, ...], cotangents: Any) -> list[Any]:
    """A cotangent or None for every leaf of the arguments."""
    if not isinstance(cotangents, tuple) or len(cotangents) != len(args):
        raise ArgumentError(f"{name}: backward must return a tuple of {len(args)} cotangents, one for each argument")
    found: list[Any] = []
    for argument, cotangent in zip(args, cotangents, strict=True):
        count = len(flatten(argument)[0])
        found.extend([None] * count if cotangent is None else flatten(cotangent)[0])
    return found


def _checked(name: str, x: FloatTensor, cotangent: Any, below: Any) -> Any:
    if cotangent is None:
        return None
    if not isinstance(cotangent, FloatTensor) or cotangent.shape != x.shape or cotangent.dtype is not x.dtype:
        what = describe((cotangent,)) if isinstance(cotangent, Tensor) else type(cotangent).__name__
        raise ShapeError(f"{name}: backward returned {what} as the cotangent of {describe((x,))}")
    return lift(cotangent, below)
