"""Products of matrices and vectors."""

from __future__ import annotations

import math
from typing import Any, Protocol, overload

from backburn.base.errors import ShapeError
from backburn.ops.bodies.reductions import sum_terms
from backburn.ops.bodies.scalars import shape_or_none
from backburn.ops.bodies.slicing import transpose
from backburn.ops.primitives import Primitives
from backburn.ops.rules import shapes
from backburn.ops.rules.gradients import Needs, gradient_rule
from backburn.ops.rules.tangents import decompose, linear_in, tangent
from backburn.ops.rules.work import multiply_adds
from backburn.ops.table import missing, operation
from backburn.ops.types import B, F, I, Q

Shape = tuple[int, ...]


def _linear(x: Shape, weight: Shape, bias: Shape | None = None, **_: Any) -> Shape:
    if len(weight) != 2:
        raise ShapeError(f"the weight must have two axes, (outputs, inputs), not {len(weight)}")
    if not x or x[-1] != weight[1]:
        hint = "; the weight is (outputs, inputs): transpose it" if x and x[-1] == weight[0] else ""
        have = x[-1] if x else "missing"
        raise ShapeError(f"axis -1 of the input is {have} and axis 1 of the weight {weight[1]}{hint}")
    if bias is not None and bias != weight[:1]:
        raise ShapeError(f"the bias must have the {weight[0]} outputs of the weight, not the shape {list(bias)}")
    return x[:-1] + weight[:1]


def _linear_weight_backward(grad: Shape, x: Shape, **_: Any) -> tuple[Shape, Shape]:
    if not grad or not x or grad[:-1] != x[:-1]:
        raise ShapeError(f"the gradient {list(grad)} and the input {list(x)} must agree in all but the last axis")
    return (grad[-1], x[-1]), grad[-1:]


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


# ---- gradients ----


def rows(k: Any, x: Any) -> Any:
    """``x`` as a matrix whose rows are its last axis."""
    return x if len(x.shape) == 2 else k.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))


def as_matrix_product(k: Any, g: Any, x_shape: Shape, y_shape: Shape) -> Any:
    """``g`` with the axes that vector operands removed from the product."""
    if len(x_shape) > 1 and len(y_shape) > 1:
        return g
    row = x_shape[-2:-1] if len(x_shape) > 1 else (1,)
    column = y_shape[-1:] if len(y_shape) > 1 else (1,)
    batch = g.shape[: len(g.shape) - (len(x_shape) > 1) - (len(y_shape) > 1)]
    return k.reshape(g, (*batch, *row, *column))


def grad_matmul_x(k: Any, g: Any, x_shape: Shape, y: Any) -> Any:
    """``g @ y.T``."""
    if len(x_shape) == 2 == len(y.shape):
        return k.matmul(g, k.permute_dims(y, (1, 0)))
    g = as_matrix_product(k, g, x_shape, y.shape)
    result = k.matmul(g, transpose(k, y) if len(y.shape) > 1 else k.reshape(y, (1, *y.shape)))
    return k.reshape(result, (*result.shape[:-2], *x_shape[-2:])) if len(x_shape) == 1 else result


def grad_matmul_y(k: Any, g: Any, x: Any, y_shape: Shape) -> Any:
    """``x.T @ g``; if only ``x`` has batch axes, one product that also sums over the batch."""
    if len(x.shape) == 2 == len(y_shape):
        return k.matmul(k.permute_dims(x, (1, 0)), g)
    if len(y_shape) <= 2 < len(x.shape):
        x, g = rows(k, x), rows(k, g) if len(y_shape) == 2 else k.reshape(g, (math.prod(g.shape),))
    g = as_matrix_product(k, g, x.shape, y_shape)
    result = k.matmul(transpose(k, x) if len(x.shape) > 1 else k.reshape(x, (*x.shape, 1)), g)
    return k.reshape(result, (*result.shape[:-2], *y_shape[-2:])) if len(y_shape) == 1 else result


def grad_linear_weight(k: Any, g: Any, x: Any, needs: Needs) -> Any:
    """The gradients of weight and bias, both in one pass over ``g`` where both are needed."""
    if all(needs):
        return k.linear_weight_backward(g, x)
    return k.matmul(transpose(k, rows(k, g)), rows(k, x)) if needs[0] else None, g


