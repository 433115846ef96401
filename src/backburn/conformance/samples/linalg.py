"""Samples: products of matrices and vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn.conformance.samples.activations import FORMS
from backburn.conformance.samples.references import gelu, gelu_backward
from backburn.conformance.samples.table import case, integers, real, samples

samples(
    "matmul",
    np.matmul,
    case(real(2, 3), real(3, 4)),
    case(real(3), real(3, seed=1)),
    case(real(3), real(3, 2)),
    case(real(2, 3), real(3)),
    case(real(3), real(2, 3, 2)),
    case(real(2, 2, 3), real(3)),
    case(real(2, 2, 3), real(3, 2)),
    case(real(3, 2), real(2, 2, 3)),
    case(real(2, 1, 2, 3), real(3, 3, 2)),
    case(real(1, 2, 3), real(1, 3, 2)),
    case(real(0, 3), real(3, 2)),
    case(real(2, 0), real(0, 3)),
    case(real(2, 0, 3), real(3, 2)),
    case(real(0), real(0)),
    case(integers(2, 3), integers(3, 2)),
    case(integers(2, 3), integers(3, seed=1)),
    case(integers(3, low=2**60, high=2**60 + 9), np.array([1, -1, 1]), note="exact beyond float64"),
    case(np.ones((1, 4000)), np.full((4000, 1), 0.125), smooth=1, note="16-bit sums"),
    case(np.full((1, 1, 3), 2**63 - 2), np.ones((1, 3, 1), np.int64), note="wraps"),
)


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """The reference of ``linear``."""
    return x @ weight.T + (0.0 if bias is None else bias)


samples(
    "linear",
    linear,
    case(real(2, 3), real(4, 3), real(4)),
    case(real(2, 3), real(2, 3)),
    case(real(3), real(2, 3), real(2)),
    case(real(2, 2, 3), real(2, 3), real(2)),
    case(real(0, 3), real(2, 3), real(2)),
    case(real(2, 0), real(2, 0), real(2)),
    case(real(2, 2, 0), real(2, 0), None),
)


def linear_weight_backward(grad: Any, x: Any) -> Any:
    """The reference of ``linear_weight_backward``."""
    leading = tuple(range(x.ndim - 1))
    return np.tensordot(grad, x, (leading, leading)), grad.sum(leading)


samples(
    "linear_weight_backward",
    linear_weight_backward,
    case(real(5, 4), real(5, 3, seed=1)),
    case(real(2), real(3, seed=1)),
    case(real(2, 5, 4), real(2, 5, 3, seed=1)),
    case(real(0, 4), real(0, 3)),
    case(real(5, 0), real(5, 3)),
    case(real(5, 4), real(5, 0)),
)


def feed_forward(
    x: Any, weight1: Any, weight2: Any, bias1: Any = None, bias2: Any = None, approximate: str = "none"
) -> Any:
    """The reference of ``feed_forward``."""
    before = linear(x, weight1, bias1)
    after = gelu(before, approximate)
    return linear(after, weight2, bias2), before, after


samples(
    "feed_forward",
    feed_forward,
    *(case(real(2, 3), real(8, 3), real(2, 8), real(8), real(2), approximate=form) for form in FORMS),
    case(real(2, 2, 3), real(4, 3), real(2, 4), real(4), None),
    case(real(2, 3), real(4, 3), real(2, 4), None, real(2), approximate="tanh"),
    case(real(3), real(4, 3), real(1, 4)),
    case(real(0, 3), real(4, 3), real(2, 4), real(4), real(2)),
    case(real(2, 0), real(4, 0), real(2, 4), real(4), real(2)),
    case(real(2, 3), real(0, 3), real(2, 0), real(0), real(2), approximate="tanh"),
)


def feed_forward_backward(grad: Any, x: Any, weight2: Any, before: Any, approximate: str) -> Any:
    """The reference of ``feed_forward_backward``."""
    grad_before = gelu_backward(grad @ weight2, before, approximate)
    return grad_before, *linear_weight_backward(grad_before, x)


samples(
    "feed_forward_backward",
    feed_forward_backward,
    *(case(real(2, 3), real(2, 4), real(3, 8), real(2, 8, seed=1), approximate=form) for form in FORMS),
    case(real(2, 2, 3), real(2, 2, 1), real(3, 4), real(2, 2, 4, seed=1), approximate="none"),
    case(real(3), real(2), real(3, 4), real(4, seed=1), approximate="tanh"),
    case(real(0, 3), real(0, 2), real(3, 4), real(0, 4), approximate="none"),
    case(real(2, 0), real(2, 3), real(0, 4), real(2, 4), approximate="none"),
)
