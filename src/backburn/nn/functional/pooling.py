"""Tensor functions: pooling over one, two or three axes.

Inputs have the shape `(examples, channels, *spatial)`. ``kernel_size``, ``stride`` (by default the kernel's size) and
``dilation`` are a number, or one for each spatial axis; ``padding`` is as in :func:`conv`, of any width, and never
counts as an element for a maximum. With ``ceil_mode`` the last window may extend beyond the end. Raises
:class:`ShapeError` if no window fits, or one covers only padding that does not count, and :class:`ArgumentError` for
options out of range.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from backburn.base.errors import ArgumentError, BackburnError, OutOfRangeError, ShapeError
from backburn.nn.functional.window_options import Padding, Sizes, each, pairs, places_rank
from backburn.ops.pool import pool_windows
from backburn.tensor.core.dispatch import (
    call,
    cast,
    create,
    float_operand,
    kind_operand,
    upcast_half,
)
from backburn.tensor.core.indices import counted_from_zero, no_such_index
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import beside, number
from backburn.tensor.index import scatter

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, IntTensor, Tensor

__all__ = [
    "adaptive_avg_pool", "adaptive_max_pool", "adaptive_max_pool_with_indices", "avg_pool", "max_pool",
    "max_pool_with_indices", "max_unpool",
]  # fmt: skip


def max_pool(
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> FloatTensor:
    """The largest element of each window, NaN if one is; the first of several equal ones gets the whole gradient.

    >>> import backburn as bb
    >>> max_pool(bb.asarray([[[1.0, 3.0, 2.0, 0.0, 5.0]]]), 2).tolist()
    [[[3.0, 2.0]]]
    >>> max_pool(bb.asarray([[[1.0, 3.0, 2.0, 0.0, 5.0]]]), 2, ceil_mode=True).tolist()
    [[[3.0, 2.0, 5.0]]]
    """
    return _max_pool("max_pool", x, kernel_size, stride, padding, dilation, ceil_mode)[0]


def max_pool_with_indices(
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> tuple[FloatTensor, IntTensor]:
    """:func:`max_pool`, and the index of each maximum in the row-major order of its channel.

    >>> import backburn as bb
    >>> values, indices = max_pool_with_indices(bb.asarray([[[[1.0, 3.0], [5.0, 2.0]]]]), 2)
    >>> values.tolist(), indices.tolist()
    ([[[[5.0]]]], [[[[2]]]])
    """
    return _max_pool("max_pool_with_indices", x, kernel_size, stride, padding, dilation, ceil_mode)


def max_unpool(
    x: Tensor,
    indices: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    output_size: Sizes | None = None,
) -> FloatTensor:
    """Each element of ``x`` at its index, as returned by :func:`max_pool_with_indices`, and 0 elsewhere.

    ``kernel_size``, ``stride`` and ``padding`` are those of the pooling. The pooled input had ``(n - 1) * stride +
    kernel_size - padding`` elements along an axis (with the padding of both ends), or a few more; ``output_size`` gives
    the exact lengths of the spatial axes. If an index is repeated, the last element wins. Raises :class:`ShapeError`
    for indices of another shape, and :class:`OutOfRangeError` for indices beyond the result or below 0.

        >>> import backburn as bb
        >>> values, indices = max_pool_with_indices(bb.asarray([[[1.0, 3.0, 2.0, 0.0, 5.0]]]), 2)
        >>> max_unpool(values, indices, 2).tolist(), max_unpool(values, indices, 2, output_size=5).tolist()
        ([[[0.0, 3.0, 2.0, 0.0]]], [[[0.0, 3.0, 2.0, 0.0, 0.0]]])
    """
    x, options = _options("max_unpool", x, kernel_size, stride, padding, 1)
    places = kind_operand("max_unpool", indices, "I")
    if places.shape != x.shape:
        raise ShapeError(f"max_unpool: takes an index for each element. Operands: {describe((x, indices))}")
    ends = zip(x.shape[2:], options["stride"], options["size"], options["padding"], strict=True)
    lengths = tuple((n - 1) * step + window - before - after for n, step, window, (before, after) in ends)
    if output_size is not None:
        lengths = each("max_unpool", "output_size", output_size, len(lengths), of=(x,))
    if min(lengths) < 0:
        raise ShapeError(f"max_unpool: nothing is left of {list(x.shape[2:])} places. Operand: {describe((x,))}")
    flat = (*x.shape[:2], math.prod(x.shape[2:]))
    into = create("full", x.backend, shape=(*flat[:2], math.prod(lengths)), value=0.0, dtype=x.dtype)
    found = call("reshape", counted_from_zero(places), shape=flat)
    try:
        y = scatter(into, found, call("reshape", x, shape=flat), axis=2)
    except OutOfRangeError as error:
        raise no_such_index("max_unpool", error, places, math.prod(lengths), "places") from error
    return call("reshape", y, shape=(*flat[:2], *lengths))


def _max_pool(
    name: str, x: Tensor, kernel_size: Sizes, stride: Sizes | None, padding: Padding, dilation: Sizes, ceil_mode: bool
) -> Any:
    x, options = _options(name, x, kernel_size, stride, padding, dilation)
    return call("max_pool", x, **options, ceil_mode=bool(ceil_mode))


def avg_pool(
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: float | None = None,
    *,
    dilation: Sizes = 1,
) -> FloatTensor:
    """The mean of each window; zeros of the padding count as elements unless ``count_include_pad`` is False.

    With ``divisor_override`` it is the sum divided by that number; 0 raises :class:`ArgumentError`.

        >>> import backburn as bb
        >>> avg_pool(bb.asarray([[[1.0, 3.0, 5.0, 7.0]]]), 2).tolist()
        [[[2.0, 6.0]]]
        >>> avg_pool(bb.asarray([[[1.0, 3.0]]]), 2, padding=1, stride=1, count_include_pad=False).tolist()
        [[[1.0, 2.0, 3.0]]]
        >>> avg_pool(bb.asarray([[[1.0, 3.0, 5.0, 7.0]]]), 2, divisor_override=1).tolist()
        [[[4.0, 12.0]]]
        >>> avg_pool(bb.asarray([[[1.0, 3.0, 5.0, 7.0]]]), 2, stride=1, dilation=2).tolist()
        [[[3.0, 5.0]]]
    """
    x, options = _options("avg_pool", x, kernel_size, stride, padding, dilation)
    if divisor_override is not None:
        return _scaled_sums(x, options, ceil_mode, number("avg_pool", "divisor_override", divisor_override, of=(x,)))
    return call("avg_pool", x, **options, ceil_mode=bool(ceil_mode), count_include_pad=bool(count_include_pad))


def _scaled_sums(x: Any, options: dict[str, Any], ceil_mode: bool, divisor: float) -> Any:
    """The sums of windows, divided by a number: rescaled means."""
    if divisor == 0 or not math.isfinite(divisor):
        raise ArgumentError(f"avg_pool: divisor_override is a number other than 0, not {divisor!r}{beside((x,))}")
    size = options["size"]
    try:
        _, widths = pool_windows(x.shape[2:], **options, ceil_mode=bool(ceil_mode), counts_pad=True)
    except BackburnError as error:
        raise type(error)(f"avg_pool: {error}. Operand: {describe((x,))}") from None
    padded = call("pad", upcast_half(x), widths=((0, 0), (0, 0), *widths), mode="constant", value=0.0)
    means = call("avg_pool", padded, **options | {"padding": ((0, 0),) * len(size)})
    return cast(means * (math.prod(size) / divisor), x.dtype)


def adaptive_avg_pool(x: Tensor, output_size: Sizes) -> FloatTensor:
    """The means of ``output_size`` windows of nearly equal length along each axis.

    Window ``i`` of ``m`` over ``n`` positions covers those from ``floor(i n / m)`` up to but excluding ``ceil((i + 1) n
    / m)``.

        >>> import backburn as bb
        >>> adaptive_avg_pool(bb.asarray([[[1.0, 2.0, 3.0]]]), 2).tolist()
        [[[1.5, 2.5]]]
    """
    return _adaptive_pool("adaptive_avg_pool", x, output_size)


def _adaptive_pool(name: str, x: Tensor, output_size: Sizes) -> Any:
    x = float_operand(name, x)
    return call(name, x, size=each(name, "output_size", output_size, places_rank(name, x), of=(x,)))


def adaptive_max_pool_with_indices(x: Tensor, output_size: Sizes) -> tuple[FloatTensor, IntTensor]:
    """:func:`adaptive_max_pool`, and the index of each maximum, as in :func:`max_pool_with_indices`.

    >>> import backburn as bb
    >>> adaptive_max_pool_with_indices(bb.asarray([[[1.0, 2.0, 0.0]]]), 2)[1].tolist()
    [[[1, 1]]]
    """
    return _adaptive_pool("adaptive_max_pool", x, output_size)


def adaptive_max_pool(x: Tensor, output_size: Sizes) -> FloatTensor:
    """The largest element of each window of :func:`adaptive_avg_pool`.

    >>> import backburn as bb
    >>> adaptive_max_pool(bb.asarray([[[1.0, 2.0, 0.0]]]), 2).tolist()
    [[[2.0, 2.0]]]
    """
    return adaptive_max_pool_with_indices(x, output_size)[0]


def _options(
    name: str, x: Tensor, kernel_size: Sizes, stride: Sizes | None, padding: Padding, dilation: Sizes
) -> tuple[FloatTensor, dict[str, Any]]:
    """A float input, and the options as the contract takes them."""
    x = float_operand(name, x)
    rank = places_rank(name, x)
    window, spacing = (
        each(name, "kernel_size", kernel_size, rank, of=(x,)),
        each(name, "dilation", dilation, rank, of=(x,)),
    )
    steps = window if stride is None else each(name, "stride", stride, rank, of=(x,))
    widths = pairs(name, padding, window, steps, spacing, of=(x,))
    return x, {"size": window, "stride": steps, "padding": widths, "dilation": spacing}
