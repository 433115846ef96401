"""Gradient rules: losses.

``mse``, ``l1``, ``cross_entropy`` and ``nll`` have none: their bodies are recorded, of which the two forms of cross
entropy below are one operation each.
"""

from __future__ import annotations

import math
from typing import Any

from backburn.autodiff.rules import gradient, one_pass
from backburn.autodiff.tangents import elementwise, reduction
from backburn.backend.loss import LEAST


def huber_x(k: Any, g: Any, x: Any, targets: Any, delta: float) -> Any:
    """The difference, bounded."""
    return k.mul(g, k.clamp(k.sub(x, targets), -delta, delta))


gradient("huber", x=huber_x, targets=lambda k, g, x, targets, delta: k.neg(huber_x(k, g, x, targets, delta)))


def binary_cross_entropy_x(k: Any, g: Any, x: Any, targets: Any, steep: float) -> Any:
    """Neither divisor is below ``steep``, but NaN where ``x`` is no probability."""
    x = k.where(k.logical_or(k.less(x, 0.0), k.less(1.0, x)), math.nan, x)
    other = k.sub(1.0, x)
    own = k.div(targets, k.where(k.less(x, steep), steep, x))
    return k.mul(g, k.sub(k.div(k.sub(1.0, targets), k.where(k.less(other, steep), steep, other)), own))


def binary_cross_entropy_targets(k: Any, g: Any, x: Any) -> Any:
    """The difference of the logarithms."""
    return k.mul(g, k.sub(k.maximum(k.log1p(k.neg(x)), LEAST), k.maximum(k.log(x), LEAST)))


gradient("binary_cross_entropy", x=binary_cross_entropy_x, targets=binary_cross_entropy_targets)
gradient(
    "binary_cross_entropy_with_logits",
    x=lambda k, g, x, targets, positive: k.mul(
        g, k.sub(k.mul(k.sub(1.0, targets), k.sigmoid(x)), k.mul(positive, k.sigmoid(k.neg(x))))
    ),
    targets=lambda k, g, x: k.neg(k.mul(g, k.softplus(x))),
    positive=lambda k, g, x: k.mul(g, k.softplus(k.neg(x))),
)

gradient("label_cross_entropy", x=lambda k, g, x, labels, axis: k.label_cross_entropy_backward(g, x, labels, axis))


def of_targets(k: Any, g: Any, x: Any, axis: int) -> Any:
    """The negative log-probability of each class."""
    column = k.reshape(g, (*g.shape[:axis], 1, *g.shape[axis:]))
    return k.neg(k.mul(column, k.log_softmax(x, axis)))


gradient(
    "softmax_cross_entropy",
    x=lambda k, g, x, targets, axis: k.softmax_cross_entropy_backward(g, x, targets, axis),
    targets=of_targets,
)

elementwise("huber", "binary_cross_entropy", "binary_cross_entropy_with_logits")
one_pass("huber", "binary_cross_entropy", "binary_cross_entropy_with_logits")
reduction("label_cross_entropy", "softmax_cross_entropy")
