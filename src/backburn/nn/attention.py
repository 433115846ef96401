"""Attention and the layer of transformers made of it."""

from __future__ import annotations

from typing import Any

from backburn.base.errors import ArgumentError, ShapeError
from backburn.nn import functional
from backburn.nn.linear import Linear, flags, sizes
from backburn.nn.module import Module
from backburn.nn.normalization import LayerNorm
from backburn.tensor import shape
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.dispatch import describe, one_of, tensor_operand


class MultiHeadAttention(Module):
    """Attention in ``heads`` parts of the ``size`` features, between linear layers.

    Called with queries (..., queries, size), and with keys and values (..., keys, size) or none, which stands for the
    queries; returns (..., queries, size). ``mask`` and ``causal`` are those of
    :func:`functional.scaled_dot_product_attention`, the mask broadcasting to (..., heads, queries, keys). ``dropout``
    drops weights in training mode. After Vaswani et al., Attention is all you need, 2017. Raises :class:`ArgumentError`
    unless ``heads`` divides ``size``, and for a ``bias`` that is no truth value; when called :class:`ShapeError` for
    inputs that do not fit.

    >>> import backburn as bb
    >>> MultiHeadAttention(8, 2)(bb.zeros((3, 5, 8)), causal=True).shape
    (3, 5, 8)
    """

    def __init__(self, size: int, heads: int, bias: bool = True, dropout: float = 0.0) -> None:
        size, heads = sizes("MultiHeadAttention", size=size, heads=heads)
        flags("MultiHeadAttention", bias=bias)
        functional.check_probability("MultiHeadAttention", dropout)
        if size % heads:
            raise ArgumentError(f"MultiHeadAttention: {size} features do not form {heads} heads of equal size")
        self.size = size
        self.heads = heads
        self.dropout = dropout
        self.query = Linear(size, size, bias)
        self.key = Linear(size, size, bias)
        self.value = Linear(size, size, bias)
        self.output = Linear(size, size, bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> FloatTensor:
        """What each query takes of the values."""
        key = query if key is None else key
        value = key if value is None else value
        for x in (query, key, value):
            if tensor_operand("MultiHeadAttention", x).ndim < 2 or x.shape[-1] != self.size:
                raise ShapeError(
                    f"MultiHeadAttention: made for inputs (..., length, {self.size}), not {describe((x,))}"
                )
        q, k, v = (self._split(layer(x)) for layer, x in ((self.query, query), (self.key, key), (self.value, value)))
        dropout = self.dropout if self.training else 0.0
        joint: Any = functional.scaled_dot_product_attention(q, k, v, mask, causal=causal, dropout=dropout)
        joint = shape.swapaxes(joint, -2, -3)
        return self.output(joint.reshape((*joint.shape[:-2], self.size)))

    def _split(self, x: Any) -> Any:
        """(..., length, size) as (..., heads, length, size / heads)."""
        return shape.swapaxes(x.reshape((*x.shape[:-1], self.heads, self.size // self.heads)), -2, -3)


class TransformerEncoderLayer(Module):
    """Attention of a sequence to itself and two linear layers, each added to its input, with layer norms.

    With ``pre_norm`` (the default) what is added is computed from the normalized input, which trains without warm-up
    (Xiong et al. 2020); else the sum is normalized (Vaswani et al. 2017). ``activation`` is ``"gelu"`` or ``"relu"``;
    ``hidden`` (four times ``size``) is the width between the linear layers. ``dropout`` acts on attention weights, on
    hidden features and on what is added, in training mode.

    >>> import backburn as bb
    >>> TransformerEncoderLayer(8, heads=2)(bb.zeros((3, 5, 8))).shape
    (3, 5, 8)
    """

    def __init__(
        self,
        size: int,
        heads: int,
        hidden: int | None = None,
        dropout: float = 0.1,
        activation: str = "gelu",
        pre_norm: bool = True,
        eps: float = 1e-5,
    ) -> None:
        one_of("TransformerEncoderLayer", "the activation", activation, ("gelu", "relu"))
        size, heads = sizes("TransformerEncoderLayer", size=size, heads=heads)
        (hidden,) = sizes("TransformerEncoderLayer", hidden=4 * size if hidden is None else hidden)
        functional.check_probability("TransformerEncoderLayer", dropout)
        flags("TransformerEncoderLayer", pre_norm=pre_norm)
        self.attention = MultiHeadAttention(size, heads, dropout=dropout)
        self.first = Linear(size, hidden)
        self.second = Linear(hidden, size)
        self.attention_norm = LayerNorm(size, eps=eps)
        self.feedforward_norm = LayerNorm(size, eps=eps)
        self.dropout = dropout
        self.activation = activation
        self.pre_norm = pre_norm

    def forward(self, x: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """The sequences (..., length, size); ``mask`` and ``causal`` are those of :class:`MultiHeadAttention`."""
        if self.pre_norm:
            x = x + self._dropped(self.attention(self.attention_norm(x), mask=mask, causal=causal))
            return x + self._dropped(self._feedforward(self.feedforward_norm(x)))
        x = self.attention_norm(x + self._dropped(self.attention(x, mask=mask, causal=causal)))
        return self.feedforward_norm(x + self._dropped(self._feedforward(x)))

    def _feedforward(self, x: Tensor) -> Any:
        active = functional.gelu if self.activation == "gelu" else functional.relu
        return self.second(self._dropped(active(self.first(x))))

    def _dropped(self, x: Any) -> FloatTensor:
        return functional.dropout(x, self.dropout, training=self.training)
