"""Transformer layers."""

from __future__ import annotations

from typing import Any

from backburn.nn import functional
from backburn.nn.attention import KeyValueCache, MultiHeadAttention
from backburn.nn.linear import Linear, sizes
from backburn.nn.module import Module
from backburn.nn.normalization import LayerNorm
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.dispatch import tensor_operand
from backburn.tensor.options import flags, one_of


class _Layer(Module):
    """Attention and two linear layers, each added to its input; between them, attention to another sequence."""

    _is_crossed = False

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
        name = type(self).__name__
        one_of(name, "the activation", activation, ("gelu", "gelu_tanh", "relu"))
        size, heads = sizes(name, size=size, heads=heads)
        (hidden,) = sizes(name, hidden=4 * size if hidden is None else hidden)
        functional.check_probability(name, dropout)
        flags(name, pre_norm=pre_norm)
        self.attention = MultiHeadAttention(size, heads, dropout=dropout)
        if self._is_crossed:
            self.cross_attention = MultiHeadAttention(size, heads, dropout=dropout)
        self.first = Linear(size, hidden)
        self.second = Linear(hidden, size)
        self.attention_norm = LayerNorm(size, eps=eps)
        if self._is_crossed:
            self.cross_attention_norm = LayerNorm(size, eps=eps)
        self.feedforward_norm = LayerNorm(size, eps=eps)
        self.dropout = dropout
        self.activation = activation
        self.pre_norm = pre_norm

    def _added(self, x: Any, norm: LayerNorm, part: Any) -> Any:
        """The residual connection ``x + part(x)``, normalized before or after."""
        if self.pre_norm:
            return x + self._dropped(part(norm(x)))
        return norm(x + self._dropped(part(x)))

    def _feedforward(self, x: Tensor) -> Any:
        first, second = self.first, self.second
        if not (self.training and self.dropout) and _is_plain(first) and _is_plain(second):
            return functional.feed_forward(x, first.weight, first.bias, second.weight, second.bias, self.activation)
        hidden, form = first(x), functional.GELUS.get(self.activation)
        active = functional.relu(hidden) if form is None else functional.gelu(hidden, form)
        return second(self._dropped(active))

    def _dropped(self, x: Any) -> FloatTensor:
        return functional.dropout(x, self.dropout, training=self.training)


def _is_plain(layer: Module) -> bool:
    """Whether calling a layer gives its product and does nothing else, such as being observed."""
    return type(layer) is Linear and "forward" not in vars(layer)


class TransformerEncoderLayer(_Layer):
    """Self-attention and two linear layers, each with a residual connection and layer norm.

    With ``pre_norm`` (the default) the input of each part is normalized, which trains without warm-up (Xiong et al.
    2020); else the sum is normalized (Vaswani et al. 2017). ``activation`` is ``"gelu"``, ``"gelu_tanh"`` (its tanh
    form) or ``"relu"``; ``hidden`` (by default ``4 * size``) is the width between the linear layers. In training mode,
    ``dropout`` applies to attention weights, hidden features and the results of both parts.

    >>> import backburn as bb
    >>> TransformerEncoderLayer(8, heads=2)(bb.zeros((3, 5, 8))).shape
    (3, 5, 8)
    """

    def forward(
        self, x: Tensor, mask: Tensor | None = None, causal: bool = False, cache: KeyValueCache | None = None
    ) -> Tensor:
        """The sequences (..., length, size); the options are those of :class:`MultiHeadAttention`."""
        tensor_operand("TransformerEncoderLayer", x)
        x = self._added(x, self.attention_norm, lambda y: self.attention(y, mask=mask, causal=causal, cache=cache))
        return self._added(x, self.feedforward_norm, self._feedforward)


class TransformerDecoderLayer(_Layer):
    """:class:`TransformerEncoderLayer` with cross-attention between its two parts.

    Called with the sequences (..., length, size) and with ``memory`` (..., other length, size), such as the output of
    an encoder. The options are those of :class:`TransformerEncoderLayer`. After Vaswani et al. (2017).

    >>> import backburn as bb
    >>> TransformerDecoderLayer(8, heads=2)(bb.zeros((3, 5, 8)), bb.zeros((3, 7, 8)), causal=True).shape
    (3, 5, 8)
    """

    _is_crossed = True

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        causal: bool = False,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """The sequences; ``mask``, ``causal`` and ``cache`` are for self-attention.

        ``memory_mask`` broadcasts to (..., heads, length, other length).
        """
        for given in (x, memory):
            tensor_operand("TransformerDecoderLayer", given)
        x = self._added(x, self.attention_norm, lambda y: self.attention(y, mask=mask, causal=causal, cache=cache))
        x = self._added(x, self.cross_attention_norm, lambda y: self.cross_attention(y, memory, mask=memory_mask))
        return self._added(x, self.feedforward_norm, self._feedforward)
