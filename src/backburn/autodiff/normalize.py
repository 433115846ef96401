"""Gradient rules: softmax and the normalizations.

``softmin``, ``group_norm``, ``instance_norm`` and ``normalize`` have none: their bodies are recorded.
"""

from __future__ import annotations

import math
from typing import Any

from backburn.autodiff.reduce import divided
from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import tangent, through_body
from backburn.backend.normalize import channel_shape, other_axes
from backburn.backend.totals import total

Axes = tuple[int, ...]
Needs = tuple[bool, ...]

gradient("softmax", x=lambda k, g, out, axis: k.softmax_backward(g, out, axis))
gradient("log_softmax", x=lambda k, g, out, axis: k.log_softmax_backward(g, out, axis))


def unit_scale(k: Any, x: Any, axis: Axes) -> Any:
    """A scale of ones, which stands for none."""
    return k.ones(tuple(n if i in axis else 1 for i, n in enumerate(x.shape)), k.dtype(x))


def layer_norm(k: Any, g: Any, x: Any, scale: Any, axis: Axes, eps: float, needs: Needs) -> Any:
    """The bias is added last: its gradient is ``g``."""
    of_x = of_scale = None
    if needs[0] or needs[1]:
        of_x, of_scale = k.layer_norm_backward(g, x, unit_scale(k, x, axis) if scale is None else scale, axis, eps)
    return of_x, of_scale, g


def rms_norm(k: Any, g: Any, x: Any, scale: Any, axis: Axes, eps: float) -> Any:
    """Both gradients share the normalized ``x``."""
    return k.rms_norm_backward(g, x, unit_scale(k, x, axis) if scale is None else scale, axis, eps)


gradient("layer_norm", ("x", "scale", "bias"), layer_norm)
gradient("rms_norm", ("x", "scale"), rms_norm)


def batch_norm(
    k: Any, g: Any, x: Any, mean: Any, variance: Any, scale: Any, axis: int, eps: float, needs: Needs
) -> Any:
    """The statistics are operands like the others; sums over the batch are shared."""
    shape, others = channel_shape(x.shape, axis), other_axes(len(x.shape), axis)
    inverse = k.rsqrt(k.add(variance, eps))
    factor = inverse if scale is None else k.mul(inverse, scale)
    of_x = k.mul(g, k.reshape(factor, shape)) if needs[0] else None
    total = k.sum(g, others, False)
    of_variance = of_scale = None
    if needs[2] or needs[3]:
        of_scale = k.mul(k.sum(k.mul(g, k.sub(x, k.reshape(mean, shape))), others, False), inverse)
        of_variance = k.mul(k.mul(of_scale, k.mul(factor, inverse)), -0.5)
    return of_x, k.neg(k.mul(total, factor)), of_variance, of_scale, total


gradient("batch_norm", ("x", "mean", "variance", "scale", "bias"), batch_norm)


def batch_norm_training(k: Any, g: Any, x: Any, scale: Any, axis: int, eps: float) -> Any:
    """Normalizing over a batch is a layer norm over all axes but the channels'; the statistics add their share."""
    shape, others = channel_shape(x.shape, axis), other_axes(len(x.shape), axis)
    g_out, g_mean, g_variance = g
    of_x = of_scale = of_bias = None
    if g_out is not None:
        by_channel = k.ones(shape, k.dtype(x)) if scale is None else k.reshape(scale, shape)
        of_x, of_scale = k.layer_norm_backward(g_out, x, by_channel, others, eps)
        of_scale, of_bias = k.reshape(of_scale, (x.shape[axis],)), k.sum(g_out, others, False)
    count = float(math.prod(x.shape[a] for a in others))
    shares = []
    if g_mean is not None:
        shares.append(k.broadcast_to(k.reshape(divided(k, g_mean, count), shape), x.shape))
    if g_variance is not None:
        centred = k.sub(x, k.mean(x, others, True))
        shares.append(k.mul(centred, k.reshape(k.mul(g_variance, 2.0 / max(count, 1.0)), shape)))
    return total(k, (of_x, *shares)), of_scale, of_bias


gradient("batch_norm_training", ("x", "scale", "bias"), batch_norm_training)

# The Jacobian of softmax is symmetric.
tangent("softmax", x=lambda k, t, out, axis: k.softmax_backward(t, out, axis))
tangent("log_softmax", x=lambda k, t, out, axis: k.sub(t, k.sum(k.mul(t, k.exp(out)), (axis,), True)))
through_body("layer_norm", "rms_norm", "batch_norm", "batch_norm_training")
