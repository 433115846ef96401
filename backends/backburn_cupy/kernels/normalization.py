"""Launchers: layer norm, RMS norm, batch norm, and sums per channel."""

from __future__ import annotations

import math
from typing import Any

from backburn_cupy.kernels import geometry
from backburn_cupy.kernels.operands import sum_dtype
from backburn_cupy.kernels.runner import Runner
from backburn_cupy.kernels.sources import c_type

Array = Any
Axes = tuple[int, ...]

#: Sums of fewer elements are left to CuPy, which launches one kernel instead of two.
MANY = 1 << 16

#: The coefficients per channel of a batch norm, as in batch_norm.cu.
COEFFICIENTS = 6

#: A channel of fewer float32 elements is computed in float64: the terms of its gradient may cancel.
FEW = 16


def layer_norm(
    on: Runner, x: Array, scale: Array | None = None, bias: Array | None = None, /, axis: Axes = (1,), eps: float = 1e-5
) -> Array:
    return _norm(on, x, scale, bias, axis, eps, True)


def rms_norm(on: Runner, x: Array, scale: Array | None = None, /, axis: Axes = (1,), eps: float = 1e-5) -> Array:
    return _norm(on, x, scale, None, axis, eps, False)


def layer_norm_backward(on: Runner, grad: Array, x: Array, scale: Array, /, axis: Axes, eps: float) -> Any:
    channel = _channel_of(x, scale, axis)
    if channel is not None and grad.shape == x.shape and x.size:
        return _batch_norm_backward(on, grad, x, scale, channel, eps)
    return _norm_backward(on, grad, x, scale, axis, eps, True)


def rms_norm_backward(on: Runner, grad: Array, x: Array, scale: Array, /, axis: Axes, eps: float) -> Any:
    return _norm_backward(on, grad, x, scale, axis, eps, False)


# ---- over rows ----


def _norm(
    on: Runner, x: Array, scale: Array | None, bias: Array | None, axis: Axes, eps: float, centred: bool
) -> Array:
    if not _are_rows(x.shape, axis, scale, bias):
        return _grouped(on, x, scale, bias, axis, eps, centred)
    out = on.xp.ndarray(x.shape, x.dtype)
    if out.size:
        count, length = _split(x.shape, axis)
        operands = [None if a is None else on.xp.ascontiguousarray(a) for a in (x, scale, bias)]
        plan = geometry.rows(count, length, x.dtype.itemsize, on.processors, on.address(operands[0]) % geometry.WIDEST)
        name = _variant("norm", x, plan, centred)
        on.run("norm", name, plan.grid, plan.block, *operands, out, count, length, float(eps))
    return out


def _norm_backward(on: Runner, grad: Array, x: Array, scale: Array, axis: Axes, eps: float, centred: bool) -> Any:
    if grad.shape != x.shape or not x.size:
        return NotImplemented
    if not _are_rows(x.shape, axis, scale):
        return _grouped_backward(on, grad, x, scale, axis, eps, centred)
    count, length = _split(x.shape, axis)
    grad, x, factor = (on.xp.ascontiguousarray(a) for a in (grad, x, scale))
    out, grad_scale = on.xp.ndarray(x.shape, x.dtype), on.xp.ndarray(scale.shape, x.dtype)
    plan = geometry.rows_with_sums(count, length, x.dtype.itemsize, on.processors)
    partial = on.xp.ndarray((plan.grid, length), sum_dtype(x))
    name = _variant("norm_backward", x, plan, centred)
    on.run("norm", name, plan.grid, plan.block, grad, x, factor, out, partial, count, length, float(eps))
    name = f"column_sum<{c_type(x)}>"
    on.run("norm", name, geometry.ceil_div(length, 32), (32, 32), partial, grad_scale, plan.grid, length)
    return out, grad_scale


def _are_rows(shape: tuple[int, ...], axis: Axes, *parameters: Array | None) -> bool:
    """Whether ``axis`` are the trailing axes, and each of ``parameters`` is one row."""
    first = len(shape) - len(axis)
    row = shape[first:]
    return axis == tuple(range(first, len(shape))) and all(
        p is None or (p.shape[-len(row) :] == row and p.size == math.prod(row)) for p in parameters
    )


def _is_for_passes(x: Array, axis: Axes) -> bool:
    """Whether rows of ``x`` are scaled in separate passes: 16-bit ones would be rounded in between."""
    return x.dtype.itemsize > 2 and _are_rows(x.shape, axis)


