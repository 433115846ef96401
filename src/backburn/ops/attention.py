"""Embedding tables and attention.

16-bit floats are computed in float32. ``scaled_dot_product_attention_backward`` is the gradient of the operation
before it as one operation; it has no gradient rule: further derivatives follow from its body.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from backburn.base.dtypes import int64
from backburn.base.errors import ShapeError
from backburn.ops.bodies.half_precision import upcast_half
from backburn.ops.bodies.scalars import shape_or_none
from backburn.ops.bodies.slicing import transpose
from backburn.ops.primitives import Primitives
from backburn.ops.random import apply_dropout
from backburn.ops.rules.gradients import Needs, gradient_rule
from backburn.ops.rules.shapes import Shape, broadcast_to
from backburn.ops.rules.tangents import decompose, tangent
from backburn.ops.rules.work import multiply_adds
from backburn.ops.table import operation
from backburn.ops.types import B, F, I, Q

# ---- shapes ----


def _embedding_shape(weight: Shape, indices: Shape, **_: Any) -> Shape:
    if not weight:
        raise ShapeError("the weight has no rows")
    return (*indices, *weight[1:])


def _check_scores(query: Shape, key: Shape, mask: Shape | None, keep: Shape | None) -> Shape:
    scores = (*query[:-1], key[-2])
    if mask is not None:
        broadcast_to(mask, shape=scores)
    if keep is not None:
        broadcast_to(keep, shape=scores)
    return scores


def attention_shape(
    query: Shape, key: Shape, value: Shape, mask: Shape | None = None, keep: Shape | None = None, **_: Any
) -> Shape:
    """The shape of attention."""
    if not len(query) == len(key) == len(value) >= 2 or not query[:-2] == key[:-2] == value[:-2]:
        raise ShapeError(
            f"queries {list(query)}, keys {list(key)} and values {list(value)} must agree in all but the last two axes"
        )
    if query[-1] != key[-1]:
        raise ShapeError(f"queries have the length {query[-1]} and keys {key[-1]}")
    if key[-2] != value[-2]:
        raise ShapeError(f"there are {key[-2]} keys and {value[-2]} values")
    _check_scores(query, key, mask, keep)
    return (*query[:-1], value[-1])


# ---- helpers ----


def attention_weights(
    k: Any, query: Any, key: Any, mask: Any, causal: bool, scale: float, softcap: float | None
) -> Any:
    """The weights of each query before dropout; all 0 for a query without keys to attend to."""
    return softmax_weights(k, masked_scores(k, k.matmul(query, transpose(k, key)), mask, causal, scale, softcap))


def masked_scores(k: Any, products: Any, mask: Any, causal: bool, scale: float, softcap: float | None) -> Any:
    """Scaled and capped products of queries and keys; minus infinity where a query does not attend to a key."""
    scores = products if scale == 1.0 else k.mul(products, scale)
    if softcap is not None:
        scores = k.mul(k.tanh(k.div(scores, softcap)), softcap)
    if mask is not None:
        is_bool = k.dtype(mask).kind == "bool"
        scores = k.where(mask, scores, -math.inf) if is_bool else k.add(scores, upcast_half(k, mask))
    if causal:
        rows, places = scores.shape[-2:]
        row, place = k.arange(0, rows, 1, int64), k.arange(0, places, 1, int64)
        allowed = k.less_equal(k.reshape(place, (1, places)), k.reshape(row, (rows, 1)))
        scores = k.where(allowed, scores, -math.inf)
    return scores


def softmax_weights(k: Any, scores: Any) -> Any:
    """The softmax of each query's scores; all 0 if all scores are minus infinity."""
    if 0 in scores.shape:
        return scores
    last = len(scores.shape) - 1
    top = k.max(scores, (last,), True)
    top = k.where(k.equal(top, -math.inf), 0.0, top)
    powers = k.exp(k.sub(scores, top))
    total = k.sum(powers, (last,), True)
    return k.div(powers, k.where(k.equal(total, 0.0), 1.0, total))


# ---- gradients ----


def is_padding(k: Any, indices: Any, weight_shape: tuple[int, ...], padding_idx: int) -> Any:
    """A mask of the indices that mean padding (also counted from the end), which broadcasts to the rows."""
    found = k.equal(k.remainder(indices, weight_shape[0]), padding_idx % weight_shape[0])
    return k.reshape(found, (*indices.shape, *[1] * (len(weight_shape) - 1)))


def grad_embedding(k: Any, g: Any, indices: Any, weight_shape: tuple[int, ...], padding_idx: int | None) -> Any:
    """The gradient of the weight: rows of ``g`` added at their indices."""
    if padding_idx is not None:
        g = k.where(is_padding(k, indices, weight_shape, padding_idx), 0.0, g)
    return k.take_backward(g, indices, weight_shape[0], 0)


