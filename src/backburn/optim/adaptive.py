"""Optimizers with a rate of its own for each element, by the squares of its gradients: RMSprop and Adagrad."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, ClassVar

from backburn.optim.optimizer import Optimizer, Rate


class RMSprop(Optimizer):
    """Gradients divided by the root of their running mean square (Hinton, "Neural networks", lecture 6e, 2012).

    With ``g = gradient + weight_decay * x`` the mean square becomes ``alpha * square + (1 - alpha) * g**2``, and what
    takes the gradient's place in :class:`SGD`, with ``momentum`` if it is not 0, is ``g / (sqrt(square) + eps)``. If
    ``centered``, the square of the running mean of ``g`` is subtracted before the root is taken (Graves 2013).

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
        """The mean square, with momentum the velocity, and if centered the mean."""
        return (*(("velocity",) if self.momentum else ()), "square", *(("mean",) if self.centered else ()))

    def __repr__(self) -> str:
        options = f"weight_decay={self.weight_decay}, momentum={self.momentum}, centered={self.centered}"
        return f"RMSprop(lr={self.lr}, alpha={self.alpha}, eps={self.eps}, {options})"

    def _update(
        self, k: Any, params: list[Any], grads: list[Any], remembered: list[list[Any]], lr: float, step: int,
        donate: bool,
    ) -> tuple[Any, ...]:  # fmt: skip
        before = dict(zip(self.remembers, remembered, strict=True))
        grads = decayed(k, params, grads, self.weight_decay)
        squares = [self._mean(k, v, k.square(g)) for v, g in zip(before["square"], grads, strict=True)]
        means = [self._mean(k, m, g) for m, g in zip(before["mean"], grads, strict=True)] if self.centered else []
        spread = squares
        if self.centered:  # below 0 by rounding alone
            spread = [k.maximum(k.sub(v, k.square(m)), 0.0) for v, m in zip(squares, means, strict=True)]
        news = k.sgd_steps(
            params, [divided(k, g, v, self.eps) for g, v in zip(grads, spread, strict=True)],
            *([before["velocity"]] if self.momentum else [[]]),
            lr=lr, momentum=self.momentum, nesterov=False, weight_decay=0.0, donate=donate,
        )  # fmt: skip
        return (*news[: len(params) * (2 if self.momentum else 1)], *squares, *means)

    def _mean(self, k: Any, before: Any, x: Any) -> Any:
        return k.add(k.mul(before, self.alpha), k.mul(x, 1.0 - self.alpha))


class Adagrad(Optimizer):
    """Gradients divided by the root of the sum of all their squares (Duchi, Hazan and Singer 2011).

    With ``g = gradient + weight_decay * x`` the parameter ``x`` falls by ``lr * g / (sqrt(sum of g**2) + eps)``.
    Raises :class:`ArgumentError` for options out of range.

        >>> import backburn as bb
        >>> model = {"w": bb.asarray([3.0, -2.0]).require_grad()}
        >>> optimizer = Adagrad(lr=0.5)
        >>> optimizer.step(model, (model["w"] * model["w"]).sum().backward())
        >>> model["w"].tolist()
        [2.5, -1.5]
    """

    remembers = ("sum",)
    _numbers: ClassVar[Mapping[str, float]] = {"eps": inf, "weight_decay": inf}

    def __init__(self, lr: Rate = 1e-2, eps: float = 1e-10, weight_decay: float = 0.0) -> None:
        super().__init__(lr)
        self.eps = eps
        self.weight_decay = weight_decay

    def __repr__(self) -> str:
        return f"Adagrad(lr={self.lr}, eps={self.eps}, weight_decay={self.weight_decay})"

    def _update(
        self, k: Any, params: list[Any], grads: list[Any], remembered: list[list[Any]], lr: float, step: int,
        donate: bool,
    ) -> tuple[Any, ...]:  # fmt: skip
        grads = decayed(k, params, grads, self.weight_decay)
        sums = [k.add(s, k.square(g)) for s, g in zip(remembered[0], grads, strict=True)]
        scaled = [divided(k, g, s, self.eps) for g, s in zip(grads, sums, strict=True)]
        return (*descended(k, params, scaled, lr), *sums)


def descended(k: Any, params: list[Any], directions: list[Any], lr: float) -> list[Any]:
    """The parameters without ``lr`` times the directions, by the operation that knows of rates in recorded steps."""
    news = k.sgd_steps(params, directions, [], lr=lr, momentum=0.0, nesterov=False, weight_decay=0.0)
    return list(news[: len(params)])


def decayed(k: Any, params: list[Any], grads: list[Any], weight_decay: float) -> list[Any]:
    """The gradients with ``weight_decay`` times the parameters added."""
    if not weight_decay:
        return grads
    return [k.add(g, k.mul(x, weight_decay)) for x, g in zip(params, grads, strict=True)]


def divided(k: Any, gradient: Any, square: Any, eps: float) -> Any:
    """A gradient over the root of its square, which ``eps`` keeps from 0."""
    return k.div(gradient, k.add(k.sqrt(square), eps))
