"""Optimizers whose step is an element-wise formula, and the parts that such formulas have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from itertools import chain
from math import prod
from typing import Any, ClassVar

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
        return tuple(chain.from_iterable(zip(*steps, strict=True)))


def numbers_of_step(k: Any, like: Any, formula: Callable[..., tuple[float, ...]], lr: float, step: int) -> list[Any]:
    """The numbers ``formula(lr, step)``, in recorded steps of the present rate and count, as 0-d tensors.

    Python's own numbers are constants of a formula, which a backend would prepare anew whenever they change.
    """
    recording = REPLAY.get()
    numbers = formula(lr, step) if recording is None else recording.derived(formula, lr, step)
    one = k.full((), 1.0, k.dtype(like))
    return [k.mul(one, number) for number in numbers]


# ---- parts of formulas ----


def decayed(k: Any, g: Any, x: Any, weight_decay: float) -> Any:
    """A gradient with ``weight_decay`` times the parameter added."""
    return k.add(g, k.mul(x, weight_decay)) if weight_decay else g


def mean(k: Any, before: Any, x: Any, beta: float) -> Any:
    """A running mean with one more element."""
    return k.add(k.mul(before, beta), k.mul(x, 1.0 - beta))


def mean_square(k: Any, before: Any, x: Any, beta: float) -> Any:
    """The same of squares."""
    return mean(k, before, k.square(x), beta)


# ---- sums ----


def total(k: Any, x: Any) -> Any:
    """The sum of all elements, in one order: in whatever way they lie in memory, a run that is resumed rounds alike."""
    return k.sum(k.reshape(x, (prod(x.shape),)), (0,), False)


def length(k: Any, x: Any) -> Any:
    """The norm of all elements, in one order too."""
    return k.norm(k.reshape(x, (prod(x.shape),)), (0,))
