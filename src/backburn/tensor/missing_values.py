"""Tensor functions: reductions that ignore NaN, and replacing NaN with numbers.

``axis`` and ``keepdims`` are those of :mod:`backburn.tensor.reduce`. Ignored elements have a gradient of 0. Integers
and booleans are never NaN: for them, the results are those of the plain function.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from backburn.base.dtypes import float64, uint8
from backburn.base.errors import BackburnError
from backburn.hints.arguments import explained
from backburn.ops.reduce import quantile_positions
from backburn.tensor import reduce
from backburn.tensor.arithmetic import maximum
from backburn.tensor.core.dispatch import call, cast, float_operand, kind_operand, upcast_half
from backburn.tensor.core.host import asarray
from backburn.tensor.core.integers import has_wide_integers, in_float64
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import axes_of, axis_of, number, one_of
from backburn.tensor.core.types import Axis, T
from backburn.tensor.core.wrapping import is_tensor
from backburn.tensor.elementwise import sqrt
from backburn.tensor.inspection import finfo
from backburn.tensor.logic import isnan
from backburn.tensor.sort import _METHODS, Quantiles, _quantiles, _tensor_quantile

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, IntTensor, Tensor


# ---- reductions ----


@explained
def nansum(x: T, /, axis: Axis = None, *, keepdims: bool = False) -> T:
    """The sum over ``axis``, ignoring NaN; 0 if there is nothing else. Dtypes are those of :func:`sum`.

    >>> import backburn as bb
    >>> bb.nansum(bb.asarray([[1.0, bb.nan], [bb.nan, bb.nan]]), axis=1).tolist()
    [1.0, 0.0]
    """
    y: Any = kind_operand("nansum", x, "FCIB")
    axes = axes_of("nansum", y, axis)
    return reduce.sum(_fill_nan(y, 0.0) if y.dtype.has_gradient else y, axis=axes, keepdims=keepdims)


@explained
def nanprod(x: T, /, axis: Axis = None, *, keepdims: bool = False) -> T:
    """The product over ``axis``, ignoring NaN; 1 if there is nothing else. Dtypes are those of :func:`prod`.

    >>> import backburn as bb
    >>> bb.nanprod(bb.asarray([[2.0, bb.nan, 3.0], [bb.nan, bb.nan, bb.nan]]), axis=1).tolist()
    [6.0, 1.0]
    """
    y: Any = kind_operand("nanprod", x, "FCIB")
    axes = axes_of("nanprod", y, axis)
    return reduce.prod(_fill_nan(y, 1.0) if y.dtype.has_gradient else y, axis=axes, keepdims=keepdims)


@explained
def nanmean(x: Tensor, /, axis: Axis = None, *, keepdims: bool = False) -> FloatTensor:
    """The mean over ``axis``, ignoring NaN; NaN if there is nothing else.

    Dtypes are those of :func:`mean`.

        >>> import backburn as bb
        >>> bb.nanmean(bb.asarray([[1.0, bb.nan, 2.0], [bb.nan, bb.nan, bb.nan]]), axis=1).tolist()
        [1.5, nan]
    """
    y: Any = kind_operand("nanmean", x, "FCIB")
    axes = axes_of("nanmean", y, axis)
    if not y.dtype.has_gradient:
        return reduce.mean(y, axis=axes, keepdims=keepdims)
    return cast(_mean(upcast_half(y), axes, keepdims), y.dtype)


@explained
def nanvar(x: Tensor, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> FloatTensor:
    """The variance over ``axis`` of the ``n`` elements that are not NaN; NaN unless ``n > correction``.

    Dtypes and ``correction`` are those of :func:`var`.

        >>> import backburn as bb
        >>> bb.nanvar(bb.asarray([1.0, bb.nan, 5.0])).item()
        4.0
    """
    if has_wide_integers(x):
        return in_float64(nanvar, x, axis=axis, correction=correction, keepdims=keepdims)
    y, differences, freedom = _deviations("nanvar", x, axis, correction, keepdims)
    squares = reduce.sum(differences * differences, axis=axes_of("nanvar", y, axis), keepdims=keepdims)
    return cast(squares / freedom, y.dtype)


@explained
def nanstd(x: Tensor, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> FloatTensor:
    """The standard deviation over ``axis``, ignoring NaN: the square root of :func:`nanvar`.

    As in :func:`std`, the gradient is 0 where all of the elements are equal.

        >>> import backburn as bb
        >>> bb.nanstd(bb.asarray([1.0, bb.nan, 5.0])).item()
        2.0
    """
    if has_wide_integers(x):
        return in_float64(nanstd, x, axis=axis, correction=correction, keepdims=keepdims)
    y, differences, freedom = _deviations("nanstd", x, axis, correction, keepdims)
    norm = reduce.vector_norm(differences, axis=axes_of("nanstd", y, axis), keepdims=keepdims)
    return cast(norm / sqrt(freedom), y.dtype)


@explained
def nanmax(x: T, /, axis: Axis = None, *, keepdims: bool = False, initial: float | None = None) -> T:
    """The largest element over ``axis``, ignoring NaN; NaN if there is nothing else.

    ``initial`` and errors are those of :func:`max`.

        >>> import backburn as bb
        >>> bb.nanmax(bb.asarray([[1.0, bb.nan, 2.0], [bb.nan, bb.nan, bb.nan]]), axis=1).tolist()
        [2.0, nan]
    """
    return _extreme("nanmax", reduce.max, -math.inf, x, axis, keepdims, initial)


@explained
def nanmin(x: T, /, axis: Axis = None, *, keepdims: bool = False, initial: float | None = None) -> T:
    """The smallest element over ``axis``, ignoring NaN; NaN if there is nothing else.

    ``initial`` and errors are those of :func:`min`.

        >>> import backburn as bb
        >>> bb.nanmin(bb.asarray([3.0, bb.nan, 2.0])).item()
        2.0
    """
    return _extreme("nanmin", reduce.min, math.inf, x, axis, keepdims, initial)


@explained
def nanargmax(x: Tensor, /, axis: int | None = None, *, keepdims: bool = False) -> IntTensor:
    """The index of the first largest element along ``axis``, ignoring NaN, in int64; -1 if there is nothing else.

    Without an axis, the index is one in row-major order. NumPy raises an error where all elements are NaN. Raises the
    errors of :func:`argmax`.

        >>> import backburn as bb
        >>> bb.nanargmax(bb.asarray([[1.0, bb.nan, 2.0], [bb.nan, bb.nan, bb.nan]]), axis=1).tolist()
        [2, -1]
    """
    return _index("nanargmax", reduce.argmax, -math.inf, x, axis, keepdims)


@explained
def nanargmin(x: Tensor, /, axis: int | None = None, *, keepdims: bool = False) -> IntTensor:
    """The index of the first smallest element along ``axis``, ignoring NaN, in int64; -1 if there is nothing else.

    Without an axis, the index is one in row-major order. Raises the errors of :func:`argmin`.

        >>> import backburn as bb
        >>> bb.nanargmin(bb.asarray([bb.nan, 3.0, 2.0])).item()
        2
    """
    return _index("nanargmin", reduce.argmin, math.inf, x, axis, keepdims)


@explained
def nanmedian(x: Tensor, /, axis: Axis = None, *, keepdims: bool = False) -> FloatTensor:
    """The median over ``axis``, ignoring NaN; NaN if there is nothing else. Raises the errors of :func:`median`.

    >>> import backburn as bb
    >>> bb.nanmedian(bb.asarray([[1.0, bb.nan, 2.0], [bb.nan, bb.nan, bb.nan]]), axis=1).tolist()
    [1.5, nan]
    """
    if has_wide_integers(x):
        return in_float64(nanmedian, x, axis=axis, keepdims=keepdims)
    return _quantile("nanmedian", x, 0.5, axis, keepdims, "linear")


@explained
def nanquantile(
    x: Tensor, q: Quantiles, /, axis: Axis = None, *, keepdims: bool = False, method: str = "linear"
) -> FloatTensor:
    """The quantile ``q`` over ``axis``, ignoring NaN; NaN if there is nothing else.

    Parameters, methods, gradients and errors are those of :func:`quantile`.

        >>> import backburn as bb
        >>> bb.nanquantile(bb.asarray([4.0, 1.0, bb.nan, 3.0, 2.0]), [0.0, 0.5, 1.0]).tolist()
        [1.0, 2.5, 4.0]
    """
    if has_wide_integers(x):
        return in_float64(nanquantile, x, q, axis=axis, keepdims=keepdims, method=method)
    return _quantile("nanquantile", x, _quantiles("nanquantile", q), axis, keepdims, method)


# ---- replacing NaN ----


def nan_to_num(x: T, /, *, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> T:
    """``x`` with NaN replaced by ``nan``, and the infinities by ``posinf`` and ``neginf``.

    By default, infinities become the largest and the smallest finite number of the dtype. Replaced elements have a
    gradient of 0. Integers and booleans are returned unchanged.

        >>> import backburn as bb
        >>> bb.nan_to_num(bb.asarray([1.0, bb.nan, -bb.inf]), neginf=-100.0).tolist()
        [1.0, 0.0, -100.0]
    """
    y: Any = kind_operand("nan_to_num", x, "FIB")
    if not y.dtype.is_floating:
        return y
    largest = finfo(y).max
    for found, given in (
        (isnan(y), number("nan_to_num", "nan", nan)),
        (y == math.inf, largest if posinf is None else number("nan_to_num", "posinf", posinf)),
        (y == -math.inf, -largest if neginf is None else number("nan_to_num", "neginf", neginf)),
    ):
        y = call("where", found, given, y)
    return y


# ---- helpers ----


def _fill_nan(x: Any, value: float) -> Any:
    return call("where", isnan(x), value, x)


def _count(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    part = x.dtype.part if x.dtype.kind == "complex" else x.dtype
    return reduce.sum(cast(~isnan(x), part), axis=axes, keepdims=keepdims)


def _mean(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    return reduce.sum(_fill_nan(x, 0.0), axis=axes, keepdims=keepdims) / _count(x, axes, keepdims)


def _deviations(name: str, x: Any, axis: Axis, correction: float, keepdims: bool) -> tuple[Any, Any, Any]:
    """The operand, its deviations from the mean (0 where it is NaN), and the divisor of their squares."""
    y: Any = float_operand(name, x)
    axes, wide = axes_of(name, y, axis), upcast_half(y)
    differences = call("where", isnan(wide), 0.0, wide - _mean(wide, axes, True))
    return y, differences, maximum(_count(wide, axes, keepdims) - number(name, "correction", correction), 0.0)


def _quantile(
    name: str, x: Any, q: Any, axis: Axis, keepdims: bool, method: str
) -> Any:  # fmt: skip
    """Quantiles of the elements other than NaN, whose number differs from line to line."""
    y: Any = float_operand(name, x)
    axes = axes_of(name, y, axis)
    one_of(name, "method", method, _METHODS, of=(x,))
    if is_tensor(q):
        return _tensor_quantile(name, x, q, axes, keepdims, method, ignore_nan=True)
    several = q if isinstance(q, tuple) else (q,)
    try:
        quantile_positions(several, math.prod(y.shape[a] for a in axes))
    except BackburnError as error:
        raise type(error)(f"{name}: {error}. Operand: {describe((x,))}") from None
    parts = asarray(several, dtype=float64, backend=y.backend)
    return _tensor_quantile(
        name, x, parts if isinstance(q, tuple) else parts[0], axes, keepdims, method, ignore_nan=True
    )


def _index(name: str, index: Any, least: float, x: Any, axis: int | None, keepdims: bool) -> Any:
    y: Any = kind_operand(name, x, "FI")
    if axis is not None:
        axis = axis_of(name, y, axis)
    found = index(_fill_nan(y, least) if y.dtype.is_floating else y, axis=axis, keepdims=keepdims)
    if not y.dtype.is_floating:
        return found
    # NaN was replaced by the least value: where that is the extremum, the first element that is not NaN counts.
    numbers = ~isnan(y)
    only_least = reduce.all(~numbers | (y == least), axis=axis, keepdims=keepdims)
    first = reduce.argmax(cast(numbers, uint8), axis=axis, keepdims=keepdims)
    found = call("where", only_least, first, found)
    return call("where", reduce.any(numbers, axis=axis, keepdims=keepdims), found, -1)


def _extreme(name: str, extreme: Any, least: float, x: Any, axis: Axis, keepdims: bool, initial: float | None) -> Any:
    y: Any = kind_operand(name, x, "FI")
    axes = axes_of(name, y, axis)
    if not y.dtype.is_floating:
        return extreme(y, axis=axes, keepdims=keepdims, initial=initial)
    found = extreme(_fill_nan(y, least), axis=axes, keepdims=keepdims, initial=initial)
    if initial is not None:
        return found
    return call("where", reduce.all(isnan(y), axis=axes, keepdims=keepdims), math.nan, found)
