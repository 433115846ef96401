"""The typed graph over tensors."""

from __future__ import annotations

from typing import Any

from backburn.autodiff import tape
from backburn.tape.values import from_lists, tensors


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

    def input(self, x: Any) -> int:
        """External data: a tensor, nested lists of numbers, an array or a float, which receives no gradient."""
        return super().input(from_lists(x, self.backend))

    def parameter(self, x: Any) -> int:
        """A value that receives gradients: a tensor, nested lists of numbers, a float, or a tree of tensors."""
        return super().parameter(from_lists(x, self.backend))

    def set_tensor(self, node: int, x: Any) -> None:
        """Give an Input or a Parameter another value of the same shape and dtype."""
        super().set_tensor(node, from_lists(x, self.backend))

    def backward_with_seed(self, output: int, seed: Any) -> None:
        """Add the gradients of a node with ``seed`` as its own."""
        super().backward_with_seed(output, from_lists(seed, self.backend))

    def _out(self, tree: Any) -> Any:
        return tensors(tree, self.backend)