def _grouped(
    on: Runner, x: Array, scale: Array | None, bias: Array | None, axis: Axes, eps: float, centred: bool
) -> Array:
    """The norm with a scale that is not a row, such as that of the channels of a group."""
    if not _is_for_passes(x, axis):
        return NotImplemented
    out = _norm(on, x, None, None, axis, eps, centred)
    if scale is not None:
        on.xp.multiply(out, scale, out=out)
    return out if bias is None else on.xp.add(out, bias, out=out)


def _grouped_backward(on: Runner, grad: Array, x: Array, scale: Array, axis: Axes, eps: float, centred: bool) -> Any:
    if not _is_for_passes(x, axis):
        return NotImplemented
    ones = on.xp.full(tuple(x.shape[a] for a in axis), 1, x.dtype)
    out, _ = _norm_backward(on, on.xp.multiply(grad, scale), x, ones, axis, eps, centred)
    products = _norm(on, x, None, None, axis, eps, centred)
    on.xp.multiply(products, grad, out=products)
    shape = (1,) * (x.ndim - scale.ndim) + scale.shape
    others = tuple(i for i, n in enumerate(shape) if n == 1)
    total = on.xp.sum(products, axis=others, dtype="float64", keepdims=True)
    return out, total.reshape(scale.shape).astype(x.dtype)


def _split(shape: tuple[int, ...], axis: Axes) -> tuple[int, int]:
    """The number of rows and their length."""
    first = len(shape) - len(axis)
    return math.prod(shape[:first]), math.prod(shape[first:])


def _variant(kernel: str, x: Array, plan: geometry.Rows, centred: bool) -> str:
    return f"{kernel}<{c_type(x)}, {plan.lanes}, {plan.items}, {str(centred).lower()}>"


# ---- over a batch ----


def batch_norm(
    on: Runner,
    x: Array,
    mean: Array,
    variance: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    /,
    axis: int = 1,
    eps: float = 1e-5,
) -> Array:
    parameters = (mean, variance, scale, bias)
    if not _are_channels(x, axis, parameters) or not x.size:
        return NotImplemented
    batch = _Batch(on, x, axis, cancels=False)
    coefficients = batch.coefficients()
    launch = geometry.elements(batch.channels, 1)
    operands = (*map(batch.row, parameters), coefficients)
    on.run("batch_norm", f"moment_coefficients<{batch.type}>", *launch, *operands, batch.channels, float(eps))
    return batch.apply(None, coefficients)


def batch_norm_training(
    on: Runner, x: Array, scale: Array | None = None, bias: Array | None = None, /, axis: int = 1, eps: float = 1e-5
) -> Any:
    if not _are_channels(x, axis, (scale, bias)) or not x.size:
        return NotImplemented
    batch = _Batch(on, x, axis)
    mean, variance = (on.xp.ndarray((batch.channels,), x.dtype) for _ in range(2))
    coefficients = batch.moments(scale, bias, mean, variance, eps)
    return batch.apply(None, coefficients), mean, variance


def _batch_norm_backward(on: Runner, grad: Array, x: Array, scale: Array, axis: int, eps: float) -> Any:
    batch, grad, grad_scale = _Batch(on, x, axis), on.xp.ascontiguousarray(grad), on.xp.ndarray(scale.shape, x.dtype)
    coefficients = batch.moments(scale, None, None, None, eps)
    partial, parts = batch.sums(grad, coefficients)
    sizes = (parts, batch.channels, batch.count)
    batch.finish(batch.variant("finish_products"), partial, coefficients, grad_scale, *sizes)
    return batch.apply(grad, coefficients), grad_scale


def channel_sum(on: Runner, x: Array, /, axis: Axes, keepdims: bool = False) -> Array:
    """The sum over all axes but one that is not the first, as in the gradient of a bias."""
    left = [i for i in range(x.ndim) if i not in axis]
    if len(left) != 1 or not left[0] or x.size < MANY or x.dtype.char not in "fdeE" or not x.flags.c_contiguous:
        return NotImplemented
    batch = _Batch(on, x, left[0], cancels=False)
    partial, parts = batch.sums(None, None)
    shape = [1] * x.ndim if keepdims else [0]
    shape[left[0] if keepdims else 0] = batch.channels
    out = on.xp.ndarray(tuple(shape), x.dtype)
    sizes = (parts, batch.channels, batch.inner, batch.count)
    batch.finish(f"finish_sums<{batch.type}>", batch.x, partial, out, *sizes)
    return out


