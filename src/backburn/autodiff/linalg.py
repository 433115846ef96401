"""Gradient rules: products of matrices and vectors."""

from __future__ import annotations

import math
from typing import Any

from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import linear, tangent, through_body
from backburn.backend.totals import total
from backburn.backend.views import transposed

Shape = tuple[int, ...]


def rows(k: Any, x: Any) -> Any:
    """``x`` as a matrix whose rows are its last axis."""
    return x if len(x.shape) == 2 else k.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))


def as_product(k: Any, g: Any, x_shape: Shape, y_shape: Shape) -> Any:
    """``g`` with the axes that a vector operand took out of the product."""
    row = x_shape[-2:-1] if len(x_shape) > 1 else (1,)
    column = y_shape[-1:] if len(y_shape) > 1 else (1,)
    batch = g.shape[: len(g.shape) - (len(x_shape) > 1) - (len(y_shape) > 1)]
    return k.reshape(g, (*batch, *row, *column))


def matmul_x(k: Any, g: Any, x_shape: Shape, y: Any) -> Any:
    """``g @ y.T``."""
    g = as_product(k, g, x_shape, y.shape)
    result = k.matmul(g, transposed(k, y) if len(y.shape) > 1 else k.reshape(y, (1, *y.shape)))
    return k.reshape(result, (*result.shape[:-2], *x_shape[-2:])) if len(x_shape) == 1 else result


def matmul_y(k: Any, g: Any, x: Any, y_shape: Shape) -> Any:
    """``x.T @ g``; for a matrix ``y`` under a batch as one product, which adds over the batch."""
    if len(y_shape) <= 2 < len(x.shape):
        x, g = rows(k, x), rows(k, g) if len(y_shape) == 2 else k.reshape(g, (math.prod(g.shape),))
    g = as_product(k, g, x.shape, y_shape)
    result = k.matmul(transposed(k, x) if len(x.shape) > 1 else k.reshape(x, (*x.shape, 1)), g)
    return k.reshape(result, (*result.shape[:-2], *y_shape[-2:])) if len(y_shape) == 1 else result


gradient("matmul", x=matmul_x, y=matmul_y)


def linear_weight(k: Any, g: Any, x: Any, needs: tuple[bool, ...]) -> Any:
    """Both read all of ``g``, once where they are made together."""
    if all(needs):
        return k.linear_weight_backward(g, x)
    return k.matmul(transposed(k, rows(k, x)), rows(k, g)) if needs[0] else None, g


def linear_x(k: Any, g: Any, weight: Any) -> Any:
    """``g @ weight.T``."""
    return k.matmul(g, transposed(k, weight))


gradient("linear", ("weight", "bias"), linear_weight, x=linear_x)


def feed_forward(
    k: Any, g: Any, x: Any, weight1: Any, weight2: Any, kept: Any, approximate: str, needs: tuple[bool, ...]
) -> Any:
    """The features between the layers have gradients of their own, besides those through the second layer."""
    g_out, g_before, g_after = g
    before, after = kept
    of_second = (None, None) if g_out is None else linear_weight(k, g_out, after, (needs[2], needs[4]))
    if not (needs[0] or needs[1] or needs[3]):
        return None, None, of_second[0], None, of_second[1]
    if g_before is g_after is None and needs[1] and needs[3]:
        g_before, *of_first = k.feed_forward_backward(g_out, x, weight2, before, approximate)
    else:
        g_after = total(k, (g_after, None if g_out is None else linear_x(k, g_out, weight2)))
        of_before = None if g_after is None else k.gelu_backward(g_after, before, approximate)
        g_before = total(k, (g_before, of_before))
        of_first = linear_weight(k, g_before, x, (needs[1], needs[3]))
    of_x = linear_x(k, g_before, weight1) if needs[0] else None
    return of_x, of_first[0], of_second[0], of_first[1], of_second[1]


gradient("feed_forward", ("x", "weight1", "weight2", "bias1", "bias2"), feed_forward)

linear("matmul", groups=("x", "y"))
linear("linear", groups=("x", "weight"))
tangent("linear", bias=lambda t: t)
through_body("feed_forward")
