"""Selecting elements by masks, and triangles."""

from __future__ import annotations

import math
from typing import Any, Protocol, overload

from backburn.base.dtypes import int64
from backburn.base.errors import ShapeError
from backburn.ops.primitives import Primitives
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.rules.shapes import Shape, broadcast
from backburn.ops.rules.tangents import linear_in
from backburn.ops.table import missing, operation
from backburn.ops.types import B, F, I, Q


def matrices(x: Shape, **_: Any) -> Shape:
    """The shape of a matrix, or of a stack of them."""
    if len(x) < 2:
        raise ShapeError(f"a matrix has at least two dimensions, and this has {len(x)}")
    return x


class Selection(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Operations that keep some elements and replace or drop the others."""

    @overload
    def where(self, condition: B, x: F, y: F | float, /) -> F: ...
    @overload
    def where(self, condition: B, x: float, y: F, /) -> F: ...
    @overload
    def where(self, condition: B, x: I, y: I | int, /) -> I: ...
    @overload
    def where(self, condition: B, x: int, y: I, /) -> I: ...
    @overload
    def where(self, condition: B, x: B, y: B | bool, /) -> B: ...
    @overload
    def where(self, condition: B, x: bool, y: B, /) -> B: ...
    @operation(kinds="FCIB", shape=broadcast, like=("x", "y"), required=True, differentiable=True)
    def where(self, condition: Any, x: Any, y: Any, /) -> Any:
        """``x`` where ``condition`` is true, else ``y``; the three broadcast.

        One of ``x`` and ``y`` may be a Python scalar. Elements that are not selected receive a gradient of 0, whatever
        their value.
        """
        return missing("where")

    gradient_rule(
        where,
        x=lambda k, g, condition: k.where(condition, g, 0.0),
        y=lambda k, g, condition: k.where(condition, 0.0, g),
    )

    @overload
    def masked_fill(self, x: F, mask: B, value: F | float, /) -> F: ...
    @overload
    def masked_fill(self, x: I, mask: B, value: I | int, /) -> I: ...
    @overload
    def masked_fill(self, x: B, mask: B, value: B | bool, /) -> B: ...
    @operation(kinds="FCIB", shape=broadcast, like=("x",), differentiable=True)
    def masked_fill(self, x: Any, mask: Any, value: Any, /) -> Any:
        """``x`` with ``value``, a Python scalar or a tensor, where ``mask`` is true; the three broadcast."""
        return self.where(mask, value, x)

    @overload
    def masked_select(self, x: F, mask: B, /) -> F: ...
    @overload
    def masked_select(self, x: I, mask: B, /) -> I: ...
    @overload
    def masked_select(self, x: B, mask: B, /) -> B: ...
    @operation(kinds="FCIB", shape=None, like=("x",), differentiable=True)
    def masked_select(self: Any, x: Any, mask: Any, /) -> Any:
        """The elements of ``x`` where ``mask`` is true, in row-major order, as a vector; both broadcast.

        The length depends on data, so a backend that computes asynchronously waits for it.
        """
        shape = broadcast(x.shape, mask.shape)
        size = (math.prod(shape),)
        chosen = self.nonzero(self.reshape(self.broadcast_to(mask, shape), size))
        elements = self.reshape(self.broadcast_to(x, shape), size)
        return self.take(elements, self.reshape(chosen, (chosen.shape[0],)), 0)

    @overload
    def triu(self, x: F, /, offset: int = 0) -> F: ...
    @overload
    def triu(self, x: I, /, offset: int = 0) -> I: ...
    @overload
    def triu(self, x: B, /, offset: int = 0) -> B: ...
    @operation(kinds="FCIB", shape=matrices, differentiable=True)
    def triu(self: Any, x: Any, /, offset: int = 0) -> Any:
        """The upper triangle of each matrix, on and above the diagonal ``offset`` above the main one; 0 elsewhere."""
        return self.where(above(self, x.shape, offset), x, zero(self, x))

    gradient_rule(triu, x=lambda k, g, offset: k.triu(g, offset))
    linear_in(triu)

    @overload
    def tril(self, x: F, /, offset: int = 0) -> F: ...
    @overload
    def tril(self, x: I, /, offset: int = 0) -> I: ...
    @overload
    def tril(self, x: B, /, offset: int = 0) -> B: ...
    @operation(kinds="FCIB", shape=matrices, differentiable=True)
    def tril(self: Any, x: Any, /, offset: int = 0) -> Any:
        """The lower triangle of each matrix, on and below the diagonal ``offset`` above the main one; 0 elsewhere."""
        return self.where(above(self, x.shape, offset + 1), zero(self, x), x)

    gradient_rule(tril, x=lambda k, g, offset: k.tril(g, offset))
    linear_in(tril)


def above(k: Any, shape: Shape, offset: int) -> Any:
    """For each element of a matrix, whether it is on or above the diagonal ``offset`` above the main one."""
    rows = k.arange(offset, offset + shape[-2], 1, int64)
    return k.less_equal(k.reshape(rows, (shape[-2], 1)), k.arange(0, shape[-1], 1, int64))


def zero(k: Any, x: Any) -> Any:
    """0 as a Python scalar of the kind of ``x``."""
    return {"float": 0.0, "complex": 0.0, "int": 0, "bool": False}[k.dtype(x).kind]
