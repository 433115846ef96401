"""NumPy: losses of labels, by kernels, or by the contract's bodies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backburn.base.errors import OutOfRangeError
from backburn.ops.bodies.shapes import check_not_negative, check_same_shape
from backburn.ops.losses import labelled
from backburn.ops.table import OPERATIONS
from backburn_numpy import compiled
from backburn_numpy.elementwise.blocks import for_blocks, longest_axis, run_columns, run_rows
from backburn_numpy.elementwise.half_precision import in_float32, is_half
from backburn_numpy.implements import implements
from backburn_numpy.runtime.memory import empty

Array = Any


@implements("label_cross_entropy", takes_backend=True)
def label_cross_entropy(k: Any, x: Array, labels: Array, /, axis: int) -> Array:
    check_not_negative("label_cross_entropy", axis)
    labelled(x.shape, labels.shape, axis=axis)
    if is_half(x):
        return in_float32(label_cross_entropy, k, x, labels, axis)
    class_ids, losses = class_indices(labels, x.shape[axis]), empty(labels.shape, x.dtype)
    if compiled.serving("label_cross_entropy", x) is None:
        _fill_losses(losses, np.moveaxis(x, axis, -1), class_ids.reshape(labels.shape))
        return losses
    if _has_columns(x, axis):
        run_columns("label_cross_entropy", (losses, x, class_ids), x.shape, axis)
    else:
        lines = _lines(x, axis)
        run_rows("label_cross_entropy", (lines, losses, class_ids), *lines.shape)
    return losses


@implements("label_cross_entropy_backward", takes_backend=True)
def label_cross_entropy_backward(k: Any, grad: Array, x: Array, labels: Array, /, axis: int) -> Array:
    check_not_negative("label_cross_entropy_backward", axis)
    if is_half(x):
        return in_float32(label_cross_entropy_backward, k, grad, x, labels, axis)
    labelled(x.shape, labels.shape, axis=axis)
    check_same_shape("label_cross_entropy_backward", labels, grad)
    class_ids, out = class_indices(labels, x.shape[axis]), empty(x.shape, x.dtype)
    if compiled.serving("label_cross_entropy_backward", x) is None or grad.dtype != x.dtype:
        return OPERATIONS["label_cross_entropy_backward"].body(k, grad, x, labels, axis)
    if _has_columns(x, axis):
        run_columns("label_cross_entropy_backward", (out, grad, x, class_ids), x.shape, axis)
        return out
    lines = _lines(x, axis)
    run_rows("label_cross_entropy_backward", (out, grad, lines, class_ids), *lines.shape)
    return out if axis == x.ndim - 1 else np.moveaxis(out.reshape(*labels.shape, x.shape[axis]), -1, axis)


def _fill_losses(losses: Array, x: Array, labels: Array) -> None:
    """Fill the losses of labels of the last axis, whose logits are ``x``; differences are in float64.

    This keeps the digits of a difference of two large logarithms.
    """

    def work(key: Any) -> None:
        top = np.maximum.reduce(x[key], axis=-1, keepdims=True)
        powers = np.subtract(x[key], top, out=...)
        total = np.add.reduce(np.exp(powers, out=powers), axis=-1, keepdims=True)
        own = np.subtract(np.take_along_axis(x[key], labels[key][..., None], -1), top, dtype=np.float64)
        np.subtract(np.log(total, dtype=np.float64)[..., 0], own[..., 0], out=losses[key], casting="same_kind")

    if (cut := longest_axis(labels.shape, ())) is None:
        work(...)
    else:
        for_blocks(work, x.shape, cut)


def _has_columns(x: Array, axis: int) -> bool:
    """Whether lines along the axis are columns of matrices in memory."""
    return x.size > 0 and axis < x.ndim - 1 and math.prod(x.shape[axis + 1 :]) > 1


def _lines(x: Array, axis: int) -> Array:
    """``x`` as a matrix, one row per line along ``axis``."""
    if x.ndim == 2 and axis == 1:
        return x
    moved = np.moveaxis(x, axis, -1)
    return moved.reshape(math.prod(moved.shape[:-1]), x.shape[axis])


def class_indices(labels: Array, classes: int) -> Array:
    """The labels, flat; raises for one out of range."""
    flat = labels.reshape(-1).astype(np.int64, copy=False)
    if flat.size and np.maximum.reduce(flat.view(np.uint64)) >= classes:  # without the sign, negative ones are large
        wrong = int(flat[(flat < 0) | (flat >= classes)][0])
        raise OutOfRangeError(f"the label {wrong} is none of the classes 0 to {classes - 1}")
    return flat
