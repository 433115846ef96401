"""Samples: losses."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn.conformance.samples.normalization import log_softmax, softmax
from backburn.conformance.samples.table import case, ints, positive, real, samples

# ---- distances ----


def reduced(losses: Any, reduction: str, weights: Any = None) -> Any:
    """The losses, their sum or their mean."""
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    return losses.sum() / (losses.size if weights is None else np.sum(weights))


DISTANCES = (
    case(real(2, 3), real(2, 3, seed=1)),
    case(real(2, 3), real(2, 3, seed=1), reduction="sum"),
    case(real(2, 3), real(2, 3, seed=1), reduction="none"),
    case(real(), real(seed=1)),
    case(real(0, 3), real(0, 3), reduction="none"),
    case(real(0), real(0), reduction="sum"),
    case(np.array([300.0, -300.0]), np.zeros(2), note="squares overflow float16"),
)

samples("mse_loss", lambda x, targets, reduction="mean": reduced((x - targets) ** 2, reduction), *DISTANCES)
samples(
    "l1_loss",
    lambda x, targets, reduction="mean": reduced(np.abs(x - targets), reduction),
    *DISTANCES,
    case(
        np.array([1.0, 2.0]),
        np.array([1.0, 0.0]),
        reduction="sum",
        smooth=0,
        gradients=(np.array([0.0, 1.0]), np.array([0.0, -1.0])),
    ),
)

# ---- element-wise ----

samples(
    "huber_loss",
    lambda x, targets, delta=1.0: np.where(
        np.abs(x - targets) <= delta, (x - targets) ** 2 / 2, delta * (np.abs(x - targets) - delta / 2)
    ),
    case(real(2, 3), real(2, 3, seed=1)),
    case(real(2, 3), real(3, seed=1), delta=0.25),
    case(real(), real(seed=1), delta=2.0),
    case(real(0, 3), real(0, 3)),
    case(np.array([-np.inf, np.nan]), np.zeros(2), smooth=0),
    case(
        np.array([1.0, 2.5, -2.5]),
        np.array([1.0, 0.0, 0.0]),
        gradients=(np.array([0.0, 1.0, -1.0]), np.array([0.0, -1.0, 1.0])),
    ),
)


def binary_cross_entropy(x: Any, targets: Any, steep: float = 2.0**-14) -> Any:
    """The definition, with the bound of the logarithms."""
    return targets * -np.maximum(np.log(x), -100.0) + (1.0 - targets) * -np.maximum(np.log1p(-x), -100.0)


def fraction(*shape: int, seed: int = 0) -> Any:
    """Float64 values between 0.05 and 0.95."""
    return real(*shape, low=0.05, high=0.95, seed=seed)


QUARTERS = np.array([0.25, 0.5, 0.75])

samples(
    "binary_cross_entropy",
    binary_cross_entropy,
    case(fraction(2, 3), fraction(2, 3, seed=1)),
    case(fraction(2, 3), fraction(3, seed=1)),
    case(fraction(), fraction(seed=1)),
    case(fraction(0, 3), fraction(0, 3)),
    case(np.array([0.0, 1.0, 0.0, 1.0]), np.array([0.0, 1.0, 1.0, 0.0]), smooth=0),
    case(np.array([-0.5, 1.5, np.nan]), np.array([0.0, 1.0, 0.5]), smooth=0),
    case(
        QUARTERS,
        np.array([1.0, 1.0, 0.0]),
        steep=0.5,
        smooth=0,
        gradients=(np.array([-2.0, -2.0, 2.0]), np.log1p(-QUARTERS) - np.log(QUARTERS)),
        note="steep",
    ),
)
samples(
    "binary_cross_entropy_with_logits",
    lambda x, targets, positive: (1.0 - targets) * np.logaddexp(0.0, x) + positive * np.logaddexp(0.0, -x),
    case(real(2, 3), fraction(2, 3), fraction(2, 3, seed=1)),
    case(real(2, 3), fraction(3), positive(2, 1)),
    case(real(), fraction(), positive()),
    case(real(0, 3), fraction(0, 3), fraction(0, 3)),
    case(
        np.array([60.0, -60.0, 11.0, -11.0]), np.array([1.0, 0.0, 1.0, 0.0]), np.array([1.0, 0.0, 1.0, 0.0]), note="far"
    ),
)

# ---- classes ----


def one_hot(x: Any, names: Any, axis: int) -> Any:
    """1 at the label of each example along ``axis``."""
    return np.moveaxis(np.eye(x.shape[axis])[names], -1, axis)


def along(x: Any, weight: Any, axis: int) -> Any:
    """A vector of weights, or 1, along ``axis`` of ``x``."""
    if weight is None:
        return np.ones(x.shape)
    return np.moveaxis(np.broadcast_to(weight, np.moveaxis(x, axis, -1).shape), -1, axis)


def cross_entropy(
    x: Any,
    targets: Any,
    weight: Any = None,
    axis: int = 1,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
) -> Any:
    """The reference of ``cross_entropy``, from its definition with a weight for each class."""
    by_class, counts = along(x, weight, axis), None
    if targets.dtype.kind == "i":
        valid = np.ones(targets.shape) if ignore_index is None else (targets != ignore_index) * 1.0
        targets = one_hot(x, np.where(valid, targets, 0), axis)
        counts = valid * (targets * by_class).sum(axis)
        by_class = by_class * np.expand_dims(valid, axis)
    smoothed = (1 - label_smoothing) * targets + label_smoothing / x.shape[axis]
    terms = by_class * smoothed * log_softmax(x, axis)
    losses = -np.where(by_class * smoothed == 0, 0.0, terms).sum(axis)
    return reduced(losses, reduction, counts)


DENSE = softmax(real(2, 3, seed=3), 1)
NAMES = ints(2, 0, 1, 2)

samples(
    "cross_entropy",
    cross_entropy,
    case(real(4, 3), NAMES),
    case(real(4, 3), NAMES, reduction="sum"),
    case(real(4, 3), NAMES, reduction="none"),
    case(real(4, 3), NAMES, positive(3)),
    case(real(4, 3), NAMES, positive(3), reduction="none", ignore_index=2),
    case(real(4, 3), ints(2, -100, 1, -100), ignore_index=-100),
    case(real(4, 3), ints(2, -100, 1, 0), positive(3), ignore_index=-100),
    case(real(4, 3), NAMES, label_smoothing=0.1),
    case(real(4, 3), NAMES, positive(3), label_smoothing=0.25, ignore_index=0),
    case(real(1, 2000), ints(3), 40.0 + positive(2000), label_smoothing=0.1, smooth=1, note="large sums of terms"),
    case(real(3), np.array(1), axis=0),
    case(real(3, 4), NAMES, axis=0),
    case(real(2, 3, 2), ints([0, 2], [1, 1]), axis=1),
    case(real(0, 3), np.zeros(0, np.int64), reduction="sum"),
    case(real(2, 3), DENSE),
    case(real(2, 3), DENSE, positive(3), reduction="sum"),
    case(real(2, 3), real(2, 3, seed=1), label_smoothing=0.1, reduction="none"),
    case(real(3, 2), DENSE.T, axis=0),
    case(np.array([[0.0, 400.0, -400.0]]), ints(2), smooth=1, note="exponentials overflow"),
    case(np.array([[0.0, -np.inf, 1.0]]), ints(2), smooth=0, note="a masked class"),
    case(np.array([[0.0, -np.inf, 1.0]]), np.array([[0.5, 0.0, 0.5]]), smooth=0, note="a masked class"),
)


def nll(
    x: Any, names: Any, weight: Any = None, axis: int = 1, reduction: str = "mean", ignore_index: int | None = None
) -> Any:
    """The reference of ``nll``."""
    valid = np.ones(names.shape) if ignore_index is None else (names != ignore_index) * 1.0
    labels = one_hot(x, np.where(valid, names, 0), axis)
    counts = valid * (labels * along(x, weight, axis)).sum(axis)
    return reduced(-(labels * x).sum(axis) * counts, reduction, counts)


samples(
    "nll_loss",
    nll,
    case(real(4, 3), NAMES),
    case(real(4, 3), NAMES, reduction="sum"),
    case(real(4, 3), NAMES, reduction="none"),
    case(real(4, 3), ints(2, -100, 1, 0), positive(3), ignore_index=-100),
    case(real(4, 3), ints(2, -1, 1, 0), ignore_index=-1),
    case(real(3), np.array(1), axis=0),
    case(real(2, 3, 2), ints([0, 2], [1, 1]), axis=1),
    case(real(0, 3), np.zeros(0, np.int64), reduction="none"),
)
samples(
    "label_cross_entropy",
    lambda x, names, axis: cross_entropy(x, names, axis=axis, reduction="none"),
    case(real(4, 3), NAMES, axis=1),
    case(real(3, 4), NAMES, axis=0),
    case(real(2, 3, 2), ints([0, 2], [1, 1]), axis=1),
    case(real(3), np.array(1), axis=0),
    case(real(0, 3), np.zeros(0, np.int64), axis=1),
)


samples(
    "label_cross_entropy_backward",
    lambda grad, x, names, axis: np.expand_dims(grad, axis) * (softmax(x, axis) - one_hot(x, names, axis)),
    case(real(4), real(4, 3), NAMES, axis=1),
    case(real(4), real(3, 4), NAMES, axis=0),
    case(real(2, 2), real(2, 3, 2), ints([0, 2], [1, 1]), axis=1),
    case(real(), real(3), np.array(1), axis=0),
    case(real(0), real(0, 3), np.zeros(0, np.int64), axis=1),
)
samples(
    "softmax_cross_entropy",
    lambda x, targets, axis: cross_entropy(x, targets, axis=axis, reduction="none"),
    case(real(2, 3), DENSE, axis=1),
    case(real(3, 2), DENSE.T, axis=0),
    case(real(2, 3, 2), real(2, 3, 2, seed=1), axis=1),
    case(real(0, 3), real(0, 3), axis=1),
)
samples(
    "softmax_cross_entropy_backward",
    lambda grad, x, targets, axis: (
        np.expand_dims(grad, axis) * (softmax(x, axis) * targets.sum(axis, keepdims=True) - targets)
    ),
    case(real(2), real(2, 3), DENSE, axis=1),
    case(real(2), real(3, 2), DENSE.T, axis=0),
    case(real(2, 2), real(2, 3, 2), real(2, 3, 2, seed=1), axis=1),
    case(real(0), real(0, 3), real(0, 3), axis=1),
)
