"""Tensor functions: moving and repeating elements, padding, windows and diagonals.

Negative axes count from the end. Gradients are moved back, and summed for elements that were repeated. Raises
:class:`AxisError` for an axis that is out of range or repeated, :class:`ShapeError` for lengths that do not fit, and
:class:`DTypeError` for quantized tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from operator import index
from typing import TYPE_CHECKING, Any, Never

from backburn.base.errors import ArgumentError, AxisError, ShapeError
from backburn.hints.arguments import explained, plain_signature, refuse
from backburn.tensor import reduce
from backburn.tensor.core import host
from backburn.tensor.core.dispatch import call, is_quantized, kind_operand, promote_operands, tensor_operand
from backburn.tensor.core.messages import describe
from backburn.tensor.core.methods import method
from backburn.tensor.core.options import axes_of, axis_of, integer, integers_of, one_of, shape_of
from backburn.tensor.core.types import T
from backburn.tensor.creation import _fit_scalar
from backburn.tensor.quantized import exact_or_float
from backburn.tensor.shape import moveaxis, permute_dims, reshape, split, swapaxes

if TYPE_CHECKING:
    from backburn.tensor.classes import Tensor

_Shape = tuple[int, ...]

#: The modes of :func:`pad`.
_MODES = ("constant", "reflect", "symmetric", "edge", "wrap")


# ---- moving and repeating ----


@method
@plain_signature
def flip(x: T, /, axis: int | Sequence[int] | None = None, *surplus: Never, **wrong: Never) -> T:
    """``x`` with its elements in reverse order along ``axis``, or along all axes.

    >>> import backburn as bb
    >>> bb.flip(bb.asarray([[1, 2], [3, 4]]), axis=1).tolist()
    [[2, 1], [4, 3]]
    """
    if surplus or wrong:
        refuse(flip, surplus, wrong)
    x = kind_operand("flip", x)
    return call("flip", x, axis=axes_of("flip", x, axis))


def rot90(x: T, /, k: int = 1, axes: Sequence[int] = (0, 1)) -> T:
    """``x`` rotated ``k`` times by 90 degrees in the plane of two ``axes``, from the first towards the second.

    A negative ``k`` rotates the other way. Raises :class:`AxisError` unless ``axes`` are two different axes.

        >>> import backburn as bb
        >>> x = bb.asarray([[1, 2], [3, 4]])
        >>> bb.rot90(x).tolist(), bb.rot90(x, -1).tolist()
        ([[2, 4], [1, 3]], [[3, 1], [4, 2]])
    """
    x = kind_operand("rot90", x, "FCIBQ")
    given = integers_of("rot90", "axes", axes)
    plane = [axis_of("rot90", x, a) for a in given]
    if len(set(plane)) != 2 or len(plane) != 2:
        raise AxisError(f"rot90: axes are two different axes, not {list(given)}. Operand: {describe((x,))}")
    turns = integer("rot90", "k", k) % 4
    if turns == 2:
        return flip(x, axis=plane)
    if turns:
        x = flip(swapaxes(x, *plane), axis=plane[0] if turns == 1 else plane[1])
    return x


@method
@explained
def roll(x: T, /, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> T:
    """``x`` with its elements shifted cyclically by ``shift`` positions along ``axis``.

    Several axes take one shift each, or the same. Without an axis the elements move in row-major order.

        >>> import backburn as bb
        >>> bb.roll(bb.arange(5), 2).tolist(), bb.roll(bb.asarray([[1, 2], [3, 4]]), 1, axis=0).tolist()
        ([3, 4, 0, 1, 2], [[3, 4], [1, 2]])
    """
    return exact_or_float(lambda y: _roll(y, shift, axis), kind_operand("roll", x))


def _roll(x: Any, shift: int | Sequence[int], axis: int | Sequence[int] | None) -> Any:
    if axis is None:
        return reshape(roll(reshape(x, (x.size,)), shift, axis=0), x.shape)
    axes, shifts = integers_of("roll", "axis", axis), integers_of("roll", "shift", shift)
    if len(shifts) == 1:
        shifts *= len(axes)
    if len(axes) == 1 and len(shifts) > 1:
        shifts = (sum(shifts),)
    if len(shifts) != len(axes):
        raise ArgumentError(f"roll: {len(shifts)} shifts for {len(axes)} axes. Operand: {describe((x,))}")
    total: dict[int, int] = {}
    for a, by in zip(axes, shifts, strict=True):
        place = axis_of("roll", x, a)
        total[place] = total.get(place, 0) + by
    order = tuple(sorted(total))
    return call("roll", x, shift=tuple([total[a] for a in order]), axis=order)


@method
def tile(x: T, repetitions: int | Sequence[int], /) -> T:
    """``x`` repeated the given number of times along each axis; fewer numbers than axes are for the last axes.

    More numbers than axes add leading axes.

        >>> import backburn as bb
        >>> bb.tile(bb.asarray([1, 2]), (2, 2)).tolist()
        [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
    times = shape_of("tile", repetitions)
    return exact_or_float(lambda y: _tile(y, times), kind_operand("tile", x, "FCIBQ"))


def _tile(x: Any, times: _Shape) -> Any:
    times = (1,) * (x.ndim - len(times)) + times
    x = reshape(x, (1,) * (len(times) - x.ndim) + x.shape)
    if not is_quantized(x):
        return call("tile", x, repeats=times)
    for axis, count in enumerate(times):
        x = call("concat", [x] * count, axis=axis) if count else split(x, [0, x.shape[axis]], axis=axis)[0]
    return x


@method
@explained
def repeat(x: T, repeats: int | Sequence[int] | Tensor, /, axis: int | None = None) -> T:
    """Each entry along ``axis`` repeated ``repeats`` times in a row; one number for all entries, or one for each.

    Without an axis the elements are taken in row-major order. An int tensor of ``repeats`` is read on the host, since
    the shape of the result depends on it.

        >>> import backburn as bb
        >>> bb.repeat(bb.asarray([1, 2]), 2).tolist(), bb.repeat(bb.asarray([1, 2, 3]), [0, 1, 2]).tolist()
        ([1, 1, 2, 2], [2, 3, 3])
    """
    return exact_or_float(lambda y: _repeat(y, repeats, axis), kind_operand("repeat", x, "FCIBQ"))


def _repeat(x: Any, repeats: int | Sequence[int] | Tensor, axis: int | None) -> Any:
    if axis is None:
        x, axis = reshape(x, (x.size,)), 0
    axis = axis_of("repeat", x, axis)
    if type(repeats) is int and 0 <= repeats < 1 << 31 and not is_quantized(x):
        return call("repeat", x, repeats=repeats, axis=axis)
    counts = host.host_counts("repeat", repeats)
    if len(counts) == 1 and is_quantized(x):
        counts = counts.repeat(x.shape[axis])
    elif len(counts) == 1:
        return call("repeat", x, repeats=int(counts[0]), axis=axis)
    if len(counts) != x.shape[axis]:
        raise ShapeError(
            f"repeat: {len(counts)} numbers of repeats for the {x.shape[axis]} entries along axis {axis} of "
            f"{describe((x,))}"
        )
    places = host.asarray(host.places(counts), backend=x.backend)
    return call("take", x, places, axis=axis)


@method
@explained
def pad(
    x: T, widths: int | Sequence[int] | Sequence[Sequence[int]], /, *, mode: str = "constant", value: complex = 0
) -> T:
    """``x`` with more elements at the ends of its axes.

    ``widths`` is one number for all ends, ``(before, after)`` for all axes, or a pair for each axis. The new elements
    depend on ``mode``: ``value`` (``"constant"``); ``x`` mirrored at its first and last element (``"reflect"``), or
    beyond them, so that they are repeated (``"symmetric"``); only these two elements (``"edge"``); or ``x`` continued
    periodically (``"wrap"``). In mode ``"constant"`` a negative width removes elements; raises :class:`ShapeError` if
    there are too few.

        >>> import backburn as bb
        >>> bb.pad(bb.arange(3), (2, 1), mode="reflect").tolist(), bb.pad(bb.arange(2), 1, value=9).tolist()
        ([2, 1, 0, 1, 2, 1], [9, 0, 1, 9])
        >>> bb.pad(bb.arange(3), (2, 1), mode="symmetric").tolist()
        [1, 0, 0, 1, 2, 2]
        >>> bb.pad(bb.arange(4), (-1, 1)).tolist()
        [1, 2, 3, 0]
    """
    x = kind_operand("pad", x)
    ends = _pad_ends("pad", widths, x.ndim)
    if len(ends) != x.ndim:
        raise ShapeError(f"pad: {len(ends)} pairs of widths for {x.ndim} axes. Operand: {describe((x,))}")
    if one_of("pad", "mode", mode, _MODES, of=(x,)) == "constant" and any(n < 0 for pair in ends for n in pair):
        x, ends = _crop(x, ends), tuple((max(before, 0), max(after, 0)) for before, after in ends)
    if mode == "symmetric":
        return _pad_symmetric(x, ends)
    return call("pad", x, widths=ends, mode=mode, value=_fit_scalar("pad", value, x.dtype))


def _pad_symmetric(x: Any, ends: tuple[_Shape, ...]) -> Any:
    """``x`` with its outermost elements before and after it in reverse order, along each axis."""
    for axis, (before, after) in enumerate(ends):
        length = x.shape[axis]
        if not (0 <= before <= length and 0 <= after <= length):
            raise ShapeError(
                f"pad: mode 'symmetric' takes widths from 0 to the {length} elements of axis {axis}, not "
                f"{[before, after]}. Operand: {describe((x,))}"
            )
        if before or after:
            first, last = (split(x, [n, length - n], axis=axis)[i] for i, n in enumerate((before, length - after)))
            x = call("concat", [flip(first, axis=axis), x, flip(last, axis=axis)], axis=axis)
    return x


def _pad_ends(name: str, widths: Any, rank: int) -> tuple[tuple[int, int], ...]:
    """A pair of widths for each of ``rank`` axes, of integers of any kind; given pairs may be more or fewer."""
    try:
        return tuple((index(before), index(after)) for before, after in widths)
    except (TypeError, ValueError, ShapeError):
        pass
    with suppress(ArgumentError):
        numbers = integers_of(name, "widths", widths)
        if len(numbers) in (1, 2):
            return ((numbers[0], numbers[-1]),) * rank
    words = f"widths are an integer, a pair, or a pair for each axis, not {widths!r}"
    raise ArgumentError(f"{name}: {words}")


def _crop(x: Any, ends: tuple[_Shape, ...]) -> Any:
    """``x`` without the elements that negative widths cut off."""
    key = tuple(slice(max(-before, 0), n - max(-after, 0), 1) for n, (before, after) in zip(x.shape, ends, strict=True))
    for axis, kept in enumerate(key):
        if kept.start > kept.stop:
            raise ShapeError(
                f"pad: the widths {list(ends[axis])} cut off more than the {x.shape[axis]} elements of axis {axis}. "
                f"Operand: {describe((x,))}"
            )
    return call("slice", x, key=key)


# ---- windows ----


def _windows(name: str, x: Any, axis: Any, **options: Any) -> tuple[_Shape, list[int], dict[str, _Shape]]:
    """Sorted axes, the indices of the given ones among them, and options with a number for each axis."""
    given = integers_of(name, "axis", axis)
    axes = axes_of(name, x, given)
    order = [axes.index(axis_of(name, x, a)) for a in given]
    ordered = {}
    for option, value in options.items():
        numbers = (value,) * len(axes) if isinstance(value, int) else shape_of(name, value)
        if len(numbers) != len(axes):
            raise ArgumentError(f"{name}: {option} has {len(numbers)} numbers for {len(axes)} axes {list(given)}")
        ordered[option] = tuple(numbers[order.index(i)] for i in range(len(axes)))
    return axes, order, ordered


def sliding_window(
    x: T,
    size: int | Sequence[int],
    /,
    *,
    axis: int | Sequence[int] = -1,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
) -> T:
    """All windows of ``size`` elements over ``axis``, as new last axes; ``axis`` then indexes the windows.

    Window ``i`` begins at element ``i * stride`` and takes every ``dilation``-th; windows that do not fit are left out.
    Options are a number, or one for each axis. The NumPy backend copies nothing. Raises :class:`ShapeError` if no
    window fits.

        >>> import backburn as bb
        >>> bb.sliding_window(bb.arange(5), 3, stride=2).tolist()
        [[0, 1, 2], [2, 3, 4]]
    """
    x = kind_operand("sliding_window", x)
    axes, order, options = _windows("sliding_window", x, axis, size=size, stride=stride, dilation=dilation)
    result = call("sliding_window", x, axis=axes, **options)
    if order != sorted(order):
        result = permute_dims(result, (*range(x.ndim), *(x.ndim + i for i in order)))
    return result


def overlap_add(
    x: T,
    length: int | Sequence[int],
    /,
    *,
    axis: int | Sequence[int] = -1,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
) -> T:
    """The sum of overlapping windows, with ``length`` along ``axis``: the adjoint of :func:`sliding_window`.

    ``x`` has the shape that :func:`sliding_window` returns: its last axes are the windows, and ``axis`` indexes them.

        >>> import backburn as bb
        >>> bb.overlap_add(bb.ones((3, 2)), 4).tolist()
        [1.0, 2.0, 2.0, 1.0]
    """
    x = kind_operand("overlap_add", x)
    given = integers_of("overlap_add", "axis", axis)
    rank = x.ndim - len(given)
    if any(not -rank <= a < rank for a in given):
        raise AxisError(
            f"overlap_add: axis {axis} is out of range for {rank} axes and {len(given)} of windows. "
            f"Operand: {describe((x,))}"
        )
    given = tuple(a % rank for a in given)
    axes, order, options = _windows("overlap_add", x, given, length=length, stride=stride, dilation=dilation)
    if order != sorted(order):
        x = permute_dims(x, (*range(rank), *(rank + order.index(i) for i in range(len(order)))))
    return call("overlap_add", x, axis=axes, **options)


# ---- diagonals ----


@method
def diagonal(x: T, /, offset: int = 0, *, axis1: int = -2, axis2: int = -1) -> T:
    """The diagonal of the matrices in two axes (the last ones), as a new last axis.

    It lies ``offset`` above the main diagonal, or below for a negative one.

        >>> import backburn as bb
        >>> bb.diagonal(bb.asarray([[1, 2], [3, 4]])).tolist()
        [1, 4]
    """
    y: T = kind_operand("diagonal", x)
    return _diagonal("diagonal", y, offset, axis1, axis2)


def _diagonal(name: str, x: T, offset: int, axis1: int, axis2: int) -> T:
    first, second = axis_of(name, x, axis1), axis_of(name, x, axis2)
    return call("diagonal", x, offset=integer(name, "offset", offset), axis1=first, axis2=second)


def diag(x: T, /, offset: int = 0) -> T:
    """The diagonal of a matrix, or the matrix that has a vector on its diagonal and 0 elsewhere.

    Raises :class:`ShapeError` for other than one or two axes.

        >>> import backburn as bb
        >>> bb.diag(bb.asarray([1, 2])).tolist(), bb.diag(bb.asarray([[1, 2], [3, 4]]), offset=1).tolist()
        ([[1, 0], [0, 2]], [2])
    """
    x = kind_operand("diag", x, "FCIB")
    if x.ndim == 2:
        return diagonal(x, offset=offset)
    if x.ndim != 1:
        raise ShapeError(f"diag: takes a vector or a matrix, not {describe((x,))}")
    return diag_embed(x, integer("diag", "offset", offset))


@method
def diag_embed(x: T, /, offset: int = 0, *, axis1: int = -2, axis2: int = -1) -> T:
    """Matrices in two axes of the result (the last ones), with the last axis of ``x`` on a diagonal and 0 elsewhere.

    The diagonal lies ``offset`` above the main one, or below for a negative one: :func:`diagonal` with the same
    arguments gives ``x``. Raises :class:`ShapeError` for a 0-d tensor, :class:`AxisError` for axes that the result does
    not have, :class:`ArgumentError` if they are the same.

        >>> import backburn as bb
        >>> bb.diag_embed(bb.asarray([[1, 2], [3, 4]])).tolist()
        [[[1, 0], [0, 2]], [[3, 0], [0, 4]]]
        >>> bb.diag_embed(bb.asarray([1.0]), offset=-1).tolist()
        [[0.0, 0.0], [1.0, 0.0]]
    """
    y: Any = kind_operand("diag_embed", x, "FCIB")
    if not y.ndim:
        raise ShapeError(f"diag_embed: a 0-d tensor has no diagonal. Operand: {describe((x,))}")
    offset = integer("diag_embed", "offset", offset)
    count, distance = y.shape[-1], abs(offset)
    *leading, _ = shape = y.shape
    # In row-major order, the diagonal's elements are one row and one element apart: pad each by one row, and crop.
    rows = pad(reshape(y, (*shape, 1)), [(0, 0)] * y.ndim + [(0, count)])
    flat = pad(reshape(rows, (*leading, count * (count + 1))), [(0, 0)] * len(leading) + [(0, -count)])
    before, after = (0, distance) if offset >= 0 else (distance, 0)
    square: Any = pad(reshape(flat, (*shape, count)), [(0, 0)] * len(leading) + [(before, after), (after, before)])
    first, second = axis_of("diag_embed", square, axis1), axis_of("diag_embed", square, axis2)
    if first == second:
        raise ArgumentError(f"diag_embed: the matrices need two axes, not {axis1} twice. Operand: {describe((x,))}")
    return moveaxis(square, (-2, -1), (first, second))


def block_diag(*arrays: Tensor) -> Tensor:
    """The block diagonal matrix of the given matrices, with 0 elsewhere.

    Vectors are matrices of one row, and 0-d tensors of one element. The dtype is the promoted one. Raises
    :class:`ShapeError` for more than two axes, :class:`ArgumentError` if there are no tensors, :class:`DTypeError` for
    quantized ones.

        >>> import backburn as bb
        >>> bb.block_diag(bb.asarray([[1, 2], [3, 4]]), bb.asarray([5, 6])).tolist()
        [[1, 2, 0, 0], [3, 4, 0, 0], [0, 0, 5, 6]]
    """
    if not arrays:
        raise ArgumentError("block_diag: there are no tensors to join")
    blocks = [kind_operand("block_diag", tensor_operand("block_diag", x), "FCIB") for x in arrays]
    if any(x.ndim > 2 for x in blocks):
        raise ShapeError(f"block_diag: blocks have two axes at most. Operands: {describe(arrays)}")
    blocks = [reshape(x, (1,) * (2 - x.ndim) + x.shape) for x in promote_operands("concat", *blocks)]
    width, left, rows = sum(x.shape[1] for x in blocks), 0, []
    for x in blocks:
        rows.append(pad(x, ((0, 0), (left, width - left - x.shape[1]))))
        left += x.shape[1]
    return call("concat", rows, axis=0)


@method
def trace(x: Tensor, /, offset: int = 0, *, dtype: Any = None) -> Tensor:
    """The sum over the diagonal of the matrices in the last two axes; see :func:`backburn.sum` for the dtype.

    >>> import backburn as bb
    >>> bb.trace(bb.asarray([[1, 2], [3, 4]])).item()
    5
    """
    values: Tensor = _diagonal("trace", kind_operand("trace", x, "FCIB"), offset, -2, -1)
    return reduce.sum(values, axis=-1, dtype=dtype)
