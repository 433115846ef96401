"""Samples: connectionist temporal classification."""

from __future__ import annotations

import itertools
import math

import numpy as np

from backburn.conformance.samples.table import Array, case, ints, real, samples


def alignments(steps: int, classes: int, target: list[int], blank: int) -> list[tuple[int, ...]]:
    """Every sequence of classes that reads as ``target``."""
    found = []
    for path in itertools.product(range(classes), repeat=steps):
        merged = [c for c, before in zip(path, (None, *path), strict=False) if c != before]
        if [c for c in merged if c != blank] == target:
            found.append(path)
    return found


def ctc(log_probs: Array, targets: Array, input_lengths: Array, target_lengths: Array, blank: int = 0) -> Array:
    """The reference of ``ctc``: all alignments, one by one."""
    losses = np.full(log_probs.shape[1], math.inf)
    for n, (steps, labels) in enumerate(zip(input_lengths, target_lengths, strict=True)):
        target = [int(c) for c in targets[n, :labels]]
        paths = alignments(int(steps), log_probs.shape[2], target, blank)
        if paths:
            losses[n] = -np.logaddexp.reduce([sum(log_probs[t, n, c] for t, c in enumerate(p)) for p in paths])
    return losses


def ctc_backward(
    grad: Array, log_probs: Array, targets: Array, input_lengths: Array, target_lengths: Array, blank: int = 0
) -> Array:
    """The reference of the gradient of ``ctc_loss``: each alignment's share for the classes that it emits."""
    losses = ctc(log_probs, targets, input_lengths, target_lengths, blank)
    out = np.zeros(log_probs.shape)
    for n, (steps, labels) in enumerate(zip(input_lengths, target_lengths, strict=True)):
        for path in alignments(int(steps), log_probs.shape[2], [int(c) for c in targets[n, :labels]], blank):
            share = np.exp(losses[n] + sum(log_probs[t, n, c] for t, c in enumerate(path)))
            for t, c in enumerate(path):
                out[t, n, c] -= grad[n] * share
    return out


PLAIN = (real(3, 2, 3), ints([1, 2], [2, 2]), ints(3, 3), ints(2, 2))
SHORT = (real(4, 2, 2), ints([1, 1], [1, 0]), ints(4, 2), ints(2, 1))
EMPTY = (real(2, 2, 3), ints([1], [-1]), ints(2, 0), ints(0, 0))
LAST = (real(3, 1, 3), ints([0]), ints(3), ints(1))
CROWDED = (real(2, 2, 2), ints([1, 1], [1, 1]), ints(2, 2), ints(2, 1))
NOBODY = (real(2, 0, 3), np.zeros((0, 2), np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
MASKED = (np.where(np.eye(3)[:, None] == 0, real(3, 1, 3), -math.inf), ints([1]), ints(3), ints(1))

samples(
    "ctc_loss",
    ctc,
    case(*PLAIN),
    case(*SHORT, note="lengths differ, and equal labels need a blank between them"),
    case(*EMPTY, note="nothing to read"),
    case(*LAST, blank=2),
    case(*CROWDED, smooth=0, note="there is no alignment"),
    case(*NOBODY),
    case(*MASKED, smooth=0, note="classes without probability"),
    case(50 * real(3, 1, 3), ints([2]), ints(3), ints(1), smooth=1, note="probabilities underflow"),
    tolerance=3.0,
    because="sums over steps of logarithms",
)
samples(
    "ctc_loss_backward",
    ctc_backward,
    case(real(2), *PLAIN),
    case(real(2), *SHORT),
    case(real(2), *EMPTY),
    case(real(1), *LAST, blank=2),
    case(real(2), *CROWDED, smooth=0),
    case(real(0), *NOBODY),
    case(real(1), *MASKED, smooth=0),
    tolerance=10.0,
    because="exponentials of sums over steps",
)
