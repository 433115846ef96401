"""Steps of optimizers: the new value of a parameter, from its gradient and the optimizer's state.

They are operations of the contract, so that a backend may fuse them. Steps are not differentiable. ``settle`` runs
before them: a backend may start moving a gradient to its parameter's placement while others are still computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Protocol

from backburn.base.errors import ArgumentError, ShapeError
from backburn.ops.bodies.scalars import shape_or_none
from backburn.ops.primitives import Primitives
from backburn.ops.table import operation
from backburn.ops.types import B, F, I, Q

Shape = tuple[int, ...]


def _step_shape(results: int) -> Any:
    """The shape rule of a step with ``results`` results: all tensors have the parameter's shape."""

    def rule(param: Shape, *others: Shape | None, **_: Any) -> tuple[Shape, ...]:
        for other in others:
            if other is not None and other != param:
                raise ShapeError(f"the parameter has shape {list(param)} and its gradient or state {list(other)}")
        return (param,) * results

    return rule


_sgd_shape, _adam_shape = _step_shape(2), _step_shape(3)


def _multi_step_shape(results: int) -> Any:
    """The shape rule of a step of many parameters: lists of equal length, ``results`` results per parameter."""
    one = _step_shape(results)

    def rule(params: Sequence[Shape], *lists: Sequence[Shape], **_: Any) -> tuple[Shape, ...]:
        check_lengths(params, *lists)
        for param, *others in zip(params, *lists, strict=True):
            one(param, *others)
        return (*params,) * results

    return rule


def _sgd_shapes(params: Sequence[Shape], grads: Sequence[Shape], velocities: Sequence[Shape], **_: Any) -> Any:
    return _multi_step_shape(2)(params, grads, velocities or params)


def check_lengths(params: Sequence[Any], *lists: Sequence[Any]) -> None:
    """Raise unless each list is as long as ``params``."""
    for others in lists:
        if len(others) != len(params):
            raise ShapeError(f"a step of {len(params)} parameters takes lists of as many tensors, not {len(others)}")


def adam_factors(lr: float, beta1: float, beta2: float, eps: float, step: int) -> tuple[float, float]:
    """The bias corrections of Adam folded into its step: ``m * rate / (sqrt(v) + floor)``.

    Raises :class:`ArgumentError` for a ``step`` below 1.
    """
    if step < 1:
        raise ArgumentError(f"steps are counted from 1, and this is step {step}")
    root = math.sqrt(1.0 - beta2**step)
    return lr * root / (1.0 - beta1**step), eps * root


def sgd_update(
    k: Any, param: Any, grad: Any, velocity: Any, lr: Any, momentum: Any, nesterov: bool, weight_decay: Any
) -> tuple[Any, Any]:
    """The new parameter and velocity of a step of gradient descent: a formula of arrays and numbers."""
    g = grad if weight_decay == 0.0 else k.add(grad, k.mul(param, weight_decay))
    moving = g if velocity is None or momentum == 0.0 else k.add(k.mul(velocity, momentum), g)
    along = k.add(g, k.mul(moving, momentum)) if nesterov else moving
    return k.sub(param, k.mul(along, lr)), moving


def adam_numbers(
    lr: float, beta1: float, beta2: float, eps: float, step: int, weight_decay: float, decoupled: bool
) -> tuple[float, ...]:
    """The numbers that :func:`adam_update` takes."""
    rate, floor = adam_factors(lr, beta1, beta2, eps, step)
    coupled, shrink = (0.0, 1.0 - lr * weight_decay) if decoupled else (weight_decay, 1.0)
    return rate, floor, beta1, 1.0 - beta1, beta2, 1.0 - beta2, coupled, shrink


