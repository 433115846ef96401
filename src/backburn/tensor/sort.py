"""Tensor functions: sorting, searching and order statistics.

Sorting is always stable: equal elements keep their order, in both directions. NaN comes last in both directions. Raises
:class:`AxisError` for an axis that does not exist and :class:`DTypeError` for quantized tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from backburn.base.contexts import RECORDING
from backburn.base.dtypes import float64, int64
from backburn.base.errors import ArgumentError, BackburnError, DTypeError, ShapeError
from backburn.batching import NeedsValues
from backburn.hints.arguments import explained
from backburn.ops.reduce import quantile_positions
from backburn.tensor.core.dispatch import (
    as_scalar,
    call,
    cast,
    create,
    float_operand,
    kind_operand,
    promote_operands,
    promote_to_tensors,
    tensor_operand,
    upcast_half,
)
from backburn.tensor.core.host import asarray
from backburn.tensor.core.integers import among, has_wide_integers, in_float64, is_integer
from backburn.tensor.core.messages import describe
from backburn.tensor.core.methods import method
from backburn.tensor.core.options import axes_of, axis_of, bounded, integer, number, one_of
from backburn.tensor.core.types import Axis, ModeResult, T
from backburn.tensor.core.wrapping import is_tensor

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, IntTensor, Tensor


@method
@explained
def sort(x: T, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> T:
    """The elements of ``x`` sorted along ``axis``, ascending or ``descending``.

    The sort is stable whatever ``stable`` says. The gradient of an element goes back to its position.

        >>> import backburn as bb
        >>> x = bb.asarray([[3, 1, 2], [9, 7, 8]])
        >>> bb.sort(x).tolist(), x.sort(axis=0, descending=True).tolist()
        ([[1, 2, 3], [7, 8, 9]], [[9, 7, 8], [3, 1, 2]])
    """
    y = kind_operand("sort", x, "FIB")
    return call("sort", y, axis=axis_of("sort", y, axis), descending=descending)


@method
@explained
def argsort(x: Tensor, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> IntTensor:
    """The indices, in int64, that sort ``x`` along ``axis``; see :func:`sort`.

    >>> import backburn as bb
    >>> x = bb.asarray([2, 1, 2, 0])
    >>> bb.argsort(x).tolist(), bb.argsort(x, descending=True).tolist()
    ([3, 1, 0, 2], [0, 2, 1, 3])
    """
    x = kind_operand("argsort", x, "FIB")
    return call("argsort", x, axis=axis_of("argsort", x, axis), descending=descending)


@method
def sort_with_indices(x: T, /, axis: int = -1, *, descending: bool = False) -> tuple[T, IntTensor]:
    """The sorted elements of ``x`` along ``axis``, and their indices: :func:`sort` and :func:`argsort` in one call.

    >>> import backburn as bb
    >>> values, indices = bb.sort_with_indices(bb.asarray([2.0, 3.0, 1.0]))
    >>> values.tolist(), indices.tolist()
    ([1.0, 2.0, 3.0], [2, 0, 1])
    """
    y = kind_operand("sort_with_indices", x, "FIB")
    along = axis_of("sort_with_indices", y, axis)
    return call("sort_with_indices", y, axis=along, descending=descending)


@method
@explained
def topk(x: T, k: int, /, axis: int = -1, *, largest: bool = True) -> tuple[T, IntTensor]:
    """The ``k`` largest (or smallest) elements along ``axis``, in order, and their indices.

    Equal elements are taken in the order of their indices, NaN last. Raises :class:`ArgumentError` when
    there are fewer than ``k``, :class:`DTypeError` for bool tensors.

        >>> import backburn as bb
        >>> values, indices = bb.topk(bb.asarray([5, 9, 1, 9]), 3)
        >>> values.tolist(), indices.tolist()
        ([9, 9, 5], [1, 3, 0])
    """
    y = kind_operand("topk", x, "FI")
    return call("topk", y, count=integer("topk", "k", k), axis=axis_of("topk", y, axis), largest=largest)


@method
@explained
def kthvalue(x: T, k: int, /, axis: int = -1, *, keepdims: bool = False) -> tuple[T, IntTensor]:
    """The ``k``-th smallest element along ``axis``, counted from 1, and its index.

    Raises :class:`ArgumentError` when there is no such element, :class:`DTypeError` for bool tensors.

        >>> import backburn as bb
        >>> value, index = bb.kthvalue(bb.asarray([5.0, 9.0, 1.0]), 2)
        >>> value.item(), index.item()
        (5.0, 0)
    """
    y = kind_operand("kthvalue", x, "FI")
    along = axis_of("kthvalue", y, axis)
    return call("kthvalue", y, nth=integer("kthvalue", "k", k), axis=along, keepdims=keepdims)


@method
def searchsorted(x1: Tensor, x2: Tensor | float, /, *, side: str = "left", sorter: Tensor | None = None) -> IntTensor:
    """For each value of ``x2``, the index at which inserting it keeps the sorted ``x1`` in order, in int64.

    With ``side="left"`` that is before equal elements, with ``"right"`` after them. ``sorter`` holds the indices that
    sort ``x1``. If ``x1`` has several axes, each row along the last is searched for the corresponding row of ``x2``. A
    number ``x2`` is a 0-d tensor of the promoted dtype. Raises :class:`ArgumentError` for another ``side``,
    :class:`ShapeError` for shapes that do not fit.

        >>> import backburn as bb
        >>> x = bb.asarray([1.0, 2.0, 2.0, 5.0])
        >>> bb.searchsorted(x, bb.asarray([2.0, 9.0])).tolist()
        [1, 4]
        >>> bb.searchsorted(x, bb.asarray([2.0, 9.0]), side="right").tolist(), bb.searchsorted(x, 3).item()
        ([3, 4], 3)
    """
    one_of("searchsorted", "side", side, ("left", "right"))
    tensor_operand("searchsorted", x1)
    scalar = None if is_tensor(x2) else as_scalar(x2)
    exact = is_integer(x1) and scalar is not None
    if not exact and has_wide_integers(x1, x2) and not is_integer(x1, x2):
        return in_float64(lambda x, y: searchsorted(x, y, side=side, sorter=sorter), x1, x2)
    x, values = (x1, scalar) if exact else promote_to_tensors("searchsorted", x1, x2)
    if sorter is not None:
        order = tensor_operand("searchsorted", sorter)
        if order.dtype.kind != "int" or order.shape != x.shape:
            raise DTypeError(f"searchsorted: sorter holds an int index for each element: {describe((x, order))}")
        x = call("take_along_axis", x, order, axis=axis_of("searchsorted", x, -1))
    if exact:
        return among("searchsorted", x, values, side == "right")
    return call("searchsorted", x, values, right=side == "right")


def interp(
    x: Tensor,
    xp: Tensor,
    fp: Tensor,
    /,
    *,
    left: float | None = None,
    right: float | None = None,
    period: float | None = None,
) -> FloatTensor:
    """Piecewise linear interpolation: the values at ``x`` of the line through the points ``(xp, fp)``.

    ``xp`` and ``fp`` are vectors of one length, and ``xp`` is increasing. Below the first point the result is ``left``,
    above the last one it is ``right``; by default, the value of that point. Integers become the default float dtype.
    With ``period``, ``x`` and ``xp`` are taken modulo its size and the line continues past the ends; then ``xp`` need
    not be in order, and ``left`` and ``right`` must be None. Gradients flow to all three. Raises :class:`ShapeError`
    unless the points are two such vectors, :class:`ArgumentError` for a ``period`` of 0 or one that is not finite.

        >>> import backburn as bb
        >>> xp, fp = bb.asarray([1.0, 2.0, 4.0]), bb.asarray([10.0, 20.0, 0.0])
        >>> bb.interp(bb.asarray([0.0, 1.5, 3.0, 9.0]), xp, fp).tolist()
        [10.0, 15.0, 10.0, 0.0]
        >>> bb.interp(bb.asarray([4.5, 8.0]), xp, fp, period=5.0).tolist()
        [2.5, 10.0]
    """
    if has_wide_integers(x, xp, fp):
        return in_float64(interp, x, xp, fp, left=left, right=right, period=period)
    at, places, values = promote_operands("interp", *(tensor_operand("interp", t) for t in (x, xp, fp)), kinds="F")
    count = places.size
    if places.ndim != 1 or places.shape != values.shape or not count:
        raise ShapeError(f"interp: xp and fp are vectors of one length, not {describe((xp, fp))}")
    if period is not None:
        size = abs(bounded("interp", "period", period, least=-math.inf, below=math.inf, of=(x,)))
        if not 0.0 < size < math.inf or left is not None or right is not None:
            raise ArgumentError(
                f"interp: period is a finite number other than 0, without left and right, not {period!r}. "
                f"Operands: {describe((x, xp, fp))}"
            )
        at, places = (call("remainder", t, size) for t in (at, places))
        order = call("argsort", places, axis=0, descending=False)
        places, values = (call("take", t, order, axis=0) for t in (places, values))
        places = call("concat", [places[-1:] - size, places, places[:1] + size], axis=0)
        values = call("concat", [values[-1:], values, values[:1]], axis=0)
        count += 2
    first, last = places[0], places[count - 1]
    index = call("clip", call("searchsorted", places, at, right=True) - 1, 0, max(count - 2, 0))
    y = call("take", values, index, axis=0)
    if count > 1:
        low, high = (call("take", places, i, axis=0) for i in (index, index + 1))
        share = call("clip", call("div", at - low, high - low), 0.0, 1.0)
        end = call("take", values, index + 1, axis=0)
        line = call("lerp", y, end, share)
        known = call("where", share < 0.5, y, end)  # exact at a point, even if the line to the next is infinite
        y = call("where", call("isnan", line) & ((share == 0.0) | (share == 1.0)), known, line)
    y = y if left is None else call("where", at < first, number("interp", "left", left), y)
    return y if right is None else call("where", at > last, number("interp", "right", right), y)


# ---- quantiles ----

#: Numbers from 0 to 1.
Quantiles: TypeAlias = "float | Sequence[float] | Tensor"

#: By method, the parameters ``alpha`` and ``beta`` of a quantile's position among the sorted elements (Hyndman and Fan,
#: "Sample Quantiles in Statistical Packages", 1996), and the elements whose mean is taken: the position plus the first
#: number, rounded, plus the second one. Without such elements, the two nearest ones are interpolated.
_METHODS: dict[str, tuple[float, float, tuple[tuple[str, int, int], ...]]] = {
    "linear": (1.0, 1.0, ()),
    "lower": (1.0, 1.0, (("floor", 0, 0),)),
    "higher": (1.0, 1.0, (("ceil", 0, 0),)),
    "nearest": (1.0, 1.0, (("round", 0, 0),)),
    "midpoint": (1.0, 1.0, (("floor", 0, 0), ("ceil", 0, 0))),
    "inverted_cdf": (0.0, 1.0, (("ceil", 0, 0),)),
    "averaged_inverted_cdf": (0.0, 1.0, (("ceil", 0, 0), ("floor", 1, 0))),
    "closest_observation": (0.0, 1.0, (("round", 1, -1),)),
    "interpolated_inverted_cdf": (0.0, 1.0, ()),
    "hazen": (0.5, 0.5, ()),
    "weibull": (0.0, 0.0, ()),
    "median_unbiased": (1 / 3, 1 / 3, ()),
    "normal_unbiased": (3 / 8, 3 / 8, ()),
}

_ROUNDING: dict[str, Callable[[float], int]] = {"floor": math.floor, "ceil": math.ceil, "round": round}


@method
@explained
def quantile(
    x: Tensor, q: Quantiles, /, axis: Axis = None, *, keepdims: bool = False, method: str = "linear"
) -> FloatTensor:
    """The quantile ``q`` of the elements over ``axis``.

    Between two adjacent elements, ``method`` interpolates (``"linear"``) or takes the ``"lower"`` or ``"higher"`` one,
    the ``"nearest"`` (ties go to the even index) or their mean (``"midpoint"``). The other methods are NumPy's, those
    of Hyndman and Fan: ``"inverted_cdf"``, ``"averaged_inverted_cdf"``, ``"closest_observation"``, which take elements
    or means of two, ``"interpolated_inverted_cdf"``, ``"hazen"``, ``"weibull"``, ``"median_unbiased"`` and
    ``"normal_unbiased"``, which interpolate. A sequence ``q`` gives one result for each, along a new first axis; the
    axes of a tensor ``q`` become the first axes.

    The result is NaN if an element is NaN. The gradient flows to the elements that are used and, if ``q`` is a tensor
    and the method interpolates, to ``q``: the slope to the right, and at the last element to the left. Raises
    :class:`ArgumentError` for a ``q`` outside 0 to 1 or an unknown ``method``, :class:`ShapeError` if there are no
    elements, and :class:`DTypeError` for bool and quantized tensors. A tensor ``q`` that is tracked, or differs within
    ``vmap``, is not read: outside 0 to 1, the result is NaN.

        >>> import backburn as bb
        >>> bb.quantile(bb.asarray([4.0, 1.0, 3.0, 2.0]), [0.0, 0.5, 1.0]).tolist()
        [1.0, 2.5, 4.0]
        >>> bb.quantile(bb.asarray([4.0, 1.0, 3.0, 2.0]), 0.5, method="higher").item()
        3.0
    """
    if has_wide_integers(x):
        return in_float64(quantile, x, q, axis=axis, keepdims=keepdims, method=method)
    y, fractions = float_operand("quantile", x), _quantiles("quantile", q)
    axes = axes_of("quantile", x, axis)
    one_of("quantile", "method", method, _METHODS, of=(x,))
    if is_tensor(fractions):
        return _tensor_quantile("quantile", x, fractions, axes, keepdims, method, ignore_nan=False)
    if method == "linear":
        return call("quantile", y, q=fractions, axis=axes, keepdims=keepdims)
    found = _element_quantile(y, fractions, axes, method)
    shape = _reduced_shape(y.shape, axes, keepdims)
    return call("reshape", found, shape=(*found.shape[:1], *shape) if isinstance(fractions, tuple) else shape)


def _quantiles(name: str, q: Any) -> Any:
    """One number or a tuple of them, as floats; a tensor if it is tracked, cannot be read, or has several axes."""
    try:
        if isinstance(q, int | float):
            return float(q)
        if is_tensor(q):
            if q.ndim > 1 or (RECORDING.get() and q.is_tracked):
                return float_operand(name, q)
            single, several = q.ndim == 0, (q,) if q.ndim == 0 else tuple(q)
        else:
            single = getattr(q, "ndim", None) == 0  # a scalar of NumPy
            several = (q,) if single else tuple(q)
        if not (RECORDING.get() and any(is_tensor(one) and one.is_tracked for one in several)):
            with suppress(NeedsValues):
                fractions = tuple(float(one) for one in several)
                return fractions[0] if single else fractions
    except (TypeError, ValueError, OverflowError) as cause:
        given = describe((q,)) or None
        raise ArgumentError(f"{name}: q is a number from 0 to 1 or a sequence of them, not {given}") from cause
    if is_tensor(q):
        return float_operand(name, q)
    of = next(one for one in several if is_tensor(one))
    return call("stack", promote_operands("stack", *(_as_tensor(one, of) for one in several)), axis=0)


def _as_tensor(value: Any, like: Any) -> Any:
    """A number as a tensor of the dtype of another, on its backend."""
    return value if is_tensor(value) else create("full", like.backend, shape=(), value=float(value), dtype=like.dtype)


def _tensor_quantile(
    name: str, x: Any, q: Any, axes: tuple[int, ...], keepdims: bool, method: str, *, ignore_nan: bool
) -> Any:
    """The quantile for each element of the tensor ``q``; NaN for those outside of 0 to 1."""
    y: Any = float_operand(name, x)
    ordered: Any = _sort_over(upcast_half(y), axes)
    length, *rest = ordered.shape
    if length == 0:
        raise ShapeError(f"{name}: a quantile of no elements has no value. Operand: {describe((x,))}")
    flat = call("reshape", cast(q, float64), shape=(q.size, *(1 for _ in rest)))
    inside = (flat >= 0.0) & (flat <= 1.0)
    flat = call("where", inside, flat, 0.0)
    if ignore_nan:
        total: Any = call("sum", cast(~call("isnan", ordered), float64), axis=(0,), keepdims=True)
        last = call("maximum", total - 1.0, 0.0)
        places = _quantile_position(flat, last + 1.0, method)
    else:
        last, places = length - 1.0, _quantile_position(flat, float(length), method)

    def at(found: Any) -> Any:
        index = cast(call("clip", found, 0.0, last), int64)
        return call("take_along_axis", ordered, call("broadcast_to", index, shape=(q.size, *rest)), axis=0)

    ends = _METHODS[method][2]
    if ends:
        value = _mean_pair([at(call(how, places + plus) + then) for how, plus, then in ends])
    else:
        within = call("clip", places, 0.0, last)
        low = call(
            "minimum", call("floor", within), call("maximum", last - 1.0, 0.0) if ignore_nan else max(last - 1.0, 0.0)
        )
        value = _interpolate(at(low), at(low + 1.0), cast(within - low, ordered.dtype))
    bad = ~inside if ignore_nan else ~inside | call("isnan", ordered[length - 1 :])
    shape = (*q.shape, *_reduced_shape(y.shape, axes, keepdims))
    return cast(call("reshape", call("where", bad, math.nan, value), shape=shape), y.dtype)


def _reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """A shape without ``axes``, or with length 1 there."""
    return tuple(1 if a in axes else n for a, n in enumerate(shape) if keepdims or a not in axes)


def _element_quantile(x: Any, q: float | tuple[float, ...], axes: tuple[int, ...], method: str) -> Any:
    """Quantiles by another method than ``"linear"``, along a new first axis, followed by the axes that are kept."""
    length = math.prod(x.shape[a] for a in axes)
    try:
        quantile_positions(q, length)
    except BackburnError as error:
        raise type(error)(f"quantile: {error}. Operand: {describe((x,))}") from None
    places = [_quantile_position(one, float(length), method) for one in (q if isinstance(q, tuple) else (q,))]
    ordered = _sort_over(x, axes)

    def at(found: list[int]) -> Any:
        within = [min(max(place, 0), length - 1) for place in found]
        return call("take", ordered, asarray(within, dtype=int64, backend=x.backend), axis=0)

    _, _, ends = _METHODS[method]
    if ends:
        found = _mean_pair([at([_ROUNDING[how](p + plus) + then for p in places]) for how, plus, then in ends])
    else:
        within = [min(max(place, 0.0), length - 1.0) for place in places]
        low, high = ([how(place) for place in within] for how in (math.floor, math.ceil))
        parts = asarray([p - n for p, n in zip(within, low, strict=True)], dtype=x.dtype, backend=x.backend)
        found = _interpolate(at(low), at(high), call("reshape", parts, shape=(parts.size, *(1,) * (ordered.ndim - 1))))
    return call("where", call("isnan", at([length - 1])), math.nan, found)


def _quantile_position(q: Any, count: Any, method: str) -> Any:
    """The position, from 0, of a quantile among ``count`` sorted elements; both are numbers or float tensors.

    It may lie before the first or after the last one.
    """
    alpha, beta, _ = _METHODS[method]
    if alpha == beta == 1.0:
        return q * (count - 1.0)
    return count * q + (alpha + q * (1.0 - alpha - beta)) - 1.0


def _mean_pair(found: list[Any]) -> Any:
    """The mean of one tensor or two, without overflow."""
    return found[0] if len(found) == 1 else found[0] * 0.5 + found[1] * 0.5


def _interpolate(low: Any, high: Any, part: Any) -> Any:
    """The value at ``part`` of the way between two elements, never outside of them."""
    gap = high - low
    near = call("where", part < 0.5, low + gap * part, high - gap * (1.0 - part))
    # Infinities, and a gap too large for the dtype; a part of 0 or 1 is one of the two elements itself.
    weighted = call("where", part == 0.0, low, call("where", part == 1.0, high, low * (1.0 - part) + high * part))
    return call("where", call("isfinite", gap), near, weighted)


def _sort_over(x: Any, axes: tuple[int, ...]) -> Any:
    """The sorted elements over ``axes``, along a new first axis."""
    kept_axes = tuple(a for a in range(x.ndim) if a not in axes)
    shape = (math.prod(x.shape[a] for a in axes), *(x.shape[a] for a in kept_axes))
    return call("sort", call("reshape", call("permute_dims", x, axes=(*axes, *kept_axes)), shape=shape), axis=0)


@method
@explained
def median(x: Tensor, /, axis: Axis = None, *, keepdims: bool = False) -> FloatTensor:
    """The middle of the sorted elements over ``axis``, or the mean of the two in the middle; NaN if one is NaN.

    Raises :class:`ShapeError` where there is no element, :class:`DTypeError` for bool and quantized tensors.

        >>> import backburn as bb
        >>> bb.median(bb.asarray([9.0, 1.0, 2.0, 4.0])).item()
        3.0
    """
    if has_wide_integers(x):
        return in_float64(median, x, axis=axis, keepdims=keepdims)
    y = float_operand("median", x)
    return call("median", y, axis=axes_of("median", x, axis), keepdims=keepdims)


@method
@explained
def median_with_indices(x: T, /, axis: int = -1, *, keepdims: bool = False) -> tuple[T, IntTensor]:
    """The middle of the sorted elements along ``axis``, or the lower of the two in the middle, and its index.

    With NaN, it is the first NaN. The element gets the whole gradient. Raises :class:`ShapeError` where there is no
    element, :class:`DTypeError` for bool and quantized tensors.

        >>> import backburn as bb
        >>> values, indices = bb.median_with_indices(bb.asarray([[9.0, 1.0, 2.0, 4.0], [3.0, 3.0, 0.0, 5.0]]))
        >>> values.tolist(), indices.tolist()
        ([2.0, 3.0], [2, 0])
    """
    name = "median_with_indices"
    y: Any = kind_operand(name, x, "FI")
    along = axis_of(name, y, axis)
    n = y.shape[along]
    if not n:
        raise ShapeError(f"{name}: there are no elements. Operand: {describe((x,))}")
    index = call("kthvalue", y, nth=(n + 1) // 2, axis=along, keepdims=True)[1]
    if y.dtype.is_floating:
        top, place = call("max_with_indices", y, axis=along, keepdims=True)
        index = call("where", call("isnan", top), place, index)
    found = call("take_along_axis", y, index, axis=along), index
    shape = _reduced_shape(y.shape, (along,), keepdims)
    return found if keepdims else (call("reshape", found[0], shape=shape), call("reshape", index, shape=shape))


@method
@explained
def mode(x: T, /, axis: Axis = None, *, keepdims: bool = False) -> ModeResult[T]:
    """The most frequent element over ``axis`` (the smallest, if there are several), and its count, in int64.

    Each NaN is distinct from all others; 0 and -0 are equal. The gradient goes to one of the equal elements. Raises
    :class:`ShapeError` if there are no elements, and :class:`DTypeError` for bool tensors.

        >>> import backburn as bb
        >>> values, counts = bb.mode(bb.asarray([[3, 1, 3], [2, 2, 1]]), axis=1)
        >>> values.tolist(), counts.tolist()
        ([3, 2], [2, 2])
    """
    y = kind_operand("mode", x, "FI")
    axes = axes_of("mode", y, axis)
    ordered: Any = _sort_over(y, axes)
    n, rest = ordered.shape[0], ordered.shape[1:]
    if n == 0:
        raise ShapeError(f"mode: there is no element to choose from. Operand: {describe((x,))}")
    places = create("arange", y.backend, start=0, stop=n, step=1, dtype=int64)
    places = call("reshape", places, shape=(n, *(1 for _ in rest)))
    # A run of equal elements begins where one differs from that before it, and ends where it is longest.
    other = call("not_equal", ordered, call("roll", ordered, shift=(1,), axis=(0,)))
    starts = call("where", call("logical_or", call("equal", places, 0), other), places, 0)
    runs = places - call("cummax", starts, axis=0) + 1
    end = call("argmax", runs, axis=0, keepdims=True)
    shape = _reduced_shape(y.shape, axes, keepdims)
    return ModeResult(
        *(call("reshape", call("take_along_axis", part, end, axis=0), shape=shape) for part in (ordered, runs))
    )
