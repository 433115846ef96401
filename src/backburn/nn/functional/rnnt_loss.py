"""Tensor functions: the loss of a transducer, whose alignments are paths through a lattice of steps and labels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from backburn.base.errors import ArgumentError, DTypeError, OutOfRangeError, ShapeError
from backburn.nn.functional.composed_losses import loss_operands, reduced
from backburn.tensor.core.dispatch import call, tensor_operand
from backburn.tensor.core.indices import as_int64, counted_from_zero
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import integer
from backburn.tensor.creation import arange, full
from backburn.tensor.elementwise import logaddexp
from backburn.tensor.index import gather_nd, take_along_axis
from backburn.tensor.rearrange import pad
from backburn.tensor.shape import concat, permute_dims, stack, unstack

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, Tensor

__all__ = ["rnnt_loss"]


def rnnt_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    *,
    blank: int = 0,
    reduction: str = "mean",
) -> FloatTensor:
    """The negative log-probability of a label sequence by a transducer, summed over all its alignments.

    ``log_probs`` (examples, steps, labels + 1, classes) are log-probabilities of what follows at a step after that many
    labels: a label, or ``blank``, which moves to the next step. ``targets`` (examples, labels) are integers, padded to
    a common length. An alignment ends with the blank at the last step, after all labels. One loss for each example.
    Raises :class:`OutOfRangeError` for labels that are not a class and for invalid lengths, :class:`ShapeError` where
    shapes do not fit. After Graves, Sequence transduction with recurrent neural networks, 2012.

        >>> import backburn as bb
        >>> log_probs = bb.full((1, 2, 2, 2), 0.5).log()
        >>> lengths = bb.asarray([2]), bb.asarray([1])
        >>> rnnt_loss(log_probs, bb.asarray([[1]]), *lengths).exp().numpy().round(4).tolist()
        4.0
    """
    name = "rnnt_loss"
    integers = [tensor_operand(name, t) for t in (targets, input_lengths, target_lengths)]
    if any(t.dtype.kind != "int" for t in integers):
        raise DTypeError(f"{name}: targets and lengths are integers. Operands: {describe((log_probs, *integers))}")
    (x,), dtype = loss_operands(name, log_probs)
    labels, inputs, outputs = counted_from_zero(integers[0]), *map(as_int64, integers[1:])
    fits = x.ndim == 4 and labels.shape == (x.shape[0], x.shape[2] - 1) and inputs.shape == outputs.shape == x.shape[:1]
    if not fits or not x.shape[1]:
        raise ShapeError(
            f"{name}: log_probs are (examples, steps, labels + 1, classes), with at least one step, targets (examples, "
            f"labels), and lengths (examples,). Operands: {describe((log_probs, *integers))}"
        )
    n, steps, places, classes = x.shape
    if not 0 <= integer(name, "blank", blank) < classes:
        raise ArgumentError(f"{name}: the blank is one of {classes} classes, not {blank}. {describe((log_probs,))}")
    # A length out of range raises: its index does not exist.
    step = call("where", inputs < 1, steps, inputs - 1)
    place = call("where", outputs < 0, places, outputs)
    example = arange(n, backend=x.backend)
    try:
        blanks: Any = x[..., blank]
        moves = take_along_axis(x[:, :, :-1], labels.reshape((n, 1, places - 1, 1)), axis=3)[..., 0]
        ends = gather_nd(blanks, stack([example, step, place], axis=1))
    except OutOfRangeError as cause:
        raise OutOfRangeError(
            f"{name}: input lengths are from 1 to {steps}, target lengths from 0 to {places - 1}, and labels from 0 to "
            f"{classes - 1}; here one is not. Operands: {describe((log_probs, *integers))}"
        ) from cause
    first, outside = (full((n, 1), number, dtype=x.dtype, backend=x.backend) for number in (0.0, -math.inf))
    reached: list[Any] = [pad(first, ((0, 0), (0, places - 1)), value=-math.inf)]
    for stay, move in zip(_diagonals(blanks, places)[:-1], _diagonals(moves, places), strict=False):
        last = reached[-1]
        reached.append(logaddexp(last + stay, concat([outside, (last + move)[:, :-1]], axis=1)))
    before = gather_nd(stack(reached), stack([step + place, example, place], axis=1))
    return reduced(name, -(before + ends), reduction, dtype)


def _diagonals(x: Any, places: int) -> tuple[Any, ...]:
    """Antidiagonals (examples, places): the entries of equal step + place, minus infinity where there is none.

    The loss computes all entries of one at once. Reshaping the padded rows to a length one shorter shifts each by one
    more.
    """
    n, steps, width = x.shape
    rows = pad(permute_dims(x, (0, 2, 1)), ((0, 0), (0, places - width), (0, places)), value=-math.inf)
    length = steps + places - 1
    flat = rows.reshape((n, places * (length + 1)))[:, : places * length]
    return unstack(flat.reshape((n, places, length)), axis=2)
