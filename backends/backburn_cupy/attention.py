"""CuPy: attention, fused if possible (:mod:`backburn_cupy.attention_fused`), otherwise by matrix products.

Neither cuDNN nor the kernels cap scores.

Scores and their softmax have at least 32 bits; for 16-bit floats the weights are rounded before the product with the
values, so that all products use tensor cores.
"""

from __future__ import annotations

from typing import Any

from backburn.ops.attention import attention_shape, grad_products_of_scores, masked_scores, softmax_weights
from backburn.ops.bodies.slicing import transpose
from backburn.ops.random import apply_dropout
from backburn.ops.table import shape_rule
from backburn_cupy import attention_fused
from backburn_cupy.creation import cast
from backburn_cupy.kernels.attention import Options
from backburn_cupy.linalg import product
from backburn_cupy.reduce import compute_dtype

Array = Any


def scaled_dot_product_attention(
    k: Any, query: Array, key: Array, value: Array, mask: Array | None = None, keep: Array | None = None, /,
    causal: bool = False, scale: float = 1.0, dropout: float = 0.0, softcap: float | None = None,
) -> Array:  # fmt: skip
    masks = (None if t is None else t.shape for t in (mask, keep))
    attention_shape(query.shape, key.shape, value.shape, *masks)
    if softcap is None:
        y = attention_fused.forward(k, query, key, value, Options(mask, keep, causal, float(scale), dropout))
        if y is not None:
            return y
    products = product(k, query, transpose(k, key), dtype=compute_dtype(query))
    weights = apply_dropout(k, _weights(k, products, mask, causal, scale, softcap), keep, dropout)
    return product(k, cast(weights, value.dtype), value)


def scaled_dot_product_attention_backward(
    k: Any, grad: Array, query: Array, key: Array, value: Array, mask: Array | None = None,
    keep: Array | None = None, y: Array | None = None, /, causal: bool = False, scale: float = 1.0,
    dropout: float = 0.0, softcap: float | None = None,
) -> Any:  # fmt: skip
    shapes = (None if t is None else t.shape for t in (grad, query, key, value, mask, keep, y))
    shape_rule("scaled_dot_product_attention_backward")(*shapes)
    if softcap is None:
        options = Options(mask, keep, causal, float(scale), dropout)
        gradients = attention_fused.backward(k, grad, query, key, value, y, options)
        if gradients is not None:
            return gradients
    wide, dtype = compute_dtype(query), query.dtype
    products = product(k, query, transpose(k, key), dtype=wide)
    weights = _weights(k, products, mask, causal, scale, softcap)
    grad_value = product(k, transpose(k, cast(apply_dropout(k, weights, keep, dropout), dtype)), grad)
    grad_weights = apply_dropout(k, product(k, grad, transpose(k, value), dtype=wide), keep, dropout)
    grad_scores = k.softmax_backward(grad_weights, weights, weights.ndim - 1)
    grad_products = cast(grad_products_of_scores(k, grad_scores, products, scale, softcap), dtype)
    return product(k, grad_products, key), product(k, transpose(k, grad_products), query), grad_value


# ---- by products ----


def _weights(k: Any, products: Array, mask: Array | None, causal: bool, scale: float, softcap: float | None) -> Array:
    """The attention weights, of at least 32 bits; if every query can attend to some key, by one softmax."""
    scores = masked_scores(k, products, mask, causal, scale, softcap)
    return softmax_weights(k, scores) if mask is not None or 0 in scores.shape else k.softmax(scores, scores.ndim - 1)
