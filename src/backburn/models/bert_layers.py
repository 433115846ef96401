"""The parts of BERT's encoder."""

from __future__ import annotations

from typing import Any

from backburn.models.attention import ACTIVATIONS, merge_heads, split_heads
from backburn.models.configs import BertConfig, padding_row
from backburn.nn import Dropout, Embedding, LayerNorm, Linear, Module, functional
from backburn.tensor import creation, elementwise
from backburn.tensor.classes import FloatTensor, Tensor


class BertEmbeddings(Module):
    """The sum of the embeddings of a token, its position, and the segment it is in."""

    def __init__(self, config: BertConfig) -> None:
        self.word_embeddings = Embedding(config.vocab_size, config.hidden_size, padding_row(config))
        self.position_embeddings = Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, tokens: Tensor, segments: Tensor | None) -> FloatTensor:
        places = creation.arange(tokens.shape[-1], backend=tokens.backend)
        kinds = creation.zeros_like(tokens) if segments is None else segments
        x: Any = self.word_embeddings(tokens) + self.token_type_embeddings(kinds) + self.position_embeddings(places)
        return self.dropout(self.LayerNorm(x))


class BertSelfAttention(Module):
    """Attention to all tokens, without the last linear layer."""

    def __init__(self, config: BertConfig) -> None:
        width = config.hidden_size
        self.head_dim, self.dropout = width // config.num_attention_heads, config.attention_probs_dropout_prob
        self.query, self.key, self.value = (Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor | None) -> Any:
        q, k, v = (split_heads(project(x), self.head_dim) for project in (self.query, self.key, self.value))
        dropout = self.dropout if self.training else 0.0
        return merge_heads(functional.scaled_dot_product_attention(q, k, v, mask, dropout))


class BertOutput(Module):
    """The last linear layer of a block; its result is added to the block's input, and normalized."""

    def __init__(self, config: BertConfig, inputs: int) -> None:
        self.dense, self.dropout = Linear(inputs, config.hidden_size), Dropout(config.hidden_dropout_prob)
        self.LayerNorm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x: Tensor, before: Any) -> FloatTensor:
        return self.LayerNorm(self.dropout(self.dense(x)) + before)


class BertAttention(Module):
    """Attention to all tokens."""

    def __init__(self, config: BertConfig) -> None:
        self.self, self.output = BertSelfAttention(config), BertOutput(config, config.hidden_size)

    def forward(self, x: Tensor, mask: Tensor | None) -> FloatTensor:
        return self.output(self.self(x, mask), x)


class BertDense(Module):
    """A linear layer and an activation; with a norm if ``LayerNorm`` is set."""

    LayerNorm: Module | None = None

    def __init__(self, config: BertConfig, outputs: int, act: str) -> None:
        self.dense, self.act = Linear(config.hidden_size, outputs), act

    def forward(self, x: Tensor) -> Any:
        y = self.dense(x)
        y = elementwise.tanh(y) if self.act == "tanh" else ACTIVATIONS[self.act](y)
        return y if self.LayerNorm is None else self.LayerNorm(y)


class BertLayer(Module):
    """Attention and a feed-forward block."""

    def __init__(self, config: BertConfig) -> None:
        self.attention = BertAttention(config)
        self.intermediate = BertDense(config, config.intermediate_size, config.hidden_act)
        self.output = BertOutput(config, config.intermediate_size)

    def forward(self, x: Any, mask: Tensor | None) -> Any:
        x = self.attention(x, mask)
        return self.output(self.intermediate(x), x)
