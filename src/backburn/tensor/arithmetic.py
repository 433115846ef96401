"""Tensor functions: arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backburn.tensor.dispatch import Scalar, binary, unary

if TYPE_CHECKING:
    from backburn.tensor.classes import Tensor


def add(x: Tensor | Scalar, y: Tensor | Scalar, /) -> Tensor:
    """``x + y``, elementwise, with broadcasting; the result has the promoted dtype.

    Raises :class:`ShapeError` for shapes that do not broadcast, :class:`DTypeError` for bool and quantized tensors,
    :class:`BackendMismatchError` for operands on different backends.

        >>> import backburn as bb
        >>> bb.add(bb.asarray([1, 2]), 0.5)
        Tensor([1.5, 2.5], dtype=float32, backend=autodiff(numpy))
    """
    return binary("add", x, y)  # type: ignore[no-any-return]


def neg(x: Tensor, /) -> Tensor:
    """``-x``, elementwise."""
    return unary("neg", x)  # type: ignore[no-any-return]


def abs(x: Tensor, /) -> Tensor:
    """``|x|``, elementwise; the derivative at 0 is 0."""
    return unary("abs", x)  # type: ignore[no-any-return]
