"""CuPy: attention, fused if possible (:mod:`backburn_cupy.attend_fused`), otherwise by matrix products.

Neither cuDNN nor the kernels cap scores.

Scores and their softmax have at least 32 bits; for 16-bit floats the weights are rounded before the product with the
values, so that all products use tensor cores.
"""

from __future__ import annotations

from typing import Any

from backburn.backend.random import dropped
from backburn.backend.sequence import attended, masked_scores, products_gradient, weights_of
from backburn.backend.table import shape_rule
from backburn.backend.views import transposed
from backburn_cupy import attend_fused
from backburn_cupy.create import converted
from backburn_cupy.kernels.attention import Options
from backburn_cupy.products import product
from backburn_cupy.reduce import widened_dtype

Array = Any


def scaled_dot_product_attention(
    k: Any, query: Array, key: Array, value: Array, mask: Array | None = None, keep: Array | None = None, /,
    causal: bool = False, scale: float = 1.0, dropout: float = 0.0, softcap: float | None = None,
) -> Array:  # fmt: skip
    masks = (None if t is None else t.shape for t in (mask, keep))
    attended(query.shape, key.shape, value.shape, *masks)
    if softcap is None:
        y = attend_fused.forward(k, query, key, value, Options(mask, keep, causal, float(scale), dropout))
        if y is not None:
            return y
    products = product(k, query, transposed(k, key), dtype=widened_dtype(query))
    weights = dropped(k, _weights(k, products, mask, causal, scale, softcap), keep, dropout)
    return product(k, converted(weights, value.dtype), value)


def scaled_dot_product_attention_backward(
    k: Any, grad: Array, query: Array, key: Array, value: Array, mask: Array | None = None,
    keep: Array | None = None, y: Array | None = None, /, causal: bool = False, scale: float = 1.0,
    dropout: float = 0.0, softcap: float | None = None,
) -> Any:  # fmt: skip
    given = (None if t is None else t.shape for t in (grad, query, key, value, mask, keep, y))
    shape_rule("scaled_dot_product_attention_backward")(*given)
    if softcap is None:
        options = Options(mask, keep, causal, float(scale), dropout)
        gradients = attend_fused.backward(k, grad, query, key, value, y, options)
        if gradients is not None:
            return gradients
    wide, dtype = widened_dtype(query), query.dtype
    products = product(k, query, transposed(k, key), dtype=wide)
    weights = _weights(k, products, mask, causal, scale, softcap)
    of_value = product(k, transposed(k, converted(dropped(k, weights, keep, dropout), dtype)), grad)
    of_weights = dropped(k, product(k, grad, transposed(k, value), dtype=wide), keep, dropout)
    of_scores = k.softmax_backward(of_weights, weights, weights.ndim - 1)
    of_products = converted(products_gradient(k, of_scores, products, scale, softcap), dtype)
    return product(k, of_products, key), product(k, transposed(k, of_products), query), of_value


# ---- by products ----


def _weights(
    k: Any, products: Array, mask: Array | None, causal: bool, scale: float, softcap: float | None
) -> Array:
    """The attention weights, of at least 32 bits; if every query can attend to some key, by one softmax."""
    scores = masked_scores(k, products, mask, causal, scale, softcap)
    return weights_of(k, scores) if mask is not None or 0 in scores.shape else k.softmax(scores, scores.ndim - 1)
