"""The typed graph over tensors."""

from __future__ import annotations

from typing import Any

from backburn.autodiff import tape
from backburn.tape.values import tensors


class GradGraph(tape.GradGraph):
    """:class:`backburn.autodiff.tape.GradGraph` whose values and gradients are tensors, or trees of them.

    >>> graph = GradGraph()
    >>> w = graph.parameter([2.0, 3.0])
    >>> cubes = graph.pow(w, 3)
    >>> graph.tensor(cubes)
    Tensor([ 8., 27.], dtype=float32, backend=numpy)
    >>> graph.hessian(cubes, w)
    Tensor([[12.,  0.],
            [ 0., 18.]], dtype=float32, backend=numpy)
    """

    def _out(self, tree: Any) -> Any:
        return tensors(tree, self.backend)
