"""The record tape over tensors."""

from __future__ import annotations

from typing import Any

from backburn.autodiff import tape
from backburn.tape import values


class GradientTape(tape.GradientTape):
    """:class:`backburn.autodiff.tape.GradientTape` whose values and gradients are tensors."""

    def value(self, slot: int) -> Any:
        """The value of a slot as a tensor."""
        return values.tensors(super().value(slot), self.backend)

    def backward(self, loss_grad: Any, tensors: list[Any] | None = None, *, output: int | None = None) -> list[Any]:
        """A gradient for every slot, as tensors, or added to the caller's buffers.

        >>> import backburn as bb
        >>> tape = GradientTape()
        >>> x = tape.input([3.0])
        >>> y = tape.record_mul(x, x)
        >>> buffers = [bb.asarray([10.0], backend="numpy"), bb.asarray([0.0], backend="numpy")]
        >>> tape.backward([1.0], buffers)[x]
        Tensor([16.], dtype=float32, backend=numpy)
        """
        found = super().backward(loss_grad, tensors, output=output)
        return values.tensors(found, self.backend) if tensors is None else found
