"""Gradient rules: tables of vectors, attention."""

from __future__ import annotations

from typing import Any

from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import tangent, through_body
from backburn.backend.sequence import attention_weights, scores_gradient

Needs = tuple[bool, ...]


def is_padding(k: Any, indices: Any, weight_shape: tuple[int, ...], padding_idx: int) -> Any:
    """Which indices, which may count from the end, mean padding; in the rank of the rows."""
    found = k.equal(k.remainder(indices, weight_shape[0]), padding_idx % weight_shape[0])
    return k.reshape(found, (*indices.shape, *[1] * (len(weight_shape) - 1)))


def embedding_gradient(k: Any, g: Any, indices: Any, weight_shape: tuple[int, ...], padding_idx: int | None) -> Any:
    """The rows of the gradient, added at their indices."""
    if padding_idx is not None:
        g = k.where(is_padding(k, indices, weight_shape, padding_idx), 0.0, g)
    return k.take_backward(g, indices, weight_shape[0], 0)


gradient("embedding", weight=embedding_gradient)


def attention(
    k: Any,
    g: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    keep: Any,
    out: Any,
    causal: bool,
    scale: float,
    dropout: float,
    softcap: float | None,
    needs: Needs,
) -> tuple[Any, ...]:
    """One operation for the three, which share the gradient of the weights; a float mask gets that of the scores."""
    of_query, of_key, of_value = k.scaled_dot_product_attention_backward(
        g, query, key, value, mask, keep, out, causal, scale, dropout, softcap
    )
    of_mask = None
    if needs[3]:
        weights = attention_weights(k, query, key, mask, causal, scale, softcap)
        of_mask = k.cast(scores_gradient(k, g, value, weights, keep, dropout), k.dtype(mask))
    return of_query, of_key, of_value, of_mask


gradient("scaled_dot_product_attention", ("query", "key", "value", "mask"), attention)

# ---- tangents ----


def embedding_tangent(k: Any, t: Any, indices: Any, padding_idx: int | None) -> Any:
    """The rows of the tangent; 0 for padding, whose row is held."""
    rows = k.embedding(t, indices)
    if padding_idx is None:
        return rows
    return k.where(is_padding(k, indices, t.shape, padding_idx), 0.0, rows)


tangent("embedding", weight=embedding_tangent)
through_body("scaled_dot_product_attention")
