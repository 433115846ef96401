"""Moving primitives to another base backend, with gradients that flow back.

The gradient of a move is on another backend, where the reverse pass continues; no other operation's is.
Levels of autodiff are matched from the inside, and each records its own part. The gradient is a move back, which is
recorded in turn for higher derivatives.
"""

from __future__ import annotations

from typing import Any

from backburn.autodiff.graph import MovedGradient, Node, Tracked, next_stamp
from backburn.autodiff.reverse import Autodiff
from backburn.base.contexts import RECORDING
from backburn.base.errors import ArgumentError


def transfer(x: Any, source: Any, target: Any) -> tuple[Any, Any]:
    """Primitive ``x`` of ``source`` on ``target``, or on a level inside it, and that level.

    Raises :class:`ArgumentError` where ``x`` is tracked on a level that ``target`` does not have.
    """
    level = source
    while _depth(level) > _depth(target) and not _is_tracked(x, level):
        x, level = x.value if x.__class__ is Tracked else x, level.inner_backend
    there = target
    while _depth(there) > _depth(level):
        there = there.inner_backend
    if _depth(level) > _depth(there) or _is_tracked(*_base(x, level)):
        raise ArgumentError(
            f"to: the tensor is on the graph of {level.spec}, which does not extend to {target.spec}: "
            f"write x.detach().to({target.spec!r})"
        )
    return _move(x, level, there), there


def _is_tracked(x: Any, k: Any) -> bool:
    """Whether a primitive is a float one that ``k`` itself tracks."""
    return bool(k.dtype(x).has_gradient and k.is_tracked(x))


def _base(x: Any, k: Any) -> tuple[Any, Any]:
    """A primitive on the backend under the outer levels of ``Autodiff``, and that backend."""
    while isinstance(k, Autodiff):
        x, k = x.value if x.__class__ is Tracked else x, k.inner_backend
    return x, k


def _move(x: Any, source: Any, target: Any) -> Any:
    """``x`` on ``target``, which has as many levels as ``source``."""
    if source is target or source == target:
        return x
    if not isinstance(source, Autodiff):
        return target.from_numpy(source.to_numpy(x))
    inner, outer = source.inner_backend, target.inner_backend
    if x.__class__ is not Tracked:
        return _move(x, inner, outer)
    value = _move(x.value, inner, outer)
    if x.node is None or not RECORDING.get():
        return Tracked(value)
    return Tracked(value, Node(_move_back, (x.node,), (inner, outer), x.shape, next_stamp()))


def _move_back(k: Any, g: Any, node: Node) -> tuple[MovedGradient]:
    """The gradient of a move, on the backend that the tensor came from."""
    source, target = node.saved
    return (MovedGradient(_move(g, target, source), source),)


def _depth(k: Any) -> int:
    """The number of levels of ``Autodiff`` of a backend."""
    depth = 0
    while isinstance(k, Autodiff):
        k, depth = k.inner_backend, depth + 1
    return depth
