"""Tensor functions: scans along one axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never, TypeVar, overload

from backburn.base.calls import plain_signature, refuse
from backburn.base.errors import ArgumentError
from backburn.tensor.dispatch import call, float_operand, kind_operand, promoted, tensor_operand
from backburn.tensor.messages import describe
from backburn.tensor.options import axis_of
from backburn.tensor.reduce import accumulated
from backburn.tensor.wrapping import wrap

if TYPE_CHECKING:
    from backburn.tensor.classes import BoolTensor, FloatTensor, IntTensor, Tensor

T = TypeVar("T", bound="Tensor")


@overload
def cumulative_sum(
    x: FloatTensor, /, axis: int | None = None, *, dtype: None = None, include_initial: bool = False
) -> FloatTensor: ...
@overload
def cumulative_sum(
    x: IntTensor | BoolTensor, /, axis: int | None = None, *, dtype: None = None, include_initial: bool = False
) -> IntTensor: ...
@overload
def cumulative_sum(
    x: Tensor, /, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False
) -> Tensor: ...
@plain_signature
def cumulative_sum(
    x: Tensor,
    /,
    axis: int | None = None,
    *surplus: Never,
    dtype: Any = None,
    include_initial: bool = False,
    **wrong: Never,
) -> Tensor:
    """The cumulative sum along ``axis``, which is optional for a tensor of one axis.

    The dtype is that of :func:`sum`. ``include_initial`` puts a 0 first, so that the result is longer by one. Raises
    :class:`ArgumentError` for a missing ``axis``, :class:`AxisError` for one that does not exist, :class:`DTypeError`
    for quantized tensors.

        >>> import backburn as bb
        >>> x = bb.asarray([[1, 2, 3], [4, 5, 6]])
        >>> bb.cumulative_sum(x, axis=1).tolist()
        [[1, 3, 6], [4, 9, 15]]
        >>> bb.cumulative_sum(bb.asarray([1.5, 2.0]), include_initial=True).tolist()
        [0.0, 1.5, 3.5]
    """
    if surplus or wrong:
        refuse(cumulative_sum, surplus, wrong)
    return _cumulative("cumulative_sum", "cumsum", x, axis, dtype, include_initial, 0)


@overload
def cumulative_prod(
    x: FloatTensor, /, axis: int | None = None, *, dtype: None = None, include_initial: bool = False
) -> FloatTensor: ...
@overload
def cumulative_prod(
    x: IntTensor | BoolTensor, /, axis: int | None = None, *, dtype: None = None, include_initial: bool = False
) -> IntTensor: ...
@overload
def cumulative_prod(
    x: Tensor, /, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False
) -> Tensor: ...
@plain_signature
def cumulative_prod(
    x: Tensor,
    /,
    axis: int | None = None,
    *surplus: Never,
    dtype: Any = None,
    include_initial: bool = False,
    **wrong: Never,
) -> Tensor:
    """The cumulative product along ``axis``, which is optional for a tensor of one axis.

    The dtype is that of :func:`prod`. ``include_initial`` puts a 1 first, so that the result is longer by one. The
    gradient is also correct at zeros, at every order. Raises the errors of :func:`cumulative_sum`.

        >>> import backburn as bb
        >>> bb.cumulative_prod(bb.asarray([1, 2, 3, 4])).tolist()
        [1, 2, 6, 24]
    """
    if surplus or wrong:
        refuse(cumulative_prod, surplus, wrong)
    return _cumulative("cumulative_prod", "cumprod", x, axis, dtype, include_initial, 1)


def _cumulative(
    name: str, operation: str, x: Any, axis: int | None, dtype: Any, include_initial: bool, initial: int
) -> Tensor:
    y = accumulated(name, x, dtype)
    if axis is None:
        if x.ndim != 1:
            raise ArgumentError(f"{name}: say along which axis; only one axis could be left out: {describe((x,))}")
        axis = 0
    along = axis_of(name, x, axis)
    result = call(operation, y, axis=along)
    if include_initial:
        shape = (*x.shape[:along], 1, *x.shape[along + 1 :])
        value = float(initial) if y.dtype.kind == "float" else initial
        first = wrap(y.backend.full(shape, value, y.dtype), y.backend)
        result = call("concat", [first, result], axis=along)
    return result


def cummax(x: T, /, axis: int) -> T:
    """The largest element so far along ``axis``; NaN from the first NaN on.

    The gradient goes to the element that set it, of several equal ones to the last so far. Raises
    :class:`AxisError` for an axis that does not exist, :class:`DTypeError` for bool and quantized tensors.

        >>> import backburn as bb
        >>> bb.cummax(bb.asarray([1, 3, 2, 4]), axis=0).tolist()
        [1, 3, 3, 4]
    """
    y = kind_operand("cummax", x, "FI")
    return call("cummax", y, axis=axis_of("cummax", y, axis))


def cummin(x: T, /, axis: int) -> T:
    """The smallest element so far along ``axis``; NaN from the first NaN on.

    Gradient and errors are those of :func:`cummax`.

        >>> import backburn as bb
        >>> bb.cummin(bb.asarray([3, 4, 1, 2]), axis=0).tolist()
        [3, 3, 1, 1]
    """
    y = kind_operand("cummin", x, "FI")
    return call("cummin", y, axis=axis_of("cummin", y, axis))


def logcumsumexp(x: Tensor, /, axis: int) -> FloatTensor:
    """``log(cumulative_sum(exp(x)))`` along ``axis``, without overflow. Raises the errors of :func:`cummax`.

    >>> import backburn as bb
    >>> bb.logcumsumexp(bb.asarray([-1000.0, 1000.0, 0.0]), axis=0).tolist()
    [-1000.0, 1000.0, 1000.0]
    """
    y = float_operand("logcumsumexp", x)
    return call("logcumsumexp", y, axis=axis_of("logcumsumexp", x, axis))


@plain_signature
def diff(
    x: T,
    /,
    *surplus: Never,
    axis: int = -1,
    n: int = 1,
    prepend: T | None = None,
    append: T | None = None,
    **wrong: Never,
) -> T:
    """The difference of each element along ``axis`` and the one before it, taken ``n`` times; shorter by ``n``.

    ``prepend`` and ``append``, which match ``x`` in all other axes, are joined to ``x`` first, unless ``n`` is 0; the
    dtype is the promoted one. Raises :class:`AxisError` for an axis that does not exist, :class:`ArgumentError` for a
    negative ``n``, :class:`ShapeError` for a ``prepend`` or ``append`` that does not fit, :class:`DTypeError` for bool
    and quantized tensors.

        >>> import backburn as bb
        >>> x = bb.asarray([1, 4, 9, 16])
        >>> bb.diff(x).tolist(), bb.diff(x, n=2).tolist(), bb.diff(x, prepend=bb.asarray([0])).tolist()
        ([3, 5, 7], [2, 2], [1, 3, 5, 7])
    """
    if surplus or wrong:
        refuse(diff, surplus, wrong)
    y = kind_operand("diff", x, "FI")
    along = axis_of("diff", y, axis)
    parts = [tensor_operand("diff", part) for part in (prepend, y, append) if part is not None]
    if len(parts) > 1 and n != 0:
        y = call("concat", promoted("diff", *parts), axis=along)
    return call("diff", y, axis=along, n=n)
