"""Tensor functions: losses of several classes by margins, as compositions; see :mod:`backburn.tensor.criteria`.

Classes are along the last axis, and there is one loss for each example.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backburn.base.errors import DTypeError, OutOfRangeError, ShapeError
from backburn.tensor.create import arange
from backburn.tensor.criteria import _operands, _reduce, _relu, _same_shape
from backburn.tensor.dispatch import call, cast, tensor_operand
from backburn.tensor.index import take_along_axis
from backburn.tensor.loss import nll_loss
from backburn.tensor.messages import describe
from backburn.tensor.options import number, one_of

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, Tensor

__all__ = ["multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss"]


def multi_margin_loss(
    x: Tensor,
    labels: Tensor,
    weight: Tensor | None = None,
    *,
    ord: int = 1,
    margin: float = 1.0,
    reduction: str = "mean",
) -> FloatTensor:
    """The mean over classes of ``max(0, margin - x[label] + x[other])**ord`` for all others, ``ord`` being 1 or 2.

    ``x`` is (..., classes) and ``labels``, integers, are (...). ``weight`` multiplies the loss of the examples of each
    class. Raises :class:`OutOfRangeError` for a label that is no class. After Crammer and Singer (2001).

        >>> import backburn as bb
        >>> multi_margin_loss(bb.asarray([[0.5, 1.0, 0.0, -1.0]]), bb.asarray([1])).item()
        0.125
    """
    name = "multi_margin_loss"
    (x, weight), dtype = _operands(name, x, weights=(weight,))
    _check_labels(name, x, labels, x.shape[:-1])
    one_of(name, "ord", ord, (1, 2))
    classes = x.shape[-1]
    if weight is not None and weight.shape != (classes,):
        raise ShapeError(f"{name}: a weight for each class. Operands: {describe((x, labels, weight))}")
    try:
        own = -nll_loss(x, labels, reduction="none")
    except OutOfRangeError as error:
        raise OutOfRangeError(f"{name}{str(error).removeprefix('nll_loss').partition('; ignore_index')[0]}") from error
    own_class = arange(classes, backend=x.backend) == labels[..., None]
    short = _relu(x - own[..., None] + number(name, "margin", margin))
    losses = call("where", own_class, 0.0, short if ord == 1 else short * short).sum(-1) * (1.0 / classes)
    if weight is not None:
        losses = losses * weight.take(labels)
    return _reduce(name, losses, reduction, dtype)


def multilabel_margin_loss(x: Tensor, labels: Tensor, *, reduction: str = "mean") -> FloatTensor:
    """The sum of ``max(0, 1 - x[label] + x[other])`` over labels and classes that are none, over the number of classes.

    ``x`` and ``labels``, integers, are (..., classes): an example's labels are those before the first -1. Raises
    :class:`OutOfRangeError` for one of them that is no class.

        >>> import backburn as bb
        >>> x, labels = bb.asarray([[0.0, 0.5, 0.25, 1.0]]), bb.asarray([[3, 0, -1, 1]])
        >>> multilabel_margin_loss(x, labels).item()
        0.875
    """
    name = "multilabel_margin_loss"
    (x,), dtype = _operands(name, x)
    _check_labels(name, x, labels, x.shape)
    classes = x.shape[-1]
    present: Any = cast(labels != -1, labels.dtype).cumprod(-1) == 1
    # A label below -1 must not be counted from the end.
    wanted = call("where", present, call("where", labels < 0, classes, labels), 0)
    try:
        own = take_along_axis(x, wanted, axis=-1)
    except OutOfRangeError as error:
        words = f"{name}: labels are from 0 to {classes - 1}, up to a -1 that ends them"
        raise OutOfRangeError(f"{words}. Operands: {describe((x, labels))}") from error
    is_label: Any = present[..., None] & (wanted[..., None] == arange(classes, backend=x.backend))
    counts = present[..., None] & ~is_label.any(-2)[..., None, :]
    short = _relu(1.0 - own[..., None] + x[..., None, :])
    losses = call("where", counts, short, 0.0).sum((-2, -1)) * (1.0 / classes)
    return _reduce(name, losses, reduction, dtype)


def multilabel_soft_margin_loss(
    x: Tensor, targets: Tensor, weight: Tensor | None = None, *, reduction: str = "mean"
) -> FloatTensor:
    """The mean over classes of ``target * softplus(-x) + (1 - target) * softplus(x)``, each times its ``weight``.

    ``x`` and ``targets`` are (..., classes); every class is there (1) or not (0) on its own. ``weight`` broadcasts.

        >>> import backburn as bb
        >>> multilabel_soft_margin_loss(bb.asarray([[1000.0, -1000.0]]), bb.asarray([[1, 1]])).item()
        500.0
    """
    name = "multilabel_soft_margin_loss"
    (x, targets, weight), dtype = _operands(name, x, targets, weights=(weight,))
    _same_shape(name, x, targets)
    _check_classes(name, x)
    losses = targets * call("softplus", -x) + (1.0 - targets) * call("softplus", x)
    losses = losses if weight is None else losses * weight
    return _reduce(name, losses.mean(-1), reduction, dtype)


def _check_classes(name: str, x: Any) -> None:
    if not x.ndim or not x.shape[-1]:
        raise ShapeError(f"{name}: classes are along the last axis, and there is none. Operands: {describe((x,))}")


def _check_labels(name: str, x: Any, labels: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse what are no integers of this shape."""
    _check_classes(name, x)
    if tensor_operand(name, labels).dtype.kind != "int":
        raise DTypeError(f"{name}: labels are integers. Operands: {describe((x, labels))}")
    if labels.shape != shape:
        raise ShapeError(f"{name}: labels have the shape {list(shape)}. Operands: {describe((x, labels))}")
