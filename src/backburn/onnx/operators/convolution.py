"""Convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from backburn.base.errors import ShapeError
from backburn.nn import functional
from backburn.onnx.operators.products import shifted
from backburn.onnx.registry import Host, operator
from backburn.tensor import arithmetic, creation, elementwise, rearrange, reduce
from backburn.tensor import shape as shapes
from backburn.tensor.classes import Tensor


def window_pads(
    auto: str, pads: Any, lengths: Sequence[int], window: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int],
) -> list[tuple[int, int]]:  # fmt: skip
    """The widths before and after each axis."""
    rank = len(lengths)
    if auto in ("NOTSET", ""):
        found = pads or (0,) * (2 * rank)
        return [(found[i], found[i + rank]) for i in range(rank)]
    if auto == "VALID":
        return [(0, 0)] * rank
    result = []
    for n, w, s, d in zip(lengths, window, strides, dilations, strict=True):
        total = max((-(-n // s) - 1) * s + d * (w - 1) + 1 - n, 0)
        half = total // 2
        result.append((half, total - half) if auto == "SAME_UPPER" else (total - half, half))
    return result


def _check_window(kernel_shape: Any, weight: Any) -> tuple[int, ...]:
    window = tuple(weight.shape[2:])
    if kernel_shape is not None and tuple(kernel_shape) != window:
        raise ShapeError(f"kernel_shape is {list(kernel_shape)}, and the weight has {list(window)}")
    return window


@operator("Conv")
def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, /,
    *, auto_pad: str = "NOTSET", dilations: Any = None, group: int = 1, kernel_shape: Any = None, pads: Any = None,
    strides: Any = None, run: Any,
) -> Any:  # fmt: skip
    """The convolution."""
    window = _check_window(kernel_shape, weight)
    strides, dilations = strides or (1,) * len(window), dilations or (1,) * len(window)
    padding = window_pads(auto_pad, pads, x.shape[2:], window, strides, dilations)
    lengths = [max(n + before + after, 0) for n, (before, after) in zip(x.shape[2:], padding, strict=True)]
    run.check_elements((x.shape[0], max(x.shape[1], weight.shape[0]), *lengths))
    return functional.conv(x, weight, bias, strides, padding, dilations, group)


@operator("ConvInteger")
def conv_integer(
    x: Tensor, weight: Tensor, x_zero: Tensor | None = None, weight_zero: Tensor | None = None, /,
    *, auto_pad: str = "NOTSET", dilations: Any = None, group: int = 1, kernel_shape: Any = None, pads: Any = None,
    strides: Any = None, run: Any,
) -> Any:  # fmt: skip
    """The convolution of 8-bit integers minus their zero points, computed exactly in float64."""
    left, right = shifted(x, x_zero, 1), shifted(weight, weight_zero, 0)
    result = conv(
        creation.astype(left, "float64"), creation.astype(right, "float64"), auto_pad=auto_pad, dilations=dilations,
        group=group, kernel_shape=kernel_shape, pads=pads, strides=strides, run=run,
    )  # fmt: skip
    return creation.astype(elementwise.round(result), "int32")


@operator("ConvTranspose")
def conv_transpose(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, /,
    *, auto_pad: str = "NOTSET", dilations: Any = None, group: int = 1, kernel_shape: Any = None,
    output_padding: Any = None, output_shape: Any = None, pads: Any = None, strides: Any = None, run: Any,
) -> Any:  # fmt: skip
    """The transposed convolution."""
    window = _check_window(kernel_shape, weight)
    rank = len(window)
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    extra = output_padding or (0,) * rank
    lengths = [
        (n - 1) * s + d * (w - 1) + 1 + e
        for n, s, d, w, e in zip(x.shape[2:], strides, dilations, window, extra, strict=True)
    ]
    wanted = output_shape
    if wanted is None and auto_pad.startswith("SAME"):
        wanted = [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
    if wanted is not None:
        totals = [n - int(w) for n, w in zip(lengths, wanted[-rank:], strict=True)]
        halves = [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in totals]
        ends = [(h, t - h) for h, t in zip(halves, totals, strict=True)]
    else:
        ends = window_pads(auto_pad, pads, lengths, window, strides, dilations)
    run.check_elements(
        (x.shape[0], weight.shape[1] * group, *(n - a - b for n, (a, b) in zip(lengths, ends, strict=True)))
    )
    # Negative padding at an end makes the output longer.
    more = tuple(e - min(b, 0) for e, (_, b) in zip(extra, ends, strict=True))
    padding = [(max(a, 0), max(b, 0)) for a, b in ends]
    result: Any = functional.conv_transpose(x, weight, bias, strides, padding, more, group, dilations)
    before = [-min(a, 0) for a, _ in ends]
    return rearrange.pad(result, [(0, 0), (0, 0), *((n, 0) for n in before)]) if any(before) else result


@operator("DeformConv")
def deform_conv(
    x: Tensor, weight: Tensor, offset: Tensor, bias: Tensor | None = None, mask: Tensor | None = None, /,
    *, dilations: Any = None, group: int = 1, kernel_shape: Any = None, offset_group: int = 1, pads: Any = None,
    strides: Any = None,
) -> Any:  # fmt: skip
    """The convolution with a learned offset for each sampling position."""
    window = _check_window(kernel_shape, weight)
    strides, dilations = strides or (1,) * len(window), dilations or (1,) * len(window)
    padding = window_pads("NOTSET", pads, x.shape[2:], window, strides, dilations)
    return functional.deform_conv2d(x, offset, weight, bias, strides, padding, dilations, mask, groups=group)


# ---- pools ----


def _pooled_lengths(
    lengths: Sequence[int], window: Sequence[int], strides: Sequence[int], dilations: Sequence[int], ceil_mode: int,
    pads: Sequence[tuple[int, int]],
) -> list[int]:  # fmt: skip
    """The lengths of a pool's result; with ``ceil_mode``, a last window that begins in the padding is left out."""
    result = []
    for n, w, s, d, (a, b) in zip(lengths, window, strides, dilations, pads, strict=True):
        room = n + a + b - d * (w - 1) - 1
        count = (-(-room // s) if ceil_mode else room // s) + 1
        if ceil_mode and (count - 1) * s >= n + a:
            count -= 1
        result.append(count)
    return result


def _windows(
    x: Any, auto: str, ceil_mode: int, dilations: Any, window: Any, pads: Any, strides: Any, value: float, run: Any
) -> tuple[Any, list[tuple[int, int]], list[int]]:
    """The padded tensor, the padding widths, and the number of windows along each axis."""
    widths = window_pads(auto, pads, x.shape[2:], window, strides, dilations)
    counts = _pooled_lengths(x.shape[2:], window, strides, dilations, ceil_mode, widths)
    ends = [
        (a, (c - 1) * s + d * (w - 1) + 1 - n - a)
        for n, w, s, d, c, (a, _) in zip(x.shape[2:], window, strides, dilations, counts, widths, strict=True)
    ]
    run.check_elements((*x.shape[:2], *(n + a + max(b, 0) for n, (a, b) in zip(x.shape[2:], ends, strict=True))))
    return rearrange.pad(x, [(0, 0), (0, 0), *ends], value=value), widths, counts


@operator("MaxPool")
def max_pool(
    x: Tensor, /, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Any = None, kernel_shape: Any,
    pads: Any = None, storage_order: int = 0, strides: Any = None, run: Any, call: Any,
) -> Any:  # fmt: skip
    """The largest element of each window, and its index in the whole tensor."""
    rank = len(kernel_shape)
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    kind = x.dtype
    floats = x if kind.is_floating else creation.astype(x, "float32")
    widths = window_pads(auto_pad, pads, x.shape[2:], kernel_shape, strides, dilations)
    counts = _pooled_lengths(x.shape[2:], kernel_shape, strides, dilations, ceil_mode, widths)
    if call.outputs == 1 and not ceil_mode and all(2 * max(w) <= k for w, k in zip(widths, kernel_shape, strict=True)):
        return creation.astype(functional.max_pool(floats, kernel_shape, strides, widths, dilations), kind)
    filled, _, _ = _windows(floats, auto_pad, ceil_mode, dilations, kernel_shape, pads, strides, -math.inf, run)
    if call.outputs == 1:
        return creation.astype(functional.max_pool(filled, kernel_shape, strides, 0, dilations), kind)
    values, places = functional.max_pool_with_indices(filled, kernel_shape, strides, 0, dilations)
    return creation.astype(values, kind), _places_of_image(places, filled.shape, x.shape, widths, counts, storage_order)


def _places_of_image(
    places: Any, padded: Sequence[int], shape: Sequence[int], widths: Sequence[tuple[int, int]], counts: Sequence[int],
    storage_order: int,
) -> Any:  # fmt: skip
    """Indices into padded images as indices into the whole tensor without padding."""
    along = []
    rest = places
    for n, (before, _) in zip(reversed(padded[2:]), reversed(widths), strict=True):
        along.append(arithmetic.subtract(arithmetic.remainder(rest, n), before))
        rest = arithmetic.floor_divide(rest, n)
    along.reverse()
    lengths = list(shape[2:])
    order = range(len(lengths)) if not storage_order else reversed(range(len(lengths)))
    place: Any = creation.zeros_like(places)
    for axis in order:
        place = arithmetic.add(place * lengths[axis], along[axis])
    images = creation.arange(shape[0] * shape[1], dtype="int64", backend=places.backend)
    first = shapes.reshape(images, (shape[0], shape[1], *(1 for _ in counts)))
    return arithmetic.add(place, first * math.prod(lengths))


@operator("AveragePool")
def average_pool(
    x: Tensor, /, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0, dilations: Any = None,
    kernel_shape: Any, pads: Any = None, strides: Any = None, run: Any,
) -> Any:  # fmt: skip
    """The mean of each window, with or without its elements in the padding."""
    rank = len(kernel_shape)
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    filled, widths, _ = _windows(x, auto_pad, ceil_mode, dilations, kernel_shape, pads, strides, 0.0, run)
    total: Any = functional.avg_pool(filled, kernel_shape, strides, 0, divisor_override=1, dilation=dilations)
    ends = [(a + n, p - a - n) for n, p, (a, _) in zip(x.shape[2:], filled.shape[2:], widths, strict=True)]
    if not any(a for a, _ in widths) and not any(b > 0 for _, b in ends):
        return arithmetic.divide(total, math.prod(kernel_shape))
    # With padding, all elements count except those that only the last windows of ceil_mode reach.
    counted = creation.ones((1, 1, *x.shape[2:]), dtype=x.dtype, backend=x.backend)
    beyond = [p - (a + n) for n, p, (a, _) in zip(x.shape[2:], filled.shape[2:], widths, strict=True)]
    if count_include_pad:
        sides = [(a, min(b, e)) for (a, b), e in zip(widths, beyond, strict=True)]
        counted = rearrange.pad(counted, [(0, 0), (0, 0), *sides], value=1.0)
        rest = [(0, e - s) for e, (_, s) in zip(beyond, sides, strict=True)]
    else:
        rest = [(a, e) for (a, _), e in zip(widths, beyond, strict=True)]
    counted = rearrange.pad(counted, [(0, 0), (0, 0), *rest])
    counts = functional.avg_pool(counted, kernel_shape, strides, 0, divisor_override=1, dilation=dilations)
    return arithmetic.divide(total, counts)


@operator("LpPool")
def lp_pool(
    x: Tensor, /, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Any = None, kernel_shape: Any, p: int = 2,
    pads: Any = None, strides: Any = None, run: Any,
) -> Any:  # fmt: skip
    """The norm of each window."""
    rank = len(kernel_shape)
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    filled, _, _ = _windows(x, auto_pad, ceil_mode, dilations, kernel_shape, pads, strides, 0.0, run)
    powers = elementwise.pow(arithmetic.abs(filled), p)
    total = functional.avg_pool(powers, kernel_shape, strides, 0, divisor_override=1, dilation=dilations)
    return elementwise.pow(total, 1.0 / p)


@operator("GlobalAveragePool")
def global_average_pool(x: Tensor, /) -> Any:
    """The mean of each image."""
    return reduce.mean(x, axis=tuple(range(2, x.ndim)), keepdims=True)


@operator("GlobalMaxPool")
def global_max_pool(x: Tensor, /) -> Any:
    """The largest element of each image."""
    return reduce.max(x, axis=tuple(range(2, x.ndim)), keepdims=True)


@operator("GlobalLpPool")
def global_lp_pool(x: Tensor, /, *, p: int = 2) -> Any:
    """The norm of each image."""
    return reduce.vector_norm(x, axis=tuple(range(2, x.ndim)), ord=p, keepdims=True)


@operator("MaxUnpool")
def max_unpool(
    x: Tensor, places: Tensor, output_shape: Host | None = None, /, *, kernel_shape: Any, pads: Any = None,
    strides: Any = None, run: Any,
) -> Any:  # fmt: skip
    """Elements at the indices from which a max pool took them, and zeros elsewhere."""
    from backburn.tensor import index

    rank = len(kernel_shape)
    strides, pads = strides or (1,) * rank, pads or (0,) * (2 * rank)
    lengths = [
        (n - 1) * s - pads[i] - pads[i + rank] + kernel_shape[i]
        for i, (n, s) in enumerate(zip(x.shape[2:], strides, strict=True))
    ]
    inner = (*x.shape[:2], *lengths)
    wanted = inner if output_shape is None else tuple(map(int, output_shape))
    run.check_elements(wanted)
    run.check_elements(inner)
    flat = creation.zeros(math.prod(inner), dtype=x.dtype, backend=x.backend)
    filled = index.scatter(flat, shapes.reshape(places, (-1,)), shapes.reshape(x, (-1,)), 0)
    result = shapes.reshape(filled, inner)
    ends = [(0, w - n) for w, n in zip(wanted, inner, strict=True)]
    return rearrange.pad(result, ends) if wanted != inner else result


@operator("LRN")
def lrn(x: Tensor, /, *, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0, size: int) -> Any:
    """Divides by a power of the mean square of neighbouring channels."""
    from backburn.tensor.rearrange import sliding_window

    before = (size - 1) // 2
    squares = rearrange.pad(arithmetic.square(x), [(0, 0), (before, size - 1 - before), *((0, 0) for _ in x.shape[2:])])
    near: Any = reduce.sum(sliding_window(squares, size, axis=1), axis=-1)
    return arithmetic.divide(x, elementwise.pow(near * (alpha / size) + bias, beta))
