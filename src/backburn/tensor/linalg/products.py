"""Tensor functions: products of matrices and vectors.

Operands are promoted to one dtype, and axes before the last two broadcast. Raises :class:`ShapeError` if the contracted
axes differ in length, and :class:`DTypeError` for bool and quantized tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from backburn.base.errors import ArgumentError, AxisError, MatrixTransposeError, ShapeError
from backburn.hints.arguments import explained
from backburn.tensor.core.dispatch import (
    call,
    call_after_promotion,
    is_plain_float,
    is_quantized,
    promote_operands,
    tensor_operand,
)
from backburn.tensor.core.messages import describe
from backburn.tensor.core.methods import method
from backburn.tensor.core.options import integer, one_integer
from backburn.tensor.quantized import quantized_matmul

if TYPE_CHECKING:
    from backburn.tensor.classes import Tensor

T = TypeVar("T", bound="Tensor")

__all__ = ["matmul", "matrix_transpose", "tensordot", "transpose", "vecdot"]


@method
def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The matrix product ``x1 @ x2`` over the last axis of ``x1`` and the second-to-last of ``x2``.

    A vector on the left counts as a row and on the right as a column; the result does not have the added axis. 16-bit
    floats are accumulated in float32. A quantized matrix to the right of a float tensor, or to the left of a float
    matrix, is never dequantized whole (:func:`backburn.quantized_matmul`).

        >>> import backburn as bb
        >>> x = bb.asarray([[1, 2], [3, 4]])
        >>> (x @ x).tolist(), bb.matmul(x, bb.asarray([1, 1])).tolist()
        ([[7, 10], [15, 22]], [3, 7])
    """
    return tensor_operand("matmul", x1) @ tensor_operand("matmul", x2)


def product(name: str, x: Any, y: Any) -> Tensor:
    """``x @ y`` for operands other than float tensors of one dtype on one backend."""
    if is_quantized(y) and is_plain_float(x) and x.ndim and y.ndim == 2:
        return call("quantized_linear_backward", x, y)
    if is_quantized(x) and is_plain_float(y) and x.ndim == y.ndim == 2:
        return quantized_matmul(x, y)
    return call_after_promotion(name, x, y)


def matrix_transpose(x: T, /) -> T:
    """``x`` with its last two axes swapped. Raises :class:`ShapeError` for fewer than two axes.

    >>> import backburn as bb
    >>> bb.matrix_transpose(bb.asarray([[1, 2, 3], [4, 5, 6]])).tolist()
    [[1, 4], [2, 5], [3, 6]]
    """
    rank = tensor_operand("matrix_transpose", x).ndim
    if rank < 2:
        raise MatrixTransposeError(f"matrix_transpose: a matrix has two axes at least. Operand: {describe((x,))}")
    return call("permute_dims", x, axes=(*range(rank - 2), rank - 1, rank - 2))


def transpose(x: T, /) -> T:
    """``x.T``: a matrix with its axes swapped. Raises :class:`ShapeError` for anything but a matrix.

    Use :func:`matrix_transpose` (``x.mT``) for batches of matrices, :func:`permute_dims` for other orders of axes.

        >>> import backburn as bb
        >>> bb.asarray([[1, 2, 3]]).T.shape
        (3, 1)
    """
    if tensor_operand("T", x).ndim != 2:
        raise MatrixTransposeError(
            f"T: only a matrix has a transpose; write x.mT for stacks of matrices, permute_dims(x, axes) for "
            f"others. Operand: {describe((x,))}"
        )
    return call("permute_dims", x, axes=(1, 0))


