"""The optimizers: gradient descent, Adam and AdamW."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, ClassVar

from backburn.ops.optimizer_steps import adam_factors
from backburn.optim.moments import Moments, adam_formula
from backburn.optim.optimizer import Optimizer, Rate, StepInputs
from backburn.tensor.core.options import bounded


class SGD(Optimizer):
    """Gradient descent, with momentum unless it is 0 (Sutskever et al. 2013, in the form usual in deep learning).

    ``lr`` is a number, or a function of the number of steps already taken. With ``g = gradient + weight_decay * x``,
    the velocity becomes ``momentum * velocity + g``; a step subtracts ``lr * velocity`` from the parameter ``x``, or
    with ``nesterov`` ``lr * (g + momentum * velocity)``.

    Raises :class:`ArgumentError` for negative options, and for ``nesterov`` without momentum.

        >>> import backburn as bb
        >>> model = {"w": bb.asarray([3.0]).require_grad()}
        >>> optimizer = SGD(lr=0.25)
        >>> optimizer.step(model, (model["w"] * model["w"]).sum().backward())
        >>> model["w"]
        Tensor([1.5], dtype=float32, backend=autodiff(numpy), requires_grad)
    """

    _is_operation = True
    _numbers: ClassVar[Mapping[str, float]] = {"momentum": 1.0, "weight_decay": inf}
    _flags = ("nesterov",)

    def __init__(
        self, lr: Rate = 1e-3, momentum: float = 0.0, *, weight_decay: float = 0.0, nesterov: bool = False
    ) -> None:
        super().__init__(lr)
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.nesterov = nesterov

    @property
    def remembers(self) -> tuple[str, ...]:  # type: ignore[override]  # it follows from the options
        """The velocity, if there is momentum."""
        return ("velocity",) if self.momentum else ()

    def _checked(self, name: str, value: Any) -> Any:
        value = super()._checked(name, value)
        if name == "nesterov" and value:
            bounded("SGD", "momentum with nesterov", self.momentum, above=0)
        return value

    def _update(self, k: Any, inputs: StepInputs) -> tuple[Any, ...]:
        params, grads, remembered, lr, _, donate = inputs
        return k.sgd_steps(
            params, grads, *(remembered or [[]]),
            lr=lr, momentum=self.momentum, nesterov=self.nesterov, weight_decay=self.weight_decay, donate=donate,
        )  # fmt: skip


class Adam(Moments):
    """Adam (Kingma and Ba, "Adam: a method for stochastic optimization", 2015).

    ``lr`` is a number, or a function of the number of steps already taken. ``betas`` are the decay rates of the first
    and second moments of the gradient; ``eps`` is added to the square root of the second. ``weight_decay`` times the
    parameter is added to its gradient; :class:`AdamW` applies it differently. With ``amsgrad`` the largest second
    moment so far is used in place of the current one (Reddi, Kale and Kumar, "On the convergence of Adam and beyond",
    2018).

    Raises :class:`ArgumentError` for options out of range.

        >>> import backburn as bb
        >>> model = {"w": bb.asarray([3.0, -2.0]).require_grad()}
        >>> optimizer = Adam(lr=0.5)
        >>> optimizer.step(model, (model["w"] * model["w"]).sum().backward())
        >>> model["w"].numpy().round(4).tolist()
        [2.5, -1.5]
    """

    _decoupled = False
    _formula = staticmethod(adam_formula)
    _flags: ClassVar[tuple[str, ...]] = ("amsgrad",)

    def __init__(
        self,
        lr: Rate = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(lr, betas, weight_decay)
        self.eps = eps
        self.amsgrad = amsgrad

    @property
    def _is_operation(self) -> bool:  # type: ignore[override]  # it follows from the options, too
        return not self.amsgrad

    @property
    def remembers(self) -> tuple[str, ...]:  # type: ignore[override]  # it follows from the options
        """Both moments, and with ``amsgrad`` the largest second moment so far."""
        return ("m", "v", "peak") if self.amsgrad else ("m", "v")

    def _update(self, k: Any, inputs: StepInputs) -> tuple[Any, ...]:
        if not self._is_operation:
            return super()._update(k, inputs)
        params, grads, remembered, lr, step, donate = inputs
        beta1, beta2 = self.betas
        return k.adam_steps(
            params, grads, *remembered,
            lr=lr, beta1=beta1, beta2=beta2, eps=self.eps, step=step,
            weight_decay=self.weight_decay, decoupled=self._decoupled, donate=donate,
        )  # fmt: skip

    def _constants(self) -> tuple[Any, ...]:
        return *self.betas, 0.0 if self._decoupled else self.weight_decay, False

    def _factors(self, lr: float, step: int) -> tuple[float, ...]:
        beta1, beta2 = self.betas
        rate, floor = adam_factors(lr, beta1, beta2, self.eps, step)
        return rate, 1.0, floor, 1.0 - lr * self.weight_decay * self._decoupled


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    A step multiplies the parameter by ``1 - lr * weight_decay`` instead of adding to its gradient, or with ``cautious``
    only elements with the sign of the first moment, which the update shrinks as well (Chen et al., "Cautious weight
    decay", 2025, arXiv:2510.12402). Other options and errors are those of :class:`Adam`.

        >>> import backburn as bb
        >>> model = {"w": bb.asarray([3.0, -2.0]).require_grad()}
        >>> optimizer = AdamW(lr=0.5, weight_decay=0.5)
        >>> optimizer.step(model, (model["w"] * model["w"]).sum().backward())
        >>> model["w"].numpy().round(4).tolist()
        [1.75, -1.0]
    """

    _decoupled = True
    _flags = ("amsgrad", "cautious")

    def __init__(
        self,
        lr: Rate = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        *,
        cautious: bool = False,
    ) -> None:
        super().__init__(lr, betas, eps, weight_decay, amsgrad)
        self.cautious = cautious

    @property
    def _is_operation(self) -> bool:  # type: ignore[override]
        return not (self.amsgrad or self.cautious)

    def _constants(self) -> tuple[Any, ...]:
        return *self.betas, 0.0, self.cautious
