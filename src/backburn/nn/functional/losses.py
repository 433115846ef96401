"""Tensor functions: losses.

``reduction`` is ``"mean"``, ``"sum"`` or ``"none"`` (a loss for each example). Predictions and targets must have the
same shape; they never broadcast, since (n, 1) against (n,) is a mistake that would go unnoticed. Raises
:class:`ShapeError` if they differ, and :class:`ArgumentError` for an unknown ``reduction``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backburn.base.contexts import MEANS
from backburn.base.dtypes import float32
from backburn.base.errors import BackburnError, DTypeError, OutOfRangeError
from backburn.tensor.core.dispatch import (
    call,
    cast,
    float_operand,
    promote_operands,
    promote_present,
    tensor_operand,
    upcast_half,
)
from backburn.tensor.core.indices import as_int64
from backburn.tensor.core.integers import has_wide_integers, in_float64
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import axis_of, integer, number

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, Tensor

__all__ = ["cross_entropy", "l1_loss", "mse_loss", "nll_loss"]

# ---- distances ----


def mse_loss(x: Tensor, target: Tensor, *, reduction: str = "mean") -> FloatTensor:
    """The squared difference of predictions and targets.

    >>> import backburn as bb
    >>> mse_loss(bb.asarray([1.0, 2.0]), bb.asarray([1.0, 4.0])).item()
    2.0
    """
    if has_wide_integers(x, target):
        return in_float64(mse_loss, x, target, reduction=reduction)
    operands = promote_operands("mse_loss", tensor_operand("mse_loss", x), tensor_operand("mse_loss", target))
    return call("mse_loss", *operands, reduction=reduction)


def l1_loss(x: Tensor, target: Tensor, *, reduction: str = "mean") -> FloatTensor:
    """The absolute difference of predictions and targets; where it is 0, so is the derivative.

    >>> import backburn as bb
    >>> l1_loss(bb.asarray([1.0, 2.0]), bb.asarray([1.0, 4.0]), reduction="none").tolist()
    [0.0, 2.0]
    """
    if has_wide_integers(x, target):
        return in_float64(l1_loss, x, target, reduction=reduction)
    operands = promote_operands("l1_loss", tensor_operand("l1_loss", x), tensor_operand("l1_loss", target))
    return call("l1_loss", *operands, reduction=reduction)


# ---- classes ----


def cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> FloatTensor:
    """The cross entropy of the targets and ``softmax(x)``, whose classes are along ``axis``.

    An integer ``target``, of the shape of ``x`` without ``axis``, names the class of each example; a float one, of the
    shape of ``x``, gives every class a probability. ``weight`` multiplies the term of each class. ``label_smoothing``,
    from 0 to 1, mixes that much of the uniform distribution into the targets. Examples labelled ``ignore_index`` are
    ignored. The mean over labels is weighted by ``weight``, the mean over probabilities divides by the number of
    examples. Raises :class:`OutOfRangeError` for a label outside 0 to classes - 1.

        >>> import backburn as bb
        >>> logits = bb.asarray([[0.0, 0.0], [1000.0, 0.0]])
        >>> cross_entropy(logits, bb.asarray([1, 0]), reduction="none").numpy().round(2).tolist()
        [0.6899999976158142, 0.0]
        >>> cross_entropy(logits, bb.asarray([[0.0, 1.0], [0.5, 0.5]]), reduction="none").numpy().round(2).tolist()
        [0.6899999976158142, 500.0]
    """
    name = "cross_entropy"
    target = tensor_operand(name, target)
    classes = axis_of(name, tensor_operand(name, x), axis)
    if target.dtype.kind in ("float", "quantized"):
        x, target, weight = promote_present(name, x, target, weight)
    else:
        x, target, weight = _label_operands(name, x, target, weight)
    smoothing = number(name, "label_smoothing", label_smoothing)
    ignored = _label(name, ignore_index)
    options = {"axis": classes, "reduction": reduction, "label_smoothing": smoothing, "ignore_index": ignored}
    try:
        loss = call(name, x, target, weight, **options)
    except OutOfRangeError as error:
        raise _index_error(name, error, x, target, classes, ignored) from error
    if reduction == "mean" and (means := MEANS.get()) is not None:
        means.append((loss, lambda: _weight_of_mean(x, target, weight, ignored, classes)))
    return loss


def nll_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    axis: int = -1,
) -> FloatTensor:
    """The negative log-probability in ``x`` of each label's class along ``axis``.

    ``weight``, ``ignore_index`` and the mean are those of :func:`cross_entropy`, which applies this loss to
    :func:`log_softmax`.

        >>> import backburn as bb
        >>> nll_loss(bb.asarray([[-1.0, -2.0], [-3.0, -4.0]]), bb.asarray([0, 1])).item()
        2.5
    """
    classes = axis_of("nll_loss", tensor_operand("nll_loss", x), axis)
    operands = _label_operands("nll_loss", x, tensor_operand("nll_loss", target), weight)
    ignored = _label("nll_loss", ignore_index)
    try:
        loss = call("nll_loss", *operands, axis=classes, reduction=reduction, ignore_index=ignored)
    except OutOfRangeError as error:
        raise _index_error("nll_loss", error, *operands[:2], classes, ignored) from error
    if reduction == "mean" and (means := MEANS.get()) is not None:
        means.append((loss, lambda: _weight_of_mean(*operands, ignored, classes)))
    return loss


def _weight_of_mean(x: Any, target: Any, weight: Any, ignored: int | None, axis: int) -> Any:
    """The divisor of the mean over labels or probabilities: a number if the shapes give it, else a 0-d tensor."""
    if target.dtype.kind != "int":
        return x.size // max(x.shape[axis], 1)
    if ignored is None and weight is None:
        return target.size
    kept = None if ignored is None else target != ignored
    if weight is None:
        return cast(call("count_nonzero", kept, axis=None, keepdims=False), float32)
    labels = target if kept is None else call("where", kept, target, 0)
    weights = call("take", upcast_half(weight.detach()), labels, axis=0)
    return (weights if kept is None else call("where", kept, weights, 0.0)).sum()


def _label(name: str, ignore_index: int | None) -> int | None:
    return None if ignore_index is None else integer(name, "ignore_index", ignore_index)


def _index_error(
    name: str, error: OutOfRangeError, x: Any, target: Any, axis: int, ignored: int | None
) -> OutOfRangeError:
    """A backend's ``error`` with the label instead of the index; unchanged for labels in a batch of ``vmap``."""
    count = x.shape[axis]
    try:
        found = [int(label.item()) for label in (target.min(), target.max())]
    except BackburnError:
        return error
    wrong = next((label for label in found if label != ignored and not 0 <= label < count), None)
    if wrong is None:
        return error
    hint = f"; ignore_index={wrong} leaves its examples out" if wrong < 0 else ""
    operands = describe((x, target))
    return OutOfRangeError(f"{name}: the label {wrong} is none of the {count} classes{hint}. Operands: {operands}")


def _label_operands(name: str, x: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Any, Any, Any]:
    """Predictions and weights in one float dtype, and labels in int64."""
    if target.dtype.kind != "int":
        raise DTypeError(
            f"{name}: labels are integers, and probabilities are floats; cast them with astype(...). "
            f"Operands: {describe((x, target))}"
        )
    x = float_operand(name, x)
    if weight is not None:
        x, weight = promote_present(name, x, weight)
    return x, as_int64(target), weight