@method
def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The dot products along ``axis``, which counts from the end in both operands.

    The other axes broadcast; complex numbers of ``x1`` are conjugated. Raises :class:`AxisError` for an axis that one
    of the operands does not have, or that is not negative.

        >>> import backburn as bb
        >>> x = bb.asarray([[1, 2], [3, 4]])
        >>> bb.vecdot(x, bb.asarray([10, 1])).tolist()
        [12, 34]
    """
    x, y = promote_operands("matmul", tensor_operand("vecdot", x1), tensor_operand("vecdot", x2))
    axis = integer("vecdot", "axis", axis)
    if not -min(x.ndim, y.ndim) <= axis < 0:
        raise AxisError(f"vecdot: axis {axis} is not a negative axis of both operands: {describe((x1, x2))}")
    if x.shape[axis] != y.shape[axis]:
        raise ShapeError(f"vecdot: axis {axis} is {x.shape[axis]} and {y.shape[axis]}. Operands: {describe((x1, x2))}")
    x = call("conj", x) if x._dtype.kind == "complex" else x
    product = call("mul", x, y)
    return call("sum", product, axis=(product.ndim + axis,), keepdims=False)


@explained
def tensordot(x1: Tensor, x2: Tensor, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """The sum of products over several axes of each operand.

    ``axes`` pairs axes of ``x1`` with axes of ``x2``; a number n stands for the last n of ``x1`` and the first n of
    ``x2``. The result has the remaining axes of ``x1`` and then those of ``x2``.

        >>> import backburn as bb
        >>> x = bb.asarray([[1, 2], [3, 4]])
        >>> bb.tensordot(x, x).item(), bb.tensordot(x, x, axes=([0], [0])).tolist()
        (30, [[10, 14], [14, 20]])
    """
    x, y = promote_operands("matmul", tensor_operand("tensordot", x1), tensor_operand("tensordot", x2))
    first, second = _paired_axes(x, y, axes)
    if [x.shape[i] for i in first] != [y.shape[i] for i in second]:
        raise ShapeError(f"tensordot: the paired axes {axes} differ in length. Operands: {describe((x1, x2))}")
    rows = tuple(i for i in range(x.ndim) if i not in first)
    columns = tuple(i for i in range(y.ndim) if i not in second)
    inner = math.prod(x.shape[i] for i in first)
    shape = (*(x.shape[i] for i in rows), *(y.shape[i] for i in columns))
    left = _permute_and_reshape(x, (*rows, *first), (_size(x, rows), inner))
    product = call("matmul", left, _permute_and_reshape(y, (*second, *columns), (inner, _size(y, columns))))
    return product if product.shape == shape else call("reshape", product, shape=shape)


def _size(x: Any, axes: Sequence[int]) -> int:
    return math.prod(x.shape[i] for i in axes)


def _permute_and_reshape(x: Any, axes: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """``x`` with its axes in this order, and then in this shape."""
    if axes != tuple(range(x.ndim)):
        x = call("permute_dims", x, axes=axes)
    return x if x.shape == shape else call("reshape", x, shape=shape)


def _paired_axes(x: Any, y: Any, axes: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of each operand that :func:`tensordot` sums over, as non-negative numbers."""
    if (count := one_integer(axes)) is not None:
        if not 0 <= count <= min(x.ndim, y.ndim):
            raise AxisError(f"tensordot: there are no {count} axes to pair. Operands: {describe((x, y))}")
        return tuple(range(x.ndim - count, x.ndim)), tuple(range(count))
    try:
        first, second = (tuple(int(i) for i in part) for part in axes)
    except (TypeError, ValueError):
        raise ArgumentError(f"tensordot: axes is a number or a pair of sequences, not {axes!r}") from None
    for tensor, part in ((x, first), (y, second)):
        for axis in part:
            if not -tensor.ndim <= axis < tensor.ndim:
                raise AxisError(f"tensordot: axis {axis} is out of range. Operand: {describe((tensor,))}")
    first, second = tuple(i % x.ndim for i in first), tuple(i % y.ndim for i in second)
    if len(first) != len(second) or len(set(first)) != len(first) or len(set(second)) != len(second):
        raise ArgumentError(f"tensordot: axes {axes} do not pair distinct axes of both operands")
    return first, second
