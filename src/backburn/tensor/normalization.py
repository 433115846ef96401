"""Tensor functions: softmax and the normalizations.

All take float tensors; integers become the default float. They raise :class:`DTypeError` for bool and quantized
tensors, :class:`AxisError` for an axis that does not exist and :class:`ShapeError` for parameters that do not fit.
16-bit floats are computed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Never

from backburn.hints.arguments import explained, plain_signature, refuse
from backburn.tensor.core.dispatch import call, float_operand, promote_present, tensor_operand
from backburn.tensor.core.integers import has_wide_integers, in_float64
from backburn.tensor.core.methods import method
from backburn.tensor.core.options import axes_of, axis_of, integer, number
from backburn.tensor.inspection import finfo

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, Tensor

__all__ = [
    "batch_norm", "batch_norm_training", "group_norm", "instance_norm", "layer_norm", "log_softmax", "normalize",
    "rms_norm", "softmax", "softmin",
]  # fmt: skip

# ---- softmax ----


@method
@plain_signature
def softmax(x: Tensor, /, axis: int = -1, *surplus: Never, **wrong: Never) -> FloatTensor:
    """``exp(x) / sum(exp(x))`` along ``axis``, without overflow: positive numbers that add up to 1.

    NaN where every element is -inf.

        >>> import backburn as bb
        >>> bb.softmax(bb.asarray([0.0, 0.0])).tolist(), bb.softmax(bb.asarray([1000.0, 0.0])).tolist()
        ([0.5, 0.5], [1.0, 0.0])
    """
    if surplus or wrong:
        refuse(softmax, surplus, wrong)
    if has_wide_integers(x):
        return in_float64(softmax, x, axis=axis)
    x = float_operand("softmax", x)
    return call("softmax", x, axis=axis_of("softmax", x, axis))


@method
@plain_signature
def log_softmax(x: Tensor, /, axis: int = -1, *surplus: Never, **wrong: Never) -> FloatTensor:
    """The logarithm of :func:`softmax`, accurate where that is small.

    >>> import backburn as bb
    >>> bb.log_softmax(bb.asarray([1000.0, 0.0])).tolist()
    [0.0, -1000.0]
    """
    if surplus or wrong:
        refuse(log_softmax, surplus, wrong)
    if has_wide_integers(x):
        return in_float64(log_softmax, x, axis=axis)
    x = float_operand("log_softmax", x)
    return call("log_softmax", x, axis=axis_of("log_softmax", x, axis))


@explained
def softmin(x: Tensor, /, axis: int = -1) -> FloatTensor:
    """:func:`softmax` of ``-x``: the smallest element gets the largest share.

    >>> import backburn as bb
    >>> softmin(bb.asarray([0.0, 1000.0])).tolist()
    [1.0, 0.0]
    """
    if has_wide_integers(x):
        return in_float64(softmin, x, axis=axis)
    x = float_operand("softmin", x)
    return call("softmin", x, axis=axis_of("softmin", x, axis))


# ---- over the elements of one example ----


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    axis: int | Sequence[int] = -1,
    eps: float = 1e-5,
) -> FloatTensor:
    """``(x - mean) / sqrt(variance + eps) * weight + bias``, with mean and variance over ``axis``.

    ``weight`` and ``bias`` broadcast to ``x``. After Ba, Kiros and Hinton, Layer normalization, 2016.

        >>> import backburn as bb
        >>> layer_norm(bb.asarray([[1.0, 3.0], [10.0, 10.0]]), eps=0.0625).numpy().round(2).tolist()
        [[-0.9700000286102295, 0.9700000286102295], [0.0, 0.0]]
    """
    if has_wide_integers(x):
        return in_float64(layer_norm, x, weight, bias, axis=axis, eps=eps)
    axes = axes_of("layer_norm", tensor_operand("layer_norm", x), axis)
    operands = promote_present("layer_norm", x, weight, bias)
    return call("layer_norm", *operands, axis=axes, eps=number("layer_norm", "eps", eps))


def rms_norm(
    x: Tensor, weight: Tensor | None = None, *, axis: int | Sequence[int] = -1, eps: float | None = None
) -> FloatTensor:
    """``x / sqrt(mean(x ** 2) + eps) * weight``, with the mean over ``axis``; ``weight`` broadcasts to ``x``.

    ``eps`` is by default that of the dtype (:func:`backburn.finfo`). After Zhang and Sennrich, Root mean square layer
    normalization, 2019.

        >>> import backburn as bb
        >>> rms_norm(bb.asarray([3.0, -3.0]), eps=0.0).tolist()
        [1.0, -1.0]
    """
    axes = axes_of("rms_norm", tensor_operand("rms_norm", x), axis)
    operands = promote_present("rms_norm", x, weight)
    least = finfo(operands[0].dtype).eps if eps is None else number("rms_norm", "eps", eps)
    return call("rms_norm", *operands, axis=axes, eps=least)


def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> FloatTensor:
    """:func:`layer_norm` of each example over ``num_groups`` groups of channels, which are axis 1.

    ``weight`` and ``bias`` have one value for each channel. Raises :class:`ShapeError` where the channels do not form
    groups of equal size. After Wu and He, Group normalization, 2018.

        >>> import backburn as bb
        >>> group_norm(bb.asarray([[1.0, 3.0, 5.0, 5.0]]), 2, eps=0.0625).numpy().round(2).tolist()
        [[-0.9700000286102295, 0.9700000286102295, 0.0, 0.0]]
    """
    if has_wide_integers(x):
        return in_float64(lambda x, w, b: group_norm(x, num_groups, w, b, eps=eps), x, weight, bias)
    operands = promote_present("group_norm", tensor_operand("group_norm", x), weight, bias)
    eps = number("group_norm", "eps", eps)
    return call("group_norm", *operands, groups=integer("group_norm", "num_groups", num_groups), eps=eps)


def instance_norm(
    x: Tensor, *, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> FloatTensor:
    """:func:`group_norm` with one group per channel: over all axes after the first two.

    >>> import backburn as bb
    >>> instance_norm(bb.asarray([[[3.0, -3.0], [5.0, 5.0]]]), eps=1e-12).tolist()
    [[[1.0, -1.0], [0.0, 0.0]]]
    """
    if has_wide_integers(x):
        return in_float64(instance_norm, x, weight=weight, bias=bias, eps=eps)
    operands = promote_present("instance_norm", tensor_operand("instance_norm", x), weight, bias)
    return call("instance_norm", *operands, eps=number("instance_norm", "eps", eps))


# ---- over a batch ----


def batch_norm(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    axis: int = 1,
    eps: float = 1e-5,
) -> FloatTensor:
    """``(x - running_mean) / sqrt(running_var + eps) * weight + bias``, with given statistics, as in inference.

    The parameters have one value for each channel along ``axis``; gradients flow to all of them. After
    Ioffe and Szegedy, Batch normalization, 2015.

        >>> import backburn as bb
        >>> batch_norm(bb.asarray([[1.0, 5.0]]), bb.asarray([0.0, 5.0]), bb.asarray([4.0, 1.0]), eps=0.0).tolist()
        [[0.5, 0.0]]
    """
    if has_wide_integers(x):
        return in_float64(batch_norm, x, running_mean, running_var, weight, bias, axis=axis, eps=eps)
    channels = axis_of("batch_norm", tensor_operand("batch_norm", x), axis)
    operands = promote_present("batch_norm", x, running_mean, running_var, weight, bias)
    eps = number("batch_norm", "eps", eps)
    return call("batch_norm", *operands, axis=channels, eps=eps)


def batch_norm_training(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, axis: int = 1, eps: float = 1e-5
) -> tuple[FloatTensor, FloatTensor, FloatTensor]:
    """:func:`batch_norm` with the batch's statistics, which follow the result: mean and (biased) variance.

    >>> import backburn as bb
    >>> y, mean, variance = batch_norm_training(bb.asarray([[1.0], [3.0]]), eps=0.0)
    >>> y.tolist(), mean.tolist(), variance.tolist()
    ([[-1.0], [1.0]], [2.0], [1.0])
    """
    if has_wide_integers(x):
        return in_float64(batch_norm_training, x, weight, bias, axis=axis, eps=eps)
    name = "batch_norm_training"
    channels = axis_of(name, tensor_operand(name, x), axis)
    operands = promote_present(name, x, weight, bias)
    return call(name, *operands, axis=channels, eps=number(name, "eps", eps))


# ---- unit vectors ----


@explained
def normalize(x: Tensor, /, p: float = 2.0, axis: int | Sequence[int] | None = -1, eps: float = 1e-12) -> FloatTensor:
    """``x`` divided by its vector norm of order ``p`` over ``axis``, or by ``eps`` where that is larger.

    >>> import backburn as bb
    >>> normalize(bb.asarray([[3.0, 4.0], [0.0, 0.0]])).numpy().round(2).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    x = float_operand("normalize", x)
    axes, order = axes_of("normalize", x, axis), number("normalize", "p", p)
    return call("normalize", x, axis=axes, ord=order, eps=number("normalize", "eps", eps))
