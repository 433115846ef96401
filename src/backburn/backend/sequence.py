"""Sequences: tables of vectors, attention.

16-bit floats are computed in float32. ``scaled_dot_product_attention_backward`` is the gradient of the operation
before it as one operation; it has no gradient rule of its own, so that further derivatives follow from its body.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from backburn.backend.index import shape_of, shape_or_none
from backburn.backend.kinds import Kinds
from backburn.backend.random import dropped
from backburn.backend.reduce import widened
from backburn.backend.shapes import Shape, broadcast_to
from backburn.backend.table import operation
from backburn.backend.types import B, F, I, Q
from backburn.backend.views import transposed
from backburn.base.dtypes import int64
from backburn.base.errors import ShapeError

# ---- shapes ----


def _embedded(weight: Shape, indices: Shape, **_: Any) -> Shape:
    if not weight:
        raise ShapeError("the weight has no rows")
    return (*indices, *weight[1:])


def _scores(query: Shape, key: Shape, mask: Shape | None, keep: Shape | None) -> Shape:
    scores = (*query[:-1], key[-2])
    if mask is not None:
        broadcast_to(mask, shape=scores)
    if keep is not None:
        broadcast_to(keep, shape=scores)
    return scores


def attended(
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
    _scores(query, key, mask, keep)
    return (*query[:-1], value[-1])


# ---- helpers ----


def attention_weights(
    k: Any, query: Any, key: Any, mask: Any, causal: bool, scale: float, softcap: float | None
) -> Any:
    """The weights of each query before dropout; all 0 for a query without keys to attend to."""
    return weights_of(k, masked_scores(k, k.matmul(query, transposed(k, key)), mask, causal, scale, softcap))


def masked_scores(k: Any, products: Any, mask: Any, causal: bool, scale: float, softcap: float | None) -> Any:
    """Scaled and capped products of queries and keys; minus infinity where a query does not attend to a key."""
    scores = k.mul(products, scale)
    if softcap is not None:
        scores = k.mul(k.tanh(k.div(scores, softcap)), softcap)
    if mask is not None:
        is_bool = k.dtype(mask).kind == "bool"
        scores = k.where(mask, scores, -math.inf) if is_bool else k.add(scores, widened(k, mask))
    if causal:
        rows, places = scores.shape[-2:]
        row, place = k.arange(0, rows, 1, int64), k.arange(0, places, 1, int64)
        allowed = k.less_equal(k.reshape(place, (1, places)), k.reshape(row, (rows, 1)))
        scores = k.where(allowed, scores, -math.inf)
    return scores


def weights_of(k: Any, scores: Any) -> Any:
    """The softmax of each query's scores; all 0 if all scores are minus infinity."""
    if 0 in scores.shape:
        return scores
    last = len(scores.shape) - 1
    top = k.max(scores, (last,), True)
    top = k.where(k.equal(top, -math.inf), 0.0, top)
    powers = k.exp(k.sub(scores, top))
    total = k.sum(powers, (last,), True)
    return k.div(powers, k.where(k.equal(total, 0.0), 1.0, total))


class Sequence(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
    """Tables of vectors, attention."""

    @operation(kinds="F", shape=_embedded, like=("weight",), differentiable=True)
    def embedding(self: Any, weight: F, indices: I, /, padding_idx: int | None = None) -> F:
        """The rows of ``weight`` at ``indices``; the row ``padding_idx`` (None: none) gets no gradient."""
        return self.take(weight, indices, 0)

    @operation(kinds="F", shape=attended, like=("query", "key", "value"), differentiable=True)
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
        attended(*map(shape_of, (query, key, value)), *map(shape_or_none, (mask, keep)))
        dtype, wide = self.dtype(query), [widened(self, t) for t in (query, key, value)]
        weights = attention_weights(self, wide[0], wide[1], mask, causal, scale, softcap)
        return self.cast(self.matmul(dropped(self, weights, keep, dropout), wide[2]), dtype)

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
        g, q, key, v = (widened(self, t) for t in (grad, query, key, value))
        products = self.matmul(q, transposed(self, key))
        weights = weights_of(self, masked_scores(self, products, mask, causal, scale, softcap))
        of_value = self.matmul(transposed(self, dropped(self, weights, keep, dropout)), g)
        of_scores = scores_gradient(self, g, v, weights, keep, dropout)
        of_products = products_gradient(self, of_scores, products, scale, softcap)
        of_query, of_key = self.matmul(of_products, key), self.matmul(transposed(self, of_products), q)
        return self.cast(of_query, dtype), self.cast(of_key, dtype), self.cast(of_value, dtype)


def scores_gradient(k: Any, g: Any, value: Any, weights: Any, keep: Any, dropout: float) -> Any:
    """The gradient of attention for its scores."""
    of_weights = dropped(k, k.matmul(g, transposed(k, value)), keep, dropout)
    mean = k.sum(k.mul(of_weights, weights), (len(shape_of(weights)) - 1,), True)
    return k.mul(weights, k.sub(of_weights, mean))


def products_gradient(k: Any, of_scores: Any, products: Any, scale: float, softcap: float | None) -> Any:
    """The gradient of attention for the products of queries and keys, from that for its scores."""
    of_scores = k.mul(of_scores, scale)
    if softcap is None:
        return of_scores
    return k.mul(of_scores, k.sub(1.0, k.square(k.tanh(k.mul(products, scale / softcap)))))