def grad_feed_forward(
    k: Any, g: Any, x: Any, weight1: Any, weight2: Any, kept: Any, approximate: str, needs: Needs
) -> Any:
    """The gradients of input, weights and biases; the features between the layers are results too."""
    g_out, g_before, g_after = g
    before, after = kept
    grad_second = (None, None) if g_out is None else grad_linear_weight(k, g_out, after, (needs[2], needs[4]))
    if not (needs[0] or needs[1] or needs[3]):
        return None, None, grad_second[0], None, grad_second[1]
    if g_before is g_after is None and needs[1] and needs[3]:
        g_before, *grad_first = k.feed_forward_backward(g_out, x, weight2, before, approximate)
    else:
        g_after = sum_terms(k, (g_after, None if g_out is None else k.matmul(g_out, weight2)))
        grad_before = None if g_after is None else k.gelu_backward(g_after, before, approximate)
        g_before = sum_terms(k, (g_before, grad_before))
        grad_first = grad_linear_weight(k, g_before, x, (needs[1], needs[3]))
    grad_x = k.matmul(g_before, weight1) if needs[0] else None
    return grad_x, grad_first[0], grad_second[0], grad_first[1], grad_second[1]


class Linalg(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Products of matrices and vectors."""

    @overload
    def matmul(self, x: F, y: F, /) -> F: ...
    @overload
    def matmul(self, x: I, y: I, /) -> I: ...
    @operation(kinds="FCI", shape=shapes.matmul, required=True, differentiable=True)
    def matmul(self, x: Any, y: Any, /) -> Any:
        """The matrix product of the last two axes; leading axes broadcast.

        A vector on the left counts as a row and on the right as a column; the result does not have the added axis, so
        that two vectors give a 0-d tensor. 16-bit floats are accumulated in float32, integers in their own dtype, which
        wraps around.
        """
        return missing("matmul")

    gradient_rule(matmul, x=grad_matmul_x, y=grad_matmul_y)
    linear_in(matmul, "x", "y")
    multiply_adds(matmul, lambda out, x, y: math.prod(out) * x[-1])

    @operation(kinds="FC", shape=_linear, differentiable=True)
    def linear(self: Any, x: F, weight: F, bias: F | None = None, /) -> F:
        """``x @ weight.T + bias`` for a ``weight`` of shape (outputs, inputs) and a ``bias`` of shape (outputs,).

        ``x`` has any number of leading axes, which the result keeps.
        """
        _linear(x.shape, weight.shape, shape_or_none(bias))
        product = self.matmul(x, self.permute_dims(weight, (1, 0)))
        return product if bias is None else self.add(product, bias)

    gradient_rule(linear, ("weight", "bias"), grad_linear_weight, x=lambda k, g, weight: k.matmul(g, weight))
    linear_in(linear, "x", "weight")
    tangent(linear, bias=lambda t: t)
    multiply_adds(linear, lambda out, x, weight, bias: math.prod(out) * weight[1])

    @operation(
        kinds="FC",
        shape=_linear_weight_backward,
        result=("same", "same"),
        like=("grad", "x"),
        differentiable=True,
    )
    def linear_weight_backward(self: Any, grad: F, x: F, /) -> tuple[F, F]:
        """The gradients of :meth:`linear` for its weight and its bias, ``grad.T @ x`` and the sum of ``grad``.

        Leading axes are rows as in :meth:`linear`; the results have the shapes (outputs, inputs) and (outputs,).
        """
        _linear_weight_backward(grad.shape, x.shape)
        rows, grads = (
            t if len(s) == 2 else self.reshape(t, (math.prod(s[:-1]), s[-1]))
            for t, s in ((x, x.shape), (grad, grad.shape))
        )
        return self.matmul(self.permute_dims(grads, (1, 0)), rows), self.sum(grads, (0,), False)

    multiply_adds(linear_weight_backward, lambda out, grad, x: math.prod(grad) * x[-1])

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

    gradient_rule(feed_forward, ("x", "weight1", "weight2", "bias1", "bias2"), grad_feed_forward)
    decompose(feed_forward)
    multiply_adds(feed_forward, lambda out, x, weight1, *_, **__: (math.prod(x) + math.prod(out)) * weight1[0])

    @operation(kinds="F", shape=_feed_forward_backward, result=("same", "same", "same"), differentiable=True)
    def feed_forward_backward(self: Any, grad: F, x: F, weight2: F, before: F, /, approximate: str) -> tuple[F, F, F]:
        """The gradients of :meth:`feed_forward` for its features before GELU, the first weight and the first bias."""
        _feed_forward_backward(grad.shape, x.shape, weight2.shape, before.shape)
        grad_before = self.gelu_backward(self.matmul(grad, weight2), before, approximate)
        return grad_before, *self.linear_weight_backward(grad_before, x)

    multiply_adds(
        feed_forward_backward,
        lambda out, grad, x, weight2, before, **_: (math.prod(grad) + math.prod(x)) * weight2[1],
    )
