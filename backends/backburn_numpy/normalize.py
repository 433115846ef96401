"""NumPy: softmax and the normalizations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backburn.backend.index import shape_or_none
from backburn.backend.normalize import channels
from backburn_numpy.blocks import BLOCK, WORTH, along, is_half, wide
from backburn_numpy.memory import empty
from backburn_numpy.threads import for_parts

Array = Any
Axes = tuple[int, ...]

# ---- softmax: kernels over the last axis ----


def _sums(x: Array) -> Array:
    """The sums over the last axis, which is kept; products with ones, at which the processor is faster."""
    return np.vecdot(x, np.ones(x.shape[-1], x.dtype))[..., None]


def _softmax(out: Array, x: Array) -> None:
    np.subtract(x, np.maximum.reduce(x, axis=-1, keepdims=True), out=out)
    np.exp(out, out=out)
    np.divide(out, _sums(out), out=out)


def _softmax_backward(out: Array, grad: Array, y: Array) -> None:
    np.subtract(grad, np.vecdot(grad, y)[..., None], out=out)
    np.multiply(out, y, out=out)


def _log_softmax(out: Array, x: Array) -> None:
    np.subtract(x, np.maximum.reduce(x, axis=-1, keepdims=True), out=out)
    np.subtract(out, np.log(_sums(np.exp(out))), out=out)


def _log_softmax_backward(out: Array, grad: Array, y: Array) -> None:
    np.exp(y, out=out)
    np.multiply(out, _sums(grad), out=out)
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
    out = empty(x.shape, x.dtype)
    if not x.size:
        return out
    rows = _rows(axis, x, scale, bias)
    if rows is None:
        normal, _ = _normal(wide(x), axis, eps, centred)
        _affine(normal, wide(scale), wide(bias))
        np.copyto(out, normal, casting="same_kind")
        return out
    lines, scale, bias = rows
    target, half = out.reshape(lines.shape), is_half(x)

    def part(start: int, stop: int) -> None:
        for block in _blocks(lines, start, stop):
            normal, _ = _normal_rows(wide(lines[block]), eps, centred, None if half else target[block])
            _affine(normal, scale, bias)
            if half:
                target[block] = normal

    for_parts(part, len(lines), max(1, WORTH // lines.shape[1]))
    return out


def _standardize_backward(
    grad: Array, x: Array, scale: Array, axis: Axes, eps: float, centred: bool
) -> tuple[Array, Array]:
    out = empty(x.shape, x.dtype)
    if not x.size:
        return out, np.zeros_like(scale)
    rows = _rows(axis, x, scale, None)
    if rows is None:
        of_scale = _general_backward(out, wide(grad), wide(x), wide(scale), axis, eps, centred)
        extra = x.ndim - scale.ndim
        axes = (*range(extra), *(extra + i for i, n in enumerate(scale.shape) if n == 1 and x.shape[extra + i] != 1))
        return out, np.add.reduce(of_scale, axis=axes).reshape(scale.shape).astype(scale.dtype, copy=False)
    lines, factor, _ = rows
    target, grads = out.reshape(lines.shape), grad.reshape(lines.shape)
    sums: dict[int, Array] = {}

    def part(start: int, stop: int) -> None:
        total = np.zeros(lines.shape[1], factor.dtype)
        for block in _blocks(lines, start, stop):
            total += _rows_backward(target[block], wide(grads[block]), wide(lines[block]), factor, eps, centred)
        sums[start] = total

    for_parts(part, len(lines), max(1, WORTH // lines.shape[1]))
    total = np.add.reduce([sums[start] for start in sorted(sums)], axis=0)  # in this order, so that equal calls agree
    return out, total.reshape(scale.shape).astype(scale.dtype, copy=False)


def _rows_backward(out: Array, grad: Array, x: Array, scale: Array, eps: float, centred: bool) -> Array:
    """Fill ``out`` with the gradient for the rows ``x``; return that for ``scale``."""
    normal, inverse = _normal_rows(x, eps, centred)
    of_scale = np.einsum("ij,ij->j", grad, normal)
    rest = grad * scale
    np.multiply(normal, (np.vecdot(rest, normal) / x.shape[1])[:, None], out=normal)
    if centred:
        np.add(normal, _sums(rest) / x.shape[1], out=normal)
    np.subtract(rest, normal, out=rest)
    np.multiply(rest, inverse, out=out, casting="same_kind")
    return of_scale


def _normal_rows(x: Array, eps: float, centred: bool, out: Array | None = None) -> tuple[Array, Array]:
    """The rows of ``x`` standardized, in ``out`` if given, and the factor of each."""
    if out is None:
        out = np.empty_like(x)
    if centred:
        x = np.subtract(x, _sums(x) / x.shape[1], out=out)
    inverse = 1 / np.sqrt(np.vecdot(x, x) / x.shape[1] + eps)[:, None]
    return np.multiply(x, inverse, out=out), inverse


def _general_backward(out: Array, grad: Array, x: Array, scale: Array, axis: Axes, eps: float, centred: bool) -> Array:
    """Fill ``out`` with the gradient for ``x``; return that for ``scale``, not yet summed."""
    normal, inverse = _normal(x, axis, eps, centred)
    rest = grad * scale
    of_scale = grad * normal
    np.multiply(normal, np.mean(rest * normal, axis=axis, keepdims=True), out=normal)
    if centred:
        np.add(normal, np.mean(rest, axis=axis, keepdims=True), out=normal)
    np.subtract(rest, normal, out=rest)
    np.multiply(rest, inverse, out=out, casting="same_kind")
    return of_scale


def _normal(x: Array, axis: Axes, eps: float, centred: bool) -> tuple[Array, Array]:
    """``x`` standardized over ``axis``, and the factor."""
    if centred:
        x = np.subtract(x, np.mean(x, axis=axis, keepdims=True), out=...)
    mean_square = np.mean(np.square(x), axis=axis, keepdims=True)
    inverse = np.reciprocal(np.sqrt(mean_square + eps), out=...)
    return np.multiply(x, inverse, out=x if centred else ...), inverse


def _affine(x: Array, scale: Array | None, bias: Array | None) -> None:
    if scale is not None:
        np.multiply(x, scale, out=x)
    if bias is not None:
        np.add(x, bias, out=x)


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
    return x.reshape(-1, length), *(None if p is None else wide(p.reshape(length)) for p in parameters)


def _blocks(lines: Array, start: int, stop: int) -> list[slice]:
    """Slices of about :data:`BLOCK` elements that cover the rows from ``start`` to ``stop``."""
    rows = max(1, BLOCK // lines.shape[1])
    return [slice(first, min(first + rows, stop)) for first in range(start, stop, rows)]


def _difference(x: Array, y: Array) -> Array:
    """``x - y`` in the shape of ``x``, to be changed further."""
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
    factor = np.reciprocal(np.sqrt(wide(variance) + eps), out=...)
    if scale is not None:
        factor *= wide(scale)
    out = _difference(wide(x), wide(mean).reshape(shape))
    _affine(out, factor.reshape(shape), None if bias is None else wide(bias).reshape(shape))
    return out.astype(x.dtype, copy=False)


def batch_norm_training(
    x: Array, scale: Array | None = None, bias: Array | None = None, /, axis: int = 1, eps: float = 1e-5
) -> tuple[Array, Array, Array]:
    channels(x.shape, shape_or_none(scale), shape_or_none(bias), axis=axis)
    shape = tuple(n if i == axis else 1 for i, n in enumerate(x.shape))
    others = tuple(i for i in range(x.ndim) if i != axis)
    values = wide(x)
    mean = np.mean(values, axis=others, keepdims=True)
    out = _difference(values, mean)
    variance = np.mean(np.square(out), axis=others, keepdims=True)
    factor = np.reciprocal(np.sqrt(variance + eps), out=...)
    if scale is not None:
        factor *= wide(scale).reshape(shape)
    _affine(out, factor, None if bias is None else wide(bias).reshape(shape))
    count = x.shape[axis]
    return (
        out.astype(x.dtype, copy=False),
        mean.reshape(count).astype(x.dtype, copy=False),
        variance.reshape(count).astype(x.dtype, copy=False),
    )
