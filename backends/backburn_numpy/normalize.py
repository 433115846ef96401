"""NumPy: softmax and the normalizations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backburn_numpy.blocks import BLOCK, along, is_half

Array = Any
Axes = tuple[int, ...]

# ---- softmax: kernels over the last axis ----


def _softmax(out: Array, x: Array) -> None:
    np.subtract(x, np.maximum.reduce(x, axis=-1, keepdims=True), out=out)
    np.exp(out, out=out)
    np.divide(out, np.add.reduce(out, axis=-1, keepdims=True), out=out)


def _softmax_backward(out: Array, grad: Array, y: Array) -> None:
    np.subtract(grad, np.vecdot(grad, y)[..., None], out=out)
    np.multiply(out, y, out=out)


def _log_softmax(out: Array, x: Array) -> None:
    np.subtract(x, np.maximum.reduce(x, axis=-1, keepdims=True), out=out)
    total = np.add.reduce(np.exp(out), axis=-1, keepdims=True)
    np.subtract(out, np.log(total, out=total), out=out)


def _log_softmax_backward(out: Array, grad: Array, y: Array) -> None:
    np.exp(y, out=out)
    np.multiply(out, np.add.reduce(grad, axis=-1, keepdims=True), out=out)
    np.subtract(grad, out, out=out)


def softmax(x: Array, /, axis: int) -> Array:
    return along(_softmax, axis, x)


def softmax_backward(grad: Array, y: Array, /, axis: int) -> Array:
    return along(_softmax_backward, axis, grad, y)


def log_softmax(x: Array, /, axis: int) -> Array:
    return along(_log_softmax, axis, x)


def log_softmax_backward(grad: Array, y: Array, /, axis: int) -> Array:
    return along(_log_softmax_backward, axis, grad, y)


# ---- layer norm and its kin ----


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
    out = np.empty(x.shape, x.dtype)
    if not x.size:
        return out
    rows = _rows(axis, x, scale, bias)
    if rows is None:
        normal, _ = _normal(_wide(x), axis, eps, centred)
        _affine(normal, _wide(scale), _wide(bias))
        out[...] = normal
        return out
    lines, scale, bias = rows
    target = out.reshape(lines.shape)
    for block in _blocks(lines):
        normal, _ = _normal(_wide(lines[block]), (1,), eps, centred, None if is_half(x) else target[block])
        _affine(normal, scale, bias)
        if is_half(x):
            target[block] = normal
    return out


def _standardize_backward(
    grad: Array, x: Array, scale: Array, axis: Axes, eps: float, centred: bool
) -> tuple[Array, Array]:
    out = np.empty(x.shape, x.dtype)
    if not x.size:
        return out, np.zeros_like(scale)
    rows = _rows(axis, x, scale, None)
    if rows is None:
        of_scale = _block_backward(out, _wide(grad), _wide(x), _wide(scale), axis, eps, centred)
        extra = x.ndim - scale.ndim
        axes = (*range(extra), *(extra + i for i, n in enumerate(scale.shape) if n == 1 and x.shape[extra + i] != 1))
        return out, np.add.reduce(of_scale, axis=axes).reshape(scale.shape).astype(scale.dtype, copy=False)
    lines, wide, _ = rows
    target, grads = out.reshape(lines.shape), grad.reshape(lines.shape)
    total = np.zeros(lines.shape[1], wide.dtype)
    for block in _blocks(lines):
        total += np.add.reduce(
            _block_backward(target[block], _wide(grads[block]), _wide(lines[block]), wide, (1,), eps, centred), axis=0
        )
    return out, total.reshape(scale.shape).astype(scale.dtype, copy=False)


def _block_backward(out: Array, grad: Array, x: Array, scale: Array, axis: Axes, eps: float, centred: bool) -> Array:
    """Fill ``out`` with the gradient for ``x``; return that for ``scale``, not yet summed."""
    normal, inverse = _normal(x, axis, eps, centred)
    rest = grad * scale
    of_scale = grad * normal
    product = rest * normal
    np.multiply(normal, np.mean(product, axis=axis, keepdims=True), out=normal)
    if centred:
        np.subtract(rest, np.mean(rest, axis=axis, keepdims=True), out=rest)
    np.subtract(rest, normal, out=rest)
    np.multiply(rest, inverse, out=out, casting="same_kind")
    return of_scale


def _normal(x: Array, axis: Axes, eps: float, centred: bool, out: Array | None = None) -> tuple[Array, Array]:
    """``x`` standardized over ``axis``, in ``out`` if given, and the factor."""
    if centred:
        out = np.subtract(x, np.mean(x, axis=axis, keepdims=True), out=... if out is None else out)
        x = out
    mean_square = np.mean(np.square(x), axis=axis, keepdims=True)
    inverse = np.reciprocal(np.sqrt(mean_square + eps), out=...)
    return np.multiply(x, inverse, out=... if out is None else out), inverse


def _affine(x: Array, scale: Array | None, bias: Array | None) -> None:
    if scale is not None:
        np.multiply(x, scale, out=x)
    if bias is not None:
        np.add(x, bias, out=x)


def _wide(x: Array) -> Array:
    """``x``, or a 16-bit float in float32; what is absent stays absent."""
    return x if x is None or not is_half(x) else x.astype(np.float32)


def _rows(axis: Axes, x: Array, *parameters: Array | None) -> tuple[Array, ...] | None:
    """``x`` as a matrix whose rows are its elements over ``axis``, and each of ``parameters`` as one row.

    None where that takes more than a reshape.
    """
    first = x.ndim - len(axis)
    if axis != tuple(range(first, x.ndim)):
        return None
    shape = x.shape[first:]
    if any(p is not None and p.shape[-len(shape) :] != shape for p in parameters):
        return None
    length = math.prod(shape)
    if any(p is not None and p.size != length for p in parameters):
        return None
    return x.reshape(-1, length), *(None if p is None else _wide(p.reshape(length)) for p in parameters)


def _blocks(lines: Array) -> list[slice]:
    """Slices of about :data:`BLOCK` elements that cover the rows."""
    rows = max(1, BLOCK // lines.shape[1])
    return [slice(start, start + rows) for start in range(0, len(lines), rows)]


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
    shape = tuple(n if i == axis else 1 for i, n in enumerate(x.shape))
    factor = np.reciprocal(np.sqrt(_wide(variance) + eps), out=...)
    if scale is not None:
        factor *= _wide(scale)
    out = np.subtract(_wide(x), _wide(mean).reshape(shape), out=...)
    _affine(out, factor.reshape(shape), None if bias is None else _wide(bias).reshape(shape))
    return out.astype(x.dtype, copy=False)


def batch_norm_training(
    x: Array, scale: Array | None = None, bias: Array | None = None, /, axis: int = 1, eps: float = 1e-5
) -> tuple[Array, Array, Array]:
    shape = tuple(n if i == axis else 1 for i, n in enumerate(x.shape))
    others = tuple(i for i in range(x.ndim) if i != axis)
    wide = _wide(x)
    mean = np.mean(wide, axis=others, keepdims=True)
    out = np.subtract(wide, mean, out=...)
    variance = np.mean(np.square(out), axis=others, keepdims=True)
    factor = np.reciprocal(np.sqrt(variance + eps), out=...)
    if scale is not None:
        factor *= _wide(scale).reshape(shape)
    _affine(out, factor, None if bias is None else _wide(bias).reshape(shape))
    channels = x.shape[axis]
    return (
        out.astype(x.dtype, copy=False),
        mean.reshape(channels).astype(x.dtype, copy=False),
        variance.reshape(channels).astype(x.dtype, copy=False),
    )
