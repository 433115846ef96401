"""Operators that resample tensors: resizing and grids."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.errors import ArgumentError
from backburn.nn import functional
from backburn.onnx.registry import Host, operator
from backburn.tensor import arithmetic, creation, index, selection
from backburn.tensor import shape as shapes
from backburn.tensor.classes import Tensor


@operator("Resize", since=11)
def resize(
    x: Tensor, roi: Host | None = None, scales: Host | None = None, sizes: Host | None = None, /,
    *, antialias: int = 0, axes: Any = None, coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75, exclude_outside: int = 0, extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest", nearest_mode: str = "round_prefer_floor",
    run: Any,
) -> Any:  # fmt: skip
    """A tensor interpolated to other lengths."""
    chosen = list(range(x.ndim)) if axes is None else [a + x.ndim if a < 0 else a for a in axes]
    lengths = [x.shape[axis] for axis in chosen]
    factors, targets = _sizes(lengths, scales, sizes, keep_aspect_ratio_policy)
    kind = x.dtype
    result: Any = x if kind.is_floating or mode == "nearest" else creation.astype(x, "float32")
    wanted = [dict(zip(chosen, targets, strict=True)).get(axis, n) for axis, n in enumerate(x.shape)]
    run.check_elements(wanted)
    ends = None if roi is None or roi.size == 0 else np.asarray(roi, np.float64).reshape(2, -1)
    for place, (axis, n, factor, target) in enumerate(zip(chosen, lengths, factors, targets, strict=True)):
        if target == n and factor == 1.0 and coordinate_transformation_mode != "tf_crop_and_resize":
            continue
        window = (0.0, 1.0) if ends is None else (ends[0, place], ends[1, place])
        at = _places(coordinate_transformation_mode, target, n, factor, window)
        if mode == "nearest":
            neighbours, weights = _nearest(at, nearest_mode)[:, None], None
        else:
            scale = min(factor, 1.0) if antialias else 1.0
            neighbours, weights = _weights(at, mode, cubic_coeff_a, scale)
            if exclude_outside:
                weights = np.where((neighbours < 0) | (neighbours >= n), 0.0, weights)
                weights = weights / weights.sum(1, keepdims=True)
        result = _combined(result, axis, np.clip(neighbours, 0, n - 1), weights, run)
        if coordinate_transformation_mode == "tf_crop_and_resize":
            outside = run.tensor((at < 0) | (at > n - 1))
            outside = shapes.reshape(outside, [-1 if i == axis else 1 for i in range(x.ndim)])
            result = selection.where(outside, creation.full_like(result, extrapolation_value), result)
    return creation.astype(result, kind)


def _sizes(lengths: list[int], scales: Any, sizes: Any, policy: str) -> tuple[list[float], list[int]]:
    """The factor and the new length of each axis."""
    if sizes is not None and sizes.size:
        wanted = [int(n) for n in sizes]
        if policy == "stretch":
            return [m / n if n else 1.0 for m, n in zip(wanted, lengths, strict=True)], wanted
        ratios = [m / n for m, n in zip(wanted, lengths, strict=True)]
        factor = min(ratios) if policy == "not_larger" else max(ratios)
        return [factor] * len(lengths), [math.floor(factor * n + 0.5) for n in lengths]
    if scales is None or not scales.size:
        raise ArgumentError("either scales or sizes are required")
    factors = [float(f) for f in scales]
    if not all(0.0 < f < math.inf for f in factors):
        raise ArgumentError(f"scales are positive numbers, not {factors}")
    return factors, [math.floor(f * n) for f, n in zip(factors, lengths, strict=True)]


def _places(mode: str, target: int, n: int, factor: float, window: tuple[float, float]) -> NDArray[np.float64]:
    """The positions of new elements among the old ones."""
    i = np.arange(target, dtype=np.float64)
    if mode == "half_pixel":
        return (i + 0.5) / factor - 0.5
    if mode == "half_pixel_symmetric":
        return n / 2 * (1 - target / (factor * n)) + (i + 0.5) / factor - 0.5
    if mode == "pytorch_half_pixel":
        return (i + 0.5) / factor - 0.5 if target > 1 else np.zeros_like(i)
    if mode == "align_corners":
        last = factor * n - 1
        return i * (n - 1) / last if target > 1 else np.zeros_like(i)
    if mode == "asymmetric":
        return i / factor
    if mode == "tf_half_pixel_for_nn":
        return (i + 0.5) / factor
    if mode == "tf_crop_and_resize":
        first, last = window
        if target == 1:
            return np.full(1, 0.5 * (first + last) * (n - 1))
        return first * (n - 1) + i * (last - first) * (n - 1) / (target - 1)
    raise ArgumentError(f"there is no coordinate_transformation_mode {mode!r}")


def _nearest(at: NDArray[np.float64], mode: str) -> NDArray[np.int64]:
    rounded = {
        "round_prefer_floor": lambda: np.ceil(at - 0.5),
        "round_prefer_ceil": lambda: np.floor(at + 0.5),
        "floor": lambda: np.floor(at),
        "ceil": lambda: np.ceil(at),
    }
    if mode not in rounded:
        raise ArgumentError(f"there is no nearest_mode {mode!r}")
    return rounded[mode]().astype(np.int64)


def _weights(
    at: NDArray[np.float64], mode: str, a: float, scale: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The indices and weights of the old elements for each new one; a ``scale`` below 1 widens the filter."""
    first = np.floor(at)
    part = (at - first)[:, None]
    reach = {"linear": 1, "cubic": 2}.get(mode)
    if reach is None:
        raise ArgumentError(f"there is no mode {mode!r}")
    start = math.floor(-reach / scale) + 1
    offsets = np.arange(start, 2 - start)
    distance = np.abs(offsets - part) * scale
    if mode == "linear":
        weights = np.clip(1 - distance, 0, 1)
    else:
        d = distance
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((d - 5) * d + 8) * d * a - 4 * a
        weights = np.where(d <= 1, near, np.where(d < 2, far, 0.0))
    if scale < 1:
        weights = weights / weights.sum(1, keepdims=True)
    return (first[:, None] + offsets).astype(np.int64), weights


