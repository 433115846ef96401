"""L-BFGS: steps by an approximate inverse Hessian that is never formed."""

from __future__ import annotations

from typing import Any

from backburn.optim.adaptive import descended
from backburn.optim.optimizer import Optimizer, Rate, checked
from backburn.tensor.dispatch import integer

#: A pair whose curvature, the product of move and change of gradient, is not above this is left out.
CURVATURE = 1e-10


class LBFGS(Optimizer):
    """Limited-memory BFGS: the two-loop recursion (Nocedal and Wright, "Numerical Optimization", 2006, algorithm 7.4).

    Each step goes ``lr`` times the approximate Newton step that follows from the last ``history`` moves and changes of
    the gradient; the first is at most as long as ``lr``. It is made for losses of all data, not of batches, which
    change from step to step. There is no line search: near a minimum ``lr=1`` is right, far from it less may be
    needed. Parameters of one dtype have one Hessian. ``2 * history`` tensors are kept for each parameter.

    Raises :class:`ArgumentError` for options out of range.

        >>> import backburn as bb
        >>> model = {"w": bb.asarray([3.0, -2.0]).require_grad()}
        >>> optimizer, scales = LBFGS(), bb.asarray([1.0, 25.0])
        >>> for _ in range(9):
        ...     optimizer.step(model, (scales * model["w"] ** 2.0).sum().backward())
        >>> bool(bb.max(bb.abs(model["w"])).item() < 1e-3)
        True
    """

    def __init__(self, lr: Rate = 1.0, history: int = 10) -> None:
        super().__init__(lr)
        self.history = integer("LBFGS", "history", history)
        checked("LBFGS", "history", history, low=1.0)
        moves, changes = (f"move{i}" for i in range(history)), (f"change{i}" for i in range(1, history))
        self.remembers = ("gradient", *moves, *changes)  # the newest first

    def __repr__(self) -> str:
        return f"LBFGS(lr={self.lr}, history={self.history})"

    def _update(
        self, k: Any, params: list[Any], grads: list[Any], remembered: list[list[Any]], lr: float, step: int,
        donate: bool,
    ) -> tuple[Any, ...]:  # fmt: skip
        moves = remembered[1 : 1 + self.history]
        changes = [_map(k.sub, grads, remembered[0]), *remembered[1 + self.history :]]
        direction = _newton(k, grads, moves, changes)
        news = descended(k, params, direction, lr)
        kept = [_map(k.sub, news, params), *moves[:-1], *changes[:-1]]
        return (*news, *grads, *(x for values in kept for x in values))


def _newton(k: Any, grads: list[Any], moves: list[list[Any]], changes: list[list[Any]]) -> list[Any]:
    """The approximate inverse Hessian times the gradient. Pairs without curvature count for nothing."""
    curvatures = [_dot(k, s, y) for s, y in zip(moves, changes, strict=True)]
    usable = [k.greater(c, CURVATURE) for c in curvatures]
    safe = [k.where(ok, c, 1.0) for ok, c in zip(usable, curvatures, strict=True)]
    weights = [k.where(ok, k.div(1.0, c), 0.0) for ok, c in zip(usable, safe, strict=True)]
    r = grads
    shares: list[Any] = []
    for s, y, weight in zip(moves, changes, weights, strict=True):
        shares.append(k.mul(weight, _dot(k, s, r)))
        r = _moved(k, r, k.neg(shares[-1]), y)
    length = _total(k, [k.sum(k.abs(g), tuple(range(len(g.shape))), False) for g in grads])
    # Without a pair, the first step of gradient descent is no longer than 1.
    first = k.div(1.0, k.maximum(length, 1.0))
    scale = k.where(usable[0], k.div(safe[0], k.where(usable[0], _dot(k, changes[0], changes[0]), 1.0)), first)
    r = [k.mul(x, scale) for x in r]
    for s, y, weight, share in list(zip(moves, changes, weights, shares, strict=True))[::-1]:
        r = _moved(k, r, k.sub(share, k.mul(weight, _dot(k, y, r))), s)
    return r


def _map(f: Any, xs: list[Any], ys: list[Any]) -> list[Any]:
    return [f(x, y) for x, y in zip(xs, ys, strict=True)]


def _moved(k: Any, xs: list[Any], factor: Any, ys: list[Any]) -> list[Any]:
    """``x + factor * y`` of each pair."""
    return [k.add(x, k.mul(y, factor)) for x, y in zip(xs, ys, strict=True)]


def _dot(k: Any, xs: list[Any], ys: list[Any]) -> Any:
    """The inner product of two vectors in parts, a 0-d primitive."""
    return _total(k, [k.sum(k.mul(x, y), tuple(range(len(x.shape))), False) for x, y in zip(xs, ys, strict=True)])


def _total(k: Any, parts: list[Any]) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = k.add(total, part)
    return total