def grad_attention(
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
    """The gradients of queries, keys and values in one operation; a float mask gets the gradient of the scores."""
    grad_query, grad_key, grad_value = k.scaled_dot_product_attention_backward(
        g, query, key, value, mask, keep, out, causal, scale, dropout, softcap
    )
    grad_mask = None
    if needs[3]:
        weights = attention_weights(k, query, key, mask, causal, scale, softcap)
        grad_mask = k.astype(grad_scores_of_weights(k, g, value, weights, keep, dropout), k.dtype(mask))
    return grad_query, grad_key, grad_value, grad_mask


def grad_scores_of_weights(k: Any, g: Any, value: Any, weights: Any, keep: Any, dropout: float) -> Any:
    """The gradient of attention for its scores."""
    grad_weights = apply_dropout(k, k.matmul(g, transpose(k, value)), keep, dropout)
    mean = k.sum(k.mul(grad_weights, weights), (len(weights.shape) - 1,), True)
    return k.mul(weights, k.sub(grad_weights, mean))


def grad_products_of_scores(k: Any, grad_scores: Any, products: Any, scale: float, softcap: float | None) -> Any:
    """The gradient of attention for the products of queries and keys, from that for its scores."""
    grad_scores = grad_scores if scale == 1.0 else k.mul(grad_scores, scale)
    if softcap is None:
        return grad_scores
    return k.mul(grad_scores, k.sub(1.0, k.square(k.tanh(k.mul(products, scale / softcap)))))


def tangent_embedding(k: Any, t: Any, indices: Any, padding_idx: int | None) -> Any:
    """The rows of the tangent; 0 for padding, whose row is constant."""
    rows = k.embedding(t, indices)
    if padding_idx is None:
        return rows
    return k.where(is_padding(k, indices, t.shape, padding_idx), 0.0, rows)


class Attention(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Embedding tables and attention."""

    @operation(kinds="F", shape=_embedding_shape, like=("weight",), differentiable=True)
    def embedding(self: Any, weight: F, indices: I, /, padding_idx: int | None = None) -> F:
        """The rows of ``weight`` at ``indices``; the row ``padding_idx`` (None: none) gets no gradient."""
        return self.take(weight, indices, 0)

    gradient_rule(embedding, weight=grad_embedding)
    tangent(embedding, weight=tangent_embedding)

    @operation(kinds="F", shape=attention_shape, like=("query", "key", "value"), differentiable=True)
    def scaled_dot_product_attention(
        self: Any,
        query: F,
        key: F,
        value: F,
        mask: F | B | None = None,
        keep: B | None = None,
        /,
        causal: bool = False,
        scale: float = 1.0,
        dropout: float = 0.0,
        softcap: float | None = None,
    ) -> F:
        """``softmax(scale * query @ key.T + mask) @ value``, over the last two axes of all operands.

        Queries (..., queries, size), keys (..., keys, size) and values (..., keys, width) agree in leading axes; the
        result is (..., queries, width). A bool ``mask`` is True for the keys to attend to, a float one is added to the
        scores; both broadcast to (..., queries, keys). With ``causal``, query ``i`` attends to keys up to ``i``. A
        query without keys to attend to gives 0. ``keep`` selects the weights that are not dropped; these are divided by
        ``1 - dropout``. A ``softcap`` above 0 replaces the scaled products by ``softcap * tanh(products / softcap)``,
        before the mask. After Vaswani et al., Attention is all you need, 2017.
        """
        attention_shape(query.shape, key.shape, value.shape, *map(shape_or_none, (mask, keep)))
        dtype, wide = self.dtype(query), [upcast_half(self, t) for t in (query, key, value)]
        weights = attention_weights(self, wide[0], wide[1], mask, causal, scale, softcap)
        return self.astype(self.matmul(apply_dropout(self, weights, keep, dropout), wide[2]), dtype)

    gradient_rule(scaled_dot_product_attention, ("query", "key", "value", "mask"), grad_attention)
    decompose(scaled_dot_product_attention)
    multiply_adds(
        scaled_dot_product_attention,
        lambda out, query, key, value, *_, **__: math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1]),
    )

    @operation(
        kinds="F",
        shape=lambda grad, query, key, value, *_, **__: (query, key, value),
        result=("same", "same", "same"),
        like=("grad", "query", "key", "value"),
        differentiable=True,
    )
    def scaled_dot_product_attention_backward(
        self: Any,
        grad: F,
        query: F,
        key: F,
        value: F,
        mask: F | B | None = None,
        keep: B | None = None,
        y: F | None = None,
        /,
        causal: bool = False,
        scale: float = 1.0,
        dropout: float = 0.0,
        softcap: float | None = None,
    ) -> tuple[F, F, F]:
        """The gradients of :meth:`scaled_dot_product_attention` for queries, keys and values; ``y`` is its result."""
        dtype = self.dtype(query)
        g, q, key, v = (upcast_half(self, t) for t in (grad, query, key, value))
        products = self.matmul(q, transpose(self, key))
        weights = softmax_weights(self, masked_scores(self, products, mask, causal, scale, softcap))
        grad_value = self.matmul(transpose(self, apply_dropout(self, weights, keep, dropout)), g)
        grad_scores = grad_scores_of_weights(self, g, v, weights, keep, dropout)
        grad_products = grad_products_of_scores(self, grad_scores, products, scale, softcap)
        grad_query, grad_key = self.matmul(grad_products, key), self.matmul(transpose(self, grad_products), q)
        return self.astype(grad_query, dtype), self.astype(grad_key, dtype), self.astype(grad_value, dtype)

    multiply_adds(
        scaled_dot_product_attention_backward,
        lambda out, grad, query, key, *_, **__: math.prod(out[:-1]) * key[-2] * (3 * query[-1] + 2 * grad[-1]),
    )
