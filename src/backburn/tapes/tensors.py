"""The tapes over tensors: tapes over primitives that return values and gradients as tensors."""

from __future__ import annotations

from typing import Any

from backburn.backend.contract import AnyBackend
from backburn.base.trees import tree_map
from backburn.tapes import closures, graph, record
from backburn.tapes.public import published
from backburn.tensor import classes as _classes  # noqa: F401 - registers the class of each kind of tensor
from backburn.tensor.core.wrapping import wrap


def as_tensors(tree: Any, backend: AnyBackend) -> Any:
    """A tree of primitives of ``backend`` as a tree of tensors."""
    return tree_map(lambda x: wrap(x, backend), tree)


@published("backburn.tape.GradientTape")
class RecordTape(record.RecordTape):
    """:class:`backburn.autodiff.tape.GradientTape` whose values and gradients are tensors.

    >>> import backburn as bb
    >>> from backburn.tape import GradientTape
    >>> tape = GradientTape()
    >>> x = tape.input([3.0])
    >>> y = tape.record_mul(x, x)
    >>> tape.value(y)
    Tensor([9.], dtype=float32, backend=numpy)
    >>> buffers = [bb.asarray([10.0], backend="numpy"), bb.asarray([0.0], backend="numpy")]
    >>> tape.backward([1.0], buffers)[x]
    Tensor([16.], dtype=float32, backend=numpy)
    """

    _hand_out = staticmethod(as_tensors)


@published("backburn.tape.GradGraph")
class GradGraph(graph.GradGraph):
    """:class:`backburn.autodiff.tape.GradGraph` whose values and gradients are tensors, or trees of tensors.

    >>> from backburn.tape import GradGraph
    >>> graph = GradGraph()
    >>> w = graph.parameter([2.0, 3.0])
    >>> cubes = graph.pow(w, 3)
    >>> graph.tensor(cubes)
    Tensor([ 8., 27.], dtype=float32, backend=numpy)
    >>> graph.hessian(cubes, w)
    Tensor([[12.,  0.],
            [ 0., 18.]], dtype=float32, backend=numpy)
    """

    _hand_out = staticmethod(as_tensors)


@published("backburn.tape.closures.Gradients")
class Gradients(closures.Gradients):
    """:class:`backburn.autodiff.tape.closures.Gradients` whose values are tensors."""

    __slots__ = ()
    _hand_out = staticmethod(as_tensors)


@published("backburn.tape.closures.GradientTape")
class ClosureTape(closures.ClosureTape):
    """:class:`backburn.autodiff.tape.closures.GradientTape` whose results and gradients are tensors.

    >>> import backburn as bb
    >>> from backburn.tape.closures import GradientTape
    >>> x = bb.asarray([1.0, 2.0])
    >>> tape = GradientTape()
    >>> y = tape.record("mul", x, x)
    >>> tape.add_backward_op(lambda gradients: gradients.mut_gradient(y).set(1.0))
    >>> tape.execute().get(x)
    Tensor([2., 4.], dtype=float32, backend=numpy)
    """

    __slots__ = ()
    _gradients = Gradients
    _hand_out = staticmethod(as_tensors)
