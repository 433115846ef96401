"""ViT: an image is split into patches, and an encoder attends from patch to patch.

After Dosovitskiy et al., An Image is Worth 16x16 Words (2020).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from backburn.base.errors import ShapeError
from backburn.models.attention import ACTIVATIONS, merge_heads, split_heads
from backburn.models.configs import ViTConfig
from backburn.models.pretrained import Pretrained
from backburn.nn import Conv2d, Dropout, LayerNorm, Linear, Module, functional, init, parameter
from backburn.tensor import shape
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.core.messages import describe


class PatchEmbeddings(Module):
    """A linear map of each patch, as a convolution."""

    def __init__(self, config: ViTConfig) -> None:
        patch = tuple(config.lengths("patch_size"))
        self.projection = Conv2d(config.num_channels, config.hidden_size, patch, stride=patch)

    def forward(self, x: Tensor) -> Any:
        """(batch, channels, height, width) as (batch, patches, hidden_size)."""
        y = self.projection(x)
        return shape.swapaxes(y.reshape((*y.shape[:-2], y.shape[-2] * y.shape[-1])), -1, -2)


class ViTEmbeddings(Module):
    """A learned token for the whole image, then the patches, with their positions."""

    def __init__(self, config: ViTConfig) -> None:
        self.image = tuple(config.lengths("image_size"))
        lengths = zip(self.image, config.lengths("patch_size"), strict=True)
        rows, columns = (image // patch for image, patch in lengths)
        self.cls_token = parameter(init.trunc_normal((1, 1, config.hidden_size), std=config.initializer_range))
        places = (1, 1 + rows * columns, config.hidden_size)
        self.position_embeddings = parameter(init.trunc_normal(places, std=config.initializer_range))
        self.patch_embeddings = PatchEmbeddings(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor) -> FloatTensor:
        if x.shape[-2:] != self.image:
            raise ShapeError(f"ViT: made for images of {' x '.join(map(str, self.image))} pixels, not {describe((x,))}")
        patches = self.patch_embeddings(x)
        token = shape.broadcast_to(self.cls_token, (*patches.shape[:-2], 1, patches.shape[-1]))
        joint: Any = shape.concat([token, patches], axis=-2)
        return self.dropout(joint + self.position_embeddings)


class ViTSelfAttention(Module):
    """Attention from patch to patch, without the last linear layer."""

    def __init__(self, config: ViTConfig) -> None:
        width = config.hidden_size
        self.head_dim, self.dropout = width // config.num_attention_heads, config.attention_probs_dropout_prob
        self.query, self.key, self.value = (Linear(width, width, config.qkv_bias) for _ in range(3))

    def forward(self, x: Tensor) -> Any:
        q, k, v = (split_heads(project(x), self.head_dim) for project in (self.query, self.key, self.value))
        dropout = self.dropout if self.training else 0.0
        return merge_heads(functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout))


class ViTOutput(Module):
    """The last linear layer of a block, and dropout."""

    def __init__(self, config: ViTConfig, inputs: int) -> None:
        self.dense, self.dropout = Linear(inputs, config.hidden_size), Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor) -> FloatTensor:
        return self.dropout(self.dense(x))


class ViTAttention(Module):
    """Attention from patch to patch."""

    def __init__(self, config: ViTConfig) -> None:
        self.attention, self.output = ViTSelfAttention(config), ViTOutput(config, config.hidden_size)

    def forward(self, x: Tensor) -> FloatTensor:
        return self.output(self.attention(x))


class ViTIntermediate(Module):
    """The first half of the feed-forward block."""

    def __init__(self, config: ViTConfig) -> None:
        self.dense, self.act = Linear(config.hidden_size, config.intermediate_size), config.hidden_act

    def forward(self, x: Tensor) -> FloatTensor:
        return ACTIVATIONS[self.act](self.dense(x))


class ViTLayer(Module):
    """Attention and a feed-forward block, each after a norm and with a residual connection."""

    def __init__(self, config: ViTConfig) -> None:
        self.attention = ViTAttention(config)
        self.intermediate, self.output = ViTIntermediate(config), ViTOutput(config, config.intermediate_size)
        self.layernorm_before = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.layernorm_after = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.layernorm_before(x))
        return x + self.output(self.intermediate(self.layernorm_after(x)))


class ViTModel(Module):
    """The layers between an image and the head."""

    def __init__(self, config: ViTConfig) -> None:
        self.embeddings = ViTEmbeddings(config)
        self.encoder = {"layer": [ViTLayer(config) for _ in range(config.num_hidden_layers)]}
        self.layernorm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, pixels: Tensor) -> FloatTensor:
        x: Any = self.embeddings(pixels)
        for layer in self.encoder["layer"]:
            x = layer(x)
        return self.layernorm(x)


class ViT(Pretrained):
    """A classifier of images (batch, channels, height, width); returns logits (batch, num_labels).

    >>> import backburn as bb
    >>> config = ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
    ...                    image_size=8, patch_size=4, num_labels=3)
    >>> ViT(config)(bb.zeros((2, 3, 8, 8))).shape
    (2, 3)
    """

    ARCHITECTURES = MappingProxyType({"ViTForImageClassification": ViTConfig})

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.vit, self.classifier = ViTModel(config), Linear(config.hidden_size, len(config.id2label or ()))
        self.draw(config.initializer_range)

    def forward(self, pixels: Tensor) -> FloatTensor:
        """The logits. Raises :class:`ShapeError` for images of another size."""
        return self.classifier(self.vit(pixels)[..., 0, :])
