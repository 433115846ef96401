"""Llama, and the models that differ from it by their configuration: Mistral, Qwen2 and Gemma.

A decoder: each layer adds attention and then a gated feed-forward block to the features of a token, each of them after
a root-mean-square norm. Queries and keys are rotated by their positions. After Touvron et al., LLaMA (2023); grouped
heads after Ainslie et al., GQA (2023); windows after Jiang et al., Mistral 7B (2023); biases and scaled embeddings
after the reports on Qwen2 and Gemma (2024).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from backburn.models.attention import ACTIVATIONS, Rotation, Steps, split_heads
from backburn.models.cache import Cache
from backburn.models.configs import GemmaConfig, LlamaConfig, MistralConfig, Qwen2Config, padding_row
from backburn.models.gguf import llama_weight
from backburn.models.gguf_keys import check_metadata
from backburn.models.pretrained import Pretrained
from backburn.models.rope import rotary_rates
from backburn.nn import Embedding, Linear, Module, RMSNorm, functional, init, parameter
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.core.dispatch import cast, upcast_half


class GemmaRMSNorm(RMSNorm):
    """The root-mean-square norm of Gemma, which multiplies by ``1 + weight``; the weight is initialized to 0."""

    def __init__(self, normalized_shape: int, eps: float) -> None:
        super().__init__(normalized_shape, eps)
        self.weight = parameter(init.zeros((normalized_shape,)))

    def forward(self, x: Tensor) -> FloatTensor:
        """The normalized vectors, rounded to the dtype of ``x`` at the end."""
        wide: Any = functional.rms_norm(upcast_half(x), upcast_half(self.weight) + 1.0, axis=-1, eps=self.eps or 0.0)
        return cast(wide, x.dtype)


def _norm(config: LlamaConfig) -> RMSNorm:
    return (GemmaRMSNorm if config.IS_GEMMA else RMSNorm)(config.hidden_size, config.rms_norm_eps)


class LlamaAttention(Module):
    """Attention to earlier tokens; groups of query heads share a head of keys and values."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        bias = config.attention_bias if config.QKV_BIAS is None else config.QKV_BIAS
        self.head_dim, inner, shared = config.widths()
        self.layer, self.window = layer, config.window(layer)
        self.dropout = config.attention_dropout
        self.q_proj = Linear(config.hidden_size, inner, bias)
        self.k_proj = Linear(config.hidden_size, shared, bias)
        self.v_proj = Linear(config.hidden_size, shared, bias)
        self.o_proj = Linear(inner, config.hidden_size, config.attention_bias)

    def forward(self, x: Tensor, steps: Steps, rotate: Rotation) -> FloatTensor:
        """The attention output of each token, of the shape of ``x``."""
        q, k, v = (split_heads(project(x), self.head_dim) for project in (self.q_proj, self.k_proj, self.v_proj))
        dropout = self.dropout if self.training else 0.0
        return self.o_proj(steps.attend(self.layer, rotate(q), rotate(k), v, window=self.window, dropout=dropout))


class LlamaMLP(Module):
    """A feed-forward block: one linear layer gates another. After Shazeer, GLU variants improve transformer, 2020."""

    def __init__(self, config: LlamaConfig) -> None:
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, config.mlp_bias)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, config.mlp_bias)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, config.mlp_bias)
        self.act = config.hidden_act

    def forward(self, x: Tensor) -> FloatTensor:
        return self.down_proj(ACTIVATIONS[self.act](self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(Module):
    """Attention and a feed-forward block, each after a norm and with a residual connection."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        self.self_attn = LlamaAttention(config, layer)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = _norm(config)
        self.post_attention_layernorm = _norm(config)

    def forward(self, x: Any, steps: Steps, rotate: Rotation) -> Any:
        x = x + self.self_attn(self.input_layernorm(x), steps, rotate)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaModel(Module):
    """The layers between tokens and the head."""

    def __init__(self, config: LlamaConfig) -> None:
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, padding_row(config))
        self.layers = [LlamaLayer(config, layer) for layer in range(config.num_hidden_layers)]
        self.norm = _norm(config)

    def forward(self, tokens: Tensor, steps: Steps) -> FloatTensor:
        x: Any = self.embed_tokens(tokens)
        if self.config.IS_GEMMA:
            x = x * math.sqrt(self.config.hidden_size)
        rotate = Rotation(steps.positions, *rotary_rates(self.config, steps.end), x)
        for layer in self.layers:
            x = layer(x, steps, rotate)
        steps.finish()
        return self.norm(x)


class Llama(Pretrained):
    """A decoder that gives each token (..., steps) the logits (..., steps, vocab_size) of the next one.

    ``attention_mask`` (..., steps) is 0 for padding, on either side. With a ``cache``, the tokens follow those of
    earlier calls. ``logits_to_keep=1`` computes only the logits of the last step, for generating; 0 keeps all.

    >>> import backburn as bb
    >>> config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
    ...                      num_attention_heads=4, num_key_value_heads=2)
    >>> Llama(config)(bb.asarray([[1, 2, 3]])).shape
    (1, 3, 32)
    """

    ARCHITECTURES = MappingProxyType({"LlamaForCausalLM": LlamaConfig, "MistralForCausalLM": MistralConfig,
                                      "Qwen2ForCausalLM": Qwen2Config, "GemmaForCausalLM": GemmaConfig})  # fmt: skip

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.model = LlamaModel(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.draw(config.initializer_range)

    def forward(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        *,
        cache: Cache | None = None,
        logits_to_keep: int = 0,
    ) -> FloatTensor:
        """The logits. Raises :class:`ShapeError` for a mask that does not have the shape of the tokens."""
        x = self.model(tokens, Steps("Llama", tokens, attention_mask, cache))
        return self.lm_head(x[..., -logits_to_keep:, :])

    def rename_weight(self, name: str) -> Any:
        """The path of a published or GGUF name; None for tensors of older files that are not weights."""
        return None if name.endswith("rotary_emb.inv_freq") else llama_weight(name, self.config)

    def _check_metadata(self, where: str, values: Mapping[str, Any], strict: bool) -> None:
        """Compare the metadata of a GGUF file with the configuration."""
        check_metadata(where, values, self.config, strict)
