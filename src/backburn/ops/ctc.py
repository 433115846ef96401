"""Connectionist temporal classification: the loss of a label sequence whose alignment with the time steps is unknown.

The sum over all alignments is computed in the logarithm, one time step after the other (Graves et al., Connectionist
temporal classification, 2006). ``ctc_loss_backward`` has no gradient rule: further derivatives follow
from its body.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from backburn.base.dtypes import int64
from backburn.base.errors import ArgumentError, ShapeError
from backburn.ops.bodies.half_precision import upcast_half
from backburn.ops.bodies.slicing import index_axis, slice_axis
from backburn.ops.primitives import Primitives
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.rules.tangents import reduction
from backburn.ops.table import operation
from backburn.ops.types import B, F, I, Q

Shape = tuple[int, ...]

#: Stands for the logarithm of 0: differences of it are not NaN, and sums over any number of steps do not overflow.
IMPOSSIBLE = -1e30


def ctc_shape(
    log_probs: Shape, targets: Shape, input_lengths: Shape, target_lengths: Shape, *, blank: int = 0
) -> Shape:
    """The shape of the losses."""
    if len(log_probs) != 3 or len(targets) != 2:
        raise ShapeError(
            f"log_probs (steps, examples, classes) and targets (examples, labels), not {list(log_probs)} and "
            f"{list(targets)}"
        )
    examples = log_probs[1]
    if not targets[:1] == input_lengths == target_lengths == (examples,):
        raise ShapeError(
            f"targets {list(targets)}, input_lengths {list(input_lengths)} and target_lengths {list(target_lengths)} "
            f"must be for the {examples} examples of log_probs"
        )
    if not 0 <= blank < log_probs[2]:
        raise ArgumentError(f"the blank is one of {log_probs[2]} classes, not {blank}")
    return (examples,)


class Lattice:
    """The labels with blanks between them, and the log-probability of each at each step."""

    def __init__(self, k: Any, log_probs: Any, targets: Any, target_lengths: Any, blank: int) -> None:
        self.k = k
        steps, examples, classes = log_probs.shape
        labels = targets.shape[1]
        number = k.reshape(k.arange(0, labels, 1, int64), (1, labels))
        used = k.less(number, k.reshape(target_lengths, (examples, 1)))
        named = k.where(k.less(targets, 0), classes, targets)  # labels are not counted from the end
        named = k.where(used, named, blank)
        blanks = k.full((examples, labels), blank, int64)
        pairs = k.reshape(k.stack([blanks, named], 2), (examples, 2 * labels))
        self.names = k.concat([pairs, k.full((examples, 1), blank, int64)], 1)
        self.length = 2 * labels + 1
        index = k.broadcast_to(k.reshape(self.names, (1, examples, self.length)), (steps, examples, self.length))
        emitted = k.take_along_axis(log_probs, index, 2)
        self.index, self.emitted = index, k.where(k.less(emitted, IMPOSSIBLE), IMPOSSIBLE, emitted)
        self.dtype = k.dtype(emitted)
        # A label may follow the one before it without a blank between them, unless they are equal.
        differs = k.not_equal(self.names, self.moved(self.names, 2, blank))
        self.skips = k.logical_and(differs, k.not_equal(self.names, blank))
        ends = k.reshape(k.mul(target_lengths, 2), (examples, 1))
        place = k.reshape(k.arange(0, self.length, 1, int64), (1, self.length))
        last = k.logical_and(k.equal(place, k.sub(ends, 1)), k.less(0, ends))
        self.ends = k.where(k.logical_or(k.equal(place, ends), last), self.full(0.0), IMPOSSIBLE)

    def full(self, value: float) -> Any:
        """``value`` for each position of each example."""
        return self.k.full(tuple(self.names.shape), value, self.dtype)

    def moved(self, x: Any, by: int, fill: Any) -> Any:
        """``x`` shifted ``by`` positions to the right, or to the left if negative."""
        k, (examples, length) = self.k, x.shape
        edge = k.full((examples, min(abs(by), length)), fill, k.dtype(x))
        if by > 0:
            return k.concat([edge, slice_axis(k, x, 1, 0, max(length - by, 0))], 1)
        return k.concat([slice_axis(k, x, 1, min(-by, length), length), edge], 1)

    def step(self, t: int) -> Any:
        """The log-probability of each position's label at step ``t``."""
        return index_axis(self.k, self.emitted, 0, t)

    def added(self, *terms: Any) -> Any:
        """The logarithm of the sum of exponentials."""
        return self.k.logsumexp(self.k.stack(terms, 0), (0,), False)

    def forward(self, input_lengths: Any) -> list[Any]:
        """After each step, the log-probability of all partial alignments that end at each position."""
        k, steps = self.k, self.emitted.shape[0]
        first = k.reshape(k.equal(k.arange(0, self.length, 1, int64), 0), (1, self.length))
        now = k.where(first, self.full(0.0), IMPOSSIBLE)  # before the first step, on the first blank
        found = []
        for t in range(steps):
            found.append(now)
            jumped = k.where(self.skips, self.moved(now, 2, IMPOSSIBLE), IMPOSSIBLE)
            after = k.add(self.added(now, self.moved(now, 1, IMPOSSIBLE), jumped), self.step(t))
            now = k.where(_is_active(k, t, input_lengths), after, now)
        return [*found[1:], now] if steps else [now]

    def backward(self, input_lengths: Any) -> list[Any]:
        """For each step, the log-probability of all paths from each position to the end."""
        k, steps = self.k, self.emitted.shape[0]
        now, found = self.ends, [self.ends]
        for t in range(steps - 1, 0, -1):
            ahead = k.add(now, self.step(t))
            jumped = self.moved(k.where(self.skips, ahead, IMPOSSIBLE), -2, IMPOSSIBLE)
            before = self.added(ahead, self.moved(ahead, -1, IMPOSSIBLE), jumped)
            now = k.where(_is_active(k, t, input_lengths), before, self.ends)
            found.append(now)
        return found[::-1]

    def total(self, last: Any) -> Any:
        """The log-probability of all alignments, for each example."""
        return self.k.logsumexp(self.k.add(last, self.ends), (1,), False)


