"""Losses composed of other functions; :mod:`backburn.nn.functional.losses` has those that are operations.

Predictions and targets must have the same shape; they never broadcast. ``reduction`` is ``"mean"``, ``"sum"`` or
``"none"`` (a loss for each element, or for each example where the docstring says so). Raises :class:`ShapeError` and
:class:`ArgumentError` otherwise. 16-bit floats are computed in float32, and the result is cast back.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from backburn.base.dtypes import DType, float16
from backburn.base.errors import DTypeError, OutOfRangeError, ShapeError
from backburn.tensor.core.dispatch import call, cast, promote_operands, tensor_operand, upcast_half
from backburn.tensor.core.indices import as_int64
from backburn.tensor.core.integers import has_wide_integers, in_float64
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import bounded, integer, number, one_of

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, Tensor

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "ctc_loss", "gaussian_nll_loss", "huber_loss",
    "kl_div_loss", "poisson_nll_loss", "smooth_l1_loss",
]  # fmt: skip

#: Below this probability, the derivative of the logarithm stays constant. Its square is a finite float32; for
#: float16, the derivative itself is a finite float16.
STEEP, STEEP_HALF = 1e-12, 2.0**-14


def wide_operands(name: str, *given: Any, weights: tuple[Any, ...] = ()) -> tuple[list[Any], DType]:
    """The operands as float tensors of one dtype, 16-bit ones as float32, and the dtype of the result."""
    tensors = [tensor_operand(name, x) for x in (*given, *(w for w in weights if w is not None))]
    present = promote_operands(name, *tensors, kinds="F")
    dtype: DType = present[0].dtype
    values = map(upcast_half, present)
    return [*(next(values) for _ in given), *(None if w is None else next(values) for w in weights)], dtype


def loss_operands(name: str, *given: Any, weights: tuple[Any, ...] = ()) -> tuple[list[Any], DType]:
    """:func:`wide_operands`, which except for the weights must have one shape."""
    operands, dtype = wide_operands(name, *given, weights=weights)
    compared = operands[: len(given)]
    if len({x.shape for x in compared}) > 1:
        raise ShapeError(f"{name}: predictions and targets must have one shape. Operands: {describe(compared)}")
    return operands, dtype


def reduced(name: str, losses: Any, reduction: str, dtype: DType) -> Any:
    """The losses reduced by ``reduction``, in ``dtype``."""
    one_of(name, "the reduction", reduction, ("none", "mean", "sum"))
    if reduction != "none":
        losses = call(reduction, losses, axis=tuple(range(losses.ndim)), keepdims=False)
    return cast(losses, dtype)


# ---- distances ----


def huber_loss(x: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> FloatTensor:
    """``d**2 / 2`` for differences ``d`` up to ``delta``, else ``delta * (|d| - delta / 2)``. After Huber (1964).

    >>> import backburn as bb
    >>> huber_loss(bb.asarray([1.0, 5.0]), bb.asarray([0.0, 1.0]), reduction="none").tolist()
    [0.5, 3.5]
    """
    if has_wide_integers(x, target):
        return in_float64(huber_loss, x, target, reduction=reduction, delta=delta)
    name = "huber_loss"
    (x, target), dtype = loss_operands(name, x, target)
    losses = call("huber_loss", x, target, delta=bounded(name, "delta", delta, above=0))
    return reduced(name, losses, reduction, dtype)


def smooth_l1_loss(x: Tensor, target: Tensor, *, reduction: str = "mean", beta: float = 1.0) -> FloatTensor:
    """``d**2 / (2 * beta)`` for differences ``d`` up to ``beta``, else ``|d| - beta / 2``. After Girshick (2015).

    With a ``beta`` of 0 it is :func:`l1_loss`.

        >>> import backburn as bb
        >>> smooth_l1_loss(bb.asarray([1.0, 5.0]), bb.asarray([0.0, 1.0]), beta=2.0, reduction="none").tolist()
        [0.25, 3.0]
    """
    if has_wide_integers(x, target):
        return in_float64(smooth_l1_loss, x, target, reduction=reduction, beta=beta)
    name = "smooth_l1_loss"
    (x, target), dtype = loss_operands(name, x, target)
    beta = bounded(name, "beta", beta, least=0)
    if beta == 0:
        return reduced(name, call("abs", x - target), reduction, dtype)
    losses = call("huber_loss", x, target, delta=beta)
    return reduced(name, losses if beta == 1 else losses * (1.0 / beta), reduction, dtype)


# ---- likelihoods ----


def binary_cross_entropy(
    x: Tensor, target: Tensor, weight: Tensor | None = None, *, reduction: str = "mean"
) -> FloatTensor:
    """``-target * log(x) - (1 - target) * log(1 - x)`` of probabilities, times ``weight``.

    Logarithms are at least -100, and their derivatives 1e12 at most (16384 in float16), so that a saturated wrong
    prediction has the loss 100 and a finite, nonzero gradient. The loss is NaN where ``x`` is not between 0 and 1.
    :func:`binary_cross_entropy_with_logits` has no such limits.

        >>> import backburn as bb
        >>> losses = binary_cross_entropy(bb.asarray([0.5, 1.0]), bb.asarray([1.0, 1.0]), reduction="none")
        >>> losses.numpy().round(2).tolist()
        [0.6899999976158142, 0.0]
    """
    name = "binary_cross_entropy"
    (x, target, weight), dtype = loss_operands(name, x, target, weights=(weight,))
    losses = call("binary_cross_entropy", x, target, steep=STEEP_HALF if dtype is float16 else STEEP)
    return reduced(name, losses if weight is None else losses * weight, reduction, dtype)


def binary_cross_entropy_with_logits(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> FloatTensor:
    """:func:`binary_cross_entropy` of ``sigmoid(x)``, without overflow or cancellation.

    ``(1 - target) * softplus(x) + pos_weight * target * softplus(-x)``, times ``weight``. Both weights broadcast.

        >>> import backburn as bb
        >>> logits = bb.asarray([0.0, 1000.0, -1000.0])
        >>> losses = binary_cross_entropy_with_logits(logits, bb.asarray([1.0, 1.0, 1.0]), reduction="none")
        >>> losses.numpy().round(2).tolist()
        [0.6899999976158142, 0.0, 1000.0]
    """
    name = "binary_cross_entropy_with_logits"
    (x, target, weight, pos_weight), dtype = loss_operands(name, x, target, weights=(weight, pos_weight))
    positive = target if pos_weight is None else target * pos_weight
    losses = call("binary_cross_entropy_with_logits", x, target, positive)
    return reduced(name, losses if weight is None else losses * weight, reduction, dtype)


def kl_div_loss(x: Tensor, target: Tensor, *, reduction: str = "mean", log_target: bool = False) -> FloatTensor:
    """The Kullback-Leibler divergence ``target * (log(target) - x)``, for log-probabilities ``x``.

    With ``log_target`` the targets are log-probabilities too. A target of 0 contributes 0. ``reduction="batchmean"``
    divides the sum by the length of the first axis. After Kullback and Leibler (1951).

        >>> import backburn as bb
        >>> x, targets = bb.asarray([[0.5, 0.5]]).log(), bb.asarray([[1.0, 0.0]])
        >>> kl_div_loss(x, targets, reduction="sum").numpy().round(2).item()
        0.6899999976158142
    """
    name = "kl_div_loss"
    (x, target), dtype = loss_operands(name, x, target)
    probability: Any
    logarithm: Any
    if log_target:
        probability, logarithm = target.exp(), target
    else:
        probability, logarithm = target, call("where", target == 0, 1.0, target).log()
    zero = probability == 0
    losses = call("where", zero, 0.0, probability * call("where", zero, 0.0, logarithm - x))
    if one_of(name, "the reduction", reduction, ("none", "mean", "sum", "batchmean")) == "batchmean":
        if not x.ndim:
            raise ShapeError(f"{name}: batchmean divides by the length of the first axis: {describe((x,))}")
        return cast(losses.sum() * (1.0 / max(1, x.shape[0])), dtype)
    return reduced(name, losses, reduction, dtype)


def poisson_nll_loss(
    x: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    *,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> FloatTensor:
    """``exp(x) - target * x``: the negative log-likelihood of Poisson counts whose mean has the logarithm ``x``.

    Without ``log_input``, ``x`` is the mean itself: ``x - target * log(x + eps)``. ``full`` adds the logarithm of the
    factorial by Stirling's formula for targets above 1.

        >>> import backburn as bb
        >>> poisson_nll_loss(bb.asarray([0.0]), bb.asarray([2.0])).item()
        1.0
    """
    if has_wide_integers(x, target):
        return in_float64(
            lambda x, target: poisson_nll_loss(x, target, log_input=log_input, full=full, eps=eps, reduction=reduction),
            x,
            target,
        )
    name = "poisson_nll_loss"
    (x, target), dtype = loss_operands(name, x, target)
    losses = x.exp() - target * x if log_input else x - target * (x + number(name, "eps", eps)).log()
    if full:
        large = target > 1
        count = call("where", large, target, 1.0)
        stirling = count * count.log() - count + (count * (2 * math.pi)).log() * 0.5
        losses = losses + call("where", large, stirling, 0.0)
    return reduced(name, losses, reduction, dtype)


def gaussian_nll_loss(
    x: Tensor,
    target: Tensor,
    var: Tensor,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> FloatTensor:
    """``(log(var) + (x - target)**2 / var) / 2``; ``full`` adds the constant ``log(2 pi) / 2``.

    The variance ``var`` has the shape of ``x``, is 0-d, or has length 1 along shared axes. It is clamped to at least
    ``eps``, with gradient 0 below. After Nix and Weigend (1994).

        >>> import backburn as bb
        >>> gaussian_nll_loss(bb.asarray([1.0]), bb.asarray([3.0]), bb.asarray([1.0])).item()
        2.0
    """
    if has_wide_integers(x, target, var):
        return in_float64(
            lambda x, target, var: gaussian_nll_loss(x, target, var, full=full, eps=eps, reduction=reduction),
            x,
            target,
            var,
        )
    name = "gaussian_nll_loss"
    (x, target, var), dtype = loss_operands(name, x, target, weights=(tensor_operand(name, var),))
    shared = [1 if m == 1 else n for m, n in zip(var.shape, x.shape, strict=False)]
    if var.ndim and (var.ndim != x.ndim or var.shape != tuple(shared)):
        raise ShapeError(
            f"{name}: the variance has the shape of the predictions, or length 1 where it is shared. "
            f"Operands: {describe((x, target, var))}"
        )
    limit = bounded(name, "eps", eps, above=0)
    var = call("where", var > limit, var, limit)
    losses = (var.log() + (x - target).square() / var) * 0.5
    if full:
        losses = losses + 0.5 * math.log(2 * math.pi)
    return reduced(name, losses, reduction, dtype)


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> FloatTensor:
    """The negative log-probability of a label sequence, summed over all its alignments with the time steps.

    ``log_probs`` (steps, examples, classes) are logarithms of probabilities, ``targets`` (examples, labels) integers,
    padded to a common length. An alignment gives each step a label or ``blank``; merging equal neighbours and then
    removing blanks gives the target. One loss for each example; the mean is over losses divided by their number of
    labels. If there is no alignment, the loss is infinite, or 0 with ``zero_infinity``, and the gradient is 0. Raises
    :class:`OutOfRangeError` for labels that are not a class and for invalid lengths. After Graves et al., Connectionist
    temporal classification, 2006.

        >>> import backburn as bb
        >>> log_probs = bb.full((2, 1, 2), 0.5).log()
        >>> lengths = bb.asarray([2]), bb.asarray([1])
        >>> ctc_loss(log_probs, bb.asarray([[1]]), *lengths, reduction="none").exp().numpy().round(2).tolist()
        [1.3300000429153442]
    """
    name = "ctc_loss"
    integers = [tensor_operand(name, t) for t in (targets, input_lengths, target_lengths)]
    if any(t.dtype.kind != "int" for t in integers):
        raise DTypeError(f"{name}: targets and lengths are integers. Operands: {describe((log_probs, *integers))}")
    targets, input_lengths, target_lengths = map(as_int64, integers)
    (log_probs,), dtype = loss_operands(name, log_probs)
    try:
        losses = call(
            "ctc_loss", log_probs, targets, input_lengths, target_lengths, blank=integer(name, "blank", blank)
        )
    except OutOfRangeError as cause:
        (steps, _, classes), labels = log_probs.shape, targets.shape[1]
        raise OutOfRangeError(
            f"{name}: input lengths are from 0 to {steps}, target lengths from 0 to {labels}, and labels from 0 to "
            f"{classes - 1}; here one is not. Operands: {describe((log_probs, *integers))}"
        ) from cause
    if zero_infinity:
        losses = call("where", losses == math.inf, 0.0, losses)
    if one_of(name, "the reduction", reduction, ("none", "mean", "sum")) == "mean":
        losses = losses / cast(target_lengths.maximum(1), losses.dtype)
    return reduced(name, losses, reduction, dtype)
