"""Optimizers whose step is an element-wise formula, and parts of such formulas."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from math import prod
from typing import Any, ClassVar

from backburn.backend.host_numbers import RECORDING_STEP
from backburn.ops.optimizer_steps import transpose_results
from backburn.optim.optimizer import Optimizer, StepInputs


class PerParameter(Optimizer):
    """The base class of optimizers that update one parameter after another, with numbers common to all."""

    @abstractmethod
    def _update_one(self, k: Any, inputs: StepInputs, numbers: list[Any], x: Any, g: Any, *state: Any) -> Any:
        """The new value of a parameter, and its new state."""

    def _factors(self, lr: float, step: int) -> tuple[float, ...]:
        """The numbers that may change from step to step."""
        return (lr,)

    def _update(self, k: Any, inputs: StepInputs) -> tuple[Any, ...]:
        numbers = self._numbers_of_step(k, inputs)
        tensors = zip(inputs.params, inputs.grads, *inputs.remembered, strict=True)
        return transpose_results([self._update_one(k, inputs, numbers, *own) for own in tensors])

    def _numbers_of_step(self, k: Any, inputs: StepInputs) -> list[Any]:
        """The factors as 0-d tensors; in a recorded step, those of the current rate and step number.

        Python numbers would be constants of an element-wise formula, which a backend would compile again for each new
        value.
        """
        recording, rate = RECORDING_STEP.get(), (inputs.lr, inputs.step)
        numbers = self._factors(*rate) if recording is None else recording.derived(self._factors, *rate)
        one = k.full((), 1.0, k.dtype(inputs.params[0]))
        return [k.mul(one, number) for number in numbers]


class ElementWise(PerParameter):
    """The base class of optimizers whose step is an element-wise formula, computed in one pass over memory."""

    #: ``formula(k, x, gradient, *state, *constants, *factors)``: the new parameter, and its new state.
    _formula: ClassVar[Callable[..., tuple[Any, ...]]]

    @abstractmethod
    def _constants(self) -> tuple[Any, ...]:
        """The options in the formula, which a backend may compile into it."""

    def _update_one(self, k: Any, inputs: StepInputs, numbers: list[Any], x: Any, g: Any, *state: Any) -> Any:
        places = tuple(range(2, 2 + len(state))) if inputs.donate else ()
        return k.fuse(self._formula, x, g, *state, *self._constants(), *numbers, donate=places)


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
    """The sum of all elements, in row-major order whatever the memory layout: a resumed run is bitwise identical."""
    return k.sum(k.reshape(x, (prod(x.shape),)), (0,), False)


def length(k: Any, x: Any) -> Any:
    """The Euclidean norm of all elements, in row-major order."""
    return k.vector_norm(k.reshape(x, (prod(x.shape),)), (0,))
