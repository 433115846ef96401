"""Softmax and the normalizations.

16-bit floats are computed in float32. An operation whose name ends in ``_backward`` is the gradient of the one before
it, without a gradient rule of its own, so that further derivatives follow from its body.
"""

from __future__ import annotations

from typing import Any, Protocol

from backburn.backend.index import shape_of, shape_or_none
from backburn.backend.kinds import Kinds
from backburn.backend.reduce import widened
from backburn.backend.shapes import Axes, Shape, along_axis, broadcast_to, check_axes, check_axis
from backburn.backend.table import operation
from backburn.backend.types import B, F, I, Q
from backburn.base.errors import ShapeError


def sum_to(k: Any, x: Any, shape: Shape) -> Any:
    """The sum of ``x`` over the axes along which ``shape`` broadcasts to it."""
    extra = len(x.shape) - len(shape)
    axes = (*range(extra), *(extra + i for i, n in enumerate(shape) if n == 1 and x.shape[extra + i] != 1))
    return k.reshape(k.sum(x, axes, False), shape) if axes else x


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
    grad, wide = widened(k, grad), widened(k, x)
    normal, inverse = standardized(k, wide, axis, eps, centred)
    inner = k.mul(grad, widened(k, scale))
    rest = k.sub(inner, k.mul(normal, k.mean(k.mul(inner, normal), axis, True)))
    if centred:
        rest = k.sub(rest, k.mean(inner, axis, True))
    of_scale = sum_to(k, k.mul(grad, normal), scale.shape)
    return k.cast(k.mul(inverse, rest), dtype), k.cast(of_scale, dtype)


def affine(k: Any, x: Any, scale: Any, bias: Any) -> Any:
    """``x * scale + bias``, either of which may be absent."""
    x = x if scale is None else k.mul(x, widened(k, scale))
    return x if bias is None else k.add(x, widened(k, bias))


def _normalized(x: Shape, *parameters: Shape | None, axis: Axes, **_: Any) -> Shape:
    check_axes(axis, len(x))
    for parameter in parameters:
        if parameter is not None:
            broadcast_to(parameter, shape=x)
    return x


def _backward(grad: Shape, x: Shape, scale: Shape, **_: Any) -> tuple[Shape, Shape]:
    return x, scale


def channels(x: Shape, *parameters: Shape | None, axis: int, **_: Any) -> Shape:
    """The shape of ``x``, with parameters of one value for each channel."""
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


