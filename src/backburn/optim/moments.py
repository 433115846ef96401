"""Variants of Adam, which keep running means of the gradient: Adamax, NAdam, RAdam, Lion and Adan."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, sqrt
from typing import Any, ClassVar

from backburn.base.errors import ArgumentError
from backburn.ops.optimizer_steps import adam_factors
from backburn.optim.formulas import ElementWise, decayed, mean, mean_square
from backburn.optim.optimizer import Rate
from backburn.tensor.core.options import bounded


def adam_formula(k: Any, x: Any, g: Any, m: Any, v: Any, *rest: Any) -> tuple[Any, ...]:
    """A step of Adam, with the largest second moment if a ``peak`` is kept.

    ``share=0`` ignores the second moment; ``cautious`` does not shrink ``x`` where ``m`` has the opposite sign.
    """
    *peak, beta1, beta2, weight_decay, cautious, rate, share, floor, shrink = rest
    g = decayed(k, g, x, weight_decay)
    m, v = mean(k, m, g, beta1), mean_square(k, v, g, beta2)
    peak = [k.maximum(before, v) for before in peak]
    change = k.div(k.mul(m, rate), k.add(k.mul(k.sqrt([v, *peak][-1]), share), floor))
    shrunk = k.mul(x, shrink)
    if cautious:
        shrunk = k.where(k.greater_equal(k.mul(k.sign(x), k.sign(m)), 0.0), shrunk, x)
    return (k.sub(shrunk, change), m, v, *peak)


class Moments(ElementWise):
    """The base class of optimizers with several decay rates, ``betas``, and a weight decay."""

    _corrects = True
    _decays = "two", 2
    _numbers: ClassVar[Mapping[str, float]] = {"eps": inf, "weight_decay": inf, "momentum_decay": inf}

    def __init__(self, lr: Rate, betas: tuple[float, ...], weight_decay: float) -> None:
        super().__init__(lr)
        self.betas = betas
        self.weight_decay = weight_decay

    def _checked(self, name: str, value: Any) -> Any:
        return self._all(value) if name == "betas" else super()._checked(name, value)

    def _all(self, betas: Any) -> tuple[float, ...]:
        """The checked decay rates."""
        name, (word, count) = type(self).__name__, self._decays
        if not isinstance(betas, (tuple, list)) or len(betas) != count:
            raise ArgumentError(f"{name}: betas are {word} numbers, not {betas!r}")
        return tuple(bounded(name, f"betas[{i}]", beta, least=0, below=1) for i, beta in enumerate(betas))


class Adamax(Moments):
    """Adam with the largest gradients in place of their mean square (Kingma and Ba, "Adam", 2015, algorithm 2).

    With ``g = gradient + weight_decay * x``, the mean becomes ``m = beta1 * m + (1 - beta1) * g`` and the norm ``u =
    max(beta2 * u, abs(g) + eps)``. Step ``n`` subtracts ``lr / (1 - beta1**n) * m / u`` from the parameter ``x``.
    Raises :class:`ArgumentError` for options out of range.

        >>> import backburn as bb
        >>> model = {"w": bb.asarray([3.0, -2.0]).require_grad()}
        >>> optimizer = Adamax(lr=0.5)
        >>> optimizer.step(model, (model["w"] * model["w"]).sum().backward())
        >>> model["w"].numpy().round(4).tolist()
        [2.5, -1.5]
    """

    remembers = ("m", "u")

    def __init__(
        self,
        lr: Rate = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(lr, betas, weight_decay)
        self.eps = eps

    def _factors(self, lr: float, step: int) -> tuple[float, ...]:
        return (lr / (1.0 - self.betas[0] ** step),)

    def _constants(self) -> tuple[Any, ...]:
        return *self.betas, self.eps, self.weight_decay

    @staticmethod
    def _formula(
        k: Any, x: Any, g: Any, m: Any, u: Any, beta1: float, beta2: float, eps: float, weight_decay: float, rate: Any
    ) -> tuple[Any, ...]:
        g = decayed(k, g, x, weight_decay)
        m, u = mean(k, m, g, beta1), k.maximum(k.mul(u, beta2), k.add(k.abs(g), eps))
        return k.sub(x, k.div(k.mul(m, rate), u)), m, u


class NAdam(Moments):
    """Adam with Nesterov momentum (Dozat, "Incorporating Nesterov momentum into Adam", 2016, algorithm 2).

    The moments are those of :class:`Adam`, with momentum ``mu(n) = beta1 * (1 - 0.96**(n * momentum_decay) / 2)`` in
    step ``n``, and ``p`` is the product of the momenta so far. A step subtracts from the parameter ``lr`` times ``(1 -
    mu(n)) * g / (1 - p) + mu(n + 1) * m / (1 - p * mu(n + 1))``, divided by ``sqrt(v / (1 - beta2**n)) + eps``.
    ``weight_decay`` times the parameter is added to its gradient, or with ``decoupled_weight_decay`` applied as in
    :class:`AdamW`.

    Raises :class:`ArgumentError` for options out of range.

        >>> import backburn as bb
        >>> model = {"w": bb.asarray([3.0, -2.0]).require_grad()}
        >>> optimizer = NAdam(lr=0.5)
        >>> optimizer.step(model, (model["w"] * model["w"]).sum().backward())
        >>> print(model["w"].numpy().round(2))
        [ 2.47 -1.47]
    """

    remembers = ("m", "v")
    _flags = ("decoupled_weight_decay",)

    def __init__(
        self,
        lr: Rate = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
    ) -> None:
        super().__init__(lr, betas, weight_decay)
        self.eps = eps
        self.momentum_decay = momentum_decay
        self.decoupled_weight_decay = decoupled_weight_decay

    def _momentum(self, step: int) -> float:
        return self.betas[0] * (1.0 - 0.5 * 0.96 ** (step * self.momentum_decay))

    def _factors(self, lr: float, step: int) -> tuple[float, ...]:
        product = 1.0
        for i in range(1, step + 1):
            product *= self._momentum(i)
            if product < 1e-18:  # 1 - product rounds to 1
                break
        now, soon = self._momentum(step), self._momentum(step + 1)
        root = sqrt(1.0 - self.betas[1] ** step)
        rate, shrink = lr * root, 1.0 - lr * self.weight_decay * self.decoupled_weight_decay
        return rate * (1.0 - now) / (1.0 - product), rate * soon / (1.0 - product * soon), self.eps * root, shrink

    def _constants(self) -> tuple[Any, ...]:
        return *self.betas, 0.0 if self.decoupled_weight_decay else self.weight_decay

    @staticmethod
    def _formula(
        k: Any, x: Any, g: Any, m: Any, v: Any, beta1: float, beta2: float, weight_decay: float,
        new: Any, old: Any, floor: Any, shrink: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        g = decayed(k, g, x, weight_decay)
        m, v = mean(k, m, g, beta1), mean_square(k, v, g, beta2)
        update = k.add(k.mul(g, new), k.mul(m, old))
        return k.sub(k.mul(x, shrink), k.div(update, k.add(k.sqrt(v), floor))), m, v


class RAdam(Moments):
    """Rectified Adam (Liu et al., "On the variance of the adaptive learning rate", 2020, algorithm 2).

    The moments are those of :class:`Adam`. In the first steps (5 for ``beta2 = 0.999``), when the second moment is an
    average of too few gradients, a step subtracts ``lr`` times the bias-corrected first moment from the parameter;
    afterwards, the step of :class:`Adam` times a factor that rises to 1. ``weight_decay`` times the parameter is added
    to its gradient, or with ``decoupled_weight_decay`` applied as in :class:`AdamW`.

    Raises :class:`ArgumentError` for options out of range.

        >>> import backburn as bb
        >>> model = {"w": bb.asarray([3.0, -2.0]).require_grad()}
        >>> optimizer = RAdam(lr=0.125)
        >>> optimizer.step(model, (model["w"] * model["w"]).sum().backward())
        >>> model["w"].numpy().round(4).tolist()
        [2.25, -1.5]
    """

    remembers = ("m", "v")
    _flags = ("decoupled_weight_decay",)

    def __init__(
        self,
        lr: Rate = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
    ) -> None:
        super().__init__(lr, betas, weight_decay)
        self.eps = eps
        self.decoupled_weight_decay = decoupled_weight_decay

    def _factors(self, lr: float, step: int) -> tuple[float, ...]:
        beta1, beta2 = self.betas
        shrink = 1.0 - lr * self.weight_decay * self.decoupled_weight_decay
        most = 2.0 / (1.0 - beta2) - 1.0
        length = most - 2.0 * step * beta2**step / (1.0 - beta2**step)
        if length <= 5.0:
            return lr / (1.0 - beta1**step), 0.0, 1.0, shrink
        rate, _ = adam_factors(lr, beta1, beta2, self.eps, step)
        part = (length - 4.0) * (length - 2.0) * most / ((most - 4.0) * (most - 2.0) * length)
        return rate * sqrt(part), 1.0, self.eps, shrink

    _formula = staticmethod(adam_formula)

    def _constants(self) -> tuple[Any, ...]:
        return *self.betas, 0.0 if self.decoupled_weight_decay else self.weight_decay, False


class Lion(Moments):
    """The sign of a running mean of the gradient (Chen et al., "Symbolic discovery of optimization algorithms", 2023).

    A step subtracts ``lr * (sign(beta1 * m + (1 - beta1) * gradient) + weight_decay * x)`` from the parameter ``x``,
    and then updates the mean: ``m = beta2 * m + (1 - beta2) * gradient`` (program 1). Every element moves by ``lr``:
    the paper recommends a third to a tenth of the learning rate for :class:`AdamW`, and a weight decay larger by the
    same factor. One tensor is kept for each parameter.

    Raises :class:`ArgumentError` for options out of range.

        >>> import backburn as bb
        >>> model = {"w": bb.asarray([3.0, -2.0]).require_grad()}
        >>> optimizer = Lion(lr=0.5)
        >>> optimizer.step(model, (model["w"] * model["w"]).sum().backward())
        >>> model["w"].tolist()
        [2.5, -1.5]
    """

    remembers = ("m",)
    _corrects = False

    def __init__(
        self, lr: Rate = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:  # fmt: skip
        super().__init__(lr, betas, weight_decay)

    def _factors(self, lr: float, step: int) -> tuple[float, ...]:
        return lr, 1.0 - lr * self.weight_decay

    def _constants(self) -> tuple[Any, ...]:
        return self.betas

    @staticmethod
    def _formula(
        k: Any, x: Any, g: Any, m: Any, beta1: float, beta2: float, lr: Any, shrink: Any
    ) -> tuple[Any, ...]:  # fmt: skip
        new = k.sub(k.mul(x, shrink), k.mul(k.sign(mean(k, m, g, beta1)), lr))
        return new, mean(k, m, g, beta2)


class Adan(Moments):
    """Adam with Nesterov momentum from differences of gradients (Xie et al., "Adan", 2022, arXiv:2208.06677).

    With ``d`` the gradient minus that of the step before (0 in the first), the means become ``m = beta1 * m + (1 -
    beta1) * gradient``, ``n = beta2 * n + (1 - beta2) * d`` and ``v = beta3 * v + (1 - beta3) * (gradient + beta2 *
    d)**2``. Divided by 1 minus their decay to the power of the step number, they give the change ``lr * (m + beta2 * n)
    / (sqrt(v) + eps)`` of the parameter ``x``, which becomes ``(x - change) / (1 + lr * weight_decay)``, or without
    ``proximal`` ``x * (1 - lr * weight_decay) - change``. The ``betas`` are 1 minus the paper's. Four tensors are kept
    for each parameter.

    Raises :class:`ArgumentError` for options out of range.

        >>> import backburn as bb
        >>> model = {"w": bb.asarray([3.0, -2.0]).require_grad()}
        >>> optimizer = Adan(lr=0.5)
        >>> optimizer.step(model, (model["w"] * model["w"]).sum().backward())
        >>> model["w"].numpy().round(4).tolist()
        [2.5, -1.5]
    """

    remembers = ("m", "n", "v", "before")
    _decays = "three", 3
    _flags = ("proximal",)

    def __init__(
        self,
        lr: Rate = 1e-3,
        betas: tuple[float, float, float] = (0.98, 0.92, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        proximal: bool = True,
    ) -> None:
        super().__init__(lr, betas, weight_decay)
        self.eps = eps
        self.proximal = proximal

    def _factors(self, lr: float, step: int) -> tuple[float, ...]:
        first, second, third = (1.0 - beta**step for beta in self.betas)
        root, decay = sqrt(third), lr * self.weight_decay
        after = 1.0 / (1.0 + decay) if self.proximal else 1.0
        rate, shrink = lr * root * after, after if self.proximal else 1.0 - decay
        return rate / first, rate * self.betas[1] / second, self.eps * root, shrink, float(step > 1)

    def _constants(self) -> tuple[Any, ...]:
        return self.betas

    @staticmethod
    def _formula(
        k: Any, x: Any, g: Any, m: Any, n: Any, v: Any, before: Any, beta1: float, beta2: float, beta3: float,
        rate: Any, ahead: Any, floor: Any, shrink: Any, known: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        change = k.mul(k.add(g, before), known)  # ``before`` is the negative of the last gradient
        m, n = mean(k, m, g, beta1), mean(k, n, change, beta2)
        v = mean_square(k, v, k.add(g, k.mul(change, beta2)), beta3)
        update = k.div(k.add(k.mul(m, rate), k.mul(n, ahead)), k.add(k.sqrt(v), floor))
        return k.sub(k.mul(x, shrink), update), m, n, v, k.neg(g)
