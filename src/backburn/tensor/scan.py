"""Tensor functions: scans along one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Never, overload

from backburn.base.dtypes import int64
from backburn.base.errors import ArgumentError, DTypeError, ShapeError
from backburn.hints.arguments import explained, plain_signature, refuse
from backburn.tensor.core.dispatch import (
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
from backburn.tensor.core.levels import constant
from backburn.tensor.core.messages import describe
from backburn.tensor.core.methods import method
from backburn.tensor.core.options import axes_of, axis_of, bounded, number, one_integer
from backburn.tensor.core.types import T
from backburn.tensor.core.wrapping import is_tensor, wrap
from backburn.tensor.reduce import _to_accumulator

if TYPE_CHECKING:
    from backburn.tensor.classes import BoolTensor, FloatTensor, IntTensor, Tensor


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
@method(name="cumsum")
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
    return _cumulative("cumulative_sum", "cumulative_sum", x, axis, dtype, include_initial, 0)


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
@method(name="cumprod")
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
    return _cumulative("cumulative_prod", "cumulative_prod", x, axis, dtype, include_initial, 1)


def _cumulative(
    name: str, operation: str, x: Any, axis: int | None, dtype: Any, include_initial: bool, initial: int
) -> Tensor:
    y = _to_accumulator(name, x, dtype)
    if axis is None:
        if x.ndim != 1:
            raise ArgumentError(f"{name}: give the axis, which is optional only for a vector: {describe((x,))}")
        axis = 0
    along = axis_of(name, x, axis)
    result = call(operation, y, axis=along)
    if include_initial:
        shape = (*x.shape[:along], 1, *x.shape[along + 1 :])
        value = float(initial) if y.dtype.is_floating else initial
        first = wrap(y.backend.full(shape, value, y.dtype), y.backend)
        result = call("concat", [first, result], axis=along)
    return result


@method
def cummax(x: T, /, axis: int) -> T:
    """The largest element so far along ``axis``; NaN from the first NaN on.

    The gradient goes to the element that set it, or the last so far of several equal ones. Raises
    :class:`AxisError` for an axis that does not exist, :class:`DTypeError` for bool and quantized tensors.

        >>> import backburn as bb
        >>> bb.cummax(bb.asarray([1, 3, 2, 4]), axis=0).tolist()
        [1, 3, 3, 4]
    """
    y = kind_operand("cummax", x, "FI")
    return call("cummax", y, axis=axis_of("cummax", y, axis))


@method
def cummin(x: T, /, axis: int) -> T:
    """The smallest element so far along ``axis``; NaN from the first NaN on.

    Gradient and errors are those of :func:`cummax`.

        >>> import backburn as bb
        >>> bb.cummin(bb.asarray([3, 4, 1, 2]), axis=0).tolist()
        [3, 3, 1, 1]
    """
    y = kind_operand("cummin", x, "FI")
    return call("cummin", y, axis=axis_of("cummin", y, axis))


@method
def cummax_with_indices(x: T, /, axis: int) -> tuple[T, IntTensor]:
    """The largest element so far along ``axis``, and its index, in int64: of equal elements the last so far.

    Gradient and errors are those of :func:`cummax`.

        >>> import backburn as bb
        >>> values, indices = bb.cummax_with_indices(bb.asarray([1.0, 3.0, 2.0, 3.0]), axis=0)
        >>> values.tolist(), indices.tolist()
        ([1.0, 3.0, 3.0, 3.0], [0, 1, 1, 3])
    """
    return _with_indices("cummax_with_indices", "cummax", x, axis)


@method
def cummin_with_indices(x: T, /, axis: int) -> tuple[T, IntTensor]:
    """The smallest element so far along ``axis``, and its index, in int64: of equal elements the last so far.

    Gradient and errors are those of :func:`cummax`.

        >>> import backburn as bb
        >>> values, indices = bb.cummin_with_indices(bb.asarray([3, 4, 1, 2]), axis=0)
        >>> values.tolist(), indices.tolist()
        ([3, 3, 1, 1], [0, 0, 2, 2])
    """
    return _with_indices("cummin_with_indices", "cummin", x, axis)


def _with_indices(name: str, operation: str, x: Any, axis: int) -> tuple[Any, Any]:
    """A running extremum, and the last index so far at which it was set or equalled."""
    y: Any = kind_operand(name, x, "FI")
    along = axis_of(name, y, axis)
    values, n = call(operation, y, axis=along), y.shape[along]
    places = create("arange", y.backend, start=0, stop=n, step=1, dtype=int64)
    places = call("reshape", places, shape=(n, *(1,) * (y.ndim - along - 1)))
    carried = call("not_equal", y, values)
    if y.dtype.is_floating:  # NaN differs from itself, and sets the extremum
        carried = call("logical_and", carried, call("equal", y, y))
    return values, call("cummax", call("where", carried, 0, places), axis=along)


@method
def logcumsumexp(x: Tensor, /, axis: int) -> FloatTensor:
    """``log(cumulative_sum(exp(x)))`` along ``axis``, without overflow. Raises the errors of :func:`cummax`.

    >>> import backburn as bb
    >>> bb.logcumsumexp(bb.asarray([-1000.0, 1000.0, 0.0]), axis=0).tolist()
    [-1000.0, 1000.0, 1000.0]
    """
    if has_wide_integers(x):
        return in_float64(logcumsumexp, x, axis=axis)
    y = float_operand("logcumsumexp", x)
    return call("logcumsumexp", y, axis=axis_of("logcumsumexp", x, axis))


@method
@explained
def diff(x: T, /, *, axis: int = -1, n: int = 1, prepend: T | None = None, append: T | None = None) -> T:
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
    y = kind_operand("diff", x, "FCI")
    along = axis_of("diff", y, axis)
    parts = [tensor_operand("diff", part) for part in (prepend, y, append) if part is not None]
    if len(parts) > 1 and n != 0:
        y = call("concat", promote_operands("diff", *parts), axis=along)
    return call("diff", y, axis=along, n=n)


@overload
def gradient(x: Tensor, /, *spacing: Tensor | float, axis: int, edge_order: int = 1) -> FloatTensor: ...
@overload
def gradient(
    x: Tensor, /, *spacing: Tensor | float, axis: Sequence[int] | None = None, edge_order: int = 1
) -> FloatTensor | tuple[FloatTensor, ...]: ...
@plain_signature
def gradient(x: Any, /, *spacing: Any, axis: Any = None, edge_order: Any = 1, **wrong: Never) -> Any:
    """The slope of ``x`` at each element along ``axis``: one tensor, or a tuple of them for several axes.

    Without ``axis``, along all of them. Slopes are central differences of second order, also for uneven ``spacing``,
    and at the ends one-sided differences of ``edge_order`` 1 or 2. ``spacing`` is a number for all axes, or for each
    axis a number or a vector of coordinates; by default 1. Integers become the default float. Gradients flow to ``x``
    and ``spacing``. Raises :class:`AxisError` for axes that do not exist, :class:`ArgumentError` for
    another ``edge_order`` or number of spacings, :class:`ShapeError` for an axis with fewer than ``edge_order + 1``
    elements and for coordinates that do not fit, :class:`DTypeError` for bool and quantized tensors.

        >>> import backburn as bb
        >>> x = bb.asarray([1.0, 2.0, 4.0, 7.0, 11.0])
        >>> bb.gradient(x).tolist(), bb.gradient(x, 2.0, edge_order=2).tolist()
        ([1.0, 1.5, 2.5, 3.5, 4.0], [0.25, 0.75, 1.25, 1.75, 2.25])
        >>> bb.gradient(x, bb.asarray([0.0, 1.0, 2.0, 5.0, 6.0])).tolist()
        [1.0, 1.5, 1.75, 3.25, 4.0]
    """
    if not is_tensor(x) and (callable(x) or isinstance(x, str)):
        name = x if isinstance(x, str) else getattr(x, "__name__", "f")
        raise ArgumentError(
            f"gradient: takes samples, not the operation {name}; bb.gradient_rule({name}, x=...) attaches a rule to "
            "one, and bb.grad(f) is the derivative of a function"
        )
    if wrong:
        refuse(gradient, (), wrong)
    if has_wide_integers(x, *spacing):
        return in_float64(lambda x, *spacing: gradient(x, *spacing, axis=axis, edge_order=edge_order), x, *spacing)
    y: Any = upcast_half(inexact_operand("gradient", x))
    axes = axes_of("gradient", y, axis)
    if isinstance(axis, Sequence):  # in the given order
        axes = tuple(axis_of("gradient", y, a) for a in axis)
    count = len(spacing) or 1
    if count not in (1, len(axes)):
        raise ArgumentError(
            f"gradient: there are {count} spacings for {len(axes)} axes; give one for all, or one for each. "
            f"Operand: {describe((x,))}"
        )
    if one_integer(edge_order) not in (1, 2):
        raise ArgumentError(f"gradient: edge_order is 1 or 2, not {edge_order!r}. Operand: {describe((x,))}")
    steps = spacing if count == len(axes) and spacing else (spacing or (1.0,)) * len(axes)
    found = tuple(_slopes(x, y, along, step, edge_order) for along, step in zip(axes, steps, strict=True))
    return found[0] if len(found) == 1 else found


def _slopes(x: Any, y: Any, axis: int, step: Any, edge_order: int) -> Any:
    """The slopes of ``y``, which is ``x`` in at least 32 bits, along one axis."""
    n = y.shape[axis]
    if n <= edge_order:
        raise ShapeError(f"gradient: axis {axis} needs {edge_order + 1} elements at least. Operand: {describe((x,))}")
    if is_tensor(step):
        step = cast(float_operand("gradient", step), y.dtype)
        if step.ndim and step.shape != (n,):
            raise ShapeError(
                f"gradient: the coordinates of axis {axis} are a vector of length {n}, not {describe((step,))}"
            )
    else:
        step = number("gradient", "spacing", step, of=(x,))
    rise = call("diff", y, axis=axis, n=1)
    even = not is_tensor(step) or not step.ndim
    gaps = (
        step if even else call("reshape", call("diff", step, axis=0, n=1), shape=(n - 1, *(1,) * (y.ndim - axis - 1)))
    )
    secants = rise / gaps

    def share(own: int, other: int, count: int) -> Any:
        """The shares of the ``count`` gaps from ``own`` on in their sums with those from ``other`` on."""
        if even:
            return 0.5
        first, second = (_slice_axis(gaps, 0, start, start + count) for start in (own, other))
        return first / (first + second)

    def secant(start: int, count: int = 1) -> Any:
        return _slice_axis(secants, axis, start, start + count)

    # The slopes of parabolas through three points are means of secants, weighted by the opposite gaps.
    inside = secant(0, n - 2) * share(1, 0, n - 2) + secant(1, n - 2) * share(0, 1, n - 2)
    ends = [secant(0), secant(n - 2)]
    if edge_order == 2:
        ends[0] = ends[0] + (ends[0] - secant(1)) * share(0, 1, 1)
        ends[1] = ends[1] + (ends[1] - secant(n - 3)) * share(n - 2, n - 3, 1)
    return cast(call("concat", [ends[0], inside, ends[1]], axis=axis), inexact_operand("gradient", x).dtype)


def trapezoid(y: Tensor, x: Tensor | None = None, /, *, dx: float = 1.0, axis: int = -1) -> FloatTensor:
    """The integral of ``y`` along ``axis`` by the trapezoidal rule, at the points ``x``, or ``dx`` apart.

    ``x`` is a vector for ``axis``, or a tensor whose other axes broadcast with those of ``y``. Integers become the
    default float. Gradients go to both. Raises :class:`AxisError` for an axis that does not exist, :class:`ShapeError`
    for points that do not fit, :class:`DTypeError` for bool and quantized tensors.

        >>> import backburn as bb
        >>> y = bb.asarray([1.0, 2.0, 4.0])
        >>> bb.trapezoid(y).item(), bb.trapezoid(y, bb.asarray([0.0, 1.0, 3.0])).item()
        (4.5, 7.5)
        >>> bb.trapezoid(y, bb.asarray([[0.0, 1.0, 3.0], [0.0, 1.0, 2.0]])).tolist()
        [7.5, 4.5]
    """
    if has_wide_integers(y, x):
        return in_float64(trapezoid, y, x, dx=dx, axis=axis)
    given = [kind_operand("trapezoid", t, "FCI") for t in (y, x) if t is not None]
    values, *places = promote_operands("trapezoid", *given, kinds="FC")
    dtype, along = values.dtype, axis_of("trapezoid", values, axis)
    length = values.shape[along]
    steps: Any = number("trapezoid", "dx", dx)
    if places:
        (at,) = places
        over = 0 if at.ndim == 1 else axis_of("trapezoid", at, axis)
        if at.shape[over : over + 1] != (length,):
            raise ShapeError(f"trapezoid: x has {length} places along the axis. Operands: {describe((y, x))}")
        steps = call("diff", upcast_half(at), axis=over, n=1)
        if at.ndim == 1:
            steps = call("reshape", steps, shape=(steps.size, *(1,) * (values.ndim - along - 1)))
    before, after = (_slice_axis(upcast_half(values), along, *ends) for ends in ((0, length - 1), (1, length)))
    areas = call("mul", call("add", before, after), call("mul", steps, 0.5) if places else 0.5 * steps)
    return cast(call("sum", areas, axis=(axis_of("trapezoid", areas, axis),)), dtype)


def unwrap(x: T, /, *, discont: float | None = None, axis: int = -1, period: float = 2 * math.pi) -> T:
    """``x`` with multiples of ``period`` added so that elements along ``axis`` differ by half of it at most.

    Only differences of at least ``discont`` (by default half the period, the minimum) are changed. Integers stay
    integers with an integer ``period``, else they become the default float. The gradient passes unchanged: what is
    added is constant. Raises :class:`ArgumentError` unless ``period`` is positive and finite, :class:`AxisError` for an
    axis that does not exist, :class:`DTypeError` for unsigned integers, bool and quantized tensors.

        >>> import backburn as bb
        >>> bb.unwrap(bb.asarray([0, 80, -100, -20, 50]), period=360 // 2).tolist()
        [0, 80, 80, 160, 230]
    """
    y: Any = kind_operand("unwrap", x, "FI")
    bounded("unwrap", "period", period, above=0.0, below=math.inf, of=(x,))
    if y.dtype.name.startswith("u"):
        raise DTypeError(f"unwrap: differences of unsigned integers have no sign; cast. Operand: {describe((x,))}")
    exact = one_integer(period) if y.dtype.kind == "int" else None
    whole, period = (False, period) if exact is None else (True, exact)
    y = y if whole else float_operand("unwrap", y)
    along, dtype = axis_of("unwrap", y, axis), y.dtype
    least = max(period / 2, 0.0 if discont is None else number("unwrap", "discont", discont, of=(x,)))
    if y.shape[along] < 2:
        return y
    wide = y if whole else constant(upcast_half(y))
    steps = call("diff", wide, axis=along, n=1)
    half: Any = period // 2 if whole else period / 2
    near = call("sub", call("remainder", call("add", steps, half), period), half)
    if not whole or period % 2 == 0:  # half a period in either direction is as near: keep the sign
        near = call("where", call("equal", near, -half) & call("greater", steps, 0 if whole else 0.0), half, near)
    size = call("abs", steps)
    added = call("where", size < (math.ceil(least) if whole else least), 0 if whole else 0.0, call("sub", near, steps))
    total = cast(call("cumulative_sum", added, axis=along), dtype)
    first, rest = _slice_axis(y, along, 0, 1), _slice_axis(y, along, 1, y.shape[along])
    return call("concat", [first, call("add", rest, total)], axis=along)


def _slice_axis(x: Any, axis: int, start: int, stop: int) -> Any:
    """The elements of ``x`` from ``start`` to ``stop`` along ``axis``."""
    key = [slice(0, n, 1) for n in x.shape]
    key[axis] = slice(min(start, x.shape[axis]), max(stop, 0), 1)
    return call("slice", x, key=tuple(key))