def _check_lengths(k: Any, lengths: Any, most: int) -> Any:
    """``lengths``; a look-up raises for lengths below 0 or above ``most``."""
    checked = k.where(k.less(lengths, 0), most + 1, lengths)
    return k.take(k.arange(0, most + 1, 1, int64), checked, 0)


def _is_active(k: Any, t: int, input_lengths: Any) -> Any:
    """Whether step ``t`` belongs to each example."""
    return k.reshape(k.less(t, input_lengths), (input_lengths.shape[0], 1))


def lattice_loss(
    kind: type[Lattice], k: Any, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int
) -> Any:
    """The losses, computed by a class of lattices."""
    input_lengths = _check_lengths(k, input_lengths, log_probs.shape[0])
    target_lengths = _check_lengths(k, target_lengths, targets.shape[1])
    lattice = kind(k, upcast_half(k, log_probs), targets, target_lengths, blank)
    total = lattice.total(lattice.forward(input_lengths)[-1])
    loss = k.where(k.less(total, IMPOSSIBLE / 2), math.inf, k.neg(total))
    return k.astype(loss, k.dtype(log_probs))


def lattice_gradient(
    kind: type[Lattice], k: Any, grad: Any, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any,
    blank: int,
) -> Any:  # fmt: skip
    """The gradient of the losses, computed by a class of lattices."""
    shape, dtype = log_probs.shape, k.dtype(log_probs)
    input_lengths = _check_lengths(k, input_lengths, shape[0])
    target_lengths = _check_lengths(k, target_lengths, targets.shape[1])
    if 0 in shape:
        return k.zeros(shape, dtype)
    lattice = kind(k, upcast_half(k, log_probs), targets, target_lengths, blank)
    forward, backward = lattice.forward(input_lengths), lattice.backward(input_lengths)
    total = lattice.total(forward[-1])
    possible = k.less(IMPOSSIBLE / 2, total)
    total = k.reshape(k.where(possible, total, 0.0), (1, shape[1], 1))
    through = k.sub(k.add(k.stack(forward, 0), k.stack(backward, 0)), total)
    step = k.reshape(k.arange(0, shape[0], 1, int64), (shape[0], 1, 1))
    during = k.less(step, k.reshape(input_lengths, (1, shape[1], 1)))
    counts = k.logical_and(during, k.reshape(possible, (1, shape[1], 1)))
    shares = k.exp(k.where(counts, through, IMPOSSIBLE))
    factor = k.reshape(k.neg(upcast_half(k, grad)), (1, shape[1], 1))
    return k.astype(k.take_along_axis_backward(k.mul(shares, factor), lattice.index, shape, 2), dtype)


class CTC(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Connectionist temporal classification."""

    @operation(kinds="F", shape=ctc_shape, like=("log_probs",), differentiable=True)
    def ctc_loss(self: Any, log_probs: F, targets: I, input_lengths: I, target_lengths: I, /, blank: int = 0) -> F:
        """``-log(sum over alignments of the product of their probabilities)``, for each example.

        ``log_probs`` are log-probabilities (steps, examples, classes), and ``targets`` labels (examples, labels);
        ``input_lengths`` and ``target_lengths`` are the numbers of steps and labels of each example. An alignment gives
        each step a label or ``blank``; merging equal neighbours and then removing blanks gives the target. If there is
        no alignment, the loss is infinite and the gradient 0. Raises for lengths that are negative or exceed the
        operands, and for labels that are not a class.
        """
        ctc_shape(log_probs.shape, targets.shape, input_lengths.shape, target_lengths.shape, blank=blank)
        return lattice_loss(Lattice, self, log_probs, targets, input_lengths, target_lengths, blank)

    gradient_rule(
        ctc_loss,
        log_probs=lambda k, g, log_probs, targets, input_lengths, target_lengths, blank: k.ctc_loss_backward(
            g, log_probs, targets, input_lengths, target_lengths, blank
        ),
    )
    reduction(ctc_loss, axes=(0, 2))

    @operation(kinds="F", shape=lambda grad, x, *_, **__: x, like=("grad", "log_probs"), differentiable=True)
    def ctc_loss_backward(
        self: Any, grad: F, log_probs: F, targets: I, input_lengths: I, target_lengths: I, /, blank: int = 0
    ) -> F:
        """The gradient of :meth:`ctc_loss`: minus the probability that a step emits a class, times ``grad``."""
        return lattice_gradient(Lattice, self, grad, log_probs, targets, input_lengths, target_lengths, blank)
