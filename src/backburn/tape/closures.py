"""The tape of closures over tensors.

>>> import backburn as bb
>>> from backburn.tape.closures import GradientTape
>>> x = bb.asarray([1.0, 2.0])
>>> tape = GradientTape()
>>> y = tape.record("mul", x, x)
>>> tape.add_backward_op(lambda gradients: gradients.mut_gradient(y).set(1.0))
>>> tape.execute().get(x)
Tensor([2., 4.], dtype=float32, backend=numpy)
"""

from __future__ import annotations

from typing import Any

from backburn.autodiff.tape import closures
from backburn.backend.contract import AnyBackend
from backburn.tape.values import tensors

__all__ = ["Cell", "Gradient", "Gradients", "GradientTape"]


class Gradient(closures.Gradient):
    """:class:`backburn.autodiff.tape.closures.Gradient` whose value is a tensor."""

    __slots__ = ()

    @staticmethod
    def _out(primitive: Any, backend: AnyBackend) -> Any:
        return tensors(primitive, backend)


class Cell(Gradient, closures.Cell):
    """:class:`backburn.autodiff.tape.closures.Cell` whose value is a tensor."""

    __slots__ = ()


class Gradients(closures.Gradients):
    """:class:`backburn.autodiff.tape.closures.Gradients` that hands out tensors."""

    __slots__ = ()
    _cell = Cell
    _reading = Gradient


class GradientTape(closures.GradientTape):
    """:class:`backburn.autodiff.tape.closures.GradientTape` whose gradients are tensors."""

    __slots__ = ()
    _gradients = Gradients

    def _result(self, primitive: Any) -> Any:
        return tensors(primitive, self.backend)
