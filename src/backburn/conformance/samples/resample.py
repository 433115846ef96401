"""Samples: windows as columns, interpolation, sampling at positions."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from backburn.conformance.samples.conv import conv, options, padded_counts, places
from backburn.conformance.samples.pool import max_options
from backburn.conformance.samples.table import Array, case, real, samples, unit


def unfold(x: Array, size: Any, stride: Any, padding: Any, dilation: Any) -> Array:
    """The reference of ``unfold``."""
    padded, counts = padded_counts(x, size, stride, padding, dilation)
    parts = [padded[(..., *places(o, counts, stride, dilation))] for o in itertools.product(*map(range, size))]
    columns = np.stack(parts, 2)
    return columns.reshape(len(x), x.shape[1] * math.prod(size), math.prod(counts))


UNFOLDED: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((2, 2, 4), max_options(1, 2)),
    ((1, 1, 6), max_options(1, 3, 2, (1, 0))),
    ((1, 1, 6), max_options(1, 2, 1, (0, 1), 3)),
    ((1, 2, 3, 3), max_options(2, 2)),
    ((1, 1, 3, 4), {"size": (2, 1), "stride": (1, 2), "padding": ((0, 1), (1, 0)), "dilation": (2, 1)}),
    ((0, 1, 3), max_options(1, 2)),
    ((1, 1, 3, 5), {"size": (2, 2), "stride": (1, 2), "padding": ((0, 0), (1, 0)), "dilation": (1, 3)}),
)
samples("unfold", unfold, *(case(real(*shape), **windows) for shape, windows in UNFOLDED))


def fold(x: Array, places: Any, **windows: Any) -> Array:
    """The reference of ``fold``: the transpose of the linear map ``unfold``."""
    count, channels = math.prod(places), x.shape[1] // math.prod(windows["size"])
    matrix = unfold(np.eye(count).reshape(count, 1, *places), **windows).reshape(count, -1)
    lines = x.reshape(len(x) * channels, matrix.shape[1])
    return (lines @ matrix.T).reshape(len(x), channels, *places)


samples(
    "fold",
    fold,
    *(
        case(real(*unfold(np.zeros(shape), **windows).shape), places=shape[2:], **windows)
        for shape, windows in UNFOLDED
    ),
)


def cubic(t: float) -> float:
    """The weight of an element at distance ``t``, after Keys."""
    t, a = abs(t), -0.75
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0


def lanczos(n: int, position: float) -> Array:
    """The weights of ``n`` elements for a position: a window of three lobes, normalized."""
    distances = position - np.arange(n)
    weights: Array = np.where(abs(distances) < 3, np.sinc(distances) * np.sinc(distances / 3), 0.0)
    weights /= weights.sum()
    return weights


def resized(n: int, m: int, mode: str, align_corners: bool) -> Array:
    """The matrix (m, n) that interpolates along one axis."""
    matrix = np.zeros((m, n))
    for i in range(m):
        position = i * (n - 1) / max(m - 1, 1) if align_corners else (i + 0.5) * n / m - 0.5
        if mode == "nearest":
            matrix[i, i * n // m] = 1
        elif mode == "nearest-exact":
            matrix[i, min(math.floor(position + 0.5), n - 1)] = 1
        elif mode == "lanczos3":
            matrix[i] = lanczos(n, position)
        else:
            kernel = cubic if mode == "cubic" else lambda t: max(0.0, 1 - abs(t))
            for j in range(math.floor(position) - 1, math.floor(position) + 3):
                matrix[i, min(max(j, 0), n - 1)] += kernel(position - j)
    return matrix


def interpolate(x: Array, size: Any, mode: str = "nearest", align_corners: bool = False) -> Array:
    """The reference of ``interpolate``."""
    for axis, m in enumerate(size, 2):
        if m != x.shape[axis]:
            x = np.moveaxis(np.moveaxis(x, axis, -1) @ resized(x.shape[axis], m, mode, align_corners).T, -1, axis)
    return x


def interpolate_backward(grad: Array, places: Any, mode: str = "nearest", align_corners: bool = False) -> Array:
    """The reference of ``interpolate_backward``: products with the same matrices."""
    for axis, n in enumerate(places, 2):
        if n != grad.shape[axis]:
            matrix = resized(n, grad.shape[axis], mode, align_corners)
            grad = np.moveaxis(np.moveaxis(grad, axis, -1) @ matrix, -1, axis)
    return grad


RESIZED: tuple[tuple[Any, Any, dict[str, Any]], ...] = (
    ((2, 1, 3), (7,), {}),
    ((1, 1, 5), (3,), {"mode": "nearest"}),
    ((1, 1, 4), (6,), {"mode": "nearest-exact"}),
    ((1, 1, 3), (5,), {"mode": "linear"}),
    ((1, 1, 6), (4,), {"mode": "linear", "align_corners": True}),
    ((1, 1, 3), (7,), {"mode": "cubic"}),
    ((1, 1, 5), (4,), {"mode": "cubic", "align_corners": True}),
    ((1, 2, 2, 3), (3, 5), {"mode": "linear"}),
    ((1, 1, 2, 3), (3, 3), {"mode": "cubic"}),
    ((1, 1, 2, 1, 2), (3, 2, 4), {"mode": "linear"}),
    ((1, 1, 4), (1,), {"mode": "linear", "align_corners": True}),
    ((1, 1, 1), (3,), {"mode": "cubic"}),
    ((1, 1, 9), (5,), {"mode": "lanczos3"}),
    ((1, 1, 4), (7,), {"mode": "lanczos3", "align_corners": True}),
    ((1, 1, 2, 3), (3, 2), {"mode": "lanczos3"}),
    ((1, 1, 1), (2,), {"mode": "lanczos3"}),
    ((0, 1, 2), (3,), {}),
    ((2, 0, 3), (2,), {"mode": "linear"}),
)
samples(
    "interpolate",
    interpolate,
    *(case(real(*shape), size=size, **choice) for shape, size, choice in RESIZED),
)
samples(
    "interpolate_backward",
    interpolate_backward,
    *(case(real(*shape[:2], *size), places=shape[2:], **choice) for shape, size, choice in RESIZED),
)


def value_at(x: Array, place: Any) -> Array:
    """The channels of ``x`` (channels, *spatial) at an index, 0 outside."""
    inside = all(0 <= p < n for p, n in zip(place, x.shape[1:], strict=True))
    key: Any = (slice(None), *place)
    return np.asarray(x[key]) if inside else np.zeros(len(x))


def linear_at(x: Array, position: Any) -> Array:
    """The channels of ``x`` (channels, *spatial) at a position, interpolated linearly, 0 outside."""
    total = np.zeros(len(x))
    starts = [math.floor(p) for p in position]
    for corner in itertools.product((0, 1), repeat=len(starts)):
        place = tuple(s + c for s, c in zip(starts, corner, strict=True))
        total += value_at(x, place) * math.prod(1 - abs(p - i) for p, i in zip(position, place, strict=True))
    return total


def held(place: int, n: int, padding: str, align_corners: bool = False) -> int:
    """The index within ``n`` that replaces one outside; with ``"zeros"`` it stays outside."""
    if padding == "border":
        return min(max(place, 0), n - 1)
    while padding == "reflection" and not 0 <= place < n:
        around = 0 if align_corners else 1
        place = 0 if n == 1 else -place - around if place < 0 else 2 * (n - 1) + around - place
    return place


def cubic_at(x: Array, position: Any, padding: str, align_corners: bool) -> Array:
    """The channels of ``x`` (channels, *spatial) at a position, with cubic interpolation."""
    total = np.zeros(len(x))
    for step in itertools.product((-1, 0, 1, 2), repeat=len(position)):
        places = [math.floor(p) + s for p, s in zip(position, step, strict=True)]
        read = [held(i, n, padding, align_corners) for i, n in zip(places, x.shape[1:], strict=True)]
        total += value_at(x, read) * math.prod(cubic(p - i) for p, i in zip(position, places, strict=True))
    return total


def grid_sample(
    x: Array, grid: Array, mode: str = "linear", padding: str = "zeros", align_corners: bool = False
) -> Array:
    """The reference of ``grid_sample``, position by position."""
    out = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    for where in np.ndindex(grid.shape[:-1]):
        position = []
        for g, n in zip(grid[where][::-1], x.shape[2:], strict=True):
            p = (g + 1) / 2 * (n - 1) if align_corners else ((g + 1) * n - 1) / 2
            if mode == "cubic":
                position.append(p)
                continue
            if padding == "reflection":
                low, high = (0, n - 1) if align_corners else (-0.5, n - 0.5)
                while high > low and not low <= p <= high:
                    p = 2 * low - p if p < low else 2 * high - p
            position.append(p if padding == "zeros" else min(max(p, 0), n - 1))
        if mode == "linear":
            value = linear_at(x[where[0]], position)
        elif mode == "cubic":
            value = cubic_at(x[where[0]], position, padding, align_corners)
        else:
            value = value_at(x[where[0]], tuple(int(np.round(p)) for p in position))
        out[(where[0], slice(None), *where[1:])] = value
    return out


FAR = real(1, 2, 3, 2, low=-2.7, high=2.7)
PLANE = real(1, 2, 3, 2, seed=1)
samples(
    "grid_sample",
    grid_sample,
    case(PLANE, unit(1, 2, 2, 2)),
    case(PLANE, FAR),
    case(PLANE, FAR, align_corners=True),
    case(PLANE, FAR, padding="border"),
    case(PLANE, FAR, padding="reflection"),
    case(PLANE, FAR, padding="reflection", align_corners=True),
    case(PLANE, FAR, mode="nearest"),
    case(PLANE, FAR, mode="nearest", padding="border", align_corners=True),
    case(real(2, 1, 4), unit(2, 3, 1), note="one axis"),
    case(real(1, 1, 2, 2, 2), unit(1, 1, 2, 1, 3), note="three axes"),
    case(real(1, 1, 1, 3), unit(1, 2, 1, 2), padding="reflection", align_corners=True, note="an axis of one place"),
    case(real(1, 1, 2, 2), real(1, 0, 3, 2), note="nothing is wanted"),
    case(PLANE, FAR, mode="cubic"),
    case(PLANE, FAR, mode="cubic", align_corners=True),
    case(PLANE, FAR, mode="cubic", padding="border"),
    case(PLANE, FAR, mode="cubic", padding="reflection"),
    case(PLANE, FAR, mode="cubic", padding="reflection", align_corners=True),
    case(real(2, 1, 6), unit(2, 3, 1), mode="cubic", note="cubic along one axis"),
    case(real(1, 1, 1, 3), unit(1, 2, 1, 2), mode="cubic", padding="reflection", note="cubic, an axis of one place"),
    case(real(1, 1, 2, 3, 2), unit(1, 1, 2, 1, 3), mode="cubic", padding="border", note="cubic along three axes"),
    dtypes=("float64", "float32"),
)


#: The weight of an element by its distance, up to 1 and up to 2, after Keys.
KEYS = np.poly1d([1.25, -2.25, 0.0, 1.0]), np.poly1d([-0.75, 3.75, -6.0, 3.0])


def cubic_reads(n: int, position: float, padding: str, order: int) -> Array:
    """The derivatives of the given order of the weights of ``n`` elements by the position."""
    weights = np.zeros(n)
    for place in range(math.floor(position) - 1, math.floor(position) + 3):
        distance = position - place
        found, read = KEYS[int(abs(distance) > 1)].deriv(order)(abs(distance)), held(place, n, padding)
        if 0 <= read < n:
            weights[read] += found * (1.0 if distance >= 0 else -1.0) ** order
    return weights


def reads(n: int, position: float, mode: str, padding: str, slope: int) -> Array:
    """The weights of ``n`` elements for a position, or their derivatives of order ``slope`` by the position."""
    if mode == "cubic":
        return cubic_reads(n, position, padding, slope)
    weights, inside = np.zeros(n), 0 <= position <= n - 1
    near = position if padding == "zeros" else min(max(position, 0), n - 1)
    start = math.floor(near) if mode == "linear" else int(np.round(near))
    for place in (start, start + 1) if mode == "linear" else (start,):
        weight = 1.0 if mode == "nearest" else 1 - abs(near - place)
        if slope:
            weight = (2.0 * (place > start) - 1) * (mode == "linear" and (inside or padding == "zeros"))
        read = held(place, n, padding)
        if 0 <= read < n:
            weights[read] += weight
    return weights


def reading(positions: Array, places: Any, mode: str, padding: str, slopes: Any) -> Array:
    """The matrices (examples, positions, elements) of ``sample``."""
    out = np.zeros((len(positions), positions.shape[2], math.prod(places)))
    for example, i in np.ndindex(out.shape[:2]):
        row = np.ones(1)
        for axis, n in enumerate(places):
            row = np.outer(row, reads(n, positions[example, axis, i], mode, padding, slopes.count(axis))).reshape(-1)
        out[example, i] = row
    return out


def sample(x: Array, positions: Array, mode: str = "linear", padding: str = "zeros", slopes: Any = ()) -> Array:
    """The reference of ``sample``: a product with a matrix."""
    lines = x.reshape(*x.shape[:2], math.prod(x.shape[2:]))
    return lines @ reading(positions, x.shape[2:], mode, padding, slopes).transpose(0, 2, 1)


def sample_backward(
    grad: Array, positions: Array, places: Any, mode: str = "linear", padding: str = "zeros", slopes: Any = ()
) -> Array:
    """The reference of ``sample_backward``: a product with the same matrix."""
    return (grad @ reading(positions, places, mode, padding, slopes)).reshape(*grad.shape[:2], *places)


AROUND = real(2, 2, 5, low=-1.7, high=3.6)
READ: tuple[tuple[Any, Any, dict[str, Any]], ...] = (
    ((2, 2, 3, 2), AROUND, {}),
    ((2, 2, 3, 2), AROUND, {"padding": "border"}),
    ((2, 2, 3, 2), AROUND, {"mode": "nearest"}),
    ((2, 2, 3, 2), AROUND, {"mode": "nearest", "padding": "border", "slopes": (0,)}),
    ((2, 2, 3, 2), AROUND, {"slopes": (1,)}),
    ((2, 1, 3, 2), AROUND, {"padding": "border", "slopes": (0,)}),
    ((2, 1, 2, 3), AROUND, {"padding": "border", "slopes": (1, 0)}),
    ((1, 3, 4), real(1, 1, 6, low=-1.7, high=5.6), {}),
    ((1, 1, 4), real(1, 1, 6, low=-1.7, high=5.6), {"slopes": (0,)}),
    ((1, 1, 2, 3, 2), real(1, 3, 6, low=-1.3, high=2.6), {"padding": "border"}),
    ((1, 2, 2, 2, 3), real(1, 3, 6, low=-1.3, high=2.6), {"slopes": (2, 0)}),
    ((1, 1, 1, 3), real(1, 2, 4, low=-1.3, high=2.6), {"padding": "border"}),
    ((0, 2, 3), real(0, 1, 4), {}),
    ((2, 0, 3), real(2, 1, 4), {}),
    ((2, 2, 3), real(2, 1, 0), {}),
    ((2, 2, 3, 2), AROUND, {"mode": "cubic"}),
    ((2, 2, 3, 2), AROUND, {"mode": "cubic", "padding": "border"}),
    ((2, 1, 3, 2), AROUND, {"mode": "cubic", "slopes": (1,)}),
    ((2, 1, 3, 2), AROUND, {"mode": "cubic", "padding": "border", "slopes": (0, 1, 0)}),
    ((1, 2, 4), real(1, 1, 6, low=-3.7, high=7.6), {"mode": "cubic", "slopes": (0, 0, 0)}),
    ((1, 1, 2, 3, 2), real(1, 3, 4, low=-1.3, high=2.6), {"mode": "cubic"}),
)
samples(
    "sample",
    sample,
    *(case(real(*shape, seed=1), positions, **choice) for shape, positions, choice in READ),
    dtypes=("float64", "float32"),
)
samples(
    "sample_backward",
    sample_backward,
    *(
        case(real(*shape[:2], positions.shape[2], seed=1), positions, places=shape[2:], **choice)
        for shape, positions, choice in READ
    ),
    dtypes=("float64", "float32"),
)


def deform_conv2d(
    x: Array, offset: Array, weight: Array, mask: Array | None = None, bias: Array | None = None, **options: Any
) -> Array:
    """The reference of ``deform_conv2d``: sample each window, then multiply by the weight."""
    groups = options.pop("groups")
    size, counts = weight.shape[2:], offset.shape[2:]
    window, examples, channels = math.prod(size), len(x), x.shape[1]
    sets = offset.shape[1] // (2 * window)
    moves = offset.reshape(examples, sets, window, 2, *counts)
    seen = np.zeros((examples, channels, *counts, *size))
    for n, s, i, j in np.ndindex(examples, sets, *counts):
        part = slice(s * channels // sets, (s + 1) * channels // sets)
        for number, (a, b) in enumerate(itertools.product(*map(range, size))):
            start = [
                p * step - before + o * d
                for p, step, (before, _), o, d in zip(
                    (i, j), options["stride"], options["padding"], (a, b), options["dilation"], strict=True
                )
            ]
            value = linear_at(x[n, part], np.add(start, moves[n, s, number, :, i, j]))
            factor = 1.0 if mask is None else mask.reshape(examples, sets, window, *counts)[n, s, number, i, j]
            seen[n, part, i, j, a, b] = value * factor
    # Windows are placed side by side, for an ordinary convolution whose stride is the window size.
    laid = seen.transpose(0, 1, 2, 4, 3, 5).reshape(examples, channels, counts[0] * size[0], counts[1] * size[1])
    none = ((0, 0), (0, 0))
    return np.asarray(conv(laid, weight, bias, stride=size, padding=none, dilation=(1, 1), groups=groups))


samples(
    "deform_conv2d",
    deform_conv2d,
    case(real(1, 1, 3, 3), unit(1, 8, 2, 2), real(1, 1, 2, 2, seed=1), None, real(1), **options(2)),
    case(
        real(1, 2, 3, 3), unit(1, 8, 1, 1), real(2, 1, 2, 2, seed=1), real(1, 4, 1, 1), None, **options(2, 2, groups=2)
    ),
    case(
        real(1, 2, 2, 2), real(1, 16, 2, 2), real(1, 2, 2, 2, seed=1), real(1, 8, 2, 2), None, **options(2, 2, (1, 1)),
        note="two sets of offsets",
    ),
    case(real(1, 1, 3, 3), unit(1, 8, 1, 1), real(1, 1, 2, 2, seed=1), None, None, **options(2, dilation=2), smooth=2),
    case(
        real(1, 1, 3, 6), unit(1, 8, 2, 2), real(1, 1, 2, 2, seed=1), None, None,
        stride=(1, 2), padding=((1, 0), (0, 1)), dilation=(2, 3), groups=1, smooth=2, note="each axis its own",
    ),
    dtypes=("float64", "float32"),
)  # fmt: skip
