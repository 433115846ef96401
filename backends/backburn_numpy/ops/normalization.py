"""NumPy: softmax and the normalizations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backburn.ops.bodies.scalars import shape_or_none
from backburn.ops.normalization import channels
from backburn.ops.reduce import keepdims_shape
from backburn_numpy.batch_norm_kernels import (
    Planes,
    batch_norm_apply,
    batch_norm_train,
    batch_norm_train_backward,
    columns_fit,
    normalize_columns,
    normalize_columns_backward,
    plane_layout,
)
from backburn_numpy.blocks import along, scratch
from backburn_numpy.compiled import FLOAT32
from backburn_numpy.half_precision import cast_like, upcast_half
from backburn_numpy.memory import empty
from backburn_numpy.norm_kernels import affine, standardize, standardize_backward, wide
from backburn_numpy.reduction_kernels import split, sum_columns
from backburn_numpy.row_kernels import dot_keepdims, exp_and_sum, sum_keepdims

Array = Any
Axes = tuple[int, ...]

# ---- softmax: kernels over an axis ----


def _softmax(out: Array, x: Array, axis: int) -> None:
    total, _ = exp_and_sum(x, out, axis)
    np.multiply(out, np.reciprocal(total, out=total), out=out)


def _softmax_backward(out: Array, grad: Array, y: Array, axis: int) -> None:
    np.subtract(grad, dot_keepdims(grad, y, axis), out=out)
    np.multiply(out, y, out=out)


def _log_softmax(out: Array, x: Array, axis: int) -> None:
    np.subtract(x, np.maximum.reduce(x, axis=axis, keepdims=True), out=out)
    terms = np.exp(out, out=scratch(out))
    # Along other axes NumPy adds one by one: in float32, many small terms after a 1 would be lost.
    total = sum_keepdims(terms) if axis == -1 else np.add.reduce(terms, axis=axis, dtype=np.float64, keepdims=True)
    np.subtract(out, np.log(total, out=total).astype(out.dtype, copy=False), out=out)


def _log_softmax_backward(out: Array, grad: Array, y: Array, axis: int) -> None:
    np.exp(y, out=out)
    np.multiply(out, sum_keepdims(grad, axis), out=out)
    np.subtract(grad, out, out=out)


def softmax(x: Array, /, axis: int) -> Array:
    return along("softmax", _softmax, axis, x)


def softmax_backward(grad: Array, y: Array, /, axis: int) -> Array:
    return along("softmax_backward", _softmax_backward, axis, grad, y)


def log_softmax(x: Array, /, axis: int) -> Array:
    return along("log_softmax", _log_softmax, axis, x)


def log_softmax_backward(grad: Array, y: Array, /, axis: int) -> Array:
    return along("log_softmax_backward", _log_softmax_backward, axis, grad, y)


# ---- layer norm and RMS norm ----


def layer_norm(
    x: Array, scale: Array | None = None, bias: Array | None = None, /, axis: Axes = (1,), eps: float = 1e-5
) -> Array:
    return _standardize(x, scale, bias, axis, eps, True)


def layer_norm_backward(grad: Array, x: Array, scale: Array, /, axis: Axes, eps: float) -> tuple[Array, Array]:
    return _standardize_backward(grad, x, scale, axis, eps, True)


def rms_norm(x: Array, scale: Array | None = None, /, axis: Axes = (1,), eps: float = 1e-5) -> Array:
    return _standardize(x, scale, None, axis, eps, False)


def rms_norm_backward(grad: Array, x: Array, scale: Array, /, axis: Axes, eps: float) -> tuple[Array, Array]:
    return _standardize_backward(grad, x, scale, axis, eps, False)


def _standardize(x: Array, scale: Array | None, bias: Array | None, axis: Axes, eps: float, centred: bool) -> Array:
    out = empty(x.shape, x.dtype)
    if not x.size:
        for p in (scale, bias):
            if p is not None:
                np.broadcast_to(p, x.shape)  # an error if it does not fit
        return out
    rows = _rows(axis, x, scale, bias)
    if rows is None:
        same = scale is None or bias is None or scale.shape == bias.shape
        planes = plane_layout(x, axis, shape_or_none(bias if scale is None else scale)) if same else None
        if planes is not None:
            return batch_norm_train(x, scale, bias, eps, centred, planes)[0]
        if columns_fit(x, axis, scale, bias):
            return normalize_columns(x, scale, bias, eps, centred)[0]
        normal, _ = _normal(_wide(x, axis), axis, eps, centred)
        affine(normal, upcast_half(scale), upcast_half(bias))
        np.copyto(out, normal, casting="same_kind")
        return out
    lines, scale, bias = rows
    standardize(out.reshape(lines.shape), lines, scale, bias, eps, centred)
    return out


def _standardize_backward(
    grad: Array, x: Array, scale: Array, axis: Axes, eps: float, centred: bool
) -> tuple[Array, Array]:
    out = empty(x.shape, x.dtype)
    if not x.size:
        return out, np.zeros_like(scale)
    rows = _rows(axis, x, scale, None)
    if rows is None:
        planes = plane_layout(x, axis, scale.shape)
        if planes is not None:
            out, sums = batch_norm_train_backward(grad, x, scale, eps, centred, planes)
            return out, _sum_grad_scale(sums, scale.shape, planes)
        if columns_fit(x, axis, scale):
            return normalize_columns_backward(grad, x, scale, eps, centred)
        operands = upcast_half(grad), _wide(x, axis), upcast_half(scale)
        grad_scale = _general_backward(out, *operands, axis, eps, centred)
        extra = x.ndim - scale.ndim
        axes = (*range(extra), *(extra + i for i, n in enumerate(scale.shape) if n == 1 and x.shape[extra + i] != 1))
        total = np.add.reduce(grad_scale, axis=axes, dtype=np.float64) if axes else grad_scale
        return out, total.reshape(scale.shape).astype(scale.dtype, copy=False)
    lines, factor, _ = rows
    grad_scale = standardize_backward(out.reshape(lines.shape), grad.reshape(lines.shape), lines, factor, eps, centred)
    return out, grad_scale.reshape(scale.shape).astype(scale.dtype, copy=False)


def _sum_grad_scale(sums: Array, scale: tuple[int, ...], planes: Planes) -> Array:
    """The gradient of the scale, from the sums over the planes that it scales."""
    scales, step, by_plane = (int(n) for n in planes.numbers[-3:])
    if not by_plane:
        sums = np.add.reduce(sums, axis=1, dtype=np.float64, keepdims=True)
    by_scale = sums.reshape(-1, scales if step else sums.shape[0], sums.shape[1])
    total = np.add.reduce(by_scale, axis=0, dtype=np.float64)
    total = (total if step else np.add.reduce(total, axis=None)).reshape(scale)
    return total.astype(FLOAT32)


def _wide(x: Array, axis: Axes) -> Array:
    """``x`` in the dtype to standardize it over ``axis`` in."""
    return wide(x, math.prod(x.shape[i] for i in axis))


def _general_backward(out: Array, grad: Array, x: Array, scale: Array, axis: Axes, eps: float, centred: bool) -> Array:
    """Fill ``out`` with the gradient for ``x``; return that for ``scale``, before summation."""
    normal, inverse = _normal(x, axis, eps, centred)
    rest = grad * scale
    grad_scale = grad * normal
    np.multiply(normal, _mean(rest * normal, axis).astype(x.dtype), out=normal)
    if centred:
        np.add(normal, _mean(rest, axis).astype(x.dtype), out=normal)
    np.subtract(rest, normal, out=rest)
    np.multiply(rest, inverse, out=out, casting="same_kind")
    return grad_scale


def _mean(x: Array, axis: Axes) -> Array:
    """The means over ``axis``, with ``keepdims``, in float64; NaN, and no warning, of nothing."""
    total = sum_columns(x.reshape(1, len(x), -1)) if axis == (0,) and x.flags.c_contiguous and x.size else None
    if total is None:
        total = np.add.reduce(x, axis=axis, dtype=np.float64, keepdims=True)
    return np.divide(total, math.prod(x.shape[i] for i in axis), out=...).reshape(keepdims_shape(x.shape, axis))


def _centred(x: Array, mean: Array) -> Array:
    """``x - mean``, of which ``mean`` has the digits of float64."""
    first, rest = split(mean, x.dtype)
    out = np.subtract(x, first, out=empty(x.shape, x.dtype))
    return np.subtract(out, rest, out=out) if rest.any() else out


def _normal(x: Array, axis: Axes, eps: float, centred: bool) -> tuple[Array, Array]:
    """``x`` standardized over ``axis``, and the factor."""
    if centred:
        x = _centred(x, _mean(x, axis))
    inverse = np.reciprocal(np.sqrt(_mean(np.square(x), axis) + eps), out=...).astype(x.dtype)
    return np.multiply(x, inverse, out=x if centred else ...), inverse


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
    return lines, *[None if p is None else upcast_half(p if p.ndim == 1 else p.reshape(length)) for p in parameters]


def _difference(x: Array, y: Array) -> Array:
    """``x - y`` in the shape of ``x``, writable."""
    return np.subtract(x, y, out=empty(x.shape, x.dtype))


def batch_norm(
    x: Array,
    mean: Array,
    variance: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    /,
    axis: int = 1,
    eps: float = 1e-5,
) -> Array:
    channels(x.shape, *(shape_or_none(p) for p in (mean, variance, scale, bias)), axis=axis)
    shape = tuple(n if i == axis else 1 for i, n in enumerate(x.shape))
    factor = np.reciprocal(np.sqrt(upcast_half(variance) + eps), out=...)
    if scale is not None:
        factor *= upcast_half(scale)
    if x.size and (found := batch_norm_apply(upcast_half(x), mean, factor, bias, axis)) is not None:
        return cast_like(found, x)
    out = _difference(upcast_half(x), upcast_half(mean).reshape(shape))
    affine(out, factor.reshape(shape), None if bias is None else upcast_half(bias).reshape(shape))
    return cast_like(out, x)


def batch_norm_training(
    x: Array, scale: Array | None = None, bias: Array | None = None, /, axis: int = 1, eps: float = 1e-5
) -> tuple[Array, Array, Array]:
    channels(x.shape, shape_or_none(scale), shape_or_none(bias), axis=axis)
    shape = tuple(n if i == axis else 1 for i, n in enumerate(x.shape))
    others = tuple(i for i in range(x.ndim) if i != axis)
    planes = plane_layout(x, others, shape)
    if planes is not None:
        return batch_norm_train(x, scale, bias, eps, True, planes, True)
    if x.size and columns_fit(x, others):
        return normalize_columns(x, scale, bias, eps, True, True)
    values = upcast_half(x)
    mean = _mean(values, others)
    out = _centred(values, mean)
    variance = _mean(np.square(out), others)
    factor = np.reciprocal(np.sqrt(variance + eps), out=...)
    if scale is not None:
        factor *= upcast_half(scale).reshape(shape)
    affine(out, factor.astype(out.dtype, copy=False), None if bias is None else upcast_half(bias).reshape(shape))
    count = x.shape[axis]
    return (
        cast_like(out, x),
        cast_like(mean.reshape(count), x),
        cast_like(variance.reshape(count), x),
    )
