"""BERT: a bidirectional encoder of text, without a head or with one of two.

After Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers (2018).
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any, ClassVar

from backburn.base.errors import OutOfRangeError, ShapeError
from backburn.models.bert_layers import BertDense, BertEmbeddings, BertLayer
from backburn.models.configs import BertConfig
from backburn.models.pretrained import Pretrained
from backburn.nn import Dropout, LayerNorm, Linear, Module, init, parameter
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.core.dispatch import tensor_operand
from backburn.tensor.core.messages import describe


class BertModel(Module):
    """The layers between tokens and the head; ``pooler`` is for the first token of the result."""

    def __init__(self, config: BertConfig, has_pooler: bool) -> None:
        self.config, self.embeddings = config, BertEmbeddings(config)
        self.encoder = {"layer": [BertLayer(config) for _ in range(config.num_hidden_layers)]}
        if has_pooler:
            self.pooler = BertDense(config, config.hidden_size, "tanh")

    def forward(self, tokens: Tensor, attention_mask: Tensor | None, segments: Tensor | None) -> FloatTensor:
        most = self.config.max_position_embeddings
        if tensor_operand("Bert", tokens).ndim and tokens.shape[-1] > most:
            raise OutOfRangeError(f"Bert: has {most} positions (max_position_embeddings), not {tokens.shape[-1]}")
        for other in (attention_mask, segments):
            if other is not None and other.shape != tokens.shape:
                words = "attention_mask (0 for padding) and token_type_ids have the shape of the tokens"
                raise ShapeError(f"Bert: {words}. Operands: {describe((tokens, other))}")
        mask: Any = None if attention_mask is None else (attention_mask != 0)[..., None, None, :]
        x: Any = self.embeddings(tokens, segments)
        for layer in self.encoder["layer"]:
            x = layer(x, mask)
        return x


class _Bert(Pretrained):
    """The base class of the architectures."""

    HAS_POOLER: ClassVar[bool] = True

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.bert = BertModel(config, self.HAS_POOLER)
        self.draw(config.initializer_range)

    def rename_weight(self, name: str) -> str | None:
        """The path of a published name, also of the first files; None for weights that the architecture lacks."""
        name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        path = name if name.startswith(("bert.", "cls.", "classifier.")) else f"bert.{name}"
        others = ("bert.embeddings.position_ids", "cls.seq_relationship.")
        return None if path.startswith(others) or (path.startswith("bert.pooler.") and not self.HAS_POOLER) else path


class Bert(_Bert):
    """The features (..., steps, hidden_size) of tokens (..., steps).

    ``attention_mask`` is 0 for padding; ``token_type_ids`` are the segments. ``model.bert.pooler(features[..., 0, :])``
    are the features of the whole text.

    >>> import backburn as bb
    >>> config = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    ...                     intermediate_size=24)
    >>> Bert(config)(bb.asarray([[1, 2, 3]])).shape
    (1, 3, 16)
    """

    ARCHITECTURES = MappingProxyType({"BertModel": BertConfig})

    def forward(
        self, tokens: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> FloatTensor:
        """The features. Raises :class:`OutOfRangeError` for more tokens than there are positions."""
        return self.bert(tokens, attention_mask, token_type_ids)

    def published(self) -> Module:
        """The model without the prefix ``bert.``, as published files without a head have it."""
        return self.bert


class MaskedHead(Module):
    """The logits of the tokens: one more layer, then a linear one, by default with the weight of the embeddings."""

    def __init__(self, config: BertConfig, embeddings: Any) -> None:
        self.bias = parameter(init.zeros((config.vocab_size,)))
        self.transform = BertDense(config, config.hidden_size, config.hidden_act)
        self.transform.LayerNorm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = Linear(config.hidden_size, config.vocab_size)
        self.decoder.bias = self.bias
        if config.tie_word_embeddings:
            self.decoder.weight = embeddings.word_embeddings.weight

    def forward(self, x: Tensor) -> FloatTensor:
        return self.decoder(self.transform(x))


class Heads(Module):
    """The pre-training heads, of which only ``predictions`` is kept."""

    def __init__(self, predictions: MaskedHead) -> None:
        self.predictions = predictions


class BertForMaskedLM(_Bert):
    """The logits (..., steps, vocab_size) of masked tokens; called as :class:`Bert`."""

    ARCHITECTURES = MappingProxyType({"BertForMaskedLM": BertConfig})
    HAS_POOLER = False

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.cls = Heads(MaskedHead(config, self.bert.embeddings))
        self.draw(config.initializer_range)

    def forward(
        self, tokens: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> FloatTensor:
        """The logits. Raises the errors of :class:`Bert`."""
        return self.cls.predictions(self.bert(tokens, attention_mask, token_type_ids))


class BertForSequenceClassification(_Bert):
    """The logits (..., num_labels) of a text's class; called as :class:`Bert`."""

    ARCHITECTURES = MappingProxyType({"BertForSequenceClassification": BertConfig})

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        p = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout, self.classifier = Dropout(p), Linear(config.hidden_size, len(config.id2label or ()))
        self.draw(config.initializer_range)

    def forward(
        self, tokens: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> FloatTensor:
        """The logits. Raises the errors of :class:`Bert`."""
        features: Any = self.bert(tokens, attention_mask, token_type_ids)
        return self.classifier(self.dropout(self.bert.pooler(features[..., 0, :])))
