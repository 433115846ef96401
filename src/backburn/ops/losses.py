"""Losses.

``reduction`` is ``"none"`` (a loss for each example), ``"mean"`` or ``"sum"``. Shapes never broadcast: a prediction of
shape (n, 1) against targets of shape (n,) is a mistake that would go unnoticed. 16-bit floats are computed in float32.
The element-wise operations, which are parts of losses, do none of this: they broadcast and keep the dtype.
"""

from __future__ import annotations

import math
from typing import Any, Protocol, overload

from backburn.base.errors import ArgumentError, ShapeError
from backburn.ops.bodies.half_precision import upcast_half
from backburn.ops.bodies.reductions import all_axes
from backburn.ops.bodies.scalars import shape_or_none
from backburn.ops.normalization import channel_shape
from backburn.ops.primitives import Primitives
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.rules.shapes import Shape, broadcast, check_axis
from backburn.ops.rules.tangents import reduction
from backburn.ops.table import operation
from backburn.ops.types import B, F, I, Q

REDUCTIONS = ("none", "mean", "sum")

#: The lower bound of the logarithm of a probability.
LEAST = -100.0


def without_axis(shape: Shape, axis: int) -> Shape:
    """``shape`` without ``axis``: the shape of the examples, whose classes are along ``axis``."""
    axis = check_axis(axis, len(shape))
    return (*shape[:axis], *shape[axis + 1 :])


def _reduced(shape: Shape, reduction: str) -> Shape:
    if reduction not in REDUCTIONS:
        raise ArgumentError(f"the reduction is one of {', '.join(REDUCTIONS)}, not {reduction!r}")
    return shape if reduction == "none" else ()


def _paired(x: Shape, targets: Shape, *, reduction: str = "mean") -> Shape:
    if x != targets:
        raise ShapeError(f"the predictions {list(x)} and the targets {list(targets)} must have one shape")
    return _reduced(x, reduction)


def labelled(x: Shape, labels: Shape, *, axis: int) -> Shape:
    """The shape of one label for each vector along ``axis``."""
    if labels != without_axis(x, axis):
        raise ShapeError(f"the labels {list(labels)} must have the shape of {list(x)} without its axis {axis}")
    return labels


def _distributed(x: Shape, targets: Shape, *, axis: int) -> Shape:
    if targets != x:
        raise ShapeError(f"the targets {list(targets)} must have the shape {list(x)} of the logits")
    return without_axis(x, axis)


def _classes(
    x: Shape, targets: Shape, weight: Shape | None = None, *, axis: int = 1, reduction: str = "mean", **_: Any
) -> Shape:
    examples = _distributed(x, targets, axis=axis) if len(targets) == len(x) else labelled(x, targets, axis=axis)
    if weight is not None and weight != (x[axis],):
        raise ShapeError(f"the weight must have one value for each of the {x[axis]} classes, not {list(weight)}")
    return _reduced(examples, reduction)


def _labels_only(
    x: Shape, labels: Shape, weight: Shape | None = None, *, axis: int = 1, reduction: str = "mean", **_: Any
) -> Shape:
    labelled(x, labels, axis=axis)
    return _classes(x, labels, weight, axis=axis, reduction=reduction)


def _reduce(k: Any, losses: Any, reduction: str, dtype: Any, weights: Any = None) -> Any:
    """The losses, their sum, or their mean, in ``dtype``; ``weights`` are those of the mean."""
    losses, axes = upcast_half(k, losses), all_axes(losses)
    if reduction == "mean":
        if weights is None:
            losses = k.mean(losses, axes, False)
        else:
            losses = k.div(k.sum(losses, axes, False), k.sum(upcast_half(k, weights), axes, False))
    elif reduction == "sum":
        losses = k.sum(losses, axes, False)
    return losses if k.dtype(losses) is dtype else k.astype(losses, dtype)


def _column(k: Any, x: Any, axis: int) -> Any:
    """``x`` with an axis of length 1 where the classes are."""
    return k.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


def _index(k: Any, x: Any, labels: Any, axis: int) -> Any:
    """The labels as an index of ``x``; negative labels are out of range: classes are not counted from the end."""
    return _column(k, k.where(k.less(labels, 0), x.shape[axis], labels), axis)


def _negative_at_label(k: Any, x: Any, labels: Any, axis: int) -> Any:
    """``-x`` at the class that each label names."""
    return k.neg(k.reshape(k.take_along_axis(x, _index(k, x, labels, axis), axis), labels.shape))


