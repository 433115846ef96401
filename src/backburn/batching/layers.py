"""Batching rules: normalization, pooling, resampling, and operations on sequences."""

from __future__ import annotations

from typing import Any

from backburn.batching.products import into_channels, into_rows
from backburn.batching.rules import Rule, batching, folded, front, is_mapped, moved, sharing, with_rank

Axes = tuple[int, ...]

# The batch axis is merged into the first axis, whose entries are independent.
for name in (
    "max_pool", "avg_pool", "avg_pool_backward", "adaptive_avg_pool", "adaptive_max_pool",
    "unfold", "fold", "interpolate", "interpolate_backward", "group_norm", "instance_norm",
):  # fmt: skip
    batching(name, folded(name, 0))
for name in ("grid_sample", "sample", "sample_backward"):
    batching(name, folded(name, 0, 1))
batching("deform_conv2d", folded("deform_conv2d", 0, 1, 3))
batching("lstm_cell", folded("lstm_cell", 0, 1, 2))
batching("gru_cell", folded("gru_cell", 0, 1))


def over_steps(name: str, *together: int) -> Rule:
    """The rule of a recurrent network over all time steps: the examples become additional rows.

    Only the operands numbered ``together`` may differ between examples.
    """

    def rule(level: Any, *operands: Any) -> Any:
        others = (x for i, x in enumerate(operands) if i not in together)
        if not level.size or any(is_mapped(level, x) for x in others):
            return NotImplemented
        k = level.inner_backend

        def fold(x: Any) -> Any:
            shape = (*x.shape[:-2], level.size * x.shape[-2], x.shape[-1])
            return k.reshape(moved(k, front(level, x), 0, len(x.shape) - 2), shape)

        def apart(y: Any) -> Any:
            shape = (*y.shape[:-2], level.size, y.shape[-2] // level.size, y.shape[-1])
            return moved(k, k.reshape(y, shape), len(y.shape) - 2, 0)

        fitted = (fold(x) if i in together and x is not None else x for i, x in enumerate(operands))
        return tuple(map(apart, getattr(k, name)(*fitted)))

    return rule


batching("lstm", over_steps("lstm", 0, 1, 2))
batching("lstm_backward", over_steps("lstm_backward", 1, 2, 3, 4, 5, 6))
batching("gru", over_steps("gru", 0, 1))
batching("gru_backward", over_steps("gru_backward", 1, 2, 3, 4, 5))


# ---- normalization ----


def normalization(name: str) -> Rule:
    """The rule of a normalization: scale and bias broadcast to ``x``, shared or not."""

    def rule(level: Any, x: Any, *parameters: Any, axis: Axes, eps: float) -> Any:
        fitted = (with_rank(level, p, len(x.shape)) for p in parameters)
        return getattr(level.inner_backend, name)(front(level, x), *fitted, tuple(a + 1 for a in axis), eps)

    return rule


def normalization_backward(name: str) -> Rule:
    """The rule of a normalization's gradient: each example has a gradient of the scale, even of a shared one."""

    def rule(level: Any, grad: Any, x: Any, scale: Any, *, axis: Axes, eps: float) -> Any:
        k = level.inner_backend
        missing = (1,) * (len(x.shape) - len(scale.shape))
        own = k.reshape(front(level, scale), (level.size, *missing, *scale.shape))
        backward = getattr(k, name)
        grad_x, grad_scale = backward(front(level, grad), front(level, x), own, tuple(a + 1 for a in axis), eps)
        return grad_x, k.reshape(grad_scale, (level.size, *scale.shape))

    return rule


def batch_norm(level: Any, x: Any, *parameters: Any, axis: int, eps: float) -> Any:
    """All examples together, if they share statistics and parameters."""
    if any(is_mapped(level, p) for p in parameters):
        return NotImplemented
    return level.inner_backend.batch_norm(x.value, *parameters, axis=axis + 1, eps=eps)


def batch_norm_training(level: Any, x: Any, scale: Any, bias: Any, *, axis: int, eps: float) -> Any:
    """Each example has its own statistics, so that its channels become separate channels."""
    if not level.size:
        return NotImplemented
    k, channels = level.inner_backend, x.shape[axis]
    shape = (*x.shape[:axis], level.size * channels, *x.shape[axis + 1 :])
    together = k.reshape(moved(k, front(level, x), 0, axis), shape)
    parameters = (None if p is None else into_rows(level, p) for p in (scale, bias))
    y, *statistics = k.batch_norm_training(together, *parameters, axis=axis, eps=eps)
    apart = k.reshape(y, (*shape[:axis], level.size, channels, *shape[axis + 1 :]))
    return moved(k, apart, axis, 0), *(k.reshape(s, (level.size, channels)) for s in statistics)


# ---- sequences ----


def attention(name: str, *masks: int) -> Rule:
    """The rule of attention, whose operands ``masks`` broadcast to the scores; the others have equal leading axes."""

    def rule(level: Any, *operands: Any, **attributes: Any) -> Any:
        rank = len(operands[0].shape)
        fitted = [with_rank(level, x, rank) if i in masks else front(level, x) for i, x in enumerate(operands)]
        return getattr(level.inner_backend, name)(*fitted, **attributes)

    return rule


def embedding(level: Any, weight: Any, indices: Any, *, padding_idx: int | None) -> Any:
    """The rows of each example's table at its indices; the row of padding gets no gradient."""
    if not is_mapped(level, weight):
        return level.inner_backend.embedding(weight, indices.value, padding_idx)
    rows = level.take(weight, indices, 0)
    if padding_idx is not None:
        length = max(1, weight.shape[0])  # a negative index may refer to the row too
        is_padding = level.equal(level.remainder(indices, length), padding_idx % length)
        spread = level.reshape(is_padding, (*indices.shape, *(1,) * (len(weight.shape) - 1)))
        rows = level.where(spread, level.stop_gradient(rows), rows)
    return rows.value


def ctc_loss(level: Any, log_probs: Any, *labels: Any, blank: int) -> Any:
    """The sequences of all examples are aligned together."""
    k, places = level.inner_backend, log_probs.shape[1]
    found = k.ctc_loss(into_channels(level, log_probs), *(into_rows(level, t) for t in labels), blank)
    return k.reshape(found, (level.size, places))


def ctc_loss_backward(level: Any, grad: Any, log_probs: Any, *labels: Any, blank: int) -> Any:
    """The gradient of :func:`ctc_loss`."""
    k = level.inner_backend
    operands = into_rows(level, grad), into_channels(level, log_probs), *(into_rows(level, t) for t in labels)
    steps, places, classes = log_probs.shape
    return moved(k, k.reshape(k.ctc_loss_backward(*operands, blank), (steps, level.size, places, classes)), 1, 0)


batching("layer_norm", normalization("layer_norm"))
batching("rms_norm", normalization("rms_norm"))
batching("layer_norm_backward", normalization_backward("layer_norm_backward"))
batching("rms_norm_backward", normalization_backward("rms_norm_backward"))
batching("batch_norm", batch_norm)
batching("batch_norm_training", batch_norm_training)
batching("scaled_dot_product_attention", attention("scaled_dot_product_attention", 3, 4))
batching("scaled_dot_product_attention_backward", attention("scaled_dot_product_attention_backward", 4, 5))
batching("embedding", embedding)
batching("feed_forward", sharing("feed_forward"))
batching("ctc_loss", ctc_loss)
batching("ctc_loss_backward", ctc_loss_backward)
