"""Optimizers whose step is an element-wise formula, and the parts that such formulas have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from math import prod
from typing import Any, ClassVar

from backburn.backend.optimize import in_turn
from backburn.base.replay import REPLAY
from backburn.optim.optimizer import Optimizer


class ElementWise(Optimizer):
    """The base class of optimizers whose step is an element-wise formula, computed in one pass over memory."""

    #: ``formula(k, x, gradient, *remembered, *constants, *factors)``: the new parameter, and what is remembered next.
    _formula: ClassVar[Callable[..., tuple[Any, ...]]]

    @abstractmethod
    def _constants(self) -> tuple[Any, ...]:
        """The options in the formula, which a backend may compile into it."""

    def _factors(self, lr: float, step: int) -> tuple[float, ...]:
        """The numbers in the formula that may change from step to step."""
        return (lr,)

    def _update(
        self, k: Any, params: list[Any], grads: list[Any], remembered: list[list[Any]], lr: float, step: int,
        donate: bool,
    ) -> tuple[Any, ...]:  # fmt: skip
        factors = numbers_of_step(k, params[0], self._factors, lr, step)
        numbers = (*self._constants(), *factors)
        places = tuple(range(2, 2 + len(remembered))) if donate else ()
        tensors = zip(params, grads, *remembered, strict=True)
        steps = [k.one_pass(self._formula, *of_one, *numbers, donate=places) for of_one in tensors]
        return in_turn(steps)


def numbers_of_step(k: Any, like: Any, formula: Callable[..., tuple[float, ...]], lr: float, step: int) -> list[Any]:
    """The numbers ``formula(lr, step)`` as 0-d tensors; in a recorded step, those of the current rate and step number.

    Python numbers would be constants of an element-wise formula, which a backend would compile again for each new
    value.
    """
    recording = REPLAY.get()
    numbers = formula(lr, step) if recording is None else recording.derived(formula, lr, step)
    one = k.full((), 1.0, k.dtype(like))
    return [k.mul(one, number) for number in numbers]


# ---- parts of formulas ----


def decayed(k: Any, g: Any, x: Any, weight_decay: float) -> Any:
    """A gradient plus ``weight_decay`` times the parameter."""
    return k.add(g, k.mul(x, weight_decay)) if weight_decay else g


def mean(k: Any, before: Any, x: Any, beta: float) -> Any:
    """A running mean, updated with ``x``."""
    return k.add(k.mul(before, beta), k.mul(x, 1.0 - beta))


def mean_square(k: Any, before: Any, x: Any, beta: float) -> Any:
    """A running mean of squares, updated with ``x``."""
    return mean(k, before, k.square(x), beta)


# ---- sums ----


def total(k: Any, x: Any) -> Any:
    """The sum of all elements, in row-major order whatever the memory layout, so that a resumed run rounds alike."""
    return k.sum(k.reshape(x, (prod(x.shape),)), (0,), False)


def length(k: Any, x: Any) -> Any:
    """The Euclidean norm of all elements, in row-major order too."""
    return k.norm(k.reshape(x, (prod(x.shape),)), (0,))
