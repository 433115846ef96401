"""Samples: tables of vectors, attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn.conformance.samples.table import INF, Array, booleans, case, integers, ints, real, samples

samples(
    "embedding",
    lambda weight, indices, padding_idx=None: weight[indices],
    case(real(4, 2), ints(2, 0, 2)),
    case(real(3, 2), ints([0, 1], [2, 1])),
    case(real(3), np.array(1), note="rows are numbers"),
    case(real(3, 2, 2), ints(-1, 0)),
    case(real(4, 2), np.zeros((0, 3), np.int64)),
    case(
        real(3, 2), ints(1, -2, 2, 2), padding_idx=1, smooth=0,
        gradients=(np.array([[0.0, 0.0], [0.0, 0.0], [2.0, 2.0]]), None),
    ),
    case(
        real(3, 1), ints(0, 2), padding_idx=-1, smooth=0, gradients=(np.array([[1.0], [0.0], [0.0]]), None),
    ),
)  # fmt: skip


def attention_weights(
    query: Array, key: Array, mask: Array | None, causal: bool, scale: float, softcap: float | None
) -> Array:
    """The weight of each value for each query."""
    scores = scale * query @ np.swapaxes(key, -1, -2)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None:
        scores = np.where(mask, scores, -INF) if mask.dtype == bool else scores + mask
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:]) == 1, scores, -INF)
    powers = np.exp(scores - np.max(scores, -1, keepdims=True, initial=-1e300))
    total = powers.sum(-1, keepdims=True)
    return np.where(total == 0, 0.0, powers / np.where(total == 0, 1, total))


def attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    keep: Array | None = None,
    causal: bool = False,
    scale: float = 1.0,
    dropout: float = 0.0,
    softcap: float | None = None,
) -> Array:
    """The reference of ``scaled_dot_product_attention``."""
    weights = attention_weights(query, key, mask, causal, scale, softcap)
    return (weights if keep is None else np.where(keep, weights / (1 - dropout), 0)) @ value


def attention_backward(
    grad: Array,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    keep: Array | None = None,
    y: Array | None = None,
    causal: bool = False,
    scale: float = 1.0,
    dropout: float = 0.0,
    softcap: float | None = None,
) -> tuple[Array, Array, Array]:
    """The reference of ``scaled_dot_product_attention_backward``."""
    weights = attention_weights(query, key, mask, causal, scale, softcap)
    factor = 1.0 if keep is None else keep / (1 - dropout)
    grad_weights = grad @ np.swapaxes(value, -1, -2) * factor
    grad_scores = scale * weights * (grad_weights - (grad_weights * weights).sum(-1, keepdims=True))
    if softcap is not None:
        grad_scores = grad_scores / np.cosh(scale / softcap * query @ np.swapaxes(key, -1, -2)) ** 2
    grad_value = np.swapaxes(weights * factor, -1, -2) @ grad
    return grad_scores @ key, np.swapaxes(grad_scores, -1, -2) @ query, grad_value


ALONE = np.array([[True, False, True], [False, False, False]])
CALLS: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    ((real(2, 2), real(3, 2, seed=1), real(3, 2, seed=2)), {}),
    ((real(2, 2, 2), real(2, 3, 2, seed=1), real(2, 3, 1, seed=2)), {"scale": 0.5}),
    ((real(3, 2), real(3, 2, seed=1), real(3, 2, seed=2)), {"causal": True}),
    ((real(2, 2), real(3, 2, seed=1), real(3, 2, seed=2)), {"causal": True, "scale": 0.7}),
    ((real(2, 2), real(3, 2, seed=1), real(3, 2, seed=2), ALONE), {}),
    ((real(2, 2), real(3, 2, seed=1), real(3, 2, seed=2), real(2, 3, seed=3)), {}),
    ((real(2, 2, 2), real(2, 3, 2, seed=1), real(2, 3, 2, seed=2), booleans(2, 1, 3), booleans(2, 2, 3, seed=1)),
     {"dropout": 0.5, "causal": True}),
    ((real(2, 2), real(3, 2, seed=1), real(3, 2, seed=2)), {"softcap": 0.5, "scale": 0.7}),
    ((real(2, 2), real(3, 2, seed=1), real(3, 2, seed=2), real(2, 3, seed=3)), {"softcap": 2.0, "causal": True}),
    ((real(2, 2, 2), real(2, 3, 2, seed=1), real(2, 3, 2, seed=2), ALONE, booleans(2, 2, 3, seed=1)),
     {"dropout": 0.5, "softcap": 1.0}),
    ((real(0, 2), real(3, 2), real(3, 2)), {}),
    ((real(2, 2), real(0, 2), real(0, 2)), {}),
    ((real(0, 2, 2), real(0, 3, 2), real(0, 3, 2)), {}),
)  # fmt: skip
samples(
    "scaled_dot_product_attention",
    attention,
    *(case(*operands, **options) for operands, options in CALLS),
    case(real(2, 2), real(3, 2, seed=1), real(3, 2, seed=2), real(3, seed=3), None, note="the mask is for keys"),
    case(real(2, 2), real(3, 2, seed=1), real(3, 2, seed=2), np.where(ALONE, 0.5, -INF), smooth=0),
    case(300 * real(2, 2), real(2, 2, seed=1), real(2, 2, seed=2), smooth=1, note="exponentials overflow"),
    case(real(370, 1), real(360, 1, seed=1), real(360, 1, seed=2), smooth=1, note="several blocks of queries"),
    case(real(370, 1), real(360, 1, seed=1), real(360, 1, seed=2), integers(1, 360) > 0, causal=True, smooth=1),
    tolerance=3.0,
    because="errors of large scores are errors of their exponentials",
)
samples(
    "scaled_dot_product_attention_backward",
    attention_backward,
    *(
        case(
            real(*operands[0].shape[:-1], operands[2].shape[-1], seed=5),
            *operands,
            *(None,) * (5 - len(operands)),
            attention(*operands, **options),  # pyright: ignore[reportArgumentType] - each call has its operands
            smooth=2,
            **options,
        )
        for operands, options in CALLS
    ),
    tolerance=3.0,
    because="as in the operation itself",
)
