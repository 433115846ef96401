"""Launchers: softmax and cross-entropy over rows."""

from __future__ import annotations

import math
from typing import Any

from backburn.ops.bodies.shapes import check_same_shape
from backburn.ops.losses import labelled, without_axis
from backburn_cupy.kernels import geometry
from backburn_cupy.kernels.operands import int64
from backburn_cupy.kernels.runner import Runner
from backburn_cupy.kernels.sources import c_type

Array = Any


def softmax(on: Runner, x: Array, /, axis: int) -> Array:
    return _run_along(on, "softmax", axis, x)


def softmax_backward(on: Runner, grad: Array, y: Array, /, axis: int) -> Array:
    return _run_along(on, "softmax_backward", axis, grad, y)


def log_softmax(on: Runner, x: Array, /, axis: int) -> Array:
    return _run_along(on, "log_softmax", axis, x)


def log_softmax_backward(on: Runner, grad: Array, y: Array, /, axis: int) -> Array:
    return _run_along(on, "log_softmax_backward", axis, grad, y)


def label_cross_entropy(on: Runner, x: Array, labels: Array, /, axis: int) -> Array:
    labelled(x.shape, labels.shape, axis=axis)
    out = on.xp.ndarray(labels.shape, x.dtype)
    if out.size and not x.shape[axis]:
        return NotImplemented  # no label can be valid
    _rows(on, "losses", "label_cross_entropy", _lines(on, x, axis), int64(on, labels), out, fault=True)
    return out


def label_cross_entropy_backward(on: Runner, grad: Array, x: Array, labels: Array, /, axis: int) -> Array:
    labelled(x.shape, labels.shape, axis=axis)
    lines = _lines(on, x, axis)
    out = on.xp.ndarray(lines.shape, x.dtype)
    operands = (*_with_step(on, grad), lines, int64(on, labels))
    _rows(on, "losses", "label_cross_entropy_backward", *operands, out, like=lines, fault=True)
    return _move_back(on, out, axis)


def softmax_cross_entropy(on: Runner, x: Array, targets: Array, /, axis: int) -> Array:
    check_same_shape("softmax_cross_entropy", x, targets)
    out = on.xp.ndarray(without_axis(x.shape, axis), x.dtype)
    _rows(on, "losses", "softmax_cross_entropy", _lines(on, x, axis), _lines(on, targets, axis), out)
    return out


def softmax_cross_entropy_backward(on: Runner, grad: Array, x: Array, targets: Array, /, axis: int) -> Array:
    check_same_shape("softmax_cross_entropy_backward", x, targets)
    lines = _lines(on, x, axis)
    out = on.xp.ndarray(lines.shape, x.dtype)
    operands = (*_with_step(on, grad), lines, _lines(on, targets, axis))
    _rows(on, "losses", "softmax_cross_entropy_backward", *operands, out, like=lines)
    return _move_back(on, out, axis)


def _run_along(on: Runner, kernel: str, axis: int, *operands: Array) -> Array:
    check_same_shape(kernel, *operands)
    lines = [_lines(on, o, axis) for o in operands]
    out = on.xp.ndarray(lines[0].shape, lines[0].dtype)
    _rows(on, "softmax", kernel, *lines, out)
    return _move_back(on, out, axis)


def _lines(on: Runner, x: Array, axis: int) -> Array:
    """``x`` with ``axis`` last, contiguous; a copy if necessary."""
    return on.xp.ascontiguousarray(x if axis == x.ndim - 1 else on.xp.moveaxis(x, axis, -1))


def _move_back(on: Runner, out: Array, axis: int) -> Array:
    """``out``, which has ``axis`` last, with that axis moved back."""
    return out if axis == out.ndim - 1 else on.xp.moveaxis(out, -1, axis)


def _with_step(on: Runner, grad: Array) -> tuple[Any, int]:
    """The elements of ``grad`` in order, and their stride: 0 if it was broadcast from one, else 1."""
    return (on.address(grad), 0) if not any(grad.strides) else (on.xp.ascontiguousarray(grad), 1)


def _rows(
    on: Runner, family: str, kernel: str, *arguments: Array, like: Array | None = None, fault: bool = False
) -> None:
    """Launch ``kernel(*arguments, rows, length[, fault])`` over the rows of ``like``, by default the first argument."""
    lines = arguments[0] if like is None else like
    length, count = lines.shape[-1], math.prod(lines.shape[:-1])
    if not count:
        return
    alignment = on.address(lines) % geometry.WIDEST
    lanes, items, grid, block = geometry.rows(count, length, lines.dtype.itemsize, on.processors, alignment)
    name = f"{kernel}<{c_type(lines)}, {lanes}, {items}>"
    on.run(family, name, grid, block, *arguments, count, length, *((on.fault,) if fault else ()))
