"""NumPy: losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from backburn.backend.loss import labelled
from backburn.base.errors import OutOfRangeError
from backburn_numpy.blocks import BLOCK, WORTH, wide
from backburn_numpy.memory import empty
from backburn_numpy.threads import for_parts

Array = Any


def label_cross_entropy(x: Array, labels: Array, /, axis: int) -> Array:
    labelled(x.shape, labels.shape, axis=axis)
    lines, names = _lines(x, axis), _names(labels, x.shape[axis])
    out = np.empty(len(lines), x.dtype)

    def block(rows: slice) -> None:
        shifted = _shifted(lines[rows])
        picked = shifted[np.arange(len(shifted)), names[rows]]
        total = np.add.reduce(np.exp(shifted, out=shifted), axis=-1)
        out[rows] = np.subtract(np.log(total, out=total), picked, out=total)

    _for_blocks(block, lines)
    return out.reshape(labels.shape)


def label_cross_entropy_backward(grad: Array, x: Array, labels: Array, /, axis: int) -> Array:
    lines, names = _lines(x, axis), _names(labels, x.shape[axis])
    grads = grad.reshape(-1, 1)
    out = empty(lines.shape, x.dtype)

    def block(rows: slice) -> None:
        softmax = _shifted(lines[rows])
        np.exp(softmax, out=softmax)
        np.divide(softmax, np.add.reduce(softmax, axis=-1, keepdims=True), out=softmax)
        softmax[np.arange(len(softmax)), names[rows]] -= 1
        np.multiply(softmax, grads[rows], out=out[rows], casting="same_kind")

    _for_blocks(block, lines)
    if axis == x.ndim - 1:
        return out.reshape(x.shape)
    return np.moveaxis(out.reshape(*labels.shape, x.shape[axis]), -1, axis)


def _lines(x: Array, axis: int) -> Array:
    """``x`` as a matrix whose rows are the lines along ``axis``."""
    if x.ndim == 2 and axis == 1:
        return x
    moved = np.moveaxis(x, axis, -1)
    return moved.reshape(math.prod(moved.shape[:-1]), x.shape[axis])


def _names(labels: Array, classes: int) -> Array:
    """The labels in a row; raises for one that names no class."""
    flat = labels.reshape(-1)
    if flat.size and (flat.min() < 0 or flat.max() >= classes):
        wrong = int(flat[(flat < 0) | (flat >= classes)][0])
        raise OutOfRangeError(f"the label {wrong} is none of the classes 0 to {classes - 1}")
    return flat


def _shifted(lines: Array) -> Array:
    """A block of rows less their largest elements, so that no power overflows; 16-bit floats in float32."""
    lines = wide(lines)
    top = np.maximum.reduce(lines, axis=-1, keepdims=True)
    return np.subtract(lines, top)


def _for_blocks(work: Callable[[slice], None], lines: Array) -> None:
    """Call ``work`` with slices of about :data:`BLOCK` elements that cover the rows, in several threads if it pays."""
    width = max(lines.shape[1], 1)
    step = max(1, BLOCK // width)

    def part(start: int, stop: int) -> None:
        for first in range(start, stop, step):
            work(slice(first, min(first + step, stop)))

    for_parts(part, len(lines), max(1, WORTH // width))
