"""Softmax and the normalizations.

16-bit floats are computed in float32. An operation whose name ends in ``_backward`` is the gradient of the one before
it and has no gradient rule: further derivatives follow from its body.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from backburn.base.dtypes import float64
from backburn.base.errors import ShapeError
from backburn.ops.bodies.half_precision import upcast_half
from backburn.ops.bodies.reductions import sum_terms, sum_to
from backburn.ops.bodies.scalars import shape_or_none
from backburn.ops.primitives import Primitives
from backburn.ops.reduce import div_by_count
from backburn.ops.rules.gradients import Needs, gradient_rule
from backburn.ops.rules.shapes import Axes, Shape, along_axis, broadcast_to, check_axes, check_axis
from backburn.ops.rules.tangents import decompose, linear_in, tangent
from backburn.ops.table import operation
from backburn.ops.types import B, F, I, Q


def channel_shape(shape: Shape, axis: int) -> Shape:
    """The shape in which a vector along ``axis`` broadcasts against a tensor of ``shape``."""
    return tuple(n if i == axis else 1 for i, n in enumerate(shape))


def other_axes(rank: int, axis: int) -> Axes:
    """All axes but ``axis``."""
    return tuple(i for i in range(rank) if i != axis)


def standardized(k: Any, x: Any, axis: Axes, eps: float, centred: bool) -> tuple[Any, Any]:
    """``x`` divided by its root mean square (the standard deviation, if ``centred``), and the factor used."""
    if centred:
        x = k.sub(x, k.mean(x, axis, True))
    inverse = k.rsqrt(k.add(k.mean(k.square(x), axis, True), eps))
    return k.mul(x, inverse), inverse


def standardized_backward(
    k: Any, grad: Any, x: Any, scale: Any, axis: Axes, eps: float, centred: bool
) -> tuple[Any, Any]:
    """The gradients of ``standardized(x) * scale`` for ``x`` and for ``scale``."""
    dtype = k.dtype(x)
    grad, wide = upcast_half(k, grad), upcast_half(k, x)
    normal, inverse = standardized(k, wide, axis, eps, centred)
    inner = k.mul(grad, upcast_half(k, scale))
    rest = k.sub(inner, k.mul(normal, k.mean(k.mul(inner, normal), axis, True)))
    if centred:
        rest = k.sub(rest, k.mean(inner, axis, True))
    grad_scale = sum_to(k, k.mul(grad, normal), scale.shape)
    return k.astype(k.mul(inverse, rest), dtype), k.astype(grad_scale, dtype)


def affine(k: Any, x: Any, scale: Any, bias: Any) -> Any:
    """``x * scale + bias``, either of which may be absent."""
    x = x if scale is None else k.mul(x, upcast_half(k, scale))
    return x if bias is None else k.add(x, upcast_half(k, bias))


def _normalized(x: Shape, *parameters: Shape | None, axis: Axes, **_: Any) -> Shape:
    check_axes(axis, len(x))
    for parameter in parameters:
        if parameter is not None:
            broadcast_to(parameter, shape=x)
    return x


def _backward(grad: Shape, x: Shape, scale: Shape, **_: Any) -> tuple[Shape, Shape]:
    return x, scale


def channels(x: Shape, *parameters: Shape | None, axis: int, **_: Any) -> Shape:
    """The shape of ``x``; raises unless parameters have one value for each channel."""
    check_axis(axis, len(x))
    for parameter in parameters:
        if parameter is not None and parameter != (x[axis],):
            raise ShapeError(f"axis {axis} has {x[axis]} channels; a parameter has the shape {list(parameter)}")
    return x


def _training(x: Shape, *parameters: Shape | None, axis: int, **_: Any) -> tuple[Shape, Shape, Shape]:
    channels(x, *parameters, axis=axis)
    return x, (x[axis],), (x[axis],)


def _grouped(x: Shape, *parameters: Shape | None, groups: int = 1, **_: Any) -> Shape:
    if len(x) < 2:
        raise ShapeError("the channels are axis 1, and there is none")
    if groups < 1 or x[1] % groups:
        raise ShapeError(f"{x[1]} channels do not form {groups} groups of equal size")
    return channels(x, *parameters, axis=1)


# ---- gradients ----


def unit_scale(k: Any, x: Any, axis: Axes) -> Any:
    """A scale of ones, in place of an absent one."""
    return k.ones(tuple(n if i in axis else 1 for i, n in enumerate(x.shape)), k.dtype(x))


def grad_layer_norm(k: Any, g: Any, x: Any, scale: Any, axis: Axes, eps: float, needs: Needs) -> Any:
    """The bias is added last: its gradient is ``g``."""
    grad_x = grad_scale = None
    if needs[0] or needs[1]:
        grad_x, grad_scale = k.layer_norm_backward(g, x, unit_scale(k, x, axis) if scale is None else scale, axis, eps)
    return grad_x, grad_scale, g


def grad_rms_norm(k: Any, g: Any, x: Any, scale: Any, axis: Axes, eps: float) -> Any:
    """Both gradients share the normalized ``x``."""
    return k.rms_norm_backward(g, x, unit_scale(k, x, axis) if scale is None else scale, axis, eps)


def grad_batch_norm(
    k: Any, g: Any, x: Any, mean: Any, variance: Any, scale: Any, axis: int, eps: float, needs: Needs
) -> Any:
    """The statistics are operands like the others; sums over the batch are shared."""
    shape, others = channel_shape(x.shape, axis), other_axes(len(x.shape), axis)
    inverse = k.rsqrt(k.add(variance, eps))
    factor = inverse if scale is None else k.mul(inverse, scale)
    grad_x = k.mul(g, k.reshape(factor, shape)) if needs[0] else None
    total = k.sum(g, others, False)
    grad_variance = grad_scale = None
    if needs[2] or needs[3]:
        grad_scale = k.mul(k.sum(k.mul(g, k.sub(x, k.reshape(mean, shape))), others, False), inverse)
        grad_variance = k.mul(k.mul(grad_scale, k.mul(factor, inverse)), -0.5)
    return grad_x, k.neg(k.mul(total, factor)), grad_variance, grad_scale, total


def grad_batch_norm_training(k: Any, g: Any, x: Any, scale: Any, axis: int, eps: float) -> Any:
    """Batch normalization is a layer norm over all axes but ``axis``; the gradients of the statistics are added."""
    shape, others = channel_shape(x.shape, axis), other_axes(len(x.shape), axis)
    g_out, g_mean, g_variance = g
    grad_x = grad_scale = grad_bias = None
    if g_out is not None:
        by_channel = k.ones(shape, k.dtype(x)) if scale is None else k.reshape(scale, shape)
        grad_x, grad_scale = k.layer_norm_backward(g_out, x, by_channel, others, eps)
        grad_scale, grad_bias = k.reshape(grad_scale, (x.shape[axis],)), k.sum(g_out, others, False)
    count = float(math.prod(x.shape[a] for a in others))
    shares = []
    if g_mean is not None:
        shares.append(k.broadcast_to(k.reshape(div_by_count(k, g_mean, count), shape), x.shape))
    if g_variance is not None:
        centred = k.sub(x, k.mean(x, others, True))
        shares.append(k.mul(centred, k.reshape(k.mul(g_variance, 2.0 / max(count, 1.0)), shape)))
    return sum_terms(k, (grad_x, *shares)), grad_scale, grad_bias


def complete(k: Any, shares: Any) -> Any:
    """Whether shares add up to 1, as those of softmax do, even if rounded to bfloat16."""
    return k.less(k.abs(k.sub(shares, 1.0)), 1e-12 if k.dtype(shares) is float64 else 4e-3)


def grad_softmax_backward_y(k: Any, g: Any, grad: Any, y: Any, axis: int) -> Any:
    """``g * (grad - sum(y * grad)) - grad * sum(g * y)``."""
    total = k.sum(k.mul(y, grad), (axis,), True)
    return k.sub(k.mul(g, k.sub(grad, total)), k.mul(grad, k.sum(k.mul(g, y), (axis,), True)))


def tangent_softmax_backward_y(k: Any, t: Any, grad: Any, y: Any, axis: int) -> Any:
    """``t * (grad - sum(y * grad)) - y * sum(t * grad)``."""
    total = k.sum(k.mul(y, grad), (axis,), True)
    return k.sub(k.mul(t, k.sub(grad, total)), k.mul(y, k.sum(k.mul(t, grad), (axis,), True)))


def grad_log_softmax_backward_y(k: Any, g: Any, grad: Any, y: Any, axis: int) -> Any:
    """``-g * exp(y) * sum(grad)``, which is diagonal."""
    return k.neg(k.mul(k.mul(g, k.exp(y)), k.sum(grad, (axis,), True)))


def grad_log_softmax_backward_grad(k: Any, g: Any, y: Any, axis: int) -> Any:
    """``g - sum(g * exp(y))``, as in forward mode; for a share above 1/2, from the differences to the others."""
    shares = k.exp(y)
    wins = k.logical_and(k.greater(shares, 0.5), complete(k, k.sum(shares, (axis,), True)))
    product, others = k.mul(g, shares), k.where(wins, 0.0, shares)
    of_others = k.sum(k.where(wins, 0.0, product), (axis,), True)
    total = k.add(of_others, k.sum(k.where(wins, product, 0.0), (axis,), True))
    winning = k.sub(k.mul(g, k.sum(others, (axis,), True)), of_others)
    return k.where(wins, winning, k.sub(g, total))


class Normalization(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Softmax and the normalizations."""

    # ---- softmax ----

    @operation(kinds="F", shape=along_axis, differentiable=True)
    def softmax(self: Any, x: F, /, axis: int) -> F:
        """``exp(x) / sum(exp(x))`` along ``axis``, without overflow; NaN where all of them are -inf."""
        if 0 in x.shape:
            return x
        wide = upcast_half(self, x)
        powers = self.exp(self.sub(wide, self.max(wide, (axis,), True)))
        return self.astype(self.div(powers, self.sum(powers, (axis,), True)), self.dtype(x))

    gradient_rule(softmax, x=lambda k, g, out, axis: k.softmax_backward(g, out, axis))
    # The Jacobian of softmax is symmetric.
    tangent(softmax, x=lambda k, t, out, axis: k.softmax_backward(t, out, axis))

    @operation(kinds="F", shape=along_axis, differentiable=True)
    def softmax_backward(self: Any, grad: F, y: F, /, axis: int) -> F:
        """The gradient of :meth:`softmax`, whose result was ``y``: ``y * (grad - sum(y * grad))``.

        For a share above 1/2 it is computed as ``y`` times the sum of the differences to the other elements of
        ``grad``, weighted by their shares: 1 minus a share near 1 would lose most digits.
        """
        wide, y = upcast_half(self, grad), upcast_half(self, y)
        wins = self.logical_and(self.greater(y, 0.5), complete(self, self.sum(y, (axis,), True)))
        product, others = self.mul(y, wide), self.where(wins, 0.0, y)
        of_others = self.sum(self.where(wins, 0.0, product), (axis,), True)
        total = self.add(of_others, self.sum(self.where(wins, product, 0.0), (axis,), True))
        winning = self.sub(self.mul(wide, self.sum(others, (axis,), True)), of_others)
        return self.astype(self.mul(y, self.where(wins, winning, self.sub(wide, total))), self.dtype(grad))

    gradient_rule(
        softmax_backward,
        grad=lambda k, g, y, axis: k.softmax_backward(g, y, axis),
        y=grad_softmax_backward_y,
    )
    linear_in(softmax_backward, "grad")
    tangent(softmax_backward, y=tangent_softmax_backward_y)

    @operation(kinds="F", shape=along_axis, differentiable=True)
    def log_softmax(self: Any, x: F, /, axis: int) -> F:
        """``x - log(sum(exp(x)))`` along ``axis``, without overflow: the logarithm of :meth:`softmax`."""
        if 0 in x.shape:
            return x
        wide = upcast_half(self, x)
        shifted = self.sub(wide, self.max(wide, (axis,), True))
        total = self.log(self.sum(self.exp(shifted), (axis,), True))
        return self.astype(self.sub(shifted, total), self.dtype(x))

    gradient_rule(log_softmax, x=lambda k, g, out, axis: k.log_softmax_backward(g, out, axis))
    tangent(log_softmax, x=lambda k, t, out, axis: grad_log_softmax_backward_grad(k, t, out, axis))

    @operation(kinds="F", shape=along_axis, differentiable=True)
    def log_softmax_backward(self: Any, grad: F, y: F, /, axis: int) -> F:
        """The gradient of :meth:`log_softmax`, whose result was ``y``: ``grad - exp(y) * sum(grad)``."""
        wide, shares = upcast_half(self, grad), self.exp(upcast_half(self, y))
        all_shares = complete(self, self.sum(shares, (axis,), True))
        wins = self.logical_and(self.greater(shares, 0.5), all_shares)  # as in softmax_backward
        others = self.sum(self.where(wins, 0.0, wide), (axis,), True)
        total = self.add(others, self.sum(self.where(wins, wide, 0.0), (axis,), True))
        of_others = self.sum(self.where(wins, 0.0, shares), (axis,), True)
        winning = self.sub(self.mul(wide, of_others), self.mul(shares, others))
        return self.astype(self.where(wins, winning, self.sub(wide, self.mul(shares, total))), self.dtype(grad))

    gradient_rule(
        log_softmax_backward,
        grad=grad_log_softmax_backward_grad,
        y=grad_log_softmax_backward_y,
    )
    linear_in(log_softmax_backward, "grad")
    tangent(log_softmax_backward, y=lambda k, t, grad, y, axis: grad_log_softmax_backward_y(k, t, grad, y, axis))

    @operation(kinds="F", shape=along_axis, differentiable=True)
    def softmin(self: Any, x: F, /, axis: int) -> F:
        """:meth:`softmax` of ``-x``."""
        return self.softmax(self.neg(x), axis)

    # ---- over the elements of one example ----

    @operation(kinds="F", shape=_normalized, differentiable=True)
    def layer_norm(
        self: Any, x: F, scale: F | None = None, bias: F | None = None, /, axis: Axes = (1,), eps: float = 1e-5
    ) -> F:
        """``(x - mean) / sqrt(variance + eps) * scale + bias``, with mean and variance over ``axis``.

        ``scale`` and ``bias`` broadcast to ``x``. After Ba, Kiros and Hinton, Layer normalization, 2016.
        """
        _normalized(x.shape, shape_or_none(scale), shape_or_none(bias), axis=axis)
        normal, _ = standardized(self, upcast_half(self, x), axis, eps, True)
        return self.astype(affine(self, normal, scale, bias), self.dtype(x))

    gradient_rule(layer_norm, ("x", "scale", "bias"), grad_layer_norm)
    decompose(layer_norm)

    @operation(kinds="F", shape=_backward, result=("same", "same"), differentiable=True)
    def layer_norm_backward(self: Any, grad: F, x: F, scale: F, /, axis: Axes, eps: float) -> tuple[F, F]:
        """The gradients of :meth:`layer_norm` for ``x`` and ``scale``."""
        return standardized_backward(self, grad, x, scale, axis, eps, True)

    @operation(kinds="F", shape=_normalized, differentiable=True)
    def rms_norm(self: Any, x: F, scale: F | None = None, /, axis: Axes = (1,), eps: float = 1e-5) -> F:
        """``x / sqrt(mean(x ** 2) + eps) * scale``, with the mean over ``axis``; ``scale`` broadcasts to ``x``.

        After Zhang and Sennrich, Root mean square layer normalization, 2019.
        """
        _normalized(x.shape, shape_or_none(scale), axis=axis)
        normal, _ = standardized(self, upcast_half(self, x), axis, eps, False)
        return self.astype(affine(self, normal, scale, None), self.dtype(x))

    gradient_rule(rms_norm, ("x", "scale"), grad_rms_norm)
    decompose(rms_norm)

    @operation(kinds="F", shape=_backward, result=("same", "same"), differentiable=True)
    def rms_norm_backward(self: Any, grad: F, x: F, scale: F, /, axis: Axes, eps: float) -> tuple[F, F]:
        """The gradients of :meth:`rms_norm` for ``x`` and ``scale``."""
        return standardized_backward(self, grad, x, scale, axis, eps, False)

    @operation(kinds="F", shape=_grouped, differentiable=True)
    def group_norm(
        self: Any, x: F, scale: F | None = None, bias: F | None = None, /, groups: int = 1, eps: float = 1e-5
    ) -> F:
        """:meth:`layer_norm` of each example over groups of channels, which are axis 1.

        ``scale`` and ``bias`` have one value for each channel. After Wu and He, Group normalization, 2018.
        """
        _grouped(x.shape, shape_or_none(scale), shape_or_none(bias), groups=groups)
        examples, channels, *rest = x.shape
        grouped = (examples, groups, channels // groups, *rest)
        per_channel = (groups, channels // groups, *(1 for _ in rest))
        parameters = (None if p is None else self.reshape(p, per_channel) for p in (scale, bias))
        normal = self.layer_norm(self.reshape(x, grouped), *parameters, tuple(range(2, len(grouped))), eps)
        return self.reshape(normal, x.shape)

    @operation(kinds="F", shape=_grouped, differentiable=True)
    def instance_norm(self: Any, x: F, scale: F | None = None, bias: F | None = None, /, eps: float = 1e-5) -> F:
        """:meth:`group_norm` with a group for each channel: over all axes from 2 on."""
        _grouped(x.shape, shape_or_none(scale), shape_or_none(bias))
        return self.group_norm(x, scale, bias, max(x.shape[1], 1), eps)

    # ---- over a batch ----

    @operation(kinds="F", shape=channels, differentiable=True)
    def batch_norm(
        self: Any,
        x: F,
        mean: F,
        variance: F,
        scale: F | None = None,
        bias: F | None = None,
        /,
        axis: int = 1,
        eps: float = 1e-5,
    ) -> F:
        """``(x - mean) / sqrt(variance + eps) * scale + bias`` with given statistics, as in inference.

        The four parameters have one value for each channel, along ``axis``. After Ioffe and Szegedy,
        Batch normalization, 2015.
        """
        channels(x.shape, *(shape_or_none(p) for p in (mean, variance, scale, bias)), axis=axis)
        shape = channel_shape(x.shape, axis)
        inverse = self.rsqrt(self.add(upcast_half(self, variance), eps))
        factor = inverse if scale is None else self.mul(inverse, upcast_half(self, scale))
        centred = self.sub(upcast_half(self, x), self.reshape(upcast_half(self, mean), shape))
        moved = self.mul(centred, self.reshape(factor, shape))
        shift = None if bias is None else self.reshape(upcast_half(self, bias), shape)
        return self.astype(affine(self, moved, None, shift), self.dtype(x))

    gradient_rule(batch_norm, ("x", "mean", "variance", "scale", "bias"), grad_batch_norm)
    decompose(batch_norm)

    @operation(kinds="F", shape=_training, result=("same", "same", "same"), differentiable=True)
    def batch_norm_training(
        self: Any, x: F, scale: F | None = None, bias: F | None = None, /, axis: int = 1, eps: float = 1e-5
    ) -> tuple[F, F, F]:
        """:meth:`batch_norm` with the batch's own statistics, which follow the result: mean and (biased) variance."""
        channels(x.shape, shape_or_none(scale), shape_or_none(bias), axis=axis)
        others = other_axes(len(x.shape), axis)
        mean, variance = self.mean(x, others), self.var(x, others)
        return self.batch_norm(x, mean, variance, scale, bias, axis, eps), mean, variance

    gradient_rule(batch_norm_training, ("x", "scale", "bias"), grad_batch_norm_training)
    decompose(batch_norm_training)

    # ---- to length 1 ----

    @operation(kinds="F", shape=lambda x, *, axis, **_: _normalized(x, axis=axis), differentiable=True)
    def normalize(self: Any, x: F, /, axis: Axes, ord: float = 2.0, eps: float = 1e-12) -> F:
        """``x`` divided by its vector norm over ``axis``, or by ``eps`` where that is larger."""
        wide = upcast_half(self, x)
        return self.astype(self.div(wide, self.maximum(self.vector_norm(wide, axis, ord, True), eps)), self.dtype(x))