def _mask_losses(k: Any, losses: Any, weights: Any, kept: Any) -> tuple[Any, Any]:
    """The losses, and their weights in the mean (None: all equal); both 0 where they are not ``kept``."""
    if kept is None:
        return losses, weights
    counts = k.astype(kept, k.dtype(losses)) if weights is None else k.where(kept, weights, 0.0)
    return k.where(kept, losses, 0.0), counts


# ---- gradients ----


def grad_huber_x(k: Any, g: Any, x: Any, targets: Any, delta: float) -> Any:
    """The difference, clipped."""
    return k.mul(g, k.clip(k.sub(x, targets), -delta, delta))


def grad_binary_cross_entropy_x(k: Any, g: Any, x: Any, targets: Any, steep: float) -> Any:
    """The gradient of the probabilities: divisors are at least ``steep``; NaN outside 0 to 1."""
    x = k.where(k.logical_or(k.less(x, 0.0), k.less(1.0, x)), math.nan, x)
    other = k.sub(1.0, x)
    own = k.div(targets, k.where(k.less(x, steep), steep, x))
    return k.mul(g, k.sub(k.div(k.sub(1.0, targets), k.where(k.less(other, steep), steep, other)), own))


def grad_binary_cross_entropy_targets(k: Any, g: Any, x: Any) -> Any:
    """The difference of the logarithms."""
    return k.mul(g, k.sub(k.maximum(k.log1p(k.neg(x)), LEAST), k.maximum(k.log(x), LEAST)))


def grad_cross_entropy_targets(k: Any, g: Any, x: Any, axis: int) -> Any:
    """The negative log-probability of each class."""
    column = k.reshape(g, (*g.shape[:axis], 1, *g.shape[axis:]))
    return k.neg(k.mul(column, k.log_softmax(x, axis)))


