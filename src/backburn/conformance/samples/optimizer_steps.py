"""Samples: steps of optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn.conformance.samples.table import Array, case, positive, real, samples


def sgd(
    param: Array, grad: Array, velocity: Array | None = None, *, lr: float = 0.01, momentum: float = 0.0,
    nesterov: bool = False, weight_decay: float = 0.0, donate: bool = False,
) -> tuple[Array, Array]:  # fmt: skip
    """The step as in the papers."""
    g = grad + weight_decay * param
    v = g + momentum * (0.0 if velocity is None else velocity)
    return param - lr * (g + momentum * v if nesterov else v), v


def adam(
    param: Array, grad: Array, m: Array, v: Array, *, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999,
    eps: float = 1e-8, step: int = 1, weight_decay: float = 0.0, decoupled: bool = False, donate: bool = False,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The step as in the papers, with the bias corrections as factors of the moments."""
    g = grad + (0.0 if decoupled else weight_decay) * param
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    corrected_m, corrected_v = m / (1 - beta1**step), v / (1 - beta2**step)
    shrunk = param * (1 - lr * weight_decay) if decoupled else param
    return shrunk - lr * corrected_m / (np.sqrt(corrected_v) + eps), m, v


def three(*shape: int) -> tuple[Any, ...]:
    """A parameter, a gradient and a velocity."""
    return real(*shape), real(*shape, seed=1), real(*shape, seed=2)


def four(*shape: int) -> tuple[Any, ...]:
    """A parameter, a gradient and two moments."""
    return *three(*shape), positive(*shape, seed=3)


def sgds(params: list[Array], grads: list[Array], velocities: list[Array], **options: Any) -> tuple[Array, ...]:
    """The steps of each parameter: the new parameters, then the new velocities."""
    moved: list[Any] = [*velocities] or [None] * len(params)
    steps = [sgd(*x, **options) for x in zip(params, grads, moved, strict=True)]
    return tuple(x for results in zip(*steps, strict=True) for x in results)


def adams(*lists: list[Array], **options: Any) -> tuple[Array, ...]:
    """The steps of each parameter: the new parameters, then the new moments."""
    steps = [adam(*x, **options) for x in zip(*lists, strict=True)]
    return tuple(x for results in zip(*steps, strict=True) for x in results)


def lists(*tensors: tuple[Any, ...]) -> list[list[Array]]:
    """Transposes tuples of tensors: a list of the first ones, a list of the second ones, and so on."""
    return [list(x) for x in zip(*tensors, strict=True)]


samples(
    "settle",
    lambda gradient, like: gradient,
    case(*three(2, 3)[:2]),
    case(*three()[:2]),
    case(*three(0, 3)[:2]),
)
samples(
    "sgd_step",
    sgd,
    case(*three(2, 3)[:2]),
    case(*three(2, 3)[:2], None, lr=0.5, momentum=0.9),
    case(*three(2, 3)[:2], None, lr=0.5, weight_decay=0.1),
    case(*three(2, 3), lr=0.1, note="no momentum: the velocity plays no part"),
    case(*three(2, 3), lr=0.1, momentum=0.9),
    case(*three(4), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.25),
    case(*three(), momentum=0.5),
    case(*three(0, 3), momentum=0.5, weight_decay=0.1),
    case(*three(2, 3), lr=0.1, momentum=0.9, donate=True),
)
samples(
    "adam_step",
    adam,
    case(*four(2, 3)),
    case(*four(2, 3), lr=0.25, beta1=0.75, beta2=0.5, eps=0.125, step=3),
    case(*four(4), lr=0.25, weight_decay=0.5, step=2),
    case(*four(4), lr=0.25, weight_decay=0.5, step=2, decoupled=True),
    case(*four(), step=1000),
    case(*four(0, 3)),
    case(*four(2, 3), step=2, donate=True),
)
samples(
    "sgd_steps",
    sgds,
    case(*lists(three(2, 3), three(5))[:2], [], lr=0.5, weight_decay=0.1),
    case(*lists(three(2, 3), three(), three(5)), lr=0.1, momentum=0.9),
    case(*lists(three(4), three(3, 1)), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.25),
    case(*lists(three(), three()), momentum=0.5),
    case(*lists(three(0, 3), three(2)), momentum=0.5),
    case(*lists(three(2, 3), three(2)), momentum=0.5, donate=True),
)
samples(
    "adam_steps",
    adams,
    case(*lists(four(2, 3), four(), four(5))),
    case(*lists(four(2, 3), four(4)), lr=0.25, beta1=0.75, beta2=0.5, eps=0.125, step=3),
    case(*lists(four(4)), lr=0.25, weight_decay=0.5, step=2),
    case(*lists(four(4), four(3)), lr=0.25, weight_decay=0.5, step=2, decoupled=True),
    case(*lists(four(), four()), step=1000),
    case(*lists(four(0, 3), four(2))),
    case(*lists(four(2, 3), four(2)), step=2, donate=True),
)
