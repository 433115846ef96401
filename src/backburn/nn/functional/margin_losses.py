"""Margin losses, composed of other functions, with conventions of :mod:`backburn.nn.functional.composed_losses`.

In losses over several classes, the classes are along the last axis, and there is one loss for each example.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backburn.base.errors import DTypeError, OutOfRangeError, ShapeError
from backburn.nn.functional.composed_losses import loss_operands, reduced, wide_operands
from backburn.nn.functional.losses import nll_loss
from backburn.tensor.core.dispatch import call, cast, tensor_operand
from backburn.tensor.core.integers import has_wide_integers, in_float64
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import axis_of, number, one_of
from backburn.tensor.creation import arange
from backburn.tensor.index import take_along_axis
from backburn.tensor.shape import broadcast_arrays

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, Tensor

__all__ = [
    "cosine_embedding_loss", "cosine_similarity", "hinge_embedding_loss", "hinge_loss", "multi_margin_loss",
    "multilabel_margin_loss", "multilabel_soft_margin_loss", "triplet_margin_loss",
]  # fmt: skip


# ---- pairs and triplets ----


def hinge_loss(x: Tensor, target: Tensor, margin: float = 1.0, *, reduction: str = "mean") -> FloatTensor:
    """``max(0, margin - x * target)`` for targets -1 and 1: the loss of support vector machines.

    >>> import backburn as bb
    >>> hinge_loss(bb.asarray([0.5, 2.0]), bb.asarray([-1, 1]), reduction="none").tolist()
    [1.5, 0.0]
    """
    (x, target), dtype = loss_operands("hinge_loss", x, target)
    margin = number("hinge_loss", "margin", margin)
    return reduced("hinge_loss", call("relu", margin - x * target), reduction, dtype)


def hinge_embedding_loss(x: Tensor, target: Tensor, margin: float = 1.0, *, reduction: str = "mean") -> FloatTensor:
    """``x``, a distance, where the target is 1; ``max(0, margin - x)`` where it is -1.

    >>> import backburn as bb
    >>> hinge_embedding_loss(bb.asarray([0.25, 0.25]), bb.asarray([1, -1]), reduction="none").tolist()
    [0.25, 0.75]
    """
    name = "hinge_embedding_loss"
    (x, target), dtype = loss_operands(name, x, target)
    losses = call("where", target > 0, x, call("relu", number(name, "margin", margin) - x))
    return reduced(name, losses, reduction, dtype)


def cosine_embedding_loss(
    x1: Tensor, x2: Tensor, target: Tensor, margin: float = 0.0, *, reduction: str = "mean", axis: int = -1
) -> FloatTensor:
    """``1 - cos(x1, x2)`` along ``axis`` where the target is 1, ``max(0, cos(x1, x2) - margin)`` where it is -1.

    There is one loss for each pair of vectors; ``target`` has the shape of ``x1`` without ``axis``. The cosine of a
    zero vector is 0.

        >>> import backburn as bb
        >>> x, y = bb.asarray([[1.0, 0.0], [1.0, 0.0]]), bb.asarray([[2.0, 0.0], [0.0, 3.0]])
        >>> cosine_embedding_loss(x, y, bb.asarray([1, 1]), reduction="none").tolist()
        [0.0, 1.0]
    """
    name = "cosine_embedding_loss"
    (x1, x2), dtype = loss_operands(name, x1, x2)
    axis = axis_of(name, x1, axis)
    cosine = _cosine(x1, x2, axis, 1e-8)
    if tensor_operand(name, target).shape != cosine.shape:
        raise ShapeError(f"{name}: a target for each pair of vectors. Operands: {describe((x1, x2, target))}")
    losses = call("where", target > 0, 1.0 - cosine, call("relu", cosine - number(name, "margin", margin)))
    return reduced(name, losses, reduction, dtype)


def cosine_similarity(x1: Tensor, x2: Tensor, axis: int = -1, eps: float = 1e-8) -> FloatTensor:
    """The cosines of the angles between vectors along ``axis``: dot products divided by both norms.

    Norms below ``eps`` count as ``eps``, so that the cosine of a zero vector is 0. ``x1`` and ``x2`` broadcast; raises
    :class:`ShapeError` if they do not.

        >>> import backburn as bb
        >>> x, y = bb.asarray([[1.0, 0.0], [3.0, 4.0]]), bb.asarray([[0.0, 2.0], [3.0, 4.0]])
        >>> cosine_similarity(x, y).tolist()
        [0.0, 1.0]
    """
    name = "cosine_similarity"
    (x1, x2), dtype = wide_operands(name, x1, x2)
    x1, x2 = broadcast_arrays(x1, x2)
    axis = axis_of(name, x1, axis)
    return cast(_cosine(x1, x2, axis, number(name, "eps", eps)), dtype)


def _cosine(x: Any, y: Any, axis: int, eps: float) -> Any:
    one, other = (call("normalize", v, axis=(axis,), ord=2.0, eps=eps) for v in (x, y))
    return (one * other).sum(axis=axis)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    *,
    reduction: str = "mean",
) -> FloatTensor:
    """``max(0, |anchor - positive| - |anchor - negative| + margin)``, with norms of order ``p`` over the last axis.

    One loss for each triplet. ``eps`` is added to the differences, so that the norm of equal vectors has a gradient.
    With ``swap``, the distance of the negative is the smaller of those from anchor and positive. After Schroff,
    Kalenichenko and Philbin, FaceNet, 2015.

        >>> import backburn as bb
        >>> a, p, n = bb.asarray([[0.0]]), bb.asarray([[2.0]]), bb.asarray([[2.5]])
        >>> triplet_margin_loss(a, p, n).item()
        0.5
    """
    if has_wide_integers(anchor, positive, negative):
        return in_float64(
            lambda anchor, positive, negative: triplet_margin_loss(
                anchor, positive, negative, margin=margin, p=p, eps=eps, swap=swap, reduction=reduction
            ),
            anchor,
            positive,
            negative,
        )
    name = "triplet_margin_loss"
    (anchor, positive, negative), dtype = loss_operands(name, anchor, positive, negative)
    if not anchor.ndim:
        raise ShapeError(f"{name}: distances are over the last axis, and there is none: {describe((anchor,))}")

    order, shift = number(name, "p", p), number(name, "eps", eps)

    def distance(x: Any, y: Any) -> Any:
        return (x - y + shift).norm(axis=-1, ord=order)

    far = distance(anchor, negative)
    if swap:
        far = far.minimum(distance(positive, negative))
    losses = call("relu", distance(anchor, positive) - far + number(name, "margin", margin))
    return reduced(name, losses, reduction, dtype)


# ---- several classes ----


def multi_margin_loss(
    x: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    *,
    reduction: str = "mean",
) -> FloatTensor:
    """The mean over classes of ``max(0, margin - x[label] + x[other])**p`` for all other classes; ``p`` is 1 or 2.

    ``x`` is (..., classes) and ``target``, of integers, is (...). ``weight`` multiplies the loss of the examples of
    each class. Raises :class:`OutOfRangeError` for a label that is not a class. After Crammer and Singer (2001).

        >>> import backburn as bb
        >>> multi_margin_loss(bb.asarray([[0.5, 1.0, 0.0, -1.0]]), bb.asarray([1])).item()
        0.125
    """
    name = "multi_margin_loss"
    (x, weight), dtype = loss_operands(name, x, weights=(weight,))
    _check_labels(name, x, target, x.shape[:-1])
    one_of(name, "p", p, (1, 2))
    classes = x.shape[-1]
    if weight is not None and weight.shape != (classes,):
        raise ShapeError(f"{name}: a weight for each class. Operands: {describe((x, target, weight))}")
    try:
        own = -nll_loss(x, target, reduction="none")
    except OutOfRangeError as error:
        raise OutOfRangeError(f"{name}{str(error).removeprefix('nll_loss').partition('; ignore_index')[0]}") from error
    own_class = arange(classes, backend=x.backend) == target[..., None]
    short = call("relu", x - own[..., None] + number(name, "margin", margin))
    losses = call("where", own_class, 0.0, short if p == 1 else short * short).sum(-1) * (1.0 / classes)
    if weight is not None:
        losses = losses * weight.take(target)
    return reduced(name, losses, reduction, dtype)


def multilabel_margin_loss(x: Tensor, target: Tensor, *, reduction: str = "mean") -> FloatTensor:
    """``max(0, 1 - x[label] + x[other])``, summed over labels and other classes, divided by the number of classes.

    ``x`` and ``target``, integers, are (..., classes): an example's labels are those before the first -1. Raises
    :class:`OutOfRangeError` for a label that is not a class.

        >>> import backburn as bb
        >>> x, labels = bb.asarray([[0.0, 0.5, 0.25, 1.0]]), bb.asarray([[3, 0, -1, 1]])
        >>> multilabel_margin_loss(x, labels).item()
        0.875
    """
    name = "multilabel_margin_loss"
    (x,), dtype = loss_operands(name, x)
    _check_labels(name, x, target, x.shape)
    classes = x.shape[-1]
    present: Any = cast(target != -1, target.dtype).cumprod(-1) == 1
    # Labels below -1 must not count from the end.
    label_indices = call("where", present, call("where", target < 0, classes, target), 0)
    try:
        own = take_along_axis(x, label_indices, axis=-1)
    except OutOfRangeError as error:
        words = f"{name}: labels are from 0 to {classes - 1}, up to a -1 that ends them"
        raise OutOfRangeError(f"{words}. Operands: {describe((x, target))}") from error
    is_label: Any = present[..., None] & (label_indices[..., None] == arange(classes, backend=x.backend))
    counts = present[..., None] & ~is_label.any(-2)[..., None, :]
    short = call("relu", 1.0 - own[..., None] + x[..., None, :])
    losses = call("where", counts, short, 0.0).sum((-2, -1)) * (1.0 / classes)
    return reduced(name, losses, reduction, dtype)


def multilabel_soft_margin_loss(
    x: Tensor, target: Tensor, weight: Tensor | None = None, *, reduction: str = "mean"
) -> FloatTensor:
    """The mean over classes of ``target * softplus(-x) + (1 - target) * softplus(x)``, each times its ``weight``.

    ``x`` and ``target`` are (..., classes); every class has a separate target, 1 or 0. ``weight`` broadcasts.

        >>> import backburn as bb
        >>> multilabel_soft_margin_loss(bb.asarray([[1000.0, -1000.0]]), bb.asarray([[1, 1]])).item()
        500.0
    """
    name = "multilabel_soft_margin_loss"
    (x, target, weight), dtype = loss_operands(name, x, target, weights=(weight,))
    _check_classes(name, x)
    losses = target * call("softplus", -x) + (1.0 - target) * call("softplus", x)
    losses = losses if weight is None else losses * weight
    return reduced(name, losses.mean(-1), reduction, dtype)


def _check_classes(name: str, x: Any) -> None:
    if not x.ndim or not x.shape[-1]:
        raise ShapeError(f"{name}: classes are along the last axis, and there is none. Operands: {describe((x,))}")


def _check_labels(name: str, x: Any, target: Tensor, shape: tuple[int, ...]) -> None:
    """Raise unless the labels are integers of this shape."""
    _check_classes(name, x)
    if tensor_operand(name, target).dtype.kind != "int":
        raise DTypeError(f"{name}: labels are integers. Operands: {describe((x, target))}")
    if target.shape != shape:
        raise ShapeError(f"{name}: labels have the shape {list(shape)}. Operands: {describe((x, target))}")
