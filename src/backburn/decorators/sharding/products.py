"""Rules of sharding: matrix products and convolutions."""

from __future__ import annotations

from typing import Any

from backburn.decorators.sharding.rules import NOWHERE, Plan, Shapes, aligned, sharding


def matmul(shapes: Shapes, index: int, cut: int) -> Plan | None:
    """Rows and columns are independent; cut along the inner axis, products are addends."""
    x, y = map(len, shapes)
    inner = x - 1, max(0, y - 2)
    if cut == inner[index]:
        return Plan(inner, sums=True, result=NOWHERE)
    if index == 0 and cut == x - 2 and y <= 2:
        return Plan((cut, None), result=cut)
    if index == 0 and cut == x - 2:
        return Plan((cut, None))
    if index == 1 and (cut == y - 1 or x == 1):
        return Plan((None, cut))
    if index == 0 and y == 1:
        return Plan((cut, None))
    axes = aligned(shapes, index, cut, 2)
    return None if axes is None else Plan(axes)


def linear(shapes: Shapes, index: int, cut: int) -> Plan | None:
    """Rows and outputs are independent; cut along the inputs, products are addends, and a bias is added by the body."""
    x, _, bias = shapes
    last = len(x) - 1
    inner = (last, 1, None)
    if index == 2 or (index == 1 and cut == 0):
        return Plan((None, 0, None if bias is None else 0), result=last)
    if cut == inner[index]:
        return Plan(inner, sums=True, result=NOWHERE) if bias is None else None
    return Plan((cut, None, None), result=cut)


def linear_weight_backward(shapes: Shapes, index: int, cut: int) -> Plan | None:
    """Gradients of cut rows are addends; outputs and inputs are independent."""
    last = len(shapes[0]) - 1
    if cut != last:
        return Plan((cut, cut), sums=True, result=NOWHERE)
    return Plan((last, None)) if index == 0 else Plan((None, last))


def feed_forward(shapes: Shapes, index: int, cut: int, **_: Any) -> Plan | None:
    """Rows are independent; cut along the hidden features, results are addends, unless there is a bias."""
    if index == 0:
        return None if cut == len(shapes[0]) - 1 else Plan((cut, None, None, None, None))
    hidden = (None, 0, 1, None if shapes[3] is None else 0, None)
    return Plan(hidden, sums=True) if shapes[4] is None and cut == hidden[index] else None


def feed_forward_backward(shapes: Shapes, index: int, cut: int, **_: Any) -> Plan | None:
    """Gradients of cut rows are addends; hidden features are independent."""
    if index != 2 and cut != len(shapes[index]) - 1:
        return Plan((cut, cut, None, cut), sums=True)
    hidden = (None, None, 1, len(shapes[3]) - 1)
    return Plan(hidden) if cut == hidden[index] else None


def conv(shapes: Shapes, index: int, cut: int, *, groups: int, **_: Any) -> Plan | None:
    """Images are independent, and outputs of one group."""
    if index == 0:
        return Plan((0, None, None), result=0) if cut == 0 else None
    return Plan((None, 0, None if shapes[2] is None else 0), result=1) if cut == 0 and groups == 1 else None


def conv_transpose(shapes: Shapes, index: int, cut: int, **_: Any) -> Plan | None:
    """Images are independent."""
    return Plan((0, None, None), result=0) if index == 0 and cut == 0 else None


def conv_weight_backward(shapes: Shapes, index: int, cut: int, *, groups: int, **_: Any) -> Plan | None:
    """Gradients of cut images are addends; outputs of one group are independent."""
    if cut == 0:
        return Plan((0, 0), sums=True)
    return Plan((None, 1), result=0) if index == 1 and cut == 1 and groups == 1 else None


sharding("matmul", matmul)
sharding("linear", linear)
sharding("linear_weight_backward", linear_weight_backward)
sharding("feed_forward", feed_forward)
sharding("feed_forward_backward", feed_forward_backward)
sharding("conv", conv)
sharding("conv_transpose", conv_transpose)
sharding("conv_weight_backward", conv_weight_backward)
