"""GPT-2: a decoder with learned positions, layer norms and biases.

After Radford et al., Language Models are Unsupervised Multitask Learners (2019).
"""

from __future__ import annotations

import copy
import math
from types import MappingProxyType
from typing import Any

from backburn.base.errors import OutOfRangeError
from backburn.models.attention import ACTIVATIONS, Steps, split_heads
from backburn.models.cache import Cache
from backburn.models.configs import GPT2Config
from backburn.models.pretrained import Pretrained
from backburn.nn import Dropout, Embedding, LayerNorm, Linear, Module
from backburn.tensor import shape
from backburn.tensor.classes import FloatTensor, Tensor

#: The linear layers of a block; published files have their weights transposed, as (inputs, outputs).
LINEAR = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")


class GPT2Attention(Module):
    """Attention to earlier tokens; one linear layer computes queries, keys and values."""

    def __init__(self, config: GPT2Config, layer: int) -> None:
        self.layer, self.head_dim, self.dropout = layer, config.n_embd // config.n_head, config.attn_pdrop
        self.scale = 1.0 / math.sqrt(self.head_dim) if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            self.scale /= layer + 1
        self.c_attn = Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = Linear(config.n_embd, config.n_embd)
        self.resid_dropout = Dropout(config.resid_pdrop)

    def forward(self, x: Tensor, steps: Steps) -> FloatTensor:
        """The attention output of each token, of the shape of ``x``."""
        q, k, v = (split_heads(part, self.head_dim) for part in shape.chunk(self.c_attn(x), 3, axis=-1))
        dropout = self.dropout if self.training else 0.0
        return self.resid_dropout(self.c_proj(steps.attend(self.layer, q, k, v, scale=self.scale, dropout=dropout)))


class GPT2MLP(Module):
    """Two linear layers and an activation between them."""

    def __init__(self, config: GPT2Config) -> None:
        inner = config.n_inner or 4 * config.n_embd
        self.c_fc, self.c_proj = Linear(config.n_embd, inner), Linear(inner, config.n_embd)
        self.act, self.dropout = config.activation_function, Dropout(config.resid_pdrop)

    def forward(self, x: Tensor) -> FloatTensor:
        return self.dropout(self.c_proj(ACTIVATIONS[self.act](self.c_fc(x))))


class GPT2Block(Module):
    """Attention and a feed-forward block, each after a norm and with a residual connection."""

    def __init__(self, config: GPT2Config, layer: int) -> None:
        self.ln_1 = LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = GPT2Attention(config, layer)
        self.ln_2 = LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = GPT2MLP(config)

    def forward(self, x: Any, steps: Steps) -> Any:
        x = x + self.attn(self.ln_1(x), steps)
        return x + self.mlp(self.ln_2(x))


class GPT2Model(Module):
    """The layers between tokens and the head."""

    def __init__(self, config: GPT2Config) -> None:
        self.wte, self.wpe = Embedding(config.vocab_size, config.n_embd), Embedding(config.n_positions, config.n_embd)
        self.drop = Dropout(config.embd_pdrop)
        self.h = [GPT2Block(config, layer) for layer in range(config.n_layer)]
        self.ln_f = LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)

    def forward(self, tokens: Tensor, steps: Steps) -> FloatTensor:
        x: Any = self.drop(self.wte(tokens) + self.wpe(steps.positions))
        for block in self.h:
            x = block(x, steps)
        steps.finish()
        return self.ln_f(x)


class GPT2(Pretrained):
    """A decoder that gives each token (..., steps) the logits (..., steps, vocab_size) of the next one.

    ``attention_mask`` (..., steps) is 0 for padding, on either side. With a ``cache``, the tokens follow those of
    earlier calls. ``logits_to_keep=1`` computes only the logits of the last step, for generating; 0 keeps all.

    >>> import backburn as bb
    >>> GPT2(GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2))(bb.asarray([[1, 2, 3]])).shape
    (1, 3, 32)
    """

    ARCHITECTURES = MappingProxyType({"GPT2LMHeadModel": GPT2Config})

    def __init__(self, config: GPT2Config) -> None:
        super().__init__(config)
        self.transformer = GPT2Model(config)
        self.lm_head = Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.transformer.wte.weight
        self.draw(config.initializer_range, {"c_proj.weight": 1.0 / math.sqrt(2 * config.n_layer)})

    def forward(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        *,
        cache: Cache | None = None,
        logits_to_keep: int = 0,
    ) -> FloatTensor:
        """The logits. Raises :class:`OutOfRangeError` for more steps than there are positions."""
        steps = Steps("GPT2", tokens, attention_mask, cache)
        if isinstance(steps.end, int) and steps.end > self.config.n_positions:
            raise OutOfRangeError(f"GPT2: has {self.config.n_positions} positions (n_positions), not {steps.end}")
        x = self.transformer(tokens, steps)
        return self.lm_head(x[..., -logits_to_keep:, :])

    def rename_weight(self, name: str) -> Any:
        """The path of a published name, with or without its prefix; matrices of the blocks are transposed in files."""
        if name.endswith((".attn.bias", ".attn.masked_bias")):  # masks of older files
            return None
        path = name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"
        return (path, "T") if path.endswith(tuple(f"{layer}.weight" for layer in LINEAR)) else path

    def published(self) -> Module:
        """A copy with the matrices of the blocks transposed."""
        made = copy.deepcopy(self)
        for _, layer in made.named_modules():
            if isinstance(layer, (GPT2Attention, GPT2MLP)):
                for part in vars(layer).values():
                    if isinstance(part, Linear):
                        part.weight = part.weight.detach().T
        return made
