"""NumPy: connectionist temporal classification. With compiled kernels, all steps of an example are one call."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn.ops.bodies.shapes import check_same_shape
from backburn.ops.ctc import IMPOSSIBLE, Lattice, ctc_shape, lattice_gradient, lattice_loss
from backburn_numpy import compiled
from backburn_numpy.implements import implements
from backburn_numpy.runtime.memory import empty
from backburn_numpy.runtime.threads import parallel_for

Array = Any


@implements("ctc_loss", takes_backend=True)
def ctc_loss(
    k: Any, log_probs: Array, targets: Array, input_lengths: Array, target_lengths: Array, /, blank: int = 0
) -> Array:
    ctc_shape(log_probs.shape, targets.shape, input_lengths.shape, target_lengths.shape, blank=blank)
    return lattice_loss(_Lattice, k, log_probs, targets, input_lengths, target_lengths, blank)


@implements("ctc_loss_backward", takes_backend=True)
def ctc_loss_backward(
    k: Any,
    grad: Array,
    log_probs: Array,
    targets: Array,
    input_lengths: Array,
    target_lengths: Array,
    /,
    blank: int = 0,
) -> Array:
    ctc_shape(log_probs.shape, targets.shape, input_lengths.shape, target_lengths.shape, blank=blank)
    check_same_shape("ctc_loss_backward", input_lengths, grad)
    return lattice_gradient(_Lattice, k, grad, log_probs, targets, input_lengths, target_lengths, blank)


class _Lattice(Lattice):
    """A lattice whose recurrences are kernels."""

    def forward(self, input_lengths: Array) -> list[Array]:
        found = self._run_kernel("align", input_lengths)
        return super().forward(input_lengths) if found is None else list(found)

    def backward(self, input_lengths: Array) -> list[Array]:
        found = self._run_kernel("align_backward", input_lengths, self.ends)
        return super().backward(input_lengths) if found is None else list(found)

    def _run_kernel(self, name: str, input_lengths: Array, *operands: Array) -> Array | None:
        kernel = compiled.serving(name, self.emitted) if self.emitted.size else None
        if kernel is None:
            return None
        steps, examples, places = self.emitted.shape
        out = empty(self.emitted.shape, self.emitted.dtype)
        skips = np.where(self.skips, np.float32(0.0), np.float32(IMPOSSIBLE))
        arrays = [np.ascontiguousarray(a) for a in (self.emitted, skips, *operands)]
        arrays.append(np.ascontiguousarray(input_lengths, np.int64))

        def part(first: int, last: int) -> None:
            memory = np.empty(2 * (places + 2), np.float32)
            kernel(*compiled.addresses(out, *arrays, memory), steps, examples, places, first, last)

        parallel_for(part, examples, each=steps * places)
        return out
