"""L-BFGS: a quasi-Newton method with an implicit inverse Hessian."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from functools import reduce
from typing import Any

from backburn.base.errors import ArgumentError
from backburn.optim.formulas import total
from backburn.optim.gradients import NamedGradients, named_gradients
from backburn.optim.optimizer import Optimizer, Rate, StepInputs
from backburn.tensor.classes import FloatTensor
from backburn.tensor.complex_numbers import conj
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import integer
from backburn.tensor.generators import Draws

#: The least curvature (the product of move and change of gradient) of a pair that is not ignored. (Near a minimum,
#: curvatures become as small as the squared distance from it, and still matter.)
CURVATURE = 1e-30
#: The line search: the least decrease of the loss and the largest remaining slope, as fractions of the initial slope,
#: and the maximum number of evaluations.
DECREASE, SLOPE_LEFT, EVALUATIONS = 1e-4, 0.9, 30


class LBFGS(Optimizer):
    """Limited-memory BFGS: the two-loop recursion (Nocedal and Wright, "Numerical Optimization", 2006, algorithm 7.4).

    Each step is ``lr`` times an approximate Newton step, computed from the last ``history_size`` changes of the
    parameters and the gradient; the length of the first is at most ``lr``. The loss should be that of all data, not of
    batches that change from step to step. Parameters of one dtype share one Hessian. ``2 * history_size`` tensors are
    kept for each parameter.

    ``step(model, gradients)`` takes this step without a line search: near a minimum ``lr=1`` is right, elsewhere it may
    be too large. ``step(model, loss)``, where ``loss`` is a function of the model, searches along the line, by
    bisection and with several calls of the function, for a step that satisfies the weak Wolfe conditions (Lewis and
    Overton, "Nonsmooth optimization via quasi-Newton methods", 2013, algorithm 2.6). ``step(model, loss, steps=20)``
    takes several, with half as many calls.

    Raises :class:`ArgumentError` for options out of range.

        >>> import backburn as bb
        >>> model = {"w": bb.asarray([3.0, -2.0]).require_grad()}
        >>> optimizer, scales = LBFGS(), bb.asarray([1.0, 25.0])
        >>> for _ in range(9):
        ...     loss = optimizer.step(model, lambda model: (scales * model["w"] ** 2.0).sum())
        >>> bool(bb.max(bb.abs(model["w"])).item() < 1e-3)
        True
    """

    def __init__(self, lr: Rate = 1.0, *, history_size: int = 100) -> None:
        super().__init__(lr)
        self.history_size = history_size

    @property
    def remembers(self) -> tuple[str, ...]:  # type: ignore[override]  # it follows from the options
        """The gradient, and the changes of the parameters and the gradient, newest first."""
        n = self.history_size
        return ("gradient", *(f"move{i}" for i in range(n)), *(f"change{i}" for i in range(1, n)))

    def _checked(self, name: str, value: Any) -> Any:
        if name == "history_size":
            return integer("LBFGS", name, value, least=1)
        return super()._checked(name, value)

    def step(self, model: Any, gradients: Any, steps: int = 1) -> float | None:  # type: ignore[override]
        """Take a step, given gradients (see :meth:`Optimizer.step`) or a function of the model that returns its loss.

        With a function, returns the loss before the step. Several ``steps`` reuse the loss and gradients that each line
        search ends with: a step takes two calls of the function, ``n`` steps take ``n + 1``, if every line search
        accepts its first point. They end early if no step decreases the loss. A step in which the function raises an
        error is not taken. Raises :class:`ArgumentError` for several steps with given gradients.
        """
        steps = integer("LBFGS.step", "steps", steps, least=1)
        if not callable(gradients):
            if steps > 1:
                raise ArgumentError(f"LBFGS.step: {steps} steps take a function of the model, not gradients")
            super().step(model, gradients)
            return None
        draws, loss = Draws(), gradients
        found = draws.first(lambda: _evaluated(loss, model))
        value = found[0]

        def again(model: Any) -> tuple[float, NamedGradients]:
            """The loss with the same random numbers, so that a line search can compare values."""
            return draws.again(lambda: _evaluated(loss, model))

        for number in range(1, steps + 1):
            times, reached = self._search(model, again, *found)
            if not times or number == steps:
                break
            found = again(model) if reached is None else reached
        return value

    def _search(
        self, model: Any, evaluated: Any, value: float, slopes: NamedGradients
    ) -> tuple[float, tuple[float, NamedGradients] | None]:
        """Take a step from a point of loss ``value``; returns the factor of its move, and the loss and slopes there.

        The latter are None if the function was last called at another point.
        """
        before = {leaf.path: leaf.value for leaf in self._leaves(model)}
        known = self.steps, {path: copy(entry) for path, entry in self._states.items()}
        super().step(model, slopes)
        assert self._tree is not None
        leaves = [leaf for leaf in self._tree.leaves if leaf.value is not before[leaf.path]]
        moves = {leaf.path: leaf.value.inner() - before[leaf.path].inner() for leaf in leaves}
        last, reached = 0.0, (value, slopes)

        def go(times: float) -> None:
            for leaf in leaves:
                old = before[leaf.path]
                moved = old.detach() + moves[leaf.path].to(old.backend) * times if times else old
                leaf.put(moved if moved is old else moved.require_grad())

        def along(times: float) -> tuple[float, float]:
            nonlocal last, reached
            go(times)
            last, reached = times, evaluated(model)
            return reached[0], _inner(reached[1], moves)

        times = 0.0
        try:
            times = _by_wolfe(along, value, _inner(slopes, moves))
        except BaseException:
            self.steps, self._states = known  # as if the step had not begun
            raise
        finally:
            go(times)
            self._tree.remember()
        if not times:
            self._states.clear()  # the pairs gave no descent direction
        for leaf in leaves if times else ():
            entry = self._state(leaf, self._states[leaf.path].backend)
            move: Any = entry.tensors[1]
            move._primitive = entry.backend.mul(move._primitive, times)
        return times, reached if last == times else None

    def _update(self, k: Any, inputs: StepInputs) -> tuple[Any, ...]:
        params, grads, remembered, lr, *_ = inputs
        moves = remembered[1 : 1 + self.history_size]
        changes = [_map(k.sub, grads, remembered[0]), *remembered[1 + self.history_size :]]
        direction = _newton(k, grads, moves, changes)
        stepped = k.sgd_steps(params, direction, [], lr=lr, momentum=0.0, nesterov=False, weight_decay=0.0)
        news = list(stepped[: len(params)])
        pairs = [_map(k.sub, news, params), *moves[:-1], *changes[:-1]]
        return (*news, *grads, *(x for values in pairs for x in values))


def _evaluated(loss: Any, model: Any) -> tuple[float, NamedGradients]:
    """The loss, and its gradients by path."""
    found = loss(model)
    if found.__class__ is not FloatTensor or found.ndim:
        raise ArgumentError(f"step: the function returns the loss, a float scalar, not {describe((found,)) or None}")
    return float(found.item()), named_gradients(model, found.backward())


def _inner(slopes: NamedGradients, moves: NamedGradients) -> float:
    """The slope along moves; for complex parameters, the real part of the sum of ``conj(slope) * move``."""
    return sum((conj(slopes[path]) * move).sum().item().real for path, move in moves.items() if path in slopes)


def _by_wolfe(along: Callable[[float], tuple[float, float]], value: float, slope: float) -> float:
    """The factor of a move from a point of loss ``value`` and derivative ``slope``; 0 if the loss does not fall."""
    low, high, times = 0.0, math.inf, 1.0
    for _ in range(EVALUATIONS):
        found, steepness = along(times)
        if not found <= value + DECREASE * times * slope:  # true for NaN, too
            high = times
        elif not steepness >= SLOPE_LEFT * slope:
            low = times
        else:
            return times
        times = 2.0 * times if high == math.inf else (low + high) / 2.0
    return low


def _newton(k: Any, grads: list[Any], moves: list[list[Any]], changes: list[list[Any]]) -> list[Any]:
    """The approximate inverse Hessian times the gradient. Pairs without curvature are ignored."""
    curvatures = [_dot(k, s, y) for s, y in zip(moves, changes, strict=True)]
    usable = [k.greater(c, CURVATURE) for c in curvatures]
    safe = [k.where(ok, c, 1.0) for ok, c in zip(usable, curvatures, strict=True)]
    weights = [k.where(ok, k.div(1.0, c), 0.0) for ok, c in zip(usable, safe, strict=True)]
    r = grads
    shares: list[Any] = []
    for s, y, weight in zip(moves, changes, weights, strict=True):
        shares.append(k.mul(weight, _dot(k, s, r)))
        r = _moved(k, r, k.neg(shares[-1]), y)
    length = reduce(k.add, [total(k, k.abs(g)) for g in grads])
    # Without pairs, the first step is gradient descent of length at most 1.
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
    return reduce(k.add, [total(k, k.mul(x, y)) for x, y in zip(xs, ys, strict=True)])