def adam_update(
    k: Any, param: Any, grad: Any, m: Any, v: Any,
    rate: Any, floor: Any, beta1: Any, rest1: Any, beta2: Any, rest2: Any, coupled: Any, shrink: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """The new parameter and moments of a step of Adam: a formula of arrays and numbers."""
    g = grad if coupled == 0.0 else k.add(grad, k.mul(param, coupled))
    kept = param if shrink == 1.0 else k.mul(param, shrink)
    m = k.add(k.mul(m, beta1), k.mul(g, rest1))
    v = k.add(k.mul(v, beta2), k.mul(k.mul(g, g), rest2))
    return k.sub(kept, k.div(k.mul(m, rate), k.add(k.sqrt(v), floor))), m, v


def _settled_shape(gradient: Shape, like: Shape) -> Shape:
    if gradient != like:
        raise ShapeError(f"the gradient has shape {list(gradient)} and its parameter {list(like)}")
    return gradient


class OptimizerSteps(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Steps of optimizers."""

    @operation(kinds="F", shape=_settled_shape, differentiable=True)
    def settle(self: Any, gradient: F, like: F, /) -> F:
        """The final ``gradient``, in the placement of ``like``, the value that it belongs to.

        If the backend's ``settles`` is true, a reverse pass calls it for each leaf as soon as the leaf's gradient is
        complete. Values do not change. A sharded backend may start to sum partial gradients, and wait when the result
        is first read.
        """
        _settled_shape(gradient.shape, like.shape)
        return gradient

    @operation(kinds="F", shape=_sgd_shape, result=("same", "same"))
    def sgd_step(
        self: Any,
        param: F,
        grad: F,
        velocity: F | None = None,
        /,
        lr: float = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        donate: bool = False,
    ) -> tuple[F, F]:
        """A step of gradient descent with momentum: the new parameter and the new velocity.

        With ``g = grad + weight_decay * param``, the velocity becomes ``momentum * velocity + g`` (an absent one is 0,
        and without momentum it is ``g``). The step subtracts from the parameter ``lr`` times the new velocity, or, with
        ``nesterov``, times ``g + momentum * velocity`` (Sutskever et al. 2013, in the form usual in deep learning).
        ``donate`` allows the backend to reuse the memory of ``velocity``, which is then lost.
        """
        _sgd_shape(*map(shape_or_none, (param, grad, velocity)))
        return sgd_update(self, param, grad, velocity, lr, momentum, nesterov, weight_decay)

    @operation(kinds="F", shape=_sgd_shapes, result=("same", "..."), lists=("params", "grads", "velocities"))
    def sgd_steps(
        self: Any,
        params: Sequence[F],
        grads: Sequence[F],
        velocities: Sequence[F],
        /,
        lr: float = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        donate: bool = False,
    ) -> tuple[F, ...]:
        """:meth:`sgd_step` of several parameters: the new parameters, then their new velocities.

        An empty ``velocities`` means that all are absent. All tensors have one dtype; a backend may update them
        together.
        """
        check_lengths(params, grads, velocities or params)
        moved: Sequence[F | None] = velocities or [None] * len(params)
        return transpose_results(
            self.sgd_step(
                *tensors, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, donate=donate
            )
            for tensors in zip(params, grads, moved, strict=True)
        )

    @operation(kinds="F", shape=_adam_shape, result=("same", "same", "same"))
    def adam_step(
        self: Any,
        param: F,
        grad: F,
        m: F,
        v: F,
        /,
        lr: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        step: int = 1,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        donate: bool = False,
    ) -> tuple[F, F, F]:
        """A step of Adam (Kingma and Ba 2015): the new parameter and the new first and second moments.

        ``m`` becomes ``beta1 * m + (1 - beta1) * g`` and ``v`` becomes ``beta2 * v + (1 - beta2) * g**2``; the step
        subtracts ``lr * m' / (sqrt(v') + eps)`` from the parameter, where ``m' = m / (1 - beta1**step)`` and ``v' = v /
        (1 - beta2**step)``; the first step has number 1. The weight decay is added to the gradient, ``g = grad +
        weight_decay * param``, or, if ``decoupled`` (AdamW, Loshchilov and Hutter 2019), the parameter is first
        multiplied by ``1 - lr * weight_decay``. ``donate`` allows the backend to reuse the memory of ``m`` and ``v``,
        which are then lost.
        """
        _adam_shape(param.shape, grad.shape, m.shape, v.shape)
        numbers = adam_numbers(lr, beta1, beta2, eps, step, weight_decay, decoupled)
        return adam_update(self, param, grad, m, v, *numbers)

    @operation(kinds="F", shape=_multi_step_shape(3), result=("same", "..."), lists=("params", "grads", "ms", "vs"))
    def adam_steps(
        self: Any,
        params: Sequence[F],
        grads: Sequence[F],
        ms: Sequence[F],
        vs: Sequence[F],
        /,
        lr: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        step: int = 1,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        donate: bool = False,
    ) -> tuple[F, ...]:
        """:meth:`adam_step` of several parameters: the new parameters, then the first and the second moments.

        All tensors have one dtype, and all parameters are at the same step; a backend may update them together.
        """
        check_lengths(params, grads, ms, vs)
        return transpose_results(
            self.adam_step(
                *tensors, lr=lr, beta1=beta1, beta2=beta2, eps=eps, step=step,
                weight_decay=weight_decay, decoupled=decoupled, donate=donate,
            )
            for tensors in zip(params, grads, ms, vs, strict=True)
        )  # fmt: skip


def transpose_results(steps: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The results of single steps in the order of one step of many: all first results, then all second ones."""
    return tuple(chain.from_iterable(zip(*steps, strict=True)))
