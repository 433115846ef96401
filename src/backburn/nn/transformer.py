"""Transformer layers."""

from __future__ import annotations

from typing import Any

from backburn.nn import functional
from backburn.nn.attention import KeyValueCache, MultiheadAttention
from backburn.nn.linear import Linear, sizes
from backburn.nn.module import Module
from backburn.nn.normalization import LayerNorm
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.core.dispatch import tensor_operand
from backburn.tensor.core.options import flags, one_of


class _Layer(Module):
    """Self-attention, in a decoder cross-attention, and two linear layers, each added to its input."""

    _is_crossed = False

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        layer_norm_eps: float = 1e-5,
        *,
        norm_first: bool = False,
        bias: bool = True,
    ) -> None:
        name = type(self).__name__
        one_of(name, "the activation", activation, ("relu", "gelu", "gelu_tanh"))
        d_model, nhead, hidden = sizes(name, d_model=d_model, nhead=nhead, dim_feedforward=dim_feedforward)
        functional.check_probability(name, dropout)
        flags(name, norm_first=norm_first, bias=bias)
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias)
        if self._is_crossed:
            self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, bias)
        self.linear1 = Linear(d_model, hidden, bias)
        self.linear2 = Linear(hidden, d_model, bias)
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias)
        if self._is_crossed:
            self.norm3 = LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.dropout = dropout
        self.activation = activation
        self.norm_first = norm_first

    def _added(self, x: Any, norm: LayerNorm, part: Any) -> Any:
        """The residual connection ``x + part(x)``, normalized before or after."""
        if self.norm_first:
            return x + self._dropped(part(norm(x)))
        return norm(x + self._dropped(part(x)))

    def _feedforward(self, x: Tensor) -> Any:
        first, second = self.linear1, self.linear2
        if not (self.training and self.dropout) and _is_plain(first) and _is_plain(second):
            return functional.feed_forward(x, first.weight, first.bias, second.weight, second.bias, self.activation)
        hidden, form = first(x), functional.GELUS.get(self.activation)
        active = functional.relu(hidden) if form is None else functional.gelu(hidden, form)
        return second(self._dropped(active))

    def _dropped(self, x: Any) -> FloatTensor:
        return functional.dropout(x, self.dropout, training=self.training)


def _is_plain(layer: Module) -> bool:
    """Whether calling a layer only computes its product, without an observer for example."""
    return type(layer) is Linear and "forward" not in vars(layer)


class TransformerEncoderLayer(_Layer):
    """Self-attention and two linear layers, each with a residual connection and layer norm.

    The sum is normalized (Vaswani et al. 2017), or with ``norm_first`` the input of each part, which trains without
    warm-up (Xiong et al. 2020). ``activation`` is ``"relu"``, ``"gelu"`` or ``"gelu_tanh"`` (its tanh form);
    ``dim_feedforward`` is the width between the linear layers. In training mode, ``dropout`` applies to attention
    weights, hidden features and the results of both parts. Without ``bias``, no layer has one.

    >>> import backburn as bb
    >>> TransformerEncoderLayer(8, nhead=2)(bb.zeros((3, 5, 8))).shape
    (3, 5, 8)
    """

    def forward(
        self, x: Tensor, mask: Tensor | None = None, is_causal: bool = False, cache: KeyValueCache | None = None
    ) -> Tensor:
        """The sequences (..., length, d_model); the options are those of :class:`MultiheadAttention`."""
        tensor_operand("TransformerEncoderLayer", x)
        x = self._added(x, self.norm1, lambda y: self.self_attn(y, mask=mask, is_causal=is_causal, cache=cache))
        return self._added(x, self.norm2, self._feedforward)


class TransformerDecoderLayer(_Layer):
    """:class:`TransformerEncoderLayer` with cross-attention between its two parts.

    Called with the sequences (..., length, d_model) and with ``memory`` (..., other length, d_model), such as the
    output of an encoder. The options are those of :class:`TransformerEncoderLayer`. After Vaswani et al. (2017).

    >>> import backburn as bb
    >>> TransformerDecoderLayer(8, nhead=2)(bb.zeros((3, 5, 8)), bb.zeros((3, 7, 8)), is_causal=True).shape
    (3, 5, 8)
    """

    _is_crossed = True

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        is_causal: bool = False,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """The sequences; ``mask``, ``is_causal`` and ``cache`` are for self-attention.

        ``memory_mask`` broadcasts to (..., nhead, length, other length).
        """
        for given in (x, memory):
            tensor_operand("TransformerDecoderLayer", given)
        x = self._added(x, self.norm1, lambda y: self.self_attn(y, mask=mask, is_causal=is_causal, cache=cache))
        x = self._added(x, self.norm2, lambda y: self.multihead_attn(y, memory, mask=memory_mask))
        return self._added(x, self.norm3, self._feedforward)
