"""NumPy: losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from backburn.backend.loss import labelled
from backburn.base.errors import OutOfRangeError
from backburn_numpy.blocks import WIDE, in_columns, in_parts, scratch
from backburn_numpy.halves import is_half, narrowed, widened
from backburn_numpy.memory import empty
from backburn_numpy.normalize import log_softmax, softmax
from backburn_numpy.rows import for_blocks, powers

Array = Any


def label_cross_entropy(x: Array, labels: Array, /, axis: int) -> Array:
    labelled(x.shape, labels.shape, axis=axis)
    if x.size and _has_columns(x, axis):
        wide, losses = widened(x), np.empty(labels.shape, np.float32)
        names = _names(labels, x.shape[axis])
        if in_columns("label_cross_entropy", (losses, wide, names), x.shape, axis):
            return narrowed(losses, x)
    if _lies_inside(x, axis):
        places = _places(labels, x.shape[axis], axis)
        picked = np.take_along_axis(log_softmax(widened(x), axis), places, axis)
        return narrowed(np.subtract(0.0, picked, out=picked).reshape(labels.shape), x)
    lines, names = _lines(x, axis), _names(labels, x.shape[axis])
    out = np.empty(len(lines), x.dtype)
    if not in_parts("label_cross_entropy", (lines, out, names), *lines.shape):
        _cross_entropy(out, lines, names)
    return out.reshape(labels.shape)


def _cross_entropy(out: Array, x: Array, names: Array) -> None:
    picked = x[np.arange(len(x)), names].astype(np.float64)

    def begin(part: slice) -> Callable[[slice], None]:
        losses, logits, own = out[part], x[part], picked[part]

        def work(rows: slice) -> None:
            block = widened(logits[rows])
            total, top = powers(block, scratch(block))
            # float64 keeps the digits of a difference of two large logarithms.
            loss = np.log(total, dtype=np.float64)
            if top is not None:
                loss += top
            losses[rows] = loss[:, 0] - own[rows]

        return work

    for_blocks(begin, x)


def label_cross_entropy_backward(grad: Array, x: Array, labels: Array, /, axis: int) -> Array:
    if x.size and _has_columns(x, axis):
        wide = widened(x)
        found, names = empty(x.shape, wide.dtype), _names(labels, x.shape[axis])
        if in_columns("label_cross_entropy_backward", (found, widened(grad), wide, names), x.shape, axis):
            return narrowed(found, x)
    if _lies_inside(x, axis):
        own = np.expand_dims(widened(grad), axis)
        result, places = softmax(widened(x), axis), _places(labels, x.shape[axis], axis)
        np.multiply(result, own, out=result)
        np.put_along_axis(result, places, np.take_along_axis(result, places, axis) - own, axis)
        return narrowed(result, x)
    lines, names = _lines(x, axis), _names(labels, x.shape[axis])
    out = empty(lines.shape, x.dtype)
    if not in_parts("label_cross_entropy_backward", (out, grad, lines, names), *lines.shape):
        _cross_entropy_backward(out, grad, lines, names)
    if axis == x.ndim - 1:
        return out.reshape(x.shape)
    return np.moveaxis(out.reshape(*labels.shape, x.shape[axis]), -1, axis)


def _cross_entropy_backward(out: Array, grad: Array, x: Array, names: Array) -> None:
    grads, half = widened(grad.reshape(-1, 1)), is_half(x)

    def begin(part: slice) -> Callable[[slice], None]:
        target, logits, own_grads, own_names = out[part], x[part], grads[part], names[part]

        def work(rows: slice) -> None:
            block, g = widened(logits[rows]), own_grads[rows]
            result = scratch(block) if half else target[rows]
            total, _ = powers(block, result)
            np.multiply(result, g / total, out=result)
            result[np.arange(len(result)), own_names[rows]] -= g[:, 0]
            if half:
                target[rows] = result

        return work

    for_blocks(begin, x)


def _has_columns(x: Array, axis: int) -> bool:
    """Whether lines along the axis are columns of matrices in memory, and the dtype one that kernels compute in."""
    return axis < x.ndim - 1 and x.itemsize < 8 and math.prod(x.shape[axis + 1 :]) > 1


def _lies_inside(x: Array, axis: int) -> bool:
    """Whether the axes after this one are long, as in images: then the lines are processed together, strided."""
    return axis < x.ndim - 1 and math.prod(x.shape[axis + 1 :]) >= WIDE


def _places(labels: Array, classes: int, axis: int) -> Array:
    """The labels as indices along ``axis``."""
    return np.expand_dims(_names(labels, classes).reshape(labels.shape), axis)


def _lines(x: Array, axis: int) -> Array:
    """``x`` as a matrix, one row per line along ``axis``."""
    if x.ndim == 2 and axis == 1:
        return x
    moved = np.moveaxis(x, axis, -1)
    return moved.reshape(math.prod(moved.shape[:-1]), x.shape[axis])


def _names(labels: Array, classes: int) -> Array:
    """The labels, flat; raises for one out of range."""
    flat = labels.reshape(-1).astype(np.int64, copy=False)
    if flat.size and np.maximum.reduce(flat.view(np.uint64)) >= classes:  # without the sign, negative ones are large
        wrong = int(flat[(flat < 0) | (flat >= classes)][0])
        raise OutOfRangeError(f"the label {wrong} is none of the classes 0 to {classes - 1}")
    return flat
