"""Operators for object detection: regions of interest and suppression of boxes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.errors import ArgumentError
from backburn.onnx.registry import Host, operator
from backburn.tensor import arithmetic, creation, elementwise, index, logic, reduce, selection
from backburn.tensor import shape as shapes
from backburn.tensor.classes import Tensor


@operator("NonMaxSuppression")
def non_max_suppression(
    boxes: Host, scores: Host, most: Host | None = None, overlap: Host | None = None, least: Host | None = None, /,
    *, center_point_box: int = 0, run: Any,
) -> Any:  # fmt: skip
    """The boxes of each class that do not overlap with better ones; on the host: their number depends on values."""
    count = 0 if most is None else int(most.reshape(()))
    limit = 0.0 if overlap is None else float(overlap.reshape(()))
    chosen: list[tuple[int, int, int]] = []
    for b in range(scores.shape[0]):
        corners = _corners(boxes[b], center_point_box)
        for c in range(scores.shape[1]):
            order = np.argsort(-scores[b, c], kind="stable")
            if least is not None:
                order = order[scores[b, c][order] > float(least.reshape(()))]
            kept: list[int] = []
            for i in order:
                if len(kept) >= count:
                    break
                run.count_iteration()
                if all(_overlap(corners[i], corners[j]) <= limit for j in kept):
                    kept.append(int(i))
            chosen += [(b, c, i) for i in kept]
    return run.tensor(np.asarray(chosen, np.int64).reshape(-1, 3))


def _corners(boxes: NDArray[Any], centred: int) -> NDArray[Any]:
    """The corners of boxes, the smaller one first."""
    if centred:
        half = boxes[:, 2:] / 2
        return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], 1)
    return np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], 1)


def _overlap(x: NDArray[Any], y: NDArray[Any]) -> float:
    """The intersection of two boxes over their union."""
    sides = np.minimum(x[2:], y[2:]) - np.maximum(x[:2], y[:2])
    common = float(max(sides[0], 0) * max(sides[1], 0))
    both = float(np.prod(x[2:] - x[:2]) + np.prod(y[2:] - y[:2])) - common
    return common / both if both > 0 else 0.0


@operator("RoiAlign", since=16)
def roi_align(
    x: Tensor, rois: Tensor, batch: Tensor, /, *, coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg", output_height: int = 1, output_width: int = 1, sampling_ratio: int = 0,
    spatial_scale: float = 1.0, run: Any,
) -> Any:  # fmt: skip
    """The mean or maximum of samples in the cells of regions, interpolated linearly."""
    moved = 0.5 if coordinate_transformation_mode == "half_pixel" else 0.0
    return _aligned(x, rois, batch, mode, (output_height, output_width), sampling_ratio, spatial_scale, moved, run)


@operator("RoiAlign", since=10)
def _older_roi_align(
    x: Tensor, rois: Tensor, batch: Tensor, /, *, mode: str = "avg", output_height: int = 1, output_width: int = 1,
    sampling_ratio: int = 0, spatial_scale: float = 1.0, run: Any,
) -> Any:  # fmt: skip
    return _aligned(x, rois, batch, mode, (output_height, output_width), sampling_ratio, spatial_scale, 0.0, run)


def _aligned(
    x: Any, rois: Any, batch: Any, mode: str, cells: tuple[int, int], ratio: int, scale: float, moved: float, run: Any
) -> Any:
    scaled: Any = arithmetic.subtract(rois * scale, moved)
    lengths = []
    for axis in (1, 0):
        length: Any = arithmetic.subtract(scaled[:, axis + 2], scaled[:, axis])
        lengths.append(length if moved else arithmetic.maximum(length, 1.0))
    if ratio < 1:
        # A region has one sample per pixel, so the number of samples differs between regions.
        counts = [np.ceil(length.detach().numpy() / n) for length, n in zip(lengths, cells, strict=True)]
        if rois.shape[0] != 1:
            parts = [
                _aligned(x, rois[i : i + 1], batch[i : i + 1], mode, cells, 0, scale, moved, run)
                for i in range(rois.shape[0])
            ]
            return (
                shapes.concat(parts, axis=0)
                if parts
                else creation.zeros((0, x.shape[1], *cells), dtype=x.dtype, backend=x.backend)
            )
        samples = (int(counts[0].reshape(())), int(counts[1].reshape(())))
    else:
        samples = (ratio, ratio)
    run.check_elements((rois.shape[0], x.shape[1], *(c * s for c, s in zip(cells, samples, strict=True))))
    near = []
    for axis, (length, cell, count) in enumerate(zip(lengths, cells, samples, strict=True)):
        places: Any = run.tensor(((np.arange(cell * count) + 0.5) / (cell * count)).astype(x.dtype.dtype))
        start = scaled[:, 1 - axis]
        at = arithmetic.add(shapes.expand_dims(start, 1), shapes.expand_dims(length, 1) * shapes.expand_dims(places, 0))
        near.append(_neighbours(at, x.shape[2 + axis]))
    images: Any = index.take(x, batch, axis=0)
    samples_of: list[Any] = []
    for rows, row_weight in near[0]:
        by_row = index.take_along_axis(
            images, shapes.broadcast_to(rows[:, None, :, None], (*images.shape[:2], rows.shape[1], images.shape[3])), 2
        )
        for columns, column_weight in near[1]:
            value: Any = index.take_along_axis(
                by_row, shapes.broadcast_to(columns[:, None, None, :], (*by_row.shape[:3], columns.shape[1])), 3
            )
            samples_of.append(value * row_weight[:, None, :, None] * column_weight[:, None, None, :])
    if mode == "max":
        found: Any = samples_of[0]
        for part in samples_of[1:]:
            found = arithmetic.maximum(found, part)
    elif mode == "avg":
        found = samples_of[0] + samples_of[1] + samples_of[2] + samples_of[3]
    else:
        raise ArgumentError(f"there is no mode {mode!r}")
    grid = shapes.reshape(found, (*found.shape[:2], cells[0], samples[0], cells[1], samples[1]))
    return reduce.max(grid, axis=(3, 5)) if mode == "max" else reduce.mean(grid, axis=(3, 5))


def _neighbours(at: Any, n: int) -> list[tuple[Any, Any]]:
    """The two neighbours of each position along an axis, and their weights, which are 0 outside of the axis."""
    inside = logic.logical_and(logic.greater_equal(at, -1.0), logic.less_equal(at, float(n)))
    place = arithmetic.clip(at, 0.0, float(n - 1))
    low = arithmetic.clip(elementwise.floor(place), 0.0, float(max(n - 2, 0)))
    part: Any = arithmetic.subtract(place, low)
    first = creation.astype(low, "int64")
    second = arithmetic.clip(arithmetic.add(first, 1), 0, n - 1)
    zero = creation.zeros_like(part)
    weights = [selection.where(inside, w, zero) for w in (1.0 - part, part)]
    return [(first, weights[0]), (second, weights[1])]


@operator("MaxRoiPool")
def max_roi_pool(x: Tensor, rois: Host, /, *, pooled_shape: Any, spatial_scale: float = 1.0, run: Any) -> Any:
    """The maximum in each cell of regions, whose corners are read on the host."""
    rows, columns = pooled_shape
    run.check_elements((len(rois), x.shape[1], rows, columns))
    found = []
    for region in rois:
        image = x[int(region[0])]
        x1, y1, x2, y2 = (math.floor(float(v) * spatial_scale + 0.5) for v in region[1:])
        height, width = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
        cells = []
        for i in range(rows):
            top, bottom = (min(max(math.floor(i * height / rows) + y1, 0), x.shape[2]),
                           min(max(math.ceil((i + 1) * height / rows) + y1, 0), x.shape[2]))  # fmt: skip
            for j in range(columns):
                left, right = (min(max(math.floor(j * width / columns) + x1, 0), x.shape[3]),
                               min(max(math.ceil((j + 1) * width / columns) + x1, 0), x.shape[3]))  # fmt: skip
                run.count_iteration()
                part = image[:, top:bottom, left:right]
                cells.append(reduce.max(part, axis=(1, 2)) if part.size else creation.zeros_like(image[:, 0, 0]))
        found.append(shapes.reshape(shapes.stack(cells, axis=1), (x.shape[1], rows, columns)))
    if not found:
        return creation.zeros((0, x.shape[1], rows, columns), dtype=x.dtype, backend=x.backend)
    return shapes.stack(found, axis=0)