def _are_channels(x: Array, axis: int, parameters: tuple[Array | None, ...]) -> bool:
    return 0 <= axis < x.ndim and all(p is None or p.shape == (x.shape[axis],) for p in parameters)


def _channel_of(x: Array, scale: Array, axis: Axes) -> int | None:
    """The one axis not in ``axis``, if ``scale`` has one value per entry along it."""
    if len(axis) != x.ndim - 1 or scale.ndim != x.ndim:
        return None
    left = [i for i in range(x.ndim) if i not in axis]
    fits = all(n == (x.shape[i] if i == left[0] else 1) for i, n in enumerate(scale.shape))
    return left[0] if fits else None


class _Batch:
    """``x`` as (outer, channels, inner), and the launches over it."""

    def __init__(self, on: Runner, x: Array, axis: int, *, cancels: bool = True) -> None:
        self.on, self.x = on, on.xp.ascontiguousarray(x)
        self.outer, self.channels = math.prod(x.shape[:axis]), x.shape[axis]
        self.inner = math.prod(x.shape[axis + 1 :])
        self.count = self.outer * self.inner
        self.type = c_type(x)
        self.few = cancels and x.dtype.char == "f" and self.count < FEW

    def row(self, parameter: Array | None) -> Array | None:
        return None if parameter is None else self.on.xp.ascontiguousarray(parameter)

    def variant(self, kernel: str) -> str:
        """The instance of a kernel that has one for few elements."""
        return f"{kernel}<{self.type}, {str(self.few).lower()}>"

    def coefficients(self) -> Array:
        """Memory for the coefficients."""
        return self.on.xp.ndarray((COEFFICIENTS, self.channels), "float64" if self.few else sum_dtype(self.x))

    def finish(self, kernel: str, *arguments: Any) -> None:
        """Launch a kernel that adds up what :meth:`sums` has returned, with a warp per channel."""
        grid = geometry.ceil_div(self.channels, geometry.WARP)
        self.on.run("batch_norm", kernel, grid, (geometry.WARP, geometry.WARP), *arguments)

    def moments(
        self, scale: Array | None, bias: Array | None, mean: Array | None, variance: Array | None, eps: float
    ) -> Array:
        """The coefficients of the forward pass; ``mean`` and ``variance`` are filled."""
        partial, parts = self.sums(None, None)
        coefficients = self.coefficients()
        operands = (self.x, partial, self.row(scale), self.row(bias), coefficients, mean, variance)
        sizes = (parts, self.channels, self.inner, self.count)
        self.finish(self.variant("finish_moments"), *operands, *sizes, float(eps))
        return coefficients

    def sums(self, grad: Array | None, coefficients: Array | None) -> tuple[Array, int]:
        """Sums per channel and part, and the number of parts."""
        if self.inner == 1:
            tiles, parts = self._tiles()
            kernel, sizes, block = "sum_columns", (tiles, parts), (32, 8)
        else:
            parts = geometry.planes(self.outer, self.channels, self.on.processors)
            tiles = self.channels
            kernel, sizes, block = "sum_planes", (self.inner, parts), (256, 1)
        partial = self.on.xp.ndarray((parts, 2, self.channels), "float64")
        arguments = (self.x, grad, coefficients, partial, self.outer, self.channels, *sizes)
        self.on.run("batch_norm", self.variant(kernel), tiles * parts, block, *arguments)
        return partial, parts

    def apply(self, grad: Array | None, coefficients: Array) -> Array:
        """Apply each channel's coefficients to ``x`` (and ``grad``)."""
        out = self.on.xp.ndarray(self.x.shape, self.x.dtype)
        operands = (self.x, grad, coefficients, out)
        if self.inner == 1:
            tiles, parts = self._tiles()
            arguments: tuple[Any, ...] = (*operands, self.outer, self.channels, tiles, parts)
            self.on.run("batch_norm", self.variant("apply_columns"), tiles * parts, (32, 8), *arguments)
        else:
            planes, pack = self.outer * self.channels, geometry.pack(self.x.dtype.itemsize)
            launch = geometry.elements(planes * geometry.ceil_div(self.inner + pack - 1, pack), 1)
            sizes = (planes, self.channels, self.inner)
            self.on.run("batch_norm", self.variant("apply_planes"), *launch, *operands, *sizes)
        return out

    def _tiles(self) -> tuple[int, int]:
        return geometry.columns(self.outer, self.channels, self.x.dtype.itemsize, self.on.processors)
