"""Tensor functions: reductions.

``axis`` is one axis, several, or None for all; negative numbers count from the end. With ``keepdims`` the reduced axes
stay with length 1, so that the result broadcasts against the operand. Raises :class:`AxisError` for an axis that is out
of range or repeated.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, Never, overload

from backburn.base.contexts import default_float
from backburn.base.dtypes import int64, uint64
from backburn.base.errors import ArgumentError, ShapeError
from backburn.hints.arguments import explained, plain_signature, refuse
from backburn.tensor.core.dispatch import (
    accept_dtype,
    as_scalar,
    call,
    cast,
    create,
    float_operand,
    inexact_operand,
    kind_operand,
    promote_operands,
    tensor_operand,
    upcast_half,
)
from backburn.tensor.core.integers import has_wide_integers, in_float64
from backburn.tensor.core.messages import describe
from backburn.tensor.core.methods import method
from backburn.tensor.core.options import axes_of, axis_of, dtype_of, flags, integers_of, number
from backburn.tensor.core.types import Axis, T

if TYPE_CHECKING:
    from backburn.tensor.classes import BoolTensor, FloatTensor, IntTensor, Tensor


def _to_accumulator(name: str, value: Any, dtype: Any) -> Any:
    """A tensor in the dtype in which ``name`` accumulates: ``dtype``, else the widest integer for integers.

    Booleans become int64; floats keep their dtype.
    """
    x = kind_operand(name, value, "FCIB")
    if dtype is not None:
        return cast(x, accept_dtype(name, dtype_of(dtype, x.backend), "FCI", (x,)))
    if x._dtype.has_gradient:
        return x
    return cast(x, uint64 if x.dtype.name.startswith("u") else int64)


# ---- sums and products ----


@overload
def sum(x: FloatTensor, /, axis: Axis = None, *, dtype: None = None, keepdims: bool = False) -> FloatTensor: ...
@overload
def sum(
    x: IntTensor | BoolTensor, /, axis: Axis = None, *, dtype: None = None, keepdims: bool = False
) -> IntTensor: ...
@overload
def sum(x: Tensor, /, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Tensor: ...
@method
@plain_signature
def sum(
    x: Tensor, /, axis: Axis = None, *surplus: Never, dtype: Any = None, keepdims: bool = False, **wrong: Never
) -> Tensor:
    """The sum of the elements over ``axis``; 0 if there are none.

    Floats keep their dtype (16-bit ones are accumulated in float32), integers become int64 or uint64, booleans are
    counted in int64; ``dtype`` selects another, in which the elements are accumulated. Raises :class:`DTypeError` for
    quantized tensors.

        >>> import backburn as bb
        >>> x = bb.asarray([[1, 2, 3], [4, 5, 6]])
        >>> x.sum().item(), bb.sum(x, axis=0).tolist(), bb.sum(x, axis=-1, keepdims=True).shape
        (21, [5, 7, 9], (2, 1))
    """
    if surplus or wrong:
        refuse(sum, surplus, wrong)
    y = _to_accumulator("sum", x, dtype)
    return call("sum", y, axis=axes_of("sum", x, axis), keepdims=keepdims)


@overload
def prod(x: FloatTensor, /, axis: Axis = None, *, dtype: None = None, keepdims: bool = False) -> FloatTensor: ...
@overload
def prod(
    x: IntTensor | BoolTensor, /, axis: Axis = None, *, dtype: None = None, keepdims: bool = False
) -> IntTensor: ...
@overload
def prod(x: Tensor, /, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Tensor: ...
@method
@plain_signature
def prod(
    x: Tensor, /, axis: Axis = None, *surplus: Never, dtype: Any = None, keepdims: bool = False, **wrong: Never
) -> Tensor:
    """The product of the elements over ``axis``; 1 if there are none.

    The dtype is that of :func:`sum`. The gradient is also correct at zeros, at every order. Raises :class:`DTypeError`
    for quantized tensors.

        >>> import backburn as bb
        >>> x = bb.asarray([3.0, 0.0, 2.0]).require_grad()
        >>> x.grad(x.prod().backward()).tolist()
        [0.0, 6.0, 0.0]
    """
    if surplus or wrong:
        refuse(prod, surplus, wrong)
    y = _to_accumulator("prod", x, dtype)
    return call("prod", y, axis=axes_of("prod", x, axis), keepdims=keepdims)


@method
@explained
def count_nonzero(x: Tensor, /, axis: Axis = None, *, keepdims: bool = False) -> IntTensor:
    """The number of elements over ``axis`` that are not 0 (or are true), in int64; NaN counts as not 0.

    >>> import backburn as bb
    >>> bb.count_nonzero(bb.asarray([[0.0, 2.0], [0.0, 0.0]]), axis=1).tolist()
    [1, 0]
    """
    x = kind_operand("count_nonzero", x, "FCIB")
    return call("count_nonzero", x, axis=axes_of("count_nonzero", x, axis), keepdims=keepdims)


# ---- extrema ----


@method
@plain_signature
def max(
    x: T, /, axis: Axis = None, *surplus: Never, keepdims: bool = False, initial: float | None = None, **wrong: Never
) -> T:
    """The largest element over ``axis``, in the dtype of ``x``; NaN if one is NaN.

    With ``initial``, it is at least that number, also where there is no element. Elements that tie share the gradient
    equally, and half of it where they tie with ``initial``. Raises :class:`ShapeError` where there are no elements,
    :class:`ArgumentError` for an ``initial`` that the dtype does not hold, and :class:`DTypeError` for bool and
    quantized tensors.

        >>> import backburn as bb
        >>> x = bb.asarray([2.0, 5.0, 5.0]).require_grad()
        >>> x.max().item(), x.grad(x.max().backward()).tolist()
        (5.0, [0.0, 0.5, 0.5])
        >>> bb.max(bb.zeros((0, 2)), axis=0, initial=-bb.inf).tolist()
        [-inf, -inf]
    """
    if surplus or wrong:
        refuse(max, surplus, wrong)
    y = kind_operand("max", x, "FI")
    axes = axes_of("max", y, axis)
    if initial is not None:
        return _with_initial("max", "maximum", y, axes, keepdims, initial)
    return call("max", y, axis=axes, keepdims=keepdims)


@method
@plain_signature
def min(
    x: T, /, axis: Axis = None, *surplus: Never, keepdims: bool = False, initial: float | None = None, **wrong: Never
) -> T:
    """The smallest element over ``axis``, in the dtype of ``x``; NaN if one is NaN.

    With ``initial``, it is at most that number, also where there is no element. Gradients and errors are those of
    :func:`max`.

        >>> import backburn as bb
        >>> bb.min(bb.asarray([[3, 1], [2, 4]]), axis=1).tolist()
        [1, 2]
    """
    if surplus or wrong:
        refuse(min, surplus, wrong)
    y = kind_operand("min", x, "FI")
    axes = axes_of("min", y, axis)
    if initial is not None:
        return _with_initial("min", "minimum", y, axes, keepdims, initial)
    return call("min", y, axis=axes, keepdims=keepdims)


def _with_initial(name: str, pair: str, x: Any, axes: tuple[int, ...], keepdims: bool, initial: Any) -> Any:
    """``name`` (max or min) over axes that may be empty, combined with ``initial`` by ``pair`` (maximum or minimum)."""
    start = number(name, "initial", initial, of=(x,))
    if x.dtype.is_floating:
        start = float(start)
    else:
        least = -(1 << (x.dtype.bits - 1)) if x.dtype.signed else 0
        if not least <= start < least + (1 << x.dtype.bits) or int(start) != start:
            raise ArgumentError(f"{name}: {x.dtype} does not hold initial={initial!r}. Operand: {describe((x,))}")
        start = int(start)
    if 0 in [x.shape[a] for a in axes]:
        return call("add", call("sum", x, axis=axes, keepdims=keepdims), start)
    return call(pair, call(name, x, axis=axes, keepdims=keepdims), start)


@method
def max_abs(x: T, /, axis: Axis = None, *, keepdims: bool = False) -> T:
    """The largest absolute value over ``axis``, in the dtype of ``x``; NaN if one is NaN, 0 if there are no elements.

    The absolute value of the smallest integer, which its dtype cannot hold, becomes the largest: 127 in int8. Elements
    that tie share the gradient. Raises :class:`DTypeError` for bool and quantized tensors.

        >>> import backburn as bb
        >>> bb.max_abs(bb.asarray([2.0, -7.0])).item()
        7.0
    """
    y = kind_operand("max_abs", x, "FI")
    return call("max_abs", y, axis=axes_of("max_abs", y, axis), keepdims=keepdims)


@explained
def ptp(x: T, /, axis: Axis = None, *, keepdims: bool = False) -> T:
    """The range over ``axis``, the largest minus the smallest element, in the dtype of ``x``; NaN if one is NaN.

    Gradients and errors are those of :func:`max`.

        >>> import backburn as bb
        >>> bb.ptp(bb.asarray([[1.0, 9.0, 4.0], [7.0, 7.0, 7.0]]), axis=1).tolist()
        [8.0, 0.0]
    """
    y = kind_operand("ptp", x, "FI")
    axes = axes_of("ptp", y, axis)
    return call("sub", call("max", y, axis=axes, keepdims=keepdims), call("min", y, axis=axes, keepdims=keepdims))


@method
@plain_signature
def argmax(x: Tensor, /, axis: int | None = None, *surplus: Never, keepdims: bool = False, **wrong: Never) -> IntTensor:
    """The index of the first largest element along ``axis``, or in row-major order without one, in int64.

    NaN counts as larger than every number. Raises the errors of :func:`max`.

        >>> import backburn as bb
        >>> x = bb.asarray([[1, 9, 9], [7, 0, 8]])
        >>> bb.argmax(x, axis=1).tolist(), x.argmax().item()
        ([1, 2], 1)
    """
    if surplus or wrong:
        refuse(argmax, surplus, wrong)
    return _index("argmax", x, axis, keepdims)


@method
@plain_signature
def argmin(x: Tensor, /, axis: int | None = None, *surplus: Never, keepdims: bool = False, **wrong: Never) -> IntTensor:
    """The index of the first smallest element along ``axis``, or in row-major order without one, in int64.

    NaN counts as smaller than every number. Raises the errors of :func:`max`.

        >>> import backburn as bb
        >>> bb.argmin(bb.asarray([[1, 9, 0], [7, 0, 0]]), axis=1).tolist()
        [2, 1]
    """
    if surplus or wrong:
        refuse(argmin, surplus, wrong)
    return _index("argmin", x, axis, keepdims)


def _index(name: str, x: Any, axis: int | None, keepdims: bool) -> IntTensor:
    """``name`` (argmax or argmin) along one axis, or over all elements in row-major order."""
    x = kind_operand(name, x, "FI")
    if axis is not None:
        return call(name, x, axis=axis_of(name, x, axis), keepdims=keepdims)
    index = call(name, call("reshape", x, shape=(x.size,)), axis=0)
    return call("reshape", index, shape=(1,) * x.ndim) if keepdims else index


@method
@plain_signature
def max_with_indices(
    x: T, /, axis: int = -1, *surplus: Never, keepdims: bool = False, **wrong: Never
) -> tuple[T, IntTensor]:
    """The first largest element along ``axis`` and its index; the element gets the whole gradient.

    NaN counts as larger than every number. Raises the errors of :func:`max`.

        >>> import backburn as bb
        >>> values, indices = bb.asarray([[1.0, 9.0, 9.0], [7.0, 0.0, 8.0]]).max_with_indices(axis=1)
        >>> values.tolist(), indices.tolist()
        ([9.0, 8.0], [1, 2])
    """
    if surplus or wrong:
        refuse(max_with_indices, surplus, wrong)
    y = kind_operand("max_with_indices", x, "FI")
    return call("max_with_indices", y, axis=axis_of("max_with_indices", y, axis), keepdims=keepdims)


@method
@plain_signature
def min_with_indices(
    x: T, /, axis: int = -1, *surplus: Never, keepdims: bool = False, **wrong: Never
) -> tuple[T, IntTensor]:
    """The first smallest element along ``axis`` and its index; the element gets the whole gradient.

    NaN counts as smaller than every number. Raises the errors of :func:`min`.

        >>> import backburn as bb
        >>> values, indices = bb.min_with_indices(bb.asarray([[4, 2, 2]]), axis=1, keepdims=True)
        >>> values.tolist(), indices.tolist()
        ([[2]], [[1]])
    """
    if surplus or wrong:
        refuse(min_with_indices, surplus, wrong)
    y = kind_operand("min_with_indices", x, "FI")
    return call("min_with_indices", y, axis=axis_of("min_with_indices", y, axis), keepdims=keepdims)


# ---- booleans ----


@method
@plain_signature
def any(x: Tensor, /, axis: Axis = None, *surplus: Never, keepdims: bool = False, **wrong: Never) -> BoolTensor:
    """Whether any element over ``axis`` is true; False if there are none. A number is true unless it is 0.

    >>> import backburn as bb
    >>> bb.any(bb.asarray([[0, 3], [0, 0]]), axis=1).tolist()
    [True, False]
    """
    if surplus or wrong:
        refuse(any, surplus, wrong)
    y = _truth("any", x)
    return call("any", y, axis=axes_of("any", x, axis), keepdims=keepdims)


@method
@plain_signature
def all(x: Tensor, /, axis: Axis = None, *surplus: Never, keepdims: bool = False, **wrong: Never) -> BoolTensor:
    """Whether all elements over ``axis`` are true; True if there are none. A number is true unless it is 0.

    >>> import backburn as bb
    >>> bb.all(bb.asarray([[0, 3], [1, 2]]), axis=1).tolist()
    [False, True]
    """
    if surplus or wrong:
        refuse(all, surplus, wrong)
    y = _truth("all", x)
    return call("all", y, axis=axes_of("all", x, axis), keepdims=keepdims)


# ---- statistics ----


@method
@plain_signature
def mean(x: Tensor, /, axis: Axis = None, *surplus: Never, keepdims: bool = False, **wrong: Never) -> FloatTensor:
    """The mean over ``axis``, in the dtype of ``x`` or the default float for integers; NaN if there are no elements.

    The mean of booleans is the fraction of true ones, in the default float.

        >>> import backburn as bb
        >>> bb.mean(bb.asarray([[1.0, 2.0], [3.0, 6.0]]), axis=0).tolist(), bb.asarray([1, 2]).mean().item()
        ([2.0, 4.0], 1.5)
        >>> (bb.asarray([1, 2, 3, 4]) > 1).mean().item()
        0.75
    """
    if surplus or wrong:
        refuse(mean, surplus, wrong)
    x = tensor_operand("mean", x)
    y = inexact_operand("mean", x) if x._dtype.kind != "bool" else cast(x, default_float(x._backend))
    return call("mean", y, axis=axes_of("mean", x, axis), keepdims=keepdims)


@overload
def average(
    x: Tensor,
    /,
    axis: Axis = None,
    *,
    weights: Tensor | None = None,
    returned: Literal[False] = False,
    keepdims: bool = False,
) -> FloatTensor: ...
@overload
def average(
    x: Tensor, /, axis: Axis = None, *, weights: Tensor | None = None, returned: Literal[True], keepdims: bool = False
) -> tuple[FloatTensor, FloatTensor]: ...
@explained
def average(
    x: Tensor, /, axis: Axis = None, *, weights: Tensor | None = None, returned: bool = False, keepdims: bool = False
) -> FloatTensor | tuple[FloatTensor, FloatTensor]:
    """The mean over ``axis`` weighted by ``weights``; with ``returned`` also the sums of the weights, of its shape.

    ``weights`` have the shape of ``x``, or that of the axes in ``axis``, in their order. Gradients flow to both. The
    dtype is the promoted one, the default float for integers. Where the weights sum to 0, for which NumPy raises an
    error, the result is infinite or NaN. Raises :class:`ShapeError` for weights that do not fit, :class:`DTypeError`
    for bool and quantized tensors.

        >>> import backburn as bb
        >>> x, weights = bb.asarray([[1.0, 2.0], [3.0, 6.0]]), bb.asarray([1, 3])
        >>> bb.average(x, axis=1, weights=weights).tolist()
        [1.75, 5.25]
        >>> [part.item() for part in bb.average(x, returned=True)]
        [3.0, 4.0]
    """
    if has_wide_integers(x, weights):
        again: Any = average
        return in_float64(lambda x, w: again(x, axis, weights=w, returned=returned, keepdims=keepdims), x, weights)
    flags("average", returned=returned, keepdims=keepdims)
    y: Any = kind_operand("average", x, "FCI")
    axes = axes_of("average", y, axis)
    if weights is None:
        found: Any = mean(y, axis=axes, keepdims=keepdims)
        if not returned:
            return found
        count = float(math.prod(y.shape[a] for a in axes))
        return found, create("full", found.backend, shape=found.shape, value=count, dtype=found.dtype)
    y, factors = promote_operands("average", y, kind_operand("average", weights, "FI"), kinds="FC")
    dtype = y.dtype
    y, factors = upcast_half(y), _broadcast_weights(x, upcast_half(factors), axis)
    total = call("sum", factors, axis=axes, keepdims=keepdims)
    found = call("div", call("sum", call("mul", y, factors), axis=axes, keepdims=keepdims), total)
    result = cast(found, dtype)
    return (result, cast(call("broadcast_to", total, shape=result.shape), dtype)) if returned else result


def _broadcast_weights(x: Any, weights: Any, axis: Axis) -> Any:
    """``weights`` of the axes in ``axis``, in the order there, in a shape that broadcasts to ``x``."""
    if weights.shape == x.shape:
        return weights
    order = [axis_of("average", x, a) for a in integers_of("average", "axis", range(x.ndim) if axis is None else axis)]
    if weights.shape != tuple(x.shape[a] for a in order):
        raise ShapeError(
            f"average: weights have the shape of x, or that of its axes {order}. Operands: {describe((x, weights))}"
        )
    weights = call("permute_dims", weights, axes=tuple(sorted(range(len(order)), key=order.__getitem__)))
    return call("reshape", weights, shape=tuple(n if a in order else 1 for a, n in enumerate(x.shape)))


@method
@plain_signature
def var(
    x: Tensor, /, axis: Axis = None, *surplus: Never, correction: float = 0.0, keepdims: bool = False, **wrong: Never
) -> FloatTensor:
    """The variance over ``axis``: the sum of squared deviations from the mean, divided by ``n - correction``.

    ``correction=1`` estimates the variance of the population that ``x`` is a sample of. Infinite or NaN unless ``n >
    correction``. Dtypes are as for :func:`mean`, but booleans raise :class:`DTypeError`.

        >>> import backburn as bb
        >>> x = bb.asarray([1.0, 2.0, 3.0, 6.0])
        >>> bb.var(x).item(), x.var(correction=1).item() == 14 / 3
        (3.5, False)
    """
    if surplus or wrong:
        refuse(var, surplus, wrong)
    if has_wide_integers(x):
        return in_float64(var, x, axis=axis, correction=correction, keepdims=keepdims)
    y = inexact_operand("var", x)
    axes = axes_of("var", x, axis)
    if y._dtype.kind == "complex":
        return call("add", *(var(part, axes, correction=correction, keepdims=keepdims) for part in _parts(y)))
    return call("var", y, axis=axes, correction=number("var", "correction", correction), keepdims=keepdims)


@method
@plain_signature
def std(
    x: Tensor, /, axis: Axis = None, *surplus: Never, correction: float = 0.0, keepdims: bool = False, **wrong: Never
) -> FloatTensor:
    """The standard deviation over ``axis``: the square root of :func:`var`. Where it is 0, so is the gradient.

    >>> import backburn as bb
    >>> bb.std(bb.asarray([1.0, 3.0, 1.0, 3.0])).item()
    1.0
    """
    if surplus or wrong:
        refuse(std, surplus, wrong)
    if has_wide_integers(x):
        return in_float64(std, x, axis=axis, correction=correction, keepdims=keepdims)
    y = inexact_operand("std", x)
    axes = axes_of("std", x, axis)
    if y._dtype.kind == "complex":
        return call("hypot", *(std(part, axes, correction=correction, keepdims=keepdims) for part in _parts(y)))
    return call("std", y, axis=axes, correction=number("std", "correction", correction), keepdims=keepdims)


def _parts(x: Any) -> tuple[Any, Any]:
    """The real and the imaginary part of a complex tensor."""
    return call("real", x), call("imag", x)


# ---- norms ----


@method(name="norm")
@plain_signature
def vector_norm(
    x: Tensor, /, *surplus: Never, axis: Axis = None, keepdims: bool = False, ord: float = 2, **wrong: Never
) -> FloatTensor:
    """``sum(|x| ** ord) ** (1 / ord)`` over ``axis``; where it is 0, so is the gradient.

    ``ord`` is any number: 0 counts the elements that are not 0, ``inf`` is the largest and ``-inf`` the smallest
    absolute value. No intermediate result overflows unless the norm does. Raises :class:`ArgumentError` for an ``ord``
    that is not a number, :class:`DTypeError` for bool and quantized tensors.

        >>> import backburn as bb
        >>> x = bb.asarray([3e30, 4e30])
        >>> float(f"{x.norm().item():.6g}"), bb.vector_norm(x, ord=float("inf")).item() == x.max().item()
        (5e+30, True)
    """
    if surplus or wrong:
        refuse(vector_norm, surplus, wrong)
    y = inexact_operand("vector_norm", x)
    y = call("modulus", y) if y._dtype.kind == "complex" else y
    power = as_scalar(ord)
    if power is None or power != power:
        raise ArgumentError(f"vector_norm: ord is a number, inf or -inf, not {ord!r}. Operand: {describe((x,))}")
    axes = axes_of("vector_norm", x, axis)
    return call("vector_norm", y, axis=axes, ord=float(number("vector_norm", "ord", power)), keepdims=keepdims)


@method
@plain_signature
def logsumexp(x: Tensor, /, axis: Axis = None, *surplus: Never, keepdims: bool = False, **wrong: Never) -> FloatTensor:
    """``log(sum(exp(x)))`` over ``axis``, without overflow; -inf if there are no elements.

    Raises :class:`DTypeError` for bool and quantized tensors.

        >>> import backburn as bb
        >>> bb.logsumexp(bb.asarray([1000.0, 1000.0])).item() - 1000.0 < 0.7
        True
    """
    if surplus or wrong:
        refuse(logsumexp, surplus, wrong)
    y = float_operand("logsumexp", x)
    return call("logsumexp", y, axis=axes_of("logsumexp", x, axis), keepdims=keepdims)


def _truth(name: str, value: Any) -> Any:
    """A bool tensor itself, or which elements of a tensor of numbers are not 0."""
    x = kind_operand(name, value, "FCIB")
    if x.dtype.kind == "bool":
        return x
    return call("not_equal", x, 0.0 if x.dtype.has_gradient else 0)