class Normalize(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
    """Softmax and the normalizations."""

    # ---- softmax ----

    @operation(kinds="F", shape=along_axis, differentiable=True)
    def softmax(self: Any, x: F, /, axis: int) -> F:
        """``exp(x) / sum(exp(x))`` along ``axis``, without overflow; NaN where all of them are -inf."""
        if 0 in shape_of(x):
            return x
        wide = widened(self, x)
        powers = self.exp(self.sub(wide, self.max(wide, (axis,), True)))
        return self.cast(self.div(powers, self.sum(powers, (axis,), True)), self.dtype(x))

    @operation(kinds="F", shape=along_axis, differentiable=True)
    def softmax_backward(self: Any, grad: F, y: F, /, axis: int) -> F:
        """The gradient of :meth:`softmax`, whose result was ``y``: ``y * (grad - sum(y * grad))``."""
        wide, y = widened(self, grad), widened(self, y)
        total = self.sum(self.mul(y, wide), (axis,), True)
        return self.cast(self.mul(y, self.sub(wide, total)), self.dtype(grad))

    @operation(kinds="F", shape=along_axis, differentiable=True)
    def log_softmax(self: Any, x: F, /, axis: int) -> F:
        """``x - log(sum(exp(x)))`` along ``axis``, without overflow: the logarithm of :meth:`softmax`."""
        if 0 in shape_of(x):
            return x
        wide = widened(self, x)
        shifted = self.sub(wide, self.max(wide, (axis,), True))
        total = self.log(self.sum(self.exp(shifted), (axis,), True))
        return self.cast(self.sub(shifted, total), self.dtype(x))

    @operation(kinds="F", shape=along_axis, differentiable=True)
    def log_softmax_backward(self: Any, grad: F, y: F, /, axis: int) -> F:
        """The gradient of :meth:`log_softmax`, whose result was ``y``: ``grad - exp(y) * sum(grad)``."""
        wide = widened(self, grad)
        total = self.sum(wide, (axis,), True)
        return self.cast(self.sub(wide, self.mul(self.exp(widened(self, y)), total)), self.dtype(grad))

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
        _normalized(shape_of(x), shape_or_none(scale), shape_or_none(bias), axis=axis)
        normal, _ = standardized(self, widened(self, x), axis, eps, True)
        return self.cast(affine(self, normal, scale, bias), self.dtype(x))

    @operation(kinds="F", shape=_backward, result=("same", "same"), differentiable=True)
    def layer_norm_backward(self: Any, grad: F, x: F, scale: F, /, axis: Axes, eps: float) -> tuple[F, F]:
        """The gradients of :meth:`layer_norm` for ``x`` and ``scale``."""
        return standardized_backward(self, grad, x, scale, axis, eps, True)

    @operation(kinds="F", shape=_normalized, differentiable=True)
    def rms_norm(self: Any, x: F, scale: F | None = None, /, axis: Axes = (1,), eps: float = 1e-5) -> F:
        """``x / sqrt(mean(x ** 2) + eps) * scale``, with the mean over ``axis``; ``scale`` broadcasts to ``x``.

        After Zhang and Sennrich, Root mean square layer normalization, 2019.
        """
        _normalized(shape_of(x), shape_or_none(scale), axis=axis)
        normal, _ = standardized(self, widened(self, x), axis, eps, False)
        return self.cast(affine(self, normal, scale, None), self.dtype(x))

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
        _grouped(shape_of(x), shape_or_none(scale), shape_or_none(bias), groups=groups)
        examples, channels, *rest = shape_of(x)
        grouped = (examples, groups, channels // groups, *rest)
        per_channel = (groups, channels // groups, *(1 for _ in rest))
        parameters = (None if p is None else self.reshape(p, per_channel) for p in (scale, bias))
        normal = self.layer_norm(self.reshape(x, grouped), *parameters, tuple(range(2, len(grouped))), eps)
        return self.reshape(normal, shape_of(x))

    @operation(kinds="F", shape=_grouped, differentiable=True)
    def instance_norm(self: Any, x: F, scale: F | None = None, bias: F | None = None, /, eps: float = 1e-5) -> F:
        """:meth:`group_norm` with a group for each channel: over all axes from 2 on."""
        _grouped(shape_of(x), shape_or_none(scale), shape_or_none(bias))
        return self.group_norm(x, scale, bias, max(shape_of(x)[1], 1), eps)

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

        The four parameters have one value for each of the channels, which are ``axis``. After Ioffe and Szegedy,
        Batch normalization, 2015.
        """
        channels(shape_of(x), *(shape_or_none(p) for p in (mean, variance, scale, bias)), axis=axis)
        shape = channel_shape(shape_of(x), axis)
        inverse = self.rsqrt(self.add(widened(self, variance), eps))
        factor = inverse if scale is None else self.mul(inverse, widened(self, scale))
        centred = self.sub(widened(self, x), self.reshape(widened(self, mean), shape))
        moved = self.mul(centred, self.reshape(factor, shape))
        shift = None if bias is None else self.reshape(widened(self, bias), shape)
        return self.cast(affine(self, moved, None, shift), self.dtype(x))

    @operation(kinds="F", shape=_training, result=("same", "same", "same"), differentiable=True)
    def batch_norm_training(
        self: Any, x: F, scale: F | None = None, bias: F | None = None, /, axis: int = 1, eps: float = 1e-5
    ) -> tuple[F, F, F]:
        """:meth:`batch_norm` with the batch's own statistics, which follow the result: mean and (biased) variance."""
        channels(shape_of(x), shape_or_none(scale), shape_or_none(bias), axis=axis)
        others = other_axes(len(shape_of(x)), axis)
        mean, variance = self.mean(x, others), self.var(x, others)
        return self.batch_norm(x, mean, variance, scale, bias, axis, eps), mean, variance

    # ---- to length 1 ----

    @operation(kinds="F", shape=lambda x, *, axis, **_: _normalized(x, axis=axis), differentiable=True)
    def normalize(self: Any, x: F, /, axis: Axes, ord: float = 2.0, eps: float = 1e-12) -> F:
        """``x`` divided by its vector norm over ``axis``, or by ``eps`` where that is larger."""
        wide = widened(self, x)
        return self.cast(self.div(wide, self.maximum(self.norm(wide, axis, ord, True), eps)), self.dtype(x))