class Losses(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Losses."""

    # ---- distances ----

    @operation(kinds="F", shape=_paired, differentiable=True)
    def mse_loss(self: Any, x: F, targets: F, /, reduction: str = "mean") -> F:
        """The squared difference."""
        _paired(x.shape, targets.shape, reduction=reduction)
        difference = self.sub(upcast_half(self, x), upcast_half(self, targets))
        return _reduce(self, self.square(difference), reduction, self.dtype(x))

    @operation(kinds="F", shape=_paired, differentiable=True)
    def l1_loss(self: Any, x: F, targets: F, /, reduction: str = "mean") -> F:
        """The absolute difference; the derivative is 0 where the difference is."""
        _paired(x.shape, targets.shape, reduction=reduction)
        difference = self.sub(upcast_half(self, x), upcast_half(self, targets))
        return _reduce(self, self.abs(difference), reduction, self.dtype(x))

    # ---- element-wise ----

    @operation(kinds="F", shape=broadcast, differentiable=True, fuse=True)
    def huber_loss(self: Any, x: F, targets: F, /, delta: float = 1.0) -> F:
        """``d ** 2 / 2`` for differences ``d`` up to ``delta``, else ``delta * (|d| - delta / 2)``; Huber, 1964."""
        difference = self.sub(x, targets)
        inside = self.clip(difference, -delta, delta)
        return self.mul(inside, self.add(difference, self.mul(inside, -0.5)))

    gradient_rule(
        huber_loss, x=grad_huber_x, targets=lambda k, g, x, targets, delta: k.neg(grad_huber_x(k, g, x, targets, delta))
    )

    @operation(kinds="F", shape=broadcast, differentiable=True, fuse=True)
    def binary_cross_entropy(self: Any, x: F, targets: F, /, steep: float = 2.0**-14) -> F:
        """``-targets * log(x) - (1 - targets) * log(1 - x)`` of probabilities; NaN where ``x`` is not between 0 and 1.

        Logarithms are at least -100, and their derivatives at most ``1 / steep``, so that a saturated wrong prediction
        has a finite gradient, with the default in every dtype.
        """
        own = self.neg(self.maximum(self.log(x), LEAST))
        other = self.neg(self.maximum(self.log1p(self.neg(x)), LEAST))
        return self.add(self.mul(targets, own), self.mul(self.sub(1.0, targets), other))

    gradient_rule(binary_cross_entropy, x=grad_binary_cross_entropy_x, targets=grad_binary_cross_entropy_targets)

    @operation(kinds="F", shape=broadcast, differentiable=True, fuse=True)
    def binary_cross_entropy_with_logits(self: Any, x: F, targets: F, positive: F, /) -> F:
        """``(1 - targets) * softplus(x) + positive * softplus(-x)``; ``positive`` is the targets, possibly weighted.

        Both softplus functions share ``log(1 + exp(-|x|))``, to which the positive or the negative part of ``x`` is
        added.
        """
        shared = self.softplus(self.neg(self.abs(x)))
        own = self.mul(positive, self.add(shared, self.maximum(self.neg(x), 0.0)))
        return self.add(self.mul(self.sub(1.0, targets), self.add(shared, self.maximum(x, 0.0))), own)

    gradient_rule(
        binary_cross_entropy_with_logits,
        x=lambda k, g, x, targets, positive: k.mul(
            g, k.sub(k.mul(k.sub(1.0, targets), k.sigmoid(x)), k.mul(positive, k.sigmoid(k.neg(x))))
        ),
        targets=lambda k, g, x: k.neg(k.mul(g, k.softplus(x))),
        positive=lambda k, g, x: k.mul(g, k.softplus(k.neg(x))),
    )

    # ---- classes ----

    @overload
    def cross_entropy(
        self, x: F, targets: F, weight: F | None = None, /,
        axis: int = 1, reduction: str = "mean", label_smoothing: float = 0.0, ignore_index: int | None = None,
    ) -> F: ...  # fmt: skip
    @overload
    def cross_entropy(
        self, x: F, targets: I, weight: F | None = None, /,
        axis: int = 1, reduction: str = "mean", label_smoothing: float = 0.0, ignore_index: int | None = None,
    ) -> F: ...  # fmt: skip
    @operation(kinds="F", shape=_classes, like=("x",), differentiable=True)
    def cross_entropy(
        self: Any,
        x: Any,
        targets: Any,
        weight: Any = None,
        /,
        axis: int = 1,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        ignore_index: int | None = None,
    ) -> Any:
        """The cross entropy of the targets and ``softmax(x)``, whose classes are along ``axis``.

        Integer ``targets`` name the class of each example; float ones give every class a probability. ``weight``
        multiplies the term of each class. ``label_smoothing``, from 0 to 1, mixes that much of the uniform distribution
        into the targets. Examples labelled ``ignore_index`` are ignored. The mean over labels is weighted by
        ``weight``, the mean over probabilities divides by the number of examples. Raises for a label outside 0 to
        classes - 1.
        """
        _classes(x.shape, targets.shape, shape_or_none(weight), axis=axis, reduction=reduction)
        dtype, classes = self.dtype(x), x.shape[axis]
        if not 0 <= label_smoothing <= 1:  # also refuses NaN
            raise ArgumentError(f"label_smoothing is from 0 to 1, not {label_smoothing}")
        if label_smoothing or weight is not None:  # 16-bit terms of many classes would overflow or vanish
            x, weight = upcast_half(self, x), None if weight is None else upcast_half(self, weight)
            targets = upcast_half(self, targets) if self.dtype(targets).is_floating else targets
        if self.dtype(targets).is_floating:
            if targets.shape != x.shape:  # with broadcasting, labels given as floats would be taken for probabilities
                raise ShapeError(
                    f"float targets are probabilities and have the shape {list(x.shape)} of the logits, not "
                    f"{list(targets.shape)}; class labels are integers: cast them"
                )
            if ignore_index is not None:
                raise ArgumentError("cross_entropy: ignore_index is for integer targets, not for probabilities")
            if label_smoothing:
                targets = self.add(self.mul(targets, 1.0 - label_smoothing), label_smoothing / classes)
            if weight is not None:
                targets = self.mul(targets, self.reshape(weight, channel_shape(x.shape, axis)))
            return _reduce(self, self.softmax_cross_entropy(x, targets, axis), reduction, dtype)
        kept = None if ignore_index is None else self.not_equal(targets, ignore_index)
        labels = targets if kept is None else self.where(kept, targets, 0)
        losses = self.label_cross_entropy(x, labels, axis)
        weights = None if weight is None else self.take(weight, labels, 0)
        if weights is not None:
            losses = self.mul(losses, weights)
        if label_smoothing:
            every = self.ones((classes,), self.dtype(x)) if weight is None else weight
            every = self.broadcast_to(self.reshape(every, channel_shape(x.shape, axis)), x.shape)
            smooth = self.mul(self.softmax_cross_entropy(x, every, axis), label_smoothing / classes)
            losses = self.add(self.mul(losses, 1.0 - label_smoothing), smooth)
        losses, weights = _mask_losses(self, losses, weights, kept)
        return _reduce(self, losses, reduction, dtype, weights)

    @operation(kinds="F", shape=_labels_only, like=("x",), differentiable=True)
    def nll_loss(
        self: Any,
        x: F,
        labels: I,
        weight: F | None = None,
        /,
        axis: int = 1,
        reduction: str = "mean",
        ignore_index: int | None = None,
    ) -> F:
        """The negative of the log-probability in ``x`` of the class that each label names along ``axis``.

        ``weight``, ``ignore_index`` and the mean are as in :meth:`cross_entropy`.
        """
        _labels_only(x.shape, labels.shape, shape_or_none(weight), axis=axis, reduction=reduction)
        kept = None if ignore_index is None else self.not_equal(labels, ignore_index)
        labels = labels if kept is None else self.where(kept, labels, 0)
        losses = _negative_at_label(self, x, labels, axis)
        weights = None if weight is None else self.take(weight, labels, 0)
        if weights is not None:
            losses = self.mul(losses, weights)
        losses, weights = _mask_losses(self, losses, weights, kept)
        return _reduce(self, losses, reduction, self.dtype(x), weights)

    @operation(kinds="F", shape=labelled, like=("x",), differentiable=True)
    def label_cross_entropy(self: Any, x: F, labels: I, /, axis: int) -> F:
        """``-log_softmax(x)`` along ``axis`` at the class that each label names; a label out of range raises."""
        labelled(x.shape, labels.shape, axis=axis)
        losses = _negative_at_label(self, self.log_softmax(upcast_half(self, x), axis), labels, axis)
        return self.astype(losses, self.dtype(x))

    gradient_rule(
        label_cross_entropy, x=lambda k, g, x, labels, axis: k.label_cross_entropy_backward(g, x, labels, axis)
    )
    reduction(label_cross_entropy)

    @operation(kinds="F", shape=lambda grad, x, labels, **_: x, like=("x",), differentiable=True)
    def label_cross_entropy_backward(self: Any, grad: F, x: F, labels: I, /, axis: int) -> F:
        """The gradient of :meth:`label_cross_entropy`: ``softmax(x)``, less 1 at the label, times ``grad``.

        It has no gradient rule: further derivatives follow from its body.
        """
        softmax = self.softmax(upcast_half(self, x), axis)
        # The label's share minus 1 is minus the sum of the other shares, which loses no digits.
        index = _index(self, x, labels, axis)
        own = self.take_along_axis(softmax, index, axis)
        none = self.sub(own, own)  # 0, or NaN, which would be lost if a row has only one class
        others = self.sum(self.scatter(softmax, index, none, axis, "assign"), (axis,), True)
        difference = self.scatter(softmax, index, self.neg(others), axis, "assign")
        return self.astype(self.mul(difference, _column(self, upcast_half(self, grad), axis)), self.dtype(x))

    @operation(kinds="F", shape=_distributed, differentiable=True)
    def softmax_cross_entropy(self: Any, x: F, targets: F, /, axis: int) -> F:
        """``-sum(targets * log_softmax(x))`` along ``axis``; a target of 0 contributes 0, whatever its logit."""
        _distributed(x.shape, targets.shape, axis=axis)
        wide = upcast_half(self, targets)
        terms = self.mul(wide, self.log_softmax(upcast_half(self, x), axis))
        total = self.sum(self.where(self.equal(wide, 0.0), 0.0, terms), (axis,), False)
        return self.astype(self.neg(total), self.dtype(x))

    gradient_rule(
        softmax_cross_entropy,
        x=lambda k, g, x, targets, axis: k.softmax_cross_entropy_backward(g, x, targets, axis),
        targets=grad_cross_entropy_targets,
    )
    reduction(softmax_cross_entropy)

    @operation(kinds="F", shape=lambda grad, x, targets, **_: x, differentiable=True)
    def softmax_cross_entropy_backward(self: Any, grad: F, x: F, targets: F, /, axis: int) -> F:
        """The gradient of :meth:`softmax_cross_entropy` for ``x``.

        ``(softmax(x) * sum(targets) - targets) * grad``. It has no gradient rule, so that further
        derivatives follow from its body.
        """
        wide = upcast_half(self, targets)
        softmax = self.softmax(upcast_half(self, x), axis)
        wins = self.greater(softmax, 0.5)  # as in softmax_backward
        shares = self.sum(self.where(wins, 0.0, softmax), (axis,), True)
        others = self.sum(self.where(wins, 0.0, wide), (axis,), True)
        winning = self.sub(self.mul(softmax, others), self.mul(wide, shares))
        plain = self.sub(self.mul(softmax, self.sum(wide, (axis,), True)), wide)
        difference = self.where(wins, winning, plain)
        return self.astype(self.mul(difference, _column(self, upcast_half(self, grad), axis)), self.dtype(x))