def _combined(x: Any, axis: int, neighbours: NDArray[np.int64], weights: Any, run: Any) -> Any:
    """The weighted sum of old elements along an axis."""
    total: Any = None
    for k in range(neighbours.shape[1]):
        if weights is not None and not weights[:, k].any():
            continue
        part: Any = index.take(x, run.tensor(neighbours[:, k].copy()), axis=axis)
        if weights is not None:
            factor = run.tensor(weights[:, k].astype(x.dtype.dtype))
            part = part * shapes.reshape(factor, [-1 if i == axis else 1 for i in range(x.ndim)])
        total = part if total is None else arithmetic.add(total, part)
    return x if total is None else total


@operator("Resize", since=10)
def _older_resize(x: Tensor, scales: Host, /, *, mode: str = "nearest", run: Any) -> Any:
    return _upsampled(x, scales, mode, run)


@operator("Upsample", since=9)
def upsample(x: Tensor, scales: Host, /, *, mode: str = "nearest", run: Any) -> Any:
    """A tensor interpolated to longer axes."""
    return _upsampled(x, scales, mode, run)


@operator("Upsample", since=7)
def _older_upsample(x: Tensor, /, *, mode: str = "nearest", scales: Any, run: Any) -> Any:
    return _upsampled(x, np.asarray(scales), mode, run)


def _upsampled(x: Any, scales: Any, mode: str, run: Any) -> Any:
    return resize(
        x, None, scales, mode=mode, nearest_mode="floor", coordinate_transformation_mode="asymmetric", run=run
    )


_GRID_MODES = {
    "linear": "bilinear", "bilinear": "bilinear", "cubic": "bicubic", "bicubic": "bicubic", "nearest": "nearest",
}  # fmt: skip


@operator("GridSample")
def grid_sample(
    x: Tensor, grid: Tensor, /, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Any:
    """A tensor sampled at the positions of a grid."""
    return functional.grid_sample(x, grid, _GRID_MODES[mode], padding_mode, bool(align_corners))
