"""Gradient rules: connectionist temporal classification."""

from __future__ import annotations

from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import reduction

gradient(
    "ctc",
    log_probs=lambda k, g, log_probs, targets, input_lengths, target_lengths, blank: k.ctc_backward(
        g, log_probs, targets, input_lengths, target_lengths, blank
    ),
)

reduction("ctc", axes=(0, 2))
