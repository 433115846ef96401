"""Samples: pooling."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from backburn.conformance.samples.table import INF, NAN, Array, case, real, samples


def windows(x: Array, size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> list[list[list[int]]]:
    """The indices that each window covers along each axis, including those in the padding."""
    found = []
    for n, m, s, (before, after), d in zip(x.shape[2:], size, stride, padding, dilation, strict=True):
        room = n + before + after - d * (m - 1) - 1
        count = (math.ceil(room / s) if ceil_mode else room // s) + 1
        starts = [i * s - before for i in range(count)]
        found.append([[start + j * d for j in range(m)] for start in starts if start < n or not ceil_mode])
    return found


def by_window(x: Array, by_axis: Any, reduce: Any) -> Array:
    """``reduce(values, indices)`` over the elements of each window that are not padding, per channel."""
    shape = (*x.shape[:2], *map(len, by_axis))
    out = np.zeros(shape)
    for place in np.ndindex(*shape):
        axes = [w[i] for w, i in zip(by_axis, place[2:], strict=True)]
        inside = [p for p in itertools.product(*axes) if all(0 <= i < n for i, n in zip(p, x.shape[2:], strict=True))]
        out[place] = reduce(np.array([x[(*place[:2], *p)] for p in inside]), inside)
    return out


def largest(x: Array, by_axis: Any) -> tuple[Array, Array]:
    """The largest element of each window, and its index."""
    numbers = np.arange(math.prod(x.shape[2:])).reshape(x.shape[2:])
    index = by_window(x, by_axis, lambda values, places: numbers[places[int(np.argmax(values))]])
    return by_window(x, by_axis, lambda values, _: np.max(values)), index.astype(np.int64)


def max_pool(
    x: Array, size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool = False
) -> tuple[Array, Array]:
    """The reference of ``max_pool``."""
    return largest(x, windows(x, size, stride, padding, dilation, ceil_mode))


def avg_pool(
    x: Array,
    size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    dilation: Any = (),
) -> Array:
    """The reference of ``avg_pool``."""
    by_axis = windows(x, size, stride, padding, dilation or (1,) * len(size), ceil_mode)
    total = by_window(x, by_axis, lambda values, _: values.sum())
    bounds = [(-b, n + a) if count_include_pad else (0, n) for n, (b, a) in zip(x.shape[2:], padding, strict=True)]
    for axis, (found, (low, high)) in enumerate(zip(by_axis, bounds, strict=True), 2):
        numbers = np.array([sum(low <= p < high for p in w) for w in found])
        total /= numbers.reshape(-1, *[1] * (total.ndim - axis - 1))
    return total


def max_options(rank: int, size: int, stride: int = 1, padding: Any = (0, 0), dilation: int = 1, **more: Any) -> Any:
    """The options of ``max_pool``, equal for each axis."""
    axes = {"size": (size,), "stride": (stride,), "padding": (padding,), "dilation": (dilation,)}
    return {name: value * rank for name, value in axes.items()} | more


samples(
    "max_pool",
    max_pool,
    case(real(1, 2, 6), **max_options(1, 2, 2)),
    case(real(1, 1, 7), **max_options(1, 3, 2, (1, 1)), note="windows overlap"),
    case(real(1, 1, 8), **max_options(1, 3, 3), note="two places are left over"),
    case(real(1, 1, 8), **max_options(1, 3, 3, ceil_mode=True)),
    case(real(1, 1, 4), **max_options(1, 2, 4, (1, 1), ceil_mode=True), note="the last would begin behind the end"),
    case(real(1, 1, 7), **max_options(1, 2, 2, (1, 0), 3)),
    case(real(2, 1, 3, 4), **max_options(2, 2)),
    case(real(1, 1, 4, 5), size=(2, 3), stride=(1, 2), padding=((1, 0), (0, 1)), dilation=(2, 1), ceil_mode=False),
    case(real(1, 1, 2, 3, 2), **max_options(3, 2)),
    case(-real(1, 1, 4, low=1.0), **max_options(1, 2, 1, (1, 1)), note="zeros would be larger"),
    case(real(1, 2, 4), **max_options(1, 3, 2, (2, 2)), note="more padding than half the window"),
    case(real(1, 1, 3, 4), **max_options(2, 2, 1, (2, 1), 3, ceil_mode=True), note="more padding than the window"),
    case(real(0, 2, 4), **max_options(1, 2)),
    case(np.array([[[1.0, NAN, 2.0, -INF, -INF, INF]]]), **max_options(1, 2), smooth=0),
    case(np.array([[[-INF, -INF, 2.0]]]), **max_options(1, 2, 1, (1, 1)), smooth=0, note="padding is smaller"),
    case(
        np.array([[[2.0, 2.0, 1.0, 1.0]]]),
        **max_options(1, 2, 2),
        smooth=0,
        gradients=(np.array([[[1.0, 0, 1.0, 0]]]),),
    ),
)


def avg_options(rank: int, size: int, stride: int = 1, padding: Any = (0, 0), **more: Any) -> Any:
    """The options of ``avg_pool``, equal for each axis; without ``dilation`` there is none."""
    options = max_options(rank, size, stride, padding, **more)
    if "dilation" not in more:
        del options["dilation"]
    return options


MEANS: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((2, 1, 4), avg_options(1, 2)),
    ((1, 1, 7), avg_options(1, 3, 2)),
    ((1, 1, 5), avg_options(1, 3, 1, (1, 1))),
    ((1, 1, 5), avg_options(1, 3, 1, (1, 1), count_include_pad=False)),
    ((1, 1, 8), avg_options(1, 3, 3, ceil_mode=True)),
    ((1, 1, 6), avg_options(1, 4, 3, (1, 2), ceil_mode=True)),
    ((1, 1, 6), avg_options(1, 4, 3, (1, 2), ceil_mode=True, count_include_pad=False)),
    ((1, 2, 3, 4), avg_options(2, 2)),
    ((1, 1, 2, 3, 2), avg_options(3, 2, 1, (1, 0))),
    ((0, 2, 4), avg_options(1, 2)),
    ((1, 2, 4), avg_options(1, 3, 2, (2, 3))),
    ((1, 1, 2), avg_options(1, 2, 1, (3, 2))),
    ((1, 1, 4), avg_options(1, 3, 1, (2, 2), count_include_pad=False)),
    ((1, 2, 7), avg_options(1, 3, 2, dilation=2)),
    ((1, 1, 5), avg_options(1, 3, 2, (2, 3), dilation=2, ceil_mode=True)),
    ((1, 1, 5), avg_options(1, 3, 2, (2, 3), dilation=2, ceil_mode=True, count_include_pad=False)),
    ((1, 1, 5, 4), {"size": (2, 3), "stride": (1, 2), "padding": ((1, 0), (2, 3)), "dilation": (3, 2)}),
)
samples("avg_pool", avg_pool, *(case(real(*shape), **options) for shape, options in MEANS))


def avg_pool_backward(grad: Array, places: Any, **options: Any) -> Array:
    """The reference of ``avg_pool_backward``: the transpose of the linear map ``avg_pool``."""
    units = np.eye(math.prod(places)).reshape(math.prod(places), 1, *places)
    columns = avg_pool(units, **options).reshape(math.prod(places), -1)
    return (grad.reshape(*grad.shape[:2], columns.shape[1]) @ columns.T).reshape(*grad.shape[:2], *places)


samples(
    "avg_pool_backward",
    avg_pool_backward,
    *(case(real(*avg_pool(np.zeros(shape), **o).shape), places=shape[2:], **o) for shape, o in MEANS),
)


def adaptive(x: Array, size: Any) -> Any:
    """The indices that each window covers along each axis."""
    return [
        [list(range(math.floor(i * n / m), math.ceil((i + 1) * n / m))) for i in range(m)]
        for n, m in zip(x.shape[2:], size, strict=True)
    ]


ADAPTIVE = (
    case(real(2, 1, 6), size=(3,)),
    case(real(1, 2, 5), size=(3,), note="windows overlap"),
    case(real(1, 1, 2), size=(5,), note="more than there are"),
    case(real(1, 1, 7), size=(1,)),
    case(real(2, 3, 2, 4), size=(1, 1)),
    case(real(1, 2, 4, 3), size=(3, 1)),
    case(real(1, 1, 3, 5), size=(2, 3)),
    case(real(1, 1, 2, 3, 2), size=(1, 2, 2)),
    case(real(0, 1, 3), size=(2,)),
)
samples(
    "adaptive_avg_pool", lambda x, size: by_window(x, adaptive(x, size), lambda values, _: values.mean()), *ADAPTIVE
)
samples(
    "adaptive_max_pool",
    lambda x, size: largest(x, adaptive(x, size)),
    *ADAPTIVE,
    case(np.array([[[1.0, 1.0, 0.5, 2.0]]]), size=(2,), smooth=0, gradients=(np.array([[[1.0, 0, 0, 1.0]]]),)),
    case(np.array([[[-INF, -INF, NAN, 2.0]]]), size=(3,), smooth=0),
)
