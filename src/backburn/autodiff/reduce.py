"""Gradient rules: reductions."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from backburn.autodiff.functions import in_float32
from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import linear, reduction
from backburn.backend.reduce import count, widened

Axes = tuple[int, ...]
Shape = tuple[int, ...]


def kept(shape: Shape, axis: Axes) -> Shape:
    """``shape`` with the reduced axes kept at length 1."""
    return tuple(1 if i in axis else n for i, n in enumerate(shape))


def spread(k: Any, g: Any, x_shape: Shape, axis: Axes) -> Any:
    """The gradient of a reduction, repeated over what was reduced."""
    return k.broadcast_to(k.reshape(g, kept(x_shape, axis)), x_shape)


def divided(k: Any, x: Any, n: Any) -> Any:
    """``x / n``, with ``n`` a number of elements, or a tensor of them, which may be beyond the largest float16."""
    wide = widened(k, x)
    return k.div(x, n) if wide is x else k.cast(k.div(wide, n), k.dtype(x))


def shared(k: Any, g: Any, x: Any, out: Any, axis: Axes) -> Any:
    """The gradient of an extremum ``out``, in equal parts to all elements that are it."""
    chosen = k.cast(k.equal(x, k.reshape(out, kept(x.shape, axis))), k.dtype(x))
    number = k.sum(widened(k, chosen), axis, True)
    return k.mul(chosen, divided(k, k.reshape(g, kept(x.shape, axis)), number))


def ratio(k: Any, x: Any, y: Any) -> Any:
    """``x / y``, and 0 where ``y`` is 0; its derivatives are finite there."""
    zero = k.equal(y, 0.0)
    return k.where(zero, 0.0, k.div(x, k.where(zero, 1.0, y)))


def times_the_others(k: Any, g: Any, x: Any, axis: Axes) -> Any:
    """The gradient times the product of the other elements."""
    return k.mul(k.reshape(g, kept(x.shape, axis)), k.prod_of_others(x, axis))


def mean_gradient(k: Any, g: Any, x_shape: Shape, axis: Axes) -> Any:
    """An equal part of the gradient to each element."""
    return spread(k, divided(k, g, float(math.prod(x_shape[a] for a in axis))), x_shape, axis)


def var_gradient(k: Any, g: Any, x: Any, axis: Axes, correction: float) -> Any:
    """Twice the distance from the mean, over the degrees of freedom."""
    scale = divided(k, k.reshape(k.mul(g, 2.0), kept(x.shape, axis)), max(count(x, axis) - correction, 0.0))
    return k.mul(k.sub(x, k.mean(x, axis, True)), scale)


def std_gradient(k: Any, g: Any, x: Any, out: Any, axis: Axes, correction: float) -> Any:
    """The distance from the mean in standard deviations, over the degrees of freedom; 0 where there is no deviation."""
    scale = divided(k, k.reshape(g, kept(x.shape, axis)), max(count(x, axis) - correction, 0.0))
    return k.mul(scale, ratio(k, k.sub(x, k.mean(x, axis, True)), k.reshape(out, kept(x.shape, axis))))


def norm_gradient(k: Any, g: Any, x: Any, out: Any, axis: Axes, ord: float) -> Any:
    """``sign(x) (|x| / norm) ** (ord - 1)``; 0 where the norm is, or where an element is at which it has a corner."""
    if ord == 0:
        return None
    if ord in (math.inf, -math.inf):
        return k.mul(k.sign(x), shared(k, g, k.abs(x), out, axis))
    g, out = (k.reshape(t, kept(x.shape, axis)) for t in (g, out))
    if ord == 1:
        return k.mul(g, k.sign(x))
    if ord == 2:
        return k.mul(g, ratio(k, x, out))
    return in_float32(k, partial(_by_powers, ord=ord), g, x, out)


def _by_powers(k: Any, g: Any, x: Any, out: Any, ord: float) -> Any:
    part_of_norm = ratio(k, k.abs(x), out)  # may underflow: only an element that is 0 has a corner
    powers = k.pow(k.where(k.equal(x, 0.0), 1.0, part_of_norm), ord - 1.0)
    return k.mul(g, k.mul(k.sign(x), powers))


def logsumexp_gradient(k: Any, g: Any, x: Any, out: Any, axis: Axes) -> Any:
    """Each element's part of the sum; 0 where all are -inf."""
    total = k.reshape(k.where(k.equal(out, -math.inf), 0.0, out), kept(x.shape, axis))
    return k.mul(k.exp(k.sub(x, total)), k.reshape(g, kept(x.shape, axis)))


gradient("sum", x=spread)
gradient("prod", x=lambda k, g, x, axis: in_float32(k, partial(times_the_others, axis=axis), g, x))
gradient("max", x=shared)
gradient("min", x=shared)
gradient("mean", x=mean_gradient)
gradient("var", x=var_gradient)
gradient("std", x=std_gradient)
gradient("norm", x=norm_gradient)
gradient("logsumexp", x=logsumexp_gradient)

linear("sum", "mean")
reduction("prod", "max", "min", "var", "std", "norm", "logsumexp")
