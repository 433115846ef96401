"""NumPy: softmax and the normalizations, by kernels, or by the contract's bodies: short norms in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backburn.ops.bodies.scalars import shape_or_none
from backburn.ops.bodies.shapes import check_not_negative, check_same_shape
from backburn.ops.normalization import channel_shape, channels, other_axes
from backburn.ops.table import OPERATIONS
from backburn_numpy import compiled, tuning
from backburn_numpy.compiled import FLOAT32
from backburn_numpy.elementwise.blocks import along, for_blocks, longest_axis, run_rows
from backburn_numpy.elementwise.half_precision import cast_like, in_float32, is_half
from backburn_numpy.implements import implements
from backburn_numpy.rows.norms import (
    Planes,
    batch_norm_apply,
    batch_norm_train,
    batch_norm_train_backward,
    columns_fit,
    plane_layout,
    standardize_backward,
)
from backburn_numpy.runtime.memory import empty

Array = Any
Axes = tuple[int, ...]


@implements("softmax", takes_backend=True)
def softmax(k: Any, x: Array, /, axis: int) -> Array:
    return along(k, "softmax", axis, x)


@implements("softmax_backward", takes_backend=True)
def softmax_backward(k: Any, grad: Array, y: Array, /, axis: int) -> Array:
    return along(k, "softmax_backward", axis, grad, y)


@implements("log_softmax", takes_backend=True)
def log_softmax(k: Any, x: Array, /, axis: int) -> Array:
    return along(k, "log_softmax", axis, x)


@implements("log_softmax_backward", takes_backend=True)
def log_softmax_backward(k: Any, grad: Array, y: Array, /, axis: int) -> Array:
    return along(k, "log_softmax_backward", axis, grad, y)


# ---- layer norm and RMS norm ----


@implements("layer_norm", takes_backend=True)
def layer_norm(
    k: Any, x: Array, scale: Array | None = None, bias: Array | None = None, /, axis: Axes = (1,), eps: float = 1e-5
) -> Array:
    return _standardize(k, x, scale, bias, axis, eps, True)


@implements("layer_norm_backward", takes_backend=True)
def layer_norm_backward(k: Any, grad: Array, x: Array, scale: Array, /, axis: Axes, eps: float) -> tuple[Array, Array]:
    return _standardize_backward(k, grad, x, scale, axis, eps, True)


@implements("rms_norm", takes_backend=True)
def rms_norm(k: Any, x: Array, scale: Array | None = None, /, axis: Axes = (1,), eps: float = 1e-5) -> Array:
    return _standardize(k, x, scale, None, axis, eps, False)


@implements("rms_norm_backward", takes_backend=True)
def rms_norm_backward(k: Any, grad: Array, x: Array, scale: Array, /, axis: Axes, eps: float) -> tuple[Array, Array]:
    return _standardize_backward(k, grad, x, scale, axis, eps, False)


def _standardize(
    k: Any, x: Array, scale: Array | None, bias: Array | None, axis: Axes, eps: float, centred: bool
) -> Array:
    if is_half(x):
        return in_float32(_standardize, k, x, scale, bias, axis, eps, centred)
    if x.size and compiled.serving("standardize", x) is not None and compiled.have_dtype(x, scale, bias):
        rows = fits = _rows(axis, x, scale, bias)
        if fits is None:
            same = scale is None or bias is None or scale.shape == bias.shape
            planes = plane_layout(x, axis, shape_or_none(bias if scale is None else scale)) if same else None
            if planes is not None or columns_fit(x, axis, scale, bias):
                return batch_norm_train(x, scale, bias, eps, centred, planes)[0]
            rows = _rows(axis, x, None, None)
        if rows is not None:
            out, lines = empty(x.shape, x.dtype), rows[0]
            run_rows("standardize", (out.reshape(lines.shape), lines), *lines.shape, *rows[1:], eps, centred)
            # A group has several channels, whose scales and biases are applied afterwards.
            for operation, parameter in () if fits else ((np.multiply, scale), (np.add, bias)):
                if parameter is not None:
                    operation(out, parameter, out=out)
            return out
    body = OPERATIONS["layer_norm" if centred else "rms_norm"].body
    operands = (x, scale, bias) if centred else (x, scale)
    return cast_like(body(k, *_prepared(k, axis, centred, *operands), axis, eps), x)


def _prepared(k: Any, axis: Axes, centred: bool, x: Array, *others: Array | None) -> list[Array | None]:
    """The operands of a norm's body over ``axis``, such that the rounding of a float32 mean does not show.

    They are in float64, or the mean of ``x`` is subtracted before the body does so again.
    """
    if math.prod(x.shape[i] for i in axis) < tuning.MIN_LENGTH_FOR_FLOAT32_NORM:
        return [_wide(y) for y in (x, *others)]
    return [k.sub(x, k.mean(x, axis, True)) if centred and x.dtype == FLOAT32 else x, *others]


def _wide(x: Array) -> Array:
    """``x`` in float64; None stays None."""
    return None if x is None else x.astype(np.float64, copy=False)


def _standardize_backward(
    k: Any, grad: Array, x: Array, scale: Array, axis: Axes, eps: float, centred: bool
) -> tuple[Array, Array]:
    if is_half(x):
        return in_float32(_standardize_backward, k, grad, x, scale, axis, eps, centred)
    name = "layer_norm_backward" if centred else "rms_norm_backward"
    compiled.check_arrays(name, grad, x, scale)
    check_same_shape(name, x, grad)
    out = empty(x.shape, x.dtype)
    if not x.size:
        return out, np.zeros_like(scale)
    if compiled.serving("standardize_backward", x) is not None and compiled.have_dtype(x, grad, scale):
        if (rows := _rows(axis, x, scale, None)) is not None:
            lines, factor, _ = rows
            shape = lines.shape
            total = standardize_backward(out.reshape(shape), grad.reshape(shape), lines, factor, eps, centred)
            return out, total.reshape(scale.shape).astype(scale.dtype, copy=False)
        planes = plane_layout(x, axis, scale.shape)
        if planes is not None:
            out, sums = batch_norm_train_backward(grad, x, scale, eps, centred, planes)
            return out, _sum_grad_scale(sums, scale.shape, planes)
        if columns_fit(x, axis, scale):
            return batch_norm_train_backward(grad, x, scale, eps, centred, None)
    body, cut = OPERATIONS[name].body, longest_axis(x.shape, axis)
    if cut is None or x.size <= tuning.BLOCK_ELEMENTS:
        y, g, s = _prepared(k, axis, centred, x, grad, scale)
        found, total = body(k, g, y, s, axis, eps)
        return cast_like(found, x), cast_like(total, scale)
    wide, totals = scale.reshape((1,) * (x.ndim - scale.ndim) + scale.shape), {}

    def work(key: tuple[slice, ...]) -> None:
        factor = wide[key] if wide.shape[cut] != 1 else wide
        y, g, s = _prepared(k, axis, centred, x[key], grad[key], factor)
        found, totals[key[cut].start] = body(k, g, y, s, axis, eps)
        np.copyto(out[key], found, casting="same_kind")

    for_blocks(work, x.shape, cut)
    parts = [totals[start] for start in sorted(totals)]
    total = np.concatenate(parts, cut) if wide.shape[cut] != 1 else np.add.reduce(parts, axis=0, dtype=np.float64)
    return out, cast_like(total.reshape(scale.shape), scale)


def _sum_grad_scale(sums: Array, scale: tuple[int, ...], planes: Planes) -> Array:
    """The gradient of the scale, from the sums over the planes that it scales."""
    scales, step, by_plane = (int(n) for n in planes.numbers[-3:])
    if not by_plane:
        sums = np.add.reduce(sums, axis=1, dtype=np.float64, keepdims=True)
    by_scale = sums.reshape(-1, scales if step else sums.shape[0], sums.shape[1])
    total = np.add.reduce(by_scale, axis=0, dtype=np.float64)
    total = (total if step else np.add.reduce(total, axis=None)).reshape(scale)
    return total.astype(FLOAT32)


def _rows(axis: Axes, x: Array, *parameters: Array | None) -> tuple[Array, ...] | None:
    """``x`` as a matrix whose rows are its elements over ``axis``, and each of ``parameters`` as one row.

    None if that takes more than a reshape.
    """
    first = x.ndim - len(axis)
    if axis != tuple(range(first, x.ndim)):
        return None
    shape = x.shape[first:]
    length = math.prod(shape)
    for p in parameters:
        if p is not None and (p.size != length or p.shape[-len(shape) :] != shape or p.ndim > x.ndim):
            return None
    lines = x if first == 1 == len(shape) else x.reshape(-1, length)
    return lines, *[None if p is None else p.reshape(length) for p in parameters]


# ---- over a batch ----


@implements("batch_norm", takes_backend=True)
def batch_norm(
    k: Any,
    x: Array,
    mean: Array,
    variance: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    /,
    axis: int = 1,
    eps: float = 1e-5,
) -> Array:
    parameters = [p for p in (mean, variance, scale, bias) if p is not None]
    compiled.check_arrays("batch_norm", x, mean, variance, *parameters)
    check_not_negative("batch_norm", axis)
    channels(x.shape, *(p.shape for p in parameters), axis=axis)
    if is_half(x):
        return in_float32(batch_norm, k, x, mean, variance, scale, bias, axis, eps)
    if x.size and (found := batch_norm_apply(x, mean, variance, scale, bias, axis, eps)) is not None:
        return found
    factor = np.reciprocal(np.sqrt(variance + eps), out=...)
    out = np.subtract(x, mean.reshape(shape := channel_shape(x.shape, axis)), out=empty(x.shape, x.dtype))
    return _affine(out, factor if scale is None else factor * scale, bias, shape)


@implements("batch_norm_training", takes_backend=True)
def batch_norm_training(
    k: Any, x: Array, scale: Array | None = None, bias: Array | None = None, /, axis: int = 1, eps: float = 1e-5
) -> tuple[Array, Array, Array]:
    parameters = [p for p in (scale, bias) if p is not None]
    compiled.check_arrays("batch_norm_training", x, *parameters)
    check_not_negative("batch_norm_training", axis)
    channels(x.shape, *(p.shape for p in parameters), axis=axis)
    if is_half(x):
        return in_float32(batch_norm_training, k, x, scale, bias, axis, eps)
    others = other_axes(x.ndim, axis)
    planes = plane_layout(x, others, channel_shape(x.shape, axis))
    if (planes is not None or (x.size and columns_fit(x, others))) and compiled.have_dtype(x, *parameters):
        return batch_norm_train(x, scale, bias, eps, True, planes, True)
    shape, wide = channel_shape(x.shape, axis), _wide(x)
    mean = k.mean(wide, others, True)
    out = np.subtract(wide, mean, out=empty(x.shape, wide.dtype))
    variance = k.mean(k.square(out), others, True)
    factor = np.reciprocal(np.sqrt(variance + eps), out=...)
    _affine(out, factor if scale is None else factor * scale.reshape(shape), bias, shape)
    return cast_like(out, x), cast_like(mean.reshape(-1), x), cast_like(variance.reshape(-1), x)


def _affine(out: Array, factor: Array, bias: Array | None, shape: tuple[int, ...]) -> Array:
    """Replace ``out`` by ``out * factor + bias``, which broadcast in that shape."""
    np.multiply(out, factor.reshape(shape), out=out)
    return out if bias is None else np.add(out, bias.reshape(shape), out=out)
