"""Optimizers that scale the learning rate of each element by its past gradients: RMSprop, Adagrad, Adadelta."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, ClassVar

from backburn.optim.formulas import ElementWise, decayed, mean, mean_square
from backburn.optim.optimizer import Rate


class RMSprop(ElementWise):
    """Gradients divided by the root of their running mean square (Hinton, "Neural networks", lecture 6e, 2012).

    With ``g = gradient + weight_decay * x``, the mean square becomes ``alpha * square + (1 - alpha) * g**2``. The
    parameter ``x`` is then updated as by :class:`SGD` (with ``momentum``, unless it is 0), with ``g / (sqrt(square) +
    eps)`` for the gradient. If ``centered``, the square of the running mean of ``g`` is subtracted before taking the
    root (Graves 2013).

    Raises :class:`ArgumentError` for options out of range.

        >>> import backburn as bb
        >>> model = {"w": bb.asarray([3.0, -2.0]).require_grad()}
        >>> optimizer = RMSprop(lr=0.25, alpha=0.75)
        >>> optimizer.step(model, (model["w"] * model["w"]).sum().backward())
        >>> model["w"].tolist()
        [2.5, -1.5]
    """

    _numbers: ClassVar[Mapping[str, float]] = {"alpha": 1.0, "eps": inf, "weight_decay": inf, "momentum": 1.0}
    _flags = ("centered",)

    def __init__(
        self,
        lr: Rate = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        super().__init__(lr)
        self.alpha = alpha
        self.eps = eps
        self.weight_decay = weight_decay
        self.momentum = momentum
        self.centered = centered

    @property
    def remembers(self) -> tuple[str, ...]:  # type: ignore[override]  # it follows from the options
        """The mean square; the velocity, if there is momentum; and the mean, if ``centered``."""
        return (*(("velocity",) if self.momentum else ()), "square", *(("mean",) if self.centered else ()))

    def _constants(self) -> tuple[Any, ...]:
        return self.alpha, self.eps, self.weight_decay, self.momentum, self.centered

    @staticmethod
    def _formula(k: Any, x: Any, g: Any, *rest: Any) -> tuple[Any, ...]:
        *before, alpha, eps, weight_decay, momentum, centered, lr = rest
        velocity = [before.pop(0)] if momentum else []
        g = decayed(k, g, x, weight_decay)
        variance = square = mean_square(k, before[0], g, alpha)
        means = [mean(k, before[1], g, alpha)] if centered else []
        if centered:  # only rounding makes it negative
            variance = k.maximum(k.sub(square, k.square(means[0])), 0.0)
        update = k.div(g, k.add(k.sqrt(variance), eps))
        if momentum:
            update = velocity[0] = k.add(k.mul(velocity[0], momentum), update)
        return (k.sub(x, k.mul(update, lr)), *velocity, square, *means)


class Adagrad(ElementWise):
    """Gradients divided by the root of the sum of all their squares (Duchi, Hazan and Singer 2011).

    With ``g = gradient + weight_decay * x``, a step subtracts ``lr * g / (sqrt(sum of g**2) + eps)`` from the parameter
    ``x``. The sum begins at ``initial_accumulator_value``. With ``lr_decay`` the rate after ``n`` steps of a parameter
    is ``lr / (1 + n * lr_decay)``. Raises :class:`ArgumentError` for options out of range.

        >>> import backburn as bb
        >>> model = {"w": bb.asarray([3.0, -2.0]).require_grad()}
        >>> optimizer = Adagrad(lr=0.5)
        >>> optimizer.step(model, (model["w"] * model["w"]).sum().backward())
        >>> model["w"].tolist()
        [2.5, -1.5]
    """

    remembers = ("sum",)
    _corrects = True
    _numbers: ClassVar[Mapping[str, float]] = {
        "lr_decay": inf,
        "weight_decay": inf,
        "initial_accumulator_value": inf,
        "eps": inf,
    }

    def __init__(
        self,
        lr: Rate = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        super().__init__(lr)
        self.lr_decay = lr_decay
        self.weight_decay = weight_decay
        self.initial_accumulator_value = initial_accumulator_value
        self.eps = eps

    def _factors(self, lr: float, step: int) -> tuple[float, ...]:
        return (lr / (1.0 + (step - 1) * self.lr_decay),)

    def _first(self) -> float:
        return self.initial_accumulator_value

    def _constants(self) -> tuple[Any, ...]:
        return self.eps, self.weight_decay

    @staticmethod
    def _formula(k: Any, x: Any, g: Any, total: Any, eps: float, weight_decay: float, lr: Any) -> tuple[Any, ...]:
        g = decayed(k, g, x, weight_decay)
        total = k.add(total, k.square(g))
        return k.sub(x, k.div(k.mul(g, lr), k.add(k.sqrt(total), eps))), total


class Adadelta(ElementWise):
    """Steps scaled to the size of previous ones, by two running means (Zeiler, "ADADELTA", 2012, algorithm 1).

    With ``g = gradient + weight_decay * x``, the mean square of the gradients becomes ``rho * square + (1 - rho) *
    g**2``. A step subtracts ``lr * change`` from the parameter ``x``, where ``change = sqrt(moved + eps) / sqrt(square
    + eps) * g`` and ``moved`` is the mean square of the previous changes. Raises :class:`ArgumentError` for options out
    of range.

        >>> import backburn as bb
        >>> model = {"w": bb.asarray([3.0, -2.0]).require_grad()}
        >>> optimizer = Adadelta(rho=0.75, eps=0.25)
        >>> for _ in range(2):
        ...     optimizer.step(model, (model["w"] * model["w"]).sum().backward())
        >>> print(model["w"].numpy().round(2))
        [ 1.16 -0.34]
    """

    remembers = ("square", "moved")
    _numbers: ClassVar[Mapping[str, float]] = {"rho": 1.0, "eps": inf, "weight_decay": inf}

    def __init__(self, lr: Rate = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0) -> None:
        super().__init__(lr)
        self.rho = rho
        self.eps = eps
        self.weight_decay = weight_decay

    def _constants(self) -> tuple[Any, ...]:
        return self.rho, self.eps, self.weight_decay

    @staticmethod
    def _formula(
        k: Any, x: Any, g: Any, square: Any, moved: Any, rho: float, eps: float, weight_decay: float, lr: Any
    ) -> tuple[Any, ...]:
        g = decayed(k, g, x, weight_decay)
        square = mean_square(k, square, g, rho)
        change = k.mul(g, k.sqrt(k.div(k.add(moved, eps), k.add(square, eps))))
        return k.sub(x, k.mul(change, lr)), square, mean_square(k, moved, change, rho)
