"""Tensor functions: distinct elements, membership, counts and histograms.

The shapes of some results depend on data. Raises :class:`DTypeError` for quantized tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from backburn.base.dtypes import int64, uint8
from backburn.base.errors import ArgumentError, DTypeError, OutOfRangeError, ShapeError, Unsupported
from backburn.hints.arguments import explained
from backburn.tensor.core.dispatch import (
    as_scalar,
    call,
    cast,
    create,
    float_operand,
    kind_operand,
    promote_to_tensors,
    tensor_operand,
    upcast_half,
)
from backburn.tensor.core.indices import counted_from_zero, no_such_index
from backburn.tensor.core.integers import among, has_wide_integers, in_float64, is_integer
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import integer, number
from backburn.tensor.core.types import HistogramResult, T, UniqueAllResult, UniqueCountsResult, UniqueInverseResult
from backburn.tensor.core.wrapping import is_tensor
from backburn.tensor.reduce import _to_accumulator

if TYPE_CHECKING:
    from backburn.tensor.classes import BoolTensor, Tensor


def unique_all(x: T, /) -> UniqueAllResult[T]:
    """The distinct elements in ascending order, with first indices, inverse indices and counts.

    Indices are in row-major order; ``inverse_indices`` has the shape of ``x``. Each NaN is distinct from all others; 0
    and -0 are equal. The gradient of a value goes to its first occurrence.

        >>> import backburn as bb
        >>> found = bb.unique_all(bb.asarray([3, 1, 3]))
        >>> [part.tolist() for part in found]
        [[1, 3], [1, 0], [1, 0, 1], [1, 2]]
    """
    return UniqueAllResult(*call("unique_all", kind_operand("unique_all", x)))


def unique_counts(x: T, /) -> UniqueCountsResult[T]:
    """The distinct elements in ascending order and their counts; see :func:`unique_all`.

    >>> import backburn as bb
    >>> values, counts = bb.unique_counts(bb.asarray([3, 1, 3]))
    >>> values.tolist(), counts.tolist()
    ([1, 3], [1, 2])
    """
    found = unique_all(x)
    return UniqueCountsResult(found.values, found.counts)


def unique_inverse(x: T, /) -> UniqueInverseResult[T]:
    """The distinct elements in ascending order, and the index of each element among them; see :func:`unique_all`.

    >>> import backburn as bb
    >>> values, places = bb.unique_inverse(bb.asarray([3, 1, 3]))
    >>> values[places].tolist()
    [3, 1, 3]
    """
    found = unique_all(x)
    return UniqueInverseResult(found.values, found.inverse_indices)


def unique_values(x: T, /) -> T:
    """The distinct elements in ascending order; see :func:`unique_all`.

    >>> import backburn as bb
    >>> bb.unique_values(bb.asarray([3, 1, 3])).tolist()
    [1, 3]
    """
    x = tensor_operand("unique_values", x)
    if x.dtype.kind != "int" or not x.size:
        return unique_all(x).values
    # Takes half the time; integers have no gradient, which would need the first occurrence of a value.
    ordered = call("sort", call("reshape", x, shape=(x.size,)), axis=0)
    is_new = call("concat", [ordered[:1] == ordered[:1], ordered[1:] != ordered[:-1]], axis=0)
    return ordered[is_new]


def isin(x1: Tensor | float, x2: Tensor | float, /, *, invert: bool = False) -> BoolTensor:
    """Which elements of ``x1`` are in ``x2``, or with ``invert`` are not; NaN equals nothing.

    One of the two may be a Python number.

        >>> import backburn as bb
        >>> bb.isin(bb.asarray([1, 2, 3]), bb.asarray([3, 1])).tolist()
        [True, False, True]
    """
    first: Any = x1
    second: Any = x2
    if is_tensor(first) and is_tensor(second) and first._dtype is second._dtype and first._dtype.is_arithmetic:
        found = call("isin", first, second)
        return call("logical_not", found) if invert else found
    a, b = (x if is_tensor(x) else as_scalar(x) for x in (x1, x2))
    if (is_integer(a) and b.__class__ in (int, float)) or (is_integer(b) and a.__class__ in (int, float)):
        found = among("isin", a, b)
        return call("logical_not", found) if invert else found
    if has_wide_integers(x1, x2) and not is_integer(x1, x2):
        return in_float64(isin, x1, x2, invert=invert)
    x, values = promote_to_tensors("isin", x1, x2, kinds="FIB")
    if x.dtype.kind == "bool":
        x, values = cast(x, uint8), cast(values, uint8)
    found = call("isin", x, values)
    return call("logical_not", found) if invert else found


def bincount(x: Tensor, /, *, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """The number of occurrences of 0, 1, ... up to the largest element of a vector of integers, in int64.

    With ``weights``, one for each element, these are summed instead, with gradients. The result has at least
    ``minlength`` elements; inside :func:`vmap` it has exactly that many, and all elements must be smaller. Raises
    :class:`OutOfRangeError` for a negative number, :class:`DTypeError` for elements that are not integers,
    :class:`ShapeError` for other shapes.

        >>> import backburn as bb
        >>> bb.bincount(bb.asarray([3, 1, 3])).tolist()
        [0, 1, 0, 2]
    """
    places: Any = tensor_operand("bincount", x)
    if places.dtype.kind != "int":
        raise DTypeError(f"bincount: counts integers; cast with astype('int64'). Operand: {describe((x,))}")
    least = integer("bincount", "minlength", minlength, least=0)
    if places.ndim != 1:
        raise ShapeError(f"bincount: takes a vector. Operand: {describe((x,))}")
    length = _length_of_counts(places, least)
    try:
        return _weighted_counts("bincount", counted_from_zero(places), weights, length)
    except OutOfRangeError as error:
        raise no_such_index("bincount", error, places, length, "places") from error


def _length_of_counts(places: Any, least: int) -> int:
    """The largest element plus 1, or ``least`` if that is larger or elements cannot be read."""
    if not places.size:
        return least
    try:
        lowest, highest = places.min().item(), places.max().item()
    except Unsupported:
        if not least:
            raise
        return least
    if lowest < 0:
        raise OutOfRangeError(f"bincount: there is a negative number. Operand: {describe((places,))}")
    return max(int(highest) + 1, least)


def _weighted_counts(name: str, places: Any, weights: Any, length: int) -> Any:
    """The sum of the weights for each index, or the number of its occurrences."""
    if weights is None:
        zeros = create("zeros", places.backend, shape=(length,), dtype=int64)
        return call("index_add", zeros, places, 1, axis=0)
    values = _to_accumulator(name, kind_operand(name, weights, "FI"), None)
    if values.shape != places.shape:
        raise ShapeError(f"{name}: each element needs a weight. Operands: {describe((places, weights))}")
    zeros = create("zeros", values.backend, shape=(length,), dtype=values.dtype)
    return call("index_add", zeros, places, values, axis=0)


@explained
def histogram(
    x: Tensor,
    /,
    *,
    bins: int | Tensor = 10,
    range: Sequence[float] | None = None,
    weights: Tensor | None = None,
    density: bool = False,
) -> HistogramResult:
    """The number of elements in each of several bins.

    ``bins`` is the number of bins of equal width from the smallest element to the largest, or over ``range``; or their
    edges, in ascending order. A bin includes its lower edge, and the last also its upper one; elements outside, and
    NaN, are not counted. With ``weights``, one for each element, these are summed, with gradients. With ``density``,
    counts are divided by their sum and by the widths. Raises :class:`ArgumentError` for invalid ``bins`` and ``range``,
    and for a range that is not finite.

        >>> import backburn as bb
        >>> counts, edges = bb.histogram(bb.asarray([0.0, 1.0, 1.0, 4.0]), bins=2)
        >>> counts.tolist(), edges.tolist()
        ([3, 1], [0.0, 2.0, 4.0])
    """
    if has_wide_integers(x):
        return in_float64(histogram, x, bins=bins, range=range, weights=weights, density=density)
    y: Any = float_operand("histogram", x)
    y = call("reshape", y, shape=(y.size,))
    if weights is not None:
        values: Tensor = kind_operand("histogram", weights, "FI")
        if values.shape != x.shape:
            raise ShapeError(f"histogram: each element needs a weight. Operands: {describe((x, weights))}")
        weights = call("reshape", values, shape=(x.size,))
    edges = _edges(y, bins, range)
    intervals = edges.size - 1
    after = call("searchsorted", edges, y, right=True)
    first, last = edges[0], edges[intervals]
    # Elements equal to the last edge are in the last interval; elements in none are counted beyond it.
    place = call("where", call("equal", y, last), intervals - 1, call("sub", after, 1))
    inside = call("logical_and", call("greater_equal", y, first), call("less_equal", y, last))
    counts = _weighted_counts("histogram", call("where", inside, place, intervals), weights, intervals + 1)[:intervals]
    if density:
        dtype = counts.dtype if counts.dtype.is_floating else edges.dtype
        # 16-bit floats do not hold large counts.
        share = upcast_half(counts) if counts.dtype.is_floating else cast(counts, upcast_half(edges).dtype)
        total = call("sum", share, axis=(0,))
        counts = cast(call("div", call("div", share, call("diff", cast(edges, share.dtype), axis=0)), total), dtype)
    return HistogramResult(counts, edges)


def _edges(x: Any, bins: Any, ends: Any) -> Any:
    """The edges of the bins, in the dtype of ``x``."""
    if is_tensor(bins):
        edges = cast(kind_operand("histogram", bins, "FI"), x.dtype)
        if edges.ndim != 1 or edges.size < 2 or bool((edges[1:] < edges[:-1]).any()):
            raise ArgumentError(f"histogram: edges are at least two numbers in rising order, not {describe((bins,))}")
        return edges
    count = integer("histogram", "bins", bins, least=1)
    if ends is None:
        low, high = (float(x.min().item()), float(x.max().item())) if x.size else (0.0, 1.0)
    else:
        try:
            low, high = (number("histogram", "range", end) for end in ends)
        except (TypeError, ValueError):
            raise ArgumentError(f"histogram: range is two numbers, not {ends!r}") from None
    if not (abs(low) < float("inf") and abs(high) < float("inf") and low <= high):
        raise ArgumentError(f"histogram: the intervals cannot go from {low} to {high}; give a finite, rising range")
    if low == high:
        low, high = low - 0.5, high + 0.5
    return create("linspace", x.backend, start=low, stop=high, num=count + 1, endpoint=True, dtype=x.dtype)
