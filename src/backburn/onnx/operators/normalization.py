"""Normalizations and dropout."""

from __future__ import annotations

from typing import Any

from backburn.base.dtypes import as_dtype
from backburn.nn import functional
from backburn.onnx.dtypes import held
from backburn.onnx.registry import Host, UseBody, operator
from backburn.tensor import arithmetic, creation, elementwise, random, reduce, selection
from backburn.tensor import shape as shapes
from backburn.tensor.classes import Tensor


@operator("BatchNormalization", since=9)
def batch_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, /,
    *, epsilon: float = 1e-5, momentum: float = 0.9, training_mode: int = 0,
) -> Any:  # fmt: skip
    """Normalized by running statistics, or in training mode by the batch's, with new running statistics."""
    if not training_mode:
        return functional.batch_norm(x, mean, variance, scale, bias, axis=1 if x.ndim > 1 else -1, eps=epsilon)
    axes = tuple(i for i in range(x.ndim) if i != 1)
    now: Any = reduce.mean(x, axis=axes)
    spread: Any = reduce.var(x, axis=axes)
    result = functional.batch_norm(x, now, spread, scale, bias, eps=epsilon)
    means = [arithmetic.add(old * momentum, new * (1 - momentum)) for old, new in ((mean, now), (variance, spread))]
    return result, *means


@operator("BatchNormalization", since=7)
def _older_batch_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, /,
    *, epsilon: float = 1e-5, momentum: float = 0.9, spatial: int = 1,
) -> Any:  # fmt: skip
    if not spatial:
        raise UseBody("statistics of each position (spatial=0) are not supported")
    return batch_normalization(x, scale, bias, mean, variance, epsilon=epsilon)


@operator("InstanceNormalization")
def instance_normalization(x: Tensor, scale: Tensor, bias: Tensor, /, *, epsilon: float = 1e-5) -> Any:
    """Each image normalized by its own statistics."""
    return functional.instance_norm(x, weight=scale, bias=bias, eps=epsilon)


def _stashed(x: Any, number: int) -> Any:
    """An operand in the dtype of the statistics."""
    kind = held(number)
    return x if kind is None or kind.bits <= x.dtype.bits else creation.astype(x, kind)


@operator("LayerNormalization")
def layer_normalization(
    x: Tensor, scale: Tensor, bias: Tensor | None = None, /,
    *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1, call: Any,
) -> Any:  # fmt: skip
    """Normalized over the axes from ``axis`` on."""
    axes = tuple(range(axis + x.ndim if axis < 0 else axis, x.ndim))
    wide = _stashed(x, stash_type)
    is_plain = scale.shape == x.shape[axes[0] :] and (bias is None or bias.shape == scale.shape)
    if call.outputs == 1 and wide is x and is_plain:
        return functional.layer_norm(x, scale, bias, axis=axes, eps=epsilon)
    mean: Any = reduce.mean(wide, axis=axes, keepdims=True)
    inverse: Any = elementwise.rsqrt(arithmetic.add(reduce.var(wide, axis=axes, keepdims=True), epsilon))
    result: Any = creation.astype(arithmetic.subtract(wide, mean) * inverse, x.dtype)
    result = arithmetic.multiply(result, scale)
    return (result if bias is None else arithmetic.add(result, bias)), mean, inverse


@operator("RMSNormalization")
def rms_normalization(
    x: Tensor, scale: Tensor, /, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    """Divides by the root of the mean square over the axes from ``axis`` on."""
    axes = tuple(range(axis + x.ndim if axis < 0 else axis, x.ndim))
    wide = _stashed(x, stash_type)
    if wide is x and scale.shape == x.shape[axes[0] :]:
        return functional.rms_norm(x, scale, axis=axes, eps=epsilon)
    mean: Any = reduce.mean(arithmetic.square(wide), axis=axes, keepdims=True)
    result = arithmetic.multiply(wide, elementwise.rsqrt(arithmetic.add(mean, epsilon)))
    return arithmetic.multiply(creation.astype(result, x.dtype), scale)


@operator("GroupNormalization", since=21)
def group_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, /, *, epsilon: float = 1e-5, num_groups: int, stash_type: int = 1
) -> Any:
    """Groups of channels normalized, with a scale and a bias for each channel."""
    wide = _stashed(x, stash_type)
    if wide is x:
        return functional.group_norm(x, num_groups, scale, bias, eps=epsilon)
    result = creation.astype(functional.group_norm(wide, num_groups, eps=epsilon), x.dtype)
    each = (-1, *(1 for _ in x.shape[2:]))
    return arithmetic.add(arithmetic.multiply(result, shapes.reshape(scale, each)), shapes.reshape(bias, each))


