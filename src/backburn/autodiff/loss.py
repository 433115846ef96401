"""Gradient rules: losses.

``mse``, ``l1``, ``cross_entropy`` and ``nll`` have none: their bodies are recorded, of which the two forms of cross
entropy below are one operation each.
"""

from __future__ import annotations

from typing import Any

from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import reduction

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

reduction("label_cross_entropy", "softmax_cross_entropy")
