"""NumPy: connectionist temporal classification. With compiled kernels, all steps of an example are one call."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn.backend.alignment import IMPOSSIBLE, Lattice, ctc_shape, gradient_of, loss_of
from backburn_numpy import compiled
from backburn_numpy.blocks import WORTH
from backburn_numpy.derived import backend
from backburn_numpy.memory import empty
from backburn_numpy.threads import for_parts

Array = Any


def ctc(log_probs: Array, targets: Array, input_lengths: Array, target_lengths: Array, /, blank: int = 0) -> Array:
    ctc_shape(log_probs.shape, targets.shape, input_lengths.shape, target_lengths.shape, blank=blank)
    return loss_of(_Lattice, backend(), log_probs, targets, input_lengths, target_lengths, blank)


def ctc_backward(
    grad: Array, log_probs: Array, targets: Array, input_lengths: Array, target_lengths: Array, /, blank: int = 0
) -> Array:
    return gradient_of(_Lattice, backend(), grad, log_probs, targets, input_lengths, target_lengths, blank)


class _Lattice(Lattice):
    """One whose recurrences are kernels."""

    def forward(self, input_lengths: Array) -> list[Array]:
        found = self._over_steps("align", input_lengths)
        return super().forward(input_lengths) if found is None else list(found)

    def backward(self, input_lengths: Array) -> list[Array]:
        found = self._over_steps("align_backward", input_lengths, self.ends)
        return super().backward(input_lengths) if found is None else list(found)

    def _over_steps(self, name: str, input_lengths: Array, *operands: Array) -> Array | None:
        kernel = compiled.serving(name, self.emitted) if self.emitted.size else None
        if kernel is None:
            return None
        steps, examples, places = self.emitted.shape
        out = empty(self.emitted.shape, self.emitted.dtype)
        skips = np.where(self.skips, np.float32(0.0), np.float32(IMPOSSIBLE))
        arrays = [np.ascontiguousarray(a) for a in (self.emitted, skips, *operands, input_lengths)]

        def part(first: int, last: int) -> None:
            memory = np.empty(2 * (places + 2), np.float32)
            kernel(*compiled.addresses(out, *arrays, memory), steps, examples, places, first, last)

        for_parts(part, examples, max(1, WORTH // (steps * places)))
        return out
