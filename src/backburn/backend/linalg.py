"""Products of matrices and vectors."""

from __future__ import annotations

import math
from typing import Any, Protocol, overload

from backburn.backend import shapes
from backburn.backend.index import shape_of, shape_or_none
from backburn.backend.kinds import Kinds
from backburn.backend.table import missing, operation
from backburn.backend.types import B, F, I, Q
from backburn.base.errors import ShapeError

Shape = tuple[int, ...]


def _linear(x: Shape, weight: Shape, bias: Shape | None = None, **_: Any) -> Shape:
    if len(weight) != 2:
        raise ShapeError(f"the weight must have two axes, (inputs, outputs), not {len(weight)}")
    if not x or x[-1] != weight[0]:
        hint = "; the weight is (inputs, outputs): transpose it" if x and x[-1] == weight[1] else ""
        have = x[-1] if x else "missing"
        raise ShapeError(f"axis -1 of the input is {have} and axis 0 of the weight {weight[0]}{hint}")
    if bias is not None and bias != weight[1:]:
        raise ShapeError(f"the bias must have the {weight[1]} outputs of the weight, not the shape {list(bias)}")
    return x[:-1] + weight[1:]


def _linear_weight_backward(grad: Shape, x: Shape, **_: Any) -> tuple[Shape, Shape]:
    if not grad or not x or grad[:-1] != x[:-1]:
        raise ShapeError(f"the gradient {list(grad)} and the input {list(x)} must agree in all but the last axis")
    return (x[-1], grad[-1]), grad[-1:]


def _feed_forward(
    x: Shape, weight1: Shape, weight2: Shape, bias1: Shape | None = None, bias2: Shape | None = None, **_: Any
) -> tuple[Shape, Shape, Shape]:
    """The shapes of the result and, twice, of the hidden features."""
    hidden = _linear(x, weight1, bias1)
    return _linear(hidden, weight2, bias2), hidden, hidden


def _feed_forward_backward(
    grad: Shape, x: Shape, weight2: Shape, before: Shape, **_: Any
) -> tuple[Shape, Shape, Shape]:
    """The shapes of the gradients of the hidden features, the first weight and the first bias."""
    if _linear(before, weight2) != grad:
        raise ShapeError(f"the gradient {list(grad)} is not that of features {list(before)} times {list(weight2)}")
    return before, *_linear_weight_backward(before, x)


class LinearAlgebra(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
    """Products of matrices and vectors."""

    @overload
    def matmul(self, x: F, y: F, /) -> F: ...
    @overload
    def matmul(self, x: I, y: I, /) -> I: ...
    @operation(kinds="FI", shape=shapes.matmul, required=True, differentiable=True)
    def matmul(self, x: Any, y: Any, /) -> Any:
        """The matrix product of the last two axes; leading axes broadcast.

        A vector on the left counts as a row and on the right as a column; the result does not have the added axis, so
        that two vectors give a 0-d tensor. 16-bit floats are accumulated in float32, integers in their own dtype, which
        wraps around.
        """
        return missing("matmul")

    @operation(kinds="F", shape=_linear, differentiable=True)
    def linear(self: Any, x: F, weight: F, bias: F | None = None, /) -> F:
        """``x @ weight + bias`` for a ``weight`` of shape (inputs, outputs) and a ``bias`` of shape (outputs,).

        ``x`` has any number of leading axes, which the result keeps.
        """
        _linear(shape_of(x), shape_of(weight), shape_or_none(bias))
        product = self.matmul(x, weight)
        return product if bias is None else self.add(product, bias)

    @operation(
        kinds="F",
        shape=_linear_weight_backward,
        result=("same", "same"),
        like=("grad", "x"),
        differentiable=True,
    )
    def linear_weight_backward(self: Any, grad: F, x: F, /) -> tuple[F, F]:
        """The gradients of :meth:`linear` for its weight and its bias, ``x.T @ grad`` and the sum of ``grad``.

        Leading axes are rows as in :meth:`linear`; the results have the shapes (inputs, outputs) and (outputs,).
        """
        _linear_weight_backward(shape_of(grad), shape_of(x))
        rows, grads = (
            t if len(s) == 2 else self.reshape(t, (math.prod(s[:-1]), s[-1]))
            for t, s in ((x, shape_of(x)), (grad, shape_of(grad)))
        )
        return self.matmul(self.permute_dims(rows, (1, 0)), grads), self.sum(grads, (0,), False)

    @operation(kinds="F", shape=_feed_forward, result=("same", "same", "same"), differentiable=True)
    def feed_forward(
        self: Any,
        x: F,
        weight1: F,
        weight2: F,
        bias1: F | None = None,
        bias2: F | None = None,
        /,
        approximate: str = "none",
    ) -> tuple[F, F, F]:
        """Two :meth:`linear` layers with :meth:`gelu` between them, the feed-forward block of a transformer.

        The result is followed by the hidden features before and after GELU, which the gradient needs.
        """
        before = self.linear(x, weight1, bias1)
        after = self.gelu(before, approximate)
        return self.linear(after, weight2, bias2), before, after

    @operation(kinds="F", shape=_feed_forward_backward, result=("same", "same", "same"), differentiable=True)
    def feed_forward_backward(self: Any, grad: F, x: F, weight2: F, before: F, /, approximate: str) -> tuple[F, F, F]:
        """The gradients of :meth:`feed_forward` for its features before GELU, the first weight and the first bias."""
        _feed_forward_backward(*map(shape_of, (grad, x, weight2, before)))
        of_after = self.matmul(grad, self.permute_dims(weight2, (1, 0)))
        of_before = self.gelu_backward(of_after, before, approximate)
        return of_before, *self.linear_weight_backward(of_before, x)
