"""The typed graph: nodes that are operations of :class:`GradOp`, each with its value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from backburn.autodiff.graph import reverse
from backburn.base.errors import ArgumentError, DTypeError, GraphError, NumericalInstabilityError, ShapeError
from backburn.base.trees import flatten, flatten_like, tree_map, unflatten
from backburn.ops.bodies.reductions import all_axes
from backburn.tapes import derivatives
from backburn.tapes.builder import GraphBuilder
from backburn.tapes.nodes import AnyGradOp, GradOp
from backburn.tapes.public import published
from backburn.tapes.records import is_tree
from backburn.tapes.values import (
    as_float,
    as_primitive,
    check_alike,
    is_close,
    is_numbers,
    item,
    number_of,
    shown,
)  # fmt: skip

if TYPE_CHECKING:
    import graphviz


@published("backburn.autodiff.tape.GradGraph")
class GradGraph(GraphBuilder):
    """A graph of typed operations with reverse-mode differentiation, which can be inspected and differentiated twice.

    Each constructor computes a node immediately and returns its index; operands are indices of nodes::

        >>> import numpy as np
        >>> from backburn.autodiff.tape import GradGraph
        >>> graph = GradGraph()
        >>> x, w = graph.input(np.array([1.0, 2.0])), graph.parameter(np.array([3.0, 4.0]))
        >>> loss = graph.sum(graph.mul(x, graph.mul(w, w)))
        >>> graph.value(loss)
        41.0
        >>> graph.backward(loss)
        >>> graph.grad(w)
        array([ 6., 16.])
        >>> graph.nodes()[2]
        GradOp.Mul(a=1, b=1)

    Values are tensors, primitives, NumPy arrays, floats or nested lists of numbers, all of one float dtype, which is
    kept; class indices may be integers. Parameters may also be trees: records, maps, dataclasses, named tuples, lists
    of tensors. A list of numbers is always an array.

    Args:
        backend: where to compute; an autodiff backend stands for the one it decorates. The default is the default
            backend (:func:`backburn.use_backend`).
    """

    # ---- nodes ----

    def push_node(self, op: GradOp, tensor: Any = None, grad: Any = None) -> int:
        """Append a node of any operation.

        ``tensor`` is its value: required for a leaf and for Reshape; otherwise optional, and compared with what the
        operation computes. ``grad`` is the accumulated gradient of a Parameter. Raises :class:`ArgumentError` for a
        value that differs from the operation's.
        """
        if not isinstance(op, GradOp):
            raise DTypeError(f"push_node: expected an operation of GradOp, not {type(op).__name__}")
        return self._pushed(f"push_node: {type(op).__name__}", cast("AnyGradOp", op), tensor, grad)

    def _pushed(self, where: str, op: AnyGradOp, tensor: Any, grad: Any) -> int:
        if isinstance(op, (GradOp.Input, GradOp.Parameter)):
            if tensor is None:
                raise ArgumentError(f"{where} needs its value")
            value = self._leaf_value(where, op, tensor)
        else:
            given = None
            if tensor is not None:
                given = tree_map(lambda t: as_float(self.backend, t, where), tensor, is_leaf=is_numbers)
            shape = None if given is None or is_tree(given) else tuple(given.shape)
            if isinstance(op, GradOp.Reshape) and op.original_shape != tuple(self._tensor(where, op.input).shape):
                raise ShapeError(f"{where}: original_shape {list(op.original_shape)} is not that of node {op.input}")
            value = self._evaluated(where, op, shape)
            if given is not None:
                self._check_equal(where, given, value)
        if grad is not None and not isinstance(op, GradOp.Parameter):
            raise ArgumentError(f"{where}: only a Parameter has a gradient")
        accumulated = None if grad is None else self._gradient_like(where, grad, value)
        node = self._append(op, value)
        if accumulated is not None:
            self._gradients[node] = accumulated
        return node

    def _check_equal(self, where: str, given: Any, value: Any) -> None:
        """Raise unless a given value equals the computed one."""
        known = tree_map(self._level.inner, value)
        check_alike(self.backend, given, known, f"{where}: the value", "the operation gives")
        pairs = zip(flatten(given)[0], flatten(known)[0], strict=True)
        if not all(is_close(self.backend, a, b) for a, b in pairs):
            raise ArgumentError(f"{where}: the value is not what the operation gives. Leave it out to compute it")

    def _gradient_like(self, where: str, grad: Any, value: Any) -> Any:
        def fitting(g: Any, x: Any) -> Any:
            made = as_float(self.backend, g, f"{where}: grad")
            if tuple(made.shape) != tuple(x.shape):
                raise ShapeError(f"{where}: grad has shape {list(made.shape)}, the value {list(x.shape)}")
            return made

        leaves, form = flatten(value)
        return unflatten(form, map(fitting, flatten_like(form, grad, f"{where}: grad", is_numbers), leaves))

    # ---- values ----

    def nodes(self) -> tuple[AnyGradOp, ...]:
        """The operation of each node."""
        return tuple(self._ops)

    def tensor(self, node: int) -> Any:
        """The value of a node: a primitive of :attr:`backend`, or a tree of them; arrays in host memory are copies."""
        value = self._value("tensor", node)
        return self._out(tree_map(lambda x: self._level.inner(x) if self._level.dtype(x).has_gradient else x, value))

    def _out(self, tree: Any) -> Any:
        """A tree of primitives as users receive it."""
        return self._hand_out(tree, self.backend)

    def value(self, node: int) -> float:
        """The first element of a node, as a Python float."""
        x = self._value("value", node)
        if is_tree(x) or 0 in x.shape:
            what = "a record or map" if is_tree(x) else "empty"
            raise ShapeError(f"value: node {node} is {what} and has no first element")
        return float(item(self._level, self._level.slice(x, tuple(slice(0, 1, 1) for _ in x.shape))))

    def set_tensor(self, node: int, x: Any) -> None:
        """Give an Input or a Parameter another value of the same shape and dtype; gradients are unchanged.

        Nodes computed from it are recomputed before they are next read or differentiated, or by :meth:`reforward`.
        """
        place = self._index("set_tensor", node)
        op = self._ops[place]
        if not isinstance(op, (GradOp.Input, GradOp.Parameter)):
            raise GraphError(f"set_tensor: node {place} is computed ({op}). Set the Input or Parameter it comes from")
        value = self._leaf_value("set_tensor", op, x, like=self._values[place])
        than, advice = f"node {place}", "; make a new node for data of another shape or dtype"
        check_alike(self._level, value, self._values[place], "set_tensor: the value", than, advice)
        self._values[place] = value
        self._stale = place if self._stale is None else min(self._stale, place)

    # ---- gradients ----

    def backward(self, loss: int) -> None:
        """Add the gradients of a node (of the sum of its elements) to those of the parameters."""
        x = self._differentiable("backward", loss)
        self._accumulate(x, self.backend.ones(tuple(x.shape), self._level.dtype(x)))

    def backward_with_seed(self, output: int, seed: Any) -> None:
        """Add the gradients of a node with the cotangent ``seed``, which has its shape, to those of the parameters."""
        x = self._differentiable("backward_with_seed", output)
        given = as_float(self.backend, seed, "backward_with_seed: seed")
        if tuple(given.shape) != tuple(x.shape):
            raise ShapeError(
                f"backward_with_seed: the seed has shape {list(given.shape)} and node {output} {list(x.shape)}"
            )
        self._accumulate(x, self.backend.astype(given, self._level.dtype(x)))

    def backward_collect(self, loss: int, params: Sequence[int]) -> list[Any]:
        """The gradients of a node for these parameters only: zero_grad, backward, and grad of each."""
        if not isinstance(params, Iterable):
            raise DTypeError(f"backward_collect: params is a list of nodes, not {params!r}")
        params = list(params)
        for node in params:
            self._parameter("backward_collect", node)
        self._differentiable("backward_collect", loss)
        self.zero_grad()
        self.backward(loss)
        return [self.grad(node) for node in params]

    def grad(self, node: int) -> Any:
        """The accumulated gradient of a Parameter, zeros before any :meth:`backward`; None for every other node.

        The gradient of a record or map has the same structure, with exact zeros for parts that were not accessed.
        Arrays in host memory are copies.
        """
        place = self._index("grad", node)
        return self._out(self._gradient(place)) if isinstance(self._ops[place], GradOp.Parameter) else None

    def _gradient(self, parameter: int) -> Any:
        """The gradient of a Parameter as primitives."""
        if parameter in self._gradients:
            return self._gradients[parameter]
        return tree_map(lambda x: self.backend.zeros(tuple(x.shape), self._level.dtype(x)), self._values[parameter])

    def zero_grad(self) -> None:
        """Discard all gradients."""
        self._gradients.clear()

    def clip_grad(self, max_value: float) -> None:
        """Clamp every element of every gradient to [-max_value, max_value]."""
        bound = _bound("clip_grad", max_value)
        for node, gradient in self._gradients.items():
            self._gradients[node] = tree_map(lambda g: self.backend.clip(g, -bound, bound), gradient)

    def clip_grad_norm(self, max_norm: float) -> float:
        """Scale all gradients so that their global norm is at most ``max_norm``; returns the original norm.

        Raises :class:`NumericalInstabilityError`, and changes nothing, if the norm is NaN or infinite.
        """
        bound, k = _bound("clip_grad_norm", max_norm), self.backend
        leaves = flatten(list(self._gradients.values()))[0]
        # Elements are divided by the largest first, so that no square overflows.
        sizes = [float(item(k, k.max_abs(g, all_axes(g), False))) for g in leaves if 0 not in g.shape]
        largest = max(sizes, default=0.0)
        if not all(map(math.isfinite, sizes)):
            raise NumericalInstabilityError("clip_grad_norm: a gradient holds NaN or an infinity")
        if largest == 0.0:
            return 0.0
        squares = [k.sum(k.square(k.div(g, largest)), all_axes(g), False) for g in leaves]
        norm = largest * math.sqrt(sum(float(item(k, s)) for s in squares))
        if norm > bound:
            for node, gradient in self._gradients.items():
                self._gradients[node] = tree_map(lambda g: k.mul(g, bound / norm), gradient)
        return norm

    def _differentiable(self, where: str, node: int) -> Any:
        x = self._tensor(where, node)
        if not self._level.dtype(x).has_gradient:
            raise DTypeError(f"{where}: node {node} is {shown(self._level, x)}, and gradients belong to floats")
        return x

    def _parameter(self, where: str, node: Any) -> int:
        place = self._index(where, node)
        if not isinstance(self._ops[place], GradOp.Parameter):
            raise ArgumentError(f"{where}: node {place} is {self._ops[place]}, and only a Parameter has a gradient")
        return place

    def _accumulate(self, x: Any, seed: Any) -> None:
        if x.node is None:
            return
        found = reverse(self.backend, x.node, seed, retain_graph=True)
        for node, op in enumerate(self._ops):
            if isinstance(op, GradOp.Parameter):
                leaves, form = flatten(self._values[node])
                gradients = [found.get(leaf.node) for leaf in leaves]
                if any(g is not None for g in gradients):
                    known = flatten(self._gradient(node))[0]
                    both = zip(known, gradients, strict=True)
                    sums = [b if g is None else self.backend.add(b, g) for b, g in both]
                    self._gradients[node] = unflatten(form, sums)

    # ---- more derivatives ----

    def jacobian(self, output: int, param: int) -> Any:
        """The derivatives of a node with respect to a parameter: a matrix with a row for each element of ``output``.

        The elements of a record or map are those of its fields, one after another.
        """
        x, place = self._differentiable("jacobian", output), self._parameter("jacobian", param)
        return self._out(derivatives.jacobian(self.backend, x, flatten(self._values[place])[0]))

    def hessian(self, loss: int, param: int) -> Any:
        """The second derivatives of the sum of a node with respect to pairs of elements of a parameter: a matrix.

        They are exact: the graph is evaluated one level higher, and its gradient is differentiated.
        """
        return self._out(derivatives.joined_rows(self.backend, *self._second("hessian", loss, param)))

    def hessian_diag(self, loss: int, param: int, eps: float | None = None) -> Any:
        """The diagonal of :meth:`hessian`, in the parameter's shape. ``eps`` is ignored: nothing is approximated."""
        rows, leaves = self._second("hessian_diag", loss, param)
        diagonal = derivatives.diagonal(self.backend, rows, leaves)
        return self._out(unflatten(flatten(self._values[self._index("hessian_diag", param)])[1], diagonal))

    def double_backward(self, loss: int, param: int) -> Any:
        """The second derivative of the sum of a node for each element of a parameter: :meth:`hessian_diag`."""
        return self.hessian_diag(loss, param)

    def _second(self, where: str, loss: int, param: int) -> tuple[list[Any], list[Any]]:
        self._differentiable(where, loss)
        place = self._parameter(where, param)
        return derivatives.second_derivatives(self._level, self._ops, self._values, self._index(where, loss), place)

    def vmap_forward(self, input: int, batch: Any, output: int | None = None) -> list[int]:
        """Map the graph from ``input`` to ``output`` (default: the last node) over a batch; returns the results' nodes.

        ``batch`` is a sequence of values for ``input``, or a tensor with an additional first axis. The nodes that
        depend on ``input`` are appended to the graph once for each element, so that gradients flow to the parameters.
        """
        source = self._index("vmap_forward", input)
        target = len(self._ops) - 1 if output is None else self._index("vmap_forward: output", output)
        if not isinstance(self._ops[source], (GradOp.Input, GradOp.Parameter)):
            raise GraphError(f"vmap_forward: node {source} is computed ({self._ops[source]}), and is not an input")
        self._tensor("vmap_forward", target)
        elements = batch
        if hasattr(batch, "shape"):
            whole = as_primitive(self.backend, batch, "vmap_forward: batch")
            if not whole.shape:
                raise ShapeError("vmap_forward: the batch is 0-d and has no elements")
            elements = derivatives.slices(self.backend, whole)
        elif not isinstance(batch, Iterable):
            raise DTypeError(f"vmap_forward: the batch is a tensor or a list of values, not {batch!r}")
        path, size = derivatives.path(self._ops, source, target), len(self._ops)
        try:
            return [self._replayed(source, element, path, target) for element in elements]
        except BaseException:  # remove the nodes of a partly mapped batch
            del self._ops[size:], self._values[size:]
            raise

    def _replayed(self, source: int, element: Any, path: Sequence[int], target: int) -> int:
        value = self._leaf_value("vmap_forward", GradOp.Input(), element, like=self._values[source])
        what, than = "vmap_forward: an element of the batch", f"node {source}"
        check_alike(self._level, value, self._values[source], what, than, unlike=ShapeError)
        places = {source: self._append(GradOp.Input(), value)}
        for node in path:
            old = self._values[node]
            shape = None if is_tree(old) else tuple(old.shape)
            places[node] = self._computed("vmap_forward", self._ops[node].moved(places), shape)
        return places.get(target, target)

    def picture(self) -> graphviz.Digraph:
        """The graph as a picture: its ``source`` is DOT, and notebooks show it as SVG if Graphviz is installed.

        Raises :class:`~backburn.base.errors.BackendUnavailableError` without the package ``graphviz``.
        """
        from backburn.tapes.picture import picture

        values = (self._value("picture", node) for node in range(len(self)))
        return picture(self._ops, ["record or map" if is_tree(v) else shown(self._level, v) for v in values])


def _bound(where: str, value: float) -> float:
    bound = number_of(value)
    if bound is None:
        raise DTypeError(f"{where}: the bound is a number, not {value!r}")
    if not bound >= 0:
        raise ArgumentError(f"{where}: the bound must not be negative, and it is {bound}")
    return bound