@operator("GroupNormalization", since=18)
def _older_group_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, /, *, epsilon: float = 1e-5, num_groups: int
) -> Any:
    """Groups of channels normalized, with a scale and a bias for each group."""
    each = x.shape[1] // num_groups
    weight, shift = (
        shapes.reshape(shapes.broadcast_to(shapes.expand_dims(w, 1), (num_groups, each)), (-1,)) for w in (scale, bias)
    )
    return functional.group_norm(x, num_groups, weight, shift, epsilon)


@operator("MeanVarianceNormalization")
def mean_variance_normalization(x: Tensor, /, *, axes: Any = (0, 2, 3)) -> Any:
    """Subtracts the mean and divides by the standard deviation."""
    centred: Any = arithmetic.subtract(x, reduce.mean(x, axis=tuple(axes), keepdims=True))
    square = reduce.mean(arithmetic.square(x), axis=tuple(axes), keepdims=True)
    mean = arithmetic.square(reduce.mean(x, axis=tuple(axes), keepdims=True))
    return arithmetic.divide(centred, arithmetic.add(elementwise.sqrt(arithmetic.subtract(square, mean)), 1e-9))


@operator("Dropout", since=12)
def dropout(
    x: Tensor, ratio: Host | None = None, training: Host | None = None, /, *, seed: int | None = None, call: Any
) -> Any:
    """The value itself; random elements are dropped only in a graph exported in training mode."""
    p = 0.5 if ratio is None else float(ratio.reshape(()))
    if training is None or not bool(training.reshape(())) or p == 0.0:
        return x if call.outputs < 2 else (x, creation.full_like(x, True, dtype="bool"))
    kept = random.bernoulli(x.shape, 1.0 - p, backend=x.backend)
    result = selection.where(kept, arithmetic.divide(x, 1.0 - p), creation.zeros_like(x))
    return result if call.outputs < 2 else (result, kept)


@operator("Dropout")
def _older_dropout(x: Tensor, /, *, ratio: float = 0.5, call: Any) -> Any:
    """The value itself: until opset 11 there is no training mode."""
    return x if call.outputs < 2 else (x, creation.full_like(x, True, dtype="bool"))


# ---- random numbers ----


@operator("RandomNormalLike")
def random_normal_like(
    x: Tensor, /, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Any:
    """Normal numbers, drawn from backburn's generator: the attribute ``seed`` has no effect."""
    kind = x.dtype if dtype is None else held(dtype)
    return random.normal(x.shape, mean=mean, std=scale, dtype=kind, backend=x.backend)


@operator("RandomUniformLike")
def random_uniform_like(
    x: Tensor, /, *, dtype: int | None = None, high: float = 1.0, low: float = 0.0, seed: float | None = None
) -> Any:
    """Uniform numbers, drawn from backburn's generator: the attribute ``seed`` has no effect."""
    kind = x.dtype if dtype is None else held(dtype)
    return random.uniform(x.shape, low=low, high=high, dtype=kind, backend=x.backend)


@operator("RandomNormal")
def random_normal(
    *, dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float | None = None, shape: Any, run: Any
) -> Any:
    """Normal numbers, drawn from backburn's generator: the attribute ``seed`` has no effect."""
    run.check_elements(shape)
    return random.normal(shape, mean=mean, std=scale, dtype=held(dtype), backend=run.backend)


@operator("RandomUniform")
def random_uniform(
    *, dtype: int = 1, high: float = 1.0, low: float = 0.0, seed: float | None = None, shape: Any, run: Any
) -> Any:
    """Uniform numbers, drawn from backburn's generator: the attribute ``seed`` has no effect."""
    run.check_elements(shape)
    return random.uniform(shape, low=low, high=high, dtype=held(dtype), backend=run.backend)


@operator("Bernoulli")
def bernoulli(x: Tensor, /, *, dtype: int | None = None, seed: float | None = None) -> Any:
    """1 with the probability given by each element, drawn from backburn's generator."""
    kind = x.dtype if dtype is None else held(dtype)
    return creation.astype(random.bernoulli(x.shape, x, backend=x.backend), as_dtype(kind))


@operator("Multinomial")
def multinomial(x: Tensor, /, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None, run: Any) -> Any:
    """Class indices from logits, drawn from backburn's generator."""
    run.check_elements((x.shape[0], sample_size))
    drawn = shapes.stack([random.categorical(row, (sample_size,)) for row in shapes.unstack(x)], axis=0)
    return creation.astype(drawn, held(dtype))
