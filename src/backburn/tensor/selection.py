"""Tensor functions: selecting elements by masks, and triangles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backburn.base.contexts import default_float
from backburn.base.dtypes import DType, complex_of
from backburn.base.errors import DTypeError
from backburn.tensor.core.dispatch import call, create, fit, kind_operand, operand, promote_operands, tensor_operand
from backburn.tensor.core.messages import describe
from backburn.tensor.core.methods import method
from backburn.tensor.core.options import integer
from backburn.tensor.core.types import T
from backburn.tensor.core.wrapping import is_tensor

if TYPE_CHECKING:
    from backburn.tensor.classes import BoolTensor, Tensor


def _condition(name: str, value: Any) -> BoolTensor:
    """``value``, which must be a bool tensor."""
    x = tensor_operand(name, value)
    if x.dtype.kind != "bool":
        raise DTypeError(f"{name}: the condition is a bool tensor, not {describe((x,))}; x != 0 makes one")
    return x


def where(condition: Tensor, x1: Tensor | complex, x2: Tensor | complex, /) -> Tensor:
    """``x1`` where ``condition`` is true, else ``x2``, in their promoted dtype; the three broadcast.

    Elements that are not selected receive a gradient of 0, whatever their value: ``where(x > 0, x, 1.0)`` inside a
    logarithm keeps the gradient finite. Raises :class:`DTypeError` for a condition of another kind than bool and for
    quantized tensors, :class:`ShapeError` where shapes do not broadcast.

        >>> import backburn as bb
        >>> x = bb.asarray([-1.0, 2.0])
        >>> bb.where(x > 0, x, 0.0).tolist()
        [0.0, 2.0]
    """
    chosen = _condition("where", condition)
    if not is_tensor(x1) and not is_tensor(x2):
        first, second = (operand("where", x, (condition, x1, x2)) for x in (x1, x2))
        kinds = {type(first), type(second)}
        k = chosen.backend
        dtype: DType = default_float(k) if float in kinds else k.int_dtype if int in kinds else chosen.dtype
        if complex in kinds:
            dtype = complex_of(default_float(k))
        x1 = create("full", k, shape=(), value=fit(first, dtype), dtype=dtype)
        x2 = fit(second, dtype)
    return call("where", chosen, *promote_operands("where", x1, x2))


@method
def masked_fill(x: Tensor, mask: Tensor, value: Tensor | complex, /) -> Tensor:
    """``x`` with ``value``, a number or a tensor, where ``mask`` is true; the three broadcast. See :func:`where`.

    >>> import backburn as bb
    >>> x = bb.asarray([1.0, 2.0, 3.0])
    >>> x.masked_fill(x > 1.5, 0.0).tolist()
    [1.0, 0.0, 0.0]
    """
    chosen = _condition("masked_fill", mask)
    first, second = promote_operands("masked_fill", tensor_operand("masked_fill", x), value)
    return call("masked_fill", first, chosen, second)


@method
def masked_select(x: T, mask: Tensor, /) -> T:
    """The elements of ``x`` where ``mask`` is true, in row-major order, as a vector; both broadcast.

    The length depends on data. The gradient goes to the selected elements. Raises :class:`DTypeError` for a mask of
    another kind than bool, :class:`ShapeError` where shapes do not broadcast.

        >>> import backburn as bb
        >>> x = bb.asarray([[1, 2], [3, 4]])
        >>> x.masked_select(x % 2 == 0).tolist()
        [2, 4]
    """
    return call("masked_select", kind_operand("masked_select", x), _condition("masked_select", mask))


@method
def triu(x: T, /, k: int = 0) -> T:
    """The upper triangle of each matrix in the last two axes, 0 elsewhere.

    It begins on the diagonal ``k`` above the main one (below, if negative). Raises :class:`ShapeError` for fewer than
    two axes.

        >>> import backburn as bb
        >>> bb.triu(bb.ones((3, 3), dtype=bb.int64), k=1).tolist()
        [[0, 1, 1], [0, 0, 1], [0, 0, 0]]
    """
    return call("triu", kind_operand("triu", x), offset=integer("triu", "k", k))


@method
def tril(x: T, /, k: int = 0) -> T:
    """The lower triangle of each matrix in the last two axes, 0 elsewhere.

    It ends on the diagonal ``k`` above the main one (below, if negative). Raises :class:`ShapeError` for fewer than two
    axes.

        >>> import backburn as bb
        >>> bb.tril(bb.ones((2, 3), dtype=bb.int64)).tolist()
        [[1, 0, 0], [1, 1, 0]]
    """
    return call("tril", kind_operand("tril", x), offset=integer("tril", "k", k))
