"""NumPy: losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from backburn.base.errors import OutOfRangeError
from backburn.ops.losses import labelled
from backburn_numpy.blocks import WIDE, run_columns, run_rows, scratch
from backburn_numpy.half_precision import cast_like, is_half, upcast_half
from backburn_numpy.memory import empty
from backburn_numpy.ops.normalization import log_softmax, softmax
from backburn_numpy.row_kernels import exp_and_sum, for_blocks

Array = Any


def label_cross_entropy(x: Array, labels: Array, /, axis: int) -> Array:
    labelled(x.shape, labels.shape, axis=axis)
    if x.size and _has_columns(x, axis):
        wide, losses = upcast_half(x), np.empty(labels.shape, np.float32)
        class_ids = _class_indices(labels, x.shape[axis])
        if run_columns("label_cross_entropy", (losses, wide, class_ids), x.shape, axis):
            return cast_like(losses, x)
    if _has_long_inner(x, axis):
        places = _places(labels, x.shape[axis], axis)
        picked = np.take_along_axis(log_softmax(upcast_half(x), axis), places, axis)
        return cast_like(np.subtract(0.0, picked, out=picked).reshape(labels.shape), x)
    lines, class_ids = _lines(x, axis), _class_indices(labels, x.shape[axis])
    out = np.empty(len(lines), x.dtype)
    if not run_rows("label_cross_entropy", (lines, out, class_ids), *lines.shape):
        _cross_entropy(out, lines, class_ids)
    return out.reshape(labels.shape)


def _cross_entropy(out: Array, x: Array, class_ids: Array) -> None:
    picked = x[np.arange(len(x)), class_ids].astype(np.float64)

    def begin(part: slice) -> Callable[[slice], None]:
        losses, logits, part_picked = out[part], x[part], picked[part]

        def work(rows: slice) -> None:
            block = upcast_half(logits[rows])
            total, top = exp_and_sum(block, scratch(block))
            # float64 keeps the digits of a difference of two large logarithms.
            loss = np.log(total, dtype=np.float64)
            if top is not None:
                loss += top
            losses[rows] = loss[:, 0] - part_picked[rows]

        return work

    for_blocks(begin, x)


def label_cross_entropy_backward(grad: Array, x: Array, labels: Array, /, axis: int) -> Array:
    if x.size and _has_columns(x, axis):
        wide = upcast_half(x)
        found, class_ids = empty(x.shape, wide.dtype), _class_indices(labels, x.shape[axis])
        if run_columns("label_cross_entropy_backward", (found, upcast_half(grad), wide, class_ids), x.shape, axis):
            return cast_like(found, x)
    if _has_long_inner(x, axis):
        own_grad = np.expand_dims(upcast_half(grad), axis)
        result, places = softmax(upcast_half(x), axis), _places(labels, x.shape[axis], axis)
        np.multiply(result, own_grad, out=result)
        np.put_along_axis(result, places, np.take_along_axis(result, places, axis) - own_grad, axis)
        return cast_like(result, x)
    lines, class_ids = _lines(x, axis), _class_indices(labels, x.shape[axis])
    out = empty(lines.shape, x.dtype)
    if not run_rows("label_cross_entropy_backward", (out, grad, lines, class_ids), *lines.shape):
        _cross_entropy_backward(out, grad, lines, class_ids)
    if axis == x.ndim - 1:
        return out.reshape(x.shape)
    return np.moveaxis(out.reshape(*labels.shape, x.shape[axis]), -1, axis)


def _cross_entropy_backward(out: Array, grad: Array, x: Array, class_ids: Array) -> None:
    grads, half = upcast_half(grad.reshape(-1, 1)), is_half(x)

    def begin(part: slice) -> Callable[[slice], None]:
        target, logits, part_grads, part_classes = out[part], x[part], grads[part], class_ids[part]

        def work(rows: slice) -> None:
            block, g = upcast_half(logits[rows]), part_grads[rows]
            result = scratch(block) if half else target[rows]
            total, _ = exp_and_sum(block, result)
            np.multiply(result, g / total, out=result)
            result[np.arange(len(result)), part_classes[rows]] -= g[:, 0]
            if half:
                target[rows] = result

        return work

    for_blocks(begin, x)


def _has_columns(x: Array, axis: int) -> bool:
    """Whether lines along the axis are columns of matrices in memory, and the dtype one that kernels compute in."""
    return axis < x.ndim - 1 and x.itemsize < 8 and math.prod(x.shape[axis + 1 :]) > 1


def _has_long_inner(x: Array, axis: int) -> bool:
    """Whether the axes after this one are long, as in images: then the lines are processed together, strided."""
    return axis < x.ndim - 1 and math.prod(x.shape[axis + 1 :]) >= WIDE


def _places(labels: Array, classes: int, axis: int) -> Array:
    """The labels as indices along ``axis``."""
    return np.expand_dims(_class_indices(labels, classes).reshape(labels.shape), axis)


def _lines(x: Array, axis: int) -> Array:
    """``x`` as a matrix, one row per line along ``axis``."""
    if x.ndim == 2 and axis == 1:
        return x
    moved = np.moveaxis(x, axis, -1)
    return moved.reshape(math.prod(moved.shape[:-1]), x.shape[axis])


def _class_indices(labels: Array, classes: int) -> Array:
    """The labels, flat; raises for one out of range."""
    flat = labels.reshape(-1).astype(np.int64, copy=False)
    if flat.size and np.maximum.reduce(flat.view(np.uint64)) >= classes:  # without the sign, negative ones are large
        wrong = int(flat[(flat < 0) | (flat >= classes)][0])
        raise OutOfRangeError(f"the label {wrong} is none of the classes 0 to {classes - 1}")
    return flat
